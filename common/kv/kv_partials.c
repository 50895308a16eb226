// kv_partials.c: see kv_partials.h.
#include "common/kv/kv_partials.h"

#include "kernels/dispatch/kernels.h"

static struct attend_partial partial_at(float *at, uint32_t heads)
{
    return (struct attend_partial){at, at + heads, at + 2 * (size_t)heads};
}

const float *kv_partials_fold(uint32_t heads, uint32_t head_dim, const struct kv_part *parts, uint32_t count)
{
    const struct attention_kernels *table = attention_of_level(kernels->level);
    const struct attend_partial total = partial_at(parts[0].partials, heads);
    struct attend_partial span = total;

    for (uint32_t i = 0; i < count; i++) {
        float *at = parts[i].partials;
        for (uint32_t position = parts[i].first, end; position < parts[i].end; position = end) {
            const struct attend_partial next = partial_at(at, heads);
            const bool opens = position % ATTEND_SPAN == 0; // then the partial is of all of the span that the place has
            if (opens && position > ATTEND_SPAN)
                table->fold(heads, head_dim, &total, &span);
            if (opens)
                span = next;
            else
                table->fold(heads, head_dim, &span, &next);
            end = MIN(parts[i].end, opens ? position + ATTEND_SPAN : position + ATTEND_RANGE);
            at += kv_partial_floats(heads, head_dim);
        }
    }
    if (parts[count - 1].end > ATTEND_SPAN)
        table->fold(heads, head_dim, &total, &span);
    for (uint32_t head = 0; head < heads; head++)
        attend_finish(head_dim, total.acc + (size_t)head * head_dim, total.l[head], total.acc + (size_t)head * head_dim);
    return total.acc;
}

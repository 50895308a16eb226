// weight_window.c: see weight_window.h.
#include "kernels/backend/weight_window.h"

#include "common/base/checked.h"

void weight_window_init(struct weight_window *window, const struct weight_tiers *tiers)
{
    assert_always(tiers->segment_count <= WEIGHT_SEGMENTS_MAX && tiers->streamed_count > tiers->slots && tiers->slots > 0);
    *window = (struct weight_window){.slots = tiers->slots};
    for (uint32_t s = 0; s < tiers->segment_count; s++) {
        window->next_of[s] = window->count % tiers->streamed_count;
        if (weight_tiers_streams(tiers, s))
            window->segments[window->count++] = s;
    }
    for (uint32_t user = 0; user < WEIGHT_USERS_MAX; user++)
        window->wanted[user] = WEIGHT_NONE;
}

void weight_window_want(struct weight_window *window, uint32_t user, uint32_t segment)
{
    assert_always(user < WEIGHT_USERS_MAX);
    window->wanted[user] = segment == WEIGHT_NONE ? WEIGHT_NONE : segment < WEIGHT_SEGMENTS_MAX ? window->next_of[segment] : 0;
}

// The first index from `from` on, round the circle, that a user needs next; the circle's beginning without users.
static uint32_t first_wanted(const struct weight_window *window, uint32_t from)
{
    uint32_t least = WEIGHT_NONE;

    for (uint32_t user = 0; user < WEIGHT_USERS_MAX; user++)
        if (window->wanted[user] != WEIGHT_NONE)
            least = MIN(least, (window->wanted[user] + window->count - from) % window->count);
    return least == WEIGHT_NONE ? 0 : (from + least) % window->count;
}

void weight_window_give_up(struct weight_window *window)
{
    const uint32_t wanted = first_wanted(window, window->begin);

    while (window->length > 0 && window->begin != wanted) {
        window->begin = (window->begin + 1) % window->count;
        window->first_slot = (window->first_slot + 1) % window->slots;
        window->length--;
    }
    if (window->length == 0)
        window->begin = wanted;
}

uint32_t weight_window_free_slot(const struct weight_window *window)
{
    return window->length == window->slots ? WEIGHT_NONE : (window->first_slot + window->length) % window->slots;
}

uint32_t weight_window_take(struct weight_window *window)
{
    assert_always(window->length < window->slots);
    return window->segments[(window->begin + window->length++) % window->count];
}

void weight_window_seek(struct weight_window *window, uint32_t segment)
{
    window->begin = window->next_of[segment];
    window->first_slot = (window->first_slot + window->length) % window->slots;
    window->length = 0;
    assert_always(window->segments[window->begin] == segment);
}

uint32_t weight_window_find(const struct weight_window *window, uint32_t segment, uint32_t *age)
{
    const uint32_t index = window->next_of[segment];

    *age = (index + window->count - window->begin) % window->count;
    if (window->segments[index] != segment || *age >= window->length)
        return WEIGHT_NONE;
    return (window->first_slot + *age) % window->slots;
}

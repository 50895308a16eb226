// stage.c: see stage.h.
#include "common/sched/stage.h"

#include "common/base/checked.h"

enum sched_bubble sched_bubble_of(const struct sched_gap *gap, uint64_t *us)
{
    uint64_t end = MAX(gap->end_us, gap->begin_us);
    uint64_t left = MIN(MAX(gap->left_us, gap->begin_us), end), entered = MIN(MAX(gap->entered_us, gap->begin_us), end);

    *us = left >= entered ? end - gap->begin_us : left - gap->begin_us + (end - entered);
    if (gap->waited)
        return SCHED_BUBBLE_R;
    if (gap->prefill_before && gap->prefill_after)
        return SCHED_BUBBLE_PB1;
    return gap->prefill_before || gap->prefill_after ? SCHED_BUBBLE_PB2 : SCHED_BUBBLE_PB3;
}

const char *sched_bubble_name(enum sched_bubble kind)
{
    static const char *const names[SCHED_BUBBLES] = {"pb1", "pb2", "pb3", "r"};
    return names[kind];
}

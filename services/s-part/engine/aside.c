// aside.c: steps of prompts alone that go aside: whose turn it is, by the clock.
//
// Steps with `aside` have a mini-batch of their own. Their segments are computed between the end of a step of the others and the beginning of
// the next, for as long as that one says (aside_us), and while there is none:
//
//     others  ├── step ──┤             ├── step ──┤             ├── step ──┤
//     aside              ├ s ┼ s ┼ s ──┤          ├ s ┼ s ┼ s ──┤            segments s of one layer each
//                        ◀─ aside_us ─▶
//
// A segment begins only if at least half of what the latest one took is left, or if it is the first of that time. The next step of the
// others therefore comes late by half a segment, or by one, however wrong a prediction of the prompt's time is: none is made. Example: steps of
// 4 ms, aside_us 4.8 ms, segments of 1 ms: five of them, and tokens are 9 ms apart.
//
// Meanwhile a step of the others has not begun to be computed, so that time does not count for it.
#include "services/s-part/engine/engine.h"

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/sched/stage.h"

// Whether a step of the others is under way. One whose messages are answered late leaves time, too: it counts as any.
static bool others_run(const struct engine *engine)
{
    for (uint32_t i = 0; i < engine->batches.count; i++)
        if (engine->batches.of[i].state != BATCH_IDLE && !engine->batches.of[i].step.aside)
            return true;
    return false;
}

static bool has_time(const struct engine *engine)
{
    return sched_aside_has_time((double)engine->aside.used_us, (double)engine->aside.turn_us, (double)engine->aside.most_us);
}

bool engine_aside_waits(const struct engine *engine, const struct mini_batch *batch)
{
    if (batch->step.aside)
        return !has_time(engine) && others_run(engine);
    for (uint32_t i = 0; i < engine->batches.count && batch->segment == 0; i++)
        if (engine->batches.of[i].state == BATCH_READY && engine->batches.of[i].step.aside)
            return has_time(engine);
    return false;
}

void engine_aside_began(struct mini_batch *batch)
{
    batch->step.aside = batch->step.request->aside;
    batch->step.aside_before_us = batch->engine->aside.us;
    if (!batch->step.aside)
        batch->engine->aside.most_us = batch->step.request->aside_us;
}

// Books the time of the turn under way, if one is: a step may also be answered before its first segment, or when its mask is there.
static uint64_t book(struct engine *engine)
{
    const uint64_t now_us = clock_now_us(), us = engine->aside.booked_us ? now_us - engine->aside.booked_us : 0;

    engine->aside.us += us;
    engine->aside.used_us += us;
    engine->aside.booked_us = engine->aside.booked_us ? now_us : 0;
    return now_us;
}

void engine_aside_turn_begins(struct engine *engine) { engine->aside.began_us = engine->aside.booked_us = clock_now_us(); }

void engine_aside_turn_ends(struct engine *engine)
{
    engine->aside.turn_us = book(engine) - engine->aside.began_us;
    engine->aside.booked_us = 0;
}

void engine_aside_ended(struct mini_batch *batch)
{
    if (!batch->step.aside)
        batch->engine->aside.used_us = 0;
}

uint64_t engine_aside_total_us(const struct mini_batch *batch)
{
    struct engine *engine = batch->engine;

    if (batch->step.aside)
        book(engine);
    const uint64_t aside_us = engine->aside.us - batch->step.aside_before_us, all_us = clock_now_us() - batch->time.began_us;
    return batch->step.aside ? aside_us : all_us - MIN(all_us, aside_us);
}

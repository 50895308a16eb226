// aside.h: steps of prompts alone that go aside: whose turn it is, by the clock. See aside.c.
#ifndef FD_SERVICES_S_PART_ENGINE_ASIDE_H
#define FD_SERVICES_S_PART_ENGINE_ASIDE_H

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct mini_batch;

struct aside {
    bool taken;                   // steps go aside, as the last mini-batch
    uint64_t us;                  // how long they were computed in all; a step's time is measured without it
    uint64_t used_us;             // of that, since the latest step of the others ended
    uint64_t turn_us;             // of that, their latest turn
    uint64_t most_us;             // how long they may be computed before the next step of the others begins
    uint64_t began_us, booked_us; // of the turn under way: when it began; up to when it is in `us`, 0: none is
};

// Returns whether a mini-batch that is READY has to wait, because others have the time.
bool engine_aside_waits(const struct engine *engine, const struct mini_batch *batch);
void engine_aside_began(struct mini_batch *batch);
// Call these around a segment of a step that goes aside.
void engine_aside_turn_begins(struct engine *engine);
void engine_aside_turn_ends(struct engine *engine);
// A step is about to be answered.
void engine_aside_ended(struct mini_batch *batch);
// Returns what the step took so far, without the turns of others.
uint64_t engine_aside_total_us(const struct mini_batch *batch);

#endif

// clients.h: those who ask, and what their answers should be.
#ifndef FD_TESTS_SIM_CLIENTS_H
#define FD_TESTS_SIM_CLIENTS_H

#include "tests/sim/sim.h"

enum { CLIENTS_MAX = 16, KINDS = 48 };

// A request. What it asks for follows from its kind alone, so that its answer is known.
struct client_plan {
    uint64_t at_ns, leaves_ns; // leaves_ns: it goes away then; 0: it waits for its answer
    uint32_t gateway;          // index among the gateways
    uint32_t kind;             // below KINDS
    bool batch;                // of latency class batch
};

void clients_begin(const struct client_plan *plans, uint32_t count);
uint64_t clients_next_ns(void);
void clients_step(void); // what is due at world.now_ns
// The scheduler has told a gateway that it has this request: once that has arrived it may not be refused any more.
void clients_accepted(const char *request_id);
// The scheduler's process goes: what it has told, and was not held up, has arrived.
void clients_scheduler_goes(const struct node *scheduler);
// A gateway's process has gone: its clients ask again, elsewhere.
void clients_lost(const struct node *gateway);
bool clients_are_done(void);
// Says who waits, or has another answer than expected; returns whether anybody does.
bool clients_failed(char *out, size_t out_bytes);
uint32_t clients_answered(void);
void clients_end(void);

// The answer to a request of that kind where nothing fails. NULL: not known yet.
const char *clients_expected(uint32_t kind, bool real_draw);
void clients_learn(uint32_t kind, bool real_draw, const char *answer); // copies
const char *clients_answer(uint32_t index);                            // NULL: none yet

#endif

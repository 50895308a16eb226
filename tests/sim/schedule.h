// schedule.h: all that a run does by itself: the mesh, its requests, its faults. From a seed, or from a text that was kept.
#ifndef FD_TESTS_SIM_SCHEDULE_H
#define FD_TESTS_SIM_SCHEDULE_H

#include <stdio.h>

#include "tests/sim/clients.h"
#include "tests/sim/services.h"

enum { FAULTS_MAX = 24 };

enum fault_kind {
    FAULT_KILL, // a, and it is started again after `for`
    FAULT_VANISH, // as kill, without a word to anybody; value 1: it is back at another host, more: its last words come so many ns later
    FAULT_STOP,     // a gets no processor for `for`
    FAULT_PART,     // nothing passes between a and b for `for`
    FAULT_PART_WAY, // from a to b
    FAULT_CUT,      // the connections between a and b end after `value` more bytes
    FAULT_DELAY,    // from a to b messages take `value` ns more for `for`
    FAULT_SLOW,     // each turn of a takes `value` ns for `for`
    FAULT_DOUBLE,   // the next message from a to b comes twice
    FAULT_FLIP,     // a bit of the next message's head from a to b is wrong
    FAULT_CLOCK,    // a's wall clock is `value` ns ahead (or behind) from then on
    FAULT_MEMORY,   // a's `value`-th allocation from then on fails
    FAULT_DRAIN,    // the worker a drains, and is started again after `for`
    FAULT_KINDS
};

struct fault {
    uint64_t at_ns, for_ns;
    int64_t value;
    enum fault_kind kind;
    uint32_t a, b; // nodes
};

struct schedule {
    uint64_t seed;
    struct mesh_settings mesh;
    uint32_t workers, gateways;
    uint32_t late_worker; // the last worker joins at this ms; 0: with the others
    uint64_t latency_ns, jitter_ns, window_bytes;
    uint32_t split;
    struct client_plan clients[CLIENTS_MAX];
    uint32_t client_count;
    struct fault faults[FAULTS_MAX];
    uint32_t fault_count;
};

void schedule_make(uint64_t seed, struct schedule *out);
// One request of that kind, in a mesh without faults and workers.
void schedule_alone(uint32_t kind, bool real_draw, struct schedule *out);
void schedule_write(const struct schedule *schedule, FILE *file);
bool schedule_read(FILE *file, struct schedule *out); // what schedule_write() wrote

// Runs it. Returns what was wrong, valid until the next run; NULL: nothing.
const char *schedule_run(const struct schedule *schedule);

#endif

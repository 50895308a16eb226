// sim.h: a whole mesh in one process and one thread, on a virtual clock: the services' own code, with time, chance, memory, sockets and threads
// taken from the simulation (wrap.c, transport.c).
//
//     schedule.c: what happens (from a seed, or from a kept file) ─▶ run.c ─┬─▶ services.c: opens, turns, closes, kills a node's service
//                                                                           ├─▶ world.c: the next event; which node has its turn
//                                                                           ├─▶ clients.c: requests at gateways, and what they should get
//                                                                           └─▶ check.c: what must hold
//
// A node is a process: a service with its memory, sockets and clock. Its turn is a call of the service's own turn functions. Within it the node's
// clock goes on by itself (calls of the clock, computation); the node has its next turn when the world's time has come there. So nodes compute at the
// same time, and all that happens follows from the schedule alone.
#ifndef FD_TESTS_SIM_SIM_H
#define FD_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "common/base/random.h"
#include "common/base/status.h"

enum { NODES_MAX = 12, NODE_LOOPS_MAX = 2 };
#define NEVER UINT64_MAX
#define MS_NS UINT64_C(1000000)
#define S_NS UINT64_C(1000000000)

enum node_kind { NODE_SCHEDULER, NODE_S_PART, NODE_WORKER, NODE_GATEWAY, NODE_KINDS };

// Memory that a process has taken, and may still take.
struct node_memory {
    struct block *blocks; // that it has allocated
    uint64_t count, bytes;
    struct mapping *mappings;
    uint64_t fails_in; // so many allocations from now one fails; 0: none
};

struct node {
    enum node_kind kind;
    uint32_t index; // in world.nodes
    char name[16], address[32], tensor_address[32];
    bool up;          // its process is there
    bool stopped;     // it gets no processor, as after SIGSTOP
    bool vanished;    // its host has gone without a word: peers hear nothing until it is back
    bool moves;       // that host does not come back: the process is started at another one
    uint32_t starts;  // of its process
    uint64_t now_ns;  // its clock, within a turn
    uint64_t busy_ns; // its turn is over then
    uint64_t wake_ns; // the next turn
    uint32_t parked;  // loops that found nothing to do, in this turn
    bool handled;     // a loop did something, in this turn
    int64_t wall_ns;  // its wall clock is so far ahead
    uint64_t turn_ns; // what a turn costs, besides
    uint64_t leaked;  // blocks of memory that were left when it was closed last
    struct node_memory memory;
    void *service; // services.c
};

struct world {
    uint64_t now_ns;
    uint64_t random; // of the network and of turns
    struct node nodes[NODES_MAX];
    uint32_t node_count;
    struct node *current; // whose code runs; NULL: the simulation's own
    uint64_t hash;        // of all that has happened
    uint64_t events;
    bool says; // events and logs go to stdout
};

extern struct world world;

// --- world.c

void world_begin(uint64_t seed);
struct node *world_add(enum node_kind kind, const char *name);
// Lets things happen until then, or until done() is true: it is asked after each event.
void world_run(uint64_t until_ns, bool (*done)(void *arg), void *arg);
// Below `limit`.
uint64_t world_below(uint64_t limit);
// Notes something that has happened.
void world_note(const char *what, uint64_t a, uint64_t b);
void world_say(const char *format, ...) PRINTF_LIKE(1, 2);
// A node has something to do.
void node_wake(struct node *node);
// Runs a node's code: world.current is it until the end.
struct node *node_enter(struct node *node);
void node_leave(struct node *before);
// The node's process goes, as after SIGKILL: its service, memory and sockets with it.
void node_drop(struct node *node);

// --- wrap.c

void *world_alloc(size_t bytes); // of the simulation's own
void world_free(void *memory);
void memory_drop(struct node *node);
uint64_t real_now_ns(clockid_t clock);

// --- transport.c: the network

struct network {
    uint64_t latency_ns[NODES_MAX][NODES_MAX], jitter_ns; // from, to
    uint64_t blocked_ns[NODES_MAX][NODES_MAX];            // nothing passes before then
    uint64_t window_bytes;                                // under way or not read, of a connection and direction
    uint32_t split;                                       // one of so many messages arrives in two parts; 0: none
};
extern struct network network;

void network_begin(void);
void network_drop(struct node *node, bool silent);            // its process is gone
void network_late(const struct node *from, uint64_t late_ns); // for all that is on its way from it
void network_back(struct node *node);                         // its host, after it had vanished
uint64_t network_next_ns(void);
void network_step(void); // what is due at world.now_ns
// Cuts connections between two nodes after so many more bytes of either direction; flips a bit in the head of the next message.
void network_cut(const struct node *a, const struct node *b, uint64_t after_bytes);
void network_flip(const struct node *from, const struct node *to);
void network_double(const struct node *from, const struct node *to); // the next message comes twice
void network_calm(void);                                             // cuts and wrong bits that have not come yet do not come
uint32_t network_links(void);

// --- services.c

void services_prepare(void); // once a process: the model, the language
enum status node_start(struct node *node, struct error *error) MUST_CHECK;
void node_turn(struct node *node);
void node_kill(struct node *node, bool silent);
void node_close(struct node *node); // as after SIGTERM, when nothing is left to do

#endif

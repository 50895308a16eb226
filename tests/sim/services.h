// services.h: the services behind the nodes, a file each since their headers know nothing of each other.
#ifndef FD_TESTS_SIM_SERVICES_H
#define FD_TESTS_SIM_SERVICES_H

#include "tests/sim/sim.h"

struct language;
struct exchange;

// Settings of all services of a run.
struct mesh_settings {
    uint32_t max_queue, max_batch, mini_batches, chunk, draft_tokens; // of the scheduler
    uint32_t stages;                                                  // s-parts of a pipeline; 1: none
    uint32_t batches;                                                 // mini-batches that s-parts have memory for
    bool prefix_cache;
    bool real_draw; // the s-part's own sampling: otherwise a token is a hash of its row's logits
    uint64_t pool_bytes, worker_bytes;
    uint64_t segment_ns; // what a segment takes
};

extern struct mesh_settings mesh_settings;

enum { SIM_CONTEXT = 2048, SIM_VOCAB = 320, SIM_ROWS = 64 }; // of the model, and of a step
#define SIM_SCHEDULER "inproc://sched"

// The files of a process: made by services_prepare().
struct sim_files {
    char folder[32], model[64], template[64];
};
extern struct sim_files sim_files;
void services_end(void); // removes them

// A kind of service. All is called in the node. start: node.service is set even if it fails. turn: an error ends the process; *ends: it has ended by
// itself and is to be closed. rests: whether nothing is under way there; otherwise `out` says what.
struct service_kind {
    uint32_t loops;
    enum status (*start)(struct node *node, struct error *error);
    enum status (*turn)(struct node *node, bool *ends, struct error *error);
    void (*close)(struct node *node);
    bool (*rests)(const struct node *node, char *out, size_t out_bytes);
    bool (*holds)(const struct node *node, char *out, size_t out_bytes); // likewise: what must hold at any time; NULL: nothing
};
extern const struct service_kind scheduler_kind, s_part_kind, worker_kind, gateway_kind;
const struct service_kind *service_of(const struct node *node);

#define REST(condition, ...)                       \
    do {                                           \
        if (!(condition)) {                        \
            snprintf(out, out_bytes, __VA_ARGS__); \
            return false;                          \
        }                                          \
    } while (0)

// node_scheduler.c: what the scheduler knows of the pages of a place. False: there is no such place.
struct place_view {
    char name[64]; // of the worker; "": the local pool
    bool up;
    bool settled;                                 // the ledger is exact: nothing is held there that it does not know of
    uint32_t pages_used, pages_idle, pages_total; // idle: that only kept sequences have, not all of which need be there
};
bool scheduler_place(const struct node *node, uint32_t index, struct place_view *out);

// Returns whether a step that is not answered has rows of the sequence at the place of that name ("": the local pool), and the place has been up since
// it was sent.
bool scheduler_uses(const struct node *node, const char *name, uint64_t sequence);

// node_worker.c
uint32_t worker_pages_used(const struct node *node);
bool worker_drain(struct node *node); // begins to; false: it does already

// node_s_part.c
uint32_t s_part_pages_used(const struct node *node); // of the local pool

// node_gateway.c: a gateway without HTTP: requests come as from its own batches. ended: in the node, when the answer is there (http_ended_fn).
struct exchange *gateway_ask(struct node *node, const char *id, const char *body,
                             void (*ended)(void *arg, int status, const char *body, size_t bytes), void *arg); // NULL: no memory
void gateway_asked(struct exchange *exchange); // ends the time in which gateway_ask() keeps the exchange, which may end it
void gateway_leave(struct node *node, struct exchange *exchange);
void gateway_prepare(void);            // once a process
bool gateways_have(uint64_t sequence); // a request that is not over has this id

#endif

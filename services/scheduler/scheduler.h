/* scheduler.h: what the files of the scheduler service share.
 *
 * One thread owns everything: its loop runs handlers, which turn what happened into events of the scheduling core
 * (common/sched); after each round scheduler_tick() gives them to the core and carries out its actions.
 *
 *     gateways ──Generate──▶ generate.c ─┐                       ┌─▶ s-part: Step, Release   (tick.c)
 *     members ──Register, Heartbeat──▶ members.c ─▶ events ─▶ core ─▶ kv-workers: Free, Fetch (places.c)
 *     s-part ──replies──▶ tick.c ────────┘                       └─▶ gateways: tokens        (generate.c)
 */
#ifndef FD_SERVICES_SCHEDULER_SCHEDULER_H
#define FD_SERVICES_SCHEDULER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster.pb-c.h"
#include "common/rpc/rpc.h"
#include "common/sched/sched.h"
#include "common/trace/trace.h"
#include "services/scheduler/page_names.h"
#include "services/scheduler/token_logs.h"
#include "step.pb-c.h"

enum {
    STEPS_MAX = SCHED_MINI_BATCHES_MAX * SCHED_PLAN_AHEAD_MAX,
    WATCHERS_MAX = 256,
    CALIBRATION_MAX = 16,
    KEPT_MAX = 4096,    /* sequences that are over and whose pages stay for others */
    CHOSEN_BATCHES = 2, /* mini-batches at most where their number is left to the core */
    EVENTS_MAX = 4096,  /* between two ticks; in a tick each action may add one, and a full round is EVENTS_MAX of them */
    EVENTS_ROOM = 2 * EVENTS_MAX,
    ACTIONS_MAX = EVENTS_ROOM + SCHED_ACTIONS_SPARE,
    NAME_BYTES = 64,
    ADDRESS_BYTES = 128,
    CHECK_EVERY_US = 50000,   /* between two looks at who is silent */
    SETTLE_US = 2000000,      /* after a start: resubmitted sequences wait so long at most for those that hold their pages */
    LOSSES_MAX = 4,           /* steps in a row that lose all their rows at a place: then it is declared down ... */
    LOSSES_BAR_US = 60000000, /* ... and not taken back for so long */
    CLAIM_US = 15000000,      /* pages that nobody claims are freed then */
};

struct scheduler_settings {
    const char *listen, *trace, *mesh_secret_file;
    struct rpc_secret mesh_secret;
    bool trace_append, greedy, prefix_cache;
    enum sched_placement placement;
    double step_target_ms;
    uint32_t max_queue, max_batch, mini_batches, chunk, spacing, draft_tokens, worker_timeout_ms;
};

/* A sequence that a member said it holds and that nobody has claimed yet (after a start of the scheduler). */
struct held {
    uint64_t sequence;
    uint32_t place, positions, certain; /* certain: as in HeldSequence */
};

/* The s-part or a kv-worker. The s-part's local pool is place 0; kv-worker i is place i. */
struct member {
    struct scheduler *scheduler;
    bool registered;          /* has said who it is, and is not known to be dead */
    bool up;                  /* the core was told */
    bool cleaning;            /* stale sequences are being freed there: not up before */
    bool drained;             /* nothing is left there: it may go */
    uint64_t lost;            /* times it went without that */
    uint32_t losses;          /* steps in a row whose rows there were all lost */
    uint64_t barred_until_us; /* it lost too many: not up before */
    uint32_t place;
    char name[NAME_BYTES];
    uint64_t incarnation;
    char control_address[ADDRESS_BYTES], tensor_address[ADDRESS_BYTES];
    struct rpc_channel *channel;
    uint64_t heard_us;
    uint64_t turned_us; /* when a heartbeat first said what the latest says of compute_turns */
    uint64_t pages_total;
    uint32_t max_rows; /* s-part: of a step */
    double bytes_per_second;
    double pair_us;                                                    /* of prefill attention, all layers; 0: not known */
    struct sched_time layers[CALIBRATION_MAX], heads[CALIBRATION_MAX]; /* s-part: of all layers; of head and sampling */
    uint32_t layer_count, head_count;
    bool shares_cores;                 /* worker: with an s-part that computes on CPUs */
    bool on_device;                    /* s-part: it does not */
    bool rows_alike;                   /* s-part: a row's numbers do not depend on those beside it */
    bool hands_over;                   /* pages can be taken from it and given to it */
    struct rpc_call *draining;         /* its Drain call, to be answered */
    Fastdecode__HeartbeatRequest last; /* numbers only */
};

/* A step that the s-part has. Arrays are [max rows], sized once. */
struct flight {
    bool used;
    uint64_t step;
    struct scheduler *scheduler;
    uint64_t sent_ns; /* of the trace */
    uint32_t run_count, row_count;
    uint64_t *sequences; /* of its runs */
    uint32_t *positions;
    const struct sched_run *runs; /* [run_count] the core's, until it is answered */
    struct sched_result *results;
    struct sched_place_time places[SCHED_PLACES_MAX];
    uint32_t place_count;
    struct rpc_message *message;        /* the reply, kept until the tick; NULL: it has not come */
    const Fastdecode__StepReply *reply; /* in it */
};

struct scheduler {
    struct scheduler_settings settings;
    uint64_t incarnation, next_sequence, started_us;
    uint64_t checked_us; /* when members_check() last ran */
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct trace_track *track, *track_steps; /* what this thread does; the steps that the s-part has */
    struct sched *core;                      /* NULL until the first s-part has said what the model is */
    struct sched_config core_config;
    struct token_logs *logs;
    struct page_names page_names;
    struct draft_odds draft_odds; /* of all sequences */

    /* the model, from the s-part */
    bool model_known;
    Fastdecode__ModelInfo model;
    Fastdecode__KvShape kv;
    char model_name[NAME_BYTES];
    uint32_t end_tokens[16];
    uint32_t end_token_count;
    uint64_t page_bytes;

    struct member members[SCHED_PLACES_MAX]; /* of place i: 0 is the s-part with its local pool */
    uint32_t member_count;                   /* used entries; 0 is the s-part */

    struct sched_event events[EVENTS_ROOM];
    uint32_t event_count;
    struct sched_action *actions; /* [ACTIONS_MAX] */
    bool ticking;                 /* actions are being carried out */
    bool stuck;                   /* a step could not be sent: not again before the loop has run */
    uint64_t forget[ACTIONS_MAX]; /* what the s-part may forget: one call a round */
    uint32_t forget_count;
    struct flight flights[STEPS_MAX];

    struct held *held; /* [held_count] */
    uint32_t held_count, held_capacity;
    uint64_t *settling; /* ids of resubmitted ones that wait for their holders */
    uint32_t settling_count, settling_capacity;

    struct rpc_call *watchers[WATCHERS_MAX];
    uint32_t watcher_count;
    uint64_t watched_us;
    Fastdecode__MeshState last_state;

    uint64_t generated_tokens, prompt_tokens, finished, cancelled, s_part_busy_us, s_part_wait_us;
    uint64_t busy_ns; /* processor time of ticks: the core, and carrying out what it says */
};

/* An event for the next tick. The queue has room for what one round of the loop can bring; when it is full a tick is
 * run at once. */
void scheduler_event(struct scheduler *scheduler, const struct sched_event *event);

/* tick.c: gives the core its events, carries out its actions. */
enum status scheduler_open_core(struct scheduler *scheduler, struct error *error) MUST_CHECK;
void scheduler_close_core(struct scheduler *scheduler);
void scheduler_tick(struct scheduler *scheduler);
void scheduler_void_flights(struct scheduler *scheduler);

/* generate.c */
void generate_handler(struct rpc_call *call, void *user);
/* The last `count` tokens of the log. */
void generate_tokens(struct scheduler *scheduler, struct token_log *log, Fastdecode__Token **tokens, uint32_t count);
void generate_scores(struct scheduler *scheduler, struct token_log *log, uint32_t index, Fastdecode__Token **scores, size_t count);
void generate_finish(struct scheduler *scheduler, struct token_log *log, enum sched_reason reason, uint32_t cached_tokens);
void generate_reject(struct scheduler *scheduler, struct token_log *log, uint64_t retry_after_us);
void generate_settle(struct scheduler *scheduler);

/* members.c */
void register_handler(struct rpc_call *call, void *user);
void heartbeat_handler(struct rpc_call *call, void *user);
void drain_handler(struct rpc_call *call, void *user);
/* At least every CHECK_EVERY_US, as far as this process runs: what it was stopped for counts against no member. */
void members_check(struct scheduler *scheduler, uint64_t now_us);
void members_close(struct scheduler *scheduler);
/* A step was answered: of its rows at the place some counted, or all were lost. */
void members_answered(struct scheduler *scheduler, uint32_t place, bool lost);
void members_unclaim(struct scheduler *scheduler, uint32_t place); /* frees what is not claimed yet: it is in the way */
/* Takes the entry of a held sequence out, with the positions that are its tokens' for certain; false if nobody holds any. */
bool members_claim(struct scheduler *scheduler, const struct token_log *log, struct held *out);

/* places.c: what the core asks of the places. With `forget` the s-part is told by the next place_forget(). */
void place_release(struct scheduler *scheduler, uint64_t sequence, uint32_t place, bool forget);
void place_forget(struct scheduler *scheduler);
void place_move(struct scheduler *scheduler, const struct sched_move *move);
void place_drained(struct scheduler *scheduler, uint32_t place);
void place_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool goes_on);
void place_exclude(struct scheduler *scheduler, const struct member *member);
/* Frees what a member holds of sequences that are not there any more; done(member) when it has, or cannot be asked. */
void place_clean(struct member *member, const uint64_t *sequences, uint32_t count, void (*done)(struct member *member));

/* watch.c */
void watch_handler(struct rpc_call *call, void *user);
void metrics_handler(struct rpc_call *call, void *user);
void watch_publish(struct scheduler *scheduler, uint64_t now_us);

#endif

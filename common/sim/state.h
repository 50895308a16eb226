// state.h: a simulation under way, which sim.c (requests, the scheduling core, the clock) and mesh.c (steps through the S-part and the workers)
// share. Private to common/sim.
#ifndef FD_SIM_STATE_H
#define FD_SIM_STATE_H

#include "common/base/checked.h"
#include "common/sim/figures.h"
#include "common/sim/sim.h"

enum { EVENTS_MAX = 4096, MOVES_MAX = 64, FLIGHTS_MAX = SCHED_MINI_BATCHES_MAX * SCHED_PLAN_AHEAD_MAX };

// A step, from its action to its answer.
struct flight {
    struct sched_step_action action;
    struct cost_work *work; // [place_count]
    double *stretch;        // [place_count], of the places that have rows: noise and speed
    double *r_part_us;      // [place_count], all layers, without the link
    uint32_t sampled;
    double here_us, here_link_us; // a layer's attention on the S-part's cores; round trip to those there
    bool away;                    // it has rows at workers elsewhere
    double *away_us;              // [place_count], a layer's at each worker elsewhere; 0: none
    double link_us;               // the longest round trip, with the bytes of its rows
    double link_bytes_us;         // these alone
    double link_waits_us;         // for bytes of others on the stage's link, so far
    double away_sum_us;           // of all workers
    double answer_us;             // when the core hears of it
    uint32_t stage_us[SCHED_STAGES_MAX];
    double own_us; // of the S-part, so far
    struct sim_step report;
    bool used;
};

// Pages on their way.
struct move {
    double done_us;
    struct sched_move asked;
};

enum batch_state { BATCH_IDLE, BATCH_READY, BATCH_SERVED, BATCH_AWAY };

struct batch {
    struct flight *queue[SCHED_PLAN_AHEAD_MAX]; // oldest first; the first one runs
    uint32_t queue_count, stage, segment;       // the segment of that stage that is next or under way
    enum batch_state state;
    bool waited;                // it became ready by the workers' answer
    double entered_us, came_us; // into the pipeline; to this stage
    double since_us;            // READY: from then on. AWAY: until then
    uint32_t decode_rows;
    uint64_t load;
};

// Runs the segments of its layers, one at a time.
struct stage {
    const struct cost_s_part *cost;
    struct batch *served; // NULL: it waits
    double served_until_us;
    bool attends;        // it does the local pool's attention of this layer
    bool began;          // it has served
    bool prefill;        // the micro-batch that it served last has prefill rows
    double since_us;     // when it ended what it served last
    double link_free_us; // when its link has carried all that was given to it
};

struct life {
    double arrival_us, last_token_us;
};

struct sim {
    const struct sim_config *config;
    struct sched *core;
    struct sim_result *out;
    double now_us;
    uint64_t rng;
    struct batch batches[SCHED_MINI_BATCHES_MAX];
    struct flight flights[FLIGHTS_MAX];
    struct flight *answers[FLIGHTS_MAX]; // oldest first
    uint32_t answer_count;
    struct stage stages[SCHED_STAGES_MAX];
    uint32_t stage_count, layers; // layers of all stages
    uint32_t in_pipeline;         // steps between the first stage's first segment and the last one's last
    double left_us;               // when the last one left
    // Steps that go aside: how long they were computed since the latest step of the others ended, and in their latest turn.
    double aside_used_us, aside_turn_us;
    double *free_us; // [place_count], when each worker has done what it was sent
    uint32_t workers;
    struct move moves[MOVES_MAX];
    uint32_t move_count;
    uint32_t next_speed;       // of config.speeds
    double *speeds;            // [place_count], now
    struct cost_work *work;    // [FLIGHTS_MAX][place_count], the flights'
    double *stretch, *away_us; // likewise
    double *r_part_us;         // likewise

    uint64_t next_request;
    struct life *lives;         // [request_count]
    struct histogram *times;    // ttft, tbt, step; ttft and tbt of each class
    struct sched_event *events; // [EVENTS_MAX + FLIGHTS_MAX + MOVES_MAX]
    struct sched_action *actions;
    uint64_t *sequences;                                // [FLIGHTS_MAX][max_batch_rows] of the answers of this tick
    struct sched_result *results;                       // [FLIGHTS_MAX][max_batch_rows]
    struct sched_place_time *place_times;               // [FLIGHTS_MAX][place_count]
    double batch_time, s_part_us, workers_us, noted_us; // sums over time, up to noted_us
};

enum { TTFT, TBT, STEP, TTFT_OF, TBT_OF = TTFT_OF + SCHED_CLASSES, TIMES = TBT_OF + SCHED_CLASSES };

// mesh.c
void sim_mesh_init(struct sim *sim);
uint32_t sim_mesh_stage_times(const struct sim *sim, struct flight *flight); // fills in stage_us; returns their sum
void sim_mesh_take_step(struct sim *sim, const struct sched_step_action *action);
double sim_mesh_next_us(const struct sim *sim); // when something of it happens; INFINITY: never
void sim_mesh_advance(struct sim *sim);         // what is due now has happened
void sim_mesh_serve(struct sim *sim);           // the S-part takes up what is ready, if it is idle

#endif

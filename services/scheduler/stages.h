// stages.h: the s-part as one process, or as a pipeline of stages. See stages.c.
#ifndef FD_SERVICES_SCHEDULER_STAGES_H
#define FD_SERVICES_SCHEDULER_STAGES_H

#include "common/base/log.h"
#include "common/kv/kv_shape.h"
#include "common/sched/sched.h"
#include "common/sched/stage.h"
#include "services/scheduler/events.h"
#include "services/scheduler/member.h"
#include "step.pb-c.h"

enum {
    CALIBRATION_MAX = 16,
    LEVEL_BYTES = 48,
    STEP_ROWS_MOST = 65536,
    STREAM_US_MAX = 1000000000, // of a member's word
};

// Measured times.
struct s_part_times {
    struct sched_time layers[CALIBRATION_MAX], heads[CALIBRATION_MAX]; // of all its layers; of head and sampling
    uint32_t layer_count, head_count;
    double stream_us; // Calibration.stream_us
};

// A stage, as it described itself when it last registered.
struct stage_offer {
    uint32_t max_rows, mini_batches; // max_rows: of a step
    uint64_t pages_total;            // of its pool
    struct s_part_times times;
    struct kv_costs kv; // of its pool, if has_kv
    bool has_kv;
    bool on_device;                         // it computes on a device, not on CPUs
    bool rows_alike;                        // a row's numbers do not depend on those beside it
    bool takes_aside;                       // it takes steps that go aside
    bool takes_extents, pool_takes_extents; // steps may name extents at workers; at its pool
    uint32_t features;                      // of sampling, that it has (common/mesh/messages.h)
    char level[LEVEL_BYTES];                // of numbers; the stages that are registered are of one class
};

// A process of the s-part, with a range of the layers. One that has all of them is the only stage.
struct stage {
    struct member *member; // of the first layer: s_part.member; else `later`
    struct member later;
    uint32_t first_layer, layer_count; // count 0: the entry was never used. Ranges of registered stages do not overlap
    struct stage_offer offer;
    struct member_counts earlier; // of the processes before this one: a sum over stages never falls
    bool asked;                   // a Join call to it is under way: join_call
    bool joined;                  // it has answered the Join of this term
    struct rpc_handle join_call;  // if `asked`
    // Sums over steps. rows: of steps; the times are those that replies name.
    uint64_t rows, s_part_us, r_part_us, idle_us[SCHED_BUBBLES];
};

// How the stages of a pipeline are put together.
struct stage_join {
    uint64_t term;          // of the pipeline: grows with each Join, and each time that a stage goes down
    bool under_way;         // Join calls are under way
    uint64_t from_us;       // none is sent before then
    uint64_t wait_us;       // from the end of the latest term until then; 0: a step has been answered since
    struct repeat failures; // since the stages were last together
};

// Finished sequences whose sampler state the s-part has yet to forget.
struct forget {
    uint64_t ids[ACTIONS_MAX]; // [count]
    uint32_t count;
    uint32_t asked; // how many of them, counted from the first, the call under way names; 0: there is no call
    struct rpc_handle call;
};

struct s_part {
    struct member member;                  // of the stage with the first layer, to which steps are sent
    struct stage stages[SCHED_STAGES_MAX]; // in no order; the first entry is that of `member`
    struct stage_join join;
    struct s_part_times times;                   // all stages together, for the core
    struct sched_stage_up ups[SCHED_STAGES_MAX]; // for the core
    char reason[320];                            // what stages_reason() returned last
    struct forget forget;                        // of places.c; empty after a start of any stage
};

// The stages of a pipeline for RegisterReply and HeartbeatReply, those that are down too; empty if the s-part is one process.
struct stages_message {
    Fastdecode__Stage stages[SCHED_STAGES_MAX], *pointers[SCHED_STAGES_MAX];
    uint32_t count;
};

void stages_init(struct s_part *s_part, struct scheduler *scheduler, struct place *pool);
// Fills in the stages that are registered, in order of their layers; out: [SCHED_STAGES_MAX]. Returns their number.
uint32_t stages_list(const struct s_part *s_part, const struct stage **out);
// Returns whether any s-part is registered, of a pipeline or not.
bool stages_any(const struct s_part *s_part);
// Returns whether a registered stage has fewer than all of the model's layers.
bool stages_are_several(const struct s_part *s_part, uint32_t layers);
// Returns whether registered stages have all of the model's layers.
bool stages_are_complete(const struct scheduler *scheduler);
// Says why there is no s-part that takes steps.
const char *stages_reason(struct scheduler *scheduler);
// Checks the layers of a registration, and its numeric class, against the stages that are registered.
enum status stages_check(const struct scheduler *scheduler, const Fastdecode__RegisterRequest *request,
                         struct error *error) MUST_CHECK;
// Returns the member for the layers of a registration; NULL: there are too many stages.
struct member *stages_member(struct scheduler *scheduler, const Fastdecode__RegisterRequest *request);
// Takes over what a registration says of the stage.
void stages_take(struct member *member, const Fastdecode__RegisterRequest *request);
bool stages_has_said_so(const struct member *member, const Fastdecode__RegisterRequest *request);
// Queues S_PART_UP, with what all stages say together.
void stages_tell_core(struct scheduler *scheduler);
// Makes the stages' pools one place: a page is one in each of them.
void stages_take_pool(struct scheduler *scheduler);
// Returns the features of sampling that all registered stages and this scheduler have.
uint32_t stages_features(const struct s_part *s_part);
// Sets the fields of core.config that follow from the stages. False: layers are missing.
bool stages_configure_core(struct scheduler *scheduler);
// Calls a method of SPart at every stage; on_end is called when the last has answered. False: it cannot be called.
bool stages_call(struct scheduler *scheduler, const char *method, const ProtobufCMessage *request,
                 void (*on_end)(void *user, enum status status, const char *text), void *user, struct rpc_handle *call);
void stages_tell(const struct scheduler *scheduler, struct stages_message *out);
// Forgets which layers stages had that are gone, because the model is another one now. None may be registered.
void stages_forget(struct s_part *s_part);
// Notes that a step was answered. Adds up what steps take at each stage. Fills in stage_us [SCHED_STAGES_MAX], what this one took, and
// returns the number of stages; 0: there is one, or the reply does not say.
uint32_t stages_count_step(struct s_part *s_part, const Fastdecode__StepReply *reply, uint32_t rows, uint32_t *stage_us);

#endif

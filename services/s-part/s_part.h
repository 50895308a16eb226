// s_part.h: what the files of the s-part share, apart from the engine.
//
// There are two threads. The engine's thread computes and serves Step; the main thread keeps up the membership, so that a long
// segment never delays a heartbeat.
//
//     settings.c ─▶ load.c, weights.c: model, device, memory plan, backend ─▶ serve.c: server, engine thread ─▶ membership.c: registration, beats
#ifndef FD_SERVICES_S_PART_S_PART_H
#define FD_SERVICES_S_PART_S_PART_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/checked.h"
#include "common/base/numa.h"
#include "common/mesh/member.h"
#include "common/service/service.h"
#include "kernels/backend/device.h"
#include "kernels/kv/kv_store.h"
#include "services/s-part/calibrate.h"
#include "services/s-part/engine/engine.h"
#include "services/s-part/kv_choice.h"

enum { S_PART_PAGE_TOKENS = 16, S_PART_ADDRESS_BYTES = 200, S_PART_PATH_BYTES = 4096 };

struct s_part_settings {
    char beside_model[S_PART_PATH_BYTES]; // a file in the folder in which the model lies
    const char *model_path, *scheduler, *listen, *listen_tensors, *advertise, *advertise_tensors, *name, *compute, *quantize,
        *kv_type_name, *sparse_attention, *isa, *trace, *otlp_endpoint, *device_name, *layers, *numa, *pooling;
    const char *cache_dir, *disk_reads, *weights_memory_text, *weights_host_memory_text;
    struct rpc_security_settings security;
    bool trace_append, calibrate, pool_fills_device, batch_invariant, chooses_kv_type;
    enum kv_type kv_type; // of auto (chooses_kv_type) load.c sets it
    enum disk_method disk;
    uint32_t context, max_batch, max_rows, mini_batches, threads, device_timeout_s, sparse_percent;
    uint32_t stage, stages;                                   // of --layers STAGE/STAGES
    uint32_t first_layer, layer_count;                        // of --layers FIRST:END; otherwise load.c sets them
    char own_name[MEMBER_NAME_BYTES];                         // what `name` is if none was given for a stage
    uint64_t local_pool, weights_memory, weights_host_memory; // of the weights 0: auto
    struct numa_binding binding;                              // of threads and all memory, from `numa`
};

// The model and the device, as they are once all is loaded (load.c, weights.c).
struct s_part_loaded {
    struct model *model;
    struct model_pooling pooling; // kind NONE: nothing is pooled
    struct pooler *pooler;        // of the stage with the model's last layer
    struct device_choice device;
    struct backend_plan plan;
    char packed_path[S_PART_PATH_BYTES]; // of packed weights; empty: they are converted at each start
    struct calibration calibration;
    char level[32]; // the backend's numeric level
};

// The main thread (membership.c).
struct s_part_control {
    struct rpc_loop *loop;
    struct member *member;
    bool listing;              // what the local pool holds is being listed for a registration
    uint64_t silence_limit_us; // the engine may do without progress for as long
};

// The server, on the engine's loop (serve.c).
struct s_part_server {
    struct rpc_server *rpc;
    char address[S_PART_ADDRESS_BYTES], tensor_address[S_PART_ADDRESS_BYTES];
};

struct s_part {
    struct s_part_settings settings; // load.c replaces `context` and `local_pool` by the values that suit the model and the device
    uint64_t incarnation;
    struct thread_pool *pool;
    struct rpc_security security;
    struct s_part_loaded loaded;
    struct s_part_control control;
    struct s_part_server server;
    struct engine engine;
};

// load.c. takes_aside: whether it takes steps that go aside; once the model is loaded. batches: for how many mini-batches there is memory, with
// the one for those; once the device is chosen.
bool s_part_takes_aside(const struct s_part *s_part);

// Returns how much memory is taken only while it starts.
static inline uint64_t s_part_start_bytes(const struct s_part *s_part)
{
    const struct s_part_settings *s = &s_part->settings;
    const uint64_t reads = s->chooses_kv_type ? kv_choice_bytes(s_part->loaded.model) : 0,
                   measures = s->calibrate ? CALIBRATE_BYTES : 0;
    return MAX(s_part->loaded.plan.start_bytes, MAX(reads, measures));
}

// settings.c: fills the settings from defaults, environment and arguments, and chooses the kernels.
enum status settings_parse(struct service *service, struct s_part_settings *settings, struct error *error) MUST_CHECK;

// weights.c. memory: fills the plan, and in *config how much of the weights stays in memory: as the settings say, or what the rest leaves.
// path: fills packed_path for the layout that the plan names, and *config with it; empty: none is kept.
enum status weights_choose_memory(struct s_part *s_part, struct backend_config *config, struct error *error) MUST_CHECK;
enum status weights_choose_path(struct s_part *s_part, struct backend_config *config, struct error *error) MUST_CHECK;

// load.c. plan: opens the model, chooses the device, logs the memory plan and checks that it fits, and fills *config; also after a failure
// the caller closes the model (NULL is allowed). model: the same, and opens the backend.
enum status load_plan(struct s_part *s_part, struct backend_config *config, struct error *error) MUST_CHECK;
enum status load_model(struct s_part *s_part, struct error *error) MUST_CHECK;
// Returns the shape of the model's K and V in workers and the local pool.
struct kv_shape load_kv_shape(const struct s_part *s_part);
// Measures how long steps take, if the settings ask for it. A failure is only logged, because a mesh can run without these times.
void load_measure(struct s_part *s_part);

// membership.c: on the control loop.
enum status membership_open(struct s_part *s_part, struct error *error) MUST_CHECK;

// serve.c: the s-part's life. check: whether open would refuse at once; opens no socket. open: loads, listens and registers, with `settings` set and
// the rest zero; after a failure the process ends. Each thread takes its turns, then the engine's closes its part, then the other one the rest. One
// thread may do all.
enum status s_part_check(struct s_part *s_part, struct error *error) MUST_CHECK;
enum status s_part_open(struct s_part *s_part, struct error *error) MUST_CHECK;
// A turn handles what has come, and waits up to a second if nothing has. UNAVAILABLE: the process must be started again. DEADLINE_EXCEEDED: the
// device is silent, and the engine's thread waits for it: the process must end without waiting for either.
void s_part_turn_engine(struct s_part *s_part);
enum status s_part_turn_control(struct s_part *s_part, struct error *error) MUST_CHECK;
void s_part_close_engine(struct s_part *s_part);
void s_part_close(struct s_part *s_part);

#endif

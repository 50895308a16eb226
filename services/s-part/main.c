/* main.c: s-part: weights, the forward pass, sampling, the local KV pool.
 *
 * Two threads: the engine's computes and serves Step; the main one keeps the membership, so that a long segment never
 * delays a heartbeat.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/options.h"
#include "common/kv/kv_store.h"
#include "common/member/member.h"
#include "common/model/compute.h"
#include "common/sched/sched_settings.h"
#include "kernels/backend/device.h"
#include "kernels/dispatch/kernels.h"
#include "services/s-part/calibrate.h"
#include "services/s-part/engine.h"

enum { PAGE_TOKENS = 16, CHUNK_ROWS = 512, SPIN_US = 50, END_TOKENS_MAX = 16 };
/* Twice those that run at most (a step has 8,192 rows, its chunk among them): as many may be kept or about to leave. */
enum { SEQUENCES_MAX = 16384 };

static struct s_part {
    const char *model_path, *scheduler, *listen, *listen_tensors, *advertise, *advertise_tensors, *name, *compute, *kv_type_name,
        *isa, *trace, *device_name, *mesh_secret_file;
    struct rpc_secret mesh_secret;
    bool trace_append, calibrate, pool_fills_device, batch_invariant;
    enum kv_type kv_type;
    uint32_t context, max_batch, max_rows, mini_batches, threads, device_timeout_s;
    uint64_t local_pool;

    uint64_t incarnation;
    struct model *model;
    struct thread_pool *pool;
    struct rpc_loop *control_loop;
    struct rpc_server *server; /* on the engine's loop */
    struct member *member;
    struct engine engine;
    struct device_choice device;
    struct backend_plan plan;
    struct calibration calibration;
    pthread_t engine_thread;
    atomic_bool stop;                                  /* relaxed: the loop is woken after it is set */
    char address[200], tensor_address[200], level[32]; /* level: of the numbers */
} s_part;

static volatile sig_atomic_t asked_to_stop;

static void on_signal(int number)
{
    (void)number;
    asked_to_stop = 1;
    if (s_part.control_loop)
        rpc_loop_wake(s_part.control_loop);
}

/* --- settings -------------------------------------------------------------------------------------------------------- */

static enum status parse(int argc, char **argv, bool *check_only, struct error *error)
{
    struct s_part *s = &s_part;
    const struct option options[] = {
        {"model", OPTION_STRING, &s->model_path, "FILE", "GGUF model file (required)", 0, 0},
        {"scheduler", OPTION_STRING, &s->scheduler, "ADDRESS", "where the scheduler is", 0, 0},
        {"listen", OPTION_STRING, &s->listen, "ADDRESS", "where steps come in", 0, 0},
        {"listen-tensors", OPTION_STRING, &s->listen_tensors, "ADDRESS",
         "where KV workers read pages of the local pool; default: where steps come in", 0, 0},
        {"advertise", OPTION_STRING, &s->advertise, "ADDRESS", "that address as the scheduler reaches it", 0, 0},
        {"advertise-tensors", OPTION_STRING, &s->advertise_tensors, "ADDRESS", "that of --listen-tensors as KV workers reach it", 0,
         0},
        {RPC_SECRET_OPTION, OPTION_STRING, &s->mesh_secret_file, "FILE|none", RPC_SECRET_HELP, 0, 0},
        {"name", OPTION_STRING, &s->name, "NAME", "stable over restarts", 0, 0},
        {"device", OPTION_STRING, &s->device_name, "DEVICE", DEVICE_HELP, 0, 0},
        {"device-timeout", OPTION_U32, &s->device_timeout_s, "S", "seconds after which a GPU that computes nothing is given up", 1,
         86400},
        {"compute", OPTION_CHOICE, &s->compute, COMPUTE_NAMES, COMPUTE_HELP, 0, 0},
        {"batch-invariant", OPTION_BOOL, &s->batch_invariant, NULL, INVARIANT_HELP, 0, 0},
        {"kv-type", OPTION_STRING, &s->kv_type_name, "TYPE", "element type of the KV cache: " KV_TYPE_NAMES, 0, 0},
        {"local-pool", OPTION_SIZE, &s->local_pool, "SIZE", "memory for KV held here; 0: none", 0, 1e15},
        {"pool-fills-device", OPTION_BOOL, &s->pool_fills_device, NULL, "on a GPU the local pool is what is left of its memory", 0,
         0},
        {"context", OPTION_U32, &s->context, "TOKENS", "longest sequence; 0: the model's", 0, 1 << 24},
        {"max-batch", OPTION_U32, &s->max_batch, "N", SCHED_RUNNING_HELP, 1, SCHED_RUNNING_MAX},
        {"max-rows", OPTION_U32, &s->max_rows, "N", "rows of a step; 0: max-batch + 512", 0, SCHED_STEP_ROWS_MAX},
        {"mini-batches", OPTION_U32, &s->mini_batches, "N", "mini-batches in flight", 1, 4},
        {"threads", OPTION_U32, &s->threads, "N",
         "compute threads; 0: as many as usable CPUs (each has its own where no limit of CPU time leaves fewer)", 0, 1024},
        {"calibrate", OPTION_BOOL, &s->calibrate, NULL, "measure at start what steps take (0.8 s)", 0, 0},
        {"trace", OPTION_STRING, &s->trace, "FILE", TRACE_HELP, 0, 0},
        {"trace-append", OPTION_BOOL, &s->trace_append, NULL, TRACE_APPEND_HELP, 0, 0},
        {"isa", OPTION_STRING, &s->isa, "LEVEL", "kernels: ref, avx2, avx512, vnni; default: FD_ISA, else the best", 0, 0},
    };
    struct program program = {.name = "s-part",
                              .purpose = "weights, forward pass, sampling and the local KV pool",
                              .options = options,
                              .option_count = ARRAY_COUNT(options)};
    enum status status = options_parse(&program, argc, argv, error);

    *check_only = program.check_only;
    if (status)
        return status;
    if (!s->model_path)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--model FILE is missing");
    if ((status = member_check_name(s->name, error)))
        return status;
    if ((status = rpc_secret_read(s->mesh_secret_file, &s->mesh_secret, error)))
        return status;
    if ((status = kv_type_parse(s->kv_type_name, &s->kv_type, error)))
        return status;
    if (!s->max_rows)
        s->max_rows = MIN((uint32_t)SCHED_STEP_ROWS_MAX, (s->max_batch + CHUNK_ROWS + 15) / 16 * 16);
    return kernels_init(s->isa, error);
}

static struct backend_config backend_config(void)
{
    return (struct backend_config){
        .model = s_part.model,
        .compute = !strcmp(s_part.compute, "f32")    ? COMPUTE_F32
                   : !strcmp(s_part.compute, "int8") ? COMPUTE_INT8
                                                     : COMPUTE_AUTO,
        .pool = s_part.pool,
        .max_rows = s_part.max_rows,
        .max_batches = s_part.mini_batches,
        .context_tokens = s_part.context,
        .kv_type = s_part.kv_type,
        .page_tokens = PAGE_TOKENS,
        .max_sequences = SEQUENCES_MAX,
        .local_pool_bytes = s_part.local_pool,
        .device = s_part.device.index,
        .trace = s_part.trace,
        .batch_invariant = s_part.batch_invariant,
    };
}

/* --- membership ------------------------------------------------------------------------------------------------------- */

struct held_list {
    struct backend_held *items;
    uint32_t count;
};

static uint32_t end_tokens(uint32_t *tokens)
{
    const struct model_tokenizer *t = &s_part.model->tokenizer;
    const uint32_t candidates[] = {t->eos, t->eot, t->eom};
    uint32_t count = 0;
    for (size_t i = 0; i < ARRAY_COUNT(candidates); i++) {
        bool known = candidates[i] == MODEL_NO_TOKEN;
        for (uint32_t k = 0; k < count; k++)
            known |= tokens[k] == candidates[i];
        if (!known)
            tokens[count++] = candidates[i];
    }
    return count;
}

/* The local pool has pages, and they are in a form in which workers can take and give them. */
static bool pages_are_workers(void)
{
    const struct model_shape *shape = &s_part.model->shape;
    const struct kv_shape kv = {.layers = shape->layers,
                                .heads = shape->heads,
                                .kv_heads = shape->kv_heads,
                                .head_dim = shape->head_dim,
                                .page_tokens = PAGE_TOKENS,
                                .type = s_part.kv_type,
                                .max_sequences = 1,
                                .max_context = s_part.context};
    uint64_t bytes = engine_page_bytes(&s_part.engine);
    return bytes && bytes == kv_page_bytes(&kv);
}

/* On the control loop, with what the local pool holds. */
static void send_registration(void *arg)
{
    struct held_list *list = arg;
    const struct model_shape *shape = &s_part.model->shape;
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    Fastdecode__ModelInfo info = FASTDECODE__MODEL_INFO__INIT;
    Fastdecode__KvShape kv = FASTDECODE__KV_SHAPE__INIT;
    Fastdecode__HeldSequence *items = calloc(list->count + 1u, sizeof *items),
                             **pointers = calloc(list->count + 1u, sizeof *pointers);
    uint32_t ends[END_TOKENS_MAX];
    char name[256];

    assert_always(items && pointers);
    for (uint32_t i = 0; i < list->count; i++) {
        fastdecode__held_sequence__init(&items[i]);
        items[i].sequence = list->items[i].sequence;
        items[i].positions = list->items[i].positions;
        items[i].certain = list->items[i].certain;
        pointers[i] = &items[i];
    }
    kv.layers = shape->layers;
    kv.heads = shape->heads;
    kv.kv_heads = shape->kv_heads;
    kv.head_dim = shape->head_dim;
    kv.page_tokens = PAGE_TOKENS;
    kv.type = (Fastdecode__KvType)s_part.kv_type;
    kv.context_tokens = s_part.context;
    snprintf(name, sizeof name, "%.*s", (int)MIN(s_part.model->name.length, (size_t)255), s_part.model->name.data);
    info.name = name;
    info.vocab = shape->vocab;
    info.context_tokens = s_part.context;
    info.n_end_token = end_tokens(ends);
    info.end_token = ends;
    info.fingerprint = s_part.model->fingerprint;
    info.kv = &kv;
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    request.control_address = s_part.address;
    request.tensor_address = s_part.tensor_address;
    request.pool_kv = pages_are_workers() ? &kv : NULL;
    request.model = &info;
    request.kv_bytes = s_part.local_pool;
    request.pages_total = s_part.plan.pool_pages;
    request.n_held = list->count;
    request.held = pointers;
    request.numeric_level = s_part.level;
    request.one_kind_of_place = s_part.batch_invariant && s_part.plan.pool_on_device;
    request.rows_alike = s_part.plan.rows_alike;
    request.on_device = s_part.device.ops != &backend_cpu;
    request.max_rows = s_part.max_rows;
    request.mini_batches = s_part.mini_batches;
    request.threads = thread_pool_threads(s_part.pool);
    if (s_part.calibration.done) {
        request.calibration = &s_part.calibration.message;
        request.kv_costs = &s_part.calibration.kv_message;
    }
    member_register(s_part.member, &request);
    free(items);
    free(pointers);
    free(list->items);
    free(list);
}

/* On the engine's loop. */
static void list_held(void *arg)
{
    struct engine *engine = &s_part.engine;
    struct held_list *list = calloc(1, sizeof *list);
    uint32_t count = engine->ops->pool_held(engine->backend, NULL, 0);

    (void)arg;
    assert_always(list);
    list->items = calloc(count + 1u, sizeof *list->items);
    assert_always(list->items);
    list->count = MIN(count, engine->ops->pool_held(engine->backend, list->items, count));
    rpc_loop_post(s_part.control_loop, send_registration, list);
}

static void on_connect(void *user)
{
    (void)user;
    rpc_loop_post(s_part.engine.loop, list_held, NULL);
}

static void on_registered(void *user, const Fastdecode__RegisterReply *reply)
{
    (void)user;
    atomic_store_explicit(&s_part.engine.scheduler_incarnation, reply->scheduler_incarnation, memory_order_relaxed);
    log_info("REGISTERED", "scheduler=%s", s_part.scheduler);
}

static void fill_heartbeat(void *user, Fastdecode__HeartbeatRequest *heartbeat)
{
    struct engine *engine = &s_part.engine;
    (void)user;
    heartbeat->pages_used = atomic_load_explicit(&engine->pages_used, memory_order_relaxed);
    heartbeat->pages_peak = atomic_load_explicit(&engine->pages_peak, memory_order_relaxed);
    heartbeat->kv_bytes_read = atomic_load_explicit(&engine->kv_bytes_read, memory_order_relaxed);
    heartbeat->busy_us = atomic_load_explicit(&engine->busy_us, memory_order_relaxed);
    heartbeat->rows = atomic_load_explicit(&engine->rows_done, memory_order_relaxed);
}

/* --- the engine's thread ---------------------------------------------------------------------------------------------- */

static void publish(struct engine *engine)
{
    struct backend_info info;
    engine->ops->info(engine->backend, &info);
    atomic_store_explicit(&engine->pages_used, info.pages_used, memory_order_relaxed);
    atomic_store_explicit(&engine->pages_peak, info.pages_peak, memory_order_relaxed);
    atomic_store_explicit(&engine->kv_bytes_read, info.attend_bytes, memory_order_relaxed);
}

static void *engine_main(void *arg)
{
    struct engine *engine = &s_part.engine;
    (void)arg;
    while (!atomic_load_explicit(&s_part.stop, memory_order_relaxed)) {
        watchdog_turn(&engine->watchdog);
        if (engine_advance(engine)) {
            rpc_loop_run(engine->loop, 0, 0);
        } else {
            publish(engine);
            rpc_loop_run(engine->loop, 1000000, SPIN_US);
        }
    }
    handover_close_all(&engine->handover);
    rpc_loop_run(engine->loop, 0, 0); /* what that posted */
    link_close_all(engine);           /* what ends so looks at its step's request, which the server frees */
    rpc_server_close(s_part.server);
    engine_close(engine);
    return NULL;
}

/* --- start and end ----------------------------------------------------------------------------------------------------- */

static bool ready(void *user, char *reason, size_t reason_bytes)
{
    (void)user;
    if (member_is_registered(s_part.member))
        return true;
    snprintf(reason, reason_bytes, "not registered with the scheduler at %s", s_part.scheduler);
    return false;
}

static enum status open_server(struct error *error)
{
    struct engine *engine = &s_part.engine;
    const struct rpc_method methods[] = {
        {&fastdecode__spart__descriptor, "Step", engine_step_handler, engine},
        {&fastdecode__spart__descriptor, "Release", engine_release_handler, engine},
        {&fastdecode__spart__descriptor, "Exclude", engine_exclude_handler, engine},
        {&fastdecode__kv_control__descriptor, "Fetch", engine_fetch_handler, engine},
        {&fastdecode__kv_handover__descriptor, "ReadPage", handover_read_page, &engine->handover},
    };
    const char *addresses[] = {s_part.listen, s_part.listen_tensors};
    const struct rpc_server_config config = {
        .addresses = addresses,
        .address_count = s_part.listen_tensors ? 2 : 1,
        .methods = methods,
        .method_count = ARRAY_COUNT(methods),
        .ready = ready,
        .hello = {.service = "s-part", .incarnation = s_part.incarnation},
    };
    enum status status = rpc_server_open(engine->loop, &config, &s_part.server, error);
    if (status)
        return status;
    snprintf(s_part.address, sizeof s_part.address, "%s",
             s_part.advertise ? s_part.advertise : rpc_server_address(s_part.server, 0));
    snprintf(s_part.tensor_address, sizeof s_part.tensor_address, "%s",
             s_part.advertise_tensors ? s_part.advertise_tensors
             : s_part.listen_tensors  ? rpc_server_address(s_part.server, 1)
                                      : s_part.address);
    if ((status = member_check_address(s_part.address, "advertise", error)))
        return status;
    return member_check_address(s_part.tensor_address, "advertise-tensors", error);
}

static enum status check_plan(const struct backend_plan *plan, struct error *error)
{
    char parts[160];
    const struct memory_plan memory = {
        .fixed_bytes = plan->weight_bytes + plan->activation_bytes + plan->pool_fixed_bytes,
        .start_bytes = MAX(plan->start_bytes, s_part.calibrate ? CALIBRATE_BYTES : 0),
        .page_bytes = (plan->pool_on_device ? 0 : plan->pool_page_bytes) +
                      (plan->pool_pages ? plan->pool_table_bytes / plan->pool_pages : 0),
        .pool_bytes = plan->pool_on_device ? 0 : s_part.local_pool,
    };
    snprintf(parts, sizeof parts, "weights_mib=%.1f activations_mib=%.1f pool_fixed_mib=%.1f pages=%llu",
             (double)plan->weight_bytes / 1048576, (double)plan->activation_bytes / 1048576,
             (double)plan->pool_fixed_bytes / 1048576, (unsigned long long)plan->pool_pages);
    return memory_plan_check(&memory, parts, error);
}

/* --pool-fills-device: what weights and activations leave, but for a twentieth; none where the device has no such K and V. */
static enum status fill_device(struct backend_config *config, struct error *error)
{
    struct backend_plan plan;

    if (s_part.device.ops == &backend_cpu || !s_part.pool_fills_device)
        return STATUS_OK;
    if (config->kv_type != KV_F16)
        config->local_pool_bytes = 0;
    enum status status = s_part.device.ops->plan(config, &plan, error);
    uint64_t used = status ? 0 : plan.device_weight_bytes + plan.device_activation_bytes;
    if (!status && config->local_pool_bytes)
        config->local_pool_bytes = plan.device_free_bytes > used ? (plan.device_free_bytes - used) / 20 * 19 : 0;
    if (!status && config->local_pool_bytes < plan.pool_page_bytes)
        config->local_pool_bytes = 0;
    if (!status && s_part.local_pool && !config->local_pool_bytes)
        log_warn("POOL-LEFT-OUT", "why=\"%s\"",
                 config->kv_type != KV_F16 ? "on a GPU the local pool is f16: KV is on workers only"
                                           : "weights and activations leave less than a page of the GPU's memory");
    s_part.local_pool = config->local_pool_bytes;
    return status;
}

/* Of a device with memory of its own. */
static enum status check_device(const struct backend_plan *plan, struct error *error)
{
    uint64_t pool = plan->pool_pages * plan->pool_page_bytes;
    uint64_t sum = plan->device_weight_bytes + plan->device_activation_bytes + pool;
    const double mib = 1048576;

    if (!plan->pool_on_device)
        return STATUS_OK;
    log_info("DEVICE-MEMORY", "weights_mib=%.1f activations_mib=%.1f pool_mib=%.1f pages=%llu free_mib=%.1f",
             (double)plan->device_weight_bytes / mib, (double)plan->device_activation_bytes / mib, (double)pool / mib,
             (unsigned long long)plan->pool_pages, (double)plan->device_free_bytes / mib);
    if (sum <= plan->device_free_bytes)
        return STATUS_OK;
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "%s: %.0f MiB are needed and %.0f are free: weights %.0f, activations %.0f (--max-rows, --mini-batches), local "
        "pool %.0f (--local-pool; KV workers hold the rest)",
        s_part.device.line, (double)sum / mib, (double)plan->device_free_bytes / mib, (double)plan->device_weight_bytes / mib,
        (double)plan->device_activation_bytes / mib, (double)pool / mib);
}

/* Messages lie where the device reads and writes them itself. */
static enum status lend_memory(struct error *error)
{
    const struct engine *engine = &s_part.engine;
    uint64_t bytes;
    void *lent;

    if (!engine->ops->host_memory)
        return STATUS_OK;
    engine->ops->host_memory(engine->backend, &lent, &bytes);
    return lent && rpc_lend_memory(lent, bytes) ? error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for messages") : STATUS_OK;
}

static enum status load(struct error *error)
{
    struct engine *engine = &s_part.engine;
    uint64_t began_us = clock_now_us();
    enum status status = model_open(s_part.model_path, &s_part.model, error);

    if (status)
        return status;
    if (!s_part.context || s_part.context > s_part.model->shape.context_length)
        s_part.context = s_part.model->shape.context_length;
    model_release_file(s_part.model); /* what was read to check it; the plan counts from here */
    if ((status = device_choose(s_part.device_name, &s_part.device, error)))
        return status;
    struct backend_config config = backend_config();
    engine->ops = s_part.device.ops;
    if (!strcmp(s_part.device_name, "auto") && engine->ops == &backend_cpu) /* so it is, too, behind a device that was lost */
        log_warn("DEVICE", "chosen=\"%s\"", s_part.device.line);
    else
        log_info("DEVICE", "chosen=\"%s\"", s_part.device.line);
    if ((status = fill_device(&config, error)) || (status = engine->ops->plan(&config, &s_part.plan, error)))
        return status;
    if ((status = check_device(&s_part.plan, error)) || (status = check_plan(&s_part.plan, error)))
        return status;
    if (s_part.local_pool && s_part.plan.pool_pages == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--local-pool %llu bytes is less than one page (%llu)",
                         (unsigned long long)s_part.local_pool, (unsigned long long)s_part.plan.pool_page_bytes);
    if ((status = engine->ops->open(&config, &engine->backend, error)))
        return status;
    model_release_file(s_part.model);
    if ((status = lend_memory(error)))
        return status;
    struct backend_info info;
    engine->ops->info(engine->backend, &info);
    snprintf(s_part.level, sizeof s_part.level, "%s", info.level);
    log_info("MODEL-LOADED", "file=%s device=%s level=%s context=%u max_rows=%u threads=%u cpus=%s load_ms=%llu", s_part.model_path,
             info.device, info.level, s_part.context, s_part.max_rows, thread_pool_threads(s_part.pool),
             thread_pool_cpus(s_part.pool), (unsigned long long)(clock_now_us() - began_us) / 1000);
    return STATUS_OK;
}

/* A mesh that knows less of itself is better than none. */
static void measure(void)
{
    struct engine *engine = &s_part.engine;
    const struct model_shape *shape = &engine->shape;
    const struct kv_shape kv = {.heads = shape->heads,
                                .kv_heads = shape->kv_heads,
                                .head_dim = shape->head_dim,
                                .page_tokens = PAGE_TOKENS,
                                .type = s_part.kv_type};
    const struct attend_measure what = {.ops = engine->ops,
                                        .backend = engine->backend,
                                        .batch = engine->batches[0].backend,
                                        .shape = shape,
                                        .pages = s_part.plan.pool_on_device ? s_part.plan.pool_pages : 0,
                                        .page_tokens = PAGE_TOKENS,
                                        .max_rows = s_part.max_rows,
                                        .context_tokens = s_part.context};
    struct error error;

    if (!s_part.calibrate)
        return;
    if (calibrate(&what, &kv, s_part.pool, s_part.max_batch, &s_part.calibration, &error))
        log_warn("NOT-CALIBRATED", "why=\"%s\"", error.text);
}

static enum status start(struct error *error)
{
    const struct trace_config trace = {.path = s_part.trace, .append = s_part.trace_append, .process = s_part.name, .order = 3};
    struct engine *engine = &s_part.engine;
    enum status status = trace_open(&trace, error);

    if (status)
        return status;
    s_part.incarnation = member_incarnation();
    if (thread_pool_open(s_part.threads ? s_part.threads : cpu_count_usable(), &s_part.pool) ||
        rpc_loop_open(&s_part.control_loop) || rpc_loop_open(&engine->loop))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory or threads to start with");
    rpc_loop_set_secret(s_part.control_loop, &s_part.mesh_secret);
    rpc_loop_set_secret(engine->loop, &s_part.mesh_secret);
    if ((status = load(error)))
        return status;
    engine->shape = s_part.model->shape;
    engine->context_tokens = s_part.context;
    engine->max_rows = s_part.max_rows;
    engine->batch_count = s_part.mini_batches;
    engine->incarnation = s_part.incarnation;
    if (sequence_table_open(SEQUENCES_MAX, engine->shape.vocab, s_part.context, &engine->sequences))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for sequences");
    if ((status = engine_open(engine, error)))
        return status;
    measure();
    if ((status = open_server(error)))
        return status;
    const struct member_config member = {
        .scheduler = s_part.scheduler,
        .hello = {.service = "s-part", .incarnation = s_part.incarnation},
        .name = s_part.name,
        .on_connect = on_connect,
        .on_registered = on_registered,
        .fill_heartbeat = fill_heartbeat,
    };
    if ((status = member_open(s_part.control_loop, &member, &s_part.member, error)))
        return status;
    if (pthread_create(&s_part.engine_thread, NULL, engine_main, NULL))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no thread for the engine");
    return STATUS_OK;
}

static void serve(void)
{
    uint64_t stuck_us;

    while (!asked_to_stop) {
        rpc_loop_run(s_part.control_loop, 1000000, 0);
        if (watchdog_bites(&s_part.engine.watchdog, clock_now_us(), s_part.device_timeout_s * 1000000ull, &stuck_us)) {
            log_error("DEVICE-SILENT", "seconds=%.0f what=\"this s-part ends, and goes on when it is started again\"",
                      (double)stuck_us * 1e-6);
            _exit(EXIT_FAILURE);
        }
    }
    atomic_store_explicit(&s_part.stop, true, memory_order_relaxed);
    rpc_loop_wake(s_part.engine.loop);
    pthread_join(s_part.engine_thread, NULL);
    rpc_loop_run(s_part.control_loop, 0, 0);
    member_close(s_part.member);
    sequence_table_close(s_part.engine.sequences);
    rpc_loop_close(s_part.engine.loop);
    rpc_loop_close(s_part.control_loop);
    if (rpc_take_memory_back())
        s_part.engine.ops->close(s_part.engine.backend);
    else
        log_error("MESSAGES-LEFT", "what=\"the device's memory is left to the end of the process\"");
    thread_pool_close(s_part.pool);
    model_close(s_part.model);
    trace_close();
    log_info("END", "name=%s", s_part.name);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct error error;
    bool check_only;

    s_part.scheduler = "tcp://127.0.0.1:7400";
    s_part.listen = "tcp://127.0.0.1:0";
    s_part.name = "s-part";
    s_part.device_timeout_s = 60;
    s_part.compute = "auto";
    s_part.device_name = "cpu";
    s_part.calibrate = true;
    s_part.kv_type_name = "f16";
    s_part.local_pool = 1ull << 30;
    s_part.max_batch = 128;
    s_part.mini_batches = 2;
    if (parse(argc, argv, &check_only, &error)) {
        fprintf(stderr, "s-part: %s\n", error.text);
        return 2;
    }
    if (check_only)
        return 0;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (start(&error)) {
        fprintf(stderr, "s-part: %s\n", error.text);
        return 2;
    }
    serve();
    return 0;
}

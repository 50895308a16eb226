// measure.c: describes this machine (commands.h). Memory, products and attention are measured by the backend's own kernels; the link by calls of
// common/rpc between two threads over ipc, as the services of one host have it.
#include "services/fastdecode/plan/commands.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "attend.pb-c.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/measure.h"
#include "common/base/memory.h"
#include "common/base/numa.h"
#include "common/base/thread_pool.h"
#include "common/model/model.h"
#include "common/plan/hardware.h"
#include "common/rpc/rpc.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/backend_measure.h"
#include "kernels/backend/device.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/kv/kv_store.h"

// --- NUMA nodes: how fast the CPUs of each read the memory of each ---------------------------------------------------

enum { PASSES = 31, PAIR_US = 120000 };
#define BYTES (128ull << 20) // more than caches hold

// Maps memory of one node. NULL: there is none; or, with *refused, the kernel does not bind it.
static void *map_on(struct numa_binding *binding, bool *refused)
{
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    *refused = false;
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, BYTES, MADV_HUGEPAGE);
    if (!numa_bind(binding, memory, BYTES)) {
        *refused = true;
        munmap(memory, BYTES);
        return NULL;
    }
    memset(memory, 1, BYTES);
    return memory;
}

// Measures one column: each node's CPUs on the memory of node `column`. cpus: how many each has.
static enum status measure_column(struct numa_binding *bindings, const uint32_t *cpus, uint32_t column, uint32_t threads,
                                  struct hardware_nodes *out, bool *refused, struct error *error)
{
    void *memory = map_on(&bindings[column], refused);
    enum status status = STATUS_OK;

    if (!memory)
        return *refused ? STATUS_OK
                        : error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to measure NUMA node %u with", out->id[column]);
    for (uint32_t row = 0; !status && row < out->count; row++) {
        const uint32_t count = cpus[row];
        struct thread_pool *pool;
        if (!numa_set_cpus(&bindings[row].sets[0]) || thread_pool_open(threads ? MIN(threads, count) : count, &pool)) {
            status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "no threads on the CPUs of NUMA node %u", out->id[row]);
            break;
        }
        out->gb_per_second[row][column] = read_rate_of(pool, memory, BYTES, PASSES, PAIR_US) * 1e-9;
        thread_pool_close(pool);
    }
    munmap(memory, BYTES);
    return status;
}

// Measures for about 0.15 s a pair of nodes, each with the threads that its node has CPUs for (at most `threads`; 0: all of them). Nodes
// without CPUs or memory for this process are left out. out->count is 0 if there are fewer than two, or if the kernel does not let memory be
// bound to a node, which stderr says. Moves the calling thread and brings it back.
static enum status measure_nodes(const struct numa_topology *topology, uint32_t threads, struct hardware_nodes *out,
                                 struct error *error)
{
    static struct numa_binding bindings[HARDWARE_NODES_MAX]; // too large for a stack
    struct numa_worker nodes[NUMA_NODES_MAX];
    uint32_t cpus[HARDWARE_NODES_MAX], count = MIN(numa_share(topology, 0, 0, nodes), (uint32_t)HARDWARE_NODES_MAX);
    enum status status = STATUS_OK;
    bool refused = false;
    struct numa_mask before;

    *out = (struct hardware_nodes){0};
    if (count < 2 || !numa_get_cpus(&before))
        return STATUS_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        cpus[i] = topology->nodes[nodes[i].node].cpu_count;
        out->id[i] = topology->nodes[nodes[i].node].id;
        status = numa_binding_node(topology, "numa", out->id[i], &bindings[i], error);
    }
    out->count = count;
    for (uint32_t column = 0; column < count && !status && !refused; column++)
        status = measure_column(bindings, cpus, column, threads, out, &refused, error);
    numa_set_cpus(&before);
    if (refused) {
        fprintf(stderr, "fastdecode plan: the kernel does not bind memory to NUMA nodes here: their rates are left out\n");
        out->count = 0;
    }
    return status;
}

// --- a model: layers, head, attention --------------------------------------------------------------------------------

enum { ROWS_MAX = 512, SAMPLED_MAX = 128, STEPS_US = 1500000, ATTENTION_US = 400000, PAGE_TOKENS = 16, CONTEXT = 1024 };
enum { MEASURE_BYTES = 64 << 20 };

// Sizes the pool of a device: what weights and activations leave, at most what measuring attention needs.
static enum status size_pool(const struct backend_ops *ops, struct backend_config *config, struct backend_plan *plan,
                             struct error *error)
{
    enum status status = ops->plan(config, plan, error);
    if (status || !plan->pool_on_device)
        return status;
    uint64_t used = plan->device_weight_bytes + plan->device_activation_bytes,
             left = plan->device_free_bytes > used ? (plan->device_free_bytes - used) / 20 * 19 : 0;
    uint64_t pages = (uint64_t)ATTEND_MEASURE_SEQUENCES * ATTEND_MEASURE_CONTEXT / PAGE_TOKENS;
    config->local_pool_bytes = MIN(left / plan->pool_page_bytes, pages) * plan->pool_page_bytes;
    status = ops->plan(config, plan, error);
    used = status ? 0 : plan->device_weight_bytes + plan->device_activation_bytes + plan->pool_pages * plan->pool_page_bytes;
    if (used > plan->device_free_bytes)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: %.0f MiB are needed and %.0f are free",
                         gguf_label(config->model->gguf), (double)used / 1048576, (double)plan->device_free_bytes / 1048576);
    return status;
}

static enum status measure_opened(const struct backend_ops *ops, const struct backend_config *config,
                                  const struct backend_plan *plan, struct backend *backend, struct hardware_model *out,
                                  struct error *error)
{
    const struct model_shape *shape = &config->model->shape;
    struct attend_measure what = {.ops = ops,
                                  .backend = backend,
                                  .shape = shape,
                                  .pages = plan->pool_pages,
                                  .page_tokens = PAGE_TOKENS,
                                  .max_rows = config->max_rows,
                                  .context_tokens = config->context_tokens};
    struct backend_times times;
    enum status status = ops->batch_open(backend, &what.batch, error);

    if (status)
        return status;
    status = backend_measure(ops, what.batch, shape, ROWS_MAX, SAMPLED_MAX, UINT32_MAX, STEPS_US, &times, error);
    for (uint32_t i = 0; !status && i < times.layer_count; i++)
        cost_curve_add(&out->layer, times.layer_rows[i], times.layer_us[i]);
    for (uint32_t i = 0; !status && i < times.head_count; i++)
        cost_curve_add(&out->head, times.head_rows[i], times.head_us[i]);
    if (!status && plan->pool_on_device)
        status = backend_measure_attention(&what, ATTENTION_US, &out->attention, error);
    ops->batch_close(what.batch);
    return status;
}

static enum status measure_steps(const struct model *model, const struct device_choice *device, struct thread_pool *pool,
                                 struct hardware_model *out, struct error *error)
{
    struct backend_config config = {.model = model,
                                    .pool = pool,
                                    .max_rows = ROWS_MAX,
                                    .max_batches = 1,
                                    .context_tokens = MIN(CONTEXT, model->shape.context_length),
                                    .kv_type = KV_F16,
                                    .page_tokens = PAGE_TOKENS,
                                    .max_sequences = ROWS_MAX,
                                    .device = device->index};
    struct backend_plan plan; // says whether the model can run here
    struct backend *backend = NULL;
    enum status status = size_pool(device->ops, &config, &plan, error);

    if (status || (status = device->ops->open(&config, &backend, error)))
        return status;
    status = measure_opened(device->ops, &config, &plan, backend, out, error);
    device->ops->close(backend);
    return status;
}

// Loads the file, measures and frees it again; blocks meanwhile. out->name points into model_path.
static enum status measure_model(const char *model_path, const struct device_choice *device, struct thread_pool *pool,
                                 struct hardware_model *out, struct error *error)
{
    const char *slash = strrchr(model_path, '/');
    struct model *model;
    enum status status = model_open(model_path, &model, error);

    if (status)
        return status;
    struct kv_shape kv = kv_shape_of_model(model, 0, model->shape.layers);
    kv.page_tokens = PAGE_TOKENS;
    kv.type = KV_F16;
    *out = (struct hardware_model){.name = slash ? slash + 1 : model_path};
    status = measure_steps(model, device, pool, out, error);
    if (!status && out->attention.token_us <= 0)
        status = kv_measure(&kv, MEASURE_BYTES, pool, ATTENTION_US, &out->attention, error);
    model_close(model);
    return status;
}

enum { SMALL_BYTES = 64, LARGE_BYTES = 4 << 20, SMALL_CALLS = 301, LARGE_CALLS = 15, CONNECT_MS = 10000, GPU_US = 1000000 };

// --- the link ---------------------------------------------------------------------------------------------------------

struct echo {
    pthread_t thread;
    const char *listen;
    char address[256];
    enum status status;
    struct error error;
    atomic_bool ready, stop;
};

// Replies with as many bytes as came.
static void echo_call(struct rpc_call *call, void *user)
{
    size_t length;
    unsigned char *out;
    (void)user;
    (void)rpc_message_payload(rpc_call_message(call), &length);
    struct rpc_buffer *buffer = rpc_reply_buffer(call, length, &out);
    memset(out, 1, length);
    rpc_call_reply_buffer(call, buffer);
}

static void *echo_main(void *arg)
{
    struct echo *echo = arg;
    const struct rpc_method method = {.service = &fastdecode__kv_worker__descriptor, .method = "Attend", .handler = echo_call};
    const struct rpc_server_config config = {
        .addresses = &echo->listen, .address_count = 1, .hello = {.service = "measure"}, .methods = &method, .method_count = 1};
    struct rpc_server *server = NULL;
    struct rpc_loop *loop;

    echo->status = rpc_loop_open(&loop);
    if (!echo->status) {
        echo->status = rpc_server_open(loop, &config, &server, &echo->error);
        if (!echo->status)
            snprintf(echo->address, sizeof echo->address, "%s", rpc_server_address(server, 0));
        atomic_store_explicit(&echo->ready, true, memory_order_release); // publishes status and address
        while (!echo->status && !atomic_load_explicit(&echo->stop, memory_order_relaxed))
            rpc_loop_run(loop, 10000, 0);
        rpc_server_close(server);
        rpc_loop_close(loop);
    }
    atomic_store_explicit(&echo->ready, true, memory_order_release);
    return NULL;
}

struct answers {
    uint32_t count;
    enum status status;
};

static void on_end(void *user, enum status status, const char *error)
{
    struct answers *answers = user;
    (void)error;
    answers->count++;
    if (status)
        answers->status = status;
}

static void on_message(void *user, struct rpc_message *message) { (void)user, (void)message; }

// Returns the median time of some calls with `bytes` each way.
static enum status median_call_us(struct rpc_loop *loop, struct rpc_channel *channel, size_t bytes, uint32_t calls, double *out)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_message, .on_end = on_end};
    const uint32_t method = rpc_method_id(&fastdecode__kv_worker__descriptor, "Attend");
    struct answers answers = {0};
    double us[SMALL_CALLS];

    for (uint32_t i = 0; i < calls; i++) {
        unsigned char *payload;
        uint64_t began_ns = clock_now_ns();
        struct rpc_buffer *buffer = rpc_request_buffer(channel, method, 0, bytes, &payload);
        memset(payload, 1, bytes);
        enum status status = rpc_call_start_buffer(channel, buffer, &callbacks, &answers, NULL);
        while (!status && answers.count == i)
            rpc_loop_run(loop, 1000000, 0);
        if (status || answers.status)
            return status ? status : answers.status;
        us[i] = (double)(clock_now_ns() - began_ns) * 1e-3;
    }
    *out = median_of(us, calls);
    return STATUS_OK;
}

static enum status measure_calls(struct echo *echo, struct hardware *out, struct error *error)
{
    const struct rpc_channel_config config = {.address = echo->address, .hello = {.service = "measure"}};
    uint64_t until_us = clock_now_us() + CONNECT_MS * 1000;
    struct rpc_channel *channel = NULL;
    struct rpc_loop *loop;
    double large_us;
    enum status status = rpc_loop_open(&loop);

    if (status)
        return error_set(error, status, "no loop to measure the link with");
    status = rpc_channel_open(loop, &config, &channel, error);
    while (!status && !rpc_channel_is_up(channel) && clock_now_us() < until_us)
        rpc_loop_run(loop, 10000, 0);
    if (!status && ((status = median_call_us(loop, channel, SMALL_BYTES, SMALL_CALLS, &out->link_round_trip_us)) ||
                    (status = median_call_us(loop, channel, LARGE_BYTES, LARGE_CALLS, &large_us))))
        error_set(error, status, "the link to %s: %s", echo->address, status_name(status));
    if (!status)
        out->link_gb_per_second = 2.0 * LARGE_BYTES / MAX(large_us - out->link_round_trip_us, large_us / 2) * 1e6 / 1e9;
    rpc_channel_close(channel);
    rpc_loop_close(loop);
    return status;
}

static enum status measure_link(struct hardware *out, struct error *error)
{
    char listen[64];
    struct echo echo = {.listen = listen};
    enum status status;

    snprintf(listen, sizeof listen, "ipc:///tmp/fd-measure-%d.sock", (int)getpid());
    if (pthread_create(&echo.thread, NULL, echo_main, &echo))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no thread to measure the link with");
    while (!atomic_load_explicit(&echo.ready, memory_order_acquire))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    if (echo.status)
        status = error_set(error, echo.status, "cannot listen on %s: %s", listen, echo.error.text);
    else
        status = measure_calls(&echo, out, error);
    atomic_store_explicit(&echo.stop, true, memory_order_relaxed);
    pthread_join(echo.thread, NULL);
    unlink(listen + strlen("ipc://"));
    return status;
}

// --- the description --------------------------------------------------------------------------------------------------

static void cpu_name(char *out, size_t out_bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");

    snprintf(out, out_bytes, "CPU");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            line[strcspn(line, "#\n")] = '\0';
            snprintf(out, out_bytes, "%s", strchr(line, ':') + 2);
            break;
        }
    if (file)
        fclose(file);
}

static enum status write_file(const struct hardware *hardware, const char *comment, const char *path, struct error *error)
{
    FILE *file = path ? fopen(path, "w") : stdout;
    bool failed;

    if (!file)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
    hardware_write(file, hardware, comment);
    failed = ferror(file) != 0;
    failed = (path ? fclose(file) : fflush(file)) != 0 || failed;
    return failed ? error_set(error, STATUS_DATA_LOSS, "%s: %s", path ? path : "standard output", strerror(errno)) : STATUS_OK;
}

static void write_comment(char *out, size_t bytes, bool gpu)
{
    const time_t now = time(NULL);
    int length = snprintf(out, bytes, "Written by fastdecode plan --measure, ");

    strftime(
        out + length, bytes - (size_t)length,
        gpu ? "%Y-%m-%d: a kernel that only reads, cuBLASLt's products of one row and of\n"
              "many, the upper quarter of at most 31 passes. memory: what was free, without the 256 MiB that are left to the driver.\n"
              "As an S-part; the link is a call between two threads of this host (ipc). --device cpu describes the host, for workers."
            : "%Y-%m-%d: kernels of this build, the upper quarter of 31 passes. memory: nine\n"
              "tenths of what was free. The link is a call between two threads of this host (ipc). Where S-part and workers share\n"
              "this machine, measure with --threads of each.",
        gmtime(&now));
}

// Measures attention of prompts with heads as most models of today have them: as a worker that knows no model, and gets any.
static enum status measure_prompts(struct thread_pool *pool, double *tflops, struct error *error)
{
    const struct kv_shape shape = {
        .layers = 1, .heads = 32, .kv_heads = 8, .head_dim = 128, .page_tokens = PAGE_TOKENS, .type = KV_F16};
    struct kv_costs costs = {0};
    enum status status = kv_measure(&shape, MEASURE_BYTES, pool, ATTENTION_US, &costs, error);

    *tflops = costs.pair_us > 0 ? 4.0 * shape.heads * shape.head_dim / costs.pair_us * 1e-6 : 0;
    return status;
}

static enum status measure_cpu(struct thread_pool *pool, struct hardware *out, char *name, size_t name_bytes, struct error *error)
{
    struct cpu_rates rates = {0};
    char cpu[128];
    uint32_t threads = thread_pool_threads(pool);
    enum status status = cpu_measure(pool, &rates, error);

    cpu_name(cpu, sizeof cpu);
    snprintf(name, name_bytes, "%s, %u thread%s", cpu, threads, threads > 1 ? "s" : "");
    *out = (struct hardware){
        .memory_bytes = memory_available_bytes() / 10 * 9,
        .memory_gb_per_second = rates.read_bytes * 1e-9,
        .f32_tflops = rates.f32_operations * 1e-12,
        .int8_tops = rates.int8_operations * 1e-12,
        .weights_share = hardware_share(rates.weight_bytes, rates.read_bytes),
        .attention_share = hardware_share(rates.kv_bytes, rates.read_bytes),
        .layer_us = 6 * rates.phase_us, // phases of a layer: two norms, QKV, attention's output, gate and up, down
    };
    return status ? status : measure_prompts(pool, &out->prompt_attention_tflops, error);
}

// Without a model nothing is known of attention: it gets the rate of reading.
static enum status measure_gpu(const struct device_choice *device, struct hardware *out, char *name, size_t name_bytes,
                               struct error *error)
{
    struct device_rates rates;
    enum status status = device->library->measure(device->index, GPU_US, &rates, error);

    if (status)
        return status;
    snprintf(name, name_bytes, "%s", rates.name);
    *out = (struct hardware){
        .memory_bytes = rates.memory_bytes + HARDWARE_GPU_CONTEXT,
        .compute_capability = rates.compute_capability,
        .memory_gb_per_second = rates.read_bytes * 1e-9,
        .f16_tflops = rates.f16_operations * 1e-12,
        .weights_share = hardware_share(rates.weight_bytes, rates.read_bytes),
        .attention_share = 1,
    };
    fprintf(stderr, "fastdecode plan: measured %s\n", device->line);
    return STATUS_OK;
}

// Has memory lie on all NUMA nodes, as an s-part has its weights, and measures them one by one. On one node nothing changes.
static enum status enter_nodes(uint32_t threads, struct hardware_nodes *out, struct error *error)
{
    struct numa_topology topology;
    struct numa_binding binding;

    numa_read_own(&topology);
    enum status status = measure_nodes(&topology, threads, out, error);
    numa_binding_interleave(&topology, 2, &binding);
    numa_enter(&binding);
    return status;
}

enum status measure_machine(const struct measure_request *request, struct error *error)
{
    struct hardware hardware = {0};
    struct hardware_model model = {0};
    struct hardware_nodes nodes = {0};
    struct device_choice device;
    struct thread_pool *pool;
    char name[192] = "", comment[512];
    enum status status = kernels_init(NULL, error);

    if (status || (status = device_choose(request->device, &device, error)))
        return status;
    log_init("fastdecode", LOG_ERROR, false); // the loops' own lines are of no interest here
    if (!device.library && (status = enter_nodes(request->threads, &nodes, error)))
        return status;
    uint32_t threads = request->threads ? request->threads : cpu_count_usable();
    if (thread_pool_open(threads, &pool))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no %u threads", threads);
    status = device.library ? measure_gpu(&device, &hardware, name, sizeof name, error)
                            : measure_cpu(pool, &hardware, name, sizeof name, error);
    if (!status && request->model_path)
        status = measure_model(request->model_path, &device, pool, &model, error);
    thread_pool_close(pool);
    hardware.name = name;
    hardware.model = model;
    hardware.nodes = nodes;
    hardware.products_share = 1;
    if (!status)
        status = measure_link(&hardware, error);
    if (status)
        return status;
    hardware.step_us = hardware.link_round_trip_us; // a step is one call
    write_comment(comment, sizeof comment, device.library != NULL);
    if (nodes.count)
        snprintf(
            comment + strlen(comment), sizeof comment - strlen(comment),
            "\nnuma_gb_per_second: a row for the CPUs of each NUMA node, a column for the memory that they read. The other rates are of\n"
            "all CPUs, with memory of all nodes in turn.");
    return write_file(&hardware, comment, request->path, error);
}

/* bench_gpu.c: the CUDA backend without a mesh around it, beside what the same device does at best in the same run: its memory read by
 * a kernel that does nothing else, and the fastest of cuBLASLt's products of the model's shapes.
 *
 *     bench_gpu probe                       which device, or why none: status 3
 *     bench_gpu device MODEL                the ceilings
 *     bench_gpu s-part MODEL                a step's weights: one row, many rows
 *     bench_gpu quant MODEL_F16 MODEL_Q4    one row with weights in 4 bits beside f16
 *     bench_gpu attention MODEL             decode and prefill attention over paged K and V; few layers suffice
 *
 * Steps of the S-part have rows of the local pool, one a sequence, and leave attention out: so nothing is copied to or from the host
 * but tokens and what is sampled. Host time of entries that are queued and waited for once; a second figure has each waited for, as an
 * engine has to that waits for workers in between.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/kv/kv_type.h"
#include "common/model/model.h"
#include "kernels/backend/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/dispatch/kernels.h"
#include "tests/bench/gpu/gemm_ceiling.h"
#include "tests/bench/report.h"

enum { PASSES_MAX = 31, PAGE_TOKENS = 16, NO_DEVICE = 3, READS_QUEUED = 8, PRODUCTS = 5 };

extern const struct device_library fastdecode_device; /* this program has it linked in */

/* --- what is asked for -------------------------------------------------------------------------------------------------- */

static struct {
    uint32_t device, rows, sequences, context, threads, passes;
    uint64_t stream_bytes;
} asked = {.rows = 1024, .sequences = 64, .context = 4096, .passes = 15, .stream_bytes = 2ull << 30};

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_gpu: %s: %s\n", what, why);
    exit(1);
}

static void must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        die(what, cudaGetErrorString(error));
}

static void *device_memory(uint64_t bytes, const char *what)
{
    void *at = NULL;
    must(cudaMalloc(&at, bytes), what);
    return at;
}

/* --- ceilings ----------------------------------------------------------------------------------------------------------- */

struct ceilings {
    cudaStream_t stream;
    unsigned char *bytes; /* [asked.stream_bytes] */
    void *workspace;
    double best_operations; /* a second, of all products that were tried */
};

static void open_ceilings(struct ceilings *c)
{
    *c = (struct ceilings){0};
    must(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream");
    c->bytes = device_memory(asked.stream_bytes, "memory to read");
    c->workspace = device_memory(CEILING_WORKSPACE, "a workspace");
    gpu_fill(c->bytes, asked.stream_bytes / 2, 1, c->stream);
    must(cudaStreamSynchronize(c->stream), "filling");
}

static void close_ceilings(struct ceilings *c)
{
    cudaFree(c->bytes);
    cudaFree(c->workspace);
    cudaStreamDestroy(c->stream);
}

/* Bytes a second, now. */
static double read_rate(struct ceilings *c)
{
    uint64_t began_ns = clock_now_ns();
    for (int i = 0; i < READS_QUEUED; i++)
        gpu_read(c->bytes, asked.stream_bytes, c->workspace, c->stream);
    must(cudaStreamSynchronize(c->stream), "reading");
    return (double)asked.stream_bytes * READS_QUEUED / ((double)(clock_now_ns() - began_ns) * 1e-9);
}

static double median_read_rate(struct ceilings *c)
{
    double rates[PASSES_MAX];
    for (int i = -1; i < (int)asked.passes; i++)
        rates[MAX(i, 0)] = read_rate(c);
    return report_median(rates, asked.passes);
}

/* The products of a layer, combined as the backend combines them, and the head last. */
struct products {
    const char *name[PRODUCTS];
    uint32_t outputs[PRODUCTS], inputs[PRODUCTS];
};

static struct products products_of(const struct model_shape *s)
{
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    return (struct products){.name = {"QKV", "attention's output", "gate and up", "down", "head"},
                             .outputs = {q + 2 * kv, s->hidden, 2 * s->ffn, s->hidden, s->vocab},
                             .inputs = {s->hidden, q, s->hidden, s->ffn, s->hidden}};
}

static double values_of(const struct model_shape *s, bool head)
{
    const struct products p = products_of(s);
    double layer = 0;
    for (int i = 0; i + 1 < PRODUCTS; i++)
        layer += (double)p.outputs[i] * p.inputs[i];
    return layer * s->layers + (head ? (double)p.outputs[PRODUCTS - 1] * p.inputs[PRODUCTS - 1] : 0);
}

struct step_us {
    double layers, head;
};

/* Measures how long the best products of a step take; shown: each is reported as a figure of its own. */
static struct step_us best_products(struct ceilings *c, const struct model_shape *s, uint32_t rows, bool shown)
{
    const struct products p = products_of(s);
    struct step_us sum = {0};

    for (int i = 0; i < PRODUCTS; i++) {
        uint64_t w_bytes = 2ull * p.outputs[i] * p.inputs[i], x_bytes = 2ull * rows * p.inputs[i],
                 y_bytes = 2ull * rows * p.outputs[i];
        char name[120];
        uint32_t tried;
        if (w_bytes + x_bytes + y_bytes + 512 > asked.stream_bytes)
            die("--stream", "too small for the model's products");
        struct ceiling_product product = {.w = c->bytes, .rows = rows, .outputs = p.outputs[i], .inputs = p.inputs[i]};
        product.x = c->bytes + (w_bytes + 255) / 256 * 256;
        product.y = c->bytes + (w_bytes + 255) / 256 * 256 + (x_bytes + 255) / 256 * 256;
        double us = gemm_ceiling_us(&product, c->workspace, c->stream, &tried);
        double operations = 2.0 * rows * p.outputs[i] * p.inputs[i] / us * 1e6;
        c->best_operations = MAX(c->best_operations, operations);
        if (i + 1 < PRODUCTS)
            sum.layers += us * s->layers;
        else
            sum.head = us;
        snprintf(name, sizeof name, "best of %u cuBLASLt products, %u rows, %s: %u x %u", tried, rows, p.name[i], p.outputs[i],
                 p.inputs[i]);
        if (shown)
            report_value(name, "TFLOP/s", operations * 1e-12);
    }
    return sum;
}

/* --- the backend ---------------------------------------------------------------------------------------------------------- */

struct bench {
    struct model *model;
    struct thread_pool *pool;
    const struct backend_ops *ops;
    struct backend *backend;
    struct backend_batch *batch;
    struct sampler *sampler;
    struct backend_row *rows;       /* [max_rows] */
    uint32_t *index;                /* [max_rows] */
    struct backend_sample *samples; /* [max_rows] */
    struct sampler_result *results; /* [max_rows] */
    uint32_t max_rows;
};

static void open_memory(struct bench *b, const char *path, uint64_t pages)
{
    struct backend_config config = {.model = b->model,
                                    .pool = b->pool,
                                    .max_rows = b->max_rows,
                                    .max_batches = 1,
                                    .context_tokens = MIN(asked.context, b->model->shape.context_length),
                                    .kv_type = KV_F16,
                                    .page_tokens = PAGE_TOKENS,
                                    .max_sequences = MAX(b->max_rows, asked.sequences + 1),
                                    .device = (int)asked.device};
    struct backend_plan plan;
    struct error error;

    if (b->ops->plan(&config, &plan, &error))
        die(path, error.text);
    config.local_pool_bytes = pages * plan.pool_page_bytes;
    if (b->ops->plan(&config, &plan, &error) || b->ops->open(&config, &b->backend, &error) ||
        b->ops->batch_open(b->backend, &b->batch, &error))
        die(path, error.text);
    printf("%s: weights %.2f GB, activations %.2f, pool %.2f of %.2f GB free\n", path, (double)plan.device_weight_bytes * 1e-9,
           (double)plan.device_activation_bytes * 1e-9, (double)(plan.pool_pages * plan.pool_page_bytes) * 1e-9,
           (double)plan.device_free_bytes * 1e-9);
}

/* pages: of the pool. */
static void open_bench(struct bench *b, const char *path, uint64_t pages)
{
    const struct sampler_params greedy = {.top_p = 1, .repetition_penalty = 1};
    struct error error;

    *b = (struct bench){.ops = fastdecode_device.ops, .max_rows = asked.rows};
    if (model_open(path, &b->model, &error))
        die("the model", error.text);
    if (thread_pool_open(asked.threads ? asked.threads : cpu_count_usable(), &b->pool))
        die("threads", "there are none");
    open_memory(b, path, pages);
    b->rows = calloc(b->max_rows, sizeof *b->rows);
    b->index = calloc(b->max_rows, sizeof *b->index);
    b->samples = calloc(b->max_rows, sizeof *b->samples);
    b->results = calloc(b->max_rows, sizeof *b->results);
    assert_always(b->rows && b->index && b->samples && b->results);
    if (sampler_open(&greedy, b->model->shape.vocab, 1, &b->sampler, &error))
        die("the sampler", error.text);
    for (uint32_t i = 0; i < b->max_rows; i++) {
        b->index[i] = i;
        b->samples[i] = (struct backend_sample){.sampler = b->sampler, .result = &b->results[i]};
    }
}

static void close_bench(struct bench *b)
{
    b->ops->batch_close(b->batch);
    b->ops->close(b->backend);
    sampler_close(b->sampler);
    free(b->rows), free(b->index), free(b->samples), free(b->results);
    thread_pool_close(b->pool);
    model_close(b->model);
}

static void wait_for(const struct bench *b)
{
    while (!b->ops->done(b->batch)) {}
}

static void begin(struct bench *b, uint32_t count)
{
    struct error error;
    uint32_t bad;
    if (b->ops->begin(b->batch, b->rows, count, &bad, &error))
        die("a step", error.text);
}

/* --- the S-part alone ------------------------------------------------------------------------------------------------------ */

/* waited: each entry for itself. */
static struct step_us step(struct bench *b, uint32_t rows, bool waited)
{
    static const struct backend_links none;
    const uint32_t layers = b->model->shape.layers;

    for (uint32_t i = 0; i < rows; i++)
        b->rows[i] = (struct backend_row){
            .needs_output = true, .sequence = i + 1, .token = (17 + 31 * i) % b->model->shape.vocab, .local = true};
    uint64_t began_ns = clock_now_ns();
    begin(b, rows);
    for (uint32_t s = 0; s <= layers; s++) {
        if (waited)
            wait_for(b);
        b->ops->segment(b->batch, s, &none);
    }
    wait_for(b);
    uint64_t layers_ns = clock_now_ns();
    b->ops->head(b->batch, b->index, b->samples, rows);
    wait_for(b);
    return (struct step_us){(double)(layers_ns - began_ns) * 1e-3, (double)(clock_now_ns() - layers_ns) * 1e-3};
}

/* Bytes of weights, or operations, beside what the device does at best in the same moment. */
static void steps(struct bench *b, struct ceilings *c, uint32_t rows, bool waited)
{
    const struct model_shape *shape = &b->model->shape;
    struct report_passes whole = {0}, layers = {0};
    const struct step_us best = rows > 1 ? best_products(c, shape, rows, false) : (struct step_us){0};
    double us[PASSES_MAX], of_layers = values_of(shape, false), of_all = values_of(shape, true);
    char name[120];

    for (int pass = -2; pass < (int)asked.passes; pass++) { /* algorithms are looked up, clocks rise */
        const struct step_us took = step(b, rows, waited);
        double sum_us = took.layers + took.head, read = read_rate(c) * 1e-9;
        if (pass < 0)
            continue;
        us[pass] = sum_us;
        if (rows == 1) {
            report_pass(&layers, 2 * of_layers / took.layers * 1e-3, read);
            report_pass(&whole, 2 * of_all / sum_us * 1e-3, read);
        } else {
            report_pass(&layers, 2 * of_layers * rows / took.layers * 1e-6, 2 * of_layers * rows / best.layers * 1e-6);
            report_pass(&whole, 2 * of_all * rows / sum_us * 1e-6, 2 * of_all * rows / (best.layers + best.head) * 1e-6);
        }
    }
    const char *how = waited ? ", each entry waited for" : "", *unit = rows == 1 ? "GB/s" : "TFLOP/s";
    snprintf(name, sizeof name, "S-part alone, %u row%s, layers: %s%s", rows, rows > 1 ? "s" : "",
             rows == 1 ? "weights read" : "products beside the best of their shapes", how);
    report_figure(name, unit, &layers, waited ? 0 : 0.75);
    snprintf(name, sizeof name, "S-part alone, %u row%s, with head and sampling%s", rows, rows > 1 ? "s" : "", how);
    report_figure(name, unit, &whole, waited ? 0 : 0.75);
    snprintf(name, sizeof name, "S-part alone, %u row%s, a step%s", rows, rows > 1 ? "s" : "", how);
    report_value(name, "us", report_median(us, asked.passes));
}

static void run_s_part(const char *path)
{
    struct ceilings c;
    struct bench b;

    open_ceilings(&c);
    open_bench(&b, path, asked.rows + 1ull);
    for (int waited = 0; waited <= 1; waited++)
        steps(&b, &c, 1, waited);
    for (int waited = 0; waited <= 1; waited++)
        steps(&b, &c, asked.rows, waited);
    close_bench(&b);
    close_ceilings(&c);
}

static double one_row_us(const char *path)
{
    double us[PASSES_MAX];
    struct bench b;

    open_bench(&b, path, 2);
    for (int pass = -2; pass < (int)asked.passes; pass++) {
        const struct step_us took = step(&b, 1, false);
        us[MAX(pass, 0)] = took.layers + took.head;
    }
    close_bench(&b);
    return report_median(us, asked.passes);
}

static void run_quant(const char *wide, const char *narrow)
{
    struct report_passes times = {0};
    for (int pass = 0; pass < 3; pass++) {
        double wide_us = one_row_us(wide);
        report_pass(&times, 1e6 / one_row_us(narrow), 1e6 / wide_us);
    }
    report_figure("S-part alone, 1 row: steps with 4-bit weights beside f16", "a second", &times, 2.5);
}

/* --- attention ------------------------------------------------------------------------------------------------------------- */

/* Rows of one sequence up to `end`, or of sequences 1 to count at one position. */
static void make_rows(struct bench *b, uint32_t sequence, uint32_t first, uint32_t count, bool one)
{
    for (uint32_t i = 0; i < count; i++)
        b->rows[i] = (struct backend_row){.needs_output = true,
                                          .sequence = one ? sequence : i + 1,
                                          .token = (17 + 31 * i) % b->model->shape.vocab,
                                          .position = one ? first + i : first,
                                          .local = true};
}

/* Microseconds of attention in all layers, or of the last alone, which makes positions complete. */
static double attend(struct bench *b, uint32_t count, bool last_alone)
{
    static const struct backend_links none;
    const uint32_t layers = b->model->shape.layers;

    begin(b, count);
    wait_for(b);
    b->ops->segment(b->batch, 0, &none); /* so that q, k and v are numbers */
    wait_for(b);
    uint64_t began_ns = clock_now_ns();
    for (uint32_t layer = last_alone ? layers - 1 : 0; layer < layers; layer++) {
        b->ops->attend(b->batch, layer);
        wait_for(b);
    }
    return (double)(clock_now_ns() - began_ns) * 1e-3;
}

static void decode_attention(struct bench *b, struct ceilings *c)
{
    const struct model_shape *s = &b->model->shape;
    double bytes = 4.0 * s->kv_heads * s->head_dim * s->layers * asked.sequences * asked.context;
    struct report_passes passes = {0};
    char name[120];

    for (uint32_t sequence = 1; sequence <= asked.sequences; sequence++)
        for (uint32_t at = 0, count; at < asked.context; at += count) {
            count = MIN(b->max_rows, asked.context - at);
            make_rows(b, sequence, at, count, true);
            attend(b, count, true);
        }
    for (int pass = -2; pass < (int)asked.passes; pass++) {
        make_rows(b, 1, asked.context - 1, asked.sequences, false);
        double us = attend(b, asked.sequences, false), read = read_rate(c) * 1e-9;
        if (pass >= 0)
            report_pass(&passes, bytes / us * 1e-3, read);
    }
    snprintf(name, sizeof name, "paged decode attention, %u sequences of %u: K and V read", asked.sequences, asked.context);
    report_figure(name, "GB/s", &passes, 0.8);
    for (uint32_t sequence = 1; sequence <= asked.sequences; sequence++)
        b->ops->pool_release(b->backend, sequence);
}

/* A prompt as a step has it, chunk by chunk. */
static void prefill_attention(struct bench *b, const struct ceilings *c)
{
    const struct model_shape *s = &b->model->shape;
    double pairs = asked.context * (asked.context + 1.0) / 2,
           operations = 4.0 * s->heads * s->head_dim * s->layers * pairs; /* q.k and p.v of what is not masked */
    struct report_passes passes = {0};
    char name[120];

    for (int pass = -1; pass < (int)asked.passes; pass++) {
        double us = 0;
        for (uint32_t at = 0, count; at < asked.context; at += count) {
            count = MIN(b->max_rows, asked.context - at);
            make_rows(b, 1, at, count, true);
            us += attend(b, count, false);
        }
        b->ops->pool_release(b->backend, 1);
        if (pass >= 0)
            report_pass(&passes, operations / us * 1e-6, c->best_operations * 1e-12);
    }
    snprintf(name, sizeof name, "prefill attention, a prompt of %u in chunks of %u, beside the best product", asked.context,
             MIN(b->max_rows, asked.context));
    report_figure(name, "TFLOP/s", &passes, 0.4);
}

static void run_attention(const char *path)
{
    struct ceilings c;
    struct bench b;

    open_ceilings(&c);
    open_bench(&b, path, (asked.sequences + 1ull) * ((asked.context + PAGE_TOKENS - 1) / PAGE_TOKENS));
    if (b.model->shape.context_length < asked.context || b.max_rows < asked.sequences)
        die("--context, --sequences", "more than the model's context, or than --rows");
    decode_attention(&b, &c);
    best_products(&c, &b.model->shape, asked.rows, false);
    prefill_attention(&b, &c);
    close_bench(&b);
    close_ceilings(&c);
}

/* --- main ------------------------------------------------------------------------------------------------------------------ */

static void run_device(const char *path)
{
    struct ceilings c;
    struct model *model;
    struct error error;

    if (model_open(path, &model, &error))
        die("the model", error.text);
    open_ceilings(&c);
    report_value("device: read bandwidth", "GB/s", median_read_rate(&c) * 1e-9);
    best_products(&c, &model->shape, asked.rows, true);
    report_value("device: best f16 product", "TFLOP/s", c.best_operations * 1e-12);
    close_ceilings(&c);
    model_close(model);
}

static bool is(const struct program *program, const char *word, uint32_t operands)
{
    return program->operand_count == operands && !strcmp(program->operands[0], word);
}

int main(int argc, char **argv)
{
    const struct option options[] = {
        {"device", OPTION_U32, &asked.device, "N", "which GPU", 0, 63},
        {"rows", OPTION_U32, &asked.rows, "N", "the many rows of a step, and of a chunk", 2, 4096},
        {"sequences", OPTION_U32, &asked.sequences, "N", "that attention is measured with", 1, 4096},
        {"context", OPTION_U32, &asked.context, "TOKENS", "of each", 32, 1 << 20},
        {"stream", OPTION_SIZE, &asked.stream_bytes, "SIZE", "of memory that is read for its bandwidth", 0, 0},
        {"passes", OPTION_U32, &asked.passes, "N", "of each figure, of which the median is taken", 1, PASSES_MAX},
        {"threads", OPTION_U32, &asked.threads, "N", "of the host; 0: all CPUs", 0, 1024},
    };
    struct program program = {.name = "bench_gpu",
                              .purpose = "the CUDA backend beside what its device does at best",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "probe | device FILE | s-part FILE | quant FILE FILE | attention FILE"};
    struct error error;
    char name[200];

    if (options_parse(&program, argc, argv, &error) || kernels_init(NULL, &error))
        die("cannot start", error.text);
    asked.stream_bytes = asked.stream_bytes / GPU_READ_BLOCK_BYTES * GPU_READ_BLOCK_BYTES;
    if (fastdecode_device.probe((int)asked.device, name, sizeof name, &error)) {
        printf("%s\n", error.text);
        return NO_DEVICE;
    }
    printf("cuda:%u, %s\n", asked.device, name);
    if (is(&program, "device", 2))
        run_device(program.operands[1]);
    else if (is(&program, "s-part", 2))
        run_s_part(program.operands[1]);
    else if (is(&program, "quant", 3))
        run_quant(program.operands[1], program.operands[2]);
    else if (is(&program, "attention", 2))
        run_attention(program.operands[1]);
    else if (!is(&program, "probe", 1))
        die("which part?", program.operand_name);
    return 0;
}

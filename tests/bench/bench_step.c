// bench_step.c: whole decode steps of the CPU backend with a local pool, without a mesh: tokens a second beside their bound: for
// the weights the longer of reading them and of computing at the level's int8 peak, then for K and V the longer of reading them and of
// f32 multiply-adds at the level's peak.
//
//     bench_step MODEL.gguf [threads] [context] [rows,rows,...]
//
// It also prints the share of norm, RoPE, activation and sampling in a step, by making those calls alone on the same threads.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/thread_pool.h"
#include "common/kv/kv_type.h"
#include "common/model/model.h"
#include "kernels/backend/cpu_internal.h"
#include "tests/bench/machine.h"
#include "tests/bench/report.h"

enum { PASSES = 9, MAX_ROWS = 128 };

struct bench {
    struct thread_pool *pool;
    struct machine machine;
    struct model *model;
    struct backend *backend;
    struct backend_batch *batch;
    struct sampler *sampler;
    uint32_t rows, context;
    struct backend_row row[MAX_ROWS];
    uint32_t index[MAX_ROWS];
    struct backend_sample sample[MAX_ROWS];
    struct sampler_result result[MAX_ROWS];
};

static void die(const struct error *error)
{
    fprintf(stderr, "bench_step: %s\n", error->text);
    exit(1);
}

static void step(struct bench *bench)
{
    static const struct backend_links nowhere;
    uint32_t layers = bench->model->shape.layers, bad_row;
    struct error error;

    if (backend_cpu.begin(bench->batch, bench->row, bench->rows, &bad_row, &error))
        die(&error);
    for (uint32_t s = 0; s <= layers; s++) {
        backend_cpu.segment(bench->batch, s, &nowhere);
        if (s < layers)
            backend_cpu.attend(bench->batch, s);
    }
    backend_cpu.head(bench->batch, bench->index, bench->sample, bench->rows);
    for (uint32_t i = 0; i < bench->rows; i++) {
        bench->row[i].token = bench->result[i].token;
        bench->row[i].position++;
    }
}

// Starts `rows` sequences of `context` tokens each, prefilled in chunks.
static void begin(struct bench *bench, uint32_t rows)
{
    static const struct backend_links nowhere;
    uint32_t bad_row;
    struct error error;

    for (uint32_t i = 0; i < MAX_ROWS; i++)
        backend_cpu.pool_release(bench->backend, i + 1);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t at = 0; at < bench->context; at += MAX_ROWS) {
            struct backend_row chunk[MAX_ROWS];
            uint32_t count = MIN((uint32_t)MAX_ROWS, bench->context - at);
            for (uint32_t j = 0; j < count; j++)
                chunk[j] =
                    (struct backend_row){i + 1, (at + j + 31 * i) % bench->model->shape.vocab, at + j, true, false, false, 0};
            if (backend_cpu.begin(bench->batch, chunk, count, &bad_row, &error))
                die(&error);
            for (uint32_t s = 0; s <= bench->model->shape.layers; s++) {
                backend_cpu.segment(bench->batch, s, &nowhere);
                if (s < bench->model->shape.layers)
                    backend_cpu.attend(bench->batch, s);
            }
        }
    bench->rows = rows;
    for (uint32_t i = 0; i < rows; i++) {
        bench->row[i] = (struct backend_row){i + 1, 17 + i, bench->context, true, true, false, 0};
        bench->index[i] = i;
        bench->sample[i] = (struct backend_sample){.sampler = bench->sampler, .result = &bench->result[i]};
    }
}

// Makes the calls for norm, RoPE, activation and sampling that a step makes.
static void small_job(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct bench *bench = arg;
    struct backend_batch *batch = bench->batch;
    const struct backend *backend = bench->backend;
    const struct model_shape *shape = &backend->shape;
    uint32_t item;

    (void)thread_count;
    while ((item = thread_pool_claim(bench->pool)) < bench->rows) {
        float *x = batch->x + (size_t)item * shape->hidden, *h = batch->h + (size_t)item * shape->hidden;
        float *q = batch->qkv + item * (backend->q_width + 2u * backend->kv_width);
        float *gate = batch->gate + (size_t)item * shape->ffn;
        const float *angles = backend->rope_table[MODEL_ROPE_WHOLE] + batch->rows[item].position * backend->rope_row;
        for (uint32_t layer = 0; layer < shape->layers; layer++) {
            kernels->rms_norm(x, backend->layers[layer].attn.weight, shape->norm_epsilon, shape->hidden, h);
            if (shape->rope_style == ROPE_NEOX)
                kernels->rope_neox(q, shape->heads + shape->kv_heads, shape->head_dim, shape->rope_dim, angles);
            else
                kernels->rope_pairs(q, shape->heads + shape->kv_heads, shape->head_dim, shape->rope_dim, angles);
            kernels->rms_norm(x, backend->layers[layer].ffn.weight, shape->norm_epsilon, shape->hidden, h);
            kernels->silu_mul(gate, batch->up + (size_t)item * shape->ffn, shape->ffn, gate);
        }
        kernels->rms_norm(x, backend->output_norm.weight, shape->norm_epsilon, shape->hidden, h);
        sampler_sample(bench->sampler, backend->logits + (size_t)(item % CPU_HEAD_ROWS) * shape->vocab, NULL, 0,
                       backend->scratch[thread_index], &bench->result[item]);
    }
}

// Returns the least time of a step.
static double least_seconds(const struct bench *bench, double read, double int8_peak, double f32_peak)
{
    const struct backend *backend = bench->backend;
    double bytes = (double)backend->output.packed.bytes, operations = 2.0 * backend->output.outputs * backend->output.inputs;
    for (uint32_t i = 0; i < backend->shape.layers; i++) {
        const struct cpu_layer *layer = &backend->layers[i];
        const struct cpu_linear *all[] = {&layer->q, &layer->k, &layer->v, &layer->o, &layer->gate, &layer->up, &layer->down};
        for (size_t j = 0; j < ARRAY_COUNT(all); j++) {
            bytes += (double)all[j]->packed.bytes;
            operations += 2.0 * all[j]->outputs * all[j]->inputs;
        }
    }
    operations *= bench->rows;
    double kv = 2.0 * 2 * backend->kv_width * backend->shape.layers * bench->context * bench->rows;
    // q·k and p·V: a multiply-add each for every value of a head and token
    double attended = 4.0 * backend->q_width * backend->shape.layers * bench->context * bench->rows;
    return machine_bound(bytes, read, operations, int8_peak) + machine_bound(kv, read, attended, f32_peak);
}

static void bench_rows(struct bench *bench, uint32_t rows, const char *model)
{
    struct report_passes whole = {0}, small = {0};
    char name[160];
    uint32_t steps = rows < 8 ? 20 : 6;

    begin(bench, rows);
    for (int pass = 0; pass <= PASSES; pass++) {
        double read = machine_read_bandwidth(&bench->machine), int8_peak = machine_int8_peak(bench->pool, kernels->level);
        double f32_peak = machine_f32_peak(bench->pool, kernels->level);
        uint64_t start = clock_now_ns();
        for (uint32_t i = 0; i < steps; i++)
            step(bench);
        double seconds = (double)(clock_now_ns() - start) * 1e-9 / steps;
        start = clock_now_ns();
        thread_pool_run(bench->pool, small_job, bench);
        double small_seconds = (double)(clock_now_ns() - start) * 1e-9;
        if (pass == 0)
            continue;
        report_pass(&whole, rows / seconds, rows / least_seconds(bench, read, int8_peak, f32_peak));
        report_pass(&small, small_seconds * 1e3, seconds * 1e3);
    }
    snprintf(name, sizeof name, "step, %s, %s, context %u, %u rows", model, kernels_level_name(), bench->context, rows);
    report_figure(name, "tokens/s", &whole, 0);
    snprintf(name, sizeof name, "norm, RoPE, activation, sampling of a step, %u rows", rows);
    report_figure_below(name, "ms", &small, rows == 1 ? 0.07 : 0.10);
}

int main(int argc, char **argv)
{
    struct bench bench = {.context = argc > 3 ? (uint32_t)atoi(argv[3]) : 128};
    uint32_t threads = argc > 2 ? (uint32_t)atoi(argv[2]) : cpu_count_usable();
    const char *list = argc > 4 ? argv[4] : "1,8,32,64,128";
    const struct sampler_params greedy = {.top_p = 1, .repetition_penalty = 1};
    struct error error;

    if (argc < 2) {
        fprintf(stderr, "usage: bench_step MODEL.gguf [threads] [context] [rows,rows,...]\n");
        return 2;
    }
    if (kernels_init(NULL, &error) || model_open(argv[1], &bench.model, &error))
        die(&error);
    if (thread_pool_open(threads, &bench.pool) || !machine_open(&bench.machine, bench.pool))
        return 1;
    struct backend_config config = {
        .model = bench.model,
        .compute = COMPUTE_INT8,
        .pool = bench.pool,
        .max_rows = MAX_ROWS,
        .max_batches = 1,
        .context_tokens = bench.context + 512,
        .kv_type = KV_F16,
        .page_tokens = 16,
        .max_sequences = MAX_ROWS,
    };
    struct backend_plan plan;
    if (backend_cpu.plan(&config, &plan, &error))
        die(&error);
    config.local_pool_bytes = plan.pool_page_bytes * MAX_ROWS * ((bench.context + 512) / 16 + 1);
    if (backend_cpu.open(&config, &bench.backend, &error) || backend_cpu.batch_open(bench.backend, &bench.batch, &error) ||
        sampler_open(&greedy, bench.model->shape.vocab, bench.context + 512, &bench.sampler, &error))
        die(&error);
    const char *slash = strrchr(argv[1], '/');
    for (const char *at = list; *at; at += *at == ',') {
        char *end;
        uint32_t rows = (uint32_t)strtoul(at, &end, 10);
        if (end == at || rows == 0 || rows > MAX_ROWS) {
            fprintf(stderr, "bench_step: rows are 1 to %d, separated by commas: %s\n", MAX_ROWS, list);
            return 2;
        }
        bench_rows(&bench, rows, slash ? slash + 1 : argv[1]);
        at = end;
    }
    sampler_close(bench.sampler);
    backend_cpu.batch_close(bench.batch);
    backend_cpu.close(bench.backend);
    machine_close(&bench.machine);
    thread_pool_close(bench.pool);
    model_close(bench.model);
    return 0;
}

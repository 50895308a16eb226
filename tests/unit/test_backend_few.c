/* test_backend_few.c: steps of one and two rows, which the CPU backend computes with few barriers: how many a layer has, and that a row's bits
 * are those that it has among other rows, with any number of threads, across ranges of attention that threads share.
 */
#include "common/base/checked.h"
#include "common/kv/kv_type.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

enum { ROWS = 32, LAYERS = 3, HIDDEN = 64, Q_WIDTH = 64, KV_WIDTH = 32, VOCAB = 320, CONTEXT = 1100, BEFORE = 505, STEPS = 14 };
enum { EXPERTS = 4, EXPERT_FFN = 32 };

/* A tiny model, changed to have what some architectures have. */
struct kind {
    const char *name;
    enum tensor_type type;
    bool apart, experts, windows, norms;
    uint32_t barriers; /* of a layer */
};

static const struct kind kinds[] = {
    {"plain", TENSOR_Q8_0, .barriers = 5},
    {"floats", TENSOR_F16, .barriers = 5},
    {"norms of heads, windows", TENSOR_Q4_0, .norms = true, .windows = true, .barriers = 5},
    {"norms of what is added", TENSOR_Q8_0, .apart = true, .barriers = 5},
    {"experts", TENSOR_Q8_0, .experts = true, .barriers = 6},
    {"experts in floats, norms of what is added", TENSOR_F32, .experts = true, .apart = true, .barriers = 6},
};

static struct tensor_view part_of(const struct tensor_view *whole, uint32_t rows, uint32_t columns)
{
    struct tensor_view part = *whole;

    part.bytes = whole->bytes * rows * columns / ((uint64_t)whole->rows * whole->columns);
    part.rows = rows, part.columns = columns;
    return part;
}

static struct model *open_model(const struct kind *kind, unsigned char **bytes)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct model *model;
    struct error error;
    size_t size;

    tiny.layers = LAYERS, tiny.context = CONTEXT, tiny.biases = true;
    tiny.ffn = EXPERTS * EXPERT_FFN;
    tiny.type = tiny.embedding_type = kind->type;
    gguf_build_llama(&build, &tiny);
    *bytes = gguf_build_finish(&build, &size);
    assert_int_equal(model_open_memory("tiny.gguf", *bytes, size, &model, &error), STATUS_OK);
    model->shape.residual_scale = kind->apart ? 0.5f : 1;
    model->shape.window = kind->windows ? 40 : 0;
    for (uint32_t i = 0; i < LAYERS; i++) {
        struct model_layer *layer = &model->layers[i];
        layer->windowed = kind->windows && i % 2;
        if (kind->apart)
            layer->post_attn_norm = layer->ffn_norm, layer->post_ffn_norm = layer->attn_norm;
        if (kind->norms)
            layer->q_norm = layer->k_norm = part_of(&layer->attn_norm, 1, 16);
        if (kind->experts) {
            layer->router = part_of(&layer->q, EXPERTS, HIDDEN);
            layer->down = part_of(&layer->down, EXPERTS * HIDDEN, EXPERT_FFN);
        }
    }
    if (kind->experts)
        model->shape.experts = EXPERTS, model->shape.experts_used = 2, model->shape.ffn = EXPERT_FFN;
    return model;
}

/* --- a backend with a pool of its own ------------------------------------------------------------------------------------------- */

struct mesh {
    struct thread_pool *pool;
    struct backend *backend;
    struct backend_batch *batch;
    float sent[LAYERS][ROWS][Q_WIDTH + 2 * KV_WIDTH]; /* to workers, which answer with o = q */
    float logits[ROWS][VOCAB];                        /* of the rows that need output, in their order */
    struct thread_pool_counts layer;                  /* of segment and attention of layer 1 */
    bool attended;                                    /* by that segment */
};

static void open_mesh(struct mesh *mesh, const struct model *model, uint32_t threads)
{
    struct backend_config config = {.model = model,
                                    .max_rows = ROWS,
                                    .max_batches = 1,
                                    .context_tokens = CONTEXT,
                                    .kv_type = KV_F16,
                                    .page_tokens = 16,
                                    .max_sequences = 4,
                                    .local_pool_bytes = 8 << 20};
    struct error error;

    assert_int_equal(thread_pool_open(threads, &mesh->pool), STATUS_OK);
    config.pool = mesh->pool;
    if (backend_cpu.open(&config, &mesh->backend, &error) || backend_cpu.batch_open(mesh->backend, &mesh->batch, &error))
        fail_msg("%s", error.text);
}

static void close_mesh(struct mesh *mesh)
{
    backend_cpu.batch_close(mesh->batch);
    backend_cpu.close(mesh->backend);
    thread_pool_close(mesh->pool);
}

static void run_layers(struct mesh *mesh, uint32_t count)
{
    float *q[ROWS], *k[ROWS], *v[ROWS];
    const float *o[ROWS];
    const struct backend_links links = {o, q, k, v};

    for (uint32_t s = 0; s <= LAYERS; s++) {
        const struct thread_pool_counts before = thread_pool_count(mesh->pool);
        for (uint32_t row = 0; row < count; row++) {
            o[row] = s ? mesh->sent[s - 1][row] : NULL;
            q[row] = s < LAYERS ? mesh->sent[s][row] : NULL;
            k[row] = q[row] ? q[row] + Q_WIDTH : NULL;
            v[row] = k[row] ? k[row] + KV_WIDTH : NULL;
        }
        backend_cpu.segment(mesh->batch, s, &links);
        if (s == 1)
            mesh->attended = backend_cpu.attended_ns(mesh->batch) > 0;
        if (s < LAYERS)
            backend_cpu.attend(mesh->batch, s);
        if (s == 1) {
            const struct thread_pool_counts after = thread_pool_count(mesh->pool);
            mesh->layer.jobs = after.jobs - before.jobs, mesh->layer.barriers = after.barriers - before.barriers;
        }
    }
}

static void step(struct mesh *mesh, const struct backend_row *rows, uint32_t count)
{
    static struct backend_sample samples[ROWS];
    static struct sampler_result results[ROWS];
    uint32_t index[ROWS], outputs = 0, bad;
    struct error error;

    if (backend_cpu.begin(mesh->batch, rows, count, &bad, &error))
        fail_msg("row %u: %s", bad, error.text);
    run_layers(mesh, count);
    for (uint32_t row = 0; row < count; row++)
        if (rows[row].needs_output) {
            samples[outputs] = (struct backend_sample){.token = 7, .result = &results[outputs], .logits = mesh->logits[outputs]};
            index[outputs++] = row;
        }
    if (outputs)
        backend_cpu.head(mesh->batch, index, samples, outputs);
}

static struct backend_row row_of(uint64_t sequence, uint32_t position, bool local, bool needs_output)
{
    return (struct backend_row){.sequence = sequence,
                                .token = (uint32_t)(sequence * 31 + position * 7) % VOCAB,
                                .position = position,
                                .local = local,
                                .needs_output = needs_output};
}

/* The first BEFORE positions of sequence 1, in chunks. */
static void prefill(struct mesh *mesh)
{
    struct backend_row rows[ROWS];

    for (uint32_t at = 0, count; at < BEFORE; at += count) {
        count = MIN((uint32_t)ROWS, BEFORE - at);
        for (uint32_t i = 0; i < count; i++)
            rows[i] = row_of(1, at + i, true, false);
        step(mesh, rows, count);
    }
}

/* --- barriers ------------------------------------------------------------------------------------------------------------------- */

static void check_layer(struct mesh *mesh, const struct kind *kind, const struct backend_row *rows, uint32_t count, bool joins)
{
    step(mesh, rows, count);
    if (mesh->layer.jobs != 1 || mesh->layer.barriers != kind->barriers || mesh->attended != joins)
        fail_msg("%s, %u rows, %s: a layer has %u jobs and %u barriers, expected 1 and %u; attended in its job: %d", kind->name,
                 count, rows[0].local ? "local" : "at a worker", (unsigned)mesh->layer.jobs, (unsigned)mesh->layer.barriers,
                 kind->barriers, mesh->attended);
}

static void a_layer_of_few_rows_is_one_job_with_few_barriers(void **state)
{
    static struct mesh mesh;

    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++) {
        unsigned char *bytes;
        struct model *model = open_model(&kinds[i], &bytes);
        open_mesh(&mesh, model, 3);
        const struct backend_row one[] = {row_of(1, 0, true, true)};
        const struct backend_row two[] = {row_of(1, 1, true, true), row_of(2, 0, true, true)};
        const struct backend_row guess[] = {row_of(1, 2, true, true), row_of(1, 3, true, true)};
        const struct backend_row remote[] = {row_of(3, 0, false, true)};
        check_layer(&mesh, &kinds[i], one, 1, true);
        check_layer(&mesh, &kinds[i], two, 2, true);
        check_layer(&mesh, &kinds[i], guess, 2, true);
        check_layer(&mesh, &kinds[i], remote, 1, false);
        prefill(&mesh); /* again, up to where a range of attention ends; threads share the row that follows */
        for (uint32_t at = BEFORE; at < BEFORE + 20; at += 2) {
            const struct backend_row on[] = {row_of(1, at, true, true), row_of(1, at + 1, true, true)};
            check_layer(&mesh, &kinds[i], on, 2, true);
        }
        close_mesh(&mesh);
        model_close(model);
        free(bytes);
    }
}

/* --- bits ----------------------------------------------------------------------------------------------------------------------- */

/* Rows of sequence 1 alone, and the same beside a longer chunk of sequence 2. */
static void compare_step(struct mesh *few, struct mesh *many, const struct kind *kind, const struct backend_row *own,
                         uint32_t count, uint32_t *beside)
{
    struct backend_row rows[ROWS];
    uint32_t all = count;

    memcpy(rows, own, count * sizeof *rows);
    for (uint32_t i = 0; i < 3; i++)
        rows[all++] = row_of(2, (*beside)++, true, i == 2);
    step(few, own, count);
    step(many, rows, all);
    for (uint32_t row = 0, output = 0; row < count; output += own[row++].needs_output)
        if (own[row].needs_output && memcmp(few->logits[output], many->logits[output], sizeof few->logits[output]))
            fail_msg("%s: row %u of %u at position %u differs", kind->name, row, count, own[row].position);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t row = 0; row < count; row++)
            if (!own[row].local)
                assert_memory_equal(few->sent[layer][row], many->sent[layer][row], sizeof few->sent[layer][row]);
}

static void compare(const struct kind *kind, uint32_t threads)
{
    static struct mesh few, many;
    unsigned char *bytes;
    struct model *model = open_model(kind, &bytes);
    uint32_t beside = 0;

    open_mesh(&few, model, threads);
    open_mesh(&many, model, 2);
    prefill(&few);
    prefill(&many);
    for (uint32_t n = 0, position = BEFORE; n < STEPS; n++) { /* two rows, one row, two of which the first has no output, ... */
        const uint32_t count = n % 3 == 1 ? 1 : 2;
        const struct backend_row own[] = {row_of(1, position, true, n % 3 < 2), row_of(1, position + 1, true, true)};
        compare_step(&few, &many, kind, own, count, &beside);
        position += count;
    }
    for (uint32_t position = 0; position < 4; position++) { /* one at a worker, alone and beside a local one */
        const struct backend_row own[] = {row_of(1, BEFORE + 100, false, true), row_of(3, position, true, true)};
        const struct backend_row local = row_of(3, position, true, true);
        compare_step(&few, &many, kind, own, 1, &beside);
        step(&few, own, 2);
        step(&many, &local, 1);
        assert_memory_equal(few.logits[1], many.logits[0], sizeof few.logits[1]);
    }
    close_mesh(&few);
    close_mesh(&many);
    model_close(model);
    free(bytes);
}

static void few_rows_have_the_bits_of_many(void **state)
{
    for (size_t i = 0; i < ARRAY_COUNT(kinds); i++)
        for (uint32_t threads = 1; threads <= 4; threads += 1 + (threads > 1))
            compare(&kinds[i], threads);
}

/* A sequence that is released in the middle of a step leaves the other row as it is. */
static void a_released_sequence_does_not_disturb_the_other(void **state)
{
    static struct mesh both, alone;
    static const struct backend_links nowhere;
    unsigned char *bytes;
    struct model *model = open_model(&kinds[0], &bytes);
    const struct backend_row rows[] = {row_of(1, 0, true, true), row_of(3, 0, true, true)};
    struct sampler_result result;
    struct backend_sample sample = {.token = 7, .result = &result, .logits = both.logits[1]};
    struct error error;
    uint32_t bad, second = 1;

    open_mesh(&both, model, 2);
    open_mesh(&alone, model, 2);
    step(&alone, &rows[1], 1);
    assert_int_equal(backend_cpu.begin(both.batch, rows, 2, &bad, &error), STATUS_OK);
    for (uint32_t s = 0; s <= LAYERS; s++) {
        backend_cpu.segment(both.batch, s, &nowhere);
        if (s == 0)
            backend_cpu.pool_release(both.backend, 1);
        if (s < LAYERS)
            backend_cpu.attend(both.batch, s);
    }
    backend_cpu.head(both.batch, &second, &sample, 1);
    assert_memory_equal(both.logits[1], alone.logits[0], sizeof both.logits[1]);
    close_mesh(&both);
    close_mesh(&alone);
    model_close(model);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_layer_of_few_rows_is_one_job_with_few_barriers),
                                       cmocka_unit_test(few_rows_have_the_bits_of_many),
                                       cmocka_unit_test(a_released_sequence_does_not_disturb_the_other)};
    struct error error;

    assert_always(kernels_init(NULL, &error) == STATUS_OK);
    return cmocka_run_group_tests_name("backend, few rows", tests, NULL, NULL);
}

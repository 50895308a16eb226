// backend_chain.h: a model on one backend, or cut into stages with a backend each, x passed on as f32: what workers are sent and what the
// head gives must be the same bits. Workers answer with o = q.
#ifndef FD_TESTS_BACKEND_CHAIN_H
#define FD_TESTS_BACKEND_CHAIN_H

#include "common/base/checked.h"
#include "common/kv/kv_type.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

enum { CHAIN_ROWS = 32, CHAIN_LAYERS = 5, CHAIN_STAGES_MAX = 3, CHAIN_SEQUENCES = 4, CHAIN_STEPS = 8, CHAIN_VOCAB = 320 };
enum { CHAIN_Q = 64, CHAIN_KV = 32, CHAIN_WIDTH = CHAIN_Q + 2 * CHAIN_KV, CHAIN_HIDDEN = 64 };

struct chain {
    const struct backend_ops *ops;
    uint32_t stages, first[CHAIN_STAGES_MAX + 1]; // first[stages] is the model's count of layers
    struct backend *backend[CHAIN_STAGES_MAX];
    struct backend_batch *batch[CHAIN_STAGES_MAX];
    struct backend_plan plan[CHAIN_STAGES_MAX];
    float x[CHAIN_ROWS][CHAIN_HIDDEN];
    float sent[CHAIN_LAYERS][CHAIN_ROWS][CHAIN_WIDTH]; // q, k, v of the workers' rows
    float logits[CHAIN_ROWS][CHAIN_VOCAB];
    struct kv_held held[CHAIN_SEQUENCES];
    uint32_t held_count;
};

// first: of each stage but the first one, ascending; `cuts` of them.
static inline void chain_open(struct chain *chain, const struct backend_ops *ops, struct backend_config config,
                              const uint32_t *first, uint32_t cuts)
{
    struct error error;

    *chain = (struct chain){.ops = ops, .stages = cuts + 1};
    for (uint32_t i = 0; i < cuts; i++)
        chain->first[i + 1] = first[i];
    chain->first[chain->stages] = config.model->shape.layers;
    for (uint32_t i = 0; i < chain->stages; i++) {
        config.first_layer = chain->first[i];
        config.layer_count = chain->first[i + 1] - chain->first[i];
        if (ops->plan(&config, &chain->plan[i], &error) || ops->open(&config, &chain->backend[i], &error) ||
            ops->batch_open(chain->backend[i], &chain->batch[i], &error))
            fail_msg("layers %u on: %s", config.first_layer, error.text);
    }
}

static inline void chain_close(struct chain *chain)
{
    for (uint32_t i = 0; i < chain->stages; i++) {
        chain->ops->batch_close(chain->batch[i]);
        chain->ops->close(chain->backend[i]);
    }
}

static inline void chain_wait(const struct chain *chain, uint32_t stage)
{
    while (!chain->ops->done(chain->batch[stage])) {}
}

static inline void chain_run_stage(struct chain *chain, uint32_t stage, const struct backend_row *rows, uint32_t count)
{
    struct backend_batch *batch = chain->batch[stage];
    const uint32_t first = chain->first[stage], layers = chain->first[stage + 1] - first;
    float *q[CHAIN_ROWS], *k[CHAIN_ROWS], *v[CHAIN_ROWS];
    const float *o[CHAIN_ROWS];
    const struct backend_links links = {o, q, k, v};
    struct error error;
    uint32_t bad;

    if (chain->ops->begin(batch, rows, count, &bad, &error))
        fail_msg("row %u: %s", bad, error.text);
    chain_wait(chain, stage);
    if (stage > 0)
        chain->ops->put_x(batch, chain->x[0]);
    for (uint32_t s = 0; s <= layers; s++) {
        for (uint32_t row = 0; row < count; row++) {
            o[row] = s ? chain->sent[first + s - 1][row] : NULL;
            q[row] = s < layers ? chain->sent[first + s][row] : NULL;
            k[row] = q[row] ? q[row] + CHAIN_Q : NULL;
            v[row] = q[row] ? k[row] + CHAIN_KV : NULL;
        }
        chain->ops->segment(batch, s, &links);
        chain_wait(chain, stage);
        if (s < layers)
            chain->ops->attend(batch, s);
        chain_wait(chain, stage);
    }
    if (stage + 1 < chain->stages)
        chain->ops->get_x(batch, chain->x[0]);
    chain_wait(chain, stage);
}

// A step through all stages, and the head for the rows that need output: logits[i] are those of the i-th of them.
static inline void chain_step(struct chain *chain, const struct backend_row *rows, uint32_t count)
{
    static struct backend_sample samples[CHAIN_ROWS];
    static struct sampler_result results[CHAIN_ROWS];
    uint32_t index[CHAIN_ROWS], outputs = 0, last = chain->stages - 1;

    for (uint32_t row = 0; row < count; row++)
        if (rows[row].needs_output) {
            samples[outputs] = (struct backend_sample){.token = 7, .result = &results[outputs], .logits = chain->logits[outputs]};
            index[outputs++] = row;
        }
    for (uint32_t stage = 0; stage < chain->stages; stage++)
        chain_run_stage(chain, stage, rows, count);
    if (outputs)
        chain->ops->head(chain->batch[last], index, samples, outputs);
    chain_wait(chain, last);
    chain->held_count = chain->ops->pool_held(chain->backend[last], chain->held, CHAIN_SEQUENCES);
    for (uint32_t stage = 0; stage < last; stage++) { // each holds what the others hold, of its own layers
        struct kv_held held[CHAIN_SEQUENCES];
        assert_int_equal(chain->ops->pool_held(chain->backend[stage], held, CHAIN_SEQUENCES), chain->held_count);
        for (uint32_t i = 0; i < chain->held_count; i++)
            assert_int_equal(held[i].positions, chain->held[i].positions);
    }
}

// Runs of each sequence, every other one at a worker; which rows need output is drawn.
static inline uint32_t chain_draw_rows(uint64_t *seed, uint32_t *positions, struct backend_row *rows)
{
    uint32_t count = 0;
    for (uint32_t id = 1; id <= CHAIN_SEQUENCES; id++)
        for (uint64_t left = 1 + random_next(seed) % (CHAIN_ROWS / CHAIN_SEQUENCES - 1); left > 0; left--)
            rows[count++] = (struct backend_row){.sequence = id,
                                                 .token = (uint32_t)(random_next(seed) % CHAIN_VOCAB),
                                                 .position = positions[id - 1]++,
                                                 .local = id % 2 == 0,
                                                 .needs_output = left == 1 || random_next(seed) % 3 == 0};
    return count;
}

// Steps on both: the same bits.
static inline void chain_compare(struct chain *whole, struct chain *cut)
{
    uint32_t positions[CHAIN_SEQUENCES] = {0};
    uint64_t seed = 11;

    for (uint32_t step = 0; step < CHAIN_STEPS; step++) {
        struct backend_row rows[CHAIN_ROWS];
        const uint32_t count = chain_draw_rows(&seed, positions, rows);
        chain_step(whole, rows, count);
        chain_step(cut, rows, count);
        assert_memory_equal(whole->sent, cut->sent, sizeof whole->sent);
        assert_memory_equal(whole->logits, cut->logits, sizeof whole->logits);
        assert_int_equal(whole->held_count, cut->held_count);
    }
    assert_true(whole->logits[0][0] != 0 && whole->held_count == CHAIN_SEQUENCES / 2);
}

// The tiny model with CHAIN_LAYERS layers. *bytes is to be freed after the model is closed.
static inline struct model *chain_model_of(const char *arch, enum tensor_type type, bool tied, unsigned char **bytes)
{
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    struct model *model;
    struct error error;
    size_t count;

    tiny.arch = arch;
    tiny.biases = true;
    tiny.layers = CHAIN_LAYERS;
    tiny.type = tiny.embedding_type = type;
    tiny.tied = tied;
    gguf_build_llama(&build, &tiny);
    *bytes = gguf_build_finish(&build, &count);
    if (model_open_memory("tiny.gguf", *bytes, count, &model, &error))
        fail_msg("%s", error.text);
    return model;
}

static inline struct model *chain_model(enum tensor_type type, bool tied, unsigned char **bytes)
{
    return chain_model_of("llama", type, tied, bytes);
}

static inline struct backend_config chain_config(struct thread_pool *pool)
{
    return (struct backend_config){.pool = pool,
                                   .max_rows = CHAIN_ROWS,
                                   .max_batches = 1,
                                   .context_tokens = 256,
                                   .kv_type = KV_F16,
                                   .page_tokens = 16,
                                   .max_sequences = CHAIN_SEQUENCES,
                                   .local_pool_bytes = 4 << 20};
}

// The stages that a model is cut into: the first layer of each but the first one; 0: no more.
typedef uint32_t chain_cut[CHAIN_STAGES_MAX - 1];

// The model in one backend and in stages: the same bits, and pages as large together. check: NULL, or what else must hold of them.
static inline void chain_compare_cuts(const struct backend_ops *ops, struct backend_config config, enum tensor_type type, bool tied,
                                      const chain_cut *cuts, size_t cut_count,
                                      void (*check)(const struct chain *whole, const struct chain *cut,
                                                    const struct backend_config *config))
{
    static struct chain whole, cut;
    unsigned char *bytes;
    struct model *model = chain_model(type, tied, &bytes);

    config.model = model;
    for (size_t i = 0; i < cut_count; i++) {
        uint64_t page_bytes = 0;
        chain_open(&whole, ops, config, NULL, 0);
        chain_open(&cut, ops, config, cuts[i], cuts[i][1] ? 2 : 1);
        for (uint32_t stage = 0; stage < cut.stages; stage++)
            page_bytes += cut.plan[stage].pool_page_bytes;
        assert_int_equal(page_bytes, whole.plan[0].pool_page_bytes);
        if (check)
            check(&whole, &cut, &config);
        chain_compare(&whole, &cut);
        chain_close(&whole);
        chain_close(&cut);
    }
    model_close(model);
    free(bytes);
}

// Neighbours in a head that RoPE turns together come half a head apart: rows (outputs) of Q and K and their biases, f32 in the model's bytes.
static inline void chain_part_pairs(const struct tensor_view *view, uint32_t row_floats)
{
    enum { DIM = 16, HALF = DIM / 2 };
    float *rows = (float *)(void *)(uintptr_t)view->data, head[DIM * CHAIN_HIDDEN];

    for (uint32_t first = 0; first < view->bytes / sizeof(float) / row_floats; first += DIM) {
        memcpy(head, rows + (size_t)first * row_floats, DIM * row_floats * sizeof *head);
        for (uint32_t i = 0; i < DIM; i++)
            memcpy(rows + (size_t)(first + i / 2 + i % 2 * HALF) * row_floats, head + (size_t)i * row_floats,
                   row_floats * sizeof *head);
    }
}

// The same f32 weights as "llama", whose RoPE turns neighbours, and as "qwen2", whose RoPE turns values that are half a head apart, with
// Q and K laid out for each: attention sums the same products, so the logits are the same but for rounding.
static inline void chain_compare_archs(const struct backend_ops *ops, struct backend_config config, float limit)
{
    static struct chain pairs, halves;
    uint32_t positions[CHAIN_SEQUENCES] = {0};
    unsigned char *bytes[2];
    struct model *llama = chain_model_of("llama", TENSOR_F32, true, &bytes[0]),
                 *qwen = chain_model_of("qwen2", TENSOR_F32, true, &bytes[1]);
    uint64_t seed = 3;
    float apart = 0;

    for (uint32_t i = 0; i < CHAIN_LAYERS; i++) {
        const struct model_layer *layer = &qwen->layers[i];
        chain_part_pairs(&layer->q, CHAIN_HIDDEN);
        chain_part_pairs(&layer->k, CHAIN_HIDDEN);
        chain_part_pairs(&layer->q_bias, 1);
        chain_part_pairs(&layer->k_bias, 1);
    }
    config.model = llama;
    chain_open(&pairs, ops, config, NULL, 0);
    config.model = qwen;
    chain_open(&halves, ops, config, NULL, 0);
    for (uint32_t step = 0; step < CHAIN_STEPS; step++) {
        struct backend_row rows[CHAIN_ROWS];
        uint32_t count = chain_draw_rows(&seed, positions, rows), outputs = 0;
        for (uint32_t row = 0; row < count; row++) { // all in the local pool: workers answer with o = q, which differs
            rows[row].local = true;
            outputs += rows[row].needs_output;
        }
        chain_step(&pairs, rows, count);
        chain_step(&halves, rows, count);
        for (uint32_t row = 0; row < outputs; row++)
            for (uint32_t i = 0; i < CHAIN_VOCAB; i++)
                apart = fmaxf(apart, fabsf(pairs.logits[row][i] - halves.logits[row][i]));
    }
    if (!(apart <= limit))
        fail_msg("logits are %g apart", (double)apart);
    chain_close(&pairs);
    chain_close(&halves);
    model_close(llama);
    model_close(qwen);
    free(bytes[0]);
    free(bytes[1]);
}

// Whatever a row says and the backend has no kernels for, its plan refuses. where: "on the CPU".
static inline void chain_check_refusals(const struct backend_ops *ops, struct backend_config config, const char *where)
{
    static const char *const pieces[] = {"norm", "RoPE", "activation"};
    unsigned char *bytes;
    struct model *model = chain_model(TENSOR_F32, true, &bytes);
    const struct model_shape shape = model->shape;
    struct backend_plan plan;
    struct error error;
    char want[200];

    config.model = model;
    for (uint32_t i = 0; i < ARRAY_COUNT(pieces); i++) {
        model->shape = shape;
        if (i == 0)
            model->shape.norm = (enum model_norm)1000;
        else if (i == 1)
            model->shape.rope_style = (enum rope_style)1000;
        else
            model->shape.activation = (enum model_activation)1000;
        assert_int_equal(ops->plan(&config, &plan, &error), STATUS_UNIMPLEMENTED);
        snprintf(want, sizeof want, "tiny.gguf: the %s of architecture 'llama' is not computed %s", pieces[i], where);
        assert_string_equal(error.text, want);
    }
    model_close(model);
    free(bytes);
}

#endif

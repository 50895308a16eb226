/* walk_rig.h: a model of some layers, and several mini-batches that go through them side by side, in turn or in disorder: for tests of weights
 * that do not stay on the device.
 */
#ifndef FD_TESTS_CUDA_WALK_RIG_H
#define FD_TESTS_CUDA_WALK_RIG_H

#include "tests/cuda/backend_rig.h"

enum { LAYERS = 11, ROWS = 12, PAGES = 96, BATCHES = 4, STEPS = 3 };

static inline struct tiny_llama tiny_model(void)
{
    struct tiny_llama tiny = TINY_LLAMA;
    tiny.layers = LAYERS, tiny.ffn = 192, tiny.type = TENSOR_Q4_0;
    return tiny;
}

/* --- the plan: memory with which so many blobs, or just more, stream ---------------------------------------------------------- */

static inline bool rig_plan(const struct backend_config *config, struct cuda_weights_plan *plan)
{
    const struct layer_range all = {.count = LAYERS, .is_first = true, .is_last = true};
    uint64_t blobs[LAYERS + 1];
    struct error error;

    return cuda_plan_weights(config, &all, plan, blobs, &error) == STATUS_OK;
}

/* Returns the device memory for weights with which `streamed` blobs come from the host. */
static inline uint64_t room_for(uint32_t streamed)
{
    struct backend_config config = rig_config(ROWS);
    struct cuda_weights_plan plan;

    assert_true(rig_plan(&config, &plan));
    for (config.weights_memory = weight_tiers_bytes(&plan.tiers);; config.weights_memory -= 256) {
        assert_true(rig_plan(&config, &plan));
        if (plan.tiers.streamed_count >= streamed)
            return config.weights_memory;
    }
}

/* Returns the host memory for weights with which `on_disk` of those blobs come from disk. */
static inline uint64_t host_room_for(uint64_t device_weights, uint32_t on_disk)
{
    struct backend_config config = rig_config(ROWS);
    struct cuda_weights_plan plan;

    config.weights_memory = device_weights;
    assert_true(rig_plan(&config, &plan));
    for (config.weights_host_memory = weight_tiers_bytes(&plan.host);; config.weights_host_memory -= PACKED_FILE_ALIGN) {
        assert_true(rig_plan(&config, &plan));
        if (plan.host.streamed_count >= on_disk)
            return config.weights_host_memory;
    }
}

/* --- steps ----------------------------------------------------------------------------------------------------------------- */

static inline uint32_t fill(struct backend_row *rows, uint64_t sequence, uint32_t step)
{
    uint32_t at = rig_rows(rows, 0, sequence, step ? step + 3 : 0, step ? 1 : 4, true);
    at = rig_rows(rows, at, sequence + 1, step, 1, true);
    return rig_rows(rows, at, sequence + 100, step, 2, false);
}

/* 0: all of them. */
static inline struct backend_config tier_config(uint64_t device_weights)
{
    struct backend_config config = rig_config(ROWS);

    config.weights_memory = device_weights;
    config.max_batches = BATCHES;
    return config;
}

static inline void open_with(struct rig *rig, struct backend_config config) { rig_open(rig, fastdecode_device.ops, config, PAGES); }

static inline void same(const struct rig *a, const struct rig *b, uint32_t rows)
{
    assert_int_equal(a->sent_bytes, b->sent_bytes);
    assert_memory_equal(a->sent, b->sent, a->sent_bytes);
    assert_memory_equal(a->logits, b->logits, (size_t)rows * rig_model->shape.vocab * sizeof(float));
    for (size_t i = 0; i < (size_t)rows * rig_model->shape.vocab; i++)
        assert_true(a->logits[i] == a->logits[i]);
}

struct walk {
    struct rig rig;
    uint32_t s;    /* the segment it comes to next */
    uint32_t lags; /* rounds that it does not go on for */
    uint32_t count;
};

static inline void next_segment(struct walk *walk)
{
    struct rig *rig = &walk->rig;

    rig->ops->segment(rig->batch, walk->s, &rig->links);
    if (walk->s < LAYERS)
        rig->ops->attend(rig->batch, walk->s);
    walk->s++;
}

enum order {
    IN_TURN,  /* each time one goes on that is first by turn() */
    SOME_LAG, /* the same, where all but one wait for something else now and then, as for workers */
    DISORDER, /* any goes on */
};

/* A step of all of them. */
static inline void walk_all(struct walk *walks, uint32_t batches, uint32_t step, enum order order, uint64_t *seed)
{
    static struct backend_row rows[BATCHES][ROWS];
    uint32_t ended = 0;

    for (uint32_t i = 0; i < batches; i++) {
        walks[i].count = rig_rows(rows[i], 0, 10 * i + 1, 2 * step, 2, true);
        walks[i].s = walks[i].lags = 0;
        rig_begin_step(&walks[i].rig, rows[i], walks[i].count);
    }
    while (ended < batches) {
        struct walk *first = NULL;
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0, from = (uint32_t)random_next(seed) % batches; i < batches; i++) {
            struct walk *walk = &walks[(from + i) % batches];
            if (walk->s > LAYERS || (walk->lags && walk->lags--))
                continue;
            const uint32_t turn = order == DISORDER ? 0 : walk->rig.ops->turn(walk->rig.batch, walk->s);
            if (turn < best)
                first = walk, best = turn;
        }
        if (!first) /* BACKEND_NOT_YET, all of them */
            continue;
        next_segment(first);
        first->lags = order == SOME_LAG && first != walks ? (uint32_t)random_next(seed) % 3000 : 0;
        ended += first->s > LAYERS;
    }
    for (uint32_t i = 0; i < batches; i++) {
        const uint32_t last = walks[i].count - 1;
        rig_head(&walks[i].rig, &last, 1);
        rig_wait(&walks[i].rig);
        walks[i].rig.ops->end(walks[i].rig.batch);
    }
}

static inline void open_walks(struct walk *walks, uint32_t batches, struct backend_config config)
{
    open_with(&walks[0].rig, config);
    for (uint32_t i = 1; i < batches; i++)
        rig_join(&walks[i].rig, &walks[0].rig);
}

static inline void close_walks(struct walk *walks, uint32_t batches)
{
    while (batches--)
        rig_close(&walks[batches].rig);
}

/* The logits of each step of BATCHES mini-batches with all weights on the device; fewer of them have the same. free() them. */
static inline float *resident_walks(void)
{
    const size_t vocab = rig_model->shape.vocab;
    float *logits = malloc(STEPS * BATCHES * vocab * sizeof *logits);
    struct walk walks[BATCHES];
    uint64_t seed = 9;

    assert_non_null(logits);
    open_walks(walks, BATCHES, tier_config(0));
    for (uint32_t step = 0; step < STEPS; step++) {
        walk_all(walks, BATCHES, step, IN_TURN, &seed);
        for (uint32_t i = 0; i < BATCHES; i++)
            memcpy(logits + (step * BATCHES + i) * vocab, walks[i].rig.logits, vocab * sizeof *logits);
    }
    close_walks(walks, BATCHES);
    return logits;
}

static inline void same_as_resident(const struct walk *walks, uint32_t batches, uint32_t step, const float *resident)
{
    const size_t vocab = rig_model->shape.vocab;

    for (uint32_t i = 0; i < batches; i++) {
        assert_memory_equal(walks[i].rig.logits, resident + (step * BATCHES + i) * vocab, vocab * sizeof *resident);
        for (size_t k = 0; k < vocab; k++)
            assert_true(walks[i].rig.logits[k] == walks[i].rig.logits[k]);
    }
}

#endif

// attention_rig.h: sequences that are fed through a KV store, and what attention of them must be: plain sums in double over the rounded K and
// V.
#ifndef FD_TESTS_KERNELS_ATTENTION_RIG_H
#define FD_TESTS_KERNELS_ATTENTION_RIG_H

#include "tests/kernels/kernel_test.h"

#include "kernels/attention/attention.h"
#include "kernels/kv/kv_store.h"
#include "tests/kernels/attention_tile.h"

#define LIMIT 4e-6 // of the largest |v| that a row sees
#define CODES_LIMIT \
    2e-4 /* the same for types with codes: weights are rounded to 15 bits; the rounding of q is in the expected value too */

// One sequence's inputs and results. All tensors begin one float off a 16-byte boundary.
struct feed {
    uint64_t id;
    struct kv_shape shape;
    uint32_t positions, fed;
    float *q, *o; // [layers][positions][heads][head_dim]
    float *k, *v; // [layers][positions][kv_heads][head_dim]
    void *memory;
};

struct rig {
    struct thread_pool *pool;
    struct kv_store *store;
    struct kv_batch *batch;
};

enum { MAX_ROWS = 2048 };

static inline struct kv_shape shape_of(uint32_t kv_heads, uint32_t group, uint32_t head_dim, enum kv_type type)
{
    return (struct kv_shape){.layers = 2,
                             .heads = kv_heads * group,
                             .kv_heads = kv_heads,
                             .head_dim = head_dim,
                             .page_tokens = 16,
                             .type = type,
                             .max_sequences = 16,
                             .max_context = 2048};
}

static inline struct rig rig_open(const struct kv_shape *shape, uint32_t threads, const char *level)
{
    struct rig rig;
    struct error error;
    assert_int_equal(kernels_init(level, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(threads, &rig.pool), STATUS_OK);
    const uint64_t pages = MAX(400, shape->max_context / shape->page_tokens);
    assert_int_equal(kv_store_open(shape, kv_page_bytes(shape) * pages, MAX_ROWS, rig.pool, &rig.store, &error), STATUS_OK);
    assert_int_equal(kv_batch_open(rig.store, &rig.batch), STATUS_OK);
    return rig;
}

static inline void rig_close(struct rig *rig)
{
    kv_batch_close(rig->batch);
    kv_store_close(rig->store);
    thread_pool_close(rig->pool);
}

static inline struct feed feed_make(const struct kv_shape *shape, uint64_t id, uint32_t positions, float q_size, uint64_t seed)
{
    struct feed feed = {.id = id, .shape = *shape, .positions = positions};
    size_t q_count = (size_t)shape->layers * positions * shape->heads * shape->head_dim;
    size_t kv_count = (size_t)shape->layers * positions * shape->kv_heads * shape->head_dim;
    float *at = feed.memory = test_alloc((2 * q_count + 2 * kv_count + 1) * sizeof(float));

    feed.q = at + 1, feed.o = feed.q + q_count, feed.k = feed.o + q_count, feed.v = feed.k + kv_count;
    for (size_t i = 0; i < q_count; i++)
        feed.q[i] = q_size * random_normal(&seed), feed.o[i] = NAN;
    for (size_t i = 0; i < 2 * kv_count; i++)
        feed.k[i] = random_normal(&seed);
    return feed;
}

static inline const char *fast_level(void)
{
    return isa_supported(ISA_AVX512) ? "avx512" : isa_supported(ISA_AVX2) ? "avx2" : isa_supported(ISA_NEON) ? "neon" : "ref";
}

// Feeds all sequences (ascending ids) to their ends in one batch, `chunks[i]` rows of sequence i a step.
static inline void feed_all(struct rig *rig, struct feed *feeds, const uint32_t *chunks, uint32_t count)
{
    static struct kv_row rows[MAX_ROWS];
    static const float *q[MAX_ROWS], *k[MAX_ROWS], *v[MAX_ROWS];
    static float *o[MAX_ROWS];
    static uint32_t owner[MAX_ROWS];
    struct error error;
    uint32_t bad, n;

    for (uint32_t i = 0; i < count; i++)
        feeds[i].fed = 0;
    do {
        n = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t take = MIN(chunks[i], feeds[i].positions - feeds[i].fed);
            assert_int_equal(kv_store_reserve(rig->store, feeds[i].id, feeds[i].fed + take, &error), STATUS_OK);
            for (uint32_t j = 0; j < take; j++, n++) {
                owner[n] = i;
                rows[n] = (struct kv_row){.sequence = feeds[i].id, .position = feeds[i].fed++};
            }
        }
        assert_int_equal(kv_batch_plan(rig->batch, rows, n, &bad, &error), STATUS_OK);
        for (uint32_t layer = 0; n && layer < feeds->shape.layers; layer++) {
            for (uint32_t j = 0; j < n; j++) {
                struct feed *feed = &feeds[owner[j]];
                size_t at = (size_t)layer * feed->positions + rows[j].position;
                size_t q_width = (size_t)feed->shape.heads * feed->shape.head_dim;
                size_t kv_width = (size_t)feed->shape.kv_heads * feed->shape.head_dim;
                q[j] = feed->q + at * q_width, o[j] = feed->o + at * q_width;
                k[j] = feed->k + at * kv_width, v[j] = feed->v + at * kv_width;
            }
            kv_batch_attend(rig->batch, layer, q, k, v, o);
        }
    } while (n);
}

// Feeds one sequence on a rig of its own.
static inline void feed_alone(struct feed *feed, uint32_t chunk, uint32_t threads, const char *level)
{
    struct rig rig = rig_open(&feed->shape, threads, level);
    feed_all(&rig, feed, &chunk, 1);
    rig_close(&rig);
}

// --- against plain sums -------------------------------------------------------------------------------------------------

// Computes q / sqrt(head_dim). With codes each group of 32 is rounded to steps of its largest value: 16 bits with int8, else 8.
static inline void round_q(const struct kv_shape *shape, const float *q, bool codes, double *out)
{
    float scaled[KV_MAX_HEAD_DIM], most = shape->type == KV_INT8 ? 32767.0f : 127.0f;
    attend_scale_q(shape->head_dim, q, scaled);
    for (uint32_t first = 0; first < shape->head_dim; first += 32) {
        uint32_t end = MIN(first + 32, shape->head_dim);
        float largest = 0;
        for (uint32_t i = first; i < end; i++)
            largest = MAX(largest, fabsf(scaled[i]));
        float step = largest / most;
        for (uint32_t i = first; i < end; i++) {
            out[i] = (double)q[i] / sqrt((double)shape->head_dim);
            assert_true(fabs((double)scaled[i] - out[i]) <= 2e-7 * fabs(out[i]) + 1e-40);
            if (codes && step > 0)
                out[i] = (double)step * (double)rintf(scaled[i] / step);
        }
    }
}

// Returns the largest error of one row, as a share of the largest |v|. codes: round q as for types with codes.
static inline double row_error(const struct feed *feed, uint32_t layer, uint32_t position, bool codes)
{
    const struct kv_shape *shape = &feed->shape;
    uint32_t head_dim = shape->head_dim, group = shape->heads / shape->kv_heads;
    double worst = 0, largest = 0;
    double *p = malloc((position + 1) * sizeof *p * (1 + 2 * head_dim)), *k = p + position + 1, rounded[KV_MAX_HEAD_DIM];
    double *v = k + (size_t)(position + 1) * head_dim, cap = (double)shape->soft_cap;
    uint32_t from = kv_is_windowed(shape, layer) && position + 1 > shape->window ? position + 1 - shape->window : 0;

    for (uint32_t head = 0; head < shape->heads; head++) {
        size_t row = (size_t)layer * feed->positions + position;
        const float *q = feed->q + (row * shape->heads + head) * head_dim, *o = feed->o + (row * shape->heads + head) * head_dim;
        double best = -INFINITY, sum = 0;
        round_q(shape, q, codes, rounded);
        if (head % group == 0) {
            size_t first = ((size_t)layer * feed->positions * shape->kv_heads + head / group) * head_dim;
            round_values(shape->type, head_dim, feed->k + first, feed->v + first, position + 1, (size_t)shape->kv_heads * head_dim,
                         k, v);
        }
        for (uint32_t t = from; t <= position; t++) {
            p[t] = 0;
            for (uint32_t i = 0; i < head_dim; i++)
                p[t] += rounded[i] * k[(size_t)t * head_dim + i];
            p[t] = cap > 0 ? cap * tanh(p[t] / cap) : p[t];
            best = MAX(best, p[t]);
        }
        for (uint32_t t = from; t <= position; t++)
            sum += p[t] = exp(p[t] - best);
        for (uint32_t i = 0; i < head_dim; i++) {
            double expected = 0;
            for (uint32_t t = from; t <= position; t++) {
                expected += p[t] / sum * v[(size_t)t * head_dim + i];
                largest = MAX(largest, fabs(v[(size_t)t * head_dim + i]));
            }
            double error = fabs(expected - (double)o[i]);
            worst = error <= worst ? worst : error; // NaN counts
        }
    }
    free(p);
    return worst / largest;
}

static const uint32_t contexts[] = {1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1023, 1500, 4096, 4097, 4607, 4700};

static inline void check_rows(const struct feed *feed, const char *what)
{
    bool codes = feed->shape.type > KV_BF16 && strcmp(what, "ref");
    double limit = codes ? CODES_LIMIT : LIMIT;
    for (uint32_t i = 0; i < ARRAY_COUNT(contexts) && contexts[i] <= feed->positions; i++)
        for (uint32_t layer = 0; layer < feed->shape.layers; layer++) {
            double error = row_error(feed, layer, contexts[i] - 1, codes);
            if (!(error <= limit))
                fail_msg("%s, %s: context %u layer %u: error %g", what, kv_type_name(feed->shape.type), contexts[i], layer, error);
        }
}

static inline size_t output_bytes(const struct feed *feed)
{
    return (size_t)feed->shape.layers * feed->positions * feed->shape.heads * feed->shape.head_dim * sizeof(float);
}

// Returns a copy of the outputs, to be freed, and clears them.
static inline float *take_outputs(struct feed *feed)
{
    float *copy = malloc(output_bytes(feed));
    memcpy(copy, feed->o, output_bytes(feed));
    memset(feed->o, 0xff, output_bytes(feed));
    return copy;
}

static inline void assert_same(const struct feed *feed, const float *expected, const char *what)
{
    size_t width = (size_t)feed->shape.heads * feed->shape.head_dim;
    for (size_t row = 0; row < (size_t)feed->shape.layers * feed->positions; row++)
        if (memcmp(feed->o + row * width, expected + row * width, width * sizeof(float)))
            fail_msg("%s: layer %zu position %zu differs", what, row / feed->positions, row % feed->positions);
}

// Feeds it alone at each level that this machine has but ref: the bits are the same.
static inline void assert_levels_agree(struct feed *feed)
{
    float *expected = NULL;
    for (int level = ISA_AVX2; level < ISA_LEVEL_COUNT; level++) {
        if (!isa_supported((enum isa_level)level))
            continue;
        feed_alone(feed, 90, 1, isa_name((enum isa_level)level));
        if (expected)
            assert_same(feed, expected, isa_name((enum isa_level)level));
        else
            expected = take_outputs(feed);
    }
    free(expected);
}

#endif

/* test_cuda_attention.c: the kernels of attend.cu beside plain loops in double, on odd sizes, and rows alone beside rows in company. */
#include "tests/cuda/device_rig.h"

extern bool gemm_emulated_invariant __attribute__((weak)); /* a real device has none */

enum { LAYERS = 2, LAYER = 1, SEQUENCES = 3 };

struct attention {
    struct gpu_pool pool;
    uint32_t q_width, kv_width, width, page_count;
    uint32_t lengths[SEQUENCES], table_begin[SEQUENCES], table_words;
    uint32_t *tables;        /* [table_words], pages of one sequence in no order */
    float *kv[SEQUENCES];    /* [positions][2][kv_width], as stored: rounded to f16 */
    float *qkv;              /* [rows][width] */
    float *qkv_at, *scratch; /* of the device */
};

/* Stores all positions but what is in the last row of each sequence, page tables shuffled. */
static void fill(struct attention *a, uint32_t heads, uint32_t kv_heads, uint32_t head_dim, const uint32_t *lengths)
{
    uint32_t longest = 0;
    *a = (struct attention){.pool = {.layers = LAYERS, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim}};
    a->q_width = heads * head_dim, a->kv_width = kv_heads * head_dim, a->width = a->q_width + 2 * a->kv_width;
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        a->lengths[s] = lengths[s];
        a->table_begin[s] = a->table_words;
        a->table_words += pages_for(lengths[s]);
        longest = MAX(longest, lengths[s]);
    }
    a->page_count = a->table_words;
    a->tables = malloc(a->table_words * sizeof *a->tables);
    random_order(a->tables, a->page_count, heads * 1000u + head_dim);
    a->pool.pages = on_device(NULL, (size_t)a->page_count * LAYERS * kv_heads * 2 * GPU_PAGE_TOKENS * head_dim * 2);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        a->kv[s] = random_halves((size_t)lengths[s] * 2 * a->kv_width, 100 + s);
    a->qkv = random_values((size_t)longest * SEQUENCES * a->width, 7);
    a->qkv_at = on_device(NULL, (size_t)longest * SEQUENCES * a->width * 4);
    a->scratch = on_device(NULL, gpu_attend_scratch(&a->pool, longest * SEQUENCES, longest) * 4);
}

static void release(struct attention *a)
{
    for (uint32_t s = 0; s < SEQUENCES; s++)
        free(a->kv[s]);
    free(a->tables), free(a->qkv);
    cudaFree(a->pool.pages), cudaFree(a->qkv_at), cudaFree(a->scratch);
}

/* The rows (sequence, position) with their k and v in qkv, in a step of their own: stored, and attended if `o` is wanted. */
static void run_rows(struct attention *a, uint32_t count, const uint32_t *sequence, const uint32_t *position, float *o)
{
    uint32_t *words = malloc((3 * count + a->table_words) * sizeof *words), longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        words[i] = i;
        words[count + i] = position[i];
        words[2 * count + i] = a->table_begin[sequence[i]];
        longest = MAX(longest, position[i] + 1);
        memcpy(a->qkv + (size_t)i * a->width + a->q_width, a->kv[sequence[i]] + (size_t)position[i] * 2 * a->kv_width,
               2 * a->kv_width * sizeof(float));
    }
    memcpy(words + 3 * count, a->tables, a->table_words * sizeof *words);
    uint32_t *at = on_device(words, (3 * count + a->table_words) * sizeof *words);
    const struct gpu_rows rows = {at, at + count, at + 2 * count, at + 3 * count, count, longest};
    to_device(a->qkv_at, a->qkv, (size_t)count * a->width * 4);
    gpu_store_kv(&a->pool, LAYER, &rows, a->qkv_at, rig_stream);
    if (o) {
        float *o_at = on_device(NULL, (size_t)count * a->q_width * 4);
        gpu_attend(&a->pool, LAYER, &rows, a->qkv_at, o_at, a->scratch, rig_stream);
        to_host(o, o_at, (size_t)count * a->q_width * 4);
        cudaFree(o_at);
    }
    cudaStreamSynchronize(rig_stream);
    cudaFree(at);
    free(words);
}

/* One head's attention in double. */
static void reference(const struct attention *a, uint32_t sequence, uint32_t position, const float *q, uint32_t kv_head,
                      double *out)
{
    const uint32_t dim = a->pool.head_dim;
    const float *k = a->kv[sequence] + (size_t)kv_head * dim;
    double scaled[GPU_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < dim; i++)
        scaled[i] = (double)q[i] * attend_scale(dim);
    attend_in_double(scaled, k, k + a->kv_width, 2 * a->kv_width, position + 1, dim, out);
}

static void attention_of(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, const uint32_t *lengths)
{
    enum { LAST = 3 }; /* rows of a sequence that are attended */
    struct attention a;
    uint32_t sequence[SEQUENCES * LAST], position[SEQUENCES * LAST], count = 0;

    fill(&a, heads, kv_heads, head_dim, lengths);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t at = 0, n; at < lengths[s]; at += n) { /* chunks of 50 */
            uint32_t in[50], where[50];
            for (n = 0; n < 50 && at + n < lengths[s]; n++)
                in[n] = s, where[n] = at + n;
            run_rows(&a, n, in, where, NULL);
        }
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t i = MIN(lengths[s], (uint32_t)LAST); i > 0; i--)
            sequence[count] = s, position[count++] = lengths[s] - i;
    float *o = malloc((size_t)count * a.q_width * sizeof *o), *alone = malloc(a.q_width * sizeof *alone);
    double want[GPU_MAX_HEAD_DIM];
    run_rows(&a, count, sequence, position, o);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t h = 0; h < heads; h++) {
            reference(&a, sequence[i], position[i], a.qkv + (size_t)i * a.width + h * head_dim, h / (heads / kv_heads), want);
            for (uint32_t d = 0; d < head_dim; d++)
                if (!(fabs((double)o[(size_t)i * a.q_width + h * head_dim + d] - want[d]) < 2e-5))
                    fail_msg("%u heads, %u KV heads of %u: position %u, head %u, value %u: %.9g for %.9g", heads, kv_heads,
                             head_dim, position[i], h, d, (double)o[(size_t)i * a.q_width + h * head_dim + d], want[d]);
        }
    /* a row by itself has the same bits */
    for (uint32_t i = 0; i < count; i++) {
        memmove(a.qkv, a.qkv + (size_t)i * a.width, a.q_width * sizeof(float));
        if (i == 0 || i + 1 == count) {
            run_rows(&a, 1, &sequence[i], &position[i], alone);
            assert_memory_equal(alone, o + (size_t)i * a.q_width, a.q_width * sizeof(float));
        }
    }
    free(o), free(alone);
    release(&a);
}

/* Folds what gpu_attend left in its scratch for a head, as attend.cu says: ranges of 256 within spans of 4,096, then spans in order. */
static void fold_parts(const float *parts, uint32_t position, uint32_t dim, float *out)
{
    float total[GPU_MAX_HEAD_DIM + 1] = {0}, best = -INFINITY;

    for (uint32_t begin = 0; begin <= position / 256; begin += 16) {
        const uint32_t end = MIN(begin + 16, position / 256 + 1);
        float span[GPU_MAX_HEAD_DIM + 1] = {0}, largest = -INFINITY;
        for (uint32_t r = begin; r < end; r++)
            largest = fmaxf(largest, parts[r * (dim + 2) + dim]);
        for (uint32_t r = begin; r < end; r++)
            for (uint32_t d = 0; d <= dim; d++) /* then the sum of weights */
                span[d] += expf(parts[r * (dim + 2) + dim] - largest) * parts[r * (dim + 2) + (d < dim ? d : dim + 1)];
        const float top = fmaxf(best, largest), kept = begin ? expf(best - top) : 0, gained = expf(largest - top);
        for (uint32_t d = 0; d <= dim; d++)
            total[d] = total[d] * kept + span[d] * gained;
        best = top;
    }
    for (uint32_t d = 0; d < dim; d++)
        out[d] = total[d] / total[dim];
}

/* Contexts of one span, of two and of three. A real device rounds otherwise (fused, its own exponential): there it is near. */
static void test_spans(void **state)
{
    enum { DIM = 32, HEADS = 2, ROWS = 3, RANGES = 34 };
    static const uint32_t lengths[SEQUENCES] = {8500, 1, 1}, sequence[ROWS] = {0, 0, 0}, position[ROWS] = {4095, 4300, 8499};
    struct attention a;
    float o[ROWS][HEADS * DIM], want[DIM];

    fill(&a, HEADS, 1, DIM, lengths);
    for (uint32_t at = 0, n; at < lengths[0]; at += n) {
        uint32_t in[50] = {0}, where[50];
        for (n = 0; n < 50 && at + n < lengths[0]; n++)
            where[n] = at + n;
        run_rows(&a, n, in, where, NULL);
    }
    run_rows(&a, ROWS, sequence, position, o[0]);
    float *parts = malloc((size_t)ROWS * HEADS * RANGES * (DIM + 2) * sizeof *parts);
    to_host(parts, a.scratch, (size_t)ROWS * HEADS * RANGES * (DIM + 2) * sizeof *parts);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t h = 0; h < HEADS; h++) {
            fold_parts(parts + ((size_t)i * HEADS + h) * RANGES * (DIM + 2), position[i], DIM, want);
            for (uint32_t d = 0; d < DIM; d++)
                if (&gemm_emulated_invariant ? o[i][h * DIM + d] != want[d] : fabsf(o[i][h * DIM + d] - want[d]) > 1e-5f)
                    fail_msg("position %u, head %u, value %u: %a for %a", position[i], h, d, (double)o[i][h * DIM + d],
                             (double)want[d]);
        }
    free(parts);
    release(&a);
}

static void test_attention(void **state)
{
    static const uint32_t lengths[][SEQUENCES] = {{1, 16, 17}, {255, 256, 257}, {600, 3, 33}};
    for (size_t i = 0; i < ARRAY_COUNT(lengths); i++) {
        attention_of(9, 3, 64, lengths[i]); /* the default model */
        attention_of(4, 4, 128, lengths[i]);
        attention_of(8, 1, 128, lengths[i]);
    }
    attention_of(16, 1, 96, lengths[2]); /* more heads than a block takes; lanes without values */
    attention_of(3, 3, 16, lengths[2]);
    attention_of(2, 1, 256, lengths[2]);
    attention_of(12, 2, 80, lengths[1]);
    attention_of(5, 1, 32, lengths[2]);
    attention_of(4, 2, 8, lengths[2]);
    attention_of(3, 1, 136, lengths[2]);
    attention_of(2, 2, 192, lengths[0]);
    attention_of(2, 1, 8, (const uint32_t[SEQUENCES]){8500, 5, 300}); /* more ranges than are merged at once */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_spans),
    };
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda attention", tests, NULL, NULL)) : 0;
}

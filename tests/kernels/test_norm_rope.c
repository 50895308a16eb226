// test_norm_rope.c: row operations at every level against ref, in odd lengths, misaligned, with extreme values; the
// levels but ref agree bit for bit; nothing beyond n is read (ASan) or written (guards).
#include "kernel_test.h"

#define LONGEST 5000u
#define GUARD 17u

static const uint32_t lengths[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 80, 127, 129, 576, 1023, 1025, 4999};

// An array of exactly n floats, misaligned, so that ASan sees a read beyond it.
static float *exact_floats(uint32_t n, uint64_t seed, float magnitude)
{
    float *values = (float *)(void *)((char *)malloc(n * sizeof(float) + 4) + 4);
    for (uint32_t i = 0; i < n; i++)
        values[i] = random_normal(&seed) * magnitude;
    return values;
}

static void release(float *values) { free((char *)values - 4); }

// One operation on a row: out has n floats and a guard behind it.
typedef void operation(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out);

static void run_rms_norm(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->rms_norm(x, y, 1e-5f, n, out);
}
static void run_silu_mul(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->silu_mul(x, y, n, out);
}
static void run_layer_norm(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->layer_norm(x, y, x, 1e-5f, n, out);
}
static void run_layer_norm_alone(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->layer_norm(x, y, NULL, 1e-5f, n, out);
}
static void run_gelu_mul(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->gelu_mul(x, y, n, out);
}
static void run_gelu(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->gelu(x, NULL, n, out);
}
static void run_gpt_oss_mul(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->gpt_oss_mul(x, y, n, out);
}
static void run_relu(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->relu(x, NULL, n, out);
}
static void run_scale(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    memcpy(out, x, n * sizeof *out);
    level->scale(out, 1.7f, n);
}
static void run_soft_cap(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    memcpy(out, x, n * sizeof *out);
    level->soft_cap(out, 30, n);
}
static void run_add(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    memcpy(out, x, n * sizeof *out);
    level->add(out, y, n);
}
static void run_softmax(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->softmax(x, n, out);
}
static void run_log_softmax(const struct kernels *level, const float *x, const float *y, uint32_t n, float *out)
{
    level->log_softmax(x, n, out);
}

static void check_close(const char *name, const char *level, uint32_t n, const float *got, const float *want, double relative,
                        double absolute)
{
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(want[i]) ? isnan(got[i]) : got[i] == want[i])
            continue;
        if (!(fabs((double)got[i] - (double)want[i]) <= relative * fabs((double)want[i]) + absolute))
            fail_msg("%s at %s, n %u, element %u: %a, expected %a", name, level, n, i, (double)got[i], (double)want[i]);
    }
}

static void check_operation(const char *name, operation *run, const float *x, const float *y, uint32_t n, double relative,
                            double absolute)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    static float expected[LONGEST], first[LONGEST + GUARD], got[LONGEST + GUARD];
    run(kernels_of_level(ISA_REF), x, y, n, expected);
    for (uint32_t l = 0; l < level_count; l++) {
        memset(got, 0x55, sizeof got);
        run(levels[l], x, y, n, got);
        check_close(name, isa_name(levels[l]->level), n, got, expected, relative, absolute);
        for (uint32_t i = 0; i < GUARD; i++)
            assert_int_equal(f32_bits(got[n + i]), 0x55555555u);
        for (uint32_t i = 0; l && i < n; i++)
            if (f32_bits(got[i]) != f32_bits(first[i]) && !(isnan(got[i]) && isnan(first[i])))
                fail_msg("%s: %s differs from %s at element %u of %u", name, isa_name(levels[l]->level), isa_name(levels[0]->level),
                         i, n);
        memcpy(l ? got : first, got, sizeof got);
    }
}

static void test_rows(void **state)
{
    for (size_t l = 0; l < ARRAY_COUNT(lengths); l++) {
        uint32_t n = lengths[l];
        float *x = exact_floats(n, n + 1, 3.0f), *y = exact_floats(n, n + 2, 1.0f);
        check_operation("rms_norm", run_rms_norm, x, y, n, 1e-6, 0);
        check_operation("silu_mul", run_silu_mul, x, y, n, 6e-7, 0);
        check_operation("layer_norm", run_layer_norm, x, y, n, 2e-6, 2e-6);
        check_operation("layer_norm without bias", run_layer_norm_alone, x, y, n, 2e-6, 1e-6);
        check_operation("gelu_mul", run_gelu_mul, x, y, n, 4e-6, 1e-6);
        check_operation("gelu", run_gelu, x, y, n, 4e-6, 1e-6);
        check_operation("gpt_oss_mul", run_gpt_oss_mul, x, y, n, 2e-6, 1e-6);
        check_operation("relu", run_relu, x, y, n, 0, 0);
        check_operation("scale", run_scale, x, y, n, 0, 0);
        check_operation("soft_cap", run_soft_cap, x, y, n, 2e-7, 8e-6);
        check_operation("add", run_add, x, y, n, 0, 0);
        check_operation("softmax", run_softmax, x, y, n, 2e-6, 0);
        check_operation("log_softmax", run_log_softmax, x, y, n, 2e-7, 1e-6);
        release(x);
        release(y);
    }
}

static void test_extreme_rows(void **state)
{
    enum { N = 83 };
    float *x = exact_floats(N, 9, 60.0f), *y = exact_floats(N, 10, 1.0f);
    check_operation("silu_mul wide", run_silu_mul, x, y, N, 6e-7, 1e-37);
    check_operation("softmax wide", run_softmax, x, y, N, 2e-6, 1e-44);
    check_operation("log_softmax wide", run_log_softmax, x, y, N, 2e-7, 1e-5);
    x[0] = 3e38f, x[1] = -3e38f, x[40] = 200.0f, x[41] = -200.0f, x[82] = -3e38f;
    check_operation("silu_mul huge", run_silu_mul, x, y, N, 6e-7, 1e-37);
    check_operation("gelu_mul huge", run_gelu_mul, x, y, N, 6e-7, 1e-6);
    check_operation("gelu huge", run_gelu, x, y, N, 6e-7, 1e-6);
    check_operation("gpt_oss_mul huge", run_gpt_oss_mul, x, y, N, 2e-6, 1e-6);
    check_operation("soft_cap huge", run_soft_cap, x, y, N, 2e-7, 8e-6);
    check_operation("softmax huge", run_softmax, x, y, N, 2e-6, 1e-44);
    x[0] = -INFINITY, x[40] = -INFINITY, x[82] = -INFINITY;
    check_operation("softmax masked", run_softmax, x, y, N, 2e-6, 1e-44);
    check_operation("log_softmax masked", run_log_softmax, x, y, N, 2e-7, 1e-5);
    x[81] = INFINITY;
    check_operation("softmax of inf", run_softmax, x, y, N, 0, 0);
    x[81] = NAN;
    check_operation("softmax of NaN", run_softmax, x, y, N, 0, 0);
    check_operation("log_softmax of NaN", run_log_softmax, x, y, N, 0, 0);
    check_operation("rms_norm of NaN", run_rms_norm, x, y, N, 0, 0);
    check_operation("layer_norm of NaN", run_layer_norm, x, y, N, 0, 0);
    for (int i = 0; i < N; i++)
        x[i] = -INFINITY;
    check_operation("softmax of nothing", run_softmax, x, y, N, 0, 0);
    check_operation("log_softmax of nothing", run_log_softmax, x, y, N, 0, 0);
    x[82] = NAN;
    check_operation("softmax of NaN and -inf", run_softmax, x, y, N, 0, 0);
    for (int i = 0; i < N; i++)
        x[i] = 0;
    check_operation("rms_norm of zeros", run_rms_norm, x, y, N, 0, 0);
    release(x);
    release(y);
}

static void test_softmax_sums_to_one(void **state)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels), n = 49152;
    float *x = exact_floats(n, 3, 4.0f), *p = malloc(n * sizeof *p);
    for (uint32_t l = 0; l < level_count; l++) {
        double sum = 0;
        levels[l]->softmax(x, n, p);
        for (uint32_t i = 0; i < n; i++)
            sum += (double)p[i];
        assert_true(fabs(sum - 1) < 1e-6);
        float max, ref_max;
        double got = levels[l]->log_sum_exp(x, n, &max), want = kernels_of_level(ISA_REF)->log_sum_exp(x, n, &ref_max);
        assert_true(max == ref_max && fabs(got - want) < 1e-7);
    }
    free(p);
    release(x);
}

static void check_rope(enum rope_style style, uint32_t heads, uint32_t head_dim, uint32_t dims, uint32_t position)
{
    static const float factors[64] = {1, 2, 3, 4};
    float all_factors[64];
    for (int i = 0; i < 64; i++)
        all_factors[i] = factors[i % 4];
    struct rope_params params = {
        .style = style, .dims = dims, .base = 10000, .freq_factors = position % 2 ? all_factors : NULL, .freq_scale = 0.5};
    float *row = malloc(rope_row_floats(&params) * sizeof *row);
    rope_table_build(&params, position, 1, row);
    uint32_t n = heads * head_dim;
    float *x = exact_floats(n, position + dims, 1.0f);
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    levels[level_count++] = kernels_of_level(ISA_REF);
    float *first = NULL;
    for (uint32_t l = 0; l < level_count; l++) {
        float *y = malloc((n + 1) * sizeof *y);
        memcpy(y, x, n * sizeof *y);
        (style == ROPE_PAIRS ? levels[l]->rope_pairs : levels[l]->rope_neox)(y, heads, head_dim, dims, row);
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < head_dim; i++) {
                double want = (double)x[h * head_dim + i];
                if (i < dims) { // by the definition
                    uint32_t pair = style == ROPE_PAIRS ? i / 2 : i % (dims / 2);
                    uint32_t a = style == ROPE_PAIRS ? 2 * pair : pair, b = style == ROPE_PAIRS ? 2 * pair + 1 : pair + dims / 2;
                    double angle = position * 0.5 / pow(10000, 2.0 * pair / dims) /
                                   (params.freq_factors ? (double)all_factors[pair] : 1);
                    double xa = (double)x[h * head_dim + a], xb = (double)x[h * head_dim + b];
                    want = i == a ? xa * cos(angle) - xb * sin(angle) : xa * sin(angle) + xb * cos(angle);
                }
                if (!(fabs(want - (double)y[h * head_dim + i]) <= 1e-6))
                    fail_msg("rope style %d heads %u dim %u of %u position %u: head %u element %u is %g, expected %g", style, heads,
                             dims, head_dim, position, h, i, (double)y[h * head_dim + i], want);
            }
        if (!first) {
            first = y;
            continue;
        }
        if (levels[l]->level != ISA_REF)
            assert_memory_equal(first, y, n * sizeof *y);
        free(y);
    }
    free(first);
    free(row);
    release(x);
}

static void test_rope(void **state)
{
    static const uint32_t shapes[][3] = {{9, 64, 64}, {1, 128, 128}, {2, 80, 80}, {3, 10, 6},
                                         {1, 2, 2},   {5, 64, 32},   {2, 96, 48}, {4, 36, 34}};
    static const uint32_t positions[] = {0, 1, 77, 8191, 131072};
    for (size_t s = 0; s < ARRAY_COUNT(shapes); s++)
        for (size_t p = 0; p < ARRAY_COUNT(positions); p++) {
            check_rope(ROPE_PAIRS, shapes[s][0], shapes[s][1], shapes[s][2], positions[p]);
            check_rope(ROPE_NEOX, shapes[s][0], shapes[s][1], shapes[s][2], positions[p]);
        }
}

static void test_rope_table_rows(void **state) // a range is the same as its rows one by one
{
    struct rope_params params = {.style = ROPE_PAIRS, .dims = 64, .base = 100000};
    static float range[5 * 128], row[128];
    rope_table_build(&params, 1000, 5, range);
    for (uint32_t i = 0; i < 5; i++) {
        rope_table_build(&params, 1000 + i, 1, row);
        assert_memory_equal(row, range + i * 128, sizeof row);
    }
    params.magnitude = 2;
    rope_table_build(&params, 1000, 1, row);
    assert_true(fabs((double)row[0] - 2 * (double)range[0]) < 1e-6);
}

static void test_argmax(void **state)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    levels[level_count++] = kernels_of_level(ISA_REF);
    for (uint32_t l = 0; l < level_count; l++)
        for (size_t i = 0; i < ARRAY_COUNT(lengths); i++) {
            uint32_t n = lengths[i];
            float *x = exact_floats(n, 4, 1.0f);
            for (uint32_t at = 0; at < n; at += n / 7 + 1) {
                float old = x[at], old_last = x[n - 1];
                x[at] = x[n - 1] = 50.0f;
                assert_int_equal(levels[l]->argmax(x, n), at); // the lower of the tie
                x[at] = at == n - 1 ? 50.0f : NAN;
                assert_int_equal(levels[l]->argmax(x, n), n - 1);
                x[n - 1] = old_last;
                x[at] = old;
            }
            for (uint32_t at = 0; at < n; at++)
                x[at] = -INFINITY;
            assert_int_equal(levels[l]->argmax(x, n), 0);
            for (uint32_t at = 0; at < n; at++)
                x[at] = NAN;
            assert_int_equal(levels[l]->argmax(x, n), 0);
            if (n > 2) {
                x[2] = -INFINITY;
                assert_int_equal(levels[l]->argmax(x, n), 2);
            }
            release(x);
        }
}

static bool same_half(uint16_t a, uint16_t b, uint16_t infinity)
{
    return a == b || ((a & 0x7fff) > infinity && (b & 0x7fff) > infinity);
}

// Every half value there is, and its neighbours and ties in f32.
static void test_conversions(void **state)
{
    const struct kernels *ref = kernels_of_level(ISA_REF), *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    enum { N = 0x10000 };
    uint16_t *half = malloc(N * 2), *got = malloc(N * 2), *want = malloc(N * 2);
    float *wide = malloc(N * 4), *wide_got = malloc(N * 4);
    for (uint32_t i = 0; i < N; i++)
        half[i] = (uint16_t)i;
    for (uint32_t l = 0; l < level_count; l++)
        for (int bf = 0; bf < 2; bf++) {
            (bf ? ref->bf16_to_f32 : ref->f16_to_f32)(half, N, wide);
            (bf ? levels[l]->bf16_to_f32 : levels[l]->f16_to_f32)(half, N, wide_got);
            for (uint32_t i = 0; i < N; i++)
                assert_true(f32_bits(wide[i]) == f32_bits(wide_got[i]) || (isnan(wide[i]) && isnan(wide_got[i])));
            for (int step = -2; step <= 2; step++) {
                static const uint32_t offsets[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001};
                for (size_t o = 0; o < ARRAY_COUNT(offsets); o++) {
                    for (uint32_t i = 0; i < N; i++)
                        wide_got[i] = f32_from_bits(f32_bits(wide[i]) + offsets[o] + (uint32_t)step);
                    (bf ? ref->f32_to_bf16 : ref->f32_to_f16)(wide_got, N, want);
                    (bf ? levels[l]->f32_to_bf16 : levels[l]->f32_to_f16)(wide_got, N - 5, got);
                    for (uint32_t i = 0; i < N - 5; i++)
                        if (!same_half(got[i], want[i], bf ? 0x7f80 : 0x7c00))
                            fail_msg("%s: %a becomes %04x, expected %04x", bf ? "bf16" : "f16", (double)wide_got[i], got[i],
                                     want[i]);
                }
            }
        }
    assert_int_equal(f16_from_float(1.0f), 0x3c00);
    assert_int_equal(f16_from_float(65519.99f), 0x7bff);
    assert_int_equal(f16_from_float(65520.0f), 0x7c00);
    assert_int_equal(f16_from_float(0x1p-25f), 0);
    assert_int_equal(f16_from_float(0x1.8p-25f), 1);
    assert_int_equal(bf16_from_float(0x1.01p0f), 0x3f80);
    assert_int_equal(bf16_from_float(0x1.03p0f), 0x3f82);
    free(half), free(got), free(want), free(wide), free(wide_got);
}

static void test_conversion_tails(void **state)
{
    const struct kernels *levels[ISA_LEVEL_COUNT];
    uint32_t level_count = fast_levels(levels);
    levels[level_count++] = kernels_of_level(ISA_REF);
    for (uint32_t l = 0; l < level_count; l++)
        for (uint32_t n = 0; n < 40; n++) {
            float *x = exact_floats(n, n, 1.0f), back[40 + 1];
            uint16_t *half = malloc(n * 2 + 2);
            half[n] = 0x5555;
            back[n] = 7;
            levels[l]->f32_to_f16(x, n, half);
            levels[l]->f16_to_f32(half, n, back);
            for (uint32_t i = 0; i < n; i++)
                assert_true(fabs((double)back[i] - (double)x[i]) <= fabs((double)x[i]) * 0x1p-11 + 0x1p-25);
            levels[l]->f32_to_bf16(x, n, half);
            levels[l]->bf16_to_f32(half, n, back);
            for (uint32_t i = 0; i < n; i++)
                assert_true(fabs((double)back[i] - (double)x[i]) <= fabs((double)x[i]) * 0x1p-8);
            assert_int_equal(half[n], 0x5555);
            assert_true(back[n] == 7);
            free(half);
            release(x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_extreme_rows),     cmocka_unit_test(test_softmax_sums_to_one),
        cmocka_unit_test(test_rope),        cmocka_unit_test(test_rope_table_rows),  cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_conversions), cmocka_unit_test(test_conversion_tails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

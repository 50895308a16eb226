// test_attention.c: attention through the KV store, against plain sums in double over the rounded K and V, and the promise
// that a row's bits depend on nothing but its own sequence: not on chunks, company, threads, pages, or avx2/avx512.
#include "tests/kernels/kernel_test.h"

#include <float.h>

#include "tests/kernels/attention_rig.h"
#include "tests/unit/sample.h"

// How many of a sequence's positions to try. Under an emulator two blocks and a part of one: tests/arm has hashes
// of longer ones.
static uint32_t tried(uint32_t positions) { return is_emulated() ? MIN(positions, 132u) : positions; }

static void test_against_sums(void **state)
{
    static const struct {
        uint32_t group, head_dim, positions;
        enum kv_type type;
    } cases[] = {
        {1, 64, 520, KV_F16},    {3, 64, 1500, KV_F16}, {4, 128, 520, KV_F16},  {8, 64, 520, KV_F16},   {8, 128, 80, KV_F16},
        {5, 80, 520, KV_F16},    {3, 80, 80, KV_F32},   {1, 16, 520, KV_F32},   {2, 256, 80, KV_F16},   {7, 48, 80, KV_F16},
        {6, 112, 80, KV_F16},    {71, 64, 40, KV_F16},  {4, 64, 520, KV_F32},   {3, 64, 520, KV_BF16},  {1, 48, 80, KV_BF16},
        {1, 64, 600, KV_INT8},   {3, 64, 520, KV_INT8}, {4, 128, 520, KV_INT8}, {8, 80, 80, KV_INT8},   {7, 16, 520, KV_INT8},
        {5, 48, 80, KV_INT8},    {2, 256, 80, KV_INT8}, {1, 64, 600, KV_INT4},  {3, 64, 520, KV_INT4},  {4, 128, 520, KV_INT4},
        {8, 80, 80, KV_INT4},    {6, 16, 520, KV_INT4}, {2, 112, 80, KV_INT4},  {1, 64, 600, KV_INT4X}, {3, 64, 520, KV_INT4X},
        {4, 128, 520, KV_INT4X}, {8, 80, 80, KV_INT4X}, {6, 16, 520, KV_INT4X}, {5, 48, 80, KV_INT4X},
    };
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        if (!in_sample(i, 1, 4))
            continue;
        struct kv_shape shape = shape_of(cases[i].group > 8 ? 1 : 2, cases[i].group, cases[i].head_dim, cases[i].type);
        const uint32_t positions = tried(cases[i].positions);
        struct feed feed = feed_make(&shape, 7, positions, 2, i);
        for (int level = ISA_REF; level < ISA_LEVEL_COUNT; level++) {
            if (!isa_supported((enum isa_level)level) || level == ISA_VNNI)
                continue;
            if (level == ISA_REF && (positions > 600 || !in_sample(i, 5, 16))) { // most of the time would be its
                struct feed brief = feed_make(&shape, 7, MIN(positions, 80u), 2, i);
                feed_alone(&brief, 37, 2, isa_name(ISA_REF));
                check_rows(&brief, isa_name(ISA_REF));
                free(brief.memory);
                continue;
            }
            feed_alone(&feed, 37, 2, isa_name((enum isa_level)level));
            check_rows(&feed, isa_name((enum isa_level)level));
        }
        free(feed.memory);
    }
}

// Whole numbers, whose dot products are exact in f32: logits of ±500000 must still give the right softmax.
static void test_large_logits(void **state)
{
    struct kv_shape shape = shape_of(1, 3, 64, KV_F16);
    struct feed feed = feed_make(&shape, 1, tried(600), 1, 5);
    for (size_t i = 0; i < output_bytes(&feed) / sizeof(float); i++)
        feed.q[i] = roundf(feed.q[i] * 100);
    for (size_t i = 0; i < output_bytes(&feed) / sizeof(float) / 3; i++)
        feed.k[i] = roundf(feed.k[i] * 100);
    feed_alone(&feed, 50, 1, fast_level());
    check_rows(&feed, "large logits");
    free(feed.memory);
}

// Scores and values beyond the range of f32 and f16: results stay finite.
static void test_overflow(void **state)
{
    for (int type = KV_F16; type < KV_TYPE_END; type++)
        for (int level = ISA_REF; level < ISA_LEVEL_COUNT; level++) {
            struct kv_shape shape = shape_of(1, 2, 64, (enum kv_type)type);
            struct feed feed = feed_make(&shape, 1, 70, 1e25f, 6);
            if (!isa_supported((enum isa_level)level)) {
                free(feed.memory);
                continue;
            }
            for (size_t i = 0; i < output_bytes(&feed) / sizeof(float) / 2; i++)
                feed.k[i] = 1e25f * fabsf(feed.k[i]); // one sign: infinities that cancel are NaN by right
            for (size_t i = 0; i < output_bytes(&feed) / sizeof(float); i++)
                feed.q[i] = fabsf(feed.q[i]);
            for (size_t i = 0; i < output_bytes(&feed) / sizeof(float) / 2; i++)
                feed.v[i] *= 1e6f;
            feed_alone(&feed, 70, 1, isa_name((enum isa_level)level));
            for (size_t i = 0; i < output_bytes(&feed) / sizeof(float); i++)
                if (!isfinite(feed.o[i]))
                    fail_msg("type %d level %d: output %zu is %g", type, level, i, (double)feed.o[i]);
            free(feed.memory);
        }
}

// Every level stores the same bits, in its slot and nowhere else; what f16 cannot hold becomes its largest value.
static void test_stored_bits(void **state)
{
    enum { HEAD_DIM = 48, VALUES = HEAD_DIM * KV_TILE, SLOT = 5 };
    static const float hard[] = {0,
                                 -0.0f,
                                 1,
                                 65504,
                                 65519,
                                 65520,
                                 -65520,
                                 1e30f,
                                 -1e30f,
                                 INFINITY,
                                 -INFINITY,
                                 5.9604645e-8f,
                                 2.9802322e-8f,
                                 2.9802326e-8f,
                                 6.1e-5f,
                                 1.00048828125f,
                                 1.00146484375f,
                                 FLT_MIN,
                                 FLT_MAX};
    uint16_t half[2 * VALUES];
    float whole[2 * VALUES], k[HEAD_DIM], v[HEAD_DIM];
    uint64_t seed = 8;
    for (uint32_t i = 0; i < HEAD_DIM; i++) {
        k[i] = i < ARRAY_COUNT(hard) ? hard[i] : random_normal(&seed);
        v[HEAD_DIM - 1 - i] = k[i];
    }
    for (int level = ISA_REF; level < ISA_LEVEL_COUNT; level++) {
        const struct attention_kernels *table = attention_of_level((enum isa_level)level);
        if (!table)
            continue;
        memset(half, 0x55, sizeof half);
        memset(whole, 0x55, sizeof whole);
        table->store(KV_F16, HEAD_DIM, k, v, half, SLOT);
        table->store(KV_F32, HEAD_DIM, k, v, whole, SLOT);
        for (uint32_t i = 0; i < VALUES; i++) {
            bool in_k = i % KV_TILE == SLOT, in_v = i / HEAD_DIM == SLOT;
            float k_value = k[i / KV_TILE], v_value = v[i % HEAD_DIM], untouched;
            memset(&untouched, 0x55, sizeof untouched);
            assert_int_equal(half[i], in_k ? f16_from_float(MAX(-65504.0f, MIN(65504.0f, k_value))) : 0x5555);
            assert_int_equal(half[VALUES + i], in_v ? f16_from_float(MAX(-65504.0f, MIN(65504.0f, v_value))) : 0x5555);
            assert_memory_equal(&whole[i], in_k ? &k_value : &untouched, sizeof untouched);
            assert_memory_equal(&whole[VALUES + i], in_v ? &v_value : &untouched, sizeof untouched);
        }
    }
}

// bf16 and codes: the same bits at every level, in the token's slot and nowhere else, near what was to be stored.
static void test_stored_codes(void **state)
{
    enum { TILE_MAX = KV_TILE * KV_MAX_HEAD_DIM * 8, SLOT = 11 };
    static const float sizes[] = {1, 1e-3f, 3e-7f, 2e-9f, 300, 60000, 1e9f, 0};
    static const uint32_t head_dims[] = {16, 48, 64, 80, 256};
    static unsigned char expected[TILE_MAX], tile[TILE_MAX], other[TILE_MAX];
    float k[KV_MAX_HEAD_DIM], v[KV_MAX_HEAD_DIM];
    uint64_t seed = 9;
    for (int number = KV_BF16; number < KV_TYPE_END; number++)
        for (uint32_t d = 0; d < ARRAY_COUNT(head_dims); d++)
            for (uint32_t size = 0; size < ARRAY_COUNT(sizes); size++) {
                enum kv_type type = (enum kv_type)number;
                uint32_t head_dim = head_dims[d];
                size_t bytes = kv_tile_bytes(head_dim, type);
                for (uint32_t i = 0; i < head_dim; i++) {
                    k[i] = sizes[size] * random_normal(&seed);
                    v[i] = sizes[size] * (random_normal(&seed) + (size % 2 ? 40 : 0));
                }
                if (size == 1)
                    k[3] = INFINITY, v[head_dim - 1] = -INFINITY, k[4] = -0.0f;
                for (int level = ISA_REF; level < ISA_LEVEL_COUNT; level++) {
                    const struct attention_kernels *table = attention_of_level((enum isa_level)level);
                    if (!table)
                        continue;
                    for (uint32_t i = 0; i < TILE_MAX; i++)
                        tile[i] = other[i] = (unsigned char)(i * 7);
                    table->store(type, head_dim, k, v, tile, SLOT);
                    if (level == ISA_REF)
                        memcpy(expected, tile, TILE_MAX);
                    assert_memory_equal(tile, expected, TILE_MAX);
                }
                attend_copy_tokens(type, head_dim, tile, other, SLOT); // changes nothing: the slots below were not touched
                assert_memory_equal(tile, expected, TILE_MAX);
                attend_copy_tokens(type, head_dim, other, tile, KV_TILE);
                assert_memory_equal(other, expected, bytes);
                assert_memory_equal(other + bytes, expected + bytes, TILE_MAX - bytes);
                for (uint32_t i = 0; i < head_dim; i++) {
                    double steps[2] = {0, 0}, most = type == KV_BF16 ? 3.3895e38 : 65504;
                    double values[2] = {tile_k(type, head_dim, tile, SLOT, i, &steps[0]),
                                        tile_v(type, head_dim, tile, SLOT, i, &steps[1])};
                    double wanted[2] = {MAX(-most, MIN(most, (double)k[i])), MAX(-most, MIN(most, (double)v[i]))};
                    for (uint32_t j = 0; j < 2; j++) {
                        double limit = type == KV_BF16 ? fabs(wanted[j]) / 256 : steps[j] * 0.5001;
                        if (!(fabs(values[j] - wanted[j]) <= limit))
                            fail_msg("%s, head_dim %u, %c[%u]: %g is stored as %g", kv_type_name((enum kv_type)number), head_dim,
                                     "kv"[j], i, wanted[j], values[j]);
                    }
                }
            }
}

// A NaN among K or V reaches the rows that see it, and no other.
static void test_nan(void **state)
{
    for (int type = KV_F16; type < KV_TYPE_END; type++)
        for (int level = ISA_REF; level < ISA_LEVEL_COUNT; level++) {
            struct kv_shape shape = shape_of(1, 3, 64, (enum kv_type)type);
            struct feed feed = feed_make(&shape, 1, 70, 1, 16);
            if (isa_supported((enum isa_level)level)) {
                feed.v[(size_t)40 * 64 + 35] = NAN;
                feed_alone(&feed, 70, 1, isa_name((enum isa_level)level));
                for (uint32_t position = 0; position < 70; position++)
                    assert_int_equal(isnan(feed.o[(size_t)position * 3 * 64 + 35]) != 0, position >= 40);
            }
            free(feed.memory);
        }
}

static void test_chunks_and_threads(void **state)
{
    static const struct {
        uint32_t group, head_dim;
        enum kv_type type;
    } cases[] = {{3, 64, KV_F16},  {1, 64, KV_F16},  {8, 80, KV_F16},  {4, 32, KV_F32},  {2, 64, KV_BF16},
                 {3, 64, KV_INT8}, {3, 80, KV_INT4}, {8, 64, KV_INT4}, {3, 64, KV_INT4X}};
    static const uint32_t chunks[] = {1, 7, 333, 1100};
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        if (!in_sample(i, 2, 4))
            continue;
        struct kv_shape shape = shape_of(1, cases[i].group, cases[i].head_dim, cases[i].type);
        struct feed feed = feed_make(&shape, 3, tried(1100), 2, 10 + i);
        feed_alone(&feed, 100, 1, fast_level());
        float *expected = take_outputs(&feed);
        for (uint32_t c = 0; c < ARRAY_COUNT(chunks); c++)
            for (uint32_t threads = 1; threads <= 5; threads += 2) {
                if (threads > 1 && (c > 0 || cases[i].type > KV_F32))
                    continue;
                feed_alone(&feed, chunks[c], threads, fast_level());
                assert_same(&feed, expected, "chunk and thread count");
                memset(feed.o, 0xff, output_bytes(&feed));
            }
        shape.page_tokens = feed.shape.page_tokens = 32;
        feed_alone(&feed, 100, 2, fast_level());
        assert_same(&feed, expected, "pages of 32");
        free(expected);
        free(feed.memory);
    }
}

static void test_levels_agree(void **state)
{
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 11}, head_dims[] = {64, 80, 128};
    if (isa_best() == ISA_AVX2 || isa_best() == ISA_REF) {
        print_message("there is no level beside AVX2 here to compare with\n");
        skip();
    }
    for (uint32_t i = 0; i < ARRAY_COUNT(groups) * 6; i++) {
        if (is_emulated() && !in_sample(i, 1, 5))
            continue;
        struct kv_shape shape =
            shape_of(2, groups[i % ARRAY_COUNT(groups)], head_dims[i % 7 % 3], (enum kv_type)(KV_F16 + i / ARRAY_COUNT(groups)));
        struct feed feed = feed_make(&shape, 3, i % 9 ? 70 : tried(600), 3, 20 + i);
        assert_levels_agree(&feed);
        free(feed.memory);
    }
}

// Checks that bits stay the same beside other sequences, at other positions and chunk sizes, on pages that held NaN.
static void check_company(enum kv_type type)
{
    static const uint32_t lengths[] = {700, 1, 33, 1200, 512}, chunks[] = {40, 1, 5, 300, 1};
    struct kv_shape shape = shape_of(2, 3, 64, type);
    struct feed feeds[5];
    float *expected[5];
    for (uint32_t i = 0; i < 5; i++) {
        feeds[i] = feed_make(&shape, 10 + i, tried(lengths[i]), 2, 30 + i);
        feed_alone(&feeds[i], 64, 1, fast_level());
        expected[i] = take_outputs(&feeds[i]);
    }
    for (uint32_t threads = type == KV_F16 ? 1 : 3; threads <= 3; threads++) {
        struct rig rig = rig_open(&shape, threads, NULL);
        struct feed junk[3];
        uint32_t whole[3] = {512, 512, 512};
        for (uint32_t j = 0; j < 3; j++) {
            junk[j] = feed_make(&shape, 90 + j, tried(2040), 1, 99);
            for (size_t i = 0; i < output_bytes(&junk[j]) / sizeof(float) / 3; i++)
                junk[j].k[i] = junk[j].v[i] = NAN;
        }
        feed_all(&rig, junk, whole, 3);
        for (uint32_t j = 0; j < 3; j++) {
            kv_store_free(rig.store, 90 + j);
            free(junk[j].memory);
        }
        feed_all(&rig, feeds, chunks, 5);
        for (uint32_t i = 0; i < 5; i++) {
            assert_same(&feeds[i], expected[i], "company");
            memset(feeds[i].o, 0xff, output_bytes(&feeds[i]));
        }
        rig_close(&rig);
    }
    for (uint32_t i = 0; i < 5; i++) {
        free(expected[i]);
        free(feeds[i].memory);
    }
}

static void test_company_and_stale_pages(void **state)
{
    for (int type = KV_F16; type < KV_TYPE_END; type++)
        if (in_sample((uint32_t)type, 2, 5))
            check_company((enum kv_type)type);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_sums),
        cmocka_unit_test(test_large_logits),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_stored_bits),
        cmocka_unit_test(test_stored_codes),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_chunks_and_threads),
        cmocka_unit_test(test_company_and_stale_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

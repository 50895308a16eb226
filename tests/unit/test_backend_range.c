// test_backend_range.c: what of a model the CPU backend computes. A range of its layers: stages in a chain give the bits of one backend, take what one
// takes, and a range that the model does not have is refused. The pieces that its architecture names: they are computed, or refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/kv/kv_type.h"
#include "kernels/backend/layer_range.h"
#include "kernels/dispatch/kernels.h"
#include "tests/unit/backend_chain.h"

static struct thread_pool *pool;

static struct backend_config config_of(const struct model *model, enum compute_mode compute)
{
    return (struct backend_config){.model = model,
                                   .compute = compute,
                                   .pool = pool,
                                   .max_rows = CHAIN_ROWS,
                                   .max_batches = 1,
                                   .context_tokens = 256,
                                   .kv_type = 1,
                                   .page_tokens = 16,
                                   .max_sequences = CHAIN_SEQUENCES,
                                   .local_pool_bytes = 1 << 20};
}

// Weights and pages of the stages are those of the whole, but for the matrix that a tied model's first and last stage both need.
static void check_sums(const struct chain *whole, const struct chain *cut, const struct model *model, enum compute_mode compute)
{
    const struct tensor_view *embedding = &model->embedding;
    uint64_t weights = 0, page = 0, twice = 0;

    for (uint32_t i = 0; i < cut->stages; i++) {
        weights += cut->plan[i].weight_bytes;
        page += cut->plan[i].pool_page_bytes;
    }
    if (model->tied && compute == COMPUTE_F32)
        twice = 4ull * embedding->rows * embedding->columns;
    assert_int_equal(page, whole->plan[0].pool_page_bytes);
    if (model->tied && compute == COMPUTE_INT8)
        assert_in_range(weights - whole->plan[0].weight_bytes, 1, embedding->rows * embedding->columns * 2ull);
    else
        assert_int_equal(weights, whole->plan[0].weight_bytes + twice);
}

static void same_in_stages(enum tensor_type type, enum compute_mode compute, bool tied)
{
    static struct chain whole, cut;
    static const uint32_t cuts[][CHAIN_STAGES_MAX - 1] = {{1}, {2}, {4}, {1, 3}, {2, 4}};
    unsigned char *bytes;
    struct model *model = chain_model(type, tied, &bytes);
    const struct backend_config config = config_of(model, compute);

    for (size_t i = 0; i < ARRAY_COUNT(cuts); i++) {
        chain_open(&whole, &backend_cpu, config, NULL, 0);
        chain_open(&cut, &backend_cpu, config, cuts[i], cuts[i][1] ? 2 : 1);
        check_sums(&whole, &cut, model, compute);
        chain_compare(&whole, &cut);
        chain_close(&whole);
        chain_close(&cut);
    }
    model_close(model);
    free(bytes);
}

static void stages_give_the_bits_of_one(void **state)
{
    (void)state;
    for (uint32_t tied = 0; tied < 2; tied++) {
        same_in_stages(TENSOR_Q4_0, COMPUTE_INT8, tied);
        same_in_stages(TENSOR_F16, COMPUTE_INT8, tied);
        same_in_stages(TENSOR_F32, COMPUTE_F32, tied);
    }
}

static void a_range_beyond_the_model_is_refused(void **state)
{
    static const struct {
        uint32_t first, count;
        enum status status;
    } cases[] = {{0, 0, STATUS_OK},
                 {0, 5, STATUS_OK},
                 {4, 0, STATUS_OK},
                 {4, 1, STATUS_OK},
                 {0, 6, STATUS_INVALID_ARGUMENT},
                 {5, 0, STATUS_INVALID_ARGUMENT},
                 {4, 2, STATUS_INVALID_ARGUMENT},
                 {1, UINT32_MAX, STATUS_INVALID_ARGUMENT},
                 {UINT32_MAX, 1, STATUS_INVALID_ARGUMENT}};
    unsigned char *bytes;
    struct model *model = chain_model(TENSOR_F32, true, &bytes);
    struct backend_config config = config_of(model, COMPUTE_AUTO);
    struct backend_plan plan;
    struct backend *backend;
    struct error error;
    (void)state;

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        config.first_layer = cases[i].first;
        config.layer_count = cases[i].count;
        assert_int_equal(backend_cpu.plan(&config, &plan, &error), cases[i].status);
        if (cases[i].status)
            assert_int_equal(backend_cpu.open(&config, &backend, &error), cases[i].status);
    }
    config.first_layer = 4, config.layer_count = 2;
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.text, "tiny.gguf: layers 4 to 5 are asked for, the model has 5");
    model_close(model);
    free(bytes);
}

static void an_architecture_is_its_row(void **state)
{
    struct backend_config config = config_of(NULL, COMPUTE_F32);
    (void)state;
    config.kv_type = KV_F32; // rounded K and V would be apart by more than sums in another order
    chain_compare_archs(&backend_cpu, config, 2e-4f);
}

static void what_a_row_says_is_computed_or_refused(void **state)
{
    (void)state;
    chain_check_refusals(&backend_cpu, config_of(NULL, COMPUTE_AUTO), "on the CPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_bits_of_one), cmocka_unit_test(a_range_beyond_the_model_is_refused),
        cmocka_unit_test(an_architecture_is_its_row), cmocka_unit_test(what_a_row_says_is_computed_or_refused)};
    struct error error;

    assert_always(kernels_init(NULL, &error) == STATUS_OK && thread_pool_open(2, &pool) == STATUS_OK);
    int failed = cmocka_run_group_tests_name("backend range", tests, NULL, NULL);
    thread_pool_close(pool);
    return failed;
}

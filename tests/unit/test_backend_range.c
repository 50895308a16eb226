// test_backend_range.c: what of a model the CPU backend computes. A range of its layers: stages in a chain give the bits of one backend, take what one
// takes, and a range that the model does not have is refused. The pieces that its architecture names: they are computed, or refused.
#include "common/kv/kv_type.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"
#include "tests/cmocka.h"
#include "tests/unit/backend_chain.h"

static struct thread_pool *pool;

// Weights of the stages are those of the whole, but for the matrix that a tied model's first and last stage both need.
static void check_weights(const struct chain *whole, const struct chain *cut, const struct backend_config *config)
{
    const struct tensor_view *embedding = &config->model->embedding;
    const uint64_t values = (uint64_t)embedding->rows * embedding->columns;
    const bool twice = config->model->tied;
    uint64_t weights = 0;

    for (uint32_t i = 0; i < cut->stages; i++)
        weights += cut->plan[i].weight_bytes;
    weights -= whole->plan[0].weight_bytes;
    // A cut segment is two pieces, and each stage has one beside its segments: all are padded.
    const uint64_t padding = (cut->stages - 1) * 2ull * 4096, least = !twice                            ? 0
                                                                      : config->compute == COMPUTE_INT8 ? 1
                                                                                                        : values * sizeof(float);
    assert_in_range(weights, least, (twice && config->compute == COMPUTE_INT8 ? values * 2 : least) + padding);
}

static void stages_give_the_bits_of_one(void **state)
{
    static const chain_cut cuts[] = {{1}, {2}, {4}, {1, 3}, {2, 4}};
    static const struct {
        enum tensor_type type;
        enum compute_mode compute;
    } forms[] = {{TENSOR_Q4_0, COMPUTE_INT8}, {TENSOR_F16, COMPUTE_INT8}, {TENSOR_F32, COMPUTE_F32}};
    struct backend_config config = chain_config(pool);

    for (uint32_t i = 0; i < 2 * ARRAY_COUNT(forms); i++) {
        config.compute = forms[i / 2].compute;
        chain_compare_cuts(&backend_cpu, config, forms[i / 2].type, i % 2, cuts, ARRAY_COUNT(cuts), check_weights);
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
    struct backend_config config = chain_config(pool);
    struct backend_plan plan;
    struct backend *backend;
    struct error error;

    config.model = model;
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
    struct backend_config config = chain_config(pool);
    config.compute = COMPUTE_F32;
    config.kv_type = KV_F32; // rounded K and V would be apart by more than sums in another order
    chain_compare_archs(&backend_cpu, config, 2e-4f);
}

static void what_a_row_says_is_computed_or_refused(void **state)
{
    chain_check_refusals(&backend_cpu, chain_config(pool), "on the CPU");
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

// test_cuda_range.c: the CUDA backend with a range of the model's layers: stages in a chain give the bits of one backend, by graphs and by
// plain launches.
#include "tests/cuda/device_rig.h"
#include "tests/unit/backend_chain.h"

static struct backend_config config_of(const struct model *model)
{
    return (struct backend_config){.model = model,
                                   .pool = rig_pool,
                                   .max_rows = CHAIN_ROWS,
                                   .max_batches = 1,
                                   .context_tokens = 256,
                                   .kv_type = 1,
                                   .page_tokens = GPU_PAGE_TOKENS,
                                   .max_sequences = CHAIN_SEQUENCES,
                                   .local_pool_bytes = 4 << 20};
}

static void same_in_stages(enum tensor_type type, bool tied)
{
    static struct chain whole, cut;
    static const uint32_t cuts[][CHAIN_STAGES_MAX - 1] = {{2}, {1, 4}};
    unsigned char *bytes;
    struct model *model = chain_model(type, tied, &bytes);
    const struct backend_config config = config_of(model);

    for (size_t i = 0; i < ARRAY_COUNT(cuts); i++) {
        uint64_t page = 0;
        chain_open(&whole, fastdecode_device.ops, config, NULL, 0);
        chain_open(&cut, fastdecode_device.ops, config, cuts[i], cuts[i][1] ? 2 : 1);
        for (uint32_t stage = 0; stage < cut.stages; stage++)
            page += cut.plan[stage].pool_page_bytes;
        assert_int_equal(page, whole.plan[0].pool_page_bytes);
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
    same_in_stages(TENSOR_F16, true);
    same_in_stages(TENSOR_Q4_0, false);
}

static void an_architecture_is_its_row(void **state)
{
    (void)state;
    chain_compare_archs(fastdecode_device.ops, config_of(NULL), 0.08f);
    chain_check_refusals(fastdecode_device.ops, config_of(NULL), "on CUDA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stages_give_the_bits_of_one), cmocka_unit_test(an_architecture_is_its_row)};
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("layers of a stage", tests, NULL, NULL)) : 0;
}

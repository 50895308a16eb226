// test_cuda_range.c: the CUDA backend with a range of the model's layers: stages in a chain give the bits of one backend, by graphs and by
// plain launches.
#include "tests/cuda/device_rig.h"
#include "tests/unit/backend_chain.h"

static void stages_give_the_bits_of_one(void **state)
{
    static const chain_cut cuts[] = {{2}, {1, 4}};
    const struct backend_config config = chain_config(rig_pool);

    chain_compare_cuts(fastdecode_device.ops, config, TENSOR_F16, true, cuts, ARRAY_COUNT(cuts), NULL);
    chain_compare_cuts(fastdecode_device.ops, config, TENSOR_Q4_0, false, cuts, ARRAY_COUNT(cuts), NULL);
}

static void an_architecture_is_its_row(void **state)
{
    chain_compare_archs(fastdecode_device.ops, chain_config(rig_pool), 0.08f);
    chain_check_refusals(fastdecode_device.ops, chain_config(rig_pool), "on CUDA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stages_give_the_bits_of_one), cmocka_unit_test(an_architecture_is_its_row)};
    return rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("layers of a stage", tests, NULL, NULL)) : 0;
}

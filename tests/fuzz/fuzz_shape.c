// fuzz_shape.c: a config.json that is read gives a shape whose numbers a plan can use; any other is refused with a reason.
#include <math.h>

#include "common/plan/shape.h"
#include "kernels/quant/tensor_type.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan_shape shape;
    struct error error = {0};
    if (shape_of_config("config.json", (const char *)data, size, TENSOR_Q4_0, &shape, &error))
        return assert_always(error.text[0]), 0;
    assert_always(shape.layers && shape.hidden && shape.heads && shape.kv_heads && shape.vocab);
    assert_always(shape.layer_values >= shape.expert_values && shape.windowed_layers <= shape.layers);
    assert_always(shape.in[0].layer_bytes >= shape.in[0].expert_bytes && shape.in[1].layer_bytes >= shape.in[1].expert_bytes);
    assert_always(isfinite(shape_kv_bytes(&shape, KV_F16)) && shape_kv_bytes(&shape, KV_INT4) > 0);
    assert_always(shape_link_bytes(&shape) > 0 && shape_pair_operations(&shape) > 0);
    return 0;
}

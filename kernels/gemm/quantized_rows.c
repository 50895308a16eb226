// quantized_rows.c: the memory of quantized activations.
#include "kernels/gemm/gemm.h"

#include "common/base/checked.h"

static uint32_t group_count_of(uint32_t k) { return k / PACK_GROUP + (k % PACK_GROUP != 0); }

size_t quantized_rows_bytes(uint32_t row_capacity, uint32_t k)
{
    size_t row_blocks = (size_t)row_capacity / QUANT_BLOCK_ROWS + (row_capacity % QUANT_BLOCK_ROWS != 0);
    size_t blocks, bytes;
    if (!checked_mul_size(row_blocks, group_count_of(k), &blocks) || !checked_mul_size(blocks, sizeof(struct quant_block), &bytes))
        return 0;
    return bytes;
}

void quantized_rows_init(struct quantized_rows *out, void *memory, uint32_t row_capacity, uint32_t k)
{
    assert_always((uintptr_t)memory % PACK_ALIGN == 0);
    *out = (struct quantized_rows){
        .k = k,
        .row_capacity = row_capacity,
        .group_count = group_count_of(k),
        .blocks = memory,
    };
}

// hf_experts.c: the experts of gpt-oss, which lie in a directory in another order than in GGUF. They are read from where they lie
// (kernels/quant/stored_rows.h) under GGUF's names and shapes:
//
//     gate_up_proj           [experts][hidden][2 ffn]          ffn_gate_exps.weight, ffn_up_exps.weight   [experts][ffn][hidden]
//     gate_up_proj_blocks u8 [experts][2 ffn][hidden / 32][16]   or these, with
//     gate_up_proj_scales u8 [experts][2 ffn][hidden / 32]         quantization_config's mxfp4
//     gate_up_proj_bias      [experts][2 ffn]                  ffn_gate_exps.bias, ffn_up_exps.bias       [experts][ffn]
//     down_proj              [experts][ffn][hidden]            ffn_down_exps.weight                       [experts][hidden][ffn]
//     down_proj_blocks, _scales                                  likewise
//     down_proj_bias         [experts][hidden]                 ffn_down_exps.bias, as it is
//
// In the dimension of 2 ffn, gate and up take turns.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/hf_state.h"

enum { BLOCK_VALUES = 32, BLOCK_BYTES = 16, SHAPE_BYTES = 112 };

// What a matrix may lie in. The parts of gate_up_proj, then those of down_proj.
enum { PLAIN, BIAS, BLOCKS, SCALES, PARTS };
static const char *const names[2][PARTS] = {
    {"gate_up_proj", "gate_up_proj_bias", "gate_up_proj_blocks", "gate_up_proj_scales"},
    {"down_proj", "down_proj_bias", "down_proj_blocks", "down_proj_scales"},
};

struct hf_layer_experts {
    struct place {
        const struct safetensor *tensor; // NULL: there is none
        uint32_t piece;
    } of[2][PARTS];
};

bool hf_take_expert(struct hf *hf, uint32_t piece, const struct safetensor *tensor, uint32_t layer, const char *part)
{
    if (!hf->arch->stacked_experts || strncmp(part, "mlp.experts.", 12) != 0)
        return false;
    if (!hf->layer_experts && !(hf->layer_experts = calloc(hf->layers, sizeof *hf->layer_experts))) {
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, NULL, "no memory for the experts of %u layers", hf->layers);
        return true;
    }
    for (uint32_t i = 0; i < 2 * PARTS; i++) {
        struct place *place = &hf->layer_experts[layer].of[i / PARTS][i % PARTS];
        if (strcmp(part + 12, names[i / PARTS][i % PARTS]) != 0)
            continue;
        if (place->tensor)
            hf_fail(hf, STATUS_INVALID_ARGUMENT, hf->shards[piece].name, "tensor '%s' is in %s as well", tensor->name,
                    hf->shards[place->piece].name);
        *place = (struct place){tensor, piece};
        return true;
    }
    return false;
}

// --- what a tensor must be ---

static void refuse(struct hf *hf, const struct place *place, enum status status, const char *reason)
{
    hf_fail(hf, status, hf->shards[place->piece].name, "tensor '%s': %s", place->tensor->name, reason);
}

static int print_shape(char *out, size_t bytes, const uint64_t *shape, uint32_t dim_count)
{
    int at = 0;

    for (uint32_t i = 0; i < dim_count; i++)
        at += snprintf(out + at, bytes - (size_t)at, "%s%" PRIu64, i ? ", " : "[", shape[i]);
    return at + snprintf(out + at, bytes - (size_t)at, "]");
}

// Checks a tensor that is there. bytes: u8, not floats.
static void expect(struct hf *hf, const struct place *place, bool bytes, uint32_t dim_count, const uint64_t *shape)
{
    const struct safetensor *t = place->tensor;
    char reason[2 * SHAPE_BYTES + 32];

    if (!t || hf->status)
        return;
    if (t->is_bytes != bytes)
        refuse(hf, place, STATUS_INVALID_ARGUMENT,
               bytes ? "dtype is a float, expected U8" : "dtype is 'U8', expected F32, F16 or BF16");
    if (t->dim_count == dim_count && memcmp(t->shape, shape, dim_count * sizeof *shape) == 0)
        return;
    int at = snprintf(reason, sizeof reason, "shape is ");
    at += print_shape(reason + at, SHAPE_BYTES, t->shape, t->dim_count);
    at += snprintf(reason + at, sizeof reason - (size_t)at, ", expected ");
    print_shape(reason + at, SHAPE_BYTES, shape, dim_count);
    refuse(hf, place, STATUS_INVALID_ARGUMENT, reason);
}

// A matrix is there in one form: floats, or blocks and scales.
static void check_form(struct hf *hf, const struct place of[PARTS], const char *const name[PARTS])
{
    char reason[160];
    const struct place *blocks = &of[BLOCKS], *scales = &of[SCALES], *either = blocks->tensor ? blocks : scales;

    if (!either->tensor || hf->status)
        return;
    if (of[PLAIN].tensor) {
        snprintf(reason, sizeof reason, "its layer has %s, too: expected one of them", name[PLAIN]);
        refuse(hf, either, STATUS_INVALID_ARGUMENT, reason);
    } else if (!blocks->tensor || !scales->tensor) {
        snprintf(reason, sizeof reason, "its layer has no %s", name[blocks->tensor ? SCALES : BLOCKS]);
        refuse(hf, either, STATUS_INVALID_ARGUMENT, reason);
    } else if (!hf->mxfp4) {
        refuse(hf, either, STATUS_INVALID_ARGUMENT, "config.json has no quantization_config whose quant_method is mxfp4");
    }
}

// inputs, outputs: of one expert, in the file.
static void check_matrix(struct hf *hf, const struct place of[PARTS], const char *const name[PARTS], uint64_t inputs,
                         uint64_t outputs)
{
    const uint64_t experts = hf->experts, groups = inputs / BLOCK_VALUES;

    check_form(hf, of, name);
    expect(hf, &of[PLAIN], false, 3, (const uint64_t[]){experts, inputs, outputs});
    expect(hf, &of[BLOCKS], true, 4, (const uint64_t[]){experts, outputs, groups, BLOCK_BYTES});
    expect(hf, &of[SCALES], true, 3, (const uint64_t[]){experts, outputs, groups});
    expect(hf, &of[BIAS], false, 2, (const uint64_t[]){experts, outputs});
}

// A row of inputs is whole blocks.
static void check_inputs(struct hf *hf, const char *key, uint32_t inputs)
{
    if (hf->mxfp4 && inputs % BLOCK_VALUES != 0)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, "config.json", "key '%s' is %u: with mxfp4 expected a multiple of %d", key, inputs,
                BLOCK_VALUES);
}

// --- what it becomes ---

static const char *name_in_gguf(char *name, uint32_t layer, const char *matrix, const char *kind)
{
    snprintf(name, GGUF_MAX_NAME_BYTES, "blk.%u.ffn_%s_exps.%s", layer, matrix, kind);
    return name;
}

// Every `step`th output of a matrix, from `first` on.
static void put_matrix(struct hf *hf, uint32_t layer, const char *matrix, const struct place of[PARTS], uint32_t inputs,
                       uint32_t outputs, uint32_t first, uint32_t step)
{
    const struct place *values = of[BLOCKS].tensor ? &of[BLOCKS] : &of[PLAIN], *scales = &of[SCALES];
    const uint64_t dims[] = {inputs, outputs, hf->experts}, groups = inputs / BLOCK_VALUES;
    struct stored_rows form = {.columns = inputs, .matrix_rows = outputs, .matrix_count = hf->experts};
    char name[GGUF_MAX_NAME_BYTES];

    if (!values->tensor)
        return;
    form.values_bytes = values->tensor->bytes;
    if (scales->tensor) {
        form.type = TENSOR_MXFP4;
        form.first = first * groups, form.row_step = step * groups, form.column_step = 1;
        form.scales_bytes = scales->tensor->bytes;
    } else {
        form.type = values->tensor->type;
        form.first = first, form.row_step = step, form.column_step = (uint64_t)step * outputs;
    }
    assembly_stored(&hf->assembly, name_in_gguf(name, layer, matrix, "weight"), 3, dims, &form, values->piece,
                    values->tensor->offset, scales->piece, scales->tensor ? scales->tensor->offset : 0);
}

static void put_half_bias(struct hf *hf, uint32_t layer, const char *matrix, const struct place *bias, uint32_t first)
{
    const uint64_t dims[] = {hf->ffn, hf->experts};
    char name[GGUF_MAX_NAME_BYTES];

    if (!bias->tensor)
        return;
    const struct stored_rows form = {.type = bias->tensor->type,
                                     .columns = hf->ffn,
                                     .matrix_rows = hf->experts,
                                     .matrix_count = 1,
                                     .first = first,
                                     .row_step = 2 * (uint64_t)hf->ffn,
                                     .column_step = 2,
                                     .values_bytes = bias->tensor->bytes};
    assembly_stored(&hf->assembly, name_in_gguf(name, layer, matrix, "bias"), 2, dims, &form, bias->piece, bias->tensor->offset, 0,
                    0);
}

static void put_layer(struct hf *hf, uint32_t layer, const struct hf_layer_experts *e)
{
    const struct place *gate_up = e->of[0], *down = e->of[1];
    const uint64_t dims[] = {hf->hidden, hf->experts};
    char name[GGUF_MAX_NAME_BYTES];

    put_matrix(hf, layer, "gate", gate_up, hf->hidden, hf->ffn, 0, 2);
    put_matrix(hf, layer, "up", gate_up, hf->hidden, hf->ffn, 1, 2);
    put_half_bias(hf, layer, "gate", &gate_up[BIAS], 0);
    put_half_bias(hf, layer, "up", &gate_up[BIAS], 1);
    put_matrix(hf, layer, "down", down, hf->ffn, hf->hidden, 0, 1);
    if (down[BIAS].tensor) {
        name_in_gguf(name, layer, "down", "bias");
        assembly_tensor(&hf->assembly, name, strlen(name), down[BIAS].tensor->type, 2, dims, down[BIAS].piece,
                        down[BIAS].tensor->offset);
    }
}

void hf_put_experts(struct hf *hf)
{
    if (!hf->layer_experts)
        return;
    check_inputs(hf, "hidden_size", hf->hidden);
    check_inputs(hf, "intermediate_size", hf->ffn);
    for (uint32_t layer = 0; layer < hf->layers && !hf->status; layer++) {
        const struct hf_layer_experts *e = &hf->layer_experts[layer];
        check_matrix(hf, e->of[0], names[0], hf->hidden, 2 * (uint64_t)hf->ffn);
        check_matrix(hf, e->of[1], names[1], hf->ffn, hf->hidden);
        if (!hf->status)
            put_layer(hf, layer, e);
    }
}

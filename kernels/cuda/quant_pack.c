// quant_pack.c: GGUF's blocks into the tiles that quant.h describes, a group of a row at a time.
#include "kernels/cuda/quant.h"

#include <string.h>

#include "common/base/checked.h"
#include "common/base/status.h"
#include "kernels/quant/pack_source.h"

enum { G_OF_TILE = 8, LANES = 32, ALIGN = 128 /* bytes: a line of the device's caches */ };

_Static_assert(GPU_GROUP_INPUTS == PACK_GROUP && GPU_SUPER_INPUTS == PACK_SUPER, "groups are those of kernels/quant");

enum gpu_form gpu_form_of(uint32_t source_type)
{
    const struct pack_source *source = pack_source_find(source_type);
    if (!source || !source->read)
        return GPU_WIDE;
    if (source->layout == PACK_S8_F32 || (pack_layout_has_halves(source->layout) && source->minimum))
        return GPU_WIDE;
    if (pack_layout_has_halves(source->layout) || (source->layout == PACK_S8 && source->super && !source->minimum))
        return GPU_S8_HALVES;
    if (source->layout == PACK_U4)
        return source->super ? GPU_U4_SUPER : source->minimum ? GPU_U4_MIN : GPU_U4;
    return source->super ? GPU_S8_SUPER : source->minimum ? GPU_S8_MIN : GPU_S8;
}

void gpu_quant_plan(enum gpu_form form, uint32_t outputs, uint32_t inputs, struct gpu_quant *out)
{
    const uint32_t steps = (inputs + GPU_STEP_INPUTS - 1) / GPU_STEP_INPUTS,
                   supers = (inputs + GPU_SUPER_INPUTS - 1) / GPU_SUPER_INPUTS;

    assert_always(form != GPU_WIDE && form < GPU_FORMS && outputs && inputs && inputs % GPU_GROUP_INPUTS == 0);
    *out = (struct gpu_quant){.form = form, .outputs = outputs, .inputs = inputs, .steps = steps};
    out->tiles = (outputs + GPU_TILE_OUTPUTS - 1) / GPU_TILE_OUTPUTS;
    out->scale_offset = steps * LANES * (gpu_form_bits(form) == 4 ? 16 : 32);
    out->super_offset = out->scale_offset + steps * G_OF_TILE * gpu_form_scale_bytes(form);
    out->tile_bytes = (out->super_offset + supers * G_OF_TILE * gpu_form_super_bytes(form) + ALIGN - 1) / ALIGN * ALIGN;
}

static void put_u16(uint8_t *at, uint16_t value) { memcpy(at, &value, sizeof value); }

// Scales of group `group` of a step; output 0: that of lanes' g, 1: g + 8.
static void pack_scales(const struct gpu_quant *quant, uint32_t step, uint32_t group, uint32_t g, uint32_t output,
                        const struct pack_group *from, uint8_t *tile)
{
    const uint32_t at = group * 2 + output;
    uint8_t *scales = tile + quant->scale_offset + (step * G_OF_TILE + g) * gpu_form_scale_bytes(quant->form);

    if (!gpu_form_has_super(quant->form)) {
        put_u16(scales + at * 2, from->scale);
        if (gpu_form_has_minimum(quant->form))
            put_u16(scales + 8 + at * 2, from->minimum);
        return;
    }
    const uint32_t super_at = step / (GPU_SUPER_INPUTS / GPU_STEP_INPUTS) * G_OF_TILE + g;
    uint8_t *super = tile + quant->super_offset + super_at * gpu_form_super_bytes(quant->form);
    put_u16(super + output * 2, from->scale);
    if (quant->form == GPU_S8_HALVES) {
        for (uint32_t half = 0; half < 2; half++)
            scales[at * 2 + half] = (uint8_t)(from->small_scale[half] + 128);
        return;
    }
    put_u16(super + 4 + output * 2, from->minimum);
    scales[at] = (uint8_t)from->small_scale[0];
    scales[4 + at] = from->small_minimum[0];
}

static void pack_quants(const struct gpu_quant *quant, uint32_t step, uint32_t group, uint32_t g, uint32_t output, const uint8_t *q,
                        uint8_t *tile)
{
    static const uint8_t order[8] = {0, 2, 4, 6, 1, 3, 5, 7}; // of inputs in a word of nibbles
    for (uint32_t t = 0; t < 4; t++) {
        const uint32_t lane = g * 4 + t;
        if (gpu_form_bits(quant->form) == 4) {
            uint32_t word = 0;
            for (uint32_t i = 0; i < 8; i++)
                word |= (uint32_t)q[t * 8 + order[i]] << 4 * i;
            memcpy(tile + (((size_t)step * LANES + lane) * 4 + group * 2 + output) * 4, &word, 4);
            continue;
        }
        uint8_t *words = tile + ((((size_t)step * 2 + group) * LANES + lane) * 2 + output) * 8;
        bool halves = quant->form == GPU_S8_HALVES;
        memcpy(words, q + (halves ? t * 4 : t * 8), 4);
        memcpy(words + 4, q + (halves ? 16 + t * 4 : t * 8 + 4), 4);
    }
}

void gpu_quant_pack_tile(const struct gpu_quant *quant, uint32_t source_type, const void *rows, uint64_t row_bytes, uint32_t count,
                         void *tile)
{
    const struct pack_source *source = pack_source_find(source_type);
    const struct tensor_type_info *info = tensor_type_info(source_type);
    const uint32_t groups_a_block = info->block_values / PACK_GROUP;

    assert_always(source && source->read && gpu_form_of(source_type) == quant->form && count <= GPU_TILE_OUTPUTS);
    memset(tile, 0, quant->tile_bytes);
    for (uint32_t row = 0; row < count; row++) {
        const uint8_t *blocks = (const uint8_t *)rows + row * row_bytes;
        for (uint32_t i = 0; i < quant->inputs / PACK_GROUP; i++) {
            struct pack_group group = {0};
            source->read(blocks + (size_t)(i / groups_a_block) * info->block_bytes, i % groups_a_block, &group);
            if (source->layout == PACK_U4_HALVES) // value + 8, to value + 128
                for (uint32_t n = 0; n < PACK_GROUP; n++)
                    group.q[n] = (uint8_t)(group.q[n] + 128 - 8);
            pack_scales(quant, i / 2, i % 2, row % 8, row / 8, &group, tile);
            pack_quants(quant, i / 2, i % 2, row % 8, row / 8, group.q, tile);
        }
    }
}

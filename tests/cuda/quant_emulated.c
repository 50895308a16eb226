/* quant_emulated.c: quant.cu as plain loops, for the shared object that meshes of the tests open: there the kernels
 * themselves, thread by thread, would take seconds a token. Their own tests (test_cuda_quant.c, and the loaded models' there) have them.
 * It reads the layout by what quant.h says of it, a second reading beside the kernels' own.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/status.h"
#include "kernels/cuda/quant.h"
#include "kernels/dispatch/kernels.h"
#include "kernels/simd/half.h"
#include "tests/cuda/emulated_dot.h"

static float f16_at(const unsigned char *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return f16_to_float(bits);
}

/* Weight (row, input) of a matrix. */
static float weight(const struct gpu_quant *quant, uint32_t row, uint32_t input)
{
    static const unsigned nibble[8] = {0, 4, 1, 5, 2, 6, 3, 7}; /* where input i of eight is */
    const unsigned char *tile = (const unsigned char *)quant->data + row / 16 * quant->tile_bytes;
    const uint32_t step = input / 64, group = input / 32 % 2, i = input % 32, g = row % 8, o = row / 8 % 2;
    const unsigned char *scales = tile + quant->scale_offset;
    bool halves = quant->form == GPU_S8_HALVES, super = halves || quant->form == GPU_U4_SUPER || quant->form == GPU_S8_SUPER;
    bool minimum = quant->form == GPU_U4_MIN || quant->form == GPU_S8_MIN;
    uint32_t t = halves ? i % 16 / 4 : i / 8, at = halves ? i / 16 * 4 + i % 4 : i % 8, lane = 4 * g + t;
    int q = quant->form <= GPU_U4_SUPER
                ? tile[(((step * 32 + lane) * 2 + group) * 2 + o) * 4 + nibble[at] / 2] >> nibble[at] % 2 * 4 & 15
                : tile[(((step * 2 + group) * 32 + lane) * 2 + o) * 8 + at] - 128;

    q -= quant->form == GPU_U4 ? 8 : 0;
    if (!super) {
        scales += (step * 8 + g) * (minimum ? 16 : 8) + (group * 2 + o) * 2;
        float product = f16_at(scales) * (float)q;
        return minimum ? product + f16_at(scales + 8) : product;
    }
    const unsigned char *of_super = tile + quant->super_offset + (input / 256 * 8 + g) * (halves ? 4 : 8) + o * 2;
    scales += (step * 8 + g) * 8;
    if (halves)
        return f16_at(of_super) * (float)(scales[(group * 2 + o) * 2 + i / 16] - 128) * (float)q;
    return f16_at(of_super) * (float)scales[group * 2 + o] * (float)q - f16_at(of_super + 4) * (float)scales[4 + group * 2 + o];
}

static uint16_t narrow(enum gpu_type type, float value) { return type == GPU_F16 ? f16_from_float(value) : bf16_from_float(value); }

static float widen(enum gpu_type type, uint16_t value) { return type == GPU_F16 ? f16_to_float(value) : bf16_to_float(value); }

enum { MATRICES_MAX = 4096 };
static struct {
    const void *data;
    enum gpu_type type;
    unsigned char *held; /* what the matrix was */
    float *values;
} known[MATRICES_MAX];

/* A matrix as f32, found once for what lies there: weights that do not stay on the device change in their slot. Its values are those of
 * the wide type, as both the product and what is expanded for more rows have them. */
static const float *values_of(const struct gpu_quant *quant, enum gpu_type type)
{
    const size_t bytes = quant->tiles * quant->tile_bytes;
    uint32_t i = 0;
    while (i < MATRICES_MAX && known[i].data && (known[i].data != quant->data || known[i].type != type))
        i++;
    assert_always(i < MATRICES_MAX);
    if (known[i].data && memcmp(known[i].held, quant->data, bytes) == 0)
        return known[i].values;
    free(known[i].values), free(known[i].held);
    float *values = malloc((size_t)quant->outputs * quant->inputs * sizeof *values);
    known[i].held = malloc(bytes);
    assert_always(values && known[i].held);
    memcpy(known[i].held, quant->data, bytes);
    for (size_t at = 0; at < (size_t)quant->outputs * quant->inputs; at++)
        values[at] = widen(type, narrow(type, weight(quant, (uint32_t)(at / quant->inputs), (uint32_t)(at % quant->inputs))));
    known[i].data = quant->data;
    known[i].type = type;
    return known[i].values = values;
}

struct work {
    enum gpu_type type;
    struct gpu_quant quant;
    struct gpu_quant_product product;
    const uint32_t *token;
    uint32_t first, count;
    void *out;
};

static void multiply(void *arg)
{
    const struct work *work = arg;
    const struct gpu_quant_product *p = &work->product;
    const uint32_t inputs = work->quant.inputs, outputs = work->quant.outputs;
    const float *w = values_of(&work->quant, work->type);
    float *x = malloc((size_t)p->rows * inputs * sizeof *x);

    assert_always(x);
    for (size_t i = 0; i < (size_t)p->rows * inputs; i++)
        x[i] = widen(work->type, ((const uint16_t *)p->x)[i]);
    for (size_t o = 0; o < outputs; o++)
        for (size_t row = 0; row < p->rows; row++) {
            float sum = emulated_dot(w + o * inputs, x + row * inputs, inputs);
            size_t at = row * p->y_stride + o;
            if (p->y_wide)
                ((uint16_t *)p->y)[at] = narrow(work->type, sum);
            else
                ((float *)p->y)[at] = p->add ? ((float *)p->y)[at] + sum : sum;
        }
    free(x);
}

static void expand(void *arg)
{
    const struct work *work = arg;
    const uint32_t inputs = work->quant.inputs;
    const float *from = values_of(&work->quant, work->type) + (size_t)work->first * inputs;
    for (uint32_t row = 0; row < work->count; row++)
        (work->type == GPU_F16 ? kernels->f32_to_f16 : kernels->f32_to_bf16)(from + (size_t)row * inputs, inputs,
                                                                             (uint16_t *)work->out + (size_t)row * inputs);
}

static void embed(void *arg)
{
    const struct work *work = arg;
    const uint32_t inputs = work->quant.inputs;
    for (uint32_t row = 0; row < work->count; row++)
        for (uint32_t i = 0; i < inputs; i++)
            ((float *)work->out)[(size_t)row * inputs + i] = weight(&work->quant, work->token[row], i);
}

void gpu_quant_multiply(enum gpu_type type, const struct gpu_quant *quant, const struct gpu_quant_product *product,
                        cudaStream_t stream)
{
    const struct work work = {.type = type, .quant = *quant, .product = *product};
    emulate_queue(stream, multiply, &work, sizeof work, quant->tiles * quant->tile_bytes);
}

void gpu_quant_expand(enum gpu_type type, const struct gpu_quant *quant, uint32_t first, uint32_t count, void *out,
                      cudaStream_t stream)
{
    const struct work work = {.type = type, .quant = *quant, .first = first, .count = count, .out = out};
    emulate_queue(stream, expand, &work, sizeof work,
                  quant->tiles * quant->tile_bytes / quant->outputs * count + (size_t)count * quant->inputs * sizeof(uint16_t));
}

void gpu_quant_embed(const struct gpu_quant *quant, const uint32_t *token, uint32_t rows, float *x, cudaStream_t stream)
{
    const struct work work = {.quant = *quant, .token = token, .count = rows, .out = x};
    emulate_queue(stream, embed, &work, sizeof work, (size_t)rows * quant->inputs);
}

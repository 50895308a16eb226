// rope_table.c: cosines and sines of rotary positions, in double, rounded to f32 once.
#include <math.h>

#include "common/base/status.h"
#include "kernels/norm_rope/norm_rope.h"

void rope_table_build(const struct rope_params *params, uint32_t position_begin, uint32_t count, float *table)
{
    assert_always(params->dims % 2 == 0);
    uint32_t dims = params->dims, half = dims / 2;
    double freq_scale = params->freq_scale != 0 ? params->freq_scale : 1;
    double magnitude = params->magnitude != 0 ? params->magnitude : 1;
    for (uint32_t i = 0; i < half; i++) {
        double frequency = pow(params->base, -2.0 * i / dims) * freq_scale;
        if (params->freq_factors)
            frequency /= (double)params->freq_factors[i];
        uint32_t first = params->style == ROPE_PAIRS ? 2 * i : i;
        uint32_t second = params->style == ROPE_PAIRS ? 2 * i + 1 : i + half;
        for (uint32_t p = 0; p < count; p++) {
            double angle = ((double)position_begin + p) * frequency;
            float *cosines = table + (size_t)p * 2 * dims, *sines = cosines + dims;
            cosines[first] = cosines[second] = (float)(cos(angle) * magnitude);
            sines[second] = (float)(sin(angle) * magnitude);
            sines[first] = -sines[second];
        }
    }
}

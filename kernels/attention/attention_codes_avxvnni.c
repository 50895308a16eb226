// attention_codes_avxvnni.c: attention_lanes.h built for AVX2 with AVX-VNNI: K and V as codes. Other types do not use AVX-VNNI.
#define NAME(op) op##_avxvnni
#define CODES
#include "kernels/attention/attention_lanes.h"

void attend_range_avxvnni(const struct attend_range *range)
{
    if (has_codes(range->type))
        attend_codes_avxvnni(range);
    else
        attend_range_avx2(range);
}

// attention_codes_vnni.c: attention_lanes.h built for AVX-512 with VNNI: K and V as codes. Other types do not use VNNI.
#define NAME(op) op##_vnni
#define CODES
#include "kernels/attention/attention_lanes.h"

void attend_range_vnni(const struct attend_range *range)
{
    if (has_codes(range->type))
        attend_codes_vnni(range);
    else
        attend_range_avx512(range);
}

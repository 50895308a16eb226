// attention_codes_i8mm.c: attention_lanes.h built for NEON with products of unsigned with signed bytes: K and V as codes. Other types do not
// use them.
#define NAME(op) op##_i8mm
#define CODES
#include "kernels/attention/attention_lanes.h"

void attend_range_i8mm(const struct attend_range *range)
{
    if (has_codes(range->type))
        attend_codes_i8mm(range);
    else
        attend_range_neon(range);
}

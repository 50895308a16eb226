// attention_codes_dotprod.c: attention_lanes.h built for NEON with products of four signed bytes: K and V as codes. Other types do not use them.
#define NAME(op) op##_dotprod
#define CODES
#include "kernels/attention/attention_lanes.h"

void attend_range_dotprod(const struct attend_range *range)
{
    if (has_codes(range->type))
        attend_codes_dotprod(range);
    else
        attend_range_neon(range);
}

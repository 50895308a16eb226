// names.c: see names.h.
#include "services/scheduler/names.h"

uint32_t names_choose(const struct names_place *places, uint32_t count, uint32_t most, uint64_t now_us)
{
    uint32_t oldest = NAMES_NO_PLACE;

    for (uint32_t i = 0; i < count; i++)
        if (places[i].is_free && (oldest == NAMES_NO_PLACE || places[i].heard_us < places[oldest].heard_us))
            oldest = i;
    const bool is_long_gone = oldest != NAMES_NO_PLACE && now_us - places[oldest].heard_us > NAMES_KEPT_US;
    return is_long_gone || count == most ? oldest : count;
}

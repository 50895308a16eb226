// weight_tiers.c: see weight_tiers.h.
#include "kernels/backend/weight_tiers.h"

#include "common/base/checked.h"

// Fills in what a number of streamed segments comes to.
static void count_up(const uint64_t *segment_bytes, uint64_t always_bytes, struct weight_tiers *tiers)
{
    tiers->slot_bytes = tiers->streamed_bytes = 0;
    tiers->resident_bytes = always_bytes;
    for (uint32_t s = 0; s < tiers->segment_count; s++) {
        if (!weight_tiers_streams(tiers, s)) {
            tiers->resident_bytes += segment_bytes[s];
            continue;
        }
        tiers->streamed_bytes += segment_bytes[s];
        tiers->slot_bytes = MAX(tiers->slot_bytes, segment_bytes[s]);
    }
}

enum status weight_tiers_choose(const uint64_t *segment_bytes, uint32_t segment_count, uint64_t always_bytes, uint64_t memory_bytes,
                                struct weight_tiers *out, struct error *error)
{
    struct weight_tiers tiers = {.segment_count = segment_count};
    uint64_t least = UINT64_MAX;

    count_up(segment_bytes, always_bytes, &tiers);
    if (weight_tiers_bytes(&tiers) <= memory_bytes) {
        *out = tiers;
        return STATUS_OK;
    }
    for (tiers.slots = WEIGHT_SLOTS_MAX; tiers.slots >= WEIGHT_SLOTS_MIN; tiers.slots--)
        for (tiers.streamed_count = tiers.slots + 1; tiers.streamed_count <= segment_count; tiers.streamed_count++) {
            count_up(segment_bytes, always_bytes, &tiers);
            least = MIN(least, weight_tiers_bytes(&tiers));
            if (weight_tiers_bytes(&tiers) <= memory_bytes) {
                *out = tiers;
                return STATUS_OK;
            }
        }
    tiers = (struct weight_tiers){.segment_count = segment_count}; // a model of few layers has nothing to gain by it
    count_up(segment_bytes, always_bytes, &tiers);
    least = MIN(least, weight_tiers_bytes(&tiers));
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "the weights need %.1f MiB of memory even if all layers are fetched anew each step, there are %.1f MiB for them",
        (double)least / 1048576, (double)memory_bytes / 1048576);
}

// offload.c: tries blocks and tiers and keeps the best.
#include "common/plan/offload.h"

#include <stdio.h>

#include "common/base/checked.h"
#include "common/plan/offload_internal.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define TIE 1e-4 // blocks whose rates differ by less are equal, and the smaller is taken

enum { SMALL_BATCH = 8, BATCH_STEP = 16 }; // batches tried: 1 to 8, then multiples of 16

const char *offload_phase_bound_name(const struct offload_phase *phase)
{
    static const char *const names[OFFLOAD_LANES] = {"compute", "copy in", "copy out", "disk read", "disk write"};
    return phase->bound_by == OFFLOAD_COMPUTE && phase->attention ? "attention" : names[phase->bound_by];
}

const char *offload_bound_name(const struct offload_plan *plan)
{
    return offload_phase_bound_name(plan->decode_bound ? &plan->decode : &plan->prompts);
}

// --- the search -------------------------------------------------------------------------------------------------------

static uint32_t next_batch(uint32_t batch)
{
    return batch < SMALL_BATCH ? batch + 1 : batch / BATCH_STEP * BATCH_STEP + BATCH_STEP;
}

static bool is_better(const struct offload_plan *plan, const struct offload_plan *best)
{
    return best->gpu_batch == 0 || plan->tokens_per_second > best->tokens_per_second * (1 + TIE);
}

// Tries all batches per block of one batch size, with nothing on tiers beyond `last`.
static void try_batch(const struct offload_request *r, uint32_t batch, enum offload_tier last, struct offload_plan *best)
{
    uint32_t from = r->gpu_batches ? r->gpu_batches : 1, to = r->gpu_batches ? r->gpu_batches : OFFLOAD_BATCHES;
    bool fixed = r->gpu_batch && r->gpu_batches;

    for (uint32_t batches = from; batches <= to; batches++) {
        struct offload_model model;
        struct offload_plan plan;
        if (!fixed && (uint64_t)batch * batches * r->prompt_tokens > r->block_tokens && batch * batches > 1)
            break;
        offload_model_make(r, batch, batches, &model);
        if (!offload_solve(&model, last, false, &plan))
            break; // a larger block does not fit either
        if (is_better(&plan, best))
            *best = plan;
    }
}

// Finds the best block with nothing on tiers beyond `last`; gpu_batch 0 if none fits.
static struct offload_plan best_within(const struct offload_request *r, enum offload_tier last)
{
    struct offload_plan best = {.gpu_batch = 0};

    if (r->gpu_batch)
        try_batch(r, r->gpu_batch, last, &best);
    for (uint32_t batch = 1; !r->gpu_batch && batch <= OFFLOAD_BATCH_MAX; batch = next_batch(batch))
        try_batch(r, batch, last, &best);
    return best;
}

// --- what is wrong ----------------------------------------------------------------------------------------------------

static enum status check(const struct offload_request *r, struct error *error)
{
    const struct hardware *h = r->device;

    if (r->prompt_tokens == 0 || r->generated_tokens == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--prompt and --gen must be at least 1 for --offload");
    if (r->disk_bytes && h->offload.disk_read_gb_per_second == 0 && r->disk_read_mb_per_second == 0)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "%s: its file says no disk_read_gb_per_second: give --disk-read-mbs (fio or `dd iflag=direct` measures it)", h->name);
    if (r->disk_bytes && !r->host_bytes && h->offload.copy_in_gb_per_second != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--disk-memory without --host-memory: what is read passes through the host");
    if (r->workers && r->link->link_gb_per_second == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s is no link: its file says no link_gb_per_second", r->link->name);
    return STATUS_OK;
}

static enum status refuse(const struct offload_request *r, struct error *error)
{
    struct offload_model m;
    uint32_t batch = r->gpu_batch ? r->gpu_batch : 1, batches = r->gpu_batches ? r->gpu_batches : 1;

    offload_model_make(r, batch, batches, &m);
    double weights = m.memory[OFFLOAD_DISK][OFFLOAD_DECODE].by[OFFLOAD_WD];
    double kv = m.memory[OFFLOAD_DISK][OFFLOAD_DECODE].by[OFFLOAD_CD];
    if (m.worker_bytes > m.worker_limit)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                         "KV of a block of %u x %u takes %.1f GiB of a worker, which has %.1f: more --workers", batch, batches,
                         m.worker_bytes / GIB, m.worker_limit / GIB);
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "%s: weights take %.1f GiB and KV of a block of %u x %u %.1f GiB; usable are %.1f GiB of the device, %.1f of the host and "
        "%.1f of disk: more --host-memory or --disk-memory, or --compress",
        r->shape->name, weights / GIB, batch, batches, kv / GIB, m.limits[OFFLOAD_DEVICE] / GIB, m.limits[OFFLOAD_HOST] / GIB,
        m.limits[OFFLOAD_DISK] / GIB);
}

enum status offload_plan_make(const struct offload_request *r, struct offload_plan *out, struct error *error)
{
    struct offload_plan best = {.gpu_batch = 0};
    struct offload_model model;
    enum offload_tier last = OFFLOAD_DEVICE;
    enum status status = check(r, error);

    if (status)
        return status;
    for (int tier = OFFLOAD_DEVICE; tier < OFFLOAD_TIERS; tier++) {
        struct offload_plan plan = best_within(r, (enum offload_tier)tier);
        if (plan.gpu_batch && (!best.gpu_batch || plan.tokens_per_second > OFFLOAD_GAIN * best.tokens_per_second)) {
            best = plan;
            last = (enum offload_tier)tier;
        }
    }
    if (!best.gpu_batch)
        return refuse(r, error);
    offload_model_make(r, best.gpu_batch, best.gpu_batches, &model);
    *out = best;
    if (!offload_solve(&model, last, true, out))
        return error_set(error, STATUS_INTERNAL, "the linear program of %u x %u was solved once and not again", best.gpu_batch,
                         best.gpu_batches);
    return STATUS_OK;
}

// node_scheduler.c: a scheduler as a node.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/scheduler/scheduler.h"
#include "tests/sim/check.h"
#include "tests/sim/clients.h"
#include "tests/sim/services.h"

static enum status start(struct node *node, struct error *error)
{
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);

    if (!scheduler)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory");
    node->service = scheduler;
    scheduler->settings = (struct scheduler_settings){.listen = node->address,
                                                      .otlp_endpoint = "none",
                                                      .max_queue = mesh_settings.max_queue,
                                                      .batch_queue = mesh_settings.max_queue,
                                                      .max_batch = mesh_settings.max_batch,
                                                      .mini_batches = mesh_settings.mini_batches,
                                                      .chunk = mesh_settings.chunk,
                                                      .prefix_cache = mesh_settings.prefix_cache,
                                                      .draft_tokens = mesh_settings.draft_tokens,
                                                      .worker_timeout_ms = 2000};
    scheduler->settings.placement = sched_placement_named("auto");
    scheduler->settings.micro_batch = sched_micro_batch_named("auto");
    if (sched_admission_choose("auto", 0, &scheduler->settings.admission, error))
        return error->status;
    return scheduler_open(scheduler, error);
}

static enum status turn(struct node *node, bool *ends, struct error *error)
{
    (void)ends, (void)error;
    scheduler_turn(node->service, UINT64_MAX);
    return STATUS_OK;
}

static void finish(struct node *node)
{
    scheduler_close(node->service);
    free(node->service);
}

static bool rests(const struct node *node, char *out, size_t out_bytes)
{
    const struct scheduler *scheduler = node->service;
    struct sched_stats stats;

    REST(scheduler->core.sched, "the scheduler has no model");
    sched_get_stats(scheduler->core.sched, &stats);
    REST(!stats.running && !stats.waiting && !stats.retiring, "sequences run (%u), wait (%u) or retire (%u)", stats.running,
         stats.waiting, stats.retiring);
    REST(!stats.steps_in_flight, "%u steps are in flight", stats.steps_in_flight);
    REST(!token_logs_count(scheduler->sequences.logs), "%u token logs are left", token_logs_count(scheduler->sequences.logs));
    REST(!scheduler->frees.waiting && !scheduler->frees.unclaimed, "pages wait to be freed");
    REST(!scheduler->claims.settling_count, "sequences wait for their places");
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        REST(!scheduler->flights.of[i].used, "a step is in flight");
    for (uint32_t i = 0; i < MOVES_MAX; i++)
        REST(!scheduler->moves.of[i].used, "a hand-over is under way");
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        REST(!scheduler->places.of[i].frees.asked, "a place is asked to free pages");
    return true;
}

// When each place came up, as seen from outside: steps that were sent before that have lost their rows there.
static struct {
    uint32_t starts; // of the scheduler that is meant
    uint32_t stay[SCHED_PLACES_MAX];
    uint64_t since_us[SCHED_PLACES_MAX];
    bool claimed[SCHED_PLACES_MAX]; // until claims are settled and freed: one for which the ledger has no room is not in it
    uint64_t s_part_us;             // when its s-part was up for the first time; 0: not yet
} seen;

static void look_at_places(const struct node *node, const struct scheduler *scheduler)
{
    if (seen.starts != node->starts)
        memset(&seen, 0, sizeof seen);
    seen.starts = node->starts;
    if (!seen.s_part_us && scheduler->s_part.member.up)
        seen.s_part_us = node->now_ns / 1000;
    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        const uint32_t stay = 2 * scheduler->places.of[i].member->stay + scheduler->places.of[i].member->up;
        const bool changed = stay != seen.stay[i]; // up again perhaps, with claims that were reclaimed in the same turn
        if (changed)
            seen.since_us[i] = node->now_ns / 1000;
        seen.stay[i] = stay;
        const struct place *place = &scheduler->places.of[i];
        const bool frees = place->frees.to_free.head || place->frees.freeing.head;
        seen.claimed[i] = scheduler->claims.held_count || ((seen.claimed[i] || changed) && frees);
    }
}

// The linker puts these before the scheduler's own. What a request holds that was accepted is not to be freed before its gateway can have come
// again, unless a place is full: the model may take long to load, so the time counts from then.
bool __real_places_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool keep_sampler);
bool __wrap_places_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool keep_sampler);
bool __wrap_places_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool keep_sampler)
{
    const uint64_t since_us = seen.s_part_us ? world.current->now_ns / 1000 - seen.s_part_us : 0;

    if (!claims_may_come(&scheduler->claims, world.current->now_ns / 1000) && since_us < CLAIM_US - 1000000 &&
        !sched_knows(scheduler->core.sched, sequence) && !token_logs_find(scheduler->sequences.logs, sequence) &&
        gateways_have(sequence))
        check_note("%llx is freed, and its gateway has yet to come again", (unsigned long long)sequence);
    return __real_places_free_unclaimed(scheduler, place, sequence, keep_sampler);
}

void __real_generate_accepted(struct scheduler *scheduler, uint64_t sequence);
void __wrap_generate_accepted(struct scheduler *scheduler, uint64_t sequence);
void __wrap_generate_accepted(struct scheduler *scheduler, uint64_t sequence)
{
    const struct token_log *log = token_logs_find(scheduler->sequences.logs, sequence);

    if (log && log->call)
        clients_accepted(log->request->request_id);
    __real_generate_accepted(scheduler, sequence);
}

// Returns whether a step that is not answered has rows of the sequence at the place.
static bool is_in_use(const struct scheduler *scheduler, uint64_t sequence, uint32_t place)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        const struct flight *flight = &scheduler->flights.of[i];
        if (flight->sent_us <= seen.since_us[place])
            continue;
        for (uint32_t r = 0; flight->used && !flight->reply && r < flight->run_count; r++) {
            if (flight->runs[r].sequence != sequence)
                continue;
            if (flight->runs[r].place == place)
                return true;
            for (uint32_t e = 0; e < flight->runs[r].extent_count; e++)
                if (flight->runs[r].extents[e].place == place)
                    return true;
        }
    }
    return false;
}

static bool list_holds(const struct scheduler *scheduler, const struct place *place, const struct pending_list *list, char *out,
                       size_t out_bytes)
{
    const struct pending_free *entries = scheduler->frees.entries;

    for (uint32_t i = list->head; i; i = entries[i].next) {
        REST(!is_in_use(scheduler, entries[i].sequence, place->index), "%llx is freed at place %u while a step uses it",
             (unsigned long long)entries[i].sequence, place->index);
        for (uint32_t k = entries[i].next; k; k = entries[k].next)
            REST(entries[k].sequence != entries[i].sequence || entries[i].move, "%llx is freed twice at place %u",
                 (unsigned long long)entries[i].sequence, place->index);
    }
    return true;
}

// No pages are freed that a step uses, and none twice, unless a hand-over that was given up has them freed before the core does.
static bool holds(const struct node *node, char *out, size_t out_bytes)
{
    const struct scheduler *scheduler = node->service;

    look_at_places(node, scheduler);
    for (uint32_t i = 0; scheduler->frees.entries && i < scheduler->places.count; i++) {
        const struct place *place = &scheduler->places.of[i];
        if (!list_holds(scheduler, place, &place->frees.to_free, out, out_bytes) ||
            !list_holds(scheduler, place, &place->frees.freeing, out, out_bytes))
            return false;
    }
    return true;
}

const struct service_kind scheduler_kind = {
    .loops = 1, .start = start, .turn = turn, .close = finish, .rests = rests, .holds = holds};

bool scheduler_place(const struct node *node, uint32_t index, struct place_view *out)
{
    const struct scheduler *scheduler = node->service;
    struct sched_place_info info;

    *out = (struct place_view){.up = false};
    if (index >= scheduler->places.count || !scheduler->core.sched)
        return false;
    const struct place *place = &scheduler->places.of[index];
    look_at_places(node, scheduler);
    sched_get_place(scheduler->core.sched, index, &info);
    if (place->kind == SCHED_KV_WORKER)
        snprintf(out->name, sizeof out->name, "%s", place->worker.name);
    out->up = info.up;
    out->settled = !seen.claimed[index] && !scheduler->frees.unclaimed && !place->member->cleaning;
    out->pages_used = info.pages_used;
    out->pages_idle = info.pages_idle;
    out->pages_total = info.pages_total;
    return true;
}

bool scheduler_uses(const struct node *node, const char *name, uint64_t sequence)
{
    const struct scheduler *scheduler = node->service;

    look_at_places(node, scheduler);
    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        const struct place *place = &scheduler->places.of[i];
        const char *own = place->kind == SCHED_KV_WORKER ? place->worker.name : "";
        if (!strcmp(own, name) && place->member->up)
            return is_in_use(scheduler, sequence, i);
    }
    return false;
}

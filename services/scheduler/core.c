// core.c: between the scheduling core and the mesh: events go in, and the actions that come out are carried out.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_shape.h"
#include "services/scheduler/scheduler.h"

enum {
    DEFAULT_MAX_ROWS = 640,
    SPARE_SEQUENCES = 1024,
    PARTIAL_BYTES_MAX = 96 << 20, // partial results of a step; the s-part refuses one of 128 MiB
    KEPT_MAX = 4096,              // the most finished sequences whose pages are kept for others
};

// --- what the core asks while it plans

static const struct sched_page_name *page_names(void *user, uint64_t sequence, uint32_t *count)
{
    const struct scheduler *scheduler = user;
    struct token_log *log = token_logs_find(scheduler->sequences.logs, sequence);

    *count = log ? page_names_extend(&scheduler->sequences.page_names, log) : 0;
    return log ? log->names.of : NULL;
}

// Guesses follow from all known tokens, those of this tick's answers included.
static uint32_t drafts(void *user, uint64_t sequence, uint32_t most, double *chance)
{
    struct scheduler *scheduler = user;
    steps_take_answered(scheduler);
    struct token_log *log = token_logs_find(scheduler->sequences.logs, sequence);

    if (!log || log->asked.no_drafts || log->token_count >= log->capacity)
        return 0;
    draft_follow(&log->draft, log->tokens, log->token_count, &scheduler->sequences.draft_odds);
    return draft_guess(&log->draft, log->tokens, log->token_count, MIN(most, log->capacity - log->token_count), chance);
}

// --- open and close

enum status scheduler_open_core(struct scheduler *scheduler, struct error *error)
{
    struct sched_config *config = &scheduler->core.config;
    uint32_t rows = config->max_batch_rows ? config->max_batch_rows : DEFAULT_MAX_ROWS;

    *config = (struct sched_config){
        .max_sequences = scheduler_requests_max(&scheduler->settings) + SPARE_SEQUENCES,
        .max_running = scheduler->settings.max_batch,
        .max_waiting = scheduler->settings.max_queue,
        .max_waiting_batch = scheduler->settings.batch_queue,
        .max_batch_rows = rows,
        .mini_batches = config->mini_batches,
        .stages = config->stages,
        .aside = true,
        .micro_batch = scheduler->settings.micro_batch,
        .mini_batch_auto = scheduler->settings.mini_batches == 0,
        .chunk_tokens = scheduler->settings.chunk,
        .step_target_us = (uint32_t)(scheduler->settings.step_target_ms * 1e3),
        .step_limit_us = (uint32_t)(scheduler->settings.step_target_ms * 1e3),
        .admission = scheduler->settings.admission,
        .spacing_steps = scheduler->settings.spacing,
        .placement = scheduler->settings.placement,
        .balance = true,
        .page_tokens = scheduler->model.kv.page_tokens,
        .ring_pages = kv_ring_pages(&scheduler->model.kv_shape),
        .ring_rows = kv_ring_step_rows(scheduler->model.kv_shape.window),
        .context_tokens = scheduler->model.info.context_tokens,
        .extent_tokens = KV_EXTENT_TOKENS,
        .span_ranges = KV_SPAN_RANGES,
        .max_partials = PARTIAL_BYTES_MAX /
                        ((uint64_t)scheduler->model.kv.heads * (scheduler->model.kv.head_dim + 2u) * sizeof(float)),
        .max_extents = EXTENTS_MAX,
        .max_places = SCHED_PLACES_MAX,
        .layers = scheduler->model.kv.layers,
        .kv_bytes_per_token = scheduler->model.page_bytes / scheduler->model.kv.page_tokens,
        .page_names = scheduler->settings.prefix_cache ? page_names : NULL,
        .drafts = scheduler->settings.draft_tokens ? drafts : NULL,
        .draft_tokens = scheduler->settings.draft_tokens,
        .user = scheduler,
        .max_kept = scheduler->settings.prefix_cache ? KEPT_MAX : 0,
        .release_ack = true,
    };
    draft_odds_init(&scheduler->sequences.draft_odds);
    if (page_names_open(&scheduler->sequences.page_names, scheduler->model.kv.page_tokens, scheduler->model.kv.sparse_percent > 0,
                        error))
        return error->status;
    if (sched_init(config, &scheduler->core.sched, error))
        return error->status;
    scheduler->core.actions = calloc(ACTIONS_MAX, sizeof *scheduler->core.actions);
    if (scheduler->core.actions && !flights_open(&scheduler->flights, rows) &&
        !places_open(scheduler, config->max_sequences + config->max_kept))
        return STATUS_OK;
    scheduler_close_core(scheduler);
    return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the tables for %u sequences and steps of %u rows",
                     config->max_sequences, rows);
}

void scheduler_close_core(struct scheduler *scheduler)
{
    sched_fini(scheduler->core.sched);
    scheduler->core.sched = NULL;
    flights_close(&scheduler->flights);
    places_close(scheduler);
    free(scheduler->core.actions);
    scheduler->core.actions = NULL;
}

// --- actions

// Notes that a traced sequence is paused, or that no step has rows of it any more.
static void note_release(struct scheduler *scheduler, const struct sched_action *action)
{
    const struct token_log *log = scheduler->host.otlp ? token_logs_find(scheduler->sequences.logs, action->release.sequence)
                                                       : NULL;

    if (!log || !log->spans)
        return;
    if (action->release.last)
        places_end_spans(scheduler, log->spans, log->id, action->release.place);
    else if (!log->over)
        sequence_spans_paused(log->spans);
}

static void carry_out(struct scheduler *scheduler, const struct sched_action *action)
{
    struct token_log *log;

    switch (action->kind) {
    case SCHED_STEP: steps_send(scheduler, &action->step); return;
    case SCHED_RELEASE:
        places_release(scheduler, action->release.sequence, action->release.place, action->release.last);
        note_release(scheduler, action);
        if (action->release.last)
            token_logs_remove(scheduler->sequences.logs, action->release.sequence);
        return;
    case SCHED_FINISHED:
        log = token_logs_find(scheduler->sequences.logs, action->finished.sequence);
        if (log)
            generate_finish(scheduler, log, action->finished.reason, action->finished.cached_tokens);
        return;
    case SCHED_REJECT:
        log = token_logs_find(scheduler->sequences.logs, action->reject.sequence);
        if (log)
            generate_reject(scheduler, log, action->reject.retry_after_us);
        token_logs_remove(scheduler->sequences.logs, action->reject.sequence);
        return;
    case SCHED_MOVE: places_move(scheduler, &action->move); return;
    case SCHED_DRAINED: places_drained(scheduler, action->place); return;
    }
}

// Tells the gateways of those that arrived with these events and were not rejected: from now on they may submit them again, and are not refused.
static void tell_accepted(struct scheduler *scheduler, uint32_t event_count)
{
    for (uint32_t i = 0; i < event_count; i++) {
        const struct sched_event *event = &scheduler->events.of[i];
        if (event->kind == SCHED_ARRIVE && sched_knows(scheduler->core.sched, event->arrive.sequence))
            generate_accepted(scheduler, event->arrive.sequence);
    }
}

static void tick_once(struct scheduler *scheduler)
{
    uint32_t event_count = scheduler->events.count;
    uint64_t round_ns = trace_clock(scheduler->host.track);
    size_t count = sched_step(scheduler->core.sched, clock_now_us(), scheduler->events.of, event_count, scheduler->core.actions,
                              MAX(event_count, (uint32_t)EVENTS_MAX) + SCHED_ACTIONS_SPARE);

    if (event_count || count)
        trace_span(scheduler->host.track, "schedule", round_ns, {"events", event_count}, {"actions", count});
    tell_accepted(scheduler, event_count);
    // Events that were queued meanwhile, and those that carrying out actions queues, are for the next round.
    scheduler->events.count -= event_count;
    memmove(scheduler->events.of, scheduler->events.of + event_count, scheduler->events.count * sizeof *scheduler->events.of);
    steps_take_answered(scheduler);
    for (size_t i = 0; i < count; i++)
        carry_out(scheduler, &scheduler->core.actions[i]);
    places_send(scheduler);
    if (event_count || count)
        trace_span(scheduler->host.track, "tick", round_ns, {"events", event_count}, {"actions", count});
}

void scheduler_tick(struct scheduler *scheduler)
{
    if (!scheduler->core.sched) {
        scheduler->events.count = 0;
        return;
    }
    uint64_t began_ns = clock_thread_ns();
    scheduler->events.ticking = true;
    scheduler->core.stuck = false;
    do
        tick_once(scheduler);
    while (!scheduler->core.stuck && (scheduler->events.count || sched_next_wake_us(scheduler->core.sched) <= clock_now_us()));
    scheduler->events.ticking = false;
    scheduler->core.busy_ns += clock_thread_ns() - began_ns;
}

static void tick(void *user) { scheduler_tick(user); }

void scheduler_init(struct scheduler *scheduler)
{
    struct place *pool = &scheduler->places.of[scheduler->places.count++];

    scheduler->events.tick = tick;
    scheduler->events.user = scheduler;
    stages_init(&scheduler->s_part, scheduler, pool);
    *pool = (struct place){.kind = SCHED_LOCAL_POOL, .member = &scheduler->s_part.member};
}

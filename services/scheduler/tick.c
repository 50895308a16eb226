/* tick.c: between the core and the mesh: events in, actions carried out, steps sent and answered. */
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/scheduler/scheduler.h"

/* A step is given up when its rows have taken a second each: reference kernels take a quarter of one (135 M parameters). */
enum { STEP_TIMEOUT_MS = 60000, ROW_TIMEOUT_MS = 1000, DEFAULT_MAX_ROWS = 640 };

/* Scratch for one StepRequest: sized once, used for one message at a time. */
static struct {
    Fastdecode__Run *runs; /* [capacity] */
    Fastdecode__Run **run_pointers;
    Fastdecode__SequenceOpen *opens;
    Fastdecode__SequenceOpen **open_pointers;
    Fastdecode__Place places[SCHED_PLACES_MAX];
    Fastdecode__Place *place_pointers[SCHED_PLACES_MAX];
    uint32_t capacity;
} scratch;

/* False: no memory; what was taken is still there. */
static bool open_arrays(struct scheduler *scheduler, uint32_t rows)
{
    scratch.capacity = rows;
    scratch.runs = calloc(rows, sizeof *scratch.runs);
    scratch.run_pointers = calloc(rows, sizeof *scratch.run_pointers);
    scratch.opens = calloc(rows, sizeof *scratch.opens);
    scratch.open_pointers = calloc(rows, sizeof *scratch.open_pointers);
    scheduler->actions = calloc(ACTIONS_MAX, sizeof *scheduler->actions);
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct flight *flight = &scheduler->flights[i];
        flight->results = calloc(rows, sizeof *flight->results);
        flight->sequences = calloc(rows, sizeof *flight->sequences);
        flight->positions = calloc(rows, sizeof *flight->positions);
        if (!flight->results || !flight->sequences || !flight->positions)
            return false;
    }
    if (!scratch.runs || !scratch.run_pointers || !scratch.opens || !scratch.open_pointers || !scheduler->actions)
        return false;
    for (uint32_t i = 0; i < rows; i++) {
        scratch.run_pointers[i] = &scratch.runs[i];
        scratch.open_pointers[i] = &scratch.opens[i];
    }
    for (uint32_t i = 0; i < SCHED_PLACES_MAX; i++)
        scratch.place_pointers[i] = &scratch.places[i];
    return true;
}

void scheduler_close_core(struct scheduler *scheduler)
{
    sched_fini(scheduler->core);
    scheduler->core = NULL;
    free(scratch.runs);
    free(scratch.run_pointers);
    free(scratch.opens);
    free(scratch.open_pointers);
    memset(&scratch, 0, sizeof scratch);
    free(scheduler->actions);
    scheduler->actions = NULL;
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct flight *flight = &scheduler->flights[i];
        free(flight->results);
        free(flight->sequences);
        free(flight->positions);
        *flight = (struct flight){0};
    }
}

static const struct sched_page_name *page_names(void *user, uint64_t sequence, uint32_t *count)
{
    const struct scheduler *scheduler = user;
    struct token_log *log = token_logs_find(scheduler->logs, sequence);

    *count = log ? page_names_extend(&scheduler->page_names, log) : 0;
    return log ? log->names : NULL;
}

static void take_answered(struct scheduler *scheduler);

/* Of the tokens that are known now, those of this tick's answers too. */
static uint32_t drafts(void *user, uint64_t sequence, uint32_t most, double *chance)
{
    struct scheduler *scheduler = user;
    take_answered(scheduler);
    struct token_log *log = token_logs_find(scheduler->logs, sequence);

    if (!log || log->no_drafts || log->token_count >= log->capacity)
        return 0;
    draft_follow(&log->draft, log->tokens, log->token_count, &scheduler->draft_odds);
    return draft_guess(&log->draft, log->tokens, log->token_count, MIN(most, log->capacity - log->token_count), chance);
}

enum status scheduler_open_core(struct scheduler *scheduler, struct error *error)
{
    struct sched_config *config = &scheduler->core_config;
    uint32_t rows;

    rows = config->max_batch_rows ? config->max_batch_rows : DEFAULT_MAX_ROWS;
    *config = (struct sched_config){
        .max_sequences = scheduler->settings.max_queue + scheduler->settings.max_batch + 1024,
        .max_running = scheduler->settings.max_batch,
        .max_waiting = scheduler->settings.max_queue,
        .max_batch_rows = rows,
        .mini_batches = config->mini_batches,
        .mini_batch_auto = scheduler->settings.mini_batches == 0,
        .chunk_tokens = scheduler->settings.chunk,
        .step_target_us = (uint32_t)(scheduler->settings.step_target_ms * 1e3),
        .step_limit_us = (uint32_t)(scheduler->settings.step_target_ms * 1e3),
        .admission = scheduler->settings.greedy ? SCHED_GREEDY : SCHED_SLS,
        .spacing_steps = scheduler->settings.spacing,
        .placement = scheduler->settings.placement,
        .balance = true,
        .page_tokens = scheduler->kv.page_tokens,
        .context_tokens = scheduler->model.context_tokens,
        .max_places = SCHED_PLACES_MAX,
        .layers = scheduler->kv.layers,
        .kv_bytes_per_token = scheduler->page_bytes / scheduler->kv.page_tokens,
        .page_names = scheduler->settings.prefix_cache ? page_names : NULL,
        .drafts = scheduler->settings.draft_tokens ? drafts : NULL,
        .draft_tokens = scheduler->settings.draft_tokens,
        .user = scheduler,
        .max_kept = scheduler->settings.prefix_cache ? KEPT_MAX : 0,
        .release_ack = true,
    };
    draft_odds_init(&scheduler->draft_odds);
    if (page_names_open(&scheduler->page_names, scheduler->kv.page_tokens, error))
        return error->status;
    if (sched_init(config, &scheduler->core, error))
        return error->status;
    if (open_arrays(scheduler, rows))
        return STATUS_OK;
    scheduler_close_core(scheduler);
    return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the scheduling core");
}

void scheduler_event(struct scheduler *scheduler, const struct sched_event *event)
{
    if (scheduler->event_count >= EVENTS_MAX && !scheduler->ticking)
        scheduler_tick(scheduler);
    assert_always(scheduler->event_count < EVENTS_ROOM);
    scheduler->events[scheduler->event_count++] = *event;
}

/* --- a step on its way out --------------------------------------------------------------------------------------- */

static uint32_t place_index(const struct scheduler *scheduler, uint32_t place, uint32_t *count)
{
    for (uint32_t i = 0; i < *count; i++)
        if (scratch.places[i].worker == place)
            return i;
    Fastdecode__Place *out = &scratch.places[*count];
    fastdecode__place__init(out);
    out->worker = place;
    out->incarnation = scheduler->members[place].incarnation;
    out->tensor_address = (char *)scheduler->members[place].tensor_address;
    return (*count)++;
}

static void fill_open(Fastdecode__SequenceOpen *open, const struct token_log *log)
{
    fastdecode__sequence_open__init(open);
    open->sequence = log->id;
    open->sampling = log->request->sampling;
    open->prompt_tokens = log->prompt_count;
    open->n_tokens = log->token_count;
    open->tokens = log->tokens;
}

static void fill_run(Fastdecode__Run *out, const struct sched_run *run, const struct token_log *log)
{
    fastdecode__run__init(out);
    out->sequence = run->sequence;
    out->position = run->position;
    out->sample = run->sample;
    out->score = run->score;
    out->share_from = run->share_from;
    out->share_positions = run->share_from ? run->position : 0;
    if (!run->use_last_sampled) {
        assert_always(run->position + run->count - run->drafts <= log->token_count && run->position + run->count <= log->capacity);
        out->tokens = log->tokens + run->position;
        out->n_tokens = run->count;
        out->drafts = run->drafts;
    }
    if (run->score && run->position + run->count < log->prompt_count)
        out->next = log->tokens[run->position + run->count];
}

static struct flight *free_flight(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        if (!scheduler->flights[i].used)
            return &scheduler->flights[i];
    return NULL;
}

static bool is_end(const struct scheduler *scheduler, const struct token_log *log, uint32_t token)
{
    bool ended = false;

    if (log->ignore_eos)
        return false;
    for (uint32_t i = 0; i < scheduler->end_token_count; i++)
        ended |= token == scheduler->end_tokens[i];
    for (size_t i = 0; log->request && i < log->request->n_end_token; i++)
        ended |= token == log->request->end_token[i];
    return ended;
}

static bool are_tokens(Fastdecode__Token *const *tokens, size_t count, uint32_t vocab)
{
    for (size_t i = 0; i < count; i++) {
        if (tokens[i]->token >= vocab)
            return false;
        for (size_t t = 0; t < tokens[i]->n_top; t++)
            if (tokens[i]->top[t]->token >= vocab)
                return false;
    }
    return true;
}

/* What is in the logs goes back to the s-part, and to gateways: a reply is taken as a whole, or not at all. NULL: it is good. */
static const char *fault_of(const struct flight *flight, const Fastdecode__StepReply *reply)
{
    uint32_t vocab = flight->scheduler->model.vocab;

    if (reply->step != flight->step || reply->n_results != flight->run_count)
        return "it is of another step";
    for (uint32_t i = 0; i < flight->run_count; i++) {
        const Fastdecode__RunResult *result = reply->results[i];
        const struct sched_run *run = &flight->runs[i];
        if (result->outcome != FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE)
            continue;
        if (result->sequence != flight->sequences[i])
            return "a run is of another sequence";
        if ((result->sampled && !run->sample) || result->n_more > run->drafts || (result->n_more && !result->sampled) ||
            result->n_scores > (run->score ? run->count : 0))
            return "a token or a score was not asked for";
        if (!are_tokens(&result->sampled, result->sampled != NULL, vocab) || !are_tokens(result->scores, result->n_scores, vocab) ||
            !are_tokens(result->more, result->n_more, vocab))
            return "a token is not in the vocabulary";
    }
    return NULL;
}

/* How many of the sampled tokens count: up to one that ends the sequence. */
static void count_tokens(const struct scheduler *scheduler, const struct token_log *log, const Fastdecode__RunResult *result,
                         struct sched_result *out)
{
    out->sampled = 1;
    out->ended = log && is_end(scheduler, log, result->sampled->token);
    for (size_t i = 0; i < result->n_more && !out->ended; i++) {
        out->sampled++;
        out->ended = log && is_end(scheduler, log, result->more[i]->token);
    }
}

/* What became of its rows, place by place. */
static void judge_places(const struct flight *flight)
{
    enum { SOME_COUNT = 1, SOME_LOST = 2 };
    unsigned char seen[SCHED_PLACES_MAX] = {0};

    for (uint32_t i = 0; i < flight->run_count; i++)
        seen[flight->runs[i].place] |= flight->results[i].outcome == SCHED_LOST ? SOME_LOST : SOME_COUNT;
    for (uint32_t place = 0; place < SCHED_PLACES_MAX; place++)
        if (seen[place])
            members_answered(flight->scheduler, place, seen[place] == SOME_LOST);
}

static void on_step_reply(void *user, struct rpc_message *message)
{
    struct flight *flight = user;
    struct sched_event event = {.kind = SCHED_STEP_DONE};
    Fastdecode__StepReply *reply = rpc_message_unpack(message, &fastdecode__step_reply__descriptor);

    if (!flight->used)
        return;
    const char *fault = reply ? fault_of(flight, reply) : "it is none";
    if (fault) {
        log_warn("STEP-BAD-REPLY", "step=%llu why=\"%s\"", (unsigned long long)flight->step, fault);
        return; /* on_end reports it as failed */
    }
    flight->message = rpc_message_keep(message);
    flight->reply = reply;
    for (uint32_t i = 0; i < flight->run_count; i++) {
        const Fastdecode__RunResult *result = reply->results[i];
        struct token_log *log = token_logs_find(flight->scheduler->logs, flight->sequences[i]);
        struct sched_result *out = &flight->results[i];
        *out = (struct sched_result){.outcome = SCHED_LOST};
        if (result->outcome == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE)
            out->outcome = SCHED_DONE;
        else if (result->outcome == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_UNKNOWN)
            out->outcome = SCHED_UNKNOWN;
        else /* it may be what the scheduler before this one kept there that takes the pages */
            members_unclaim(flight->scheduler, flight->runs[i].place);
        if (out->outcome == SCHED_DONE && result->sampled)
            count_tokens(flight->scheduler, log, result, out);
    }
    judge_places(flight);
    flight->place_count = (uint32_t)MIN(reply->n_places, (size_t)ARRAY_COUNT(flight->places));
    for (uint32_t i = 0; i < flight->place_count; i++)
        flight->places[i] = (struct sched_place_time){.place = reply->places[i]->worker,
                                                      .r_part_us = reply->places[i]->r_part_us,
                                                      .attend_us = reply->places[i]->attend_us,
                                                      .tokens_read = reply->places[i]->tokens_read};
    trace_overlapping(flight->scheduler->track_steps, "step", flight->step, flight->sent_ns, {"rows", flight->row_count},
                      {"s_part_us", reply->total_us});
    flight->scheduler->s_part_busy_us += reply->s_part_us;
    flight->scheduler->s_part_wait_us += reply->r_part_us;
    event.step_done = (struct sched_step_done){
        .step = flight->step,
        .results = flight->results,
        .result_count = flight->run_count,
        .total_us = reply->total_us,
        .s_part_us = reply->s_part_us,
        .places = flight->places,
        .place_count = flight->place_count,
    };
    scheduler_event(flight->scheduler, &event);
}

static void on_step_end(void *user, enum status status, const char *text)
{
    struct flight *flight = user;
    struct sched_event event = {.kind = SCHED_STEP_FAILED, .step = flight->step};

    if (!flight->used || flight->reply)
        return;
    log_warn("STEP-FAILED", "step=%llu status=%s error=%s", (unsigned long long)flight->step, status_name(status), text);
    flight->used = false;
    scheduler_event(flight->scheduler, &event);
}

static void send_step(struct scheduler *scheduler, const struct sched_step_action *action)
{
    Fastdecode__StepRequest request = FASTDECODE__STEP_REQUEST__INIT;
    struct flight *flight = free_flight(scheduler);
    struct sched_event failed = {.kind = SCHED_STEP_FAILED, .step = action->step};
    uint32_t places = 0, opens = 0, rows = 0;
    uint64_t began_ns = trace_clock(scheduler->track);
    struct error error;

    assert_always(flight && action->run_count <= scratch.capacity);
    for (uint32_t i = 0; i < action->run_count; i++) {
        const struct sched_run *run = &action->runs[i];
        struct token_log *log = token_logs_find(scheduler->logs, run->sequence);
        assert_always(log);
        fill_run(&scratch.runs[i], run, log);
        rows += run->count;
        flight->sequences[i] = run->sequence;
        flight->positions[i] = run->position;
        scratch.runs[i].place = place_index(scheduler, run->place, &places);
        if (run->open && log->call)
            fill_open(&scratch.opens[opens++], log);
    }
    request.scheduler_incarnation = scheduler->incarnation;
    request.step = action->step;
    request.mini_batch = action->mini_batch;
    request.n_runs = action->run_count;
    request.runs = scratch.run_pointers;
    request.n_open = opens;
    request.open = scratch.open_pointers;
    request.n_places = places;
    request.places = scratch.place_pointers;
    flight->used = true;
    flight->reply = NULL;
    flight->step = action->step;
    flight->runs = action->runs;
    flight->run_count = action->run_count;
    flight->row_count = rows;
    flight->scheduler = scheduler;
    flight->sent_ns = trace_clock(scheduler->track_steps);
    const struct rpc_options options = {.timeout_ms = STEP_TIMEOUT_MS + rows * ROW_TIMEOUT_MS};
    const struct rpc_callbacks callbacks = {.on_message = on_step_reply, .on_end = on_step_end};
    if (!scheduler->members[0].channel || rpc_call_start(scheduler->members[0].channel, &fastdecode__spart__descriptor, "Step",
                                                         &request.base, &options, &callbacks, flight, NULL, &error)) {
        flight->used = false;
        scheduler->stuck = true;
        scheduler_event(scheduler, &failed);
    }
    trace_span(scheduler->track, "send step", began_ns, {"step", action->step}, {"rows", rows}, {"mini_batch", action->mini_batch});
}

/* --- answers ------------------------------------------------------------------------------------------------------- */

static void take_tokens(struct scheduler *scheduler, struct token_log *log, const Fastdecode__RunResult *result, uint32_t count)
{
    Fastdecode__Token *tokens[SCHED_DRAFT_TOKENS_MAX + 1] = {result->sampled};

    count = MIN(count, log->capacity - log->token_count);
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = i ? result->more[i - 1] : result->sampled;
        log->tokens[log->token_count++] = tokens[i]->token;
    }
    if (count)
        generate_tokens(scheduler, log, tokens, count);
}

/* What the core took of an answered step goes into the logs and to the gateways. */
static void take_results(struct scheduler *scheduler, struct flight *flight)
{
    for (uint32_t i = 0; i < flight->run_count; i++) {
        const Fastdecode__RunResult *result = flight->reply->results[i];
        struct token_log *log = token_logs_find(scheduler->logs, flight->sequences[i]);
        if (!flight->results[i].taken || !log)
            continue;
        if (result->n_scores)
            generate_scores(scheduler, log, flight->positions[i], result->scores, result->n_scores);
        if (flight->results[i].sampled)
            take_tokens(scheduler, log, result, flight->results[i].sampled);
    }
}

/* In the order of the steps: two answers may come in one tick, and a sequence's tokens may be in both. */
static struct flight *oldest_answered(struct scheduler *scheduler)
{
    struct flight *oldest = NULL;
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        struct flight *flight = &scheduler->flights[i];
        if (flight->used && flight->reply && (!oldest || flight->step < oldest->step))
            oldest = flight;
    }
    return oldest;
}

static void end_flight(struct flight *flight)
{
    if (flight->message)
        rpc_message_free(flight->message);
    flight->message = NULL;
    flight->reply = NULL;
    flight->used = false;
}

/* Once the core has said what of them counts. */
static void take_answered(struct scheduler *scheduler)
{
    for (struct flight *flight; (flight = oldest_answered(scheduler));) {
        uint64_t step = flight->step, began_ns = trace_clock(scheduler->track);
        take_results(scheduler, flight);
        end_flight(flight);
        trace_span(scheduler->track, "results", began_ns, {"step", step});
    }
}

/* The s-part is gone: its steps are void. The core was told by S_PART_DOWN. */
void scheduler_void_flights(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        if (scheduler->flights[i].used && !scheduler->flights[i].reply)
            scheduler->flights[i].used = false;
}

static void carry_out(struct scheduler *scheduler, const struct sched_action *action)
{
    struct token_log *log;

    switch (action->kind) {
    case SCHED_STEP: send_step(scheduler, &action->step); return;
    case SCHED_RELEASE:
        place_release(scheduler, action->release.sequence, action->release.place, action->release.last);
        if (action->release.last)
            token_logs_remove(scheduler->logs, action->release.sequence);
        return;
    case SCHED_FINISHED:
        log = token_logs_find(scheduler->logs, action->finished.sequence);
        if (log)
            generate_finish(scheduler, log, action->finished.reason, action->finished.cached_tokens);
        return;
    case SCHED_REJECT:
        log = token_logs_find(scheduler->logs, action->reject.sequence);
        if (log)
            generate_reject(scheduler, log, action->reject.retry_after_us);
        token_logs_remove(scheduler->logs, action->reject.sequence);
        return;
    case SCHED_MOVE: place_move(scheduler, &action->move); return;
    case SCHED_DRAINED: place_drained(scheduler, action->place); return;
    }
}

void scheduler_tick(struct scheduler *scheduler)
{
    if (!scheduler->core) {
        scheduler->event_count = 0;
        return;
    }
    uint64_t began_ns = clock_thread_ns();
    scheduler->ticking = true;
    scheduler->stuck = false;
    do {
        uint32_t event_count = scheduler->event_count;
        uint64_t round_ns = trace_clock(scheduler->track);
        size_t count = sched_step(scheduler->core, clock_now_us(), scheduler->events, event_count, scheduler->actions,
                                  MAX(event_count, (uint32_t)EVENTS_MAX) + SCHED_ACTIONS_SPARE);
        if (event_count || count)
            trace_span(scheduler->track, "schedule", round_ns, {"events", event_count}, {"actions", count});
        /* What passing tokens on has added meanwhile, and what carrying out actions will: the next round's. */
        scheduler->event_count -= event_count;
        memmove(scheduler->events, scheduler->events + event_count, scheduler->event_count * sizeof *scheduler->events);
        take_answered(scheduler);
        for (size_t i = 0; i < count; i++)
            carry_out(scheduler, &scheduler->actions[i]);
        place_forget(scheduler);
        if (event_count || count)
            trace_span(scheduler->track, "tick", round_ns, {"events", event_count}, {"actions", count});
    } while (!scheduler->stuck && (scheduler->event_count || sched_next_wake_us(scheduler->core) <= clock_now_us()));
    scheduler->ticking = false;
    scheduler->busy_ns += clock_thread_ns() - began_ns;
}

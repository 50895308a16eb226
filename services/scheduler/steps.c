// steps.c: steps on their way to the s-part, and their answers on the way to the core, the token logs and the gateways.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/scheduler/scheduler.h"

// When a step is given up. Attention over a longer context than was seen so far may take many times what is predicted, so the factor is
// large; the floor covers a machine that is busy with something else. Nothing is known of an s-part that has not answered yet: reference
// kernels take a quarter of a second for a row of a small model.
enum {
    TIMEOUT_FLOOR_MS = 20000,
    TIMEOUT_TIMES = 50,
    TIMEOUT_UNKNOWN_MS = 60000,
    TIMEOUT_UNKNOWN_ROW_MS = 1000,
    TIMEOUT_DOUBLINGS = 6, // after steps in a row that came too late
    TIMEOUT_MOST_MS = 3600000,
    FAULT_BYTES_MAX = 400,
    // Most bytes of the grammars that a step opens sequences with: the others are UNKNOWN to the s-part, and opened with a later step.
    OPEN_BYTES_MAX = 16 << 20,
    POOLED_BYTES_MAX = 1 << 19, // as many values as the largest model's hidden states have
};

// --- answers

static bool is_end(const struct scheduler *scheduler, const struct token_log *log, uint32_t token)
{
    const Fastdecode__Sampling *sampling = log->request ? log->request->sampling : NULL;
    bool ended = false;

    for (size_t i = 0; sampling && i < sampling->n_stop_token; i++)
        ended |= token == sampling->stop_token[i];
    if (log->asked.ignore_eos && !(sampling && sampling->grammar.len)) // a grammar says where the text ends
        return ended;
    for (uint32_t i = 0; i < scheduler->model.end_token_count; i++)
        ended |= token == scheduler->model.end_tokens[i];
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

// Whether the run has the last row of a prompt that is pooled, and so many bytes are a vector.
static bool pooled_fits(const struct flight *flight, uint32_t run, size_t bytes)
{
    const struct token_log *log = token_logs_find(flight->scheduler->sequences.logs, flight->sequences[run]);

    return bytes % sizeof(float) == 0 && bytes <= POOLED_BYTES_MAX &&
           (!log || (log->asked.pooling && flight->positions[run] + flight->runs[run].count == log->prompt_count));
}

// Returns what is wrong with a reply; NULL: it is good. Its tokens go into logs, back to the s-part and to gateways, so it is taken as a whole
// or not at all.
static const char *fault_of(const struct flight *flight, const Fastdecode__StepReply *reply)
{
    uint32_t vocab = flight->scheduler->model.info.vocab;

    if (reply->step != flight->step || reply->n_results != flight->run_count)
        return "it answers another step";
    for (uint32_t i = 0; i < flight->run_count; i++) {
        const Fastdecode__RunResult *result = reply->results[i];
        const struct sched_run *run = &flight->runs[i];
        if (result->outcome != FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE)
            continue;
        if (result->sequence != flight->sequences[i])
            return "a run names another sequence";
        if ((result->sampled && !run->sample) || result->n_more > run->drafts || (result->n_more && !result->sampled) ||
            result->n_scores > (run->score ? run->count : 0))
            return "a token or a score was not asked for";
        if (result->pooled.len && !pooled_fits(flight, i, result->pooled.len))
            return "a pooled vector was not asked for, or is no vector";
        if (!are_tokens(&result->sampled, result->sampled != NULL, vocab) || !are_tokens(result->scores, result->n_scores, vocab) ||
            !are_tokens(result->more, result->n_more, vocab))
            return "a token is not in the vocabulary";
    }
    return NULL;
}

// Counts the sampled tokens up to one that ends the sequence.
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

// Returns what sched_result.lost_part says: 0, the run's own place lacks something; otherwise its extent before the number does. If the s-part
// does not know which one, the sequence is computed from its beginning.
static uint8_t lost_part(const struct sched_run *run, const Fastdecode__RunResult *result)
{
    if (run->extent_count == 0 || result->lost_extent == run->extent_count + 1)
        return 0;
    return (uint8_t)(result->lost_extent && result->lost_extent <= run->extent_count ? result->lost_extent : 1);
}

static uint32_t lost_place(const struct sched_run *run, const struct sched_result *result)
{
    return result->lost_part ? run->extents[result->lost_part - 1].place : run->place;
}

static void take_outcomes(struct flight *flight, const Fastdecode__StepReply *reply)
{
    struct scheduler *scheduler = flight->scheduler;

    for (uint32_t i = 0; i < flight->run_count; i++) {
        const Fastdecode__RunResult *result = reply->results[i];
        struct token_log *log = token_logs_find(scheduler->sequences.logs, flight->sequences[i]);
        struct sched_result *out = &flight->results[i];
        *out = (struct sched_result){.outcome = SCHED_LOST};
        if (result->outcome == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE)
            out->outcome = SCHED_DONE;
        else if (result->outcome == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_UNKNOWN)
            out->outcome = SCHED_UNKNOWN;
        else
            out->lost_part = lost_part(&flight->runs[i], result);
        if (out->outcome == SCHED_LOST) // the place may be full of what the scheduler before this one kept there
            claims_drop(scheduler, lost_place(&flight->runs[i], out));
        if (out->outcome == SCHED_DONE && result->sampled)
            count_tokens(scheduler, log, result, out);
    }
}

static void take_place_times(struct flight *flight, const Fastdecode__StepReply *reply)
{
    flight->place_count = (uint32_t)MIN(reply->n_places, (size_t)ARRAY_COUNT(flight->places));
    for (uint32_t i = 0; i < flight->place_count; i++)
        flight->places[i] = (struct sched_place_time){.place = reply->places[i]->worker,
                                                      .r_part_us = reply->places[i]->r_part_us,
                                                      .attend_us = reply->places[i]->attend_us,
                                                      .tokens_read = reply->places[i]->tokens_read};
}

// Says for each place of the step whether any of its rows counted.
static void judge_places(const struct flight *flight)
{
    enum { SOME_COUNT = 1, SOME_LOST = 2 };
    unsigned char seen[SCHED_PLACES_MAX] = {0};

    for (uint32_t i = 0; i < flight->run_count; i++) {
        const struct sched_run *run = &flight->runs[i];
        const struct sched_result *result = &flight->results[i];
        if (result->outcome == SCHED_LOST) {
            seen[lost_place(run, result)] |= SOME_LOST;
            continue;
        }
        seen[run->place] |= SOME_COUNT;
        for (uint32_t k = 0; k < run->extent_count; k++)
            seen[run->extents[k].place] |= SOME_COUNT;
    }
    for (uint32_t place = 0; place < SCHED_PLACES_MAX; place++)
        if (seen[place])
            members_answered(flight->scheduler, place, seen[place] == SOME_LOST);
}

// Ends sequences for which the s-part can draw nothing.
static void end_faulty(struct scheduler *scheduler, const struct flight *flight, const Fastdecode__StepReply *reply)
{
    for (uint32_t i = 0; i < flight->run_count; i++) {
        const Fastdecode__RunResult *result = reply->results[i];
        struct token_log *log = token_logs_find(scheduler->sequences.logs, flight->sequences[i]);
        const struct sched_event event = {.kind = SCHED_CANCEL, .sequence = flight->sequences[i]};
        if (!result->error[0] || result->outcome != FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE || !log || log->fault.text ||
            log->over)
            continue;
        log->fault.text = strndup(result->error, FAULT_BYTES_MAX);
        log->fault.of_request = result->request_fault;
        log_warn("SEQUENCE-FAULT", "sequence=%llx why=\"%s\"", (unsigned long long)log->id, result->error);
        events_add(&scheduler->events, &event);
    }
}

static void on_reply(void *user, struct rpc_message *message)
{
    struct flight *flight = user;
    struct scheduler *scheduler = flight->scheduler;
    Fastdecode__StepReply *reply = rpc_message_unpack(message, &fastdecode__step_reply__descriptor);
    struct sched_event event = {.kind = SCHED_STEP_DONE};

    if (!flight->used)
        return;
    const char *fault = reply ? fault_of(flight, reply) : "it is malformed";
    if (fault) {
        if (repeat_is_due(&scheduler->flights.bad_replies, clock_now_us(), fault))
            log_warn("STEP-BAD-REPLY", "step=%llu why=\"%s\" times=%u", (unsigned long long)flight->step, fault,
                     scheduler->flights.bad_replies.count);
        return; // on_end() reports it as failed
    }
    scheduler->flights.late = 0;
    scheduler->flights.failures = (struct repeat){0};
    flight->message = rpc_message_keep(message);
    flight->reply = reply;
    take_outcomes(flight, reply);
    take_place_times(flight, reply);
    judge_places(flight);
    trace_overlapping(scheduler->host.track_steps, "step", flight->step, flight->sent_ns, {"rows", flight->row_count},
                      {"s_part_us", reply->total_us});
    scheduler->flights.s_part_busy_us += reply->s_part_us;
    scheduler->flights.s_part_wait_us += reply->r_part_us;
    event.step_done = (struct sched_step_done){
        .step = flight->step,
        .results = flight->results,
        .result_count = flight->run_count,
        .total_us = reply->total_us,
        .s_part_us = reply->s_part_us,
        .stream_us = reply->stream_us > 0 && reply->stream_us < STREAM_US_MAX ? reply->stream_us : 0,
        .places = flight->places,
        .place_count = flight->place_count,
    };
    view_note_step(scheduler, flight);
    const uint32_t stages = stages_count_step(&scheduler->s_part, reply, flight->row_count, flight->stage_us);
    if (stages == scheduler->core.config.stages) {
        event.step_done.stage_us = flight->stage_us;
        event.step_done.stage_count = stages;
    }
    events_add(&scheduler->events, &event);
    end_faulty(scheduler, flight, reply);
}

static void on_end(void *user, enum status status, const char *text)
{
    struct flight *flight = user;
    struct scheduler *scheduler = flight->scheduler;
    const struct sched_event event = {.kind = SCHED_STEP_FAILED, .step = flight->step};

    if (!flight->used || flight->reply)
        return;
    if (repeat_is_due(&scheduler->flights.failures, clock_now_us(), text))
        log_warn("STEP-FAILED", "step=%llu status=%s error=\"%s\" times=%u", (unsigned long long)flight->step, status_name(status),
                 text, scheduler->flights.failures.count);
    flight->used = false;
    scheduler->flights.late += status == STATUS_DEADLINE_EXCEEDED; // else the s-part is gone, or has refused it at once
    events_add(&scheduler->events, &event);
    if (status == STATUS_FAILED_PRECONDITION && stages_are_several(&scheduler->s_part, scheduler->model.kv.layers))
        members_part_stages(scheduler, text); // a stage has missed the term, or knows another one
}

static void take_tokens(struct scheduler *scheduler, struct token_log *log, const Fastdecode__RunResult *result, uint32_t count)
{
    Fastdecode__Token *tokens[SCHED_DRAFT_TOKENS_MAX + 1] = {result->sampled};

    count = MIN(count, log->capacity - log->token_count);
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = i ? result->more[i - 1] : result->sampled;
        log->tokens[log->token_count++] = tokens[i]->token;
    }
    if (count && log->spans && !log->over)
        sequence_spans_answered(log->spans, count - 1);
    if (count)
        generate_tokens(scheduler, log, tokens, count);
}

// Passes on what the core took of an answered step: to the logs and the gateways.
static void take_results(struct scheduler *scheduler, struct flight *flight)
{
    for (uint32_t i = 0; i < flight->run_count; i++) {
        const Fastdecode__RunResult *result = flight->reply->results[i];
        struct token_log *log = token_logs_find(scheduler->sequences.logs, flight->sequences[i]);
        if (!flight->results[i].taken || !log)
            continue;
        if (result->pooled.len)
            generate_pooled(log, &result->pooled);
        if (result->n_scores)
            generate_scores(log, flight->positions[i], result->scores, result->n_scores);
        if (flight->results[i].sampled)
            take_tokens(scheduler, log, result, flight->results[i].sampled);
    }
}

void steps_take_answered(struct scheduler *scheduler)
{
    for (struct flight *flight; (flight = flights_oldest_answered(&scheduler->flights));) {
        uint64_t step = flight->step, began_ns = trace_clock(scheduler->host.track);
        take_results(scheduler, flight);
        flights_end(flight);
        trace_span(scheduler->host.track, "results", began_ns, {"step", step});
    }
}

// --- a step on its way out

// The index of the place in the step's message, to which it is added once.
static uint32_t place_index(struct scheduler *scheduler, uint32_t place, uint32_t *count)
{
    struct step_scratch *scratch = &scheduler->flights.scratch;
    const struct member *member = scheduler->places.of[place].member;

    for (uint32_t i = 0; i < *count; i++)
        if (scratch->places[i].worker == place)
            return i;
    Fastdecode__Place *out = &scratch->places[*count];
    fastdecode__place__init(out);
    out->kind = scheduler->places.of[place].kind == SCHED_LOCAL_POOL ? FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL
                                                                     : FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER;
    out->worker = place;
    out->incarnation = member->incarnation;
    out->tensor_address = (char *)member->tensor_address;
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
    if (log->spans)
        open->trace = (ProtobufCBinaryData){.len = sizeof log->spans->wire, .data = log->spans->wire};
}

// Says where the sequence's KV is: in its extents, then in its tail, where the rows go.
static void fill_extents(struct scheduler *scheduler, Fastdecode__Run *out, const struct sched_run *run, uint32_t *places,
                         uint32_t *extents)
{
    struct step_scratch *scratch = &scheduler->flights.scratch;
    const struct sched_extent tail = {run->place, run->first};

    if (run->extent_count == 0)
        return;
    out->n_extents = run->extent_count + 1u;
    out->extents = &scratch->extent_pointers[*extents];
    for (uint32_t i = 0; i <= run->extent_count; i++) {
        const struct sched_extent *extent = i < run->extent_count ? &run->extents[i] : &tail;
        Fastdecode__Extent *to = &scratch->extents[(*extents)++];
        fastdecode__extent__init(to);
        to->place = place_index(scheduler, extent->place, places);
        to->first_position = extent->first;
    }
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

// Returns many times what the step and the unanswered ones before it are predicted to take.
static uint32_t timeout_ms(const struct scheduler *scheduler, uint32_t rows)
{
    struct sched_stats stats;
    uint32_t steps = 1;
    uint64_t ms;

    sched_get_stats(scheduler->core.sched, &stats);
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        const struct flight *flight = &scheduler->flights.of[i];
        steps += flight->used && !flight->reply;
        rows += flight->used && !flight->reply ? flight->row_count : 0;
    }
    double us = steps * stats.step_base_us + rows * stats.row_us;
    if (us > 0)
        ms = TIMEOUT_FLOOR_MS + (uint64_t)(TIMEOUT_TIMES * us / 1000);
    else
        ms = TIMEOUT_UNKNOWN_MS + (uint64_t)rows * TIMEOUT_UNKNOWN_ROW_MS;
    return (uint32_t)MIN(ms << MIN(scheduler->flights.late, (uint32_t)TIMEOUT_DOUBLINGS), (uint64_t)TIMEOUT_MOST_MS);
}

// Fills in runs, places and what the s-part has to be told of sequences that it may not know. Returns the number of rows.
static uint32_t fill_step(struct scheduler *scheduler, const struct sched_step_action *action, struct flight *flight,
                          Fastdecode__StepRequest *request)
{
    struct step_scratch *scratch = &scheduler->flights.scratch;
    uint32_t places = 0, opens = 0, extents = 0, rows = 0;
    size_t open_bytes = 0;

    for (uint32_t i = 0; i < action->run_count; i++) {
        const struct sched_run *run = &action->runs[i];
        struct token_log *log = token_logs_find(scheduler->sequences.logs, run->sequence);
        assert_always(log);
        fill_run(&scratch->runs[i], run, log);
        rows += run->count;
        if (log->spans && !log->over)
            sequence_spans_sent(log->spans, run);
        flight->sequences[i] = run->sequence;
        flight->positions[i] = run->position;
        scratch->runs[i].place = place_index(scheduler, run->place, &places);
        fill_extents(scheduler, &scratch->runs[i], run, &places, &extents);
        const size_t grammar_bytes = run->open && log->call ? log->request->sampling->grammar.len : 0;
        open_bytes += grammar_bytes;
        if (run->open && log->call && (!grammar_bytes || open_bytes <= OPEN_BYTES_MAX)) {
            fill_open(&scratch->opens[opens++], log);
            log->opened = true;
        }
    }
    request->scheduler_incarnation = scheduler->host.incarnation;
    request->step = action->step;
    request->mini_batch = action->mini_batch;
    request->aside = action->aside;
    request->aside_us = action->aside_us;
    request->n_runs = action->run_count;
    request->runs = scratch->run_pointers;
    request->n_open = opens;
    request->open = scratch->open_pointers;
    request->n_places = places;
    request->places = scratch->place_pointers;
    return rows;
}

void steps_send(struct scheduler *scheduler, const struct sched_step_action *action)
{
    static const struct rpc_callbacks callbacks = {.on_message = on_reply, .on_end = on_end};
    const struct sched_event failed = {.kind = SCHED_STEP_FAILED, .step = action->step};
    struct rpc_channel *channel = scheduler->s_part.member.channel;
    Fastdecode__StepRequest request = FASTDECODE__STEP_REQUEST__INIT;
    struct flight *flight = flights_unused(&scheduler->flights);
    uint64_t began_ns = trace_clock(scheduler->host.track);
    struct error error;

    assert_always(flight && action->run_count <= scheduler->flights.rows_max);
    uint32_t rows = fill_step(scheduler, action, flight, &request);
    const struct rpc_options options = {.timeout_ms = timeout_ms(scheduler, rows)};
    flight->used = true;
    flight->reply = NULL;
    flight->step = scheduler->flights.last_step = action->step;
    flight->runs = action->runs;
    flight->run_count = action->run_count;
    flight->row_count = rows;
    flight->scheduler = scheduler;
    flight->sent_ns = trace_clock(scheduler->host.track_steps);
    flight->sent_us = clock_now_us();
    flight->mini_batch = action->mini_batch;
    if (!channel || rpc_call_start(channel, &fastdecode__spart__descriptor, "Step", &request.base, &options, &callbacks, flight,
                                   &flight->call, &error)) {
        flight->used = false;
        scheduler->core.stuck = true;
        events_add(&scheduler->events, &failed);
    }
    trace_span(scheduler->host.track, "send step", began_ns, {"step", action->step}, {"rows", rows},
               {"mini_batch", action->mini_batch});
}

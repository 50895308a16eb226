// generate.c: sequences from the gateways, and tokens back to them.
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/messages.h"
#include "services/scheduler/scheduler.h"

// The call, and the request in its memory, are about to go.
static void forget_call(struct scheduler *scheduler, struct token_log *log)
{
    scheduler->sequences.grammar_bytes -= log->request->sampling->grammar.len;
    log->call = NULL;
    log->request = NULL;
}

static void on_cancel(void *user)
{
    struct token_log *log = user;
    struct scheduler *scheduler = rpc_call_user(log->call);
    const struct sched_event event = {.kind = SCHED_CANCEL, .sequence = log->id};

    forget_call(scheduler, log);
    if (!log->over)
        events_add(&scheduler->events, &event);
}

enum {
    GRAMMAR_BYTES_MAX = 1 << 20,  // GRAMMAR_MAX_BYTES of common/grammar, which the scheduler does not look into
    GRAMMARS_BYTES_MAX = 64 << 20 // of all sequences that run or wait: thousands, with the grammars of schemas in use
};

// Refuses whatever the s-part would refuse: it would refuse the whole step, which is of many sequences.
static enum status check(const struct scheduler *scheduler, const Fastdecode__GenerateRequest *request, struct error *error)
{
    struct sampler_bias bias[SAMPLER_BIAS_MAX];
    struct sampler_params params;
    size_t tokens = request->n_prompt + request->n_generated;

    if (request->n_prompt == 0 || tokens > scheduler->model.info.context_tokens)
        return error_set(error, STATUS_OUT_OF_RANGE, "prompt and generated tokens are %zu, want 1 to %u", tokens,
                         scheduler->model.info.context_tokens);
    if (sampling_parse(request->sampling, scheduler->model.info.vocab, bias, &params, error))
        return error->status;
    if (request->sampling->grammar.len > GRAMMAR_BYTES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "sampling: a grammar of %zu bytes, at most %d are taken",
                         request->sampling->grammar.len, GRAMMAR_BYTES_MAX);
    const uint32_t lacking = scheduler->s_part.member.up ? features_of(request->sampling) & ~stages_features(&scheduler->s_part)
                                                         : 0;
    if (lacking)
        return error_set(error, STATUS_UNIMPLEMENTED, "sampling: %s: the mesh's s-part is too old for it", features_name(lacking));
    if ((uint32_t)request->sampling->pooling > (uint32_t)FASTDECODE__POOLING__POOLING_RANK ||
        (request->sampling->pooling && (request->max_tokens || request->n_generated || request->sampling->prompt_logprobs)))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "pooling %d with %u tokens to generate, %zu generated: a prompt that is pooled ends with it",
                         (int)request->sampling->pooling, request->max_tokens, request->n_generated);
    for (size_t i = 0; i < request->n_prompt; i++)
        if (request->prompt[i] >= scheduler->model.info.vocab)
            return error_set(error, STATUS_INVALID_ARGUMENT, "prompt: token %u, the vocabulary has %u", request->prompt[i],
                             scheduler->model.info.vocab);
    for (size_t i = 0; i < request->n_generated; i++)
        if (request->generated[i] >= scheduler->model.info.vocab)
            return error_set(error, STATUS_INVALID_ARGUMENT, "generated: token %u, the vocabulary has %u", request->generated[i],
                             scheduler->model.info.vocab);
    return STATUS_OK;
}

// The core knows a sequence longer than there is a log of it: until its pages are free.
static bool in_use(const struct scheduler *scheduler, uint64_t id)
{
    return token_logs_find(scheduler->sequences.logs, id) || sched_knows(scheduler->core.sched, id);
}

static struct token_log *new_log(struct scheduler *scheduler, struct rpc_call *call, const Fastdecode__GenerateRequest *request)
{
    uint32_t known = (uint32_t)(request->n_prompt + request->n_generated);
    uint32_t capacity =
        MIN(scheduler->model.info.context_tokens, known + MIN(request->max_tokens, scheduler->model.info.context_tokens)) + 1;
    uint64_t id = request->sequence;
    struct token_log *log;

    if (!id || in_use(scheduler, id)) {
        while (in_use(scheduler, scheduler->sequences.next_id)) // a resubmitted sequence may have it
            scheduler->sequences.next_id++;
        id = scheduler->sequences.next_id++;
    }
    if (token_logs_add(scheduler->sequences.logs, id, capacity,
                       scheduler->settings.prefix_cache ? capacity / scheduler->model.kv.page_tokens : 0, &log))
        return NULL;
    log->names.root = page_names_root(&scheduler->sequences.page_names, request->tenant, request->cache_salt);
    log->call = call;
    log->request = request;
    log->asked.ignore_eos = request->ignore_eos;
    log->asked.pooling = request->sampling->pooling;
    log->asked.no_drafts = !sampling_is_pure(request->sampling);
    log->asked.features = features_of(request->sampling);
    log->arrived_us = clock_now_us();
    struct sequence_spans *spans = scheduler->host.otlp ? token_logs_spans(scheduler->sequences.logs, log) : NULL;
    if (spans && sequence_spans_begin(scheduler->host.otlp, call, known, spans))
        log->spans = spans;
    for (size_t i = 0; i < request->n_prompt; i++)
        log->tokens[log->token_count++] = request->prompt[i];
    log->prompt_count = log->token_count;
    for (size_t i = 0; i < request->n_generated; i++)
        log->tokens[log->token_count++] = request->generated[i];
    return log;
}

enum { EXPECT_AGAIN_US = 1000 };

void expect_handler(struct rpc_call *call, void *user)
{
    const Fastdecode__ExpectRequest request = FASTDECODE__EXPECT_REQUEST__INIT;
    const Fastdecode__ExpectReply reply = FASTDECODE__EXPECT_REPLY__INIT;

    struct scheduler *scheduler = user;
    const uint64_t now_us = clock_now_us();

    // Threads that were just woken are awake. It is a hint: an older s-part does not know it.
    if (now_us - scheduler->sequences.expected_us >= EXPECT_AGAIN_US &&
        stages_call(scheduler, "Expect", &request.base, NULL, NULL, NULL))
        scheduler->sequences.expected_us = now_us;
    rpc_call_reply(call, &reply.base);
}

void generate_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    struct token_log *log;
    struct error error;

    if (!scheduler->core.sched) {
        rpc_call_fail(call, STATUS_UNAVAILABLE, "no s-part has registered yet");
        return;
    }
    const Fastdecode__GenerateRequest *request = rpc_call_unpack(call, &fastdecode__generate_request__descriptor);
    if (!request)
        return;
    if (check(scheduler, request, &error)) {
        rpc_call_fail(call, error.status, "%s", error.text);
        return;
    }
    const size_t grammar_bytes = request->sampling->grammar.len;
    if (grammar_bytes > GRAMMARS_BYTES_MAX - scheduler->sequences.grammar_bytes) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED,
                      "the scheduler holds grammars of %zu KiB: with one of %zu KiB they would exceed %d",
                      scheduler->sequences.grammar_bytes >> 10, grammar_bytes >> 10, GRAMMARS_BYTES_MAX >> 10);
        return;
    }
    log = new_log(scheduler, call, request);
    if (!log) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "the scheduler holds %u sequences, its limit",
                      token_logs_count(scheduler->sequences.logs));
        return;
    }
    scheduler->sequences.grammar_bytes += grammar_bytes;
    rpc_call_set_user(call, scheduler);
    rpc_call_on_cancel(call, on_cancel, log);
    scheduler->sequences.prompt_tokens += log->prompt_count;
    log_debug("GENERATE", "id=%s sequence=%llx prompt=%u generated=%zu max=%u", rpc_call_request_id(call),
              (unsigned long long)log->id, log->prompt_count, request->n_generated, request->max_tokens);
    claims_arrive(scheduler, log);
}

void generate_accepted(struct scheduler *scheduler, uint64_t sequence)
{
    const struct token_log *log = token_logs_find(scheduler->sequences.logs, sequence);
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;

    if (!log || !log->call)
        return;
    event.sequence = log->id;
    event.index = log->token_count - log->prompt_count;
    (void)!rpc_call_send(log->call, &event.base); // one that is gone is reported by on_cancel
}

void generate_tokens(struct scheduler *scheduler, struct token_log *log, Fastdecode__Token **tokens, uint32_t count)
{
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;

    scheduler->sequences.generated_tokens += count;
    if (!log->first_token_us)
        log->first_token_us = clock_now_us();
    if (!log->call)
        return;
    event.sequence = log->id;
    event.index = log->token_count - count - log->prompt_count;
    event.n_tokens = count;
    event.tokens = tokens;
    (void)!rpc_call_send(log->call, &event.base); // one that is gone is reported by on_cancel
}

// scores[i] is of prompt token index + i + 1. What was passed on before (a rebuilt prompt) is not sent again.
void generate_scores(struct token_log *log, uint32_t index, Fastdecode__Token **scores, size_t count)
{
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;
    uint32_t first = index + 1, skip = log->scored + 1 > first ? log->scored + 1 - first : 0;

    if (!log->call || skip >= count)
        return;
    event.sequence = log->id;
    event.prompt_index = first + skip;
    event.n_prompt = count - skip;
    event.prompt = scores + skip;
    log->scored = first + (uint32_t)count - 1;
    (void)!rpc_call_send(log->call, &event.base); // one that is gone is reported by on_cancel
}

void generate_pooled(struct token_log *log, const ProtobufCBinaryData *pooled)
{
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;

    if (!log->call)
        return;
    event.sequence = log->id;
    event.pooled = *pooled;
    (void)!rpc_call_send(log->call, &event.base); // one that is gone is reported by on_cancel
}

// Says how many tokens the places that are up could hold of one sequence: one of them all its pages, the others whole extents.
static void no_space_text(struct scheduler *scheduler, const struct token_log *log, char *text, size_t size)
{
    const uint32_t page_tokens = scheduler->model.kv.page_tokens, unit = scheduler->core.config.extent_tokens / page_tokens;
    uint64_t alone = 0, rest = 0, together = 0, whole[SCHED_EXTENTS_MAX + 1] = {0};
    uint32_t places = 0;

    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        struct sched_place_info info;
        sched_get_place(scheduler->core.sched, i, &info);
        if (!info.up)
            continue;
        places++;
        alone = MAX(alone, info.pages_total);
        if (unit) {
            rest = MAX(rest, info.pages_total % unit);
            sched_put_largest(whole, info.takes_extents ? ARRAY_COUNT(whole) : 1, info.pages_total / unit * unit);
        }
    }
    for (uint32_t k = 0; k < ARRAY_COUNT(whole); k++)
        together += whole[k];
    snprintf(
        text, size,
        "a sequence of %u tokens needs more KV memory than there is: the places that one sequence may use hold %llu tokens (%u are up); "
        "add workers or give them more (--kv-memory)",
        log->token_count, (unsigned long long)(MAX(alone, together + rest) * page_tokens), places);
}

// Puts a traced sequence's spans on record.
static void end_spans(struct scheduler *scheduler, struct token_log *log, enum sched_reason reason, uint32_t cached_tokens)
{
    static const char *const names[] = {
        [SCHED_LENGTH] = "length",       [SCHED_EOS] = "end token",     [SCHED_DEADLINE] = "deadline",
        [SCHED_CANCELLED] = "cancelled", [SCHED_TOO_LONG] = "too long", [SCHED_NO_SPACE] = "no space",
    };

    if (log->spans)
        sequence_spans_end(scheduler->host.otlp, log->spans, log->id, log->token_count, cached_tokens, names[reason],
                           reason == SCHED_TOO_LONG || reason == SCHED_NO_SPACE);
}

void generate_finish(struct scheduler *scheduler, struct token_log *log, enum sched_reason reason, uint32_t cached_tokens)
{
    static const Fastdecode__Finish finishes[] = {
        [SCHED_LENGTH] = FASTDECODE__FINISH__FINISH_LENGTH,     [SCHED_EOS] = FASTDECODE__FINISH__FINISH_EOS,
        [SCHED_DEADLINE] = FASTDECODE__FINISH__FINISH_DEADLINE, [SCHED_CANCELLED] = FASTDECODE__FINISH__FINISH_ERROR,
        [SCHED_TOO_LONG] = FASTDECODE__FINISH__FINISH_ERROR,    [SCHED_NO_SPACE] = FASTDECODE__FINISH__FINISH_ERROR,
    };
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;
    struct rpc_call *call = log->call;
    char text[256];

    log->over = true;
    end_spans(scheduler, log, reason, cached_tokens);
    reason == SCHED_CANCELLED ? scheduler->sequences.cancelled++ : scheduler->sequences.finished++;
    if (!call)
        return;
    forget_call(scheduler, log);
    event.sequence = log->id;
    event.index = log->token_count - log->prompt_count;
    event.finish = finishes[reason];
    event.cached_tokens = cached_tokens;
    if (reason == SCHED_TOO_LONG)
        event.error = (char *)"the prompt leaves no room in the context";
    else if (reason == SCHED_NO_SPACE)
        no_space_text(scheduler, log, event.error = text, sizeof text);
    else if (reason == SCHED_CANCELLED)
        event.error = log->fault.text ? log->fault.text : (char *)"it cannot be computed, and there is no memory to say why";
    event.request_fault = log->fault.text && log->fault.of_request;
    (void)!rpc_call_send(call, &event.base); // one that is gone is reported by on_cancel
    rpc_call_end(call);
}

void generate_reject(struct scheduler *scheduler, struct token_log *log, uint64_t retry_after_us)
{
    struct rpc_call *call = log->call;

    log->over = true;
    if (log->spans)
        sequence_spans_end(scheduler->host.otlp, log->spans, log->id, log->token_count, 0, "queue full", true);
    if (!call)
        return;
    forget_call(scheduler, log);
    rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "the queue is full; retry after %llu ms",
                  (unsigned long long)(retry_after_us / 1000));
}

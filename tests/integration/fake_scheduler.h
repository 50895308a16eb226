// fake_scheduler.h: the Generator service with canned tokens, for tests of the gateway without a mesh.
//
// Token i of a sequence is letter (prompt length + 7 * choice + i) mod 26 of an alphabet of token ids that the test gives,
// so that a text says where it comes from and whether a token is missing or there twice. A thread of its own runs the RPC
// loop and sends each open stream one token every TICK_US, up to `hold_at` tokens. It can go away and come back.
#ifndef FD_TESTS_FAKE_SCHEDULER_H
#define FD_TESTS_FAKE_SCHEDULER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "generate.pb-c.h"
#include "tests/integration/pace.h"
#include "view.pb-c.h"

enum { FAKE_LETTERS = 26, FAKE_TICK_US = 1000, FAKE_TELL_US = 500000, FAKE_WATCHERS = 16, FAKE_CONTEXT = 512 };

struct fake_stream {
    struct fake_stream *next;
    struct fake *fake;
    struct rpc_call *call; // NULL: over
    uint64_t sequence;
    uint32_t *prompt;
    uint32_t prompt_count, choice, index, max_tokens;
    bool logprobs, prompt_logprobs, accepted;
    uint32_t top;
};

// Set and read by tests, under the mutex.
struct fake_settings {
    bool ready, refuse;
    bool silent; // connections stand, and say nothing after the first state
    uint32_t waiting, max_queue, waiting_batch, max_queue_batch;
    uint32_t hold_at;     // no stream gets more tokens than this
    uint32_t finish_at;   // so many tokens, then `finish`
    uint64_t fingerprint; // of the model; 0: not told
    Fastdecode__Finish finish;
    // seen
    uint32_t started, refused, cancelled, open, resumed_at; // resumed_at: tokens of the last resubmission
    uint64_t resumed_sequence;
    Fastdecode__LatencyClass latency_class; // of the last request
    const char *metrics;                    // NULL: the usual ones
    uint32_t metrics_calls, view_calls, expects;
};

struct fake_watch {
    struct fake *fake;
    struct rpc_call *call; // NULL: free
};

struct fake {
    const char *address;
    uint32_t letters[FAKE_LETTERS];
    uint32_t end_token;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct fake_settings settings;
    // loop thread
    struct rpc_loop *loop;
    struct rpc_server *server;
    struct fake_watch watchers[FAKE_WATCHERS];
    struct fake_stream *streams;
    uint64_t next_sequence, incarnation;
    uint64_t told_us; // when the watchers were told the state
    bool stop;
};

static inline struct fake_settings fake_look(struct fake *fake)
{
    struct fake_settings settings;
    pthread_mutex_lock(&fake->mutex);
    settings = fake->settings;
    pthread_mutex_unlock(&fake->mutex);
    return settings;
}

// --- Watch and Metrics ----------------------------------------------------------------------------------------------
static inline void fake_tell_state(struct fake *fake, struct rpc_call *call)
{
    Fastdecode__MeshState state = FASTDECODE__MESH_STATE__INIT;
    Fastdecode__ModelInfo model = FASTDECODE__MODEL_INFO__INIT;
    struct fake_settings settings = fake_look(fake);
    char reason[] = "no s-part";

    model.context_tokens = FAKE_CONTEXT;
    model.name = (char *)(uintptr_t) "fake";
    model.fingerprint = settings.fingerprint;
    state.model = &model;
    state.ready = settings.ready;
    state.reason = reason;
    state.waiting = settings.waiting;
    state.max_queue = settings.max_queue;
    state.waiting_batch = settings.waiting_batch;
    state.max_queue_batch = settings.max_queue_batch;
    state.predicted_wait_ms = 3000;
    state.kv_pages_total = 100;
    state.kv_pages_used = 25;
    (void)!rpc_call_send(call, &state.base);
}

static inline void fake_tell_all(void *arg)
{
    struct fake *fake = arg;
    fake->told_us = clock_now_us();
    for (uint32_t i = 0; i < FAKE_WATCHERS; i++)
        if (fake->watchers[i].call)
            fake_tell_state(fake, fake->watchers[i].call);
}

static inline void fake_watch_gone(void *user) { ((struct fake_watch *)user)->call = NULL; }

static inline void fake_on_watch(struct rpc_call *call, void *user)
{
    struct fake *fake = user;

    for (uint32_t i = 0; i < FAKE_WATCHERS; i++) {
        if (fake->watchers[i].call)
            continue;
        fake->watchers[i] = (struct fake_watch){fake, call};
        rpc_call_on_cancel(call, fake_watch_gone, &fake->watchers[i]);
        fake_tell_state(fake, call);
        return;
    }
    rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "too many watchers");
}

static inline void fake_on_expect(struct rpc_call *call, void *user)
{
    const Fastdecode__ExpectReply reply = FASTDECODE__EXPECT_REPLY__INIT;
    struct fake *fake = user;
    pthread_mutex_lock(&fake->mutex);
    fake->settings.expects++;
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->mutex);
    rpc_call_reply(call, &reply.base);
}

static inline void fake_on_metrics(struct rpc_call *call, void *user)
{
    Fastdecode__MetricsReply reply = FASTDECODE__METRICS_REPLY__INIT;
    char text[] = "# TYPE fastdecode_requests_running gauge\nfastdecode_requests_running 5\n"
                  "# TYPE fastdecode_requests_waiting gauge\nfastdecode_requests_waiting 0\n"
                  "# TYPE fastdecode_kv_pages_used gauge\nfastdecode_kv_pages_used 25\n"
                  "# TYPE fastdecode_prefill_tokens_total counter\nfastdecode_prefill_tokens_total 7\n";
    struct fake *fake = user;
    pthread_mutex_lock(&fake->mutex);
    reply.text = fake->settings.metrics ? (char *)(uintptr_t)fake->settings.metrics : text;
    fake->settings.metrics_calls++;
    pthread_mutex_unlock(&fake->mutex);
    rpc_call_reply(call, &reply.base);
}

static inline void fake_on_view(struct rpc_call *call, void *user)
{
    Fastdecode__MeshView reply = FASTDECODE__MESH_VIEW__INIT;
    struct fake *fake = user;

    reply.model = (char *)"a \"model\" <b>";
    reply.running = 3;
    pthread_mutex_lock(&fake->mutex);
    fake->settings.view_calls++;
    pthread_mutex_unlock(&fake->mutex);
    rpc_call_reply(call, &reply.base);
}

// --- Generate ---------------------------------------------------------------------------------------------------------
static inline void fake_set_open(struct fake *fake, int32_t add, bool cancelled)
{
    pthread_mutex_lock(&fake->mutex);
    fake->settings.open += (uint32_t)add;
    fake->settings.cancelled += cancelled;
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->mutex);
}

static inline void fake_stream_gone(void *user)
{
    struct fake_stream *stream = user;
    stream->call = NULL;
    fake_set_open(stream->fake, -1, true);
}

static inline void fake_accept(struct fake_stream *stream)
{
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;

    event.sequence = stream->sequence;
    event.index = stream->index;
    (void)!rpc_call_send(stream->call, &event.base);
}

static inline void fake_on_generate(struct rpc_call *call, void *user)
{
    struct fake *fake = user;
    struct fake_stream *stream;
    Fastdecode__GenerateRequest *request = rpc_call_unpack(call, &fastdecode__generate_request__descriptor);

    if (!request)
        return;
    if (fake_look(fake).refuse) {
        pthread_mutex_lock(&fake->mutex);
        fake->settings.refused++;
        pthread_cond_broadcast(&fake->changed);
        pthread_mutex_unlock(&fake->mutex);
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "the queue is full");
        return;
    }
    stream = calloc(1, sizeof *stream);
    *stream = (struct fake_stream){
        .next = fake->streams,
        .fake = fake,
        .call = call,
        .prompt_count = (uint32_t)request->n_prompt,
        .choice = request->sampling->choice,
        .index = (uint32_t)request->n_generated,
        .max_tokens = request->max_tokens,
        .logprobs = request->sampling->logprobs,
        .prompt_logprobs = request->sampling->prompt_logprobs,
        .top = request->sampling->top_logprobs,
        .sequence = request->sequence ? request->sequence : ++fake->next_sequence,
    };
    stream->prompt = malloc((request->n_prompt + 1) * sizeof *stream->prompt);
    if (request->n_prompt)
        memcpy(stream->prompt, request->prompt, request->n_prompt * sizeof *stream->prompt);
    fake->streams = stream;
    rpc_call_on_cancel(call, fake_stream_gone, stream);
    fake_accept(stream);
    pthread_mutex_lock(&fake->mutex);
    fake->settings.started++;
    fake->settings.open++;
    fake->settings.latency_class = request->latency_class;
    if (request->n_generated || request->sequence) {
        fake->settings.resumed_at = (uint32_t)request->n_generated;
        fake->settings.resumed_sequence = request->sequence;
    }
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->mutex);
}

// Sends the prompt's scores at once: -0.5 each.
static inline void fake_send_prompt(struct fake_stream *stream)
{
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;
    Fastdecode__Token *tokens = calloc(stream->prompt_count, sizeof *tokens);
    Fastdecode__Token **pointers = calloc(stream->prompt_count, sizeof *pointers);

    event.sequence = stream->sequence;
    for (uint32_t i = 1; i < stream->prompt_count; i++) {
        fastdecode__token__init(&tokens[i]);
        tokens[i].token = stream->prompt[i];
        tokens[i].logprob = -0.5f;
        pointers[i - 1] = &tokens[i];
    }
    event.n_prompt = stream->prompt_count - 1;
    event.prompt = pointers;
    event.prompt_index = 1;
    (void)!rpc_call_send(stream->call, &event.base);
    free(tokens);
    free(pointers);
}

// Sends one token, or the end.
static inline void fake_advance(struct fake *fake, struct fake_stream *stream, const struct fake_settings *settings)
{
    Fastdecode__GenerateEvent event = FASTDECODE__GENERATE_EVENT__INIT;
    Fastdecode__Token token = FASTDECODE__TOKEN__INIT, *tokens[1] = {&token};
    Fastdecode__TopToken best = FASTDECODE__TOP_TOKEN__INIT, *tops[1] = {&best};

    if (stream->prompt_logprobs && !stream->accepted)
        fake_send_prompt(stream);
    stream->accepted = true;
    event.sequence = stream->sequence;
    event.index = stream->index;
    token.token = fake->letters[(stream->prompt_count + 7 * stream->choice + stream->index) % FAKE_LETTERS];
    token.logprob = stream->logprobs ? -0.25f : 0;
    best.token = token.token;
    best.logprob = token.logprob;
    token.n_top = stream->top ? 1 : 0;
    token.top = tops;
    event.tokens = tokens;
    if (stream->index < stream->max_tokens &&
        !(settings->finish_at == stream->index && settings->finish != FASTDECODE__FINISH__FINISH_EOS)) {
        if (stream->index >= settings->hold_at)
            return;
        event.n_tokens = 1;
        stream->index++;
    }
    if (settings->finish_at < stream->index || (settings->finish_at == stream->index && event.n_tokens == 0)) {
        event.finish = settings->finish;
        if (settings->finish == FASTDECODE__FINISH__FINISH_EOS)
            token.token = fake->end_token;
    } else if (stream->index >= stream->max_tokens) {
        event.finish = FASTDECODE__FINISH__FINISH_LENGTH;
    }
    if (rpc_call_send(stream->call, &event.base) != STATUS_OK)
        return;
    if (event.finish != FASTDECODE__FINISH__FINISH_UNSPECIFIED) {
        rpc_call_end(stream->call);
        stream->call = NULL;
        fake_set_open(fake, -1, false);
    }
}

static inline void fake_sweep(struct fake *fake)
{
    for (struct fake_stream **at = &fake->streams; *at;) {
        struct fake_stream *stream = *at;
        if (stream->call) {
            at = &stream->next;
            continue;
        }
        *at = stream->next;
        free(stream->prompt);
        free(stream);
    }
}

static inline void fake_tick(void *arg)
{
    struct fake *fake = arg;
    struct fake_settings settings = fake_look(fake);

    for (struct fake_stream *stream = fake->streams; stream && !settings.silent; stream = stream->next)
        if (stream->call)
            fake_advance(fake, stream, &settings);
    fake_sweep(fake);
    if (!settings.silent && clock_now_us() - fake->told_us > FAKE_TELL_US) // a scheduler that is silent counts as lost
        fake_tell_all(fake);
    if (!fake->stop)
        rpc_loop_timer(fake->loop, FAKE_TICK_US, fake_tick, fake);
}

// --- life ---------------------------------------------------------------------------------------------------------------
static inline void fake_open_server(void *arg)
{
    struct fake *fake = arg;
    const char *addresses[] = {fake->address};
    const struct rpc_method methods[] = {
        {&fastdecode__generator__descriptor, "Generate", fake_on_generate, fake},
        {&fastdecode__generator__descriptor, "Watch", fake_on_watch, fake},
        {&fastdecode__generator__descriptor, "Expect", fake_on_expect, fake},
        {&fastdecode__generator__descriptor, "Metrics", fake_on_metrics, fake},
        {&fastdecode__viewer__descriptor, "View", fake_on_view, fake},
    };
    struct rpc_server_config config = {.addresses = addresses,
                                       .address_count = 1,
                                       .hello = {.service = "scheduler", .incarnation = ++fake->incarnation},
                                       .methods = methods,
                                       .method_count = ARRAY_COUNT(methods)};
    struct error error;

    if (rpc_server_open(fake->loop, &config, &fake->server, &error) != STATUS_OK) {
        fprintf(stderr, "fake scheduler: %s\n", error.text);
        abort();
    }
}

// Does what the death of the process does: calls are dropped without an answer.
static inline void fake_close_server(void *arg)
{
    struct fake *fake = arg;
    int32_t lost = 0;

    rpc_server_close(fake->server);
    fake->server = NULL;
    for (struct fake_stream *stream = fake->streams; stream; stream = stream->next) {
        lost += stream->call != NULL;
        stream->call = NULL;
    }
    memset(fake->watchers, 0, sizeof fake->watchers);
    fake_sweep(fake);
    fake_set_open(fake, -lost, false);
}

static inline void fake_stop_loop(void *arg) { ((struct fake *)arg)->stop = true; }

static inline void *fake_run(void *arg)
{
    struct fake *fake = arg;

    rpc_loop_run(fake->loop, 0, 0);
    fake_open_server(fake);
    fake_tick(fake);
    while (!fake->stop)
        rpc_loop_run(fake->loop, 100000, 0);
    if (fake->server)
        fake_close_server(fake);
    while (rpc_loop_run(fake->loop, 2 * FAKE_TICK_US, 0) > 0)
        ;
    return NULL;
}

// Requires letters and end_token to be set.
static inline void fake_start(struct fake *fake, const char *address)
{
    fake->address = address;
    fake->settings = (struct fake_settings){.ready = true, .max_queue = 10000, .hold_at = UINT32_MAX, .finish_at = UINT32_MAX};
    pthread_mutex_init(&fake->mutex, NULL);
    pthread_cond_init(&fake->changed, NULL);
    assert_always(rpc_loop_open(&fake->loop) == STATUS_OK);
    assert_always(pthread_create(&fake->thread, NULL, fake_run, fake) == 0);
}

static inline void fake_end(struct fake *fake)
{
    rpc_loop_post(fake->loop, fake_stop_loop, fake);
    pthread_join(fake->thread, NULL);
    rpc_loop_close(fake->loop);
}

static inline void fake_go_away(struct fake *fake) { rpc_loop_post(fake->loop, fake_close_server, fake); }
static inline void fake_come_back(struct fake *fake) { rpc_loop_post(fake->loop, fake_open_server, fake); }

// Changes settings (all but what was seen) and tells the watchers.
static inline void fake_set(struct fake *fake, bool ready, bool refuse, uint32_t waiting, uint32_t max_queue)
{
    pthread_mutex_lock(&fake->mutex);
    fake->settings.ready = ready;
    fake->settings.refuse = refuse;
    fake->settings.waiting = waiting;
    fake->settings.max_queue = max_queue;
    pthread_mutex_unlock(&fake->mutex);
    rpc_loop_post(fake->loop, fake_tell_all, fake);
}

// The same of latency class batch, of which fake_set() tells nothing.
static inline void fake_set_batch_queue(struct fake *fake, uint32_t waiting, uint32_t max_queue)
{
    pthread_mutex_lock(&fake->mutex);
    fake->settings.waiting_batch = waiting;
    fake->settings.max_queue_batch = max_queue;
    pthread_mutex_unlock(&fake->mutex);
    rpc_loop_post(fake->loop, fake_tell_all, fake);
}

static inline void fake_set_tokens(struct fake *fake, uint32_t hold_at, uint32_t finish_at, Fastdecode__Finish finish)
{
    pthread_mutex_lock(&fake->mutex);
    fake->settings.hold_at = hold_at;
    fake->settings.finish_at = finish_at;
    fake->settings.finish = finish;
    pthread_mutex_unlock(&fake->mutex);
}

static inline void fake_set_fingerprint(struct fake *fake, uint64_t fingerprint)
{
    pthread_mutex_lock(&fake->mutex);
    fake->settings.fingerprint = fingerprint;
    pthread_mutex_unlock(&fake->mutex);
    rpc_loop_post(fake->loop, fake_tell_all, fake);
}

static inline void fake_set_silent(struct fake *fake, bool silent)
{
    pthread_mutex_lock(&fake->mutex);
    fake->settings.silent = silent;
    pthread_mutex_unlock(&fake->mutex);
}

// Sets the answer to Metrics, which is borrowed until the next call. NULL: the usual text.
static inline void fake_set_metrics(struct fake *fake, const char *text)
{
    pthread_mutex_lock(&fake->mutex);
    fake->settings.metrics = text;
    pthread_mutex_unlock(&fake->mutex);
}

// Waits until accept(settings, wanted); false where it is not true in time.
static inline bool fake_wait(struct fake *fake, bool (*accept)(const struct fake_settings *, uint32_t), uint32_t wanted)
{
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);
    bool accepted;

    pthread_mutex_lock(&fake->mutex);
    while (!(accepted = accept(&fake->settings, wanted)) && !pace_passed(&deadline)) {
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 1 + pace_left_ms(&deadline) / 1000;
        pthread_cond_timedwait(&fake->changed, &fake->mutex, &limit);
    }
    pthread_mutex_unlock(&fake->mutex);
    return accepted;
}

#endif

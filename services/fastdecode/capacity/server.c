// server.c: see server.h.
#include "services/fastdecode/capacity/server.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/measure.h"
#include "common/json/json_text.h"

enum {
    WARM_WORDS = 16,
    FIT_WORDS = 300,
    WARM_TOKENS = 8,
    ROUNDS = 2, // of each lone prompt; the faster one counts
    TRIES = 3,
    STEP_TOKENS_MIN = 16,
    STEP_TOKENS_MAX = 64,
    TOGETHER_TOKENS = 4096,
    GAPS_MAX = 1 << 14, // 256 streams
    GAPS_MIN = 4,
    LOOK_US = 10000,
    TICK_US = 100000,
    SETTLE_S = 30,
};

static const double SETTLED_S = 0.02; // what a busy client may add

// --- streams without a load -----------------------------------------------------------------------------------------

struct alone {
    uint32_t streams, begun, ended; // begun: past their prompts
    uint64_t due_us, first_us;      // of the stream that began last
    uint64_t ended_us;              // of the one that ended last
    uint32_t gaps_wanted;           // it is enough then; 0: the streams go to their end
    int status;                     // of the first that failed, else of the last
    bool failed;
    char error[256];
    uint32_t prompt_tokens, answer_tokens;
    double gaps[GAPS_MAX]; // seconds, while all were past their prompts and none had ended
    uint32_t gap_count;
};

static void on_alone_token(void *arg, const struct load_stream *stream, uint64_t gap_us)
{
    struct alone *alone = arg;

    if (stream->event_count == 1) {
        alone->begun++;
        alone->first_us = stream->first_us;
    } else if (alone->begun == alone->streams && alone->ended == 0 && alone->gap_count < GAPS_MAX) {
        alone->gaps[alone->gap_count++] = (double)gap_us / 1e6;
    }
}

static void on_alone_ended(void *arg, const struct load_stream *stream)
{
    struct alone *alone = arg;

    alone->ended++;
    alone->ended_us = clock_now_us();
    if (alone->failed)
        return;
    alone->status = stream->status;
    alone->prompt_tokens = stream->prompt_tokens;
    alone->answer_tokens = stream->answer_tokens ? stream->answer_tokens : stream->event_count;
    alone->failed = !stream->ok;
    snprintf(alone->error, sizeof alone->error, "%s", stream->error);
}

static bool is_over(const struct alone *alone)
{
    return alone->ended == alone->streams || (alone->gaps_wanted > 0 && (alone->gap_count >= alone->gaps_wanted || alone->failed));
}

// Runs so many streams at once, to their end or until there are gaps_wanted gaps. What they bring is in *out, good or bad. CANCELLED:
// interrupted.
static enum status ask_until(struct capacity_server *server, uint32_t words, uint32_t answer_tokens, uint32_t streams,
                             uint32_t gaps_wanted, struct alone *out, struct error *error)
{
    struct load_callbacks callbacks = {.token = on_alone_token, .ended = on_alone_ended, .arg = out};
    enum status status = STATUS_OK;

    *out = (struct alone){.streams = streams, .due_us = clock_now_us(), .gaps_wanted = gaps_wanted};
    load_client_listen(server->client, &callbacks);
    for (uint32_t i = 0; i < streams && !status; i++)
        status = capacity_server_ask(server, i, out->due_us, words, answer_tokens, error);
    while (!status && !is_over(out) && !*server->interrupted)
        load_client_run(server->client, clock_now_us() + LOOK_US);
    if (!status && !is_over(out))
        status = error_set(error, STATUS_CANCELLED, "interrupted");
    load_client_cancel(server->client);
    load_client_listen(server->client, &(struct load_callbacks){0});
    return status;
}

static enum status ask_alone(struct capacity_server *server, uint32_t words, uint32_t answer_tokens, struct alone *out,
                             struct error *error)
{
    return ask_until(server, words, answer_tokens, 1, 0, out, error);
}

enum status capacity_server_ask(struct capacity_server *server, uint32_t index, uint64_t due_us, uint32_t words,
                                uint32_t answer_tokens, struct error *error)
{
    text_clear(&server->prompt);
    prompt_words_append(&server->prompt, words, server->serial++);
    if (server->prompt.failed)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a prompt of %u words", words);
    return load_client_start(server->client, index, due_us, server->prompt.data, server->prompt.bytes, answer_tokens, error);
}

static enum status refused(const struct capacity_server *server, const struct alone *alone, struct error *error)
{
    return error_set(error, STATUS_UNAVAILABLE, "%s gives no answer to a request (see --url, --model and --api-key-file): %s",
                     server->config.url, alone->error);
}

// The same, where an answer must come.
static enum status ask_well(struct capacity_server *server, uint32_t words, uint32_t answer_tokens, struct alone *out,
                            struct error *error)
{
    enum status status = ask_alone(server, words, answer_tokens, out, error);
    return status ? status : out->failed ? refused(server, out, error) : STATUS_OK;
}

// --- what it is -----------------------------------------------------------------------------------------------------

static uint32_t positive(const json_t *value) { return (uint32_t)MIN(MAX(json_integer_value(value), 0), TRACE_TOKENS_MAX); }

// NULL: it is not there, or no JSON.
static json_t *get_json(const struct capacity_server *server, const char *path, struct error *error)
{
    json_t *root = NULL;
    char *body;
    long status;
    size_t at;

    if (load_client_get(&server->config, path, &status, &body, error) != STATUS_OK)
        return NULL;
    if (status == 200 && json_check_limits(body, strlen(body), 32, 1 << 16, &at) == JSON_WITHIN)
        root = json_loads(body, 0, NULL);
    free(body);
    return root;
}

// The model's name where none was given, and the longest context: max_model_len as of vLLM and of our gateway; of llama-server a slot's.
static enum status learn_model(struct capacity_server *server, struct error *error)
{
    json_t *models, *model, *props;
    struct error unread = {0};
    const char *name;
    size_t i;

    models = get_json(server, "/v1/models", &unread);
    if (!models && unread.status)
        return error_set(error, STATUS_UNAVAILABLE, "%s", unread.text);
    json_array_foreach (json_object_get(models, "data"), i, model) {
        name = json_string_value(json_object_get(model, "id"));
        if (name && (!server->config.model || !strcmp(name, server->config.model))) {
            snprintf(server->model, sizeof server->model, "%s", name);
            server->context_tokens = positive(json_object_get(model, "max_model_len"));
            break;
        }
    }
    if (!server->model[0] && json_array_size(json_object_get(models, "data")) == 1) // another name of the only one
        server->context_tokens = positive(json_object_get(json_array_get(json_object_get(models, "data"), 0), "max_model_len"));
    if (!server->context_tokens && (props = get_json(server, "/props", &unread)) != NULL) {
        server->context_tokens = positive(json_object_get(json_object_get(props, "default_generation_settings"), "n_ctx"));
        json_decref(props);
    }
    json_decref(models);
    if (!server->config.model && server->model[0])
        server->config.model = server->model;
    return STATUS_OK;
}

// The first questions. A server that refuses fields of ours is asked without them.
static enum status learn_fields(struct capacity_server *server, struct alone *alone, struct error *error)
{
    static const bool wanted[][2] = {{true, true}, {false, true}, {false, false}}; // ignore_eos, usage
    enum status status;

    for (size_t i = 0; i < ARRAY_COUNT(wanted); i++) {
        load_client_set(server->client, server->config.model, wanted[i][0], wanted[i][1]);
        if ((status = ask_alone(server, WARM_WORDS, WARM_TOKENS, alone, error)))
            return status;
        if (alone->status != 400 && alone->status != 422)
            break;
        if (i == 0)
            capacity_progress_warn(
                server->progress,
                "the server takes no ignore_eos: answers may be shorter than the trace says, and the rate too high");
    }
    return alone->failed ? refused(server, alone, error) : STATUS_OK;
}

enum status capacity_server_open(struct capacity_server *server, struct error *error)
{
    uint32_t words = FIT_WORDS, tokens;
    struct alone *alone = calloc(1, sizeof *alone);
    enum status status = alone ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");

    server->fit = (struct prompt_fit){0, 1};
    server->serial = clock_wall_us() << 20;
    if (!status)
        status = load_client_open(&server->config, &server->client, error);
    if (!status)
        status = learn_model(server, error);
    if (!status)
        status = learn_fields(server, alone, error);
    if (!status) {
        tokens = alone->prompt_tokens;
        server->counts_tokens = tokens > 0;
        if (server->context_tokens)
            words = MIN(words, MAX(server->context_tokens / 4, WARM_WORDS + 8u));
        if (!server->counts_tokens)
            capacity_progress_warn(server->progress,
                                   "the server does not count tokens: a word is taken for one, a piece of text for one");
        else if (!(status = ask_well(server, words, WARM_TOKENS, alone, error)))
            prompt_fit_learn(&server->fit, WARM_WORDS, tokens, words, alone->prompt_tokens);
    }
    free(alone);
    return status;
}

void capacity_server_close(struct capacity_server *server)
{
    load_client_close(server->client);
    server->client = NULL;
    text_free(&server->prompt);
}

// --- what it takes --------------------------------------------------------------------------------------------------

// The faster of a few streams to its first token; an answer may be empty, and then another is asked.
static enum status lone_prompt(struct capacity_server *server, uint32_t tokens, struct alone *alone, double *prompt_tokens,
                               double *ttft_s, struct error *error)
{
    uint32_t words = prompt_fit_words(&server->fit, tokens), good = 0;

    *ttft_s = 0;
    for (uint32_t i = 0; i < TRIES && good < ROUNDS; i++) {
        enum status status = ask_well(server, words, WARM_TOKENS, alone, error);
        if (status)
            return status;
        if (alone->begun == 0)
            continue;
        double seconds = (double)(alone->first_us - alone->due_us) / 1e6;
        *ttft_s = good++ == 0 ? seconds : MIN(*ttft_s, seconds);
        *prompt_tokens = alone->prompt_tokens ? alone->prompt_tokens : tokens;
    }
    return good ? STATUS_OK : error_set(error, STATUS_UNAVAILABLE, "%s gives empty answers", server->config.url);
}

static enum status undisturbed_step(struct capacity_server *server, const struct length_trace *trace, uint32_t streams,
                                    struct alone *alone, double *step_s, struct error *error)
{
    uint32_t prompt = length_trace_prompt_at(trace, 0.5), words = prompt_fit_words(&server->fit, prompt);
    uint32_t tokens = MIN(MAX(length_trace_answer_at(trace, 0.5), STEP_TOKENS_MIN), STEP_TOKENS_MAX);

    if (streams > 1) // the first one goes on until the last one is past its prompt
        tokens = TOGETHER_TOKENS;
    if (trace->context_tokens > prompt)
        tokens = MIN(tokens, trace->context_tokens - prompt);
    for (uint32_t i = 0; i < TRIES; i++) {
        enum status status = ask_until(server, words, tokens, streams, streams * STEP_TOKENS_MAX, alone, error);
        if (!status && alone->failed)
            status = refused(server, alone, error);
        if (status)
            return status;
        if (alone->gap_count >= GAPS_MIN) {
            *step_s = median_of(alone->gaps, alone->gap_count);
            return STATUS_OK;
        }
    }
    return error_set(
        error, STATUS_UNAVAILABLE,
        "%s ends its answers too early to measure the time between tokens: it takes no ignore_eos, or sends an answer in "
        "one piece",
        server->config.url);
}

// The requests of settle(), to a server that has nothing else to do.
static enum status measure_idle(struct capacity_server *server, struct alone *alone, struct error *error)
{
    enum status status = STATUS_OK;

    server->idle_s = 0;
    for (uint32_t i = 0; i < ROUNDS && !status; i++) {
        status = ask_well(server, WARM_WORDS, 1, alone, error);
        server->idle_s = MAX(server->idle_s, (double)(alone->ended_us - alone->due_us) / 1e6);
    }
    return status;
}

enum status capacity_server_measure_alone(struct capacity_server *server, const struct length_trace *trace, uint32_t streams,
                                          struct capacity_undisturbed *out, struct error *error)
{
    static const double shares[] = {0.1, 0.5, 0.9};
    struct alone *alone = calloc(1, sizeof *alone);
    enum status status = alone ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");

    *out = (struct capacity_undisturbed){0};
    for (size_t i = 0; i < ARRAY_COUNT(shares) && !status; i++) {
        uint32_t tokens = length_trace_prompt_at(trace, shares[i]);
        capacity_progress_show(server->progress, "alone: a prompt of %u tokens", tokens);
        status = lone_prompt(server, tokens, alone, &out->prompt_tokens[i], &out->ttft_s[i], error);
        out->count += !status;
    }
    if (!status)
        status = undisturbed_step(server, trace, streams, alone, &out->step_s, error);
    if (!status)
        status = measure_idle(server, alone, error);
    free(alone);
    return status;
}

enum status capacity_server_settle(struct capacity_server *server, struct error *error)
{
    const double enough_s = 2 * server->idle_s + SETTLED_S;
    uint64_t begin_us = clock_now_us();
    struct alone *alone = calloc(1, sizeof *alone);
    enum status status = alone ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");

    while (!status) {
        capacity_progress_show(server->progress, "waiting for the server to be done with the last load");
        status = ask_alone(server, WARM_WORDS, 1, alone, error);
        if (status)
            break;
        bool refused_it = alone->status == 429 || alone->status == 503;
        if (alone->failed && !refused_it)
            status = error_set(error, STATUS_UNAVAILABLE, "%s does not answer any more: %s", server->config.url, alone->error);
        else if (!alone->failed && (double)(alone->ended_us - alone->due_us) / 1e6 <= enough_s)
            break;
        if (clock_now_us() - begin_us > SETTLE_S * 1000000ull) {
            capacity_progress_warn(server->progress,
                                   "the server is not done with the last load after %d s: the next trial may suffer", SETTLE_S);
            break;
        }
        load_client_run(server->client, clock_now_us() + TICK_US);
    }
    free(alone);
    return status;
}

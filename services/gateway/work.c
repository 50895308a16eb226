// work.c: requests with a body, on the work pools: parsing, tokenizing, and what is answered without the mesh.
//
// The queue's limits are checked before a body is parsed, so that no prompt is tokenized only to be refused.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "services/gateway/gateway_internal.h"
#include "services/gateway/respond.h"

enum {
    QUICK_BYTES = 4096, // bodies up to that are tokenized in less time than a step takes
    ANSWER_SHARE = 4,   // of what may wait to be read, one text may have a quarter: it is there twice, and escaped
};

struct work {
    struct exchange *exchange; // held
    enum api_kind kind;
    struct key *key; // NULL: none is needed
};

// How many sequences of one key may wait at a time.
static uint32_t key_limit(const struct gateway *gateway, const struct mesh_state *state)
{
    uint32_t queue = state->max_queue ? state->max_queue : gateway->config.max_queue;

    return keys_count(gateway->keys) > 1 ? (uint32_t)MAX(queue * gateway->config.key_share, 1) : UINT32_MAX;
}

static void add_waiting(struct key *key, int32_t count)
{
    if (key)
        atomic_fetch_add_explicit(&key->waiting, (uint32_t)count, memory_order_relaxed);
}

static void free_work(struct work *work)
{
    add_waiting(work->key, -1);
    exchange_drop_body(work->exchange);
    exchange_release(work->exchange);
    free(work);
}

void work_ask(struct gateway *gateway, struct exchange *exchange, enum api_kind kind, struct key *key)
{
    struct work *work = calloc(1, sizeof *work);

    if (work) {
        *work = (struct work){exchange_hold(exchange), kind, key};
        add_waiting(key, 1);
        if (work_pool_push(gateway->pool, work) != STATUS_OK)
            free_work(work);
    }
    exchange_release(exchange);
}

struct cancellation {
    struct gateway *gateway;
    struct exchange *exchange; // held
};

static void cancel_on_loop(void *arg)
{
    struct cancellation *cancellation = arg;

    requests_cancel(cancellation->gateway->requests, cancellation->exchange);
    exchange_release(cancellation->exchange);
    free(cancellation);
}

void work_cancel(struct gateway *gateway, struct exchange *exchange)
{
    struct cancellation *cancellation = malloc(sizeof *cancellation);

    if (!cancellation)
        return; // its stream ends by length: nothing else can be done without memory
    *cancellation = (struct cancellation){gateway, exchange_hold(exchange)};
    mesh_post(gateway->mesh, cancel_on_loop, cancellation);
}

void work_queue(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct api_error error = {0};
    struct mesh_state state;
    struct work *work;
    struct key *key;
    size_t bytes;

    mesh_state(gateway->mesh, &state);
    if ((kind & (API_COMPLETION | API_CHAT)) && state.ready && state.max_queue && state.waiting >= state.max_queue) {
        api_fail(&error, 429, "rate_limit_exceeded", NULL, "the queue is full (%u requests wait), try again later", state.waiting);
        error.retry_after_s = request_retry_after_s(state.predicted_wait_ms);
        respond_error(exchange, &error);
        return;
    }
    key = gateway->keys ? keys_find(gateway->keys, exchange_header(exchange, "Authorization")) : NULL;
    if (key && atomic_load_explicit(&key->waiting, memory_order_relaxed) >= key_limit(gateway, &state)) {
        api_fail(&error, 429, "rate_limit_exceeded", NULL, "this API key has its share of the queue, try again later");
        error.retry_after_s = request_retry_after_s(state.predicted_wait_ms);
        respond_error(exchange, &error);
        return;
    }
    work = calloc(1, sizeof *work);
    if (!work) {
        api_no_memory(&error);
        respond_error(exchange, &error);
        return;
    }
    work->exchange = exchange_hold(exchange);
    work->kind = kind;
    work->key = key;
    add_waiting(key, 1);
    exchange_body(exchange, &bytes);
    if (work_pool_push(bytes <= QUICK_BYTES ? gateway->quick : gateway->pool, work) == STATUS_OK)
        return;
    api_fail(&error, 429, "rate_limit_exceeded", NULL, "too many requests wait to be read, try again later");
    error.retry_after_s = request_retry_after_s(state.predicted_wait_ms);
    respond_error(exchange, &error);
    free_work(work);
}

static void answer_tokenize(struct gateway *gateway, struct exchange *exchange, const struct api_request *api)
{
    struct error reason = {0};
    struct api_error error;
    struct text body = {0};
    uint32_t *ids = NULL, count = 0, i;
    enum status status;

    if (api->messages)
        status = language_encode_chat(gateway->language, api->messages, api->message_count, api->add_generation_prompt, UINT32_MAX,
                                      &ids, &count, &reason);
    else
        status = language_encode(gateway->language, api->prompts[0].text, api->prompts[0].bytes, api->add_special_tokens,
                                 api->parse_special, UINT32_MAX, &ids, &count, &reason);
    if (status != STATUS_OK) {
        api_fail(&error, status == STATUS_RESOURCE_EXHAUSTED ? 500 : 400, "invalid_value", api->messages ? "messages" : "prompt",
                 "%s", reason.text);
        respond_error(exchange, &error);
        return;
    }
    if (count * (1 + (uint64_t)api->return_token_strs) > gateway->config.max_request_tokens) {
        free(ids);
        api_fail(&error, 400, "request_too_large", api->messages ? "messages" : "prompt",
                 "the text has %u tokens; with their strings counted, at most %u are given in one answer", count,
                 gateway->config.max_request_tokens);
        respond_error(exchange, &error);
        return;
    }
    text_format(&body, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", count, answer_context(gateway));
    for (i = 0; i < count; i++)
        text_format(&body, i ? ",%u" : "%u", ids[i]);
    text_string(&body, "],\"token_strs\":");
    for (i = 0; api->return_token_strs && i < count; i++) {
        size_t bytes;
        const char *token = language_token(gateway->language, ids[i], &bytes);
        text_append(&body, i ? "," : "[", 1);
        text_json(&body, token, bytes);
    }
    text_string(&body, !api->return_token_strs ? "null}\n" : count ? "]}\n" : "[]}\n");
    free(ids);
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

static void answer_detokenize(struct gateway *gateway, struct exchange *exchange, const struct api_request *api)
{
    const struct api_prompt *tokens = &api->prompts[0];
    uint64_t most = gateway->config.max_unsent_bytes / ANSWER_SHARE, total = 0;
    struct text prompt = {0}, body = {0};
    struct api_error error;
    uint32_t i;

    for (i = 0; i < tokens->id_count; i++) {
        size_t bytes;
        (void)language_token(gateway->language, tokens->ids[i], &bytes);
        total += bytes;
    }
    if (total > most) {
        api_fail(&error, 400, "request_too_large", "tokens",
                 "the text of the tokens has %llu bytes; at most %llu are given in one answer", (unsigned long long)total,
                 (unsigned long long)most);
        respond_error(exchange, &error);
        return;
    }
    language_decode(gateway->language, tokens->ids, tokens->id_count, true, &prompt);
    text_string(&body, "{\"prompt\":");
    text_json(&body, prompt.data, prompt.bytes);
    text_string(&body, "}\n");
    body.failed |= prompt.failed;
    text_free(&prompt);
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

struct start {
    struct gateway *gateway;
    struct request *request;
};

static void start_on_loop(void *arg)
{
    struct start *start = arg;

    requests_start(start->gateway->requests, start->request);
    free(start);
}

// Takes api over.
static void start_request(struct gateway *gateway, struct work *work, struct api_request *api)
{
    struct start *start = malloc(sizeof *start);
    struct request *request = NULL;
    struct api_error error = {0};

    if (!request_prepare(gateway->requests, work->exchange, api, work->key, &request, &error)) {
        respond_error(work->exchange, &error);
        free(start);
        return;
    }
    work->key = NULL; // counted by the request from here on
    if (start) {
        *start = (struct start){gateway, request};
        mesh_post(gateway->mesh, start_on_loop, start);
    } else {
        api_no_memory(&error);
        respond_error(work->exchange, &error);
        request_discard(request);
    }
}

void work_run(void *arg, void *item)
{
    struct gateway *gateway = arg;
    struct work *work = item;
    struct api_request api = {0};
    struct api_error error = {0};
    size_t bytes;
    const char *body = exchange_body(work->exchange, &bytes);

    if (exchange_is_gone(work->exchange)) {
        // nobody is left to answer
    } else if (!api_request_parse(work->kind, body, bytes, language_vocab(gateway->language), &api, &error) ||
               (api.model && !answer_check_model(gateway, api.model, &error))) {
        log_info("API-REFUSED", "request=%s status=%d param=%s", exchange_request_id(work->exchange), error.status,
                 error.param[0] ? error.param : "-");
        respond_error(work->exchange, &error);
    } else {
        exchange_drop_body(work->exchange);
        if (work->kind == API_TOKENIZE)
            answer_tokenize(gateway, work->exchange, &api);
        else if (work->kind == API_DETOKENIZE)
            answer_detokenize(gateway, work->exchange, &api);
        else
            start_request(gateway, work, &api); // and empties api
    }
    api_request_free(&api);
    free_work(work);
}

// work.c: requests with a body, on the work pools: parsing, tokenizing, and what is answered without the mesh.
//
// The queue's limits are checked before a body is parsed, so that no prompt is tokenized only to be refused. Where only a body that asks for
// service_tier "flex" would be taken, one that may do so is parsed first.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "services/gateway/api/schema/value.h"
#include "services/gateway/serve/gateway_internal.h"

enum {
    QUICK_BYTES = 4096, // bodies up to that are tokenized in less time than a step takes
    ANSWER_SHARE = 4,   // of what may wait to be read, one text may have a quarter: it is there twice, and escaped
};

struct work {
    struct exchange *exchange; // held
    enum api_kind kind;
    struct key *key;        // NULL: none is needed
    struct key_grant grant; // of its limits
    bool batch;             // the key counts it in latency class batch
    bool must_be;           // it is refused if it is not of that class
};

// The gateway's own requests, lines of batches, are in OpenAI's form.
static const struct dialect *dialect_of(const struct exchange *exchange)
{
    const struct dialect *dialect = exchange_dialect(exchange);

    return dialect ? dialect : &dialect_openai;
}

static void add_waiting(struct key *key, bool batch, int32_t count)
{
    if (key)
        atomic_fetch_add_explicit(&key->waiting[batch], (uint32_t)count, memory_order_relaxed);
}

// Whether there is no room in the queue of a latency class, or in the key's share of it. more: beside those that are counted already.
static bool is_full(const struct gateway *gateway, const struct mesh_state *state, const struct key *key, enum api_kind kind,
                    bool batch, uint32_t more, struct api_error *error)
{
    uint32_t waiting = batch ? state->waiting_batch : state->waiting, most = batch ? state->max_queue_batch : state->max_queue;
    uint32_t share = (uint32_t)MAX((most ? most : gateway->config.max_queue) * gateway->config.key_share, 1);

    if ((kind & API_MESH) && state->ready && most && waiting >= most)
        api_limit(error, "queue_full", "the queue is full (%u requests%s wait), try again later", waiting,
                  batch ? " of service_tier \"flex\"" : "");
    else if (key && keys_count(gateway->keys) > 1 &&
             atomic_load_explicit(&key->waiting[batch], memory_order_relaxed) + more > share)
        api_limit(error, "key_queue_share", "this API key has its share of the queue, try again later");
    else
        return false;
    error->retry_after_s = request_retry_after_s(batch ? state->predicted_wait_batch_ms : state->predicted_wait_ms);
    return true;
}

// Whether the body may ask for the latency class batch, by service_tier "flex" or priority: the words may also be elsewhere in it.
static bool may_ask_for_batch(enum api_kind kind, struct exchange *exchange)
{
    size_t bytes;
    const char *body = exchange_body(exchange, &bytes);

    return (kind & API_MESH) && bytes > 0 &&
           (memmem(body, bytes, "service_tier", strlen("service_tier")) || memmem(body, bytes, "priority", strlen("priority")));
}

static void free_work(struct work *work)
{
    key_end(&work->grant, 0);
    add_waiting(work->key, work->batch, -1);
    exchange_drop_body(work->exchange);
    exchange_release(work->exchange);
    free(work);
}

void work_ask(struct gateway *gateway, struct exchange *exchange, enum api_kind kind, struct key *key)
{
    struct work *work = calloc(1, sizeof *work);

    if (work) {
        *work = (struct work){.exchange = exchange_hold(exchange), .kind = kind, .key = key, .batch = true};
        add_waiting(key, true, 1);
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

// Refuses a request, with the state of its key's limits. key: NULL: none has any.
static void refuse(struct exchange *exchange, struct key *key, const struct api_error *error)
{
    answer_limits(exchange, key);
    exchange_refuse(exchange, error);
}

void work_queue(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct api_error error = {0};
    struct mesh_state state;
    struct work *work;
    struct key_grant grant;
    struct key *key;
    size_t bytes;
    bool full, is_batch;

    mesh_state(gateway->mesh, &state);
    key = client_key(gateway, exchange);
    is_batch = key && key_is_batch(key);
    full = is_full(gateway, &state, key, kind, is_batch, 1, &error);
    if ((full && (is_batch || !state.max_queue_batch || !may_ask_for_batch(kind, exchange))) || !key_begin(key, &grant, &error)) {
        refuse(exchange, key, &error);
        return;
    }
    work = calloc(1, sizeof *work);
    if (!work) {
        key_end(&grant, 0);
        api_no_memory(&error);
        exchange_refuse(exchange, &error);
        return;
    }
    work->grant = grant;
    work->exchange = exchange_hold(exchange);
    work->kind = kind;
    work->key = key;
    work->must_be = full;
    work->batch = full || is_batch;
    add_waiting(key, work->batch, 1);
    exchange_body(exchange, &bytes);
    if (work_pool_push(bytes <= QUICK_BYTES ? gateway->quick : gateway->pool, work) == STATUS_OK)
        return;
    api_limit(&error, "unread_requests", "too many requests wait to be read, try again later");
    error.retry_after_s = request_retry_after_s(state.predicted_wait_ms);
    refuse(exchange, key, &error);
    free_work(work);
}

static void answer_tokenize(struct gateway *gateway, struct exchange *exchange, struct api_request *api)
{
    struct error reason = {0};
    struct api_error error;
    struct text body = {0};
    uint32_t *ids = NULL, count = 0, i;
    bool reasoning_is_open;
    enum status status;

    if (api->messages)
        status = language_encode_chat(gateway->language, api, UINT32_MAX, &ids, &count, &reasoning_is_open, &reason);
    else
        status = language_encode(gateway->language, api->prompts[0].text, api->prompts[0].bytes, api->add_special_tokens,
                                 api->parse_special, UINT32_MAX, &ids, &count, &reason);
    if (status != STATUS_OK) {
        api_fail(&error, status == STATUS_RESOURCE_EXHAUSTED ? 500 : 400, "invalid_value",
                 status == STATUS_NOT_FOUND ? "chat_template"
                 : api->messages            ? "messages"
                                            : "prompt",
                 "%s", reason.text);
        exchange_refuse(exchange, &error);
        return;
    }
    if (count * (1 + (uint64_t)api->shown.return_token_strs) > gateway->config.max_request_tokens) {
        free(ids);
        api_fail(&error, 400, "request_too_large", api->messages ? "messages" : "prompt",
                 "the text has %u tokens; with their strings counted, at most %u are given in one answer", count,
                 gateway->config.max_request_tokens);
        exchange_refuse(exchange, &error);
        return;
    }
    if (dialect_of(exchange)->tokens) {
        dialect_of(exchange)->tokens(count, &body);
        free(ids);
        exchange_respond(exchange, 200, HTTP_JSON, &body);
        return;
    }
    text_format(&body, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", count, answer_context(gateway));
    for (i = 0; i < count; i++)
        text_format(&body, i ? ",%u" : "%u", ids[i]);
    text_string(&body, "],\"token_strs\":");
    for (i = 0; api->shown.return_token_strs && i < count; i++) {
        size_t bytes;
        const char *token = language_token(gateway->language, ids[i], &bytes);
        text_append(&body, i ? "," : "[", 1);
        text_json(&body, token, bytes);
    }
    text_string(&body, !api->shown.return_token_strs ? "null}\n" : count ? "]}\n" : "[]}\n");
    free(ids);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
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
        exchange_refuse(exchange, &error);
        return;
    }
    language_decode(gateway->language, tokens->ids, tokens->id_count, true, &prompt);
    text_json_bytes_after(&body, "{\"prompt\":", prompt.data, prompt.bytes);
    text_string(&body, "}\n");
    body.failed |= prompt.failed;
    text_free(&prompt);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// The model is there as long as the server is.
static void answer_load(struct exchange *exchange, struct dialect_run *run)
{
    struct text body = {0};

    dialect_end_whole(run, &(struct dialect_end){.finish_reason = "load"}, &body);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
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

// Whether there is room for it in the queue of the class that its body asks for. It moves there in the key's count.
static bool check_class(struct gateway *gateway, struct work *work, struct api_request *api, bool is_batch, struct api_error *error)
{
    const bool batch = api->limits.flex || api->limits.yields || is_batch || exchange_is_local(work->exchange);
    struct mesh_state state;

    api->limits.flex = api->limits.flex || is_batch;
    if (batch == work->batch && !work->must_be)
        return true; // looked at before
    add_waiting(work->key, work->batch, -1);
    work->batch = batch;
    add_waiting(work->key, work->batch, 1);
    mesh_state(gateway->mesh, &state);
    return !is_full(gateway, &state, work->key, work->kind, batch, 0, error);
}

// Takes api and run over.
static void start_request(struct gateway *gateway, struct work *work, struct api_request *api, struct dialect_run *run)
{
    struct start *start = malloc(sizeof *start);
    struct request *request = NULL;
    struct api_error error = {0};

    if (!request_prepare(gateway->requests, work->exchange, api, run, work->key, &request, &error)) {
        dialect_rename_field(dialect_of(work->exchange), &error);
        refuse(work->exchange, work->grant.key, &error);
        free(start);
        return;
    }
    work->key = NULL; // counted by the request from here on
    struct key *limited = work->grant.key;
    if (!request_take_grant(request, &work->grant, &error)) {
        refuse(work->exchange, limited, &error);
        request_discard(request);
        free(start);
        return;
    }
    answer_limits(work->exchange, limited);
    if (start) {
        *start = (struct start){gateway, request};
        mesh_post(gateway->mesh, start_on_loop, start);
    } else {
        api_no_memory(&error);
        exchange_refuse(work->exchange, &error);
        request_discard(request);
    }
}

// Reads the body in its dialect. *run: the answer's; NULL: the mesh is not asked. On failure *api is empty and *run is NULL.
static bool parse_body(struct gateway *gateway, struct work *work, struct api_request *api, struct dialect_run **run,
                       struct api_error *error)
{
    const struct dialect *dialect = dialect_of(work->exchange);
    size_t bytes;
    const char *body = exchange_body(work->exchange, &bytes);
    json_t *root = schema_parse_json(body, bytes, error);
    struct dialect_ask ask = {.body = root,
                              .tenant = work->key ? work->key->tenant : "",
                              .request_id = exchange_request_id(work->exchange),
                              .store = gateway->responses,
                              .kind = work->kind};
    bool ok;

    if (!root)
        return false;
    ok = dialect_translate(dialect, &ask, error);
    json_decref(root);
    if (!ok)
        return false;
    work->kind = ask.kind;
    ok = api_request_read(ask.kind, ask.chat, language_api_model(gateway->language), api, error);
    if (!ok)
        dialect_rename_field(dialect, error);
    if (ok && ask.chat != root) // else its own are known
        api->ignored = ask.ignored;
    if (ok && (ask.kind & API_MESH)) {
        api->limits.caps = ask.caps;
        api->sampling.temperature = ask.temperature > 0 ? ask.temperature : api->sampling.temperature;
        api->pool.truncates = ask.truncates;
        api->pool.scales = ask.scales;
        *run = dialect_run_open(dialect, &ask);
        ok = *run || api_no_memory(error);
    }
    if (*run)
        (*run)->model = language_name(gateway->language);
    dialect_free_own(dialect, ask.own);
    if (!ok)
        api_request_free(api);
    return ok;
}

// Returns whether the body is a request for this gateway's model.
static bool read_body(struct gateway *gateway, struct work *work, struct api_request *api, struct dialect_run **run,
                      struct api_error *error)
{
    return parse_body(gateway, work, api, run, error) && (!api->model || answer_check_model(gateway, api->model, error)) &&
           (!work->grant.key || key_permits_model(work->grant.key, language_name(gateway->language), error));
}

// Logs a field the first time that a client sends it.
static void log_ignored(struct gateway *gateway, const char *name)
{
    uint64_t hash = 14695981039346656037u; // FNV-1a
    uint32_t i = 0;
    bool is_new;

    for (const char *at = name; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    pthread_mutex_lock(&gateway->ignored_lock);
    while (i < gateway->ignored_count && gateway->ignored[i] != hash)
        i++;
    is_new = i == gateway->ignored_count && i < ARRAY_COUNT(gateway->ignored);
    if (is_new)
        gateway->ignored[gateway->ignored_count++] = hash;
    pthread_mutex_unlock(&gateway->ignored_lock);
    if (is_new)
        log_info("API-FIELD-IGNORED", "field=%s", name);
}

// Names to the client what was ignored: nothing else says that a field is misspelt.
static void tell_ignored(struct gateway *gateway, struct exchange *exchange, const struct api_ignored *ignored)
{
    struct api_ignored names = *ignored;
    char *state = NULL;

    if (!names.names[0])
        return;
    exchange_add_header(exchange, "x-ignored-fields", names.names);
    for (const char *name = strtok_r(names.names, ", ", &state); name; name = strtok_r(NULL, ", ", &state))
        log_ignored(gateway, name);
}

void work_run(void *arg, void *item)
{
    struct gateway *gateway = arg;
    struct work *work = item;
    struct api_request api = {0};
    struct dialect_run *run = NULL;
    struct api_error error = {0};
    bool is_batch = work->grant.key && key_is_batch(work->grant.key);

    if (exchange_is_gone(work->exchange)) {
        // nobody is left to answer
    } else if (!read_body(gateway, work, &api, &run, &error)) {
        log_info("API-REFUSED", "request=%s status=%d param=%s", exchange_request_id(work->exchange), error.status,
                 error.param[0] ? error.param : "-");
        refuse(work->exchange, work->grant.key, &error);
    } else if ((work->kind & API_MESH) && !check_class(gateway, work, &api, is_batch, &error)) {
        refuse(work->exchange, work->grant.key, &error);
    } else {
        tell_ignored(gateway, work->exchange, &api.ignored);
        exchange_drop_body(work->exchange);
        if (work->kind & (API_TOKENIZE | API_DETOKENIZE) || (run && run->only_loads))
            answer_limits(work->exchange, work->grant.key);
        if (work->kind == API_TOKENIZE)
            answer_tokenize(gateway, work->exchange, &api);
        else if (work->kind == API_DETOKENIZE)
            answer_detokenize(gateway, work->exchange, &api);
        else if (run && run->only_loads)
            answer_load(work->exchange, run);
        else {
            start_request(gateway, work, &api, run); // and empties api
            run = NULL;
        }
    }
    dialect_run_close(run);
    api_request_free(&api);
    free_work(work);
}

// answers.c: answers that are given at once: health, readiness, models, metrics, kept responses, what Ollama's clients ask beside chats; and the
// key of a request.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/json/json_text.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/schema/value.h"
#include "services/gateway/request/request.h"
#include "services/gateway/serve/gateway_internal.h"

// --- the key of a request, in the header that its client sends it in -------------------------------------------------
//
// Most clients send "Authorization: Bearer KEY", Anthropic's "x-api-key: KEY".

enum { HEADER_BYTES = APIKEY_BYTES_MAX + 16 };

// Returns the former, whichever was sent; "" without any.
static const char *given_key(struct exchange *exchange, char buffer[HEADER_BYTES])
{
    const char *given = exchange_header(exchange, "Authorization"), *plain = exchange_header(exchange, "x-api-key");

    if (*given || !*plain)
        return given;
    snprintf(buffer, HEADER_BYTES, "Bearer %s", plain); // one that is cut off is longer than any key
    return buffer;
}

struct key *client_key(struct gateway *gateway, struct exchange *exchange)
{
    char buffer[HEADER_BYTES];

    return gateway->keys ? keys_find(gateway->keys, given_key(exchange, buffer)) : NULL;
}

bool client_gives_key(struct exchange *exchange)
{
    char buffer[HEADER_BYTES];

    return *given_key(exchange, buffer) != '\0';
}

bool client_is_admin(struct gateway *gateway, struct exchange *exchange)
{
    const char *file = gateway->config.admin_key_file;
    char buffer[HEADER_BYTES];

    if (gateway->admin_keys)
        return keys_find(gateway->admin_keys, given_key(exchange, buffer)) != NULL;
    return file || exchange_is_from_this_host(exchange); // it says "open"
}

const char *client_tenant(struct gateway *gateway, struct exchange *exchange)
{
    const struct key *key = client_key(gateway, exchange);

    return key ? key->tenant : "";
}

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

// --- health, readiness, version, models ------------------------------------------------------------------------------
void answer_health(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};

    (void)gateway;
    text_string(&body, "{\"status\":\"ok\"}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_ready(struct gateway *gateway, struct exchange *exchange)
{
    bool leaving = atomic_load_explicit(&gateway->leaving, memory_order_relaxed);
    struct mesh_state state;
    struct text body = {0};
    bool ready;

    mesh_state(gateway->mesh, &state);
    ready = state.ready && !leaving;
    text_string(&body, ready ? "{\"ready\":true" : "{\"ready\":false,\"reason\":");
    if (!ready)
        text_json_string(&body, leaving ? "shutting down" : state.reason);
    text_string(&body, "}\n");
    exchange_respond(exchange, ready ? 200 : 503, HTTP_JSON, &body);
}

void answer_version(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};

    (void)gateway;
    text_string(&body, "{\"version\":\"" FASTDECODE_VERSION "\"}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_openapi(struct gateway *gateway, struct exchange *exchange)
{
    exchange_respond_static(exchange, 200, HTTP_JSON, gateway->openapi.data, gateway->openapi.bytes);
}

uint32_t answer_context(struct gateway *gateway)
{
    struct mesh_state state;
    uint32_t context = language_context(gateway->language);

    mesh_state(gateway->mesh, &state);
    return state.context_tokens ? MIN(context, state.context_tokens) : context;
}

static void append_model(struct gateway *gateway, const char *id, struct text *out)
{
    text_json_after(out, "{\"id\":", id);
    text_format(out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"fastdecode\",\"max_model_len\":%u}",
                (unsigned long long)gateway->created_s, answer_context(gateway));
}

void answer_models(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};

    text_string(&body, "{\"object\":\"list\",\"data\":[");
    append_model(gateway, language_name(gateway->language), &body);
    text_string(&body, "]}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

bool answer_check_model(struct gateway *gateway, const char *model, struct api_error *error)
{
    char cut[128];
    size_t bytes = 0, length = strlen(model);

    if (language_is_named(gateway->language, model))
        return true;
    while (bytes < length && bytes < sizeof cut - 5) { // whole characters only
        size_t one = text_utf8_length(model + bytes, length - bytes);
        bytes += one ? one : 1;
    }
    snprintf(cut, sizeof cut, "%.*s", (int)bytes, model);
    (void)api_fail(error, 404, "model_not_found", "model", "The model '%s' does not exist", cut);
    snprintf(error->model, sizeof error->model, "%s", cut);
    return false;
}

void answer_model(struct gateway *gateway, struct exchange *exchange)
{
    const char *id = exchange_path(exchange) + strlen("/v1/models/");
    struct api_error error;
    struct text body = {0};

    if (!answer_check_model(gateway, id, &error)) {
        exchange_refuse(exchange, &error);
        return;
    }
    append_model(gateway, id, &body);
    text_append(&body, "\n", 1);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// --- limits of a key ----------------------------------------------------------------------------------------------
static void add_limit(struct exchange *exchange, const char *const names[3], uint64_t limit, uint64_t left, uint32_t reset_s)
{
    char value[32];

    snprintf(value, sizeof value, "%llu", (unsigned long long)limit);
    exchange_add_header(exchange, names[0], value);
    snprintf(value, sizeof value, "%llu", (unsigned long long)left);
    exchange_add_header(exchange, names[1], value);
    snprintf(value, sizeof value, "%us", reset_s);
    exchange_add_header(exchange, names[2], value);
}

void answer_limits(struct exchange *exchange, struct key *key)
{
    static const char *const requests[] = {"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests",
                                           "x-ratelimit-reset-requests"};
    static const char *const tokens[] = {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"};
    struct key_state state;

    if (!key)
        return;
    key_state(key, &state);
    if (state.requests_limit)
        add_limit(exchange, requests, state.requests_limit, state.requests_left, state.requests_reset_s);
    if (state.tokens_limit)
        add_limit(exchange, tokens, state.tokens_limit, state.tokens_left, state.tokens_reset_s);
}

// --- metrics: the scheduler's are asked for, on the loop thread ---------------------------------------------------
struct metrics_ask {
    struct gateway *gateway;
    struct exchange *exchange; // held
};

static void add_requests(struct metrics_page *page, struct gateway *gateway)
{
    const char *model = language_name(gateway->language);
    uint32_t running, waiting, batch_running, batch_waiting;
    struct mesh_state state;

    mesh_state(gateway->mesh, &state);
    requests_counts(gateway->requests, false, &running, &waiting);
    requests_counts(gateway->requests, true, &batch_running, &batch_waiting);
    metrics_page_number(page, "fastdecode_gateway_requests_running", "gauge",
                        "Interactive requests of this gateway that have had a token.", running);
    metrics_page_number(page, "fastdecode_gateway_requests_waiting", "gauge",
                        "Interactive requests of this gateway that wait for their first token.", waiting);
    metrics_page_number(page, "fastdecode_gateway_batch_class_running", "gauge",
                        "Requests of latency class batch of this gateway that have had a token.", batch_running);
    metrics_page_number(page, "fastdecode_gateway_batch_class_waiting", "gauge",
                        "Requests of latency class batch of this gateway that wait for their first token.", batch_waiting);
    metrics_page_number(page, "fastdecode_gateway_http_active", "gauge", "HTTP requests being answered.",
                        http_server_active(gateway->http));
    metrics_page_number(page, "fastdecode_gateway_mesh_up", "gauge", "1 while the scheduler is connected.", state.up);
    metrics_page_number(page, "fastdecode_gateway_mesh_ready", "gauge", "1 while the mesh can serve.", state.ready);
    metrics_page_model(page, "vllm:num_requests_running", "Interactive requests of this gateway that run.", model, running);
    metrics_page_model(page, "vllm:num_requests_waiting", "Interactive requests of this gateway that wait.", model, waiting);
    metrics_page_model(page, "vllm:kv_cache_usage_perc", "Share of the mesh's KV pages in use, 0 to 1.", model,
                       state.kv_pages_total ? (double)state.kv_pages_used / (double)state.kv_pages_total : 0);
}

static void add_batches(struct metrics_page *page, struct batch_api *batches)
{
    static const char results[] = "fastdecode_gateway_batch_results_total";
    struct batch_runner_stats stats;

    batch_api_stats(batches, &stats);
    metrics_page_number(page, "fastdecode_gateway_batches_running", "gauge", "Batches at work.", stats.jobs);
    metrics_page_number(page, "fastdecode_gateway_batch_requests", "gauge", "Requests of batches that are being answered.",
                        stats.in_flight);
    metrics_page_family(page, results, "counter", "Lines of batches with a result, since the start.");
    text_format(&page->text, "%s{result=\"completed\"} %llu\n%s{result=\"failed\"} %llu\n", results,
                (unsigned long long)stats.completed, results, (unsigned long long)stats.failed);
}

// Appends how often the disks did not take something.
static void add_not_written(struct metrics_page *page, struct gateway *gateway)
{
    static const char name[] = "fastdecode_gateway_not_written_total";
    static const char *const batch_writes[BATCH_WRITE_COUNT] = {[BATCH_WRITE_RESULTS] = "batch_results",
                                                                [BATCH_WRITE_UPLOADS] = "batch_uploads",
                                                                [BATCH_WRITE_DATABASE] = "batch_database"};
    struct batch_runner_stats stats;

    metrics_page_family(page, name, "counter", "Writes that a disk did not take, by what was to be written.");
    text_format(&page->text, "%s{what=\"log\"} %llu\n", name, (unsigned long long)log_lines_lost());
    if (gateway->audit)
        text_format(&page->text, "%s{what=\"audit\"} %llu\n", name, (unsigned long long)audit_failures(gateway->audit));
    if (!gateway->batches)
        return;
    batch_api_stats(gateway->batches, &stats);
    for (uint32_t i = 0; i < BATCH_WRITE_COUNT; i++)
        text_format(&page->text, "%s{what=\"%s\"} %llu\n", name, batch_writes[i], (unsigned long long)stats.not_written[i]);
}

// When certificates end, if there are some.
static void add_certificates(struct metrics_page *page, struct gateway *gateway)
{
    static const char name[] = "fastdecode_gateway_certificate_expiry_timestamp_seconds";
    const struct rpc_tls_expiry mesh = mesh_expiry(gateway->mesh);
    const struct {
        const char *of;
        uint64_t expires_s;
    } certificates[] = {
        {"mesh", mesh.certificate_s}, {"ca", mesh.ca_s}, {"https", gateway->tls ? http_tls_expires_s(gateway->tls) : 0}};

    if (!certificates[0].expires_s && !certificates[2].expires_s)
        return;
    metrics_page_family(page, name, "gauge",
                        "When a certificate of this gateway ends (mesh: of --tls; ca: its CA; https), since 1970.");
    for (size_t i = 0; i < ARRAY_COUNT(certificates); i++)
        if (certificates[i].expires_s)
            text_format(&page->text, "%s{certificate=\"%s\"} %llu\n", name, certificates[i].of,
                        (unsigned long long)certificates[i].expires_s);
}

// mesh_text: the scheduler's metrics, or NULL.
static void finish_metrics(void *arg, const char *mesh_text)
{
    struct metrics_ask *ask = arg;
    struct gateway *gateway = ask->gateway;
    struct metrics_page page = {0};

    add_requests(&page, gateway);
    if (gateway->batches)
        add_batches(&page, gateway->batches);
    if (gateway->otlp) {
        const struct otlp_counts spans = otlp_counts(gateway->otlp);
        metrics_page_number(&page, "fastdecode_gateway_trace_spans_exported_total", "counter",
                            "Spans that the collector has taken.", spans.exported);
        metrics_page_number(&page, "fastdecode_gateway_trace_spans_dropped_total", "counter",
                            "Spans that were lost on their way to the collector.", spans.dropped);
    }
    add_not_written(&page, gateway);
    add_certificates(&page, gateway);
    metrics_page_counts(&page, gateway->metrics);
    if (mesh_text)
        metrics_page_mesh(&page, mesh_text);
    exchange_respond(ask->exchange, 200, METRICS_TYPE, &page.text);
    exchange_release(ask->exchange);
    free(ask);
}

static void ask_for_metrics(void *arg)
{
    struct metrics_ask *ask = arg;

    if (!scrape_get(ask->gateway->scrape, finish_metrics, ask))
        finish_metrics(ask, NULL);
}

void answer_metrics(struct gateway *gateway, struct exchange *exchange)
{
    struct metrics_ask *ask = malloc(sizeof *ask);
    struct api_error error;

    if (ask) {
        *ask = (struct metrics_ask){gateway, exchange_hold(exchange)};
        if (gateway->config.mesh_metrics)
            mesh_post(gateway->mesh, ask_for_metrics, ask);
        else
            finish_metrics(ask, NULL);
        return;
    }
    api_no_memory(&error);
    exchange_refuse(exchange, &error);
}

// --- answers of /v1/responses that were kept, given once more or removed, and what they were answers to --------------

enum {
    ITEMS_USUAL = 20, // of a page
    ITEMS_MOST = 100,
    ITEMS_BYTES_MOST = 1 << 20, // of a conversation that is listed: this is done on the polling thread
};

// Copies the id that is in the path, before the suffix. One that is too long is nobody's.
static const char *id_of(const struct exchange *exchange, const char *suffix, char id[DIALECT_ID_BYTES])
{
    const char *at = exchange_path(exchange) + strlen("/v1/responses/");
    const size_t bytes = strlen(at) - strlen(suffix);

    snprintf(id, DIALECT_ID_BYTES, "%.*s", (int)MIN(bytes, (size_t)DIALECT_ID_BYTES - 1), at);
    return id;
}

static void refuse(struct gateway *gateway, struct exchange *exchange)
{
    const char *below = strchr(exchange_path(exchange) + strlen("/v1/responses/"), '/');
    struct api_error error;

    if (below && strcmp(below, "/input_items") != 0 && strcmp(below, "/cancel") != 0)
        api_fail(&error, 404, "not_found", NULL, "unknown path: a response has input_items and cancel");
    else
        api_fail(&error, 404, "not_found", "response_id", "%s",
                 gateway->responses ? "there is no such response: " RESPONSE_IS_GONE
                                    : "this gateway keeps no responses (--responses-memory)");
    exchange_refuse(exchange, &error);
}

void answer_response(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};
    char id[DIALECT_ID_BYTES];

    if (!gateway->responses || !response_store_answer(gateway->responses, client_tenant(gateway, exchange), id_of(exchange, "", id),
                                                      clock_now_us(), &body)) {
        text_free(&body);
        refuse(gateway, exchange);
        return;
    }
    text_append(&body, "\n", 1);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_response_delete(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};
    char id[DIALECT_ID_BYTES];

    if (!gateway->responses ||
        !response_store_remove(gateway->responses, client_tenant(gateway, exchange), id_of(exchange, "", id), clock_now_us())) {
        refuse(gateway, exchange);
        return;
    }
    text_json_after(&body, "{\"id\":", id);
    text_string(&body, ",\"object\":\"response\",\"deleted\":true}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// Only what runs in the background can be cancelled, and nothing does: who waits for an answer ends it by leaving.
void answer_response_cancel(struct gateway *gateway, struct exchange *exchange)
{
    struct api_error error;
    struct text body = {0};
    char id[DIALECT_ID_BYTES];
    const bool found = gateway->responses && response_store_answer(gateway->responses, client_tenant(gateway, exchange),
                                                                   id_of(exchange, "/cancel", id), clock_now_us(), &body);

    text_free(&body);
    if (!found) {
        refuse(gateway, exchange);
        return;
    }
    api_fail(&error, 400, "invalid_value", "response_id", "Cannot cancel a synchronous response: close its connection instead");
    exchange_refuse(exchange, &error);
}

// --- what a response was an answer to -------------------------------------------------------------------------------
// Items are made of the conversation's messages, as the next response is given them.
struct listing {
    const char *response; // its id without the prefix
    json_t *items;
    json_t *custom; // by the ids of calls so far: whether the call is of a custom tool
    bool failed;
};

// Takes over the item; NULL: no memory.
static void add_item(struct listing *listing, const char *prefix, json_t *item)
{
    json_t *id = json_sprintf("%s_%s_in%zu", prefix, listing->response, json_array_size(listing->items));

    listing->failed |= !item || json_object_set_new(item, "id", id) != 0 || json_array_append(listing->items, item) != 0;
    json_decref(item);
}

// Returns a text, or the texts of its parts, as parts of a type.
static json_t *content_of(const json_t *content, const char *type)
{
    json_t *parts = json_array();

    if (json_is_string(content))
        json_array_append_new(parts, json_pack("{s:s,s:O}", "type", type, "text", content));
    for (size_t i = 0; i < json_array_size(content); i++)
        json_array_append_new(parts,
                              json_pack("{s:s,s:O}", "type", type, "text", json_object_get(json_array_get(content, i), "text")));
    return parts;
}

static void list_output(struct listing *listing, const json_t *message)
{
    const json_t *content = json_object_get(message, "content"), *id = json_object_get(message, "tool_call_id");
    const bool is_custom = json_is_string(id) && json_is_true(json_object_get(listing->custom, json_string_value(id)));
    json_t *output = json_is_string(content) ? json_incref((json_t *)(uintptr_t)content) : content_of(content, "input_text");

    add_item(listing, is_custom ? "ctc" : "fc",
             json_pack("{s:s,s:O?,s:o,s:s}", "type", is_custom ? "custom_tool_call_output" : "function_call_output", "call_id", id,
                       "output", output, "status", "completed"));
}

static void list_call(struct listing *listing, const json_t *call)
{
    const bool is_custom = schema_is_string(json_object_get(call, "type"), "custom");
    const json_t *id = json_object_get(call, "id"), *called = json_object_get(call, is_custom ? "custom" : "function");

    if (json_is_string(id))
        listing->failed |= json_object_set_new(listing->custom, json_string_value(id), json_boolean(is_custom)) != 0;
    add_item(listing, is_custom ? "ctc" : "fc",
             json_pack("{s:s,s:O?,s:O?,s:O?,s:s}", "type", is_custom ? "custom_tool_call" : "function_call", "call_id", id, "name",
                       json_object_get(called, "name"), is_custom ? "input" : "arguments",
                       json_object_get(called, is_custom ? "input" : "arguments"), "status", "completed"));
}

static void list_message(struct listing *listing, const json_t *message)
{
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    const json_t *thought = json_object_get(message, "reasoning_content"), *calls = json_object_get(message, "tool_calls");
    const bool says = json_string_length(content) > 0 || json_array_size(content) > 0;

    if (schema_is_string(role, "tool")) {
        list_output(listing, message);
        return;
    }
    if (thought)
        add_item(listing, "rs",
                 json_pack("{s:s,s:[],s:[{s:s,s:O}]}", "type", "reasoning", "summary", "content", "type", "reasoning_text", "text",
                           thought));
    if (says || !calls)
        add_item(listing, "msg",
                 json_pack("{s:s,s:O,s:s,s:o}", "type", "message", "role", role, "status", "completed", "content",
                           content_of(content, schema_is_string(role, "assistant") ? "output_text" : "input_text")));
    for (size_t i = 0; i < json_array_size(calls); i++)
        list_call(listing, json_array_get(calls, i));
}

// The items of a page: newest first unless the client asks otherwise, behind the one that it names.
static bool take_page(struct exchange *exchange, const json_t *items, json_t *page, bool *has_more, struct api_error *error)
{
    const char *order = exchange_query(exchange, "order"), *limit = exchange_query(exchange, "limit"),
               *after = exchange_query(exchange, "after");
    const size_t count = json_array_size(items);
    const bool ascends = strcmp(order, "asc") == 0;
    const long most = *limit ? strtol(limit, NULL, 10) : ITEMS_USUAL;
    bool begun = !*after;

    if (*order && !ascends && strcmp(order, "desc") != 0)
        return api_fail(error, 400, "invalid_value", "order", "'order' must be 'asc' or 'desc'");
    if (most < 1 || most > ITEMS_MOST)
        return api_fail(error, 400, "invalid_value", "limit", "'limit' must be an integer from 1 to %d", ITEMS_MOST);
    for (size_t i = 0; i < count; i++) {
        json_t *item = json_array_get(items, ascends ? i : count - 1 - i);
        if (begun && json_array_size(page) == (size_t)most)
            *has_more = true;
        else if (begun && json_array_append(page, item) != 0)
            return api_no_memory(error);
        begun = begun || schema_is_string(json_object_get(item, "id"), after);
    }
    return begun || api_fail(error, 400, "invalid_value", "after", "'after' is none of the items' ids");
}

static void respond_page(struct exchange *exchange, json_t *page, bool has_more)
{
    const json_t *first = json_object_get(json_array_get(page, 0), "id"),
                 *last = json_object_get(json_array_get(page, json_array_size(page) - 1), "id");
    json_t *list = json_pack("{s:s,s:O,s:O?,s:O?,s:b}", "object", "list", "data", page, "first_id", first, "last_id", last,
                             "has_more", (int)has_more);
    struct text body = {.failed = !list};

    if (list)
        json_text_append(&body, list, false);
    text_append(&body, "\n", 1);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
    json_decref(list);
}

void answer_response_items(struct gateway *gateway, struct exchange *exchange)
{
    struct text kept = {0};
    struct api_error error = {0};
    char id[DIALECT_ID_BYTES];
    bool has_more = false;

    if (!gateway->responses || !response_store_conversation(gateway->responses, client_tenant(gateway, exchange),
                                                            id_of(exchange, "/input_items", id), clock_now_us(), &kept)) {
        text_free(&kept);
        refuse(gateway, exchange);
        return;
    }
    if (kept.bytes > ITEMS_BYTES_MOST) {
        api_fail(&error, 400, "request_too_large", "response_id", "the response's input has %zu bytes; at most %d are listed",
                 kept.bytes, ITEMS_BYTES_MOST);
        exchange_refuse(exchange, &error);
        text_free(&kept);
        return;
    }
    json_t *messages = kept.failed ? NULL : json_text_read(kept.data, kept.bytes, JSON_ALLOW_NUL, NULL), *page = json_array();
    struct listing listing = {.response = id + strlen("resp_"), .items = json_array(), .custom = json_object()};
    listing.failed = !messages || !page || !listing.items || !listing.custom;
    for (size_t i = 0; i + 1 < json_array_size(messages); i++) // the last is the answer
        list_message(&listing, json_array_get(messages, i));
    if (listing.failed)
        (void)api_no_memory(&error);
    if (listing.failed || !take_page(exchange, listing.items, page, &has_more, &error))
        exchange_refuse(exchange, &error);
    else
        respond_page(exchange, page, has_more);
    text_free(&kept);
    json_decref(messages);
    json_decref(listing.items);
    json_decref(listing.custom);
    json_decref(page);
}

// --- what Ollama's clients ask of the models that there are, and what is not answered in their form ------------------

enum { SHOW_BYTES = 4096 }; // of a request: it has a name in it

// As Ollama writes it: "134.5M", "8.0B".
static void append_parameters_size(uint64_t parameters, struct text *out)
{
    const double count = (double)parameters;

    if (count >= 1e9)
        text_format(out, "\"%.1fB\"", count / 1e9);
    else if (count >= 1e6)
        text_format(out, "\"%.2fM\"", count / 1e6);
    else
        text_format(out, "\"%.2fK\"", count / 1e3);
}

static void append_details(const struct gateway *gateway, struct text *out)
{
    const struct language_facts *facts = language_facts(gateway->language);

    text_json_after(out, "\"details\":{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":", facts->architecture);
    text_json_after(out, ",\"families\":[", facts->architecture);
    text_string(out, "],\"parameter_size\":");
    append_parameters_size(facts->parameters, out);
    text_json_after(out, ",\"quantization_level\":", facts->quantization);
    text_append(out, "}", 1);
}

static void append_date(uint64_t seconds, struct text *out)
{
    const time_t time = (time_t)seconds;
    struct tm parts = {0};
    char date[32];

    gmtime_r(&time, &parts);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    text_format(out, "\"%s\"", date);
}

static void append_ollama_model(const struct gateway *gateway, struct text *out)
{
    text_json_after(out, "{\"name\":", language_name(gateway->language));
    text_json_after(out, ",\"model\":", language_name(gateway->language));
    text_string(out, ",\"modified_at\":");
    append_date(gateway->created_s, out);
    text_format(out, ",\"size\":%llu,\"digest\":\"%016llx\",", (unsigned long long)language_facts(gateway->language)->file_bytes,
                (unsigned long long)language_fingerprint(gateway->language));
    append_details(gateway, out);
}

static void answer_list(struct gateway *gateway, struct exchange *exchange, const char *more)
{
    struct text body = {0};

    text_string(&body, "{\"models\":[");
    append_ollama_model(gateway, &body);
    text_string(&body, more);
    text_string(&body, "}]}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// Clients do not talk to an older one than they know: this is the release whose paths and fields are answered here.
#define OLLAMA_VERSION "0.14.2"

void answer_ollama_version(struct gateway *gateway, struct exchange *exchange)
{
    struct text body = {0};

    (void)gateway;
    text_string(&body, "{\"version\":\"" OLLAMA_VERSION "\"}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_ollama_tags(struct gateway *gateway, struct exchange *exchange) { answer_list(gateway, exchange, ""); }

// The model is always loaded.
void answer_ollama_ps(struct gateway *gateway, struct exchange *exchange)
{
    char more[128];

    snprintf(more, sizeof more, ",\"size_vram\":0,\"expires_at\":\"9999-12-31T23:59:59Z\",\"context_length\":%u",
             answer_context(gateway));
    answer_list(gateway, exchange, more);
}

// Reads {"model": name}, or "name", as older clients call it.
static bool read_model(struct gateway *gateway, struct exchange *exchange, struct api_error *error)
{
    size_t bytes;
    const char *body = exchange_body(exchange, &bytes);
    json_t *root;
    const json_t *model;
    char name[SHOW_BYTES];
    bool ok;

    if (bytes > SHOW_BYTES)
        return api_fail(error, 400, "invalid_json", NULL, "the body has more than %d bytes", SHOW_BYTES);
    root = schema_parse_json(body, bytes, error);
    if (!root)
        return false;
    model = json_object_get(root, "model");
    if (!model)
        model = json_object_get(root, "name");
    ok = json_is_string(model) || api_fail(error, 400, "missing_required_parameter", "model", "'model' is required, a string");
    if (ok) {
        char *tag;
        snprintf(name, sizeof name, "%s", json_string_value(model));
        tag = strstr(name, ":latest");
        if (tag && tag[strlen(":latest")] == '\0')
            *tag = '\0';
        ok = answer_check_model(gateway, name, error);
    }
    json_decref(root);
    return ok;
}

// Lists how requests sample that do not say, a line each, by the names of Ollama's options, but for what stays as the API has it.
static void append_parameters(const struct api_model *model, struct text *body)
{
    const char *name;
    double value;
    bool more = false;

    for (size_t at = 0; api_model_next(model, &at, &name, &value); more = true)
        text_format(body, "%s%s %g", more ? "\\n" : "", strcmp(name, "repetition_penalty") ? name : "repeat_penalty", value);
}

// Appends the model's abilities in Ollama's words.
static void append_capabilities(const struct language *language, struct text *out)
{
    const struct language_notation notation = language_notation(language, NULL, true);
    const enum model_pool pool = language_pooling(language)->model.kind;
    const struct {
        const char *name;
        bool can;
    } rows[] = {
        {"completion", pool == MODEL_POOL_NONE},
        {"tools", pool == MODEL_POOL_NONE && language_chats(language) && notation.family},
        {"insert", pool == MODEL_POOL_NONE && prompt_edit_can_fill(language)},
        {"thinking", pool == MODEL_POOL_NONE && (notation.reasoning || answer_has_channels(notation.family))},
        {"embedding", pool != MODEL_POOL_NONE && pool != MODEL_POOL_RANK},
    };
    bool more = false;

    text_string(out, "\"capabilities\":[");
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        if (rows[i].can)
            text_format(out, "%s\"%s\"", more ? "," : "", rows[i].name);
        more |= rows[i].can;
    }
    text_append(out, "]", 1);
}

// Keys of GGUF, which begin with the architecture's name. The context is the one that is served: clients fill it.
static void append_info(struct gateway *gateway, struct text *out)
{
    const struct language_facts *facts = language_facts(gateway->language);
    const uint32_t context = answer_context(gateway);
    const struct {
        const char *key;
        uint32_t value;
    } rows[] = {{"context_length", context},
                {"embedding_length", facts->hidden},
                {"block_count", facts->layers},
                {"feed_forward_length", facts->ffn},
                {"attention.head_count", facts->heads},
                {"attention.head_count_kv", facts->kv_heads},
                {"attention.key_length", facts->head_dim},
                {"attention.value_length", facts->head_dim},
                {"vocab_size", facts->vocab},
                {"expert_count", facts->experts},
                {"expert_used_count", facts->experts_used}};

    text_json_after(out, "\"model_info\":{\"general.architecture\":", facts->architecture);
    text_json_after(out, ",\"general.name\":", language_name(gateway->language));
    text_json_after(out, ",\"general.basename\":", language_name(gateway->language)); // what lists of models show
    text_format(out, ",\"general.parameter_count\":%llu,\"general.context_length\":%u", (unsigned long long)facts->parameters,
                context);
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++)
        if (rows[i].value)
            text_format(out, ",\"%s.%s\":%u", facts->architecture, rows[i].key, rows[i].value);
    text_append(out, "}", 1);
}

void answer_ollama_show(struct gateway *gateway, struct exchange *exchange)
{
    struct api_error error = {0};
    struct text body = {0};

    if (!read_model(gateway, exchange, &error)) {
        exchange_refuse(exchange, &error);
        return;
    }
    text_string(&body, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"");
    append_parameters(language_api_model(gateway->language), &body);
    text_string(&body, "\",\"template\":\"\",\"modified_at\":");
    append_date(gateway->created_s, &body);
    text_append(&body, ",", 1);
    append_details(gateway, &body);
    text_append(&body, ",", 1);
    append_info(gateway, &body);
    text_append(&body, ",", 1);
    append_capabilities(gateway->language, &body);
    text_string(&body, "}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

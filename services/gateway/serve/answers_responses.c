// answers_responses.c: answers of /v1/responses that were kept, given once more or removed, and what they were answers to.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/json/json_text.h"
#include "services/gateway/serve/gateway_internal.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/schema/value.h"

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

void answer_response(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};
    char id[DIALECT_ID_BYTES];

    (void)kind;
    if (!gateway->responses || !response_store_answer(gateway->responses, client_tenant(gateway, exchange), id_of(exchange, "", id),
                                                      clock_now_us(), &body)) {
        text_free(&body);
        refuse(gateway, exchange);
        return;
    }
    text_append(&body, "\n", 1);
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_response_delete(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};
    char id[DIALECT_ID_BYTES];

    (void)kind;
    if (!gateway->responses ||
        !response_store_remove(gateway->responses, client_tenant(gateway, exchange), id_of(exchange, "", id), clock_now_us())) {
        refuse(gateway, exchange);
        return;
    }
    text_string(&body, "{\"id\":");
    text_json_string(&body, id);
    text_string(&body, ",\"object\":\"response\",\"deleted\":true}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// Only what runs in the background can be cancelled, and nothing does: who waits for an answer ends it by leaving.
void answer_response_cancel(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct api_error error;
    struct text body = {0};
    char id[DIALECT_ID_BYTES];
    const bool found = gateway->responses && response_store_answer(gateway->responses, client_tenant(gateway, exchange),
                                                                   id_of(exchange, "/cancel", id), clock_now_us(), &body);

    (void)kind;
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

void answer_response_items(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text kept = {0};
    struct api_error error = {0};
    char id[DIALECT_ID_BYTES];
    bool has_more = false;

    (void)kind;
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

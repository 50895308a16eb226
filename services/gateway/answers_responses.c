// answers_responses.c: answers of /v1/responses that were kept, given once more or removed.
#include <string.h>

#include "common/base/clock.h"
#include "services/gateway/gateway_internal.h"
#include "services/gateway/respond.h"

static const char *id_of(const struct exchange *exchange) { return exchange_path(exchange) + strlen("/v1/responses/"); }

static void refuse(struct gateway *gateway, struct exchange *exchange)
{
    struct api_error error;

    if (strchr(id_of(exchange), '/'))
        api_fail(&error, 404, "not_found", NULL, "unknown path: a response has no parts (input_items, cancel) here");
    else
        api_fail(&error, 404, "not_found", "response_id", "%s",
                 gateway->responses ? "there is no such response: it was not stored, has been deleted, or was kept for long enough"
                                    : "this gateway keeps no responses (--responses-memory)");
    respond_error(exchange, &error);
}

void answer_response(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};

    (void)kind;
    if (!gateway->responses ||
        !response_store_answer(gateway->responses, client_tenant(gateway, exchange), id_of(exchange), clock_now_us(), &body)) {
        text_free(&body);
        refuse(gateway, exchange);
        return;
    }
    text_append(&body, "\n", 1);
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

void answer_response_delete(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};

    (void)kind;
    if (!gateway->responses ||
        !response_store_remove(gateway->responses, client_tenant(gateway, exchange), id_of(exchange), clock_now_us())) {
        refuse(gateway, exchange);
        return;
    }
    text_string(&body, "{\"id\":");
    text_json_string(&body, id_of(exchange));
    text_string(&body, ",\"object\":\"response\",\"deleted\":true}\n");
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

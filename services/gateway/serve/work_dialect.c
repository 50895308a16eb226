// work_dialect.c: bodies in another form of the API than OpenAI's: parsed, translated, and then read as any chat.
#include <jansson.h>

#include "services/gateway/serve/gateway_internal.h"
#include "services/gateway/api/schema/schema_internal.h"

bool work_translate(struct gateway *gateway, struct exchange *exchange, const struct key *key, enum api_kind *kind,
                    struct api_request *api, struct dialect_run **run, struct api_error *error)
{
    const struct dialect *dialect = exchange_dialect(exchange);
    size_t bytes;
    const char *body = exchange_body(exchange, &bytes);
    json_t *root = schema_parse_json(body, bytes, error);
    struct dialect_ask ask = {.body = root,
                              .tenant = key ? key->tenant : "",
                              .request_id = exchange_request_id(exchange),
                              .store = gateway->responses,
                              .kind = *kind};
    bool ok;

    *run = NULL;
    if (!root)
        return false;
    ok = dialect_translate(dialect, &ask, error);
    json_decref(root);
    if (!ok)
        return false;
    *kind = ask.kind;
    ok = api_request_read(ask.kind, ask.chat, language_api_model(gateway->language), api, error);
    if (!ok)
        dialect_rename_field(dialect, error);
    if (ok)
        api->ignored = ask.ignored;
    if (ok && (ask.kind & API_MESH)) {
        api->caps = ask.caps;
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

// pages.c: the web pages: the chat, the view of the mesh, the files that both load, and the state of the mesh that the latter asks for.
//
// A page loads nothing from elsewhere, and a browser is told so: scripts, styles and requests of this address alone, no frame around it.
// Files are checked again at each load and cost 304 and no bytes while they are the same. No key is needed: the pages hold nothing but
// themselves, and the state of the mesh says what /metrics says.
#include "services/gateway/serve/pages.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/options.h"
#include "services/gateway/serve/gateway_internal.h"

#define NOSNIFF                             \
    {                                       \
        "X-Content-Type-Options", "nosniff" \
    }

static const struct http_header page_headers[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
     "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"},
    NOSNIFF,
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cache-Control", "no-cache"}, // keep it, and ask whether it is still the same
    {NULL, NULL},
};

static const struct http_header state_headers[] = {NOSNIFF, {"Cache-Control", "no-store"}, {NULL, NULL}};

// Which path shows which file.
static const struct {
    const char *path, *file;
} pages[] = {
    {"/", "chat.html"},
    {"/mesh", "mesh.html"},
};

// --- files ---------------------------------------------------------------------------------------------------------
bool pages_etag_matches(const char *if_none_match, const char *etag)
{
    const char *at = if_none_match;
    const size_t length = strlen(etag);

    for (;;) {
        at += strspn(at, " \t,");
        if (*at == '\0')
            return false;
        if (*at == '*')
            return true;
        if (strncmp(at, "W/", 2) == 0)
            at += 2;
        if (strncmp(at, etag, length) == 0)
            return true;
        if (*at == '"')
            at += 1 + strcspn(at + 1, "\"");
        at += strcspn(at, ",");
    }
}

static const struct page_file *find_file(const char *name)
{
    const struct page_file *file;

    for (file = page_files; file->name; file++)
        if (strcmp(file->name, name) == 0)
            return file;
    return NULL;
}

static void answer_file(struct exchange *exchange, const struct page_file *file)
{
    exchange_set_fixed_headers(exchange, page_headers);
    exchange_add_header(exchange, "ETag", file->etag);
    if (pages_etag_matches(exchange_header(exchange, "If-None-Match"), file->etag))
        exchange_respond_static(exchange, 304, NULL, "", 0);
    else
        exchange_respond_static(exchange, 200, file->content_type, file->data, file->bytes);
}

void answer_page(struct gateway *gateway, struct exchange *exchange)
{
    const char *path = exchange_path(exchange);
    size_t i = 0;

    (void)gateway;
    while (strcmp(pages[i].path, path) != 0) // a route leads here for each of them and for nothing else
        i++;
    answer_file(exchange, find_file(pages[i].file));
}

// One file depends on whether the pages are at one address or, with --admin-listen, at two.
void answer_page_file(struct gateway *gateway, struct exchange *exchange)
{
    const char *name = exchange_path(exchange) + strlen("/pages/");
    const struct page_file *file;
    struct api_error error;

    if (strcmp(name, "address.js") == 0)
        name = gateway->config.admin_host ? "address_two.js" : "address_one.js";
    file = find_file(name);
    if (file) {
        answer_file(exchange, file);
        return;
    }
    api_fail(&error, 404, "not_found", NULL, "unknown path");
    exchange_refuse(exchange, &error);
}

// --- the state of the mesh: the scheduler is asked for it, on the loop thread ------------------------------------
struct state_ask {
    struct gateway *gateway;
    struct exchange *exchange; // held
};

// Adds what this gateway itself sees: all there is while the scheduler is away.
static void append_gateway(struct gateway *gateway, struct text *out)
{
    struct mesh_state state;
    uint32_t running, waiting;

    mesh_state(gateway->mesh, &state);
    requests_counts(gateway->requests, false, &running, &waiting);
    text_json_after(out, "{\"version\":\"" FASTDECODE_VERSION "\",\"model\":", language_name(gateway->language));
    text_format(out, ",\"context_tokens\":%u,\"scheduler_up\":%s,\"ready\":%s,\"reason\":", answer_context(gateway),
                state.up ? "true" : "false", state.ready ? "true" : "false");
    text_json_string(out, state.reason);
    text_format(out, ",\"requests_running\":%u,\"requests_waiting\":%u,\"connections_active\":%u}", running, waiting,
                http_server_active(gateway->http));
}

static void finish_state(void *arg, const char *mesh_text)
{
    struct state_ask *ask = arg;
    struct text body = {0};

    text_string(&body, "{\"gateway\":");
    append_gateway(ask->gateway, &body);
    text_string(&body, ",\"mesh\":");
    text_string(&body, mesh_text ? mesh_text : "null");
    text_string(&body, "}\n");
    exchange_set_fixed_headers(ask->exchange, state_headers);
    exchange_respond(ask->exchange, 200, HTTP_JSON, &body);
    exchange_release(ask->exchange);
    free(ask);
}

static void ask_for_state(void *arg)
{
    struct state_ask *ask = arg;

    if (!scrape_get(ask->gateway->view, finish_state, ask))
        finish_state(ask, NULL);
}

void answer_mesh_state(struct gateway *gateway, struct exchange *exchange)
{
    struct state_ask *ask = malloc(sizeof *ask);
    struct api_error error;

    if (ask) {
        *ask = (struct state_ask){gateway, exchange_hold(exchange)};
        mesh_post(gateway->mesh, ask_for_state, ask);
        return;
    }
    api_no_memory(&error);
    exchange_refuse(exchange, &error);
}

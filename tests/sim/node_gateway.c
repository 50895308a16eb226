// node_gateway.c: a gateway as a node: without HTTP, requests come as from its own batches.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/request/request_internal.h"
#include "services/gateway/serve/gateway_internal.h"
#include "tests/sim/services.h"

enum { TICK_NS = 100000000 }; // as the HTTP server's

struct sim_gateway {
    struct gateway gateway;
    uint64_t tick_ns;
};

static struct language *language; // of all: it does not change
static struct metrics *metrics;   // of all: nobody reads it

void gateway_prepare(void)
{
    const struct language_config config = {.model_path = sim_files.model, .chat_template_path = sim_files.template};
    struct error error = {0};

    if (language_open(&config, &language, &error) || metrics_open(&metrics)) {
        fprintf(stderr, "mesh: %s\n", error.text);
        exit(1);
    }
}

static void on_mesh_changed(void *arg) { requests_tick(((struct sim_gateway *)arg)->gateway.requests); }

static enum status start(struct node *node, struct error *error)
{
    struct sim_gateway *sim = calloc(1, sizeof *sim);

    if (!sim)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory");
    struct gateway *gateway = &sim->gateway;
    node->service = sim;
    gateway_defaults(&gateway->config);
    gateway->language = language;
    gateway->metrics = metrics;
    const struct mesh_config mesh = {.scheduler = "inproc://sched",
                                     .max_calls = 256,
                                     .fingerprint = language_fingerprint(language),
                                     .changed = on_mesh_changed,
                                     .arg = sim};
    struct requests_config requests = {.language = language,
                                       .metrics = metrics,
                                       .max_request_tokens = gateway->config.max_request_tokens,
                                       .ready_grace_s = 1000,
                                       .resume_limit_s = 1000,
                                       .keep_alive_s = gateway->config.keep_alive_s};
    enum status status = mesh_open(&mesh, &gateway->mesh, error);
    if (status)
        return status;
    requests.mesh = gateway->mesh;
    if (requests_open(&requests, &gateway->requests) || work_pool_start(0, 1, false, work_run, gateway, &gateway->pool) ||
        work_pool_start(0, 1, false, work_run, gateway, &gateway->quick))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory");
    return mesh_begin(gateway->mesh, error);
}

static enum status turn(struct node *node, bool *ends, struct error *error)
{
    struct sim_gateway *sim = node->service;

    (void)ends, (void)error;
    mesh_turn(sim->gateway.mesh);
    if (node->now_ns >= sim->tick_ns) {
        sim->tick_ns = node->now_ns + TICK_NS;
        requests_tick(sim->gateway.requests);
    }
    node->wake_ns = MIN(node->wake_ns, sim->tick_ns);
    return STATUS_OK;
}

static void finish(struct node *node)
{
    struct sim_gateway *sim = node->service;

    work_pool_stop(sim->gateway.quick);
    work_pool_stop(sim->gateway.pool);
    mesh_end(sim->gateway.mesh);
    mesh_close(sim->gateway.mesh);
    requests_close(sim->gateway.requests);
    free(sim);
}

static bool rests(const struct node *node, char *out, size_t out_bytes)
{
    const struct sim_gateway *sim = node->service;
    uint32_t running, waiting;

    for (uint32_t batch = 0; batch < 2; batch++) {
        requests_counts(sim->gateway.requests, batch, &running, &waiting);
        REST(!running && !waiting, "%s has requests", node->name);
    }
    return true;
}

const struct service_kind gateway_kind = {.loops = 1, .start = start, .turn = turn, .close = finish, .rests = rests};

// exchange_is_local() is asked for the latency class, and whether a request waits for the gateway's next start.
bool __wrap_exchange_is_local(const struct exchange *exchange);
bool __wrap_exchange_is_local(const struct exchange *exchange) { return exchange_request_id(exchange)[0] == 'b'; }

struct exchange *gateway_ask(struct node *node, const char *id, const char *body,
                             void (*ended)(void *arg, int status, const char *body, size_t bytes), void *arg)
{
    struct sim_gateway *sim = node->service;
    struct text copy = {0};

    text_string(&copy, body);
    if (copy.failed) {
        text_free(&copy);
        return NULL;
    }
    struct exchange *exchange = exchange_open_local(id, &copy, ended, arg);
    if (exchange)
        work_ask(&sim->gateway, exchange_hold(exchange), API_COMPLETION, NULL);
    return exchange;
}

void gateway_leave(struct node *node, struct exchange *exchange)
{
    struct sim_gateway *sim = node->service;

    exchange_leave(exchange);
    work_cancel(&sim->gateway, exchange);
}

void gateway_asked(struct exchange *exchange) { exchange_release(exchange); }

bool gateways_have(uint64_t sequence)
{
    for (uint32_t i = 0; i < world.node_count; i++) {
        const struct sim_gateway *sim = world.nodes[i].service;
        if (world.nodes[i].kind != NODE_GATEWAY || !world.nodes[i].up)
            continue;
        for (const struct request *request = sim->gateway.requests->first; request; request = request->next)
            for (uint32_t c = 0; c < request->choice_count; c++)
                if (request->choices[c].call.sequence == sequence && request->choices[c].state != CHOICE_DONE)
                    return true;
    }
    return false;
}

// links.c: connections to KV workers, opened when a step first names them.
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/tensors.h"
#include "services/s-part/engine_state.h"

enum { CONNECT_LIMIT_US = 1000000, ENVELOPE_BYTES = 64 << 10 };

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct link *link = user;
    if (peer->incarnation != link->incarnation) { // started again behind our back: it holds nothing of what we think
        log_warn("LINK-OTHER", "worker=%u address=%s", link->worker, link->address);
        link->down = true;
    } else {
        link->down = false;
        link->was_up = true;
        link->engine->unreachable = (struct repeat){0};
        log_info("LINK-UP", "worker=%u address=%s", link->worker, link->address);
    }
    link->engine->on_link_changed(link->engine, link);
}

static void on_down(void *user, const char *why)
{
    struct link *link = user;
    log_warn("LINK-DOWN", "worker=%u why=\"%s\"", link->worker, why);
    link->down = true;
    link->engine->on_link_changed(link->engine, link);
}

// It has not come up in time.
static void on_late(void *arg)
{
    struct engine *engine = arg;
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        struct link *link = &engine->links[i];
        if (link->channel && !link->was_up && !link->down && clock_now_us() - link->opened_us >= CONNECT_LIMIT_US) {
            log_warn("LINK-LATE", "worker=%u address=%s", link->worker, link->address);
            link->down = true;
            engine->on_link_changed(engine, link);
        }
    }
}

static enum status open_link(struct link *link, const Fastdecode__Place *place)
{
    struct engine *engine = link->engine;
    struct error error;

    link->worker = place->worker;
    link->incarnation = place->incarnation;
    link->open_count++;
    link->down = link->was_up = false;
    link->opened_us = clock_now_us();
    link->expected_us = 0;
    if (strcmp(link->address, place->tensor_address))
        link->failures = (struct repeat){0};
    snprintf(link->address, sizeof link->address, "%s", place->tensor_address);
    const struct rpc_channel_config config = {
        .address = link->address,
        .peer = "a KV worker (its --advertise-tensors)",
        .hello = {.service = "s-part", .incarnation = engine->incarnation},
        .peer_roles = RPC_IS_KV_WORKER,
        // a worker may make us take no more memory than that, which is others', too
        .max_message_bytes = attend_reply_size_most(engine->max_rows, engine->q_width) + ENVELOPE_BYTES,
        .lent = true,
        .on_up = on_up,
        .on_down = on_down,
        .user = link,
    };
    if (rpc_channel_open(engine->loop, &config, &link->channel, &error)) {
        if (repeat_is_due(&engine->not_opened, clock_now_us(), error.text))
            log_warn("LINK-NOT-OPENED", "worker=%u error=\"%s\" times=%u", place->worker, error.text, engine->not_opened.count);
        link->channel = NULL;
        link->down = true;
        return error.status;
    }
    rpc_loop_timer(engine->loop, CONNECT_LIMIT_US, on_late, engine);
    return STATUS_OK;
}

void link_drop(struct link *link)
{
    struct rpc_channel *channel = link->channel;
    uint32_t open_count = link->open_count;

    link->down = true;
    link->engine->on_link_changed(link->engine, link); // steps that begin now find a link that is down
    if (link->open_count != open_count)
        return;           // one of them, of a later worker at that address, has closed it and opened its own
    link->channel = NULL; // before the close: the calls that it ends must not come upon a channel that is going
    rpc_channel_close(channel);
}

struct link *link_get(struct engine *engine, const Fastdecode__Place *place)
{
    struct link *free_link = NULL;

    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        struct link *link = &engine->links[i];
        if (!link->channel) {
            free_link = free_link ? free_link : link;
            continue;
        }
        // By address: a scheduler that is started again numbers the workers anew. Under its number a worker may only be
        // replaced (a new port) once the old one is gone.
        bool same = !strcmp(link->address, place->tensor_address);
        if (!same && !(link->worker == place->worker && link->down))
            continue;
        if (same && link->incarnation == place->incarnation) {
            link->worker = place->worker;
            return link;
        }
        if (same && link->incarnation > place->incarnation && !link->down)
            return NULL; // the step is older than the worker
        link_drop(link); // steps that still use the old one lose its rows
        if (link->channel)
            return link_get(engine, place); // such a step has opened a new one
        free_link = link;
        break;
    }
    if (!free_link)
        return NULL;
    free_link->engine = engine;
    return open_link(free_link, place) ? NULL : free_link;
}

void link_close_all(struct engine *engine)
{
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++) {
        rpc_channel_close(engine->links[i].channel);
        engine->links[i].channel = NULL;
    }
}

// endpoint.c: the connections of what listens or dials. Knows transports by their tables only.
#include "common/rpc/endpoint.h"

#include <stdlib.h>
#include <string.h>

#include "common/rpc/address.h"
#include "common/rpc/tls_internal.h"

static const struct transport *const by_address[ENDPOINT_TRANSPORTS] = {&transport_nng, &transport_tls}; // make connections
static const struct transport *const within_host = &transport_local; // works beside one whose ends are on one host

static uint32_t index_of(const char *address) { return rpc_address_is_tls(address) ? 1 : 0; }

struct endpoint_pipe {
    struct endpoint *endpoint;
    struct endpoint_pipe *next;
    uint32_t id;
    struct transport_link *link;
    struct transport_link *beside; // NULL: none
};

static struct endpoint_pipe *find(const struct endpoint *endpoint, uint32_t id)
{
    struct endpoint_pipe *pipe = endpoint->pipes;
    while (pipe && pipe->id != id)
        pipe = pipe->next;
    return pipe;
}

static void free_link(struct transport_link *link)
{
    if (link)
        link->transport->free(link);
}

static void free_pipe(struct endpoint_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;

    if (endpoint->beside_port)
        within_host->withdraw(endpoint->beside_port, pipe->id);
    free_link(pipe->beside);
    free_link(pipe->link);
    free(pipe);
}

static void on_message(void *user, uint32_t id, struct frame *frame)
{
    struct endpoint *endpoint = user;
    endpoint->on_message(endpoint, id, frame);
}

// --- the link that a pipe is made of ---

static void on_link(void *user, struct transport_link *link)
{
    struct endpoint *endpoint = user;
    struct endpoint_pipe *pipe = calloc(1, sizeof *pipe);
    uint32_t id = ++endpoint->next_pipe;

    if (!pipe) {
        free_link(link);
        endpoint->on_pipe(endpoint, 0, PIPE_GONE);
        return;
    }
    *pipe = (struct endpoint_pipe){.endpoint = endpoint, .next = endpoint->pipes, .id = id, .link = link};
    link->id = id;
    endpoint->pipes = pipe;
    endpoint->on_pipe(endpoint, id, PIPE_ADDED);
    if (endpoint->opened && find(endpoint, id) == pipe) // the callback may have closed the endpoint, and opened it again
        link->transport->start(link);
}

static void on_failed(void *user, uint32_t id)
{
    struct endpoint *endpoint = user;
    endpoint->on_pipe(endpoint, id, PIPE_GONE);
}

static void on_gone(void *user, uint32_t id)
{
    struct endpoint *endpoint = user;
    struct endpoint_pipe *pipe = find(endpoint, id);
    bool closed = false;

    if (pipe && pipe->beside) { // what the peer said before its end; a callback of it may close the endpoint, and free it
        endpoint->closed = &closed;
        pipe->beside->transport->drain(pipe->beside);
        if (closed)
            return;
        endpoint->closed = NULL;
    }
    for (struct endpoint_pipe **at = &endpoint->pipes; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            pipe = *at;
            *at = pipe->next;
            endpoint->met_tls = pipe->link->met_tls;
            free_pipe(pipe);
            break;
        }
    endpoint->on_pipe(endpoint, id, PIPE_GONE);
}

static void on_room(void *user)
{
    struct endpoint *endpoint = user;
    for (struct endpoint_pipe *pipe = endpoint->pipes; pipe; pipe = pipe->next)
        if (pipe->link->transport->resume)
            pipe->link->transport->resume(pipe->link);
}

// --- the link beside it ---

static void on_beside_link(void *user, struct transport_link *link)
{
    struct endpoint *endpoint = user;
    struct endpoint_pipe *pipe = find(endpoint, link->id);

    if (!pipe || pipe->beside) {
        free_link(link);
        return;
    }
    pipe->beside = link;
    link->transport->start(link);
    if (link->is_usable) // a client's: it has taken an offer
        endpoint->on_settled(endpoint);
}

static void on_beside_failed(void *user, uint32_t id)
{
    struct endpoint *endpoint = user;
    struct endpoint_pipe *pipe = find(endpoint, id);

    if (pipe && pipe->beside) { // a server's: the client went on without it
        free_link(pipe->beside);
        pipe->beside = NULL;
    } else if (pipe) {
        endpoint->on_settled(endpoint);
    }
}

static void on_beside_gone(void *user, uint32_t id) { endpoint_close_pipe(user, id); }

static bool open_beside(struct endpoint *endpoint)
{
    static const struct transport_events events = {
        .on_link = on_beside_link, .on_failed = on_beside_failed, .on_message = on_message, .on_gone = on_beside_gone};
    const struct transport_config config = {.loop = endpoint->loop,
                                            .max_message_bytes = endpoint->max_message_bytes,
                                            .lent = endpoint->lent,
                                            .events = &events,
                                            .user = endpoint};
    if (!endpoint->beside_port)
        endpoint->beside_port = within_host->open(&config);
    return endpoint->beside_port;
}

bool endpoint_make_offer(struct endpoint *endpoint, uint32_t id, struct transport_offer *out)
{
    struct endpoint_pipe *pipe = find(endpoint, id);
    return pipe && pipe->link->is_local && open_beside(endpoint) && within_host->offer(endpoint->beside_port, id, out);
}

bool endpoint_take_offer(struct endpoint *endpoint, uint32_t id, const struct transport_offer *offer)
{
    struct endpoint_pipe *pipe = find(endpoint, id);
    return pipe && pipe->link->is_local && offer->name[0] && open_beside(endpoint) &&
           within_host->take(endpoint->beside_port, id, offer);
}

// --- pipes ---

void endpoint_send(struct endpoint *endpoint, uint32_t id, struct frame *frame)
{
    struct endpoint_pipe *pipe = find(endpoint, id);

    if (!pipe) {
        frame_free(frame);
        return;
    }
    struct transport_link *link = pipe->beside && pipe->beside->is_usable ? pipe->beside : pipe->link;
    link->transport->send(link, frame);
}

enum rpc_role endpoint_role(struct endpoint *endpoint, uint32_t id)
{
    const struct endpoint_pipe *pipe = find(endpoint, id);
    return pipe ? pipe->link->role : RPC_ROLE_NONE;
}

const char *endpoint_peer(const struct endpoint *endpoint, uint32_t id)
{
    const struct endpoint_pipe *pipe = find(endpoint, id);
    return pipe && pipe->link->peer ? pipe->link->peer : "";
}

bool endpoint_log_refused(struct endpoint *endpoint, uint32_t id, const char *why)
{
    const struct endpoint_pipe *pipe = find(endpoint, id);
    struct rpc_tls *tls = loop_security(endpoint->loop)->tls;

    if (!pipe || !pipe->link->at || !pipe->link->peer || !tls)
        return false;
    tls_refused(tls, pipe->link->at, pipe->link->peer, why);
    return true;
}

void endpoint_greeted(struct endpoint *endpoint, uint32_t id)
{
    struct endpoint_pipe *pipe = find(endpoint, id);
    if (pipe && pipe->link->transport->allow)
        pipe->link->transport->allow(pipe->link, endpoint->max_message_bytes);
}

void endpoint_close_pipe(struct endpoint *endpoint, uint32_t id)
{
    struct endpoint_pipe *pipe = find(endpoint, id);
    if (pipe)
        pipe->link->transport->shut(pipe->link);
}

void endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, uint64_t max_message_bytes)
{
    loop_assert_owner(loop);
    endpoint->loop = loop;
    endpoint->max_message_bytes = max_message_bytes;
    endpoint->pipes = NULL;
    endpoint->beside_port = NULL;
    endpoint->met_tls = false;
    memset(endpoint->ports, 0, sizeof endpoint->ports);
    endpoint->opened = true;
}

// Returns the transport of the address, its port opened. NULL: no memory.
static const struct transport *open_port(struct endpoint *endpoint, const char *address, struct transport_port **port)
{
    static const struct transport_events events = {
        .on_link = on_link, .on_failed = on_failed, .on_message = on_message, .on_gone = on_gone, .on_room = on_room};
    const struct transport_config config = {.loop = endpoint->loop,
                                            .max_message_bytes = endpoint->max_message_bytes,
                                            .lent = endpoint->lent,
                                            .tls = loop_security(endpoint->loop)->tls,
                                            .peer_roles = endpoint->peer_roles,
                                            .events = &events,
                                            .user = endpoint};
    const uint32_t index = index_of(address);

    if (!endpoint->ports[index])
        endpoint->ports[index] = by_address[index]->open(&config);
    *port = endpoint->ports[index];
    return *port ? by_address[index] : NULL;
}

const char *endpoint_listen(struct endpoint *endpoint, const char *address, int *port_number)
{
    struct transport_port *port;
    const struct transport *transport = open_port(endpoint, address, &port);
    return transport ? transport->listen(port, address, port_number) : "no memory";
}

const char *endpoint_dial(struct endpoint *endpoint, const char *address)
{
    struct transport_port *port;
    const struct transport *transport = open_port(endpoint, address, &port);
    return transport ? transport->dial(port, address) : "no memory";
}

bool endpoint_is_accepted(const struct endpoint *endpoint, const char *address)
{
    const uint32_t index = index_of(address);
    const struct transport *transport = by_address[index];

    return endpoint->opened && endpoint->ports[index] && transport->is_accepted && transport->is_accepted(endpoint->ports[index]);
}

void endpoint_close(struct endpoint *endpoint)
{
    if (!endpoint->opened)
        return;
    endpoint->opened = false;
    if (endpoint->closed)
        *endpoint->closed = true;
    endpoint->closed = NULL;
    while (endpoint->pipes) {
        struct endpoint_pipe *pipe = endpoint->pipes;
        endpoint->pipes = pipe->next;
        free_pipe(pipe);
    }
    for (uint32_t i = 0; i < ENDPOINT_TRANSPORTS; i++) {
        if (endpoint->ports[i])
            by_address[i]->close(endpoint->ports[i]);
        endpoint->ports[i] = NULL;
    }
    if (endpoint->beside_port)
        within_host->close(endpoint->beside_port);
    endpoint->beside_port = NULL;
}

// transport.c: the network between the nodes, in the place of the transports over nng, TLS and local sockets. Frames travel as bytes, through the
// runtime's own relay and reader (common/rpc/relay.h, frame.h).
//
//     link ── send ──▶ relay's queue ── pump ──▶ pieces under way, in order, each due at its time ──▶ reader of the other end ──▶ its loop
//                         (waits while the window is full: the peer does not read)
//
// A connection is as one of TCP: bytes are delayed, not lost. Where nothing passes they wait until something does again. A process that dies closes its
// connections; of a host that vanishes nobody hears, until it is back and does not know them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/rpc/relay.h"
#include "tests/sim/sim.h"

enum { LISTENERS_MAX = 64, DIAL_AGAIN_NS = 300000000 };

struct network network;

struct transport_port {
    struct relay_port relay; // first: callbacks cast back
    struct node *node;
    uint32_t listening; // entries of listeners
    struct dial *dial;  // under way; NULL: none
};

struct link {
    struct relay_link relay; // first: the endpoint casts to it
    struct wire *wire;
    uint32_t end;
    bool reads;
    char peer[16];
};

// Bytes on their way.
struct piece {
    struct piece *next;
    uint64_t due_ns;
    size_t bytes;
    unsigned char data[];
};

// The bytes that flow towards an end of a connection.
struct stream {
    struct piece *first, *last;
    uint64_t due_ns; // of the latest piece
    uint64_t bytes;  // of all pieces
    bool ends;       // its sender has closed
    bool reset;      // its sender's host does not know the connection
    uint64_t end_ns; // the receiver learns it then
};

struct wire {
    struct wire *next;
    struct node *node[2];
    struct link *link[2]; // NULL: that end is closed
    struct stream to[2];  // to[i]: towards node[i]
    uint64_t cut_after;   // bytes; UINT64_MAX: is not cut
    uint32_t flip_from;   // the next message of this end arrives with a wrong bit; 2: none does
    uint32_t double_from; // likewise: comes twice
};

struct dial {
    struct dial *next;
    struct transport_port *port; // NULL: given up
    char address[64];
    uint64_t due_ns, until_ns;
};

static struct {
    struct {
        char address[64];
        struct transport_port *port; // NULL: free
    } listeners[LISTENERS_MAX];
    struct wire *wires;
    struct dial *dials;
} net;

uint32_t network_links(void)
{
    uint32_t count = 0;
    for (const struct wire *wire = net.wires; wire; wire = wire->next)
        count++;
    return count;
}

static uint64_t node_now(const struct node *node) { return MAX(node->now_ns, world.now_ns); }

static uint64_t arrival(const struct node *from, const struct node *to)
{
    return node_now(from) + network.latency_ns[from->index][to->index] + world_below(network.jitter_ns + 1);
}

// --- a connection's bytes

static void put_piece(struct stream *stream, const unsigned char *data, size_t bytes, uint64_t due_ns)
{
    struct piece *piece = world_alloc(sizeof *piece + bytes);

    piece->bytes = bytes;
    memcpy(piece->data, data, bytes);
    piece->due_ns = stream->due_ns = MAX(stream->due_ns, due_ns);
    if (stream->last)
        stream->last->next = piece;
    else
        stream->first = piece;
    stream->last = piece;
    stream->bytes += bytes;
}

static void close_stream(struct stream *stream, uint64_t at_ns)
{
    if (stream->ends)
        return;
    stream->ends = true;
    stream->end_ns = MAX(stream->due_ns, at_ns);
}

static void take_piece(struct stream *stream, size_t bytes)
{
    struct piece *piece = stream->first;

    stream->bytes -= bytes;
    if (bytes < piece->bytes) {
        piece->bytes -= bytes;
        memmove(piece->data, piece->data + bytes, piece->bytes);
        return;
    }
    stream->first = piece->next;
    if (!stream->first)
        stream->last = NULL;
    world_free(piece);
}

// In the sender's node. Sends what waits in the relay, as far as the window is open.
static void pump(struct link *link)
{
    struct wire *wire = link->wire;
    const uint32_t other = 1 - link->end;
    struct stream *stream = &wire->to[other];

    while (stream->bytes < network.window_bytes && link->relay.unsent.count) {
        struct frame *frame = frame_queue_take(&link->relay.unsent);
        const size_t bytes = FRAME_HEAD + frame->length;
        const uint64_t due_ns = arrival(wire->node[link->end], wire->node[other]);
        if (wire->flip_from == link->end) {
            const uint64_t bit = world_below(FRAME_HEAD * 8);
            frame->wire[bit / 8] ^= (unsigned char)(1u << bit % 8);
            wire->flip_from = 2;
        }
        if (wire->double_from == link->end) {
            put_piece(stream, frame->wire, bytes, due_ns);
            wire->double_from = 2;
        }
        const size_t first = network.split && !world_below(network.split) ? 1 + world_below(bytes - 1) : bytes;
        put_piece(stream, frame->wire, first, due_ns);
        if (first < bytes)
            put_piece(stream, frame->wire + first, bytes - first, due_ns + world_below(2 * MS_NS));
        frame_free(frame);
    }
    link->relay.is_idle = !link->relay.unsent.count;
}

static void wire_free(struct wire *wire)
{
    struct wire **at = &net.wires;

    while (*at != wire)
        at = &(*at)->next;
    *at = wire->next;
    for (uint32_t i = 0; i < 2; i++)
        while (wire->to[i].first)
            take_piece(&wire->to[i], wire->to[i].first->bytes);
    world_free(wire);
}

// An end is closed: its peer hears of it after what was sent.
static void wire_close(struct wire *wire, uint32_t end)
{
    if (!wire->link[end])
        return;
    wire->link[end] = NULL;
    close_stream(&wire->to[1 - end], arrival(wire->node[end], wire->node[1 - end]));
    if (!wire->link[1 - end])
        wire_free(wire);
}

// --- links

static void link_free(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    if (link->wire)
        wire_close(link->wire, link->end);
    relay_link_close(&link->relay);
    free(link);
}

static void link_start(struct transport_link *base) { ((struct link *)base)->reads = true; }

static void link_resume(struct transport_link *base)
{
    struct link *link = (struct link *)base;
    if (loop_was_stalled(link->relay.loop, &link->relay.stalled))
        link->reads = true;
}

static void link_send(struct transport_link *base, struct frame *frame)
{
    struct link *link = (struct link *)base;

    if (relay_put(&link->relay, frame) && link->wire)
        pump(link);
}

static void link_shut(struct transport_link *base)
{
    struct link *link = (struct link *)base;
    struct wire *wire = link->wire;

    link->wire = NULL;
    if (wire)
        wire_close(wire, link->end);
    relay_gone(&link->relay);
}

// In the node whose end it is. NULL: no memory.
static struct link *link_open(struct transport_port *port, struct wire *wire, uint32_t end)
{
    struct link *link = calloc(1, sizeof *link);

    if (!link)
        return NULL;
    if (!relay_link_open(&link->relay, &transport_nng, &port->relay)) {
        relay_link_close(&link->relay);
        free(link);
        return NULL;
    }
    link->relay.base.peer = link->peer;
    snprintf(link->peer, sizeof link->peer, "%s", wire->node[1 - end]->name);
    link->relay.is_idle = true;
    link->wire = wire;
    link->end = end;
    wire->link[end] = link;
    return link;
}

// --- listening and dialing

static struct transport_port *port_open(const struct transport_config *config)
{
    struct transport_port *port = calloc(1, sizeof *port);

    if (!port)
        return NULL;
    port->node = world.current;
    relay_port_open(&port->relay, config);
    return port;
}

static const char *port_listen(struct transport_port *port, const char *address, int *port_number)
{
    uint32_t i = 0;

    while (i < LISTENERS_MAX && net.listeners[i].port)
        i++;
    assert_always(i < LISTENERS_MAX && strlen(address) < sizeof net.listeners[i].address);
    snprintf(net.listeners[i].address, sizeof net.listeners[i].address, "%s", address);
    net.listeners[i].port = port;
    *port_number = 0;
    return NULL;
}

static const char *port_dial(struct transport_port *port, const char *address)
{
    struct dial *dial;

    if (!relay_port_will_dial(&port->relay))
        return "no memory";
    dial = world_alloc(sizeof *dial);
    *dial = (struct dial){.next = net.dials,
                          .port = port,
                          .due_ns = node_now(port->node) + network.latency_ns[port->node->index][0],
                          .until_ns = node_now(port->node) + TRANSPORT_DIAL_MS * MS_NS};
    snprintf(dial->address, sizeof dial->address, "%s", address);
    port->dial = dial;
    net.dials = dial;
    return NULL;
}

static void forget_port(struct transport_port *port)
{
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (net.listeners[i].port == port)
            net.listeners[i].port = NULL;
    if (port->dial)
        port->dial->port = NULL;
}

static void port_close(struct transport_port *port)
{
    forget_port(port);
    relay_port_close(&port->relay);
    free(port);
}

const struct transport transport_nng = {
    .open = port_open,
    .close = port_close,
    .listen = port_listen,
    .dial = port_dial,
    .start = link_start,
    .allow = relay_allow,
    .resume = link_resume,
    .send = link_send,
    .shut = link_shut,
    .free = link_free,
};

static struct transport_port *no_port(const struct transport_config *config)
{
    (void)config;
    return NULL;
}

const struct transport transport_tls = {.open = no_port};
const struct transport transport_local = {.open = no_port};

// --- what is due

static void end_dial(struct dial *dial)
{
    struct dial **at = &net.dials;

    while (*at != dial)
        at = &(*at)->next;
    *at = dial->next;
    if (dial->port)
        dial->port->dial = NULL;
    world_free(dial);
}

void network_begin(void)
{
    while (net.dials)
        end_dial(net.dials);
    assert_always(!net.wires);
    memset(&net, 0, sizeof net);
    network = (struct network){.window_bytes = 256 << 10, .jitter_ns = 50000};
    for (uint32_t a = 0; a < NODES_MAX; a++)
        for (uint32_t b = 0; b < NODES_MAX; b++)
            network.latency_ns[a][b] = 30000;
}

static void dial_failed(struct dial *dial)
{
    struct node *before = node_enter(dial->port->node);

    relay_dial_failed(&dial->port->relay);
    node_leave(before);
    node_wake(dial->port->node);
    end_dial(dial);
}

// Returns the node that has the address, whether or not somebody listens. NULL: none has.
static struct node *host_of(const char *address)
{
    for (uint32_t i = 0; i < world.node_count; i++)
        if (!strcmp(world.nodes[i].address, address) || !strcmp(world.nodes[i].tensor_address, address))
            return &world.nodes[i];
    return NULL;
}

static struct transport_port *listener_at(const char *address)
{
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (net.listeners[i].port && !strcmp(net.listeners[i].address, address))
            return net.listeners[i].port;
    return NULL;
}

static bool is_blocked(const struct node *a, const struct node *b)
{
    return MAX(network.blocked_ns[a->index][b->index], network.blocked_ns[b->index][a->index]) > world.now_ns;
}

// Hands an end to its node. False: no memory.
static bool open_end(struct wire *wire, struct transport_port *port, uint32_t end)
{
    struct node *before = node_enter(port->node);
    struct link *link = link_open(port, wire, end);
    const bool opened = link && relay_link(&link->relay);

    if (!opened && link) {
        wire->link[end] = NULL;
        link->wire = NULL;
        link_free(&link->relay.base);
    }
    node_leave(before);
    node_wake(port->node);
    return opened;
}

static void dial_step(struct dial *dial)
{
    struct transport_port *port = dial->port, *listener = listener_at(dial->address);
    struct node *host = host_of(dial->address);

    if (!port) {
        end_dial(dial);
        return;
    }
    if (host && (host->vanished || is_blocked(port->node, host))) { // nobody answers: once more, and more
        dial->due_ns = world.now_ns + DIAL_AGAIN_NS;
        if (world.now_ns >= dial->until_ns)
            dial_failed(dial);
        return;
    }
    if (!listener) {
        dial_failed(dial);
        return;
    }
    struct wire *wire = world_alloc(sizeof *wire);
    *wire = (struct wire){
        .next = net.wires, .node = {port->node, listener->node}, .cut_after = UINT64_MAX, .flip_from = 2, .double_from = 2};
    net.wires = wire;
    world_note("link", port->node->index, listener->node->index);
    if (!open_end(wire, port, 0)) {
        wire_free(wire);
        dial_failed(dial);
        return;
    }
    end_dial(dial);
    if (!open_end(wire, listener, 1)) {
        wire->link[1] = NULL;
        close_stream(&wire->to[0], world.now_ns);
    }
}

static void deliver(void *arg, struct frame *frame) { relay_message(arg, frame); }

// In the receiver's node.
static void end_link(struct link *link)
{
    struct wire *wire = link->wire;

    link->wire = NULL;
    wire_close(wire, link->end);
    relay_gone(&link->relay);
}

static void receive(struct link *link, struct stream *stream)
{
    struct wire *wire = link->wire;
    struct piece *piece = stream->first;
    void *at;
    const size_t space = frame_reader_space(&link->relay.reader, &at); // 0: no memory
    const size_t bytes = MIN(space, piece->bytes);

    if (wire->cut_after != UINT64_MAX && wire->cut_after < bytes) {
        end_link(link);
        return;
    }
    wire->cut_after -= wire->cut_after != UINT64_MAX ? bytes : 0;
    if (bytes)
        memcpy(at, piece->data, bytes);
    world_note("bytes", wire->node[link->end]->index, bytes);
    take_piece(stream, bytes);
    if (!bytes || !relay_received(&link->relay, bytes, deliver))
        end_link(link);
    else
        link->reads = !loop_is_full(link->relay.loop, &link->relay.stalled);
}

// When something can happen to an end. NEVER: nothing.
static uint64_t end_due_ns(const struct wire *wire, uint32_t end)
{
    const struct stream *stream = &wire->to[end];
    const struct node *node = wire->node[end];

    if (!wire->link[end] || !node->up || node->stopped || (!stream->first && !stream->ends))
        return NEVER;
    if (stream->first && !stream->reset && !wire->link[end]->reads)
        return NEVER;
    return MAX(stream->first && !stream->reset ? stream->first->due_ns : stream->end_ns,
               network.blocked_ns[wire->node[1 - end]->index][node->index]);
}

static void end_step(struct wire *wire, uint32_t end)
{
    struct link *link = wire->link[end], *peer = wire->link[1 - end];
    struct node *node = wire->node[end], *sender = wire->node[1 - end], *before = node_enter(node);

    if (wire->to[end].first && !wire->to[end].reset)
        receive(link, &wire->to[end]);
    else
        end_link(link);
    node_leave(before);
    node_wake(node);
    if (!peer || link->wire != wire || !sender->up || peer->relay.is_idle)
        return;
    before = node_enter(sender); // its window is open again
    pump(peer);
    node_leave(before);
}

// Finds what is due first: a dial or an end of a connection.
static uint64_t find_due(struct dial **dial, struct wire **wire, uint32_t *end)
{
    uint64_t due_ns = NEVER;

    *dial = NULL;
    *wire = NULL;
    for (struct dial *d = net.dials; d; d = d->next)
        if (d->due_ns < due_ns) {
            due_ns = d->due_ns;
            *dial = d;
        }
    for (struct wire *w = net.wires; w; w = w->next)
        for (uint32_t e = 0; e < 2; e++) {
            const uint64_t at_ns = end_due_ns(w, e);
            if (at_ns >= due_ns)
                continue;
            due_ns = at_ns;
            *dial = NULL;
            *wire = w;
            *end = e;
        }
    return due_ns;
}

uint64_t network_next_ns(void)
{
    struct dial *dial;
    struct wire *wire;
    uint32_t end;

    return find_due(&dial, &wire, &end);
}

void network_step(void)
{
    struct dial *dial;
    struct wire *wire;
    uint32_t end = 0;

    find_due(&dial, &wire, &end);
    if (dial)
        dial_step(dial);
    else if (wire)
        end_step(wire, end);
}

// --- faults

// The service's own structs are about to be freed: nothing of them is touched any more.
void network_drop(struct node *node, bool silent)
{
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (net.listeners[i].port && net.listeners[i].port->node == node)
            net.listeners[i].port = NULL;
    for (struct dial *dial = net.dials; dial; dial = dial->next)
        if (dial->port && dial->port->node == node)
            dial->port = NULL;
    for (struct wire *wire = net.wires, *next; wire; wire = next) {
        next = wire->next;
        for (uint32_t end = 0; end < 2; end++) {
            if (wire->node[end] != node || !wire->link[end])
                continue;
            if (silent && wire->link[1 - end]) {
                wire->link[end] = NULL;
                continue;
            }
            wire_close(wire, end);
            break;
        }
    }
}

void network_late(const struct node *from, uint64_t late_ns)
{
    for (struct wire *wire = net.wires; wire; wire = wire->next)
        for (uint32_t end = 0; end < 2; end++) {
            struct stream *stream = &wire->to[1 - end];
            if (wire->node[end] != from || !stream->last)
                continue;
            for (struct piece *piece = stream->first; piece; piece = piece->next)
                piece->due_ns += late_ns;
            stream->due_ns = stream->last->due_ns;
        }
}

// Its peers learn after a while that their connections are none any more.
void network_back(struct node *node)
{
    for (struct wire *wire = net.wires; wire; wire = wire->next)
        for (uint32_t end = 0; end < 2; end++)
            if (wire->node[end] == node && !wire->link[end] && !wire->to[1 - end].ends) {
                close_stream(&wire->to[1 - end], world.now_ns + world_below(500 * MS_NS));
                wire->to[1 - end].reset = true;
            }
}

void network_cut(const struct node *a, const struct node *b, uint64_t after_bytes)
{
    for (struct wire *wire = net.wires; wire; wire = wire->next)
        if ((wire->node[0] == a && wire->node[1] == b) || (wire->node[0] == b && wire->node[1] == a))
            wire->cut_after = MIN(wire->cut_after, after_bytes);
}

void network_flip(const struct node *from, const struct node *to)
{
    for (struct wire *wire = net.wires; wire; wire = wire->next)
        for (uint32_t end = 0; end < 2; end++)
            if (wire->node[end] == from && wire->node[1 - end] == to)
                wire->flip_from = end;
}

void network_calm(void)
{
    for (struct wire *wire = net.wires; wire; wire = wire->next) {
        wire->cut_after = UINT64_MAX;
        wire->flip_from = wire->double_from = 2;
    }
}

void network_double(const struct node *from, const struct node *to)
{
    for (struct wire *wire = net.wires; wire; wire = wire->next)
        for (uint32_t end = 0; end < 2; end++)
            if (wire->node[end] == from && wire->node[1 - end] == to)
                wire->double_from = end;
}

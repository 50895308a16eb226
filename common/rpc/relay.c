// relay.c: takes what a link's thread has to tell through the loop's queue to the owner.
#include "common/rpc/relay.h"

#include "common/base/checked.h"

enum { UNGREETED_BYTES_MAX = 64 << 10 }; // the largest envelope before relay_allow()
enum entry_kind { ENTRY_LINK, ENTRY_FAILED, ENTRY_MESSAGE, ENTRY_GONE };

// --- ports ---

static void on_entry(struct loop_source *source, const struct loop_entry *entry)
{
    struct relay_port *port = (struct relay_port *)source;
    const struct transport_events *events = port->config.events;

    switch ((enum entry_kind)entry->kind) {
    case ENTRY_LINK:
        if (entry->object == port->dialing)
            port->dialing = NULL;
        events->on_link(port->config.user, entry->object);
        break;
    case ENTRY_FAILED: events->on_failed(port->config.user, 0); break;
    case ENTRY_MESSAGE: events->on_message(port->config.user, entry->id, entry->frame); break;
    case ENTRY_GONE: events->on_gone(port->config.user, entry->id); break;
    }
}

static void on_room(struct loop_source *source)
{
    const struct relay_port *port = (const struct relay_port *)source;
    port->config.events->on_room(port->config.user);
}

static void drop_link(struct loop_source *source, void *object)
{
    struct relay_port *port = (struct relay_port *)source;
    struct transport_link *link = object;

    if (object == port->dialing)
        port->dialing = NULL;
    link->transport->free(link);
}

void relay_port_open(struct relay_port *port, const struct transport_config *config)
{
    port->source = (struct loop_source){.on_entry = on_entry, .on_room = on_room, .drop = drop_link};
    port->config = *config;
    loop_add_source(config->loop, &port->source);
}

void relay_port_close(struct relay_port *port)
{
    if (atomic_load_explicit(&port->has_reserved, memory_order_relaxed))
        loop_release(port->config.loop);
    loop_remove_source(port->config.loop, &port->source);
}

bool relay_port_will_dial(struct relay_port *port)
{
    if (!loop_reserve(port->config.loop))
        return false;
    atomic_store_explicit(&port->has_reserved, true, memory_order_relaxed);
    return true;
}

void relay_dial_failed(struct relay_port *port)
{
    const struct loop_entry failed = {.source = &port->source, .kind = ENTRY_FAILED};

    atomic_store_explicit(&port->has_reserved, false, memory_order_relaxed);
    loop_put_reserved(port->config.loop, &failed);
}

// --- links ---

bool relay_link_open(struct relay_link *link, const struct transport *transport, struct relay_port *port)
{
    link->base = (struct transport_link){.transport = transport, .is_usable = true};
    link->port = port;
    link->loop = port->config.loop;
    link->reader.lent = port->config.lent;
    atomic_store_explicit(&link->max_message_bytes, MIN(port->config.max_message_bytes, (uint64_t)UNGREETED_BYTES_MAX),
                          memory_order_relaxed);
    pthread_mutex_init(&link->lock, NULL);
    link->reserved = loop_reserve(link->loop);
    return link->reserved;
}

void relay_link_close(struct relay_link *link)
{
    if (link->reserved && !atomic_load_explicit(&link->gone, memory_order_relaxed)) // no thread runs any more
        loop_release(link->loop);
    frame_reader_close(&link->reader);
    frame_queue_clear(&link->unsent);
    pthread_mutex_destroy(&link->lock);
}

bool relay_link(struct relay_link *link)
{
    const struct loop_entry entry = {.source = &link->port->source, .kind = ENTRY_LINK, .object = link};
    return loop_put(link->loop, &entry);
}

bool relay_message(struct relay_link *link, struct frame *frame)
{
    const struct loop_entry entry = {.source = &link->port->source, .kind = ENTRY_MESSAGE, .id = link->base.id, .frame = frame};

    if (loop_put(link->loop, &entry))
        return true;
    frame_free(frame);
    relay_gone(link);
    return false;
}

void relay_gone(struct relay_link *link)
{
    const struct loop_entry entry = {.source = &link->port->source, .kind = ENTRY_GONE, .id = link->base.id};

    if (!atomic_exchange_explicit(&link->gone, true, memory_order_relaxed))
        loop_put_reserved(link->loop, &entry);
}

bool relay_received(struct relay_link *link, size_t count, void (*deliver)(void *arg, struct frame *frame))
{
    const unsigned char *bytes = link->reader.frame ? link->reader.frame->wire : NULL;

    // An alert: the peer took our hello for a bad one of TLS.
    if (link->reader.have == 0 && count >= 2 && bytes[0] == 0x15 && bytes[1] == 0x03)
        link->base.met_tls = true;
    link->reader.max_message_bytes = atomic_load_explicit(&link->max_message_bytes, memory_order_relaxed);
    return frame_reader_take(&link->reader, count, deliver, link);
}

bool relay_put(struct relay_link *link, struct frame *frame)
{
    pthread_mutex_lock(&link->lock);
    const bool full = !frame_queue_put(&link->unsent, frame, RPC_UNSENT_BYTES), begins = !full && link->is_idle;
    if (begins)
        link->is_idle = false;
    pthread_mutex_unlock(&link->lock);
    if (full) {
        frame_free(frame);
        link->base.transport->shut(&link->base);
    }
    return begins;
}

void relay_allow(struct transport_link *base, uint64_t max_bytes)
{
    atomic_store_explicit(&((struct relay_link *)base)->max_message_bytes, max_bytes, memory_order_relaxed);
}

/* endpoint.c: connections over nng's streams: framing, sending, receiving, listening, dialing.
 *
 * Why streams and not one of nng's patterns: in nng 1.5.2 a pattern's pipe that is closed while a message is half received
 * leaves its receive pending for ever, and the one thread that reaps all pipes of the process waits for it: no connection's
 * end is told any more, and every close hangs. (Its tcp and ipc transports ask for a message's body on an aio that the close
 * has stopped.) The raw patterns also drop silently above 64 messages, and hand each message through two or three threads.
 * Streams have none of this, and the same transports: ipc, tcp, tls+tcp. inproc is a socket in Linux's abstract namespace.
 *
 * A message on the wire is 'F' 'D' 'R' '1', its length as u32 little-endian, and the envelope.
 *
 *     owner ── endpoint_send ──▶ queue of the link ──▶ writev, up to four messages at once; goes on in nng's callback
 *     nng's callback ◀── readv(rest of the message, buffer) ; whole messages ──▶ queue of the loop ──▶ owner
 *
 * A message that fits the buffer costs one read and one copy; of a longer one the rest is read in place. (Worked number: a
 * tensor of 20 KB: one read, one wake-up; of 1 MB: its first 64 KB are copied.) When the loop's queue is full a link stops
 * reading, so that back-pressure reaches the peer.
 *
 * Links are made in nng's callbacks, handed to the owner in the queue, and from then on belong to it: it starts reading and
 * frees them, after both aios have been stopped. A callback touches its link, the loop's queue, and nothing else.
 */
#include <nng/nng.h>
#include <nng/supplemental/util/platform.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/rpc/internal.h"
#include "common/wire/wire.h"

enum { HEAD = 8, RX_BYTES = 64 << 10, TX_BATCH = 4, TX_QUEUE_START = 64, TX_QUEUE_MAX = 1 << 16, ACCEPT_PAUSE_MS = 20 };

static const unsigned char magic[4] = {'F', 'D', 'R', '1'};

struct link {
    struct endpoint *endpoint;
    struct rpc_loop *loop;
    struct link *next; /* of the endpoint's list; the owner's */
    uint32_t id;       /* written before the first read is asked for */
    uint64_t max_message_bytes;
    nng_stream *stream;
    nng_aio *rx, *tx;
    atomic_bool gone; /* its end is in the loop's queue: once. relaxed: the queue's lock orders the rest */
    bool stalled;     /* under the loop's lock */

    /* one receive at a time */
    nng_msg *rx_message; /* partly received */
    size_t rx_filled, rx_have;
    unsigned char rx_buffer[RX_BYTES];

    /* one send at a time: whoever set `sending` */
    nng_msg *tx_messages[TX_BATCH];
    unsigned char tx_heads[TX_BATCH][HEAD];
    uint32_t tx_count;
    size_t tx_sent, tx_total;

    pthread_mutex_t lock;
    bool sending;
    nng_msg **queue; /* ring [queue_capacity] */
    uint32_t queue_capacity, queue_head, queue_count;
};

/* --- a link's life ------------------------------------------------------------------------------------------------- */

static void on_rx(void *arg);
static void on_tx(void *arg);

void link_free(struct link *link)
{
    if (link->stream)
        nng_stream_close(link->stream);
    nng_aio_stop(link->rx); /* waits for its callback, which waits for nothing but short locks */
    nng_aio_stop(link->tx);
    nng_aio_free(link->rx);
    nng_aio_free(link->tx);
    if (link->stream)
        nng_stream_free(link->stream);
    if (link->rx_message)
        nng_msg_free(link->rx_message);
    for (uint32_t i = 0; i < link->tx_count; i++)
        nng_msg_free(link->tx_messages[i]);
    for (uint32_t i = 0; i < link->queue_count; i++)
        nng_msg_free(link->queue[(link->queue_head + i) & (link->queue_capacity - 1)]);
    free(link->queue);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

/* Takes the stream. NULL: no memory. */
static struct link *link_open(struct endpoint *endpoint, nng_stream *stream)
{
    struct link *link = calloc(1, sizeof *link);

    if (!link) {
        nng_stream_free(stream);
        return NULL;
    }
    link->endpoint = endpoint;
    link->loop = endpoint->loop;
    link->max_message_bytes = endpoint->max_message_bytes;
    link->stream = stream;
    pthread_mutex_init(&link->lock, NULL);
    if (nng_aio_alloc(&link->rx, on_rx, link) || nng_aio_alloc(&link->tx, on_tx, link)) {
        link_free(link);
        return NULL;
    }
    return link;
}

static void tell_gone(struct link *link)
{
    const struct loop_entry entry = {.kind = ENTRY_PIPE, .endpoint = link->endpoint, .pipe = link->id, .pipe_event = PIPE_GONE};
    if (!atomic_exchange_explicit(&link->gone, true, memory_order_relaxed))
        loop_put(link->loop, &entry);
}

/* --- receiving ----------------------------------------------------------------------------------------------------- */

static void receive(struct link *link)
{
    nng_iov iov[2];
    unsigned count = 0;

    if (link->rx_message) {
        iov[count].iov_buf = (unsigned char *)nng_msg_body(link->rx_message) + link->rx_filled;
        iov[count++].iov_len = nng_msg_len(link->rx_message) - link->rx_filled;
    }
    iov[count].iov_buf = link->rx_buffer + link->rx_have;
    iov[count++].iov_len = RX_BYTES - link->rx_have;
    nng_aio_set_iov(link->rx, count, iov);
    nng_stream_recv(link->stream, link->rx);
}

static void deliver(struct link *link)
{
    const struct loop_entry entry = {.kind = ENTRY_MESSAGE, .endpoint = link->endpoint, .pipe = link->id, .nng = link->rx_message};
    link->rx_message = NULL;
    loop_put(link->loop, &entry);
}

/* Takes messages out of the buffer. False: the peer does not speak this protocol, or there is no memory. */
static bool parse_buffer(struct link *link)
{
    size_t at = 0;

    while (!link->rx_message && link->rx_have - at >= HEAD) {
        const unsigned char *head = link->rx_buffer + at;
        uint32_t length = wire_load_u32(head + 4);
        if (memcmp(head, magic, sizeof magic) != 0 || length > link->max_message_bytes || nng_msg_alloc(&link->rx_message, length))
            return false;
        at += HEAD;
        link->rx_filled = MIN((size_t)length, link->rx_have - at);
        memcpy(nng_msg_body(link->rx_message), link->rx_buffer + at, link->rx_filled);
        at += link->rx_filled;
        if (link->rx_filled == length)
            deliver(link);
    }
    link->rx_have -= at;
    memmove(link->rx_buffer, link->rx_buffer + at, link->rx_have);
    return memcmp(link->rx_buffer, magic, MIN(link->rx_have, sizeof magic)) == 0; /* a stranger is found out at once */
}

/* On an nng thread. */
static void on_rx(void *arg)
{
    struct link *link = arg;
    size_t count;

    if (nng_aio_result(link->rx)) {
        tell_gone(link);
        return;
    }
    count = nng_aio_count(link->rx);
    if (link->rx_message) {
        size_t part = MIN(count, nng_msg_len(link->rx_message) - link->rx_filled);
        link->rx_filled += part;
        count -= part;
        if (link->rx_filled == nng_msg_len(link->rx_message))
            deliver(link);
    }
    link->rx_have += count;
    if (!parse_buffer(link))
        tell_gone(link);
    else if (!loop_stalls(link->loop, &link->stalled))
        receive(link);
}

void endpoint_restart(struct endpoint *endpoint)
{
    for (struct link *link = endpoint->links; link; link = link->next)
        if (loop_restarts(link->loop, &link->stalled))
            receive(link);
}

/* --- sending ------------------------------------------------------------------------------------------------------- */

/* What is left of the batch. */
static void send_rest(struct link *link)
{
    nng_iov iov[TX_BATCH * 2];
    size_t skip = link->tx_sent;
    unsigned count = 0;

    for (uint32_t i = 0; i < link->tx_count * 2; i++) {
        nng_msg *nng = link->tx_messages[i / 2];
        unsigned char *bytes = i % 2 ? nng_msg_body(nng) : link->tx_heads[i / 2];
        size_t length = i % 2 ? nng_msg_len(nng) : (size_t)HEAD, skipped = MIN(skip, length);
        skip -= skipped;
        if (length > skipped) {
            iov[count].iov_buf = bytes + skipped;
            iov[count++].iov_len = length - skipped;
        }
    }
    nng_aio_set_iov(link->tx, count, iov);
    nng_stream_send(link->stream, link->tx);
}

/* By whoever set `sending`. Once it is cleared, the next sender owns the batch: nothing of it is looked at afterwards. */
static void send_next(struct link *link)
{
    bool any;

    link->tx_count = 0;
    link->tx_sent = link->tx_total = 0;
    pthread_mutex_lock(&link->lock);
    for (; link->tx_count < TX_BATCH && link->queue_count; link->queue_count--) {
        nng_msg *nng = link->queue[link->queue_head];
        link->queue_head = (link->queue_head + 1) & (link->queue_capacity - 1);
        memcpy(link->tx_heads[link->tx_count], magic, sizeof magic);
        wire_store_u32(link->tx_heads[link->tx_count] + 4, (uint32_t)nng_msg_len(nng));
        link->tx_total += HEAD + nng_msg_len(nng);
        link->tx_messages[link->tx_count++] = nng;
    }
    any = link->tx_count != 0;
    link->sending = any;
    pthread_mutex_unlock(&link->lock);
    if (any)
        send_rest(link);
}

/* On an nng thread. */
static void on_tx(void *arg)
{
    struct link *link = arg;

    if (nng_aio_result(link->tx)) { /* the messages are freed with the link */
        tell_gone(link);
        return;
    }
    link->tx_sent += nng_aio_count(link->tx);
    if (link->tx_sent < link->tx_total) {
        send_rest(link);
        return;
    }
    for (uint32_t i = 0; i < link->tx_count; i++)
        nng_msg_free(link->tx_messages[i]);
    send_next(link);
}

/* Under the link's lock. */
static bool grow_queue(struct link *link)
{
    uint32_t capacity = MAX((uint32_t)TX_QUEUE_START, link->queue_capacity * 2);
    nng_msg **grown = capacity <= TX_QUEUE_MAX ? calloc(capacity, sizeof *grown) : NULL;

    if (!grown)
        return false;
    for (uint32_t i = 0; i < link->queue_count; i++)
        grown[i] = link->queue[(link->queue_head + i) & (link->queue_capacity - 1)];
    free(link->queue);
    link->queue = grown;
    link->queue_capacity = capacity;
    link->queue_head = 0;
    return true;
}

static struct link *find(struct endpoint *endpoint, uint32_t pipe)
{
    struct link *link = endpoint->links;
    while (link && link->id != pipe)
        link = link->next;
    return link;
}

void endpoint_send(struct endpoint *endpoint, uint32_t pipe, nng_msg *nng)
{
    struct link *link = find(endpoint, pipe);
    bool start = false, full = false;

    if (!link || nng_msg_len(nng) > UINT32_MAX) {
        nng_msg_free(nng);
        return;
    }
    pthread_mutex_lock(&link->lock);
    full = link->queue_count == link->queue_capacity && !grow_queue(link);
    if (!full) {
        link->queue[(link->queue_head + link->queue_count++) & (link->queue_capacity - 1)] = nng;
        start = !link->sending;
        link->sending = true;
    }
    pthread_mutex_unlock(&link->lock);
    if (start)
        send_next(link);
    if (full) { /* the peer has read nothing for TX_QUEUE_MAX messages */
        nng_msg_free(nng);
        endpoint_close_pipe(endpoint, pipe);
    }
}

/* --- links that come and go: on the owner's thread ------------------------------------------------------------------ */

void endpoint_on_entry(struct endpoint *endpoint, const struct loop_entry *entry)
{
    if (entry->pipe_event == PIPE_ADDED) {
        entry->link->id = ++endpoint->next_pipe;
        entry->link->next = endpoint->links;
        endpoint->links = entry->link;
        endpoint->on_pipe(endpoint, entry->link->id, PIPE_ADDED);
        if (endpoint->opened && endpoint->links && find(endpoint, endpoint->next_pipe) == entry->link)
            receive(entry->link);
        return;
    }
    for (struct link **at = &endpoint->links; *at; at = &(*at)->next)
        if ((*at)->id == entry->pipe) {
            struct link *link = *at;
            *at = link->next;
            link_free(link);
            break;
        }
    endpoint->on_pipe(endpoint, entry->pipe, PIPE_GONE);
}

void endpoint_close_pipe(struct endpoint *endpoint, uint32_t pipe)
{
    struct link *link = find(endpoint, pipe);
    if (!link)
        return;
    nng_stream_close(link->stream);
    tell_gone(link); /* it may be stalled: then no receive ends */
}

/* --- listening and dialing ------------------------------------------------------------------------------------------- */

/* inproc://name is a socket that only this process knows the name of. */
static void real_address(const char *address, char *out, size_t out_bytes)
{
    if (!strncmp(address, "inproc://", 9))
        snprintf(out, out_bytes, "abstract://fastdecode-%d-%s", (int)getpid(), address + 9);
    else
        snprintf(out, out_bytes, "%s", address);
}

/* On an nng thread: a stream has come of accepting or dialing. */
static bool tell_added(struct endpoint *endpoint, nng_aio *aio)
{
    struct loop_entry entry = {.kind = ENTRY_PIPE, .endpoint = endpoint, .pipe_event = PIPE_ADDED};

    entry.link = link_open(endpoint, nng_aio_get_output(aio, 0));
    if (entry.link)
        loop_put(endpoint->loop, &entry);
    return entry.link;
}

static void on_accept(void *arg)
{
    struct listener *listener = arg;
    int rv = nng_aio_result(listener->aio);

    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return;
    if (rv) /* out of descriptors, most likely: not in a busy loop */
        nng_msleep(ACCEPT_PAUSE_MS);
    else
        tell_added(listener->endpoint, listener->aio);
    nng_stream_listener_accept(listener->stream, listener->aio);
}

static void on_dial(void *arg)
{
    struct endpoint *endpoint = arg;
    const struct loop_entry failed = {.kind = ENTRY_PIPE, .endpoint = endpoint, .pipe_event = PIPE_GONE};
    int rv = nng_aio_result(endpoint->dial);

    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return;
    if (rv || !tell_added(endpoint, endpoint->dial))
        loop_put(endpoint->loop, &failed);
}

void endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, uint64_t max_message_bytes)
{
    loop_assert_owner(loop);
    endpoint->loop = loop;
    endpoint->max_message_bytes = max_message_bytes;
    endpoint->links = NULL;
    endpoint->dialer = NULL;
    endpoint->dial = NULL;
    endpoint->listener_count = 0;
    endpoint->opened = true;
    loop_add_endpoint(loop, endpoint);
}

int endpoint_listen(struct endpoint *endpoint, const char *address, int *port)
{
    struct listener *listener = &endpoint->listeners[endpoint->listener_count];
    char real[320];
    int rv;

    assert_always(endpoint->listener_count < ENDPOINT_LISTENERS_MAX);
    real_address(address, real, sizeof real);
    if ((rv = nng_stream_listener_alloc(&listener->stream, real)))
        return rv;
    nng_stream_listener_set_bool(listener->stream, NNG_OPT_TCP_NODELAY, true); /* not of ipc: no matter */
    nng_stream_listener_set_bool(listener->stream, NNG_OPT_TCP_KEEPALIVE, true);
    listener->endpoint = endpoint;
    if ((rv = nng_aio_alloc(&listener->aio, on_accept, listener))) {
        nng_stream_listener_free(listener->stream);
        return rv;
    }
    if ((rv = nng_stream_listener_listen(listener->stream))) {
        nng_stream_listener_free(listener->stream);
        nng_aio_free(listener->aio);
        return rv;
    }
    if (nng_stream_listener_get_int(listener->stream, NNG_OPT_TCP_BOUND_PORT, port))
        *port = 0;
    endpoint->listener_count++;
    nng_stream_listener_accept(listener->stream, listener->aio);
    return 0;
}

int endpoint_dial(struct endpoint *endpoint, const char *address)
{
    char real[320];
    int rv;

    real_address(address, real, sizeof real);
    if ((rv = nng_stream_dialer_alloc(&endpoint->dialer, real)))
        return rv;
    if ((rv = nng_aio_alloc(&endpoint->dial, on_dial, endpoint))) {
        nng_stream_dialer_free(endpoint->dialer);
        endpoint->dialer = NULL;
        return rv;
    }
    nng_stream_dialer_set_bool(endpoint->dialer, NNG_OPT_TCP_NODELAY, true);
    nng_stream_dialer_set_bool(endpoint->dialer, NNG_OPT_TCP_KEEPALIVE, true);
    nng_stream_dialer_dial(endpoint->dialer, endpoint->dial);
    return 0;
}

void endpoint_close(struct endpoint *endpoint)
{
    if (!endpoint->opened)
        return;
    endpoint->opened = false;
    for (uint32_t i = 0; i < endpoint->listener_count; i++) {
        nng_stream_listener_close(endpoint->listeners[i].stream);
        nng_aio_stop(endpoint->listeners[i].aio);
        nng_aio_free(endpoint->listeners[i].aio);
        nng_stream_listener_free(endpoint->listeners[i].stream);
    }
    if (endpoint->dialer) {
        nng_stream_dialer_close(endpoint->dialer);
        nng_aio_stop(endpoint->dial);
        nng_aio_free(endpoint->dial);
        nng_stream_dialer_free(endpoint->dialer);
    }
    while (endpoint->links) {
        struct link *link = endpoint->links;
        endpoint->links = link->next;
        link_free(link);
    }
    loop_forget_endpoint(endpoint->loop, endpoint);
}

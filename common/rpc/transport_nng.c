// transport_nng.c: links over nng's streams: framing, sending, receiving, listening, dialing.
//
// Why streams and not one of nng's patterns: in nng 1.5.2 a pattern's pipe that is closed while a message is half received
// leaves its receive pending for ever, and the one thread that reaps all pipes of the process waits for it: no connection's
// end is told any more, and every close hangs. (Its tcp and ipc transports ask for a message's body on an aio that the close
// has stopped.) The raw patterns also drop silently above 64 messages, and hand each message through two or three threads.
// Streams have none of this, and the same transports: ipc and tcp (transport_tls.c has TLS). inproc is a socket in Linux's abstract
// namespace.
//
// A message on the wire is 'F' 'D' 'R' '1', its length as u32 little-endian, and the envelope.
//
//     owner ── send ──▶ queue of the link ──▶ writev, up to four messages at once; goes on in nng's callback
//     nng's callback ◀── read into a frame (frame.h) ; whole messages ──▶ queue of the loop ──▶ owner
//
// When the loop's queue is full a link stops reading, so that back-pressure reaches the peer. (Worked number, two cores: a call
// with the tensors of 32 rows takes 190 µs of processor time over tcp, 100 µs over a local socket, 85 µs over a bare socket pair.)
//
// Links are made in nng's callbacks, handed to the owner in the queue, and from then on belong to it: it starts reading and
// frees them, after both aios have been stopped. A callback touches its link, the loop's queue, and nothing else.
#include <arpa/inet.h>
#include <nng/nng.h>
#include <nng/supplemental/util/platform.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/rpc/relay.h"

enum { TX_BATCH = 4, ACCEPT_PAUSE_MS = 20, LISTENERS_MAX = 4 };

struct listener {
    struct transport_port *port;
    bool is_local;
    bool pausing; // its aio is sleeping; touched only in its callback
    nng_stream_listener *stream;
    nng_aio *aio;
};

struct transport_port {
    struct relay_port relay; // first: callbacks cast back
    struct listener listeners[LISTENERS_MAX];
    uint32_t listener_count;
    nng_stream_dialer *dialer;
    nng_aio *dial;
    bool dials_local;
};

struct link {
    struct relay_link relay; // first: the endpoint casts to it
    char peer[64];           // for the log
    nng_stream *stream;
    nng_aio *rx, *tx; // one receive at a time, of whoever has the relay's reader then

    // one send at a time: by whoever made the relay not idle
    struct frame *tx_frames[TX_BATCH];
    uint32_t tx_count;
    size_t tx_sent, tx_total;
};

// --- a link's life ---

static void on_rx(void *arg);
static void on_tx(void *arg);

static void link_free(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    if (link->stream)
        nng_stream_close(link->stream);
    nng_aio_stop(link->rx); // waits for its callback, which waits for nothing but short locks
    nng_aio_stop(link->tx);
    nng_aio_free(link->rx);
    nng_aio_free(link->tx);
    if (link->stream)
        nng_stream_free(link->stream);
    for (uint32_t i = 0; i < link->tx_count; i++)
        frame_free(link->tx_frames[i]);
    relay_link_close(&link->relay); // no callback runs any more
    free(link);
}

// Writes "10.0.0.3:4711", or "process 123" of a local socket; "" if nng does not know.
static void write_peer(nng_stream *stream, char *out, size_t out_bytes)
{
    char host[INET6_ADDRSTRLEN] = "";
    nng_sockaddr address;
    uint64_t process;

    out[0] = '\0';
    if (!nng_stream_get_uint64(stream, NNG_OPT_IPC_PEER_PID, &process))
        snprintf(out, out_bytes, "process %llu", (unsigned long long)process);
    else if (nng_stream_get_addr(stream, NNG_OPT_REMADDR, &address))
        return;
    else if (address.s_family == NNG_AF_INET && inet_ntop(AF_INET, &address.s_in.sa_addr, host, sizeof host))
        snprintf(out, out_bytes, "%s:%u", host, ntohs(address.s_in.sa_port));
    else if (address.s_family == NNG_AF_INET6 && inet_ntop(AF_INET6, address.s_in6.sa_addr, host, sizeof host))
        snprintf(out, out_bytes, "[%s]:%u", host, ntohs(address.s_in6.sa_port));
}

// Takes the stream. NULL: no memory.
static struct link *link_open(struct transport_port *port, nng_stream *stream, bool is_local)
{
    struct link *link = calloc(1, sizeof *link);

    if (!link) {
        nng_stream_free(stream);
        return NULL;
    }
    const bool has_room = relay_link_open(&link->relay, &transport_nng, &port->relay);
    link->relay.base.is_local = is_local;
    link->relay.base.peer = link->peer;
    write_peer(stream, link->peer, sizeof link->peer);
    link->relay.is_idle = true;
    link->stream = stream;
    if (!has_room || nng_aio_alloc(&link->rx, on_rx, link) || nng_aio_alloc(&link->tx, on_tx, link)) {
        link_free(&link->relay.base);
        return NULL;
    }
    return link;
}

// nng may run an operation and its callback on different threads. Its own locks order them, but ThreadSanitizer does not see those: this one
// shows it that what precedes the call happens before what follows the callback.
static void order_is_seen(struct link *link)
{
    pthread_mutex_lock(&link->relay.lock);
    pthread_mutex_unlock(&link->relay.lock);
}

// --- receiving ---

static void receive(struct link *link)
{
    nng_iov iov;

    iov.iov_len = frame_reader_space(&link->relay.reader, &iov.iov_buf);
    if (!iov.iov_len) { // no memory
        relay_gone(&link->relay);
        return;
    }
    nng_aio_set_iov(link->rx, 1, &iov);
    order_is_seen(link);
    nng_stream_recv(link->stream, link->rx);
}

static void deliver(void *arg, struct frame *frame) { relay_message(arg, frame); }

// On an nng thread.
static void on_rx(void *arg)
{
    struct link *link = arg;

    order_is_seen(link);
    if (nng_aio_result(link->rx) || !relay_received(&link->relay, nng_aio_count(link->rx), deliver))
        relay_gone(&link->relay);
    else if (!loop_is_full(link->relay.loop, &link->relay.stalled))
        receive(link);
}

static void link_start(struct transport_link *base) { receive((struct link *)base); }

static void link_resume(struct transport_link *base)
{
    struct link *link = (struct link *)base;
    if (loop_was_stalled(link->relay.loop, &link->relay.stalled))
        receive(link);
}

static void link_shut(struct transport_link *base)
{
    struct link *link = (struct link *)base;
    nng_stream_close(link->stream);
    relay_gone(&link->relay); // a stalled link has no receive that would end
}

// --- sending ---

// Fills iov with the unsent part of the batch; returns the number of pieces.
static unsigned rest_of(const struct link *link, nng_iov *iov)
{
    size_t skip = link->tx_sent;
    unsigned count = 0;

    for (uint32_t i = 0; i < link->tx_count; i++) {
        struct frame *frame = link->tx_frames[i];
        size_t length = FRAME_HEAD + frame->length, skipped = MIN(skip, length);
        skip -= skipped;
        if (length > skipped) {
            iov[count].iov_buf = frame->wire + skipped;
            iov[count++].iov_len = length - skipped;
        }
    }
    return count;
}

static void send_pieces(struct link *link, unsigned count, nng_iov *iov)
{
    nng_aio_set_iov(link->tx, count, iov);
    nng_stream_send(link->stream, link->tx);
}

// Called by the thread that made the relay not idle. Once it is idle again the next sender owns the batch, so it must not be touched afterwards. Nor
// must frames that are being sent: they may be back in the pool and in use elsewhere.
static void send_next(struct link *link)
{
    nng_iov iov[TX_BATCH];
    unsigned count;

    link->tx_count = 0;
    link->tx_sent = link->tx_total = 0;
    pthread_mutex_lock(&link->relay.lock);
    while (link->tx_count < TX_BATCH && link->relay.unsent.count) {
        struct frame *frame = frame_queue_take(&link->relay.unsent);
        link->tx_total += FRAME_HEAD + frame->length;
        link->tx_frames[link->tx_count++] = frame;
    }
    count = rest_of(link, iov);
    link->relay.is_idle = count == 0;
    pthread_mutex_unlock(&link->relay.lock);
    if (count)
        send_pieces(link, count, iov);
}

// On an nng thread.
static void on_tx(void *arg)
{
    struct link *link = arg;

    if (nng_aio_result(link->tx)) { // link_free() frees the frames
        relay_gone(&link->relay);
        return;
    }
    link->tx_sent += nng_aio_count(link->tx);
    if (link->tx_sent < link->tx_total) {
        nng_iov iov[TX_BATCH];
        send_pieces(link, rest_of(link, iov), iov);
        return;
    }
    order_is_seen(link); // the frames were written by another thread, and go back to the pool
    for (uint32_t i = 0; i < link->tx_count; i++)
        frame_free(link->tx_frames[i]);
    send_next(link);
}

static void link_send(struct transport_link *base, struct frame *frame)
{
    struct link *link = (struct link *)base;
    if (relay_put(&link->relay, frame))
        send_next(link);
}

// --- listening and dialing ---

// inproc://name becomes an abstract socket whose name includes the process id.
static void real_address(const char *address, char *out, size_t out_bytes)
{
    if (!strncmp(address, "inproc://", 9))
        snprintf(out, out_bytes, "abstract://fastdecode-%d-%s", (int)getpid(), address + 9);
    else
        snprintf(out, out_bytes, "%s", address);
}

static bool is_local(const char *address) { return !strncmp(address, "ipc://", 6) || !strncmp(address, "inproc://", 9); }

// On an nng thread: a stream has come of accepting or dialing. False: no memory.
static bool tell_link(struct transport_port *port, nng_aio *aio, bool is_local)
{
    struct link *link = link_open(port, nng_aio_get_output(aio, 0), is_local);

    if (link && relay_link(&link->relay))
        return true;
    if (link)
        link_free(&link->relay.base);
    return false;
}

static void on_accept(void *arg)
{
    struct listener *listener = arg;
    int rv = nng_aio_result(listener->aio);

    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return;
    if (rv) { // most likely out of descriptors: retry later, without blocking one of nng's few threads
        listener->pausing = true;
        nng_sleep_aio(ACCEPT_PAUSE_MS, listener->aio);
        return;
    }
    if (!listener->pausing)
        tell_link(listener->port, listener->aio, listener->is_local);
    listener->pausing = false;
    nng_stream_listener_accept(listener->stream, listener->aio);
}

static void on_dial(void *arg)
{
    struct transport_port *port = arg;
    int rv = nng_aio_result(port->dial);

    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return;
    if (rv || !tell_link(port, port->dial, port->dials_local))
        relay_dial_failed(&port->relay);
}

// --- ports ---

static struct transport_port *port_open(const struct transport_config *config)
{
    struct transport_port *port = calloc(1, sizeof *port);

    if (!port)
        return NULL;
    relay_port_open(&port->relay, config);
    return port;
}

static const char *port_listen(struct transport_port *port, const char *address, int *port_number)
{
    struct listener *listener = &port->listeners[port->listener_count];
    char real[320];
    int rv;

    if (port->listener_count == LISTENERS_MAX)
        return "too many addresses";
    real_address(address, real, sizeof real);
    if ((rv = nng_stream_listener_alloc(&listener->stream, real)))
        return nng_strerror(rv);
    nng_stream_listener_set_bool(listener->stream, NNG_OPT_TCP_NODELAY, true); // not of ipc: no matter
    nng_stream_listener_set_bool(listener->stream, NNG_OPT_TCP_KEEPALIVE, true);
    listener->port = port;
    listener->is_local = is_local(address);
    if ((rv = nng_aio_alloc(&listener->aio, on_accept, listener))) {
        nng_stream_listener_free(listener->stream);
        return nng_strerror(rv);
    }
    if ((rv = nng_stream_listener_listen(listener->stream))) {
        nng_stream_listener_free(listener->stream);
        nng_aio_free(listener->aio);
        return nng_strerror(rv);
    }
    if (nng_stream_listener_get_int(listener->stream, NNG_OPT_TCP_BOUND_PORT, port_number))
        *port_number = 0;
    port->listener_count++;
    nng_stream_listener_accept(listener->stream, listener->aio);
    return NULL;
}

static const char *port_dial(struct transport_port *port, const char *address)
{
    char real[320];
    int rv;

    port->dials_local = is_local(address);
    real_address(address, real, sizeof real);
    if (!relay_port_will_dial(&port->relay))
        return nng_strerror(NNG_ENOMEM);
    if ((rv = nng_stream_dialer_alloc(&port->dialer, real)))
        return nng_strerror(rv);
    if ((rv = nng_aio_alloc(&port->dial, on_dial, port))) {
        nng_stream_dialer_free(port->dialer);
        port->dialer = NULL;
        return nng_strerror(rv);
    }
    nng_stream_dialer_set_bool(port->dialer, NNG_OPT_TCP_NODELAY, true);
    nng_stream_dialer_set_bool(port->dialer, NNG_OPT_TCP_KEEPALIVE, true);
    nng_aio_set_timeout(port->dial, TRANSPORT_DIAL_MS);
    nng_stream_dialer_dial(port->dialer, port->dial);
    return NULL;
}

static void port_close(struct transport_port *port)
{
    for (uint32_t i = 0; i < port->listener_count; i++) {
        nng_stream_listener_close(port->listeners[i].stream);
        nng_aio_stop(port->listeners[i].aio);
        nng_aio_free(port->listeners[i].aio);
        nng_stream_listener_free(port->listeners[i].stream);
    }
    if (port->dialer) {
        nng_stream_dialer_close(port->dialer);
        nng_aio_stop(port->dial);
        nng_aio_free(port->dial);
        nng_stream_dialer_free(port->dialer);
    }
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

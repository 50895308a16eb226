/* endpoint.c: connections over nng's streams: framing, sending, receiving, listening, dialing.
 *
 * Why streams and not one of nng's patterns: in nng 1.5.2 a pattern's pipe that is closed while a message is half received
 * leaves its receive pending for ever, and the one thread that reaps all pipes of the process waits for it: no connection's
 * end is told any more, and every close hangs. (Its tcp and ipc transports ask for a message's body on an aio that the close
 * has stopped.) The raw patterns also drop silently above 64 messages, and hand each message through two or three threads.
 * Streams have none of this, and the same transports: ipc, tcp, tls+tcp. inproc is a socket in Linux's abstract namespace.
 * Between two processes of one host a connection has a lane beside the stream (lane.h), and what follows is for the others.
 *
 * A message on the wire is 'F' 'D' 'R' '1', its length as u32 little-endian, and the envelope.
 *
 *     owner ── endpoint_send ──▶ queue of the link ──▶ writev, up to four messages at once; goes on in nng's callback
 *     nng's callback ◀── read into a frame (frame.h) ; whole messages ──▶ queue of the loop ──▶ owner
 *
 * When the loop's queue is full a link stops reading, so that back-pressure reaches the peer. (Worked number, two cores: a call
 * with the tensors of 32 rows takes 190 µs of processor time over tcp, 100 µs over a lane, 85 µs over a bare socket pair.)
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

enum { TX_BATCH = 4, TX_QUEUE_START = 64, TX_QUEUE_MAX = 1 << 16, ACCEPT_PAUSE_MS = 20 };

struct link {
    struct endpoint *endpoint;
    struct rpc_loop *loop;
    struct link *next; /* of the endpoint's list; the owner's */
    uint32_t id;       /* written before the first read is asked for */
    nng_stream *stream;
    nng_aio *rx, *tx;
    bool local;
    struct lane *lane;       /* NULL: none; the owner's, as what follows */
    bool lane_used;          /* the peer is at its other end for sure: what is sent goes there */
    struct lane_dial *dial;  /* being taken */
    struct lane_offer offer; /* token: offered and not taken yet; 0: none */
    atomic_bool gone;        /* its end is in the loop's queue: once. relaxed: the queue's lock orders the rest */
    bool stalled;            /* under the loop's lock */
    /* What one message may have. relaxed: the peer sends a larger one only after it has heard what follows the store */
    atomic_ullong max_message_bytes;

    struct frame_reader reader; /* one receive at a time */

    /* one send at a time: whoever set `sending` */
    struct frame *tx_frames[TX_BATCH];
    uint32_t tx_count;
    size_t tx_sent, tx_total;

    pthread_mutex_t lock;
    bool sending;
    struct frame **queue; /* ring [queue_capacity] */
    uint32_t queue_capacity, queue_head, queue_count;
    size_t queue_bytes;
};

/* --- a link's life ------------------------------------------------------------------------------------------------- */

static void on_rx(void *arg);
static void on_tx(void *arg);

void link_free(struct link *link)
{
    lane_dial_close(link->dial);
    lane_close(link->lane);
    if (link->stream)
        nng_stream_close(link->stream);
    nng_aio_stop(link->rx); /* waits for its callback, which waits for nothing but short locks */
    nng_aio_stop(link->tx);
    nng_aio_free(link->rx);
    nng_aio_free(link->tx);
    if (link->stream)
        nng_stream_free(link->stream);
    frame_reader_close(&link->reader);
    for (uint32_t i = 0; i < link->tx_count; i++)
        frame_free(link->tx_frames[i]);
    for (uint32_t i = 0; i < link->queue_count; i++)
        frame_free(link->queue[(link->queue_head + i) & (link->queue_capacity - 1)]);
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
    link->reader.lent = endpoint->lent;
    atomic_store_explicit(&link->max_message_bytes, MIN(endpoint->max_message_bytes, (uint64_t)HELLO_BYTES_MAX),
                          memory_order_relaxed);
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

/* An operation of nng and its callback may be on different threads. nng orders them, by locks that ThreadSanitizer does not see:
 * here is one that it does, so that what is before the call is before what follows the callback. */
static void order_is_seen(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    pthread_mutex_unlock(&link->lock);
}

/* --- receiving ----------------------------------------------------------------------------------------------------- */

static void receive(struct link *link)
{
    nng_iov iov;

    iov.iov_len = frame_reader_space(&link->reader, &iov.iov_buf);
    if (!iov.iov_len) { /* no memory */
        tell_gone(link);
        return;
    }
    nng_aio_set_iov(link->rx, 1, &iov);
    order_is_seen(link);
    nng_stream_recv(link->stream, link->rx);
}

static void deliver(void *arg, struct frame *frame)
{
    struct link *link = arg;
    const struct loop_entry entry = {.kind = ENTRY_MESSAGE, .endpoint = link->endpoint, .pipe = link->id, .frame = frame};
    loop_put(link->loop, &entry);
}

/* On an nng thread. */
static void on_rx(void *arg)
{
    struct link *link = arg;

    order_is_seen(link);
    link->reader.max_message_bytes = atomic_load_explicit(&link->max_message_bytes, memory_order_relaxed);
    if (nng_aio_result(link->rx) || !frame_reader_take(&link->reader, nng_aio_count(link->rx), deliver, link))
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

/* By whoever set `sending`. Once it is cleared, the next sender owns the batch: nothing of it is looked at afterwards. Nor are
 * its frames once they are being sent: they may be in the pool, and somebody else's. */
static void send_next(struct link *link)
{
    nng_iov iov[TX_BATCH];
    unsigned count;

    link->tx_count = 0;
    link->tx_sent = link->tx_total = 0;
    pthread_mutex_lock(&link->lock);
    for (; link->tx_count < TX_BATCH && link->queue_count; link->queue_count--) {
        struct frame *frame = link->queue[link->queue_head];
        link->queue_head = (link->queue_head + 1) & (link->queue_capacity - 1);
        link->queue_bytes -= frame->length;
        link->tx_total += FRAME_HEAD + frame->length;
        link->tx_frames[link->tx_count++] = frame;
    }
    count = rest_of(link, iov);
    link->sending = count != 0;
    pthread_mutex_unlock(&link->lock);
    if (count)
        send_pieces(link, count, iov);
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
        nng_iov iov[TX_BATCH];
        send_pieces(link, rest_of(link, iov), iov);
        return;
    }
    order_is_seen(link); /* the sender released it when the frames were written: they go to the pool, for others */
    for (uint32_t i = 0; i < link->tx_count; i++)
        frame_free(link->tx_frames[i]);
    send_next(link);
}

/* Under the link's lock. */
static bool grow_queue(struct link *link)
{
    uint32_t capacity = MAX((uint32_t)TX_QUEUE_START, link->queue_capacity * 2);
    struct frame **grown = capacity <= TX_QUEUE_MAX ? calloc(capacity, sizeof *grown) : NULL;

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

void endpoint_send(struct endpoint *endpoint, uint32_t pipe, struct frame *frame)
{
    struct link *link = find(endpoint, pipe);
    bool start = false, full = false;

    if (!link) {
        frame_free(frame);
        return;
    }
    if (link->lane && link->lane_used) {
        lane_send(link->lane, frame);
        return;
    }
    pthread_mutex_lock(&link->lock);
    full = (link->queue_count && link->queue_bytes + frame->length > RPC_UNSENT_BYTES) ||
           (link->queue_count == link->queue_capacity && !grow_queue(link));
    if (!full) {
        link->queue_bytes += frame->length;
        link->queue[(link->queue_head + link->queue_count++) & (link->queue_capacity - 1)] = frame;
        start = !link->sending;
        link->sending = true;
    }
    pthread_mutex_unlock(&link->lock);
    if (start)
        send_next(link);
    if (full) { /* the peer has read nothing of TX_QUEUE_MAX messages, or of RPC_UNSENT_BYTES */
        frame_free(frame);
        endpoint_close_pipe(endpoint, pipe);
    }
}

void endpoint_greeted(struct endpoint *endpoint, uint32_t pipe)
{
    struct link *link = find(endpoint, pipe);
    if (link)
        atomic_store_explicit(&link->max_message_bytes, endpoint->max_message_bytes, memory_order_relaxed);
}

/* --- lanes ----------------------------------------------------------------------------------------------------------- */

static void on_lane_message(void *user, struct frame *frame)
{
    struct link *link = user;
    link->lane_used = true;
    link->endpoint->on_message(link->endpoint, link->id, frame);
}

static void on_lane_gone(void *user)
{
    struct link *link = user;

    if (!link->lane_used && !lane_was_heard(link->lane)) { /* the client did not wait for the answer: nothing went this way */
        lane_close(link->lane);
        link->lane = NULL;
        return;
    }
    nng_stream_close(link->stream);
    tell_gone(link);
}

static void open_lane(struct link *link, int fd)
{
    static const struct lane_callbacks callbacks = {on_lane_message, on_lane_gone};
    const struct frame_reader reader = {.max_message_bytes = link->endpoint->max_message_bytes, .lent = link->endpoint->lent};
    link->lane = lane_open(link->loop, fd, &reader, &callbacks, link);
}

/* A client of the port has said this token. */
static bool on_token(void *user, uint64_t token, int fd)
{
    struct endpoint *endpoint = user;

    for (struct link *link = endpoint->links; link; link = link->next)
        if (link->offer.token == token) {
            link->offer.token = 0;
            if (!lane_answer(fd, link->offer.answer))
                return false;
            open_lane(link, fd);
            return true;
        }
    return false;
}

bool endpoint_offer_lane(struct endpoint *endpoint, uint32_t pipe, struct lane_offer *out)
{
    struct link *link = find(endpoint, pipe);

    if (!link || !link->local)
        return false;
    if (!endpoint->port)
        endpoint->port = lane_port_open(endpoint->loop, on_token, endpoint);
    if (!endpoint->port || !lane_port_offer(endpoint->port, out))
        return false;
    link->offer = *out;
    return true;
}

static void on_settled(void *user, int fd)
{
    struct link *link = user;

    link->dial = NULL;
    if (fd >= 0) {
        open_lane(link, fd);
        link->lane_used = true;
    }
    link->endpoint->on_settled(link->endpoint);
}

bool endpoint_take_lane(struct endpoint *endpoint, uint32_t pipe, const struct lane_offer *offer)
{
    struct link *link = find(endpoint, pipe);

    if (link && link->local && offer->name[0])
        link->dial = lane_dial_open(endpoint->loop, offer, on_settled, link);
    return link && link->dial;
}

/* --- links that come and go: on the owner's thread ------------------------------------------------------------------ */

void endpoint_on_entry(struct endpoint *endpoint, const struct loop_entry *entry)
{
    struct link *link;
    bool closed = false;

    if (entry->pipe_event == PIPE_ADDED) {
        entry->link->id = ++endpoint->next_pipe;
        entry->link->next = endpoint->links;
        endpoint->links = entry->link;
        endpoint->on_pipe(endpoint, entry->link->id, PIPE_ADDED);
        if (endpoint->opened && endpoint->links && find(endpoint, endpoint->next_pipe) == entry->link)
            receive(entry->link);
        return;
    }
    link = find(endpoint, entry->pipe);
    if (link && link->lane) { /* what the peer said before its end; a callback of it may close the endpoint, and free it */
        endpoint->closed = &closed;
        lane_drain(link->lane);
        if (closed)
            return;
        endpoint->closed = NULL;
    }
    for (struct link **at = &endpoint->links; *at; at = &(*at)->next)
        if ((*at)->id == entry->pipe) {
            link = *at;
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

static bool is_local(const char *address) { return !strncmp(address, "ipc://", 6) || !strncmp(address, "inproc://", 9); }

/* On an nng thread: a stream has come of accepting or dialing. */
static bool tell_added(struct endpoint *endpoint, nng_aio *aio, bool local)
{
    struct loop_entry entry = {.kind = ENTRY_PIPE, .endpoint = endpoint, .pipe_event = PIPE_ADDED};

    entry.link = link_open(endpoint, nng_aio_get_output(aio, 0));
    if (entry.link) {
        entry.link->local = local;
        loop_put(endpoint->loop, &entry);
    }
    return entry.link;
}

static void on_accept(void *arg)
{
    struct listener *listener = arg;
    int rv = nng_aio_result(listener->aio);

    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return;
    if (rv) { /* out of descriptors, most likely: not in a busy loop, nor asleep on one of nng's few threads */
        listener->pausing = true;
        nng_sleep_aio(ACCEPT_PAUSE_MS, listener->aio);
        return;
    }
    if (!listener->pausing)
        tell_added(listener->endpoint, listener->aio, listener->local);
    listener->pausing = false;
    nng_stream_listener_accept(listener->stream, listener->aio);
}

static void on_dial(void *arg)
{
    struct endpoint *endpoint = arg;
    const struct loop_entry failed = {.kind = ENTRY_PIPE, .endpoint = endpoint, .pipe_event = PIPE_GONE};
    int rv = nng_aio_result(endpoint->dial);

    if (rv == NNG_ECLOSED || rv == NNG_ECANCELED)
        return;
    if (rv || !tell_added(endpoint, endpoint->dial, endpoint->dials_local))
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
    endpoint->port = NULL;
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
    listener->local = is_local(address);
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

    endpoint->dials_local = is_local(address);
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
    if (endpoint->closed)
        *endpoint->closed = true;
    endpoint->closed = NULL;
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
    lane_port_close(endpoint->port);
    endpoint->port = NULL;
    while (endpoint->links) {
        struct link *link = endpoint->links;
        endpoint->links = link->next;
        link_free(link);
    }
    loop_forget_endpoint(endpoint->loop, endpoint);
}

// transport_tls.c: links over TLS, both ends with a certificate (tls.h): sockets of our own, records by OpenSSL, a thread for each connection.
//
// Why not nng's own tls+tcp: in 1.5.2 it cannot tell whose certificate the peer has shown (there is no NNG_OPT_TLS_PEER_CN yet), so a kv-worker could not
// be told from a gateway; a listener's files cannot be changed while it listens; a failed handshake has no reason that could be
// logged; and its mbedTLS 2.28 has neither TLS 1.3 nor half of OpenSSL's speed. libssl is linked anyway, by libcurl.
//
//     acceptor's thread ── handshake done ──▶ queue of the loop ──▶ owner ── start ──▶ the link's thread
//     dial: the link's thread connects, shakes hands ──▶ queue of the loop ──▶ owner ── start ──┘
//
//     owner ── send ──▶ queue of the link ──▶ the link's thread: encrypt, send(2)
//     owner ◀── queue of the loop ◀── frames ◀── the link's thread: recv(2), decrypt into the frame
//
// A thread a connection has one record layer and needs no lock around it, and the records of many workers are made on as many
// cores, none of them the one that computes. It sleeps in poll(2) on its socket and on an eventfd; a sender writes that only while
// the thread sleeps. Large frames are written from where they lie and read to where they stay. Small ones share a record.
//
// Links begin unusable to strangers: the acceptor hands on only peers with a good certificate, and a dialed peer has shown the role that the channel
// expects before its first byte is sent.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/priority.h"
#include "common/rpc/tls_acceptor.h"
#include "common/rpc/tls_dial.h"
#include "common/rpc/transport.h"

enum { TX_QUEUE_MAX = 1 << 16, LISTENERS_MAX = 4, LINKS_MAX = 1024, STACK_BYTES = 256 << 10 };
enum { STAGING_BYTES = 16 << 10, SMALL_BYTES = 4 << 10, WRITES_A_TURN = 32, READS_A_TURN = 8 };
enum { UNGREETED_BYTES_MAX = 64 << 10 }; // the largest envelope before allow()
enum entry_kind { ENTRY_LINK, ENTRY_FAILED, ENTRY_MESSAGE, ENTRY_GONE };

struct link;

struct transport_port {
    struct loop_source source; // first: callbacks cast back
    struct transport_config config;
    struct tls_acceptor *acceptors[LISTENERS_MAX];
    uint32_t acceptor_count;
    atomic_uint link_count;   // relaxed: a limit
    struct link *dialing;     // until the owner has it as a link
    atomic_bool has_reserved; // room for the failure of the dial. relaxed: the thread is joined before the owner asks
    atomic_bool is_accepted;  // see tls_dial.h
};

struct link {
    struct transport_link base; // first: the endpoint casts to it
    struct transport_port *port;
    struct rpc_loop *loop;
    pthread_t thread;
    bool has_thread;
    char address[300]; // that is dialed, or of ours at which it was accepted
    char peer[300];    // for the log
    int wake_fd;
    // Set by the owner, which then wakes the thread. relaxed: the eventfd orders the rest, save for `started`
    atomic_bool started; // release, acquire: the link's id is set
    atomic_bool closing, resumed;
    atomic_bool gone; // its end was put into the loop's queue, once. relaxed: the queue's lock orders the rest
    bool reserved;    // room for that end was reserved
    bool stalled;     // under the loop's lock
    // Largest message accepted. relaxed: the peer sends larger ones only after it has received what is sent after the store
    atomic_ullong max_message_bytes;

    pthread_mutex_t lock; // of what follows
    bool parked;          // the thread sleeps, or is about to
    struct frame *queue, **queue_end;
    uint32_t queue_count;
    size_t queue_bytes;

    // the thread's only, once it runs
    struct tls_session *session;
    struct frame_reader reader;
    bool readable; // the socket or the session may have something
    bool paused, awaits_room,
        awaits_bytes;      // reading: the loop is full; writing: the socket is full; the peer must say something first
    struct frame *sending; // a large frame, or NULL
    size_t sent;           // of it, or of staging
    size_t staged;
    unsigned char staging[STAGING_BYTES];
    uint64_t check_us;
};

// --- a link's life ---

static void wake(struct link *link)
{
    const uint64_t one = 1;
    while (write(link->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void tell_gone(struct link *link)
{
    const struct loop_entry entry = {.source = &link->port->source, .kind = ENTRY_GONE, .id = link->base.id};
    if (!atomic_exchange_explicit(&link->gone, true, memory_order_relaxed))
        loop_put_reserved(link->loop, &entry);
}

static void stop_thread(struct link *link)
{
    atomic_store_explicit(&link->closing, true, memory_order_relaxed);
    if (!link->has_thread)
        return;
    wake(link);
    pthread_join(link->thread, NULL); // it waits for nothing but short locks
    link->has_thread = false;
}

static void link_free(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    stop_thread(link);
    tls_session_close(link->session);
    if (link->reserved && !atomic_load_explicit(&link->gone, memory_order_relaxed)) // no thread runs any more
        loop_release(link->loop);
    frame_reader_close(&link->reader);
    frame_free(link->sending);
    while (link->queue) {
        struct frame *frame = link->queue;
        link->queue = frame->next;
        frame_free(frame);
    }
    atomic_fetch_sub_explicit(&link->port->link_count, 1, memory_order_relaxed);
    if (link->wake_fd >= 0)
        close(link->wake_fd);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

// Any thread. Takes the session (NULL: it is to be dialed). NULL: no memory, no descriptor, or too many links.
static struct link *link_open(struct transport_port *port, struct tls_session *session, const char *address, const char *peer)
{
    struct link *link = calloc(1, sizeof *link);

    if (!link) {
        tls_session_close(session);
        return NULL;
    }
    link->base = (struct transport_link){.transport = &transport_tls, .is_usable = true, .at = link->address, .peer = link->peer};
    if (session)
        link->base.role = tls_session_role(session);
    link->port = port;
    link->loop = port->config.loop;
    link->session = session;
    link->reader.lent = port->config.lent;
    link->queue_end = &link->queue;
    snprintf(link->address, sizeof link->address, "%s", address);
    snprintf(link->peer, sizeof link->peer, "%s", peer);
    pthread_mutex_init(&link->lock, NULL);
    atomic_store_explicit(&link->max_message_bytes, MIN(port->config.max_message_bytes, (uint64_t)UNGREETED_BYTES_MAX),
                          memory_order_relaxed);
    link->reserved = loop_reserve(link->loop);
    link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool too_many = atomic_fetch_add_explicit(&port->link_count, 1, memory_order_relaxed) >= LINKS_MAX;
    if (link->reserved && link->wake_fd >= 0 && !too_many)
        return link;
    link_free(&link->base);
    return NULL;
}

static void *link_main(void *arg);

static bool start_thread(struct link *link)
{
    pthread_attr_t small;

    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    link->has_thread = !pthread_create(&link->thread, &small, link_main, link);
    pthread_attr_destroy(&small);
    return link->has_thread;
}

static void link_start(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    atomic_store_explicit(&link->started, true, memory_order_release);
    if (link->has_thread) // it has dialed
        wake(link);
    else if (!start_thread(link))
        tell_gone(link);
}

static void link_resume(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    if (!loop_was_stalled(link->loop, &link->stalled))
        return;
    atomic_store_explicit(&link->resumed, true, memory_order_relaxed);
    wake(link);
}

static void link_allow(struct transport_link *base, uint64_t max_bytes)
{
    atomic_store_explicit(&((struct link *)base)->max_message_bytes, max_bytes, memory_order_relaxed);
}

static void link_shut(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    atomic_store_explicit(&link->closing, true, memory_order_relaxed);
    wake(link);
    tell_gone(link);
}

static void link_send(struct transport_link *base, struct frame *frame)
{
    struct link *link = (struct link *)base;
    bool was_parked = false;

    frame->next = NULL;
    pthread_mutex_lock(&link->lock);
    const bool full = link->queue_count == TX_QUEUE_MAX || (link->queue && link->queue_bytes + frame->length > RPC_UNSENT_BYTES);
    if (!full) {
        *link->queue_end = frame;
        link->queue_end = &frame->next;
        link->queue_count++;
        link->queue_bytes += frame->length;
        was_parked = link->parked;
        link->parked = false;
    }
    pthread_mutex_unlock(&link->lock);
    if (was_parked)
        wake(link);
    if (full) { // the peer does not read
        frame_free(frame);
        link_shut(base);
    }
}

// --- the thread of a link: receiving ---

static void deliver(void *arg, struct frame *frame)
{
    struct link *link = arg;
    const struct loop_entry entry = {.source = &link->port->source, .kind = ENTRY_MESSAGE, .id = link->base.id, .frame = frame};
    if (loop_put(link->loop, &entry))
        return;
    frame_free(frame); // after a lost message both sides would disagree
    tell_gone(link);
    atomic_store_explicit(&link->closing, true, memory_order_relaxed);
}

static void log_failure(struct link *link)
{
    const char *why = tls_session_why(link->session);
    if (why[0])
        tls_refused(link->port->config.tls, link->address, link->peer, why);
}

// False: the link is over. *busy: there may be more.
static bool receive_some(struct link *link, bool *busy)
{
    if (link->paused && atomic_exchange_explicit(&link->resumed, false, memory_order_relaxed))
        link->paused = false;
    for (int turn = 0; turn < READS_A_TURN && link->readable && !link->paused; turn++) {
        void *at;
        size_t room = frame_reader_space(&link->reader, &at), count;
        if (!room)
            return false; // no memory
        enum tls_step step = tls_session_read(link->session, at, room, &count);
        link->reader.max_message_bytes = atomic_load_explicit(&link->max_message_bytes, memory_order_relaxed);
        if (count && !frame_reader_take(&link->reader, count, deliver, link))
            return false;
        if (step == TLS_STEP_FAILED)
            log_failure(link);
        if (step == TLS_STEP_FAILED || step == TLS_STEP_END)
            return false;
        link->paused = count && loop_is_full(link->loop, &link->stalled);
        link->readable = step != TLS_STEP_READ; // until poll() says so again
        if (step != TLS_STEP_DONE)
            return true;
    }
    *busy |= link->readable && !link->paused;
    return true;
}

// --- sending ---

static struct frame *take_frame(struct link *link, size_t most_bytes)
{
    struct frame *frame = NULL;

    pthread_mutex_lock(&link->lock);
    if (link->queue && FRAME_HEAD + link->queue->length <= most_bytes) {
        frame = link->queue;
        link->queue = frame->next;
        link->queue_count--;
        link->queue_bytes -= frame->length;
        if (!link->queue)
            link->queue_end = &link->queue;
    }
    pthread_mutex_unlock(&link->lock);
    return frame;
}

// Takes small frames that fit one record, or a large one. False: there is none.
static bool take_next(struct link *link)
{
    struct frame *frame;

    link->staged = link->sent = 0;
    while ((frame = take_frame(link, MIN((size_t)SMALL_BYTES, STAGING_BYTES - link->staged)))) {
        memcpy(link->staging + link->staged, frame->wire, FRAME_HEAD + frame->length);
        link->staged += FRAME_HEAD + frame->length;
        frame_free(frame);
    }
    if (!link->staged)
        link->sending = take_frame(link, SIZE_MAX);
    return link->staged || link->sending;
}

// False: the link is over. *busy: there may be more.
static bool send_some(struct link *link, bool *busy)
{
    enum tls_step step = TLS_STEP_DONE;
    int turn = 0;

    for (; turn < WRITES_A_TURN && step == TLS_STEP_DONE; turn++) {
        size_t count, total = link->sending ? FRAME_HEAD + link->sending->length : link->staged;
        if (link->sent == total) {
            frame_free(link->sending);
            link->sending = NULL;
            if (!take_next(link))
                break;
            total = link->sending ? FRAME_HEAD + link->sending->length : link->staged;
        }
        step = tls_session_write(link->session, (link->sending ? link->sending->wire : link->staging) + link->sent,
                                 total - link->sent, &count);
        link->sent += count;
    }
    const enum tls_step flushed = tls_session_flush(link->session);
    link->awaits_room = step == TLS_STEP_WRITE || flushed == TLS_STEP_WRITE;
    link->awaits_bytes = step == TLS_STEP_READ;
    *busy |= turn == WRITES_A_TURN && !link->awaits_room;
    if (step == TLS_STEP_FAILED)
        log_failure(link);
    return step != TLS_STEP_FAILED && step != TLS_STEP_END && flushed != TLS_STEP_FAILED;
}

// --- the life of the thread ---

// True once there is nothing to send that could be sent; from then on link_send() wakes the thread.
static bool park(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    link->parked = !link->queue || link->awaits_room || link->awaits_bytes;
    bool parked = link->parked;
    pthread_mutex_unlock(&link->lock);
    return parked;
}

static void unpark(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    link->parked = false;
    pthread_mutex_unlock(&link->lock);
}

static bool is_closing(const struct link *link) { return atomic_load_explicit(&link->closing, memory_order_relaxed); }

// Waits for the socket (events 0: not for that), to be woken, and at most limit_ms.
static void sleep_on(struct link *link, int fd, short events, int limit_ms)
{
    struct pollfd polled[] = {{.fd = events ? fd : -1, .events = events}, {.fd = link->wake_fd, .events = POLLIN}};
    uint64_t value;

    if (poll(polled, 2, limit_ms) > 0 && polled[1].revents && read(link->wake_fd, &value, sizeof value) < 0) {
        // EAGAIN: another wake-up has been read with this one
    }
    link->readable |= polled[0].revents != 0;
}

static bool is_still_good(struct link *link)
{
    const uint64_t now_us = clock_now_us();
    char peer[320], why[320];

    if (now_us < link->check_us)
        return true;
    link->check_us = now_us + RPC_TLS_CHECK_S * 1000000ull;
    if (tls_session_is_still_good(link->session))
        return true;
    log_warn("TLS-ENDED", "peer=%s role=%s why=%s", log_quote(peer, sizeof peer, link->peer), rpc_role_name(link->base.role),
             log_quote(why, sizeof why, tls_session_why(link->session)));
    return false;
}

static void carry(struct link *link)
{
    char cipher[80];
    bool ignored;

    tls_session_cipher(link->session, cipher, sizeof cipher);
    log_debug("TLS-LINK", "peer=%s role=%s cipher=\"%s\"", link->peer, rpc_role_name(link->base.role), cipher);
    link->check_us = clock_now_us() + RPC_TLS_CHECK_S * 1000000ull;
    link->readable = true; // what followed the handshake
    while (!is_closing(link) && is_still_good(link)) {
        bool busy = false;
        if (!receive_some(link, &busy) || !send_some(link, &busy))
            return;
        if (busy || !park(link))
            continue;
        sleep_on(link, tls_session_fd(link->session), (short)((link->paused ? 0 : POLLIN) | (link->awaits_room ? POLLOUT : 0)),
                 RPC_TLS_CHECK_S * 1000);
        unpark(link);
    }
    (void)!send_some(link, &ignored); // a last word, if the socket takes it at once
}

// --- the thread's main ---

// False: it did not work.
static bool connect_link(struct link *link)
{
    const struct tls_dial_config config = {.tls = link->port->config.tls,
                                           .address = link->address,
                                           .peer_roles = link->port->config.peer_roles,
                                           .give_up_fd = link->wake_fd, // nobody else wakes it before it is handed over
                                           .is_accepted = &link->port->is_accepted};

    if (!(link->session = tls_dial(&config)))
        return false;
    link->base.role = tls_session_role(link->session);
    return true;
}

// True: the owner has the link from here on.
static bool hand_over(struct link *link)
{
    const struct loop_entry entry = {.source = &link->port->source, .kind = ENTRY_LINK, .object = link};
    return loop_put(link->loop, &entry);
}

static void *link_main(void *arg)
{
    struct link *link = arg;
    struct transport_port *port = link->port;
    const struct loop_entry failed = {.source = &port->source, .kind = ENTRY_FAILED};

    priority_short_turns(); // each layer of a step waits for this thread twice, beside threads that compute
    if (!link->session && (!connect_link(link) || !hand_over(link))) {
        atomic_store_explicit(&port->has_reserved, false, memory_order_relaxed);
        loop_put_reserved(link->loop, &failed);
        return NULL;
    }
    while (!atomic_load_explicit(&link->started, memory_order_acquire) && !is_closing(link))
        sleep_on(link, -1, 0, -1);
    if (!is_closing(link))
        carry(link);
    if (atomic_load_explicit(&link->started, memory_order_acquire))
        tell_gone(link);
    return NULL;
}

// --- ports ---

// On the acceptor's thread.
static void on_session(void *user, struct tls_session *session, const char *at, const char *peer)
{
    struct transport_port *port = user;
    struct link *link = link_open(port, session, at, peer);

    if (!link)
        tls_refused(port->config.tls, at, peer, "no memory, no descriptor or too many connections");
    else if (!hand_over(link))
        link_free(&link->base);
}

static void on_entry(struct loop_source *source, const struct loop_entry *entry)
{
    struct transport_port *port = (struct transport_port *)source;
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
    const struct transport_port *port = (const struct transport_port *)source;
    port->config.events->on_room(port->config.user);
}

static void drop_link(struct loop_source *source, void *object)
{
    struct transport_port *port = (struct transport_port *)source;
    if (object == port->dialing)
        port->dialing = NULL;
    link_free(object);
}

static struct transport_port *port_open(const struct transport_config *config)
{
    struct transport_port *port = calloc(1, sizeof *port);

    if (!port)
        return NULL;
    port->source = (struct loop_source){.on_entry = on_entry, .on_room = on_room, .drop = drop_link};
    port->config = *config;
    loop_add_source(config->loop, &port->source);
    return port;
}

static const char NO_CERTIFICATE[] = "TLS needs a certificate: --tls DIR (fastdecode certs makes one)";

static const char *port_listen(struct transport_port *port, const char *address, int *port_number)
{
    const struct tls_acceptor_config config = {.tls = port->config.tls, .address = address, .on_session = on_session, .user = port};
    const char *why;

    if (!port->config.tls)
        return NO_CERTIFICATE;
    if (port->acceptor_count == LISTENERS_MAX)
        return "too many addresses";
    struct tls_acceptor *acceptor = tls_acceptor_open(&config, port_number, &why);
    if (!acceptor)
        return why;
    port->acceptors[port->acceptor_count++] = acceptor;
    return NULL;
}

static const char *port_dial(struct transport_port *port, const char *address)
{
    if (!port->config.tls)
        return NO_CERTIFICATE;
    if (!loop_reserve(port->config.loop))
        return "no memory";
    atomic_store_explicit(&port->has_reserved, true, memory_order_relaxed);
    if (!(port->dialing = link_open(port, NULL, address, address)))
        return "no memory";
    return start_thread(port->dialing) ? NULL : "no thread";
}

static bool port_is_accepted(const struct transport_port *port)
{
    return atomic_load_explicit(&port->is_accepted, memory_order_relaxed);
}

static void port_close(struct transport_port *port)
{
    for (uint32_t i = 0; i < port->acceptor_count; i++)
        tls_acceptor_close(port->acceptors[i]);
    if (port->dialing)
        stop_thread(port->dialing);
    if (atomic_load_explicit(&port->has_reserved, memory_order_relaxed))
        loop_release(port->config.loop);
    loop_remove_source(port->config.loop, &port->source);
    if (port->dialing)
        link_free(&port->dialing->base);
    free(port);
}

const struct transport transport_tls = {
    .open = port_open,
    .close = port_close,
    .listen = port_listen,
    .dial = port_dial,
    .is_accepted = port_is_accepted,
    .start = link_start,
    .allow = link_allow,
    .resume = link_resume,
    .send = link_send,
    .shut = link_shut,
    .free = link_free,
};

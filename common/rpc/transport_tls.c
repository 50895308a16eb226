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
#include "common/base/thread_pool.h"
#include "common/rpc/relay.h"
#include "common/rpc/tls_connect.h"

enum { LISTENERS_MAX = 4, LINKS_MAX = 1024, STACK_BYTES = 256 << 10 };
enum { STAGING_BYTES = 16 << 10, SMALL_BYTES = 4 << 10, WRITES_A_TURN = 32, READS_A_TURN = 8 };

struct transport_port {
    struct relay_port relay; // first: callbacks cast back
    struct tls_acceptor *acceptors[LISTENERS_MAX];
    uint32_t acceptor_count;
    atomic_uint link_count;  // relaxed: a limit
    atomic_bool is_accepted; // see struct tls_dial_config
};

struct link {
    struct relay_link relay; // first: the endpoint casts to it
    pthread_t thread;
    bool has_thread;
    char address[300]; // that is dialed, or of ours at which it was accepted
    char peer[300];    // for the log
    int wake_fd;
    // Set by the owner, which then wakes the thread. relaxed: the eventfd orders the rest, save for `started`
    atomic_bool started; // release, acquire: the link's id is set
    atomic_bool closing, resumed;

    // the thread's only, once it runs, as is the relay's reader
    struct tls_session *session;
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

static struct transport_port *port_of(const struct link *link) { return (struct transport_port *)link->relay.port; }

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
    frame_free(link->sending);
    atomic_fetch_sub_explicit(&port_of(link)->link_count, 1, memory_order_relaxed);
    if (link->wake_fd >= 0)
        close(link->wake_fd);
    relay_link_close(&link->relay);
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
    const bool has_room = relay_link_open(&link->relay, &transport_tls, &port->relay);
    link->relay.base.at = link->address;
    link->relay.base.peer = link->peer;
    if (session)
        link->relay.base.role = tls_session_role(session);
    link->session = session;
    snprintf(link->address, sizeof link->address, "%s", address);
    snprintf(link->peer, sizeof link->peer, "%s", peer);
    link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool too_many = atomic_fetch_add_explicit(&port->link_count, 1, memory_order_relaxed) >= LINKS_MAX;
    if (has_room && link->wake_fd >= 0 && !too_many)
        return link;
    link_free(&link->relay.base);
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
        relay_gone(&link->relay);
}

static void link_resume(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    if (!loop_was_stalled(link->relay.loop, &link->relay.stalled))
        return;
    atomic_store_explicit(&link->resumed, true, memory_order_relaxed);
    wake(link);
}

static void link_shut(struct transport_link *base)
{
    struct link *link = (struct link *)base;

    atomic_store_explicit(&link->closing, true, memory_order_relaxed);
    wake(link);
    relay_gone(&link->relay);
}

static void link_send(struct transport_link *base, struct frame *frame)
{
    struct link *link = (struct link *)base;
    if (relay_put(&link->relay, frame))
        wake(link);
}

// --- the thread of a link: receiving ---

static void deliver(void *arg, struct frame *frame)
{
    struct link *link = arg;
    if (!relay_message(&link->relay, frame))
        atomic_store_explicit(&link->closing, true, memory_order_relaxed);
}

static void log_failure(struct link *link)
{
    const char *why = tls_session_why(link->session);
    if (why[0])
        tls_refused(link->relay.port->config.tls, link->address, link->peer, why);
}

// False: the link is over. *busy: there may be more.
static bool receive_some(struct link *link, bool *busy)
{
    if (link->paused && atomic_exchange_explicit(&link->resumed, false, memory_order_relaxed))
        link->paused = false;
    for (int turn = 0; turn < READS_A_TURN && link->readable && !link->paused; turn++) {
        void *at;
        size_t room = frame_reader_space(&link->relay.reader, &at), count;
        if (!room)
            return false; // no memory
        enum tls_step step = tls_session_read(link->session, at, room, &count);
        if (count && !relay_received(&link->relay, count, deliver))
            return false;
        if (step == TLS_STEP_FAILED)
            log_failure(link);
        if (step == TLS_STEP_FAILED || step == TLS_STEP_END)
            return false;
        link->paused = count && loop_is_full(link->relay.loop, &link->relay.stalled);
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

    pthread_mutex_lock(&link->relay.lock);
    if (link->relay.unsent.first && FRAME_HEAD + link->relay.unsent.first->length <= most_bytes)
        frame = frame_queue_take(&link->relay.unsent);
    pthread_mutex_unlock(&link->relay.lock);
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
    pthread_mutex_lock(&link->relay.lock);
    const bool parked = link->relay.is_idle = !link->relay.unsent.first || link->awaits_room || link->awaits_bytes;
    pthread_mutex_unlock(&link->relay.lock);
    return parked;
}

static void unpark(struct link *link)
{
    pthread_mutex_lock(&link->relay.lock);
    link->relay.is_idle = false;
    pthread_mutex_unlock(&link->relay.lock);
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
    log_warn("TLS-ENDED", "peer=%s role=%s why=%s", log_quote(peer, sizeof peer, link->peer), rpc_role_name(link->relay.base.role),
             log_quote(why, sizeof why, tls_session_why(link->session)));
    return false;
}

static void carry(struct link *link)
{
    char cipher[80];
    bool ignored;

    tls_session_cipher(link->session, cipher, sizeof cipher);
    log_debug("TLS-LINK", "peer=%s role=%s cipher=\"%s\"", link->peer, rpc_role_name(link->relay.base.role), cipher);
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
    const struct tls_dial_config config = {.tls = link->relay.port->config.tls,
                                           .address = link->address,
                                           .peer_roles = link->relay.port->config.peer_roles,
                                           .give_up_fd = link->wake_fd, // nobody else wakes it before it is handed over
                                           .is_accepted = &port_of(link)->is_accepted};

    if (!(link->session = tls_dial(&config)))
        return false;
    link->relay.base.role = tls_session_role(link->session);
    return true;
}

static void *link_main(void *arg)
{
    struct link *link = arg;

    priority_short_turns(); // each layer of a step waits for this thread twice, beside threads that compute
    if (!link->session && (!connect_link(link) || !relay_link(&link->relay))) { // the owner has the link from here on
        relay_dial_failed(link->relay.port);
        return NULL;
    }
    while (!atomic_load_explicit(&link->started, memory_order_acquire) && !is_closing(link))
        sleep_on(link, -1, 0, -1);
    if (!is_closing(link))
        carry(link);
    if (atomic_load_explicit(&link->started, memory_order_acquire))
        relay_gone(&link->relay);
    return NULL;
}

// --- ports ---

// On the acceptor's thread.
static void on_session(void *user, struct tls_session *session, const char *at, const char *peer)
{
    struct transport_port *port = user;
    struct link *link = link_open(port, session, at, peer);

    if (!link)
        tls_refused(port->relay.config.tls, at, peer, "no memory, no descriptor or too many connections");
    else if (!relay_link(&link->relay))
        link_free(&link->relay.base);
}

static struct transport_port *port_open(const struct transport_config *config)
{
    struct transport_port *port = calloc(1, sizeof *port);

    if (!port)
        return NULL;
    relay_port_open(&port->relay, config);
    return port;
}

static const char NO_CERTIFICATE[] = "TLS needs a certificate: --tls DIR (fastdecode certs makes one)";

static const char *port_listen(struct transport_port *port, const char *address, int *port_number)
{
    const struct tls_acceptor_config config = {
        .tls = port->relay.config.tls, .address = address, .on_session = on_session, .user = port};
    const char *why;

    if (!port->relay.config.tls)
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
    if (!port->relay.config.tls)
        return NO_CERTIFICATE;
    if (!relay_port_will_dial(&port->relay))
        return "no memory";
    struct link *link = link_open(port, NULL, address, address);
    if (!link)
        return "no memory";
    port->relay.dialing = &link->relay;
    return start_thread(link) ? NULL : "no thread";
}

static bool port_is_accepted(const struct transport_port *port)
{
    return atomic_load_explicit(&port->is_accepted, memory_order_relaxed);
}

static void port_close(struct transport_port *port)
{
    for (uint32_t i = 0; i < port->acceptor_count; i++)
        tls_acceptor_close(port->acceptors[i]);
    if (port->relay.dialing)
        stop_thread((struct link *)port->relay.dialing);
    relay_port_close(&port->relay);
    if (port->relay.dialing)
        link_free(&port->relay.dialing->base);
    free(port);
}

const struct transport transport_tls = {
    .open = port_open,
    .close = port_close,
    .listen = port_listen,
    .dial = port_dial,
    .is_accepted = port_is_accepted,
    .start = link_start,
    .allow = relay_allow,
    .resume = link_resume,
    .send = link_send,
    .shut = link_shut,
    .free = link_free,
};

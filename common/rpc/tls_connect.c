// tls_connect.c: both ways to a connection over TLS: dialing, and a listening socket with its thread. Sockets of our own, which can be given
// up at any moment.
//
// Looking up a name takes as long as the resolver likes and cannot be interrupted, so it has a thread of its own that nobody waits for:
// whoever asked waits for an answer in a pipe, and may go away. Numbers need no thread.
//
// Dialing works on the thread of the link that it makes, so it may wait; connecting and shaking hands have a deadline each.
//
// One thread does all handshakes of one listening socket, as nicely as it can: what strangers make this process compute is a share of one
// core, and behind everything else. (Worked number: a handshake takes this thread 0.4 ms of processor time; 1,000 a second from hostile
// peers are 40% of a core if nobody else wants it, a seventieth of that otherwise.) A stranger costs a descriptor, and 60 KiB from its first
// byte on, until TLS_HANDSHAKE_US are over. One that says nothing costs no session: most of what a flood of connections would cost.
//
// HANDSHAKES_MAX may be here at a time. One more takes the place of the oldest of the address that has most of them, its own included: a
// flood from some addresses drives out its own connections, and a good peer, which needs few, stays for as long as it has time. (Example:
// 1,000 connections a second from 4 addresses are gone after an eighth of a second, each; the handshake of a member takes the time it takes.)
//
//     accept ─▶ arrivals, the oldest first ─ first byte ─▶ tls_session_handshake() ─▶ on_session()
//                     └─ late, bad, one too many: closed, and a line in the log (tls_refused)
#include "common/rpc/tls_connect.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/address.h"
#include "common/rpc/transport.h"

enum { LISTEN_BACKLOG = 256, DIAL_PEER_BYTES = 64 };

static const char GIVEN_UP[] = "given up", TOO_LATE[] = "no connection in time";

// --- names ---

// A lookup belongs to the one who asks and to the thread that looks it up; the last of them frees it.
struct lookup {
    atomic_uint users;
    char host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES];
    int pipe[2]; // the thread closes the second end when it is done
    int failed;
    struct addrinfo *found;
};

static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};

static void lookup_release(struct lookup *lookup)
{
    // acq_rel: what one has written is there for the other to free
    if (atomic_fetch_sub_explicit(&lookup->users, 1, memory_order_acq_rel) > 1)
        return;
    if (lookup->found)
        freeaddrinfo(lookup->found);
    close(lookup->pipe[0]);
    free(lookup);
}

static void *look_up(void *arg)
{
    struct lookup *lookup = arg;

    lookup->failed = getaddrinfo(lookup->host, lookup->port, &hints, &lookup->found);
    close(lookup->pipe[1]); // it can be read from now on
    lookup_release(lookup);
    return NULL;
}

// Waits until fd has one of the events (true), or for the end of it all.
static bool await(int fd, short events, int give_up_fd, uint64_t until_us, const char **why)
{
    for (;;) {
        struct pollfd polled[] = {{.fd = fd, .events = events}, {.fd = give_up_fd, .events = POLLIN}};
        const uint64_t now_us = clock_now_us();
        if (now_us >= until_us) {
            *why = TOO_LATE;
            return false;
        }
        if (poll(polled, 2, (int)MIN((until_us - now_us) / 1000 + 1, (uint64_t)60000)) < 0 && errno != EINTR) {
            *why = strerror(errno);
            return false;
        }
        if (polled[1].revents) {
            *why = GIVEN_UP;
            return false;
        }
        if (polled[0].revents)
            return true;
    }
}

// NULL: no memory, no thread.
static struct lookup *begin_lookup(const char *host, const char *port)
{
    struct lookup *lookup = calloc(1, sizeof *lookup);
    pthread_attr_t detached;
    pthread_t thread;

    if (!lookup || pipe2(lookup->pipe, O_CLOEXEC)) {
        free(lookup);
        return NULL;
    }
    atomic_init(&lookup->users, 2);
    snprintf(lookup->host, sizeof lookup->host, "%s", host);
    snprintf(lookup->port, sizeof lookup->port, "%s", port);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool started = !pthread_create(&thread, &detached, look_up, lookup);
    pthread_attr_destroy(&detached);
    if (started)
        return lookup;
    close(lookup->pipe[1]);
    atomic_store_explicit(&lookup->users, 1, memory_order_relaxed);
    lookup_release(lookup);
    return NULL;
}

// --- connecting ---

// Without delay, with keepalive.
static void dial_set_options(int fd)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

static int connect_to(const struct addrinfo *at, int give_up_fd, uint64_t until_us, const char **why)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), failed = 0;
    socklen_t length = sizeof failed;

    if (fd < 0) {
        *why = strerror(errno);
        return -1;
    }
    if (connect(fd, at->ai_addr, at->ai_addrlen) && errno != EINPROGRESS) {
        *why = strerror(errno);
    } else if (await(fd, POLLOUT, give_up_fd, until_us, why)) {
        if (!getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &length) && !failed) {
            dial_set_options(fd);
            return fd;
        }
        *why = strerror(failed);
    }
    close(fd);
    return -1;
}

static int connect_any(const struct addrinfo *at, int give_up_fd, uint64_t until_us, const char **why)
{
    int fd = -1;

    *why = "the name has no address";
    for (; at && fd < 0; at = at->ai_next) {
        fd = connect_to(at, give_up_fd, until_us, why);
        if (fd < 0 && (*why == GIVEN_UP || *why == TOO_LATE))
            break;
    }
    return fd;
}

// Connects. Returns a connected socket that does not block, with no delay and keepalive set, -1: *why says what is wrong. Gives up at once
// when give_up_fd can be read, and after limit_us.
static int dial_connect(const char *host, const char *port, int give_up_fd, uint64_t limit_us, const char **why)
{
    const uint64_t until_us = clock_now_us() + limit_us;
    struct addrinfo numeric = hints, *found;
    struct lookup *lookup;
    int fd = -1;

    numeric.ai_flags |= AI_NUMERICHOST;
    if (!getaddrinfo(host, port, &numeric, &found)) {
        fd = connect_any(found, give_up_fd, until_us, why);
        freeaddrinfo(found);
        return fd;
    }
    if (!(lookup = begin_lookup(host, port))) {
        *why = "no memory to look a name up";
        return -1;
    }
    if (await(lookup->pipe[0], POLLIN, give_up_fd, until_us, why)) {
        if (lookup->failed)
            *why = gai_strerror(lookup->failed);
        else
            fd = connect_any(lookup->found, give_up_fd, until_us, why);
    }
    lookup_release(lookup);
    return fd;
}

// --- listening ---

static int bound_port(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;

    if (getsockname(fd, (struct sockaddr *)&address, &length))
        return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

// Listens on host ("" for all interfaces; a name, or an address) and port. Blocks while a name is looked up. Returns a socket that does not
// block, -1: *why says what is wrong. *port_number: the bound one.
static int dial_listen(const char *host, const char *port, int *port_number, const char **why)
{
    struct addrinfo wanted = hints, *found = NULL;
    const int on = 1;
    int fd = -1, failed;

    wanted.ai_flags |= AI_PASSIVE;
    wanted.ai_family = host[0] ? AF_UNSPEC : AF_INET; // as nng has it
    if ((failed = getaddrinfo(host[0] ? host : NULL, port, &wanted, &found))) {
        *why = gai_strerror(failed);
        return -1;
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, LISTEN_BACKLOG)) {
        *why = strerror(errno);
        if (fd >= 0)
            close(fd);
        fd = -1;
    } else {
        *port_number = bound_port(fd);
    }
    freeaddrinfo(found);
    return fd;
}

// "10.0.0.3:4711", "[::1]:4711".
static void dial_text(const struct sockaddr_storage *address, char text[DIAL_PEER_BYTES])
{
    char host[INET6_ADDRSTRLEN + 1] = "?", port[8] = "?";

    getnameinfo((const struct sockaddr *)address,
                address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), host, sizeof host, port,
                sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, DIAL_PEER_BYTES, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

// --- dialing ---

// True: both ends are who they should be.
static bool shake_hands(const struct tls_dial_config *config, struct tls_session *session)
{
    const uint64_t until_us = clock_now_us() + TLS_HANDSHAKE_US;
    const char *why = "no handshake in time", *interrupted;
    enum tls_step step;

    for (;;) {
        step = tls_session_handshake(session);
        if ((step != TLS_STEP_READ && step != TLS_STEP_WRITE) || clock_now_us() >= until_us)
            break;
        if (!await(tls_session_fd(session), step == TLS_STEP_READ ? POLLIN : POLLOUT, config->give_up_fd, until_us, &interrupted) &&
            interrupted == GIVEN_UP)
            return false;
    }
    if (step == TLS_STEP_DONE)
        return true;
    if (step == TLS_STEP_FAILED)
        why = tls_session_why(session);
    else if (step == TLS_STEP_END)
        why = "it has closed the connection in the handshake (plain tcp?)";
    if (why[0])
        tls_refused(config->tls, config->address, config->address, why);
    return false;
}

struct tls_session *tls_dial(const struct tls_dial_config *config)
{
    struct tls_peer expected = {.roles = config->peer_roles};
    char port[ADDRESS_PORT_BYTES];
    const char *why = "want tls+tcp://HOST:PORT";
    struct tls_session *session;
    int fd = -1;

    _Static_assert(sizeof expected.host >= ADDRESS_HOST_BYTES, "a host that can be dialed can be expected");
    if (address_split(config->address, expected.host, port))
        fd = dial_connect(expected.host, port, config->give_up_fd, TRANSPORT_DIAL_MS * 1000ull, &why);
    if (fd < 0) {
        log_debug("TLS-NOT-CONNECTED", "address=%s why=\"%s\"", config->address, why);
        return NULL;
    }
    atomic_store_explicit(config->is_accepted, true, memory_order_relaxed);
    if (!(session = tls_session_open(config->tls, fd, false, &expected)) || shake_hands(config, session))
        return session;
    tls_session_close(session);
    return NULL;
}

// --- a listening socket, whose peers have shown a good certificate before anyone else hears of them ---

enum { HANDSHAKES_MAX = 128, ACCEPTS_A_TURN = 16, ACCEPT_PAUSE_US = 20000, NICE = 19 };

enum { HANDSHAKE_RECORD = 0x16 }; // the first byte of TLS

struct arrival {
    struct tls_session *session; // NULL: it has not said anything, and the socket is ours
    int fd;
    bool is_plain; // what it says first is no TLS
    uint64_t until_us;
    short events;
    uint64_t from; // its address, without the port
    char peer[DIAL_PEER_BYTES];
};

struct tls_acceptor {
    struct tls_acceptor_config config;
    char address[300]; // as bound
    int fd, stop_fd;
    pthread_t thread;
    struct arrival arrivals[HANDSHAKES_MAX]; // the oldest first
    uint32_t arrival_count;
    uint64_t accept_at_us; // not before: there were no descriptors
};

static void forget_arrival(struct tls_acceptor *acceptor, uint32_t index)
{
    acceptor->arrival_count--;
    memmove(&acceptor->arrivals[index], &acceptor->arrivals[index + 1],
            (acceptor->arrival_count - index) * sizeof *acceptor->arrivals);
}

static void close_arrival(const struct arrival *arrival)
{
    if (arrival->session)
        tls_session_close(arrival->session);
    else if (arrival->fd >= 0)
        close(arrival->fd);
}

// why "": it has gone by itself.
static void refuse_arrival(struct tls_acceptor *acceptor, uint32_t index, const char *why)
{
    // OpenSSL says nothing to a peer that does not speak TLS. An alert (handshake_failure) lets one of ours say what is wrong.
    static const unsigned char alert[] = {0x15, 0x03, 0x03, 0, 2, 2, 40};
    const struct arrival *arrival = &acceptor->arrivals[index];

    if (why[0])
        tls_refused(acceptor->config.tls, acceptor->address, arrival->peer, why);
    if (arrival->is_plain && arrival->session)
        (void)!send(tls_session_fd(arrival->session), alert, sizeof alert, MSG_DONTWAIT | MSG_NOSIGNAL);
    close_arrival(arrival);
    forget_arrival(acceptor, index);
}

// False: it has gone, or there is no memory.
static bool begin_session(struct tls_acceptor *acceptor, struct arrival *arrival)
{
    const struct tls_peer expected = {.roles = RPC_IS_ANY}; // which method it may call is the server's question
    unsigned char byte;

    if (recv(arrival->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        return false;
    arrival->is_plain = byte != HANDSHAKE_RECORD;
    dial_set_options(arrival->fd);
    arrival->session = tls_session_open(acceptor->config.tls, arrival->fd, true, &expected);
    if (!arrival->session)
        arrival->fd = -1; // it is closed
    return arrival->session;
}

static void advance_arrival(struct tls_acceptor *acceptor, uint32_t index)
{
    struct arrival *arrival = &acceptor->arrivals[index], now;

    if (!arrival->session && !begin_session(acceptor, arrival)) {
        refuse_arrival(acceptor, index, "");
        return;
    }
    switch (tls_session_handshake(arrival->session)) {
    case TLS_STEP_READ: arrival->events = POLLIN; break;
    case TLS_STEP_WRITE: arrival->events = POLLOUT; break;
    case TLS_STEP_END: refuse_arrival(acceptor, index, ""); break;
    case TLS_STEP_FAILED: refuse_arrival(acceptor, index, tls_session_why(arrival->session)); break;
    case TLS_STEP_DONE:
        now = *arrival;
        forget_arrival(acceptor, index);
        acceptor->config.on_session(acceptor->config.user, now.session, acceptor->address, now.peer);
        break;
    }
}

// Returns an address as a number; for IPv6 its network, since a host there has all its addresses.
static uint64_t address_of(const struct sockaddr_storage *address)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    uint64_t network;
    uint32_t four;

    if (address->ss_family == AF_INET)
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr;
    memcpy(&network, six->sin6_addr.s6_addr, sizeof network);
    memcpy(&four, six->sin6_addr.s6_addr + 12, sizeof four);
    return IN6_IS_ADDR_V4MAPPED(&six->sin6_addr) ? four : network;
}

// Returns the oldest arrival of the address that has most of them, with one more that comes `from` somewhere.
static uint32_t find_oldest_of_most(const struct tls_acceptor *acceptor, uint64_t from)
{
    uint32_t found = 0, most = 0;

    for (uint32_t i = 0; i < acceptor->arrival_count; i++) {
        uint32_t count = acceptor->arrivals[i].from == from;
        for (uint32_t k = 0; k < acceptor->arrival_count; k++)
            count += acceptor->arrivals[k].from == acceptor->arrivals[i].from;
        if (count > most) {
            most = count;
            found = i;
        }
    }
    return found;
}

static void arrive(struct tls_acceptor *acceptor, int fd, const struct sockaddr_storage *address)
{
    const uint64_t from = address_of(address);

    if (acceptor->arrival_count == HANDSHAKES_MAX)
        refuse_arrival(acceptor, find_oldest_of_most(acceptor, from), "the oldest of too many handshakes at a time");
    struct arrival *arrival = &acceptor->arrivals[acceptor->arrival_count++];
    *arrival = (struct arrival){.fd = fd, .until_us = clock_now_us() + TLS_HANDSHAKE_US, .events = POLLIN, .from = from};
    dial_text(address, arrival->peer);
}

static void accept_some(struct tls_acceptor *acceptor)
{
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof address;
        int fd = accept4(acceptor->fd, (struct sockaddr *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            arrive(acceptor, fd, &address);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            acceptor->accept_at_us = clock_now_us() + ACCEPT_PAUSE_US;
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

// Returns the time until something is late, in milliseconds.
static int wait_ms(const struct tls_acceptor *acceptor, uint64_t now_us)
{
    uint64_t until_us = UINT64_MAX;

    if (acceptor->arrival_count)
        until_us = acceptor->arrivals[0].until_us;
    if (acceptor->accept_at_us > now_us)
        until_us = MIN(until_us, acceptor->accept_at_us);
    return until_us == UINT64_MAX ? -1 : until_us <= now_us ? 0 : (int)((until_us - now_us) / 1000 + 1);
}

static void *accept_main(void *arg)
{
    struct tls_acceptor *acceptor = arg;
    struct pollfd polled[2 + HANDSHAKES_MAX];

    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); // of this thread alone. If it fails strangers compete with the others
    for (;;) {
        uint64_t now_us = clock_now_us();
        const uint32_t count = acceptor->arrival_count;
        polled[0] = (struct pollfd){.fd = acceptor->stop_fd, .events = POLLIN};
        polled[1] = (struct pollfd){.fd = acceptor->accept_at_us > now_us ? -1 : acceptor->fd, .events = POLLIN};
        for (uint32_t i = 0; i < count; i++)
            polled[2 + i] = (struct pollfd){.fd = acceptor->arrivals[i].fd, .events = acceptor->arrivals[i].events};
        if (poll(polled, 2 + count, wait_ms(acceptor, now_us)) < 0)
            continue; // EINTR
        if (polled[0].revents)
            return NULL;
        now_us = clock_now_us();
        for (uint32_t i = count; i-- > 0;) { // from the end: what goes moves those after it only
            if (polled[2 + i].revents)
                advance_arrival(acceptor, i);
            else if (acceptor->arrivals[i].until_us <= now_us)
                refuse_arrival(acceptor, i, "no handshake in time");
        }
        if (polled[1].revents)
            accept_some(acceptor);
    }
}

struct tls_acceptor *tls_acceptor_open(const struct tls_acceptor_config *config, int *port_number, const char **why)
{
    char host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES];
    struct tls_acceptor *acceptor = calloc(1, sizeof *acceptor);

    *why = "no memory";
    if (!acceptor)
        return NULL;
    acceptor->config = *config;
    acceptor->fd = acceptor->stop_fd = -1;
    *why = "want tls+tcp://HOST:PORT";
    if (!address_split(config->address, host, port) || (acceptor->fd = dial_listen(host, port, port_number, why)) < 0)
        goto fail;
    snprintf(acceptor->address, sizeof acceptor->address, TLS_SCHEME "%s:%d", host, *port_number);
    *why = "no descriptor or thread";
    acceptor->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (acceptor->stop_fd >= 0 && !pthread_create(&acceptor->thread, NULL, accept_main, acceptor))
        return acceptor;
fail:
    if (acceptor->fd >= 0)
        close(acceptor->fd);
    if (acceptor->stop_fd >= 0)
        close(acceptor->stop_fd);
    free(acceptor);
    return NULL;
}

void tls_acceptor_close(struct tls_acceptor *acceptor)
{
    const uint64_t one = 1;

    if (!acceptor)
        return;
    while (write(acceptor->stop_fd, &one, sizeof one) < 0 && errno == EINTR) {}
    pthread_join(acceptor->thread, NULL);
    for (uint32_t i = 0; i < acceptor->arrival_count; i++)
        close_arrival(&acceptor->arrivals[i]);
    close(acceptor->fd);
    close(acceptor->stop_fd);
    free(acceptor);
}

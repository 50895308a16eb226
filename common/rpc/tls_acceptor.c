// tls_acceptor.c: see tls_acceptor.h.
//
// One thread does all handshakes of one listening socket, as nicely as it can: what strangers make this process compute is a share of one core, and
// behind everything else. (Worked number: a handshake takes this thread 0.4 ms of processor time; 1,000 a second from hostile peers are 40% of a core if
// nobody else wants it, a seventieth of that otherwise.) A stranger costs a descriptor, and 60 KiB from its first byte on, until TLS_HANDSHAKE_US are
// over. One that says nothing costs no session: most of what a flood of connections would cost.
//
// HANDSHAKES_MAX may be here at a time. One more takes the place of the oldest of the address that has most of them, its own included: a flood
// from some addresses drives out its own connections, and a good peer, which needs few, stays for as long as it has time. (Example: 1,000
// connections a second from 4 addresses are gone after an eighth of a second, each; the handshake of a member takes the time it takes.)
//
//     accept ─▶ arrivals, the oldest first ─ first byte ─▶ tls_session_handshake() ─▶ on_session()
//                     └─ late, bad, one too many: closed, and a line in the log (refusals.h)
#include "common/rpc/tls_acceptor.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
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
#include "common/rpc/dial.h"

enum { HANDSHAKES_MAX = 128, ACCEPTS_A_TURN = 16, ACCEPT_PAUSE_US = 20000, NICE = 19 };

struct arrival {
    struct tls_session *session; // NULL: it has not said anything, and the socket is ours
    int fd;
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

static void forget(struct tls_acceptor *acceptor, uint32_t index)
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
static void refuse(struct tls_acceptor *acceptor, uint32_t index, const char *why)
{
    const struct arrival *arrival = &acceptor->arrivals[index];

    if (why[0])
        tls_refused(acceptor->config.tls, acceptor->address, arrival->peer, why);
    close_arrival(arrival);
    forget(acceptor, index);
}

// False: it has gone, or there is no memory.
static bool begin(struct tls_acceptor *acceptor, struct arrival *arrival)
{
    const struct tls_peer expected = {.roles = RPC_IS_ANY}; // which method it may call is the server's question
    char byte;

    if (recv(arrival->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
        return false;
    dial_set_options(arrival->fd);
    arrival->session = tls_session_open(acceptor->config.tls, arrival->fd, true, &expected);
    if (!arrival->session)
        arrival->fd = -1; // it is closed
    return arrival->session;
}

static void go_on(struct tls_acceptor *acceptor, uint32_t index)
{
    struct arrival *arrival = &acceptor->arrivals[index], now;

    if (!arrival->session && !begin(acceptor, arrival)) {
        refuse(acceptor, index, "");
        return;
    }
    switch (tls_session_handshake(arrival->session)) {
    case TLS_STEP_READ: arrival->events = POLLIN; break;
    case TLS_STEP_WRITE: arrival->events = POLLOUT; break;
    case TLS_STEP_END: refuse(acceptor, index, ""); break;
    case TLS_STEP_FAILED: refuse(acceptor, index, tls_session_why(arrival->session)); break;
    case TLS_STEP_DONE:
        now = *arrival;
        forget(acceptor, index);
        acceptor->config.on_session(acceptor->config.user, now.session, acceptor->address, now.peer);
        break;
    }
}

// Of IPv6 the network: who has one address there has all.
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
        refuse(acceptor, find_oldest_of_most(acceptor, from), "the oldest of too many handshakes at a time");
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
                go_on(acceptor, i);
            else if (acceptor->arrivals[i].until_us <= now_us)
                refuse(acceptor, i, "no handshake in time");
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

// dial.c: see dial.h.
//
// Looking up a name takes as long as the resolver likes and cannot be interrupted, so it has a thread of its own that nobody waits for: whoever asked
// waits for an answer in a pipe, and may go away. Numbers need no thread.
#include "common/rpc/dial.h"

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
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/rpc/address.h"

enum { LISTEN_BACKLOG = 256 };

static const char GIVEN_UP[] = "given up", TOO_LATE[] = "no connection in time";

// --- names ---

// Of the one who asks and the thread that looks it up; whoever is last frees it.
struct lookup {
    atomic_uint users;
    char host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES];
    int pipe[2]; // the thread closes the second end when it is done
    int failed;
    struct addrinfo *found;
};

static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};

static void let_go(struct lookup *lookup)
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
    let_go(lookup);
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
    let_go(lookup);
    return NULL;
}

// --- connecting ---

void dial_set_options(int fd)
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

int dial_connect(const char *host, const char *port, int give_up_fd, uint64_t limit_us, const char **why)
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
    let_go(lookup);
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

int dial_listen(const char *host, const char *port, int *port_number, const char **why)
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

void dial_text(const struct sockaddr_storage *address, char text[DIAL_PEER_BYTES])
{
    char host[INET6_ADDRSTRLEN + 1] = "?", port[8] = "?";

    getnameinfo((const struct sockaddr *)address,
                address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), host, sizeof host, port,
                sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, DIAL_PEER_BYTES, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

// transport_local.c: a plain socket beside a link within one host: the owner of the loop reads and writes it itself.
//
// nng brings a message through its poller, one of its task threads and the loop's queue to the owner: three wake-ups, 60 to
// 100 µs of CPU time, and on few cores each of them takes the core from a thread that computes. A local socket is one wake-up. nng
// makes the connection, carries the handshake and is what tells that the peer is gone; where there is no local socket (another host,
// another network namespace, tls) it carries everything.
//
//     server: HELLO with the name of a socket in the abstract namespace, a token and an answer, random numbers of this connection
//     client: connects there and says the token
//     server: has a link to the client that the token was given to, and says the answer
//     client: from here on sends there, and so does the server once it has heard it there
//
// A client says nothing between its HELLO and this, so no order is lost at the change. A client that gets no answer in time goes on
// without: nobody may be there, or somebody else (such names are of a network namespace, a socket's path is of a file system; and
// anybody on the host may connect).
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/rpc/transport.h"
#include "common/rpc/wire.h"

// --- greetings: the 16 bytes that each end says first: "FDL1", four zeros, and a token or its answer ---

enum { TOKEN_GREETING_BYTES = 16 };

// Waits for the greeting of the other end; the first part of the owner's struct.
struct token_wait {
    struct pollee pollee; // first: callbacks cast back
    struct rpc_loop *loop;
    uint64_t timer;
    size_t have;
    unsigned char greeting[TOKEN_GREETING_BYTES];
    void (*on_token)(struct token_wait *wait, uint64_t token); // must end the wait; token 0: malformed, or not in time
};

static const unsigned char greeting_magic[8] = {'F', 'D', 'L', '1'};

// Reads what has arrived already; may call on_token.
static void token_wait_read(struct token_wait *wait)
{
    ssize_t count = recv(wait->pollee.fd, wait->greeting + wait->have, TOKEN_GREETING_BYTES - wait->have, MSG_DONTWAIT);

    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    wait->have += count > 0 ? (size_t)count : 0;
    if (count > 0 && wait->have < TOKEN_GREETING_BYTES)
        return;
    bool good = count > 0 && !memcmp(wait->greeting, greeting_magic, sizeof greeting_magic);
    wait->on_token(wait, good ? wire_load_u64(wait->greeting + sizeof greeting_magic) : 0);
}

static void on_greeting(struct pollee *pollee, short events)
{
    (void)events;
    token_wait_read((struct token_wait *)pollee);
}

static void on_silence(void *arg)
{
    struct token_wait *wait = arg;
    wait->timer = 0;
    wait->on_token(wait, 0);
}

// Begins to wait. False: no memory; nothing has begun.
static bool token_wait_begin(struct token_wait *wait, struct rpc_loop *loop, int fd, uint64_t limit_us,
                             void (*on_token)(struct token_wait *wait, uint64_t token))
{
    *wait =
        (struct token_wait){.pollee = {.fd = fd, .events = POLLIN, .on_ready = on_greeting}, .loop = loop, .on_token = on_token};
    wait->timer = rpc_loop_timer(loop, limit_us, on_silence, wait);
    if (wait->timer && loop_watch(loop, &wait->pollee))
        return true;
    rpc_loop_cancel_timer(loop, wait->timer);
    return false;
}

// Returns its socket, which is the caller's again.
static int token_wait_end(struct token_wait *wait)
{
    loop_unwatch(wait->loop, &wait->pollee);
    rpc_loop_cancel_timer(wait->loop, wait->timer);
    return wait->pollee.fd;
}

// Sends a greeting. False: nobody would hear it.
static bool token_send(int fd, uint64_t token)
{
    unsigned char greeting[TOKEN_GREETING_BYTES];

    memcpy(greeting, greeting_magic, sizeof greeting_magic);
    wire_store_u64(greeting + sizeof greeting_magic, token);
    return send(fd, greeting, sizeof greeting, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof greeting;
}

// --- a link ---

enum {
    PIECES = 64,           // frames in one system call
    LARGE_BYTES = 4 << 10, // such a frame goes at once
    SEND_BYTES = 4 << 20,  // in the kernel, so that a layer's tensors are one system call
    READS_A_TURN = 16,     // then others have theirs
    ARRIVING_MAX = 64,     // connected and silent
    ACCEPTS_A_TURN = 16,
    ARRIVING_US = 5000000,
    ANSWER_US = 300000 // until then the channel is not up
};

struct local_link {
    struct transport_link base; // first: the endpoint casts to it
    struct pollee pollee;
    struct deferred deferred; // small frames wait to be sent together
    struct rpc_loop *loop;
    const struct transport_events *events;
    void *user;
    struct frame_reader reader;
    struct frame_queue unsent;
    size_t sent;    // bytes of the first one of them
    uint32_t depth; // it is freed when the last of its callbacks has returned
    bool gone, heard, closed;
};

static struct local_link *link_of_pollee(struct pollee *pollee)
{
    return (struct local_link *)((char *)pollee - offsetof(struct local_link, pollee));
}

// --- sending ---

// A client that did not wait for the answer has sent nothing here: then the link was never in use, and its end is no failure.
static void tell_end(struct local_link *link)
{
    if (link->base.is_usable || link->heard)
        link->events->on_gone(link->user, link->base.id);
    else
        link->events->on_failed(link->user, link->base.id);
}

static void tell_gone(struct local_link *link)
{
    link->pollee.events = 0;
    if (link->gone)
        return;
    link->gone = true;
    if (!link->closed)
        tell_end(link);
}

static void forget_sent(struct local_link *link, size_t count)
{
    for (count += link->sent; link->unsent.first && count >= FRAME_HEAD + link->unsent.first->length;) {
        count -= FRAME_HEAD + link->unsent.first->length;
        frame_free(frame_queue_take(&link->unsent));
    }
    link->sent = count;
}

// Sends as much as the socket accepts.
static void flush(struct local_link *link)
{
    struct iovec pieces[PIECES];
    struct msghdr message = {.msg_iov = pieces};

    while (link->unsent.first && !link->gone) {
        size_t skip = link->sent, total = 0;
        ssize_t count;
        message.msg_iovlen = 0;
        for (struct frame *frame = link->unsent.first; frame && message.msg_iovlen < PIECES; frame = frame->next, skip = 0) {
            pieces[message.msg_iovlen++] = (struct iovec){frame->wire + skip, FRAME_HEAD + frame->length - skip};
            total += FRAME_HEAD + frame->length - skip;
        }
        count = sendmsg(link->pollee.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            link->pollee.events |= POLLOUT;
            return;
        }
        if (count < 0) {
            tell_gone(link);
            return;
        }
        forget_sent(link, (size_t)count);
    }
    link->pollee.events &= (short)~POLLOUT;
}

static void flush_deferred(struct deferred *deferred)
{
    flush((struct local_link *)((char *)deferred - offsetof(struct local_link, deferred)));
}

// Sends urgent and large frames at once. Small ones wait for others until rpc_loop_run() begins or ends.
static void link_send(struct transport_link *base, struct frame *frame)
{
    struct local_link *link = (struct local_link *)base;

    if (link->gone || !frame_queue_put(&link->unsent, frame, RPC_UNSENT_BYTES)) { // the peer does not read
        frame_free(frame);
        tell_gone(link);
        return;
    }
    if (link->pollee.events & POLLOUT)
        return;
    if (frame->at_once || frame->length >= LARGE_BYTES)
        flush(link);
    else
        loop_defer(link->loop, &link->deferred);
}

// --- receiving ---

static void enter(struct local_link *link) { link->depth++; }

static void leave(struct local_link *link)
{
    if (--link->depth || !link->closed)
        return;
    frame_reader_close(&link->reader);
    frame_queue_clear(&link->unsent);
    free(link);
}

static void deliver(void *arg, struct frame *frame)
{
    struct local_link *link = arg;
    if (link->closed) {
        frame_free(frame);
        return;
    }
    link->base.is_usable = true;
    link->events->on_message(link->user, link->base.id, frame);
}

// Returns false if the link is gone. *more: there may be more to read.
static bool read_once(struct local_link *link, bool *more)
{
    void *at;
    size_t room = frame_reader_space(&link->reader, &at);
    ssize_t count = room ? recv(link->pollee.fd, at, room, MSG_DONTWAIT) : 0;

    *more = (size_t)count == room || (count < 0 && errno == EINTR);
    if (count < 0)
        return *more || errno == EAGAIN || errno == EWOULDBLOCK;
    if (count == 0)
        return false;
    link->heard = true;
    return frame_reader_take(&link->reader, (size_t)count, deliver, link);
}

static void on_ready(struct pollee *pollee, short events)
{
    struct local_link *link = link_of_pollee(pollee);
    bool more = true;

    enter(link);
    if (events & POLLOUT)
        flush(link);
    for (uint32_t turn = 0; turn < READS_A_TURN && more && !link->closed && !link->gone; turn++)
        if (!read_once(link, &more))
            tell_gone(link);
    leave(link);
}

static void link_drain(struct transport_link *base)
{
    struct local_link *link = (struct local_link *)base;
    bool more;

    if (link->gone || link->closed)
        return;
    enter(link);
    shutdown(link->pollee.fd, SHUT_RDWR); // so that the loop ends whatever the peer does
    while (!link->closed && read_once(link, &more)) {}
    leave(link);
}

// Takes fd, which is connected, even on failure. NULL: no memory.
static struct local_link *link_open(const struct transport_config *config, uint32_t id, int fd, bool is_usable)
{
    struct local_link *link = calloc(1, sizeof *link);

    if (!link) {
        close(fd);
        return NULL;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){SEND_BYTES}, sizeof(int)); // capped by the system
    *link = (struct local_link){
        .base = {.transport = &transport_local, .id = id, .is_usable = is_usable, .is_local = true},
        .pollee = {.fd = fd, .events = POLLIN, .on_ready = on_ready},
        .deferred = {.run = flush_deferred},
        .loop = config->loop,
        .events = config->events,
        .user = config->user,
        .reader = {.max_message_bytes = config->max_message_bytes, .lent = config->lent},
    };
    if (loop_watch(config->loop, &link->pollee))
        return link;
    close(fd);
    free(link);
    return NULL;
}

static void link_start(struct transport_link *base) { (void)base; } // it is watched from the start

// Tries once more to send what is queued.
static void link_free(struct transport_link *base)
{
    struct local_link *link = (struct local_link *)base;

    if (link->closed)
        return;
    enter(link);
    link->closed = true;
    loop_forget_deferred(link->loop, &link->deferred);
    flush(link);
    loop_unwatch(link->loop, &link->pollee);
    close(link->pollee.fd);
    leave(link);
}

// --- ports ---

// An offer that a client has not taken yet.
struct given {
    struct given *next;
    uint32_t id;
    uint64_t token, answer;
};

// A client that has connected but not sent its token yet.
struct arriving {
    struct token_wait wait; // first: callbacks cast back
    struct transport_port *port;
    struct arriving *next, **place;
};

// This end has sent the token and waits for the answer.
struct taking {
    struct token_wait wait; // first: callbacks cast back
    struct transport_port *port;
    uint32_t id;
    uint64_t answer;
};

struct transport_port {
    struct pollee pollee; // first; fd < 0: not listening
    struct transport_config config;
    char name[TRANSPORT_NAME_BYTES];
    struct given *given;
    struct arriving *arriving; // newest first
    uint32_t arriving_count;
    struct taking *taking; // NULL: no offer is being taken
};

// Returns its socket.
static int end_arriving(struct arriving *arriving)
{
    int fd = token_wait_end(&arriving->wait);

    *arriving->place = arriving->next;
    if (arriving->next)
        arriving->next->place = arriving->place;
    arriving->port->arriving_count--;
    free(arriving);
    return fd;
}

// The offer is used up if it is found.
static bool find_given(struct transport_port *port, uint64_t token, struct given *out)
{
    for (struct given **at = &port->given; *at; at = &(*at)->next)
        if ((*at)->token == token) {
            struct given *given = *at;
            *out = *given;
            *at = given->next;
            free(given);
            return true;
        }
    return false;
}

static void on_token(struct token_wait *wait, uint64_t token)
{
    struct arriving *arriving = (struct arriving *)wait;
    struct transport_port *port = arriving->port;
    int fd = end_arriving(arriving);
    struct given given;

    if (!token || !find_given(port, token, &given) || !token_send(fd, given.answer)) {
        close(fd);
        return;
    }
    struct local_link *link = link_open(&port->config, given.id, fd, false);
    if (link)
        port->config.events->on_link(port->config.user, &link->base);
}

// Real clients send the token at once, so the connection that has been silent longest makes room.
static void arrive(struct transport_port *port, int fd)
{
    struct arriving *arriving, *oldest = port->arriving;

    if (port->arriving_count == ARRIVING_MAX) {
        while (oldest->next)
            oldest = oldest->next;
        close(end_arriving(oldest));
    }
    arriving = calloc(1, sizeof *arriving);
    if (!arriving || !token_wait_begin(&arriving->wait, port->config.loop, fd, ARRIVING_US, on_token)) {
        close(fd);
        free(arriving);
        return;
    }
    arriving->port = port;
    arriving->next = port->arriving;
    arriving->place = &port->arriving;
    if (arriving->next)
        arriving->next->place = &arriving->next;
    port->arriving = arriving;
    port->arriving_count++;
    token_wait_read(&arriving->wait); // usually it has arrived already
}

static void stop_listening(struct transport_port *port)
{
    if (port->pollee.fd < 0)
        return;
    loop_unwatch(port->config.loop, &port->pollee);
    close(port->pollee.fd);
    port->pollee.fd = -1;
}

static void on_connect(struct pollee *pollee, short events)
{
    struct transport_port *port = (struct transport_port *)pollee;

    (void)events;
    for (uint32_t turn = 0; turn < ACCEPTS_A_TURN; turn++) {
        int fd = accept4(pollee->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            arrive(port, fd);
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
            log_warn("RPC-NO-LOCAL", "why=\"%s\"",
                     strerror(errno)); // most likely out of descriptors; closing tells waiting clients
            stop_listening(port);
        }
        return;
    }
}

static bool start_listening(struct transport_port *port)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t length = sizeof at.sun_family; // no name: the kernel finds a free one
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, length) || listen(fd, ARRIVING_MAX) ||
        (length = sizeof at, getsockname(fd, (struct sockaddr *)&at, &length)))
        goto fail;
    size_t name_bytes = length - offsetof(struct sockaddr_un, sun_path);
    if (name_bytes < 2 || name_bytes > TRANSPORT_NAME_BYTES || at.sun_path[0])
        goto fail;
    memset(port->name, 0, sizeof port->name);
    memcpy(port->name, at.sun_path + 1, name_bytes - 1);
    port->pollee = (struct pollee){.fd = fd, .events = POLLIN, .on_ready = on_connect};
    if (loop_watch(port->config.loop, &port->pollee))
        return true;
fail:
    port->pollee.fd = -1;
    if (fd >= 0)
        close(fd);
    return false;
}

static struct transport_port *port_open(const struct transport_config *config)
{
    struct transport_port *port = calloc(1, sizeof *port);

    if (port)
        *port = (struct transport_port){.pollee.fd = -1, .config = *config};
    return port;
}

static void end_taking(struct transport_port *port)
{
    if (port->taking)
        close(token_wait_end(&port->taking->wait));
    free(port->taking);
    port->taking = NULL;
}

static void port_close(struct transport_port *port)
{
    end_taking(port);
    while (port->arriving)
        close(end_arriving(port->arriving));
    while (port->given) {
        struct given *given = port->given;
        port->given = given->next;
        free(given);
    }
    stop_listening(port);
    free(port);
}

// Offers unguessable random numbers.
static bool port_offer(struct transport_port *port, uint32_t id, struct transport_offer *out)
{
    struct given *given;
    uint64_t words[2];

    if (port->pollee.fd < 0 && !start_listening(port))
        return false;
    if (getrandom(words, sizeof words, GRND_NONBLOCK) != sizeof words || !words[0] || !words[1])
        return false;
    if (!(given = malloc(sizeof *given)))
        return false;
    *given = (struct given){.next = port->given, .id = id, .token = words[0], .answer = words[1]};
    port->given = given;
    out->token = words[0];
    out->answer = words[1];
    memcpy(out->name, port->name, sizeof out->name);
    return true;
}

static void port_withdraw(struct transport_port *port, uint32_t id)
{
    if (port->taking && port->taking->id == id)
        end_taking(port);
    for (struct given **at = &port->given; *at;) {
        struct given *given = *at;
        if (given->id == id) {
            *at = given->next;
            free(given);
        } else {
            at = &given->next;
        }
    }
}

static void on_answer(struct token_wait *wait, uint64_t answer)
{
    struct taking *taking = (struct taking *)wait, now = *taking;
    const struct transport_config *config = &now.port->config;
    int fd = token_wait_end(wait);
    struct local_link *link = NULL;

    free(taking);
    now.port->taking = NULL;
    if (answer && answer == now.answer)
        link = link_open(config, now.id, fd, true);
    else
        close(fd);
    if (link)
        config->events->on_link(config->user, &link->base);
    else
        config->events->on_failed(config->user, now.id);
}

static bool port_take(struct transport_port *port, uint32_t id, const struct transport_offer *offer)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t name_bytes = strlen(offer->name);
    struct taking *taking = calloc(1, sizeof *taking);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    memcpy(at.sun_path + 1, offer->name, name_bytes);
    if (!taking || fd < 0 || port->taking ||
        connect(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes)) ||
        !token_send(fd, offer->token) || !token_wait_begin(&taking->wait, port->config.loop, fd, ANSWER_US, on_answer)) {
        if (fd >= 0)
            close(fd);
        free(taking);
        return false;
    }
    taking->port = port;
    taking->id = id;
    taking->answer = offer->answer;
    port->taking = taking;
    return true;
}

const struct transport transport_local = {
    .open = port_open,
    .close = port_close,
    .offer = port_offer,
    .take = port_take,
    .withdraw = port_withdraw,
    .start = link_start,
    .send = link_send,
    .drain = link_drain,
    .free = link_free,
};

/* lane.c: see lane.h. Sockets of the abstract namespace, without blocking; the kernel picks their names. */
#include "common/rpc/lane.h"

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
#include "common/rpc/internal.h"
#include "common/wire/wire.h"

enum {
    PIECES = 64,           /* frames in one system call */
    QUEUE_MAX = 1 << 16,   /* frames that the peer has not taken */
    LARGE_BYTES = 4 << 10, /* such a frame goes at once */
    SEND_BYTES = 4 << 20,  /* in the kernel, so that a layer's tensors are one system call */
    READS_A_TURN = 16,     /* then others have theirs */
    GREETING_BYTES = 16,   /* "FDL1", zeros, the token or the answer */
    ARRIVING_MAX = 64,     /* connected and silent */
    ACCEPTS_A_TURN = 16,
    ARRIVING_US = 5000000,
    ANSWER_US = 300000 /* the connection works without it meanwhile, but is not up yet */
};

static const unsigned char lane_magic[8] = {'F', 'D', 'L', '1'};

struct lane {
    struct pollee pollee; /* first: callbacks cast back */
    struct rpc_loop *loop;
    struct lane_callbacks callbacks;
    void *user;
    struct frame_reader reader;
    struct frame *queue, **queue_end; /* not sent yet; of the first `sent` bytes are */
    uint32_t queue_count;
    size_t queue_bytes, sent;
    struct lane *next_waiting; /* of the loop's list of lanes whose frames wait for company */
    uint32_t depth;            /* it is freed when the last of its callbacks has returned */
    bool waiting, gone, heard, closed;
};

/* --- sending ----------------------------------------------------------------------------------------------------------- */

static void tell_gone(struct lane *lane)
{
    lane->pollee.events = 0;
    if (lane->gone)
        return;
    lane->gone = true;
    if (!lane->closed)
        lane->callbacks.on_gone(lane->user);
}

static void forget_sent(struct lane *lane, size_t count)
{
    for (count += lane->sent; lane->queue && count >= FRAME_HEAD + lane->queue->length; lane->queue_count--) {
        struct frame *frame = lane->queue;
        count -= FRAME_HEAD + frame->length;
        lane->queue = frame->next;
        lane->queue_bytes -= frame->length;
        frame_free(frame);
    }
    lane->sent = count;
    if (!lane->queue)
        lane->queue_end = &lane->queue;
}

/* As much as the peer takes. */
static void flush(struct lane *lane)
{
    struct iovec pieces[PIECES];
    struct msghdr message = {.msg_iov = pieces};

    while (lane->queue && !lane->gone) {
        size_t skip = lane->sent, total = 0;
        ssize_t count;
        message.msg_iovlen = 0;
        for (struct frame *frame = lane->queue; frame && message.msg_iovlen < PIECES; frame = frame->next, skip = 0) {
            pieces[message.msg_iovlen++] = (struct iovec){frame->wire + skip, FRAME_HEAD + frame->length - skip};
            total += FRAME_HEAD + frame->length - skip;
        }
        count = sendmsg(lane->pollee.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            lane->pollee.events |= POLLOUT;
            return;
        }
        if (count < 0) {
            tell_gone(lane);
            return;
        }
        forget_sent(lane, (size_t)count);
    }
    lane->pollee.events &= (short)~POLLOUT;
}

void lane_send(struct lane *lane, struct frame *frame)
{
    struct lane **waiting = loop_waiting_lanes(lane->loop);

    bool full = lane->queue_count == QUEUE_MAX || (lane->queue && lane->queue_bytes + frame->length > RPC_UNSENT_BYTES);
    if (lane->gone || full) { /* the peer has not read for so long */
        frame_free(frame);
        tell_gone(lane);
        return;
    }
    frame->next = NULL;
    *lane->queue_end = frame;
    lane->queue_end = &frame->next;
    lane->queue_count++;
    lane->queue_bytes += frame->length;
    if (lane->pollee.events & POLLOUT)
        return;
    if (frame->at_once || frame->length >= LARGE_BYTES) {
        flush(lane);
    } else if (!lane->waiting) {
        lane->waiting = true;
        lane->next_waiting = *waiting;
        *waiting = lane;
    }
}

void lane_flush_all(struct lane **waiting)
{
    while (*waiting) {
        struct lane *lane = *waiting;
        *waiting = lane->next_waiting;
        lane->waiting = false;
        flush(lane);
    }
}

/* --- receiving --------------------------------------------------------------------------------------------------------- */

static void enter(struct lane *lane) { lane->depth++; }

static void leave(struct lane *lane)
{
    if (--lane->depth || !lane->closed)
        return;
    frame_reader_close(&lane->reader);
    forget_sent(lane, 0);
    while (lane->queue) {
        struct frame *frame = lane->queue;
        lane->queue = frame->next;
        frame_free(frame);
    }
    free(lane);
}

static void deliver(void *arg, struct frame *frame)
{
    struct lane *lane = arg;
    if (lane->closed)
        frame_free(frame);
    else
        lane->callbacks.on_message(lane->user, frame);
}

/* False: it is gone. *more: there may be more to read. */
static bool read_once(struct lane *lane, bool *more)
{
    void *at;
    size_t room = frame_reader_space(&lane->reader, &at);
    ssize_t count = room ? recv(lane->pollee.fd, at, room, MSG_DONTWAIT) : 0;

    *more = (size_t)count == room || (count < 0 && errno == EINTR);
    if (count < 0)
        return *more || errno == EAGAIN || errno == EWOULDBLOCK;
    if (count == 0)
        return false;
    lane->heard = true;
    return frame_reader_take(&lane->reader, (size_t)count, deliver, lane);
}

static void on_ready(struct pollee *pollee, short events)
{
    struct lane *lane = (struct lane *)pollee;
    bool more = true;

    enter(lane);
    if (events & POLLOUT)
        flush(lane);
    for (uint32_t turn = 0; turn < READS_A_TURN && more && !lane->closed && !lane->gone; turn++)
        if (!read_once(lane, &more))
            tell_gone(lane);
    leave(lane);
}

void lane_drain(struct lane *lane)
{
    bool more;

    if (lane->gone || lane->closed)
        return;
    enter(lane);
    shutdown(lane->pollee.fd, SHUT_RDWR); /* so that this has an end, whatever the peer does */
    while (!lane->closed && read_once(lane, &more)) {}
    leave(lane);
}

bool lane_was_heard(const struct lane *lane) { return lane->heard; }

struct lane *lane_open(struct rpc_loop *loop, int fd, const struct frame_reader *reader, const struct lane_callbacks *callbacks,
                       void *user)
{
    struct lane *lane = calloc(1, sizeof *lane);

    if (!lane) {
        close(fd);
        return NULL;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){SEND_BYTES}, sizeof(int)); /* the system's limit, if that is less */
    *lane = (struct lane){.pollee = {.fd = fd, .events = POLLIN, .on_ready = on_ready},
                          .loop = loop,
                          .callbacks = *callbacks,
                          .user = user,
                          .reader = *reader,
                          .queue_end = &lane->queue};
    loop_watch(loop, &lane->pollee);
    return lane;
}

void lane_close(struct lane *lane)
{
    if (!lane || lane->closed)
        return;
    enter(lane);
    lane->closed = true;
    for (struct lane **at = loop_waiting_lanes(lane->loop); lane->waiting && *at; at = &(*at)->next_waiting)
        if (*at == lane) {
            *at = lane->next_waiting;
            lane->waiting = false;
            break;
        }
    flush(lane);
    loop_unwatch(lane->loop, &lane->pollee);
    close(lane->pollee.fd);
    leave(lane);
}

/* --- greetings --------------------------------------------------------------------------------------------------------- */

/* Waits for what the other side says first. */
struct hearing {
    struct pollee pollee; /* first: callbacks cast back, as in what it is part of */
    struct rpc_loop *loop;
    uint64_t timer;
    size_t have;
    unsigned char greeting[GREETING_BYTES];
    void (*on_heard)(struct hearing *hearing, uint64_t word); /* ends it; 0: no greeting, or none in time */
};

static void on_word(struct pollee *pollee, short events)
{
    struct hearing *hearing = (struct hearing *)pollee;
    ssize_t count = recv(pollee->fd, hearing->greeting + hearing->have, GREETING_BYTES - hearing->have, MSG_DONTWAIT);

    (void)events;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    hearing->have += count > 0 ? (size_t)count : 0;
    if (count > 0 && hearing->have < GREETING_BYTES)
        return;
    bool good = count > 0 && !memcmp(hearing->greeting, lane_magic, sizeof lane_magic);
    hearing->on_heard(hearing, good ? wire_load_u64(hearing->greeting + sizeof lane_magic) : 0);
}

static void on_silence(void *arg)
{
    struct hearing *hearing = arg;
    hearing->timer = 0;
    hearing->on_heard(hearing, 0);
}

static void begin_hearing(struct hearing *hearing, struct rpc_loop *loop, int fd, uint64_t limit_us,
                          void (*on_heard)(struct hearing *hearing, uint64_t word))
{
    *hearing = (struct hearing){.pollee = {.fd = fd, .events = POLLIN, .on_ready = on_word}, .loop = loop, .on_heard = on_heard};
    hearing->timer = rpc_loop_timer(loop, limit_us, on_silence, hearing);
    loop_watch(loop, &hearing->pollee);
}

/* Returns its socket. */
static int end_hearing(struct hearing *hearing)
{
    loop_unwatch(hearing->loop, &hearing->pollee);
    rpc_loop_cancel_timer(hearing->loop, hearing->timer);
    return hearing->pollee.fd;
}

static bool say(int fd, uint64_t word)
{
    unsigned char greeting[GREETING_BYTES];

    memcpy(greeting, lane_magic, sizeof lane_magic);
    wire_store_u64(greeting + sizeof lane_magic, word);
    return send(fd, greeting, sizeof greeting, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof greeting;
}

bool lane_answer(int fd, uint64_t answer) { return say(fd, answer); }

/* --- ports ------------------------------------------------------------------------------------------------------------- */

/* Has connected and not said its token yet. */
struct arriving {
    struct hearing hearing; /* first */
    struct lane_port *port;
    struct arriving *next, **place;
};

struct lane_port {
    struct pollee pollee; /* first; fd < 0: not listening */
    struct rpc_loop *loop;
    char name[LANE_NAME_BYTES];
    bool (*on_lane)(void *user, uint64_t token, int fd);
    void *user;
    struct arriving *arriving; /* newest first */
    uint32_t arriving_count;
};

/* Returns its socket. */
static int end_arriving(struct arriving *arriving)
{
    int fd = end_hearing(&arriving->hearing);

    *arriving->place = arriving->next;
    if (arriving->next)
        arriving->next->place = arriving->place;
    arriving->port->arriving_count--;
    free(arriving);
    return fd;
}

static void on_token(struct hearing *hearing, uint64_t token)
{
    struct arriving *arriving = (struct arriving *)hearing;
    struct lane_port *port = arriving->port;
    int fd = end_arriving(arriving);

    if (!token || !port->on_lane(port->user, token, fd))
        close(fd);
}

/* Whoever means it says the token at once: room is made at the cost of who has been silent for longest. */
static void arrive(struct lane_port *port, int fd)
{
    struct arriving *arriving, *oldest = port->arriving;

    if (port->arriving_count == ARRIVING_MAX) {
        while (oldest->next)
            oldest = oldest->next;
        close(end_arriving(oldest));
    }
    if (!(arriving = calloc(1, sizeof *arriving))) {
        close(fd);
        return;
    }
    arriving->port = port;
    arriving->next = port->arriving;
    arriving->place = &port->arriving;
    if (arriving->next)
        arriving->next->place = &arriving->next;
    port->arriving = arriving;
    port->arriving_count++;
    begin_hearing(&arriving->hearing, port->loop, fd, ARRIVING_US, on_token);
    on_word(&arriving->hearing.pollee, POLLIN); /* it lies there already, as a rule */
}

static void stop_listening(struct lane_port *port)
{
    if (port->pollee.fd < 0)
        return;
    loop_unwatch(port->loop, &port->pollee);
    close(port->pollee.fd);
    port->pollee.fd = -1;
}

static void on_connect(struct pollee *pollee, short events)
{
    struct lane_port *port = (struct lane_port *)pollee;

    (void)events;
    for (uint32_t turn = 0; turn < ACCEPTS_A_TURN; turn++) {
        int fd = accept4(pollee->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            arrive(port, fd);
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
            log_warn("RPC-NO-LANES", "why=\"%s\"", strerror(errno)); /* out of descriptors, most likely: whoever waits is told */
            stop_listening(port);
        }
        return;
    }
}

static bool start_listening(struct lane_port *port)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t length = sizeof at.sun_family; /* no name: the kernel finds a free one */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, length) || listen(fd, ARRIVING_MAX) ||
        (length = sizeof at, getsockname(fd, (struct sockaddr *)&at, &length)))
        goto fail;
    size_t name_bytes = length - offsetof(struct sockaddr_un, sun_path);
    if (name_bytes < 2 || name_bytes > LANE_NAME_BYTES || at.sun_path[0])
        goto fail;
    memset(port->name, 0, sizeof port->name);
    memcpy(port->name, at.sun_path + 1, name_bytes - 1);
    port->pollee = (struct pollee){.fd = fd, .events = POLLIN, .on_ready = on_connect};
    loop_watch(port->loop, &port->pollee);
    return true;
fail:
    if (fd >= 0)
        close(fd);
    return false;
}

struct lane_port *lane_port_open(struct rpc_loop *loop, bool (*on_lane)(void *user, uint64_t token, int fd), void *user)
{
    struct lane_port *port = calloc(1, sizeof *port);

    if (!port)
        return NULL;
    *port = (struct lane_port){.pollee.fd = -1, .loop = loop, .on_lane = on_lane, .user = user};
    if (start_listening(port))
        return port;
    free(port);
    return NULL;
}

void lane_port_close(struct lane_port *port)
{
    if (!port)
        return;
    while (port->arriving)
        close(end_arriving(port->arriving));
    stop_listening(port);
    free(port);
}

bool lane_port_offer(struct lane_port *port, struct lane_offer *out)
{
    uint64_t words[2];

    if (port->pollee.fd < 0 && !start_listening(port))
        return false;
    if (getrandom(words, sizeof words, GRND_NONBLOCK) != sizeof words || !words[0] || !words[1])
        return false;
    out->token = words[0];
    out->answer = words[1];
    memcpy(out->name, port->name, sizeof out->name);
    return true;
}

/* --- the client's side --------------------------------------------------------------------------------------------------- */

struct lane_dial {
    struct hearing hearing; /* first */
    uint64_t answer;
    void (*on_settled)(void *user, int fd);
    void *user;
};

static void on_answer(struct hearing *hearing, uint64_t answer)
{
    struct lane_dial *dial = (struct lane_dial *)hearing, now = *dial;
    int fd = end_hearing(hearing);

    free(dial);
    if (!answer || answer != now.answer) {
        close(fd);
        fd = -1;
    }
    now.on_settled(now.user, fd);
}

struct lane_dial *lane_dial_open(struct rpc_loop *loop, const struct lane_offer *offer, void (*on_settled)(void *user, int fd),
                                 void *user)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t name_bytes = strlen(offer->name);
    struct lane_dial *dial = calloc(1, sizeof *dial);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    memcpy(at.sun_path + 1, offer->name, name_bytes);
    if (!dial || fd < 0 ||
        connect(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes)) ||
        !say(fd, offer->token)) {
        if (fd >= 0)
            close(fd);
        free(dial);
        return NULL;
    }
    dial->answer = offer->answer;
    dial->on_settled = on_settled;
    dial->user = user;
    begin_hearing(&dial->hearing, loop, fd, ANSWER_US, on_answer);
    return dial;
}

void lane_dial_close(struct lane_dial *dial)
{
    if (dial)
        close(end_hearing(&dial->hearing));
    free(dial);
}

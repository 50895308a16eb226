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
    GREETING_BYTES = 16,   /* "FDL1", zeros, the token */
    ARRIVING_MAX = 64,     /* connected and silent */
    ARRIVING_US = 5000000
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
    size_t sent;
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

    if (lane->gone || lane->queue_count == QUEUE_MAX) { /* the peer has read nothing for so many messages */
        frame_free(frame);
        tell_gone(lane);
        return;
    }
    frame->next = NULL;
    *lane->queue_end = frame;
    lane->queue_end = &frame->next;
    lane->queue_count++;
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

struct lane *lane_open(struct rpc_loop *loop, int fd, uint64_t max_message_bytes, const struct lane_callbacks *callbacks,
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
                          .reader.max_message_bytes = max_message_bytes,
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

/* --- ports ------------------------------------------------------------------------------------------------------------- */

/* Has connected and not said its token yet. */
struct arriving {
    struct pollee pollee; /* first: callbacks cast back */
    struct lane_port *port;
    struct arriving *next, **place;
    uint64_t timer;
    unsigned char greeting[GREETING_BYTES];
    size_t have;
};

struct lane_port {
    struct pollee pollee; /* first */
    struct rpc_loop *loop;
    char name[LANE_NAME_BYTES];
    bool (*on_lane)(void *user, uint64_t token, int fd);
    void *user;
    struct arriving *arriving;
    uint32_t arriving_count;
    bool failed;
};

/* Its socket is somebody else's now if `taken`. */
static void end_arriving(struct arriving *arriving, bool taken)
{
    loop_unwatch(arriving->port->loop, &arriving->pollee);
    rpc_loop_cancel_timer(arriving->port->loop, arriving->timer);
    if (!taken)
        close(arriving->pollee.fd);
    *arriving->place = arriving->next;
    if (arriving->next)
        arriving->next->place = arriving->place;
    arriving->port->arriving_count--;
    free(arriving);
}

static void on_silence(void *arg)
{
    struct arriving *arriving = arg;
    arriving->timer = 0;
    end_arriving(arriving, false);
}

static void on_greeting(struct pollee *pollee, short events)
{
    struct arriving *arriving = (struct arriving *)pollee;
    ssize_t count = recv(pollee->fd, arriving->greeting + arriving->have, GREETING_BYTES - arriving->have, MSG_DONTWAIT);

    (void)events;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    arriving->have += count > 0 ? (size_t)count : 0;
    if (count > 0 && arriving->have < GREETING_BYTES)
        return;
    struct lane_port *port = arriving->port;
    uint64_t token = wire_load_u64(arriving->greeting + sizeof lane_magic);
    int fd = pollee->fd;
    bool known = count > 0 && !memcmp(arriving->greeting, lane_magic, sizeof lane_magic) && token;
    end_arriving(arriving, known);
    if (known && !port->on_lane(port->user, token, fd))
        close(fd);
}

static void on_connect(struct pollee *pollee, short events)
{
    struct lane_port *port = (struct lane_port *)pollee;
    int fd = accept4(pollee->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)events;
    if (fd < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED)
            return;
        log_warn("RPC-NO-LANES", "why=\"%s\"", strerror(errno)); /* out of descriptors, most likely: whoever waits is told */
        loop_unwatch(port->loop, &port->pollee);
        close(port->pollee.fd);
        port->failed = true;
        return;
    }
    struct arriving *arriving = port->arriving_count < ARRIVING_MAX ? calloc(1, sizeof *arriving) : NULL;
    if (!arriving) {
        close(fd);
        return;
    }
    *arriving = (struct arriving){.pollee = {.fd = fd, .events = POLLIN, .on_ready = on_greeting},
                                  .port = port,
                                  .next = port->arriving,
                                  .place = &port->arriving};
    if (arriving->next)
        arriving->next->place = &arriving->next;
    port->arriving = arriving;
    port->arriving_count++;
    arriving->timer = rpc_loop_timer(port->loop, ARRIVING_US, on_silence, arriving);
    loop_watch(port->loop, &arriving->pollee);
}

struct lane_port *lane_port_open(struct rpc_loop *loop, bool (*on_lane)(void *user, uint64_t token, int fd), void *user)
{
    struct lane_port *port = calloc(1, sizeof *port);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t length = sizeof at.sun_family; /* no name: the kernel finds a free one */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (!port || fd < 0 || bind(fd, (struct sockaddr *)&at, length) || listen(fd, ARRIVING_MAX) ||
        (length = sizeof at, getsockname(fd, (struct sockaddr *)&at, &length)))
        goto fail;
    size_t name_bytes = length - offsetof(struct sockaddr_un, sun_path);
    if (name_bytes < 2 || name_bytes > LANE_NAME_BYTES || at.sun_path[0])
        goto fail;
    *port = (struct lane_port){
        .pollee = {.fd = fd, .events = POLLIN, .on_ready = on_connect}, .loop = loop, .on_lane = on_lane, .user = user};
    memcpy(port->name, at.sun_path + 1, name_bytes - 1);
    loop_watch(loop, &port->pollee);
    return port;
fail:
    if (fd >= 0)
        close(fd);
    free(port);
    return NULL;
}

void lane_port_close(struct lane_port *port)
{
    if (!port)
        return;
    while (port->arriving)
        end_arriving(port->arriving, false);
    if (!port->failed) {
        loop_unwatch(port->loop, &port->pollee);
        close(port->pollee.fd);
    }
    free(port);
}

bool lane_port_offer(struct lane_port *port, struct lane_offer *out)
{
    if (port->failed || getrandom(&out->token, sizeof out->token, GRND_NONBLOCK) != sizeof out->token || !out->token)
        return false;
    memcpy(out->name, port->name, sizeof out->name);
    return true;
}

int lane_connect(const struct lane_offer *offer)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    unsigned char greeting[GREETING_BYTES];
    size_t name_bytes = strlen(offer->name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    memcpy(at.sun_path + 1, offer->name, name_bytes);
    memcpy(greeting, lane_magic, sizeof lane_magic);
    wire_store_u64(greeting + sizeof lane_magic, offer->token);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes)) &&
        send(fd, greeting, sizeof greeting, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof greeting)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

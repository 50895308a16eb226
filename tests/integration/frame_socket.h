// frame_socket.h: the wire protocol of common/rpc (endpoint.c) spoken with plain sockets, so that tests can send what the
// runtime would not: a message is "FDR1", its length as u32 little-endian, and the body.
#ifndef FD_TESTS_FRAME_SOCKET_H
#define FD_TESTS_FRAME_SOCKET_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/status.h"
#include "tests/integration/pace.h"

enum { FRAME_BODY_MAX = 1 << 16 };

struct frame_socket {
    int fd;
};

static inline bool frame_write(const struct frame_socket *frame, const void *bytes, size_t length)
{
    return send(frame->fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length;
}

// False: the peer closed, or said nothing in time.
static inline bool frame_read(const struct frame_socket *frame, void *bytes, size_t length)
{
    unsigned char *at = bytes;
    while (length) {
        struct pollfd ready = {.fd = frame->fd, .events = POLLIN};
        ssize_t got = pace_poll(&ready, 1) ? recv(frame->fd, at, length, 0) : -1;
        if (got <= 0)
            return false;
        at += got;
        length -= (size_t)got;
    }
    return true;
}

// Connects, without a word. address: "tcp://127.0.0.1:port" or "ipc://path".
static inline struct frame_socket frame_connect(const char *address)
{
    struct frame_socket frame;

    if (!strncmp(address, "ipc://", 6)) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        snprintf(to.sun_path, sizeof to.sun_path, "%s", address + 6);
        frame.fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_always(connect(frame.fd, (struct sockaddr *)&to, sizeof to) == 0);
    } else {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1))};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        frame.fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_always(connect(frame.fd, (struct sockaddr *)&to, sizeof to) == 0);
    }
    return frame;
}

static inline bool frame_send(const struct frame_socket *frame, const void *body, size_t length)
{
    const unsigned char head[8] = {'F',
                                   'D',
                                   'R',
                                   '1',
                                   (unsigned char)length,
                                   (unsigned char)(length >> 8),
                                   (unsigned char)(length >> 16),
                                   (unsigned char)(length >> 24)};
    return frame_write(frame, head, sizeof head) && (!length || frame_write(frame, body, length));
}

// The body's length; -1: closed. body holds FRAME_BODY_MAX bytes.
static inline long frame_receive(const struct frame_socket *frame, unsigned char *body)
{
    unsigned char head[8];
    uint32_t length;

    if (!frame_read(frame, head, sizeof head) || memcmp(head, "FDR1", 4) != 0)
        return -1;
    length = (uint32_t)head[4] | (uint32_t)head[5] << 8 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 24;
    return length <= FRAME_BODY_MAX && frame_read(frame, body, length) ? (long)length : -1;
}

#endif

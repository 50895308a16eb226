/* sp_socket.h: nng's wire protocol (SP over TCP and IPC) spoken with plain sockets, so that tests can send what no nng
 * would: the handshake is 00 'S' 'P' 00, the protocol's number, 00 00; a message is its length as u64 big-endian (IPC: after
 * a byte 1), a request id with the top bit set, and the body. REQ is 0x30, REP is 0x31.
 */
#ifndef FD_TESTS_SP_SOCKET_H
#define FD_TESTS_SP_SOCKET_H

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

enum { SP_REQ = 0x30, SP_REP = 0x31, SP_WAIT_MS = 20000, SP_BODY_MAX = 1 << 16 };

struct sp_socket {
    int fd;
    bool ipc;
    uint32_t request_id; /* of the last message that was received */
};

static inline bool sp_write(const struct sp_socket *sp, const void *bytes, size_t length)
{
    return send(sp->fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length;
}

/* False: the peer closed, or said nothing for SP_WAIT_MS. */
static inline bool sp_read(const struct sp_socket *sp, void *bytes, size_t length)
{
    unsigned char *at = bytes;
    while (length) {
        struct pollfd ready = {.fd = sp->fd, .events = POLLIN};
        ssize_t got = poll(&ready, 1, SP_WAIT_MS) == 1 ? recv(sp->fd, at, length, 0) : -1;
        if (got <= 0)
            return false;
        at += got;
        length -= (size_t)got;
    }
    return true;
}

/* Connects, without a word. address: "tcp://127.0.0.1:port" or "ipc://path". */
static inline struct sp_socket sp_connect(const char *address)
{
    struct sp_socket sp = {.ipc = !strncmp(address, "ipc://", 6)};

    if (sp.ipc) {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        snprintf(to.sun_path, sizeof to.sun_path, "%s", address + 6);
        sp.fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_always(connect(sp.fd, (struct sockaddr *)&to, sizeof to) == 0);
    } else {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1))};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        sp.fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_always(connect(sp.fd, (struct sockaddr *)&to, sizeof to) == 0);
    }
    return sp;
}

/* Both sides send this first and read the other's. */
static inline bool sp_handshake(struct sp_socket *sp, unsigned char protocol)
{
    const unsigned char mine[8] = {0, 'S', 'P', 0, 0, protocol, 0, 0};
    unsigned char theirs[8];
    return sp_write(sp, mine, sizeof mine) && sp_read(sp, theirs, sizeof theirs) && theirs[1] == 'S';
}

static inline bool sp_send_length(const struct sp_socket *sp, uint64_t length)
{
    unsigned char head[9] = {1};
    for (int i = 0; i < 8; i++)
        head[1 + i] = (unsigned char)(length >> (56 - 8 * i));
    return sp_write(sp, head + !sp->ipc, sizeof head - !sp->ipc);
}

static inline bool sp_send(const struct sp_socket *sp, uint32_t request_id, const void *body, size_t length)
{
    const unsigned char id[4] = {(unsigned char)(request_id >> 24), (unsigned char)(request_id >> 16),
                                 (unsigned char)(request_id >> 8), (unsigned char)request_id};
    return sp_send_length(sp, length + 4) && sp_write(sp, id, 4) && (!length || sp_write(sp, body, length));
}

/* The body's length; -1: closed. body holds SP_BODY_MAX bytes. */
static inline long sp_receive(struct sp_socket *sp, unsigned char *body)
{
    unsigned char head[9], id[4];
    uint64_t length = 0;

    if (!sp_read(sp, head + !sp->ipc, sizeof head - !sp->ipc))
        return -1;
    for (int i = 0; i < 8; i++)
        length = length << 8 | head[1 + i];
    if (length < 4 || length - 4 > SP_BODY_MAX || !sp_read(sp, id, 4) || !sp_read(sp, body, (size_t)length - 4))
        return -1;
    sp->request_id = (uint32_t)id[0] << 24 | (uint32_t)id[1] << 16 | (uint32_t)id[2] << 8 | id[3];
    return (long)length - 4;
}

#endif

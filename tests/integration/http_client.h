// http_client.h: HTTP/1.1 over plain sockets, for tests: whole answers, and streams that are read piece by piece.
#ifndef FD_TESTS_HTTP_CLIENT_H
#define FD_TESTS_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/status.h"
#include "tests/integration/pace.h"

struct http_reply {
    int fd;
    char *data; // all that came, headers too; terminated
    size_t bytes, capacity;
    bool closed;
};

static inline int http_connect(uint32_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_always(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

// Sends a request and returns at once. headers: lines that each end in \r\n, or "".
static inline struct http_reply http_send(uint32_t port, const char *method, const char *path, const char *headers,
                                          const char *body)
{
    struct http_reply reply = {.fd = http_connect(port)};
    size_t size = strlen(body) + strlen(headers) + strlen(path) + 256;
    char *request = malloc(size);
    int length = snprintf(request, size,
                          "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s", method, path,
                          strlen(body), headers, body);

    if (reply.fd >= 0 && send(reply.fd, request, (size_t)length, MSG_NOSIGNAL) != length)
        reply.closed = true;
    free(request);
    return reply;
}

// Reads once. False: the end, or nothing in time.
static inline bool http_read(struct http_reply *reply)
{
    struct pollfd ready = {.fd = reply->fd, .events = POLLIN};
    ssize_t got;

    if (reply->capacity - reply->bytes < 4096) {
        reply->capacity = reply->capacity * 2 + 8192;
        reply->data = realloc(reply->data, reply->capacity);
        assert_always(reply->data);
    }
    got = reply->fd < 0 || !pace_poll(&ready, 1)
              ? 0
              : recv(reply->fd, reply->data + reply->bytes, reply->capacity - reply->bytes - 1, 0);
    if (got > 0)
        reply->bytes += (size_t)got;
    else
        reply->closed = true;
    reply->data[reply->bytes] = '\0';
    return got > 0;
}

static inline uint32_t http_count(const struct http_reply *reply, const char *text)
{
    uint32_t count = 0;
    const char *at = reply->data;

    while (at && (at = strstr(at, text)) != NULL) {
        count++;
        at += strlen(text);
    }
    return count;
}

// Reads until the text has come so many times; false: it ended first.
static inline bool http_read_until(struct http_reply *reply, const char *text, uint32_t count)
{
    while (http_count(reply, text) < count)
        if (!http_read(reply))
            return false;
    return true;
}

static inline void http_read_all(struct http_reply *reply)
{
    while (http_read(reply))
        ;
}

static inline int http_status(const struct http_reply *reply)
{
    return reply->data && strncmp(reply->data, "HTTP/1.1 ", 9) == 0 ? atoi(reply->data + 9) : 0;
}

static inline void http_free(struct http_reply *reply)
{
    if (reply->fd >= 0)
        close(reply->fd);
    free(reply->data);
    *reply = (struct http_reply){.fd = -1};
}

// All at once.
static inline struct http_reply http_call(uint32_t port, const char *method, const char *path, const char *headers,
                                          const char *body)
{
    struct http_reply reply = http_send(port, method, path, headers, body);
    http_read_all(&reply);
    return reply;
}

// The answer's status alone.
static inline int http_ask(uint32_t port, const char *method, const char *path, const char *headers, const char *body)
{
    struct http_reply reply = http_call(port, method, path, headers, body);
    int status = http_status(&reply);
    http_free(&reply);
    return status;
}

// The JSON strings that follow each `"name":` in the answer, joined, without unescaping: for texts of plain letters.
static inline void http_joined(const struct http_reply *reply, const char *name, char *out, size_t out_bytes)
{
    char key[64];
    const char *at = reply->data;
    size_t length = 0;

    snprintf(key, sizeof key, "\"%s\":\"", name);
    while (at && (at = strstr(at, key)) != NULL) {
        at += strlen(key);
        while (*at && *at != '"' && length + 1 < out_bytes)
            out[length++] = *at++;
    }
    out[length] = '\0';
}

#endif

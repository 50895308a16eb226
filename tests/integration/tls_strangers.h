// tls_strangers.h: TLS by OpenSSL alone, without any code of the runtime: clients and servers that do what ours would not, and what the runtime
// has logged of them.
#ifndef FD_TESTS_TLS_STRANGERS_H
#define FD_TESTS_TLS_STRANGERS_H

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "tests/integration/even_priority.h"
#include "tests/integration/frame_socket.h"
#include "tests/integration/kept_log.h"
#include "tests/integration/tls_rig.h"

// --- one end of a connection ---

struct stranger {
    struct frame_socket socket;
    char name[32]; // "127.0.0.1:4711", as the server sees it
    SSL_CTX *ctx;
    SSL *ssl;
};

// folder: of its certificate; NULL: it has none. It trusts anyone.
static inline SSL_CTX *strangers_context(const char *folder)
{
    char path[RIG_PATH_BYTES + 16];
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());

    signal(SIGPIPE, SIG_IGN); // OpenSSL's sockets raise it when the peer has closed the connection. Services ignore it, too
    SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_security_level(ctx, 0);
    if (folder) {
        snprintf(path, sizeof path, "%s/cert.pem", folder);
        assert_always(SSL_CTX_use_certificate_chain_file(ctx, path) == 1);
        snprintf(path, sizeof path, "%s/key.pem", folder);
        assert_always(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM) == 1);
    }
    return ctx;
}

// Connects, without a word. versions: TLS1_2_VERSION and the like; 0: any.
static inline struct stranger stranger_connect(const char *address, const char *folder, int version)
{
    struct stranger stranger = {.socket = frame_connect(address), .ctx = strangers_context(folder)};
    struct sockaddr_in own;
    socklen_t length = sizeof own;

    assert_always(SSL_CTX_set_min_proto_version(stranger.ctx, version ? version : TLS1_VERSION) == 1 &&
                  SSL_CTX_set_max_proto_version(stranger.ctx, version) == 1);
    getsockname(stranger.socket.fd, (struct sockaddr *)&own, &length);
    snprintf(stranger.name, sizeof stranger.name, "127.0.0.1:%d", ntohs(own.sin_port));
    stranger.ssl = SSL_new(stranger.ctx);
    SSL_set_fd(stranger.ssl, stranger.socket.fd);
    return stranger;
}

static inline void stranger_close(struct stranger *stranger)
{
    SSL_free(stranger->ssl);
    SSL_CTX_free(stranger->ctx);
    close(stranger->socket.fd);
    ERR_clear_error();
}

// Shakes hands and waits for the server's word. True: it closes the connection. (With TLS 1.3 a client hears only then that its certificate
// was refused.)
static inline bool stranger_is_refused(struct stranger *stranger)
{
    char byte;
    bool refused = SSL_connect(stranger->ssl) != 1;

    while (!refused) {
        struct pollfd ready = {.fd = stranger->socket.fd, .events = POLLIN};
        if (!pace_poll(&ready, 1))
            return false;
        refused = SSL_read(stranger->ssl, &byte, 1) <= 0;
    }
    ERR_clear_error();
    return true;
}

// --- a false server ---

struct false_server {
    char address[64];
    int listener;
    atomic_uint accepted;
    SSL_CTX *ctx;
    pthread_t thread;
};

static inline void *false_server_main(void *arg)
{
    struct false_server *server = arg;
    int fd;

    while ((fd = accept(server->listener, NULL, NULL)) >= 0) {
        SSL *ssl = SSL_new(server->ctx);
        char byte;
        atomic_fetch_add(&server->accepted, 1);
        SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) == 1)
            while (SSL_read(ssl, &byte, 1) > 0) {}
        SSL_free(ssl);
        close(fd);
        ERR_clear_error();
    }
    return NULL;
}

// Shakes hands with anyone, one after the other, with the certificate in this folder.
static inline void false_server_start(struct false_server *server, const char *folder)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    atomic_init(&server->accepted, 0);
    server->ctx = strangers_context(folder);
    server->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_always(!bind(server->listener, (struct sockaddr *)&at, sizeof at) && !listen(server->listener, 8));
    getsockname(server->listener, (struct sockaddr *)&at, &length);
    snprintf(server->address, sizeof server->address, "tls+tcp://127.0.0.1:%d", ntohs(at.sin_port));
    pthread_create(&server->thread, NULL, false_server_main, server);
}

static inline void false_server_stop(struct false_server *server)
{
    shutdown(server->listener, SHUT_RDWR); // accept() returns
    pthread_join(server->thread, NULL);
    close(server->listener);
    SSL_CTX_free(server->ctx);
}

#endif

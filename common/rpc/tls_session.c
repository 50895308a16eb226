// tls_session.c: handshake and records over one socket.
//
// OpenSSL reads a record in two pieces (its head, its 16 KiB) and writes it in one, and would make a system call of each. Between it and the
// socket lie two buffers, so that one call brings or takes several records:
//
//     frame ── encrypt ──▶ record ──▶ out (OUT_BYTES) ── send(2)        a record of 16 KiB: 4 µs to encrypt, 1 µs to copy
//     frame ◀── decrypt ── record ◀── in (IN_BYTES) ◀── recv(2)
//
// A tensor is written from the frame that it lies in and read into the frame that is handed on; OpenSSL 3.0 copies a record once more, between
// these and the buffer in which it encrypts or decrypts it.
#include "common/rpc/tls_session.h"

#include <errno.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { IN_BYTES = 128 << 10, OUT_BYTES = 256 << 10, FLUSH_BYTES = 64 << 10, HANDSHAKE_BUFFER_BYTES = 8 << 10 };

struct bytes {
    unsigned char *at;      // [size]
    size_t size, head, end; // those from head to end are waiting
};

struct tls_session {
    struct rpc_tls *tls;
    SSL *ssl;
    int fd;
    uint64_t generation; // of the certificate that the peer's was checked with last
    struct bytes in, out;
    bool ended, drained; // the socket: it has ended; it had less than what was asked for, in this step
    int failed;          // errno of the socket
    struct tls_peer peer;
    char why[240];
};

// --- between OpenSSL and the socket ---

static int bio_write(BIO *bio, const char *from, int length)
{
    struct tls_session *session = BIO_get_data(bio);
    struct bytes *out = &session->out;

    BIO_clear_retry_flags(bio);
    if (out->size - out->end < (size_t)length && tls_session_flush(session) == TLS_STEP_FAILED)
        return -1;
    if (out->size - out->end < (size_t)length && out->head) {
        memmove(out->at, out->at + out->head, out->end - out->head);
        out->end -= out->head;
        out->head = 0;
    }
    size_t count = MIN((size_t)length, out->size - out->end);
    if (!count) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(out->at + out->end, from, count);
    out->end += count;
    if (out->end - out->head >= FLUSH_BYTES && tls_session_flush(session) == TLS_STEP_FAILED) // the peer decrypts meanwhile
        return -1;
    return (int)count;
}

static ssize_t receive(struct tls_session *session, void *to, size_t bytes)
{
    ssize_t count;
    do
        count = recv(session->fd, to, bytes, MSG_DONTWAIT);
    while (count < 0 && errno == EINTR);
    if (count == 0)
        session->ended = true;
    else if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        session->failed = errno;
    return count;
}

static int bio_read(BIO *bio, char *to, int length)
{
    struct tls_session *session = BIO_get_data(bio);
    struct bytes *in = &session->in;

    BIO_clear_retry_flags(bio);
    if (in->head == in->end) {
        ssize_t count = session->drained ? -1 : receive(session, in->at, in->size);
        if (count <= 0) {
            if (count < 0 && !session->failed)
                BIO_set_retry_read(bio);
            return count < 0 ? -1 : 0;
        }
        session->drained = (size_t)count < in->size; // asking again would only say so
        in->head = 0;
        in->end = (size_t)count;
    }
    size_t count = MIN((size_t)length, in->end - in->head);
    memcpy(to, in->at + in->head, count);
    in->head += count;
    return (int)count;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    struct tls_session *session = BIO_get_data(bio);

    (void)number, (void)pointer;
    if (command == BIO_CTRL_FLUSH)
        return 1; // the session's owner does it
    return command == BIO_CTRL_EOF ? session->ended : 0;
}

static BIO_METHOD *method; // for the life of the process; set once

static void make_method(void)
{
    method = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "fastdecode");
    if (method &&
        !(BIO_meth_set_write(method, bio_write) && BIO_meth_set_read(method, bio_read) && BIO_meth_set_ctrl(method, bio_ctrl))) {
        BIO_meth_free(method);
        method = NULL;
    }
}

// --- a session's life ---

static bool resize(struct bytes *bytes, size_t size)
{
    unsigned char *at = realloc(bytes->at, size);

    if (!at)
        return false;
    bytes->at = at;
    bytes->size = size;
    return true;
}

void tls_session_close(struct tls_session *session)
{
    if (!session)
        return;
    SSL_free(session->ssl);
    close(session->fd);
    free(session->in.at);
    free(session->out.at);
    free(session);
}

struct tls_session *tls_session_open(struct rpc_tls *tls, int fd, bool is_server, const struct tls_peer *peer)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct tls_session *session = calloc(1, sizeof *session);
    BIO *bio = NULL;

    if (!session) {
        close(fd);
        return NULL;
    }
    pthread_once(&once, make_method);
    session->tls = tls;
    session->fd = fd;
    session->peer = *peer;
    SSL_CTX *ctx = tls_context(tls, &session->generation);
    session->ssl = SSL_new(ctx);
    SSL_CTX_free(ctx);
    if (!session->ssl || !method || !resize(&session->in, HANDSHAKE_BUFFER_BYTES) ||
        !resize(&session->out, HANDSHAKE_BUFFER_BYTES) || !(bio = BIO_new(method))) {
        tls_session_close(session);
        return NULL;
    }
    BIO_set_data(bio, session);
    BIO_set_init(bio, 1);
    SSL_set_bio(session->ssl, bio, bio);
    SSL_set_app_data(session->ssl, &session->peer);
    if (is_server)
        SSL_set_accept_state(session->ssl);
    else
        SSL_set_connect_state(session->ssl);
    return session;
}

int tls_session_fd(const struct tls_session *session) { return session->fd; }
enum rpc_role tls_session_role(const struct tls_session *session) { return session->peer.found.role; }
const char *tls_session_why(const struct tls_session *session) { return session->why; }

void tls_session_cipher(const struct tls_session *session, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s %s", SSL_get_version(session->ssl), SSL_get_cipher_name(session->ssl));
}

// --- what went wrong, for people ---

static const char *reason_of(unsigned long error)
{
    switch (ERR_GET_REASON(error)) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE: return "it has no certificate";
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_WRONG_VERSION_NUMBER: return "it does not speak TLS (plain tcp?)";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_NO_PROTOCOLS_AVAILABLE: return "it speaks no TLS of version 1.2 or later";
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM: return "it has no cipher that is accepted here";
    case SSL_R_EXCESSIVE_MESSAGE_SIZE: return "a message of its handshake is too long";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN: return "it refuses this service's certificate: it knows another CA";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED: return "it refuses this service's certificate, which has expired";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED: return "it requires a certificate";
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE: return "it refuses this service's certificate, or all of its ciphers";
    default: return ERR_reason_error_string(error);
    }
}

static enum tls_step fail(struct tls_session *session)
{
    const unsigned long error = ERR_peek_error();
    const char *reason = error ? reason_of(error) : NULL;

    session->why[0] = '\0';
    if (session->peer.why[0])
        snprintf(session->why, sizeof session->why, "%s", session->peer.why);
    else if (error && ERR_GET_LIB(error) == ERR_LIB_SSL)
        snprintf(session->why, sizeof session->why, "%s", reason ? reason : "an error of its TLS");
    ERR_clear_error();
    return TLS_STEP_FAILED;
}

// Returns the step for an operation of OpenSSL that returned `result`, which is not success.
static enum tls_step step_of(struct tls_session *session, int result)
{
    switch (SSL_get_error(session->ssl, result)) {
    case SSL_ERROR_WANT_READ: return TLS_STEP_READ;
    case SSL_ERROR_WANT_WRITE: return TLS_STEP_WRITE;
    case SSL_ERROR_ZERO_RETURN: return TLS_STEP_END;
    case SSL_ERROR_SSL:
        if (ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
            ERR_clear_error();
            return TLS_STEP_END; // frames have lengths of their own: a cut-off one is noticed
        }
        return fail(session);
    default: return session->ended && !session->failed ? TLS_STEP_END : fail(session);
    }
}

// --- handshake and records ---

enum tls_step tls_session_handshake(struct tls_session *session)
{
    session->drained = false;
    ERR_clear_error();
    int result = SSL_do_handshake(session->ssl);
    enum tls_step step = result == 1 ? TLS_STEP_DONE : step_of(session, result);

    // an alert says to the peer what is wrong, too
    const enum tls_step flushed = tls_session_flush(session);
    if (step != TLS_STEP_DONE)
        return step == TLS_STEP_READ && flushed == TLS_STEP_WRITE ? TLS_STEP_WRITE : step;
    if (flushed != TLS_STEP_DONE)
        return flushed;
    return resize(&session->in, IN_BYTES) && resize(&session->out, OUT_BYTES) ? TLS_STEP_DONE : TLS_STEP_FAILED;
}

enum tls_step tls_session_read(struct tls_session *session, void *to, size_t bytes, size_t *count)
{
    size_t part;

    *count = 0;
    session->drained = false;
    ERR_clear_error();
    while (*count < bytes) {
        int result = SSL_read_ex(session->ssl, (char *)to + *count, bytes - *count, &part);
        if (result != 1)
            return step_of(session, result);
        *count += part;
    }
    return TLS_STEP_DONE;
}

enum tls_step tls_session_write(struct tls_session *session, const void *from, size_t bytes, size_t *count)
{
    *count = 0;
    ERR_clear_error();
    int result = SSL_write_ex(session->ssl, from, bytes, count);
    return result == 1 ? TLS_STEP_DONE : step_of(session, result);
}

enum tls_step tls_session_flush(struct tls_session *session)
{
    struct bytes *out = &session->out;
    enum tls_step step = TLS_STEP_DONE;

    while (out->head < out->end && step == TLS_STEP_DONE) {
        ssize_t count = send(session->fd, out->at + out->head, out->end - out->head, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) {
            out->head += (size_t)count;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            step = TLS_STEP_WRITE;
        } else if (errno != EINTR) {
            session->failed = errno;
            step = fail(session);
        }
    }
    if (out->head == out->end)
        out->head = out->end = 0;
    return step;
}

bool tls_session_is_still_good(struct tls_session *session)
{
    uint64_t generation;

    if (session->peer.found.not_after_s < (int64_t)(clock_wall_us() / 1000000)) {
        snprintf(session->why, sizeof session->why, "its certificate has expired");
        return false;
    }
    if (tls_generation(session->tls) == session->generation)
        return true;
    SSL_CTX *ctx = tls_context(session->tls, &generation);
    X509 *x509 = SSL_get1_peer_certificate(session->ssl);
    const bool is_good = x509 &&
                         tls_verify_again(SSL_CTX_get_cert_store(ctx), x509, SSL_get_peer_cert_chain(session->ssl), &session->peer);
    X509_free(x509);
    SSL_CTX_free(ctx);
    session->generation = generation;
    if (!is_good)
        snprintf(session->why, sizeof session->why, "%s", session->peer.why);
    return is_good;
}

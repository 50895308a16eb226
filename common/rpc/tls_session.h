// tls_session.h: TLS over one connected socket: the handshake and the records. Not included from outside the RPC runtime.
//
// One thread at a time. Nothing here waits: an operation that cannot go on says which way the socket must become ready first.
#ifndef FD_RPC_TLS_SESSION_H
#define FD_RPC_TLS_SESSION_H

#include <stdbool.h>
#include <stddef.h>

#include "common/rpc/tls_internal.h"

enum { TLS_HANDSHAKE_US = 5000000 }; // how long a peer may take, on either side

enum tls_step {
    TLS_STEP_DONE,
    TLS_STEP_READ,  // go on when the socket can be read
    TLS_STEP_WRITE, // go on when it can be written
    TLS_STEP_END,   // the peer has closed the connection
    TLS_STEP_FAILED // tls_session_why() has the reason, "" if the connection was lost
};

struct tls_session;

// Takes fd, which is connected and does not block, even on failure. peer says what is expected of the other end (copied). NULL: no memory.
struct tls_session *tls_session_open(struct rpc_tls *tls, int fd, bool is_server, const struct tls_peer *peer);
// Closes the socket, without a word. NULL is allowed.
void tls_session_close(struct tls_session *session);

int tls_session_fd(const struct tls_session *session);
// After the handshake.
enum rpc_role tls_session_role(const struct tls_session *session);
const char *tls_session_why(const struct tls_session *session);
// "TLSv1.3 TLS_AES_128_GCM_SHA256". After the handshake.
void tls_session_cipher(const struct tls_session *session, char *text, size_t text_bytes);

enum tls_step tls_session_handshake(struct tls_session *session);
// Reads until `bytes` are there or nothing more has arrived; *count: those that are. DONE: all are.
enum tls_step tls_session_read(struct tls_session *session, void *to, size_t bytes, size_t *count);
// Takes some of the bytes, *count. They lie here, and perhaps in the socket, until tls_session_flush(). After READ or WRITE the next call must
// begin with the same bytes.
enum tls_step tls_session_write(struct tls_session *session, const void *from, size_t bytes, size_t *count);
// Hands to the socket what was written. WRITE: it does not take all now.
enum tls_step tls_session_flush(struct tls_session *session);

// False: the peer's certificate has expired, or is of a CA that is not trusted any more; tls_session_why() says which.
bool tls_session_is_still_good(struct tls_session *session);

#endif

// tls_acceptor.h: a listening socket whose peers have shown a good certificate before anyone else hears of them. Not included from outside the RPC
// runtime.
#ifndef FD_RPC_TLS_ACCEPTOR_H
#define FD_RPC_TLS_ACCEPTOR_H

#include "common/rpc/tls_session.h"

struct tls_acceptor;

struct tls_acceptor_config {
    struct rpc_tls *tls;
    const char *address; // "tls+tcp://host:port"; copied
    // On the acceptor's thread; takes the session, whose handshake is done. at: our address, as bound. peer: "10.0.0.3:4711".
    void (*on_session)(void *user, struct tls_session *session, const char *at, const char *peer);
    void *user;
};

// Listens, on a thread of its own. NULL: *why says what is wrong. *port_number: the bound one.
struct tls_acceptor *tls_acceptor_open(const struct tls_acceptor_config *config, int *port_number, const char **why);
// No callback comes any more. Waits for one that is under way. NULL is allowed.
void tls_acceptor_close(struct tls_acceptor *acceptor);

#endif

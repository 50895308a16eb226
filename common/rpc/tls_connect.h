// tls_connect.h: both ways to a session whose peer has shown a good certificate: dialing, and a listening socket. Not included from outside
// the RPC runtime.
#ifndef FD_RPC_TLS_CONNECT_H
#define FD_RPC_TLS_CONNECT_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/rpc/tls_session.h"

struct tls_dial_config {
    struct rpc_tls *tls;
    const char *address;      // "tls+tcp://host:port"
    uint32_t peer_roles;      // the set that is expected there
    int give_up_fd;           // all is given up as soon as it can be read
    atomic_bool *is_accepted; // set once somebody has accepted the connection. relaxed: for words only
};

// Blocks. Returns a session whose peer has shown a good certificate of an expected role, for the host that was dialed. NULL: there is none; a peer
// that was refused, or that refused us, is in the log.
struct tls_session *tls_dial(const struct tls_dial_config *config);

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

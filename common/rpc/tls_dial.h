// tls_dial.h: connecting to a TLS port and shaking hands with who is there. Not included from outside the RPC runtime.
#ifndef FD_RPC_TLS_DIAL_H
#define FD_RPC_TLS_DIAL_H

#include <stdatomic.h>

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

#endif

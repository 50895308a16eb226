// transports.h: which transports an endpoint uses. Not included from outside the RPC runtime.
#ifndef FD_RPC_TRANSPORTS_H
#define FD_RPC_TRANSPORTS_H

#include "common/rpc/transport.h"

extern const struct transport *const transports_by_address;  // makes connections
extern const struct transport *const transports_within_host; // works beside one whose ends are on one host

#endif

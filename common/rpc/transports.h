// transports.h: which transports an endpoint uses. Not included from outside the RPC runtime.
#ifndef FD_RPC_TRANSPORTS_H
#define FD_RPC_TRANSPORTS_H

#include "common/rpc/transport.h"

enum { TRANSPORTS_BY_ADDRESS = 2 };

extern const struct transport *const transports_by_address[TRANSPORTS_BY_ADDRESS]; // make connections
extern const struct transport *const transports_within_host;                       // works beside one whose ends are on one host

// Returns the index of the transport that makes connections to this address.
uint32_t transports_index_of(const char *address);

#endif

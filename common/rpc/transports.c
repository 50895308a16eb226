// transports.c: see transports.h.
#include "common/rpc/transports.h"

#include "common/rpc/address.h"

const struct transport *const transports_by_address[TRANSPORTS_BY_ADDRESS] = {&transport_nng, &transport_tls};
const struct transport *const transports_within_host = &transport_local;

uint32_t transports_index_of(const char *address) { return rpc_address_is_tls(address) ? 1 : 0; }

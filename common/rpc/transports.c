// transports.c: see transports.h.
#include "common/rpc/transports.h"

const struct transport *const transports_by_address = &transport_nng;
const struct transport *const transports_within_host = &transport_local;

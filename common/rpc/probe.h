// probe.h: asks a service whether it is ready, or alive, as container probes do. That something accepts a connection says nothing: so does the
// kernel, for a process that is stopped.
#ifndef FD_RPC_PROBE_H
#define FD_RPC_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rpc/security.h"

// Prints the answer to stdout, or to stderr, after `program`, why there is none. Blocks for at most timeout_ms. Returns the exit status:
// 0: ready, 1: not ready or not there, 2: the address cannot be used.
int rpc_probe(const char *program, const char *address, uint32_t timeout_ms, const struct rpc_security *security);

// The same for the service that listens at `listen` on this host, with its own settings. listen: NULL: it has no such address. alive: 0 if it
// answers at all; it is waited for longer, since its thread may compute.
int rpc_probe_self(const char *program, const char *listen, const struct rpc_security_settings *settings, bool alive);

#endif

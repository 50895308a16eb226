// own_address.h: the address at which other hosts reach a socket that listens on all interfaces.
#ifndef FD_RPC_OWN_ADDRESS_H
#define FD_RPC_OWN_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

// True for a tcp or tls+tcp address that names no interface: "tcp://0.0.0.0:7402", "tls+tcp://[::]:7402", "tcp://*:7402".
bool rpc_address_is_everywhere(const char *address);

// Writes `listening`, which is everywhere, with the address of the interface from which `towards` is reached; if that name is not known (yet),
// of the first interface that is up and no loopback. False: there is none, or out is too small. Blocks while a name is looked up.
bool rpc_own_address(const char *listening, const char *towards, char *out, size_t out_bytes);

#endif

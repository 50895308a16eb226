// address.h: what an address of the mesh says ("tls+tcp://host:7400", "tcp://127.0.0.1:7400", "ipc:///path", "inproc://name"), and the
// address at which other hosts reach a socket that listens on all interfaces.
#ifndef FD_RPC_ADDRESS_H
#define FD_RPC_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#define TLS_SCHEME "tls+tcp://"
enum { ADDRESS_HOST_BYTES = 254, ADDRESS_PORT_BYTES = 6 };

// True for a tcp or tls+tcp address that does not end with a port.
bool rpc_address_lacks_port(const char *address);

// True for "localhost", "::1" and addresses of 127.0.0.0/8. host: without brackets.
bool rpc_host_is_loopback(const char *host);

// True if only this machine can connect to the address: ipc, inproc, or tcp at a loopback address.
bool rpc_address_is_local(const char *address);

// True if it begins with one of the four kinds above, or tcp4:// or tcp6://. nng knows more, which nothing here protects.
bool rpc_address_is_known(const char *address);

bool rpc_address_is_tls(const char *address);

// True for plain tcp beyond this machine: anyone on the way can read and change what passes.
bool rpc_address_is_open(const char *address);

// Takes host (without brackets; "" for "*") and port apart. False: there is no port, or the host is too long.
bool address_split(const char *address, char host[ADDRESS_HOST_BYTES], char port[ADDRESS_PORT_BYTES]);

// True for a tcp or tls+tcp address that names no interface: "tcp://0.0.0.0:7402", "tls+tcp://[::]:7402", "tcp://*:7402".
bool rpc_address_is_everywhere(const char *address);

// Writes `listening`, which is everywhere, with the address of the interface from which `towards` is reached; if that name is not known (yet),
// of the first interface that is up and no loopback. False: there is none, or out is too small. Blocks while a name is looked up.
bool rpc_own_address(const char *listening, const char *towards, char *out, size_t out_bytes);

#endif

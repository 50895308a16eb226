// secret.h: the mesh secret: what every service of one mesh knows and a stranger does not (--mesh-secret-file).
//
// Both ends of a connection prove in the handshake that they know it (proto/envelope.proto has the protocol). A server
// without one listens on ipc, inproc and loopback addresses only.
#ifndef FD_RPC_SECRET_H
#define FD_RPC_SECRET_H

#include <stdbool.h>

#include "common/base/status.h"

enum { RPC_SECRET_KEY_BYTES = 32, RPC_SECRET_BYTES_MIN = 16, RPC_SECRET_BYTES_MAX = 4096 };

#define RPC_SECRET_OPTION "mesh-secret-file"
#define RPC_SECRET_HELP "file with the secret that all services of the mesh share; required by --insecure"

// A plain value. Zeroed: no secret.
struct rpc_secret {
    bool is_set;
    unsigned char key[RPC_SECRET_KEY_BYTES];
};

// Reads the file; white space at its end is not part of the secret. NULL and "none" give no secret. NOT_FOUND,
// INVALID_ARGUMENT (too short, too long) name the file.
enum status rpc_secret_read(const char *path, struct rpc_secret *out, struct error *error) MUST_CHECK;

// Writes a new random secret to a new file with mode 0600; one that exists is replaced.
enum status rpc_secret_create(const char *path, struct error *error) MUST_CHECK;

#endif

// security.h: what protects the connections of a mesh: the options that every service has, and what is made of them.
//
//     ipc, inproc, loopback   nothing is required; a secret or a certificate is used if it is there
//     tls+tcp                 --tls: certificates prove which service each end is (tls.h)
//     tcp beyond loopback     refused; with --insecure the secret is required, and whoever is on the way can read and change everything
#ifndef FD_RPC_SECURITY_H
#define FD_RPC_SECURITY_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/rpc/tls.h"

// --- the mesh secret: what every service of one mesh knows and a stranger does not ---
//
// Both ends of a connection prove in the handshake that they know it (proto/envelope.proto has the protocol). A server without one
// listens on ipc, inproc and loopback addresses only.

enum { RPC_SECRET_KEY_BYTES = 32, RPC_SECRET_BYTES_MIN = 16, RPC_SECRET_BYTES_MAX = 4096 };

#define RPC_SECRET_OPTION "mesh-secret-file"
#define RPC_SECRET_HELP \
    "file with the secret that all services of the mesh share, closed to others (mode 600); required by --insecure"

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

// --- all that protects a connection ---

#define RPC_TLS_HELP \
    "folder with ca.pem, cert.pem and key.pem (fastdecode certs makes them), for tls+tcp:// addresses; read again when they change, and on SIGHUP"
#define RPC_INSECURE_HELP "allow plain tcp:// beyond loopback: anyone on the network path can read and change everything"

struct rpc_security_settings {
    const char *mesh_secret_file; // NULL, "none": none
    const char *tls;              // NULL, "none": none
    bool is_insecure;
};

// Rows of a table of options. `settings`: a struct rpc_security_settings.
#define RPC_SECURITY_OPTIONS(settings)                                                                       \
    {RPC_SECRET_OPTION, OPTION_READ_PATH, &(settings).mesh_secret_file, "FILE|none", RPC_SECRET_HELP, 0, 0}, \
        {"tls", OPTION_READ_PATH, &(settings).tls, "DIR|none", RPC_TLS_HELP, 0, 0},                          \
    {                                                                                                        \
        "insecure", OPTION_BOOL, &(settings).is_insecure, NULL, RPC_INSECURE_HELP, 0, 0                      \
    }

struct rpc_security {
    struct rpc_secret secret;
    struct rpc_tls *tls; // NULL: none
    bool is_insecure;
};

// The addresses at which a service is going to listen, and to which it connects; NULL: none.
struct rpc_security_addresses {
    const char *listens[2], *dials;
};

// Checks the files, and that the addresses may be used with them; keeps nothing and opens none. service: whose certificate it must be.
enum status rpc_security_check(const struct rpc_security_settings *settings, const char *service,
                               const struct rpc_security_addresses *addresses, struct error *error) MUST_CHECK;
// Reads the files. rpc_security_close() is called once all loops are closed; *out may be zeroed for it.
enum status rpc_security_open(const struct rpc_security_settings *settings, const char *service, struct rpc_security *out,
                              struct error *error) MUST_CHECK;
void rpc_security_close(struct rpc_security *security);

// Any thread. INVALID_ARGUMENT: `who` may not listen on (connect to) the address; the error says what to do.
enum status rpc_security_allows_listening(const struct rpc_security *security, const char *who, const char *address,
                                          struct error *error) MUST_CHECK;
enum status rpc_security_allows_dialing(const struct rpc_security *security, const char *address, struct error *error) MUST_CHECK;

#endif

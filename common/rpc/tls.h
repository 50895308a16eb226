// tls.h: a service's certificate: what --tls DIR names. One a process, shared by all its loops.
//
// DIR has ca.pem (who signs the certificates of this mesh), cert.pem (this service's, which names its role) and key.pem. They are read again
// when they have changed and when the process gets SIGHUP. New connections use what was read last; files that are broken leave what was there. A
// connection that exists ends within RPC_TLS_CHECK_S once its peer's certificate has expired, or is of a CA that is not in the new ca.pem.
#ifndef FD_RPC_TLS_H
#define FD_RPC_TLS_H

#include <stdint.h>

#include "common/base/status.h"

enum { RPC_TLS_CHECK_S = 5, RPC_TLS_LOOK_S = 1 };

struct rpc_tls;

// Reads the folder and begins to watch it, on a thread of its own. service: whose certificate it must be, "s-part"; NULL: any. NOT_FOUND,
// INVALID_ARGUMENT, RESOURCE_EXHAUSTED: the error says what is wrong.
enum status rpc_tls_open(const char *dir, const char *service, struct rpc_tls **out, struct error *error) MUST_CHECK;
// Reads the folder and keeps nothing. For --check.
enum status rpc_tls_check(const char *dir, const char *service, struct error *error) MUST_CHECK;
// All loops that use it must be closed. NULL is allowed.
void rpc_tls_close(struct rpc_tls *tls);

// When what the service shows to its peers ends, in seconds since 1970.
struct rpc_tls_expiry {
    uint64_t certificate_s, ca_s;
};

// Any thread. Zeros: there is no certificate (tls is NULL).
struct rpc_tls_expiry rpc_tls_expiry(struct rpc_tls *tls);
// Any thread. How often a connection was refused as TLS-REFUSED says; 0 if tls is NULL. why: gets the reason of the latest; NULL: nobody asks.
uint64_t rpc_tls_refused(struct rpc_tls *tls, char *why, size_t why_bytes);
// Any thread: reads the files again, soon, on its own thread. The log says what became of it. NULL is allowed.
void rpc_tls_reload(struct rpc_tls *tls);

#endif

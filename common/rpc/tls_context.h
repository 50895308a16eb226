// tls_context.h: what connections ask of the service's certificate. Not included from outside the RPC runtime.
#ifndef FD_RPC_TLS_CONTEXT_H
#define FD_RPC_TLS_CONTEXT_H

#include <openssl/ssl.h>

#include "common/rpc/tls.h"

// Any thread. Returns what was read last, which the caller frees; *generation grows with each reading.
SSL_CTX *tls_context(struct rpc_tls *tls, uint64_t *generation);
// Any thread: the generation alone.
uint64_t tls_generation(const struct rpc_tls *tls);
// Any thread: tells that a connection was refused, see refusals.h.
void tls_refused(struct rpc_tls *tls, const char *at, const char *peer, const char *why);

#endif

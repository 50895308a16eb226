// tls_internal.h: what connections ask of the service's certificate, and what is found out of a peer's. Private to common/rpc.
#ifndef FD_RPC_TLS_INTERNAL_H
#define FD_RPC_TLS_INTERNAL_H

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/rpc/roles.h"
#include "common/rpc/tls.h"

// Any thread. Returns what was read last, which the caller frees; *generation grows with each reading.
SSL_CTX *tls_context(struct rpc_tls *tls, uint64_t *generation);
// Any thread: the generation alone.
uint64_t tls_generation(const struct rpc_tls *tls);
// Any thread: logs TLS-REFUSED for a connection, with few lines for a flood of them.
void tls_refused(struct rpc_tls *tls, const char *at, const char *peer, const char *why);

// The owner that a certificate names.
struct tls_certificate {
    enum rpc_role role;
    bool names_hosts;    // it is good at the hosts that it names only
    int64_t not_after_s; // since 1970
    // The end of the CA that has signed it, or of what is between them if that ends first; 0: it was not asked. tls_verify_again() sets it.
    int64_t ca_not_after_s;
};

// One connection's other end: what is expected of it, and what was found.
struct tls_peer {
    uint32_t roles;               // the set that is expected
    char host[254];               // that was dialed; "": it is the other end that has dialed
    struct tls_certificate found; // once tls_verify() has returned 1
    char why[200];                // what is wrong with its certificate; "": nothing is known
    bool is_out_of_time;          // it is good at another time: it has expired, or a clock is wrong
};

// Reads a certificate, without asking whether it is signed by anyone. False: it names no role, or several; `why` says what is wrong.
bool tls_certificate_read(X509 *x509, struct tls_certificate *out, char *why, size_t why_bytes) MUST_CHECK;

// True if the certificate names the host (a name, or an address), or no host at all.
bool tls_certificate_is_for(X509 *x509, const struct tls_certificate *certificate, const char *host);

// Checks again what was good once, against other CAs or at a later time. False: `why` says what is wrong.
bool tls_verify_again(X509_STORE *cas, X509 *x509, STACK_OF(X509) * chain, struct tls_peer *peer) MUST_CHECK;

#endif

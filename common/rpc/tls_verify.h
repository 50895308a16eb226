// tls_verify.h: whether a peer's certificate is good, and which role it names. Not included from outside the RPC runtime.
#ifndef FD_RPC_TLS_VERIFY_H
#define FD_RPC_TLS_VERIFY_H

#include <openssl/x509_vfy.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/rpc/roles.h"

// What a certificate says of its owner.
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
};

// Reads a certificate, without asking whether it is signed by anyone. False: it names no role, or several; `why` says what is wrong.
bool tls_certificate_read(X509 *x509, struct tls_certificate *out, char *why, size_t why_bytes) MUST_CHECK;

// True if the certificate names the host (a name, or an address), or no host at all.
bool tls_certificate_is_for(X509 *x509, const struct tls_certificate *certificate, const char *host);

// Checks the chain, then the role and the host. For SSL_CTX_set_cert_verify_callback(); the SSL's app data is its struct tls_peer.
int tls_verify(X509_STORE_CTX *store, void *unused);

// Checks again what was good once, against other CAs or at a later time. False: `why` says what is wrong.
bool tls_verify_again(X509_STORE *cas, X509 *x509, STACK_OF(X509) * chain, struct tls_peer *peer) MUST_CHECK;

#endif

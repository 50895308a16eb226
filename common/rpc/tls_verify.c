// tls_verify.c: see tls_verify.h.
//
// A mesh has one CA (ca.pem, which may hold two while one replaces the other). What it signs is trusted to be what it says: the role is
// bound by the URI in the certificate, and not by a separate CA for each role, so there is one file to hand out and one to replace. The check is part
// of the handshake, so that a peer of another role gets an alert and never a byte of a message. A certificate that names
// hosts (--host of `fastdecode certs`) serves at these only; one that names none serves anywhere, as workers with changing addresses must.
#include "common/rpc/tls_verify.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"

static int64_t seconds_of(const ASN1_TIME *when)
{
    struct tm tm;
    return when && ASN1_TIME_to_tm(when, &tm) == 1 ? (int64_t)timegm(&tm) : 0; // malformed: it has ended long ago
}

bool tls_certificate_read(X509 *x509, struct tls_certificate *out, char *why, size_t why_bytes)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(x509, NID_subject_alt_name, NULL, NULL);
    uint32_t roles = 0;

    *out = (struct tls_certificate){.not_after_s = seconds_of(X509_get0_notAfter(x509))};
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) { // of NULL: -1
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        const ASN1_IA5STRING *uri = name->type == GEN_URI ? name->d.uniformResourceIdentifier : NULL;
        const enum rpc_role role = uri ? rpc_role_of_uri((const char *)ASN1_STRING_get0_data(uri), (size_t)ASN1_STRING_length(uri))
                                       : RPC_ROLE_NONE;
        out->names_hosts |= name->type == GEN_DNS || name->type == GEN_IPADD;
        if (role != RPC_ROLE_NONE) {
            out->role = role;
            roles |= 1u << role;
        }
    }
    GENERAL_NAMES_free(names);
    if (roles && !(roles & (roles - 1)))
        return true;
    snprintf(why, why_bytes, roles ? "its certificate names several roles" : "its certificate names no role (" RPC_ROLE_URI "...)");
    return false;
}

bool tls_certificate_is_for(X509 *x509, const struct tls_certificate *certificate, const char *host)
{
    return !certificate->names_hosts || X509_check_ip_asc(x509, host, 0) == 1 ||
           X509_check_host(x509, host, strlen(host), X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, NULL) == 1;
}

static void explain(int failure, struct tls_peer *peer)
{
    const char *text = X509_verify_cert_error_string(failure);

    switch (failure) {
    case X509_V_ERR_CERT_HAS_EXPIRED: text = "its certificate has expired"; break;
    case X509_V_ERR_CERT_NOT_YET_VALID: text = "its certificate is not valid yet: compare the clocks"; break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE: text = "its certificate is of a CA that is not in ca.pem"; break;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT: text = "its certificate is self-signed, and not in ca.pem"; break;
    case X509_V_ERR_INVALID_PURPOSE: text = "its certificate is none of a service: a CA's own, or for another purpose"; break;
    default: break;
    }
    snprintf(peer->why, sizeof peer->why, "%s", text);
}

static bool is_expected(X509 *x509, struct tls_peer *peer)
{
    char expected[64];

    if (!tls_certificate_read(x509, &peer->found, peer->why, sizeof peer->why))
        return false;
    if (!(peer->roles & 1u << peer->found.role))
        snprintf(peer->why, sizeof peer->why, "its certificate is for %s, and %s was expected", rpc_role_text(peer->found.role),
                 rpc_roles_text(peer->roles, expected, sizeof expected));
    else if (peer->host[0] && !tls_certificate_is_for(x509, &peer->found, peer->host))
        snprintf(peer->why, sizeof peer->why, "its certificate does not name the host %.100s", peer->host);
    else
        return true;
    return false;
}

int tls_verify(X509_STORE_CTX *store, void *unused)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls_peer *peer = SSL_get_app_data(ssl);

    (void)unused;
    if (X509_verify_cert(store) <= 0) {
        explain(X509_STORE_CTX_get_error(store), peer);
        return 0;
    }
    if (is_expected(X509_STORE_CTX_get0_cert(store), peer))
        return 1;
    X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
    return 0;
}

static int64_t end_of_signers(X509_STORE_CTX *store)
{
    STACK_OF(X509) *chain = X509_STORE_CTX_get0_chain(store);
    int64_t end_s = INT64_MAX;

    for (int i = 1; i < sk_X509_num(chain); i++)
        end_s = MIN(end_s, seconds_of(X509_get0_notAfter(sk_X509_value(chain, i))));
    return end_s == INT64_MAX ? 0 : end_s;
}

bool tls_verify_again(X509_STORE *cas, X509 *x509, STACK_OF(X509) * chain, struct tls_peer *peer)
{
    X509_STORE_CTX *store = X509_STORE_CTX_new();
    bool is_good = false;
    int64_t ca_not_after_s = 0;

    snprintf(peer->why, sizeof peer->why, "no memory");
    if (!store)
        return false;
    if (X509_STORE_CTX_init(store, cas, x509, chain) == 1) {
        is_good = X509_verify_cert(store) == 1;
        if (is_good)
            ca_not_after_s = end_of_signers(store);
        else
            explain(X509_STORE_CTX_get_error(store), peer);
    }
    X509_STORE_CTX_free(store);
    is_good = is_good && is_expected(x509, peer);
    peer->found.ca_not_after_s = ca_not_after_s;
    return is_good;
}

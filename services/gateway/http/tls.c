// tls.c: see tls.h.
//
// A pair that was replaced stays until the end, because a handshake may be using it: some kilobytes a renewal.
#include "services/gateway/http/tls.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/file.h"
#include "common/base/log.h"

enum { CHAIN_MAX = 16 };

struct pair {
    gnutls_pcert_st chain[CHAIN_MAX];
    unsigned chain_count;
    gnutls_privkey_t key;
    uint64_t expires_s;
    struct pair *before; // the one that it has replaced
};

struct http_tls {
    char *certificate_path, *key_path;
    _Atomic(struct pair *) pair; // release and acquire: a handshake sees all of it
    struct file_version seen[2]; // of the files that were read last
};

// GnuTLS calls back without an argument of ours.
static _Atomic(struct http_tls *) server_tls;

static void free_pair(struct pair *pair)
{
    if (!pair)
        return;
    for (unsigned i = 0; i < pair->chain_count; i++)
        gnutls_pcert_deinit(&pair->chain[i]);
    if (pair->key)
        gnutls_privkey_deinit(pair->key);
    free(pair);
}

static enum status read_chain(const char *path, struct pair *pair, struct error *error)
{
    gnutls_datum_t text = {0};
    gnutls_x509_crt_t *list = NULL;
    unsigned count = 0;
    int code = gnutls_load_file(path, &text);

    if (code)
        return error_set(error, STATUS_NOT_FOUND, "%s: %s", path, gnutls_strerror(code));
    code = gnutls_x509_crt_list_import2(&list, &count, &text, GNUTLS_X509_FMT_PEM, 0);
    gnutls_free(text.data);
    if (code < 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a certificate: %s", path, gnutls_strerror(code));
    pair->expires_s = count ? (uint64_t)gnutls_x509_crt_get_expiration_time(list[0]) : 0;
    for (unsigned i = 0; i < count; i++) {
        if (!code && i < CHAIN_MAX && !(code = gnutls_pcert_import_x509(&pair->chain[i], list[i], 0)))
            pair->chain_count++;
        gnutls_x509_crt_deinit(list[i]);
    }
    gnutls_free(list);
    if (code || count > CHAIN_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: %s", path,
                         code ? gnutls_strerror(code) : "more than 16 certificates in the chain");
    return STATUS_OK;
}

static enum status read_key(const char *path, struct pair *pair, struct error *error)
{
    gnutls_datum_t text = {0};
    int code = gnutls_load_file(path, &text);

    if (code)
        return error_set(error, STATUS_NOT_FOUND, "%s: %s", path, gnutls_strerror(code));
    code = gnutls_privkey_init(&pair->key);
    if (!code)
        code = gnutls_privkey_import_x509_raw(pair->key, &text, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_memset(text.data, 0, text.size);
    gnutls_free(text.data);
    return code ? error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a private key: %s", path, gnutls_strerror(code)) : STATUS_OK;
}

// Whether the key belongs to the certificate.
static bool fits(const struct pair *pair)
{
    unsigned char ids[2][64];
    size_t bytes[2] = {sizeof ids[0], sizeof ids[1]};
    gnutls_pubkey_t public;
    bool same = false;

    if (gnutls_pubkey_init(&public))
        return false;
    if (!gnutls_pubkey_import_privkey(public, pair->key, 0, 0) && !gnutls_pubkey_get_key_id(public, 0, ids[0], &bytes[0]) &&
        !gnutls_pubkey_get_key_id(pair->chain[0].pubkey, 0, ids[1], &bytes[1]))
        same = bytes[0] == bytes[1] && memcmp(ids[0], ids[1], bytes[0]) == 0;
    gnutls_pubkey_deinit(public);
    return same;
}

static enum status read_pair(struct http_tls *tls, struct error *error)
{
    struct pair *pair = calloc(1, sizeof *pair);
    enum status status = pair ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");

    if (!status && read_chain(tls->certificate_path, pair, error))
        status = error_prefix(error, "--tls-cert");
    if (!status && (file_check_secret(tls->key_path, error) || read_key(tls->key_path, pair, error)))
        status = error_prefix(error, "--tls-key");
    if (!status && (pair->chain_count == 0 || !fits(pair)))
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s is not the key of %s", tls->key_path, tls->certificate_path);
    if (!status && pair->expires_s <= (uint64_t)time(NULL))
        status = error_set(error, STATUS_UNAVAILABLE, "--tls-cert: %s: the certificate has expired: renew it, or set the clock",
                           tls->certificate_path);
    if (status) {
        free_pair(pair);
        return status;
    }
    pair->before = atomic_load_explicit(&tls->pair, memory_order_relaxed);
    atomic_store_explicit(&tls->pair, pair, memory_order_release);
    return STATUS_OK;
}

enum status http_tls_open(const char *certificate_path, const char *key_path, struct http_tls **out, struct error *error)
{
    struct http_tls *tls = calloc(1, sizeof *tls);
    enum status status;

    *out = NULL;
    if (!tls || !(tls->certificate_path = strdup(certificate_path)) || !(tls->key_path = strdup(key_path))) {
        http_tls_close(tls);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    tls->seen[0] = file_version_of(certificate_path);
    tls->seen[1] = file_version_of(key_path);
    status = read_pair(tls, error);
    if (status) {
        http_tls_close(tls);
        return status;
    }
    atomic_store_explicit(&server_tls, tls, memory_order_release); // a handshake sees the pair
    *out = tls;
    return STATUS_OK;
}

void http_tls_close(struct http_tls *tls)
{
    if (!tls)
        return;
    if (atomic_load_explicit(&server_tls, memory_order_relaxed) == tls)
        atomic_store_explicit(&server_tls, NULL, memory_order_relaxed);
    for (struct pair *pair = atomic_load_explicit(&tls->pair, memory_order_relaxed), *before; pair; pair = before) {
        before = pair->before;
        free_pair(pair);
    }
    free(tls->certificate_path);
    free(tls->key_path);
    free(tls);
}

void http_tls_reload(struct http_tls *tls, bool always)
{
    const struct file_version now[] = {file_version_of(tls->certificate_path), file_version_of(tls->key_path)};
    struct error error;

    if (!always && file_version_same(&now[0], &tls->seen[0]) && file_version_same(&now[1], &tls->seen[1]))
        return;
    memcpy(tls->seen, now, sizeof now);
    if (read_pair(tls, &error))
        log_warn("CERTIFICATE-NOT-READ", "why=\"%s: the one that was read before is used on\"", error.text);
    else
        log_info("CERTIFICATE-READ", "file=%s days_left=%lld", tls->certificate_path,
                 ((long long)http_tls_expires_s(tls) - (long long)time(NULL)) / 86400);
}

uint64_t http_tls_expires_s(struct http_tls *tls) { return atomic_load_explicit(&tls->pair, memory_order_acquire)->expires_s; }

static int retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **certificates,
                    unsigned *certificate_count, gnutls_ocsp_data_st **ocsp, unsigned *ocsp_count, gnutls_privkey_t *key,
                    unsigned *flags)
{
    struct http_tls *tls = atomic_load_explicit(&server_tls, memory_order_acquire);
    struct pair *pair = tls ? atomic_load_explicit(&tls->pair, memory_order_acquire) : NULL;

    (void)session, (void)info;
    if (!pair)
        return -1;
    *certificates = pair->chain;
    *certificate_count = pair->chain_count;
    *key = pair->key;
    *ocsp = NULL;
    *ocsp_count = 0;
    *flags = 0; // all of it stays ours
    return 0;
}

void *http_tls_callback(void)
{
    gnutls_certificate_retrieve_function3 *function = retrieve;
    void *out;

    memcpy(&out, &function, sizeof out); // a variable argument of any type
    return out;
}

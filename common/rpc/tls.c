// tls.c: a service's certificate: reads its files and watches them, says whether a peer's is good, and logs who was refused.
//
// The files are three and change one after the other: they are read when they have been the same for RPC_TLS_LOOK_S. (A Kubernetes volume
// changes all at once, by a symbolic link; stat() follows it.)
//
// TLS 1.2 and 1.3 with forward secrecy and AEAD ciphers only, AES-128 first, which is a quarter faster than AES-256. No session is resumed
// and no ticket given: each connection shows its certificate anew. A client's chain of certificates may have CHAIN_BYTES.
//
// A mesh has one CA (ca.pem, which may hold two while one replaces the other). What it signs is trusted to be what it says: the role is
// bound by the URI in the certificate, and not by a separate CA for each role, so there is one file to hand out and one to replace. The
// check is part of the handshake, so that a peer of another role gets an alert and never a byte of a message. A certificate that names
// hosts (--host of `fastdecode certs`) serves at these only; one that names none serves anywhere, as workers with changing addresses must.
#include "common/rpc/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/rpc/tls_internal.h"

// --- refusals: one log line for each peer that is refused, and few for a flood of them ---

enum { REFUSALS_KEPT = 32, REFUSALS_BURST = 20, REFUSALS_REPEAT_S = 10 };

// One thread at a time. Zeroed, it is ready.
struct refusals {
    struct {
        uint64_t key, until_us; // of a peer and a reason
    } kept[REFUSALS_KEPT];
    uint32_t next;
    uint64_t paid_us; // lines are paid for up to this time, one a second
    uint64_t suppressed;
};

static const uint64_t LINE_US = 1000000; // one line a second, after a burst

static uint64_t fnv1a(uint64_t hash, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    return hash;
}

// The peer's port differs each time; its host counts.
static uint64_t key_of(const char *peer, const char *why)
{
    const char *colon = strrchr(peer, ':');
    const uint64_t hash = fnv1a(14695981039346656037u, peer, colon ? (size_t)(colon - peer) : strlen(peer));
    return fnv1a(hash, why, strlen(why));
}

static bool is_repeated(struct refusals *refusals, uint64_t key, uint64_t now_us)
{
    for (uint32_t i = 0; i < REFUSALS_KEPT; i++)
        if (refusals->kept[i].key == key && now_us < refusals->kept[i].until_us)
            return true;
    return false;
}

// Logs "TLS-REFUSED at=... peer=... why=...", unless this host was refused for the same reason in the last REFUSALS_REPEAT_S, or
// REFUSALS_BURST lines have come faster than one a second. The next line says how many were left out. peer: "host:port"; any text. at:
// our address.
static void refusals_log(struct refusals *refusals, const char *at, const char *peer, const char *why)
{
    const uint64_t now_us = clock_now_us(), burst_us = REFUSALS_BURST * LINE_US, key = key_of(peer, why);
    char quoted_at[300], quoted_peer[300], quoted_why[300];

    refusals->paid_us = MAX(refusals->paid_us, now_us > burst_us ? now_us - burst_us : 0);
    if (is_repeated(refusals, key, now_us) || refusals->paid_us + LINE_US > now_us) {
        refusals->suppressed++;
        return;
    }
    refusals->paid_us += LINE_US;
    refusals->kept[refusals->next].key = key;
    refusals->kept[refusals->next].until_us = now_us + REFUSALS_REPEAT_S * 1000000ull;
    refusals->next = (refusals->next + 1) % REFUSALS_KEPT;
    log_warn("TLS-REFUSED", "at=%s peer=%s why=%s suppressed=%llu", log_quote(quoted_at, sizeof quoted_at, at),
             log_quote(quoted_peer, sizeof quoted_peer, peer), log_quote(quoted_why, sizeof quoted_why, why),
             (unsigned long long)refusals->suppressed);
    refusals->suppressed = 0;
}

// --- verifying certificates ---

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
    peer->is_out_of_time = failure == X509_V_ERR_CERT_HAS_EXPIRED || failure == X509_V_ERR_CERT_NOT_YET_VALID;
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

// Checks the chain, then the role and the host. For SSL_CTX_set_cert_verify_callback(); the SSL's app data is its struct tls_peer.
static int tls_verify(X509_STORE_CTX *store, void *unused)
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

// --- the folder with ca.pem, cert.pem and key.pem, and the settings of TLS that are made of it ---

enum { TLS_DIR_BYTES = 4000 }; // of its path
enum { FILE_BYTES_MAX = 256 << 10, CHAIN_BYTES = 16 << 10, CHAIN_DEPTH = 4 };
enum { CA, CERTIFICATE, KEY, FILES };
enum { PATH_BYTES = TLS_DIR_BYTES + 16 };

static const char *const file_names[FILES] = {"ca.pem", "cert.pem", "key.pem"};

static void path_of(const char *dir, int file, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s", dir, file_names[file]);
}

struct tls_versions {
    struct file_version files[FILES];
};

static struct tls_versions tls_files_versions(const char *dir)
{
    struct tls_versions versions;
    char path[PATH_BYTES];

    for (int i = 0; i < FILES; i++) {
        path_of(dir, i, path);
        versions.files[i] = file_version_of(path);
    }
    return versions;
}

static bool tls_files_same(const struct tls_versions *a, const struct tls_versions *b)
{
    for (int i = 0; i < FILES; i++)
        if (!file_version_same(&a->files[i], &b->files[i]))
            return false;
    return true;
}

// The file may be read, and has a size that such files have.
static enum status check_file(const char *path, struct error *error)
{
    struct stat info;
    FILE *file = fopen(path, "re");

    if (!file)
        return error_set(error, status_of_path(errno), "--tls: %s: %s; fastdecode certs makes such files", path, strerror(errno));
    bool is_plain = !fstat(fileno(file), &info) && S_ISREG(info.st_mode) && info.st_size <= FILE_BYTES_MAX;
    fclose(file);
    return is_plain ? STATUS_OK
                    : error_set(error, STATUS_INVALID_ARGUMENT, "--tls: %s is no file, or has more than %d KiB", path,
                                FILE_BYTES_MAX >> 10);
}

static enum status file_failed(const char *path, const char *what, struct error *error)
{
    const char *reason = ERR_reason_error_string(ERR_peek_error());
    return error_set(error, STATUS_INVALID_ARGUMENT, "--tls: %s: %s%s%s", path, what, reason ? ": " : "", reason ? reason : "");
}

// Nobody is there to type one.
static int no_password(char *buffer, int size, int writes, void *user)
{
    (void)buffer, (void)size, (void)writes, (void)user;
    return -1;
}

static bool set_up(SSL_CTX *ctx)
{
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_verify_depth(ctx, CHAIN_DEPTH);
    SSL_CTX_set_cert_verify_callback(ctx, tls_verify, NULL);
    SSL_CTX_set_max_cert_list(ctx, CHAIN_BYTES);
    SSL_CTX_set_default_passwd_cb(ctx, no_password);
    return SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1 && SSL_CTX_set_num_tickets(ctx, 0) == 1 &&
           SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") == 1 &&
           SSL_CTX_set_cipher_list(ctx, "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE+AESGCM:ECDHE+CHACHA20") ==
               1;
}

// The certificate is what peers will want it to be.
static enum status check_own(SSL_CTX *ctx, const char *path, const char *service, struct tls_certificate *own, struct error *error)
{
    struct tls_peer self = {.roles = RPC_IS_ANY};
    STACK_OF(X509) *chain = NULL;

    SSL_CTX_get0_chain_certs(ctx, &chain);
    if (!tls_verify_again(SSL_CTX_get_cert_store(ctx), SSL_CTX_get0_certificate(ctx), chain, &self))
        return error_set(error, self.is_out_of_time ? STATUS_UNAVAILABLE : STATUS_INVALID_ARGUMENT,
                         "--tls: %s: peers would refuse it: %s", path, self.why);
    *own = self.found;
    if (service && strcmp(service, rpc_role_name(own->role)) != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--tls: %s is for %s, and this is %s", path, rpc_role_text(own->role),
                         rpc_role_text(rpc_role_named(service, strlen(service))));
    return STATUS_OK;
}

static enum status load_files(SSL_CTX *ctx, char paths[FILES][PATH_BYTES], struct error *error)
{
    if (!set_up(ctx))
        return error_set(error, STATUS_INTERNAL, "--tls: this OpenSSL has no TLS 1.2 with ECDHE and AES-GCM");
    if (file_check_secret(paths[KEY], error))
        return error_prefix(error, "--tls");
    if (SSL_CTX_load_verify_file(ctx, paths[CA]) != 1)
        return file_failed(paths[CA], "no CA's certificate", error);
    if (SSL_CTX_use_certificate_chain_file(ctx, paths[CERTIFICATE]) != 1)
        return file_failed(paths[CERTIFICATE], "no certificate", error);
    if (SSL_CTX_use_PrivateKey_file(ctx, paths[KEY], SSL_FILETYPE_PEM) != 1)
        return file_failed(paths[KEY], "not the private key of cert.pem", error);
    if (SSL_CTX_check_private_key(ctx) != 1)
        return file_failed(paths[KEY], "not the key of cert.pem", error);
    return STATUS_OK;
}

// Reads and checks the files: the key is the certificate's, the certificate is of the CA, has not expired, and is for the service (NULL:
// any). The caller frees *out. NOT_FOUND, INVALID_ARGUMENT, UNAVAILABLE (a certificate that has expired, or is not valid yet): the error names
// the file and what is wrong.
static enum status tls_files_load(const char *dir, const char *service, SSL_CTX **out, struct tls_certificate *own,
                                  struct error *error)
{
    char paths[FILES][PATH_BYTES];
    enum status status = STATUS_OK;
    SSL_CTX *ctx;

    if (strlen(dir) >= TLS_DIR_BYTES)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--tls: the path is too long");
    for (int i = 0; i < FILES && !status; i++) {
        path_of(dir, i, paths[i]);
        status = check_file(paths[i], error);
    }
    if (status)
        return status;
    ERR_clear_error();
    if (!(ctx = SSL_CTX_new(TLS_method())))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for TLS");
    if ((status = load_files(ctx, paths, error)) || (status = check_own(ctx, paths[CERTIFICATE], service, own, error)))
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    ERR_clear_error();
    return status;
}

// --- the certificate, and the thread that watches its files ---

enum { DAY_S = 86400, WARN_DAYS = 7 };

struct rpc_tls {
    char dir[TLS_DIR_BYTES];
    char service[32];         // "": any
    atomic_ullong generation; // relaxed: the lock orders what it stands for
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    bool closing, reload_asked;   // under the lock
    SSL_CTX *ctx;                 // under the lock
    struct rpc_tls_expiry expiry; // under the lock
    struct refusals refusals;     // under the lock
    uint64_t refused;             // under the lock
    char refused_why[256];        // under the lock: of the latest
    // the thread's only, once it runs
    struct tls_versions seen, tried; // of the last look, and of the files that were read last
    struct tls_certificate own;
    int64_t warned_s;
};

static const char *service_of(const struct rpc_tls *tls) { return tls->service[0] ? tls->service : NULL; }

static const char *date_of(int64_t seconds, char text[32])
{
    time_t when = (time_t)seconds;
    struct tm tm;
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&when, &tm));
    return text;
}

static void log_own(const struct rpc_tls *tls, const char *id)
{
    char quoted[300], date[32];
    log_info(id, "dir=%s role=%s expires=%s", log_quote(quoted, sizeof quoted, tls->dir), rpc_role_name(tls->own.role),
             date_of(tls->own.not_after_s, date));
}

static struct rpc_tls_expiry expiry_of(const struct tls_certificate *own)
{
    return (struct rpc_tls_expiry){(uint64_t)MAX(own->not_after_s, INT64_C(0)), (uint64_t)MAX(own->ca_not_after_s, INT64_C(0))};
}

static void read_again(struct rpc_tls *tls)
{
    struct tls_certificate own;
    struct error error;
    char quoted[sizeof error.text + 16];
    SSL_CTX *ctx, *before;

    tls->tried = tls->seen;
    if (tls_files_load(tls->dir, service_of(tls), &ctx, &own, &error)) {
        log_warn("TLS-NOT-RELOADED", "why=%s what=\"the certificate that was read before stays\"",
                 log_quote(quoted, sizeof quoted, error.text));
        return;
    }
    pthread_mutex_lock(&tls->lock);
    before = tls->ctx;
    tls->ctx = ctx;
    tls->expiry = expiry_of(&own);
    atomic_fetch_add_explicit(&tls->generation, 1, memory_order_relaxed);
    pthread_mutex_unlock(&tls->lock);
    SSL_CTX_free(before);
    tls->own = own;
    tls->warned_s = 0;
    log_own(tls, "TLS-RELOADED");
}

static void warn_of_end(struct rpc_tls *tls)
{
    const int64_t now_s = (int64_t)(clock_wall_us() / 1000000);
    char date[32];

    if (tls->own.not_after_s - now_s > WARN_DAYS * DAY_S || now_s - tls->warned_s < DAY_S)
        return;
    tls->warned_s = now_s;
    log_warn("TLS-EXPIRES",
             "role=%s expires=%s what=\"peers refuse this service from then on: put a new cert.pem and key.pem there\"",
             rpc_role_name(tls->own.role), date_of(tls->own.not_after_s, date));
}

static void look(struct rpc_tls *tls, bool asked)
{
    const struct tls_versions now = tls_files_versions(tls->dir);
    const bool is_steady = tls_files_same(&now, &tls->seen);

    tls->seen = now;
    if (asked || (is_steady && !tls_files_same(&now, &tls->tried)))
        read_again(tls);
    warn_of_end(tls);
}

static void *watch_main(void *arg)
{
    struct rpc_tls *tls = arg;
    struct timespec until;

    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += RPC_TLS_LOOK_S;
        pthread_mutex_lock(&tls->lock);
        while (!tls->closing && !tls->reload_asked && !pthread_cond_timedwait(&tls->asked, &tls->lock, &until)) {}
        const bool closing = tls->closing, asked = tls->reload_asked;
        tls->reload_asked = false;
        pthread_mutex_unlock(&tls->lock);
        if (closing)
            return NULL;
        look(tls, asked);
    }
}

enum status rpc_tls_check(const char *dir, const char *service, struct error *error)
{
    struct tls_certificate own;
    SSL_CTX *ctx;
    enum status status = tls_files_load(dir, service, &ctx, &own, error);

    if (!status)
        SSL_CTX_free(ctx);
    return status;
}

enum status rpc_tls_open(const char *dir, const char *service, struct rpc_tls **out, struct error *error)
{
    struct rpc_tls *tls;
    pthread_condattr_t monotonic;
    enum status status;

    if (!(tls = calloc(1, sizeof *tls)))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for TLS");
    snprintf(tls->dir, sizeof tls->dir, "%s", dir);
    snprintf(tls->service, sizeof tls->service, "%s", service ? service : "");
    tls->seen = tls->tried = tls_files_versions(dir); // before the files: if they change meanwhile they are read again
    if ((status = tls_files_load(dir, service, &tls->ctx, &tls->own, error))) {
        free(tls);
        return status;
    }
    tls->expiry = expiry_of(&tls->own);
    atomic_store_explicit(&tls->generation, 1, memory_order_relaxed);
    pthread_mutex_init(&tls->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&tls->asked, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&tls->thread, NULL, watch_main, tls)) {
        SSL_CTX_free(tls->ctx);
        free(tls);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot create a thread that watches the certificate");
    }
    log_own(tls, "TLS");
    *out = tls;
    return STATUS_OK;
}

void rpc_tls_close(struct rpc_tls *tls)
{
    if (!tls)
        return;
    pthread_mutex_lock(&tls->lock);
    tls->closing = true;
    pthread_cond_signal(&tls->asked);
    pthread_mutex_unlock(&tls->lock);
    pthread_join(tls->thread, NULL);
    SSL_CTX_free(tls->ctx);
    pthread_cond_destroy(&tls->asked);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

void rpc_tls_reload(struct rpc_tls *tls)
{
    if (!tls)
        return;
    pthread_mutex_lock(&tls->lock);
    tls->reload_asked = true;
    pthread_cond_signal(&tls->asked);
    pthread_mutex_unlock(&tls->lock);
}

struct rpc_tls_expiry rpc_tls_expiry(struct rpc_tls *tls)
{
    struct rpc_tls_expiry expiry = {0};

    if (!tls)
        return expiry;
    pthread_mutex_lock(&tls->lock);
    expiry = tls->expiry;
    pthread_mutex_unlock(&tls->lock);
    return expiry;
}

SSL_CTX *tls_context(struct rpc_tls *tls, uint64_t *generation)
{
    pthread_mutex_lock(&tls->lock);
    SSL_CTX *ctx = tls->ctx;
    SSL_CTX_up_ref(ctx);
    *generation = atomic_load_explicit(&tls->generation, memory_order_relaxed);
    pthread_mutex_unlock(&tls->lock);
    return ctx;
}

uint64_t tls_generation(const struct rpc_tls *tls) { return atomic_load_explicit(&tls->generation, memory_order_relaxed); }

void tls_refused(struct rpc_tls *tls, const char *at, const char *peer, const char *why)
{
    pthread_mutex_lock(&tls->lock);
    tls->refused++;
    snprintf(tls->refused_why, sizeof tls->refused_why, "%s", why);
    refusals_log(&tls->refusals, at, peer, why);
    pthread_mutex_unlock(&tls->lock);
}

uint64_t rpc_tls_refused(struct rpc_tls *tls, char *why, size_t why_bytes)
{
    if (!tls)
        return 0;
    pthread_mutex_lock(&tls->lock);
    const uint64_t refused = tls->refused;
    if (why)
        snprintf(why, why_bytes, "%s", tls->refused_why);
    pthread_mutex_unlock(&tls->lock);
    return refused;
}

// tls.c: see tls.h.
//
// The files are three and change one after the other: they are read when they have been the same for RPC_TLS_LOOK_S. (A Kubernetes volume
// changes all at once, by a symbolic link; stat() follows it.)
#include "common/rpc/tls.h"

#include <openssl/err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/refusals.h"
#include "common/rpc/tls_context.h"
#include "common/rpc/tls_files.h"

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
    refusals_log(&tls->refusals, at, peer, why);
    pthread_mutex_unlock(&tls->lock);
}

// tls_files.c: see tls_files.h.
//
// TLS 1.2 and 1.3 with forward secrecy and AEAD ciphers only, AES-128 first, which is a quarter faster than AES-256. No session is resumed and no ticket given: each connection
// shows its certificate anew. A client's chain of certificates may have CHAIN_BYTES.
#include "common/rpc/tls_files.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/checked.h"

enum { FILE_BYTES_MAX = 256 << 10, CHAIN_BYTES = 16 << 10, CHAIN_DEPTH = 4 };
enum { CA, CERTIFICATE, KEY, FILES };
enum { PATH_BYTES = TLS_DIR_BYTES + 16 };

static const char *const names[FILES] = {"ca.pem", "cert.pem", "key.pem"};

static void path_of(const char *dir, int file, char path[PATH_BYTES]) { snprintf(path, PATH_BYTES, "%s/%s", dir, names[file]); }

struct tls_versions tls_files_versions(const char *dir)
{
    struct tls_versions versions;
    char path[PATH_BYTES];

    for (int i = 0; i < FILES; i++) {
        path_of(dir, i, path);
        versions.files[i] = file_version_of(path);
    }
    return versions;
}

bool tls_files_same(const struct tls_versions *a, const struct tls_versions *b)
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

static enum status fail(const char *path, const char *what, struct error *error)
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
        return error_set(error, STATUS_INVALID_ARGUMENT, "--tls: %s: peers would refuse it: %s", path, self.why);
    *own = self.found;
    if (service && strcmp(service, rpc_role_name(own->role)) != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--tls: %s is for %s, and this is %s", path, rpc_role_text(own->role),
                         rpc_role_text(rpc_role_named(service, strlen(service))));
    return STATUS_OK;
}

static enum status load(SSL_CTX *ctx, char paths[FILES][PATH_BYTES], struct error *error)
{
    if (!set_up(ctx))
        return error_set(error, STATUS_INTERNAL, "--tls: this OpenSSL has no TLS 1.2 with ECDHE and AES-GCM");
    if (SSL_CTX_load_verify_file(ctx, paths[CA]) != 1)
        return fail(paths[CA], "no CA's certificate", error);
    if (SSL_CTX_use_certificate_chain_file(ctx, paths[CERTIFICATE]) != 1)
        return fail(paths[CERTIFICATE], "no certificate", error);
    if (SSL_CTX_use_PrivateKey_file(ctx, paths[KEY], SSL_FILETYPE_PEM) != 1)
        return fail(paths[KEY], "not the private key of cert.pem", error);
    if (SSL_CTX_check_private_key(ctx) != 1)
        return fail(paths[KEY], "not the key of cert.pem", error);
    return STATUS_OK;
}

enum status tls_files_load(const char *dir, const char *service, SSL_CTX **out, struct tls_certificate *own, struct error *error)
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
    if ((status = load(ctx, paths, error)) || (status = check_own(ctx, paths[CERTIFICATE], service, own, error)))
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    ERR_clear_error();
    return status;
}

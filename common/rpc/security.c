// security.c: the mesh secret, and which addresses may be listened on and dialed with what there is.
#include "common/rpc/security.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/file.h"
#include "common/rpc/address.h"

// --- the mesh secret ---

_Static_assert((int)RPC_SECRET_KEY_BYTES == (int)crypto_generichash_BYTES, "the key is one hash");

enum { CREATED_BYTES = 32 };

// Returns the length, or -1 with errno set. Reads one byte more than a secret may have.
static ssize_t read_file(const char *path, unsigned char bytes[RPC_SECRET_BYTES_MAX + 1])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = 0, count = 1;

    if (fd < 0)
        return -1;
    while (count > 0 && length <= RPC_SECRET_BYTES_MAX) {
        count = read(fd, bytes + length, (size_t)(RPC_SECRET_BYTES_MAX + 1 - length));
        if (count < 0 && errno == EINTR)
            count = 1;
        else
            length += MAX(count, 0);
    }
    int failed = errno;
    close(fd);
    errno = failed;
    return count < 0 ? -1 : length;
}

enum status rpc_secret_read(const char *path, struct rpc_secret *out, struct error *error)
{
    unsigned char bytes[RPC_SECRET_BYTES_MAX + 1];
    enum status status = STATUS_OK;

    *out = (struct rpc_secret){0};
    if (!path || !strcmp(path, "none"))
        return STATUS_OK;
    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium cannot be initialized");
    if (file_check_secret(path, error))
        return error_prefix(error, "--" RPC_SECRET_OPTION);
    ssize_t length = read_file(path, bytes);
    if (length < 0)
        return error_set(error, STATUS_NOT_FOUND, "--" RPC_SECRET_OPTION " %s: %s", path, strerror(errno));
    while (length > 0 && length <= RPC_SECRET_BYTES_MAX && isspace(bytes[length - 1]))
        length--;
    if (length < RPC_SECRET_BYTES_MIN || length > RPC_SECRET_BYTES_MAX) {
        status = error_set(error, STATUS_INVALID_ARGUMENT,
                           "--" RPC_SECRET_OPTION " %s: a secret has %d to %d bytes; make one with: openssl rand -hex 32", path,
                           RPC_SECRET_BYTES_MIN, RPC_SECRET_BYTES_MAX);
    } else {
        crypto_generichash(out->key, sizeof out->key, bytes, (size_t)length, NULL, 0);
        out->is_set = true;
    }
    sodium_memzero(bytes, sizeof bytes);
    return status;
}

enum status rpc_secret_create(const char *path, struct error *error)
{
    unsigned char random[CREATED_BYTES];
    char text[2 * CREATED_BYTES + 2];

    if (sodium_init() < 0)
        return error_set(error, STATUS_INTERNAL, "libsodium cannot be initialized");
    randombytes_buf(random, sizeof random);
    sodium_bin2hex(text, sizeof text, random, sizeof random);
    text[2 * CREATED_BYTES] = '\n';
    unlink(path); // a file that exists may have another owner and mode
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write(fd, text, 2 * CREATED_BYTES + 1) == 2 * CREATED_BYTES + 1;
    int failed = errno;
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    sodium_memzero(random, sizeof random);
    sodium_memzero(text, sizeof text);
    return ok ? STATUS_OK : error_set(error, status_of_path(failed), "%s: %s", path, strerror(failed));
}

// --- secret and certificate together ---

// Plain tcp beyond loopback without a secret: anybody who reaches the address could act as any service.
static enum status check_insecure(const struct rpc_security_settings *settings, const struct rpc_secret *secret,
                                  struct error *error)
{
    if (!settings->is_insecure || secret->is_set)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT,
                     "--insecure wants --" RPC_SECRET_OPTION ": give all services the same (openssl rand -hex 32 makes a secret)");
}

static const char *tls_of(const struct rpc_security_settings *settings)
{
    return settings->tls && strcmp(settings->tls, "none") != 0 ? settings->tls : NULL;
}

enum status rpc_security_open(const struct rpc_security_settings *settings, const char *service, struct rpc_security *out,
                              struct error *error)
{
    enum status status;

    *out = (struct rpc_security){.is_insecure = settings->is_insecure};
    status = rpc_secret_read(settings->mesh_secret_file, &out->secret, error);
    if (!status)
        status = check_insecure(settings, &out->secret, error);
    if (!status && tls_of(settings))
        status = rpc_tls_open(tls_of(settings), service, &out->tls, error);
    return status;
}

void rpc_security_close(struct rpc_security *security)
{
    rpc_tls_close(security->tls);
    *security = (struct rpc_security){0};
}

// The protection that an address may rely on.
struct protection {
    bool has_tls, has_secret, is_insecure;
};

static struct protection protection_of(const struct rpc_security *security)
{
    return (struct protection){
        .has_tls = security->tls, .has_secret = security->secret.is_set, .is_insecure = security->is_insecure};
}

// Checks what both ends have to keep.
static enum status check_address(const struct protection *has, const char *who, const char *does, const char *address,
                                 struct error *error)
{
    if (!rpc_address_is_known(address))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%s cannot %s '%s': want tls+tcp://HOST:PORT, tcp://HOST:PORT, ipc:///PATH or inproc://NAME", who, does,
                         address);
    if (rpc_address_lacks_port(address))
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s cannot %s '%s': a port is missing, as in tcp://127.0.0.1:7400", who,
                         does, address);
    if (rpc_address_is_tls(address) && !has->has_tls)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "%s may not %s '%s' without a certificate: --tls DIR names a folder with one (fastdecode certs makes them)", who, does,
            address);
    if (rpc_address_is_open(address) && !has->is_insecure)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "%s may not %s '%s': anyone on the way could read and change what passes over plain tcp. Make certificates "
            "(fastdecode certs DIR), give each service its own with --tls and write tls+tcp:// instead of tcp://; or "
            "say --insecure if this network is trusted",
            who, does, address);
    return STATUS_OK;
}

static enum status check_listening(const struct protection *has, const char *who, const char *address, struct error *error)
{
    enum status status = check_address(has, who, "listen on", address, error);

    if (!status && !has->has_secret && !rpc_address_is_tls(address) && !rpc_address_is_local(address))
        status =
            error_set(error, STATUS_INVALID_ARGUMENT,
                      "%s may not listen on '%s' without a shared secret, since anyone who reaches that address could act as any "
                      "service: give all services of the mesh the same --" RPC_SECRET_OPTION " (openssl rand -hex 32 makes one)",
                      who, address);
    return status;
}

static enum status check_dialing(const struct protection *has, const char *address, struct error *error)
{
    return check_address(has, "this service", "connect to", address, error);
}

enum status rpc_security_allows_listening(const struct rpc_security *security, const char *who, const char *address,
                                          struct error *error)
{
    const struct protection has = protection_of(security);
    return check_listening(&has, who, address, error);
}

enum status rpc_security_allows_dialing(const struct rpc_security *security, const char *address, struct error *error)
{
    const struct protection has = protection_of(security);
    return check_dialing(&has, address, error);
}

enum status rpc_security_check(const struct rpc_security_settings *settings, const char *service,
                               const struct rpc_security_addresses *addresses, struct error *error)
{
    struct rpc_secret secret;
    enum status status = rpc_secret_read(settings->mesh_secret_file, &secret, error);
    const struct protection has = {.has_tls = tls_of(settings), .has_secret = secret.is_set, .is_insecure = settings->is_insecure};

    if (!status)
        status = check_insecure(settings, &secret, error);
    if (!status && has.has_tls)
        status = rpc_tls_check(tls_of(settings), service, error);
    for (uint32_t i = 0; !status && i < ARRAY_COUNT(addresses->listens); i++)
        if (addresses->listens[i])
            status = check_listening(&has, service, addresses->listens[i], error);
    return status || !addresses->dials ? status : check_dialing(&has, addresses->dials, error);
}

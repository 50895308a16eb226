// secret.c: see secret.h.
#include "common/rpc/secret.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"

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
    return ok ? STATUS_OK : error_set(error, STATUS_UNKNOWN, "%s: %s", path, strerror(failed));
}

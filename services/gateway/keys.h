/* keys.h: API keys: one a line in a file; blank lines and lines that begin with # are skipped. */
#ifndef FD_GATEWAY_KEYS_H
#define FD_GATEWAY_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct keys;

/* The caller closes *out. A file without a key is an error: it would lock everybody out, or let everybody in. */
enum status keys_open(const char *path, struct keys **out, struct error *error) MUST_CHECK;
void keys_close(struct keys *keys);

/* Is this the value of an Authorization header with a known key? The time taken does not tell how much of a key is right.
 * tenant gets a name for the key's owner that does not give the key away (at least 24 bytes). */
bool keys_accept(const struct keys *keys, const char *authorization, char *tenant, size_t tenant_bytes);

#endif

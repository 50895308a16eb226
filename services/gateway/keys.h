// keys.h: API keys: one a line in a file; blank lines and lines that begin with # are skipped.
//
// A key is found by its keyed BLAKE2b hash, so the time of a look-up tells nothing about the keys. The name of a key's owner (the tenant) is
// a BLAKE2b hash as well, the same at every gateway, from which the key cannot be read.
#ifndef FD_GATEWAY_KEYS_H
#define FD_GATEWAY_KEYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { KEY_TENANT_BYTES = 40 }; // "key-" and 32 digits

struct keys;

// The owner of a key. Lives as long as its struct keys.
struct key {
    char tenant[KEY_TENANT_BYTES];
    atomic_uint waiting; // relaxed: how many sequences at this gateway have no token yet
};

// The caller closes *out. A file without a key is an error: it would lock everybody out, or let everybody in.
enum status keys_open(const char *path, struct keys **out, struct error *error) MUST_CHECK;
void keys_close(struct keys *keys); // NULL is allowed

uint32_t keys_count(const struct keys *keys);

// The key in the value of an Authorization header, or NULL if there is none or it is not known. Any thread.
struct key *keys_find(struct keys *keys, const char *authorization);

#endif

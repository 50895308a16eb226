// keys.h: API keys: one a line in a file; blank lines and lines that begin with # are skipped.
//
// A key is found by its keyed BLAKE2b hash, so that the time of a look-up says nothing about the keys there are. Its owner's name is a
// BLAKE2b hash too, the same at every gateway; the key cannot be read from it.
#ifndef FD_GATEWAY_KEYS_H
#define FD_GATEWAY_KEYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { KEY_TENANT_BYTES = 40 }; // "key-" and 32 digits

struct keys;

// What is known of a key's owner. It lives as long as its struct keys.
struct key {
    char tenant[KEY_TENANT_BYTES];
    atomic_uint waiting; // relaxed, a number to compare: its sequences at this gateway that have no token yet
};

// The caller closes *out. A file without a key is an error: it would lock everybody out, or let everybody in.
enum status keys_open(const char *path, struct keys **out, struct error *error) MUST_CHECK;
void keys_close(struct keys *keys); // NULL is allowed

uint32_t keys_count(const struct keys *keys);

// The key in the value of an Authorization header, or NULL if there is none or it is not known. Any thread.
struct key *keys_find(struct keys *keys, const char *authorization);

#endif

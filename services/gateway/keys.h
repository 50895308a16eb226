// keys.h: API keys, read from a file with one key per line. Blank lines and lines that begin with # are skipped.
//
// A key is found by its keyed BLAKE2b hash, so the time of a look-up tells nothing about the keys. The name of a key's owner (the
// tenant) is another BLAKE2b hash of the key, which is the same at every gateway and does not reveal the key.
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
    atomic_uint waiting[2]; // how many of its sequences at this gateway have no token yet; [1]: of latency class batch; relaxed
};

// The caller closes *out. A file without a key is an error: it would lock everybody out, or let everybody in.
enum status keys_open(const char *path, struct keys **out, struct error *error) MUST_CHECK;
void keys_close(struct keys *keys); // NULL is allowed

uint32_t keys_count(const struct keys *keys);

// Returns the key in the value of an Authorization header, or NULL if there is no known key in it. Any thread.
struct key *keys_find(struct keys *keys, const char *authorization);

#endif

// keys.h: API keys and what their owners may do, read from a file that is read again when it changes.
//
//     # plain: the key itself, without limits
//     sk-example-0123456789
//     # an owner's name, the hash that `fastdecode key` prints, and limits
//     team-a blake2b:5f…e1 requests=600 tokens=200000 open=32
//     team-a blake2b:07…9c                                      another key of the same owner, with the same limits: for rotation
//     nightly blake2b:c4…02 class=batch models=default
//
// A request is its owner's: limits, files, batches and shared prefixes belong to the name. Each plain key is an owner of its own.
//
// A key is found by a second, keyed hash of its hash, so the time of a look-up tells nothing about the keys. An owner's tenant, the name
// that the scheduler and the files on disk know, is a hash of the name, or of the plain key, and the same at every gateway.
#ifndef FD_GATEWAY_HTTP_KEYS_H
#define FD_GATEWAY_HTTP_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "services/gateway/http/key.h"

enum { KEYS_MAX = 4096 };

struct keys;

// The caller closes *out. A file without a key is an error: it would lock everybody out, or let everybody in.
enum status keys_open(const char *path, struct keys **out, struct error *error) MUST_CHECK;
void keys_close(struct keys *keys); // NULL is allowed. No request may be in flight

uint32_t keys_count(struct keys *keys);

// Reads the file again if it has changed, or if `always`. Owners that are still there keep what they have taken. Returns whether it was
// read and is used now; a file that cannot be used changes nothing and is logged. Any thread, one at a time.
bool keys_reload(struct keys *keys, bool always);

// Returns the owner of the key in the value of an Authorization header, or NULL if there is no known key in it. Any thread.
struct key *keys_find(struct keys *keys, const char *authorization);

#endif

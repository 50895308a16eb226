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

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/api/apikey.h"
#include "common/base/status.h"
#include "services/gateway/http/api_error.h"

// --- how much of something may happen in a minute --------------------------------------------------------------------
//
// A window of 60 seconds slides by whole seconds: what was taken in second s counts until second s + 60 begins, so no 60 seconds ever
// see more than the limit. What was taken too much is given back to the second it was taken in.
//
//     limit 100:  s = 0 takes 70 ── s = 20 takes 30 ── s = 59 takes nothing ── s = 60 has 70 again
//
// Plain values, without a lock of their own.

enum { RATE_SECONDS = 60 };

// Zero, but for the limit, is a rate of which nothing was taken.
struct rate {
    uint64_t limit;               // in RATE_SECONDS; 0: none
    uint64_t sum;                 // of taken
    uint64_t now_s;               // the latest second that was seen
    uint64_t taken[RATE_SECONDS]; // of each second, at second % RATE_SECONDS
};

// Takes an amount, all or nothing. Returns false if that would be more than the limit. now_s never decreases.
bool rate_take(struct rate *rate, uint64_t now_s, uint64_t amount);

// Gives back a part of what was taken in a second, unless it counts no longer.
void rate_give_back(struct rate *rate, uint64_t now_s, uint64_t taken_s, uint64_t amount);

// Returns how much could be taken now; UINT64_MAX without a limit.
uint64_t rate_left(struct rate *rate, uint64_t now_s);

// Returns the seconds until so much can be taken, if nothing else is: 0, if it can be now, and RATE_SECONDS if it is more than the limit.
uint32_t rate_wait_s(struct rate *rate, uint64_t now_s, uint64_t amount);

// --- an owner of API keys --------------------------------------------------------------------------------------------
//
// It has limits, and what it has taken of them.

enum {
    KEY_TENANT_BYTES = APIKEY_TENANT_BYTES,
    KEY_NAME_BYTES = APIKEY_NAME_BYTES,
};

// An owner of keys. Lives as long as its struct keys, even if the file no longer names it: a request in flight goes on.
struct key {
    char name[KEY_NAME_BYTES]; // "": of a plain key
    char tenant[KEY_TENANT_BYTES];
    atomic_uint waiting[2]; // how many of its sequences at this gateway have no token yet; [1]: of latency class batch; relaxed
    pthread_mutex_t lock;   // of what follows
    struct apikey_limits limits;
    struct rate requests, tokens;
    uint32_t open;
    struct key *next;
};

// The amounts that a request has taken of its owner's limits. Zero: nothing.
struct key_grant {
    struct key *key;
    uint64_t second; // in which the tokens were taken
    uint64_t tokens;
};

// Returns whether the owner may use the model of that name; fills *error otherwise.
bool key_permits_model(struct key *key, const char *model, struct api_error *error);
// Returns whether its requests are of latency class batch.
bool key_is_batch(struct key *key);
// Counts one request, which is open until key_end(). Returns false and fills *error if a limit does not allow it. NULL: no key, no limit.
bool key_begin(struct key *key, struct key_grant *grant, struct api_error *error);
// Takes the most tokens that a request can have. Returns false and fills *error if the limit does not allow it.
bool key_take_tokens(struct key_grant *grant, uint64_t tokens, struct api_error *error);
// Ends a request that had so many tokens: what was taken beyond them is given back. Does nothing the second time.
void key_end(struct key_grant *grant, uint64_t used_tokens);

// The values of the x-ratelimit headers. A limit of 0: there is none, and no header.
struct key_state {
    uint64_t requests_limit, requests_left, tokens_limit, tokens_left;
    uint32_t requests_reset_s, tokens_reset_s; // until nothing counts any more
};
void key_state(struct key *key, struct key_state *out);

enum { KEYS_MAX = APIKEY_FILE_KEYS_MAX };

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

// key.h: an owner of API keys: what it may do, and what it has taken of that.
#ifndef FD_GATEWAY_HTTP_KEY_H
#define FD_GATEWAY_HTTP_KEY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/apikey/apikey.h"
#include "services/gateway/http/api_error.h"
#include "services/gateway/http/rate.h"

enum {
    KEY_TENANT_BYTES = 40, // "key-" and 32 digits
    KEY_NAME_BYTES = APIKEY_NAME_BYTES,
    KEY_MODELS_BYTES = APIKEY_MODELS_BYTES,
};

// What an owner may do. 0: no limit.
struct key_limits {
    uint64_t requests, tokens;     // in any 60 seconds; tokens: of prompts and answers
    uint32_t open;                 // requests at a time
    bool batch;                    // its requests are of latency class batch
    char models[KEY_MODELS_BYTES]; // names, with commas between them; "": all
};

// An owner of keys. Lives as long as its struct keys, even if the file no longer names it: a request in flight goes on.
struct key {
    char name[KEY_NAME_BYTES]; // "": of a plain key
    char tenant[KEY_TENANT_BYTES];
    atomic_uint waiting[2]; // how many of its sequences at this gateway have no token yet; [1]: of latency class batch; relaxed
    pthread_mutex_t lock;   // of what follows
    struct key_limits limits;
    struct rate requests, tokens;
    uint32_t open;
    struct key *next;
};

// What a request has taken of its owner's limits. Zero: nothing.
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

#endif

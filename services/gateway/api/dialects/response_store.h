// response_store.h: answers of /v1/responses that a later request may continue, in memory.
//
// An entry has two parts: the conversation, messages of a chat with the answer at their end, and the answer as the client was sent it. It is
// made when the request begins, which keeps the conversation that the answer is added to; until it ends it can be removed, but not read.
//
// Limits: bytes of memory of all entries, of which one tenant may have a share; entries of a tenant; their age. Where there is no room, the oldest
// entries go: the tenant's own at its limits, and of all tenants' at the limit of all. Example: 64 MiB with two keys or more and a share of a
// half: 32 MiB of conversations for the busiest of them, and its oldest are the first to go.
//
// Threads: any. Nothing blocks but for a mutex that is held while bytes are copied.
#ifndef FD_GATEWAY_API_DIALECTS_RESPONSE_STORE_H
#define FD_GATEWAY_API_DIALECTS_RESPONSE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "services/gateway/http/json_write.h"

// Why an answer cannot be found, for errors.
#define RESPONSE_IS_GONE "it was not stored, has been deleted, or its time is over (--responses-keep)"

struct response_store;

struct response_store_config {
    uint64_t max_bytes; // of all entries
    double share;       // of that, for one tenant
    uint32_t max_count; // of a tenant's entries
    double keep_s;      // from the beginning of the request
};

enum status response_store_open(const struct response_store_config *config, struct response_store **out) MUST_CHECK;
void response_store_close(struct response_store *store); // NULL is allowed

// Keeps a conversation, a JSON array, for the answer to come. Returns false if it is larger than a tenant's share, or memory is short.
bool response_store_begin(struct response_store *store, const char *tenant, const char *id, const struct text *conversation,
                          uint64_t now_us);
// Completes the entry, if it is still there. message: appended to the conversation's array; answer: kept as it is.
void response_store_end(struct response_store *store, const char *tenant, const char *id, const struct text *message,
                        const struct text *answer, uint64_t now_us);
// Removes an entry, whether it is complete or not: an answer to come is then not kept. Returns whether one was there.
bool response_store_remove(struct response_store *store, const char *tenant, const char *id, uint64_t now_us);
// Appends a copy of the part. Return false if there is no such entry, or it is not complete.
bool response_store_answer(struct response_store *store, const char *tenant, const char *id, uint64_t now_us, struct text *out);
bool response_store_conversation(struct response_store *store, const char *tenant, const char *id, uint64_t now_us,
                                 struct text *out);

// Returns what all entries take, for tests.
uint64_t response_store_bytes(struct response_store *store);

#endif

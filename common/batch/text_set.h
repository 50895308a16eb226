// text_set.h: a set of texts that keeps 16 bytes of each: which custom_ids were seen.
//
// Two texts count as the same if a hash of 128 bits under a secret is: of a million texts, some two are with probability 2^-89.
#ifndef FD_BATCH_TEXT_SET_H
#define FD_BATCH_TEXT_SET_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct text_set {
    uint64_t secret[2];
    uint64_t (*slots)[2]; // [capacity] open addressing; zeros: free
    size_t capacity, count;
};

void text_set_open(struct text_set *out);
void text_set_close(struct text_set *set);
// OK, ALREADY_EXISTS, or RESOURCE_EXHAUSTED.
enum status text_set_add(struct text_set *set, const char *text) MUST_CHECK;
bool text_set_has(const struct text_set *set, const char *text);

#endif

// masker_trackers.h: the trackers of the masker's thread: one a grammar, shared by its sequences and kept a while after them; and the
// vocabulary that they are about. Used by that thread alone.
#ifndef FD_S_PART_STEP_MASKER_TRACKERS_H
#define FD_S_PART_STEP_MASKER_TRACKERS_H

#include "common/grammar/cursor.h"
#include "common/model/model.h"

enum {
    MASKER_TRACKERS_MAX = 256,    // different grammars in use at once
    MASKER_TRACKERS_KEPT = 16,    // that stay without sequences; the memory plan counts so many
    MASKER_TRACKER_MASKS = 64,    // that a tracker can remember, beside its configurations
    MASKER_VOCAB_TOKEN_BYTES = 48 // of the vocabulary's trie, a token: a guess for the memory plan
};

struct masker_tracker {
    struct grammar_tracker *tracker; // NULL: free entry
    uint64_t hash;
    uint32_t users;
    uint64_t used_at;              // grows with each use
    struct grammar_cursor *drafts; // walks ahead along guesses
};

struct masker_trackers {
    const struct model *model;
    uint32_t vocab_tokens;
    struct grammar_vocab *vocab; // NULL until the first grammar
    struct masker_tracker entries[MASKER_TRACKERS_MAX];
    uint64_t uses;
};

// Returns the bytes of a tracker.
size_t masker_tracker_bytes(uint32_t vocab);

// Finds or opens the tracker of a packed grammar, and counts a user. INVALID_ARGUMENT: it is none. RESOURCE_EXHAUSTED: no memory, or too many.
enum status masker_trackers_get(struct masker_trackers *trackers, const void *packed, size_t bytes, struct masker_tracker **out,
                                struct error *error) MUST_CHECK;
void masker_trackers_put_back(struct masker_trackers *trackers, struct masker_tracker *tracker);
// Closes all; none has users.
void masker_trackers_close(struct masker_trackers *trackers);

#endif

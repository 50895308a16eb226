// grammar_cursor.c: see grammar_cursor.h.
#include "common/grammar/grammar_cursor.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/grammar_tracker_state.h"
#include "common/grammar/grammar_vocab_state.h"

// Half of a tracker's memory is for masks. Of the other half words have two thirds, and their table the rest.
static bool open_memory(struct grammar_tracker *tracker, size_t bytes)
{
    return grammar_memory_open(tracker, bytes / 3 / sizeof *tracker->words) && grammar_masks_open(tracker, bytes / 2);
}

enum status grammar_tracker_open(struct grammar *grammar, const struct grammar_vocab *vocab, size_t bytes,
                                 struct grammar_tracker **out, struct error *error)
{
    struct grammar_tracker *tracker = calloc(1, sizeof *tracker);

    *out = NULL;
    if (tracker) {
        tracker->grammar = grammar;
        tracker->vocab = vocab;
        tracker->mask_work = GRAMMAR_MAX_MASK_WORK;
    }
    if (!tracker || !open_memory(tracker, bytes)) {
        if (tracker)
            tracker->grammar = NULL; // remains the caller's
        grammar_tracker_close(tracker);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    *out = tracker;
    return STATUS_OK;
}

void grammar_tracker_close(struct grammar_tracker *tracker)
{
    if (!tracker)
        return;
    assert_always(!tracker->cursors);
    grammar_memory_close(tracker);
    grammar_masks_close(tracker);
    grammar_free(tracker->grammar);
    free(tracker);
}

const struct grammar *grammar_tracker_grammar(const struct grammar_tracker *tracker) { return tracker->grammar; }

uint64_t grammar_tracker_work(const struct grammar_tracker *tracker) { return tracker->work; }

struct grammar_cursor *grammar_cursor_open(struct grammar_tracker *tracker)
{
    struct grammar_cursor *cursor = grammar_memory_grow(tracker, tracker->cursor_count + 1) ? calloc(1, sizeof *cursor) : NULL;

    if (!cursor)
        return NULL;
    cursor->tracker = tracker;
    cursor->configuration = grammar_first_configuration(tracker);
    cursor->next = tracker->cursors;
    if (cursor->next)
        cursor->next->previous = cursor;
    tracker->cursors = cursor;
    tracker->cursor_count++;
    return cursor;
}

void grammar_cursor_close(struct grammar_cursor *cursor)
{
    if (!cursor)
        return;
    if (cursor->next)
        cursor->next->previous = cursor->previous;
    if (cursor->previous)
        cursor->previous->next = cursor->next;
    else
        cursor->tracker->cursors = cursor->next;
    cursor->tracker->cursor_count--;
    free(cursor);
}

void grammar_cursor_copy(struct grammar_cursor *to, const struct grammar_cursor *from)
{
    assert_always(to->tracker == from->tracker);
    to->configuration = from->configuration;
}

bool grammar_cursor_take_bytes(struct grammar_cursor *cursor, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count && cursor->configuration; i++) {
        uint32_t from = cursor->configuration; // a step may rename it and the cursor's
        cursor->configuration = grammar_step(cursor->tracker, &from, (uint8_t)bytes[i]);
    }
    return cursor->configuration != GRAMMAR_DEAD;
}

bool grammar_cursor_take(struct grammar_cursor *cursor, uint32_t token)
{
    const struct grammar_vocab *vocab = cursor->tracker->vocab;
    uint32_t first = token < vocab->token_count ? vocab->starts[token] : 0;
    uint32_t length = token < vocab->token_count ? vocab->starts[token + 1] - first : 0;

    if (!length)
        cursor->configuration = GRAMMAR_DEAD;
    return length && grammar_cursor_take_bytes(cursor, vocab->bytes + first, length);
}

bool grammar_cursor_is_dead(const struct grammar_cursor *cursor) { return cursor->configuration == GRAMMAR_DEAD; }

bool grammar_cursor_may_end(struct grammar_cursor *cursor)
{
    return cursor->configuration && (cursor->tracker->words[cursor->configuration + CONFIGURATION_FLAGS] & CONFIGURATION_MAY_END);
}

bool grammar_cursor_must_end(struct grammar_cursor *cursor)
{
    uint32_t count = 1;

    if (cursor->configuration)
        grammar_pairs_of(cursor->tracker, cursor->configuration, &count);
    return count == 0;
}

bool grammar_cursor_mask(struct grammar_cursor *cursor, uint32_t *words)
{
    const struct grammar_tracker *tracker = cursor->tracker;
    const size_t bytes = ((size_t)tracker->vocab->token_count + 31) / 32 * sizeof *words;
    const uint32_t *mask = cursor->configuration ? grammar_mask_of(cursor->tracker, cursor->configuration) : NULL;

    if (mask)
        memcpy(words, mask, bytes);
    else
        memset(words, 0, bytes);
    return mask || !cursor->configuration;
}

bool grammar_cursor_mask_is_ready(const struct grammar_cursor *cursor)
{
    return !cursor->configuration || cursor->tracker->words[cursor->configuration + CONFIGURATION_MASK] != 0;
}

// stop_match.c: see stop_match.h.
//
// A complete stop string wins over an earlier one that is incomplete, so a match is never late. This is a plain search in the held text plus
// the piece. Held text is shorter than the longest stop string and pieces are a few bytes, so a piece costs (held + piece) x strings
// comparisons, nearly all of which fail at the first byte.
#include "services/gateway/api/schema/stop_match.h"

#include <string.h>

#include "common/base/checked.h"

void stop_match_init(struct stop_match *match, const struct stop_string *strings, uint32_t count)
{
    *match = (struct stop_match){.strings = strings, .count = count, .matched = -1};
}

void stop_match_fini(struct stop_match *match) { text_free(&match->held); }

// Returns the longest string that is complete at `at`, or -1. *partial: another one may still become complete.
static int32_t match_at(const struct stop_match *match, const char *at, size_t left, bool *partial)
{
    int32_t best = -1;
    uint32_t i;

    *partial = false;
    for (i = 0; i < match->count; i++) {
        const struct stop_string *string = &match->strings[i];
        if (memcmp(at, string->data, MIN(left, string->bytes)) != 0)
            continue;
        if (left < string->bytes)
            *partial = true;
        else if (best < 0 || string->bytes > match->strings[best].bytes)
            best = (int32_t)i;
    }
    return best;
}

bool stop_match_push(struct stop_match *match, const char *piece, size_t bytes, struct text *out)
{
    size_t i, hold_from;
    bool partial;

    if (match->count == 0) {
        text_append(out, piece, bytes);
        return false;
    }
    text_append(&match->held, piece, bytes);
    hold_from = match->held.bytes;
    for (i = 0; i < match->held.bytes && match->matched < 0; i++) {
        match->matched = match_at(match, match->held.data + i, match->held.bytes - i, &partial);
        if (match->matched >= 0)
            hold_from = i;
        else if (partial && i < hold_from)
            hold_from = i;
    }
    text_append(out, match->held.data, hold_from);
    text_consume(&match->held, hold_from);
    return match->matched >= 0;
}

void stop_match_finish(struct stop_match *match, struct text *out)
{
    text_append(out, match->held.data, match->held.bytes);
    match->held.bytes = 0;
}

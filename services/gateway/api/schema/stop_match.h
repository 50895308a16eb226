// stop_match.h: finds stop strings in detokenized text, across token boundaries.
//
// It takes text as it is generated and returns what may be shown. A tail that could still become a stop string is held back.
// Example: stop "END", pieces "the E" "N" "D of": out come "the ", "", and then a match: "END of" is never shown.
#ifndef FD_GATEWAY_API_SCHEMA_STOP_MATCH_H
#define FD_GATEWAY_API_SCHEMA_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "services/gateway/http/json_write.h"

struct stop_string {
    const char *data; // borrowed; at least one byte
    size_t bytes;
};

struct stop_match {
    const struct stop_string *strings; // borrowed
    uint32_t count;
    struct text held; // text seen but not shown yet
    int32_t matched;  // index of the string found, or -1
};

// Prepares *match for a new text.
void stop_match_init(struct stop_match *match, const struct stop_string *strings, uint32_t count);
void stop_match_fini(struct stop_match *match);

// Takes a piece and appends to *out what may be shown. Returns true once a stop string is complete. If there are several, the one
// that begins first is chosen, and the longest of those. *out then has the text before it, and nothing more may be pushed.
bool stop_match_push(struct stop_match *match, const char *piece, size_t bytes, struct text *out);

// Ends the sequence: appends the text that was held back.
void stop_match_finish(struct stop_match *match, struct text *out);

#endif

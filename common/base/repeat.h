// repeat.h: whether something that happens again and again is worth another line of the log. The first time is, then once in
// REPEAT_EVERY_US; another reason need not wait so long. A zeroed one has seen nothing: zero it again when what was wrong is over.
#ifndef FD_BASE_REPEAT_H
#define FD_BASE_REPEAT_H

#include <stdbool.h>
#include <stdint.h>

enum { REPEAT_EVERY_US = 30000000, REPEAT_OTHER_US = 1000000 };

struct repeat {
    uint64_t logged_us;
    uint32_t reason, count; // of the latest line: a hash of its reason; how often it has happened since the line before
    uint32_t unlogged;      // how often it has happened since the latest line
};

// True: log it, with repeat->count. reason: any text; "" if there is but one.
bool repeat_is_due(struct repeat *repeat, uint64_t now_us, const char *reason);

#endif

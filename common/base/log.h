// log.h: one line per event, a stable ID first, then key=value; or JSON lines.
//
// Usage: log_warn("KV-POOL-FULL", "worker=%u free_pages=%u", worker, free_pages);
// The level is tested before arguments are evaluated. Safe from any thread, but not from a signal handler.
// Values that come from outside (request text, peer names) must pass through log_quote() first.
//
// A line is one write(2) that never waits: if the reader of a pipe or terminal has stalled, or the disk of a file is full, the line is
// dropped and counted, and the next line that gets through is preceded by LOG-DROPPED with the count. A serving loop therefore never stops for
// its log.
#ifndef FD_BASE_LOG_H
#define FD_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

extern enum log_level log_threshold; // written once at start, before threads

// Sets the format of lines, which go to stderr. service: a static string, e.g. "s-part". json: JSON lines instead of text. Call
// once, before threads start and after any redirection of stderr.
void log_init(const char *service, enum log_level threshold, bool json);

// Appends to `path` instead, and makes it stdout and stderr of the process, so that whatever else is printed goes there too. When
// the file has max_bytes it becomes path.1, path.1 becomes path.2 and so on; at most keep_count old files are kept. path is copied.
// A failure changes nothing.
enum status log_to_file(const char *path, uint64_t max_bytes, uint32_t keep_count, struct error *error) MUST_CHECK;

// Converts "debug", "info", "warn" or "error" to a level.
enum status log_parse_level(const char *name, enum log_level *out) MUST_CHECK;

// How many lines were dropped since the start. Any thread.
uint64_t log_lines_lost(void);

void log_write(enum log_level level, const char *id, const char *format, ...) PRINTF_LIKE(3, 4);

// Copies text into buffer in double quotes, control bytes and quotes escaped, cut to fit. Returns buffer.
const char *log_quote(char *buffer, size_t buffer_bytes, const char *text);

#define log_at(level, id, ...) ((level) >= log_threshold ? log_write((level), (id), __VA_ARGS__) : (void)0)
#define log_debug(id, ...) log_at(LOG_DEBUG, id, __VA_ARGS__)
#define log_info(id, ...) log_at(LOG_INFO, id, __VA_ARGS__)
#define log_warn(id, ...) log_at(LOG_WARN, id, __VA_ARGS__)
#define log_error(id, ...) log_at(LOG_ERROR, id, __VA_ARGS__)

// --- whether something that happens again and again is worth another line ---
//
// The first time is, then once in REPEAT_EVERY_US; another reason need not wait so long. A zeroed one has seen nothing: zero it again when
// what was wrong is over.

enum { REPEAT_EVERY_US = 30000000, REPEAT_OTHER_US = 1000000 };

struct repeat {
    uint64_t logged_us;
    uint32_t reason, count; // of the latest line: a hash of its reason; how often it has happened since the line before
    uint32_t unlogged;      // how often it has happened since the latest line
};

// True: log it, with repeat->count. reason: any text; "" if there is but one.
bool repeat_is_due(struct repeat *repeat, uint64_t now_us, const char *reason);

#endif

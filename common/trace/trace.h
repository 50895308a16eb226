/* trace.h: where the time of each step goes, as a file for ui.perfetto.dev or chrome://tracing.
 *
 * A process has tracks (rows of the picture, each written by one thread); a track gets spans. A span is put when it ends:
 *
 *     uint64_t began_ns = trace_clock(track);
 *     …
 *     trace_span(track, "segment", began_ns, {"layer", layer}, {"mini_batch", index});
 *
 * Off (tracks are NULL) it costs one branch that is always taken alike, and arguments are not evaluated. On, it costs two clock
 * readings and 104 bytes written to memory of the track's own: no lock, no allocation, no system call. A thread that only writes
 * empties the tracks every FLUSH_MS.
 *
 *     track: ring of 8,192 spans, preallocated ─┐
 *     track: ring …                             ├─▶ writer thread ─▶ FILE: "[", then one JSON object a line
 *     other processes of this host ────────────┘   (O_APPEND, whole lines: they share the file)
 *
 * Spans that find their ring full, or the file at its limit, are dropped and counted: a line of the log says so, and the
 * process's last event ("trace end") has the counts. The file is valid JSON once its owner (the process that did not append) has
 * closed it, last of all; one that was killed leaves "]" out, which viewers do not mind.
 *
 * Times are CLOCK_MONOTONIC in microseconds, the same clock in all processes of a host. Another host's begins elsewhere: each
 * process's "clock" event has the wall time at its start, which lines files of several hosts up as well as their clocks agree.
 *
 * Worked number: one stream on a model of 30 layers is 65 spans a step and 300 steps a second: 2.5 MB/s of file, and 256 MiB are
 * a minute and a half.
 */
#ifndef FD_TRACE_TRACE_H
#define FD_TRACE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

enum { TRACE_ARGS_MAX = 4, TRACE_TRACKS_MAX = 64, TRACE_RING_SPANS = 8192 };

/* What the limit of a file is where none is given, for help texts too. */
#define TRACE_LIMIT_BYTES (256ull << 20)
#define TRACE_HELP "write a trace for ui.perfetto.dev there (ends at 256 MiB)"
#define TRACE_APPEND_HELP "to the trace that another service of this host began"

struct trace_track;

struct trace_arg {
    const char *name; /* static, an identifier; NULL: none */
    uint64_t value;
};

struct trace_args {
    struct trace_arg items[TRACE_ARGS_MAX];
};

struct trace_config {
    const char *path;     /* NULL: no trace */
    bool append;          /* to the file of another process of this host, which owns it */
    const char *process;  /* name of the process's group of tracks; copied */
    uint32_t order;       /* of the group in the picture: smaller ones are higher up */
    uint64_t limit_bytes; /* of the file; 0: TRACE_LIMIT_BYTES */
    uint32_t ring_spans;  /* of a track, a power of two; 0: TRACE_RING_SPANS */
};

/* Once a process, before its tracks. INVALID_ARGUMENT: the file cannot be written, *error says why. */
enum status trace_open(const struct trace_config *config, struct error *error) MUST_CHECK;

/* A new track; NULL without a trace, without memory, or where there are TRACE_TRACKS_MAX. name is copied. Any thread, but not in a
 * step: it takes a lock and memory, and the first one starts the writer. Lives until trace_close(). */
struct trace_track *trace_track_open(const char *name);

/* Writes what is left and ends the file (of another process: its share of it). No track may be used any more. Blocks. Fine
 * without trace_open(). */
void trace_close(void);

/* The time that a span begins; 0 without a trace. */
static inline uint64_t trace_clock(const struct trace_track *track) { return track ? clock_now_ns() : 0; }

/* A span from began_ns until now, with up to TRACE_ARGS_MAX arguments {"name", number}. Gives the time it ended, which may be
 * the next one's beginning. Spans of a track must not overlap unless one holds the other. The track's thread alone (asserted). */
#define trace_span(track, name, began_ns, ...) \
    ((track) ? trace_put((track), (name), (began_ns), 0, &(const struct trace_args){{__VA_ARGS__}}) : (uint64_t)0)

/* A span on a line of its own, with those of the same id (not 0) below it: for what overlaps, as requests do. */
#define trace_overlapping(track, name, id, began_ns, ...) \
    ((track) ? trace_put((track), (name), (began_ns), (id), &(const struct trace_args){{__VA_ARGS__}}) : (uint64_t)0)

/* One that ended before now, on a clock that was set beside this one: the work of a device. */
#define trace_past(track, name, began_ns, ended_ns, ...) \
    ((track) ? trace_put_past((track), (name), (began_ns), (ended_ns), 0, &(const struct trace_args){{__VA_ARGS__}}) : (void)0)

void trace_put_past(struct trace_track *track, const char *name, uint64_t began_ns, uint64_t ended_ns, uint64_t id,
                    const struct trace_args *args);
uint64_t trace_put(struct trace_track *track, const char *name, uint64_t began_ns, uint64_t id, const struct trace_args *args);

#endif

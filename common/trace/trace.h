// trace.h: where the time of each step goes, as a file for ui.perfetto.dev or chrome://tracing.
//
// A process has tracks (rows of the picture), each written by one thread. A span is put on its track when it ends:
//
//     uint64_t began_ns = trace_clock(track);
//     …
//     trace_span(track, "segment", began_ns, {"layer", layer}, {"mini_batch", index});
//
// Without --trace tracks are NULL: a span costs one well predicted branch and its arguments are not evaluated. With it, a span costs
// two clock readings and 104 bytes written to the track's own memory: no lock, no allocation, no system call. A writer thread empties
// the tracks every FLUSH_MS.
//
//     track: ring of 8,192 spans, preallocated ─┐
//     track: ring …                             ├─▶ writer thread ─▶ FILE: "[", then one JSON object a line
//     other processes of this host ────────────┘   (O_APPEND, whole lines: they share the file)
//
// Spans that find their ring full, or the file at its limit, are dropped and counted: the log says so, and the process's last event
// ("trace end") has the counts. The file is valid JSON once its owner (the process that did not append) has closed it as the last one.
// If the owner is killed, the final "]" is missing, which viewers accept.
//
// Times are CLOCK_MONOTONIC in microseconds, one clock for all processes of a host. To line up files of several hosts, each process's
// "clock" event has the wall time at its start.
//
// Worked number: one stream on a model of 30 layers is 65 spans a step and 300 steps a second: 2.5 MB/s of file, and 256 MiB are
// a minute and a half.
#ifndef FD_TRACE_TRACE_H
#define FD_TRACE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

enum { TRACE_ARGS_MAX = 4, TRACE_TRACKS_MAX = 64, TRACE_RING_SPANS = 8192 };

// The default limit of a file; help texts name it.
#define TRACE_LIMIT_BYTES (256ull << 20)
#define TRACE_HELP "write a trace for ui.perfetto.dev to this file (at most 256 MiB)"
#define TRACE_APPEND_HELP "append to the trace file of another service of this host"

struct trace_track;

struct trace_arg {
    const char *name; // static, an identifier; NULL: none
    uint64_t value;
};

struct trace_args {
    struct trace_arg items[TRACE_ARGS_MAX];
};

struct trace_config {
    const char *path;     // NULL: no trace
    bool append;          // to a file that another process of this host owns
    const char *process;  // name of the process's group of tracks; copied
    uint32_t order;       // place of the group in the picture: lower numbers are higher up
    uint64_t limit_bytes; // of the file; 0: TRACE_LIMIT_BYTES
    uint32_t ring_spans;  // of a track, a power of two; 0: TRACE_RING_SPANS
};

// Opens the trace; once per process, before any track. A file that cannot be written: as status_of_path(), *error says why.
enum status trace_open(const struct trace_config *config, struct error *error) MUST_CHECK;

// Returns a new track, which lives until trace_close(); NULL without a trace, without memory, or beyond TRACE_TRACKS_MAX. name is
// copied. Any thread, but not in a step: it takes a lock and allocates, and the first call starts the writer.
struct trace_track *trace_track_open(const char *name);

// Writes what is left and ends the file, or this process's part of it. No track may be used afterwards. Blocks. May be called without
// trace_open().
void trace_close(void);

// Returns the time for a span's beginning; 0 without a trace.
static inline uint64_t trace_clock(const struct trace_track *track) { return track ? clock_now_ns() : 0; }

// Puts a span from began_ns until now, with up to TRACE_ARGS_MAX arguments {"name", number}. Returns its end, which may be the next
// span's beginning. Spans of a track must be apart or nested. Only the track's own thread may call it (asserted).
#define trace_span(track, name, began_ns, ...) \
    ((track) ? trace_put((track), (name), (began_ns), 0, &(const struct trace_args){{__VA_ARGS__}}) : (uint64_t)0)

// The same for spans that overlap, as requests do: those of one id (not 0) share a line of their own.
#define trace_overlapping(track, name, id, began_ns, ...) \
    ((track) ? trace_put((track), (name), (began_ns), (id), &(const struct trace_args){{__VA_ARGS__}}) : (uint64_t)0)

// A span that ended before now, by a clock that was compared with this one: the work of a device.
#define trace_past(track, name, began_ns, ended_ns, ...) \
    ((track) ? trace_put_past((track), (name), (began_ns), (ended_ns), 0, &(const struct trace_args){{__VA_ARGS__}}) : (void)0)

void trace_put_past(struct trace_track *track, const char *name, uint64_t began_ns, uint64_t ended_ns, uint64_t id,
                    const struct trace_args *args);
uint64_t trace_put(struct trace_track *track, const char *name, uint64_t began_ns, uint64_t id, const struct trace_args *args);

#endif

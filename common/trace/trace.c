// trace.c: see trace.h. A track is a ring with one writer (its thread) and one reader (the thread that empties it).
#include "common/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"

enum { FLUSH_MS = 20, BUFFER_BYTES = 64 << 10, LINE_BYTES = 1024, NAME_BYTES = 64 };

struct span {
    const char *name;
    uint64_t began_ns, ended_ns, id;
    struct trace_args args;
};

struct trace_track {
    uint32_t number; // "tid"
    pthread_t owner; // set by the first span
    bool owned;
    struct span *ring;     // [ring_spans]
    _Atomic uint32_t head; // spans put. Release by the owner, acquire by the reader: a span is complete before it counts
    _Atomic uint32_t tail; // spans taken. Release by the reader, acquire by the owner: a slot is free once it has been read
    atomic_ullong dropped; // relaxed: a count
};

static struct trace {
    int fd;
    bool on, append, full;
    int pid;
    uint32_t ring_spans;
    uint64_t limit_bytes;
    uint64_t over_limit; // spans dropped because of it; only the writer counts
    char process[NAME_BYTES];

    pthread_mutex_t lock; // guards tracks, stop, and the file while the writer does not run
    pthread_cond_t wake;
    bool stop, has_writer;
    pthread_t writer;
    struct trace_track *tracks[TRACE_TRACKS_MAX];
    uint32_t track_count;

    char buffer[BUFFER_BYTES]; // whole lines; under lock
    size_t buffered;
} trace = {.fd = -1};

void trace_put_past(struct trace_track *track, const char *name, uint64_t began_ns, uint64_t ended_ns, uint64_t id,
                    const struct trace_args *args)
{
    uint32_t head = atomic_load_explicit(&track->head, memory_order_relaxed); // its own

    if (!track->owned) {
        track->owner = pthread_self();
        track->owned = true;
    }
    assert_always(pthread_equal(track->owner, pthread_self()));
    if (head - atomic_load_explicit(&track->tail, memory_order_acquire) == trace.ring_spans) {
        atomic_fetch_add_explicit(&track->dropped, 1, memory_order_relaxed);
        return;
    }
    track->ring[head & (trace.ring_spans - 1)] =
        (struct span){.name = name, .began_ns = began_ns, .ended_ns = ended_ns, .id = id, .args = *args};
    atomic_store_explicit(&track->head, head + 1, memory_order_release);
}

uint64_t trace_put(struct trace_track *track, const char *name, uint64_t began_ns, uint64_t id, const struct trace_args *args)
{
    uint64_t now_ns = clock_now_ns();
    trace_put_past(track, name, began_ns, now_ns, id, args);
    return now_ns;
}

// --- the file: under the lock ----------------------------------------------------------------------------------------

// Writes all lines in one call, so that lines of other processes are not split.
static void write_out(void)
{
    ssize_t n = trace.buffered ? write(trace.fd, trace.buffer, trace.buffered) : 0;

    if (n < (ssize_t)trace.buffered && !trace.full) {
        trace.full = true;
        log_warn("TRACE-NOT-WRITTEN", "error=\"%s\"", n < 0 ? strerror(errno) : "the disk is full");
    }
    trace.buffered = 0;
}

static void add_line(const char *format, ...) PRINTF_LIKE(1, 2);
static void add_line(const char *format, ...)
{
    va_list args;

    if (trace.buffered + LINE_BYTES > sizeof trace.buffer)
        write_out();
    va_start(args, format);
    int n = vsnprintf(trace.buffer + trace.buffered, LINE_BYTES, format, args);
    va_end(args);
    assert_always(n > 0 && n < LINE_BYTES);
    trace.buffered += (size_t)n;
}

static bool at_limit(void)
{
    struct stat info;

    if (!trace.full && fstat(trace.fd, &info) == 0 && (uint64_t)info.st_size + trace.buffered + BUFFER_BYTES > trace.limit_bytes) {
        trace.full = true;
        log_warn("TRACE-FULL", "limit_bytes=%llu", (unsigned long long)trace.limit_bytes);
    }
    return trace.full;
}

static void add_span(const struct trace_track *track, const struct span *span)
{
    char args[LINE_BYTES / 2] = "";
    size_t at = 0;

    for (uint32_t i = 0; i < TRACE_ARGS_MAX && span->args.items[i].name; i++)
        at += (size_t)snprintf(args + at, sizeof args - at, "%s\"%.48s\":%llu", i ? "," : "", span->args.items[i].name,
                               (unsigned long long)span->args.items[i].value);
#define TIME(ns) (unsigned long long)((ns) / 1000), (unsigned)((ns) % 1000)
    if (!span->id) {
        add_line("{\"name\":\"%.48s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"ts\":%llu.%03u,\"dur\":%llu.%03u,\"args\":{%s}},\n",
                 span->name, trace.pid, track->number, TIME(span->began_ns), TIME(span->ended_ns - span->began_ns), args);
        return;
    }
    add_line(
        "{\"name\":\"%.48s\",\"cat\":\"async\",\"ph\":\"b\",\"id2\":{\"local\":\"%llu\"},\"pid\":%d,\"tid\":%u,\"ts\":%llu.%03u,\"args\":{%s}},\n",
        span->name, (unsigned long long)span->id, trace.pid, track->number, TIME(span->began_ns), args);
    add_line(
        "{\"name\":\"%.48s\",\"cat\":\"async\",\"ph\":\"e\",\"id2\":{\"local\":\"%llu\"},\"pid\":%d,\"tid\":%u,\"ts\":%llu.%03u},\n",
        span->name, (unsigned long long)span->id, trace.pid, track->number, TIME(span->ended_ns));
#undef TIME
}

static void empty(struct trace_track *track)
{
    uint32_t tail = atomic_load_explicit(&track->tail, memory_order_relaxed); // the reader's own
    uint32_t head = atomic_load_explicit(&track->head, memory_order_acquire);

    for (; tail != head; tail++) {
        if (trace.buffered + 2 * LINE_BYTES > sizeof trace.buffer && !at_limit())
            write_out();
        if (trace.full)
            trace.over_limit++;
        else
            add_span(track, &track->ring[tail & (trace.ring_spans - 1)]);
        atomic_store_explicit(&track->tail, tail + 1, memory_order_release);
    }
}

static void empty_all(void)
{
    (void)at_limit();
    for (uint32_t i = 0; i < trace.track_count; i++)
        empty(trace.tracks[i]);
    write_out();
}

static void *writer_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&trace.lock);
    while (!trace.stop) {
        struct timespec until;
        empty_all();
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += FLUSH_MS * 1000000l;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&trace.wake, &trace.lock, &until);
    }
    pthread_mutex_unlock(&trace.lock);
    return NULL;
}

// --- open and close --------------------------------------------------------------------------------------------------

// The first process that opens the file writes "[".
static enum status open_file(const struct trace_config *config, struct error *error)
{
    struct stat info;

    trace.fd = open(config->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (config->append ? 0 : O_TRUNC), 0644);
    if (trace.fd < 0)
        return error_set(error, status_of_path(errno), "--trace %s: %s", config->path, strerror(errno));
    flock(trace.fd, LOCK_EX);
    bool ok = fstat(trace.fd, &info) == 0 && (info.st_size > 0 || write(trace.fd, "[\n", 2) == 2);
    flock(trace.fd, LOCK_UN);
    if (ok)
        return STATUS_OK;
    error_set(error, STATUS_INVALID_ARGUMENT, "--trace %s: %s", config->path, strerror(errno));
    close(trace.fd);
    trace.fd = -1;
    return error->status;
}

enum status trace_open(const struct trace_config *config, struct error *error)
{
    pthread_condattr_t attributes;

    if (!config->path)
        return STATUS_OK;
    assert_always(!trace.on);
    memset(&trace, 0, sizeof trace);
    if (open_file(config, error))
        return error->status;
    trace.ring_spans = config->ring_spans ? config->ring_spans : TRACE_RING_SPANS;
    assert_always((trace.ring_spans & (trace.ring_spans - 1)) == 0);
    trace.limit_bytes = config->limit_bytes ? config->limit_bytes : TRACE_LIMIT_BYTES;
    trace.append = config->append;
    trace.pid = (int)getpid();
    for (size_t i = 0; config->process[i] && i + 1 < sizeof trace.process; i++) // it may come from a flag
        trace.process[i] = config->process[i] < ' ' || strchr("\"\\\x7f", config->process[i]) ? '?' : config->process[i];
    pthread_mutex_init(&trace.lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&trace.wake, &attributes);
    pthread_condattr_destroy(&attributes);
    uint64_t now_us = clock_now_us(), wall_us = clock_wall_us();
    add_line("{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"%s\"}},\n", trace.pid, trace.process);
    add_line("{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%u}},\n", trace.pid, config->order);
    add_line("{\"name\":\"clock\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"monotonic_us\":%llu,\"wall_us\":%llu}},\n", trace.pid,
             (unsigned long long)now_us, (unsigned long long)wall_us);
    write_out();
    trace.on = true;
    return STATUS_OK;
}

// Creates the writer with all signals blocked.
static bool start_writer(void)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    trace.has_writer = pthread_create(&trace.writer, NULL, writer_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return trace.has_writer;
}

struct trace_track *trace_track_open(const char *name)
{
    struct trace_track *track;

    if (!trace.on)
        return NULL;
    pthread_mutex_lock(&trace.lock);
    track = trace.track_count < TRACE_TRACKS_MAX ? calloc(1, sizeof *track) : NULL;
    if (track && (trace.has_writer || start_writer()))
        track->ring = malloc(trace.ring_spans * sizeof *track->ring);
    if (track && track->ring) {
        memset(track->ring, 0, trace.ring_spans * sizeof *track->ring); // makes it resident: no page fault in a step
        trace.tracks[trace.track_count] = track;
        track->number = ++trace.track_count;
        add_line("{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":\"%.64s\"}},\n", trace.pid,
                 track->number, name);
        add_line("{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"args\":{\"sort_index\":%u}},\n", trace.pid,
                 track->number, track->number);
    } else {
        free(track);
        track = NULL;
        log_warn("TRACE-TRACK-REFUSED", "name=\"%s\"", name);
    }
    pthread_mutex_unlock(&trace.lock);
    return track;
}

void trace_close(void)
{
    uint64_t dropped = 0;

    if (!trace.on)
        return;
    trace.on = false;
    pthread_mutex_lock(&trace.lock);
    trace.stop = true;
    pthread_cond_signal(&trace.wake);
    pthread_mutex_unlock(&trace.lock);
    if (trace.has_writer)
        pthread_join(trace.writer, NULL);
    empty_all();
    for (uint32_t i = 0; i < trace.track_count; i++) {
        dropped += atomic_load_explicit(&trace.tracks[i]->dropped, memory_order_relaxed);
        free(trace.tracks[i]->ring);
        free(trace.tracks[i]);
    }
    if (dropped || trace.over_limit)
        log_warn("TRACE-DROPPED", "ring_full=%llu over_limit=%llu", (unsigned long long)dropped,
                 (unsigned long long)trace.over_limit);
    add_line(
        "{\"name\":\"trace end\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":0,\"ts\":%llu,\"args\":{\"ring_full\":%llu,\"over_limit\":%llu}}%s\n",
        trace.pid, (unsigned long long)clock_now_us(), (unsigned long long)dropped, (unsigned long long)trace.over_limit,
        trace.append ? "," : "\n]");
    write_out();
    close(trace.fd);
    pthread_cond_destroy(&trace.wake);
    pthread_mutex_destroy(&trace.lock);
    trace.fd = -1;
}

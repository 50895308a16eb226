// batch_progress.c: see batch_progress.h. Rates are those of the last minute, by marks two seconds apart.
#include "services/fastdecode/load/batch_progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { SHOW_US = 200000, LINE_US = 10000000, MARK_US = 2000000, BAR_CELLS = 24 };

void batch_progress_begin(struct batch_progress *progress, bool quiet)
{
    progress->quiet = quiet;
    progress->terminal = isatty(STDERR_FILENO);
    progress->start_us = progress->marked_us = clock_now_us();
    progress->shown_us = progress->start_us;
    progress->done_at_start = progress->done;
    progress->marks[0].at_us = progress->start_us;
    progress->marks[0].done = progress->done;
    progress->mark_count = progress->mark_next = 1;
}

static void mark(struct batch_progress *progress, uint64_t now_us)
{
    if (now_us - progress->marked_us < MARK_US)
        return;
    progress->marked_us = now_us;
    progress->marks[progress->mark_next].at_us = now_us;
    progress->marks[progress->mark_next].done = progress->done;
    progress->marks[progress->mark_next].tokens = progress->answer_tokens;
    progress->mark_next = (progress->mark_next + 1) % PROGRESS_MARKS;
    progress->mark_count = MIN(progress->mark_count + 1, (uint32_t)PROGRESS_MARKS);
}

// A second since the oldest mark, and per second: requests and tokens.
static void rates(const struct batch_progress *progress, uint64_t now_us, double *requests, double *tokens)
{
    uint32_t oldest = (progress->mark_next + PROGRESS_MARKS - progress->mark_count) % PROGRESS_MARKS;
    double seconds = (double)(now_us - progress->marks[oldest].at_us) / 1e6;

    *requests = seconds > 0 ? (double)(progress->done - progress->marks[oldest].done) / seconds : 0;
    *tokens = seconds > 0 ? (double)(progress->answer_tokens - progress->marks[oldest].tokens) / seconds : 0;
}

double batch_progress_left_s(const struct batch_progress *progress, uint64_t now_us)
{
    double requests, tokens;

    rates(progress, now_us, &requests, &tokens);
    return requests > 0 ? (double)(progress->total - MIN(progress->done, progress->total)) / requests : -1;
}

static const char *duration(double seconds, char out[32])
{
    uint64_t whole = (uint64_t)seconds;

    if (seconds < 0)
        snprintf(out, 32, "--:--");
    else if (whole >= 3600)
        snprintf(out, 32, "%llu:%02u:%02u", (unsigned long long)(whole / 3600), (unsigned)(whole / 60 % 60),
                 (unsigned)(whole % 60));
    else
        snprintf(out, 32, "%u:%02u", (unsigned)(whole / 60), (unsigned)(whole % 60));
    return out;
}

static void print_now(const struct batch_progress *progress, uint64_t now_us)
{
    double requests, tokens, share = progress->total ? (double)progress->done / (double)progress->total : 1;
    uint32_t cells = (uint32_t)(MIN(share, 1.0) * BAR_CELLS), i;
    char bar[BAR_CELLS + 1], left[32];

    for (i = 0; i < BAR_CELLS; i++)
        bar[i] = i < cells ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    rates(progress, now_us, &requests, &tokens);
    fprintf(stderr, "%s[%s] %llu/%llu  %.1f requests/s  %.0f tokens/s  %u asked  %llu failed  ETA %s%s",
            progress->terminal ? "\r" : "", bar, (unsigned long long)progress->done, (unsigned long long)progress->total, requests,
            tokens, progress->in_flight, (unsigned long long)progress->failed,
            duration(batch_progress_left_s(progress, now_us), left), progress->terminal ? "\033[K" : "\n");
}

void batch_progress_show(struct batch_progress *progress)
{
    uint64_t now_us = clock_now_us();

    mark(progress, now_us);
    if (progress->quiet || now_us - progress->shown_us < (progress->terminal ? (uint64_t)SHOW_US : (uint64_t)LINE_US))
        return;
    progress->shown_us = now_us;
    print_now(progress, now_us);
}

void batch_progress_end(struct batch_progress *progress)
{
    double seconds = MAX((double)(clock_now_us() - progress->start_us) / 1e6, 1e-3);
    uint64_t done = progress->done - progress->done_at_start;
    char took[32];

    if (progress->quiet)
        return;
    if (progress->terminal) {
        print_now(progress, clock_now_us());
        fputc('\n', stderr);
    }
    fprintf(
        stderr,
        "%llu of %llu requests done, %llu of them failed; this run: %llu in %s, %llu prompt and %llu answer tokens, %.1f tokens/s\n",
        (unsigned long long)progress->done, (unsigned long long)progress->total, (unsigned long long)progress->failed,
        (unsigned long long)done, duration(seconds, took), (unsigned long long)progress->prompt_tokens,
        (unsigned long long)progress->answer_tokens, (double)progress->answer_tokens / seconds);
}

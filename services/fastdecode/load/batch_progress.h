// batch_progress.h: how far a batch is: a bar on a terminal, else a line every ten seconds. On standard error.
#ifndef FD_FASTDECODE_LOAD_BATCH_PROGRESS_H
#define FD_FASTDECODE_LOAD_BATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum { PROGRESS_MARKS = 32 };

struct batch_progress {
    uint64_t total, done, failed;          // requests; done counts failed ones and those of earlier runs
    uint64_t prompt_tokens, answer_tokens; // of this run
    uint32_t in_flight;
    // private
    bool quiet, terminal;
    uint64_t start_us, shown_us, marked_us;
    uint64_t done_at_start;
    // what was done and answered a while ago, so that rates follow the present
    struct {
        uint64_t at_us, done, tokens;
    } marks[PROGRESS_MARKS];
    uint32_t mark_count, mark_next;
};

// Begins the clock. total and done are set before.
void batch_progress_begin(struct batch_progress *progress, bool quiet);
// Shows what has changed, at most five times a second.
void batch_progress_show(struct batch_progress *progress);
// The last word: what was done in which time.
void batch_progress_end(struct batch_progress *progress);
// Seconds left at the present rate; below 0: not known yet.
double batch_progress_left_s(const struct batch_progress *progress, uint64_t now_us);

#endif

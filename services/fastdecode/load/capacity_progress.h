// capacity_progress.h: how far a search for capacity is, on standard error: on a terminal a line that changes, and above it one for each
// rate that was tried; else those lines alone.
#ifndef FD_FASTDECODE_LOAD_CAPACITY_PROGRESS_H
#define FD_FASTDECODE_LOAD_CAPACITY_PROGRESS_H

#include "common/capacity/capacity.h"

struct capacity_progress {
    bool quiet, terminal;
    uint64_t shown_us;
    uint32_t lines; // of rates that were tried
};

void capacity_progress_begin(struct capacity_progress *progress, bool quiet);
// Prints what is done now, at most five times a second.
void capacity_progress_show(struct capacity_progress *progress, const char *format, ...) PRINTF_LIKE(2, 3);
// A rate was tried.
void capacity_progress_tried(struct capacity_progress *progress, const struct capacity_probe *probe);
// Something that should be seen in any case.
void capacity_progress_warn(struct capacity_progress *progress, const char *format, ...) PRINTF_LIKE(2, 3);
void capacity_progress_end(struct capacity_progress *progress);

#endif

// report.h: what a search for capacity found, for people and as JSON; the same for a server and for a simulation.
#ifndef FD_FASTDECODE_CAPACITY_REPORT_H
#define FD_FASTDECODE_CAPACITY_REPORT_H

#include <jansson.h>

#include "services/fastdecode/capacity/capacity.h"
#include "services/fastdecode/capacity/search.h"

// --- how far a search for capacity is, on standard error -------------------------------------------------------------
//
// On a terminal it is a line that changes, and above it one for each
// rate that was tried; else those lines alone.

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

// One JSON object. about: more members, such as the URL; taken over.
void capacity_report_json(const struct capacity_settings *settings, const struct capacity_result *result, json_t *about);
void capacity_report_text(const struct capacity_settings *settings, const struct capacity_result *result);

// Prints an object on several lines, and releases it.
void report_json_print(json_t *object);
json_t *report_times_json(const struct sim_times *times);

#define CAPACITY_REPORT_HEADING \
    " requests/s   requests   tokens/s   first token p50       p99   delay p50   between tokens p50       p99"

#endif

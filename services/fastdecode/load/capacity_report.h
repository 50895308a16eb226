// capacity_report.h: what a search for capacity found, for people and as JSON; the same for a server and for a simulation.
#ifndef FD_FASTDECODE_LOAD_CAPACITY_REPORT_H
#define FD_FASTDECODE_LOAD_CAPACITY_REPORT_H

#include <jansson.h>

#include "services/fastdecode/load/capacity_search.h"

// One JSON object. about: more members, such as the URL; taken over.
void capacity_report_json(const struct capacity_settings *settings, const struct capacity_result *result, json_t *about);
void capacity_report_text(const struct capacity_settings *settings, const struct capacity_result *result);

// A line of the table of probes, without its end: what the trial showed.
void capacity_report_line(const struct capacity_probe *probe, char *out, size_t bytes);
#define CAPACITY_REPORT_HEADING \
    " requests/s   requests   tokens/s   first token p50       p99   delay p50   between tokens p50       p99"

#endif

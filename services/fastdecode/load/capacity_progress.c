// capacity_progress.c: see capacity_progress.h.
#include "services/fastdecode/load/capacity_progress.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "services/fastdecode/load/capacity_report.h"

enum { SHOW_US = 200000 };

static void clear_line(const struct capacity_progress *p)
{
    if (p->terminal)
        fprintf(stderr, "\r\033[K");
}

void capacity_progress_begin(struct capacity_progress *p, bool quiet)
{
    *p = (struct capacity_progress){.quiet = quiet, .terminal = !quiet && isatty(STDERR_FILENO)};
}

void capacity_progress_show(struct capacity_progress *p, const char *format, ...)
{
    uint64_t now_us = clock_now_us();
    va_list arguments;

    if (!p->terminal || now_us - p->shown_us < SHOW_US)
        return;
    p->shown_us = now_us;
    clear_line(p);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

void capacity_progress_tried(struct capacity_progress *p, const struct capacity_probe *probe)
{
    char line[256];

    if (p->quiet)
        return;
    clear_line(p);
    if (p->lines++ == 0)
        fprintf(stderr, "%s\n", CAPACITY_REPORT_HEADING);
    capacity_report_line(probe, line, sizeof line);
    fprintf(stderr, "%s\n", line);
}

void capacity_progress_warn(struct capacity_progress *p, const char *format, ...)
{
    va_list arguments;

    clear_line(p);
    fprintf(stderr, "fastdecode capacity: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void capacity_progress_end(struct capacity_progress *p) { clear_line(p); }

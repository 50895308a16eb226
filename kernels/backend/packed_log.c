// packed_log.c: see packed_log.h.
#include "kernels/backend/packed_log.h"

#include <stdbool.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"

enum { PROGRESS_US = 5000000 };

static const double mib = 1048576;

static bool is_time(uint64_t *said_us)
{
    const uint64_t now_us = clock_now_us();

    if (now_us - *said_us < PROGRESS_US)
        return false;
    *said_us = now_us;
    return true;
}

void packed_log_writing(uint64_t *said_us, uint64_t done, uint64_t total)
{
    if (is_time(said_us))
        log_info("WEIGHTS-PACKING", "done_mib=%.0f of_mib=%.0f", (double)done / mib, (double)total / mib);
}

void packed_log_reading(uint64_t *said_us, uint64_t done, uint64_t total)
{
    if (is_time(said_us))
        log_info("WEIGHTS-READING", "done_mib=%.0f of_mib=%.0f", (double)done / mib, (double)total / mib);
}

void packed_log_written(const char *path, uint64_t bytes, uint64_t began_us)
{
    log_info("WEIGHTS-PACKED", "file=%s mib=%.1f ms=%llu", path, (double)bytes / mib,
             (unsigned long long)(clock_now_us() - began_us) / 1000);
}

double packed_log_read(const char *path, uint64_t bytes, uint64_t began_us)
{
    const double us = (double)MAX(clock_now_us() - began_us, 1), all_mib = (double)bytes / mib;

    log_info("WEIGHTS-READ", "file=%s mib=%.1f ms=%.0f mib_per_s=%.0f", path, all_mib, us * 1e-3, all_mib / us * 1e6);
    return us;
}

// memory.c: compares what a plan asks for with what there is (/proc, control groups).
#include "common/base/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cgroup.h"
#include "common/base/checked.h"
#include "common/base/log.h"

#define MIB 1048576.0

uint64_t memory_resident_bytes(void) { return cgroup_number_in("/proc/self/statm", "%*u %llu") * (uint64_t)sysconf(_SC_PAGESIZE); }

static uint64_t available_bytes(void) { return cgroup_number_in("/proc/meminfo", "MemAvailable: %llu kB") * 1024; }

uint64_t memory_available_bytes(void)
{
    uint64_t available = available_bytes(), limit, left;

    cgroup_own_memory(&limit, &left);
    if (!available && left == UINT64_MAX)
        return 1ull << 30;
    return available ? MIN(available, left) : left;
}

static uint64_t total_bytes(void)
{
    uint64_t total = cgroup_number_in("/proc/meminfo", "MemTotal: %llu kB") * 1024, limit, left;

    cgroup_own_memory(&limit, &left);
    return total ? MIN(limit, total) : limit;
}

enum status memory_plan_check(const struct memory_plan *plan, const char *parts, struct error *error)
{
    uint64_t process = memory_resident_bytes(), available = memory_available_bytes(), total = total_bytes();
    uint64_t needed = plan->fixed_bytes + plan->start_bytes;

    log_info("MEMORY-PLAN", "process_mib=%.1f fixed_mib=%.1f start_mib=%.1f page_kib=%.1f pool_mib=%.1f%s%s", (double)process / MIB,
             (double)plan->fixed_bytes / MIB, (double)plan->start_bytes / MIB, (double)plan->page_bytes / 1024,
             (double)plan->pool_bytes / MIB, *parts ? " " : "", parts);
    if (needed > available)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%.0f MiB of memory are needed at start%s%s%s, %.0f MiB are available",
                         (double)needed / MIB, *parts ? " (" : "", parts, *parts ? ")" : "", (double)available / MIB);
    if (plan->pool_bytes > total)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%.0f MiB of KV pages are asked for, there are %.0f MiB of memory",
                         (double)plan->pool_bytes / MIB, (double)total / MIB);
    return STATUS_OK;
}

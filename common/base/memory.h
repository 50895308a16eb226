/* memory.h: memory is a plan: said before anything is loaded, refused with numbers if it cannot fit.
 *
 * A process takes at its peak what it has when the plan is made, plus fixed_bytes, plus the larger of start_bytes and the pages
 * in use. Worked: 4 MiB + 134 MiB + max(28 MiB while loading, 260 pages of 362 KiB = 92 MiB) = 230 MiB.
 */
#ifndef FD_BASE_MEMORY_H
#define FD_BASE_MEMORY_H

#include <stdint.h>

#include "common/base/status.h"

struct memory_plan {
    uint64_t fixed_bytes; /* from start to end: weights, tables, scratch */
    uint64_t start_bytes; /* only while starting */
    uint64_t page_bytes;  /* one page of KV with its share of the tables that grow with use; 0: no pages, or not known yet */
    uint64_t pool_bytes;  /* all pages */
};

/* What this process holds in memory now (RSS). 0 if /proc does not say. */
uint64_t memory_resident_bytes(void);

/* Bytes that can still be taken: the least of MemAvailable and what the cgroup's limit leaves. 1 GiB if neither is known. */
uint64_t memory_available_bytes(void);

/* Logs the plan as MEMORY-PLAN (process_mib, fixed_mib, start_mib, page_kib, pool_mib, then `parts`, a line of key=value).
 * RESOURCE_EXHAUSTED, with the numbers: what is needed at start is more than is available, or the pool is larger than the whole
 * memory (the machine's or the cgroup's). A pool that does not fit beside others is no error: pages are taken as they are used. */
enum status memory_plan_check(const struct memory_plan *plan, const char *parts, struct error *error) MUST_CHECK;

#endif

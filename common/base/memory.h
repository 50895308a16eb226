// memory.h: the memory plan, which is logged before anything is loaded; a plan that cannot fit is refused with its numbers.
//
// At its peak a process uses what it used when the plan was made, plus fixed_bytes, plus the larger of start_bytes and the pages in
// use. Example: 4 MiB + 134 MiB + max(28 MiB while loading, 260 pages of 362 KiB = 92 MiB) = 230 MiB.
#ifndef FD_BASE_MEMORY_H
#define FD_BASE_MEMORY_H

#include <stdint.h>

#include "common/base/status.h"

struct memory_plan {
    uint64_t fixed_bytes; // from start to end: weights, tables, scratch
    uint64_t start_bytes; // only while starting
    uint64_t page_bytes;  // one page of KV and its share of the tables that grow with use; 0: none, or not known yet
    uint64_t pool_bytes;  // all pages
};

// Returns the resident size of this process; 0 if /proc does not say.
uint64_t memory_resident_bytes(void);

// Returns what the limit of this process's address space (ulimit -v) leaves; UINT64_MAX: there is no limit.
uint64_t memory_address_space_left(void);

// Checks, before there are threads, that a limit of the address space leaves room for the stacks of a service's threads, and has all threads
// share one heap then. Libraries that cannot start a thread crash. RESOURCE_EXHAUSTED, with the numbers.
enum status memory_check_address_space(struct error *error) MUST_CHECK;

// Adds the limit of the address space to an error that says that there is no memory, if there is such a limit.
void memory_note_address_space(struct error *error);

// Called first in a main() that is linked with OpenBLAS: executes the program again, without OpenBLAS' threads, if the address space is
// limited. They begin before main() and, if they get no memory, try for it for ever, and exit() waits for them.
void memory_spare_blas_threads(char **argv);

// Returns the memory that can still be allocated: the lowest of MemAvailable and what the limits of the control group and of the address
// space leave; 1 GiB if none is known.
uint64_t memory_available_bytes(void);

// Returns all memory of the machine, or what a limit of the control group allows; UINT64_MAX if neither is known.
uint64_t memory_total_bytes(void);

// Logs the plan as MEMORY-PLAN (process_mib, fixed_mib, start_mib, page_kib, pool_mib, then `parts`, a line of key=value).
// RESOURCE_EXHAUSTED, with the numbers: more is needed at start than is available, or the pool is larger than all memory (the
// machine's, or what a limit allows). A pool that does not fit beside other processes is no error, because pages take memory only as
// they are used.
enum status memory_plan_check(const struct memory_plan *plan, const char *parts, struct error *error) MUST_CHECK;

#endif

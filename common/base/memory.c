// memory.c: compares what a plan asks for with what there is (/proc, control groups).
#include "common/base/memory.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/cgroup.h"
#include "common/base/checked.h"
#include "common/base/log.h"

#define MIB 1048576.0

static uint64_t statm_bytes(const char *format)
{
    return cgroup_number_in("/proc/self/statm", format) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t memory_resident_bytes(void) { return statm_bytes("%*u %llu"); }

// --- the limit of the address space (ulimit -v) ---

static uint64_t address_space_bytes(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) ? UINT64_MAX : limit.rlim_cur; // no limit is RLIM_INFINITY, the same number
}

uint64_t memory_address_space_left(void)
{
    const uint64_t limit = address_space_bytes();
    return limit == UINT64_MAX ? UINT64_MAX : limit - MIN(limit, statm_bytes("%llu"));
}

enum status memory_check_address_space(struct error *error)
{
    // Per CPU a compute thread and up to three of nng's, which stop at 24 in all; beside them at most 16. Then buffers, and parts of the heap.
    enum { NNG_PER_CPU = 3, NNG_MOST = 24, OTHERS = 16, HEAP_BYTES = 64 << 20 };
    const uint64_t left = memory_address_space_left(), cpus = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    pthread_attr_t attributes;
    size_t stack_bytes = 0;

    if (left == UINT64_MAX)
        return STATUS_OK;
    mallopt(M_ARENA_MAX, 1); // each further one takes 64 MiB of it
    pthread_attr_init(&attributes);
    pthread_attr_getstacksize(&attributes, &stack_bytes);
    pthread_attr_destroy(&attributes);
    const uint64_t needed = (cpus + MIN(NNG_PER_CPU * cpus, (uint64_t)NNG_MOST) + OTHERS) * stack_bytes + HEAP_BYTES;
    if (left >= needed)
        return STATUS_OK;
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "this process may have %.0f MiB of address space (ulimit -v), of which %.0f are left; its threads alone need %.0f: "
        "raise the limit (systemd: LimitAS=infinity)",
        (double)address_space_bytes() / MIB, (double)left / MIB, (double)needed / MIB);
}

void memory_note_address_space(struct error *error)
{
    const uint64_t limit = address_space_bytes();
    const size_t length = strlen(error->text);

    if (limit != UINT64_MAX && (strstr(error->text, "no memory") || strcasestr(error->text, "out of memory")) &&
        !strstr(error->text, "ulimit -v"))
        snprintf(error->text + length, sizeof error->text - length, " (this process may have %.0f MiB of address space: ulimit -v)",
                 (double)limit / MIB);
}

void memory_spare_blas_threads(char **argv)
{
    static const char name[] = "OPENBLAS_NUM_THREADS";
    char program[4096];
    ssize_t length = -1;

    if (address_space_bytes() != UINT64_MAX && !getenv(name) && !setenv(name, "1", 0))
        length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        program[length] = '\0';
        execv(program, argv); // if it fails, this process goes on
    }
}

// --- what there is, and the plan ---

static uint64_t available_bytes(void) { return cgroup_number_in("/proc/meminfo", "MemAvailable: %llu kB") * 1024; }

uint64_t memory_available_bytes(void)
{
    uint64_t available = available_bytes(), limit, left;

    cgroup_own_memory(&limit, &left);
    left = MIN(left, memory_address_space_left());
    if (!available && left == UINT64_MAX)
        return 1ull << 30;
    return available ? MIN(available, left) : left;
}

uint64_t memory_total_bytes(void)
{
    uint64_t total = cgroup_number_in("/proc/meminfo", "MemTotal: %llu kB") * 1024, limit, left;

    cgroup_own_memory(&limit, &left);
    return total ? MIN(limit, total) : limit;
}

enum status memory_plan_check(const struct memory_plan *plan, const char *parts, struct error *error)
{
    uint64_t process = memory_resident_bytes(), available = memory_available_bytes(),
             total = MIN(memory_total_bytes(), address_space_bytes());
    uint64_t needed = plan->fixed_bytes + plan->start_bytes;

    log_info("MEMORY-PLAN", "process_mib=%.1f fixed_mib=%.1f start_mib=%.1f page_kib=%.1f pool_mib=%.1f%s%s", (double)process / MIB,
             (double)plan->fixed_bytes / MIB, (double)plan->start_bytes / MIB, (double)plan->page_bytes / 1024,
             (double)plan->pool_bytes / MIB, *parts ? " " : "", parts);
    if (needed > available)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%.0f MiB of memory are needed at start%s%s%s, %.0f MiB are available",
                         (double)needed / MIB, *parts ? " (" : "", parts, *parts ? ")" : "", (double)available / MIB);
    if (plan->pool_bytes > total)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                         "%.0f MiB of KV pages are asked for (--kv-memory, --local-pool), there are %.0f MiB of %s",
                         (double)plan->pool_bytes / MIB, (double)total / MIB,
                         total == address_space_bytes() ? "address space (ulimit -v)" : "memory");
    return STATUS_OK;
}

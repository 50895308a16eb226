/* memory.c: what there is (/proc, cgroup v2) against what a plan asks for. */
#include "common/base/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"

#define MIB 1048576.0

uint64_t memory_resident_bytes(void)
{
    unsigned long long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A number of /proc/meminfo in bytes; 0: it is not there. key: "MemTotal" */
static uint64_t meminfo(const char *key)
{
    unsigned long long kib = 0;
    char line[256], format[64];
    FILE *file = fopen("/proc/meminfo", "re");

    if (!file)
        return 0;
    snprintf(format, sizeof format, "%s: %%llu kB", key);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, format, &kib) == 1)
            break;
    fclose(file);
    return (uint64_t)kib * 1024;
}

/* A file that holds one number; 0: none, or "max". */
static uint64_t number_in(const char *path)
{
    unsigned long long value = 0;
    FILE *file = fopen(path, "re");

    if (!file)
        return 0;
    if (fscanf(file, "%llu", &value) != 1)
        value = 0;
    fclose(file);
    return value;
}

/* A counter of a cgroup's memory.stat, 0: it is not there. key: "active_file" */
static uint64_t stat_of(const char *path, const char *key)
{
    unsigned long long value = 0, found = 0;
    char line[128], format[64];
    FILE *file = fopen(path, "re");

    if (!file)
        return 0;
    snprintf(format, sizeof format, "%s %%llu", key);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, format, &value) == 1) {
            found = value;
            break;
        }
    fclose(file);
    return found;
}

void memory_cgroup(const char *root, const char *path, uint64_t *limit_bytes, uint64_t *left_bytes)
{
    char folder[1024], file[1100];
    size_t root_length = strlen(root);

    *limit_bytes = *left_bytes = UINT64_MAX;
    snprintf(folder, sizeof folder, "%s%s", root, path);
    for (;;) {
        snprintf(file, sizeof file, "%s/memory.max", folder);
        uint64_t limit = number_in(file);
        snprintf(file, sizeof file, "%s/memory.current", folder);
        uint64_t used = number_in(file);
        snprintf(file, sizeof file, "%s/memory.stat", folder);
        uint64_t cache = stat_of(file, "active_file") + stat_of(file, "inactive_file");
        used -= MIN(cache, used);
        if (limit) {
            *limit_bytes = MIN(*limit_bytes, limit);
            *left_bytes = MIN(*left_bytes, limit > used ? limit - used : 0);
        }
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root_length)
            return;
        *slash = '\0';
    }
}

/* Of this process; cgroup v2. A container sees itself as the root. */
static void own_cgroup(uint64_t *limit_bytes, uint64_t *left_bytes)
{
    char line[900], path[900] = "";
    FILE *file = fopen("/proc/self/cgroup", "re");

    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "0::/", 4))
            snprintf(path, sizeof path, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (file)
        fclose(file);
    memory_cgroup("/sys/fs/cgroup", strcmp(path, "/") ? path : "", limit_bytes, left_bytes);
}

uint64_t memory_available_bytes(void)
{
    uint64_t available = meminfo("MemAvailable"), limit, left;

    own_cgroup(&limit, &left);
    if (!available && left == UINT64_MAX)
        return 1ull << 30;
    return available ? MIN(available, left) : left;
}

static uint64_t total_bytes(void)
{
    uint64_t total = meminfo("MemTotal"), limit, left;

    own_cgroup(&limit, &left);
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

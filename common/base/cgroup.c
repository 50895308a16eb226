// cgroup.c: reads the limits that control groups put on this process.
#include "common/base/cgroup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

enum { FOLDER_MAX = 1024, FILE_MAX = FOLDER_MAX + 64 };
#define GROUPS "/proc/self/cgroup"
// Version 1 has no word for "no limit": it shows LLONG_MAX rounded down to a page.
#define UNLIMITED_BYTES (1ull << 62)

// Reads at most `count` numbers from the start of a file; returns how many it found.
static int numbers_in(const char *folder, const char *name, int count, long long *out)
{
    char path[FILE_MAX];
    int found = 0;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    while (found < count && fscanf(file, "%lld", &out[found]) == 1)
        found++;
    fclose(file);
    return found;
}

// Returns 0 if there is no such file or it says "max".
static uint64_t number_in(const char *folder, const char *name)
{
    long long value;
    return numbers_in(folder, name, 1, &value) && value > 0 ? (uint64_t)value : 0;
}

uint64_t cgroup_number_in(const char *path, const char *format)
{
    unsigned long long value, found = 0;
    char line[256];
    FILE *file = fopen(path, "re");

    while (file && !found && fgets(line, sizeof line, file))
        if (sscanf(line, format, &value) == 1)
            found = value;
    if (file)
        fclose(file);
    return found;
}

// Returns a counter of memory.stat, such as "active_file"; 0 if it is not there.
static uint64_t stat_of(const char *folder, const char *key)
{
    char path[FILE_MAX], format[64];

    snprintf(path, sizeof path, "%s/memory.stat", folder);
    snprintf(format, sizeof format, "%s %%llu", key);
    return cgroup_number_in(path, format);
}

// Version 1 counts the group alone in "active_file" and the groups below it too in "total_active_file".
static uint64_t cache_of(const char *folder)
{
    uint64_t total = stat_of(folder, "total_active_file") + stat_of(folder, "total_inactive_file");
    return total ? total : stat_of(folder, "active_file") + stat_of(folder, "inactive_file");
}

// Version 2's file or, if it is absent, version 1's.
static uint64_t either_number_in(const char *folder, const char *name, const char *name_v1)
{
    uint64_t value = number_in(folder, name);
    return value ? value : number_in(folder, name_v1);
}

// Cuts the last component off; false at the root.
static bool go_up(const char *root, char folder[FOLDER_MAX])
{
    char *slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < strlen(root))
        return false;
    *slash = '\0';
    return true;
}

void cgroup_memory(const char *root, const char *path, uint64_t *limit_bytes, uint64_t *left_bytes)
{
    char folder[FOLDER_MAX];

    *limit_bytes = *left_bytes = UINT64_MAX;
    snprintf(folder, sizeof folder, "%s%s", root, path);
    do {
        uint64_t limit = either_number_in(folder, "memory.max", "memory.limit_in_bytes");
        uint64_t used = either_number_in(folder, "memory.current", "memory.usage_in_bytes");
        used -= MIN(cache_of(folder), used);
        if (limit && limit < UNLIMITED_BYTES) {
            *limit_bytes = MIN(*limit_bytes, limit);
            *left_bytes = MIN(*left_bytes, limit > used ? limit - used : 0);
        }
    } while (go_up(root, folder));
}

// Version 2: "QUOTA PERIOD" or "max PERIOD" in cpu.max. Version 1: two files; a quota of -1 is no limit.
static double cpus_of(const char *folder)
{
    long long value[2] = {0, 0};

    if (numbers_in(folder, "cpu.max", 2, value) != 2 &&
        (numbers_in(folder, "cpu.cfs_quota_us", 1, &value[0]) != 1 || numbers_in(folder, "cpu.cfs_period_us", 1, &value[1]) != 1))
        return INFINITY;
    return value[0] > 0 && value[1] > 0 ? (double)value[0] / (double)value[1] : INFINITY;
}

double cgroup_cpus(const char *root, const char *path)
{
    char folder[FOLDER_MAX];
    double cpus = INFINITY;

    snprintf(folder, sizeof folder, "%s%s", root, path);
    do
        cpus = MIN(cpus, cpus_of(folder));
    while (go_up(root, folder));
    return cpus;
}

// Returns the path in a line "4:cpu,cpuacct:/path" (version 1) or "0::/path" (version 2), NULL if it is another controller's.
static const char *path_of_line(const char *line, const char *controller)
{
    const char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
    size_t length = strlen(controller);

    if (!path)
        return NULL;
    for (const char *at = names + 1, *end; at <= path; at = end + 1) {
        end = at + strcspn(at, ",:");
        if ((size_t)(end - at) == length && !strncmp(at, controller, length))
            return path + 1;
    }
    return NULL;
}

void cgroup_path(const char *groups, const char *controller, char path[CGROUP_PATH_MAX])
{
    char line[CGROUP_PATH_MAX];
    FILE *file = fopen(groups, "re");

    path[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        const char *found = path_of_line(line, controller);
        if (found)
            snprintf(path, CGROUP_PATH_MAX, "%.*s", (int)strcspn(found, "\n"), found);
    }
    if (file)
        fclose(file);
    if (!strcmp(path, "/"))
        path[0] = '\0';
}

void cgroup_memory_of(const char *root, const char *groups, uint64_t *limit_bytes, uint64_t *left_bytes)
{
    char path[CGROUP_PATH_MAX], mount[FOLDER_MAX];
    uint64_t limit_v1, left_v1;

    cgroup_path(groups, "", path);
    cgroup_memory(root, path, limit_bytes, left_bytes);
    cgroup_path(groups, "memory", path);
    snprintf(mount, sizeof mount, "%s/memory", root);
    cgroup_memory(mount, path, &limit_v1, &left_v1);
    *limit_bytes = MIN(*limit_bytes, limit_v1);
    *left_bytes = MIN(*left_bytes, left_v1);
}

void cgroup_own_memory(uint64_t *limit_bytes, uint64_t *left_bytes)
{
    cgroup_memory_of(CGROUP_ROOT, GROUPS, limit_bytes, left_bytes);
}

double cgroup_cpus_of(const char *root, const char *groups)
{
    char path[CGROUP_PATH_MAX], mount[FOLDER_MAX];
    cgroup_path(groups, "", path);
    double cpus = cgroup_cpus(root, path);
    cgroup_path(groups, "cpu", path);
    snprintf(mount, sizeof mount, "%s/cpu", root);
    return MIN(cpus, cgroup_cpus(mount, path));
}

double cgroup_own_cpus(void) { return cgroup_cpus_of(CGROUP_ROOT, GROUPS); }

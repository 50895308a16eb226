/* cgroup.c: see cgroup.h. */
#include "common/base/cgroup.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

enum { FOLDER_MAX = 1024, FILE_MAX = FOLDER_MAX + 64 };
#define GROUPS "/proc/self/cgroup"

/* The numbers at the start of a file, at most `count`; returns how many there are. */
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

/* 0: none, or "max". */
static uint64_t number_in(const char *folder, const char *name)
{
    long long value;
    return numbers_in(folder, name, 1, &value) && value > 0 ? (uint64_t)value : 0;
}

/* A counter of memory.stat; 0: it is not there. key: "active_file" */
static uint64_t stat_of(const char *folder, const char *key)
{
    unsigned long long value = 0, found = 0;
    char path[FILE_MAX], line[128], format[64];

    snprintf(path, sizeof path, "%s/memory.stat", folder);
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

/* From the group to the root: false when there is none above. */
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
        uint64_t limit = number_in(folder, "memory.max"), used = number_in(folder, "memory.current");
        uint64_t cache = stat_of(folder, "active_file") + stat_of(folder, "inactive_file");
        used -= MIN(cache, used);
        if (limit) {
            *limit_bytes = MIN(*limit_bytes, limit);
            *left_bytes = MIN(*left_bytes, limit > used ? limit - used : 0);
        }
    } while (go_up(root, folder));
}

/* v2: "QUOTA PERIOD" or "max PERIOD" in cpu.max; v1: two files, with a quota of -1 for none. */
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

/* Of a line "4:cpu,cpuacct:/path" or, of v2, "0::/path". */
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

void cgroup_own_memory(uint64_t *limit_bytes, uint64_t *left_bytes)
{
    char path[CGROUP_PATH_MAX];
    cgroup_path(GROUPS, "", path);
    cgroup_memory(CGROUP_ROOT, path, limit_bytes, left_bytes);
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

// sys_root.h: a folder that stands for a machine with other NUMA nodes than this one.
#ifndef FD_TESTS_UNIT_SYS_ROOT_H
#define FD_TESTS_UNIT_SYS_ROOT_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/numa.h"
#include "tests/cmocka.h"

struct sys_root {
    char path[32];
};

// Writes a file below the root, with the folders that it is in.
static inline void sys_put(const struct sys_root *root, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", root->path, name);
    for (char *slash = strchr(path + strlen(root->path) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

// Writes a node: its CPUs, KiB of memory (0: no meminfo, as the kernel has it for a node without), distances.
static inline void sys_node(const struct sys_root *root, uint32_t id, const char *cpus, uint64_t total_kib, uint64_t free_kib,
                            const char *distances)
{
    char name[80], text[400];

    snprintf(name, sizeof name, "sys/devices/system/node/node%u/cpulist", id);
    snprintf(text, sizeof text, "%s\n", cpus);
    sys_put(root, name, text);
    snprintf(name, sizeof name, "sys/devices/system/node/node%u/meminfo", id);
    snprintf(text, sizeof text,
             "Node %u MemTotal:       %8llu kB\nNode %u MemFree:        %8llu kB\nNode %u Active:  77 kB\n"
             "Node %u Active(file):       20 kB\nNode %u Inactive(file):       4 kB\n",
             id, (unsigned long long)total_kib, id, (unsigned long long)free_kib, id, id, id);
    sys_put(root, name, total_kib ? text : "");
    snprintf(name, sizeof name, "sys/devices/system/node/node%u/distance", id);
    sys_put(root, name, distances);
}

static inline int sys_remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) { return remove(path); }

static inline void sys_remove(const struct sys_root *root) { nftw(root->path, sys_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static inline void sys_make(struct sys_root *root)
{
    snprintf(root->path, sizeof root->path, "/tmp/fd-numa-XXXXXX");
    assert_non_null(mkdtemp(root->path));
}

// The CPUs first to last.
static inline struct numa_mask sys_cpus(uint32_t first, uint32_t last)
{
    struct numa_mask mask = {0};
    for (uint32_t cpu = first; cpu <= last; cpu++)
        numa_mask_add(&mask, cpu);
    return mask;
}

#endif

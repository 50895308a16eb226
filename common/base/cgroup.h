// cgroup.h: limits that Linux control groups put on this process: memory and CPU time, in version 1, version 2, or both.
//
// A group's limit also holds for every group below it, so each function takes the lowest limit on the way from the group `path` up
// to the mount `root`. In a container without a cgroup namespace the path may not exist below the mount; the mount itself is then
// the container's group, and the walk ends there.
//
// CPU sets need no reading: sched_getaffinity() already returns only CPUs of the set, in both versions.
#ifndef FD_BASE_CGROUP_H
#define FD_BASE_CGROUP_H

#include <stdint.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
enum { CGROUP_PATH_MAX = 900 };

// Writes the group of a process into path, as `groups` (a file such as /proc/self/cgroup) names it; "" for the root group or if the
// file does not name one. controller: "" for version 2, else the name of a version 1 controller such as "cpu".
void cgroup_path(const char *groups, const char *controller, char path[CGROUP_PATH_MAX]);

// Returns the memory limit of one group and how much of it is free. Page cache counts as free: the kernel reclaims it first.
// UINT64_MAX: no limit. Reads the files of whichever version it finds.
void cgroup_memory(const char *root, const char *path, uint64_t *limit_bytes, uint64_t *left_bytes);

// Returns the CPU time of one group in CPUs (`docker run --cpus`, Kubernetes' limits.cpu): 2.5 means 250 ms in every 100 ms.
// INFINITY: no limit.
double cgroup_cpus(const char *root, const char *path);

// The same for the process whose groups are named in the file `groups`; the lower limit of both versions.
void cgroup_memory_of(const char *root, const char *groups, uint64_t *limit_bytes, uint64_t *left_bytes);
double cgroup_cpus_of(const char *root, const char *groups);

// Reads a number as scanf(3) does (the format has one %llu) from the first line of a file of the kernel's that has it; 0: there is none.
uint64_t cgroup_number_in(const char *path, const char *format);

// The same for this process.
void cgroup_own_memory(uint64_t *limit_bytes, uint64_t *left_bytes);
double cgroup_own_cpus(void);

#endif

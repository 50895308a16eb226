/* cgroup.h: what the control groups of Linux allow: memory (v2) and time on CPUs (v2, v1).
 *
 * A limit of a group holds for all below it, so each function takes the least of the group `path` and of all above it, up to
 * the mount `root`. Where a container sees a path that is not below its mount (v1 without a namespace of its own), the mount itself
 * is its group, which is where that walk ends.
 */
#ifndef FD_BASE_CGROUP_H
#define FD_BASE_CGROUP_H

#include <stdint.h>

#define CGROUP_ROOT "/sys/fs/cgroup"
enum { CGROUP_PATH_MAX = 900 };

/* A process's group as `groups`, a file such as /proc/self/cgroup, has it; "" for the root or where it does not say. controller: "" for v2,
 * "cpu" for v1's. */
void cgroup_path(const char *groups, const char *controller, char path[CGROUP_PATH_MAX]);

/* What it allows, and what it leaves. Files that are only cached count as left: the kernel drops them first. UINT64_MAX: no limit. */
void cgroup_memory(const char *root, const char *path, uint64_t *limit_bytes, uint64_t *left_bytes);

/* CPUs' worth of time (`docker run --cpus`, Kubernetes' limits.cpu): 2.5 where it may run for 250 ms of every 100. INFINITY: no limit. */
double cgroup_cpus(const char *root, const char *path);

/* The same of a process whose groups the file says, by both versions. */
double cgroup_cpus_of(const char *root, const char *groups);

/* Of this process. */
void cgroup_own_memory(uint64_t *limit_bytes, uint64_t *left_bytes);
double cgroup_own_cpus(void);

#endif

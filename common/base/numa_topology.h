// numa_topology.h: the NUMA nodes of this machine, of which this process may use some.
//
// They are read from /sys/devices/system/node and intersected with the affinity of the calling thread and with Mems_allowed of
// /proc/self/status, which is what control groups grant. Plain values; only reading blocks.
#ifndef FD_BASE_NUMA_TOPOLOGY_H
#define FD_BASE_NUMA_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMA_NODES_MAX = 64, NUMA_ID_END = 1024, NUMA_LIST_BYTES = 512 };

// A set of CPUs or nodes, by number, in the layout of cpu_set_t (whose header has names that common/sched uses for something else).
struct numa_mask {
    uint64_t words[NUMA_ID_END / 64];
};

static inline bool numa_mask_has(const struct numa_mask *mask, uint32_t id) { return mask->words[id / 64] >> id % 64 & 1; }
static inline void numa_mask_add(struct numa_mask *mask, uint32_t id) { mask->words[id / 64] |= 1ull << id % 64; }

struct numa_node {
    uint32_t id;                       // as the kernel numbers it; numbers may be missing
    uint32_t listed_count;             // CPUs of the node that are online
    uint32_t cpu_count;                // those of them that this process may use; 0 also in a node of memory alone
    struct numa_mask cpus;             // the same. No CPU is in two nodes
    uint64_t total_bytes, free_bytes;  // free: with page cache, which the kernel reclaims first
    bool memory_allowed;               // this process may have memory there (cpuset.mems)
    uint32_t distance[NUMA_NODES_MAX]; // to nodes[i], 10 to itself; UINT32_MAX: not known
};

struct numa_topology {
    uint32_t count;                         // 0: the system says nothing of nodes
    struct numa_node nodes[NUMA_NODES_MAX]; // by id
};

// Reads the nodes that are online below `root` ("": the machine's; ROOT/sys/devices/system/node and ROOT/proc/self/status). allowed: the CPUs
// that this process may use. What cannot be understood is left out: a node whose list of CPUs is damaged has none.
void numa_read(const char *root, const struct numa_mask *allowed, struct numa_topology *out);

// The same for this process. The environment variable FD_SYS_ROOT names another root, for tests.
void numa_read_own(struct numa_topology *out);

// Lists CPUs or nodes as the kernel does, "0-3,8"; returns out.
const char *numa_list(const struct numa_mask *mask, char *out, size_t out_bytes);

// Reads, or sets, on which CPUs the calling thread may run. Returns false if the kernel refuses.
bool numa_get_cpus(struct numa_mask *cpus);
bool numa_set_cpus(const struct numa_mask *cpus);
bool numa_set_cpus_of(int thread, const struct numa_mask *cpus); // by the kernel's number

#endif

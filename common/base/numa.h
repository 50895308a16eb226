// numa.h: on which NUMA nodes the threads and the memory of this process are.
//
//     /sys/devices/system/node ─▶ numa_read() ─▶ topology ─▶ numa_share()      a KV worker a node: threads and memory of each
//     affinity, Mems_allowed   ─┘                        └─▶ numa_binding_…()  ─▶ numa_enter(), numa_bind()
//
// Example: two nodes of 8 CPUs with 64 and 32 GiB free. Of 24 GiB for KV pages the first worker gets 16 GiB, the second 8, and each 8 threads.
//
// The kernel is asked by two system calls, set_mempolicy(2) and mbind(2), of which glibc has no wrappers. libnuma would add those and a
// reader of /sys whose root cannot be replaced, so it is not used. If the kernel refuses (containers without CAP_SYS_NICE often do) memory is
// where the kernel likes it: that is slower, not wrong, and one warning says so.
//
// Threads: plain values. Only reading blocks.
#ifndef FD_BASE_NUMA_H
#define FD_BASE_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

// --- topology ---

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

// --- workers and bindings ---

// The share of one node's KV worker.
struct numa_worker {
    uint32_t node; // index in the topology
    uint32_t threads;
    uint64_t bytes;
};

// Shares threads by CPUs and bytes by free memory among the nodes that have both CPUs and memory for this process, each at least one thread
// and 1 MiB. threads: of all; no worker gets more than its node has CPUs. Returns how many nodes those are.
uint32_t numa_share(const struct numa_topology *topology, uint32_t threads, uint64_t bytes, struct numa_worker out[NUMA_NODES_MAX]);

// Help of an s-part's --numa.
#define NUMA_HELP                                                                                                              \
    "NUMA nodes of the s-part's memory (mostly weights); interleave: page by page over the nodes that it runs on; NODE: only " \
    "this node and its CPUs; none: as the kernel decides; auto: interleave if there are several nodes and a CPU computes"

enum numa_memory {
    NUMA_ANY,        // as the kernel likes; so are the CPUs
    NUMA_PREFER,     // of one node, of others once that is full
    NUMA_INTERLEAVE, // page by page of each node in turn
};

// To which nodes the threads and the memory of a process are bound.
struct numa_binding {
    enum numa_memory memory;
    struct numa_mask nodes;
    uint64_t total_bytes; // of these nodes
    uint32_t set_count;   // sets of CPUs, one a node
    struct numa_mask sets[NUMA_NODES_MAX];
    bool refused; // the kernel has refused a policy, and a warning has said so
};

// Reads the number of a node. INVALID_ARGUMENT names the option and `others`, the words that it takes beside a number.
enum status numa_parse_node(const char *option, const char *text, const char *others, uint32_t *id, struct error *error) MUST_CHECK;

// Binds to one node; to one of memory alone with the CPUs of the nearest node. INVALID_ARGUMENT: there is no such node, it has no memory,
// or this process may not use it.
enum status numa_binding_node(const struct numa_topology *topology, const char *option, uint32_t id, struct numa_binding *out,
                              struct error *error) MUST_CHECK;

// Binds to all nodes with CPUs and memory for this process; NUMA_ANY where there are fewer than `least` of them.
void numa_binding_interleave(const struct numa_topology *topology, uint32_t least, struct numa_binding *out);

// Moves all threads of the process to the CPUs of a NUMA_PREFER binding, and has memory that the caller touches first lie as that says.
// Threads that it creates inherit both. Logs it as NUMA.
void numa_enter(struct numa_binding *binding);

// Has the pages of a mapping that are not touched yet lie on the nodes of the binding, and nowhere else. Returns false if the kernel refused.
bool numa_bind(struct numa_binding *binding, void *memory, uint64_t bytes);

#endif

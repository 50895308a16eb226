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

#include "common/base/numa_topology.h"
#include "common/base/status.h"

// What the KV worker of one node gets.
struct numa_worker {
    uint32_t node; // index in the topology
    uint32_t threads;
    uint64_t bytes;
};

// Shares threads by CPUs and bytes by free memory among the nodes that have both CPUs and memory for this process, each at least one thread
// and 1 MiB. threads: of all; no worker gets more than its node has CPUs. Returns how many nodes those are.
uint32_t numa_share(const struct numa_topology *topology, uint32_t threads, uint64_t bytes, struct numa_worker out[NUMA_NODES_MAX]);

// Help of an s-part's --numa.
#define NUMA_HELP                                                                                                                           \
    "NUMA nodes of the s-part's memory, weights above all: interleave, page by page over the nodes that it runs on; NODE, one node, whose " \
    "CPUs it then runs on alone; none, as the kernel likes; auto: interleave if there are several nodes and a CPU computes"

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

// measure_nodes.h: how fast the CPUs of each NUMA node read the memory of each, for the description of this machine.
#ifndef FD_FASTDECODE_PLAN_MEASURE_NODES_H
#define FD_FASTDECODE_PLAN_MEASURE_NODES_H

#include "common/base/numa.h"
#include "common/plan/hardware.h"

// Measures for about 0.15 s a pair of nodes, each with the threads that its node has CPUs for (at most `threads`; 0: all of them). Nodes
// without CPUs or memory for this process are left out. out->count is 0 if there are fewer than two, or if the kernel does not let memory be
// bound to a node, which stderr says. Moves the calling thread and brings it back.
enum status measure_nodes(const struct numa_topology *topology, uint32_t threads, struct hardware_nodes *out,
                          struct error *error) MUST_CHECK;

#endif

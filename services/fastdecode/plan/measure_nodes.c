// measure_nodes.c: see measure_nodes.h.
#include "services/fastdecode/plan/measure_nodes.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/checked.h"
#include "common/base/read_rate.h"

enum { PASSES = 31, PAIR_US = 120000 };
#define BYTES (128ull << 20) // more than caches hold

// Maps memory of one node. NULL: there is none; or, with *refused, the kernel does not bind it.
static void *map_on(struct numa_binding *binding, bool *refused)
{
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    *refused = false;
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, BYTES, MADV_HUGEPAGE);
    if (!numa_bind(binding, memory, BYTES)) {
        *refused = true;
        munmap(memory, BYTES);
        return NULL;
    }
    memset(memory, 1, BYTES);
    return memory;
}

// Measures one column: each node's CPUs on the memory of node `column`. cpus: how many each has.
static enum status measure_column(struct numa_binding *bindings, const uint32_t *cpus, uint32_t column, uint32_t threads,
                                  struct hardware_nodes *out, bool *refused, struct error *error)
{
    void *memory = map_on(&bindings[column], refused);
    enum status status = STATUS_OK;

    if (!memory)
        return *refused ? STATUS_OK
                        : error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to measure NUMA node %u with", out->id[column]);
    for (uint32_t row = 0; !status && row < out->count; row++) {
        const uint32_t count = cpus[row];
        struct thread_pool *pool;
        if (!numa_set_cpus(&bindings[row].sets[0]) || thread_pool_open(threads ? MIN(threads, count) : count, &pool)) {
            status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "no threads on the CPUs of NUMA node %u", out->id[row]);
            break;
        }
        out->gb_per_second[row][column] = read_rate_of(pool, memory, BYTES, PASSES, PAIR_US) * 1e-9;
        thread_pool_close(pool);
    }
    munmap(memory, BYTES);
    return status;
}

enum status measure_nodes(const struct numa_topology *topology, uint32_t threads, struct hardware_nodes *out, struct error *error)
{
    static struct numa_binding bindings[HARDWARE_NODES_MAX]; // too large for a stack
    struct numa_worker nodes[NUMA_NODES_MAX];
    uint32_t cpus[HARDWARE_NODES_MAX], count = MIN(numa_share(topology, 0, 0, nodes), (uint32_t)HARDWARE_NODES_MAX);
    enum status status = STATUS_OK;
    bool refused = false;
    struct numa_mask before;

    *out = (struct hardware_nodes){0};
    if (count < 2 || !numa_get_cpus(&before))
        return STATUS_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        cpus[i] = topology->nodes[nodes[i].node].cpu_count;
        out->id[i] = topology->nodes[nodes[i].node].id;
        status = numa_binding_node(topology, "numa", out->id[i], &bindings[i], error);
    }
    out->count = count;
    for (uint32_t column = 0; column < count && !status && !refused; column++)
        status = measure_column(bindings, cpus, column, threads, out, &refused, error);
    numa_set_cpus(&before);
    if (refused) {
        fprintf(stderr, "fastdecode plan: the kernel does not bind memory to NUMA nodes here: their rates are left out\n");
        out->count = 0;
    }
    return status;
}

// numa.c: shares workers out, finds the binding of a process, and tells the kernel. See numa.h.
#include "common/base/numa.h"

#include <dirent.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"

#define MIB 1048576.0

// The kernel takes one bit less than it is told.
enum { MASK_BITS = NUMA_ID_END + 1 };

static bool has_memory(const struct numa_node *node) { return node->total_bytes && node->memory_allowed; }

static bool takes_worker(const struct numa_node *node) { return node->cpu_count && has_memory(node); }

// --- sharing out ---

uint32_t numa_share(const struct numa_topology *topology, uint32_t threads, uint64_t bytes, struct numa_worker out[NUMA_NODES_MAX])
{
    uint32_t count = 0, cpus = 0;
    double free_bytes = 0;

    for (uint32_t i = 0; i < topology->count; i++) {
        if (!takes_worker(&topology->nodes[i]))
            continue;
        out[count++] = (struct numa_worker){.node = i};
        cpus += topology->nodes[i].cpu_count;
        free_bytes += (double)topology->nodes[i].free_bytes;
    }
    const uint32_t spare = MIN(threads, cpus) - MIN(MIN(threads, cpus), count); // once each has one
    uint64_t more_cpus = 0, given = 0; // of the nodes so far: CPUs beside the first of each, spare threads
    for (uint32_t i = 0; i < count; i++) {
        const struct numa_node *node = &topology->nodes[out[i].node];
        double part = free_bytes > 0 ? (double)node->free_bytes / free_bytes : 1.0 / count;
        out[i].bytes = MAX((uint64_t)(part * (double)bytes), 1ull << 20);
        more_cpus += node->cpu_count - 1;
        const uint64_t due = cpus > count ? spare * more_cpus / (cpus - count) : 0;
        out[i].threads = 1 + (uint32_t)(due - given);
        given = due;
    }
    return count;
}

// --- bindings ---

static void add_node(struct numa_binding *binding, const struct numa_node *node)
{
    numa_mask_add(&binding->nodes, node->id);
    binding->total_bytes += node->total_bytes;
}

enum status numa_parse_node(const char *option, const char *text, const char *others, uint32_t *id, struct error *error)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || value >= NUMA_ID_END)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--%s is '%.64s', want the number of a NUMA node or %s", option, text,
                         others);
    *id = (uint32_t)value;
    return STATUS_OK;
}

// Says why a node cannot be had, and which can.
static enum status refuse(const struct numa_topology *topology, const char *option, uint32_t id, const char *why,
                          struct error *error)
{
    struct numa_mask nodes = {0};
    char list[128];

    for (uint32_t i = 0; i < topology->count; i++)
        if (takes_worker(&topology->nodes[i]))
            numa_mask_add(&nodes, topology->nodes[i].id);
    numa_list(&nodes, list, sizeof list);
    return error_set(error, STATUS_INVALID_ARGUMENT, "--%s %u: %s; with CPUs and memory for this process: %s", option, id, why,
                     *list ? list : "none");
}

// Returns the node with CPUs for this process that is nearest to nodes[index], NULL if there is none.
static const struct numa_node *nearest(const struct numa_topology *topology, uint32_t index)
{
    const uint32_t *distance = topology->nodes[index].distance;
    uint32_t best = topology->count;

    for (uint32_t i = 0; i < topology->count; i++)
        if (topology->nodes[i].cpu_count && (best == topology->count || distance[i] < distance[best]))
            best = i;
    return best < topology->count ? &topology->nodes[best] : NULL;
}

enum status numa_binding_node(const struct numa_topology *topology, const char *option, uint32_t id, struct numa_binding *out,
                              struct error *error)
{
    uint32_t at = 0;

    memset(out, 0, sizeof *out);
    while (at < topology->count && topology->nodes[at].id != id)
        at++;
    if (at == topology->count)
        return refuse(topology, option, id, "there is no such NUMA node", error);
    const struct numa_node *node = &topology->nodes[at], *cpus = node->listed_count ? node : nearest(topology, at);
    if (!node->total_bytes)
        return refuse(topology, option, id, "the NUMA node has no memory", error);
    if (!node->memory_allowed)
        return refuse(topology, option, id, "this process may have no memory on the NUMA node (its control group's cpuset.mems)",
                      error);
    if (!cpus || !cpus->cpu_count)
        return refuse(topology, option, id, "this process may use no CPU of the NUMA node (its affinity, or cpuset.cpus)", error);
    out->memory = NUMA_PREFER;
    out->set_count = 1;
    out->sets[0] = cpus->cpus;
    add_node(out, node);
    return STATUS_OK;
}

void numa_binding_interleave(const struct numa_topology *topology, uint32_t least, struct numa_binding *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < topology->count; i++) {
        if (!takes_worker(&topology->nodes[i]))
            continue;
        out->sets[out->set_count++] = topology->nodes[i].cpus;
        add_node(out, &topology->nodes[i]);
    }
    if (out->set_count && out->set_count >= least)
        out->memory = NUMA_INTERLEAVE;
    else
        memset(out, 0, sizeof *out);
}

// --- the kernel ---

// One line for all refusals: those that follow have the same cause.
static bool judge(struct numa_binding *binding, const char *call, long result)
{
    char nodes[NUMA_LIST_BYTES];

    if (result == 0)
        return true;
    if (!binding->refused)
        log_warn("NUMA-REFUSED",
                 "call=%s nodes=%s why=\"%s\" what=\"memory lies where the kernel likes it; a container needs CAP_SYS_NICE\"", call,
                 numa_list(&binding->nodes, nodes, sizeof nodes), strerror(errno));
    binding->refused = true;
    return false;
}

// Moves the threads that there are already: the one for signals, those of libraries. Returns false if the caller cannot be moved.
static bool move_threads(const struct numa_mask *cpus)
{
    DIR *tasks = opendir("/proc/self/task");

    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        const int thread = atoi(entry->d_name);
        if (thread > 0)
            numa_set_cpus_of(thread, cpus);
    }
    if (tasks)
        closedir(tasks);
    return numa_set_cpus(cpus);
}

void numa_enter(struct numa_binding *binding)
{
    char nodes[NUMA_LIST_BYTES], cpus[NUMA_LIST_BYTES];
    struct numa_mask all = {0};

    if (binding->memory == NUMA_ANY)
        return;
    for (uint32_t cpu = 0; cpu < NUMA_ID_END; cpu++)
        for (uint32_t i = 0; i < binding->set_count; i++)
            if (numa_mask_has(&binding->sets[i], cpu))
                numa_mask_add(&all, cpu);
    if (binding->memory == NUMA_PREFER)
        judge(binding, "sched_setaffinity", move_threads(&all) ? 0 : -1);
    judge(
        binding, "set_mempolicy",
        syscall(SYS_set_mempolicy, binding->memory == NUMA_PREFER ? MPOL_PREFERRED : MPOL_INTERLEAVE, &binding->nodes, MASK_BITS));
    log_info("NUMA", "memory=%s nodes=%s cpus=%s total_mib=%.0f",
             binding->refused                 ? "any"
             : binding->memory == NUMA_PREFER ? "prefer"
                                              : "interleave",
             numa_list(&binding->nodes, nodes, sizeof nodes), numa_list(&all, cpus, sizeof cpus),
             (double)binding->total_bytes / MIB);
}

bool numa_bind(struct numa_binding *binding, void *memory, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)memory / page * page;

    if (binding->memory == NUMA_ANY)
        return false;
    return judge(binding, "mbind",
                 syscall(SYS_mbind, begin, (uintptr_t)memory + bytes - begin,
                         binding->memory == NUMA_PREFER ? MPOL_BIND : MPOL_INTERLEAVE, &binding->nodes, MASK_BITS, 0u));
}

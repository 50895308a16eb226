// numa.c: reads the nodes of the machine, shares workers out, finds the binding of a process, and tells the kernel.
#include "common/base/numa.h"

#include <dirent.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"

// --- topology ---

enum { PATH_BYTES = 1024, FILE_BYTES = 8192 };

// Reads a small file; false: there is none, or it is longer than any that the kernel writes.
static bool read_text(const char *folder, const char *name, char text[FILE_BYTES])
{
    char path[PATH_BYTES];

    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(text, 1, FILE_BYTES, file);
    bool whole = length < FILE_BYTES && !ferror(file) && !memchr(text, '\0', length);
    fclose(file);
    text[whole ? length : 0] = '\0';
    return whole;
}

// Reads digits and moves *at behind them; false: there are none, or the number is not below NUMA_ID_END.
static bool read_number(const char **at, uint32_t *out)
{
    const char *first = *at;

    for (*out = 0; **at >= '0' && **at <= '9'; ++*at) {
        *out = *out * 10 + (uint32_t)(**at - '0');
        if (*out >= NUMA_ID_END)
            return false;
    }
    return *at > first;
}

// Parses a list such as "0-3,8", which an end of line or of text follows. false: it is none, *out is empty then.
static bool read_list(const char *text, struct numa_mask *out)
{
    uint32_t first, last;

    *out = (struct numa_mask){0};
    text += strspn(text, " \t");
    while (*text && *text != '\n') {
        bool good = read_number(&text, &first);
        last = first;
        if (good && *text == '-') {
            text++;
            good = read_number(&text, &last) && last >= first;
        }
        if (!good || (*text && *text != ',' && *text != '\n') || (*text == ',' && !(text[1] >= '0' && text[1] <= '9'))) {
            *out = (struct numa_mask){0};
            return false;
        }
        for (uint32_t i = first; i <= last; i++)
            numa_mask_add(out, i);
        text += *text == ',';
    }
    return true;
}

// Finds the folders "node0", "node2", … of nodes that are online.
static void find_nodes(const char *folder, struct numa_mask *out)
{
    char text[FILE_BYTES];
    struct numa_mask online = {0};
    bool known = read_text(folder, "online", text) && read_list(text, &online);
    DIR *open = opendir(folder);

    *out = (struct numa_mask){0};
    for (struct dirent *entry; open && (entry = readdir(open));) {
        const char *at = entry->d_name + 4;
        uint32_t id;
        if (!strncmp(entry->d_name, "node", 4) && read_number(&at, &id) && !*at && (!known || numa_mask_has(&online, id)))
            numa_mask_add(out, id);
    }
    if (open)
        closedir(open);
}

// Returns a line of meminfo, "Node 0 MemFree:  123 kB", in bytes; 0 if it is not there.
static uint64_t bytes_of(const char *text, const char *key)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char name[64] = "";
        unsigned long long kib;
        int end = 0;
        if (sscanf(line, "Node %*u %63[^: \n]: %19llu kB%n", name, &kib, &end) == 2 && end && !strcmp(name, key))
            return kib < UINT64_MAX >> 20 ? (uint64_t)kib * 1024 : 0;
    }
    return 0;
}

static void read_memory(const char *folder, struct numa_node *node)
{
    char text[FILE_BYTES];

    if (!read_text(folder, "meminfo", text))
        return;
    node->total_bytes = bytes_of(text, "MemTotal");
    node->free_bytes = bytes_of(text, "MemFree") + bytes_of(text, "Active(file)") + bytes_of(text, "Inactive(file)");
    node->free_bytes = MIN(node->free_bytes, node->total_bytes);
}

// Takes the node's CPUs; one that another node has listed before stays there.
static void read_cpus(const char *folder, const struct numa_mask *allowed, struct numa_mask *taken, struct numa_node *node)
{
    char text[FILE_BYTES];
    struct numa_mask listed;

    if (!read_text(folder, "cpulist", text) || !read_list(text, &listed))
        return;
    for (uint32_t cpu = 0; cpu < NUMA_ID_END; cpu++) {
        if (!numa_mask_has(&listed, cpu) || numa_mask_has(taken, cpu))
            continue;
        numa_mask_add(taken, cpu);
        node->listed_count++;
        if (numa_mask_has(allowed, cpu)) {
            numa_mask_add(&node->cpus, cpu);
            node->cpu_count++;
        }
    }
}

// The kernel writes a distance for each node that is online, by number.
static void read_distances(const char *folder, uint32_t count, struct numa_node *node)
{
    char text[FILE_BYTES];
    const char *at = text;
    uint32_t found = 0;

    for (uint32_t i = 0; i < NUMA_NODES_MAX; i++)
        node->distance[i] = UINT32_MAX;
    if (!read_text(folder, "distance", text))
        return;
    for (uint32_t distance; found < count && read_number(&at, &distance); at += strspn(at, " "))
        node->distance[found++] = distance;
    for (uint32_t i = 0; found < count && i < found; i++)
        node->distance[i] = UINT32_MAX;
}

// Reads on which nodes this process may have memory; all if the system does not say.
static void read_allowed(const char *root, struct numa_mask *out)
{
    static const char key[] = "\nMems_allowed_list:";
    char folder[PATH_BYTES], text[FILE_BYTES];
    const char *line;

    snprintf(folder, sizeof folder, "%s/proc/self", root);
    if (read_text(folder, "status", text) && (line = strstr(text, key)) && read_list(line + sizeof key - 1, out))
        return;
    memset(out, 0xff, sizeof *out);
}

void numa_read(const char *root, const struct numa_mask *allowed, struct numa_topology *out)
{
    char folder[PATH_BYTES / 2], inner[PATH_BYTES];
    struct numa_mask found, memory, taken = {0};

    memset(out, 0, sizeof *out);
    if ((size_t)snprintf(folder, sizeof folder, "%s/sys/devices/system/node", root) >= sizeof folder)
        return;
    find_nodes(folder, &found);
    read_allowed(root, &memory);
    for (uint32_t id = 0; id < NUMA_ID_END && out->count < NUMA_NODES_MAX; id++) {
        if (!numa_mask_has(&found, id))
            continue;
        struct numa_node *node = &out->nodes[out->count++];
        node->id = id;
        node->memory_allowed = numa_mask_has(&memory, id);
        snprintf(inner, sizeof inner, "%s/node%u", folder, id);
        read_cpus(inner, allowed, &taken, node);
        read_memory(inner, node);
    }
    for (uint32_t i = 0; i < out->count; i++) {
        snprintf(inner, sizeof inner, "%s/node%u", folder, out->nodes[i].id);
        read_distances(inner, out->count, &out->nodes[i]);
    }
}

_Static_assert(sizeof(cpu_set_t) == sizeof(struct numa_mask) && sizeof(__cpu_mask) == sizeof(uint64_t), "one layout");

bool numa_get_cpus(struct numa_mask *cpus) { return sched_getaffinity(0, sizeof *cpus, (cpu_set_t *)(void *)cpus) == 0; }

// thread: by the kernel's number.
static bool numa_set_cpus_of(int thread, const struct numa_mask *cpus)
{
    return sched_setaffinity(thread, sizeof *cpus, (const cpu_set_t *)(const void *)cpus) == 0;
}

bool numa_set_cpus(const struct numa_mask *cpus) { return numa_set_cpus_of(0, cpus); }

void numa_read_own(struct numa_topology *out)
{
    const char *root = getenv("FD_SYS_ROOT");
    struct numa_mask allowed;

    if (!numa_get_cpus(&allowed))
        memset(out, 0, sizeof *out);
    else
        numa_read(root ? root : "", &allowed, out);
}

const char *numa_list(const struct numa_mask *mask, char *out, size_t out_bytes)
{
    size_t at = 0;

    out[0] = '\0';
    for (uint32_t first = 0, last; first < NUMA_ID_END && at < out_bytes; first = last + 1) {
        last = first;
        if (!numa_mask_has(mask, first))
            continue;
        while (last + 1 < NUMA_ID_END && numa_mask_has(mask, last + 1))
            last++;
        at += (size_t)snprintf(out + at, out_bytes - at, last > first ? "%s%u-%u" : "%s%u", at ? "," : "", first, last);
    }
    return out;
}

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

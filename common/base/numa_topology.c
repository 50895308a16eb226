// numa_topology.c: see numa_topology.h.
#include "common/base/numa_topology.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

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

// Reads digits and moves *at behind them; false: there are none, or the number is not below `end`.
static bool read_number(const char **at, uint32_t end, uint32_t *out)
{
    const char *first = *at;

    for (*out = 0; **at >= '0' && **at <= '9'; ++*at) {
        *out = *out * 10 + (uint32_t)(**at - '0');
        if (*out >= end)
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
        bool good = read_number(&text, NUMA_ID_END, &first);
        last = first;
        if (good && *text == '-') {
            text++;
            good = read_number(&text, NUMA_ID_END, &last) && last >= first;
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
        if (!strncmp(entry->d_name, "node", 4) && read_number(&at, NUMA_ID_END, &id) && !*at &&
            (!known || numa_mask_has(&online, id)))
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
    for (uint32_t distance; found < count && read_number(&at, NUMA_ID_END, &distance); at += strspn(at, " "))
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

bool numa_set_cpus_of(int thread, const struct numa_mask *cpus)
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

/* test_numa_topology.c: which NUMA nodes a machine has and how workers share them, in folders that look like other machines' /sys. */
#include "common/base/checked.h"
#include "common/base/numa.h"
#include "sample.h"
#include "sys_root.h"

#define NODE "sys/devices/system/node/"
#define GIB (1ull << 20) /* in KiB */

static struct sys_root root;
static struct numa_topology topology;
static struct numa_worker workers[NUMA_NODES_MAX];

static int make(void **state)
{
    sys_make(&root);
    return 0;
}

static int clear(void **state)
{
    sys_remove(&root);
    return 0;
}

static void read_with(uint32_t first, uint32_t last)
{
    const struct numa_mask allowed = sys_cpus(first, last);
    numa_read(root.path, &allowed, &topology);
}

static const char *cpus_of(uint32_t index)
{
    static char text[NUMA_LIST_BYTES];
    return numa_list(&topology.nodes[index].cpus, text, sizeof text);
}

static void two_nodes(void **state)
{
    sys_node(&root, 0, "0-3", 64 * GIB, 40 * GIB, "10 21\n");
    sys_node(&root, 1, "4-7", 64 * GIB, 20 * GIB, "21 10\n");
    sys_put(&root, NODE "online", "0-1\n");
    read_with(0, 7);
    assert_int_equal(topology.count, 2);
    assert_string_equal(cpus_of(0), "0-3");
    assert_string_equal(cpus_of(1), "4-7");
    assert_int_equal(topology.nodes[0].cpu_count, 4);
    assert_int_equal(topology.nodes[1].total_bytes, 64ull << 30);
    assert_int_equal(topology.nodes[1].free_bytes, (20ull << 30) + 24 * 1024); /* page cache counts */
    assert_int_equal(topology.nodes[0].distance[1], 21);
    assert_int_equal(topology.nodes[1].distance[1], 10);

    assert_int_equal(numa_share(&topology, 8, 30ull << 30, workers), 2);
    assert_int_equal(workers[0].threads, 4);
    assert_int_equal(workers[1].threads, 4);
    assert_in_range(workers[0].bytes, 19ull << 30, 21ull << 30); /* 2 to 1, as what is free */
    assert_in_range(workers[1].bytes, 9ull << 30, 11ull << 30);
    assert_int_equal(numa_share(&topology, 3, 0, workers), 2); /* fewer threads than CPUs, as under a limit of CPU time */
    assert_int_equal(workers[0].threads, 1);
    assert_int_equal(workers[1].bytes, 1 << 20);
    assert_int_equal(numa_share(&topology, 100, 1, workers), 2);
    assert_int_equal(workers[0].threads, 4);
}

/* Sub-NUMA clustering: four nodes in two sockets, each with both hyperthreads of its cores. */
static void four_nodes_in_two_sockets(void **state)
{
    static const char *const cpus[] = {"0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"};
    static const char *const distances[] = {"10 12 21 21", "12 10 21 21", "21 21 10 12", "21 21 12 10"};
    for (uint32_t i = 0; i < 4; i++)
        sys_node(&root, i, cpus[i], 16 * GIB, 8 * GIB, distances[i]);
    read_with(0, 31);
    assert_int_equal(topology.count, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_string_equal(cpus_of(i), cpus[i]);
    assert_int_equal(topology.nodes[2].distance[3], 12);
    assert_int_equal(numa_share(&topology, 32, 8ull << 30, workers), 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(workers[i].node, i);
        assert_int_equal(workers[i].threads, 8);
        assert_int_equal(workers[i].bytes, 2ull << 30);
    }
}

/* Memory behind CXL has no CPUs: no worker is started there, and one that is asked for takes the CPUs that are nearest. */
static void a_node_of_memory_alone(void **state)
{
    struct numa_binding binding;
    struct error error;
    char text[NUMA_LIST_BYTES];
    sys_node(&root, 0, "0-3", 64 * GIB, 40 * GIB, "10 21 24\n");
    sys_node(&root, 1, "4-7", 64 * GIB, 40 * GIB, "21 10 14\n");
    sys_node(&root, 2, "", 256 * GIB, 250 * GIB, "24 14 10\n");
    read_with(0, 7);
    assert_int_equal(topology.count, 3);
    assert_int_equal(topology.nodes[2].cpu_count, 0);
    assert_int_equal(numa_share(&topology, 8, 1ull << 30, workers), 2);
    assert_int_equal(numa_binding_node(&topology, "numa-node", 2, &binding, &error), STATUS_OK);
    assert_string_equal(numa_list(&binding.sets[0], text, sizeof text), "4-7");
    assert_string_equal(numa_list(&binding.nodes, text, sizeof text), "2");
    assert_int_equal(binding.total_bytes, 256ull << 30);
    numa_binding_interleave(&topology, 2, &binding);
    assert_string_equal(numa_list(&binding.nodes, text, sizeof text), "0-1");

    sys_put(&root, NODE "node2/distance",
            "24 14\n"); /* one is missing: none is known, and the first node with CPUs is as good as any */
    read_with(0, 7);
    assert_int_equal(topology.nodes[2].distance[1], UINT32_MAX);
    assert_int_equal(numa_binding_node(&topology, "numa-node", 2, &binding, &error), STATUS_OK);
    assert_string_equal(numa_list(&binding.sets[0], text, sizeof text), "0-3");
}

/* A node whose memory is missing, CPUs that are switched off, and a node that is no longer online. */
static void what_is_off_is_left_out(void **state)
{
    sys_node(&root, 0, "0,2-3", 64 * GIB, 40 * GIB, "10 21\n"); /* cpulist has only CPUs that are online */
    sys_node(&root, 1, "4-5", 0, 0, "21 10\n");
    sys_node(&root, 3, "6-7", 64 * GIB, 40 * GIB, "");
    sys_put(&root, NODE "online", "0-1\n");
    sys_put(&root, NODE "possible", "0-63\n");
    read_with(0, 7);
    assert_int_equal(topology.count, 2);
    assert_string_equal(cpus_of(0), "0,2-3");
    assert_string_equal(cpus_of(1), "4-5");
    assert_int_equal(topology.nodes[1].total_bytes, 0);
    assert_int_equal(numa_share(&topology, 5, 1ull << 30, workers), 1);
    assert_int_equal(workers[0].threads, 3);
}

static void refused(const char *option, uint32_t id, const char *why)
{
    struct numa_binding binding;
    struct error error;
    assert_int_equal(numa_binding_node(&topology, option, id, &binding, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(strncmp(error.text, "--numa", 6), 0);
    if (!strstr(error.text, why))
        fail_msg("'%s' does not say '%s'", error.text, why);
    assert_int_equal(binding.memory, NUMA_ANY);
}

/* A container has some of the nodes: by its CPUs, by its memory, or by both. */
static void a_cpuset_of_one_node(void **state)
{
    struct numa_binding binding;
    struct error error;
    for (uint32_t i = 0; i < 3; i++)
        sys_node(&root, i, (const char *[]){"0-3", "4-7", "8-11"}[i], 64 * GIB, 40 * GIB, "10 21 21\n");
    sys_put(&root, "proc/self/status", "Name:\tx\nMems_allowed:\t00000000,00000003\nMems_allowed_list:\t0-1\nThreads:\t1\n");
    read_with(4, 11);
    assert_int_equal(topology.count, 3);
    assert_int_equal(numa_share(&topology, 8, 1ull << 30, workers), 1);
    assert_int_equal(topology.nodes[workers[0].node].id, 1);
    assert_int_equal(workers[0].threads, 4);
    refused("numa-node", 0, "--numa-node 0: this process may use no CPU of the NUMA node");
    refused("numa-node", 2, "--numa-node 2: this process may have no memory on the NUMA node");
    refused("numa", 3, "--numa 3: there is no such NUMA node; with CPUs and memory for this process: 1");
    assert_int_equal(numa_binding_node(&topology, "numa-node", 1, &binding, &error), STATUS_OK);
    numa_binding_interleave(&topology, 2, &binding);
    assert_int_equal(binding.memory, NUMA_ANY); /* there is but one */
    assert_int_equal(binding.set_count, 0);
    numa_binding_interleave(&topology, 1, &binding);
    assert_int_equal(binding.memory, NUMA_INTERLEAVE);
}

static void numbers_with_gaps(void **state)
{
    char text[NUMA_LIST_BYTES];
    sys_node(&root, 252, "256-259", 4 * GIB, 1 * GIB, "40 40 10\n");
    sys_node(&root, 8, "64-67", 4 * GIB, 1 * GIB, "40 10 40\n");
    sys_node(&root, 0, "0-3", 0, 0, "10 40 40\n");
    read_with(0, 1023);
    assert_int_equal(topology.count, 3);
    assert_int_equal(topology.nodes[1].id, 8);
    assert_int_equal(topology.nodes[2].id, 252);
    assert_int_equal(numa_share(&topology, 8, 1, workers), 2);
    refused("numa-node", 0, "--numa-node 0: the NUMA node has no memory; with CPUs and memory for this process: 8,252");
    struct numa_binding binding;
    numa_binding_interleave(&topology, 2, &binding);
    assert_string_equal(numa_list(&binding.nodes, text, sizeof text), "8,252");
    numa_list(&binding.nodes, text, 3); /* cut off, within its bytes */
    assert_string_equal(text, "8,");
}

/* Every file with everything that it could be: nothing of it is taken, and nothing else is lost. */
static void damaged_files(void **state)
{
    static const char *const lists[] = {"x",      "3-1",    "0-",           "-3",        "0-99999999999999999999",
                                        "1024",   "0-1024", "0,,1",         "0-3,",      "0 1",
                                        "0x3",    "0-3-5",  "4;5",          "0-3\n1",    "\xff\xfe",
                                        "0-1,+2", "0.5",    "1,2,3,4,5,6-", "9999999999"};
    static const char *const memories[] = {"Node 0 MemTotal: -5 kB\n",
                                           "MemTotal: 5 kB\n",
                                           "Node 0 MemTotal: 99999999999999999999 kB\n",
                                           "Node 0 MemTotal 64 kB\n",
                                           "Node 0 MemTotal: 64 GB\n",
                                           "\n\n\n",
                                           "Node"};
    for (size_t i = 0; i < ARRAY_COUNT(lists); i++) {
        sys_node(&root, 0, lists[i], 4 * GIB, 1 * GIB, "10 20\n");
        sys_node(&root, 1, "4-7", 4 * GIB, 1 * GIB, lists[i]);
        read_with(0, 63);
        assert_int_equal(topology.count, 2);
        if (i != 13) /* "0-3" in a line of its own is one */
            assert_string_equal(cpus_of(0), "");
        assert_string_equal(cpus_of(1), "4-7");
        assert_int_equal(numa_share(&topology, 8, 1, workers), i == 13 ? 2 : 1);
    }
    for (size_t i = 0; i < ARRAY_COUNT(memories); i++) {
        sys_node(&root, 0, "0-3", 4 * GIB, 1 * GIB, "10 20\n");
        sys_put(&root, NODE "node0/meminfo", memories[i]);
        read_with(0, 63);
        assert_int_equal(topology.nodes[0].total_bytes, 0);
        assert_int_equal(topology.nodes[0].free_bytes, 0);
    }
    sys_put(&root, NODE "online", "all of them\n"); /* then those that have a folder are */
    for (size_t i = 0; i < 4; i++)
        sys_put(&root,
                (const char *[]){NODE "nodeX/cpulist", NODE "node-1/cpulist", NODE "node5b/cpulist", NODE "node4096/cpulist"}[i],
                "8-9\n");
    read_with(0, 63);
    assert_int_equal(topology.count, 2);
}

static void more_free_than_there_is(void **state)
{
    sys_node(&root, 0, "0", 4 * GIB, 5 * GIB, "10\n");
    read_with(0, 0);
    assert_int_equal(topology.nodes[0].free_bytes, 4ull << 30);
    char *longest = calloc(1, 20001);
    memset(longest, '1', 20000); /* longer than any that the kernel writes */
    sys_put(&root, NODE "node0/cpulist", longest);
    free(longest);
    read_with(0, 63);
    assert_int_equal(topology.nodes[0].cpu_count, 0);
}

static void a_machine_that_says_nothing(void **state)
{
    struct numa_binding binding;
    read_with(0, 7);
    assert_int_equal(topology.count, 0);
    assert_int_equal(numa_share(&topology, 8, 1, workers), 0);
    refused("numa-node", 0, "--numa-node 0: there is no such NUMA node; with CPUs and memory for this process: none");
    numa_binding_interleave(&topology, 1, &binding);
    assert_int_equal(binding.memory, NUMA_ANY);
}

static uint32_t next(uint32_t *random, uint32_t below)
{
    *random = *random * 1664525u + 1013904223u;
    return (*random >> 8) % below;
}

/* Any machine, any affinity: no CPU is given to two workers, each worker's are of one node, and together they are all CPUs of the nodes
 * that have memory. */
static void every_cpu_is_given_once(void **state)
{
    uint32_t random = 12345 + sample_seed();
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t first = next(&random, 16), last = first + next(&random, 48), nodes = 1 + next(&random, 6);
        struct numa_mask listed[6] = {0}, given = {0};
        uint32_t threads = 1 + next(&random, 80), total = 0, cpus = 0, left = 0;
        uint64_t bytes = (uint64_t)next(&random, 1 << 16) << 20, sum = 0;
        sys_remove(&root);
        sys_make(&root);
        for (uint32_t node = 0; node < nodes; node++) {
            char text[NUMA_LIST_BYTES];
            for (uint32_t cpu = 0; cpu < 64; cpu++) /* some twice, some nowhere */
                if (next(&random, nodes) == 0)
                    numa_mask_add(&listed[node], cpu);
            sys_node(&root, 3 * node, numa_list(&listed[node], text, sizeof text), next(&random, 4) ? 8 * GIB : 0,
                     next(&random, 8) * GIB, "");
        }
        read_with(first, last);
        uint32_t count = numa_share(&topology, threads, bytes, workers);
        for (uint32_t i = 0; i < count; i++) {
            const struct numa_node *node = &topology.nodes[workers[i].node];
            uint32_t own = 0;
            for (uint32_t cpu = 0; cpu < NUMA_ID_END; cpu++) {
                if (!numa_mask_has(&node->cpus, cpu))
                    continue;
                assert_true(numa_mask_has(&listed[node->id / 3], cpu) && cpu >= first && cpu <= last);
                assert_false(numa_mask_has(&given, cpu));
                numa_mask_add(&given, cpu);
                own++;
            }
            assert_int_equal(own, node->cpu_count);
            assert_in_range(workers[i].threads, 1, own);
            assert_true(node->total_bytes > 0 && workers[i].bytes >= 1 << 20);
            total += workers[i].threads;
            cpus += own;
            sum += workers[i].bytes;
        }
        for (uint32_t node = 0; node < nodes; node++) /* a CPU that is not given is of a node without memory, or of none */
            for (uint32_t cpu = first; cpu <= last; cpu++)
                left += numa_mask_has(&topology.nodes[node].cpus, cpu) && topology.nodes[node].total_bytes &&
                        !numa_mask_has(&given, cpu);
        assert_int_equal(left, 0);
        assert_true(total <= MAX(threads, count));
        assert_true(count == 0 || total == MAX(MIN(threads, cpus), count)); /* none is left over */
        assert_true(sum <= bytes + ((uint64_t)count << 20));
    }
}

static void a_number_of_a_node(void **state)
{
    static const char *const wrong[] = {"", "x", "-1", "+1", " 1", "1x", "1024", "99999999999999999999"};
    struct error error;
    uint32_t id;
    assert_int_equal(numa_parse_node("numa-node", "12", "none", &id, &error), STATUS_OK);
    assert_int_equal(id, 12);
    for (size_t i = 0; i < ARRAY_COUNT(wrong); i++)
        assert_int_equal(numa_parse_node("numa-node", wrong[i], "none", &id, &error), STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.text, "--numa-node is '99999999999999999999', want the number of a NUMA node or none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_nodes, make, clear),
        cmocka_unit_test_setup_teardown(four_nodes_in_two_sockets, make, clear),
        cmocka_unit_test_setup_teardown(a_node_of_memory_alone, make, clear),
        cmocka_unit_test_setup_teardown(what_is_off_is_left_out, make, clear),
        cmocka_unit_test_setup_teardown(a_cpuset_of_one_node, make, clear),
        cmocka_unit_test_setup_teardown(numbers_with_gaps, make, clear),
        cmocka_unit_test_setup_teardown(damaged_files, make, clear),
        cmocka_unit_test_setup_teardown(more_free_than_there_is, make, clear),
        cmocka_unit_test_setup_teardown(a_machine_that_says_nothing, make, clear),
        cmocka_unit_test_setup_teardown(every_cpu_is_given_once, make, clear),
        cmocka_unit_test(a_number_of_a_node),
    };
    return cmocka_run_group_tests_name("numa_topology", tests, NULL, NULL);
}

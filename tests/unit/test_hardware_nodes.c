/* test_hardware_nodes.c: NUMA nodes in a description of hardware: written and read, refused where damaged, and a worker a node. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/plan/hardware.h"
#include "tests/cmocka.h"

static char path[40];

static int make(void **state)
{
    strcpy(path, "/tmp/fd-nodes-XXXXXX.conf");
    int fd = mkstemps(path, 5);
    return fd < 0 || close(fd);
}

static int clear(void **state) { return unlink(path); }

static void put(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void is_near(double found, double wanted)
{
    if (!(found > wanted * 0.999 && found < wanted * 1.001))
        fail_msg("%g, want %g", found, wanted);
}

static struct hardware host(void)
{
    struct hardware h = {.name = "host",
                         .memory_bytes = 96ull << 30,
                         .memory_gb_per_second = 300,
                         .attention_share = 0.9,
                         .weights_share = 1,
                         .products_share = 1,
                         .price_per_hour = 3};
    h.nodes = (struct hardware_nodes){.count = 3, .id = {0, 1, 8}};
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < 3; j++)
            h.nodes.gb_per_second[i][j] = i == j ? 120 - 10 * i : 50.25 + i + 10 * j;
    return h;
}

static void what_is_written_is_read(void **state)
{
    struct hardware written = host(), read;
    struct error error;

    FILE *file = fopen(path, "w");
    hardware_write(file, &written, "a comment");
    fclose(file);
    assert_int_equal(hardware_read(path, NULL, "worker", &read, &error), STATUS_OK);
    assert_int_equal(read.nodes.count, 3);
    assert_memory_equal(read.nodes.id, written.nodes.id, 3 * sizeof *read.nodes.id);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < 3; j++)
            is_near(read.nodes.gb_per_second[i][j], written.nodes.gb_per_second[i][j]);
    for (uint32_t i = 0; i < HARDWARE_NODES_MAX; i++) /* as many as there may be, in a line that is read whole */
        for (uint32_t j = 0; j < HARDWARE_NODES_MAX; j++)
            written.nodes.gb_per_second[i][j] = 1234.5678 + i, written.nodes.id[i] = 1000 + i;
    written.nodes.count = HARDWARE_NODES_MAX;
    file = fopen(path, "w");
    hardware_write(file, &written, NULL);
    fclose(file);
    assert_int_equal(hardware_read(path, NULL, "worker", &read, &error), STATUS_OK);
    assert_int_equal(read.nodes.count, HARDWARE_NODES_MAX);
    is_near(read.nodes.gb_per_second[HARDWARE_NODES_MAX - 1][0], 1235 + HARDWARE_NODES_MAX - 1);
}

static void what_is_damaged_is_said(void **state)
{
    static const struct {
        const char *nodes, *rates, *says;
    } bad[] = {
        {"0", "9", "numa_nodes: '0', want 2 to 16 numbers"},
        {"", "9 9, 9 9", "numa_nodes: '', want 2"},
        {"0 x", "9 9, 9 9", "numa_nodes: '0 x'"},
        {"0 -1", "9 9, 9 9", "numa_nodes: '0 -1'"},
        {"0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", "9", "numa_nodes: "},
        {"0 1", "", "numa_gb_per_second: want 2 rows of 2 rates"},
        {"0 1", "9 9", "numa_gb_per_second"},
        {"0 1", "9 9, 9", "numa_gb_per_second"},
        {"0 1", "9 9, 9 9 9", "numa_gb_per_second"},
        {"0 1", "9 9, 9 9, 9 9", "numa_gb_per_second"},
        {"0 1", "9, 9 9 9", "numa_gb_per_second"},
        {"0 1", "9 0, 9 9", "numa_gb_per_second"},
        {"0 1", "9 -9, 9 9", "numa_gb_per_second"},
        {"0 1", "9 nan, 9 9", "numa_gb_per_second"},
        {"0 1", "9 inf, 9 9", "numa_gb_per_second"},
        {"0 1", "9 fast, 9 9", "numa_gb_per_second"},
    };
    struct hardware read;
    struct error error;
    char text[300];

    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        snprintf(text, sizeof text, "name = x\nnuma_nodes = %s\nnuma_gb_per_second = %s\n", bad[i].nodes, bad[i].rates);
        put(text);
        assert_int_equal(hardware_read(path, NULL, "worker", &read, &error), STATUS_INVALID_ARGUMENT);
        if (!strstr(error.text, bad[i].says) || strncmp(error.text, path, strlen(path)))
            fail_msg("'%s' does not say '%s'", error.text, bad[i].says);
    }
    put("name = x\nnuma_nodes = 0 1\n");
    assert_int_equal(hardware_read(path, NULL, "worker", &read, &error), STATUS_INVALID_ARGUMENT);
    put("name = x\nnuma_gb_per_second = 9 9, 9 9\n");
    assert_int_equal(hardware_read(path, NULL, "worker", &read, &error), STATUS_INVALID_ARGUMENT);
    put("name = x\nnuma_nodes = 0 1\nnuma_gb_per_second = 150 61,  60 149\n");
    assert_int_equal(hardware_read(path, NULL, "worker", &read, &error), STATUS_OK);
    is_near(read.nodes.gb_per_second[1][0], 60);
    put("name = x\n");
    assert_int_equal(hardware_read(path, NULL, "worker", &read, &error), STATUS_OK);
    assert_int_equal(read.nodes.count, 0);
}

static void a_worker_a_node(void **state)
{
    struct hardware h = host();

    h.model.attention = (struct kv_costs){.call_us = 5, .row_us = 1, .token_us = 0.01, .prefill_row_us = 2, .pair_us = 0.1};
    assert_int_equal(hardware_take_node(&h), 3);
    is_near(h.memory_gb_per_second, 100); /* the slowest node at its own memory */
    assert_int_equal(h.memory_bytes, 32ull << 30);
    is_near(h.price_per_hour, 1);
    is_near(h.model.attention.token_us, 0.03); /* a third of the rate */
    is_near(h.model.attention.pair_us, 0.3);   /* a third of the cores */
    is_near(h.model.attention.call_us, 5);
    is_near(h.attention_share, 0.9);
    assert_int_equal(hardware_take_node(&h), 1); /* it is one now */
    is_near(h.memory_gb_per_second, 100);

    h = host();
    h.shares_cores = true; /* then the workers' times add up, and the host as a whole is what counts */
    assert_int_equal(hardware_take_node(&h), 1);
    is_near(h.memory_gb_per_second, 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, make, clear),
        cmocka_unit_test_setup_teardown(what_is_damaged_is_said, make, clear),
        cmocka_unit_test(a_worker_a_node),
    };
    return cmocka_run_group_tests_name("hardware_nodes", tests, NULL, NULL);
}

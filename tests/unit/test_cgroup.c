/* test_cgroup.c: limits of control groups, read from folders that look like the kernel's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/cgroup.h"
#include "common/base/checked.h"
#include "common/base/thread_pool.h"
#include "tests/cmocka.h"

struct root {
    char path[32], inner[64], memory[64]; // "cpu" and "memory" are where version 1 mounts these controllers
};

static void put(const char *folder, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int make_root(void **state)
{
    static struct root root;
    snprintf(root.path, sizeof root.path, "/tmp/fd-cgroup-XXXXXX");
    assert_non_null(mkdtemp(root.path));
    snprintf(root.inner, sizeof root.inner, "%s/cpu", root.path);
    assert_int_equal(mkdir(root.inner, 0700), 0);
    snprintf(root.memory, sizeof root.memory, "%s/memory", root.path);
    assert_int_equal(mkdir(root.memory, 0700), 0);
    *state = &root;
    return 0;
}

static int remove_root(void **state)
{
    static const char *const names[] = {
        "memory.max",       "memory.current",        "memory.stat",          "cpu.max", "groups", "cpu.cfs_period_us",
        "cpu.cfs_quota_us", "memory.limit_in_bytes", "memory.usage_in_bytes"};
    const struct root *root = *state;
    const char *const folders[] = {root->inner, root->memory, root->path};
    for (size_t i = 0; i < 3 * ARRAY_COUNT(names); i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s", folders[i % 3], names[i / 3]);
        remove(path);
    }
    return remove(root->inner) || remove(root->memory) || remove(root->path);
}

/* A model's file that was read lies in the page cache, which counts against the limit and goes when memory is wanted. */
static void cached_files_are_room(void **state)
{
    const struct root *root = *state;
    uint64_t limit, left;

    cgroup_memory(root->path, "", &limit, &left);
    assert_true(limit == UINT64_MAX && left == UINT64_MAX);
    put(root->path, "memory.max", "1000000\n");
    put(root->path, "memory.current", "700000\n");
    put(root->path, "memory.stat", "anon 200000\nfile 500000\ninactive_file 400000\nactive_file 50000\n");
    cgroup_memory(root->path, "", &limit, &left);
    assert_int_equal(limit, 1000000);
    assert_int_equal(left, 750000);
    put(root->inner, "memory.max", "max\n");
    put(root->inner, "memory.current", "600000\n");
    cgroup_memory(root->path, "/cpu", &limit, &left); /* the limit of the one above holds */
    assert_int_equal(limit, 1000000);
    assert_int_equal(left, 750000);
    put(root->inner, "memory.max", "610000\n");
    cgroup_memory(root->path, "/cpu", &limit, &left);
    assert_int_equal(limit, 610000);
    assert_int_equal(left, 10000);
}

static void version_1_limits_memory_too(void **state)
{
    const struct root *root = *state;
    uint64_t limit, left;
    char groups[300];

    snprintf(groups, sizeof groups, "%s/groups", root->path);
    put(root->path, "groups", "4:memory:/docker/0123\n0::/\n");
    put(root->memory, "memory.limit_in_bytes", "9223372036854771712\n"); // what version 1 shows for "no limit"
    put(root->memory, "memory.usage_in_bytes", "700000\n");
    cgroup_memory_of(root->path, groups, &limit, &left);
    assert_true(limit == UINT64_MAX && left == UINT64_MAX);
    put(root->memory, "memory.limit_in_bytes", "1000000\n");
    cgroup_memory_of(root->path, groups, &limit, &left);
    assert_int_equal(limit, 1000000);
    assert_int_equal(left, 300000);
    // Version 1 counts a group's own pages in these two and its children's too in total_.
    put(root->memory, "memory.stat", "active_file 1\ninactive_file 2\ntotal_inactive_file 400000\ntotal_active_file 50000\n");
    cgroup_memory_of(root->path, groups, &limit, &left);
    assert_int_equal(left, 750000);
    put(root->path, "memory.max", "900000\n"); // version 2 beside it: the lower limit holds
    cgroup_memory_of(root->path, groups, &limit, &left);
    assert_int_equal(limit, 900000);
    assert_int_equal(left, 750000);
}

static double cpus(const struct root *root, const char *path) { return cgroup_cpus(root->path, path); }

static void the_least_limit_of_cpus_holds(void **state)
{
    const struct root *root = *state;

    assert_true(isinf(cpus(root, "")) && isinf(cpus(root, "/cpu")) && isinf(cpus(root, "/../of/the/host")));
    put(root->path, "cpu.max", "max 100000\n");
    assert_true(isinf(cpus(root, "/cpu")));
    put(root->path, "cpu.max", "400000 100000\n");
    assert_true(cpus(root, "") == 4 && cpus(root, "/cpu") == 4);
    put(root->inner, "cpu.max", "75000 50000\n");
    assert_true(cpus(root, "") == 4 && cpus(root, "/cpu") == 1.5);
    assert_true(cpus(root, "/another/that/is/not/there") == 4);
    put(root->inner, "cpu.max", "800000 100000\n"); /* more than the one above allows */
    assert_true(cpus(root, "/cpu") == 4);
    static const char *const bad[] = {"", "max", "0 100000", "100000", "100000 0", "-5 -5", "nan inf", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        put(root->inner, "cpu.max", bad[i]);
        put(root->path, "cpu.max", bad[i]);
        assert_true(isinf(cpus(root, "/cpu")));
    }
}

static void so_does_that_of_the_first_version(void **state)
{
    const struct root *root = *state;

    put(root->path, "cpu.cfs_period_us", "100000\n");
    assert_true(isinf(cpus(root, "")));
    put(root->path, "cpu.cfs_quota_us", "-1\n");
    assert_true(isinf(cpus(root, "")));
    put(root->path, "cpu.cfs_quota_us", "250000\n");
    assert_true(cpus(root, "") == 2.5 && cpus(root, "/docker/0123") == 2.5);
}

/* Both versions may be there, each with a part of the controllers. */
static void a_process_has_the_least_of_both_versions(void **state)
{
    const struct root *root = *state;
    char groups[300];

    snprintf(groups, sizeof groups, "%s/groups", root->path);
    assert_true(isinf(cgroup_cpus_of(root->path, groups)));
    put(root->path, "groups", "4:cpu,cpuacct:/\n3:cpuset:/\n0::/\n");
    put(root->inner, "cpu.cfs_period_us", "100000\n");
    put(root->inner, "cpu.cfs_quota_us", "300000\n");
    assert_true(cgroup_cpus_of(root->path, groups) == 3);
    put(root->path, "cpu.max", "250000 100000\n");
    assert_true(cgroup_cpus_of(root->path, groups) == 2.5);
    put(root->inner, "cpu.cfs_quota_us", "50000\n");
    assert_true(cgroup_cpus_of(root->path, groups) == 0.5);
}

static void threads_are_as_many_as_there_is_time_for(void **state)
{
    static const struct {
        uint32_t count;
        double limit;
        uint32_t wanted;
    } cases[] = {{8, INFINITY, 8}, {8, 8, 8}, {8, 9, 8}, {8, 7.99, 7}, {8, 2.5, 2}, {8, 1, 1}, {8, 0.5, 1}, {1, 4, 1}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++)
        assert_int_equal(cpu_count_within(cases[i].count, cases[i].limit), cases[i].wanted);
}

static void the_group_is_found_by_its_controller(void **state)
{
    const struct root *root = *state;
    char file[300], path[CGROUP_PATH_MAX];

    snprintf(file, sizeof file, "%s/groups", root->path);
    cgroup_path(file, "", path);
    assert_string_equal(path, "");
    put(root->path, "groups", "5:cpuset:/of/sets\n4:cpu,cpuacct:/of/time\n2:name=cpu:/of/a:name\n0::/of/two\n");
    cgroup_path(file, "", path);
    assert_string_equal(path, "/of/two");
    cgroup_path(file, "cpu", path);
    assert_string_equal(path, "/of/time");
    cgroup_path(file, "cpuacct", path);
    assert_string_equal(path, "/of/time");
    cgroup_path(file, "name=cpu", path);
    assert_string_equal(path, "/of/a:name");
    cgroup_path(file, "memory", path);
    assert_string_equal(path, "");
    put(root->path, "groups", "0::/\n");
    cgroup_path(file, "", path);
    assert_string_equal(path, "");
    put(root->path, "groups", "\n:\n::\n0:\ncpu\n");
    cgroup_path(file, "cpu", path);
    assert_string_equal(path, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cached_files_are_room, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_1_limits_memory_too, make_root, remove_root),
        cmocka_unit_test_setup_teardown(the_least_limit_of_cpus_holds, make_root, remove_root),
        cmocka_unit_test_setup_teardown(so_does_that_of_the_first_version, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_process_has_the_least_of_both_versions, make_root, remove_root),
        cmocka_unit_test(threads_are_as_many_as_there_is_time_for),
        cmocka_unit_test_setup_teardown(the_group_is_found_by_its_controller, make_root, remove_root),
    };
    return cmocka_run_group_tests_name("cgroup", tests, NULL, NULL);
}

/* test_numa.c: what the kernel is asked for. The program's system calls come here first: those of memory policies are noted and not made, so
 * that they may name nodes that this machine has not. */
#include <dlfcn.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/base/numa.h"
#include "common/base/thread_pool.h"
#include "tests/cmocka.h"

struct asked {
    long call;
    unsigned long address, bytes, mode, max_node, flags;
    struct numa_mask mask;
};

static struct {
    struct asked asked[8];
    uint32_t count;
    int refuse_with; /* an errno; 0: nothing is refused */
} kernel;

/* libc's, for the program: the linker finds this one first. */
long syscall(long number, ...)
{
    long (*real)(long, ...);
    unsigned long a[6];
    va_list list;

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, unsigned long);
    va_end(list);
    if (number != SYS_mbind && number != SYS_set_mempolicy) {
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
        return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    assert_true(kernel.count < ARRAY_COUNT(kernel.asked));
    struct asked *asked = &kernel.asked[kernel.count++];
    *asked = number == SYS_mbind ? (struct asked){number, a[0], a[1], a[2], a[4], a[5], .mask = *(const struct numa_mask *)a[3]}
                                 : (struct asked){number, 0, 0, a[0], a[2], 0, .mask = *(const struct numa_mask *)a[1]};
    errno = kernel.refuse_with;
    return kernel.refuse_with ? -1 : 0;
}

static struct numa_mask before;

static int begin(void **state)
{
    memset(&kernel, 0, sizeof kernel);
    assert_true(numa_get_cpus(&before));
    return 0;
}

static int end(void **state) { return !numa_set_cpus(&before); }

static uint32_t first_cpu(uint32_t from)
{
    while (from < NUMA_ID_END && !numa_mask_has(&before, from))
        from++;
    return from;
}

static void is_mask(const struct numa_mask *mask, const char *wanted)
{
    char text[NUMA_LIST_BYTES];
    assert_string_equal(numa_list(mask, text, sizeof text), wanted);
}

/* A worker: its threads are on the node's CPUs, what it touches comes from the node, and the pages never from another one. */
static void one_node(void **state)
{
    struct numa_binding binding = {.memory = NUMA_PREFER, .set_count = 1};
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct numa_mask now;
    char cpu[16];

    numa_mask_add(&binding.nodes, 70);
    numa_mask_add(&binding.sets[0], first_cpu(0));
    numa_enter(&binding);
    snprintf(cpu, sizeof cpu, "%u", first_cpu(0));
    assert_true(numa_get_cpus(&now));
    is_mask(&now, cpu);
    assert_int_equal(kernel.count, 1);
    assert_int_equal(kernel.asked[0].call, SYS_set_mempolicy);
    assert_int_equal(kernel.asked[0].mode, MPOL_PREFERRED);
    assert_int_equal(kernel.asked[0].max_node, NUMA_ID_END + 1);
    is_mask(&kernel.asked[0].mask, "70");

    unsigned char *memory = mmap(NULL, 4 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(numa_bind(&binding, memory + 100, 2 * page)); /* from the page on that holds the first byte */
    assert_int_equal(kernel.count, 2);
    assert_int_equal(kernel.asked[1].call, SYS_mbind);
    assert_int_equal(kernel.asked[1].mode, MPOL_BIND);
    assert_int_equal(kernel.asked[1].address, (uintptr_t)memory);
    assert_int_equal(kernel.asked[1].bytes, 2 * page + 100);
    assert_int_equal(kernel.asked[1].max_node, NUMA_ID_END + 1);
    assert_int_equal(kernel.asked[1].flags, 0);
    is_mask(&kernel.asked[1].mask, "70");
    munmap(memory, 4 * page);
}

/* An s-part: page by page over its nodes, and on all of its CPUs. */
static void several_nodes(void **state)
{
    struct numa_binding binding = {.memory = NUMA_INTERLEAVE, .set_count = 2};
    struct numa_mask now;
    char cpus[NUMA_LIST_BYTES];

    numa_mask_add(&binding.nodes, 1);
    numa_mask_add(&binding.nodes, 3);
    numa_mask_add(&binding.sets[0], first_cpu(0));
    numa_enter(&binding);
    assert_int_equal(kernel.count, 1);
    assert_int_equal(kernel.asked[0].mode, MPOL_INTERLEAVE);
    is_mask(&kernel.asked[0].mask, "1,3");
    assert_true(numa_get_cpus(&now));
    is_mask(&now, numa_list(&before, cpus, sizeof cpus));
    assert_true(numa_bind(&binding, cpus, sizeof cpus));
    assert_int_equal(kernel.asked[1].mode, MPOL_INTERLEAVE);
}

static void without_a_place_nothing_is_asked(void **state)
{
    struct numa_binding binding = {.memory = NUMA_ANY};
    numa_enter(&binding);
    assert_false(numa_bind(&binding, &binding, sizeof binding));
    assert_int_equal(kernel.count, 0);
}

/* In many containers: one warning, and on it goes. */
static void a_kernel_that_refuses(void **state)
{
    struct numa_binding binding = {.memory = NUMA_PREFER, .set_count = 1};
    char path[] = "/tmp/fd-numa-log-XXXXXX", text[4096] = "";

    int log = mkstemp(path), stderr_copy = dup(2);
    dup2(log, 2);
    log_init("test", LOG_INFO, false);
    numa_mask_add(&binding.nodes, 0);
    binding.sets[0] = before;
    kernel.refuse_with = EPERM;
    numa_enter(&binding);
    assert_false(numa_bind(&binding, &binding, sizeof binding));
    assert_false(numa_bind(&binding, &binding, sizeof binding));
    dup2(stderr_copy, 2);
    close(stderr_copy);
    assert_true(pread(log, text, sizeof text - 1, 0) > 0);
    close(log);
    unlink(path);
    assert_int_equal(kernel.count, 3);
    const char *warning = strstr(text, "NUMA-REFUSED call=set_mempolicy nodes=0 why=\"Operation not permitted\"");
    assert_non_null(warning);
    assert_null(strstr(warning + 1, "NUMA-REFUSED"));
    assert_non_null(strstr(text, "NUMA memory=any nodes=0"));
}

static void note_cpus(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct numa_mask *cpus = arg;
    numa_get_cpus(&cpus[thread_index]);
}

/* More threads than CPUs, so that none has its own: each is on the CPUs of a node, in turn. */
static void threads_are_spread_over_nodes(void **state)
{
    const uint32_t first = first_cpu(0), second = first_cpu(first + 1);
    struct numa_mask sets[2] = {0}, cpus[5] = {0};
    struct thread_pool *pool;
    char text[NUMA_LIST_BYTES];

    if (second == NUMA_ID_END)
        skip();
    numa_mask_add(&sets[0], first);
    numa_mask_add(&sets[1], second);
    struct numa_mask two = sets[0];
    numa_mask_add(&two, second);
    assert_true(numa_set_cpus(&two));
    assert_int_equal(thread_pool_open(5, &pool), STATUS_OK);
    assert_string_equal(thread_pool_cpus(pool), "any");
    thread_pool_spread(pool, sets, 1);
    assert_string_equal(thread_pool_cpus(pool), "any");
    thread_pool_spread(pool, sets, 2);
    assert_string_equal(thread_pool_cpus(pool), "nodes");
    thread_pool_run(pool, note_cpus, cpus);
    is_mask(&cpus[0], numa_list(&two, text, sizeof text));
    for (uint32_t i = 1; i < 5; i++)
        is_mask(&cpus[i], numa_list(&sets[i % 2], text, sizeof text));
    thread_pool_close(pool);

    assert_int_equal(thread_pool_open(2, &pool), STATUS_OK); /* each has its own already */
    thread_pool_spread(pool, sets, 2);
    assert_string_equal(thread_pool_cpus(pool), "own");
    thread_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_node, begin, end),
        cmocka_unit_test_setup_teardown(several_nodes, begin, end),
        cmocka_unit_test_setup_teardown(without_a_place_nothing_is_asked, begin, end),
        cmocka_unit_test_setup_teardown(a_kernel_that_refuses, begin, end),
        cmocka_unit_test_setup_teardown(threads_are_spread_over_nodes, begin, end),
    };
    return cmocka_run_group_tests_name("numa", tests, NULL, NULL);
}

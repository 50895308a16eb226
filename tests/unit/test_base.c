/* test_base.c: the foundations: sizes, settings, errors, the thread pool. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/options.h"
#include "common/base/thread_pool.h"
#include "tests/cmocka.h"
#include "tests/integration/pace.h"

static void sizes_are_parsed_with_units(void **state)
{
    uint64_t bytes;
    assert_int_equal(options_parse_size("512", &bytes), STATUS_OK);
    assert_int_equal(bytes, 512);
    assert_int_equal(options_parse_size("1.5G", &bytes), STATUS_OK);
    assert_int_equal(bytes, 3ull << 29);
    assert_int_equal(options_parse_size("2MiB", &bytes), STATUS_OK);
    assert_int_equal(bytes, 2u << 20);
    assert_int_not_equal(options_parse_size("", &bytes), STATUS_OK);
    assert_int_not_equal(options_parse_size("-1", &bytes), STATUS_OK);
    assert_int_not_equal(options_parse_size("12Q", &bytes), STATUS_OK);
    assert_int_not_equal(options_parse_size("nan", &bytes), STATUS_OK);
    assert_int_not_equal(options_parse_size("1e30G", &bytes), STATUS_OK);
}

static void flags_come_before_environment(void **state)
{
    uint32_t batch = 8, port = 1;
    bool loud = true;
    struct option table[] = {
        {"max-batch", OPTION_U32, &batch, "N", "rows", 1, 64},
        {"port", OPTION_U32, &port, "N", "port", 0, 65535},
        {"loud", OPTION_BOOL, &loud, NULL, "noise", 0, 0},
    };
    struct program program = {.name = "test", .purpose = "p", .options = table, .option_count = 3};
    struct error error;
    char *argv[] = {"test", "--max-batch", "32", "--no-loud", NULL};
    setenv("FD_MAX_BATCH", "16", 1);
    setenv("FD_PORT", "99", 1);
    assert_int_equal(options_parse(&program, 4, argv, &error), STATUS_OK);
    assert_int_equal(batch, 32);
    assert_int_equal(port, 99);
    assert_false(loud);
    char *bad[] = {"test", "--max-batch=65", NULL};
    assert_int_equal(options_parse(&program, 2, bad, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "max-batch"));
    assert_non_null(strstr(error.text, "1 to 64"));
    char *unknown[] = {"test", "--nope", NULL};
    assert_int_equal(options_parse(&program, 2, unknown, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--nope"));
}

static void choices_and_switches_take_their_words_only(void **state)
{
    const char *mode = "sls";
    bool loud = true;
    struct option table[] = {
        {"mode", OPTION_CHOICE, &mode, "sls|greedy|off", "how", 0, 0},
        {"loud", OPTION_BOOL, &loud, NULL, "noise", 0, 0},
    };
    struct program program = {.name = "test", .purpose = "p", .options = table, .option_count = 2, .operand_name = "FILE"};
    struct error error;
    char *good[] = {"test", "a file", "--mode", "greedy", "--loud", "off", "another", NULL};
    assert_int_equal(options_parse(&program, 7, good, &error), STATUS_OK);
    assert_string_equal(mode, "greedy");
    assert_false(loud);
    assert_int_equal(program.operand_count, 2);
    assert_string_equal(program.operands[0], "a file");
    assert_string_equal(program.operands[1], "another");
    char *no_word[] = {"test", "--loud", "a file", NULL};
    assert_int_equal(options_parse(&program, 3, no_word, &error), STATUS_OK);
    assert_true(loud);
    assert_int_equal(program.operand_count, 1);
    static const char *const bad[] = {"--mode=",    "--mode=greed", "--mode=sls|greedy",
                                      "--mode=SLS", "--loud=maybe", "--loud=on|true"};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        char flag[32], *argv[] = {"test", flag, NULL};
        snprintf(flag, sizeof flag, "%s", bad[i]);
        assert_int_equal(options_parse(&program, 2, argv, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, i < 4 ? "--mode is " : "--loud is "));
        assert_non_null(strstr(error.text, i < 4 ? "want sls, greedy or off" : "want on or off"));
    }
}

static void a_number_may_be_left_to_the_program(void **state)
{
    uint32_t chunk = 5, plain = 5;
    struct option table[] = {
        {"chunk", OPTION_U32, &chunk, "N|auto", "rows", 0, 100},
        {"plain", OPTION_U32, &plain, "N", "rows", 0, 100},
    };
    struct program program = {.name = "test", .purpose = "p", .options = table, .option_count = 2};
    struct error error;
    char *left[] = {"test", "--chunk", "auto", NULL};
    assert_int_equal(options_parse(&program, 3, left, &error), STATUS_OK);
    assert_int_equal(chunk, 0);
    char *given[] = {"test", "--chunk", "64", NULL};
    assert_int_equal(options_parse(&program, 3, given, &error), STATUS_OK);
    assert_int_equal(chunk, 64);
    char *wrong[] = {"test", "--chunk=automatic", NULL};
    assert_int_equal(options_parse(&program, 2, wrong, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "want a number or auto"));
    char *not_there[] = {"test", "--plain=auto", NULL};
    assert_int_equal(options_parse(&program, 2, not_there, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(plain, 5);
}

static void quoting_escapes_control_bytes(void **state)
{
    char buffer[64];
    assert_string_equal(log_quote(buffer, sizeof buffer, "a\"b\n"), "\"a\\\"b\\x0a\"");
}

struct job {
    struct thread_pool *pool;
    atomic_uint sum[3];
};

static void add_all(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct job *job = arg;
    for (int phase = 0; phase < 3; phase++) {
        for (uint32_t item; (item = thread_pool_claim(job->pool)) < 100;)
            atomic_fetch_add(&job->sum[phase], item);
        thread_pool_barrier(job->pool);
        assert_int_equal(atomic_load(&job->sum[phase]), 4950);
    }
}

static void every_item_of_a_phase_is_claimed_once(void **state)
{
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct job job = {0};
        assert_int_equal(thread_pool_open(threads, &job.pool), STATUS_OK);
        for (int round = 0; round < 200; round++) {
            memset(job.sum, 0, sizeof job.sum);
            thread_pool_run(job.pool, add_all, &job);
        }
        thread_pool_close(job.pool);
    }
}

/* A call wakes them again and again until each has been woken once: one may not have fallen asleep yet. */
static void threads_that_sleep_can_be_woken(void **state)
{
    struct thread_pool *pool;
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);

    assert_int_equal(thread_pool_open(3, &pool), STATUS_OK);
    while (thread_pool_count(pool).woken < 2 && !pace_passed(&deadline)) {
        thread_pool_wake(pool);
        sched_yield();
    }
    assert_true(thread_pool_count(pool).woken >= 2);
    assert_int_equal(thread_pool_count(pool).jobs, 0);
    thread_pool_close(pool);
}

struct where {
    int cpu, allowed; /* CPUs that it may run on */
};

static void note_cpu(void *arg, uint32_t thread_index, uint32_t thread_count)
{
    struct where *where = (struct where *)arg + thread_index;
    cpu_set_t usable;
    where->allowed = sched_getaffinity(0, sizeof usable, &usable) ? 0 : CPU_COUNT(&usable);
    where->cpu = sched_getcpu();
}

/* As many threads as CPUs: each has its own, and the caller, which keeps all of them, begins on the first. */
static void threads_have_cpus_of_their_own(void **state)
{
    struct thread_pool *pool;
    struct where where[1024];
    cpu_set_t all, last;
    int first = -1;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    uint32_t count = (uint32_t)CPU_COUNT(&all), at_home = 0;
    assert_in_range(cpu_count_usable(), 1, count);
    if (count == 1)
        skip(); // then there is nothing to choose
    CPU_ZERO(&last);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &all)) {
            first = first < 0 ? cpu : first;
            if (++seen == (int)count)
                CPU_SET((size_t)cpu, &last);
        }
    assert_int_equal(thread_pool_open(count, &pool), STATUS_OK);
    for (int round = 0; round < 20; round++) {
        assert_int_equal(sched_setaffinity(0, sizeof last, &last), 0); // where another thread of the pool is
        assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
        thread_pool_run(pool, note_cpu, where);
        at_home += where[0].cpu == first;
        assert_int_equal(where[0].allowed, count);
        for (uint32_t i = 1; i < count; i++) {
            assert_int_equal(where[i].allowed, 1);
            for (uint32_t k = 1; k < i; k++)
                assert_int_not_equal(where[i].cpu, where[k].cpu);
        }
    }
    thread_pool_close(pool);
    assert_true(at_home >= 15); // others may push it aside
}

static void prefixes_never_overflow(void **state)
{
    struct error error;
    char longtext[1000];
    memset(longtext, 'x', sizeof longtext - 1);
    longtext[sizeof longtext - 1] = '\0';
    error_set(&error, STATUS_DATA_LOSS, "%s", longtext);
    assert_int_equal(error_prefix(&error, "%s", longtext), STATUS_DATA_LOSS);
    assert_true(strlen(error.text) < sizeof error.text);
}

static void what_does_not_fit_is_refused_with_numbers(void **state)
{
    const uint64_t available = memory_available_bytes(), huge = 1ull << 60;
    const struct memory_plan fits = {.fixed_bytes = available / 2, .start_bytes = 1, .page_bytes = 4096, .pool_bytes = 1 << 20};
    const struct memory_plan fixed = {.fixed_bytes = huge}, start = {.start_bytes = huge}, pool = {.pool_bytes = huge};
    struct error error;

    assert_true(available > 0 && memory_resident_bytes() > 100000);
    assert_int_equal(memory_plan_check(&fits, "rows=1", &error), STATUS_OK);
    assert_int_equal(memory_plan_check(&fixed, "rows=1", &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "1099511627776 MiB of memory are needed at start (rows=1), "));
    assert_int_equal(memory_plan_check(&start, "", &error), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(memory_plan_check(&pool, "", &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "1099511627776 MiB of KV pages are asked for (--kv-memory, --local-pool), there are "));
}

static void a_config_that_cannot_be_read_is_no_empty_one(void **state)
{
    struct program program = {.name = "test", .purpose = "p"};
    struct error error;
    char *argv[] = {"test", "--config", "/tmp", NULL};

    assert_int_equal(options_parse(&program, 3, argv, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "--config /tmp: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_parsed_with_units),
        cmocka_unit_test(flags_come_before_environment),
        cmocka_unit_test(choices_and_switches_take_their_words_only),
        cmocka_unit_test(a_number_may_be_left_to_the_program),
        cmocka_unit_test(quoting_escapes_control_bytes),
        cmocka_unit_test(every_item_of_a_phase_is_claimed_once),
        cmocka_unit_test(threads_that_sleep_can_be_woken),
        cmocka_unit_test(threads_have_cpus_of_their_own),
        cmocka_unit_test(prefixes_never_overflow),
        cmocka_unit_test(what_does_not_fit_is_refused_with_numbers),
        cmocka_unit_test(a_config_that_cannot_be_read_is_no_empty_one),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}

// test_priority.c: a thread of short turns keeps its niceness, and one whose policy is another one is left as it is.
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "tests/cmocka.h"

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

static struct attributes before, after;

static struct attributes own(void)
{
    struct attributes found = {.size = sizeof found};
    assert_always(syscall(SYS_sched_getattr, 0, &found, sizeof found, 0) == 0);
    return found;
}

static void *usual(void *unused)
{
    assert_always(setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + 1) == 0);
    before = own();
    priority_short_turns();
    after = own();
    return unused;
}

static void *idle(void *unused)
{
    const struct sched_param none = {0};
    assert_always(sched_setscheduler(0, SCHED_IDLE, &none) == 0);
    before = own();
    priority_short_turns();
    after = own();
    return unused;
}

static void run(void *(*main)(void *))
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, main, NULL), 0);
    pthread_join(thread, NULL);
}

static void a_thread_of_the_usual_policy_gets_a_short_slice(void **state)
{
    run(usual);
    assert_int_equal(after.policy, SCHED_OTHER);
    assert_int_equal(after.nice, before.nice);
    if (before.runtime_ns) // this kernel has slices of threads
        assert_in_range(after.runtime_ns, 1, before.runtime_ns - 1);
    else
        assert_int_equal(after.runtime_ns, 0);
}

static void another_policy_stays(void **state)
{
    run(idle);
    assert_int_equal(after.policy, SCHED_IDLE);
    assert_int_equal(after.runtime_ns, before.runtime_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_of_the_usual_policy_gets_a_short_slice),
        cmocka_unit_test(another_policy_stays),
    };
    return cmocka_run_group_tests_name("priority", tests, NULL, NULL);
}

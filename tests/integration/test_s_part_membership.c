// test_s_part_membership.c: what the scheduler is told of an s-part whose engine is busy. The scheduler is played on the control loop; the
// engine's loop turns when the test turns it.
#include "common/base/log.h"
#include "common/model/model.h"
#include "services/s-part/s_part.h"
#include "tests/integration/await.h"
#include "tests/integration/kept_log.h"
#include "tests/integration/played_peer.h"

#define ADDRESS "inproc://test-s-part-membership"

enum { BUSY_US = 900000, HELD = 3 }; // a member that is not registered tries again five times a second

static struct rpc_server *scheduler;
static struct s_part s_part;
static struct model model;
static uint32_t registrations, beats, held, lists;
static bool no_answer, is_silent;

static uint32_t played_held(const struct backend *backend, struct kv_held *out, uint32_t capacity)
{
    for (uint32_t i = 0; i < HELD && i < capacity; i++)
        out[i] = (struct kv_held){.sequence = i + 1, .positions = 10, .certain = 10};
    lists += out != NULL;
    return HELD;
}

static void forget(void *user) { (void)user; }

static const struct backend_ops played = {.pool_held = played_held};

static void take_registration(struct rpc_call *call, void *user)
{
    const Fastdecode__RegisterRequest *request = rpc_call_unpack(call, &fastdecode__register_request__descriptor);
    Fastdecode__RegisterReply reply = FASTDECODE__REGISTER_REPLY__INIT;
    assert_non_null(request);
    registrations++;
    held = (uint32_t)request->n_held;
    if (no_answer)
        rpc_call_fail(call, STATUS_UNAVAILABLE, "not now");
    else
        rpc_call_reply(call, &reply.base);
}

static void take_heartbeat(struct rpc_call *call, void *user)
{
    Fastdecode__HeartbeatReply reply = FASTDECODE__HEARTBEAT_REPLY__INIT;
    beats++;
    if (is_silent)
        rpc_call_on_cancel(call, forget, NULL);
    else
        rpc_call_reply(call, &reply.base);
}

static int open_all(void **state)
{
    struct error error;
    registrations = beats = lists = 0;
    no_answer = is_silent = false;
    s_part = (struct s_part){.settings = {.scheduler = ADDRESS, .name = "s-part"},
                             .incarnation = member_incarnation(),
                             .loaded = {.model = &model},
                             .engine = {.ops = &played}};
    if (thread_pool_open(1, &s_part.pool) || sequence_table_open(16, 8, 64, &s_part.engine.sequences) ||
        rpc_loop_open(&s_part.control.loop) || rpc_loop_open(&s_part.engine.loop))
        return -1;
    scheduler = open_cluster(s_part.control.loop, ADDRESS, take_registration, take_heartbeat);
    return membership_open(&s_part, &error);
}

static int close_all(void **state)
{
    member_close(s_part.control.member);
    rpc_server_close(scheduler);
    for (uint32_t did = 1; did;)
        did = rpc_loop_run(s_part.control.loop, 0, 0) + rpc_loop_run(s_part.engine.loop, 0, 0);
    rpc_loop_close(s_part.control.loop);
    rpc_loop_close(s_part.engine.loop);
    sequence_table_close(s_part.engine.sequences);
    thread_pool_close(s_part.pool);
    return 0;
}

static void turn_both(void)
{
    rpc_loop_run(s_part.control.loop, 2000, 0);
    rpc_loop_run(s_part.engine.loop, 0, 0);
}

static void stay_busy(void)
{
    const uint64_t until_us = clock_now_us() + BUSY_US;
    AWAIT(rpc_loop_run(s_part.control.loop, 2000, 0), clock_now_us() > until_us);
}

static void a_busy_engine_registers_once(void **state)
{
    stay_busy();
    assert_int_equal(registrations, 0);
    AWAIT(turn_both(), lists > 0);
    assert_int_equal(lists, 1); // of all attempts; later ones are made where an answer takes longer than the time to the next
    AWAIT(turn_both(), beats > 1);
    assert_int_equal(held, HELD);
}

// A registration that was not taken is sent again, with a new list.
static void a_refused_registration_is_repeated(void **state)
{
    no_answer = true;
    AWAIT(turn_both(), registrations > 1);
    no_answer = false;
    AWAIT(turn_both(), beats > 1);
    assert_int_equal(lists, registrations);
}

// As one whose host is gone: its connection stands, and it says nothing. Another one may have its address by now.
static void a_silent_scheduler_is_dialed_anew(void **state)
{
    AWAIT(turn_both(), beats > 1);
    is_silent = true;
    AWAIT(turn_both(), !member_is_registered(s_part.control.member));
    is_silent = false;
    beats = 0;
    AWAIT(turn_both(), beats > 1);
    assert_true(member_is_registered(s_part.control.member));
    assert_int_equal(registrations, 2);
    assert_int_equal(kept_log_count("SCHEDULER-SILENT", "scheduler=" ADDRESS " seconds=", NULL), 1);
    assert_int_equal(kept_log_count("SCHEDULER-BACK", "silent_seconds=", NULL), 1);
}

// Nor does a member that leaves wait for the scheduler without a word. The connection stays, since its end would end the drain.
static void a_silent_scheduler_is_said_in_a_drain_too(void **state)
{
    AWAIT(turn_both(), beats > 1);
    kept_log_forget();
    is_silent = true;
    member_drain(s_part.control.member, forget, NULL);
    AWAIT(turn_both(), kept_log_count("SCHEDULER-SILENT", NULL, NULL) > 0);
    const uint32_t then = beats;
    AWAIT(turn_both(), beats > then + 3);
    assert_int_equal(kept_log_count("SCHEDULER-SILENT", NULL, NULL), 1);
    is_silent = false;
    AWAIT(turn_both(), kept_log_count("SCHEDULER-BACK", NULL, NULL) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_busy_engine_registers_once, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_refused_registration_is_repeated, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_silent_scheduler_is_dialed_anew, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_silent_scheduler_is_said_in_a_drain_too, open_all, close_all),
    };
    kept_log_open();
    log_init("test", LOG_INFO, false);
    return kept_log_show(cmocka_run_group_tests(tests, NULL, NULL));
}

// test_incarnation.c: a member whose clock was set back, and a member whose name was taken. The scheduler is played here, on the
// member's own loop.
#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "tests/integration/await.h"
#include "tests/integration/played_peer.h"

#define ADDRESS "inproc://test-incarnation"

static struct rpc_loop *loop;
static struct rpc_server *scheduler;
static struct member *member;

// what the scheduler knows and was told
static uint64_t newest, s_part, said_in_hello;
static bool clock_put_right; // the member is told a number below its own
static uint32_t asked, refused, beats;
static uint64_t asked_us[8]; // when
static bool says_registered; // that it has been registered before
static bool forgotten;       // heartbeats are answered so that the member registers again

// what the service was told
static uint64_t incarnation, s_part_told;
static uint32_t registered;

#define UNTIL(condition) AWAIT(rpc_loop_run(loop, 2000, 0), condition)

static void take_registration(struct rpc_call *call, void *user)
{
    const Fastdecode__RegisterRequest *request = rpc_call_unpack(call, &fastdecode__register_request__descriptor);
    Fastdecode__RegisterReply reply = FASTDECODE__REGISTER_REPLY__INIT;
    assert_non_null(request);
    asked_us[asked++ % 8] = clock_now_us();
    says_registered = request->was_registered;
    said_in_hello = rpc_call_peer(call)->incarnation;
    assert_int_equal(request->incarnation, said_in_hello);
    if (request->incarnation < newest || (clock_put_right && request->incarnation > newest + 1)) {
        reply.newest_incarnation = newest;
        refused++;
    } else {
        newest = request->incarnation;
        reply.scheduler_incarnation = 5;
        reply.s_part_incarnation = s_part;
        forgotten = false;
    }
    rpc_call_reply(call, &reply.base);
}

static void take_heartbeat(struct rpc_call *call, void *user)
{
    Fastdecode__HeartbeatReply reply = FASTDECODE__HEARTBEAT_REPLY__INIT;
    beats++;
    reply.s_part_incarnation = s_part;
    if (forgotten)
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "register again");
    else
        rpc_call_reply(call, &reply.base);
}

static void on_connect(void *user)
{
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    member_register(member, &request);
}

static void on_registered(void *user, const Fastdecode__RegisterReply *reply) { registered++; }

static void fill_heartbeat(void *user, Fastdecode__HeartbeatRequest *heartbeat) { (void)user, (void)heartbeat; }

static void on_incarnation(void *user, uint64_t now) { incarnation = now; }

static void on_s_part(void *user, uint64_t now) { s_part_told = now; }

static int open_all(void **state)
{
    asked = refused = beats = registered = 0;
    newest = s_part = incarnation = s_part_told = 0;
    forgotten = clock_put_right = false;
    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    scheduler = open_cluster(loop, ADDRESS, take_registration, take_heartbeat);
    return 0;
}

static void start_member(uint64_t first)
{
    const struct member_config config = {.scheduler = ADDRESS,
                                         .hello = {.service = "kv-worker", .incarnation = first},
                                         .name = "w",
                                         .on_connect = on_connect,
                                         .on_registered = on_registered,
                                         .fill_heartbeat = fill_heartbeat,
                                         .on_incarnation = on_incarnation,
                                         .on_s_part = on_s_part};
    struct error error;
    assert_int_equal(member_open(loop, &config, &member, &error), STATUS_OK);
}

static int close_all(void **state)
{
    member_close(member);
    rpc_server_close(scheduler);
    while (rpc_loop_run(loop, 0, 0)) {}
    rpc_loop_close(loop);
    return 0;
}

static void a_clock_set_back_keeps_nobody_out(void **state)
{
    newest = member_incarnation() + (3600000ull << 20); // as an earlier start, or anyone, said: an hour ahead
    uint64_t before = newest;
    start_member(member_incarnation());
    UNTIL(registered);
    assert_int_equal(incarnation, before + 1);
    assert_int_equal(newest, before + 1);
    assert_int_equal(said_in_hello, before + 1);
    assert_int_equal(refused, 1);
    UNTIL(beats > 0); // and it stays
    assert_true(member_is_registered(member));
}

// When two members have one name the one that registered first gives way, and does not take turns with the other.
static void a_name_that_another_took_stays_his(void **state)
{
    start_member(member_incarnation());
    UNTIL(registered == 1);
    assert_false(says_registered);
    newest++;
    uint64_t his = newest;
    forgotten = true;
    UNTIL(refused >= 2);
    assert_int_equal(newest, his);
    assert_int_equal(incarnation, 0);
    assert_false(member_is_registered(member));
    assert_true(says_registered);
    newest -= 2; // he is gone, and the scheduler takes this one again
    UNTIL(registered == 2);
    assert_int_equal(incarnation, 0);
}

// A member that is refused asks less and less often, and soon again after it was registered.
static void who_is_refused_asks_seldom(void **state)
{
    start_member(member_incarnation());
    UNTIL(registered == 1);
    newest++;
    forgotten = true;
    asked = 0;
    UNTIL(asked == 6);
    assert_true(asked_us[5] - asked_us[4] >= 900000); // a timer is never early
}

static void nothing_follows_the_last_number(void **state)
{
    newest = UINT64_MAX;
    start_member(member_incarnation());
    UNTIL(refused >= 2);
    assert_int_equal(incarnation, 0);
    assert_int_equal(registered, 0);
}

// A member whose own clock is ahead takes the number that it is told.
static void a_clock_that_is_days_ahead_keeps_nobody_out(void **state)
{
    struct error error;
    clock_put_right = true;
    newest = 1000;
    start_member(2000);
    UNTIL(registered);
    assert_int_equal(incarnation, 1001);
    assert_int_equal(said_in_hello, 1001);
    assert_int_equal(member_check(member, &error), STATUS_OK);
}

// The number of a member that peers know by it cannot be changed: its process ends, and is started again.
static void a_clock_put_right_ends_who_was_registered(void **state)
{
    struct error error;
    start_member(2000);
    UNTIL(registered);
    assert_int_equal(member_check(member, &error), STATUS_OK);
    clock_put_right = forgotten = true; // and the scheduler was started again
    newest = 1000;
    UNTIL(refused);
    UNTIL(member_check(member, &error) == STATUS_UNAVAILABLE);
    assert_int_equal(incarnation, 0);
}

static void the_scheduler_says_which_s_part_it_knows(void **state)
{
    s_part = 7;
    start_member(member_incarnation());
    UNTIL(registered);
    assert_int_equal(s_part_told, 7);
    s_part = 3;
    UNTIL(s_part_told == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_clock_set_back_keeps_nobody_out, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_name_that_another_took_stays_his, open_all, close_all),
        cmocka_unit_test_setup_teardown(who_is_refused_asks_seldom, open_all, close_all),
        cmocka_unit_test_setup_teardown(nothing_follows_the_last_number, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_clock_that_is_days_ahead_keeps_nobody_out, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_clock_put_right_ends_who_was_registered, open_all, close_all),
        cmocka_unit_test_setup_teardown(the_scheduler_says_which_s_part_it_knows, open_all, close_all),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests_name("incarnation", tests, NULL, NULL);
}

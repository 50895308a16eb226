// test_scheduler_members.c: who may join the scheduler's mesh, who is taken for dead, and what becomes of what members hold. The members are
// played here.
#include <string.h>

#include "common/base/log.h"
#include "tests/integration/scheduler_mesh.h"

// It would refuse all steps of mini-batch 1, and with them half of the sequences.
static void an_s_part_with_fewer_mini_batches_is_refused(void **state)
{
    mesh_open(16, 16, 2);
    struct outcome outcome = register_s_part(usual);
    assert_int_equal(outcome.status, STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(outcome.text, "--mini-batches"));
    assert_int_equal(register_s_part((struct registration){100000, 640, 2, false, false, 0}).status, STATUS_OK);
    mesh_close();
}

// Long after the start of the scheduler a worker is cut off and comes back. Its sequence could be nowhere else, and goes on there.
static void a_worker_that_comes_back_gives_back_what_it_holds(void **state)
{
    struct rpc_channel *gateway = open_on_worker();
    s_part.pace = 1;
    generate(gateway, &streams[0], 0, 20, 100);
    UNTIL(streams[0].tokens > 20);
    kv_worker_close();
    UNTIL(!worker(1)->up && !s_part.waiting_count && sched_awaits_rebuild(scheduler->core.sched, streams[0].sequence));
    s_part.pace = UINT32_MAX;
    kv_worker_open(streams[0].sequence, 1, 35, 35);
    UNTIL(s_part.waiting_count > 0);
    s_part.steps = 0;
    answer_steps();
    assert_int_equal(s_part.first_position, 35);
    assert_int_equal(kv_worker.freed, 0);
    s_part.pace = 0;
    UNTIL(streams[0].outcome.ended);
    assert_int_equal(streams[0].tokens, 100);
    assert_int_equal(stats_now().reclaimed, 1);
    mesh_close();
}

// After a start of the scheduler the holder of a split sequence's second part may register before that of its first. It keeps the part for as
// long as the first one may come.
static void a_later_part_waits_for_the_first_one(void **state)
{
    enum { SEQUENCE = 1000 };
    mesh_open(16, 16, 1);
    scheduler->claims.from_us = clock_now_us();
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    kv_worker.first_position = KV_EXTENT_TOKENS;
    kv_worker_open(SEQUENCE, 1, 2 * KV_EXTENT_TOKENS, 2 * KV_EXTENT_TOKENS);
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &streams[0], SEQUENCE, 2 * KV_EXTENT_TOKENS + 10, 5);
    UNTIL(scheduler->claims.settling_count == 1);
    for (uint32_t i = 0; i < 3; i++)
        claims_settle(scheduler);
    assert_true(scheduler->claims.settling_count == 1 && scheduler->claims.held_count == 1);
    scheduler->claims.from_us -= 2 * SETTLE_US; // it has not come
    UNTIL(kv_worker.freed == 1);
    assert_true(scheduler->claims.settling_count == 0 && scheduler->claims.held_count == 0);
    UNTIL((answer_frees(), streams[0].outcome.ended));
    assert_int_equal(streams[0].tokens, 5);
    kv_worker.first_position = 0;
    mesh_close();
}

// A worker's pages are kept until sequences can come again, however long the s-part loads its model.
static void pages_wait_for_an_s_part_that_loads_for_long(void **state)
{
    enum { SEQUENCE = 77, HELD = 45 };
    mesh_open(16, 16, 1);
    scheduler->host.started_us -= 10 * CLAIM_US;
    scheduler->claims.from_us = 0; // no s-part has been up
    assert_int_equal(kv_worker_register(SEQUENCE, 1, HELD, HELD).status, STATUS_OK);
    UNTIL(rpc_channel_is_up(worker(1)->channel));
    members_check(scheduler, clock_now_us());
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    UNTIL(worker(1)->up && scheduler->s_part.member.up);
    assert_int_equal(kv_worker.freed, 0);
    assert_true(claims_may_come(&scheduler->claims, clock_now_us()));
    struct rpc_channel *gateway = gateway_open();
    resubmitted = 30;
    s_part.steps = 0;
    s_part.pace = 1;
    generate(gateway, &streams[0], SEQUENCE, 20, resubmitted + 1);
    UNTIL(s_part.steps == 1);
    assert_int_equal(s_part.position, HELD);
    UNTIL(streams[0].outcome.ended);
    resubmitted = s_part.pace = 0;
    mesh_close();
}

// A worker holds more sequences that nobody claims than are freed at once.
static void all_that_nobody_claims_is_freed(void **state)
{
    enum { MANY = 6000 };
    mesh_open_usual();
    scheduler->claims.from_us = clock_now_us();
    kv_worker_open(1000, MANY, 5, 5);
    assert_int_equal(kv_worker.freed, 0); // it may be claimed
    scheduler->claims.from_us -= 2 * CLAIM_US;
    members_check(scheduler, clock_now_us());
    UNTIL(kv_worker.freed > MANY / 2);
    UNTIL((answer_frees(), members_check(scheduler, clock_now_us()), kv_worker.freed == MANY));
    answer_frees();
    mesh_close();
}

// Time for which the scheduler itself does not run counts against no member. Afterwards silence is noticed as before.
static void a_stall_of_the_scheduler_loses_no_member(void **state)
{
    const uint64_t stall_us = 600000000, silence_us = 3000000;
    mesh_open(16, 16, 1);
    scheduler->settings.worker_timeout_ms = (uint32_t)(silence_us / 1000);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    kv_worker_open(0, 0, 0, 0);
    uint64_t now_us = clock_now_us(), claims_end_us = scheduler->claims.from_us + CLAIM_US, heard_us;
    members_check(scheduler, now_us);
    members_check(scheduler, now_us += stall_us);
    assert_true(scheduler->s_part.member.up && worker(1)->up);
    assert_in_range(scheduler->claims.from_us + CLAIM_US - claims_end_us, stall_us - CHECK_EVERY_US, stall_us);
    heard_us = worker(1)->heard_us;
    while (worker(1)->up)
        members_check(scheduler, now_us += CHECK_EVERY_US);
    assert_in_range(now_us - heard_us, silence_us, silence_us + CHECK_EVERY_US);
    mesh_close();
}

static struct member *member_named(const char *name)
{
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        if (!strcmp(worker(i)->name, name))
            return worker(i);
    return NULL;
}

// Recreated containers have new names. Each takes the place of one that is gone, unless all of those were heard a moment ago.
static void names_that_do_not_come_back_give_way(void **state)
{
    enum { NAMES = SCHED_PLACES_MAX + 43 };
    char name[32];
    mesh_open_usual();
    kv_worker.name = name;
    for (uint32_t i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "kv-worker-%u", i);
        assert_int_equal(kv_worker_register(0, 0, 0, 0).status, STATUS_OK);
        UNTIL(member_named(name)->up);
        kv_worker_close();
        UNTIL(!member_named(name)->up);
        member_named(name)->heard_us = clock_now_us() - NAMES_KEPT_US / 2;
    }
    assert_null(member_named("kv-worker-43"));
    assert_non_null(member_named("kv-worker-44"));
    for (uint32_t i = 1; i < scheduler->places.count; i++)
        worker(i)->heard_us = clock_now_us();
    snprintf(name, sizeof name, "kv-worker-%u", NAMES);
    struct outcome outcome = kv_worker_register(0, 0, 0, 0);
    assert_int_equal(outcome.status, STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(outcome.text, "too many"));
    mesh_close();
}

// All clocks were two days ahead and have been put right since. The worker takes the number after the newest, as it is told to. Another
// number so far ahead is refused: who comes with it is told the newest of its name, or the number of this moment.
static void a_clock_put_right_by_days_keeps_no_worker_out(void **state)
{
    const uint64_t ahead = member_incarnation() + (2 * UINT64_C(86400000) << 20);
    mesh_open_usual();
    kv_worker.incarnation = 0;
    kv_worker_open(0, 0, 0, 0);
    kv_worker_close();
    UNTIL(!worker(1)->up);
    worker(1)->incarnation = ahead;
    kv_worker.incarnation = ahead + 1;
    assert_int_equal(kv_worker_register(0, 0, 0, 0).newest, ahead);
    kv_worker_close();
    kv_worker.incarnation = ahead;
    kv_worker.name = "stranger";
    const uint64_t now = member_incarnation();
    struct outcome outcome = kv_worker_register(0, 0, 0, 0);
    assert_in_range(outcome.newest, now, member_incarnation());
    kv_worker_close();
    kv_worker.incarnation = outcome.newest;
    assert_int_equal(kv_worker_register(0, 0, 0, 0).newest, 0);
    kv_worker.name = NULL;
    kv_worker_close();
    kv_worker.incarnation = ahead;
    kv_worker_open(0, 0, 0, 0);
    assert_int_equal(worker(1)->incarnation, ahead + 1);
    kv_worker_close();
    kv_worker.incarnation = 0;
    mesh_close();
}

// Its heartbeats say that its tensor thread has not turned for an hour.
static void hang(void)
{
    assert_int_equal(kv_worker_beat(7), STATUS_OK);
    worker(1)->turned_us -= UINT64_C(3600000000);
    assert_int_equal(kv_worker_beat(7), STATUS_OK);
    scheduler->host.checked_us = 0; // a pause of this test is not forgiven, which in the first hour of a machine forgives the hour
    members_check(scheduler, clock_now_us());
}

// It beats and does nothing else. If a step waits for it, it may be at work, and the s-part says when that takes too long.
static void a_worker_whose_tensors_hang_is_down(void **state)
{
    struct rpc_channel *gateway = open_on_worker();
    assert_int_equal(kv_worker_beat(1), STATUS_OK);
    assert_int_equal(kv_worker_beat(1), STATUS_OK);
    members_check(scheduler, clock_now_us());
    assert_true(worker(1)->up);
    hang();
    assert_false(worker(1)->up);
    assert_int_equal(kv_worker_beat(7), STATUS_FAILED_PRECONDITION); // it is to register, for which its tensor thread must turn
    kv_worker_close();

    kv_worker_open(0, 0, 0, 0);
    s_part.pace = UINT32_MAX;
    generate(gateway, &streams[0], 0, 20, 20);
    UNTIL(s_part.waiting_count > 0);
    hang();
    assert_true(worker(1)->up);
    s_part.loses = 1;
    answer_steps();
    UNTIL(!worker(1)->up);
    kv_worker_close();
    s_part.pace = s_part.loses = 0;
    kv_worker_open(0, 0, 0, 0);
    UNTIL(streams[0].outcome.ended);
    assert_int_equal(streams[0].tokens, 20);
    mesh_close();
}

// Whatever the cause. If there is no other place, it is tried again and again.
static void a_worker_that_loses_its_rows_again_and_again_is_down(void **state)
{
    struct rpc_channel *gateway = open_on_worker();
    struct place *place = worker(1)->place;
    s_part.loses = 1;
    generate(gateway, &streams[0], 0, 20, 20);
    UNTIL((answer_frees(), place->losses.last_us = 0, place->losses.count > LOSSES_MAX));
    assert_true(worker(1)->up);
    scheduler->places.of[0].pages_total = 1000; // as if there was another
    place->losses.count = 0;
    place->losses.last_us = UINT64_MAX / 2; // all at the same moment
    s_part.steps = 0;
    UNTIL((answer_frees(), s_part.steps > 2 * LOSSES_MAX));
    assert_true(worker(1)->up && place->losses.count == 0);
    UNTIL((answer_frees(), place->losses.last_us = 0, !worker(1)->up));
    assert_int_equal(kv_worker_beat(0), STATUS_FAILED_PRECONDITION);
    mesh_close();
}

// Returns the state that gateways are told now.
static const Fastdecode__MeshState *state_now(void)
{
    scheduler->watch.published_us = 0;
    watch_publish(scheduler, clock_now_us());
    return &scheduler->watch.last;
}

// Turns the mesh until the s-part has been asked so often whether it reaches the worker.
static void until_asked(uint32_t count)
{
    const uint32_t wanted = s_part.reaches + count;
    UNTIL((members_check(scheduler, clock_now_us()), s_part.reaches >= wanted));
}

// Rows would be lost at once, over and over: the only place is taken out, the s-part is asked ever more rarely, and nothing is computed until it
// says yes. Then the streams go on.
static void a_worker_that_the_s_part_does_not_reach_is_waited_for(void **state)
{
    enum { STEPS_ENOUGH = 10 };
    struct rpc_channel *gateway = open_on_worker();
    const struct place *place = worker(1)->place;
    assert_true(s_part.reaches == 1 && state_now()->ready);
    s_part.pace = 1;
    generate(gateway, &streams[0], 0, 20, 100);
    UNTIL(streams[0].tokens > 20);
    s_part.loses = s_part.unreachable = 1;
    s_part.steps = 0;
    UNTIL((answer_frees(), !worker(1)->up));
    assert_in_range(s_part.steps, 1, STEPS_ENOUGH);
    assert_false(state_now()->ready);
    assert_string_equal(state_now()->reason, "the s-part cannot reach KV worker kv-worker");
    kv_worker_close();

    assert_int_equal(kv_worker_register(streams[0].sequence, 1, 25, 25).status, STATUS_OK); // it is another process now
    UNTIL(s_part.waiting_count == 0);
    s_part.steps = 0;
    until_asked(1);
    for (uint64_t wait_us = REACH_FIRST_US; wait_us <= 4 * REACH_FIRST_US; wait_us *= 2) {
        UNTIL(place->reach.wait_us == wait_us);
        until_asked(1);
    }
    generate(gateway, &streams[1], 0, 30, 10);
    until_asked(1);
    assert_true(s_part.steps == 0 && !worker(1)->up && !state_now()->ready);
    assert_int_equal(place->reach.failures.count, 1); // line of the log
    assert_true(place->reach.failures.unlogged > 2);

    s_part.loses = s_part.unreachable = 0;
    UNTIL((members_check(scheduler, clock_now_us()), worker(1)->up));
    UNTIL((answer_frees(), streams[0].outcome.ended && streams[1].outcome.ended));
    assert_true(streams[0].tokens == 100 && streams[1].tokens == 10);
    assert_true(state_now()->ready && place->reach.wait_us == 0);
    mesh_close();
}

// It waits alone: what is at another place goes on, and the mesh is ready. The next s-part is asked, too.
static void a_worker_that_is_not_reached_keeps_no_other_from_work(void **state)
{
    mesh_open_usual();
    UNTIL(scheduler->s_part.member.up);
    s_part.unreachable = 1;
    assert_int_equal(kv_worker_register(0, 0, 0, 0).status, STATUS_OK);
    until_asked(2);
    assert_true(!worker(1)->up && state_now()->ready);
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &streams[0], 0, 20, 100);
    UNTIL(streams[0].outcome.ended);
    assert_int_equal(streams[0].tokens, 100);
    until_asked(1);
    assert_false(worker(1)->up);

    s_part_close();
    UNTIL(!scheduler->s_part.member.up);
    UNTIL((members_check(scheduler, clock_now_us()), worker(1)->up)); // nobody says no
    s_part_open(scheduler->host.loop);
    s_part.unreachable = 1;
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    UNTIL((members_check(scheduler, clock_now_us()), scheduler->s_part.member.up && !worker(1)->up));
    mesh_close();
}

// `up --device auto` starts workers that say they share the s-part's cores, which is true unless the s-part computes on a device.
static void a_worker_has_the_cores_beside_an_s_part_on_a_device(void **state)
{
    mesh_open(16, 16, 1);
    for (int on_device = 0; on_device <= 1; on_device++) {
        struct sched_place_info place;
        assert_int_equal(register_s_part((struct registration){100000, 640, 1, on_device, false, 0}).status, STATUS_OK);
        UNTIL(scheduler->s_part.member.up);
        if (on_device == 0)
            kv_worker_open(0, 0, 0, 0);
        sched_get_place(scheduler->core.sched, 1, &place);
        assert_true(place.up && place.shares_cores == !on_device);
        s_part_change();
    }
    mesh_close();
}

static void a_model_that_is_refused_once_is_refused_again(void **state)
{
    mesh_open(16, 16, 1);
    for (int i = 0; i < 2; i++) {
        struct outcome outcome = register_s_part((struct registration){1, 640, 1, false, false, 0});
        assert_int_not_equal(outcome.status, STATUS_OK);
        assert_non_null(strstr(outcome.text, "context_tokens"));
    }
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    UNTIL(scheduler->s_part.member.up);
    mesh_close();
}

// An s-part of an older release skips what it does not know of a Sampling, and would draw other tokens.
static void a_request_goes_only_to_an_s_part_that_knows_what_it_asks(void **state)
{
    struct registration newer = usual;
    newer.feature = FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_BANS;
    mesh_open_usual();
    UNTIL(scheduler->s_part.member.up);
    struct rpc_channel *channel = gateway_open();
    min_tokens = 2;
    generate(channel, &streams[0], 0, 20, 4);
    UNTIL(streams[0].outcome.ended);
    assert_int_equal(streams[0].outcome.status, STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(streams[0].outcome.text, "min_tokens"));
    s_part_change();
    assert_int_equal(register_s_part(newer).status, STATUS_OK);
    UNTIL(scheduler->s_part.member.up);
    generate(channel, &streams[1], 0, 20, 4);
    UNTIL(streams[1].outcome.ended);
    assert_int_equal(streams[1].outcome.status, STATUS_OK);
    s_part.pace = UINT32_MAX; // no step is answered
    generate(channel, &streams[1], 0, 20, 4);
    UNTIL(s_part.waiting_count);
    s_part_change();
    struct outcome outcome = register_s_part(usual); // back to the older one, which would have to go on with a sequence
    assert_int_equal(outcome.status, STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(outcome.text, "too old for"));
    rpc_cancel(channel, streams[1].handle);
    UNTIL(!token_logs_features(scheduler->sequences.logs));
    assert_int_equal(register_s_part(usual).status, STATUS_OK); // and it need not any more
    UNTIL(scheduler->s_part.member.up);
    min_tokens = 0;
    mesh_close();
}

static uint32_t layers_told;

static void take_shape(void *user, struct rpc_message *message)
{
    const Fastdecode__RegisterReply *reply = rpc_message_unpack(message, &fastdecode__register_reply__descriptor);
    assert_true(reply && reply->kv);
    layers_told = reply->kv->layers;
}

// A worker may name a model as only s-parts do, and leave out any part of that: nobody looks at it.
static void a_worker_that_names_a_model_is_a_worker(void **state)
{
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    Fastdecode__ModelInfo model = FASTDECODE__MODEL_INFO__INIT;

    mesh_open_usual();
    kv_worker_open(0, 0, 0, 0);
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER;
    request.name = (char *)"kv-worker";
    request.incarnation = kv_worker.incarnation;
    request.control_address = (char *)"inproc://test-kv-worker";
    request.pages_total = 100000;
    request.model = &model; // without kv
    request.layer_count = 1;
    assert_int_equal(ask(kv_worker.channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base, NULL).status,
                     STATUS_OK);
    assert_true(worker(1)->up);
    mesh_close();
}

// A worker that has been there for another model is told the shape of this one, and is up once it has pages for it. However often it comes, the
// log says so once.
static void a_worker_of_another_model_is_told_the_shape(void **state)
{
    enum { OTHERS = 3 };
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    Fastdecode__KvShape other;

    mesh_open_usual();
    kv_worker_open(0, 0, 0, 0);
    other = scheduler->model.kv;
    other.layers = 3;
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER;
    request.name = (char *)"kv-worker";
    request.incarnation = kv_worker.incarnation;
    request.control_address = (char *)"inproc://test-kv-worker";
    for (uint32_t i = 0; i <= OTHERS; i++) {
        request.kv = i < OTHERS ? &other : &scheduler->model.kv;
        request.pages_total = 100000;
        layers_told = 0;
        assert_int_equal(
            ask(kv_worker.channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base, take_shape).status,
            STATUS_OK);
        assert_int_equal(layers_told, scheduler->model.kv.layers);
        if (i < OTHERS) {
            assert_false(worker(1)->up || worker(1)->registered);
            assert_int_equal(kv_worker_beat(1), STATUS_FAILED_PRECONDITION);
        }
    }
    assert_true(scheduler->model.others.count == 1 && scheduler->model.others.unlogged == OTHERS - 1);
    UNTIL(worker(1)->up);
    mesh_close();
}

// A worker that was drained ends as it was asked to: its address is not dialed any more, which a log would call unreachable.
static void a_drained_worker_is_not_looked_for(void **state)
{
    struct rpc_channel *gateway = open_on_worker();
    places_drained(scheduler, 1);
    kv_worker_close();
    UNTIL(!worker(1)->up);
    assert_null(worker(1)->channel);
    assert_int_equal(worker(1)->lost, 0);
    kv_worker_open(0, 0, 0, 0); // started again
    kv_worker_close();
    UNTIL(!worker(1)->up);
    assert_non_null(worker(1)->channel); // it was not drained
    assert_int_equal(worker(1)->lost, 1);
    gateway_close(gateway);
    mesh_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drained_worker_is_not_looked_for),
        cmocka_unit_test(a_worker_of_another_model_is_told_the_shape),
        cmocka_unit_test(a_worker_that_names_a_model_is_a_worker),
        cmocka_unit_test(a_request_goes_only_to_an_s_part_that_knows_what_it_asks),
        cmocka_unit_test(an_s_part_with_fewer_mini_batches_is_refused),
        cmocka_unit_test(a_worker_that_comes_back_gives_back_what_it_holds),
        cmocka_unit_test(a_later_part_waits_for_the_first_one),
        cmocka_unit_test(pages_wait_for_an_s_part_that_loads_for_long),
        cmocka_unit_test(all_that_nobody_claims_is_freed),
        cmocka_unit_test(a_stall_of_the_scheduler_loses_no_member),
        cmocka_unit_test(names_that_do_not_come_back_give_way),
        cmocka_unit_test(a_clock_put_right_by_days_keeps_no_worker_out),
        cmocka_unit_test(a_worker_whose_tensors_hang_is_down),
        cmocka_unit_test(a_worker_that_loses_its_rows_again_and_again_is_down),
        cmocka_unit_test(a_worker_that_the_s_part_does_not_reach_is_waited_for),
        cmocka_unit_test(a_worker_that_is_not_reached_keeps_no_other_from_work),
        cmocka_unit_test(a_worker_has_the_cores_beside_an_s_part_on_a_device),
        cmocka_unit_test(a_model_that_is_refused_once_is_refused_again),
    };
    log_init("test", LOG_ERROR, false);
    if (argc > 1) // a pattern: one test alone
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

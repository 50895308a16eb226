// test_scheduler_stages.c: a pipeline of s-parts as the scheduler sees it: which of them fit together, who takes whose place, and how they are
// put together again when one of them does not know the term. The s-parts are played here.
#include <string.h>

#include "common/base/log.h"
#include "tests/integration/kept_log.h"
#include "tests/integration/scheduler_mesh.h"

enum { LAYERS = 4, PLAYED = 3, JOINS_MAX = 64 };

// The fields of a played s-part's registration beside its name and number.
struct said {
    const char *name, *address; // address NULL: where it is
    uint32_t first, count, mini_batches, context, sparse_percent;
    uint64_t fingerprint, incarnation; // incarnation 0: of this moment
    Fastdecode__KvType type;
    bool was_registered;
};

static struct played {
    struct rpc_server *server;
    struct rpc_channel *channel; // to the scheduler
    uint64_t incarnation, term, newest_term;
    uint32_t joins, refused_steps;
    uint64_t joined_us[JOINS_MAX];
    bool never_joins;
} played[PLAYED];

static const char *const addresses[PLAYED] = {"inproc://test-stage-0", "inproc://test-stage-1", "inproc://test-stage-2"};
static const struct said usual_said = {
    .name = "a", .count = LAYERS, .mini_batches = 2, .context = 4096, .fingerprint = 77, .type = FASTDECODE__KV_TYPE__KV_TYPE_F16};

static void turn_and_check(void)
{
    members_check(scheduler, clock_now_us());
    turn();
}

#define EVENTUALLY(condition) AWAIT(turn_and_check(), condition)

static void take_join(struct rpc_call *call, void *user)
{
    const Fastdecode__JoinRequest *request = rpc_call_unpack(call, &fastdecode__join_request__descriptor);
    const Fastdecode__JoinReply reply = FASTDECODE__JOIN_REPLY__INIT;
    struct played *one = user;

    assert_non_null(request);
    one->joined_us[one->joins++ % JOINS_MAX] = clock_now_us();
    if (one->never_joins) {
        rpc_call_fail(call, STATUS_UNAVAILABLE, "not now");
    } else if (request->term <= one->newest_term) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "a later term is known");
    } else {
        one->term = one->newest_term = request->term;
        rpc_call_reply(call, &reply.base);
    }
}

static void take_step(struct rpc_call *call, void *user)
{
    struct played *one = user;
    if (one->term) {
        step(call, NULL);
        return;
    }
    one->refused_steps++;
    rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "it waits for Join");
}

static void start(uint32_t index, uint64_t incarnation)
{
    struct played *one = &played[index];
    const struct rpc_method methods[] = {{&fastdecode__spart__descriptor, "Step", take_step, one},
                                         {&fastdecode__spart__descriptor, "Join", take_join, one},
                                         {&fastdecode__spart__descriptor, "Release", release, NULL}};

    *one = (struct played){.incarnation = incarnation ? incarnation : member_incarnation()};
    one->server = peer_serve(scheduler->host.loop, addresses[index], methods, 3, "s-part", one->incarnation);
    one->channel = peer_dial(scheduler->host.loop, "inproc://test-scheduler", "s-part", one->incarnation);
    EVENTUALLY(rpc_channel_is_up(one->channel));
}

static void end(uint32_t index)
{
    if (!played[index].server)
        return;
    rpc_channel_close(played[index].channel);
    rpc_server_close(played[index].server);
    played[index].server = NULL;
}

static struct outcome say(uint32_t index, const struct said *said)
{
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    Fastdecode__ModelInfo model = FASTDECODE__MODEL_INFO__INIT;
    Fastdecode__KvShape kv = FASTDECODE__KV_SHAPE__INIT;
    struct outcome outcome = {0};

    kv.layers = LAYERS;
    kv.heads = 4;
    kv.kv_heads = 2;
    kv.head_dim = 16;
    kv.page_tokens = 16;
    kv.type = said->type;
    kv.sparse_percent = said->sparse_percent;
    kv.context_tokens = model.context_tokens = said->context;
    model.name = (char *)(said->fingerprint == usual_said.fingerprint ? "test" : "other");
    model.vocab = 100;
    model.fingerprint = said->fingerprint;
    model.kv = &kv;
    request.kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    request.name = (char *)said->name;
    request.incarnation = played[index].incarnation;
    request.was_registered = said->was_registered;
    request.control_address = request.tensor_address = (char *)(said->address ? said->address : addresses[index]);
    request.model = &model;
    request.pages_total = 100000;
    request.max_rows = 640;
    request.mini_batches = said->mini_batches;
    request.rows_alike = true;
    request.numeric_level = (char *)"int8/vnni";
    request.first_layer = said->first;
    request.layer_count = said->count;
    peer_call(played[index].channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base,
              (struct rpc_callbacks){.on_message = on_register_reply, .on_end = on_end}, &outcome);
    EVENTUALLY(outcome.ended);
    return outcome;
}

static struct said with(const char *name, uint32_t first, uint32_t count)
{
    struct said said = usual_said;
    said.name = name;
    said.first = first;
    said.count = count;
    return said;
}

static void assert_refused(struct outcome outcome, const char *why)
{
    assert_int_equal(outcome.status, STATUS_FAILED_PRECONDITION);
    if (!strstr(outcome.text, why))
        fail_msg("refused with '%s', want '%s'", outcome.text, why);
}

static void open_two(void)
{
    const struct said first = with("a", 0, 2), second = with("b", 2, 2);
    mesh_open(16, 16, 2);
    for (uint32_t i = 0; i < 2; i++) {
        start(i, 0);
        assert_int_equal(say(i, i ? &second : &first).status, STATUS_OK);
    }
    EVENTUALLY(scheduler->s_part.member.up);
}

static void close_all(void)
{
    for (uint32_t i = 0; i < PLAYED; i++)
        end(i);
    mesh_close();
}

// --- putting together

// Someone else's Join has come between. The first step that is refused ends the term: the others are not sent, one by one, to be refused too.
static void refused_steps_put_the_stages_together_again(void **state)
{
    open_two();
    struct rpc_channel *gateway = gateway_open();
    s_part.pace = 1;
    for (uint32_t i = 0; i < 4; i++)
        generate(gateway, &streams[i], 0, 20, 60);
    for (uint32_t round = 1; round <= 3; round++) {
        AWAIT(turn_and_check(), streams[3].tokens > 10 * round);
        const uint64_t before = played[1].term;
        played[0].term = 0;
        EVENTUALLY(played[0].joins == round + 1 && scheduler->s_part.member.up);
        assert_true(played[0].term == played[1].term && played[1].term > before);
        assert_in_range(played[0].refused_steps, round, 2 * SCHED_PLAN_AHEAD_MAX * round);
    }
    for (uint32_t i = 0; i < 4; i++) {
        EVENTUALLY(streams[i].outcome.ended);
        assert_int_equal(streams[i].outcome.status, STATUS_OK);
        assert_int_equal(streams[i].tokens, 60);
    }
    gateway_close(gateway);
    close_all();
}

static void turn_without_waiting(void)
{
    scheduler->s_part.join.from_us = 0;
    turn_and_check();
}

// It was told of a later term by someone else, or the scheduler does not know how far it has counted. How long the scheduler waits before it asks
// again is the next test's subject.
static void a_stage_that_knows_a_later_term_is_caught_up_with(void **state)
{
    open_two();
    played[1].newest_term = UINT64_C(1) << 20;
    played[1].term = 0;
    members_part_stages(scheduler, "the test says so");
    AWAIT(turn_without_waiting(), played[1].term > UINT64_C(1) << 20 && played[0].term == played[1].term);
    EVENTUALLY(scheduler->s_part.member.up);
    close_all();
}

// The scheduler asks less and less often, and as often as before once steps are answered.
static void joining_backs_off(void **state)
{
    open_two();
    struct rpc_channel *gateway = gateway_open();
    s_part.pace = 1;
    generate(gateway, &streams[0], 0, 20, 60);
    AWAIT(turn_and_check(), streams[0].tokens > 10);
    const uint32_t before = played[1].joins;
    played[1].never_joins = true;
    played[0].term = 0;
    EVENTUALLY(played[1].joins == before + 5);
    const uint64_t *at = &played[1].joined_us[before];
    assert_true(at[1] - at[0] >= 150000 && at[4] - at[3] >= 800000); // timers are never early
    played[1].never_joins = false;
    EVENTUALLY(streams[0].outcome.ended);
    assert_int_equal(streams[0].tokens, 60);
    assert_int_equal(scheduler->s_part.join.wait_us, 0);
    gateway_close(gateway);
    close_all();
}

// --- who takes whose place

// A pipeline's second stage, or an s-part with all layers.
static void one_that_is_there_stays(uint32_t index, struct said incumbent, struct said newcomer)
{
    struct member *member = index ? scheduler->s_part.stages[1].member : &scheduler->s_part.member;

    newcomer.name = "standby";
    start(2, 0);
    assert_refused(say(2, &newcomer), incumbent.name); // it has started later, and would be the newer one of its name
    assert_true(member->up && member->incarnation == played[index].incarnation && scheduler->s_part.member.up);
    end(2);
    start(2, played[index].incarnation - 1); // one that has waited since before
    assert_refused(say(2, &newcomer), incumbent.name);

    rpc_server_close(played[index].server); // only the connection that the scheduler made
    EVENTUALLY(!member->registered);
    struct outcome outcome = say(2, &newcomer);
    assert_int_equal(outcome.newest, played[index].incarnation); // numbers grow: it has not been registered, and takes the next one
    end(2);
    start(2, outcome.newest + 1);
    assert_int_equal(say(2, &newcomer).newest, 0);
    EVENTUALLY(scheduler->s_part.member.up);
    assert_int_equal(member->incarnation, played[2].incarnation);

    // the first is still there, and waits in its turn
    const uint64_t first = played[index].incarnation;
    rpc_channel_close(played[index].channel);
    start(index, first);
    incumbent.was_registered = true;
    assert_refused(say(index, &incumbent), "standby");
    assert_int_equal(member->incarnation, played[2].incarnation);
    end(2);
    EVENTUALLY(!member->registered);
    member->heard_us = 1; // long ago
    outcome = say(index, &incumbent);
    assert_true(outcome.status == STATUS_OK && outcome.newest == 0);
    EVENTUALLY(scheduler->s_part.member.up);
    assert_int_equal(member->incarnation, first);
}

static void a_stage_that_is_there_stays(void **state)
{
    open_two();
    one_that_is_there_stays(1, with("b", 2, 2), with("standby", 2, 2));
    close_all();
}

static void an_s_part_that_is_there_stays(void **state)
{
    mesh_open(16, 16, 2);
    start(0, 0);
    assert_int_equal(say(0, &usual_said).status, STATUS_OK);
    EVENTUALLY(scheduler->s_part.member.up);
    one_that_is_there_stays(0, usual_said, usual_said);
    close_all();
}

// It need not wait until the scheduler has noticed that the process before is gone. That one, if it is there after all, has the place again
// once this one is gone.
static void one_that_is_started_again_takes_its_place_at_once(void **state)
{
    open_two();
    struct member *member = scheduler->s_part.stages[1].member;
    struct said second = with("b", 2, 2);
    start(2, played[1].incarnation + 1);
    assert_refused(say(2, &second), "b (inproc://test-stage-1), which is alive"); // a second one of that name, elsewhere
    second.address = addresses[1];
    member->last.streamed_bytes = 4711;
    assert_int_equal(say(2, &second).newest, 0);
    assert_int_equal(member->incarnation, played[2].incarnation);
    assert_int_equal(scheduler->s_part.stages[1].earlier.streamed_bytes, 4711);
    member->last.streamed_bytes = 7; // a process that registers twice counts on
    assert_int_equal(say(2, &second).newest, 0);
    assert_int_equal(scheduler->s_part.stages[1].earlier.streamed_bytes, 4711);
    second.was_registered = true;
    assert_int_equal(say(1, &second).newest, played[2].incarnation);
    members_down(member, "the test says so");
    assert_int_equal(say(1, &second).newest, played[2].incarnation); // it may come back
    member->heard_us = 1;                                            // long ago
    const struct outcome outcome = say(1, &second);
    assert_true(outcome.status == STATUS_OK && outcome.newest == 0);
    EVENTUALLY(scheduler->s_part.member.up);
    close_all();
}

// Nobody dials for ever where a member was that does not come back; one that does is connected to anew.
static void who_is_gone_is_not_dialed_for_ever(void **state)
{
    open_two();
    struct member *member = scheduler->s_part.stages[1].member;
    struct said second = with("b", 2, 2);
    rpc_server_close(played[1].server);
    EVENTUALLY(!member->registered);
    assert_non_null(member->channel);
    member->heard_us = 1; // long ago
    EVENTUALLY(!member->channel);
    rpc_channel_close(played[1].channel);
    start(1, 0);
    assert_int_equal(say(1, &second).status, STATUS_OK);
    EVENTUALLY(scheduler->s_part.member.up);
    close_all();
}

// --- what is said to who does not fit

static void a_refusal_names_the_setting_that_differs(void **state)
{
    open_two();
    struct said said = with("c", 1, 2);
    start(2, 0);
    said.mini_batches = 1;
    assert_refused(say(2, &said), "layers 1:3 overlap with 0:2 of a"); // rather than that
    end(1);
    EVENTUALLY(!scheduler->s_part.stages[1].member->registered);
    said = with("b", 2, 2);
    said.mini_batches = 1;
    assert_refused(say(2, &said), "--mini-batches");
    said = with("b", 2, 2);
    said.type = FASTDECODE__KV_TYPE__KV_TYPE_F32;
    assert_refused(say(2, &said), "--kv-type f32, and the mesh f16");
    said = with("b", 2, 2);
    said.context = 2048;
    assert_refused(say(2, &said), "--context 2048, and the mesh 4096");
    said = with("b", 2, 2);
    said.sparse_percent = 15;
    assert_refused(say(2, &said), "--sparse-attention");
    said = with("b", 2, 2);
    said.fingerprint = 78;
    assert_refused(say(2, &said), "another model, test");
    close_all();
}

// Its model is that of the mesh only once all layers of it are there. Until then the next one's is, if no stage of it is left.
static void a_wrong_model_does_not_stay(void **state)
{
    mesh_open(16, 16, 2);
    struct said wrong = with("a", 0, 2), first = with("a", 0, 2), second = with("b", 2, 2);
    wrong.fingerprint = 78;
    wrong.context = 2048;
    start(0, 0);
    assert_int_equal(say(0, &wrong).status, STATUS_OK);
    kv_worker_register(0, 0, 0, 0); // of the same shape
    start(1, 0);
    assert_refused(say(1, &second), "another model, other");
    end(0);
    EVENTUALLY(!scheduler->s_part.member.registered);
    assert_int_equal(say(1, &second).status, STATUS_OK);
    assert_int_equal(scheduler->model.info.fingerprint, first.fingerprint);
    assert_false(worker(1)->registered); // it has to say whether its pages are of the model that is right
    start(0, 0);
    assert_int_equal(say(0, &first).status, STATUS_OK);
    EVENTUALLY(scheduler->s_part.member.up);
    end(0);
    end(1);
    EVENTUALLY(!scheduler->s_part.member.registered && !scheduler->s_part.stages[1].member->registered);
    start(0, 0);
    assert_refused(say(0, &wrong), "another model, test"); // the mesh has served it
    kv_worker_close();
    close_all();
}

static char reason[512]; // that gateways were told last

static void on_state(void *user, struct rpc_message *message)
{
    const Fastdecode__MeshState *state = rpc_message_unpack(message, &fastdecode__mesh_state__descriptor);
    (void)user;
    assert_non_null(state);
    snprintf(reason, sizeof reason, "%s", state->reason);
}

// Asks as a gateway does, once: what /ready says.
static const char *why_not_ready(void)
{
    const Fastdecode__WatchRequest request = FASTDECODE__WATCH_REQUEST__INIT;
    struct rpc_channel *gateway = gateway_open();

    reason[0] = '\0';
    peer_call(gateway, &fastdecode__generator__descriptor, "Watch", &request.base,
              (struct rpc_callbacks){.on_message = on_state, .streams = true}, NULL);
    EVENTUALLY(reason[0]);
    gateway_close(gateway);
    return reason;
}

static void assert_says(const char *text, const char *wanted)
{
    if (!strstr(text, wanted))
        fail_msg("'%s', want '%s'", text, wanted);
}

static uint32_t refusals_in_view(const char *name)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < scheduler->view.event_count; i++)
        count += scheduler->view.events[i].said.kind == FASTDECODE__EVENT_KIND__EVENT_KIND_REFUSED &&
                 !strcmp(scheduler->view.events[i].name, name);
    return count;
}

// It asks again and again: one line and one event say so, and whoever asks why the mesh is not ready is told, until it is taken.
static void a_refused_s_part_is_said_where_people_look(void **state)
{
    open_two();
    end(1);
    EVENTUALLY(!scheduler->s_part.stages[1].member->registered);
    assert_string_equal(why_not_ready(), "layers 2:4 are on no s-part");
    start(2, 0);
    struct said said = with("late", 2, 2);
    said.context = 2048;
    kept_log_forget();
    for (uint32_t i = 0; i < 3; i++)
        assert_refused(say(2, &said), "--context 2048");
    assert_int_equal(kept_log_count("MEMBER-REFUSED", "name=late kind=s-part", "--context 2048, and the mesh 4096"), 1);
    assert_int_equal(refusals_in_view("late"), 1);
    static const char wanted[] = "layers 2:4 are on no s-part: late is refused: this s-part has --context 2048, and the mesh 4096";
    assert_says(why_not_ready(), wanted);
    assert_says(stages_reason(scheduler), wanted); // as Health says it
    said.first = 0;                                // another reason, which names an address: not for everybody
    said.context = 4096;
    assert_refused(say(2, &said), addresses[0]);
    assert_int_equal(refusals_in_view("late"), 2);
    assert_says(why_not_ready(), "late is refused: MEMBER-REFUSED in the scheduler's log says why");
    said.first = 2;
    assert_int_equal(say(2, &said).status, STATUS_OK);
    assert_null(strstr(stages_reason(scheduler), "late"));
    close_all();
}

static void a_refused_worker_is_said_where_people_look(void **state)
{
    struct said first = with("a", 0, LAYERS);
    mesh_open(16, 16, 2);
    scheduler->settings.placement = SCHED_PLACE_WORKERS;
    start(0, 0);
    assert_int_equal(say(0, &first).status, STATUS_OK);
    EVENTUALLY(scheduler->s_part.member.up);
    assert_string_equal(why_not_ready(), "no KV worker is up");
    kept_log_forget();
    kv_worker.name = "a\tname";
    assert_int_equal(kv_worker_register(0, 0, 0, 0).status, STATUS_INVALID_ARGUMENT);
    assert_int_equal(kept_log_count("MEMBER-REFUSED", "name=a?name kind=kv-worker", "a name has letters"), 1);
    assert_int_equal(refusals_in_view("a?name"), 1);
    assert_says(why_not_ready(), "no KV worker is up: a?name is refused: registration: a name has letters");
    close_all();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_s_part_is_said_where_people_look),
        cmocka_unit_test(a_refused_worker_is_said_where_people_look),
        cmocka_unit_test(refused_steps_put_the_stages_together_again),
        cmocka_unit_test(a_stage_that_knows_a_later_term_is_caught_up_with),
        cmocka_unit_test(joining_backs_off),
        cmocka_unit_test(a_stage_that_is_there_stays),
        cmocka_unit_test(an_s_part_that_is_there_stays),
        cmocka_unit_test(one_that_is_started_again_takes_its_place_at_once),
        cmocka_unit_test(who_is_gone_is_not_dialed_for_ever),
        cmocka_unit_test(a_refusal_names_the_setting_that_differs),
        cmocka_unit_test(a_wrong_model_does_not_stay),
    };
    kept_log_open();
    log_init("test", LOG_WARN, false);
    if (argc > 1) // a pattern: one test alone
        cmocka_set_test_filter(argv[1]);
    return kept_log_show(cmocka_run_group_tests(tests, NULL, NULL));
}

// test_scheduler.c: what the scheduler makes of requests: steps, guesses, releases. The gateways, the s-part and the worker are played here.
#include <string.h>

#include "common/base/log.h"
#include "tests/integration/scheduler_mesh.h"

// A gateway submits again under the id that it knows, while the pages of the cancelled one are still being freed.
static void a_resubmission_runs_while_its_old_pages_are_freed(void **state)
{
    mesh_open_usual();
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &streams[0], 0, 20, 90000);
    UNTIL(streams[0].tokens > 3);
    s_part.hold_releases = true;
    rpc_cancel(gateway, streams[0].handle);
    UNTIL(s_part.held_count > 0);
    generate(gateway, &streams[1], streams[0].sequence, 20, 90000);
    UNTIL(streams[1].tokens > 3);
    answer_releases();
    mesh_close();
}

// One call names all that wait for it, and pages count as used until it is answered: a call that fails is made again. What runs goes on.
static void many_that_end_at_once_are_freed_with_few_calls(void **state)
{
    enum { MANY = 5000, FAILURES = 3 };
    mesh_open(MANY, MANY, 1);
    assert_int_equal(register_s_part((struct registration){100000, 8192, 1, false, false, 0}).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open(), *other = gateway_open();
    s_part.pace = 30;
    for (uint32_t i = 0; i < MANY; i++)
        generate(gateway, &streams[i], 0, 1, 100);
    UNTIL(stats_now().running == MANY);
    s_part.hold_releases = true;
    gateway_close(gateway);
    UNTIL(stats_now().running == 0);
    s_part.pace = 0;
    generate(other, &streams[MANY], 0, 1, 90000);
    UNTIL(streams[MANY].tokens > 10);
    assert_int_equal(stats_now().retiring, MANY);
    assert_int_equal(s_part.held_count, 1);
    for (uint32_t i = 0; i < FAILURES; i++) {
        UNTIL(s_part.held_count == 1);
        assert_int_equal(stats_now().retiring, MANY);
        rpc_call_fail(s_part.held[--s_part.held_count], STATUS_DEADLINE_EXCEEDED, "a test wants it so");
    }
    UNTIL(s_part.held_count == 1);
    answer_releases();
    UNTIL(stats_now().retiring == 0);
    assert_in_range(s_part.releases, FAILURES + 1, FAILURES + 10);
    mesh_close();
}

// A finished sequence had its pages at a worker and its sampler at the s-part. The s-part is told until it has answered with OK.
static void samplers_of_finished_sequences_are_forgotten(void **state)
{
    struct rpc_channel *gateway = open_on_worker();
    s_part.hold_releases = true;
    generate(gateway, &streams[0], 0, 20, 20);
    UNTIL(streams[0].outcome.ended && s_part.held_count == 1);
    assert_int_equal(s_part.released_last, streams[0].sequence);
    rpc_call_fail(s_part.held[--s_part.held_count], STATUS_DEADLINE_EXCEEDED, "a test wants it so");
    UNTIL(s_part.held_count == 1);
    assert_int_equal(s_part.released_last, streams[0].sequence);
    answer_releases();
    for (uint32_t i = 0; i < 3; i++)
        turn();
    assert_int_equal(s_part.releases, 2);
    mesh_close();
}

// The limit grows with the times that steps took so far. Before the first answer it is a minute and more.
static void steps_are_given_up_by_what_they_are_predicted_to_take(void **state)
{
    const struct {
        uint32_t step_us, least_ms, most_ms;
    } cases[] = {{1000, 1000, 30000}, {4000000, 200000, 3600000}};
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        mesh_open(16, 16, 1);
        s_part.step_us = cases[i].step_us;
        assert_int_equal(register_s_part(usual).status, STATUS_OK);
        struct rpc_channel *gateway = gateway_open();
        generate(gateway, &streams[0], 0, 20, 200);
        s_part.pace = UINT32_MAX;
        UNTIL(s_part.waiting_count > 0);
        assert_in_range(s_part.timeout_ms, 60000, 600000);
        s_part.pace = 0;
        answer_steps();
        UNTIL(s_part.steps >= 100);
        assert_in_range(s_part.timeout_ms, cases[i].least_ms, cases[i].most_ms);
        s_part.step_us = 0;
        mesh_close();
    }
}

// Steps that end with their s-part say nothing about how long a step may take.
static void a_lost_s_part_makes_no_step_wait_longer(void **state)
{
    mesh_open_usual();
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &streams[0], 0, 20, 200);
    for (uint32_t i = 0; i < 4; i++) {
        s_part.pace = UINT32_MAX;
        UNTIL(s_part.waiting_count > 0);
        assert_in_range(s_part.timeout_ms, 60000, 90000);
        s_part_change();
        assert_int_equal(register_s_part(usual).status, STATUS_OK);
    }
    UNTIL(streams[0].tokens > 3);
    mesh_close();
}

// The core is told the times of all places, however many took part in the step.
static void the_times_of_all_places_are_taken(void **state)
{
    uint32_t most = 0;
    mesh_open_usual();
    struct rpc_channel *gateway = gateway_open();
    s_part.places = SCHED_PLACES_MAX;
    generate(gateway, &streams[0], 0, 20, 4);
    UNTIL(streams[0].tokens == 4);
    for (uint32_t i = 0; i < STEPS_MAX; i++)
        most = MAX(most, scheduler->flights.of[i].place_count);
    assert_int_equal(most, SCHED_PLACES_MAX);
    s_part.places = 0;
    mesh_close();
}

// A sequence that is cancelled while it waits holds nothing, so it costs the s-part no call of its own.
static void many_that_wait_are_cancelled_in_few_calls(void **state)
{
    enum { MANY = 5000 };
    mesh_open(MANY, 1, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open(), *other = gateway_open();
    generate(other, &streams[MANY], 0, 1, 90000);
    UNTIL(streams[MANY].tokens > 0);
    for (uint32_t i = 0; i < MANY - 1; i++)
        generate(gateway, &streams[i], 0, 1, 100);
    UNTIL(stats_now().waiting == MANY - 1);
    s_part.hold_releases = true;
    gateway_close(gateway);
    UNTIL(stats_now().waiting == 0 && stats_now().retiring == 0);
    uint32_t before = streams[MANY].tokens;
    UNTIL(streams[MANY].tokens > before + 10);
    assert_in_range(s_part.held_count, 0, 100);
    answer_releases();
    mesh_close();
}

// A gateway is told that a request was accepted. A full queue does not refuse such a request when it comes again, after a restart of the
// scheduler; it refuses new ones. A gateway that says of all its requests that they were accepted comes to the limit of what the scheduler
// holds at all.
static void a_full_queue_takes_what_was_accepted(void **state)
{
    enum { QUEUE = 2, FIRST_ID = 1000 };
    uint32_t count = QUEUE + 2;
    mesh_open(QUEUE, 1, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    s_part.pace = UINT32_MAX; // nothing ends
    for (uint32_t i = 0; i < QUEUE + 1; i++) {
        generate(gateway, &streams[i], 0, 1, 100);
        UNTIL(streams[i].sequence);
    }
    generate(gateway, &streams[QUEUE + 1], 0, 1, 100);
    UNTIL(streams[QUEUE + 1].outcome.ended);
    assert_int_equal(streams[QUEUE + 1].outcome.status, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(streams[QUEUE + 1].sequence, 0);
    for (struct stream *stream; stream = &streams[count], true; count++) {
        assert_in_range(count, 0, scheduler->core.config.max_sequences + 1);
        generate(gateway, stream, FIRST_ID + count, 1, 100);
        UNTIL(stream->sequence || stream->outcome.ended);
        if (stream->outcome.ended)
            break;
        assert_int_equal(stream->sequence, FIRST_ID + count);
    }
    assert_int_equal(streams[count].outcome.status, STATUS_RESOURCE_EXHAUSTED);
    assert_true(count > 4 * QUEUE);
    s_part.pace = 0;
    UNTIL(streams[0].outcome.ended && streams[count - 1].outcome.ended);
    assert_int_equal(streams[count - 1].tokens, 100);
    mesh_close();
}

// Grammars are held as long as their sequences run or wait: there is a limit on all of them, and room once one has gone.
static void grammars_have_a_limit_together(void **state)
{
    enum { MANY = 64 };
    static uint8_t bytes[1 << 20];
    const ProtobufCBinaryData largest = {sizeof bytes, bytes};
    struct registration able = usual;
    able.feature = FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_GRAMMAR;
    mesh_open(2 * MANY, 1, 1);
    assert_int_equal(register_s_part(able).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open(), *other = gateway_open();
    generate(gateway, &streams[MANY], 0, 1, 90000);
    UNTIL(streams[MANY].tokens > 0);
    grammar = largest;
    for (uint32_t i = 0; i < MANY; i++)
        generate(i ? gateway : other, &streams[i], 0, 1, 100);
    UNTIL(stats_now().waiting == MANY);
    generate(gateway, &streams[MANY + 1], 0, 1, 100);
    UNTIL(streams[MANY + 1].outcome.ended);
    assert_int_equal(streams[MANY + 1].outcome.status, STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(streams[MANY + 1].outcome.text, "grammars of 65536 KiB"));
    grammar = (ProtobufCBinaryData){0};
    generate(gateway, &streams[MANY + 2], 0, 1, 100);
    UNTIL(stats_now().waiting == MANY + 1);
    gateway_close(other);
    UNTIL(stats_now().waiting == MANY);
    grammar = largest;
    generate(gateway, &streams[MANY + 1], 0, 1, 100);
    UNTIL(stats_now().waiting == MANY + 1);
    grammar = (ProtobufCBinaryData){0};
    gateway_close(gateway);
    UNTIL(stats_now().waiting == 0);
    assert_int_equal(scheduler->sequences.grammar_bytes, 0);
    mesh_close();
}

// An s-part may be started again with other settings: no step is larger than it says.
static void a_smaller_s_part_gets_smaller_steps(void **state)
{
    mesh_open_usual();
    UNTIL(scheduler->s_part.member.up);
    s_part_change();
    assert_int_equal(register_s_part((struct registration){100000, 64, 1, false, false, 0}).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &streams[0], 0, 1000, 90000);
    UNTIL(streams[0].tokens > 0);
    assert_in_range(s_part.rows_most, 1, 64);
    mesh_close();
}

// Opens a mesh whose s-part says how long its steps took, without which nothing is guessed.
static struct rpc_channel *open_guessing(uint32_t draft_tokens)
{
    mesh_open(16, 16, 1);
    scheduler->settings.draft_tokens = draft_tokens;
    s_part.times = true;
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    return gateway_open();
}

// Nothing of a bad reply reaches a gateway or a log, and the step is done again.
static void a_bad_reply_does_not_count(void **state)
{
    struct rpc_channel *gateway = open_guessing(8);
    for (enum spoiled kind = NOT_SPOILED; kind < SPOILS; kind++) {
        s_part.spoil = kind;
        generate(gateway, &streams[kind], 0, 1500, 20);
        UNTIL(streams[kind].outcome.ended);
        assert_int_equal(streams[kind].outcome.status, STATUS_OK);
        assert_int_equal(streams[kind].tokens, 20);
        assert_int_equal(s_part.spoil, NOT_SPOILED);
        assert_int_equal(stats_now().steps_failed, kind);
    }
    s_part.times = false;
    mesh_close();
}

// Several tokens of one step come to the gateway once each and in order. Those after a token that ends the sequence do not.
static void guessed_tokens_come_as_others_do(void **state)
{
    s_part.tens = true;
    struct rpc_channel *gateway = open_guessing(8);
    s_part.drafts = s_part.steps = 0;
    generate(gateway, &streams[0], 0, 45, 300);
    UNTIL(streams[0].outcome.ended);
    assert_int_equal(streams[0].tokens, 300);
    assert_in_range(s_part.steps, 300 / 9, 100);
    assert_true(s_part.drafts > 200 && stats_now().drafts_right > s_part.drafts * 0.9); // they follow the last token
    assert_int_equal(scheduler->sequences.generated_tokens, 300);
    s_part.end_token = 7;
    for (uint32_t prompt = 41; prompt <= 50; prompt++) { // the first of a step, and among those that follow
        generate(gateway, &streams[1], 0, prompt, 300);
        UNTIL(streams[1].outcome.ended);
        assert_int_equal(streams[1].tokens, 50 - prompt + 1);
    }
    s_part.end_token = 0;
    s_part.times = s_part.tens = false;
    mesh_close();
}

// Sequences of different lengths in two mini-batches. At first, guesses are wrong at each tenth token. When the s-part is replaced, its
// successor knows none of the guesses that were under way.
static void guesses_of_many_keep_apart(void **state)
{
    enum { MANY = 7, TOKENS = 150 };
    const struct registration two = {.context = 100000, .max_rows = 640, .mini_batches = 2};
    mesh_open(16, 16, 2);
    scheduler->settings.draft_tokens = 8;
    s_part.times = s_part.tens = true;
    assert_int_equal(register_s_part(two).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    s_part.pace = 2;
    for (uint32_t i = 0; i < MANY; i++)
        generate(gateway, &streams[i], 0, 3 + i, TOKENS + i);
    UNTIL(streams[0].tokens > TOKENS / 2 && s_part.waiting_count > 0);
    s_part_change();
    assert_int_equal(register_s_part(two).status, STATUS_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        UNTIL(streams[i].outcome.ended);
        assert_int_equal(streams[i].outcome.status, STATUS_OK);
        assert_int_equal(streams[i].tokens, TOKENS + i);
    }
    assert_true(stats_now().drafts_right > 0 && stats_now().drafts_right < stats_now().drafted);
    s_part.times = s_part.tens = false;
    mesh_close();
}

// With penalties each token depends on all before it, so guesses would be useless.
static void only_what_has_no_penalties_is_guessed(void **state)
{
    const struct {
        float repetition, presence, frequency;
        bool guessed;
    } cases[] = {{0, 0, 0, true}, {1, 0, 0, true}, {1.5f, 0, 0, false}, {0, -0.5f, 0, false}, {1, 0, 0.5f, false}, {0, 0, 0, true}};
    struct rpc_channel *gateway = open_guessing(8);
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        penalties.repetition = cases[i].repetition;
        penalties.presence = cases[i].presence;
        penalties.frequency = cases[i].frequency;
        s_part.drafts = 0;
        generate(gateway, &streams[i], 0, 20, 200);
        UNTIL(streams[i].outcome.ended);
        assert_int_equal(streams[i].tokens, 200);
        assert_int_equal(s_part.drafts > 0, cases[i].guessed);
    }
    penalties.repetition = penalties.presence = penalties.frequency = 0;
    s_part.times = false;
    mesh_close();
}

static void no_more_is_guessed_than_is_allowed(void **state)
{
    enum { PROMPT = 3 };
    const struct {
        uint32_t draft_tokens;
        bool rows_differ;
        uint32_t rows_most; // the prompt's, or a token's and its guesses'
    } cases[] = {{0, false, PROMPT}, {3, false, 1 + 3}, {12, false, 1 + 12}, {12, true, PROMPT}};
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        s_part.rows_differ = cases[i].rows_differ;
        struct rpc_channel *gateway = open_guessing(cases[i].draft_tokens);
        generate(gateway, &streams[0], 0, PROMPT, 200);
        UNTIL(streams[0].outcome.ended);
        assert_int_equal(streams[0].tokens, 200);
        assert_int_equal(s_part.rows_most, cases[i].rows_most);
        s_part.rows_differ = s_part.times = false;
        mesh_close();
    }
}

// A worker that was cut off cannot know which of the last guesses came true. Tokens of the prompt were not guessed.
static void what_may_have_been_guessed_is_computed_again(void **state)
{
    const struct {
        uint32_t prompt, generated, held, certain, from;
    } cases[] = {{20, 200, 139, 131, 131}, {100, 200, 139, 0, 100},   {100, 200, 60, 60, 60}, {20, 200, 300, 290, 219},
                 {20, 3, 22, 21, 21},      {20, 200, 139, 5000, 139}, {20, 200, 139, 12, 20}, {100, 200, 60, 12, 60}};
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        mesh_open_usual();
        scheduler->claims.from_us = clock_now_us();
        kv_worker_open(77, 1, cases[i].held, cases[i].certain);
        struct rpc_channel *gateway = gateway_open();
        resubmitted = cases[i].generated;
        s_part.steps = 0;
        s_part.pace = 1;
        generate(gateway, &streams[0], 77, cases[i].prompt, cases[i].generated + 1);
        UNTIL(s_part.steps == 1);
        assert_int_equal(s_part.position, cases[i].from);
        UNTIL(streams[0].outcome.ended);
        assert_int_equal(streams[0].tokens, cases[i].generated + 1);
        resubmitted = s_part.pace = 0;
        mesh_close();
    }
}

static void say_expected(struct rpc_channel *gateway)
{
    const Fastdecode__ExpectRequest request = FASTDECODE__EXPECT_REQUEST__INIT;
    assert_int_equal(ask(gateway, &fastdecode__generator__descriptor, "Expect", &request.base, NULL).status, STATUS_OK);
}

static void the_s_part_hears_of_a_request_before_it_is_read(void **state)
{
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);
    struct rpc_channel *gateway;

    mesh_open(16, 16, 1);
    gateway = gateway_open();
    say_expected(gateway);
    assert_int_equal(s_part.expects, 0); // without an s-part nobody is to be told
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    do // the scheduler says it once its own connection there is up
        say_expected(gateway);
    while (s_part.expects == 0 && !pace_passed(&deadline));
    assert_true(s_part.expects > 0);
    mesh_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resubmission_runs_while_its_old_pages_are_freed),
        cmocka_unit_test(many_that_end_at_once_are_freed_with_few_calls),
        cmocka_unit_test(samplers_of_finished_sequences_are_forgotten),
        cmocka_unit_test(steps_are_given_up_by_what_they_are_predicted_to_take),
        cmocka_unit_test(a_lost_s_part_makes_no_step_wait_longer),
        cmocka_unit_test(the_times_of_all_places_are_taken),
        cmocka_unit_test(many_that_wait_are_cancelled_in_few_calls),
        cmocka_unit_test(a_full_queue_takes_what_was_accepted),
        cmocka_unit_test(grammars_have_a_limit_together),
        cmocka_unit_test(a_smaller_s_part_gets_smaller_steps),
        cmocka_unit_test(a_bad_reply_does_not_count),
        cmocka_unit_test(guessed_tokens_come_as_others_do),
        cmocka_unit_test(guesses_of_many_keep_apart),
        cmocka_unit_test(only_what_has_no_penalties_is_guessed),
        cmocka_unit_test(no_more_is_guessed_than_is_allowed),
        cmocka_unit_test(what_may_have_been_guessed_is_computed_again),
        cmocka_unit_test(the_s_part_hears_of_a_request_before_it_is_read),
    };
    log_init("test", LOG_ERROR, false);
    if (argc > 1) // a pattern: one test alone
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

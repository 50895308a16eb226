// test_scheduler_view.c: what the scheduler says to people who watch the mesh: members, the latest steps and events, within bounds.
#include <string.h>

#include "common/base/log.h"
#include "tests/integration/scheduler_mesh.h"
#include "view.pb-c.h"

static struct answer {
    struct rpc_message *message;
    const Fastdecode__MeshView *view;
} told;

static void on_view(void *user, struct rpc_message *message)
{
    told.view = rpc_message_unpack(message, &fastdecode__mesh_view__descriptor);
    assert_non_null(told.view);
    told.message = rpc_message_keep(message);
}

// The caller frees answer.message.
static struct answer look(void)
{
    Fastdecode__ViewRequest request = FASTDECODE__VIEW_REQUEST__INIT;
    struct rpc_channel *gateway = gateway_open();

    told = (struct answer){0};
    assert_int_equal(ask(gateway, &fastdecode__viewer__descriptor, "View", &request.base, on_view).status, STATUS_OK);
    gateway_close(gateway);
    return told;
}

static void before_there_is_a_model(void **state)
{
    mesh_open(16, 16, 1);
    struct answer answer = look();
    assert_int_equal(answer.view->n_places, 0);
    assert_int_equal(answer.view->n_stages, 0);
    assert_int_equal(answer.view->n_recent_steps, 0);
    assert_null(answer.view->plan);
    rpc_message_free(answer.message);
    mesh_close();
}

static void many_places_are_all_there(void **state)
{
    char name[64];

    mesh_open_usual();
    kv_worker.name = name;
    for (uint32_t i = 1; i < SCHED_PLACES_MAX; i++) {
        snprintf(name, sizeof name, "kv-worker-of-a-rather-large-cluster-with-a-long-name-%u", i);
        assert_int_equal(kv_worker_register(0, 0, 0, 0).status, STATUS_OK);
        kv_worker_close();
    }
    kv_worker.name = NULL;
    struct answer answer = look();
    assert_int_equal(answer.view->n_places, SCHED_PLACES_MAX);
    assert_string_equal(answer.view->places[SCHED_PLACES_MAX - 1]->name, name);
    rpc_message_free(answer.message);
    mesh_close();
}

// Steps as they ran: the latest ones, in order, with rows and times. Events: who came.
static void steps_and_events(void **state)
{
    static struct stream stream;

    mesh_open(16, 16, 1);
    s_part.step_us = 700;
    s_part.places = 1;
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    generate(gateway, &stream, 0, 20, 3 * VIEW_STEPS);
    UNTIL(stream.outcome.ended);
    gateway_close(gateway);
    struct answer answer = look();
    const Fastdecode__MeshView *view = answer.view;
    assert_int_equal(view->n_recent_steps, VIEW_STEPS);
    for (size_t i = 0; i < view->n_recent_steps; i++) {
        const Fastdecode__StepView *step = view->recent_steps[i];
        assert_true(i == 0 || step->step > view->recent_steps[i - 1]->step);
        assert_true(step->sent_us <= step->answered_us && step->answered_us <= view->now_us);
        assert_int_equal(step->total_us, 700);
        assert_int_equal(step->n_places, 1);
        assert_true(step->decode_rows + step->prompt_rows > 0);
    }
    assert_int_equal(view->generated_tokens, 3 * VIEW_STEPS);
    assert_true(view->n_events >= 1);
    assert_int_equal(view->events[view->n_events - 1]->kind, FASTDECODE__EVENT_KIND__EVENT_KIND_JOINED);
    rpc_message_free(answer.message);
    s_part.step_us = s_part.places = 0;
    mesh_close();
}

// Old events make room; numbers go on; texts are cut.
static void events_are_bounded(void **state)
{
    char name[4 * VIEW_NAME_BYTES];

    mesh_open(16, 16, 1);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (uint32_t i = 0; i < 3 * VIEW_EVENTS; i++)
        view_note(&scheduler->view, FASTDECODE__EVENT_KIND__EVENT_KIND_DOWN, name, name);
    struct answer answer = look();
    assert_int_equal(answer.view->n_events, VIEW_EVENTS);
    assert_int_equal(answer.view->events[0]->number, 2 * VIEW_EVENTS + 1);
    assert_int_equal(answer.view->events[VIEW_EVENTS - 1]->number, 3 * VIEW_EVENTS);
    assert_int_equal(strlen(answer.view->events[0]->name), VIEW_NAME_BYTES - 1);
    assert_int_equal(strlen(answer.view->events[0]->why), VIEW_WHY_BYTES - 1);
    rpc_message_free(answer.message);
    mesh_close();
}

// A worker that joins, goes and comes back, each with its reason.
static void a_worker_comes_and_goes(void **state)
{
    mesh_open_usual();
    kv_worker_open(0, 0, 0, 0);
    UNTIL(worker(1)->up);
    members_down(worker(1), "it was silent");
    kv_worker_close();
    kv_worker_open(0, 0, 0, 0);
    UNTIL(worker(1)->up);
    struct answer answer = look();
    const Fastdecode__MeshView *view = answer.view;
    const size_t n = view->n_events;
    assert_int_equal(view->events[n - 3]->kind, FASTDECODE__EVENT_KIND__EVENT_KIND_JOINED);
    assert_int_equal(view->events[n - 2]->kind, FASTDECODE__EVENT_KIND__EVENT_KIND_DOWN);
    assert_string_equal(view->events[n - 2]->why, "it was silent");
    assert_int_equal(view->events[n - 1]->kind, FASTDECODE__EVENT_KIND__EVENT_KIND_BACK);
    assert_int_equal(view->places[1]->times_lost, 1);
    assert_true(view->places[1]->up);
    rpc_message_free(answer.message);
    mesh_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_there_is_a_model), cmocka_unit_test(many_places_are_all_there), cmocka_unit_test(steps_and_events),
        cmocka_unit_test(events_are_bounded),      cmocka_unit_test(a_worker_comes_and_goes),
    };

    log_threshold = getenv("FD_TEST_LOG") ? LOG_DEBUG : LOG_ERROR;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

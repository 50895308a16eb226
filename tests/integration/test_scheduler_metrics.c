// test_scheduler_metrics.c: the scheduler's metrics: they grow with the number of places, and places' names are labels in them.
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/integration/scheduler_mesh.h"

static char *told; // the metrics

static void on_metrics(void *user, struct rpc_message *message)
{
    const Fastdecode__MetricsReply *reply = rpc_message_unpack(message, &fastdecode__metrics_reply__descriptor);

    assert_non_null(reply);
    told = strdup(reply->text);
}

// The caller frees them.
static char *ask_for_metrics(void)
{
    Fastdecode__MetricsRequest request = FASTDECODE__METRICS_REQUEST__INIT;
    struct rpc_channel *gateway = gateway_open();

    told = NULL;
    assert_int_equal(ask(gateway, &fastdecode__generator__descriptor, "Metrics", &request.base, on_metrics).status, STATUS_OK);
    gateway_close(gateway);
    assert_non_null(told);
    return told;
}

// 255 workers with long names: more than 256 KiB, and every place is in the last family that there is of places.
static void many_places_are_all_in_the_metrics(void **state)
{
    char name[64], wanted[128];
    uint32_t i;

    mesh_open_usual();
    kv_worker.name = name;
    for (i = 1; i < SCHED_PLACES_MAX; i++) {
        snprintf(name, sizeof name, "kv-worker-of-a-rather-large-cluster-with-a-long-name-%u", i);
        assert_int_equal(kv_worker_register(0, 0, 0, 0).status, STATUS_OK);
        kv_worker_close();
    }
    kv_worker.name = NULL;
    char *text = ask_for_metrics();
    assert_true(strlen(text) > 1 << 18);
    assert_int_equal(text[strlen(text) - 1], '\n');
    for (i = 1; i < SCHED_PLACES_MAX; i++) {
        snprintf(wanted, sizeof wanted, "kv_pages_peak{place=\"kv-worker-of-a-rather-large-cluster-with-a-long-name-%u\"} ", i);
        assert_non_null(strstr(text, wanted));
    }
    free(text);
    mesh_close();
}

// A worker that went a while ago is still there until another name needs a place: then that has its place.
static void a_new_name_takes_the_place_of_one_that_is_long_gone(void **state)
{
    static const char *const names[] = {"first", "second", "third"};

    mesh_open_usual();
    for (uint32_t i = 0; i < ARRAY_COUNT(names); i++) {
        kv_worker.name = names[i];
        assert_int_equal(kv_worker_register(0, 0, 0, 0).status, STATUS_OK);
        UNTIL(registration_find_worker(scheduler, names[i])->up);
        kv_worker_close();
        UNTIL(!registration_find_worker(scheduler, names[i])->up);
        if (i < 2) // the one that has just gone keeps its place, however many are free
            registration_find_worker(scheduler, names[i])->heard_us = clock_now_us() - NAMES_KEPT_US + (i == 0 ? 60000000 : -1);
    }
    kv_worker.name = NULL;
    char *text = ask_for_metrics();
    assert_non_null(strstr(text, "fastdecode_place_lost_total{place=\"first\"} 1\n"));
    assert_null(strstr(text, "\"second\""));
    assert_non_null(strstr(text, "fastdecode_place_lost_total{place=\"third\"} 1\n"));
    assert_int_equal(scheduler->places.count, 3);
    free(text);
    mesh_close();
}

static void what_a_heartbeat_says_is_in_the_metrics(void **state)
{
    mesh_open_usual();
    kv_worker_open(0, 0, 0, 0);
    assert_int_equal(kv_worker_beat(1), STATUS_OK);
    char *text = ask_for_metrics();
    assert_non_null(strstr(text, "\nfastdecode_kv_read_bytes_total{place=\"kv-worker\"} 4711\n"));
    assert_non_null(strstr(text, "\nfastdecode_log_lines_lost_total{service=\"scheduler\"} 0\n"));
    assert_non_null(strstr(text, "\nfastdecode_log_lines_lost_total{service=\"kv-worker\"} 17\n"));
    free(text);
    mesh_close();
}

static void the_stages_of_a_pipeline_are_added_up(void **state)
{
    mesh_open_usual();
    for (uint32_t i = 0; i < 3; i++) {
        Fastdecode__HeartbeatRequest *last = &scheduler->s_part.stages[i].member->last;
        scheduler->s_part.stages[i].member->registered = true;
        last->busy_us = 1000000u << i;
        last->kv_bytes_read = 100u << i;
        last->pages_peak = i == 1 ? 30 : 20;
        last->streamed_bytes = 1000u << i;
        last->streamed_segments = 10u << i;
        scheduler->s_part.stages[i].earlier = (struct member_counts){.streamed_segments = 100};
    }
    char *text = ask_for_metrics();
    assert_non_null(strstr(text, "\nfastdecode_place_busy_seconds_total{place=\"local\"} 7\n"));
    assert_non_null(strstr(text, "\nfastdecode_kv_read_bytes_total{place=\"local\"} 700\n"));
    assert_non_null(strstr(text, "\nfastdecode_kv_pages_peak{place=\"local\"} 30\n"));
    assert_non_null(strstr(text, "\nfastdecode_weights_read_bytes_total 7000\n"));
    assert_non_null(strstr(text, "\nfastdecode_weights_read_segments_total 370\n")); // with those of the processes before
    free(text);
    mesh_close();
}

static void names_that_are_no_labels_are_refused(void **state)
{
    static const char *const names[] = {"a b", "a\"b", "a\nb", "a\\b", "a{b", "\xC3\xA4", "a/b", "a:b"};

    mesh_open_usual();
    for (uint32_t i = 0; i < ARRAY_COUNT(names); i++) {
        kv_worker.name = names[i];
        struct outcome outcome = kv_worker_register(0, 0, 0, 0);
        assert_int_equal(outcome.status, STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(outcome.text, "a name has"));
        kv_worker_close();
    }
    kv_worker.name = "Kv_worker-1.example.org";
    assert_int_equal(kv_worker_register(0, 0, 0, 0).status, STATUS_OK);
    char *text = ask_for_metrics();
    assert_non_null(strstr(text, "\nfastdecode_refused_total{kind=\"kv-worker\",reason=\"request\"} 8\n"));
    free(text);
    mesh_close();
}

// Class batch is full of a job: a request runs all the same, and has a queue of its own.
static void each_class_has_its_queue_and_metrics(void **state)
{
    static const char *const wanted[] = {"\nfastdecode_requests_running 1\n", "\nfastdecode_requests_waiting 2\n",
                                         "\nfastdecode_batch_requests_running 1\n", "\nfastdecode_batch_requests_waiting 2\n"};

    mesh_open(2, 1, 1);
    assert_int_equal(register_s_part(usual).status, STATUS_OK);
    struct rpc_channel *gateway = gateway_open();
    for (uint32_t i = 0; i < 8; i++) {
        latency_class = i < 4 ? FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_BATCH
                              : FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_INTERACTIVE;
        generate(gateway, &streams[i], 0, 20, 90000);
        if (i % 4 == 0) // it runs
            UNTIL(streams[i].tokens > 0);
    }
    latency_class = 0;
    UNTIL(streams[3].outcome.ended && streams[7].outcome.ended);
    assert_int_equal(streams[3].outcome.status, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(streams[7].outcome.status, STATUS_RESOURCE_EXHAUSTED);
    char *text = ask_for_metrics();
    for (uint32_t i = 0; i < ARRAY_COUNT(wanted); i++)
        assert_non_null(strstr(text, wanted[i]));
    assert_null(strstr(text, "fastdecode_batch_rows_total 0\n"));
    free(text);
    mesh_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_places_are_all_in_the_metrics),
        cmocka_unit_test(a_new_name_takes_the_place_of_one_that_is_long_gone),
        cmocka_unit_test(what_a_heartbeat_says_is_in_the_metrics),
        cmocka_unit_test(the_stages_of_a_pipeline_are_added_up),
        cmocka_unit_test(names_that_are_no_labels_are_refused),
        cmocka_unit_test(each_class_has_its_queue_and_metrics),
    };

    log_threshold = getenv("FD_TEST_LOG") ? LOG_DEBUG : LOG_ERROR;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

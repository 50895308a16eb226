/* test_trace.c: the file that a trace writes: whole JSON, every span or a count of those that were dropped, nothing when off. */
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/trace/trace.h"
#include "tests/cmocka.h"

static char path[64];

static int set_up(void **state)
{
    snprintf(path, sizeof path, "/tmp/fd-trace-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int tear_down(void **state) { return unlink(path); }

static void open_trace(bool append, uint64_t limit_bytes, uint32_t ring_spans)
{
    const struct trace_config config = {
        .path = path, .append = append, .process = "a \"test\"", .order = 1, .limit_bytes = limit_bytes, .ring_spans = ring_spans};
    struct error error;
    if (trace_open(&config, &error))
        fail_msg("%s", error.text);
}

static json_t *load(void)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        fail_msg("line %d: %s", error.line, error.text);
    return root;
}

static const char *text_of(const json_t *event, const char *key) { return json_string_value(json_object_get(event, key)); }
static json_int_t arg_of(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(event, "args"), key));
}

/* Events of that name and kind. */
static uint32_t count(const json_t *root, const char *name, const char *kind)
{
    const json_t *event;
    uint32_t found = 0;
    size_t i;

    json_array_foreach (root, i, event) {
        found += !strcmp(text_of(event, "name"), name) && !strcmp(text_of(event, "ph"), kind);
    }
    return found;
}

static const json_t *find(const json_t *root, const char *name, const char *kind)
{
    const json_t *event;
    size_t i;

    json_array_foreach (root, i, event) {
        if (!strcmp(text_of(event, "name"), name) && !strcmp(text_of(event, "ph"), kind))
            return event;
    }
    fail_msg("no %s", name);
    return NULL;
}

static void off_there_is_no_track_and_nothing_is_evaluated(void **state)
{
    const struct trace_config config = {.process = "test"};
    uint32_t evaluated = 0;
    struct error error;

    assert_int_equal(trace_open(&config, &error), STATUS_OK);
    struct trace_track *track = trace_track_open("track");
    assert_null(track);
    assert_int_equal(trace_clock(track), 0);
    assert_int_equal(trace_span(track, "span", 0, {"n", ++evaluated}), 0);
    assert_int_equal(evaluated, 0);
    trace_close();
}

static void spans_nest_and_carry_numbers(void **state)
{
    open_trace(false, 0, 0);
    struct trace_track *track = trace_track_open("track");
    uint64_t outer_ns = trace_clock(track), inner_ns = trace_clock(track);
    inner_ns = trace_span(track, "inner", inner_ns, {"layer", 3}, {"step", UINT64_C(9007199254740991)});
    assert_true(trace_span(track, "second", inner_ns) >= inner_ns);
    trace_span(track, "outer", outer_ns);
    trace_overlapping(track, "request", 7, outer_ns, {"tokens", 5});
    trace_close();

    json_t *root = load();
    const json_t *inner = find(root, "inner", "X"), *outer = find(root, "outer", "X"), *begin = find(root, "request", "b");
    double inner_us = json_number_value(json_object_get(inner, "ts")), outer_us = json_number_value(json_object_get(outer, "ts"));
    assert_true(outer_us <= inner_us && inner_us + json_number_value(json_object_get(inner, "dur")) <=
                                            outer_us + json_number_value(json_object_get(outer, "dur")) + 0.002);
    assert_int_equal(arg_of(inner, "layer"), 3);
    assert_int_equal(arg_of(inner, "step"), 9007199254740991);
    assert_int_equal(arg_of(begin, "tokens"), 5);
    assert_string_equal(text_of(json_object_get(begin, "id2"), "local"), "7");
    assert_int_equal(count(root, "request", "e"), 1);
    assert_string_equal(text_of(json_object_get(find(root, "process_name", "M"), "args"), "name"), "a ?test?");
    assert_string_equal(text_of(json_object_get(find(root, "thread_name", "M"), "args"), "name"), "track");
    assert_int_equal(arg_of(find(root, "trace end", "i"), "ring_full"), 0);
    assert_true(arg_of(find(root, "clock", "M"), "wall_us") > 0);
    json_decref(root);
}

/* A ring of 8 that is filled faster than it is emptied. */
static void what_a_full_ring_drops_is_counted(void **state)
{
    enum { SPANS = 5000 };

    open_trace(false, 0, 8);
    struct trace_track *track = trace_track_open("track");
    for (uint32_t i = 0; i < SPANS; i++)
        trace_span(track, "span", trace_clock(track), {"i", i});
    trace_close();

    json_t *root = load();
    const json_t *event;
    json_int_t last = -1;
    size_t at;
    json_array_foreach (root, at, event) {
        if (!strcmp(text_of(event, "name"), "span")) {
            assert_true(arg_of(event, "i") > last); /* in order, the oldest stay */
            last = arg_of(event, "i");
        }
    }
    uint32_t written = count(root, "span", "X");
    assert_in_range(written, 8, SPANS - 1);
    assert_int_equal(written + arg_of(find(root, "trace end", "i"), "ring_full"), SPANS);
    json_decref(root);
}

static void a_file_at_its_limit_stays_there_and_whole(void **state)
{
    enum { SPANS = 8000, LIMIT = 300000 };
    struct stat info;

    open_trace(false, LIMIT, 0);
    struct trace_track *track = trace_track_open("track");
    for (uint32_t i = 0; i < SPANS; i++)
        trace_span(track, "span", trace_clock(track), {"i", i});
    trace_close();

    json_t *root = load();
    uint32_t written = count(root, "span", "X");
    assert_true(written > 1000);
    assert_int_equal(written + arg_of(find(root, "trace end", "i"), "over_limit"), SPANS);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size <= LIMIT);
    json_decref(root);
}

enum { THREADS = 4, SPANS_EACH = 3000 };

static void *put_many(void *arg)
{
    struct trace_track *track = trace_track_open(arg);
    for (uint32_t i = 0; i < SPANS_EACH; i++)
        trace_span(track, "span", trace_clock(track), {"i", i});
    return NULL;
}

static void put_many_in_threads(void)
{
    pthread_t threads[THREADS];
    char name[] = "track";
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_many, name), 0);
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void processes_and_threads_share_a_file(void **state)
{
    int status;

    open_trace(false, 0, 0);
    pid_t child = fork(); /* no thread runs yet */
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_trace", "append", path, NULL);
        _exit(1);
    }
    put_many_in_threads();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    trace_close();

    json_t *root = load();
    assert_int_equal(count(root, "span", "X"), 2 * THREADS * SPANS_EACH);
    assert_int_equal(count(root, "process_name", "M"), 2);
    assert_int_equal(count(root, "thread_name", "M"), 2 * THREADS);
    assert_int_equal(count(root, "trace end", "i"), 2);
    json_decref(root);
}

static void the_next_trace_begins_anew(void **state)
{
    for (uint32_t i = 0; i < 2; i++) {
        open_trace(false, 0, 0);
        struct trace_track *track = trace_track_open("track");
        trace_span(track, "span", trace_clock(track));
        trace_close();
    }
    json_t *root = load();
    assert_int_equal(count(root, "span", "X"), 1);
    json_decref(root);
}

static void a_file_that_cannot_be_written_is_an_error(void **state)
{
    const struct trace_config config = {.path = "/nowhere/trace.json", .process = "test"};
    struct error error;

    assert_int_equal(trace_open(&config, &error), STATUS_NOT_FOUND);
    assert_string_equal(error.text, "--trace /nowhere/trace.json: No such file or directory");
    assert_null(trace_track_open("track"));
    trace_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_there_is_no_track_and_nothing_is_evaluated),
        cmocka_unit_test_setup_teardown(spans_nest_and_carry_numbers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_full_ring_drops_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_at_its_limit_stays_there_and_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(processes_and_threads_share_a_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_next_trace_begins_anew, set_up, tear_down),
        cmocka_unit_test(a_file_that_cannot_be_written_is_an_error),
    };

    if (argc == 3 && !strcmp(argv[1], "append")) { /* the other process */
        snprintf(path, sizeof path, "%s", argv[2]);
        open_trace(true, 0, 0);
        put_many_in_threads();
        trace_close();
        return 0;
    }
    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}

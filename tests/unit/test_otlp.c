/* test_otlp.c: traces on their way out: W3C trace context, spans of fixed size, the queue, the encoder, and an exporter whose collector is a thread
 * of this test. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/trace/otlp.h"
#include "common/trace/otlp_internal.h"
#include "otlp_trace.pb-c.h"
#include "tests/cmocka.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

static bool parse(const char *text, struct otlp_context *out) { return otlp_context_parse(text, strlen(text), out); }

static void parents_are_read(void **state)
{
    static const struct {
        const char *text;
        bool sampled;
    } good[] = {
        {"00-" TRACE "-" SPAN "-01", true},   {"00-" TRACE "-" SPAN "-00", false}, {"00-" TRACE "-" SPAN "-ff", true},
        {"00-" TRACE "-" SPAN "-fe", false},  {"01-" TRACE "-" SPAN "-01", true},  {"fe-" TRACE "-" SPAN "-01-", true},
        {"cc-" TRACE "-" SPAN "-03-x", true},
    };
    static const char *const bad[] = {
        "",
        "00",
        "00-" TRACE "-" SPAN "-0",
        "00-" TRACE "-" SPAN "-011",
        "00-" TRACE "-" SPAN "-01-x",
        "ff-" TRACE "-" SPAN "-01",
        "0G-" TRACE "-" SPAN "-01",
        "01-" TRACE "-" SPAN "-01x",
        "00-00000000000000000000000000000000-" SPAN "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01",
        "00-" TRACE "-" SPAN "-0x",
        "00 " TRACE "-" SPAN "-01",
        "00-" TRACE " " SPAN "-01",
        "00-" TRACE "-" SPAN " 01",
        "00-" TRACE SPAN "--01",
        "00-" TRACE "-" SPAN "-01,00-" TRACE "-" SPAN "-01",
    };
    static const struct otlp_context none;
    struct otlp_context found;
    char text[OTLP_PARENT_BYTES];

    for (size_t i = 0; i < ARRAY_COUNT(good); i++) {
        assert_true(parse(good[i].text, &found));
        assert_int_equal(found.sampled, good[i].sampled);
        assert_int_equal(found.trace_id[0], 0x4b);
        assert_int_equal(found.trace_id[15], 0x36);
        assert_int_equal(found.span_id[1], 0xf0);
        otlp_context_format(&found, text);
        assert_string_equal(text, good[i].sampled ? "00-" TRACE "-" SPAN "-01" : "00-" TRACE "-" SPAN "-00");
    }
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        if (parse(bad[i], &found))
            fail_msg("\"%s\" is taken", bad[i]);
        assert_memory_equal(&found, &none, sizeof none);
    }
    for (size_t length = 0; length < 55; length++)
        assert_false(otlp_context_parse("00-" TRACE "-" SPAN "-01", length, &found));
}

static bool state_is_valid(const char *text) { return otlp_state_is_valid(text, strlen(text)); }

static void states_are_checked(void **state)
{
    static const char *const good[] = {
        "a=1", "a=1,b=2", " a=1 ,\tb=2 ,, ", "0tenant@system=x y", "a-b_c*d/e= leading", "a=~!\"#$%&'()*+-./:;<>?@"};
    static const char *const bad[] = {"",      ",",      " ",          "a",     "=1",   "a=",   "A=1",   "a=1,a=2",
                                      "a=b=c", "a=\x7f", "a=\xc3\xa9", "a b=1", "@a=1", "-a=1", "a=\x01"};
    char text[600], *at = text;

    for (size_t i = 0; i < ARRAY_COUNT(good); i++)
        if (!state_is_valid(good[i]))
            fail_msg("\"%s\" is refused", good[i]);
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++)
        if (state_is_valid(bad[i]))
            fail_msg("\"%s\" is taken", bad[i]);
    for (int i = 0; i < OTLP_STATE_MEMBERS_MAX; i++)
        at += sprintf(at, "k%d=v,", i);
    assert_true(state_is_valid(text));
    sprintf(at, "more=v");
    assert_false(state_is_valid(text));
    memset(text, 'v', sizeof text);
    memcpy(text, "a=", 2);
    assert_true(otlp_state_is_valid(text, 2 + 256));
    assert_false(otlp_state_is_valid(text, 2 + 257));
    memset(text, ' ', sizeof text);
    memcpy(text, "a=1", 3);
    text[3] = ',';
    assert_true(otlp_state_is_valid(text, OTLP_STATE_BYTES - 1));
    assert_false(otlp_state_is_valid(text, OTLP_STATE_BYTES));
}

static void a_ratio_is_kept(void **state)
{
    enum { COUNT = 20000 };
    const struct otlp_config config = {.endpoint = "http://127.0.0.1:9", .service = "test"};
    unsigned char id[OTLP_TRACE_ID_BYTES];
    struct otlp *otlp;
    struct error error;
    uint32_t in = 0;

    assert_int_equal(otlp_open(&config, &otlp, &error), STATUS_OK);
    for (int i = 0; i < COUNT; i++) {
        otlp_new_trace_id(otlp, id);
        const bool quarter = otlp_is_in_ratio(id, 0.25);
        in += quarter;
        assert_true(otlp_is_in_ratio(id, 1) && !otlp_is_in_ratio(id, 0) && (!quarter || otlp_is_in_ratio(id, 0.5)));
    }
    assert_in_range(in, COUNT / 4 - COUNT / 20, COUNT / 4 + COUNT / 20);
    memset(id, 255, sizeof id); // as a double it would be 1
    assert_true(otlp_is_in_ratio(id, 1));
    otlp_close(otlp);
}

static void make_span(struct otlp_span *span, uint32_t number)
{
    struct otlp_context context;

    assert_true(parse("00-" TRACE "-" SPAN "-01", &context));
    memcpy(context.span_id, &number, sizeof number);
    otlp_span_init(span, "a span", &context, number % 2 ? context.span_id : NULL, 1000 + number, 2000 + number);
    otlp_span_number(span, "number", number);
}

static void what_has_no_room_is_left_out(void **state)
{
    static const char *const items[] = {"one", "two"};
    struct otlp_span span;
    char text[2 * OTLP_TEXT_BYTES];

    make_span(&span, 1);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    text[0] = '\n';
    text[1] = '\xff';
    otlp_span_list(&span, "list", items, 2);
    otlp_span_text(&span, "long", text);
    otlp_span_text(&span, "none", "no room");
    otlp_span_list(&span, "empty", items, 2);
    assert_int_equal(span.attribute_count, 4);
    assert_int_equal(span.attributes[1].item_count, 2);
    assert_memory_equal(span.texts + span.attributes[2].text_index, "??xxx", 5);
    assert_int_equal(strlen(span.texts + span.attributes[2].text_index), OTLP_TEXT_BYTES - 8 - 1);
    assert_int_equal(span.attributes[3].item_count, 0);
    for (int i = 0; i < 2 * OTLP_ATTRIBUTES_MAX; i++)
        otlp_span_number(&span, "more", i);
    assert_int_equal(span.attribute_count, OTLP_ATTRIBUTES_MAX);
    for (int i = 0; i < OTLP_EVENTS_MAX + 3; i++)
        otlp_span_event(&span, &(struct otlp_event){.name = "event", .at_ns = 1});
    assert_int_equal(span.event_count, OTLP_EVENTS_MAX);
    assert_int_equal(span.events_dropped, 3);
}

/* --- the queue */

enum { WRITERS = 4, EACH = 5000, CAPACITY = 64 };

static struct otlp_queue queue;
static atomic_uint writers_left;

static void *write_spans(void *arg)
{
    static atomic_uint ids;
    const uint32_t writer = atomic_fetch_add(&ids, 1);
    struct otlp_span span;

    for (uint32_t i = 0; i < EACH; i++) {
        make_span(&span, writer * EACH + i);
        while (!otlp_queue_put(&queue, &span))
            sched_yield();
    }
    atomic_fetch_sub(&writers_left, 1);
    return NULL;
}

static void many_write_and_one_reads(void **state)
{
    pthread_t threads[WRITERS];
    struct otlp_span spans[7];
    uint32_t next[WRITERS] = {0}, total = 0;

    assert_int_equal(otlp_queue_open(&queue, CAPACITY), STATUS_OK);
    atomic_store(&writers_left, WRITERS);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_spans, NULL), 0);
    while (total < WRITERS * EACH) {
        const uint32_t count = otlp_queue_take(&queue, spans, ARRAY_COUNT(spans));
        for (uint32_t i = 0; i < count; i++) {
            uint32_t number;
            memcpy(&number, spans[i].context.span_id, sizeof number);
            assert_int_equal(number % EACH, next[number / EACH]++); /* each writer's in order, none twice */
            assert_int_equal(spans[i].attributes[0].number, number);
            assert_int_equal(spans[i].ended_ns, 2000 + number);
        }
        total += count;
        if (!count)
            sched_yield();
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < CAPACITY; i++) {
        make_span(&spans[0], i);
        assert_true(otlp_queue_put(&queue, &spans[0]));
    }
    assert_false(otlp_queue_put(&queue, &spans[0]));
    assert_int_equal(otlp_queue_take(&queue, spans, 1), 1);
    assert_true(otlp_queue_put(&queue, &spans[0]));
    otlp_queue_close(&queue);
}

/* --- the encoder: read back by protobuf-c, from the same numbers; tests/e2e/test_otlp.py reads it by others' */

static void a_batch_is_encoded(void **state)
{
    static const char *const items[] = {"stop", "length"};
    struct otlp_encoder *encoder;
    struct otlp_span spans[3];
    struct text body = {0};

    assert_int_equal(otlp_encoder_open("a service", "an\xff instance", &encoder), STATUS_OK);
    for (uint32_t i = 0; i < 3; i++)
        make_span(&spans[i], i);
    otlp_span_list(&spans[1], "list", items, 2);
    otlp_span_text(&spans[1], "text", "copied");
    otlp_span_event(&spans[1], &(struct otlp_event){"event", "key", -7, 1500});
    spans[1].failed = true;
    strcpy(spans[1].state, "a=1");
    for (int round = 0; round < 2; round++) { /* what the encoder used before is no part of it */
        otlp_encode(encoder, spans, 3, 5000, &body);
        Fastdecode__Otlp__ExportRequest *read =
            fastdecode__otlp__export_request__unpack(NULL, body.bytes, (const uint8_t *)body.data);
        assert_non_null(read);
        assert_int_equal(read->n_resource_spans, 1);
        assert_string_equal(read->resource_spans[0]->resource->attributes[2]->value->string_value, "an? instance");
        const Fastdecode__Otlp__ScopeSpans *scope = read->resource_spans[0]->scope_spans[0];
        assert_int_equal(scope->n_spans, 3);
        const Fastdecode__Otlp__Span *span = scope->spans[1];
        assert_int_equal(span->trace_id.len, 16);
        assert_int_equal(span->parent_span_id.len, 8);
        assert_int_equal(scope->spans[0]->parent_span_id.len, 0);
        assert_int_equal(span->start_time_unix_nano, 6001);
        assert_int_equal(span->end_time_unix_nano, 7001);
        assert_int_equal(span->n_attributes, 3);
        assert_string_equal(span->attributes[1]->value->array_value->values[1]->string_value, "length");
        assert_string_equal(span->attributes[2]->value->string_value, "copied");
        assert_int_equal(span->events[0]->attributes[0]->value->int_value, -7);
        assert_int_equal(span->events[0]->time_unix_nano, 6500);
        assert_int_equal(span->status->code, 2);
        assert_null(scope->spans[0]->status);
        assert_string_equal(span->trace_state, "a=1");
        fastdecode__otlp__export_request__free_unpacked(read, NULL);
    }
    text_free(&body);
    otlp_encoder_close(encoder);
    assert_int_equal(otlp_decode_rejected((const unsigned char *)"\x0a\x02\x08\x05", 4), 5);
    assert_int_equal(otlp_decode_rejected((const unsigned char *)"\x0a\x02\x08", 3), 0);
    assert_int_equal(otlp_decode_rejected((const unsigned char *)"", 0), 0);
}

/* --- the exporter */

/* Answers requests one after the other, each on a connection of its own; the last answer for all that follow. */
struct collector {
    int listener;
    char url[64];
    const char *const *answers;
    uint32_t answer_count;
    atomic_uint requests;
    pthread_t thread;
};

/* Reads a request to its end. False: the client has gone. */
static bool read_request(int fd)
{
    char data[65536];
    size_t bytes = 0, wanted = sizeof data - 1;

    while (bytes < wanted) {
        const ssize_t n = recv(fd, data + bytes, sizeof data - 1 - bytes, 0);
        if (n <= 0)
            return false;
        bytes += (size_t)n;
        data[bytes] = '\0';
        const char *end = strstr(data, "\r\n\r\n"), *length = strstr(data, "Content-Length: ");
        if (end && length)
            wanted = (size_t)(end + 4 - data) + strtoul(length + strlen("Content-Length: "), NULL, 10);
    }
    return true;
}

static void *collect(void *arg)
{
    struct collector *collector = arg;

    for (;;) {
        const int fd = accept(collector->listener, NULL, NULL);
        if (fd < 0)
            return NULL;
        if (read_request(fd)) {
            const uint32_t number = atomic_fetch_add(&collector->requests, 1);
            const char *answer = collector->answers[MIN(number, collector->answer_count - 1)];
            (void)!send(fd, answer, strlen(answer), MSG_NOSIGNAL);
        }
        close(fd);
    }
}

static void start(struct collector *collector, const char *const *answers, uint32_t answer_count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;

    *collector = (struct collector){.answers = answers, .answer_count = answer_count};
    collector->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(collector->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(collector->listener, 16), 0);
    assert_int_equal(getsockname(collector->listener, (struct sockaddr *)&address, &length), 0);
    snprintf(collector->url, sizeof collector->url, "http://127.0.0.1:%d", ntohs(address.sin_port));
    if (answers)
        assert_int_equal(pthread_create(&collector->thread, NULL, collect, collector), 0);
}

static void stop(struct collector *collector)
{
    shutdown(collector->listener, SHUT_RDWR);
    if (collector->answers)
        pthread_join(collector->thread, NULL);
    close(collector->listener);
}

#define HEAD "Connection: close\r\nContent-Length: 0\r\n\r\n"
#define TAKEN "HTTP/1.1 200 OK\r\n" HEAD
#define BUSY "HTTP/1.1 503 Busy\r\n" HEAD

/* Puts so many spans, waits until all are accounted for, and ends; with `closes` the end accounts for them. */
static struct otlp_counts export_spans(const struct collector *collector, uint32_t count, uint32_t queue_spans, bool closes)
{
    const struct otlp_config config = {.endpoint = collector->url, .service = "test", .queue_spans = queue_spans, .again_ms = 1};
    struct otlp_counts counts = {0};
    struct otlp_span span;
    struct otlp *otlp;
    struct error error;

    assert_int_equal(otlp_open(&config, &otlp, &error), STATUS_OK);
    for (uint32_t i = 0; i < count; i++) {
        make_span(&span, i);
        otlp_put(otlp, &span);
    }
    while (!closes && counts.exported + counts.dropped < count) {
        usleep(1000);
        counts = otlp_counts(otlp);
    }
    counts = otlp_counts(otlp);
    otlp_close(otlp);
    return counts;
}

static void a_busy_collector_is_asked_again(void **state)
{
    static const char *const answers[] = {
        BUSY, "HTTP/1.1 429 Slow\r\n" HEAD, "HTTP/1.1 502 No\r\n" HEAD, "HTTP/1.1 504 No\r\n" HEAD, "", TAKEN};
    struct collector collector;

    start(&collector, answers, ARRAY_COUNT(answers));
    const struct otlp_counts counts = export_spans(&collector, 5, 0, false);
    assert_int_equal(counts.exported, 5);
    assert_int_equal(counts.dropped, 0);
    assert_in_range(atomic_load(&collector.requests), 6, 10); /* more if the first batch had not all five */
    stop(&collector);
}

static void one_that_stays_busy_is_given_up(void **state)
{
    static const char *const answers[] = {BUSY};
    struct collector collector;

    start(&collector, answers, 1);
    const struct otlp_counts counts = export_spans(&collector, 5, 0, false);
    assert_int_equal(counts.dropped, 5);
    assert_int_equal(atomic_load(&collector.requests) % 6, 0); /* each batch is sent so many times */
    assert_in_range(atomic_load(&collector.requests), 6, 30);
    stop(&collector);
}

static void one_that_refuses_is_not_asked_again(void **state)
{
    static const char *const answers[] = {"HTTP/1.1 400 No\r\n" HEAD};
    struct collector collector;

    start(&collector, answers, 1);
    assert_int_equal(export_spans(&collector, 5, 0, false).dropped, 5);
    assert_in_range(atomic_load(&collector.requests), 1, 5);
    stop(&collector);
}

static void nobody_listens(void **state)
{
    struct collector collector;

    start(&collector, NULL, 0);
    stop(&collector);
    assert_int_equal(export_spans(&collector, 5, 0, false).dropped, 5);
}

/* It accepts and never answers: the queue fills up, further spans are dropped at once, and closing does not wait for ever. */
static void one_that_is_silent(void **state)
{
    struct collector collector;

    start(&collector, NULL, 0);
    const struct otlp_counts counts = export_spans(&collector, 1000, 4, true);
    assert_int_equal(counts.exported, 0);
    assert_in_range(counts.dropped, 1000 - OTLP_BATCH_SPANS - 4, 1000);
    stop(&collector);
}

/* Closing sends what is queued. */
static void what_is_left_is_sent_at_the_end(void **state)
{
    static const char *const answers[] = {TAKEN};
    struct collector collector;

    start(&collector, answers, 1);
    (void)export_spans(&collector, OTLP_BATCH_SPANS + 5, 0, true);
    assert_in_range(atomic_load(&collector.requests), 2, OTLP_BATCH_SPANS + 5);
    stop(&collector);
}

static void endpoints_are_checked(void **state)
{
    static const char *const good[] = {NULL, "none", "http://a", "https://a.b:4318/x/", "http://[::1]:4318"};
    static const char *const bad[] = {"",           "a:1",        "ftp://a",    "http://",    "http:///x",
                                      "http://a?b", "http://a#b", "http://u@a", "http://a b", "HTTP://a"};
    struct error error;
    struct otlp *otlp;

    for (size_t i = 0; i < ARRAY_COUNT(good); i++)
        assert_int_equal(otlp_check_endpoint(good[i], &error), STATUS_OK);
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++)
        if (!otlp_check_endpoint(bad[i], &error))
            fail_msg("\"%s\" is taken", bad[i]);
    assert_int_equal(otlp_open(&(struct otlp_config){.endpoint = "none", .service = "test"}, &otlp, &error), STATUS_OK);
    assert_null(otlp);
    otlp_close(otlp);
    assert_int_equal(otlp_counts(otlp).exported, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parents_are_read),
        cmocka_unit_test(states_are_checked),
        cmocka_unit_test(a_ratio_is_kept),
        cmocka_unit_test(what_has_no_room_is_left_out),
        cmocka_unit_test(many_write_and_one_reads),
        cmocka_unit_test(a_batch_is_encoded),
        cmocka_unit_test(a_busy_collector_is_asked_again),
        cmocka_unit_test(one_that_stays_busy_is_given_up),
        cmocka_unit_test(one_that_refuses_is_not_asked_again),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(one_that_is_silent),
        cmocka_unit_test(what_is_left_is_sent_at_the_end),
        cmocka_unit_test(endpoints_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_gateway_failures.c: what a client sees when the mesh is full, away, slow, or dies half-way, when the gateway closes, and what
// becomes of a request when the client itself is slow or leaves. The mesh is gateway_rig.h's.
#include "tests/cmocka.h"
#include "tests/integration/gateway_rig.h"
#include "tests/integration/kept_log.h"

// The scheduler dies half-way: the stream pauses, goes on with the token log, and no token is missing or there twice.
static void test_scheduler_dies(void **state)
{
    char text[128];
    struct http_reply stream, whole;
    uint32_t before = fake_look(&fake).open;

    fake_set_tokens(&fake, 6, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    stream = http_send(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":30,\"stream\":true,\"logprobs\":0}");
    whole = http_send(port, "POST", COMPLETION, "", "{\"prompt\":[9],\"max_tokens\":30}");
    assert_true(http_read_until(&stream, "\"text\":", 6));
    assert_true(fake_wait(&fake, saw_open, before + 2));
    fake_go_away(&fake);
    assert_true(http_read_until(&stream, ": keep-alive", 1)); // silent, and kept open
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    fake_come_back(&fake);
    http_read_all(&stream);
    http_read_all(&whole);
    http_joined(&stream, "text", text, sizeof text);
    assert_string_equal(text, canned(5, 0, 30));
    assert_int_equal(http_count(&stream, "data: [DONE]"), 1);
    assert_non_null(strstr(whole.data, canned(1, 0, 30)));
    assert_int_equal(fake_look(&fake).resumed_at, 6);
    assert_true(fake_look(&fake).resumed_sequence != 0);
    http_free(&stream);
    http_free(&whole);
}

// The scheduler dies while a request waits in its queue. It was accepted, so it waits for the next one longer than a new one would, and is not
// refused when that one's queue is full.
static void test_scheduler_dies_before_the_first_token(void **state)
{
    const struct fake_settings before = fake_look(&fake);
    struct http_reply accepted, other;

    fake_set_tokens(&fake, 0, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    accepted = http_send(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":30}");
    assert_true(fake_wait(&fake, saw_open, before.open + 1));
    fake_go_away(&fake);
    AWAIT(usleep(2000), http_ask(port, "GET", "/ready", "", "") == 503);
    other = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":30}");
    assert_int_equal(http_status(&other), 503);
    http_free(&other);
    fake_set(&fake, true, true, 0, 10000);
    fake_come_back(&fake);
    wait_ready(port);
    other = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":30}");
    assert_int_equal(http_status(&other), 429);
    http_free(&other);
    assert_true(fake_wait(&fake, saw_refused, before.refused + 2));
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    fake_set(&fake, true, false, 0, 10000);
    http_read_all(&accepted);
    assert_int_equal(http_status(&accepted), 200);
    assert_non_null(strstr(accepted.data, canned(5, 0, 30)));
    http_free(&accepted);
}

// Its connection stands, and nothing comes: its host may be gone. It is dialed anew, and the request goes on with who answers there.
static void test_scheduler_silent(void **state)
{
    char text[128];
    struct http_reply stream;
    const struct fake_settings before = fake_look(&fake);

    fake_set_tokens(&fake, 6, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    stream = http_send(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":30,\"stream\":true,\"logprobs\":0}");
    assert_true(http_read_until(&stream, "\"text\":", 6));
    fake_set_silent(&fake, true);
    assert_true(fake_wait(&fake, saw_cancelled, before.cancelled + 1));
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    fake_set_silent(&fake, false);
    http_read_all(&stream);
    http_joined(&stream, "text", text, sizeof text);
    assert_string_equal(text, canned(5, 0, 30));
    assert_int_equal(fake_look(&fake).resumed_at, 6);
    http_free(&stream);
}

static void test_client_leaves(void **state)
{
    static const char *const bodies[] = {"{" PROMPT5 ",\"max_tokens\":50,\"stream\":true}",
                                         "{" PROMPT5 ",\"max_tokens\":50,\"n\":3}"};
    static const uint32_t sequences[] = {1, 3};
    uint32_t i;

    fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    for (i = 0; i < ARRAY_COUNT(bodies); i++) {
        struct fake_settings before = fake_look(&fake);
        struct http_reply reply = http_send(port, "POST", COMPLETION, "", bodies[i]);
        assert_true(fake_wait(&fake, saw_open, before.open + sequences[i]));
        http_free(&reply);
        assert_true(fake_wait(&fake, saw_cancelled, before.cancelled + sequences[i]));
        assert_int_equal(fake_look(&fake).open, before.open);
    }
}

static void expect_retry_after(const struct http_reply *reply)
{
    const char *header = reply->data ? strstr(reply->data, "Retry-After: ") : NULL;
    int seconds = header ? atoi(header + 13) : 0;
    assert_true(seconds >= 1 && seconds <= 60);
}

static void test_full(void **state)
{
    uint32_t started = fake_look(&fake).started;
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);
    struct http_reply reply;

    fake_set(&fake, true, true, 0, 10); // the state still says that there is room
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"stream\":true}");
    assert_int_equal(http_status(&reply), 429);
    expect_retry_after(&reply);
    http_free(&reply);
    fake_set(&fake, true, false, 10, 10); // known to be full: not even parsed, once the news is here
    do {
        assert_false(pace_passed(&deadline));
        reply = http_call(port, "POST", COMPLETION, "", "this is no JSON");
        if (http_status(&reply) == 429)
            break;
        assert_int_equal(http_status(&reply), 400);
        http_free(&reply);
    } while (true);
    expect_retry_after(&reply);
    http_free(&reply);
    assert_int_equal(fake_look(&fake).started, started);
}

static void test_not_ready(void **state)
{
    struct http_reply reply;

    fake_set(&fake, false, false, 0, 10);
    AWAIT(usleep(2000), http_ask(port, "GET", "/ready", "", "") == 503);
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 "}");
    assert_int_equal(http_status(&reply), 503);
    expect_retry_after(&reply);
    assert_non_null(strstr(reply.data, "no s-part"));
    http_free(&reply);
    reply = http_call(port, "GET", "/metrics", "", ""); // the completion counts, who asked for readiness does not
    assert_non_null(strstr(reply.data, "\nfastdecode_http_responses_total{code=\"503\",reason=\"not_ready\"} "));
    assert_null(strstr(reply.data, "\nfastdecode_http_responses_total{code=\"503\"}"));
    http_free(&reply);
}

// The scheduler says it once a second; the log names both now and then.
static void test_mesh_of_another_model(void **state)
{
    for (uint32_t i = 0; i < 3; i++) {
        fake_set_fingerprint(&fake, 77);
        AWAIT(usleep(2000), http_ask(port, "GET", "/ready", "", "") == 503);
        fake_set_fingerprint(&fake, 0);
        wait_ready(port);
    }
    assert_int_equal(kept_log_count("MESH-OTHER-MODEL", address, "mesh_model=\"fake\""), 1);
    assert_int_equal(kept_log_count("MESH-OTHER-MODEL", NULL, NULL), 1);
}

// A mesh that does not announce it would skip the field and draw other tokens.
static void test_mesh_of_an_older_release(void **state)
{
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":3,\"stop_token_ids\":[7]}");

    assert_int_equal(http_status(&reply), 503);
    assert_non_null(strstr(reply.data, "too old for min_tokens, stop_token_ids"));
    http_free(&reply);
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":3,\"stop_token_ids\":[],\"typical_p\":1}");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
}

static void test_slow_headers(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *impatient;
    struct http_reply reply;
    struct error error;

    config.header_timeout_s = 0.4;
    assert_int_equal(gateway_open(&config, &impatient, &error), STATUS_OK);
    reply = (struct http_reply){.fd = http_connect(gateway_port(impatient))};
    assert_int_equal(send(reply.fd, "GET /health HTTP/1.1\r\nX: ", 25, MSG_NOSIGNAL), 25);
    http_read_all(&reply);
    assert_int_equal(http_status(&reply), 408);
    http_free(&reply);
    gateway_close(impatient);
}

// Whether so many requests of that gateway are being answered, the question itself among them.
static bool are_active(uint32_t at, uint32_t count)
{
    struct http_reply reply = http_call(at, "GET", "/metrics", "", "");
    char wanted[64];

    snprintf(wanted, sizeof wanted, "\nfastdecode_gateway_http_active %u\n", count);
    bool seen = strstr(reply.data, wanted) != NULL;
    http_free(&reply);
    return seen;
}

// A mesh that is ready in time serves what has waited for it.
static void test_ready_in_time(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *patient;
    struct http_reply reply;
    struct error error;

    config.ready_grace_s = 600;
    fake_set(&fake, false, false, 0, 10);
    assert_int_equal(gateway_open(&config, &patient, &error), STATUS_OK);
    reply = http_send(gateway_port(patient), "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":3}");
    AWAIT(usleep(20000), are_active(gateway_port(patient), 2));
    fake_set(&fake, true, false, 0, 10);
    http_read_all(&reply);
    assert_non_null(strstr(reply.data, canned(5, 0, 3)));
    http_free(&reply);
    gateway_close(patient);
}

// An answer that nobody reads is not kept for ever.
static void test_client_does_not_read(void **state)
{
    enum { PROMPT_BYTES = 2 << 20 };
    struct gateway_config config = make_config();
    struct gateway *impatient;
    struct http_reply reply;
    struct error error;
    char *body = malloc(PROMPT_BYTES + 64);

    config.idle_timeout_s = 1;
    config.max_request_tokens = 1 << 30;
    assert_int_equal(gateway_open(&config, &impatient, &error), STATUS_OK);
    memset(body, ' ', PROMPT_BYTES + 64); // 2 million tokens: 8 MB of answer, more than the sockets hold
    memcpy(body, "{\"prompt\":\"", 11);
    for (int i = 11; i < PROMPT_BYTES; i += 2)
        body[i] = 'a';
    strcpy(body + PROMPT_BYTES, "\"}");
    reply = http_send(gateway_port(impatient), "POST", "/tokenize", "", body);
    assert_true(http_read_until(&reply, "HTTP/1.1 200", 1));
    AWAIT(usleep(20000), are_active(gateway_port(impatient), 1));
    http_free(&reply);
    gateway_close(impatient);
    free(body);
}

// An answer that is long in coming is no idle connection.
static void test_answer_slower_than_idle(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *impatient;
    struct http_reply reply;
    struct error error;
    uint32_t open = fake_look(&fake).open;

    config.idle_timeout_s = 1;
    config.keep_alive_s = 60;
    assert_int_equal(gateway_open(&config, &impatient, &error), STATUS_OK);
    wait_ready(gateway_port(impatient));
    fake_set_tokens(&fake, 3, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    reply = http_send(gateway_port(impatient), "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":6,\"stream\":true}");
    assert_true(fake_wait(&fake, saw_open, open + 1));
    usleep(2500000); // the time that must not matter
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    http_read_all(&reply);
    assert_int_equal(http_count(&reply, "[DONE]"), 1);
    http_free(&reply);
    gateway_close(impatient);
}

// Bodies that arrive at the same time have a limit together; what was refused or has left makes room.
static void test_bodies_together(void **state)
{
    enum { CLIENTS = 40, BODY_BYTES = 1000 }; // 32 bodies of the largest size fit
    static const char head[] = "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n";
    struct gateway_config config = make_config();
    struct http_reply clients[CLIENTS];
    struct gateway *small;
    struct error error;
    char body[BODY_BYTES];
    uint32_t i, refused = 0, port_small;

    config.max_body_bytes = 1024;
    assert_int_equal(gateway_open(&config, &small, &error), STATUS_OK);
    port_small = gateway_port(small);
    memset(body, ' ', sizeof body);
    for (i = 0; i < CLIENTS; i++) {
        clients[i] = (struct http_reply){.fd = http_connect(port_small)};
        assert_int_equal(send(clients[i].fd, head, sizeof head - 1, MSG_NOSIGNAL), sizeof head - 1);
        assert_int_equal(send(clients[i].fd, body, BODY_BYTES - 1, MSG_NOSIGNAL), BODY_BYTES - 1);
    }
    AWAIT(usleep(20000), are_active(port_small, CLIENTS + 1));
    for (i = 0; i < CLIENTS; i++)
        assert_int_equal(send(clients[i].fd, body, 1, MSG_NOSIGNAL), 1);
    for (i = 0; i < CLIENTS; i++) {
        assert_true(http_read_until(&clients[i], "}}", 1));
        assert_true(http_status(&clients[i]) == 400 || strstr(clients[i].data, "Retry-After: "));
        refused += http_status(&clients[i]) == 429;
        http_free(&clients[i]);
    }
    assert_in_range(refused, 1, CLIENTS - 32);
    struct http_reply reply = http_call(port_small, "POST", "/tokenize", "", "{\"prompt\":\"a\"}");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    gateway_close(small);
}

// Running requests are answered; nobody new is let in.
static void test_drain(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *leaving;
    struct http_reply reply;
    struct error error;
    uint32_t at, open = fake_look(&fake).open;

    assert_int_equal(gateway_open(&config, &leaving, &error), STATUS_OK);
    at = gateway_port(leaving);
    wait_ready(at);
    fake_set_tokens(&fake, 3, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    reply = http_send(at, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":8}");
    assert_true(fake_wait(&fake, saw_open, open + 1));
    assert_false(gateway_drain(leaving, 0, 0.05));
    assert_int_equal(http_connect(at), -1);
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    assert_true(gateway_drain(leaving, 0, 10));
    http_read_all(&reply);
    assert_non_null(strstr(reply.data, canned(5, 0, 8)));
    http_free(&reply);
    gateway_close(leaving);
}

struct drain {
    struct gateway *gateway;
    bool all_answered;
};

static void *run_drain(void *arg)
{
    struct drain *drain = arg;

    drain->all_answered = gateway_drain(drain->gateway, 3, 30);
    return NULL;
}

// A load balancer learns from /ready that a gateway leaves. Until it has, what it sends is served.
static void test_drain_with_notice(void **state)
{
    struct gateway_config config = make_config();
    struct drain drain = {0};
    struct http_reply reply, ready;
    struct error error;
    pthread_t thread;
    uint32_t at, served = 0;
    int status;

    assert_int_equal(gateway_open(&config, &drain.gateway, &error), STATUS_OK);
    at = gateway_port(drain.gateway);
    wait_ready(at);
    assert_int_equal(pthread_create(&thread, NULL, run_drain, &drain), 0);
    do { // it fails while connections are still taken, and before it has failed all are served
        ready = http_call(at, "GET", "/ready", "", "");
        status = http_status(&ready);
        assert_true(status == 200 || status == 503);
        http_free(&ready);
    } while (status == 200);
    for (;;) {
        reply = http_call(at, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":3}");
        status = http_status(&reply);
        http_free(&reply);
        if (status != 200)
            break;
        served++;
    }
    assert_true(served > 0);
    assert_true(status == 0 || status == 503); // 503: it came in just before the listener was closed
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(drain.all_answered);
    gateway_close(drain.gateway);
}

// A gateway that is closed with requests in flight says so to their clients, in each API's form, and leaves nothing.
static void test_close_with_open_streams(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *closing;
    static const char messages[] = "{\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":true}";
    struct http_reply replies[9];
    struct error error;
    uint32_t i, before = fake_look(&fake).cancelled, open = fake_look(&fake).open;

    assert_int_equal(gateway_open(&config, &closing, &error), STATUS_OK);
    wait_ready(gateway_port(closing));
    fake_set_tokens(&fake, 3, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    for (i = 0; i < 8; i++)
        replies[i] =
            http_send(gateway_port(closing), "POST", COMPLETION, "", i % 2 ? "{" PROMPT5 ",\"stream\":true}" : "{" PROMPT5 "}");
    replies[8] = http_send(gateway_port(closing), "POST", "/v1/messages", "", messages);
    assert_true(fake_wait(&fake, saw_open, open + 9));
    for (i = 0; i < 9; i++)
        if (i % 2 || i == 8)
            assert_true(http_read_until(&replies[i], "data: ", 1));
    kept_log_forget();
    gateway_close(closing);
    assert_true(fake_wait(&fake, saw_cancelled, before + 9));
    for (i = 0; i < 9; i++) {
        const bool streams = i % 2 || i == 8;
        http_read_all(&replies[i]);
        assert_int_equal(http_status(&replies[i]), streams ? 200 : 503);
        assert_int_equal(http_count(&replies[i], "shuts down"), 1);
        assert_int_equal(http_count(&replies[i], "event: error"), i == 8);
        assert_int_equal(http_count(&replies[i], "[DONE]"), i % 2);
        http_free(&replies[i]);
    }
    assert_int_equal(kept_log_count("API-FAILED", "status=503", "shuts down"), 9);
    assert_int_equal(kept_log_count("API-CLIENT-LEFT", NULL, NULL), 0);
}

int main(int argc, char **argv)
{
#define CASE(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest tests[] = {
        CASE(test_scheduler_dies),
        CASE(test_scheduler_dies_before_the_first_token),
        CASE(test_scheduler_silent),
        CASE(test_client_leaves),
        CASE(test_full),
        CASE(test_not_ready),
        CASE(test_mesh_of_another_model),
        CASE(test_mesh_of_an_older_release),
        CASE(test_ready_in_time),
        CASE(test_slow_headers),
        CASE(test_client_does_not_read),
        CASE(test_answer_slower_than_idle),
        CASE(test_bodies_together),
        CASE(test_drain),
        CASE(test_drain_with_notice),
        CASE(test_close_with_open_streams),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    kept_log_open();
    rig_log_level = LOG_INFO;
    log_init("test", LOG_ERROR, false);
    return kept_log_show(cmocka_run_group_tests(tests, set_up, tear_down));
}

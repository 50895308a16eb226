// test_gateway_answers.c: what a client gets from a gateway whose mesh is well: texts, streams, choices, ends. The mesh is
// gateway_rig.h's. When it is not well: test_gateway_failures.c.
#include <sys/resource.h>

#include "tests/cmocka.h"
#include "tests/integration/gateway_rig.h"

static void test_whole(void **state)
{
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":10}");

    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, canned(5, 0, 10)));
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"length\""));
    assert_non_null(strstr(reply.data, "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":10,\"total_tokens\":15,"));
    assert_non_null(strstr(reply.data, "\"model\":\"tiny\""));
    http_free(&reply);
}

static void test_stream(void **state)
{
    char text[64];
    struct http_reply reply = http_call(port, "POST", CHAT, "X-Request-Id: mine\r\n",
                                        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":20,\"stream\":true,"
                                        "\"stream_options\":{\"include_usage\":true}}");

    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, "text/event-stream"));
    assert_non_null(strstr(reply.data, "X-Request-Id: mine"));
    assert_non_null(strstr(reply.data, "\"id\":\"chatcmpl-mine\""));
    http_joined(&reply, "content", text, sizeof text);
    assert_string_equal(text, canned(1, 0, 20));
    assert_int_equal(http_count(&reply, "\"role\":\"assistant\""), 1);
    assert_int_equal(http_count(&reply, "\"total_tokens\":21"), 1);
    assert_int_equal(http_count(&reply, "data: [DONE]\n\n"), 1);
    http_free(&reply);
}

static void test_choices(void **state)
{
    char text[128], wanted[128] = "";
    uint32_t choice;
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", "{\"prompt\":[[5],[5,6]],\"n\":2,\"max_tokens\":4}");

    for (choice = 0; choice < 4; choice++)
        strcat(wanted, canned(1 + choice / 2, choice % 2, 4));
    http_joined(&reply, "text", text, sizeof text);
    assert_string_equal(text, wanted);
    assert_non_null(strstr(reply.data, "\"prompt_tokens\":3,\"completion_tokens\":16"));
    http_free(&reply);
}

// "flex" is told to the scheduler and to the client; what is not asked for is interactive and leaves the answer as it was.
static void test_service_tier(void **state)
{
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":1,\"service_tier\":\"flex\"}");

    assert_int_equal(fake_look(&fake).latency_class, FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_BATCH);
    assert_non_null(strstr(reply.data, "\"service_tier\":\"flex\""));
    http_free(&reply);
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":1,\"service_tier\":\"auto\"}");
    assert_int_equal(fake_look(&fake).latency_class, FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_INTERACTIVE);
    assert_null(strstr(reply.data, "service_tier"));
    http_free(&reply);
}

// Across tokens; the sequence is cancelled, since it would go on.
static void test_stop(void **state)
{
    char text[64];
    uint32_t before = fake_look(&fake).cancelled;
    struct http_reply reply =
        http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":400,\"stop\":[\"ijk\"],\"stream\":true}");

    http_joined(&reply, "text", text, sizeof text);
    assert_string_equal(text, "fgh");
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"stop\",\"stop_reason\":\"ijk\""));
    assert_true(fake_wait(&fake, saw_cancelled, before + 1));
    http_free(&reply);
}

static void test_end_token(void **state)
{
    struct http_reply reply;

    fake_set_tokens(&fake, UINT32_MAX, 3, FASTDECODE__FINISH__FINISH_EOS);
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":50,\"logprobs\":0}");
    assert_non_null(strstr(reply.data, "\"text\":\"fgh\""));
    assert_non_null(strstr(reply.data, "\"tokens\":[\"f\",\"g\",\"h\"]"));
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"stop\",\"stop_reason\":null"));
    assert_non_null(strstr(reply.data, "\"completion_tokens\":4"));
    http_free(&reply);
}

static void test_echo(void **state)
{
    char body[128];
    struct http_reply reply;

    snprintf(body, sizeof body, "{\"prompt\":[%u,%u],\"echo\":true,\"logprobs\":1,\"max_tokens\":2}", fake.letters[0],
             fake.letters[1]);
    reply = http_call(port, "POST", COMPLETION, "", body);
    assert_non_null(strstr(reply.data, "\"text\":\"abcd\""));
    assert_non_null(strstr(reply.data, "\"token_logprobs\":[null,-0.5,-0.25,-0.25]"));
    assert_non_null(strstr(reply.data, "\"text_offset\":[0,1,2,3]"));
    http_free(&reply);
    *strrchr(body, '2') = '0';
    reply = http_call(port, "POST", COMPLETION, "", body);
    assert_non_null(strstr(reply.data, "\"text\":\"ab\""));
    assert_non_null(strstr(reply.data, "\"token_logprobs\":[null,-0.5]"));
    assert_non_null(strstr(reply.data, "\"completion_tokens\":0"));
    http_free(&reply);
}

static void test_deadline(void **state)
{
    struct http_reply reply;

    fake_set_tokens(&fake, UINT32_MAX, 4, FASTDECODE__FINISH__FINISH_DEADLINE);
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":50}");
    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, canned(5, 0, 4)));
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"length\",\"stop_reason\":\"deadline\""));
    http_free(&reply);
}

// The time is over before the mesh could begin: an echo has the prompt all the same.
static void test_deadline_before_the_first_token(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *hurried;
    struct http_reply reply;
    struct error error;
    char body[128];

    config.request_timeout_s = 0.2;
    config.ready_grace_s = 600;
    fake_set(&fake, false, false, 0, 10000); // before the gateway asks: it would begin
    assert_int_equal(gateway_open(&config, &hurried, &error), STATUS_OK);
    snprintf(body, sizeof body, "{\"prompt\":[%u,%u],\"echo\":true,\"max_tokens\":2}", fake.letters[0], fake.letters[1]);
    reply = http_call(gateway_port(hurried), "POST", COMPLETION, "", body);
    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, "\"text\":\"ab\""));
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"length\",\"stop_reason\":\"deadline\""));
    http_free(&reply);
    gateway_close(hurried);
}

static void test_too_long(void **state)
{
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":508}");

    assert_int_equal(http_status(&reply), 400);
    assert_non_null(strstr(reply.data, "\"This model's maximum context length is ")); // the mesh's, or less
    http_free(&reply);
}

static void test_metrics(void **state)
{
    struct http_reply reply = http_call(port, "GET", "/metrics", "", "");

    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, "\nfastdecode_requests_running 5\n"));
    assert_non_null(strstr(reply.data, "\nfastdecode_prefill_tokens_total 7\n"));
    assert_non_null(strstr(reply.data, "vllm:kv_cache_usage_perc{model_name=\"tiny\"} 0.25\n"));
    http_free(&reply);
}

static void test_keys(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *locked;
    struct http_reply reply;
    struct error error;
    char keys_path[64];

    snprintf(keys_path, sizeof keys_path, "%s/keys", folder);
    write_file(keys_path, "# ours\n\nsecret-1\nsecret-2\n", 27);
    config.api_key_file = keys_path;
    assert_int_equal(gateway_open(&config, &locked, &error), STATUS_OK);
    wait_ready(gateway_port(locked));
    reply = http_call(gateway_port(locked), "POST", COMPLETION, "", "{" PROMPT5 "}");
    assert_int_equal(http_status(&reply), 401);
    http_free(&reply);
    reply = http_call(gateway_port(locked), "GET", "/v1/models", "Authorization: Bearer secret-3\r\n", "");
    assert_int_equal(http_status(&reply), 401);
    http_free(&reply);
    reply =
        http_call(gateway_port(locked), "POST", COMPLETION, "Authorization: Bearer secret-2\r\n", "{" PROMPT5 ",\"max_tokens\":2}");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    gateway_close(locked);
}

// 4,096 streams at once, each with its own text.
static void test_many_streams(void **state)
{
    enum { STREAMS = 4096 };
    struct http_reply *replies = calloc(STREAMS, sizeof *replies);
    struct rlimit limit;
    uint32_t i, before = fake_look(&fake).open;
    char text[64];

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur < 2 * STREAMS + 256) {
        print_message("only %llu open files are allowed here\n", (unsigned long long)limit.rlim_cur);
        free(replies);
        skip();
    }
    fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    for (i = 0; i < STREAMS; i++)
        replies[i] = http_send(port, "POST", COMPLETION, "",
                               i % 2 ? "{" PROMPT5 ",\"max_tokens\":6,\"stream\":true}"
                                     : "{\"prompt\":[1,2],\"max_tokens\":6,\"stream\":true}");
    assert_true(fake_wait(&fake, saw_open, before + STREAMS));
    for (i = 0; i < STREAMS; i++)
        assert_true(http_read_until(&replies[i], "\"text\":", 2));
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    for (i = 0; i < STREAMS; i++) {
        http_read_all(&replies[i]);
        http_joined(&replies[i], "text", text, sizeof text);
        assert_string_equal(text, canned(i % 2 ? 5 : 2, 0, 6));
        http_free(&replies[i]);
    }
    free(replies);
}

// The mesh is told of a request once its headers have come, before there is a body to read.
static void test_headers_wake_the_mesh(void **state)
{
    static const char head[] = "POST " COMPLETION " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
                               "Content-Type: application/json\r\nContent-Length: 40\r\n\r\n";
    uint32_t before = fake_look(&fake).expects, started = fake_look(&fake).started;
    int fd = http_connect(port);

    assert_int_equal(send(fd, head, sizeof head - 1, MSG_NOSIGNAL), sizeof head - 1);
    assert_true(fake_wait(&fake, saw_expects, before + 1));
    assert_int_equal(fake_look(&fake).started, started);
    close(fd);
}

int main(int argc, char **argv)
{
#define CASE(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest tests[] = {
        CASE(test_whole),        CASE(test_stream),
        CASE(test_choices),      CASE(test_stop),
        CASE(test_end_token),    CASE(test_echo),
        CASE(test_deadline),     CASE(test_deadline_before_the_first_token),
        CASE(test_too_long),     CASE(test_metrics),
        CASE(test_keys),         CASE(test_many_streams),
        CASE(test_service_tier), CASE(test_headers_wake_the_mesh),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

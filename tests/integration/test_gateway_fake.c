/* test_gateway_fake.c: the gateway over real sockets and RPC, with a scheduler of canned tokens behind it: what a client
 * sees when the mesh is full, away, slow, or dies half-way, and when the client itself leaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <sys/resource.h>

#include "common/base/log.h"
#include "services/gateway/gateway.h"
#include "services/gateway/language.h"
#include "tests/integration/fake_scheduler.h"
#include "tests/integration/http_client.h"
#include "tests/unit/gguf_build.h"

#define CHAT "/v1/chat/completions"
#define COMPLETION "/v1/completions"

static char folder[] = "/tmp/fd-gateway-XXXXXX";
static char model_path[64], template_path[64], keys_path[64], address[80];
static struct fake fake;
static struct gateway *gateway;
static uint32_t port;

/* --- setting up ------------------------------------------------------------------------------------------------------ */
static void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void write_model(void)
{
    static const char chat[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    struct gguf_build build = {0};
    struct tiny_llama tiny = TINY_LLAMA;
    unsigned char *bytes;
    size_t count;

    snprintf(model_path, sizeof model_path, "%s/tiny.gguf", folder);
    snprintf(template_path, sizeof template_path, "%s/chat.jinja", folder);
    tiny.context = FAKE_CONTEXT;
    gguf_build_llama(&build, &tiny);
    bytes = gguf_build_finish(&build, &count);
    write_file(model_path, bytes, count);
    write_file(template_path, chat, sizeof chat - 1);
    free(bytes);
}

/* The ids of the letters a to z, one token each. */
static void learn_letters(void)
{
    struct language_config config = {.model_path = model_path, .chat_template_path = template_path};
    struct language *language;
    struct error error;
    uint32_t i;

    if (language_open(&config, &language, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    for (i = 0; i < FAKE_LETTERS; i++) {
        char letter = (char)('a' + i);
        uint32_t *ids, count;
        assert_int_equal(language_encode(language, &letter, 1, false, false, 10, &ids, &count, &error), STATUS_OK);
        assert_int_equal(count, 1);
        fake.letters[i] = ids[0];
        free(ids);
    }
    for (i = 0; i < language_vocab(language) && !language_is_special(language, i); i++)
        ;
    fake.end_token = i;
    language_close(language);
}

static struct gateway_config make_config(void)
{
    struct gateway_config config;

    gateway_defaults(&config);
    config.port = 0;
    config.scheduler = address;
    config.model = model_path;
    config.chat_template = template_path;
    config.served_model_name = "tiny";
    config.header_timeout_s = 0.4;
    config.ready_grace_s = 0.3;
    config.keep_alive_s = 0.2;
    return config;
}

static void wait_ready(uint32_t at)
{
    uint64_t limit_us = clock_now_us() + 10000000;

    for (;;) {
        struct http_reply reply = http_call(at, "GET", "/ready", "", "");
        int status = http_status(&reply);
        http_free(&reply);
        if (status == 200)
            return;
        assert_true(clock_now_us() < limit_us);
        usleep(2000);
    }
}

static int set_up(void **state)
{
    struct gateway_config config;
    struct error error;
    (void)state;

    assert_non_null(mkdtemp(folder));
    snprintf(address, sizeof address, "ipc://%s/scheduler.sock", folder);
    write_model();
    learn_letters();
    fake_start(&fake, address);
    config = make_config();
    if (gateway_open(&config, &gateway, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    port = gateway_port(gateway);
    wait_ready(port);
    return 0;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;

    gateway_close(gateway);
    fake_end(&fake);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static bool saw_cancelled(const struct fake_settings *settings, uint32_t wanted) { return settings->cancelled >= wanted; }
static bool saw_open(const struct fake_settings *settings, uint32_t wanted) { return settings->open >= wanted; }
static bool saw_at_most_open(const struct fake_settings *settings, uint32_t wanted) { return settings->open <= wanted; }

static int reset(void **state)
{
    (void)state;
    assert_true(fake_wait(&fake, saw_at_most_open, 0)); /* tests count from what is open when they begin */
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    fake_set(&fake, true, false, 0, 10000);
    wait_ready(port);
    return 0;
}

/* What the scheduler generates for a prompt of so many tokens. */
static const char *canned(uint32_t prompt_count, uint32_t choice, uint32_t count)
{
    static char text[1024];
    uint32_t i;

    for (i = 0; i < count; i++)
        text[i] = (char)('a' + (prompt_count + 7 * choice + i) % FAKE_LETTERS);
    text[count] = '\0';
    return text;
}

/* --- answers ----------------------------------------------------------------------------------------------------------- */
#define PROMPT5 "\"prompt\":[5,6,7,8,9]"

static void test_whole(void **state)
{
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":10}");
    (void)state;

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
    (void)state;

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
    (void)state;

    for (choice = 0; choice < 4; choice++)
        strcat(wanted, canned(1 + choice / 2, choice % 2, 4));
    http_joined(&reply, "text", text, sizeof text);
    assert_string_equal(text, wanted);
    assert_non_null(strstr(reply.data, "\"prompt_tokens\":3,\"completion_tokens\":16"));
    http_free(&reply);
}

/* Across tokens; the sequence is cancelled, since it would go on. */
static void test_stop(void **state)
{
    char text[64];
    uint32_t before = fake_look(&fake).cancelled;
    struct http_reply reply =
        http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":400,\"stop\":[\"ijk\"],\"stream\":true}");
    (void)state;

    http_joined(&reply, "text", text, sizeof text);
    assert_string_equal(text, "fgh");
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"stop\",\"stop_reason\":\"ijk\""));
    assert_true(fake_wait(&fake, saw_cancelled, before + 1));
    http_free(&reply);
}

static void test_end_token(void **state)
{
    struct http_reply reply;
    (void)state;

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
    (void)state;

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
    (void)state;

    fake_set_tokens(&fake, UINT32_MAX, 4, FASTDECODE__FINISH__FINISH_DEADLINE);
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":50}");
    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, canned(5, 0, 4)));
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"length\",\"stop_reason\":\"deadline\""));
    http_free(&reply);
}

/* The time is over before the mesh could begin: an echo has the prompt all the same. */
static void test_deadline_before_the_first_token(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *hurried;
    struct http_reply reply;
    struct error error;
    char body[128];
    (void)state;

    config.request_timeout_s = 0.2;
    config.ready_grace_s = 10;
    assert_int_equal(gateway_open(&config, &hurried, &error), STATUS_OK);
    fake_set(&fake, false, false, 0, 10000);
    snprintf(body, sizeof body, "{\"prompt\":[%u,%u],\"echo\":true,\"max_tokens\":2}", fake.letters[0], fake.letters[1]);
    reply = http_call(gateway_port(hurried), "POST", COMPLETION, "", body);
    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, "\"text\":\"ab\""));
    assert_non_null(strstr(reply.data, "\"finish_reason\":\"length\",\"stop_reason\":\"deadline\""));
    http_free(&reply);
    gateway_close(hurried);
}

/* --- failures ----------------------------------------------------------------------------------------------------------- */

/* The scheduler dies half-way: the stream pauses, goes on with the token log, and no token is missing or there twice. */
static void test_scheduler_dies(void **state)
{
    char text[128];
    struct http_reply stream, whole;
    uint32_t before = fake_look(&fake).open;
    (void)state;

    fake_set_tokens(&fake, 6, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    stream = http_send(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":30,\"stream\":true,\"logprobs\":0}");
    whole = http_send(port, "POST", COMPLETION, "", "{\"prompt\":[9],\"max_tokens\":30}");
    assert_true(http_read_until(&stream, "\"text\":", 6));
    assert_true(fake_wait(&fake, saw_open, before + 2));
    fake_go_away(&fake);
    assert_true(http_read_until(&stream, ": keep-alive", 1)); /* silent, and kept open */
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

static void test_client_leaves(void **state)
{
    static const char *const bodies[] = {"{" PROMPT5 ",\"max_tokens\":50,\"stream\":true}",
                                         "{" PROMPT5 ",\"max_tokens\":50,\"n\":3}"};
    static const uint32_t sequences[] = {1, 3};
    uint32_t i;
    (void)state;

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
    uint64_t limit_us = clock_now_us() + 10000000;
    struct http_reply reply;
    (void)state;

    fake_set(&fake, true, true, 0, 10); /* the state still says that there is room */
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"stream\":true}");
    assert_int_equal(http_status(&reply), 429);
    expect_retry_after(&reply);
    http_free(&reply);
    fake_set(&fake, true, false, 10, 10); /* known to be full: not even parsed, once the news is here */
    do {
        assert_true(clock_now_us() < limit_us);
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
    uint64_t limit_us = clock_now_us() + 10000000;
    int status;
    (void)state;

    fake_set(&fake, false, false, 0, 10);
    do {
        assert_true(clock_now_us() < limit_us);
        reply = http_call(port, "GET", "/ready", "", "");
        status = http_status(&reply);
        http_free(&reply);
    } while (status != 503);
    reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 "}");
    assert_int_equal(http_status(&reply), 503);
    expect_retry_after(&reply);
    assert_non_null(strstr(reply.data, "no s-part"));
    http_free(&reply);
    /* one that is ready in time is served */
    reply = http_send(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":3}");
    fake_set(&fake, true, false, 0, 10);
    http_read_all(&reply);
    assert_non_null(strstr(reply.data, canned(5, 0, 3)));
    http_free(&reply);
}

static void test_too_long(void **state)
{
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":508}");
    (void)state;

    assert_int_equal(http_status(&reply), 400);
    assert_non_null(strstr(reply.data, "\"This model's maximum context length is ")); /* the mesh's, or less */
    http_free(&reply);
}

static void test_slow_headers(void **state)
{
    struct http_reply reply = {.fd = http_connect(port)};
    (void)state;

    assert_int_equal(send(reply.fd, "GET /health HTTP/1.1\r\nX: ", 25, MSG_NOSIGNAL), 25);
    http_read_all(&reply);
    assert_int_equal(http_status(&reply), 408);
    http_free(&reply);
}

/* Until so many requests of that gateway are being answered, the question itself among them. */
static void wait_active(uint32_t at, uint32_t count)
{
    uint64_t limit_us = clock_now_us() + 10000000;
    char wanted[64];
    bool seen = false;

    snprintf(wanted, sizeof wanted, "\nfastdecode_gateway_http_active %u\n", count);
    while (!seen) {
        struct http_reply reply = http_call(at, "GET", "/metrics", "", "");
        seen = strstr(reply.data, wanted) != NULL;
        http_free(&reply);
        assert_true(seen || clock_now_us() < limit_us);
        usleep(20000);
    }
}

/* An answer that nobody reads is not kept for ever. */
static void test_client_does_not_read(void **state)
{
    enum { PROMPT_BYTES = 2 << 20 };
    struct gateway_config config = make_config();
    struct gateway *impatient;
    struct http_reply reply;
    struct error error;
    char *body = malloc(PROMPT_BYTES + 64);
    (void)state;

    config.idle_timeout_s = 1;
    assert_int_equal(gateway_open(&config, &impatient, &error), STATUS_OK);
    memset(body, ' ', PROMPT_BYTES + 64); /* 2 million tokens: 8 MB of answer, more than the sockets hold */
    memcpy(body, "{\"prompt\":\"", 11);
    for (int i = 11; i < PROMPT_BYTES; i += 2)
        body[i] = 'a';
    strcpy(body + PROMPT_BYTES, "\"}");
    reply = http_send(gateway_port(impatient), "POST", "/tokenize", "", body);
    assert_int_equal(recv(reply.fd, body, 12, MSG_WAITALL), 12);
    assert_memory_equal(body, "HTTP/1.1 200", 12);
    wait_active(gateway_port(impatient), 1);
    http_free(&reply);
    gateway_close(impatient);
    free(body);
}

/* An answer that is long in coming is no idle connection. */
static void test_answer_slower_than_idle(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *impatient;
    struct http_reply reply;
    struct error error;
    uint32_t open = fake_look(&fake).open;
    (void)state;

    config.idle_timeout_s = 1;
    config.keep_alive_s = 60;
    assert_int_equal(gateway_open(&config, &impatient, &error), STATUS_OK);
    wait_ready(gateway_port(impatient));
    fake_set_tokens(&fake, 3, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    reply = http_send(gateway_port(impatient), "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":6,\"stream\":true}");
    assert_true(fake_wait(&fake, saw_open, open + 1));
    usleep(2500000); /* the time that must not matter */
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    http_read_all(&reply);
    assert_int_equal(http_count(&reply, "[DONE]"), 1);
    http_free(&reply);
    gateway_close(impatient);
}

/* Bodies that arrive at the same time have a limit together; what was refused or has left makes room. */
static void test_bodies_together(void **state)
{
    enum { CLIENTS = 40, BODY_BYTES = 1000 }; /* 32 bodies of the largest size fit */
    static const char head[] = "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n";
    struct gateway_config config = make_config();
    struct http_reply clients[CLIENTS];
    struct gateway *small;
    struct error error;
    char body[BODY_BYTES];
    uint32_t i, refused = 0, port_small;
    (void)state;

    config.max_body_bytes = 1024;
    assert_int_equal(gateway_open(&config, &small, &error), STATUS_OK);
    port_small = gateway_port(small);
    memset(body, ' ', sizeof body);
    for (i = 0; i < CLIENTS; i++) {
        clients[i] = (struct http_reply){.fd = http_connect(port_small)};
        assert_int_equal(send(clients[i].fd, head, sizeof head - 1, MSG_NOSIGNAL), sizeof head - 1);
        assert_int_equal(send(clients[i].fd, body, BODY_BYTES - 1, MSG_NOSIGNAL), BODY_BYTES - 1);
    }
    wait_active(port_small, CLIENTS + 1);
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

/* --- the rest ----------------------------------------------------------------------------------------------------------- */
static void test_metrics(void **state)
{
    struct http_reply reply = http_call(port, "GET", "/metrics", "", "");
    (void)state;

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
    (void)state;

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

/* Running requests are answered; nobody new is let in. */
static void test_drain(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *leaving;
    struct http_reply reply;
    struct error error;
    uint32_t at, open = fake_look(&fake).open;
    (void)state;

    assert_int_equal(gateway_open(&config, &leaving, &error), STATUS_OK);
    at = gateway_port(leaving);
    wait_ready(at);
    fake_set_tokens(&fake, 3, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    reply = http_send(at, "POST", COMPLETION, "", "{" PROMPT5 ",\"max_tokens\":8}");
    assert_true(fake_wait(&fake, saw_open, open + 1));
    assert_false(gateway_drain(leaving, 0.05));
    assert_int_equal(http_connect(at), -1);
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    assert_true(gateway_drain(leaving, 10));
    http_read_all(&reply);
    assert_non_null(strstr(reply.data, canned(5, 0, 8)));
    http_free(&reply);
    gateway_close(leaving);
}

/* A gateway that is closed with streams open cuts them off and leaves nothing. */
static void test_close_with_open_streams(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *closing;
    struct http_reply replies[8];
    struct error error;
    uint32_t i, before = fake_look(&fake).cancelled, open = fake_look(&fake).open;
    (void)state;

    assert_int_equal(gateway_open(&config, &closing, &error), STATUS_OK);
    wait_ready(gateway_port(closing));
    fake_set_tokens(&fake, 3, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    for (i = 0; i < 8; i++)
        replies[i] =
            http_send(gateway_port(closing), "POST", COMPLETION, "", i % 2 ? "{" PROMPT5 ",\"stream\":true}" : "{" PROMPT5 "}");
    assert_true(fake_wait(&fake, saw_open, open + 8));
    gateway_close(closing);
    assert_true(fake_wait(&fake, saw_cancelled, before + 8));
    for (i = 0; i < 8; i++) {
        http_read_all(&replies[i]);
        assert_int_equal(http_count(&replies[i], "[DONE]"), 0);
        http_free(&replies[i]);
    }
}

/* 4,096 streams at once, each with its own text. */
static void test_many_streams(void **state)
{
    enum { STREAMS = 4096 };
    struct http_reply *replies = calloc(STREAMS, sizeof *replies);
    struct rlimit limit;
    uint32_t i, before = fake_look(&fake).open;
    char text[64];
    (void)state;

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

int main(int argc, char **argv)
{
#define CASE(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest tests[] = {
        CASE(test_whole),
        CASE(test_stream),
        CASE(test_choices),
        CASE(test_stop),
        CASE(test_end_token),
        CASE(test_echo),
        CASE(test_deadline),
        CASE(test_deadline_before_the_first_token),
        CASE(test_scheduler_dies),
        CASE(test_client_leaves),
        CASE(test_full),
        CASE(test_not_ready),
        CASE(test_too_long),
        CASE(test_slow_headers),
        CASE(test_client_does_not_read),
        CASE(test_answer_slower_than_idle),
        CASE(test_bodies_together),
        CASE(test_metrics),
        CASE(test_keys),
        CASE(test_drain),
        CASE(test_close_with_open_streams),
        CASE(test_many_streams),
    };
    log_threshold = getenv("FD_TEST_LOG") ? LOG_DEBUG : LOG_ERROR;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

// test_gateway_limits.c: what one client, one key or one request may take of a gateway. The mesh is gateway_rig.h's.
#include <malloc.h>

#include "tests/cmocka.h"
#include "tests/integration/gateway_rig.h"

// "prompt":[1,1,...], so many times.
static char *ids_body(uint32_t count, const char *rest)
{
    char *body = malloc(2 * count + strlen(rest) + 32), *at = body + sprintf(body, "{\"prompt\":[1");

    while (--count > 0)
        at += sprintf(at, ",1");
    sprintf(at, "]%s}", rest);
    return body;
}

// {"prompt":"a a a a ..."}: about bytes / 2 tokens.
static char *text_body(size_t bytes, const char *rest)
{
    char *body = malloc(bytes + strlen(rest) + 32), *at = body + sprintf(body, "{\"prompt\":\"");

    for (size_t i = 0; i < bytes / 2; i++) {
        *at++ = 'a';
        *at++ = ' ';
    }
    sprintf(at, "\"%s}", rest);
    return body;
}

static struct gateway *open_with(const struct gateway_config *config)
{
    struct gateway *opened;
    struct error error;

    if (gateway_open(config, &opened, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    wait_ready(gateway_port(opened));
    return opened;
}

// 128 choices of 500 tokens with 20 alternatives each.
static void test_budget_of_a_request(void **state)
{
    uint32_t started = fake_look(&fake).started;
    char *body = ids_body(400, ",\"echo\":true,\"logprobs\":20,\"n\":128,\"max_tokens\":100");
    struct http_reply reply = http_call(port, "POST", COMPLETION, "", body);

    assert_int_equal(http_status(&reply), 400);
    assert_non_null(strstr(reply.data, "1344000 tokens"));
    assert_non_null(strstr(reply.data, "\"code\":\"request_too_large\""));
    assert_int_equal(fake_look(&fake).started, started);
    http_free(&reply);
    free(body);
    body = ids_body(400, ",\"echo\":true,\"logprobs\":20,\"n\":2,\"max_tokens\":2");
    reply = http_call(port, "POST", COMPLETION, "", body);
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    free(body);
}

// A chat that does not say how long its answer may be gets what fits.
static void test_budget_of_a_chat(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *small;
    struct http_reply reply;

    config.max_request_tokens = 24;
    small = open_with(&config);
    reply = http_call(gateway_port(small), "POST", CHAT, "",
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_logprobs\":2}");
    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, "\"completion_tokens\":8,"));
    http_free(&reply);
    gateway_close(small);
}

// The scores of a prompt are kept once, however many choices there are: here 1.5 MB instead of 11 MB.
static void test_choices_share_the_scores(void **state)
{
    enum { CHOICES = 128, PROMPT = 360 };
    uint32_t open = fake_look(&fake).open;
    char *body = ids_body(PROMPT, ",\"echo\":true,\"logprobs\":20,\"n\":128,\"max_tokens\":1");
    struct mallinfo2 before, now;
    struct http_reply reply;

    fake_set_tokens(&fake, 0, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    before = mallinfo2();
    reply = http_send(port, "POST", COMPLETION, "", body);
    assert_true(fake_wait(&fake, saw_open, open + CHOICES));
    now = mallinfo2();
    assert_true(now.uordblks + now.hblkhd < before.uordblks + before.hblkhd + (6 << 20));
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    http_read_all(&reply);
    assert_int_equal(http_count(&reply, "[null,-0.5,-0.5,"), CHOICES);
    assert_int_equal(http_count(&reply, "\"finish_reason\":\"length\""), CHOICES);
    http_free(&reply);
    free(body);
}

static void test_budget_of_tokenize(void **state)
{
    char *body = text_body(2 << 20, "");
    struct http_reply reply = http_call(port, "POST", "/tokenize", "", body);

    assert_int_equal(http_status(&reply), 400);
    assert_non_null(strstr(reply.data, "\"param\":\"prompt\",\"code\":\"request_too_large\""));
    http_free(&reply);
    free(body);
}

// A token may stand for many bytes, so the text that ids make is limited too.
static void test_text_of_tokens(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *small;
    struct http_reply reply;
    char *body = malloc(4 << 20), *at = body + sprintf(body, "{\"tokens\":[%u", fake.letters[0]);
    uint32_t i;

    for (i = 1; i < 300000; i++)
        at += sprintf(at, ",%u", fake.letters[0]);
    strcpy(at, "]}");
    config.max_unsent_bytes = 1 << 20;
    small = open_with(&config);
    reply = http_call(gateway_port(small), "POST", "/detokenize", "", body);
    assert_int_equal(http_status(&reply), 400);
    assert_non_null(strstr(reply.data, "\"param\":\"tokens\",\"code\":\"request_too_large\""));
    http_free(&reply);
    gateway_close(small);
    reply = http_call(port, "POST", "/detokenize", "", body);
    assert_int_equal(http_status(&reply), 200);
    assert_true(reply.bytes > 300000);
    http_free(&reply);
    free(body);
}

// Answers that nobody reads fill the gateway's allowance: the next request is refused, and served again once they are gone.
static void test_unsent_answers(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *small;
    struct http_reply greedy, reply;
    char *body = text_body(1 << 20, "");
    uint32_t at;

    config.max_request_tokens = 1 << 30;
    config.max_unsent_bytes = 1 << 20; // the answer has more, so that not even one fits
    small = open_with(&config);
    at = gateway_port(small);
    reply = http_call(at, "POST", "/tokenize", "", body);
    assert_int_equal(http_status(&reply), 429);
    assert_non_null(strstr(reply.data, "Retry-After: 1"));
    http_free(&reply);
    reply = http_call(at, "POST", "/tokenize", "", "{\"prompt\":\"a\"}");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    gateway_close(small);

    free(body);
    body = text_body(2 << 20, ",\"return_token_strs\":true");
    config.max_unsent_bytes = 24 << 20; // of 16 MB one fits, two do not
    small = open_with(&config);
    at = gateway_port(small);
    greedy = http_send(at, "POST", "/tokenize", "", body);
    assert_true(http_read_until(&greedy, "HTTP/1.1 200", 1));
    reply = http_call(at, "POST", "/tokenize", "", body);
    assert_int_equal(http_status(&reply), 429);
    http_free(&reply);
    http_read_all(&greedy);
    assert_true(greedy.bytes > 1 << 20);
    http_free(&greedy);
    reply = http_call(at, "POST", "/tokenize", "", body);
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    gateway_close(small);
    free(body);
}

// Reads an answer of 16 MB in pieces, one every 20 ms; returns how much of it came before the gateway closed the connection.
static size_t read_slowly(struct gateway_config config, size_t piece_bytes)
{
    char *body = text_body(2 << 20, ",\"return_token_strs\":true"), *piece = malloc(piece_bytes);
    int buffer = 256 << 10;
    size_t total = 0;
    ssize_t got;

    config.max_request_tokens = 1 << 30;
    struct gateway *opened = open_with(&config);
    struct http_reply reply = {.fd = http_connect(gateway_port(opened))};
    setsockopt(reply.fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    dprintf(reply.fd, "POST /tokenize HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    assert_int_equal(send(reply.fd, body, strlen(body), MSG_NOSIGNAL), strlen(body));
    while ((got = recv(reply.fd, piece, piece_bytes, MSG_WAITALL)) > 0) {
        total += (size_t)got;
        usleep(20000);
    }
    http_free(&reply);
    gateway_close(opened);
    free(piece);
    free(body);
    return total;
}

// A client that takes a little now and then is cut off all the same: the 16 MB are to be taken within 1.2 s.
static void test_slow_reader(void **state)
{
    struct gateway_config config = make_config();

    config.idle_timeout_s = 1;
    config.min_read_rate = 100 << 20;
    assert_in_range(read_slowly(config, 64 << 10), 1, 14 << 20);
}

// The least rate of reading is small, so that few readers could keep the gateway's allowance for an hour. When half of it is in use they
// have to be faster: here within half a second instead of 18.
static void test_slow_readers_of_much(void **state)
{
    struct gateway_config config = make_config();

    config.idle_timeout_s = 2;
    config.min_read_rate = 1 << 20;
    config.max_unsent_bytes = 256 << 20;
    size_t whole = read_slowly(config, 128 << 10);
    assert_true(whole > 14 << 20);
    config.max_unsent_bytes = 24 << 20;
    assert_in_range(read_slowly(config, 128 << 10), 1, whole - 1);
}

// An address that has its connections is told so; what is far beyond is closed without a word. Others' connections are not touched.
static void test_connections_of_an_address(void **state)
{
    enum { LIMIT = 16, REFUSED = LIMIT / 8 + 1 };
    struct gateway_config config = make_config();
    struct gateway *small;
    struct http_reply reply;
    int idle[LIMIT], i, refused = 0, closed = 0;
    uint32_t at;

    config.max_connections_per_address = LIMIT;
    small = open_with(&config);
    at = gateway_port(small);
    for (i = 0; i < LIMIT; i++)
        idle[i] = http_connect(at);
    struct http_reply more[2 * REFUSED];
    for (i = 0; i < 2 * REFUSED; i++)
        more[i] = (struct http_reply){.fd = http_connect(at)};
    for (i = 0; i < 2 * REFUSED; i++) {
        static const char request[] = "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
        (void)!send(more[i].fd, request, sizeof request - 1, MSG_NOSIGNAL);
        http_read_all(&more[i]);
        refused += http_status(&more[i]) == 429;
        closed += http_status(&more[i]) == 0;
        http_free(&more[i]);
    }
    assert_in_range(refused, 1, REFUSED); // an answer may be lost where the connection is reset
    assert_int_equal(refused + closed, 2 * REFUSED);
    for (i = 0; i < LIMIT; i++)
        close(idle[i]);
    wait_ready(at);
    reply = http_call(at, "GET", "/health", "", "");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    gateway_close(small);
}

// Clients of this host are not limited unless it is asked for: a proxy in front of the gateway is one.
static void test_this_hosts_connections(void **state)
{
    enum { CONNECTIONS = 16 };
    struct gateway_config config = make_config();
    struct gateway *small;
    struct http_reply reply;
    int idle[CONNECTIONS - 2];
    uint32_t i;

    config.max_connections = CONNECTIONS;
    small = open_with(&config);
    for (i = 0; i < CONNECTIONS - 2; i++)
        idle[i] = http_connect(gateway_port(small));
    reply = http_call(gateway_port(small), "GET", "/health", "", "");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
    for (i = 0; i < CONNECTIONS - 2; i++)
        close(idle[i]);
    gateway_close(small);
}

#define FLEX "{" PROMPT5 ",\"max_tokens\":3,\"service_tier\":\"flex\"}"
#define NO_FLEX "{" PROMPT5 ",\"max_tokens\":3,\"service_tier\":\"default\",\"user\":\"flex\"}"

// Whether the gateway's metrics have refused requests for the reason.
static void assert_counted(uint32_t at, int status, const char *reason)
{
    struct http_reply reply = http_call(at, "GET", "/metrics", "", "");
    char wanted[128];

    snprintf(wanted, sizeof wanted, "\nfastdecode_http_responses_total{code=\"%d\",reason=\"%s\"} ", status, reason);
    if (!strstr(reply.data, wanted))
        fail_msg("no '%s' in %s", wanted, reply.data);
    http_free(&reply);
}

static void expect(uint32_t at, const char *headers, const char *body, int status)
{
    struct http_reply reply = http_call(at, "POST", COMPLETION, headers, body);

    if (http_status(&reply) != status)
        fail_msg("%d, not %d: %s: %s", http_status(&reply), status, body, reply.data);
    if (status == 429)
        assert_non_null(strstr(reply.data, "Retry-After: "));
    http_free(&reply);
}

// A request that asks for service_tier flex waits in a queue of its own: a full queue of the others does not refuse it, nor the other way.
static void test_queues_of_the_classes(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *fresh;
    uint32_t at;

    fake_set_batch_queue(&fake, 0, 10);
    fake_set(&fake, true, false, 7, 7);
    fresh = open_with(&config); // it is told this first
    at = gateway_port(fresh);
    expect(at, "", FLEX, 200);
    expect(at, "", NO_FLEX, 429);
    expect(at, "", "{" PROMPT5 "}", 429);
    expect(at, "", "{\"prompt\":\"service_tier\"}", 429);
    expect(at, "", "{" PROMPT5 ",\"max_tokens\":100000,\"service_tier\":\"flex\"}", 400);
    assert_counted(at, 429, "queue_full");
    assert_counted(at, 400, "context_length_exceeded");
    gateway_close(fresh);
    fake_set_batch_queue(&fake, 10, 10);
    fake_set(&fake, true, false, 7, 7);
    fresh = open_with(&config);
    expect(gateway_port(fresh), "", FLEX, 429);
    gateway_close(fresh);
    fake_set(&fake, true, false, 6, 7);
    fresh = open_with(&config);
    at = gateway_port(fresh);
    expect(at, "", FLEX, 429);
    expect(at, "", NO_FLEX, 200);
    gateway_close(fresh);
    fake_set_batch_queue(&fake, 0, 0);
}

#define KEY(name) "Authorization: Bearer " name "\r\n"
#define ASK "{" PROMPT5 ",\"max_tokens\":3}"

static void test_share_of_a_key(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *shared;
    struct http_reply waiting[3], other, reply;
    uint32_t i, at, open = fake_look(&fake).open;
    char path[64];

    snprintf(path, sizeof path, "%s/shares", folder);
    write_file(path, "first\nsecond\n", 13);
    config.api_key_file = path;
    fake_set_batch_queue(&fake, 0, 4);
    fake_set(&fake, true, false, 0, 4); // of which a key may fill two
    fake_set_tokens(&fake, 0, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    shared = open_with(&config);
    at = gateway_port(shared);
    for (i = 0; i < 2; i++)
        waiting[i] = http_send(at, "POST", COMPLETION, KEY("first"), ASK);
    assert_true(fake_wait(&fake, saw_open, open + 2));
    reply = http_call(at, "POST", COMPLETION, KEY("first"), ASK);
    assert_int_equal(http_status(&reply), 429);
    assert_non_null(strstr(reply.data, "Retry-After: "));
    http_free(&reply);
    assert_counted(at, 429, "key_queue_share");
    waiting[2] = http_send(at, "POST", COMPLETION, KEY("first"), FLEX); // of another queue
    assert_true(fake_wait(&fake, saw_open, open + 3));
    reply = http_call(at, "GET", "/metrics", "", "");
    assert_non_null(strstr(reply.data, "vllm:num_requests_waiting{model_name=\"tiny\"} 2\n"));
    assert_non_null(strstr(reply.data, "fastdecode_gateway_requests_waiting 2\n"));
    assert_non_null(strstr(reply.data, "fastdecode_gateway_batch_class_waiting 1\n"));
    http_free(&reply);
    other = http_send(at, "POST", COMPLETION, KEY("second"), ASK);
    assert_true(fake_wait(&fake, saw_open, open + 4));
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    for (i = 0; i < 3; i++) {
        http_read_all(&waiting[i]);
        assert_int_equal(http_status(&waiting[i]), 200);
        http_free(&waiting[i]);
    }
    http_read_all(&other);
    assert_int_equal(http_status(&other), 200);
    http_free(&other);
    for (i = 0; i < 5; i++) { // those that have ended count no longer
        reply = http_call(at, "POST", COMPLETION, KEY("first"), ASK);
        assert_int_equal(http_status(&reply), 200);
        http_free(&reply);
        reply = http_call(at, "POST", COMPLETION, KEY("first"), "{\"prompt\":5}");
        assert_int_equal(http_status(&reply), 400);
        http_free(&reply);
    }
    gateway_close(shared);
}

int main(int argc, char **argv)
{
#define CASE(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest tests[] = {
        CASE(test_budget_of_a_request),
        CASE(test_budget_of_a_chat),
        CASE(test_choices_share_the_scores),
        CASE(test_budget_of_tokenize),
        CASE(test_text_of_tokens),
        CASE(test_unsent_answers),
        CASE(test_slow_reader),
        CASE(test_slow_readers_of_much),
        CASE(test_connections_of_an_address),
        CASE(test_this_hosts_connections),
        CASE(test_queues_of_the_classes),
        CASE(test_share_of_a_key),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

// test_gateway_pages.c: the web pages and the state of the mesh over HTTP: headers, what a client has already, other methods and paths, and
// what the scheduler is asked. The mesh is gateway_rig.h's. The pages in a browser: tests/e2e/test_pages.py.
#include "services/gateway/serve/pages.h"
#include "tests/cmocka.h"
#include "tests/integration/gateway_rig.h"

static const char *path_of(const struct page_file *file)
{
    static char path[128];

    if (strcmp(file->name, "chat.html") == 0)
        return "/";
    if (strcmp(file->name, "mesh.html") == 0)
        return "/mesh";
    snprintf(path, sizeof path, "/pages/%s", file->name);
    return path;
}

static void expect_headers(const struct http_reply *reply, const struct page_file *file)
{
    char etag[64];

    snprintf(etag, sizeof etag, "\r\nETag: %s\r\n", file->etag);
    assert_non_null(strstr(reply->data, etag));
    assert_non_null(strstr(reply->data, "\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
                                        "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
                                        "form-action 'none'\r\n"));
    assert_non_null(strstr(reply->data, "\r\nX-Content-Type-Options: nosniff\r\n"));
    assert_non_null(strstr(reply->data, "\r\nReferrer-Policy: no-referrer\r\n"));
    assert_non_null(strstr(reply->data, "\r\nCache-Control: no-cache\r\n"));
}

static void test_each_file(void **state)
{
    const struct page_file *file;
    char wanted[160];

    for (file = page_files; file->name; file++) {
        struct http_reply reply = http_call(port, "GET", path_of(file), "", "");
        assert_int_equal(http_status(&reply), 200);
        expect_headers(&reply, file);
        snprintf(wanted, sizeof wanted, "\r\nContent-Type: %s\r\n", file->content_type);
        assert_non_null(strstr(reply.data, wanted));
        const char *body = strstr(reply.data, "\r\n\r\n") + 4;
        assert_int_equal(strlen(body), file->bytes);
        assert_memory_equal(body, file->data, file->bytes);
        http_free(&reply);
    }
    assert_true(file - page_files > 10);
}

static void test_head_has_no_body(void **state)
{
    char wanted[64];

    for (const struct page_file *file = page_files; file->name; file++) {
        struct http_reply reply = http_call(port, "HEAD", path_of(file), "Connection: close\r\n", "");
        assert_int_equal(http_status(&reply), 200);
        expect_headers(&reply, file);
        snprintf(wanted, sizeof wanted, "\r\nContent-Length: %zu\r\n", file->bytes);
        assert_non_null(strstr(reply.data, wanted));
        assert_string_equal(strstr(reply.data, "\r\n\r\n"), "\r\n\r\n");
        http_free(&reply);
    }
}

static void test_what_a_client_has_is_not_sent(void **state)
{
    char headers[128];

    for (const struct page_file *file = page_files; file->name; file++) {
        snprintf(headers, sizeof headers, "If-None-Match: \"other\", W/%s\r\nConnection: close\r\n", file->etag);
        struct http_reply reply = http_call(port, "GET", path_of(file), headers, "");
        assert_int_equal(http_status(&reply), 304);
        expect_headers(&reply, file);
        assert_string_equal(strstr(reply.data, "\r\n\r\n"), "\r\n\r\n");
        http_free(&reply);
    }
    struct http_reply reply = http_call(port, "GET", "/", "If-None-Match: \"other\"\r\n", "");
    assert_int_equal(http_status(&reply), 200);
    http_free(&reply);
}

static void test_other_methods_and_paths(void **state)
{
    static const char *const there[] = {"/", "/mesh", "/mesh/state", "/pages/chat.js"};
    static const char *const not_there[] = {"/mesh/",          "/pages/",   "/pages/chat", "/pages/../chat.js",
                                            "/pages//chat.js", "/chat.html"};

    for (size_t i = 0; i < ARRAY_COUNT(there); i++) {
        struct http_reply reply = http_call(port, "POST", there[i], "", "{}");
        assert_int_equal(http_status(&reply), 405);
        assert_non_null(strstr(reply.data, "\r\nAllow: GET\r\n"));
        http_free(&reply);
    }
    for (size_t i = 0; i < ARRAY_COUNT(not_there); i++) {
        struct http_reply reply = http_call(port, "GET", not_there[i], "", "");
        assert_int_equal(http_status(&reply), 404);
        http_free(&reply);
    }
}

// Many who look cost the scheduler two calls a second.
static void test_state_is_asked_for_twice_a_second(void **state)
{
    enum { CLIENTS = 32, ROUNDS = 4 };
    struct http_reply replies[CLIENTS];
    uint64_t began_us = clock_now_us(), halves;
    uint32_t before = fake_look(&fake).view_calls;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < CLIENTS; i++)
            replies[i] = http_send(port, "GET", "/mesh/state", "", "");
        for (uint32_t i = 0; i < CLIENTS; i++) {
            http_read_all(&replies[i]);
            assert_int_equal(http_status(&replies[i]), 200);
            assert_non_null(strstr(replies[i].data, "\r\nCache-Control: no-store\r\n"));
            assert_non_null(strstr(replies[i].data, "\"gateway\":{"));
            assert_non_null(strstr(replies[i].data, "\"model\":\"a \\\"model\\\" <b>\""));
            assert_non_null(strstr(replies[i].data, ",\"running\":3,"));
            http_free(&replies[i]);
        }
    }
    halves = (clock_now_us() - began_us) / 500000;
    assert_in_range(fake_look(&fake).view_calls - before, 1, halves + 1);
}

// A gateway whose scheduler is not there says what it knows itself.
static void test_state_without_a_scheduler(void **state)
{
    struct gateway_config config = make_config();
    struct gateway *alone;
    struct error error;
    char nowhere[96];

    snprintf(nowhere, sizeof nowhere, "ipc://%s/nobody.sock", folder);
    config.scheduler = nowhere;
    if (gateway_open(&config, &alone, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    struct http_reply reply = http_call(gateway_port(alone), "GET", "/mesh/state", "", "");
    assert_int_equal(http_status(&reply), 200);
    assert_non_null(strstr(reply.data, "\"scheduler_up\":false,\"ready\":false,\"reason\":\"the scheduler does not answer "));
    assert_non_null(strstr(reply.data, ",\"mesh\":null}\n"));
    http_free(&reply);
    gateway_close(alone);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_each_file, reset),
        cmocka_unit_test_setup(test_head_has_no_body, reset),
        cmocka_unit_test_setup(test_what_a_client_has_is_not_sent, reset),
        cmocka_unit_test_setup(test_other_methods_and_paths, reset),
        cmocka_unit_test_setup(test_state_is_asked_for_twice_a_second, reset),
        cmocka_unit_test_setup(test_state_without_a_scheduler, reset),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

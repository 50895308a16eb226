// test_gateway_framing.c: requests whose end is not certain. A proxy in front of the gateway may read them differently, and would then
// take a part of one client's body for another client's request. Each is refused, and its connection is closed.
#include "tests/cmocka.h"
#include "tests/integration/gateway_rig.h"

// The request that would be smuggled: if the gateway sees it, it answers with the version.
#define HIDDEN "GET /version HTTP/1.1\r\nConnection: close\r\n\r\n"
#define START "POST /tokenize HTTP/1.1\r\nHost: t\r\n"

static struct http_reply send_raw(const char *bytes, size_t count)
{
    struct http_reply reply = {.fd = http_connect(port)};

    assert_int_equal(send(reply.fd, bytes, count, MSG_NOSIGNAL), count);
    http_read_all(&reply);
    return reply;
}

// By the gateway, or by libmicrohttpd; either way nothing after the headers is looked at.
static bool is_refused(const struct http_reply *reply)
{
    if (strstr(reply->data, "{\"version\""))
        return false;
    return reply->bytes == 0 || strstr(reply->data, "bad_framing") || strstr(reply->data, "<title>Request");
}

static void test_framing_is_refused(void **state)
{
    static const char *const requests[] = {
        // a name that is not a token
        START "Content-Length : 44\r\n\r\n" HIDDEN,
        START "Content-Length\t: 44\r\n\r\n" HIDDEN,
        START "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Content-Length : 44\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Content-Length\v: 44\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        START "X Y: 1\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        START "\x80X: 1\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        START ": 1\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        // no name, behind another header: libmicrohttpd takes such a line for the end
        START "Content-Length: 0\r\n: x\r\n\r\n" HIDDEN,
        START "Content-Length: 0\r\n:\r\n\r\n" HIDDEN,
        START "Content-Length: 0\r\n:\r\nX: 1\r\n\r\n" HIDDEN,
        START ": x\r\nContent-Length: 44\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: chunked\r\n\r\n0\r\n: x\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\n: x\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\n\r\n" HIDDEN,
        // lines that do not end with both, or end in their midst
        START "X: a\rContent-Length: 44\r\n\r\n" HIDDEN,
        START "X: a\nContent-Length: 0\r\n\r\n" HIDDEN,
        START "Content-Length: 0\n\n" HIDDEN,
        START "Content-Length: 0\r\n\n" HIDDEN,
        START "Host: u\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        // a name in a line that begins with a space: the first header, or what follows another
        "POST /tokenize HTTP/1.1\r\n Content-Length: 44\r\nHost: t\r\n\r\n" HIDDEN,
        "POST /tokenize HTTP/1.1\r\n\tTransfer-Encoding: chunked\r\nHost: t\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" HIDDEN,
        START "X: 1\r\n Content-Length: 44\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        START "X: 1\r\n\tTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" HIDDEN,
        START "X:\r\n Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" HIDDEN,
        // a name that begins with one of the two and is another
        START "Content-Length-: 44\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding2: chunked\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding-: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" HIDDEN,
        // both, one twice, another coding
        START "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" HIDDEN,
        START "Content-Length: 0\r\ncontent-length: 0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Transfer-Encoding: \r\nContent-Length: 0\r\n\r\n" HIDDEN,
        // lengths that are not digits alone
        START "Content-Length: +0\r\n\r\n" HIDDEN,
        START "Content-Length: 0, 0\r\n\r\n" HIDDEN,
        START "Content-Length: 0x0\r\n\r\n" HIDDEN,
        START "Content-Length: -1\r\n\r\n" HIDDEN,
        START "Content-Length: \r\n\r\n" HIDDEN,
        START "Content-Length: 0 0\r\n\r\n" HIDDEN,
        "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN,
        START "Content-Length: 99999999999999999999999\r\n\r\n" HIDDEN,
    };
    uint32_t i, wrong = 0;

    for (i = 0; i < ARRAY_COUNT(requests); i++) {
        struct http_reply reply = send_raw(requests[i], strlen(requests[i]));
        if (!is_refused(&reply)) {
            print_message("request %u: %s\n%s\n", i, requests[i], reply.data);
            wrong++;
        }
        http_free(&reply);
    }
    assert_int_equal(wrong, 0);
}

// A zero byte would end the name for whoever compares it as a C string.
static void test_zero_bytes(void **state)
{
    static const char name[] = START "Content-Length\0X: 44\r\nContent-Length: 0\r\n\r\n" HIDDEN;
    static const char coding[] = START "Transfer-Encoding: chunked\0\r\nContent-Length: 0\r\n\r\n" HIDDEN;
    static const char more[] = START "Transfer-Encoding: chunked\0x\r\nX: 1\r\n\r\n0\r\n\r\n" HIDDEN;
    static const char length[] = START "X: 1\r\nContent-Length: 0\0"
                                       "44\r\n\r\n" HIDDEN;
    const struct {
        const char *bytes;
        size_t count;
    } requests[] = {{name, sizeof name - 1}, {coding, sizeof coding - 1}, {more, sizeof more - 1}, {length, sizeof length - 1}};

    for (uint32_t i = 0; i < ARRAY_COUNT(requests); i++) {
        struct http_reply reply = send_raw(requests[i].bytes, requests[i].count);
        assert_true(is_refused(&reply));
        http_free(&reply);
    }
}

// No path ends at it: the gateway has none of that name.
static void test_a_zero_byte_in_the_path(void **state)
{
    static const char request[] = "GET /version%00/x HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    struct http_reply reply = send_raw(request, sizeof request - 1);

    assert_int_equal(http_count(&reply, "HTTP/1.1 404"), 1);
    http_free(&reply);
}

// Many headers that come in small pieces, for which the receive buffer grows, are taken.
static void test_headers_in_pieces(void **state)
{
    static const char rest[] = "Content-Length: 14\r\n\r\n{\"prompt\":\"a\"}" HIDDEN;
    struct http_reply reply = {.fd = http_connect(port)};

    assert_int_equal(send(reply.fd, START, sizeof START - 1, MSG_NOSIGNAL), sizeof START - 1);
    for (uint32_t i = 0; i < 60; i++) {
        char line[160];
        const int bytes = snprintf(line, sizeof line, "X-Header-%u: %0*u\r\n", i, 100, i);
        assert_int_equal(send(reply.fd, line, (size_t)bytes / 2, MSG_NOSIGNAL), bytes / 2);
        usleep(300);
        assert_int_equal(send(reply.fd, line + bytes / 2, (size_t)(bytes - bytes / 2), MSG_NOSIGNAL), bytes - bytes / 2);
    }
    assert_int_equal(send(reply.fd, rest, sizeof rest - 1, MSG_NOSIGNAL), sizeof rest - 1);
    http_read_all(&reply);
    assert_int_equal(http_count(&reply, "HTTP/1.1 200"), 2);
    http_free(&reply);
}

// Two plain requests on one connection, with a length and in chunks, are both answered.
static void test_plain_requests_are_taken(void **state)
{
    static const char *const requests[] = {
        START
        "X-Empty:\r\nX-Space: \r\nContent-Length: 14\r\nX-Content-Length: 3\r\nContent-Type: application/json\r\n\r\n{\"prompt\":\"a\"}" HIDDEN,
        START "Transfer-Encoding: chunked\r\n\r\ne\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n" HIDDEN,
        START "transfer-encoding: Chunked\r\n\r\ne\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n" HIDDEN,
    };
    uint32_t i;

    for (i = 0; i < ARRAY_COUNT(requests); i++) {
        struct http_reply reply = send_raw(requests[i], strlen(requests[i]));
        assert_int_equal(http_count(&reply, "HTTP/1.1 200"), 2);
        assert_int_equal(http_count(&reply, "\"tokens\":["), 1);
        assert_int_equal(http_count(&reply, "{\"version\""), 1);
        http_free(&reply);
    }
}

int main(int argc, char **argv)
{
#define CASE(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest tests[] = {
        CASE(test_framing_is_refused),       CASE(test_zero_bytes),
        CASE(test_a_zero_byte_in_the_path),  CASE(test_headers_in_pieces),
        CASE(test_plain_requests_are_taken),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

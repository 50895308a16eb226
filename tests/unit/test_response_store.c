// test_response_store.c: answers that are kept for a next request: what is found, by whom, and what goes when there is no room.
#include <jansson.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/api/dialects/response_store.h"
#include "tests/cmocka.h"

enum { SECOND = 1000000 };

static struct response_store *open_store(uint64_t bytes, double share, uint32_t count)
{
    const struct response_store_config config = {.max_bytes = bytes, .share = share, .max_count = count, .keep_s = 60};
    struct response_store *store = NULL;

    assert_int_equal(response_store_open(&config, &store), STATUS_OK);
    return store;
}

static struct text text_of(const char *string)
{
    struct text text = {0};

    text_string(&text, string);
    return text;
}

static bool begin(struct response_store *store, const char *tenant, const char *id, const char *conversation, uint64_t now_us)
{
    struct text text = text_of(conversation);
    bool ok = response_store_begin(store, tenant, id, &text, now_us);

    text_free(&text);
    return ok;
}

static void end(struct response_store *store, const char *tenant, const char *id, const char *message, const char *answer)
{
    struct text one = text_of(message), two = text_of(answer);

    response_store_end(store, tenant, id, &one, &two, SECOND);
    text_free(&one);
    text_free(&two);
}

static bool has(struct response_store *store, const char *tenant, const char *id, uint64_t now_us)
{
    struct text out = {0};
    bool found = response_store_answer(store, tenant, id, now_us, &out);

    text_free(&out);
    return found;
}

static void put(struct response_store *store, const char *tenant, const char *id, size_t bytes, uint64_t now_us)
{
    struct text conversation = text_of("[");

    for (size_t i = 0; i < bytes; i++)
        text_append(&conversation, " ", 1);
    text_append(&conversation, "]", 1);
    assert_true(response_store_begin(store, tenant, id, &conversation, now_us));
    text_free(&conversation);
    end(store, tenant, id, "1", "{}");
}

static void test_an_answer_is_found_once_it_is_complete(void **state)
{
    struct response_store *store = open_store(1 << 20, 1, 10);
    struct text out = {0};

    assert_true(begin(store, "a", "r1", "[{\"x\":1}]", SECOND));
    assert_false(begin(store, "a", "r1", "[]", SECOND)); // it is there
    assert_false(has(store, "a", "r1", SECOND));
    end(store, "a", "r1", "{\"y\":2}", "{\"answer\":true}");
    assert_true(response_store_conversation(store, "a", "r1", SECOND, &out));
    assert_int_equal(out.bytes, strlen("[{\"x\":1},{\"y\":2}]"));
    assert_memory_equal(out.data, "[{\"x\":1},{\"y\":2}]", out.bytes);
    text_clear(&out);
    assert_true(response_store_answer(store, "a", "r1", SECOND, &out));
    assert_memory_equal(out.data, "{\"answer\":true}", out.bytes);
    text_clear(&out);
    assert_true(begin(store, "a", "r2", "[]", SECOND));
    end(store, "a", "r2", "{}", "{}");
    assert_true(response_store_conversation(store, "a", "r2", SECOND, &out));
    assert_memory_equal(out.data, "[{}]", out.bytes);
    text_free(&out);
    response_store_close(store);
}

static void test_each_tenant_has_its_own(void **state)
{
    struct response_store *store = open_store(1 << 20, 1, 10);

    put(store, "a", "r1", 10, SECOND);
    assert_false(has(store, "b", "r1", SECOND));
    assert_false(response_store_remove(store, "b", "r1", SECOND));
    put(store, "b", "r1", 20, SECOND);
    assert_true(response_store_remove(store, "a", "r1", SECOND));
    assert_false(response_store_remove(store, "a", "r1", SECOND));
    assert_true(has(store, "b", "r1", SECOND));
    assert_true(begin(store, "a", "r2", "[]", SECOND));
    assert_true(response_store_remove(store, "a", "r2", SECOND)); // before its answer, which is not kept then
    assert_false(response_store_remove(store, "a", "r2", SECOND));
    end(store, "a", "r2", "1", "{}");
    assert_false(has(store, "a", "r2", SECOND));
    response_store_close(store);
}

static void test_the_oldest_go(void **state)
{
    struct response_store *store = open_store(40000, 0.5, 3);
    char id[16];

    for (uint32_t i = 0; i < 5; i++) {
        snprintf(id, sizeof id, "n%u", i);
        put(store, "a", id, 10, SECOND);
    }
    assert_false(has(store, "a", "n1", SECOND)); // by their number
    assert_true(has(store, "a", "n2", SECOND) && has(store, "a", "n4", SECOND));
    put(store, "a", "large", 18000, SECOND);
    assert_true(has(store, "a", "large", SECOND) && has(store, "a", "n4", SECOND));
    put(store, "a", "other", 18000, SECOND); // by its share of the bytes
    assert_true(has(store, "a", "other", SECOND));
    assert_false(has(store, "a", "large", SECOND) || has(store, "a", "n4", SECOND));
    put(store, "b", "b1", 18000, SECOND);
    assert_true(has(store, "a", "other", SECOND) && has(store, "b", "b1", SECOND));
    put(store, "c", "c1", 18000, SECOND); // by the bytes of all
    assert_false(has(store, "a", "other", SECOND));
    assert_true(has(store, "b", "b1", SECOND) && has(store, "c", "c1", SECOND));
    assert_true(response_store_bytes(store) <= 40000);
    response_store_close(store);
}

static void test_one_that_is_too_large(void **state)
{
    struct response_store *store = open_store(4000, 0.5, 3);
    struct text large = {0};

    for (uint32_t i = 0; i < 2000; i++)
        text_append(&large, "x", 1);
    assert_false(response_store_begin(store, "a", "r", &large, SECOND));
    assert_true(begin(store, "a", "r", "[]", SECOND));
    response_store_end(store, "a", "r", &large, &large, SECOND); // with its answer it is
    assert_false(has(store, "a", "r", SECOND));
    assert_int_equal(response_store_bytes(store), 0);
    text_free(&large);
    response_store_close(store);
}

// An entry is counted with all the memory that it takes, although its texts grew by doubling.
static void test_memory_is_what_is_counted(void **state)
{
    enum { PLAIN_BYTES = 40000, SLACK_BYTES = 5000 };
    struct response_store *store = open_store(1 << 20, 1, 10);
    const size_t before = mallinfo2().uordblks;

    put(store, "a", "r1", PLAIN_BYTES, SECOND);
    const uint64_t counted = response_store_bytes(store), taken = mallinfo2().uordblks - before;
    if (counted < PLAIN_BYTES || taken > counted + SLACK_BYTES)
        fail_msg("%zu bytes are counted for %zu of memory", (size_t)counted, (size_t)taken);
    response_store_close(store);
}

static void test_age(void **state)
{
    struct response_store *store = open_store(1 << 20, 1, 10);

    put(store, "a", "old", 10, SECOND);
    put(store, "a", "young", 10, 50 * (uint64_t)SECOND);
    assert_true(has(store, "a", "old", 61 * (uint64_t)SECOND));
    assert_false(has(store, "a", "old", 61 * (uint64_t)SECOND + 1));
    assert_true(has(store, "a", "young", 62 * (uint64_t)SECOND));
    assert_false(has(store, "a", "young", 200 * (uint64_t)SECOND));
    assert_int_equal(response_store_bytes(store), 0);
    response_store_close(store);
}

// A kept conversation that is too long to be read is refused: it may be of many requests, each within the limits of a body.
static void test_a_conversation_of_too_many_values(void **state)
{
    struct response_store *store = open_store(64 << 20, 1, 10);
    struct text conversation = text_of("[{\"role\":\"user\",\"content\":[{}");
    json_t *body = json_pack("{s:s, s:s}", "input", "x", "previous_response_id", "r1");
    struct dialect_ask ask = {.body = body, .tenant = "a", .request_id = "r", .store = store, .kind = API_CHAT};
    struct api_error error;

    for (size_t i = 0; i < API_MAX_VALUES; i++)
        text_string(&conversation, ",{}");
    text_string(&conversation, "]}]");
    assert_true(response_store_begin(store, "a", "r1", &conversation, clock_now_us()));
    end(store, "a", "r1", "{}", "{}");
    assert_false(dialect_translate(&dialect_responses, &ask, &error));
    assert_int_equal(error.status, 400);
    assert_string_equal(error.param, "previous_response_id");
    json_decref(body);
    text_free(&conversation);
    response_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_is_found_once_it_is_complete),
        cmocka_unit_test(test_each_tenant_has_its_own),
        cmocka_unit_test(test_the_oldest_go),
        cmocka_unit_test(test_one_that_is_too_large),
        cmocka_unit_test(test_memory_is_what_is_counted),
        cmocka_unit_test(test_age),
        cmocka_unit_test(test_a_conversation_of_too_many_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_json_text.c: JSON with numbers of any size is read, told from what it looks like, and written again as it was.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "common/json/json_text.h"
#include "tests/cmocka.h"

static json_t *read_text(const char *text)
{
    json_error_t error;
    json_t *value = json_text_read(text, strlen(text), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

    if (!value)
        fail_msg("%s: %s", text, error.text);
    return value;
}

static void check_written(const char *text, bool spaced, const char *expected)
{
    json_t *value = read_text(text);
    char *written = json_text_write(value, spaced);

    assert_string_equal(written, expected);
    free(written);
    json_decref(value);
}

static void test_kept(void **state)
{
    static const char *const texts[] = {
        "18446744073709551615",
        "-9223372036854775809",
        "9223372036854775808",
        "123456789012345678901234567890",
        "1e999",
        "-1.50E+400",
        "[1,12345678901234567890,[{\"a\":-12345678901234567890}],\"12345678901234567890\"]",
        "{\"a\":12345678901234567890,\"12345678901234567890\":{\"b\":1e400,\"c\":\"\\\"1e400\"}}",
    };

    for (size_t i = 0; i < ARRAY_COUNT(texts); i++)
        check_written(texts[i], false, texts[i]);
    check_written("{ \"a\" : 12345678901234567890 , \"b\":[1 , 2] }", true, "{\"a\": 12345678901234567890, \"b\": [1, 2]}");
}

// Doubles as Python's json.dumps() writes them.
static void test_reals(void **state)
{
    static const char *const pairs[][2] = {
        {"0.1", "0.1"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"1.0", "1.0"},
        {"-0.0", "-0.0"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"1e22", "1e+22"},
        {"123456789.125", "123456789.125"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"0.7", "0.7"},
        {"1E2", "100.0"},
        {"1e-400", "0.0"},
        {"2.50", "2.5"},
    };

    for (size_t i = 0; i < ARRAY_COUNT(pairs); i++)
        check_written(pairs[i][0], false, pairs[i][1]);
}

static void test_random_reals(void **state)
{
    uint64_t random = 1;
    char text[JSON_REAL_BYTES], shorter[64];

    for (int i = 0; i < 20000; i++) {
        uint64_t bits = random_next(&random);
        double number;
        int digits = 0;
        memcpy(&number, &bits, sizeof number);
        if (!(number - number == 0)) // infinite, or none
            continue;
        json_text_real(number, text);
        assert_true(strtod(text, NULL) == number);
        for (const char *c = text; *c && *c != 'e'; c++)
            digits += *c >= '0' && *c <= '9';
        if (!strchr(text, 'e'))
            continue; // has zeros that are no digits of it
        snprintf(shorter, sizeof shorter, "%.*e", digits > 1 ? digits - 2 : 0, number);
        assert_true(digits == 1 || strtod(shorter, NULL) != number);
    }
}

static void test_kinds(void **state)
{
    json_t *all = read_text("[12345678901234567890, 1e999, 7, 0.5, {}, {\"number\":\"7\"}, \"12345678901234567890\", null]");

    assert_string_equal(json_text_kept(json_array_get(all, 0)), "12345678901234567890");
    assert_true(json_text_number(json_array_get(all, 0)) == 12345678901234567890.0);
    assert_true(json_text_number(json_array_get(all, 1)) > 1e308 && json_text_number(json_array_get(all, 3)) == 0.5);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *value = json_array_get(all, i);
        assert_int_equal(json_text_is_number(value), i < 4);
        assert_int_equal(json_text_is_object(value), i == 4 || i == 5);
        assert_int_equal(json_text_kept(value) != NULL, i < 2);
    }
    json_decref(all);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        int position;
    } cases[] = {
        {"{12345678901234567890:1}", 0},
        {"[012345678901234567890]", 0},
        {"[12345678901234567890x]", 22},
        {"[12345678901234567890 1]", 23},
        {"[1.12345678901234567890.12345678901234567890]", 0},
        {"[-]", 0},
        {"[12345678901234567890, 1e400, x]", 31},
        {"[\"a\"12345678901234567890]", 0},
        {"{\"\xFFnumber\":\"7\"}", 0}, // what a kept number is inside
        {"[12345678901234567890", 0},
        {"[12345678901234567890, \"", 0},
        {"{\"a\":12345678901234567890,\"a\":1}", 0},
    };
    json_error_t error;

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        json_t *value = json_text_read(cases[i].text, strlen(cases[i].text), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        if (value)
            fail_msg("%s is taken", cases[i].text);
        assert_true(error.text[0] && strlen(error.text) < 100 && error.position <= (int)strlen(cases[i].text));
        if (cases[i].position && cases[i].position != error.position)
            fail_msg("%s: byte %d", cases[i].text, error.position);
        assert_null(json_text_read(cases[i].text, strlen(cases[i].text), JSON_REJECT_DUPLICATES, NULL));
    }
}

// Numbers of any length are kept.
static void test_long(void **state)
{
    static const size_t digits[] = {19, 20, 799, 800, 801, 5000, 100000};
    static const char *const forms[] = {"%.*s", "-%.*s", "%.*s.5", "0.%.*s", "%.*se3", "1e%.*s"};
    char *nines = malloc(100001), *number = malloc(100010);

    memset(nines, '9', 100000);
    for (size_t i = 0; i < ARRAY_COUNT(digits); i++)
        for (size_t f = 0; f < ARRAY_COUNT(forms); f++) {
            snprintf(number, 100010, forms[f], (int)digits[i], nines);
            json_t *value = json_text_read(number, strlen(number), JSON_DECODE_ANY, NULL);
            char *written = value ? json_text_write(value, false) : NULL;
            assert_non_null(written);
            assert_true(json_text_is_number(value) && json_text_number(value) != 0);
            assert_true(json_text_kept(value) ? strcmp(written, number) == 0 : digits[i] < 801);
            free(written);
            json_decref(value);
        }
    free(nines);
    free(number);
}

static void test_strings(void **state)
{
    check_written("\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\\\/\xC3\xA9\\ud83d\\ude00\x7F\"", false,
                  "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\xC3\xA9\xF0\x9F\x98\x80\x7F\"");
    check_written(" { } ", true, "{}");
    check_written("[ true, false, null, [], \"\" ]", false, "[true,false,null,[],\"\"]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),    cmocka_unit_test(test_reals),   cmocka_unit_test(test_random_reals),
        cmocka_unit_test(test_kinds),   cmocka_unit_test(test_refused), cmocka_unit_test(test_long),
        cmocka_unit_test(test_strings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

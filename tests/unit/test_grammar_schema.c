/* test_grammar_schema.c: which texts the grammar of a JSON Schema takes, which schemas are refused and with what words, and that texts made up
 * along the grammar are JSON. tests/e2e/test_schemas.py compares with the official suite and a validator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "common/grammar/cursor.h"
#include "common/json/json_text.h"
#include "tests/cmocka.h"
#include "tests/unit/grammar_from.h"
#include "tests/unit/sample.h"

#define DIGITS_70 "1234567890123456789012345678901234567890123456789012345678901234567890"

enum { TRACKER_BYTES = 4 << 20, WALKS = 50, MAX_TEXT = 4000, LATE = 100, LEVELS = 120 };

static struct grammar_vocab *bytes_vocab; // a token a byte

static size_t byte_of(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    scratch[0] = (char)token;
    *bytes = scratch;
    return token == 0xff ? 0 : 1;
}

static int open_vocab(void **state)
{
    struct error error;

    return grammar_vocab_open(256, byte_of, NULL, &bytes_vocab, &error) ? -1 : 0;
}

static int close_vocab(void **state)
{
    grammar_vocab_close(bytes_vocab);
    return 0;
}

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *value = json_text_read(text, strlen(text), JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);

    if (!value)
        fail_msg("%s: %s", text, error.text);
    return value;
}

static struct grammar_tracker *track(const char *schema, const struct grammar_schema_options *options)
{
    static const struct grammar_schema_options plain = {.space = GRAMMAR_SPACE_NONE};
    struct grammar_tracker *tracker;
    struct grammar *grammar;
    struct error error;
    json_t *value = parse(schema);

    if (grammar_from_schema(value, options ? options : &plain, &grammar, &error) ||
        grammar_tracker_open(grammar, bytes_vocab, TRACKER_BYTES, &tracker, &error))
        fail_msg("%s: %s", schema, error.text);
    json_decref(value);
    return tracker;
}

static bool takes(struct grammar_tracker *tracker, const char *text)
{
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    bool taken = grammar_cursor_take_bytes(cursor, text, strlen(text)) && grammar_cursor_may_end(cursor);

    grammar_cursor_close(cursor);
    return taken;
}

/* --- made-up texts -------------------------------------------------------------------------------------------------------- */

static uint32_t pick(const uint32_t *mask, const char *among, uint64_t *random)
{
    uint32_t found = 0, chosen = 256;

    for (uint32_t byte = 0; byte < 256; byte++)
        if (mask[byte / 32] >> byte % 32 & 1 && (!among || (byte && strchr(among, (int)byte))) &&
            random_next(random) % ++found == 0)
            chosen = byte;
    return chosen;
}

/* Follows random bytes, later rather those that close something, and reads what came out. Texts that do not end are left alone. */
static void walk(struct grammar_tracker *tracker, const char *schema, uint64_t *random)
{
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    char text[MAX_TEXT + 1];
    size_t length = 0;

    while (length < MAX_TEXT && !grammar_cursor_must_end(cursor) &&
           !(grammar_cursor_may_end(cursor) && random_next(random) % 4 == 0)) {
        uint32_t mask[8] = {0}, byte = 256;
        grammar_cursor_mask(cursor, mask);
        if (random_next(random) % LATE < length)
            byte = pick(mask, "\"]}", random);
        if (byte == 256)
            byte = pick(mask, NULL, random);
        if (byte == 256 && grammar_cursor_may_end(cursor))
            break;
        if (byte == 256 || !grammar_cursor_take(cursor, byte))
            fail_msg("%s: nothing may follow %.*s", schema, (int)length, text);
        text[length++] = (char)byte;
    }
    if (grammar_cursor_may_end(cursor)) {
        json_error_t error;
        json_t *value = json_text_read(text, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (!value && json_error_code(&error) != json_error_null_byte_in_key) // which is JSON, but not for jansson
            fail_msg("%s made %.*s: %s", schema, (int)length, text, error.text);
        json_decref(value);
    }
    grammar_cursor_close(cursor);
}

/* --- texts ------------------------------------------------------------------------------------------------------------------ */

enum { MAX_TEXTS = 12 };
static const struct row {
    const char *schema;
    const char *taken[MAX_TEXTS], *refused[MAX_TEXTS];
} rows[] = {
    /* types */
    {"true",
     {"null", "[1,{\"a\":[]}]", "-0.5e-7", "\"\\u00e9\\ud83d\\ude00\""},
     {"", "nul", "01", "+1", "\"\\ud83d\"", "[1,]", "{\"a\"}", " 1"}},
    {"{\"type\":\"integer\"}", {"0", "-7", "12345678901234567890"}, {"-0", "1.0", "1e3", "01", "\"1\""}},
    {"{\"type\":[\"boolean\",\"null\"]}", {"true", "false", "null"}, {"0", "\"\""}},
    {"{\"enum\":[1,2.50,\"a\\\"b\",null,[1],{\"k\":2}]}",
     {"1", "2.5", "\"a\\\"b\"", "null", "[1]", "{\"k\":2}"},
     {"2", "[2]", "{}", "true"}},
    {"{\"const\":\"\\u0001/\\n\"}", {"\"\\u0001/\\n\""}, {"\"\\u0001\\/\\n\""}},
    {"{\"enum\":[1,\"1\",true],\"type\":\"string\"}", {"\"1\""}, {"1", "true"}},
    /* numbers */
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":305}",
     {"-12", "-1", "0", "9", "99", "300", "305"},
     {"-13", "306", "1000", "-0", "0.5"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":2.5,\"exclusiveMaximum\":10}", {"3", "9"}, {"2", "10", "2.6"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}",
     {"0.1", "0.001", "1", "1.0", "1.00"},
     {"0", "0.0", "1.01", "-0.1", "2"}},
    {"{\"type\":\"number\",\"minimum\":-1.25,\"maximum\":-0.5}",
     {"-1.25", "-1", "-0.5", "-0.50", "-1.2"},
     {"-1.26", "-0.49", "0", "1", "-2"}},
    {"{\"type\":\"integer\",\"minimum\":1,\"exclusiveMinimum\":true,\"maximum\":3}", {"2", "3"}, {"1", "4"}},
    {"{\"type\":\"integer\",\"minimum\":2,\"exclusiveMinimum\":2}", {"3"}, {"2"}},
    {"{\"type\":\"integer\",\"multipleOf\":7}", {"0", "7", "-14", "700"}, {"1", "8", "-1"}},
    {"{\"type\":\"integer\",\"multipleOf\":300,\"minimum\":1}", {"300", "600", "3000"}, {"0", "100", "310"}},
    {"{\"multipleOf\":0.01,\"type\":\"number\"}", {"1", "1.5", "19.99", "-0.01"}, {"0.001", "1.999"}},
    {"{\"multipleOf\":0.25,\"type\":\"number\",\"minimum\":0}", {"0", "0.25", "1.5", "2"}, {"0.2", "0.26", "-0.25"}},
    {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", {"0.5", "-1.25"}, {"1", "1.0", "0"}},
    {"{\"type\":\"integer\",\"not\":{\"enum\":[3,4.0]}}", {"2", "5", "33"}, {"3", "4"}},
    {"{\"enum\":[{\"a\":\"b\"},[true],{\"a\":0}]}",
     {"{\"a\":\"b\"}", "[true]", "{\"a\":0}"},
     {"{\"a\":[true]}", "0", "{\"a\":true}"}},
    /* numbers beyond 64 bits */
    {"{\"type\":\"integer\",\"minimum\":18446744073709551613,\"maximum\":18446744073709551615}",
     {"18446744073709551613", "18446744073709551614", "18446744073709551615"},
     {"18446744073709551612", "18446744073709551616", "1", "-18446744073709551614"}},
    {"{\"enum\":[123456789012345678901234567890,[12345678901234567890],1e400]}",
     {"123456789012345678901234567890", "[12345678901234567890]", "1e400"},
     {"123456789012345678901234567891", "12345678901234567890", "[12345678901234567891]", "{}"}},
    {"{\"type\":\"integer\",\"not\":{\"const\":12345678901234567890}}", {"12345678901234567891", "1"}, {"12345678901234567890"}},
    {"{\"const\":{\"a\":12345678901234567890}}", {"{\"a\":12345678901234567890}"}, {"{\"a\":1}", "{}", "12345678901234567890"}},
    /* strings */
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"\\n\\u00e9\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\ud83d\\ude00a\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {"{\"type\":\"string\",\"maxLength\":1000,\"minLength\":999}", {NULL}, {"\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-c\\\"]+$\",\"maxLength\":3}",
     {"\"abc\"", "\"\\\"\\\"\\\"\""},
     {"\"abcd\"", "\"\"", "\"d\"", "\"\\u0061\""}},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"abc\"", "\"\\nb\"", "\"b\""}, {"\"ac\"", "\"\""}},
    {"{\"type\":\"string\",\"not\":{\"pattern\":\"b\"}}", {"\"ac\"", "\"\""}, {"\"abc\"", "1"}},
    {"{\"type\":\"string\",\"not\":{\"minLength\":2}}", {"\"a\"", "\"\""}, {"\"ab\""}},
    {"{\"type\":\"string\",\"not\":{\"\":1,\"minLength\":2}}", {"\"a\"", "\"\""}, {"\"ab\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"24-01-01\""}},
    {"{\"type\":\"string\",\"format\":\"email\",\"maxLength\":60}",
     {"\"a.b@example.org\""},
     {"\"a..b@example.org\"", "\"a\"", "\"@b\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\",\"maxLength\":36}", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
    {"{\"type\":\"string\",\"format\":\"int32\"}", {"\"anything\""}, {"1"}},
    {"{\"enum\":[\"ab\",\"abc\",\"b\"],\"minLength\":2,\"pattern\":\"^a\"}", {"\"ab\"", "\"abc\""}, {"\"b\""}},
    /* arrays */
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
     {"[1]", "[1,2,3]"},
     {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}",
     {"[]", "[1]", "[1,2]"},
     {"[2]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":0},\"minItems\":2,\"maxItems\":100}",
     {"[1,0]", "[1,0,0]"},
     {"[1]", "[1,1]", "[0,0]"}},
    {"{\"type\":\"array\",\"contains\":{\"const\":1},\"items\":{\"enum\":[0,1]},\"maxContains\":2}",
     {"[1]", "[0,1,0,1]"},
     {"[]", "[0]", "[1,1,1]"}},
    {"{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1}", {"[]", "[7]"}, {"[7,7]"}},
    {"{\"type\":\"array\",\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":2}}", {"[1,2,2]", "[]"}, {"[1,1]"}},
    {"{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":70,\"maxItems\":71}", {NULL}, {"[1]", "[1,1]"}},
    /* objects */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"required\":[\"b\"],\"additionalProperties\":false}",
     {"{\"b\":2}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"},
     {"{}", "{\"a\":1}", "{\"b\":2,\"a\":1}", "{\"b\":2,\"b\":2}", "{\"b\":2,\"d\":4}", "{\"b\":1}", "{,\"b\":2}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"additionalProperties\":false}",
     {"{}", "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
     {"{\"b\":2,\"a\":1}", "{\"a\":1,}", "{,\"b\":2}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":{\"type\":\"null\"}}",
     {"{}", "{\"a\":1}", "{\"a\":1,\"b\":null}", "{\"aa\":null,\"\":null}"},
     {"{\"a\":null}", "{\"\\u0061\":null}", "{\"b\":1}"}},
    {"{\"type\":\"object\",\"required\":[\"z\",\"a\"],\"properties\":{\"a\":true}}",
     {"{\"a\":[],\"z\":{}}", "{\"a\":1,\"z\":1,\"q\":0}"},
     {"{\"a\":1}", "{\"z\":1,\"a\":1}"}},
    {"{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"string\"}},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"x-a\":\"v\",\"n\":1}", "{}"},
     {"{\"x-a\":1}", "{\"n\":\"v\"}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]{2}$\"},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{\"ab\":1}"},
     {"{\"abc\":1}", "{\"A\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"maxProperties\":2,\"additionalProperties\":false}",
     {"{}", "{\"b\":2}", "{\"a\":1,\"c\":3}"},
     {"{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
     {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true,\"c\":true},\"minProperties\":2,\"additionalProperties\":false}",
     {"{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}"},
     {"{}", "{\"b\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"dependentRequired\":{\"a\":[\"b\"]},\"additionalProperties\":false}",
     {"{}", "{\"b\":null}", "{\"a\":null,\"b\":null}"},
     {"{\"a\":null}"}},
    /* combining */
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{\"a\":{\"type\":\"integer\",\"maximum\":5}}}],\"additionalProperties\":true}",
     {"{\"a\":3}", "{\"a\":5}"},
     {"{\"a\":2}", "{\"a\":6}", "{}"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}],\"not\":{\"const\":\"x\"}}",
     {"1", "\"y\"", "\"\""},
     {"\"x\"", "\"yy\"", "null"}},
    {"{\"oneOf\":[{\"multipleOf\":3},{\"multipleOf\":5}],\"type\":\"integer\"}", {"3", "5", "9", "10"}, {"15", "1", "0", "30"}},
    {"{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}}}",
     {"{\"a\":1}", "{\"b\":2}"},
     {"{}", "{\"a\":1,\"b\":2}"}},
    {"{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"s\",\"n\"]},\"v\":true},\"required\":[\"k\",\"v\"],\"additionalProperties\":false,"
     "\"if\":{\"properties\":{\"k\":{\"const\":\"s\"}}},\"then\":{\"properties\":{\"v\":{\"type\":\"string\"}}},\"else\":{\"properties\":{\"v\":{\"type\":\"number\"}}}}",
     {"{\"k\":\"s\",\"v\":\"t\"}", "{\"k\":\"n\",\"v\":1.5}"},
     {"{\"k\":\"s\",\"v\":1}", "{\"k\":\"n\",\"v\":\"t\"}"}},
    /* references */
    {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"l\":{\"$ref\":\"#/$defs/t\"},"
     "\"r\":{\"anyOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},\"required\":[\"v\"],\"additionalProperties\":false}}}",
     {"{\"v\":1}", "{\"v\":1,\"l\":{\"v\":2,\"r\":null}}", "{\"v\":1,\"l\":{\"v\":2},\"r\":{\"v\":3,\"l\":{\"v\":4}}}"},
     {"{}", "{\"v\":1,\"l\":null}", "{\"v\":1,\"r\":{}}"}},
    {"{\"$id\":\"http://x.test/a/b\",\"items\":{\"$ref\":\"c#n\"},\"type\":\"array\",\"$defs\":{\"q\":{\"$id\":\"c\",\"$defs\":{\"z\":{\"$anchor\":\"n\",\"const\":7}}}}}",
     {"[7,7]", "[]"},
     {"[8]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"$id\":\"http://a.test\",\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"},\"$defs\":{\"t\":{\"const\":1}}},"
     "{\"$id\":\"http://b.test\",\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"},\"$defs\":{\"t\":{\"const\":2}}}]}",
     {"[[1,1],[2,2]]"},
     {"[[1],[1]]", "[[2]]"}},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", "[[],[[]]]"}, {"[1]"}},
    {"{\"$ref\":\"#/$defs/a~1b%25\",\"minimum\":2,\"$defs\":{\"a/b%\":{\"type\":\"integer\",\"maximum\":3}}}",
     {"2", "3"},
     {"1", "4"}},
    /* what only annotates may have numbers of any size, and so may names */
    {"{\"type\":\"object\",\"properties\":{\"default\":{\"const\":1}},\"required\":[\"default\"],\"additionalProperties\":false,\"default\":" DIGITS_70
     ",\"examples\":[{\"a\":[" DIGITS_70 "]}],\"x-limit\":1e400000}",
     {"{\"default\":1}"},
     {"{\"default\":2}"}},
};

static void texts(void **state)
{
    uint64_t random = sample_seed();

    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct grammar_tracker *tracker = track(rows[r].schema, NULL);
        for (size_t i = 0; i < MAX_TEXTS && rows[r].taken[i]; i++)
            if (!takes(tracker, rows[r].taken[i]))
                fail_msg("%s: %s is refused", rows[r].schema, rows[r].taken[i]);
        for (size_t i = 0; i < MAX_TEXTS && rows[r].refused[i]; i++)
            if (takes(tracker, rows[r].refused[i]))
                fail_msg("%s: %s is taken", rows[r].schema, rows[r].refused[i]);
        for (int n = 0; n < (SANITIZED ? WALKS / 10 : WALKS); n++)
            walk(tracker, rows[r].schema, &random);
        grammar_tracker_close(tracker);
    }
}

/* Large counts are made of blocks: each number of items from nothing to some over the limit is judged. */
static void counts(void **state)
{
    static const uint32_t limits[][2] = {{0, 63}, {0, 64}, {31, 65}, {64, 64}, {70, 1100}, {1, 1056}, {1000, 1030}};

    for (size_t r = 0; r < sizeof limits / sizeof limits[0]; r++) {
        char schema[160], text[4096] = "[";
        struct grammar_tracker *tracker;
        snprintf(schema, sizeof schema, "{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":%u,\"maxItems\":%u}",
                 limits[r][0], limits[r][1]);
        tracker = track(schema, NULL);
        for (uint32_t count = 0, length = 1; count <= limits[r][1] + 2; count++) {
            text[length] = ']';
            text[length + 1] = '\0';
            if (takes(tracker, text) != (count >= limits[r][0] && count <= limits[r][1]))
                fail_msg("%s: %u items", schema, count);
            length += (uint32_t)snprintf(text + length, 8, count ? ",1" : "1");
        }
        grammar_tracker_close(tracker);
    }
}

static void white_space(void **state)
{
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"null\"}},\"b\":true},\"additionalProperties\":false}";
    static const struct {
        const char *text;
        bool taken[3]; /* by NONE, ONE, LINES */
    } spaces[] = {
        {"{\"a\":[null,null],\"b\":{\"c\":[0,1]}}", {true, true, true}},
        {"{\"a\": [null, null], \"b\": {\"c\": [0, 1]}}", {false, true, true}},
        {"{\n  \"a\": [\n    null,\n    null\n  ],\n  \"b\": {\n    \"c\": [0]\n  }\n}", {false, false, true}},
        {"{\"a\":  []}", {false, false, false}},
        {"{\"a\" :[]}", {false, false, false}},
        {"{ \"a\":[]}", {false, false, false}},
        {"{\"a\":[null,\tnull]}", {false, false, false}},
        {"{}\n", {false, false, false}},
    };

    for (int space = GRAMMAR_SPACE_NONE; space <= GRAMMAR_SPACE_LINES; space++) {
        const struct grammar_schema_options options = {.space = (enum grammar_space)space};
        struct grammar_tracker *tracker = track(schema, &options);
        for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
            if (takes(tracker, spaces[i].text) != spaces[i].taken[space])
                fail_msg("white space %d: %s", space, spaces[i].text);
        grammar_tracker_close(tracker);
    }
}

// Objects that name properties and say nothing of others are closed, as one object where several schemas apply; never so that nothing is left.
static void closed_by_default(void **state)
{
    static const struct {
        const char *schema, *text;
        bool closed, strict; // whether the text is taken; the standard takes all of them
    } cases[] = {
        {"{\"properties\":{\"a\":true}}", "{\"c\":1}", false, false},
        {"{\"properties\":{\"a\":{\"type\":\"object\"}}}", "{\"a\":{\"c\":1}}", true, true},
        {"{\"properties\":{\"a\":{\"properties\":{\"b\":true}}}}", "{\"a\":{\"c\":1}}", false, false},
        {"{\"properties\":{}}", "{\"c\":1}", true, false},
        {"{\"properties\":{},\"additionalProperties\":true}", "{\"c\":1}", true, true},
        {"{\"properties\":{\"a\":true},\"unevaluatedProperties\":true}", "{\"c\":1}", true, true},
        {"{\"allOf\":[{\"properties\":{\"a\":true}}],\"unevaluatedProperties\":true}", "{\"c\":1}", true, true},
        {"{\"properties\":{\"a\":true},\"patternProperties\":{\"^x\":true}}", "{\"c\":1}", true, false},
        {"{\"properties\":{\"a\":true},\"required\":[\"b\"]}", "{\"b\":1}", true, true},
        {"{\"properties\":{\"a\":true},\"required\":[\"b\"]}", "{\"b\":1,\"c\":1}", false, false},
        {"{\"properties\":{\"a\":true},\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"a\":0,\"b\":1}", true, true},
        {"{\"allOf\":[{\"properties\":{\"a\":true}},{\"properties\":{\"b\":true}}]}", "{\"a\":0,\"b\":1}", true, true},
        {"{\"allOf\":[{\"properties\":{\"a\":true}},{\"properties\":{\"b\":true}}]}", "{\"a\":0,\"c\":1}", false, false},
        {"{\"$defs\":{\"d\":{\"properties\":{\"a\":true},\"required\":[\"a\"]}},\"$ref\":\"#/$defs/d\",\"properties\":{\"b\":true}}",
         "{\"a\":0,\"b\":1}", true, true},
        {"{\"properties\":{\"a\":true},\"anyOf\":[{\"properties\":{\"b\":true},\"required\":[\"b\"]},{\"required\":[\"c\"]}]}",
         "{\"a\":0,\"c\":1}", true, true},
        {"{\"allOf\":[{\"properties\":{\"a\":true}},{\"additionalProperties\":true}]}", "{\"c\":1}", true, true},
        {"{\"properties\":{\"a\":true},\"minProperties\":1}", "{\"c\":1}", false, false},
        {"{\"properties\":{\"a\":false},\"minProperties\":1}", "{\"c\":1}", true, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int how = 0; how < 3; how++) {
            const struct grammar_schema_options options = {.closed_by_default = how > 0, .is_strict = how > 1};
            const bool taken = how == 0 || (how == 1 ? cases[i].closed : cases[i].strict);
            struct grammar_tracker *tracker;
            if (!taken && i + 1 == sizeof cases / sizeof cases[0])
                continue; // nothing is left
            tracker = track(cases[i].schema, &options);
            if (takes(tracker, cases[i].text) != taken)
                fail_msg("%s: %s, options %d", cases[i].schema, cases[i].text, how);
            grammar_tracker_close(tracker);
        }
}

static void json_alone(void **state)
{
    const struct grammar_schema_options options = {.space = GRAMMAR_SPACE_ONE};
    struct grammar_builder *builder = grammar_builder_open();
    struct grammar_tracker *tracker;
    struct grammar *grammar;
    struct error error;

    assert_int_equal(grammar_compile(builder, grammar_add_json_object(builder, &options), &grammar, &error), STATUS_OK);
    assert_int_equal(grammar_tracker_open(grammar, bytes_vocab, TRACKER_BYTES, &tracker, &error), STATUS_OK);
    assert_true(takes(tracker, "{\"a\": [1, {}]}"));
    assert_false(takes(tracker, "[1]"));
    grammar_tracker_close(tracker);
    grammar_builder_close(builder);
}

/* --- refused ---------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *schema;
    enum status status;
    const char *words;
} refused[] = {
    {"[]", STATUS_INVALID_ARGUMENT, "#: a schema is an object"},
    {"false", STATUS_INVALID_ARGUMENT, "#: no value is valid"},
    {"{\"type\":\"text\"}", STATUS_INVALID_ARGUMENT, "#/type: must be null"},
    {"{\"type\":\"fraction\"}", STATUS_INVALID_ARGUMENT, "#/type: must be null"},
    {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", STATUS_INVALID_ARGUMENT, "no value is valid"},
    {"{\"type\":\"integer\",\"minimum\":1.1,\"maximum\":1.9}", STATUS_INVALID_ARGUMENT, "no value is valid"},
    {"{\"const\":12345678901234567890123456789012345678901234567890123456789012345}", STATUS_RESOURCE_EXHAUSTED,
     "more than 64 digits"},
    {"{\"maximum\":1e400000}", STATUS_RESOURCE_EXHAUSTED, "#/maximum: has a number of more than 64 digits"},
    {"{\"properties\":{\"default\":{\"enum\":[[{\"a\":" DIGITS_70 "}]]}}}", STATUS_RESOURCE_EXHAUSTED,
     "#/properties/default/enum: has a number"},
    {"{\"multipleOf\":" DIGITS_70 "}", STATUS_RESOURCE_EXHAUSTED, "#/multipleOf: has a number"},
    {"{\"$ref\":\"#/default/0\",\"default\":[{\"minimum\":" DIGITS_70 "}]}", STATUS_RESOURCE_EXHAUSTED, "/minimum: has a number"},
    {"{\"properties\":12345678901234567890}", STATUS_INVALID_ARGUMENT, "properties"},
    {"{\"type\":\"object\",\"properties\":{\"a\":12345678901234567890}}", STATUS_INVALID_ARGUMENT, "must have schemas"},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"items\":3}}}", STATUS_INVALID_ARGUMENT,
     "#/properties/a/items: must be a schema"},
    {"{\"properties\":{\"a\":{\"minLength\":-1}}}", STATUS_INVALID_ARGUMENT, "#/properties/a/minLength: must be a whole number"},
    {"{\"items\":{\"pattern\":\"(\"}}", STATUS_INVALID_ARGUMENT, "#/items/pattern: regex: byte"},
    {"{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}]}", STATUS_UNIMPLEMENTED, "#/anyOf/0/pattern: regex: byte"},
    {"{\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}", STATUS_UNIMPLEMENTED,
     "#/properties/a/uniqueItems: a grammar cannot"},
    {"{\"properties\":{\"a/b\":{\"unevaluatedProperties\":false}}}", STATUS_UNIMPLEMENTED,
     "unevaluatedProperties: is not supported"},
    {"{\"$dynamicRef\":\"#x\"}", STATUS_UNIMPLEMENTED, "#/$dynamicRef: is not supported"},
    {"{\"$ref\":\"https://elsewhere.test/schema\"}", STATUS_UNIMPLEMENTED, "#/$ref: \"https://elsewhere.test/schema\" is not part"},
    {"{\"$ref\":\"#/$defs/none\"}", STATUS_INVALID_ARGUMENT, "#/$ref: there is nothing at"},
    {"{\"$ref\":\"#\"}", STATUS_INVALID_ARGUMENT, "#: the schema refers to itself"},
    {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", STATUS_INVALID_ARGUMENT, "the schema refers to itself"},
    {"{\"oneOf\":[true,{\"$ref\":\"#\"}]}", STATUS_RESOURCE_EXHAUSTED, "#: the schema is too complex"},
    {"{\"$defs\":{\"a\":{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":{\"$ref\":\"#/$defs/a\"}}}},\"$ref\":\"#/$defs/a\"}",
     STATUS_INVALID_ARGUMENT, "no text"},
    {"{\"type\":\"integer\",\"multipleOf\":997}", STATUS_UNIMPLEMENTED, "#/multipleOf: is supported up to"},
    {"{\"type\":\"integer\",\"multipleOf\":0}", STATUS_INVALID_ARGUMENT, "#/multipleOf: must be a number greater than 0"},
    {"{\"type\":\"string\",\"format\":\"iri\"}", STATUS_UNIMPLEMENTED, "#/format: \"iri\" cannot be said"},
    {"{\"oneOf\":[{\"type\":\"array\",\"maxItems\":3},{\"type\":\"array\",\"uniqueItems\":true}]}", STATUS_UNIMPLEMENTED,
     "#/oneOf: alternatives 0 and 1 may hold at once"},
    {"{\"type\":\"object\",\"minProperties\":2}", STATUS_UNIMPLEMENTED, "#/minProperties: a grammar cannot"},
    {"{\"type\":\"array\",\"minItems\":1000000}", STATUS_RESOURCE_EXHAUSTED, "#/minItems: must not be over"},
    {"{\"not\":{\"uniqueItems\":true}}", STATUS_UNIMPLEMENTED, "#/not: what is not valid under uniqueItems"},
    {"{\"required\":\"a\"}", STATUS_INVALID_ARGUMENT, "#/required: must be a list"},
    {"{\"enum\":3}", STATUS_INVALID_ARGUMENT, "#/enum: must be a list"},
    {"{\"oneOf\":[]}", STATUS_INVALID_ARGUMENT, "#/oneOf: must be a list"},
};

static void refused_schemas(void **state)
{
    const struct grammar_schema_options options = {.is_strict = true};

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct grammar *grammar;
        struct error error = {0};
        json_t *schema = parse(refused[i].schema);
        enum status status = grammar_from_schema(schema, &options, &grammar, &error);
        json_decref(schema);
        if (status != refused[i].status || !strstr(error.text, refused[i].words))
            fail_msg("%s: %s: %s", refused[i].schema, status_name(status), error.text);
        assert_null(grammar);
    }
}

/* Deeper than any parser lets through: the stack must bear it. */
static void very_deep(void **state)
{
    const struct grammar_schema_options options = {.space = GRAMMAR_SPACE_NONE};
    json_t *schema = json_object();
    struct grammar *grammar;
    struct error error;

    for (int i = 0; i < 10000; i++)
        schema = json_pack("{s:o}", "items", schema);
    assert_int_equal(grammar_from_schema(schema, &options, &grammar, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(error.text, "nested deeper than"));
    json_decref(schema);
}

static json_t *repeated(const char *keyword, json_t *(*item)(int), int count)
{
    json_t *list = json_array();

    for (int i = 0; i < count; i++)
        json_array_append_new(list, item(i));
    return json_pack("{s:o}", keyword, list);
}

static json_t *any_item(int i) { return json_true(); }

static json_t *numbered(const char *keyword, int i)
{
    char name[16];

    snprintf(name, sizeof name, "n%d", i);
    return json_pack("{s:s}", keyword, name);
}

static json_t *format_of(int i) { return numbered("format", i); } /* which nobody knows */

static json_t *resource_of(int i) { return numbered("$id", i); }

/* A reference that goes down i % LEVELS levels. */
static json_t *long_reference(int i)
{
    char text[8 + 2 * LEVELS + 1] = "#/x";

    for (int level = 0; level < i % LEVELS; level++)
        strcat(text, "/x");
    return json_pack("{s:s}", "$ref", text);
}

/* Schemas whose parts are looked at together with each other: they are refused before that takes long, or much memory. */
static void costly_schemas(void **state)
{
    const struct grammar_schema_options options = {.space = GRAMMAR_SPACE_NONE};
    json_t *deep = json_object(), *references = repeated("allOf", long_reference, LEVELS),
           *resources = repeated("prefixItems", resource_of, 1000), *all[4];

    for (int level = 0; level < LEVELS; level++)
        deep = json_pack("{s:o}", "x", deep);
    json_object_update(references, deep);
    json_object_update(references, resources);
    json_decref(deep);
    json_decref(resources);
    all[0] = json_pack("{s:o}", "not", repeated("prefixItems", any_item, 3000));
    all[1] = repeated("allOf", format_of, 3000);
    all[2] = references;
    all[3] = repeated("prefixItems", resource_of, 8000);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct grammar *grammar;
        struct error error = {0};
        enum status status = grammar_from_schema(all[i], &options, &grammar, &error);
        if (status != STATUS_RESOURCE_EXHAUSTED || !strstr(error.text, "too complex"))
            fail_msg("schema %zu: %s: %s", i, status_name(status), error.text);
        json_decref(all[i]);
    }
}

static size_t packed_bytes(const char *schema)
{
    const struct grammar_schema_options options = {.space = GRAMMAR_SPACE_NONE};
    json_t *value = parse(schema);
    struct grammar *grammar;
    struct error error;
    size_t bytes;

    assert_int_equal(grammar_from_schema(value, &options, &grammar, &error), STATUS_OK);
    grammar_packed(grammar, &bytes);
    grammar_free(grammar);
    json_decref(value);
    return bytes;
}

/* Equal parts share rules, whether they are referred to or written again. */
static void equal_parts(void **state)
{
    static const char part[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":80},\"size\":{\"type\":\"number\",\"minimum\":0.125}},"
        "\"required\":[\"name\"],\"additionalProperties\":false}";
    char copies[2048], references[2048], one[1024];

    snprintf(one, sizeof one, "{\"type\":\"array\",\"prefixItems\":[%s],\"items\":false}", part);
    snprintf(copies, sizeof copies, "{\"type\":\"array\",\"prefixItems\":[%s,%s,%s],\"items\":false}", part, part, part);
    snprintf(
        references, sizeof references,
        "{\"type\":\"array\",\"prefixItems\":[{\"$ref\":\"#/$defs/p\"},{\"$ref\":\"#/$defs/p\",\"title\":\"b\"},{\"allOf\":[{\"$ref\":\"#/$defs/p\"}]}],\"items\":false,\"$defs\":{\"p\":%s}}",
        part);
    assert_int_equal(packed_bytes(copies), packed_bytes(references));
    assert_true(packed_bytes(copies) < packed_bytes(one) + 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),          cmocka_unit_test(counts),
        cmocka_unit_test(white_space),    cmocka_unit_test(closed_by_default),
        cmocka_unit_test(json_alone),     cmocka_unit_test(refused_schemas),
        cmocka_unit_test(very_deep),      cmocka_unit_test(equal_parts),
        cmocka_unit_test(costly_schemas),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}

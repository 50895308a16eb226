// test_answer_grammar.c: answers that are made up at random under the grammar of a call, in each notation: the parser finds in each of them calls
// with arguments that are what the schema wants, and nothing else.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "common/grammar/cursor.h"
#include "services/gateway/answer/grammar.h"
#include "tests/cmocka.h"
#include "tests/unit/sample.h"

enum { STEPS_MAX = 6000, BYTES = 256, PIECES_MAX = 64 };

// Tokens: each byte, then pieces of text, then the family's markers, of which some are control tokens.
static const char *const pieces[] = {"</think>",
                                     "</parameter>\n",
                                     "\n</parameter>\n",
                                     "</arg_value>\n",
                                     "\"",
                                     "\"}",
                                     "<escape>",
                                     "<|\"|>",
                                     "<|end|>",
                                     "\n",
                                     "{",
                                     "}",
                                     "]",
                                     "1",
                                     "true",
                                     "\": ",
                                     "\", \"",
                                     "exact",
                                     "city",
                                     "<think>",
                                     "[/THINK]",
                                     "[THINK]",
                                     "</seed:think>"};

struct world {
    const struct answer_family *family;
    uint32_t markers, tokens, units; // units: bit i: marker i is a control token
};

static const char *token_text(const struct world *world, uint32_t token, char scratch[2], size_t *length, bool *control)
{
    const uint32_t marker = token - BYTES - (uint32_t)ARRAY_COUNT(pieces);

    *control = token >= BYTES + ARRAY_COUNT(pieces) && (world->units >> marker & 1);
    if (token < BYTES) {
        scratch[0] = (char)token;
        *length = 1;
        return scratch;
    }
    const char *text = token >= BYTES + ARRAY_COUNT(pieces) ? answer_family_marker(world->family, marker) : pieces[token - BYTES];
    *length = strlen(text);
    return text;
}

static size_t spell(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    size_t length;
    bool control;
    char one[2];
    const char *text = token_text(arg, token, one, &length, &control);

    if (token == 255)
        return 0; // what control tokens are spelled with
    scratch[0] = '\xff';
    memcpy(scratch + control, text, length);
    *bytes = scratch;
    return length + control;
}

// --- what the parser finds --------------------------------------------------------------------------------------------------
struct found {
    struct text content, name[ANSWER_MAX_CALLS], arguments[ANSWER_MAX_CALLS];
    uint32_t calls;
    const json_t *tools;
};

static void take(void *arg, const struct answer_event *event)
{
    struct found *found = arg;

    if (event->kind == ANSWER_CONTENT)
        text_append(&found->content, event->bytes, event->count);
    else if (event->kind == ANSWER_CALL)
        text_append(&found->name[found->calls++], event->bytes, event->count);
    else if (event->kind == ANSWER_ARGUMENTS)
        text_append(&found->arguments[event->call], event->bytes, event->count);
}

static const json_t *tool_of(const struct found *found, const char *name, size_t bytes)
{
    for (size_t i = 0; i < json_array_size(found->tools); i++) {
        const json_t *function = json_object_get(json_array_get(found->tools, i), "function");
        const char *own = json_string_value(json_object_get(function, "name"));
        if (strlen(own) == bytes && !memcmp(own, name, bytes))
            return function;
    }
    return NULL;
}

static bool knows(void *arg, const char *name, size_t bytes) { return tool_of(arg, name, bytes) != NULL; }

static enum answer_type type_of(void *arg, const char *name, size_t name_bytes, const char *parameter, size_t parameter_bytes)
{
    const json_t *function = tool_of(arg, name, name_bytes);
    char key[64];

    snprintf(key, sizeof key, "%.*s", (int)parameter_bytes, parameter);
    const json_t *type =
        json_object_get(json_object_get(json_object_get(json_object_get(function, "parameters"), "properties"), key), "type");
    return !type ? ANSWER_UNKNOWN : !strcmp(json_string_value(type), "string") ? ANSWER_STRING : ANSWER_OTHER;
}

// The schema of the test's tools, checked by hand: the few keywords that they use, and the one $ref.
static bool fits(const json_t *schema, const json_t *value)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    const json_t *choices = json_object_get(schema, "enum"), *required = json_object_get(schema, "required");
    bool found = !choices;

    if (json_object_get(schema, "$ref"))
        return json_is_string(value) && (!strcmp(json_string_value(value), "asc") || !strcmp(json_string_value(value), "desc"));
    for (size_t i = 0; i < json_array_size(choices); i++)
        found |= json_equal(json_array_get(choices, i), value);
    if (!found || !value)
        return false;
    if (!strcmp(type, "string"))
        return json_is_string(value);
    if (!strcmp(type, "integer"))
        return json_is_integer(value) ||
               (json_is_real(value) && json_real_value(value) == (double)(long long)json_real_value(value));
    if (!strcmp(type, "boolean"))
        return json_is_boolean(value);
    if (!strcmp(type, "array")) {
        for (size_t i = 0; i < json_array_size(value); i++)
            if (!fits(json_object_get(schema, "items"), json_array_get(value, i)))
                return false;
        return json_is_array(value);
    }
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(value, json_string_value(json_array_get(required, i))))
            return false;
    json_t *properties = json_object_get(schema, "properties");
    for (void *at = json_object_iter(properties); at; at = json_object_iter_next(properties, at))
        if (json_object_get(value, json_object_iter_key(at)) &&
            !fits(json_object_iter_value(at), json_object_get(value, json_object_iter_key(at))))
            return false;
    return json_is_object(value);
}

// --- made up ----------------------------------------------------------------------------------------------------------------
// Chooses one of the tokens that may come: half of the time one that is more than a byte, so that texts come to their ends.
static uint32_t choose(const uint32_t *mask, uint32_t tokens, uint64_t *seed)
{
    uint32_t allowed[2][BYTES + PIECES_MAX + ANSWER_MAX_MARKERS], counts[2] = {0};

    for (uint32_t token = 0; token < tokens; token++)
        if (mask[token / 32] >> token % 32 & 1)
            allowed[token >= BYTES][counts[token >= BYTES]++] = token;
    const bool large = counts[1] > 0 && (counts[0] == 0 || random_next(seed) % 2);
    return counts[0] + counts[1] == 0 ? UINT32_MAX : allowed[large][random_next(seed) % counts[large]];
}

// Makes a whole grammar of reasoning and calls. The caller frees *out.
static enum status make_grammar(const struct answer_grammar_options *options, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();

    *out = NULL;
    assert_non_null(builder);
    const uint32_t thoughts = answer_add_reasoning(builder, options);
    const uint32_t parts[] = {thoughts, answer_add_calls(builder, options)};
    const enum status status = grammar_compile(builder, grammar_sequence(builder, parts, 2), out, error);
    grammar_builder_close(builder);
    return status;
}

static void check(const struct found *found, const struct answer_grammar_options *options, const char *text)
{
    if (found->content.bytes || found->calls == 0 || (options->one_call && found->calls > 1))
        fail_msg("%s: %u calls, content %.*s\n%s", answer_family_name(options->family), found->calls, (int)found->content.bytes,
                 found->content.data, text);
    for (uint32_t i = 0; i < found->calls; i++) {
        const json_t *function = tool_of(found, found->name[i].data, found->name[i].bytes);
        json_t *value = json_loadb(found->arguments[i].data, found->arguments[i].bytes, JSON_ALLOW_NUL, NULL);
        if (!function || (options->only && strcmp(options->only, json_string_value(json_object_get(function, "name"))) != 0) ||
            !fits(json_object_get(function, "parameters"), value))
            fail_msg("%s: %.*s(%.*s)\n%s", answer_family_name(options->family), (int)found->name[i].bytes, found->name[i].data,
                     (int)found->arguments[i].bytes, found->arguments[i].data, text);
        json_decref(value);
    }
}

// Makes up one answer. Returns false if it did not end in time.
static bool make_up(struct grammar_cursor *cursor, const struct world *world, const struct answer_grammar_options *options,
                    uint64_t *seed)
{
    struct found found = {.tools = options->tools};
    const struct answer_options reading = {.family = options->family,
                                           .reasoning = options->reasoning,
                                           .reasoning_is_open = options->reasoning_is_open,
                                           .unit_markers = options->unit_markers,
                                           .take = take,
                                           .knows = knows,
                                           .type_of = type_of,
                                           .arg = &found};
    struct answer_parser *parser = answer_open(&reading);
    uint32_t mask[(BYTES + PIECES_MAX + ANSWER_MAX_MARKERS + 31) / 32];
    struct text text = {0};
    bool ended = false;

    for (int step = 0; step < STEPS_MAX && !ended; step++) {
        if (grammar_cursor_must_end(cursor) || (grammar_cursor_may_end(cursor) && random_next(seed) % 3 == 0)) {
            ended = true;
            break;
        }
        grammar_cursor_mask(cursor, mask);
        const uint32_t token = choose(mask, world->tokens, seed);
        char scratch[2];
        size_t length;
        bool control;
        assert_int_not_equal(token, UINT32_MAX);
        const char *bytes = token_text(world, token, scratch, &length, &control);
        assert_true(grammar_cursor_take(cursor, token));
        if (control)
            answer_push_unit(parser, bytes, length);
        else
            answer_push(parser, bytes, length);
        text_append(&text, bytes, length);
    }
    answer_finish(parser);
    text_append(&text, "", 1);
    if (ended)
        check(&found, options, text.data);
    answer_close(parser);
    text_free(&text);
    text_free(&found.content);
    for (uint32_t i = 0; i < ANSWER_MAX_CALLS; i++) {
        text_free(&found.name[i]);
        text_free(&found.arguments[i]);
    }
    return ended;
}

static json_t *make_tools(void)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{"
        "\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"enum\":[1,3]},\"unit\":{\"type\":\"string\",\"enum\":[\"C\",\"F\"]}},\"required\":[\"city\"]}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"search\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"where\":{\"type\":"
        "\"array\",\"items\":{\"type\":\"string\"}},\"more\":{\"type\":\"object\",\"properties\":{\"exact\":{\"type\":\"boolean\"}},\"required\":[\"exact\"]},"
        "\"order\":{\"$ref\":\"#/$defs/Order\"}},\"required\":[\"more\",\"order\"],"
        "\"$defs\":{\"Order\":{\"type\":\"string\",\"enum\":[\"asc\",\"desc\"]}}}}}]";
    json_t *made = json_loads(tools, 0, NULL);

    assert_non_null(made);
    return made;
}

static void check_family(const char *family, const char *reasoning, bool open, const char *only, bool one_call, uint32_t units,
                         uint64_t *seed)
{
    struct world world = {.family = answer_find_family(family), .units = units};
    json_t *tools = make_tools();
    const struct answer_grammar_options options = {.family = world.family,
                                                   .unit_markers = units,
                                                   .reasoning = reasoning ? answer_find_reasoning(reasoning) : NULL,
                                                   .reasoning_is_open = open,
                                                   .tools = tools,
                                                   .only = only,
                                                   .one_call = one_call};
    struct grammar *grammar;
    struct grammar_vocab *vocab;
    struct grammar_tracker *tracker;
    struct error error = {0};
    int ended = 0;

    while (answer_family_marker(world.family, world.markers))
        world.markers++;
    world.tokens = BYTES + (uint32_t)ARRAY_COUNT(pieces) + world.markers;
    if (make_grammar(&options, &grammar, &error) != STATUS_OK)
        fail_msg("%s: %s", family, error.text);
    assert_int_equal(grammar_vocab_open(world.tokens, spell, &world, &vocab, &error), STATUS_OK);
    if (grammar_tracker_open(grammar, vocab, 16 << 20, &tracker, &error) != STATUS_OK)
        fail_msg("%s: %s", family, error.text);
    for (int n = 0; n < 30; n++) {
        struct grammar_cursor *cursor = grammar_cursor_open(tracker);
        assert_non_null(cursor);
        ended += make_up(cursor, &world, &options, seed);
        grammar_cursor_close(cursor);
    }
    if (ended < 10)
        fail_msg("%s: only %d of 30 answers ended", family, ended);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
    json_decref(tools);
}

static const char *const families[] = {"hermes",        "granite",      "phi4",        "nemotron",     "json", "llama3",
                                       "mistral",       "mistral-args", "deepseek",    "deepseek-v31", "kimi", "harmony",
                                       "functiongemma", "gemma4",       "qwen3-coder", "minimax",      "glm"};

static void test_families(void **state)
{
    uint64_t seed = sample_seed();

    for (size_t i = 0; i < ARRAY_COUNT(families); i++) {
        const uint32_t units[] = {0, UINT32_MAX, (uint32_t)random_next(&seed)};
        for (size_t j = 0; j < ARRAY_COUNT(units); j++) {
            check_family(families[i], NULL, false, NULL, i % 2, units[j], &seed);
            check_family(families[i], i % 2 ? "think" : "mistral", i % 3 == 0, "search", i % 2 == 0, units[j], &seed);
        }
    }
}

/* Arguments that their schema does not name are written only where the request says so. */
static void test_open_objects(void **state)
{
    static const char text[] = "{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": 2}}";
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                               "\"properties\":{\"a\":{\"type\":\"integer\"}}}}}]",
                               0, NULL);
    struct world world = {.family = answer_find_family("json"), .tokens = BYTES};

    for (int open = 0; open < 2; open++) {
        const struct answer_grammar_options options = {.family = world.family, .tools = tools, .open_objects = open};
        struct grammar_tracker *tracker;
        struct grammar_vocab *vocab;
        struct grammar *grammar;
        struct error error;
        assert_int_equal(make_grammar(&options, &grammar, &error), STATUS_OK);
        assert_int_equal(grammar_vocab_open(world.tokens, spell, &world, &vocab, &error), STATUS_OK);
        assert_int_equal(grammar_tracker_open(grammar, vocab, 16 << 20, &tracker, &error), STATUS_OK);
        struct grammar_cursor *cursor = grammar_cursor_open(tracker);
        assert_int_equal(grammar_cursor_take_bytes(cursor, text, sizeof text - 1), open);
        grammar_cursor_close(cursor);
        grammar_tracker_close(tracker);
        grammar_vocab_close(vocab);
    }
    json_decref(tools);
}

static void test_refused(void **state)
{
    json_t *tools = make_tools();
    struct answer_grammar_options options = {.family = answer_find_family("hermes"), .tools = tools, .only = "nobody"};
    struct grammar *grammar;
    struct error error;

    assert_int_equal(make_grammar(&options, &grammar, &error), STATUS_INVALID_ARGUMENT);
    assert_null(grammar);
    assert_non_null(strstr(error.text, "no function that may be called"));
    options.only = NULL;
    json_object_set_new(json_object_get(json_object_get(json_array_get(tools, 0), "function"), "parameters"), "type",
                        json_string("odd"));
    assert_int_not_equal(make_grammar(&options, &grammar, &error), STATUS_OK);
    assert_non_null(strstr(error.text, "function 'weather': #/type: "));
    json_decref(tools);
}

/* In the notation that has words of its own for values, too. */
static void test_references_that_lead_nowhere(void **state)
{
    static const struct {
        const char *reference, *part;
    } rows[] = {{"#/$defs/round", "$ref"}, {"#/$defs/nobody", "$ref"}, {"http://other/schema", "nothing is fetched"}};

    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        json_t *tools = make_tools(),
               *parameters = json_object_get(json_object_get(json_array_get(tools, 0), "function"), "parameters");
        const struct answer_grammar_options options = {.family = answer_find_family("functiongemma"), .tools = tools};
        struct grammar *grammar = NULL;
        struct error error;
        json_object_set_new(parameters, "properties", json_pack("{s{ss}}", "x", "$ref", rows[i].reference));
        json_object_set_new(parameters, "required", json_pack("[s]", "x"));
        json_object_set_new(parameters, "$defs", json_pack("{s{ss}}", "round", "$ref", "#/$defs/round"));
        if (make_grammar(&options, &grammar, &error) == STATUS_OK)
            fail_msg("%s: taken", rows[i].reference);
        if (!strstr(error.text, "function 'weather': ") || !strstr(error.text, rows[i].part))
            fail_msg("%s: %s", rows[i].reference, error.text);
        json_decref(tools);
    }
}

/* Each property is looked for among those that are required. */
static void test_too_many_properties(void **state)
{
    json_t *tools = make_tools(),
           *parameters = json_object_get(json_object_get(json_array_get(tools, 0), "function"), "parameters");
    const struct answer_grammar_options options = {.family = answer_find_family("glm"), .tools = tools};
    struct grammar *grammar;
    struct error error;

    for (int i = 0; i < 1100; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(json_object_get(parameters, "properties"), name, json_object());
    }
    assert_int_equal(make_grammar(&options, &grammar, &error), STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(error.text, "more than 1024"));
    json_decref(tools);
}

/* Each property refers to the object that has them all. */
static void test_exponential_references(void **state)
{
    json_t *tools = make_tools(), *function = json_object_get(json_array_get(tools, 0), "function");
    json_t *properties = json_object(), *object = json_pack("{ssso}", "type", "object", "properties", properties);
    struct grammar *grammar;
    struct error error;

    for (int i = 0; i < 64; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(properties, name, json_pack("{ss}", "$ref", "#/$defs/a"));
    }
    json_object_set_new(
        function, "parameters",
        json_pack("{s{sO}ss,s{s{ss}}}", "$defs", "a", object, "type", "object", "properties", "x", "$ref", "#/$defs/a"));
    for (size_t i = 0; i < ARRAY_COUNT(families); i++) {
        const struct answer_grammar_options options = {.family = answer_find_family(families[i]), .tools = tools};
        if (make_grammar(&options, &grammar, &error) == STATUS_OK)
            grammar_free(grammar);
        else
            assert_non_null(strstr(error.text, "function 'weather': "));
    }
    json_decref(object);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families),
                                       cmocka_unit_test(test_open_objects),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_references_that_lead_nowhere),
                                       cmocka_unit_test(test_too_many_properties),
                                       cmocka_unit_test(test_exponential_references)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

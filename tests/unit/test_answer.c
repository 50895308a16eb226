// test_answer.c: what a model wrote, in the notations of all families: reasoning, content, calls; whole, byte by byte and cut at random; as text
// and as control tokens; and text that only looks like a call.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "common/base/text.h"
#include "services/gateway/answer/answer.h"
#include "tests/cmocka.h"
#include "tests/unit/sample.h"

// Control tokens are written between these, so that a text shows where they are.
#define U(name) "\x01" name "\x02"

// The text that came out, in the order of the kinds: "reasoning|content|f(arguments)g(arguments)".
struct seen {
    struct text reasoning, content, calls;
    uint32_t count;
    bool open, is_valid;
};

static void take(void *arg, const struct answer_event *event)
{
    struct seen *seen = arg;

    assert_true(event->count > 0);
    switch (event->kind) {
    case ANSWER_REASONING: text_append(&seen->reasoning, event->bytes, event->count); break;
    case ANSWER_CONTENT: text_append(&seen->content, event->bytes, event->count); break;
    case ANSWER_CALL:
        assert_int_equal(event->call, seen->count);
        seen->count++;
        if (seen->open)
            text_string(&seen->calls, ")");
        seen->open = true;
        text_append(&seen->calls, event->bytes, event->count);
        text_string(&seen->calls, "(");
        break;
    default: assert_int_equal(event->call + 1, seen->count); text_append(&seen->calls, event->bytes, event->count);
    }
}

static bool knows(void *arg, const char *name, size_t bytes) { return bytes == 1 && (*name == 'f' || *name == 'g'); }

static enum answer_type type_of(void *arg, const char *name, size_t name_bytes, const char *parameter, size_t parameter_bytes)
{
    return parameter_bytes == 1 && *parameter == 's' ? ANSWER_STRING : parameter_bytes == 1 ? ANSWER_OTHER : ANSWER_UNKNOWN;
}

// Pushes a text: a run of it between two control tokens is cut by *seed; 0: not at all; 1: after each byte.
static void push(struct answer_parser *parser, const char *text, uint64_t *seed)
{
    while (*text) {
        if (*text == '\x01') {
            const char *end = strchr(text, '\x02');
            answer_push_unit(parser, text + 1, (size_t)(end - text) - 1);
            text = end + 1;
            continue;
        }
        size_t length = strcspn(text, "\x01");
        if (*seed == 1)
            length = 1;
        else if (*seed)
            length = 1 + (size_t)(random_next(seed) % MIN(length, (size_t)12));
        length = MIN(length, strcspn(text, "\x01"));
        answer_push(parser, text, length);
        text += length;
    }
}

static char *run(const struct answer_options *options, const char *text, uint64_t seed)
{
    struct seen seen = {0};
    struct answer_options own = *options;
    struct text out = {0};

    own.take = take;
    own.arg = &seen;
    struct answer_parser *parser = answer_open(&own);
    assert_non_null(parser);
    push(parser, text, &seed);
    answer_finish(parser);
    assert_false(answer_failed(parser));
    assert_int_equal(answer_calls(parser), seen.count);
    answer_close(parser);
    if (seen.open)
        text_string(&seen.calls, ")");
    text_append(&out, seen.reasoning.data, seen.reasoning.bytes);
    text_string(&out, "|");
    text_append(&out, seen.content.data, seen.content.bytes);
    text_string(&out, "|");
    text_append(&out, seen.calls.data, seen.calls.bytes);
    text_append(&out, "", 1);
    text_free(&seen.reasoning);
    text_free(&seen.content);
    text_free(&seen.calls);
    return out.data;
}

// --- what models write ------------------------------------------------------------------------------------------------------
// "think+": the prompt has opened it. "hermes!": one call only.
struct row {
    const char *family, *reasoning, *text, *expected;
};

static const struct row rows[] = {
    // plain text stays as it is, to the last byte
    {"hermes", "think", " Hello <b>\n", "| Hello <b>\n|"},
    {"hermes", NULL, "\n\n a < b <tool_ca", "|\n\n a < b <tool_ca|"},
    {NULL, "think", "<think>\nhm\n</think>\n\nHi\n", "hm|Hi\n|"},
    {NULL, "think+", "hm\n</think>\n\nHi", "hm|Hi|"},
    {NULL, "think", "<think>\n\n</think>\n\nHi", "|Hi|"},
    {NULL, "think+", "never closed </thin", "never closed </thin||"},
    {NULL, "think", "Hi <think>x</think>", "|Hi <think>x</think>|"},
    {NULL, "think", " \n<thin", "| \n<thin|"},
    {NULL, "think", U("<think>") "a b" U("</think>") "c", "a b|c|"},
    {NULL, "mistral", "[THINK]a[/THINK]b", "a|b|"},
    {NULL, "granite", "<think>a</think>\n<response>b</response>", "a|b|"},
    {NULL, "seed", "<seed:think>a</seed:think>b", "a|b|"},
    // hermes, as Qwen and Hermes write it
    {"hermes", NULL, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "||f({\"a\": 1})"},
    {"hermes", "think",
     "<think>\nx\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"}\\\"{\"}}\n</tool_call>\n<tool_call>\n"
     "{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n",
     "x|Let me see.|f({\"s\": \"}\\\"{\"})g({})"},
    {"hermes", NULL, U("<tool_call>") "{\"name\":\"f\",\"arguments\":{\"a\":[1,{\"b\":2}]}}" U("</tool_call>"),
     "||f({\"a\":[1,{\"b\":2}]})"},
    {"hermes", NULL, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>", "||f({\"a\": 1})"},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", "||f({\"a\": 1})"},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\"}</tool_call>", "||f({})"},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>after", "|after|f({})"},
    {"hermes", NULL, "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}</tool_call>",
     "||f({\"a\": 1})"},
    {"hermes", NULL, "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]</tool_call>",
     "||f({})g({})"},
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>!",
     "|!|f({\"a\": 1})"},                                                                                   // a brace is missing
    {"hermes", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x", "||f({\"a\": \"x)"},        // cut off
    {"hermes", NULL, "a <tool_call>{\"name\": \"f\", \"argum", "|a <tool_call>{\"name\": \"f\", \"argum|"}, // before it is a call
    {"hermes", NULL, "<tool_call>not JSON</tool_call>", "|<tool_call>not JSON</tool_call>|"},
    {"hermes", NULL, "<tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "|<tool_call>\n|f({})"},
    {"hermes", NULL, "<tool_call>{\"name\": 5}</tool_call> x", "|<tool_call>{\"name\": 5}</tool_call> x|"},
    {"hermes", NULL, "</tool_call>", "|</tool_call>|"},
    {"hermes", NULL, "{\"name\": \"f\", \"arguments\": {}}",
     "|{\"name\": \"f\", \"arguments\": {}}|"}, // no marker: JSON that was asked for
    {"hermes!", NULL,
     U("<tool_call>") "{\"name\":\"f\",\"arguments\":{}}" U("</tool_call>") U("<tool_call>") "{\"name\":\"g\",\"arguments\":{}}",
     "||f({})"},
    {"hermes!", NULL, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"g\", \"arguments\": {}}",
     "||f({})"},
    {"hermes", NULL, "<tool_call>{\"name\": \"\\u0066\", \"arguments\": {}}", "||f({})"},
    // llama 3
    {"llama3", NULL, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "||f({\"a\": 1})"},
    {"llama3", NULL, " {\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}", "||f({\"a\": 1})"},
    {"llama3", NULL, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "||f({})g({})"},
    {"llama3", NULL, U("<|python_tag|>") "{\"name\": \"h\", \"parameters\": {}}", "||h({})"},
    {"llama3", NULL, "<|python_tag|>print(1)", "|<|python_tag|>print(1)|"},
    {"llama3", NULL, "{\"name\": \"unknown\", \"parameters\": {}}", "|{\"name\": \"unknown\", \"parameters\": {}}|"},
    {"llama3", NULL, "{\"answer\": {\"name\": \"f\"}}", "|{\"answer\": {\"name\": \"f\"}}|"},
    {"llama3", NULL, "{\"name\": \"f\"}", "|{\"name\": \"f\"}|"},
    {"llama3", NULL, "So: {\"name\": \"f\", \"parameters\": {}}", "|So: {\"name\": \"f\", \"parameters\": {}}|"},
    {"llama3", NULL, "{\"name\": \"f\", \"parameters\": 5}", "|{\"name\": \"f\", \"parameters\": 5}|"},
    {"json", NULL, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "||f({\"a\": 1})"},
    // mistral, old and new
    {"mistral", NULL, U("[TOOL_CALLS]") " [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
     "||f({\"a\": 1})g({})"},
    {"mistral", NULL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}]", "||f({\"a\": 1})"},
    {"mistral", NULL, "Well. [TOOL_CALLS]f{\"a\": \"[ARGS]\"}[TOOL_CALLS]g{}", "|Well.|f({\"a\": \"[ARGS]\"})g({})"},
    {"mistral", NULL, U("[TOOL_CALLS]") "f" U("[ARGS]") "{\"a\": 1}" U("[TOOL_CALLS]") "g" U("[CALL_ID]") "abc" U("[ARGS]") "{}",
     "||f({\"a\": 1})g({})"},
    {"mistral", NULL, "[TOOL_CALLS] no call", "|[TOOL_CALLS] no call|"},
    {"mistral", "mistral", "[THINK]a[/THINK][TOOL_CALLS]f{", "a||f({)"},
    // deepseek
    {"deepseek", "think",
     "<think>\nx\n</think>\n\nOne moment.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n"
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "x|One moment.|f({\"a\": 1})g({})"},
    {"deepseek", NULL,
     U("<｜tool▁calls▁begin｜>") U("<｜tool▁call▁begin｜>") "f" U("<｜tool▁sep｜>") "{\"a\": \"```\"}" U("<｜tool▁call▁end｜>")
         U("<｜tool▁call▁begin｜>") "g" U("<｜tool▁sep｜>") "{}" U("<｜tool▁call▁end｜>") U("<｜tool▁calls▁end｜>"),
     "||f({\"a\": \"```\"})g({})"},
    {"deepseek", NULL, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nno", "|<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\nno|"},
    {"kimi", NULL,
     U("<|tool_calls_section_begin|>") U("<|tool_call_begin|>") "functions.f:0" U("<|tool_call_argument_begin|>") "{\"a\": 1}" U(
         "<|tool_call_end|>") U("<|tool_calls_section_end|>"),
     "||f({\"a\": 1})"},
    // granite, phi, nemotron: lists
    {"granite", "granite", "<think>x</think><response><|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
     "x||f({\"a\": 1})"},
    {"granite", NULL, U("<|tool_call|>") "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
     "||f({})g({})"},
    {"phi4", NULL, "functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "||f({\"a\": 1})"},
    {"phi4", NULL, U("<|tool_call|>") "[{\"name\": \"f\", \"arguments\": {}}]" U("<|/tool_call|>"), "||f({})"},
    {"phi4", NULL, "functools are nice", "|functools are nice|"},
    {"nemotron", NULL, "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>", "||f({})"},
    // harmony
    {"harmony", NULL,
     U("<|channel|>") "analysis" U("<|message|>") "Think." U("<|end|>")
         U("<|start|>") "assistant" U("<|channel|>") "final" U("<|message|>") "Hello <|end|> \n",
     "Think.|Hello <|end|> \n|"},
    {"harmony", NULL,
     U("<|channel|>") "analysis" U("<|message|>") "Think." U("<|end|>") U("<|start|>") "assistant" U(
         "<|channel|>") "commentary to=functions.f " U("<|constrain|>") "json" U("<|message|>") "{\"a\": 1}" U("<|call|>"),
     "Think.||f({\"a\": 1})"},
    {"harmony", NULL, " to=functions.f" U("<|channel|>") "commentary json" U("<|message|>") "{\"a\": 1}", "||f({\"a\": 1})"},
    {"harmony", NULL,
     U("<|channel|>") "commentary" U("<|message|>") "I will look." U("<|end|>")
         U("<|start|>") "assistant" U("<|channel|>") "commentary to=functions.f" U("<|message|>") U("<|call|>"),
     "|I will look.|f({})"},
    {"harmony", NULL, "<|channel|>commentary to=functions.f<|message|>{\"a\": \"<|end|>\"}<|call|>", "||f({\"a\": \"<|end|>\"})"},
    {"harmony", NULL, "no channel at all", "|no channel at all|"},
    {"harmony", NULL,
     U("<|channel|>") "analysis" U("<|message|>") "a" U("<|end|>")
         U("<|start|>") "assistant" U("<|channel|>") "analysis" U("<|message|>") "b",
     "a\n\nb||"},
    // functiongemma, gemma 4
    {"functiongemma", NULL,
     U("<start_function_call>") "call:f{city:" U("<escape>") "A \"b\"\n" U("<escape>") ",n:5,l:[1," U("<escape>") "x" U(
         "<escape>") ",true],o:{}}" U("<end_function_call>"),
     "||f({\"city\":\"A \\\"b\\\"\\n\",\"n\":5,\"l\":[1,\"x\",true],\"o\":{}})"},
    {"functiongemma", NULL,
     "<start_function_call>call:f{}<end_function_call><start_function_call>call:g{a:word one}<end_function_call>",
     "||f({})g({\"a\":\"word one\"})"},
    {"functiongemma", NULL, "<start_function_call>say:f{}", "|<start_function_call>say:f{}|"},
    {"functiongemma", NULL, "<start_function_call>call:f{a:<escape>cut", "||f({\"a\":\"cut)"},
    {"gemma4", "gemma4", "<|channel>thought\nx\n<channel|>hm <|tool_call>call:f{a:<|\"|>s<|\"|>,o:{<|\"|>k<|\"|>:1}}<tool_call|>",
     "x|hm|f({\"a\":\"s\",\"o\":{\"k\":1}})"},
    // tags
    {"qwen3-coder", NULL,
     "I run it.\n<tool_call>\n<function=f>\n<parameter=s>\na \"b\"\n</para\n</parameter>\n<parameter=n>\n5\n</parameter>\n<parameter=o>\n{\"k\": [1]}\n</parameter>\n"
     "<parameter=word>\nplain\n</parameter>\n</function>\n</tool_call>",
     "|I run it.|f({\"s\": \"a \\\"b\\\"\\n</para\", \"n\": 5, \"o\": {\"k\": [1]}, \"word\": \"plain\"})"},
    {"qwen3-coder", NULL, "<function=f>\n</function>\n<tool_call><function=g><parameter=s>1</parameter></function></tool_call>",
     "||f({})g({\"s\": \"1\"})"},
    {"qwen3-coder", NULL, "<tool_call>\n<function=f>\n<parameter=s>\ncut", "||f({\"s\": \"cut)"},
    {"qwen3-coder", NULL, "<tool_call>text", "|<tool_call>text|"},
    {"qwen3-coder", NULL,
     "<tool_call><function=f><parameter=b>\nTrue\n</parameter><parameter=n>None</parameter><parameter=s>True</parameter>"
     "<parameter=l>['a', 1, \"it's\", (1, 2.5), (3), (4,), [],]</parameter></function></tool_call>",
     "||f({\"b\": true, \"n\": null, \"s\": \"True\", \"l\": [\"a\", 1, \"it's\", [1, 2.5], 3, [4], []]})"},
    {"qwen3-coder", NULL,
     "<tool_call><function=f><parameter=d>{'a': True, 'b\\'\\n\\x41\\u00e9\\d': {}, \"c\": -1e3}</parameter><parameter=many>{'a': None}</parameter>"
     "<parameter=word>True</parameter></function></tool_call>",
     "||f({\"d\": {\"a\": true, \"b'\\nA\xc3\xa9\\\\d\": {}, \"c\": -1e3}, \"many\": {\"a\": null}, \"word\": \"True\"})"},
    {"glm", NULL, "<tool_call>f\n<arg_key>b</arg_key>\n<arg_value>False</arg_value>\n</tool_call>", "||f({\"b\": false})"},
    // what is none stays text
    {"qwen3-coder", NULL,
     "<tool_call><function=f><parameter=l>['a'</parameter><parameter=k>[1,,2]</parameter><parameter=d>{1: 2}</parameter><parameter=w>Truex</parameter>"
     "<parameter=x>'\\ud800'</parameter><parameter=y>[] []</parameter><parameter=z>NaN</parameter></function></tool_call>",
     "||f({\"l\": \"['a'\", \"k\": \"[1,,2]\", \"d\": \"{1: 2}\", \"w\": \"Truex\", \"x\": \"'\\\\ud800'\", \"y\": \"[] []\", \"z\": \"NaN\"})"},
    {"qwen3-coder", NULL, U("<tool_call>") "<function=f><parameter=s></parameter></function>" U("</tool_call>"),
     "||f({\"s\": \"\"})"},
    {"minimax", NULL,
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">x</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
     "||f({\"s\": \"x\"})g({})"},
    {"glm", "think",
     "<think>t</think>\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
     "t||f({\"s\": \"x\", \"n\": 5})"},
    {"glm", NULL, "<tool_call>g</tool_call>", "||g({})"},
};

static struct answer_options options_of(const struct row *row)
{
    char family[32] = "", reasoning[32] = "";

    snprintf(family, sizeof family, "%.*s", row->family ? (int)strcspn(row->family, "!") : 0, row->family ? row->family : "");
    snprintf(reasoning, sizeof reasoning, "%.*s", row->reasoning ? (int)strcspn(row->reasoning, "+") : 0,
             row->reasoning ? row->reasoning : "");
    struct answer_options options = {
        .family = answer_find_family(family),
        .reasoning = answer_find_reasoning(reasoning),
        .reasoning_is_open = row->reasoning && strchr(row->reasoning, '+'),
        .one_call = row->family && strchr(row->family, '!'),
        .knows = knows,
        .type_of = type_of,
    };

    assert_true(!row->family == !options.family && !row->reasoning == !options.reasoning);
    if (options.family && answer_has_channels(options.family) && strchr(row->text, '\x01'))
        options.unit_markers = UINT32_MAX;
    return options;
}

static void test_families(void **state)
{
    int wrong = 0;

    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        const struct answer_options options = options_of(&rows[i]);
        for (uint64_t seed = 0; seed < 40; seed++) {
            char *got = run(&options, rows[i].text, seed);
            const bool differs = strcmp(got, rows[i].expected) != 0;
            if (differs)
                print_error("%s, seed %d: %s\n  expected %s\n  got      %s\n", rows[i].family ? rows[i].family : "-", (int)seed,
                            rows[i].text, rows[i].expected, got);
            free(got);
            wrong += differs;
            if (differs)
                break;
        }
    }
    assert_int_equal(wrong, 0);
}

// Arguments that are complete are JSON, whatever notation they came in.
static void test_arguments_are_json(void **state)
{
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        const char *at = strrchr(rows[i].expected, '|') + 1;
        if (strstr(rows[i].text, "cut") || strstr(rows[i].expected, "<|") || at[0] == 0 ||
            strstr(rows[i].text, "\"x") == rows[i].text + strlen(rows[i].text) - 2 || strstr(at, "({)"))
            continue;
        while (*at) { // f({...})
            const char *begin = strchr(at, '(') + 1, *end = begin;
            for (int depth = 0, string = 0; depth > 0 || string || *end != ')'; end++) {
                if (string && *end == '\\')
                    end++;
                else if (*end == '"')
                    string = !string;
                else if (!string)
                    depth += (*end == '{' || *end == '[') - (*end == '}' || *end == ']');
            }
            json_t *value = json_loadb(begin, (size_t)(end - begin), 0, NULL);
            if (!json_is_object(value))
                fail_msg("%s", begin);
            json_decref(value);
            at = end + 1;
        }
    }
}

// Asserts that a piece is whole characters: clients are sent each piece as a string of JSON.
static void take_whole(void *arg, const struct answer_event *event)
{
    size_t *pieces = arg, at = 0;

    while (at < event->count) {
        const unsigned char byte = (unsigned char)event->bytes[at];
        if ((byte & 0xC0) == 0x80)
            fail_msg("a piece begins within a character: %.*s", (int)event->count, event->bytes);
        at += byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    }
    assert_int_equal(at, event->count);
    ++*pieces;
}

// A text that comes a character at a time goes on in whole characters, in all notations.
static void test_pieces_are_whole_characters(void **state)
{
    static const char said[] = "né à Aix, a日本語b 🌞🌞 ünder öde Äcker: ça é là, 東京も晴れです。 ééé aéaéaéaéaéaéaéaéaéaé";
    static const struct {
        const char *family, *before, *after;
    } notations[] = {
        {"qwen3-coder", "<tool_call><function=f><parameter=s>", "</parameter></function></tool_call>"},
        {"qwen3-coder", "<tool_call><function=f><parameter=o>", "</parameter></function></tool_call>"},
        {"minimax", "<minimax:tool_call><invoke name=\"f\"><parameter name=\"s\">", "</parameter></invoke></minimax:tool_call>"},
        {"glm", "<tool_call>f<arg_key>s</arg_key><arg_value>", "</arg_value></tool_call>"},
        {"functiongemma", "<start_function_call>call:f{s:<escape>", "<escape>}<end_function_call>"},
        {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"", "\"}}</tool_call>"},
        {"deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"", "\"}<｜tool▁call▁end｜> <｜tool▂"},
    };

    for (size_t i = 0; i < ARRAY_COUNT(notations); i++) {
        size_t pieces = 0;
        const struct answer_options options = {
            .family = answer_find_family(notations[i].family), .take = take_whole, .type_of = type_of, .arg = &pieces};
        struct answer_parser *parser = answer_open(&options);
        struct text text = {0};
        assert_non_null(parser);
        text_string(&text, notations[i].before);
        for (int j = 0; j < 1000; j++) // longer than what is held of a value that is no string
            text_string(&text, said);
        text_string(&text, notations[i].after);
        for (size_t at = 0, end; at < text.bytes; at = end) {
            for (end = at + 1; end < text.bytes && ((unsigned char)text.data[end] & 0xC0) == 0x80;)
                end++;
            answer_push(parser, text.data + at, end - at);
        }
        answer_finish(parser);
        assert_int_equal(answer_calls(parser), 1);
        assert_true(pieces > 1000);
        answer_close(parser);
        text_free(&text);
    }
}

// Pieces of the notations.
static const char *const random_pieces[] = {"<tool_call>",
                                            "</tool_call>",
                                            "<think>",
                                            "</think>",
                                            "\n",
                                            " ",
                                            "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                                            "{\"name\"",
                                            ": \"g\"",
                                            "}",
                                            "[",
                                            "]",
                                            ",",
                                            ";",
                                            "text",
                                            "\"",
                                            "\\",
                                            "<function=f>",
                                            "<parameter=s>",
                                            "<parameter=n>",
                                            "</parameter>",
                                            "</function>",
                                            "[TOOL_CALLS]",
                                            "f{\"a\": [",
                                            "[ARGS]",
                                            "call:f{",
                                            "<start_function_call>",
                                            "<escape>",
                                            "a:1",
                                            "<end_function_call>",
                                            "<｜tool▁call▁begin｜>",
                                            "function<｜tool▁sep｜>f\n",
                                            "```json\n",
                                            "<｜tool▁call▁end｜>",
                                            "<|channel|>analysis",
                                            "<|message|>",
                                            "<|end|>",
                                            "commentary to=functions.f",
                                            U("<tool_call>"),
                                            U("<|message|>"),
                                            U("<｜tool▁call▁begin｜>"),
                                            U("<escape>"),
                                            U("[TOOL_CALLS]"),
                                            U("</think>"),
                                            "<arg_key>s</arg_key>",
                                            "<arg_value>",
                                            "</arg_value>",
                                            "functools"};
static const char *const random_families[] = {"hermes",      "llama3", "mistral", "deepseek", "granite", "harmony", "functiongemma",
                                              "qwen3-coder", "glm",    "phi4",    "json",     "kimi",    "gemma4"};

// Texts put together at random from what the notations are made of: however they are cut, the same comes out.
static void test_random_texts(void **state)
{
    uint64_t seed = sample_seed();

    for (int n = 0; n < 3000; n++) {
        struct text text = {0};
        struct answer_options options = {.family = answer_find_family(random_families[n % ARRAY_COUNT(random_families)]),
                                         .reasoning = n % 3 ? answer_find_reasoning("think") : NULL,
                                         .knows = knows,
                                         .type_of = type_of,
                                         .one_call = n % 7 == 0};
        for (uint64_t count = 1 + random_next(&seed) % 14; count > 0; count--)
            text_string(&text, random_pieces[random_next(&seed) % ARRAY_COUNT(random_pieces)]);
        text_append(&text, "", 1);
        char *whole = run(&options, text.data, 0);
        for (int cut = 0; cut < 4; cut++) {
            char *got = run(&options, text.data, cut == 0 ? 1 : random_next(&seed) | 2);
            if (strcmp(whole, got) != 0)
                fail_msg("%s: %s\n whole %s\n cut   %s", random_families[n % ARRAY_COUNT(random_families)], text.data, whole, got);
            free(got);
        }
        free(whole);
        text_free(&text);
    }
}

// Without a notation nothing changes; and a call's head that never ends is let go.
static void test_limits(void **state)
{
    struct answer_options options = {.family = answer_find_family("hermes"), .knows = knows};
    struct text text = {0};

    text_string(&text, "<tool_call>{\"other\": \"");
    while (text.bytes < ANSWER_MAX_HELD + 1000)
        text_string(&text, "0123456789");
    text_append(&text, "", 1);
    char *got = run(&options, text.data, 0);
    assert_int_equal(got[0], '|');
    assert_memory_equal(got + 1, text.data, text.bytes - 1);
    free(got);
    text_clear(&text);
    for (int i = 0; i < ANSWER_MAX_CALLS + 2; i++)
        text_string(&text, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
    text_append(&text, "", 1);
    got = run(&options, text.data, 0);
    assert_memory_equal(got, "|<tool_call>{\"name\": \"f\", \"arguments\": {}", 40); // what is too much is content
    free(got);
    text_clear(&text);
    while (text.bytes < 3 * ANSWER_MAX_GAP)
        text_string(&text, "\n");
    text_append(&text, "", 1);
    got = run(&options, text.data, 0);
    assert_int_equal(strlen(got), text.bytes - 1 + 2);
    free(got);
    text_free(&text);
}

static const struct {
    const char *source, *family, *reasoning;
} templates[] = {
    {"{{ '<|channel|>analysis<|message|>' }}", "harmony", NULL},
    {"For each function call return <tool_call> {%- if '</think>' in content %}", "hermes", "think"},
    {"<tool_call>\n<function=example>\n<parameter=x>", "qwen3-coder", NULL},
    {"[TOOL_CALLS]", "mistral", NULL},
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>```json </think>", "deepseek", "think"},
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜> </think>", "deepseek-v31", "think"},
    {"[TOOL_CALLS]f[ARGS]", "mistral-args", NULL},
    {"<|tool_call|> <think></think><response></response>", "granite", "granite"},
    {"<minimax:tool_call> {{ '<think>\\n' }} </think> {{ '\\n<response>' }} {{ m.content }} {{ '</response>' }}", "minimax",
     "think"},
    {"<|start_header_id|> {\"name\": function name, \"parameters\": dictionary of", "llama3", NULL},
    {"{% for tool in tools %}", "json", NULL},
    {"{{ messages }}", NULL, NULL},
};

static void test_detection(void **state)
{
    char names[512];

    for (size_t i = 0; i < ARRAY_COUNT(templates); i++) {
        const size_t length = strlen(templates[i].source);
        const struct answer_family *family = answer_detect_family(templates[i].source, length);
        const struct answer_reasoning *reasoning = answer_detect_reasoning(templates[i].source, length);
        assert_string_equal(family ? answer_family_name(family) : "-", templates[i].family ? templates[i].family : "-");
        assert_string_equal(reasoning ? answer_reasoning_name(reasoning) : "-",
                            templates[i].reasoning ? templates[i].reasoning : "-");
    }
    assert_null(answer_find_family("none"));
    assert_non_null(strstr(answer_family_names(names, sizeof names), "qwen3-coder"));
    assert_non_null(strstr(answer_reasoning_names(names, sizeof names), "seed"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),     cmocka_unit_test(test_arguments_are_json),
        cmocka_unit_test(test_random_texts), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_detection),    cmocka_unit_test(test_pieces_are_whole_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

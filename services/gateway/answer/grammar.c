// grammar.c: see grammar.h.
//
// A notation is a row of `forms`: what lies around all calls, around each, and between its name and its arguments. Two kinds of notations write
// arguments in words of their own: those with a tag for each argument, and functiongemma's; their values follow the schema as far as the
// notation can say it: a string is any text in which the closing mark does not occur, other values are JSON.
#include "services/gateway/answer/grammar.h"

#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/schema/schema.h"
#include "services/gateway/answer/internal.h"

enum { PROPERTIES_MAX = 64, TAGS_MAX = 1024, DEPTH_MAX = 8 };

enum arguments { ARGUMENTS_JSON, ARGUMENTS_TAGS, ARGUMENTS_PLAIN };

// Texts in < > or [ ] are markers: each is one control token where the vocabulary has it, and nothing but that.
struct form {
    const char *family;         // texts that are NULL are empty
    const char *first, *last;   // around all calls; several parts are cut at their markers
    const char *before, *after; // around a call
    const char *between;        // calls; NULL: there is only ever one
    const char *head, *middle, *tail;
    enum arguments arguments;
    const char *key_head, *key_middle,
        *key_tail; // ARGUMENTS_TAGS: around an argument's name and value; ARGUMENTS_PLAIN: key_head is the quote
};

#define JSON_CALL .head = "{\"name\": \"", .middle = "\", \"arguments\": ", .tail = "}"

static const struct form forms[] = {
    {.family = "hermes", .before = "<tool_call>\n", .after = "\n</tool_call>", .between = "\n", JSON_CALL},
    {.family = "granite", .first = "<|tool_call|>[", .last = "]", .between = ", ", JSON_CALL},
    {.family = "phi4", .first = "<|tool_call|>[", .last = "]<|/tool_call|>", .between = ", ", JSON_CALL},
    {.family = "nemotron", .first = "<TOOLCALL>[", .last = "]</TOOLCALL>", .between = ", ", JSON_CALL},
    {.family = "json", .between = "\n", JSON_CALL},
    {.family = "llama3", .head = "{\"name\": \"", .middle = "\", \"parameters\": ", .tail = "}"},
    {.family = "mistral", .first = "[TOOL_CALLS][", .last = "]", .between = ", ", JSON_CALL},
    {.family = "mistral-args", .before = "[TOOL_CALLS]", .between = "", .middle = "[ARGS]"},
    {.family = "deepseek",
     .first = "<｜tool▁calls▁begin｜>",
     .last = "<｜tool▁calls▁end｜>",
     .before = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .after = "\n```<｜tool▁call▁end｜>",
     .between = "\n",
     .middle = "\n```json\n"},
    {.family = "deepseek-v31",
     .first = "<｜tool▁calls▁begin｜>",
     .last = "<｜tool▁calls▁end｜>",
     .before = "<｜tool▁call▁begin｜>",
     .after = "<｜tool▁call▁end｜>",
     .between = "",
     .middle = "<｜tool▁sep｜>"},
    {.family = "kimi",
     .first = "<|tool_calls_section_begin|>",
     .last = "<|tool_calls_section_end|>",
     .before = "<|tool_call_begin|>",
     .after = "<|tool_call_end|>",
     .between = "",
     .head = "functions.",
     .middle = ":0<|tool_call_argument_begin|>"},
    {.family = "harmony", .before = "<|channel|>commentary to=functions.", .middle = " <|constrain|>json<|message|>"},
    {.family = "functiongemma",
     .before = "<start_function_call>call:",
     .after = "<end_function_call>",
     .between = "",
     .arguments = ARGUMENTS_PLAIN,
     .key_head = "<escape>"},
    {.family = "gemma4",
     .before = "<|tool_call>call:",
     .after = "<tool_call|>",
     .between = "",
     .arguments = ARGUMENTS_PLAIN,
     .key_head = "<|\"|>"},
    {.family = "qwen3-coder",
     .before = "<tool_call>\n",
     .after = "</function>\n</tool_call>",
     .between = "\n",
     .head = "<function=",
     .middle = ">\n",
     .arguments = ARGUMENTS_TAGS,
     .key_head = "<parameter=",
     .key_middle = ">\n",
     .key_tail = "</parameter>\n"},
    {.family = "minimax",
     .first = "<minimax:tool_call>\n",
     .last = "</minimax:tool_call>",
     .after = "</invoke>\n",
     .between = "",
     .head = "<invoke name=\"",
     .middle = "\">\n",
     .arguments = ARGUMENTS_TAGS,
     .key_head = "<parameter name=\"",
     .key_middle = "\">",
     .key_tail = "</parameter>\n"},
    {.family = "glm",
     .before = "<tool_call>",
     .after = "</tool_call>",
     .between = "\n",
     .middle = "\n",
     .arguments = ARGUMENTS_TAGS,
     .key_head = "<arg_key>",
     .key_middle = "</arg_key>\n<arg_value>",
     .key_tail = "</arg_value>\n"},
};

struct maker {
    struct grammar_builder *builder;
    const struct answer_grammar_options *options;
    const struct form *form;
    // the function that is being written
    bool is_strict;
    struct grammar_schema_parts *parts; // the parameters', where the notation has words of its own for arguments
};

static const struct form *find_form(const struct answer_family *family)
{
    for (size_t i = 0; family && i < ARRAY_COUNT(forms); i++)
        if (!strcmp(forms[i].family, answer_family_name(family)))
            return &forms[i];
    return NULL;
}

// --- texts with markers -------------------------------------------------------------------------------------------------
// Returns the length of the family's marker that text begins with, or 0. *index: which marker.
static size_t marker_at(const struct answer_family *family, const char *text, uint32_t *index)
{
    size_t longest = 0;

    for (uint32_t i = 0; family && answer_family_marker(family, i); i++) {
        const size_t length = strlen(answer_family_marker(family, i));
        if (length > longest && !strncmp(text, answer_family_marker(family, i), length)) {
            longest = length;
            *index = i;
        }
    }
    return longest;
}

// Returns a text in which the family's markers are written as the parser reads them. NULL: none.
static uint32_t marked(const struct maker *maker, const char *text)
{
    uint32_t node = grammar_empty(maker->builder);

    while (text && *text) {
        const struct answer_family *family = maker->options->family;
        uint32_t parts[2] = {node, 0}, marker = 0, next;
        size_t length = marker_at(family, text, &marker);
        if (length > 0 && (maker->options->unit_markers >> marker & 1)) {
            parts[1] = grammar_control(maker->builder, answer_family_marker(family, marker));
        } else {
            for (length = length ? length : 1; text[length] && !marker_at(family, text + length, &next); length++)
                ;
            parts[1] = grammar_bytes(maker->builder, text, length);
        }
        node = grammar_sequence(maker->builder, parts, 2);
        text += length;
    }
    return node;
}

static uint32_t joined(const struct maker *maker, uint32_t a, uint32_t b)
{
    return grammar_sequence(maker->builder, (const uint32_t[]){a, b}, 2);
}

static uint32_t optional(const struct maker *maker, uint32_t node) { return grammar_repeat(maker->builder, node, 0, 1); }

// Takes the family's markers out of a text, for notations that look for them everywhere. The spelling of a control token is no marker.
static uint32_t unmarked_text(const struct maker *maker, uint32_t text)
{
    const struct answer_family *family = maker->options->family;

    for (uint32_t i = 0; answer_family_marker(family, i); i++)
        if (!(maker->options->unit_markers >> i & 1))
            text = grammar_both(maker->builder, text, grammar_text_before(maker->builder, answer_family_marker(family, i)));
    return text;
}

// Returns the texts up to a mark, and the mark. A line feed at its end does not count: the parser looks for what comes before.
static uint32_t text_up_to(const struct maker *maker, const char *mark)
{
    char stop[ANSWER_MAX_MARKER_BYTES];
    uint32_t text;

    snprintf(stop, sizeof stop, "%.*s", (int)strcspn(mark, "\n"), mark);
    text = grammar_text_before(maker->builder, stop);
    if (!maker->form || maker->form->arguments == ARGUMENTS_PLAIN)
        text = unmarked_text(maker, text);
    return joined(maker, text, marked(maker, mark));
}

// --- arguments ----------------------------------------------------------------------------------------------------------
static struct grammar_schema_options options_of(const struct maker *maker)
{
    return (struct grammar_schema_options){.space = GRAMMAR_SPACE_ONE,
                                           .closed_by_default = maker->is_strict || !maker->options->open_objects,
                                           .is_strict = maker->is_strict,
                                           .in_any_order = maker->options->in_any_order};
}

// Returns the texts of a part of the function's parameters as JSON.
static uint32_t json_value(const struct maker *maker, const json_t *schema)
{
    return maker->parts ? grammar_schema_parts_add(maker->parts, schema) : grammar_nothing(maker->builder);
}

static bool has_type(const json_t *schema, const char *type)
{
    const json_t *given = json_object_get(schema, "type");

    return json_is_string(given) && !strcmp(json_string_value(given), type);
}

static bool lists(const json_t *list, const char *text)
{
    bool found = false;

    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = json_is_string(json_array_get(list, i)) && !strcmp(json_string_value(json_array_get(list, i)), text);
    return found;
}

bool answer_is_text(const json_t *schema) { return has_type(schema, "string") || lists(json_object_get(schema, "type"), "string"); }

// Returns whether a property must be there.
static bool is_required(const json_t *schema, const char *name) { return lists(json_object_get(schema, "required"), name); }

// Returns the strings of an enum, or any text, up to a mark.
static uint32_t string_up_to(const struct maker *maker, const json_t *schema, const char *mark)
{
    const json_t *values = json_object_get(schema, "enum");
    uint32_t node = grammar_nothing(maker->builder);

    if (!json_is_array(values))
        return text_up_to(maker, mark);
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        if (json_is_string(value))
            node = grammar_either(
                maker->builder,
                (const uint32_t[]){node, grammar_bytes(maker->builder, json_string_value(value), json_string_length(value))}, 2);
    }
    return joined(maker, node, marked(maker, mark));
}

// Writes a tag for each property, in the schema's order.
static uint32_t tagged_arguments(const struct maker *maker, const json_t *schema)
{
    const struct form *form = maker->form;
    json_t *properties = json_object_get(schema, "properties");
    uint32_t node = grammar_empty(maker->builder);
    const uint32_t end = joined(maker, optional(maker, grammar_text(maker->builder, "\n")), marked(maker, form->key_tail));

    if (json_object_size(properties) > TAGS_MAX || json_array_size(json_object_get(schema, "required")) > TAGS_MAX)
        return grammar_builder_fail(maker->builder, STATUS_UNIMPLEMENTED, "properties: more than %d in this notation", TAGS_MAX);
    for (void *at = json_object_iter(properties); at; at = json_object_iter_next(properties, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        uint32_t tag = joined(maker, marked(maker, form->key_head), grammar_text(maker->builder, name));
        tag = joined(maker, tag, marked(maker, form->key_middle));
        if (answer_is_text(value))
            tag = joined(maker, tag, string_up_to(maker, value, form->key_tail));
        else
            tag = joined(maker, tag, joined(maker, json_value(maker, value), end));
        node = joined(maker, node, is_required(schema, name) ? tag : optional(maker, tag));
        if (grammar_builder_failed(maker->builder))
            break;
    }
    return node;
}

static uint32_t plain_value(const struct maker *maker, const json_t *schema, int depth);

// {a:1,b:2}: `rest` is what follows property i, with or without a comma before it.
static uint32_t plain_object(const struct maker *maker, const json_t *schema, int depth)
{
    struct grammar_builder *builder = maker->builder;
    json_t *properties = json_object_get(schema, "properties");
    uint32_t first = grammar_empty(builder), later = first; // later: behind the properties so far, from the last to the first
    const char *names[PROPERTIES_MAX];
    size_t count = 0;

    for (void *at = json_object_iter(properties); at && count < ARRAY_COUNT(names); at = json_object_iter_next(properties, at))
        names[count++] = json_object_iter_key(at);
    if (count < json_object_size(properties))
        return grammar_builder_fail(builder, STATUS_UNIMPLEMENTED, "properties: more than %zu in this notation",
                                    ARRAY_COUNT(names));
    for (size_t i = count; i-- > 0 && !grammar_builder_failed(builder);) {
        uint32_t member = joined(maker, grammar_text(builder, names[i]), grammar_text(builder, ":"));
        member = joined(maker, member, plain_value(maker, json_object_get(properties, names[i]), depth + 1));
        const uint32_t with_first = joined(maker, member, later);
        const uint32_t with_later = joined(maker, grammar_text(builder, ","), with_first);
        const bool required = is_required(schema, names[i]);
        first = required ? with_first : grammar_either(builder, (const uint32_t[]){with_first, first}, 2);
        later = required ? with_later : grammar_either(builder, (const uint32_t[]){with_later, later}, 2);
    }
    return joined(maker, grammar_text(builder, "{"), joined(maker, first, grammar_text(builder, "}")));
}

static uint32_t plain_list(const struct maker *maker, const json_t *schema, int depth)
{
    struct grammar_builder *builder = maker->builder;
    const uint32_t item = plain_value(maker, json_object_get(schema, "items"), depth + 1);
    const uint32_t more = grammar_repeat(builder, joined(maker, grammar_text(builder, ","), item), 0, GRAMMAR_NO_LIMIT);

    return joined(maker, grammar_text(builder, "["),
                  joined(maker, optional(maker, joined(maker, item, more)), grammar_text(builder, "]")));
}

static uint32_t plain_value(const struct maker *maker, const json_t *schema, int depth)
{
    if (maker->parts && schema)
        schema = grammar_schema_parts_referred(maker->parts, schema); // keywords beside the reference are left to the model
    if (depth > DEPTH_MAX)
        return grammar_builder_fail(maker->builder, STATUS_UNIMPLEMENTED, "values nest deeper than %d in this notation", DEPTH_MAX);
    if (answer_is_text(schema))
        return joined(maker, marked(maker, maker->form->key_head), string_up_to(maker, schema, maker->form->key_head));
    if (has_type(schema, "object") && json_object_get(schema, "properties"))
        return plain_object(maker, schema, depth);
    if (has_type(schema, "array") && json_object_get(schema, "items"))
        return plain_list(maker, schema, depth);
    if (has_type(schema, "number") || has_type(schema, "integer") || has_type(schema, "boolean") || has_type(schema, "null"))
        return json_value(maker, schema);
    return joined(maker, marked(maker, maker->form->key_head), text_up_to(maker, maker->form->key_head));
}

// Arguments are an object, even if their schema forgets to say so.
static uint32_t json_arguments(const struct maker *maker, const json_t *schema)
{
    const struct grammar_schema_options options = options_of(maker);
    json_t *copy;
    uint32_t node;

    if (json_object_get(schema, "type"))
        return grammar_add_schema(maker->builder, schema, &options);
    copy = json_copy((json_t *)(uintptr_t)schema);
    if (!copy || json_object_set_new(copy, "type", json_string("object")) != 0) {
        json_decref(copy);
        return grammar_builder_fail(maker->builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    node = grammar_add_schema(maker->builder, copy, &options);
    json_decref(copy);
    return node;
}

static uint32_t arguments_of(struct maker *maker, const json_t *schema)
{
    const struct grammar_schema_options options = options_of(maker);
    const bool has_any = json_object_size(schema) > 0;
    uint32_t node;

    if (maker->form->arguments == ARGUMENTS_JSON)
        return has_any ? json_arguments(maker, schema) : grammar_add_json_object(maker->builder, &options);
    maker->parts = has_any ? grammar_schema_parts_open(maker->builder, schema, &options) : NULL;
    node = maker->form->arguments == ARGUMENTS_TAGS ? tagged_arguments(maker, schema) : plain_object(maker, schema, 0);
    grammar_schema_parts_close(maker->parts);
    maker->parts = NULL;
    return node;
}

// --- calls --------------------------------------------------------------------------------------------------------------
static uint32_t call_of(struct maker *maker, const json_t *function)
{
    const struct form *form = maker->form;
    const char *name = json_string_value(json_object_get(function, "name"));
    uint32_t parts[6];

    maker->is_strict = json_is_true(json_object_get(function, "strict"));
    parts[0] = marked(maker, form->before);
    parts[1] = marked(maker, form->head);
    parts[2] = grammar_text(maker->builder, name);
    parts[3] = marked(maker, form->middle);
    parts[4] = arguments_of(maker, json_object_get(function, "parameters"));
    parts[5] = joined(maker, marked(maker, form->tail), marked(maker, form->after));
    return grammar_sequence(maker->builder, parts, ARRAY_COUNT(parts));
}

static uint32_t add_calls(struct maker *maker)
{
    const struct answer_grammar_options *options = maker->options;
    struct grammar_builder *builder = maker->builder;
    uint32_t call = grammar_nothing(builder), rule;
    size_t count = 0;

    for (size_t i = 0; i < json_array_size(options->tools) && !grammar_builder_failed(builder); i++) {
        const json_t *function = json_object_get(json_array_get(options->tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name || (options->only && strcmp(options->only, name) != 0))
            continue;
        call = grammar_either(builder, (const uint32_t[]){call, call_of(maker, function)}, 2);
        grammar_builder_blame(builder, "function '%s'", name);
        count++;
    }
    if (count == 0)
        return grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT, "there is no function that may be called");
    if (options->one_call || !maker->form->between)
        return call;
    rule = grammar_rule(builder, "call"); // used twice, and long
    grammar_rule_set(builder, rule, call);
    const uint32_t more = joined(maker, marked(maker, maker->form->between), grammar_call(builder, rule));
    return joined(maker, grammar_call(builder, rule), grammar_repeat(builder, more, 0, GRAMMAR_NO_LIMIT));
}

uint32_t answer_add_calls(struct grammar_builder *builder, const struct answer_grammar_options *options)
{
    struct maker maker = {.builder = builder, .options = options, .form = find_form(options->family)};

    if (!maker.form)
        return grammar_builder_fail(builder, STATUS_UNIMPLEMENTED, "answers in this notation cannot be held to calls");
    const uint32_t parts[] = {marked(&maker, maker.form->first), add_calls(&maker), marked(&maker, maker.form->last)};
    return grammar_sequence(builder, parts, ARRAY_COUNT(parts));
}

uint32_t answer_add_content(struct grammar_builder *builder, const struct answer_grammar_options *options, uint32_t content)
{
    const struct maker maker = {.builder = builder, .options = options};

    return answer_has_channels(options->family) ? joined(&maker, marked(&maker, "<|channel|>final<|message|>"), content) : content;
}

uint32_t answer_add_reasoning(struct grammar_builder *builder, const struct answer_grammar_options *options)
{
    const struct answer_reasoning *reasoning = options->reasoning;
    const struct maker maker = {.builder = builder, .options = options};

    if (answer_has_channels(options->family)) // messages with channels: what is thought is one
        return optional(&maker, joined(&maker, marked(&maker, "<|channel|>analysis<|message|>"),
                                       joined(&maker, text_up_to(&maker, "<|end|>"), marked(&maker, "<|start|>assistant"))));
    if (!reasoning)
        return grammar_empty(builder);
    uint32_t thought = joined(&maker, grammar_text_before(builder, reasoning->close), grammar_special(builder, reasoning->close));
    thought = joined(&maker, thought, grammar_repeat(builder, grammar_text(builder, "\n"), 0, 2));
    if (options->reasoning_is_open)
        return thought;
    return optional(&maker, joined(&maker, grammar_special(builder, reasoning->open), thought));
}

// family.c: the tables of notations, and how a chat template's text shows which one a model was taught.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/answer/internal.h"

// clang-format off
#define OPEN(text) {text, MARKER_OPEN}
#define CLOSE(text) {text, MARKER_CLOSE}
#define DROP(text) {text, MARKER_DROP}
#define PART(text) {text, MARKER_PART}
// clang-format on

static const struct answer_family families[] = {
    {.name = "harmony",
     .body = &answer_harmony,
     .markers = {PART("<|start|>"), PART("<|channel|>"), PART("<|message|>"), PART("<|constrain|>"), PART("<|end|>"),
                 PART("<|call|>"), PART("<|return|>")},
     .channels = true},
    {.name = "deepseek",
     .body = &answer_deepseek,
     .markers = {DROP("<｜tool▁calls▁begin｜>"), OPEN("<｜tool▁call▁begin｜>"), PART("<｜tool▁sep｜>"),
                 CLOSE("<｜tool▁call▁end｜>"), DROP("<｜tool▁calls▁end｜>")}},
    {.name = "deepseek-v31",
     .body = &answer_deepseek,
     .markers = {DROP("<｜tool▁calls▁begin｜>"), OPEN("<｜tool▁call▁begin｜>"), PART("<｜tool▁sep｜>"),
                 CLOSE("<｜tool▁call▁end｜>"), DROP("<｜tool▁calls▁end｜>")}},
    {.name = "kimi",
     .body = &answer_kimi,
     .markers = {DROP("<|tool_calls_section_begin|>"), OPEN("<|tool_call_begin|>"), PART("<|tool_call_argument_begin|>"),
                 CLOSE("<|tool_call_end|>"), DROP("<|tool_calls_section_end|>")}},
    {.name = "mistral",
     .body = &answer_mistral,
     .markers = {OPEN("[TOOL_CALLS]"), PART("[ARGS]"), PART("[CALL_ID]")},
     .short_ids = true},
    {.name = "mistral-args",
     .body = &answer_mistral,
     .markers = {OPEN("[TOOL_CALLS]"), PART("[ARGS]"), PART("[CALL_ID]")},
     .short_ids = true},
    {.name = "functiongemma",
     .body = &answer_gemma,
     .markers = {OPEN("<start_function_call>"), CLOSE("<end_function_call>"), PART("<escape>")}},
    {.name = "gemma4", .body = &answer_gemma, .markers = {OPEN("<|tool_call>"), CLOSE("<tool_call|>"), PART("<|\"|>")}},
    {.name = "qwen3-coder", .body = &answer_coder, .markers = {OPEN("<tool_call>"), CLOSE("</tool_call>"), OPEN("<function=")}},
    {.name = "minimax", .body = &answer_coder, .markers = {OPEN("<minimax:tool_call>"), CLOSE("</minimax:tool_call>")}},
    {.name = "glm", .body = &answer_glm, .markers = {OPEN("<tool_call>"), CLOSE("</tool_call>")}},
    {.name = "phi4", .body = &answer_json, .markers = {OPEN("functools"), OPEN("<|tool_call|>"), CLOSE("<|/tool_call|>")}},
    {.name = "granite", .body = &answer_json, .markers = {OPEN("<|tool_call|>"), OPEN("<tool_call>"), CLOSE("</tool_call>")}},
    {.name = "hermes", .body = &answer_json, .markers = {OPEN("<tool_call>"), CLOSE("</tool_call>")}},
    {.name = "nemotron", .body = &answer_json, .markers = {OPEN("<TOOLCALL>"), CLOSE("</TOOLCALL>")}},
    {.name = "llama3", .body = &answer_json, .markers = {OPEN("<|python_tag|>")}, .unmarked = true},
    {.name = "json", .body = &answer_json, .unmarked = true},
};

static const struct answer_reasoning reasonings[] = {
    // Granite's template says "between <response></response>"; others name the results of tools so (MiniMax M2).
    {.name = "granite",
     .open = "<think>",
     .close = "</think>",
     .wrap_open = "<response>",
     .wrap_close = "</response>",
     .sign = "<response></response>"},
    {.name = "think", .open = "<think>", .close = "</think>"},
    {.name = "mistral", .open = "[THINK]", .close = "[/THINK]"},
    {.name = "seed", .open = "<seed:think>", .close = "</seed:think>"},
    {.name = "gemma4", .open = "<|channel>thought", .close = "<channel|>"},
    {.name = "cohere", .open = "<|START_THINKING|>", .close = "<|END_THINKING|>"},
};

// The signs of notations in templates; the first row that fits counts. "json" is what is left for a template that knows tools.
static const struct {
    const char *text, *also; // also: NULL, or a second text that must be there
    const char *family;
} signs[] = {
    {"<|channel|>", "<|message|>", "harmony"},
    {"<｜tool▁call▁begin｜>", "```json", "deepseek"}, // both rows are read alike
    {"<｜tool▁call▁begin｜>", NULL, "deepseek-v31"},
    {"<|tool_call_begin|>", NULL, "kimi"},
    {"[TOOL_CALLS]", "[ARGS]", "mistral-args"}, // likewise
    {"[TOOL_CALLS]", NULL, "mistral"},
    {"<start_function_call>", NULL, "functiongemma"},
    {"<|tool_call>", NULL, "gemma4"},
    {"<minimax:tool_call>", NULL, "minimax"},
    {"<arg_key>", NULL, "glm"},
    {"<function=", "<parameter=", "qwen3-coder"},
    {"functools", NULL, "phi4"},
    {"<|tool|>", NULL, "phi4"},
    {"<|tool_call|>", NULL, "granite"},
    {"<tool_call>", NULL, "hermes"},
    {"<TOOLCALL>", NULL, "nemotron"},
    {"<|python_tag|>", NULL, "llama3"},
    {"<|start_header_id|>", "\"parameters\": dictionary", "llama3"},
    {"tools", NULL, "json"},
};

static bool contains(const char *source, size_t length, const char *text)
{
    return length > 0 && memmem(source, length, text, strlen(text));
}

const struct answer_family *answer_find_family(const char *name)
{
    for (size_t i = 0; i < ARRAY_COUNT(families); i++)
        if (!strcmp(families[i].name, name))
            return &families[i];
    return NULL;
}

const struct answer_reasoning *answer_find_reasoning(const char *name)
{
    for (size_t i = 0; i < ARRAY_COUNT(reasonings); i++)
        if (!strcmp(reasonings[i].name, name))
            return &reasonings[i];
    return NULL;
}

const struct answer_family *answer_detect_family(const char *source, size_t length)
{
    for (size_t i = 0; i < ARRAY_COUNT(signs); i++)
        if (contains(source, length, signs[i].text) && (!signs[i].also || contains(source, length, signs[i].also)))
            return answer_find_family(signs[i].family);
    return NULL;
}

const struct answer_reasoning *answer_detect_reasoning(const char *source, size_t length)
{
    for (size_t i = 0; i < ARRAY_COUNT(reasonings); i++)
        if (contains(source, length, reasonings[i].close) && (!reasonings[i].sign || contains(source, length, reasonings[i].sign)))
            return &reasonings[i];
    return NULL;
}

const char *answer_family_name(const struct answer_family *family) { return family->name; }
const char *answer_reasoning_name(const struct answer_reasoning *reasoning) { return reasoning->name; }
const char *answer_reasoning_open(const struct answer_reasoning *reasoning) { return reasoning->open; }
bool answer_has_short_ids(const struct answer_family *family) { return family && family->short_ids; }
bool answer_has_channels(const struct answer_family *family) { return family && family->channels; }

const char *answer_family_marker(const struct answer_family *family, uint32_t index)
{
    return index < ANSWER_MAX_MARKERS ? family->markers[index].text : NULL;
}

const char *answer_family_names(char *out, size_t out_bytes)
{
    size_t length = 0;

    for (size_t i = 0; i < ARRAY_COUNT(families) && length < out_bytes; i++)
        length += (size_t)snprintf(out + length, out_bytes - length, "%s%s", i ? ", " : "", families[i].name);
    return out;
}

const char *answer_reasoning_names(char *out, size_t out_bytes)
{
    size_t length = 0;

    for (size_t i = 0; i < ARRAY_COUNT(reasonings) && length < out_bytes; i++)
        length += (size_t)snprintf(out + length, out_bytes - length, "%s%s", i ? ", " : "", reasonings[i].name);
    return out;
}

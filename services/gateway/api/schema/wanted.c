// wanted.c: see wanted.h.
#include "services/gateway/api/schema/wanted.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/schema/schema.h"
#include "common/grammar/build.h"
#include "common/json/json_text.h"

enum { CHOICES_MAX = 1 << 14 };

void wanted_key(const struct wanted *wanted, struct text *key)
{
    const struct api_form *form = wanted->form;
    const struct answer_grammar_options *answer = &wanted->answer;

    text_format(key, "%s %x %s %d;", answer->family ? answer_family_name(answer->family) : "-", (unsigned)answer->unit_markers,
                answer->reasoning ? answer_reasoning_name(answer->reasoning) : "-", answer->reasoning_is_open);
    text_format(key, "%d %d %d %d %d:", (int)form->kind, (int)form->space, form->is_strict, form->open_objects, form->in_any_order);
    if (form->json)
        json_text_append(key, form->json, false);
    if (form->text)
        text_append(key, form->text, form->bytes);
    if (!answer->tools)
        return;
    text_append(key, "", 1); // no text has a zero
    text_format(key, "%s %d %d %d:", answer->only ? answer->only : "", answer->one_call, answer->open_objects,
                answer->in_any_order);
    json_text_append(key, answer->tools, false);
}

static uint32_t add_choices(struct grammar_builder *builder, const json_t *list)
{
    const size_t count = json_array_size(list);
    uint32_t *nodes, node;

    if (count > CHOICES_MAX)
        return grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT, "%zu choices, at most %d are allowed", count, CHOICES_MAX);
    nodes = calloc(MAX(count, (size_t)1), sizeof *nodes);
    if (!nodes)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < count; i++)
        nodes[i] = grammar_text(builder, json_string_value(json_array_get(list, i)));
    node = grammar_either(builder, nodes, (uint32_t)count);
    free(nodes);
    return node;
}

static uint32_t add_form(struct grammar_builder *builder, const struct api_form *form)
{
    const struct grammar_schema_options options = {
        .space = form->space == API_SPACE_NONE    ? GRAMMAR_SPACE_NONE
                 : form->space == API_SPACE_LINES ? GRAMMAR_SPACE_LINES
                                                  : GRAMMAR_SPACE_ONE,
        .closed_by_default = form->is_strict || !form->open_objects,
        .is_strict = form->is_strict,
        .in_any_order = form->in_any_order,
    };

    switch (form->kind) {
    case API_FORM_SCHEMA: return grammar_add_schema(builder, form->json, &options);
    case API_FORM_OBJECT: return grammar_add_json_object(builder, &options);
    case API_FORM_REGEX: return grammar_add_regex(builder, form->text, form->bytes, true);
    case API_FORM_CHOICE: return add_choices(builder, form->json);
    case API_FORM_GBNF: return grammar_add_gbnf(builder, form->text, form->bytes);
    default: return grammar_nothing(builder);
    }
}

enum status wanted_compile(const struct wanted *wanted, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    enum status status;

    *out = NULL;
    if (!builder)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    const uint32_t thoughts = answer_add_reasoning(builder, &wanted->answer);
    uint32_t said = grammar_nothing(builder);
    if (wanted->form->kind != API_FORM_NONE)
        said = answer_add_content(builder, &wanted->answer, add_form(builder, wanted->form));
    if (wanted->answer.tools)
        said = grammar_either(builder, (const uint32_t[]){said, answer_add_calls(builder, &wanted->answer)}, 2);
    status = grammar_compile(builder, grammar_sequence(builder, (const uint32_t[]){thoughts, said}, 2), out, error);
    grammar_builder_close(builder);
    return status;
}

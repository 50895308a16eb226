// form.c: fields that say which form an answer has: response_format (OpenAI's), structured_outputs and guided_* (vLLM's), grammar and
// json_schema (llama.cpp's). A request has one of them at most. What they say is compiled later (grammars.c).
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/schema_internal.h"

enum { FORM_TEXT_BYTES_MAX = 256 << 10 };

static bool set_form(struct schema_run *run, const char *name, enum api_form_kind kind)
{
    struct api_form *form = &run->out->form;

    if (form->kind != API_FORM_NONE)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' and '%s' both say which form the answer has: at most one may",
                        name, form->param);
    form->kind = kind;
    snprintf(form->param, sizeof form->param, "%s", name);
    return true;
}

// Text that is empty says nothing.
static bool set_text(struct schema_run *run, const char *name, const json_t *value, enum api_form_kind kind)
{
    struct api_form *form = &run->out->form;
    const char *text;

    if (!schema_read_string(run, name, value, FORM_TEXT_BYTES_MAX, &text))
        return false;
    if (text[0] == '\0')
        return true;
    if (!set_form(run, name, kind))
        return false;
    form->text = text;
    form->bytes = json_string_length(value);
    return true;
}

// A schema, or its text, as vLLM takes it.
bool schema_read_form_schema(struct schema_run *run, const char *name, const json_t *value)
{
    json_error_t why;

    if (json_is_string(value) && json_string_length(value) == 0)
        return true;
    if (!set_form(run, name, API_FORM_SCHEMA)) // before a second text is parsed: there is one `owned`
        return false;
    if (json_is_string(value)) {
        if (json_string_length(value) > FORM_TEXT_BYTES_MAX)
            return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu bytes, the most is %d", name,
                            json_string_length(value), FORM_TEXT_BYTES_MAX);
        json_t *parsed =
            json_text_read(json_string_value(value), json_string_length(value), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
        if (!parsed)
            return api_fail(run->error, 400, "invalid_value", name, "'%s' is not valid JSON: %s", name, why.text);
        run->out->form.owned = parsed;
        value = parsed;
    }
    if (!json_text_is_object(value) && !json_is_boolean(value))
        return schema_wrong_type(run->error, name, "a JSON Schema", value);
    run->out->form.json = value;
    return true;
}

bool schema_read_form_choice(struct schema_run *run, const char *name, const json_t *value)
{
    size_t bytes = 0;

    if (!json_is_array(value))
        return schema_wrong_type(run->error, name, "an array of strings", value);
    if (json_array_size(value) == 0)
        return true;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item))
            return schema_wrong_type(run->error, name, "an array of strings", item);
        if (schema_has_zero(item))
            return api_fail(run->error, 400, "invalid_value", name, "'%s' has a zero byte", name);
        bytes += json_string_length(item);
    }
    if (bytes > FORM_TEXT_BYTES_MAX)
        return api_fail(run->error, 400, "invalid_value", name, "'%s' has %zu bytes, the most is %d", name, bytes,
                        FORM_TEXT_BYTES_MAX);
    if (!set_form(run, name, API_FORM_CHOICE))
        return false;
    run->out->form.json = value;
    return true;
}

// White space between JSON's tokens, as a pattern; those that vLLM's users know.
bool schema_read_form_space(struct schema_run *run, const char *name, const json_t *value)
{
    static const struct {
        const char *pattern;
        enum api_space space;
    } known[] = {{"", API_SPACE_NONE},
                 {"[ ]?", API_SPACE_ONE},
                 {" ?", API_SPACE_ONE},
                 {"[\\n\\t ]*", API_SPACE_LINES},
                 {"[ \\n\\t]*", API_SPACE_LINES},
                 {"[\n\t ]*", API_SPACE_LINES},
                 {"[ \n\t]*", API_SPACE_LINES},
                 {"\\s*", API_SPACE_LINES}};

    if (!json_is_string(value))
        return schema_wrong_type(run->error, name, "a string", value);
    for (size_t i = 0; i < ARRAY_COUNT(known); i++)
        if (schema_is_string(value, known[i].pattern)) {
            run->out->form.space = known[i].space;
            return true;
        }
    return api_fail(run->error, 400, "unsupported_parameter", name,
                    "'%s' of this value is not supported: use \"\", \"[ ]?\" or \"[\\\\n\\\\t ]*\"", name);
}

// response_format.json_schema: {"name": ..., "schema": ..., "strict": ...}
static bool read_named_schema(struct schema_run *run, const json_t *value)
{
    static const char where[] = "response_format.json_schema";
    const json_t *schema = json_object_get(value, "schema"), *strict = json_object_get(value, "strict");
    const json_t *name = json_object_get(value, "name");

    if (!value)
        return api_missing(run->error, where);
    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, where, "an object", value);
    if (name && !json_is_string(name) && !json_is_null(name))
        return schema_wrong_type(run->error, "response_format.json_schema.name", "a string", name);
    if (strict && !json_is_null(strict) &&
        !schema_read_bool(run, "response_format.json_schema.strict", strict, &run->out->form.is_strict))
        return false;
    if (!schema || json_is_null(schema))
        return api_missing(run->error, "response_format.json_schema.schema");
    return schema_read_form_schema(run, "response_format.json_schema.schema", schema);
}

bool schema_read_response_format(struct schema_run *run, const char *name, const json_t *value)
{
    const json_t *type = json_object_get(value, "type");

    if (!json_text_is_object(value) || !json_is_string(type))
        return schema_wrong_type(run->error, name, "an object with a 'type'", value);
    if (schema_is_string(type, "text"))
        return true;
    if (schema_is_string(type, "json_schema"))
        return read_named_schema(run, json_object_get(value, "json_schema"));
    if (!schema_is_string(type, "json_object"))
        return api_fail(run->error, 400, "unsupported_parameter", "response_format.type",
                        "'response_format.type' must be 'text', 'json_object' or 'json_schema'");
    const json_t *schema = json_object_get(value, "schema"); // as llama.cpp and Together take it
    if (schema && !json_is_null(schema) && json_text_is_object(schema) && json_object_size(schema))
        return schema_read_form_schema(run, "response_format.schema", schema);
    return set_form(run, name, API_FORM_OBJECT);
}

bool schema_read_form_object(struct schema_run *run, const char *name, const json_t *value)
{
    bool wanted = false;
    return schema_read_bool(run, name, value, &wanted) && (!wanted || set_form(run, name, API_FORM_OBJECT));
}

// One member of structured_outputs.
static bool read_member(struct schema_run *run, const char *key, const char *where, const json_t *value)
{
    bool none = false;

    if (!strcmp(key, "json"))
        return schema_read_form_schema(run, where, value);
    if (!strcmp(key, "regex"))
        return set_text(run, where, value, API_FORM_REGEX);
    if (!strcmp(key, "choice"))
        return schema_read_form_choice(run, where, value);
    if (!strcmp(key, "grammar"))
        return set_text(run, where, value, API_FORM_GBNF);
    if (!strcmp(key, "json_object"))
        return schema_read_form_object(run, where, value);
    if (!strcmp(key, "whitespace_pattern"))
        return schema_read_form_space(run, where, value);
    if (!strcmp(key, "disable_any_whitespace")) {
        if (!schema_read_bool(run, where, value, &none))
            return false;
        run->out->form.space = none ? API_SPACE_NONE : run->out->form.space;
        return true;
    }
    if (!strcmp(key, "disable_additional_properties")) {
        run->out->form.open_objects = json_is_false(value);
        return schema_read_bool(run, where, value, &none);
    }
    if (!strcmp(key, "keys_in_any_order"))
        return schema_read_bool(run, where, value, &run->out->form.in_any_order);
    if (!strcmp(key, "disable_fallback") || !strcmp(key, "backend"))
        return true; // of vLLM's own backends
    return api_fail(run->error, 400, "unsupported_parameter", where, "'%s' is not supported", where);
}

bool schema_read_structured_outputs(struct schema_run *run, const char *name, const json_t *value)
{
    const char *key;
    json_t *member;
    char where[96];

    if (!json_text_is_object(value))
        return schema_wrong_type(run->error, name, "an object", value);
    json_object_foreach ((json_t *)(uintptr_t)value, key, member) {
        snprintf(where, sizeof where, "%s.%.40s", name, key);
        if (!json_is_null(member) && !read_member(run, key, where, member))
            return false;
    }
    return true;
}

bool schema_read_form_regex(struct schema_run *run, const char *name, const json_t *value)
{
    return set_text(run, name, value, API_FORM_REGEX);
}

bool schema_read_form_grammar(struct schema_run *run, const char *name, const json_t *value)
{
    return set_text(run, name, value, API_FORM_GBNF);
}

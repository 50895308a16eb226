// chat_template.c: the interface of this directory: compiles a template, sets the variables of a run and returns its result.
//
// Variables are messages, tools and documents (`none` where they are not given, as in the reference renderer), add_generation_prompt, bos_token,
// eos_token, and what the client adds (chat_template_kwargs). A template sees one message as {'role': 'user', 'content': 'hi'}.
//
// Every string that a client sent is content, so that nothing in it can become a special token: not in what a user says, not in the
// description of a tool or the name of an argument. Only a role that the template's author knows is not content.
#include "services/gateway/jinja/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/json/json_text.h"
#include "services/gateway/jinja/run.h"

static const struct jinja_builtins builtins = {.filters = jinja_filters,
                                               .list_filters = jinja_list_filters,
                                               .tests = jinja_tests,
                                               .methods = jinja_methods,
                                               .functions = jinja_functions};

struct chat_template {
    struct jinja_template compiled;
};

static char *copy_text(struct arena *arena, const char *text)
{
    char *copy = jinja_alloc(arena, strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

enum status chat_template_open(const char *source, size_t length, const char *bos_token, const char *eos_token,
                               struct chat_template **out, struct error *error)
{
    struct error ignored;
    struct jinja_token *tokens;
    error = error ? error : &ignored;
    *out = NULL;
    if (length > CHAT_TEMPLATE_MAX_BYTES)
        return error_set(error, STATUS_INVALID_ARGUMENT, "chat template line 1: %zu bytes, at most %u are supported", length,
                         CHAT_TEMPLATE_MAX_BYTES);
    struct chat_template *opened = calloc(1, sizeof *opened);
    if (!opened)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the chat template");
    struct jinja_template *compiled = &opened->compiled;
    compiled->arena.cap = JINJA_ARENA_BYTES;
    compiled->builtins = &builtins;
    compiled->bos_token = bos_token ? copy_text(&compiled->arena, bos_token) : NULL;
    compiled->eos_token = eos_token ? copy_text(&compiled->arena, eos_token) : NULL;
    if ((bos_token && !compiled->bos_token) || (eos_token && !compiled->eos_token)) {
        (void)error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the chat template");
    } else if (jinja_lex(&compiled->arena, source, length, &tokens, error) && jinja_parse(compiled, tokens, error)) {
        *out = opened;
        return STATUS_OK;
    }
    if (compiled->arena.out_of_memory)
        (void)error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the chat template");
    chat_template_close(opened);
    return error->status;
}

void chat_template_close(struct chat_template *chat_template)
{
    if (!chat_template)
        return;
    arena_free(&chat_template->compiled.arena);
    free(chat_template);
}

// --- JSON as values -----------------------------------------------------------------------------------------------------

// Authors of templates expect the known roles; any other role is the client's text.
static bool is_known_role(const char *role)
{
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < ARRAY_COUNT(known); i++)
        if (!strcmp(role, known[i]))
            return true;
    return false;
}

static bool value_of_json(struct jinja_run *run, const json_t *json, int depth, bool is_message, struct jinja_value *out);

static bool value_of_array(struct jinja_run *run, const json_t *json, int depth, bool are_messages, struct jinja_value *out)
{
    const size_t count = json_array_size(json);
    struct jinja_list *list = jinja_work(run, count) ? jinja_list_new(run, count) : NULL;
    if (!list)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!value_of_json(run, json_array_get(json, i), depth + 1, are_messages, &list->items[i]))
            return false;
    *out = jinja_listed(KIND_LIST, list);
    return true;
}

// JSON objects have no name twice, so nothing has to be looked up.
static bool value_of_object(struct jinja_run *run, const json_t *json, int depth, bool is_message, struct jinja_value *out)
{
    const size_t count = json_object_size(json);
    struct jinja_dict *dict = jinja_work(run, count) ? jinja_dict_new(run, count) : NULL;
    json_t *owner = (json_t *)(uintptr_t)json;
    if (!dict)
        return false;
    for (void *at = json_object_iter(owner); at; at = json_object_iter_next(owner, at), dict->count++) {
        const char *key = json_object_iter_key(at);
        const json_t *item = json_object_iter_value(at);
        const bool own = is_message && !strcmp(key, "role") && json_is_string(item) && is_known_role(json_string_value(item));
        if (!jinja_string_value(run, key, strlen(key), true, &dict->keys[dict->count]))
            return false;
        if (own ? !jinja_string_value(run, json_string_value(item), json_string_length(item), false, &dict->values[dict->count])
                : !value_of_json(run, item, depth + 1, false, &dict->values[dict->count]))
            return false;
    }
    *out = (struct jinja_value){.kind = KIND_DICT, .dict = dict};
    return true;
}

static bool value_of_json(struct jinja_run *run, const json_t *json, int depth, bool is_message, struct jinja_value *out)
{
    if (!jinja_work(run, 1))
        return false;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    const char *written = json_text_kept(json);
    if (written) {
        const bool ok = jinja_string_value(run, written, strlen(written), true, out);
        out->kind = KIND_WRITTEN;
        return ok;
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT: return value_of_object(run, json, depth, is_message, out);
    case JSON_ARRAY: return value_of_array(run, json, depth, false, out);
    case JSON_STRING: return jinja_string_value(run, json_string_value(json), json_string_length(json), true, out);
    case JSON_INTEGER: *out = jinja_integer(json_integer_value(json)); return true;
    case JSON_REAL: *out = jinja_float(json_real_value(json)); return true;
    case JSON_TRUE: *out = jinja_bool(true); return true;
    case JSON_FALSE: *out = jinja_bool(false); return true;
    default: *out = (struct jinja_value){.kind = KIND_NONE}; return true;
    }
}

// Converts a JSON value. Its strings, names of members included, are content: they came from a client. `none` is null. The bytes are borrowed
// for the run.
static bool value_or_none(struct jinja_run *run, const json_t *json, struct jinja_value *out)
{
    *out = (struct jinja_value){.kind = KIND_NONE};
    return !json || value_of_json(run, json, 0, false, out);
}

static bool measure_json(const json_t *json, int depth, size_t most, size_t *bytes, size_t *values)
{
    json_t *owner = (json_t *)(uintptr_t)json;
    ++*values;
    if (!json)
        return true;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return false;
    *bytes += json_string_length(json);
    for (size_t i = 0; i < json_array_size(json); i++)
        if (!measure_json(json_array_get(json, i), depth + 1, most, bytes, values))
            return false;
    for (void *at = json_object_iter(owner); at; at = json_object_iter_next(owner, at)) {
        *bytes += strlen(json_object_iter_key(at));
        if (!measure_json(json_object_iter_value(at), depth + 1, most, bytes, values))
            return false;
    }
    return *bytes <= most;
}

// --- rendering ----------------------------------------------------------------------------------------------------------

static bool find_name(const struct jinja_template *source, const char *name, uint32_t *id)
{
    for (*id = 0; *id < source->name_count; ++*id)
        if (jinja_string_is(source->names[*id], name))
            return true;
    return false;
}

bool chat_template_names(const struct chat_template *chat_template, const char *variable)
{
    uint32_t id;
    return find_name(&chat_template->compiled, variable, &id);
}

bool chat_template_owns(const char *variable)
{
    static const char *const owned[] = {"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"};
    for (size_t i = 0; i < ARRAY_COUNT(owned); i++)
        if (!strcmp(variable, owned[i]))
            return true;
    return false;
}

static bool set_text(struct jinja_run *run, const char *name, const char *text)
{
    struct jinja_value value;
    uint32_t id;
    return !text || !find_name(run->source, name, &id) ||
           (jinja_string_value(run, text, strlen(text), false, &value) && jinja_set_variable(run, id, &value));
}

// Sets a variable if the template names it at all.
static bool set_json(struct jinja_run *run, const char *name, const json_t *json)
{
    struct jinja_value value;
    uint32_t id;
    return !find_name(run->source, name, &id) || (value_or_none(run, json, &value) && jinja_set_variable(run, id, &value));
}

static bool set_empty(struct jinja_run *run, const char *name)
{
    static const struct jinja_list empty;
    const struct jinja_value value = jinja_listed(KIND_LIST, &empty);
    uint32_t id;
    return !find_name(run->source, name, &id) || jinja_set_variable(run, id, &value);
}

static bool set_variables(struct jinja_run *run, const struct chat_input *input)
{
    struct jinja_value messages;
    json_t *more = (json_t *)(uintptr_t)input->variables;
    uint32_t id;
    if (!value_of_array(run, input->messages, 0, true, &messages) ||
        (find_name(run->source, "messages", &id) && !jinja_set_variable(run, id, &messages)) ||
        !set_json(run, "add_generation_prompt", input->add_generation_prompt ? json_true() : json_false()) ||
        !(input->tools_list && !input->tools ? set_empty(run, "tools") : set_json(run, "tools", input->tools)) ||
        !set_json(run, "documents", input->documents) || !set_text(run, "bos_token", run->source->bos_token) ||
        !set_text(run, "eos_token", run->source->eos_token))
        return false;
    for (void *at = json_object_iter(more); at; at = json_object_iter_next(more, at))
        if (!chat_template_owns(json_object_iter_key(at)) && !set_json(run, json_object_iter_key(at), json_object_iter_value(at)))
            return false;
    return true;
}

static enum status hand_out(const struct jinja_builder *builder, struct chat_output *out, struct error *error)
{
    out->text = malloc(builder->length + 1);
    out->spans = malloc(MAX(builder->span_count, (size_t)1) * sizeof *out->spans);
    if (!out->text || !out->spans) {
        chat_output_free(out);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the prompt");
    }
    if (builder->length)
        memcpy(out->text, builder->bytes, builder->length);
    out->text[builder->length] = 0;
    for (size_t i = 0; i < builder->span_count; i++)
        out->spans[i] = (struct chat_span){builder->spans[i].begin, builder->spans[i].end};
    out->length = builder->length;
    out->span_count = (uint32_t)builder->span_count; // at most one a byte of the output
    return STATUS_OK;
}

// Memory beyond the usual limit for what the client has a right to send: its strings are copied, its values become values.
static bool measure_input(const struct chat_input *input, size_t *arena_bytes)
{
    const json_t *const given[] = {input->messages, input->tools, input->documents, input->variables};
    size_t bytes = 0, values = 0;
    for (size_t i = 0; i < ARRAY_COUNT(given); i++)
        if (given[i] && !measure_json(given[i], 0, JINJA_MAX_OUTPUT_BYTES, &bytes, &values))
            return false;
    *arena_bytes = JINJA_ARENA_BYTES + 8 * bytes + 128 * values;
    return true;
}

enum status chat_template_render_at(const struct chat_template *chat_template, int64_t unix_seconds, const struct chat_input *input,
                                    struct chat_output *out, struct error *error)
{
    struct error ignored;
    struct jinja_scope scope = {0};
    struct jinja_builder builder = {0};
    error = error ? error : &ignored;
    *out = (struct chat_output){0};
    struct jinja_run run = {.source = &chat_template->compiled,
                            .scope = &scope,
                            .output = &builder,
                            .error = error,
                            .unix_seconds = unix_seconds,
                            .line = 1};
    if (!measure_input(input, &run.arena.cap))
        return error_set(error, STATUS_INVALID_ARGUMENT, "the conversation holds more than %u bytes, or nests deeper than %d",
                         JINJA_MAX_OUTPUT_BYTES, JINJA_MAX_VALUE_DEPTH);
    enum status status;
    if (set_variables(&run, input) && jinja_execute(&run))
        status = hand_out(&builder, out, error);
    else
        status = error->status;
    arena_free(&run.arena);
    return status;
}

enum status chat_template_render(const struct chat_template *chat_template, const struct chat_input *input, struct chat_output *out,
                                 struct error *error)
{
    return chat_template_render_at(chat_template, (int64_t)(clock_wall_us() / 1000000u), input, out, error);
}

void chat_output_free(struct chat_output *out)
{
    free(out->text);
    free(out->spans);
    *out = (struct chat_output){0};
}

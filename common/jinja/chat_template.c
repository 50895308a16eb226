// chat_template.c: the interface of this directory: compiles a template, sets the variables of a run and returns its result.
//
// Variables are messages (a list of {role, content}), add_generation_prompt, bos_token, eos_token, and tools and documents, which are `none`,
// as in the reference renderer. A template sees one message as {'role': 'user', 'content': 'hi'}.
#include "common/jinja/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_parser.h"
#include "common/jinja/jinja_run.h"

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

// Sets a variable if the template names it at all.
static bool set_named(struct jinja_run *run, const char *name, const struct jinja_value *value)
{
    for (uint32_t id = 0; id < run->source->name_count; id++)
        if (jinja_string_is(run->source->names[id], name))
            return jinja_set_variable(run, id, value);
    return true;
}

static bool set_text(struct jinja_run *run, const char *name, const char *text)
{
    struct jinja_value value;
    return !text || (jinja_string_value(run, text, strlen(text), false, &value) && set_named(run, name, &value));
}

// Authors of templates expect the known roles; any other role is the client's text.
static bool is_known_role(const char *role)
{
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < ARRAY_COUNT(known); i++)
        if (!strcmp(role, known[i]))
            return true;
    return false;
}

static bool make_message(struct jinja_run *run, const struct chat_message *message, struct jinja_value *out)
{
    struct jinja_value role_key, content_key, role, content = {.kind = KIND_NONE};
    struct jinja_dict *dict = jinja_dict_new(run, 2);
    if (!dict || !jinja_string_value(run, "role", 4, false, &role_key) ||
        !jinja_string_value(run, "content", 7, false, &content_key) ||
        !jinja_string_value(run, message->role, strlen(message->role), !is_known_role(message->role), &role) ||
        (message->content && !jinja_string_value(run, message->content, message->content_length, true, &content)) ||
        !jinja_dict_set(run, dict, &role_key, &role) || !jinja_dict_set(run, dict, &content_key, &content))
        return false;
    *out = (struct jinja_value){.kind = KIND_DICT, .dict = dict};
    return true;
}

static bool set_variables(struct jinja_run *run, const struct chat_message *messages, uint32_t count, bool add_generation_prompt)
{
    const struct jinja_value prompt = jinja_bool(add_generation_prompt), none = {.kind = KIND_NONE};
    struct jinja_list *list = jinja_work(run, count) ? jinja_list_new(run, count) : NULL;
    if (!list)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!make_message(run, &messages[i], &list->items[i]))
            return false;
    const struct jinja_value value = jinja_listed(KIND_LIST, list);
    return set_named(run, "messages", &value) && set_named(run, "add_generation_prompt", &prompt) &&
           set_named(run, "tools", &none) && set_named(run, "documents", &none) &&
           set_text(run, "bos_token", run->source->bos_token) && set_text(run, "eos_token", run->source->eos_token);
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

enum status chat_template_render_at(const struct chat_template *chat_template, int64_t unix_seconds,
                                    const struct chat_message *messages, uint32_t count, bool add_generation_prompt,
                                    struct chat_output *out, struct error *error)
{
    struct error ignored;
    struct jinja_scope scope = {0};
    struct jinja_builder builder = {0};
    error = error ? error : &ignored;
    *out = (struct chat_output){0};
    size_t content_bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!checked_add_size(content_bytes, messages[i].content_length, &content_bytes) || content_bytes > JINJA_MAX_OUTPUT_BYTES)
            return error_set(error, STATUS_INVALID_ARGUMENT, "the messages hold more than %u bytes", JINJA_MAX_OUTPUT_BYTES);
    struct jinja_run run = {.source = &chat_template->compiled,
                            .scope = &scope,
                            .output = &builder,
                            .error = error,
                            .unix_seconds = unix_seconds,
                            .line = 1};
    run.arena.cap = JINJA_ARENA_BYTES + 8 * content_bytes;
    enum status status;
    if (set_variables(&run, messages, count, add_generation_prompt) && jinja_execute(&run))
        status = hand_out(&builder, out, error);
    else
        status = error->status;
    arena_free(&run.arena);
    return status;
}

enum status chat_template_render(const struct chat_template *chat_template, const struct chat_message *messages, uint32_t count,
                                 bool add_generation_prompt, struct chat_output *out, struct error *error)
{
    return chat_template_render_at(chat_template, (int64_t)(clock_wall_us() / 1000000u), messages, count, add_generation_prompt,
                                   out, error);
}

void chat_output_free(struct chat_output *out)
{
    free(out->text);
    free(out->spans);
    *out = (struct chat_output){0};
}

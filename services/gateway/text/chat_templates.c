// chat_templates.c: see chat_templates.h.
#include "services/gateway/text/chat_templates.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"

static const char prefix[] = "tokenizer.chat_template.";

static enum status read_template(const char *path, char **out, size_t *length, struct error *error)
{
    FILE *file = fopen(path, "re");
    enum status status = STATUS_OK;

    *out = NULL;
    if (!file)
        return error_set(error, STATUS_NOT_FOUND, "--chat-template %s: %s", path, strerror(errno));
    *out = malloc(CHAT_TEMPLATE_MAX_BYTES + 1);
    if (!*out) {
        fclose(file);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    *length = fread(*out, 1, CHAT_TEMPLATE_MAX_BYTES + 1, file);
    if (ferror(file))
        status =
            error_set(error, STATUS_INVALID_ARGUMENT, "--chat-template %s: %s", path, strerror(errno)); // a folder, for example
    else if (*length > CHAT_TEMPLATE_MAX_BYTES)
        status =
            error_set(error, STATUS_INVALID_ARGUMENT, "--chat-template %s: longer than %u bytes", path, CHAT_TEMPLATE_MAX_BYTES);
    fclose(file);
    return status;
}

// A special token's text, owned by the caller; NULL: there is none.
static char *token_text(const struct tokenizer *tokenizer, uint32_t id)
{
    struct text_span bytes;

    if (id == MODEL_NO_TOKEN)
        return NULL;
    bytes = tokenizer_token_bytes(tokenizer, id);
    return strndup(bytes.bytes, bytes.length);
}

// Returns which markers of a family are control tokens: bit i of marker i.
static uint32_t find_units(const struct tokenizer *tokenizer, const struct answer_family *family)
{
    uint32_t units = 0;

    for (uint32_t i = 0; family && answer_family_marker(family, i); i++) {
        const char *marker = answer_family_marker(family, i);
        const struct text_segment segment = {.bytes = marker, .length = strlen(marker), .parse_special = true};
        uint32_t *ids, count;
        if (tokenizer_encode(tokenizer, &segment, 1, false, UINT32_MAX, &ids, &count, NULL) != STATUS_OK)
            continue;
        units |= (uint32_t)(count == 1 && tokenizer_is_control(tokenizer, ids[0])) << i;
        free(ids);
    }
    return units;
}

static bool is_automatic(const char *name) { return !name || !strcmp(name, "auto"); }

static enum status check_parsers(const struct chat_templates_config *config, struct error *error)
{
    const char *tool = config->tool_parser, *reasoning = config->reasoning_parser;
    char names[512];

    if (!is_automatic(tool) && !answer_find_family(tool) && strcmp(tool, "none") != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--tool-parser: there is none called '%s'; there are auto, none, %s", tool,
                         answer_family_names(names, sizeof names));
    if (!is_automatic(reasoning) && !answer_find_reasoning(reasoning) && strcmp(reasoning, "none") != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--reasoning-parser: there is none called '%s'; there are auto, none, %s",
                         reasoning, answer_reasoning_names(names, sizeof names));
    return STATUS_OK;
}

// Finds out what the template takes and how the model answers: from the template's text, or as the settings say.
static void read_notation(const struct chat_templates_config *config, const struct tokenizer *tokenizer, const char *source,
                          size_t length, struct named_template *out)
{
    struct language_notation *notation = &out->notation;

    conversation_probe(out->chat, source, length, &out->form);
    notation->family = is_automatic(config->tool_parser) ? answer_detect_family(source, length)
                                                         : answer_find_family(config->tool_parser);
    notation->reasoning = is_automatic(config->reasoning_parser) ? answer_detect_reasoning(source, length)
                                                                 : answer_find_reasoning(config->reasoning_parser);
    for (int role = 0; role < CONVERSATION_ROLES; role++)
        if (out->form.lost >> role & 1)
            log_warn("CHAT-CONTENT-LOST", "template=%s role=%s why=\"the chat template shows nothing of what such messages say\"",
                     out->name, role == CONVERSATION_USER ? "user" : "assistant");
    out->describes_tools = is_automatic(config->tool_parser) && !out->form.tools_name;
    notation->unit_markers = find_units(tokenizer, notation->family);
    log_info("CHAT-NOTATION", "template=%s tools=%s reasoning=%s template_tools=%s template_calls=%s", out->name,
             notation->family ? answer_family_name(notation->family) : "none",
             answer_has_channels(notation->family) ? answer_family_name(notation->family)
             : notation->reasoning                 ? answer_reasoning_name(notation->reasoning)
                                                   : "none",
             out->form.tools_name ? out->form.tools_name : "none", out->form.has_calls ? "yes" : "no");
}

// All of a model's templates are opened with this.
struct opening {
    const struct chat_templates_config *config;
    const struct tokenizer *tokenizer;
    char *bos, *eos; // NULL: there is none
};

static enum status add_template(const struct opening *opening, const char *name, const char *source, size_t length,
                                struct chat_templates *out, struct error *error)
{
    struct named_template *template = &out->all[out->count];
    enum status status;

    *template = (struct named_template){0};
    snprintf(template->name, sizeof template->name, "%s", name);
    status = chat_template_open(source, length, opening->bos, opening->eos, &template->chat, error);
    if (status != STATUS_OK)
        return status;
    read_notation(opening->config, opening->tokenizer, source, length, template);
    out->count++;
    return STATUS_OK;
}

// The name of a template that a key is for; false: it is for none that a chat uses.
static bool key_name(struct gguf_string key, char out[CHAT_TEMPLATE_NAME_BYTES])
{
    const size_t skip = sizeof prefix - 1;

    if (key.length <= skip || key.length - skip >= CHAT_TEMPLATE_NAME_BYTES || memcmp(key.data, prefix, skip) != 0)
        return false;
    gguf_printable(out, CHAT_TEMPLATE_NAME_BYTES, (struct gguf_string){key.data + skip, key.length - skip});
    return strcmp(out, "rerank") != 0 && !memchr(out, '?', strlen(out));
}

// The templates that have a key each, as gguf-py writes them (gguf/constants.py: Keys.Tokenizer.CHAT_TEMPLATE_N).
static enum status add_named(const struct opening *opening, const struct gguf *gguf, struct chat_templates *out)
{
    for (uint32_t i = 0; i < gguf_key_count(gguf); i++) {
        char name[CHAT_TEMPLATE_NAME_BYTES], key[CHAT_TEMPLATE_NAME_BYTES + sizeof prefix];
        struct gguf_string source;
        struct error error = {0};

        if (!key_name(gguf_key_name(gguf, i), name))
            continue;
        snprintf(key, sizeof key, "%s%s", prefix, name);
        enum status status = out->count == CHAT_TEMPLATES_MAX
                                 ? error_set(&error, STATUS_UNIMPLEMENTED, "more than %d chat templates", CHAT_TEMPLATES_MAX)
                                 : gguf_get_string(gguf, key, &source, &error);
        if (status == STATUS_OK && !chat_templates_choose(out, name, false))
            status = add_template(opening, name, source.data, source.length, out, &error);
        if (status == STATUS_RESOURCE_EXHAUSTED)
            return status;
        if (status != STATUS_OK)
            log_warn("CHAT-TEMPLATE-IGNORED", "template=%s why=\"%s\"", name, error.text);
    }
    return STATUS_OK;
}

static enum status add_default(const struct opening *opening, const struct model *model, struct chat_templates *out,
                               struct error *error)
{
    const char *path = opening->config->chat_template_path;
    const struct gguf_string own = model->tokenizer.chat_template;
    char *source = NULL;
    size_t length = 0;

    if (!path && own.length == 0)
        return STATUS_OK;
    if (!path) {
        const enum status status = add_template(opening, "default", own.data, own.length, out, error);
        if (status != STATUS_OK)
            error_prefix(error, "%s", opening->config->model_path);
        return status;
    }
    enum status status = read_template(path, &source, &length, error);
    if (status == STATUS_OK) {
        status = add_template(opening, "default", source, length, out, error);
        if (status != STATUS_OK)
            error_prefix(error, "%s", path);
    }
    free(source);
    return status;
}

enum status chat_templates_open(const struct chat_templates_config *config, const struct model *model,
                                const struct tokenizer *tokenizer, struct chat_templates *out, struct error *error)
{
    const struct opening opening = {.config = config,
                                    .tokenizer = tokenizer,
                                    .bos = token_text(tokenizer, model->tokenizer.bos),
                                    .eos = token_text(tokenizer, model->tokenizer.eos)};
    struct error ignored = {0};

    error = error ? error : &ignored;
    *out = (struct chat_templates){0};
    enum status status = check_parsers(config, error);
    if (status == STATUS_OK)
        status = add_default(&opening, model, out, error);
    if (status == STATUS_OK && !config->chat_template_path && add_named(&opening, model->gguf, out) != STATUS_OK)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    free(opening.bos);
    free(opening.eos);
    return status;
}

void chat_templates_close(struct chat_templates *templates)
{
    for (uint32_t i = 0; i < templates->count; i++)
        chat_template_close(templates->all[i].chat);
    templates->count = 0;
}

const struct named_template *chat_templates_choose(const struct chat_templates *templates, const char *name, bool with_tools)
{
    const struct named_template *found = NULL;

    if (!name && with_tools)
        found = chat_templates_choose(templates, "tool_use", false);
    for (uint32_t i = 0; !found && i < templates->count; i++)
        if (strcmp(templates->all[i].name, name ? name : "default") == 0)
            found = &templates->all[i];
    return found;
}

const char *chat_templates_names(const struct chat_templates *templates, char *out, size_t out_bytes)
{
    size_t length = 0;

    out[0] = 0;
    for (uint32_t i = 0; i < templates->count && length < out_bytes; i++)
        length += (size_t)snprintf(out + length, out_bytes - length, "%s%s", i ? ", " : "", templates->all[i].name);
    return out;
}

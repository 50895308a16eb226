// answers_ollama.c: what Ollama's clients ask of the models that there are, and what is not answered in their form.
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "services/gateway/serve/gateway_internal.h"
#include "services/gateway/request/prompt_edit.h"
#include "services/gateway/api/schema/value.h"

enum { SHOW_BYTES = 4096 }; // of a request: it has a name in it

// As Ollama writes it: "134.5M", "8.0B".
static void append_parameters_size(uint64_t parameters, struct text *out)
{
    const double count = (double)parameters;

    if (count >= 1e9)
        text_format(out, "\"%.1fB\"", count / 1e9);
    else if (count >= 1e6)
        text_format(out, "\"%.2fM\"", count / 1e6);
    else
        text_format(out, "\"%.2fK\"", count / 1e3);
}

static void append_details(const struct gateway *gateway, struct text *out)
{
    const struct language_facts *facts = language_facts(gateway->language);

    text_string(out, "\"details\":{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":");
    text_json_string(out, facts->architecture);
    text_string(out, ",\"families\":[");
    text_json_string(out, facts->architecture);
    text_string(out, "],\"parameter_size\":");
    append_parameters_size(facts->parameters, out);
    text_string(out, ",\"quantization_level\":");
    text_json_string(out, facts->quantization);
    text_append(out, "}", 1);
}

static void append_date(uint64_t seconds, struct text *out)
{
    const time_t time = (time_t)seconds;
    struct tm parts = {0};
    char date[32];

    gmtime_r(&time, &parts);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    text_format(out, "\"%s\"", date);
}

static void append_model(const struct gateway *gateway, struct text *out)
{
    text_string(out, "{\"name\":");
    text_json_string(out, language_name(gateway->language));
    text_string(out, ",\"model\":");
    text_json_string(out, language_name(gateway->language));
    text_string(out, ",\"modified_at\":");
    append_date(gateway->created_s, out);
    text_format(out, ",\"size\":%llu,\"digest\":\"%016llx\",", (unsigned long long)language_facts(gateway->language)->file_bytes,
                (unsigned long long)language_fingerprint(gateway->language));
    append_details(gateway, out);
}

static void answer_list(struct gateway *gateway, struct exchange *exchange, const char *more)
{
    struct text body = {0};

    text_string(&body, "{\"models\":[");
    append_model(gateway, &body);
    text_string(&body, more);
    text_string(&body, "}]}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// Clients do not talk to an older one than they know: this is the release whose paths and fields are answered here.
#define OLLAMA_VERSION "0.14.2"

void answer_ollama_version(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct text body = {0};

    (void)gateway, (void)kind;
    text_string(&body, "{\"version\":\"" OLLAMA_VERSION "\"}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

void answer_ollama_tags(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    (void)kind;
    answer_list(gateway, exchange, "");
}

// The model is always loaded.
void answer_ollama_ps(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    char more[128];

    (void)kind;
    snprintf(more, sizeof more, ",\"size_vram\":0,\"expires_at\":\"9999-12-31T23:59:59Z\",\"context_length\":%u",
             answer_context(gateway));
    answer_list(gateway, exchange, more);
}

// Reads {"model": name}, or "name", as older clients call it.
static bool read_model(struct gateway *gateway, struct exchange *exchange, struct api_error *error)
{
    size_t bytes;
    const char *body = exchange_body(exchange, &bytes);
    json_t *root;
    const json_t *model;
    char name[SHOW_BYTES];
    bool ok;

    if (bytes > SHOW_BYTES)
        return api_fail(error, 400, "invalid_json", NULL, "the body has more than %d bytes", SHOW_BYTES);
    root = schema_parse_json(body, bytes, error);
    if (!root)
        return false;
    model = json_object_get(root, "model");
    if (!model)
        model = json_object_get(root, "name");
    ok = json_is_string(model) || api_fail(error, 400, "missing_required_parameter", "model", "'model' is required, a string");
    if (ok) {
        char *tag;
        snprintf(name, sizeof name, "%s", json_string_value(model));
        tag = strstr(name, ":latest");
        if (tag && tag[strlen(":latest")] == '\0')
            *tag = '\0';
        ok = answer_check_model(gateway, name, error);
    }
    json_decref(root);
    return ok;
}

// Lists how requests sample that do not say, a line each, by the names of Ollama's options, but for what stays as the API has it.
static void append_parameters(const struct api_model *model, struct text *body)
{
    const char *name;
    double value;
    bool more = false;

    for (size_t at = 0; api_model_next(model, &at, &name, &value); more = true)
        text_format(body, "%s%s %g", more ? "\\n" : "", strcmp(name, "repetition_penalty") ? name : "repeat_penalty", value);
}

// Appends the model's abilities in Ollama's words.
static void append_capabilities(const struct language *language, struct text *out)
{
    const struct language_notation notation = language_notation(language, NULL, true);
    const enum model_pool pool = language_pooling(language)->model.kind;
    const struct {
        const char *name;
        bool can;
    } rows[] = {
        {"completion", pool == MODEL_POOL_NONE},
        {"tools", pool == MODEL_POOL_NONE && language_chats(language) && notation.family},
        {"insert", pool == MODEL_POOL_NONE && prompt_edit_can_fill(language)},
        {"thinking", pool == MODEL_POOL_NONE && (notation.reasoning || answer_has_channels(notation.family))},
        {"embedding", pool != MODEL_POOL_NONE && pool != MODEL_POOL_RANK},
    };
    bool more = false;

    text_string(out, "\"capabilities\":[");
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        if (rows[i].can)
            text_format(out, "%s\"%s\"", more ? "," : "", rows[i].name);
        more |= rows[i].can;
    }
    text_append(out, "]", 1);
}

// Keys of GGUF, which begin with the architecture's name. The context is the one that is served: clients fill it.
static void append_info(struct gateway *gateway, struct text *out)
{
    const struct language_facts *facts = language_facts(gateway->language);
    const uint32_t context = answer_context(gateway);
    const struct {
        const char *key;
        uint32_t value;
    } rows[] = {{"context_length", context},
                {"embedding_length", facts->hidden},
                {"block_count", facts->layers},
                {"feed_forward_length", facts->ffn},
                {"attention.head_count", facts->heads},
                {"attention.head_count_kv", facts->kv_heads},
                {"attention.key_length", facts->head_dim},
                {"attention.value_length", facts->head_dim},
                {"vocab_size", facts->vocab},
                {"expert_count", facts->experts},
                {"expert_used_count", facts->experts_used}};

    text_string(out, "\"model_info\":{\"general.architecture\":");
    text_json_string(out, facts->architecture);
    text_string(out, ",\"general.name\":");
    text_json_string(out, language_name(gateway->language));
    text_string(out, ",\"general.basename\":"); // what lists of models show
    text_json_string(out, language_name(gateway->language));
    text_format(out, ",\"general.parameter_count\":%llu,\"general.context_length\":%u", (unsigned long long)facts->parameters,
                context);
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++)
        if (rows[i].value)
            text_format(out, ",\"%s.%s\":%u", facts->architecture, rows[i].key, rows[i].value);
    text_append(out, "}", 1);
}

void answer_ollama_show(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct api_error error = {0};
    struct text body = {0};

    (void)kind;
    if (!read_model(gateway, exchange, &error)) {
        exchange_refuse(exchange, &error);
        return;
    }
    text_string(&body, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"");
    append_parameters(language_api_model(gateway->language), &body);
    text_string(&body, "\",\"template\":\"\",\"modified_at\":");
    append_date(gateway->created_s, &body);
    text_append(&body, ",", 1);
    append_details(gateway, &body);
    text_append(&body, ",", 1);
    append_info(gateway, &body);
    text_append(&body, ",", 1);
    append_capabilities(gateway->language, &body);
    text_string(&body, "}\n");
    exchange_respond(exchange, 200, HTTP_JSON, &body);
}

// answers_ollama.c: what Ollama's clients ask of the models that there are, and what is not answered in their form.
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "services/gateway/gateway_internal.h"
#include "services/gateway/respond.h"
#include "services/gateway/schema_internal.h"

enum { SHOW_BYTES = 4096 }; // of a request: it has a name in it

static void append_details(struct text *out)
{
    text_string(out,
                "\"details\":{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":\"\",\"families\":[],\"parameter_size\":\"\","
                "\"quantization_level\":\"\"}");
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
    text_format(out, ",\"size\":0,\"digest\":\"%016llx\",", (unsigned long long)language_fingerprint(gateway->language));
    append_details(out);
}

static void answer_list(struct gateway *gateway, struct exchange *exchange, const char *more)
{
    struct text body = {0};

    text_string(&body, "{\"models\":[");
    append_model(gateway, &body);
    text_string(&body, more);
    text_string(&body, "}]}\n");
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

void answer_ollama_tags(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    (void)kind;
    answer_list(gateway, exchange, "");
}

// The model is always loaded.
void answer_ollama_ps(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    char more[96];

    (void)kind;
    snprintf(more, sizeof more, ",\"size_vram\":0,\"context_length\":%u", answer_context(gateway));
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

void answer_ollama_show(struct gateway *gateway, struct exchange *exchange, enum api_kind kind)
{
    struct api_error error = {0};
    struct text body = {0};

    (void)kind;
    if (!read_model(gateway, exchange, &error)) {
        respond_error(exchange, &error);
        return;
    }
    text_string(&body, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"");
    append_parameters(language_api_model(gateway->language), &body);
    text_string(&body, "\",\"template\":\"\",\"modified_at\":");
    append_date(gateway->created_s, &body);
    text_append(&body, ",", 1);
    append_details(&body);
    text_string(&body, ",\"model_info\":{\"general.name\":");
    text_json_string(&body, language_name(gateway->language));
    text_format(&body, ",\"general.context_length\":%u},\"capabilities\":[\"completion\"]}\n", answer_context(gateway));
    exchange_respond(exchange, 200, RESPOND_JSON, &body);
}

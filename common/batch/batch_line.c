// batch_line.c: see batch_line.h.
#include "common/batch/batch_line.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/json/json_text.h"

static const char *const endpoint_paths[] = {
    [BATCH_ENDPOINT_NONE] = "",
    [BATCH_ENDPOINT_COMPLETIONS] = "/v1/completions",
    [BATCH_ENDPOINT_CHAT] = "/v1/chat/completions",
    [BATCH_ENDPOINT_EMBEDDINGS] = "/v1/embeddings",
};

const char *batch_endpoint_path(enum batch_endpoint endpoint) { return endpoint_paths[endpoint]; }

enum batch_endpoint batch_endpoint_named(const char *path)
{
    enum batch_endpoint endpoint;

    for (endpoint = BATCH_ENDPOINT_COMPLETIONS; endpoint < BATCH_ENDPOINT_COUNT; endpoint++)
        if (strcmp(path, endpoint_paths[endpoint]) == 0)
            return endpoint;
    return BATCH_ENDPOINT_NONE;
}

static PRINTF_LIKE(3, 4) bool refuse(struct batch_error *error, const char *code, const char *format, ...)
{
    va_list args;

    error->code = code;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return false;
}

// An object, or NULL with *error.
static json_t *load(const char *line, size_t bytes, struct batch_error *error)
{
    json_error_t reason;
    json_t *root;
    size_t at;
    char *c;

    if (json_check_limits(line, bytes, BATCH_DEPTH_MAX, BATCH_VALUES_MAX, &at) != JSON_WITHIN) {
        refuse(error, "invalid_json_line", "the line is nested too deeply or has too many values at byte %zu", at);
        return NULL;
    }
    root = json_text_read(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &reason);
    if (json_text_is_object(root))
        return root;
    for (c = reason.text; !root && *c; c++) // the library quotes the line in some messages
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F)
            *c = '?';
    if (root)
        refuse(error, "invalid_json_line", "the line is not a JSON object");
    else
        refuse(error, "invalid_json_line", "the line is not valid JSON: %s (byte %d)", reason.text, reason.position);
    json_decref(root);
    return NULL;
}

static bool read_custom_id(json_t *root, struct batch_line *out, struct batch_error *error)
{
    const json_t *value = json_object_get(root, "custom_id");
    const char *text = json_string_value(value);
    size_t bytes = json_string_length(value);

    if (!text || bytes == 0)
        return refuse(error, value ? "invalid_custom_id" : "missing_required_parameter",
                      "'custom_id' must be a string and not empty");
    if (bytes > BATCH_CUSTOM_ID_BYTES_MAX)
        return refuse(error, "invalid_custom_id", "'custom_id' has %zu bytes, the most is %d", bytes, BATCH_CUSTOM_ID_BYTES_MAX);
    if (memchr(text, 0, bytes))
        return refuse(error, "invalid_custom_id", "'custom_id' has a zero byte");
    out->custom_id = strdup(text);
    return out->custom_id || refuse(error, "server_error", "out of memory");
}

// The text of a string without a zero byte, or NULL: what compares it would see only what comes before.
static const char *plain_text(const json_t *value)
{
    const char *text = json_string_value(value);

    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static bool read_target(json_t *root, struct batch_line *out, struct batch_error *error)
{
    const json_t *method = json_object_get(root, "method");
    const json_t *target = json_object_get(root, "url");
    const char *name = plain_text(method), *url = plain_text(target);

    if (!name || strcmp(name, "POST") != 0)
        return refuse(error, method ? "invalid_method" : "missing_required_parameter", "'method' must be \"POST\"");
    if (!json_is_string(target))
        return refuse(error, "missing_required_parameter", "'url' must be a string");
    out->endpoint = url ? batch_endpoint_named(url) : BATCH_ENDPOINT_NONE;
    return out->endpoint != BATCH_ENDPOINT_NONE ||
           refuse(error, "invalid_url", "'url' must be \"/v1/completions\", \"/v1/chat/completions\" or \"/v1/embeddings\"");
}

static bool read_body(json_t *root, bool flex, struct batch_line *out, struct batch_error *error)
{
    json_t *body = json_object_get(root, "body"), *tier;

    if (!json_text_is_object(body))
        return refuse(error, body ? "invalid_body" : "missing_required_parameter", "'body' must be an object");
    if (json_is_true(json_object_get(body, "stream")))
        return refuse(error, "invalid_body", "'body.stream' must not be true: a result is one line");
    tier = json_object_get(body, "service_tier");
    if (flex && (!tier || json_is_null(tier)) && json_object_set_new(body, "service_tier", json_string("flex")) != 0)
        return refuse(error, "server_error", "out of memory");
    out->body = json_text_write(body, false);
    if (!out->body)
        return refuse(error, "server_error", "out of memory");
    out->body_bytes = strlen(out->body);
    return true;
}

bool batch_line_parse(const char *line, size_t bytes, bool flex, struct batch_line *out, struct batch_error *error)
{
    json_t *root;
    bool ok;

    *out = (struct batch_line){0};
    root = load(line, bytes, error);
    ok = root && read_custom_id(root, out, error) && read_target(root, out, error) && read_body(root, flex, out, error);
    json_decref(root);
    return ok;
}

void batch_line_free(struct batch_line *line)
{
    free(line->custom_id);
    free(line->body);
    *line = (struct batch_line){0};
}

bool batch_line_is_blank(const char *line, size_t bytes)
{
    size_t i;

    for (i = 0; i < bytes; i++)
        if (!memchr(" \t\r\n", line[i], 4))
            return false;
    return true;
}

// --- results -------------------------------------------------------------------------------------------------------
// text may have bytes that are not UTF-8: they become '?'.
static void write_string(FILE *out, const char *text, size_t bytes)
{
    json_t *value = json_stringn(text, bytes);
    size_t i;

    if (value) {
        json_dumpf(value, out, JSON_ENCODE_ANY);
        json_decref(value);
        return;
    }
    fputc('"', out);
    for (i = 0; i < bytes; i++)
        fputc(text[i] >= ' ' && text[i] < 0x7F && text[i] != '"' && text[i] != '\\' ? text[i] : '?', out);
    fputc('"', out);
}

// JSON keeps its bytes; line ends between its values become spaces, because a result is one line.
static void write_body(FILE *out, const char *body, size_t bytes)
{
    json_t *root = json_text_read(body, bytes, JSON_ALLOW_NUL, NULL);
    size_t i;

    while (bytes > 0 && memchr(" \t\r\n", body[bytes - 1], 4))
        bytes--;
    if (!root) {
        write_string(out, body, bytes);
        return;
    }
    json_decref(root);
    for (i = 0; i < bytes; i++)
        fputc_unlocked(body[i] == '\n' || body[i] == '\r' ? ' ' : body[i], out);
}

static void write_text(FILE *out, const char *text)
{
    if (text)
        write_string(out, text, strlen(text));
    else
        fputs("null", out);
}

void batch_result_write(FILE *out, const struct batch_result *result)
{
    fputs("{\"id\":", out);
    write_text(out, result->id);
    fputs(",\"custom_id\":", out);
    write_text(out, result->custom_id);
    if (result->status) {
        fprintf(out, ",\"response\":{\"status_code\":%d,\"request_id\":", result->status);
        write_text(out, result->request_id);
        fputs(",\"body\":", out);
        write_body(out, result->body, result->body_bytes);
        fputs("}", out);
    } else {
        fputs(",\"response\":null", out);
    }
    if (result->error) {
        fputs(",\"error\":{\"code\":", out);
        write_text(out, result->error->code);
        fputs(",\"message\":", out);
        write_text(out, result->error->message);
        fputs("}}\n", out);
    } else {
        fputs(",\"error\":null}\n", out);
    }
}

bool batch_result_read(const char *line, size_t bytes, struct batch_result_about *out)
{
    json_t *root = json_text_read(line, bytes, JSON_ALLOW_NUL, NULL), *custom_id = json_object_get(root, "custom_id");
    json_t *response = json_object_get(root, "response");
    const char *id = json_string_value(json_object_get(root, "id"));
    bool ok = id && custom_id && (json_is_null(custom_id) || json_is_string(custom_id)) && response &&
              json_object_get(root, "error");

    *out = (struct batch_result_about){0};
    if (ok) {
        out->id = strdup(id);
        out->custom_id = json_is_string(custom_id) ? strdup(json_string_value(custom_id)) : NULL;
        out->failed = json_integer_value(json_object_get(response, "status_code")) != 200;
        ok = out->id && (out->custom_id || json_is_null(custom_id));
    }
    json_decref(root);
    return ok;
}

void batch_result_about_free(struct batch_result_about *about)
{
    free(about->id);
    free(about->custom_id);
    *about = (struct batch_result_about){0};
}

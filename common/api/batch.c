// batch.c: lines of batch files and of their results; reads a file line by line; keeps the ids that were seen.
#include "common/api/batch.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
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
static void write_string(struct text *out, const char *text, size_t bytes)
{
    json_t *value = json_stringn(text, bytes);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;

    if (quoted) {
        text_string(out, quoted);
    } else {
        text_append(out, "\"", 1);
        for (size_t i = 0; i < bytes; i++)
            text_append(out, text[i] >= ' ' && text[i] < 0x7F && text[i] != '"' && text[i] != '\\' ? &text[i] : "?", 1);
        text_append(out, "\"", 1);
    }
    free(quoted);
    json_decref(value);
}

// JSON keeps its bytes; line ends between its values become spaces, because a result is one line.
static void write_body(struct text *out, const char *body, size_t bytes)
{
    json_t *root = json_text_read(body, bytes, JSON_ALLOW_NUL, NULL);
    const size_t begin = out->bytes;

    while (bytes > 0 && memchr(" \t\r\n", body[bytes - 1], 4))
        bytes--;
    if (!root) {
        write_string(out, body, bytes);
        return;
    }
    json_decref(root);
    text_append(out, body, bytes);
    for (size_t i = begin; i < out->bytes; i++)
        if (out->data[i] == '\n' || out->data[i] == '\r')
            out->data[i] = ' ';
}

static void write_text(struct text *out, const char *text)
{
    if (text)
        write_string(out, text, strlen(text));
    else
        text_string(out, "null");
}

void batch_result_write(struct text *out, const struct batch_result *result)
{
    text_string(out, "{\"id\":");
    write_text(out, result->id);
    text_string(out, ",\"custom_id\":");
    write_text(out, result->custom_id);
    if (result->status) {
        text_format(out, ",\"response\":{\"status_code\":%d,\"request_id\":", result->status);
        write_text(out, result->request_id);
        text_string(out, ",\"body\":");
        write_body(out, result->body, result->body_bytes);
        text_string(out, "}");
    } else {
        text_string(out, ",\"response\":null");
    }
    if (result->error) {
        text_string(out, ",\"error\":{\"code\":");
        write_text(out, result->error->code);
        text_string(out, ",\"message\":");
        write_text(out, result->error->message);
        text_string(out, "}}\n");
    } else {
        text_string(out, ",\"error\":null}\n");
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

// --- the lines of a file ---
//
// The buffer grows to the longest line, at most max_bytes and one read.

enum { READ_BYTES = 64 << 10 };

void line_reader_open(int fd, size_t max_bytes, struct line_reader *out)
{
    *out = (struct line_reader){.fd = fd, .max_bytes = max_bytes};
}

void line_reader_close(struct line_reader *reader)
{
    free(reader->buffer);
    reader->buffer = NULL;
}

// Reads more behind what is there. False: errno.
static bool fill(struct line_reader *reader)
{
    ssize_t got;

    if (reader->begin > 0) {
        memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->capacity - reader->end < READ_BYTES) {
        size_t wanted = MAX(reader->capacity * 2, (size_t)2 * READ_BYTES);
        char *grown = realloc(reader->buffer, wanted);
        if (!grown)
            return false;
        reader->buffer = grown;
        reader->capacity = wanted;
    }
    do
        got = read(reader->fd, reader->buffer + reader->end, reader->capacity - reader->end);
    while (got < 0 && errno == EINTR);
    reader->at_end = got == 0;
    reader->end += got > 0 ? (size_t)got : 0;
    return got >= 0;
}

// Drops what is left of a line that is too long, up to and with its end.
static bool skip_line(struct line_reader *reader)
{
    for (;;) {
        char *found = memchr(reader->buffer + reader->begin, '\n', reader->end - reader->begin);
        size_t bytes = found ? (size_t)(found - reader->buffer) + 1 - reader->begin : reader->end - reader->begin;
        reader->begin += bytes;
        reader->position += bytes;
        if (found || reader->at_end)
            return true;
        if (!fill(reader))
            return false;
    }
}

enum line_kind line_reader_next(struct line_reader *reader, const char **line, size_t *bytes)
{
    size_t seen = 0; // bytes without a line end

    if (!reader->buffer && !fill(reader))
        return LINE_FAILED;
    for (;;) {
        size_t there = reader->end - reader->begin;
        char *start = reader->buffer + reader->begin;
        char *found = there > seen ? memchr(start + seen, '\n', there - seen) : NULL;
        size_t length = found ? (size_t)(found - start) : there;

        if (length > reader->max_bytes) {
            reader->number++;
            *line = NULL;
            *bytes = 0;
            return skip_line(reader) ? LINE_TOO_LONG : LINE_FAILED;
        }
        if (found || (reader->at_end && there > 0)) {
            size_t taken = length + (found != NULL);
            reader->number++;
            reader->begin += taken;
            reader->position += taken;
            *line = start;
            *bytes = length;
            return found ? LINE_WHOLE : LINE_UNENDED;
        }
        if (reader->at_end)
            return LINE_NONE;
        seen = there;
        if (!fill(reader))
            return LINE_FAILED;
    }
}

// --- a set of texts ---

enum { FIRST_CAPACITY = 1024 };

void text_set_open(struct text_set *out)
{
    *out = (struct text_set){0};
    if (getrandom(out->secret, sizeof out->secret, GRND_NONBLOCK) != (ssize_t)sizeof out->secret) {
        out->secret[0] = clock_now_ns();
        out->secret[1] = clock_wall_us() * 0x9E3779B97F4A7C15u;
    }
}

void text_set_close(struct text_set *set)
{
    free(set->slots);
    set->slots = NULL;
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93u;
    value = (value ^ (value >> 29)) * 0xC2B2AE3D27D4EB4Fu;
    return value ^ (value >> 32);
}

// Words of eight bytes and the length, folded twice with different secrets.
static void hash_text(const struct text_set *set, const char *text, uint64_t out[2])
{
    size_t bytes = strlen(text), at;
    int i;

    for (i = 0; i < 2; i++) {
        uint64_t sum = set->secret[i] ^ mix(bytes + (uint64_t)i);
        for (at = 0; at < bytes; at += 8) {
            uint64_t word = 0;
            memcpy(&word, text + at, bytes - at < 8 ? bytes - at : 8);
            sum = mix(sum ^ word) + set->secret[i] + word;
        }
        out[i] = mix(sum);
    }
    out[0] += out[0] == 0 && out[1] == 0;
}

// The slot of this hash, or the free one where it belongs.
static uint64_t *find_slot(const struct text_set *set, const uint64_t hash[2])
{
    size_t at = hash[0] & (set->capacity - 1);

    while ((set->slots[at][0] || set->slots[at][1]) && memcmp(set->slots[at], hash, sizeof set->slots[at]) != 0)
        at = (at + 1) & (set->capacity - 1);
    return set->slots[at];
}

static bool grow(struct text_set *set)
{
    struct text_set larger = *set;
    size_t i;

    larger.capacity = set->capacity ? set->capacity * 2 : FIRST_CAPACITY;
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (i = 0; i < set->capacity; i++)
        if (set->slots[i][0] || set->slots[i][1])
            memcpy(find_slot(&larger, set->slots[i]), set->slots[i], sizeof set->slots[i]);
    free(set->slots);
    *set = larger;
    return true;
}

enum status text_set_add(struct text_set *set, const char *text)
{
    uint64_t hash[2], *slot;

    if (set->count * 4 >= set->capacity * 3 && !grow(set))
        return STATUS_RESOURCE_EXHAUSTED;
    hash_text(set, text, hash);
    slot = find_slot(set, hash);
    if (slot[0] || slot[1])
        return STATUS_ALREADY_EXISTS;
    memcpy(slot, hash, sizeof hash);
    set->count++;
    return STATUS_OK;
}

bool text_set_has(const struct text_set *set, const char *text)
{
    uint64_t hash[2];
    const uint64_t *slot;

    if (set->count == 0)
        return false;
    hash_text(set, text, hash);
    slot = find_slot(set, hash);
    return slot[0] || slot[1];
}

// json.c: calls as JSON: {"name": "f", "arguments": {...}}, a list of such objects, or one inside of {"function": {...}}.
//
// The value of "arguments" (or "parameters") is passed on byte by byte once the name is known; if it comes before the name, it waits. Members
// with other names are skipped. Without a marker before it (`strict`) the object must not have any, and the function must exist: a
// model may answer with JSON that is no call.
#include <string.h>

#include <jansson.h>

#include "common/base/checked.h"
#include "services/gateway/answer/internal.h"

enum state {
    AT_START,  // white space, [ or {
    AT_LIST,   // in a list: {, a comma or ]
    AT_MEMBER, // a member's name, or }
    IN_KEY,
    AT_COLON,
    AT_VALUE,
    IN_NAME,      // a string that is the function's name
    IN_ARGUMENTS, // passed on
    IN_SAVED,     // arguments whose function is not known yet
    IN_STRING,    // arguments that are JSON inside of a string
    IN_SKIPPED,
    AFTER_VALUE,
};

// --- values -------------------------------------------------------------------------------------------------------------
static bool json_ends_scalar(char byte) { return answer_is_space(byte) || byte == ',' || byte == '}' || byte == ']'; }

enum scan_end scan_take(struct scan *scan, char byte)
{
    if (scan->string) {
        if (scan->escaped)
            scan->escaped = false;
        else if (byte == '\\')
            scan->escaped = true;
        else if (byte == '"')
            scan->string = false;
        return !scan->string && scan->depth == 0 ? SCAN_END : SCAN_MORE;
    }
    if (scan->scalar)
        return json_ends_scalar(byte) ? SCAN_END_BEFORE : SCAN_MORE;
    if (byte == '"') {
        scan->string = true;
    } else if (byte == '{' || byte == '[') {
        scan->depth++;
    } else if ((byte == '}' || byte == ']') && scan->depth > 0) {
        scan->depth--;
        return scan->depth == 0 ? SCAN_END : SCAN_MORE;
    } else if (scan->depth == 0) {
        scan->scalar = true;
    }
    scan->started = true;
    return SCAN_MORE;
}

bool answer_hold(struct text *value, char byte)
{
    text_append(value, &byte, 1);
    return value->bytes <= ANSWER_MAX_HELD;
}

// Appends the JSON string `raw`, quotes included, as text. False: it is none.
static bool answer_unquote(const char *raw, size_t count, struct text *out)
{
    json_t *string = json_loadb(raw, count, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    const bool is_string = json_is_string(string);

    text_clear(out);
    if (is_string)
        text_append(out, json_string_value(string), json_string_length(string));
    json_decref(string);
    return is_string;
}

void answer_quote(struct answer_parser *parser, const char *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    static const char named[] = "\"\"\\\\\nn\rr\tt";

    for (size_t i = 0; i < count; i++) {
        const char *name = bytes[i] ? strchr(named, bytes[i]) : NULL;
        char escape[6] = {'\\', 'u', '0', '0', digits[bytes[i] >> 4 & 15], digits[bytes[i] & 15]};
        if (name && (name - named) % 2 == 0) {
            escape[1] = name[1];
            answer_emit(parser, ANSWER_ARGUMENTS, escape, 2);
        } else if ((unsigned char)bytes[i] < 0x20) {
            answer_emit(parser, ANSWER_ARGUMENTS, escape, 6);
        } else {
            answer_emit(parser, ANSWER_ARGUMENTS, &bytes[i], 1);
        }
    }
}

void answer_put(struct answer_parser *parser, const char *text) { answer_emit(parser, ANSWER_ARGUMENTS, text, strlen(text)); }

void answer_put_string(struct answer_parser *parser, const struct text *text)
{
    answer_put(parser, "\"");
    answer_quote(parser, text->data, text->bytes);
    answer_put(parser, "\"");
}

// --- the body -----------------------------------------------------------------------------------------------------------
static void json_begin_object(struct answer_parser *parser)
{
    struct json_body *body = &parser->json;

    *body = (struct json_body){.state = AT_MEMBER, .in_list = body->in_list, .strict = body->strict};
    text_clear(&parser->name);
    text_clear(&parser->value);
}

void json_body_begin(struct answer_parser *parser, bool strict)
{
    parser->json = (struct json_body){.state = AT_START, .strict = strict};
    if (strict) // the brace is read
        json_begin_object(parser);
}

static void json_begin(struct answer_parser *parser, uint32_t marker) { json_body_begin(parser, marker == UINT32_MAX); }

static bool json_key_is(const struct json_body *body, const char *name)
{
    return body->key_bytes == strlen(name) && !memcmp(body->key, name, body->key_bytes);
}

// Begins the value that starts with this byte after "key":.
static enum verdict json_begin_value(struct answer_parser *parser, char byte)
{
    struct json_body *body = &parser->json;
    const bool arguments = json_key_is(body, "arguments") || json_key_is(body, "parameters");
    const bool name = json_key_is(body, "name") || (json_key_is(body, "function") && byte == '"');

    body->scan = (struct scan){0};
    if (json_key_is(body, "function") && byte == '{' && !body->nested) {
        body->nested = true;
        body->state = AT_MEMBER;
        return BODY_MORE;
    }
    if (name && byte == '"' && !body->has_name) {
        text_clear(&parser->name);
        body->state = IN_NAME;
        (void)scan_take(&body->scan, byte);
        return answer_hold(&parser->name, byte) ? BODY_MORE : BODY_FAILED;
    }
    if (arguments && !body->has_arguments) {
        body->has_arguments = true;
        text_clear(&parser->value);
        body->state = byte == '"' ? IN_STRING : body->has_name ? IN_ARGUMENTS : IN_SAVED;
        if (body->state == IN_ARGUMENTS && byte != '{' && body->strict)
            return BODY_FAILED;
        if (body->state == IN_ARGUMENTS && byte == '{') {
            if (!answer_begin_call(parser, parser->name.data, parser->name.bytes))
                return BODY_FAILED;
            body->begun = true;
            answer_emit(parser, ANSWER_ARGUMENTS, &byte, 1);
        } else {
            body->state = byte == '"' ? IN_STRING : IN_SAVED; // null and the like are looked at when all of it is there
            text_append(&parser->value, &byte, 1);
        }
        (void)scan_take(&body->scan, byte);
        return BODY_MORE;
    }
    if (body->strict && !json_key_is(body, "type") && !json_key_is(body, "id"))
        return BODY_FAILED;
    body->state = IN_SKIPPED;
    (void)scan_take(&body->scan, byte);
    return BODY_MORE;
}

static enum verdict json_take_name(struct answer_parser *parser)
{
    struct json_body *body = &parser->json;
    struct text name = {0};
    bool ok = answer_unquote(parser->name.data, parser->name.bytes, &name) && name.bytes > 0 &&
              name.bytes <= ANSWER_MAX_NAME_BYTES && !memchr(name.data, 0, name.bytes);

    if (ok && body->strict && parser->options.knows)
        ok = parser->options.knows(parser->options.arg, name.data, name.bytes);
    text_clear(&parser->name);
    text_append(&parser->name, name.data, name.bytes);
    text_free(&name);
    body->has_name = ok;
    body->state = AFTER_VALUE;
    return ok ? BODY_MORE : BODY_FAILED;
}

// Arguments that were kept until now. null and nothing at all are no arguments.
static bool json_emit_saved(struct answer_parser *parser)
{
    const struct text *value = &parser->value;
    const bool none = value->bytes == 0 || (value->bytes == 4 && !memcmp(value->data, "null", 4));

    if (!answer_begin_call(parser, parser->name.data, parser->name.bytes))
        return false;
    answer_emit(parser, ANSWER_ARGUMENTS, none ? "{}" : value->data, none ? 2 : value->bytes);
    text_clear(&parser->value);
    return true;
}

// Ends the value that is being read.
static enum verdict json_end_value(struct answer_parser *parser)
{
    struct json_body *body = &parser->json;
    struct text inner = {0};

    if (body->state == IN_NAME)
        return json_take_name(parser);
    if (body->state == IN_STRING && answer_unquote(parser->value.data, parser->value.bytes, &inner)) {
        text_clear(&parser->value);
        text_append(&parser->value, inner.data, inner.bytes);
    }
    text_free(&inner);
    body->state = AFTER_VALUE;
    return BODY_MORE;
}

// Takes the object's last brace.
static enum verdict json_end_object(struct answer_parser *parser)
{
    struct json_body *body = &parser->json;

    if (body->nested) {
        body->nested = false;
        body->state = AFTER_VALUE;
        return BODY_MORE;
    }
    if (!body->begun && (!body->has_name || (body->strict && !body->has_arguments) || !json_emit_saved(parser)))
        return BODY_FAILED;
    body->state = AT_LIST;
    const bool in_list = body->in_list;
    answer_end_call(parser);
    return in_list ? BODY_MORE : BODY_DONE;
}

static enum verdict json_take_in_value(struct answer_parser *parser, char byte)
{
    struct json_body *body = &parser->json;
    const enum scan_end end = scan_take(&body->scan, byte);
    enum verdict verdict = BODY_MORE;

    if (end != SCAN_END_BEFORE) {
        if (body->state == IN_ARGUMENTS)
            answer_emit(parser, ANSWER_ARGUMENTS, &byte, 1);
        else if (body->state == IN_NAME && !answer_hold(&parser->name, byte))
            return BODY_FAILED;
        else if ((body->state == IN_SAVED || body->state == IN_STRING) && !answer_hold(&parser->value, byte))
            return BODY_FAILED;
    }
    if (end != SCAN_MORE)
        verdict = json_end_value(parser);
    if (end == SCAN_END_BEFORE && verdict == BODY_MORE)
        return answer_json.take(parser, byte);
    return verdict;
}

// Returns the verdict on bytes that are not JSON: no call if it has not begun, the end of it otherwise.
static enum verdict json_wrong(const struct answer_parser *parser) { return parser->in_call ? BODY_DONE_BEFORE : BODY_FAILED; }

static enum verdict json_take_between(struct answer_parser *parser, char byte)
{
    struct json_body *body = &parser->json;

    switch (body->state) {
    case AT_START:
        if (byte == '{')
            json_begin_object(parser);
        else if (byte == '[' && !body->in_list)
            body->in_list = true;
        else
            return json_wrong(parser);
        return BODY_MORE;
    case AT_LIST:
        if (byte == '{')
            json_begin_object(parser);
        else if (byte != ',')
            return byte == ']' ? BODY_DONE : BODY_DONE_BEFORE;
        return BODY_MORE;
    case AT_MEMBER:
        if (byte == '}')
            return json_end_object(parser);
        if (byte != '"')
            return json_wrong(parser);
        body->key_bytes = 0;
        body->escaped = false;
        body->state = IN_KEY;
        return BODY_MORE;
    case AT_COLON:
        if (byte != ':')
            return json_wrong(parser);
        body->state = AT_VALUE;
        return BODY_MORE;
    case AT_VALUE:
        return byte == ',' || byte == '}' || byte == ']' || byte == ':' ? json_wrong(parser) : json_begin_value(parser, byte);
    default: // AFTER_VALUE
        if (byte == '}')
            return json_end_object(parser);
        if (byte != ',')
            return json_wrong(parser);
        body->state = AT_MEMBER;
        return BODY_MORE;
    }
}

static enum verdict json_take(struct answer_parser *parser, char byte)
{
    struct json_body *body = &parser->json;

    if (body->state >= IN_NAME && body->state <= IN_SKIPPED)
        return json_take_in_value(parser, byte);
    if (body->state == IN_KEY) {
        if (byte == '"' && !body->escaped) {
            body->state = AT_COLON;
            return BODY_MORE;
        }
        body->escaped = byte == '\\' && !body->escaped;
        if (body->key_bytes < sizeof body->key)
            body->key[body->key_bytes++] = byte; // a longer one is none that counts
        return BODY_MORE;
    }
    return answer_is_space(byte) ? BODY_MORE : json_take_between(parser, byte);
}

static enum verdict json_unit(struct answer_parser *parser, uint32_t marker)
{
    const uint8_t role = marker < ANSWER_MAX_MARKERS ? parser->family->markers[marker].role : MARKER_NONE;
    const bool between = parser->in_call || parser->json.state == AT_LIST;

    if (role == MARKER_CLOSE)
        return between ? BODY_DONE : BODY_FAILED;
    return role != MARKER_OPEN ? BODY_MORE : between ? BODY_DONE_BEFORE : BODY_FAILED;
}

const struct body answer_json = {.begin = json_begin, .take = json_take, .unit = json_unit};

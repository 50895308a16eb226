// xml.c: calls with a tag for each argument, translated to JSON on their way.
//
//   coder   <tool_call><function=f><parameter=city>Aix</parameter></function></tool_call>
//           <minimax:tool_call><invoke name="f"><parameter name="city">Aix</parameter></invoke></minimax:tool_call>
//   glm     <tool_call>f<arg_key>city</arg_key><arg_value>Aix</arg_value></tool_call>
//
// A value is plain text. It becomes a JSON string where the function's parameter is one, and is passed on while it comes; any other is kept
// until its end, and taken as JSON if it is, or as what models write that have read much Python: True, None, ['a', 1], {'a': (1, 2)}. One
// line feed at either end of a value belongs to the notation.
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/base/checked.h"
#include "common/grammar/utf8.h"
#include "common/json/json_text.h"
#include "services/gateway/answer/internal.h"

enum { TAG_BYTES_MAX = 512 };
enum style { CODER, GLM };

enum state {
    AT_NAME, // white space, <function=f> or, in glm, the name itself
    IN_TAG,
    BETWEEN, // white space, a tag
    IN_KEY,  // glm: between <arg_key> and </arg_key>
    AT_VALUE,
    IN_VALUE,
    AT_END,
};

static void xml_begin(struct answer_parser *parser, uint32_t marker)
{
    const char *text = marker < ANSWER_MAX_MARKERS ? parser->family->markers[marker].text : "";

    parser->xml = (struct xml_body){.state = AT_NAME};
    text_clear(&parser->name);
    text_clear(&parser->value);
    if (!strcmp(text, "<function=")) { // the tag itself is the marker
        text_string(&parser->value, text);
        parser->xml.state = IN_TAG;
    }
}

// Finds what a tag names: <function=f>, <invoke name="f">. The tag lies in parser->value, without its last >.
static bool xml_tag_names(const struct text *tag, const char *equals, const char *attribute, const char **name, size_t *count)
{
    const bool short_form = tag->bytes > strlen(equals) && !memcmp(tag->data, equals, strlen(equals));
    const bool long_form = attribute && tag->bytes > strlen(attribute) && !memcmp(tag->data, attribute, strlen(attribute));
    const size_t skip = strlen(short_form ? equals : attribute ? attribute : "");

    if (!short_form && !long_form)
        return false;
    *name = tag->data + skip;
    *count = tag->bytes - skip;
    while (*count > 0 && (answer_is_space(**name) || **name == '"'))
        *count -= 1, *name += 1;
    while (*count > 0 && (answer_is_space((*name)[*count - 1]) || (*name)[*count - 1] == '"'))
        --*count;
    return *count > 0;
}

static bool xml_tag_is(const struct text *tag, const char *text)
{
    return tag->bytes == strlen(text) && !memcmp(tag->data, text, tag->bytes);
}

static enum verdict xml_begin_call(struct answer_parser *parser, const char *name, size_t count)
{
    text_clear(&parser->name);
    text_append(&parser->name, name, count);
    parser->xml.state = BETWEEN;
    parser->xml.any_parameter = false;
    if (!answer_is_name(parser->name.data, count) || !answer_begin_call(parser, parser->name.data, count))
        return BODY_FAILED;
    answer_put(parser, "{");
    return BODY_MORE;
}

static enum verdict xml_end_call(struct answer_parser *parser)
{
    answer_put(parser, "}");
    answer_end_call(parser);
    parser->xml.state = AT_END;
    parser->xml.ended = true;
    return BODY_MORE;
}

static void xml_begin_parameter(struct answer_parser *parser, const char *name, size_t count)
{
    text_clear(&parser->parameter);
    text_append(&parser->parameter, name, count);
    answer_put(parser, parser->xml.any_parameter ? ", \"" : "\"");
    answer_quote(parser, parser->parameter.data, count);
    answer_put(parser, "\": ");
    parser->xml.any_parameter = true;
}

static void xml_begin_value(struct answer_parser *parser, const char *close)
{
    const struct answer_options *options = &parser->options;
    const enum answer_type type = options->type_of ? options->type_of(options->arg, parser->name.data, parser->name.bytes,
                                                                      parser->parameter.data, parser->parameter.bytes)
                                                   : ANSWER_UNKNOWN;

    parser->xml.close = close;
    parser->xml.is_string = type == ANSWER_STRING;
    parser->xml.is_other = type == ANSWER_OTHER;
    parser->xml.state = AT_VALUE;
    if (parser->xml.is_string)
        answer_put(parser, "\"");
}

// Takes a tag between the arguments.
static enum verdict xml_take_tag(struct answer_parser *parser)
{
    struct text *tag = &parser->value;
    struct xml_body *body = &parser->xml;
    const char *name;
    size_t count;
    enum verdict verdict = BODY_MORE;

    body->state = BETWEEN;
    if (!parser->in_call && xml_tag_names(tag, "<function=", "<invoke name=", &name, &count))
        verdict = xml_begin_call(parser, name, count);
    else if (!parser->in_call && body->ended && (xml_tag_is(tag, "</tool_call") || xml_tag_is(tag, "</minimax:tool_call")))
        verdict = BODY_DONE;
    else if (!parser->in_call && body->ended && (xml_tag_is(tag, "<tool_call") || xml_tag_is(tag, "<minimax:tool_call")))
        body->state = AT_NAME;
    else if (!parser->in_call)
        verdict = BODY_FAILED;
    else if (xml_tag_names(tag, "<parameter=", "<parameter name=", &name, &count)) {
        xml_begin_parameter(parser, name, count);
        xml_begin_value(parser, "</parameter>");
    } else if (xml_tag_is(tag, "<arg_key")) {
        body->state = IN_KEY;
    } else if (xml_tag_is(tag, "<arg_value")) {
        xml_begin_value(parser, "</arg_value>");
    } else if (xml_tag_is(tag, "</function") || xml_tag_is(tag, "</invoke")) {
        verdict = xml_end_call(parser);
    } else if (xml_tag_is(tag, "</tool_call") || xml_tag_is(tag, "</minimax:tool_call")) {
        verdict = xml_end_call(parser);
        verdict = verdict == BODY_MORE ? BODY_DONE : verdict;
    }
    text_clear(tag);
    return verdict;
}

// --- Python's literals --------------------------------------------------------------------------------------------------

// A literal as it is read: the rest of it, and the JSON that it becomes. Reading functions return false if nothing fits there.
struct literal {
    const char *at, *end;
    struct text *out;
    uint32_t depth;
};

static bool read_literal(struct literal *literal);

static void skip_space(struct literal *literal)
{
    while (literal->at < literal->end && answer_is_space(*literal->at))
        literal->at++;
}

// Goes behind a byte, and white space, if it is there.
static bool skip_byte(struct literal *literal, char byte)
{
    skip_space(literal);
    if (literal->at == literal->end || *literal->at != byte)
        return false;
    literal->at++;
    skip_space(literal);
    return true;
}

// Reads an escape, whose backslash has been read. A letter that makes no escape stands for itself, backslash included.
static bool read_escape(struct literal *literal, struct text *text)
{
    static const char names[] = "n\nt\tr\rb\bf\fv\va\a0\0''\"\"\\\\";
    const char letter = literal->at < literal->end ? *literal->at++ : '\0';
    const int digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    unsigned char bytes[GRAMMAR_CHAR_BYTES];
    uint32_t code = 0;

    for (size_t i = 0; i + 1 < sizeof names && letter; i += 2)
        if (names[i] == letter) {
            text_append(text, &names[i + 1], 1);
            return true;
        }
    if (letter == '\n') // the line goes on
        return true;
    if (digits == 0) {
        text_append(text, "\\", 1);
        literal->at -= letter != '\0';
        return letter != '\0';
    }
    for (int i = 0; i < digits; i++) {
        const char *found = literal->at < literal->end && *literal->at ? strchr("00112233445566778899aAbBcCdDeEfF", *literal->at++)
                                                                       : NULL;
        if (!found || code > 0x10ffff)
            return false;
        code = code << 4 | (uint32_t)(found - "00112233445566778899aAbBcCdDeEfF") / 2;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return false;
    text_append(text, (const char *)bytes, grammar_utf8_write(code, bytes));
    return true;
}

static bool read_quoted(struct literal *literal)
{
    const char quote = *literal->at++;
    struct text text = {0};
    bool is_fine = true;
    json_t *string;

    while (is_fine && literal->at < literal->end && *literal->at != quote) {
        const char byte = *literal->at++;
        if (byte == '\\')
            is_fine = read_escape(literal, &text);
        else
            text_append(&text, &byte, 1);
    }
    is_fine = is_fine && literal->at < literal->end;
    literal->at += is_fine;
    string = is_fine ? json_stringn(text.data ? text.data : "", text.bytes) : NULL; // NULL: no UTF-8
    is_fine = string != NULL;
    if (is_fine)
        json_text_append(literal->out, string, false);
    json_decref(string);
    text_free(&text);
    return is_fine;
}

// Reads True, None and their kin, or a number as JSON has them.
static bool read_word(struct literal *literal)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char *start = literal->at;
    size_t count;
    json_t *number;

    while (literal->at < literal->end && *literal->at && (answer_is_name(literal->at, 1) || *literal->at == '+'))
        literal->at++;
    count = (size_t)(literal->at - start);
    for (size_t i = 0; i < ARRAY_COUNT(words); i++)
        if (count == strlen(words[i][0]) && !memcmp(start, words[i][0], count)) {
            text_string(literal->out, words[i][1]);
            return true;
        }
    number = json_text_read(start, count, JSON_DECODE_ANY, NULL);
    if (number)
        text_append(literal->out, start, count);
    json_decref(number);
    return number != NULL;
}

// Reads what is between brackets, the first of which is here. An array: (1, 2), too, but (1) is 1.
static bool read_items(struct literal *literal, char open, char close)
{
    const size_t began = literal->out->bytes;
    size_t count = 0;
    bool is_last = false;

    literal->at++;
    text_string(literal->out, open == '{' ? "{" : "[");
    while (!skip_byte(literal, close)) {
        if (is_last || literal->at == literal->end)
            return false;
        if (count++ > 0)
            text_string(literal->out, ", ");
        if (open == '{') {
            if ((*literal->at != '\'' && *literal->at != '"') || !read_quoted(literal) || !skip_byte(literal, ':'))
                return false;
            text_string(literal->out, ": ");
        }
        if (!read_literal(literal))
            return false;
        is_last = !skip_byte(literal, ',');
    }
    if (open == '(' && count == 1 && is_last && !literal->out->failed) {
        memmove(literal->out->data + began, literal->out->data + began + 1, literal->out->bytes - began - 1);
        literal->out->bytes--;
        return true;
    }
    text_string(literal->out, open == '{' ? "}" : "]");
    return true;
}

static bool read_literal(struct literal *literal)
{
    bool is_fine;

    skip_space(literal);
    if (literal->at == literal->end || literal->depth == NESTING_MAX)
        return false;
    literal->depth++;
    switch (*literal->at) {
    case '[': is_fine = read_items(literal, '[', ']'); break;
    case '(': is_fine = read_items(literal, '(', ')'); break;
    case '{': is_fine = read_items(literal, '{', '}'); break;
    case '\'':
    case '"': is_fine = read_quoted(literal); break;
    default: is_fine = read_word(literal);
    }
    literal->depth--;
    return is_fine;
}

// Reads the value, which is no JSON, as one of Python's, if the parameter's type says that it is no text, or brackets do.
static bool read_python(const struct answer_parser *parser, struct text *out)
{
    const struct text *value = &parser->value;
    struct literal literal = {.at = value->data, .end = value->data + value->bytes, .out = out};
    bool is_fine;

    if (value->bytes == 0 || (!parser->xml.is_other && *value->data != '[' && *value->data != '{'))
        return false;
    is_fine = read_literal(&literal);
    skip_space(&literal);
    return is_fine && literal.at == literal.end && !out->failed;
}

// Writes a value that is no string by its type, complete in parser->value.
static void xml_put_value(struct answer_parser *parser)
{
    struct text *value = &parser->value;
    json_t *json = json_text_read(value->data ? value->data : "", value->bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    struct text text = {0};

    if (json)
        answer_emit(parser, ANSWER_ARGUMENTS, value->data, value->bytes);
    else if (read_python(parser, &text))
        answer_emit(parser, ANSWER_ARGUMENTS, text.data, text.bytes);
    else
        answer_put_string(parser, value);
    text_free(&text);
    json_decref(json);
}

// Passes on what lies before the last `keep` bytes, in whole characters: clients are sent each piece as a string of its own.
static void xml_put_string(struct answer_parser *parser, size_t keep)
{
    struct text *value = &parser->value;
    size_t count = 0;

    while (count < value->bytes && count + text_character_bytes(value->data[count]) + keep <= value->bytes)
        count += text_character_bytes(value->data[count]);
    answer_quote(parser, value->data, count);
    text_consume(value, count);
}

// Bytes of a value. The last ones may be a line feed and the closing tag, or begin with it, so they stay in parser->value.
static void xml_take_value(struct answer_parser *parser, char byte)
{
    struct text *value = &parser->value;
    struct xml_body *body = &parser->xml;
    const size_t length = strlen(body->close);

    text_append(value, &byte, 1);
    if (value->bytes >= length && !memcmp(value->data + value->bytes - length, body->close, length)) {
        value->bytes -= length;
        if (value->bytes > 0 && value->data[value->bytes - 1] == '\n')
            value->bytes--;
        if (body->is_string) {
            answer_quote(parser, value->data, value->bytes);
            answer_put(parser, "\"");
        } else {
            xml_put_value(parser);
        }
        text_clear(value);
        body->state = BETWEEN;
    } else if (body->is_string) {
        xml_put_string(parser, length); // the line feed and all but one byte of the tag
    } else if (value->bytes > ANSWER_MAX_HELD) {
        body->is_string = true;
        answer_put(parser, "\"");
        xml_put_string(parser, length);
    }
}

static enum verdict xml_take_key(struct answer_parser *parser, char byte)
{
    static const char close[] = "</arg_key>";
    struct text *key = &parser->value;

    text_append(key, &byte, 1);
    if (key->bytes > TAG_BYTES_MAX)
        return BODY_DONE_BEFORE;
    if (key->bytes >= strlen(close) && !memcmp(key->data + key->bytes - strlen(close), close, strlen(close))) {
        xml_begin_parameter(parser, key->data, key->bytes - strlen(close));
        text_clear(key);
        parser->xml.state = BETWEEN;
    }
    return BODY_MORE;
}

// Takes the name of a function in glm's notation: up to the end of the line, or a tag.
static enum verdict xml_take_plain_name(struct answer_parser *parser, char byte)
{
    struct text *name = &parser->value;
    enum verdict verdict;

    if (byte != '\n' && byte != '<')
        return answer_hold(name, byte) && name->bytes <= ANSWER_MAX_NAME_BYTES ? BODY_MORE : BODY_FAILED;
    while (name->bytes > 0 && answer_is_space(name->data[name->bytes - 1]))
        name->bytes--;
    verdict = xml_begin_call(parser, name->data, name->bytes);
    text_clear(name);
    if (verdict == BODY_MORE && byte == '<') {
        text_append(name, &byte, 1);
        parser->xml.state = IN_TAG;
    }
    return verdict;
}

static enum verdict xml_take(struct answer_parser *parser, char byte)
{
    struct xml_body *body = &parser->xml;

    switch (body->state) {
    case AT_NAME:
        if (parser->value.bytes == 0 && answer_is_space(byte))
            return BODY_MORE;
        if (parser->family->body->style == GLM && (byte != '<' || parser->value.bytes > 0))
            return xml_take_plain_name(parser, byte);
        if (byte != '<')
            return BODY_FAILED;
        text_append(&parser->value, &byte, 1);
        body->state = IN_TAG;
        return BODY_MORE;
    case BETWEEN:
        if (answer_is_space(byte))
            return BODY_MORE;
        if (byte != '<') {
            (void)xml_end_call(parser);
            return BODY_DONE_BEFORE;
        }
        text_append(&parser->value, &byte, 1);
        body->state = IN_TAG;
        return BODY_MORE;
    case IN_TAG:
        if (byte == '>')
            return xml_take_tag(parser);
        text_append(&parser->value, &byte, 1);
        if (parser->value.bytes <= TAG_BYTES_MAX)
            return BODY_MORE;
        return parser->in_call ? BODY_DONE_BEFORE : BODY_FAILED;
    case IN_KEY: return xml_take_key(parser, byte);
    case AT_VALUE:
        body->state = IN_VALUE;
        if (byte != '\n')
            xml_take_value(parser, byte);
        return BODY_MORE;
    case IN_VALUE: xml_take_value(parser, byte); return BODY_MORE;
    default: // AT_END: the next call, or the end of all
        if (byte != '<')
            return answer_is_space(byte) ? BODY_MORE : BODY_DONE_BEFORE;
        text_append(&parser->value, &byte, 1);
        body->state = IN_TAG;
        return BODY_MORE;
    }
}

static enum verdict xml_unit(struct answer_parser *parser, uint32_t marker)
{
    const uint8_t role = marker < ANSWER_MAX_MARKERS ? parser->family->markers[marker].role : MARKER_NONE;

    if (role != MARKER_OPEN && role != MARKER_CLOSE)
        return BODY_MORE;
    if (!strcmp(parser->family->markers[marker].text, "<function=") && parser->xml.state == AT_NAME) {
        text_string(&parser->value, parser->family->markers[marker].text);
        parser->xml.state = IN_TAG;
        return BODY_MORE;
    }
    if (!parser->in_call && parser->xml.state != AT_END)
        return BODY_FAILED;
    if (parser->in_call && (parser->xml.state == BETWEEN || parser->xml.state == IN_TAG))
        answer_put(parser, "}");
    return role == MARKER_CLOSE ? BODY_DONE : BODY_DONE_BEFORE;
}

// An answer that was cut off in a value shows what there is of it.
static void xml_end(struct answer_parser *parser)
{
    if (!parser->in_call || parser->xml.state != IN_VALUE)
        return;
    if (!parser->xml.is_string)
        answer_put(parser, "\"");
    answer_quote(parser, parser->value.data, parser->value.bytes);
}

const struct body answer_coder = {.begin = xml_begin, .take = xml_take, .unit = xml_unit, .end = xml_end, .style = CODER};
const struct body answer_glm = {.begin = xml_begin, .take = xml_take, .unit = xml_unit, .end = xml_end, .style = GLM};

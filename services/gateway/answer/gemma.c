// gemma.c: calls of functiongemma and its relatives, which are no JSON, and are translated to JSON on their way:
//
//   <start_function_call>call:f{city:<escape>Aix<escape>,days:[1,2]}<end_function_call>   ->   f  {"city":"Aix","days":[1,2]}
//
// Keys and words are plain, strings lie between two <escape> (or <|"|>). A word that is no JSON becomes a string.
#include <string.h>

#include <jansson.h>

#include "common/json/json_text.h"
#include "services/gateway/answer/internal.h"

enum state {
    IN_PREFIX, // "call:"
    IN_NAME,   // up to {
    AT_KEY,    // in an object: a key, or }
    IN_KEY,    // up to the colon
    AT_VALUE,
    IN_WORD, // true, 12, or text
    IN_STRING,
    IN_KEY_STRING,
    AFTER, // a value: a comma or a bracket
    AT_END,
};

static const char prefix[] = "call:";

static void gemma_begin(struct answer_parser *parser, uint32_t marker)
{
    (void)marker;
    parser->gemma = (struct gemma_body){0};
    text_clear(&parser->name);
    text_clear(&parser->value);
}

static bool gemma_in_object(const struct gemma_body *body) { return body->objects >> body->depth & 1; }

static enum verdict gemma_open_bracket(struct answer_parser *parser, char byte)
{
    struct gemma_body *body = &parser->gemma;

    if (body->depth + 1 >= NESTING_MAX)
        return BODY_DONE_BEFORE;
    body->depth++;
    body->objects &= ~(1ull << body->depth);
    body->objects |= (uint64_t)(byte == '{') << body->depth;
    body->state = byte == '{' ? AT_KEY : AT_VALUE;
    answer_emit(parser, ANSWER_ARGUMENTS, &byte, 1);
    return BODY_MORE;
}

static enum verdict gemma_close_bracket(struct answer_parser *parser)
{
    struct gemma_body *body = &parser->gemma;

    answer_put(parser, gemma_in_object(body) ? "}" : "]");
    body->state = AFTER;
    if (--body->depth > 0)
        return BODY_MORE;
    answer_end_call(parser);
    body->state = AT_END;
    return BODY_MORE;
}

// Writes the word that was read as JSON.
static void gemma_put_word(struct answer_parser *parser)
{
    struct text *word = &parser->value;

    while (word->bytes > 0 && answer_is_space(word->data[word->bytes - 1]))
        word->bytes--;
    json_t *value = json_text_read(word->data ? word->data : "", word->bytes, JSON_DECODE_ANY, NULL);
    if (value)
        answer_emit(parser, ANSWER_ARGUMENTS, word->data, word->bytes);
    else
        answer_put_string(parser, word);
    json_decref(value);
    text_clear(word);
}

static enum verdict gemma_take_after(struct answer_parser *parser, char byte)
{
    struct gemma_body *body = &parser->gemma;

    if (answer_is_space(byte))
        return BODY_MORE;
    if (byte == ',') {
        answer_put(parser, ",");
        body->state = gemma_in_object(body) ? AT_KEY : AT_VALUE;
        return BODY_MORE;
    }
    return byte == '}' || byte == ']' ? gemma_close_bracket(parser) : BODY_DONE_BEFORE;
}

static enum verdict gemma_take_name(struct answer_parser *parser, char byte)
{
    struct gemma_body *body = &parser->gemma;

    if (byte != '{') {
        text_append(&parser->name, &byte, 1);
        return parser->name.bytes > ANSWER_MAX_NAME_BYTES ? BODY_FAILED : BODY_MORE;
    }
    if (!answer_is_name(parser->name.data, parser->name.bytes) || !answer_begin_call(parser, parser->name.data, parser->name.bytes))
        return BODY_FAILED;
    body->depth = 0;
    return gemma_open_bracket(parser, byte);
}

static enum verdict gemma_take(struct answer_parser *parser, char byte)
{
    struct gemma_body *body = &parser->gemma;
    struct text *word = &parser->value;

    switch (body->state) {
    case IN_PREFIX:
        if (word->bytes == 0 && answer_is_space(byte))
            return BODY_MORE;
        text_append(word, &byte, 1);
        if (word->bytes > strlen(prefix) || memcmp(word->data, prefix, word->bytes) != 0)
            return BODY_FAILED;
        if (word->bytes < strlen(prefix))
            return BODY_MORE;
        text_clear(word);
        body->state = IN_NAME;
        return BODY_MORE;
    case IN_NAME: return gemma_take_name(parser, byte);
    case AT_KEY:
    case IN_KEY:
        if (body->state == AT_KEY && (answer_is_space(byte) || byte == '}'))
            return byte == '}' ? gemma_close_bracket(parser) : BODY_MORE;
        if (body->state == AT_KEY)
            answer_put(parser, "\"");
        body->state = byte == ':' ? AT_VALUE : IN_KEY;
        if (byte == ':')
            answer_put(parser, "\":");
        else
            answer_quote(parser, &byte, 1);
        return BODY_MORE;
    case AT_VALUE:
        if (answer_is_space(byte) || byte == ':')
            return BODY_MORE;
        if (byte == '{' || byte == '[')
            return gemma_open_bracket(parser, byte);
        if (byte == ']' || byte == '}')
            return gemma_close_bracket(parser);
        body->state = IN_WORD;
        text_append(word, &byte, 1);
        return BODY_MORE;
    case IN_WORD:
        if (byte != ',' && byte != '}' && byte != ']')
            return answer_hold(word, byte) ? BODY_MORE : BODY_DONE_BEFORE;
        gemma_put_word(parser);
        return gemma_take_after(parser, byte);
    case IN_STRING:
    case IN_KEY_STRING: answer_quote(parser, &byte, 1); return BODY_MORE;
    case AFTER: return gemma_take_after(parser, byte);
    default: return answer_is_space(byte) ? BODY_MORE : BODY_DONE_BEFORE;
    }
}

// Takes the mark around strings.
static void gemma_take_quote(struct answer_parser *parser)
{
    struct gemma_body *body = &parser->gemma;

    switch (body->state) {
    case AT_VALUE:
    case AT_KEY:
        answer_put(parser, "\"");
        body->state = body->state == AT_KEY ? IN_KEY_STRING : IN_STRING;
        break;
    case IN_STRING:
        answer_put(parser, "\"");
        body->state = AFTER;
        break;
    case IN_KEY_STRING:
        answer_put(parser, "\":");
        body->state = AT_VALUE; // which skips the colon
        break;
    default: break;
    }
}

static enum verdict gemma_unit(struct answer_parser *parser, uint32_t marker)
{
    const uint8_t role = marker < ANSWER_MAX_MARKERS ? parser->family->markers[marker].role : MARKER_NONE;

    if (role == MARKER_PART && parser->in_call)
        gemma_take_quote(parser);
    if (role == MARKER_PART || role == MARKER_NONE)
        return BODY_MORE;
    if (!parser->in_call && parser->gemma.state != AT_END)
        return BODY_FAILED;
    return role == MARKER_CLOSE ? BODY_DONE : BODY_DONE_BEFORE;
}

const struct body answer_gemma = {.begin = gemma_begin, .take = gemma_take, .unit = gemma_unit, .markers_in_body = true};

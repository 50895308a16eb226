// grammar_parser.c: see grammar_parser.h.
#include "common/grammar/grammar_parser.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/grammar_utf8.h"

void grammar_parser_close(struct grammar_parser *parser)
{
    free(parser->nodes);
    free(parser->ranges);
}

uint32_t grammar_parser_fail(struct grammar_parser *parser, enum status status, size_t at, const char *format, ...)
{
    char text[256];
    size_t line = 1;
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!parser->tells_lines)
        return grammar_builder_fail(parser->builder, status, "regex: byte %zu: %s", at, text);
    for (size_t i = 0; i < at && i < parser->length; i++)
        line += parser->text[i] == '\n';
    return grammar_builder_fail(parser->builder, status, "grammar: line %zu: %s", line, text);
}

// Returns the character at the place, and its length.
static uint32_t read(struct grammar_parser *parser, size_t *bytes)
{
    uint32_t code;

    *bytes = 0;
    if (parser->at >= parser->length || grammar_builder_failed(parser->builder))
        return GRAMMAR_TEXT_END;
    code = grammar_utf8_next(parser->text + parser->at, parser->length - parser->at, bytes);
    if (code != GRAMMAR_BROKEN_CHAR)
        return code;
    *bytes = 0;
    grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "it is not UTF-8");
    return GRAMMAR_TEXT_END;
}

uint32_t grammar_parser_peek(struct grammar_parser *parser)
{
    size_t bytes;

    return read(parser, &bytes);
}

uint32_t grammar_parser_next(struct grammar_parser *parser)
{
    size_t bytes;
    uint32_t code = read(parser, &bytes);

    parser->at += bytes;
    return code;
}

bool grammar_parser_skip(struct grammar_parser *parser, const char *token)
{
    size_t length = strlen(token);

    if (length > parser->length - parser->at || memcmp(parser->text + parser->at, token, length) != 0 ||
        grammar_builder_failed(parser->builder))
        return false;
    parser->at += length;
    return true;
}

uint32_t grammar_parser_hex(struct grammar_parser *parser, uint32_t count)
{
    uint32_t value = 0;

    if (count > parser->length - parser->at)
        return GRAMMAR_TEXT_END;
    for (uint32_t i = 0; i < count; i++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = memchr(digits, parser->text[parser->at + i], sizeof digits - 1);
        if (!digit || value > GRAMMAR_CHAR_MAX) // as one would be that is longer than six digits
            return GRAMMAR_TEXT_END;
        value = value * 16 + (uint32_t)(digit - digits < 16 ? digit - digits : digit - digits - 6);
    }
    parser->at += count;
    return value;
}

// Reads decimal digits; false: there are none. What is too large stays too large.
static bool read_count(const struct grammar_parser *parser, size_t *at, uint32_t *out)
{
    size_t first = *at;

    *out = 0;
    for (; *at < parser->length && parser->text[*at] >= '0' && parser->text[*at] <= '9'; ++*at)
        *out = MIN(*out * 10 + (uint32_t)(parser->text[*at] - '0'), 10u * GRAMMAR_MAX_COUNT);
    return *at > first;
}

bool grammar_parser_counts(struct grammar_parser *parser, uint32_t *min, uint32_t *max)
{
    size_t at = parser->at + 1;

    if (parser->at >= parser->length || parser->text[parser->at] != '{' || !read_count(parser, &at, min))
        return false;
    *max = *min;
    if (at < parser->length && parser->text[at] == ',') {
        at++;
        if (!read_count(parser, &at, max))
            *max = GRAMMAR_NO_LIMIT;
    }
    if (at >= parser->length || parser->text[at] != '}')
        return false;
    if (*min > GRAMMAR_MAX_COUNT || (*max > GRAMMAR_MAX_COUNT && *max != GRAMMAR_NO_LIMIT))
        grammar_parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, parser->at, "the repetition count is larger than %d",
                            GRAMMAR_MAX_COUNT);
    else if (*min > *max)
        grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "the repetition counts are out of order");
    parser->at = at + 1;
    return true;
}

// Makes room for one more element. Returns false, and the builder fails, without memory.
static bool grow(struct grammar_parser *parser, void **array, size_t size, uint32_t count, uint32_t *capacity)
{
    uint32_t wanted = *capacity ? *capacity * 2 : 32;
    void *grown;

    if (grammar_builder_failed(parser->builder))
        return false;
    if (count < *capacity)
        return true;
    grown = wanted <= GRAMMAR_MAX_NODES ? realloc(*array, wanted * size) : NULL;
    if (!grown) {
        grammar_parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, parser->at, "it has too many parts");
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}

bool grammar_parser_quantifier(struct grammar_parser *parser, uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = GRAMMAR_NO_LIMIT;
    if (grammar_parser_skip(parser, "+"))
        *min = 1;
    else if (grammar_parser_skip(parser, "?"))
        *max = 1;
    else if (!grammar_parser_skip(parser, "*"))
        return grammar_parser_counts(parser, min, max);
    return true;
}

void grammar_parser_push(struct grammar_parser *parser, uint32_t node)
{
    void *array = parser->nodes;
    bool fits = grow(parser, &array, sizeof *parser->nodes, parser->node_count, &parser->node_capacity);

    parser->nodes = array;
    if (fits)
        parser->nodes[parser->node_count++] = node;
}

// Takes the nodes from `first` on off the stack and returns where they are.
static const uint32_t *take(struct grammar_parser *parser, uint32_t first, uint32_t *count)
{
    *count = parser->node_count - MIN(first, parser->node_count);
    parser->node_count -= *count;
    return *count ? parser->nodes + parser->node_count : NULL;
}

uint32_t grammar_parser_take_sequence(struct grammar_parser *parser, uint32_t first)
{
    uint32_t count;
    const uint32_t *nodes = take(parser, first, &count);

    return grammar_sequence(parser->builder, nodes, count);
}

uint32_t grammar_parser_take_either(struct grammar_parser *parser, uint32_t first)
{
    uint32_t count;
    const uint32_t *nodes = take(parser, first, &count);

    return grammar_either(parser->builder, nodes, count);
}

void grammar_parser_add_range(struct grammar_parser *parser, uint32_t first, uint32_t last)
{
    void *array = parser->ranges;
    bool fits = grow(parser, &array, sizeof *parser->ranges, parser->range_count, &parser->range_capacity);

    parser->ranges = array;
    if (fits)
        parser->ranges[parser->range_count++] = (struct grammar_range){first, last};
}

uint32_t grammar_parser_take_class(struct grammar_parser *parser, bool negated)
{
    uint32_t count = parser->range_count;

    parser->range_count = 0;
    return grammar_chars(parser->builder, parser->ranges, count, negated);
}

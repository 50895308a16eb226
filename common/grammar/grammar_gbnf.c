// grammar_gbnf.c: see grammar_add_gbnf() in grammar_text.h: GBNF by recursive descent.
//
//     grammar  = { name "::=" either newline }        literal = '"' { character | escape } '"'
//     either   = sequence { "|" sequence }            class   = "[" [ "^" ] { character [ "-" character ] } "]"
//     sequence = { atom [ quantifier ] }              atom    = literal | class | "." | name | "<" token ">" | "(" either ")"
//
// "#" begins a comment. A rule ends with its line, but within parentheses and after "::=" and "|" it goes on.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/grammar_parser.h"
#include "common/grammar/grammar_text.h"
#include "common/grammar/grammar_utf8.h"

enum { MAX_NAME = 79, MIN_SLOTS = 64, MAX_SLOTS = 2 * GRAMMAR_MAX_RULES };

struct name {
    const char *text;
    uint32_t length, rule;
    bool is_set;
    size_t used_at;
};

struct gbnf {
    struct grammar_parser parser;
    struct name *names; // [slots] a hash table; length 0: empty
    uint32_t slots, name_count;
};

static uint32_t parse_either(struct gbnf *gbnf);

static bool is_name(uint32_t code)
{
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || (code >= '0' && code <= '9') || code == '-' ||
           code == '_';
}

// Skips white space and comments; lines: newlines, too.
static void skip_space(struct gbnf *gbnf, bool lines)
{
    struct grammar_parser *parser = &gbnf->parser;

    while (parser->at < parser->length) {
        char byte = parser->text[parser->at];
        if (byte == '#') {
            while (parser->at < parser->length && parser->text[parser->at] != '\n')
                parser->at++;
            continue;
        }
        if (byte != ' ' && byte != '\t' && byte != '\r' && !(lines && byte == '\n'))
            return;
        parser->at++;
    }
}

// Reads a name and returns its place in the table, or NULL with a failed builder.
static struct name *parse_name(struct gbnf *gbnf)
{
    struct grammar_parser *parser = &gbnf->parser;
    const char *text = parser->text + parser->at;
    char copy[MAX_NAME + 1];
    size_t length = 0;
    uint32_t slot = 2166136261u;
    struct name *name;

    while (parser->at + length < parser->length && is_name((unsigned char)text[length]))
        slot = (slot ^ (unsigned char)text[length++]) * 16777619u;
    if (!length || length > MAX_NAME || grammar_builder_failed(parser->builder)) {
        grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at,
                            length ? "the name of a rule has more than %d letters" : "the name of a rule is expected here",
                            MAX_NAME);
        return NULL;
    }
    for (slot %= gbnf->slots;; slot = (slot + 1) % gbnf->slots) {
        name = &gbnf->names[slot];
        if (!name->length)
            break;
        if (name->length == length && memcmp(name->text, text, length) == 0) {
            parser->at += length;
            return name;
        }
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    *name =
        (struct name){.text = text, .length = (uint32_t)length, .rule = grammar_rule(parser->builder, copy), .used_at = parser->at};
    if (++gbnf->name_count >= GRAMMAR_MAX_RULES)
        grammar_parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, parser->at, "there are more than %d rules", GRAMMAR_MAX_RULES);
    parser->at += length;
    return name;
}

/* --- atoms --------------------------------------------------------------------------------------------------------------------- */

// Reads a character of a literal or a class, which may be an escape.
static uint32_t parse_char(struct gbnf *gbnf)
{
    static const char names[] = "t\tn\nr\r\\\\\"\"[[]]--^^";
    struct grammar_parser *parser = &gbnf->parser;
    size_t at = parser->at;
    uint32_t code = grammar_parser_next(parser), letter;

    if (code != '\\')
        return code;
    letter = grammar_parser_next(parser);
    for (const char *name = names; *name; name += 2)
        if ((uint32_t)*name == letter)
            return (uint32_t)name[1];
    code = letter == 'x' || letter == 'u' || letter == 'U' ? grammar_parser_hex(parser, letter == 'x'   ? 2
                                                                                        : letter == 'u' ? 4
                                                                                                        : 8)
                                                           : (uint32_t)GRAMMAR_TEXT_END;
    if (code > GRAMMAR_CHAR_MAX || (code >= 0xd800 && code < 0xe000))
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "unknown escape");
    return code;
}

static uint32_t parse_literal(struct gbnf *gbnf, size_t at)
{
    struct grammar_parser *parser = &gbnf->parser;
    const uint32_t first = parser->node_count;
    unsigned char bytes[256];
    size_t count = 0;

    while (!grammar_parser_skip(parser, "\"")) {
        uint32_t code = grammar_parser_peek(parser);
        if (code == GRAMMAR_TEXT_END)
            return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the literal has no end");
        code = parse_char(gbnf);
        if (grammar_builder_failed(parser->builder))
            return 0;
        if (count + GRAMMAR_CHAR_BYTES > sizeof bytes) {
            grammar_parser_push(parser, grammar_bytes(parser->builder, (const char *)bytes, count));
            count = 0;
        }
        count += grammar_utf8_write(code, bytes + count);
    }
    grammar_parser_push(parser, grammar_bytes(parser->builder, (const char *)bytes, count));
    return grammar_parser_take_sequence(parser, first);
}

static uint32_t parse_class(struct gbnf *gbnf, size_t at)
{
    struct grammar_parser *parser = &gbnf->parser;
    const bool negated = grammar_parser_skip(parser, "^");

    while (!grammar_parser_skip(parser, "]")) {
        uint32_t first, last;
        if (grammar_parser_peek(parser) == GRAMMAR_TEXT_END)
            return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the class has no end");
        first = parse_char(gbnf);
        last = first;
        if (parser->at + 1 < parser->length && parser->text[parser->at] == '-' && parser->text[parser->at + 1] != ']') {
            parser->at++;
            last = parse_char(gbnf);
            if (first > last || last == GRAMMAR_TEXT_END)
                return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "a range of the class is out of order");
        }
        grammar_parser_add_range(parser, first, last);
    }
    return grammar_parser_take_class(parser, negated);
}

// Reads a token's name, whose "<" has been read. The name has its brackets: <think>.
static uint32_t parse_token(struct gbnf *gbnf, size_t at)
{
    struct grammar_parser *parser = &gbnf->parser;
    const char *end = memchr(parser->text + at, '>', parser->length - at);
    char name[MAX_NAME + 1];
    size_t length = end ? (size_t)(end - (parser->text + at)) + 1 : 0;

    if (!length || length > MAX_NAME || memchr(parser->text + at, '\n', length) || parser->text[at + 1] == '[')
        return grammar_parser_fail(parser, STATUS_UNIMPLEMENTED, at, "a token is written as its name, such as <think>");
    memcpy(name, parser->text + at, length);
    name[length] = '\0';
    parser->at = at + length;
    return grammar_special(parser->builder, name);
}

static uint32_t parse_group(struct gbnf *gbnf, size_t at)
{
    struct grammar_parser *parser = &gbnf->parser;
    uint32_t node;

    if (++parser->nesting > GRAMMAR_MAX_NESTING)
        return grammar_parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, at, "groups are nested deeper than %d", GRAMMAR_MAX_NESTING);
    node = parse_either(gbnf);
    parser->nesting--;
    if (!grammar_parser_skip(parser, ")"))
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the group has no end");
    return node;
}

static uint32_t parse_atom(struct gbnf *gbnf)
{
    struct grammar_parser *parser = &gbnf->parser;
    size_t at = parser->at;
    struct name *name;

    if (grammar_parser_skip(parser, "\""))
        return parse_literal(gbnf, at);
    if (grammar_parser_skip(parser, "["))
        return parse_class(gbnf, at);
    if (grammar_parser_skip(parser, "("))
        return parse_group(gbnf, at);
    if (grammar_parser_skip(parser, "."))
        return grammar_chars(parser->builder, NULL, 0, true);
    if (grammar_parser_skip(parser, "<"))
        return parse_token(gbnf, at);
    if (!is_name(grammar_parser_peek(parser)))
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "this begins no part of a rule");
    name = parse_name(gbnf);
    return name ? grammar_call(parser->builder, name->rule) : 0;
}

/* --- rules --------------------------------------------------------------------------------------------------------------------- */

static uint32_t parse_quantifier(struct gbnf *gbnf, uint32_t node)
{
    struct grammar_parser *parser = &gbnf->parser;
    uint32_t min, max;

    if (!grammar_parser_quantifier(parser, &min, &max))
        return node;
    return grammar_repeat(parser->builder, node, min, max);
}

static uint32_t parse_sequence(struct gbnf *gbnf)
{
    struct grammar_parser *parser = &gbnf->parser;
    const uint32_t first = parser->node_count;

    for (;;) {
        uint32_t code = grammar_parser_peek(parser);
        if (code == GRAMMAR_TEXT_END || code == '|' || code == ')' || code == '\n')
            return grammar_parser_take_sequence(parser, first);
        grammar_parser_push(parser, parse_quantifier(gbnf, parse_atom(gbnf)));
        skip_space(gbnf, parser->nesting > 0);
    }
}

static uint32_t parse_either(struct gbnf *gbnf)
{
    struct grammar_parser *parser = &gbnf->parser;
    const uint32_t first = parser->node_count;

    do {
        skip_space(gbnf, true);
        grammar_parser_push(parser, parse_sequence(gbnf));
    } while (grammar_parser_skip(parser, "|"));
    return grammar_parser_take_either(parser, first);
}

static void parse_rule(struct gbnf *gbnf)
{
    struct grammar_parser *parser = &gbnf->parser;
    size_t at = parser->at;
    struct name *name = parse_name(gbnf);
    uint32_t node;

    skip_space(gbnf, false);
    if (!name || !grammar_parser_skip(parser, "::=")) {
        grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "::= is expected here");
        return;
    }
    if (name->is_set) {
        grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "rule '%.*s' is there twice", (int)name->length, name->text);
        return;
    }
    name->is_set = true;
    node = parse_either(gbnf);
    grammar_rule_set(parser->builder, name->rule, node);
    if (parser->at < parser->length && !grammar_parser_skip(parser, "\n"))
        grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "the parenthesis closes nothing");
}

static uint32_t parse_rules(struct gbnf *gbnf)
{
    struct grammar_parser *parser = &gbnf->parser;
    struct name *root = NULL;

    for (skip_space(gbnf, true); parser->at < parser->length && !grammar_builder_failed(parser->builder); skip_space(gbnf, true))
        parse_rule(gbnf);
    for (uint32_t slot = 0; slot < gbnf->slots; slot++) {
        struct name *name = &gbnf->names[slot];
        if (name->length && !name->is_set)
            return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, name->used_at, "rule '%.*s' is not defined",
                                       (int)name->length, name->text);
        if (name->length == strlen("root") && memcmp(name->text, "root", strlen("root")) == 0)
            root = name;
    }
    if (!root)
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, 0, "there is no rule 'root'");
    return grammar_call(parser->builder, root->rule);
}

uint32_t grammar_add_gbnf(struct grammar_builder *builder, const char *text, size_t length)
{
    struct gbnf gbnf = {.parser = {.builder = builder, .text = text, .length = length, .tells_lines = true}};
    uint32_t node;

    if (length > GRAMMAR_MAX_BYTES)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "grammar: it is longer than %d bytes", GRAMMAR_MAX_BYTES);
    gbnf.slots = MIN_SLOTS;
    while (gbnf.slots < length && gbnf.slots < MAX_SLOTS) // a name takes two bytes at least, with what sets it apart
        gbnf.slots *= 2;
    gbnf.names = calloc(gbnf.slots, sizeof *gbnf.names);
    if (!gbnf.names)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    node = parse_rules(&gbnf);
    grammar_parser_close(&gbnf.parser);
    free(gbnf.names);
    return node;
}

enum status grammar_from_gbnf(const char *text, size_t length, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();

    return grammar_builder_finish(builder, builder ? grammar_add_gbnf(builder, text, length) : 0, out, error);
}

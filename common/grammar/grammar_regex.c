// grammar_regex.c: see grammar_add_regex() in grammar_text.h: a regular expression by recursive descent.
//
//     either   = sequence { "|" sequence }            group = "(" [ "?:" | "?=" | "?!" | "?<" name ">" | "?P<" name ">" ] either ")"
//     sequence = { atom [ quantifier [ "?" ] ] }      atom  = character | "." | escape | class | group | "^" | "$" | "\\b" | "\\B"
//
// That a quantifier is lazy makes no difference to which texts match. "{", "}" and "]" that cannot be anything else stand for themselves, as in browsers.
#include "common/grammar/grammar_parser.h"
#include "common/grammar/grammar_builder_state.h"
#include "common/grammar/grammar_regular.h"
#include "common/grammar/grammar_text.h"

#include "common/base/checked.h"

struct regex {
    struct grammar_parser parser;
    bool has_anchors;
};

enum { HIGH_SURROGATE = 0xd800, LOW_SURROGATE = 0xdc00, SURROGATES_END = 0xe000 };

static const struct grammar_range digit_ranges[] = {{'0', '9'}};
static const struct grammar_range word_ranges[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct grammar_range space_ranges[] = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                                                    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                                    {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const struct grammar_range line_ranges[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static uint32_t parse_either(struct regex *regex);

/* --- characters --------------------------------------------------------------------------------------------------------------- */

// Adds ranges that are in order and do not touch, or all characters but those.
static void add_ranges(struct regex *regex, const struct grammar_range *ranges, uint32_t count, bool negated)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (!negated)
            grammar_parser_add_range(&regex->parser, ranges[i].first, ranges[i].last);
        else if (ranges[i].first > next)
            grammar_parser_add_range(&regex->parser, next, ranges[i].first - 1);
        next = ranges[i].last + 1;
    }
    if (negated)
        grammar_parser_add_range(&regex->parser, next, GRAMMAR_CHAR_MAX);
}

// Adds the ranges of \d, \w, \s and their opposites. Returns false if the letter is none of them.
static bool add_class_escape(struct regex *regex, uint32_t letter)
{
    switch (letter) {
    case 'd':
    case 'D': add_ranges(regex, digit_ranges, ARRAY_COUNT(digit_ranges), letter == 'D'); return true;
    case 'w':
    case 'W': add_ranges(regex, word_ranges, ARRAY_COUNT(word_ranges), letter == 'W'); return true;
    case 's':
    case 'S': add_ranges(regex, space_ranges, ARRAY_COUNT(space_ranges), letter == 'S'); return true;
    default: return false;
    }
}

// Reads what follows "\u": four digits, two such escapes that are one character, or digits in braces.
static uint32_t parse_unicode(struct regex *regex, size_t at)
{
    struct grammar_parser *parser = &regex->parser;
    uint32_t code, low;

    if (grammar_parser_skip(parser, "{")) {
        uint32_t digits = 0;
        while (parser->at + digits < parser->length && parser->text[parser->at + digits] != '}' && digits < 8)
            digits++;
        code = digits ? grammar_parser_hex(parser, digits) : (uint32_t)GRAMMAR_TEXT_END;
        if (!grammar_parser_skip(parser, "}"))
            code = GRAMMAR_TEXT_END;
    } else
        code = grammar_parser_hex(parser, 4);
    if (code >= HIGH_SURROGATE && code < LOW_SURROGATE && grammar_parser_skip(parser, "\\u")) {
        low = grammar_parser_hex(parser, 4);
        code = low >= LOW_SURROGATE && low < SURROGATES_END ? 0x10000 + ((code - HIGH_SURROGATE) << 10) + (low - LOW_SURROGATE)
                                                            : (uint32_t)GRAMMAR_TEXT_END;
    }
    if (code > GRAMMAR_CHAR_MAX || (code >= HIGH_SURROGATE && code < SURROGATES_END))
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "\\u without a character's digits");
    return code;
}

// Reads the character that an escape stands for, whose backslash and letter have been read.
static uint32_t parse_char_escape(struct regex *regex, uint32_t letter, size_t at)
{
    static const char names[] = "t\tn\nr\rf\fv\v";
    struct grammar_parser *parser = &regex->parser;
    uint32_t code;

    for (const char *name = names; *name; name += 2)
        if ((uint32_t)*name == letter)
            return (uint32_t)name[1];
    switch (letter) {
    case 'u': return parse_unicode(regex, at);
    case 'x':
        code = grammar_parser_hex(parser, 2);
        return code != GRAMMAR_TEXT_END ? code : grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "\\x without two digits");
    case 'c':
        code = grammar_parser_next(parser);
        if ((code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z'))
            return code & 31;
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "\\c without a letter");
    case '0':
        code = grammar_parser_peek(parser);
        if (code < '0' || code > '9')
            return 0;
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "octal escapes are not supported");
    case 'p':
    case 'P': return grammar_parser_fail(parser, STATUS_UNIMPLEMENTED, at, "\\%c is not supported", (char)letter);
    case GRAMMAR_TEXT_END: return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "nothing follows the backslash");
    default: break;
    }
    if ((letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "unknown escape \\%c", (char)letter);
    return letter;
}

// Reads an end of a range of a class, or a set like \d, which it adds: then it returns GRAMMAR_TEXT_END.
static uint32_t parse_class_atom(struct regex *regex)
{
    size_t at = regex->parser.at;
    uint32_t code = grammar_parser_next(&regex->parser);

    if (code != '\\')
        return code;
    code = grammar_parser_next(&regex->parser);
    if (code == 'b')
        return '\b';
    return add_class_escape(regex, code) ? (uint32_t)GRAMMAR_TEXT_END : parse_char_escape(regex, code, at);
}

// Reads a class, whose "[" has been read.
static uint32_t parse_class(struct regex *regex, size_t at)
{
    struct grammar_parser *parser = &regex->parser;
    const bool negated = grammar_parser_skip(parser, "^");

    while (!grammar_parser_skip(parser, "]")) {
        size_t atom_at = parser->at;
        uint32_t first, last;
        if (grammar_parser_peek(parser) == GRAMMAR_TEXT_END)
            return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the class has no end");
        first = last = parse_class_atom(regex);
        // "-" is itself beside a set like \d, and at the end of the class.
        if (first != GRAMMAR_TEXT_END && parser->at + 1 < parser->length && parser->text[parser->at] == '-' &&
            parser->text[parser->at + 1] != ']') {
            parser->at++;
            last = parse_class_atom(regex);
            if (last == GRAMMAR_TEXT_END) {
                grammar_parser_add_range(parser, '-', '-');
                last = first;
            } else if (first > last)
                return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, atom_at, "a range of the class is out of order");
        }
        if (first != GRAMMAR_TEXT_END)
            grammar_parser_add_range(parser, first, last);
    }
    return grammar_parser_take_class(parser, negated);
}

static uint32_t one_char(struct regex *regex, uint32_t code)
{
    unsigned char bytes[GRAMMAR_CHAR_BYTES];

    if (grammar_builder_failed(regex->parser.builder))
        return 0;
    return grammar_bytes(regex->parser.builder, (const char *)bytes, grammar_utf8_write(code, bytes));
}

/* --- what is made of them ------------------------------------------------------------------------------------------------------ */

static uint32_t parse_anchor(struct regex *regex, uint32_t symbol)
{
    regex->has_anchors = true;
    return grammar_add_anchor(regex->parser.builder, symbol);
}

static uint32_t add_look(struct regex *regex, uint32_t node, bool is_negative)
{
    regex->has_anchors = true;
    return grammar_add_look(regex->parser.builder, node, is_negative);
}

// \b is a place between a character of \w and none, \B any other.
static uint32_t parse_boundary(struct regex *regex, bool is_boundary)
{
    struct grammar_builder *builder = regex->parser.builder;
    uint32_t options[2], parts[2];

    for (int behind = 0; behind < 2; behind++) {
        add_ranges(regex, word_ranges, ARRAY_COUNT(word_ranges), false);
        parts[0] = parse_anchor(regex, behind ? GRAMMAR_BEHIND_WORD : GRAMMAR_BEHIND_OTHER);
        parts[1] = add_look(regex, grammar_parser_take_class(&regex->parser, false), behind == is_boundary);
        options[behind] = grammar_sequence(builder, parts, 2);
    }
    return grammar_either(builder, options, 2);
}

static uint32_t parse_escape(struct regex *regex, size_t at)
{
    struct grammar_parser *parser = &regex->parser;
    uint32_t letter = grammar_parser_next(parser);

    if (add_class_escape(regex, letter))
        return grammar_parser_take_class(parser, false);
    if (letter == 'b' || letter == 'B')
        return parse_boundary(regex, letter == 'b');
    if (letter == 'k' || (letter >= '1' && letter <= '9'))
        return grammar_parser_fail(parser, STATUS_UNIMPLEMENTED, at, "back references are not supported");
    return one_char(regex, parse_char_escape(regex, letter, at));
}

// Reads a group, whose "(" has been read.
static uint32_t parse_group(struct regex *regex, size_t at)
{
    struct grammar_parser *parser = &regex->parser;
    const bool is_negative = grammar_parser_skip(parser, "?!"), looks = is_negative || grammar_parser_skip(parser, "?=");
    uint32_t node;

    if (grammar_parser_skip(parser, "?<=") || grammar_parser_skip(parser, "?<!"))
        return grammar_parser_fail(parser, STATUS_UNIMPLEMENTED, at, "look-behind is not supported");
    if (looks)
        ;
    else if (grammar_parser_skip(parser, "?<") || grammar_parser_skip(parser, "?P<")) {
        while (!grammar_parser_skip(parser, ">"))
            if (grammar_parser_next(parser) == GRAMMAR_TEXT_END)
                return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the group's name has no end");
    } else if (!grammar_parser_skip(parser, "?:") && grammar_parser_skip(parser, "?"))
        return grammar_parser_fail(parser, STATUS_UNIMPLEMENTED, at, "this kind of group is not supported");
    if (++parser->nesting > GRAMMAR_MAX_NESTING)
        return grammar_parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, at, "groups are nested deeper than %d", GRAMMAR_MAX_NESTING);
    node = parse_either(regex);
    parser->nesting--;
    if (!grammar_parser_skip(parser, ")"))
        return grammar_parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the group has no end");
    return looks ? add_look(regex, node, is_negative) : node;
}

static uint32_t parse_atom(struct regex *regex)
{
    size_t at = regex->parser.at;
    uint32_t code, min, max;

    if (grammar_parser_counts(&regex->parser, &min, &max))
        return grammar_parser_fail(&regex->parser, STATUS_INVALID_ARGUMENT, at, "there is nothing to repeat");
    code = grammar_parser_next(&regex->parser);

    switch (code) {
    case '(': return parse_group(regex, at);
    case '[': return parse_class(regex, at);
    case '\\': return parse_escape(regex, at);
    case '^': return parse_anchor(regex, GRAMMAR_AT_START);
    case '$': return parse_anchor(regex, GRAMMAR_AT_END);
    case '.': return grammar_chars(regex->parser.builder, line_ranges, ARRAY_COUNT(line_ranges), true);
    case '*':
    case '+':
    case '?': return grammar_parser_fail(&regex->parser, STATUS_INVALID_ARGUMENT, at, "there is nothing to repeat");
    default: return one_char(regex, code);
    }
}

// Reads a quantifier if there is one, and returns the node so often.
static uint32_t parse_quantifier(struct regex *regex, uint32_t node)
{
    struct grammar_parser *parser = &regex->parser;
    uint32_t min, max;

    if (!grammar_parser_quantifier(parser, &min, &max))
        return node;
    grammar_parser_skip(parser, "?"); // as few as possible: the texts are the same
    return grammar_repeat(parser->builder, node, min, max);
}

static uint32_t parse_sequence(struct regex *regex)
{
    struct grammar_parser *parser = &regex->parser;
    const uint32_t first = parser->node_count;

    for (;;) {
        uint32_t code = grammar_parser_peek(parser);
        if (code == GRAMMAR_TEXT_END || code == '|' || code == ')')
            return grammar_parser_take_sequence(parser, first);
        grammar_parser_push(parser, parse_quantifier(regex, parse_atom(regex)));
    }
}

static uint32_t parse_either(struct regex *regex)
{
    struct grammar_parser *parser = &regex->parser;
    const uint32_t first = parser->node_count;

    do
        grammar_parser_push(parser, parse_sequence(regex));
    while (grammar_parser_skip(parser, "|"));
    return grammar_parser_take_either(parser, first);
}

uint32_t grammar_add_regex(struct grammar_builder *builder, const char *text, size_t length, bool anchored)
{
    struct regex regex = {.parser = {.builder = builder, .text = text, .length = length}};
    uint32_t nodes[3];

    if (length > GRAMMAR_MAX_BYTES)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "regex: it is longer than %d bytes", GRAMMAR_MAX_BYTES);
    nodes[1] = parse_either(&regex);
    if (regex.parser.at < length)
        grammar_parser_fail(&regex.parser, STATUS_INVALID_ARGUMENT, regex.parser.at, "the parenthesis closes nothing");
    grammar_parser_close(&regex.parser);
    if (!anchored) {
        nodes[0] = grammar_repeat(builder, grammar_chars(builder, NULL, 0, true), 0, GRAMMAR_NO_LIMIT);
        nodes[2] = nodes[0];
        nodes[1] = grammar_sequence(builder, nodes, 3);
    }
    return regex.has_anchors ? grammar_settle_anchors(builder, nodes[1]) : nodes[1];
}

enum status grammar_from_regex(const char *regex, size_t length, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();

    return grammar_builder_finish(builder, builder ? grammar_add_regex(builder, regex, length, true) : 0, out, error);
}

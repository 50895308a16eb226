// text.c: grammars from text: regular expressions and GBNF by recursive descent, and lists of choices.
//
// Regular expressions:
//
//     either   = sequence { "|" sequence }            group = "(" [ "?:" | "?=" | "?!" | "?<" name ">" | "?P<" name ">" ] either ")"
//     sequence = { atom [ quantifier [ "?" ] ] }      atom  = character | "." | escape | class | group | "^" | "$" | "\\b" | "\\B"
//
// A lazy quantifier matches the same texts as a greedy one. "{", "}" and "]" that cannot be anything else stand for themselves, as
// in browsers.
//
// GBNF:
//
//     grammar  = { name "::=" either newline }        literal = '"' { character | escape } '"'
//     either   = sequence { "|" sequence }            class   = "[" [ "^" ] { character [ "-" character ] } "]"
//     sequence = { atom [ quantifier ] }              atom    = literal | class | "." | name | "<" token ">" | "(" either ")"
//
// "#" begins a comment. A rule ends with its line, but within parentheses and after "::=" and "|" it goes on.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/builder_state.h"
#include "common/grammar/utf8.h"

// --- what both parsers share

enum {
    MAX_NESTING = 200, // parentheses in each other
    MAX_COUNT = 1 << 20,
    TEXT_END = UINT32_MAX - 1, // no character
};

// A struct of zeros with its first four fields set is ready.
struct parser {
    struct grammar_builder *builder;
    const char *text;
    size_t length;
    bool tells_lines; // in errors, and bytes otherwise
    size_t at;
    uint32_t nesting;
    uint32_t *nodes; // a stack
    uint32_t node_count, node_capacity;
    struct grammar_range *ranges; // the class at hand
    uint32_t range_count, range_capacity;
};

static void parser_close(struct parser *parser)
{
    free(parser->nodes);
    free(parser->ranges);
}

// Makes the builder fail: "regex: byte 12: ..." or "grammar: line 3: ..." of the place `at`. Returns 0.
static uint32_t parser_fail(struct parser *parser, enum status status, size_t at, const char *format, ...)
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
static uint32_t parser_read(struct parser *parser, size_t *bytes)
{
    uint32_t code;

    *bytes = 0;
    if (parser->at >= parser->length || grammar_builder_failed(parser->builder))
        return TEXT_END;
    code = grammar_utf8_next(parser->text + parser->at, parser->length - parser->at, bytes);
    if (code != GRAMMAR_BROKEN_CHAR)
        return code;
    *bytes = 0;
    parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "it is not UTF-8");
    return TEXT_END;
}

// Returns the character here; TEXT_END at the end. Text that is not UTF-8 makes the builder fail, and is the end.
static uint32_t parser_peek(struct parser *parser)
{
    size_t bytes;

    return parser_read(parser, &bytes);
}

// Returns the character here and goes behind it.
static uint32_t parser_next(struct parser *parser)
{
    size_t bytes;
    uint32_t code = parser_read(parser, &bytes);

    parser->at += bytes;
    return code;
}

// Goes behind `token` if it is here, and returns whether it was.
static bool parser_skip(struct parser *parser, const char *token)
{
    size_t length = strlen(token);

    if (length > parser->length - parser->at || memcmp(parser->text + parser->at, token, length) != 0 ||
        grammar_builder_failed(parser->builder))
        return false;
    parser->at += length;
    return true;
}

// Reads `count` hexadecimal digits. Returns TEXT_END, and stays, if there are fewer.
static uint32_t parser_hex(struct parser *parser, uint32_t count)
{
    uint32_t value = 0;

    if (count > parser->length - parser->at)
        return TEXT_END;
    for (uint32_t i = 0; i < count; i++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = memchr(digits, parser->text[parser->at + i], sizeof digits - 1);
        if (!digit || value > GRAMMAR_CHAR_MAX) // as one would be that is longer than six digits
            return TEXT_END;
        value = value * 16 + (uint32_t)(digit - digits < 16 ? digit - digits : digit - digits - 6);
    }
    parser->at += count;
    return value;
}

// Reads decimal digits; false: there are none. What is too large stays too large.
static bool parser_read_count(const struct parser *parser, size_t *at, uint32_t *out)
{
    size_t first = *at;

    *out = 0;
    for (; *at < parser->length && parser->text[*at] >= '0' && parser->text[*at] <= '9'; ++*at)
        *out = MIN(*out * 10 + (uint32_t)(parser->text[*at] - '0'), 10u * MAX_COUNT);
    return *at > first;
}

// Reads "{m}", "{m,}" or "{m,n}". Returns false, and stays, if it is none. A count above MAX_COUNT makes the builder fail.
static bool parser_counts(struct parser *parser, uint32_t *min, uint32_t *max)
{
    size_t at = parser->at + 1;

    if (parser->at >= parser->length || parser->text[parser->at] != '{' || !parser_read_count(parser, &at, min))
        return false;
    *max = *min;
    if (at < parser->length && parser->text[at] == ',') {
        at++;
        if (!parser_read_count(parser, &at, max))
            *max = GRAMMAR_NO_LIMIT;
    }
    if (at >= parser->length || parser->text[at] != '}')
        return false;
    if (*min > MAX_COUNT || (*max > MAX_COUNT && *max != GRAMMAR_NO_LIMIT))
        parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, parser->at, "the repetition count is larger than %d", MAX_COUNT);
    else if (*min > *max)
        parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "the repetition counts are out of order");
    parser->at = at + 1;
    return true;
}

// Makes room for one more element. Returns false, and the builder fails, without memory.
static bool parser_grow(struct parser *parser, void **array, size_t size, uint32_t count, uint32_t *capacity)
{
    uint32_t wanted = *capacity ? *capacity * 2 : 32;
    void *grown;

    if (grammar_builder_failed(parser->builder))
        return false;
    if (count < *capacity)
        return true;
    if (wanted > GRAMMAR_MAX_NODES) {
        parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, parser->at, "it has too many parts");
        return false;
    }
    if (!(grown = realloc(*array, wanted * size))) {
        parser_fail(parser, STATUS_UNAVAILABLE, parser->at, "out of memory");
        return false;
    }
    *array = grown;
    *capacity = wanted;
    return true;
}

// Reads "*", "+", "?" or counts if they are here, and returns the node so often. may_be_lazy: a further "?" may say "as few as possible", which
// matches the same texts.
static uint32_t parser_quantifier(struct parser *parser, uint32_t node, bool may_be_lazy)
{
    uint32_t min = 0, max = GRAMMAR_NO_LIMIT;

    if (parser_skip(parser, "+"))
        min = 1;
    else if (parser_skip(parser, "?"))
        max = 1;
    else if (!parser_skip(parser, "*") && !parser_counts(parser, &min, &max))
        return node;
    if (may_be_lazy)
        parser_skip(parser, "?");
    return grammar_repeat(parser->builder, node, min, max);
}

static void parser_push(struct parser *parser, uint32_t node)
{
    void *array = parser->nodes;
    bool fits = parser_grow(parser, &array, sizeof *parser->nodes, parser->node_count, &parser->node_capacity);

    parser->nodes = array;
    if (fits)
        parser->nodes[parser->node_count++] = node;
}

// Takes the nodes from `first` on off the stack and returns where they are.
static const uint32_t *parser_take(struct parser *parser, uint32_t first, uint32_t *count)
{
    *count = parser->node_count - MIN(first, parser->node_count);
    parser->node_count -= *count;
    return *count ? parser->nodes + parser->node_count : NULL;
}

// Takes all nodes from `first` on off the stack and returns them as a sequence.
static uint32_t parser_take_sequence(struct parser *parser, uint32_t first)
{
    uint32_t count;
    const uint32_t *nodes = parser_take(parser, first, &count);

    return grammar_sequence(parser->builder, nodes, count);
}

// Takes all nodes from `first` on off the stack and returns them as alternatives.
static uint32_t parser_take_either(struct parser *parser, uint32_t first)
{
    uint32_t count;
    const uint32_t *nodes = parser_take(parser, first, &count);

    return grammar_either(parser->builder, nodes, count);
}

static void parser_add_range(struct parser *parser, uint32_t first, uint32_t last)
{
    void *array = parser->ranges;
    bool fits = parser_grow(parser, &array, sizeof *parser->ranges, parser->range_count, &parser->range_capacity);

    parser->ranges = array;
    if (fits)
        parser->ranges[parser->range_count++] = (struct grammar_range){first, last};
}

// Takes all ranges and returns a node that matches one character of them, or of all others.
static uint32_t parser_take_class(struct parser *parser, bool negated)
{
    uint32_t count = parser->range_count;

    parser->range_count = 0;
    return grammar_chars(parser->builder, parser->ranges, count, negated);
}

// --- regular expressions ------------------------------------------------------------------------------------------------

struct regex {
    struct parser parser;
    bool has_anchors;
};

enum { HIGH_SURROGATE = 0xd800, LOW_SURROGATE = 0xdc00, SURROGATES_END = 0xe000 };

static const struct grammar_range digit_ranges[] = {{'0', '9'}};
static const struct grammar_range word_ranges[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct grammar_range space_ranges[] = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                                                    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                                                    {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const struct grammar_range line_ranges[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static uint32_t regex_either(struct regex *regex);

// Adds ranges that are in order and do not touch, or all characters but those.
static void regex_add_ranges(struct regex *regex, const struct grammar_range *ranges, uint32_t count, bool negated)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (!negated)
            parser_add_range(&regex->parser, ranges[i].first, ranges[i].last);
        else if (ranges[i].first > next)
            parser_add_range(&regex->parser, next, ranges[i].first - 1);
        next = ranges[i].last + 1;
    }
    if (negated)
        parser_add_range(&regex->parser, next, GRAMMAR_CHAR_MAX);
}

// Adds the ranges of \d, \w, \s and their opposites. Returns false if the letter is none of them.
static bool regex_add_class_escape(struct regex *regex, uint32_t letter)
{
    switch (letter) {
    case 'd':
    case 'D': regex_add_ranges(regex, digit_ranges, ARRAY_COUNT(digit_ranges), letter == 'D'); return true;
    case 'w':
    case 'W': regex_add_ranges(regex, word_ranges, ARRAY_COUNT(word_ranges), letter == 'W'); return true;
    case 's':
    case 'S': regex_add_ranges(regex, space_ranges, ARRAY_COUNT(space_ranges), letter == 'S'); return true;
    default: return false;
    }
}

// Reads what follows "\u": four digits, two such escapes that are one character, or digits in braces.
static uint32_t regex_unicode(struct regex *regex, size_t at)
{
    struct parser *parser = &regex->parser;
    uint32_t code, low;

    if (parser_skip(parser, "{")) {
        uint32_t digits = 0;
        while (parser->at + digits < parser->length && parser->text[parser->at + digits] != '}' && digits < 8)
            digits++;
        code = digits ? parser_hex(parser, digits) : (uint32_t)TEXT_END;
        if (!parser_skip(parser, "}"))
            code = TEXT_END;
    } else
        code = parser_hex(parser, 4);
    if (code >= HIGH_SURROGATE && code < LOW_SURROGATE && parser_skip(parser, "\\u")) {
        low = parser_hex(parser, 4);
        code = low >= LOW_SURROGATE && low < SURROGATES_END ? 0x10000 + ((code - HIGH_SURROGATE) << 10) + (low - LOW_SURROGATE)
                                                            : (uint32_t)TEXT_END;
    }
    if (code > GRAMMAR_CHAR_MAX || (code >= HIGH_SURROGATE && code < SURROGATES_END))
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "\\u without a character's digits");
    return code;
}

// Reads the character that an escape stands for, whose backslash and letter have been read.
static uint32_t regex_char_escape(struct regex *regex, uint32_t letter, size_t at)
{
    static const char names[] = "t\tn\nr\rf\fv\v";
    struct parser *parser = &regex->parser;
    uint32_t code;

    for (const char *name = names; *name; name += 2)
        if ((uint32_t)*name == letter)
            return (uint32_t)name[1];
    switch (letter) {
    case 'u': return regex_unicode(regex, at);
    case 'x':
        code = parser_hex(parser, 2);
        return code != TEXT_END ? code : parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "\\x without two digits");
    case 'c':
        code = parser_next(parser);
        if ((code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z'))
            return code & 31;
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "\\c without a letter");
    case '0':
        code = parser_peek(parser);
        if (code < '0' || code > '9')
            return 0;
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "octal escapes are not supported");
    case 'p':
    case 'P': return parser_fail(parser, STATUS_UNIMPLEMENTED, at, "\\%c is not supported", (char)letter);
    case TEXT_END: return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "nothing follows the backslash");
    default: break;
    }
    if ((letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'))
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "unknown escape \\%c", (char)letter);
    return letter;
}

// Reads an end of a range of a class, or a set like \d, which it adds: then it returns TEXT_END.
static uint32_t regex_class_atom(struct regex *regex)
{
    size_t at = regex->parser.at;
    uint32_t code = parser_next(&regex->parser);

    if (code != '\\')
        return code;
    code = parser_next(&regex->parser);
    if (code == 'b')
        return '\b';
    return regex_add_class_escape(regex, code) ? (uint32_t)TEXT_END : regex_char_escape(regex, code, at);
}

// Reads a class, whose "[" has been read.
static uint32_t regex_class(struct regex *regex, size_t at)
{
    struct parser *parser = &regex->parser;
    const bool negated = parser_skip(parser, "^");

    while (!parser_skip(parser, "]")) {
        size_t atom_at = parser->at;
        uint32_t first, last;
        if (parser_peek(parser) == TEXT_END)
            return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the class has no end");
        first = last = regex_class_atom(regex);
        // "-" is itself beside a set like \d, and at the end of the class.
        if (first != TEXT_END && parser->at + 1 < parser->length && parser->text[parser->at] == '-' &&
            parser->text[parser->at + 1] != ']') {
            parser->at++;
            last = regex_class_atom(regex);
            if (last == TEXT_END) {
                parser_add_range(parser, '-', '-');
                last = first;
            } else if (first > last)
                return parser_fail(parser, STATUS_INVALID_ARGUMENT, atom_at, "a range of the class is out of order");
        }
        if (first != TEXT_END)
            parser_add_range(parser, first, last);
    }
    return parser_take_class(parser, negated);
}

static uint32_t regex_char(struct regex *regex, uint32_t code)
{
    unsigned char bytes[GRAMMAR_CHAR_BYTES];

    if (grammar_builder_failed(regex->parser.builder))
        return 0;
    return grammar_bytes(regex->parser.builder, (const char *)bytes, grammar_utf8_write(code, bytes));
}

static uint32_t regex_anchor(struct regex *regex, uint32_t symbol)
{
    regex->has_anchors = true;
    return grammar_add_anchor(regex->parser.builder, symbol);
}

static uint32_t regex_look(struct regex *regex, uint32_t node, bool is_negative)
{
    regex->has_anchors = true;
    return grammar_add_look(regex->parser.builder, node, is_negative);
}

// \b is a place between a character of \w and none, \B any other.
static uint32_t regex_boundary(struct regex *regex, bool is_boundary)
{
    struct grammar_builder *builder = regex->parser.builder;
    uint32_t options[2], parts[2];

    for (int behind = 0; behind < 2; behind++) {
        regex_add_ranges(regex, word_ranges, ARRAY_COUNT(word_ranges), false);
        parts[0] = regex_anchor(regex, behind ? GRAMMAR_BEHIND_WORD : GRAMMAR_BEHIND_OTHER);
        parts[1] = regex_look(regex, parser_take_class(&regex->parser, false), behind == is_boundary);
        options[behind] = grammar_sequence(builder, parts, 2);
    }
    return grammar_either(builder, options, 2);
}

static uint32_t regex_escape(struct regex *regex, size_t at)
{
    struct parser *parser = &regex->parser;
    uint32_t letter = parser_next(parser);

    if (regex_add_class_escape(regex, letter))
        return parser_take_class(parser, false);
    if (letter == 'b' || letter == 'B')
        return regex_boundary(regex, letter == 'b');
    if (letter == 'k' || (letter >= '1' && letter <= '9'))
        return parser_fail(parser, STATUS_UNIMPLEMENTED, at, "back references are not supported");
    return regex_char(regex, regex_char_escape(regex, letter, at));
}

// Reads a group, whose "(" has been read.
static uint32_t regex_group(struct regex *regex, size_t at)
{
    struct parser *parser = &regex->parser;
    const bool is_negative = parser_skip(parser, "?!"), looks = is_negative || parser_skip(parser, "?=");
    uint32_t node;

    if (parser_skip(parser, "?<=") || parser_skip(parser, "?<!"))
        return parser_fail(parser, STATUS_UNIMPLEMENTED, at, "look-behind is not supported");
    if (looks)
        ;
    else if (parser_skip(parser, "?<") || parser_skip(parser, "?P<")) {
        while (!parser_skip(parser, ">"))
            if (parser_next(parser) == TEXT_END)
                return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the group's name has no end");
    } else if (!parser_skip(parser, "?:") && parser_skip(parser, "?"))
        return parser_fail(parser, STATUS_UNIMPLEMENTED, at, "this kind of group is not supported");
    if (++parser->nesting > MAX_NESTING)
        return parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, at, "groups are nested deeper than %d", MAX_NESTING);
    node = regex_either(regex);
    parser->nesting--;
    if (!parser_skip(parser, ")"))
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the group has no end");
    return looks ? regex_look(regex, node, is_negative) : node;
}

static uint32_t regex_atom(struct regex *regex)
{
    size_t at = regex->parser.at;
    uint32_t code, min, max;

    if (parser_counts(&regex->parser, &min, &max))
        return parser_fail(&regex->parser, STATUS_INVALID_ARGUMENT, at, "there is nothing to repeat");
    code = parser_next(&regex->parser);

    switch (code) {
    case '(': return regex_group(regex, at);
    case '[': return regex_class(regex, at);
    case '\\': return regex_escape(regex, at);
    case '^': return regex_anchor(regex, GRAMMAR_AT_START);
    case '$': return regex_anchor(regex, GRAMMAR_AT_END);
    case '.': return grammar_chars(regex->parser.builder, line_ranges, ARRAY_COUNT(line_ranges), true);
    case '*':
    case '+':
    case '?': return parser_fail(&regex->parser, STATUS_INVALID_ARGUMENT, at, "there is nothing to repeat");
    default: return regex_char(regex, code);
    }
}

static uint32_t regex_sequence(struct regex *regex)
{
    struct parser *parser = &regex->parser;
    const uint32_t first = parser->node_count;

    for (;;) {
        uint32_t code = parser_peek(parser);
        if (code == TEXT_END || code == '|' || code == ')')
            return parser_take_sequence(parser, first);
        parser_push(parser, parser_quantifier(parser, regex_atom(regex), true));
    }
}

static uint32_t regex_either(struct regex *regex)
{
    struct parser *parser = &regex->parser;
    const uint32_t first = parser->node_count;

    do
        parser_push(parser, regex_sequence(regex));
    while (parser_skip(parser, "|"));
    return parser_take_either(parser, first);
}

uint32_t grammar_add_regex(struct grammar_builder *builder, const char *text, size_t length, bool anchored)
{
    struct regex regex = {.parser = {.builder = builder, .text = text, .length = length}};
    uint32_t nodes[3];

    if (length > GRAMMAR_MAX_BYTES)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "regex: it is longer than %d bytes", GRAMMAR_MAX_BYTES);
    nodes[1] = regex_either(&regex);
    if (regex.parser.at < length)
        parser_fail(&regex.parser, STATUS_INVALID_ARGUMENT, regex.parser.at, "the parenthesis closes nothing");
    parser_close(&regex.parser);
    if (!anchored) {
        nodes[0] = grammar_repeat(builder, grammar_chars(builder, NULL, 0, true), 0, GRAMMAR_NO_LIMIT);
        nodes[2] = nodes[0];
        nodes[1] = grammar_sequence(builder, nodes, 3);
    }
    return regex.has_anchors ? grammar_settle_anchors(builder, nodes[1]) : nodes[1];
}

// --- GBNF ---------------------------------------------------------------------------------------------------------------

enum { MAX_NAME = 79, MIN_SLOTS = 64, MAX_SLOTS = 2 * GRAMMAR_MAX_RULES };

struct gbnf_name {
    const char *text;
    uint32_t length, rule;
    bool is_set;
    size_t used_at;
};

struct gbnf {
    struct parser parser;
    struct gbnf_name *names; // [slots] a hash table; length 0: empty
    uint32_t slots, name_count;
};

static uint32_t gbnf_either(struct gbnf *gbnf);

static bool gbnf_is_name(uint32_t code)
{
    return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') || (code >= '0' && code <= '9') || code == '-' ||
           code == '_';
}

// Skips white space and comments; lines: newlines, too.
static void gbnf_skip_space(struct gbnf *gbnf, bool lines)
{
    struct parser *parser = &gbnf->parser;

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
static struct gbnf_name *gbnf_take_name(struct gbnf *gbnf)
{
    struct parser *parser = &gbnf->parser;
    const char *text = parser->text + parser->at;
    char copy[MAX_NAME + 1];
    size_t length = 0;
    uint32_t slot = 2166136261u;
    struct gbnf_name *name;

    while (parser->at + length < parser->length && gbnf_is_name((unsigned char)text[length]))
        slot = (slot ^ (unsigned char)text[length++]) * 16777619u;
    if (!length || length > MAX_NAME || grammar_builder_failed(parser->builder)) {
        parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at,
                    length ? "the name of a rule has more than %d letters" : "the name of a rule is expected here", MAX_NAME);
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
    *name = (struct gbnf_name){
        .text = text, .length = (uint32_t)length, .rule = grammar_rule(parser->builder, copy), .used_at = parser->at};
    if (++gbnf->name_count >= GRAMMAR_MAX_RULES)
        parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, parser->at, "there are more than %d rules", GRAMMAR_MAX_RULES);
    parser->at += length;
    return name;
}

// Reads a character of a literal or a class, which may be an escape.
static uint32_t gbnf_char(struct gbnf *gbnf)
{
    static const char names[] = "t\tn\nr\r\\\\\"\"[[]]--^^";
    struct parser *parser = &gbnf->parser;
    size_t at = parser->at;
    uint32_t code = parser_next(parser), letter;

    if (code != '\\')
        return code;
    letter = parser_next(parser);
    for (const char *name = names; *name; name += 2)
        if ((uint32_t)*name == letter)
            return (uint32_t)name[1];
    code = letter == 'x' || letter == 'u' || letter == 'U' ? parser_hex(parser, letter == 'x'   ? 2
                                                                                : letter == 'u' ? 4
                                                                                                : 8)
                                                           : (uint32_t)TEXT_END;
    if (code > GRAMMAR_CHAR_MAX || (code >= 0xd800 && code < 0xe000))
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "unknown escape");
    return code;
}

static uint32_t gbnf_literal(struct gbnf *gbnf, size_t at)
{
    struct parser *parser = &gbnf->parser;
    const uint32_t first = parser->node_count;
    unsigned char bytes[256];
    size_t count = 0;

    while (!parser_skip(parser, "\"")) {
        uint32_t code = parser_peek(parser);
        if (code == TEXT_END)
            return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the literal has no end");
        code = gbnf_char(gbnf);
        if (grammar_builder_failed(parser->builder))
            return 0;
        if (count + GRAMMAR_CHAR_BYTES > sizeof bytes) {
            parser_push(parser, grammar_bytes(parser->builder, (const char *)bytes, count));
            count = 0;
        }
        count += grammar_utf8_write(code, bytes + count);
    }
    parser_push(parser, grammar_bytes(parser->builder, (const char *)bytes, count));
    return parser_take_sequence(parser, first);
}

static uint32_t gbnf_class(struct gbnf *gbnf, size_t at)
{
    struct parser *parser = &gbnf->parser;
    const bool negated = parser_skip(parser, "^");

    while (!parser_skip(parser, "]")) {
        uint32_t first, last;
        if (parser_peek(parser) == TEXT_END)
            return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the class has no end");
        first = gbnf_char(gbnf);
        last = first;
        if (parser->at + 1 < parser->length && parser->text[parser->at] == '-' && parser->text[parser->at + 1] != ']') {
            parser->at++;
            last = gbnf_char(gbnf);
            if (first > last || last == TEXT_END)
                return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "a range of the class is out of order");
        }
        parser_add_range(parser, first, last);
    }
    return parser_take_class(parser, negated);
}

// Reads a token's name, whose "<" has been read. The name has its brackets: <think>.
static uint32_t gbnf_token(struct gbnf *gbnf, size_t at)
{
    struct parser *parser = &gbnf->parser;
    const char *end = memchr(parser->text + at, '>', parser->length - at);
    char name[MAX_NAME + 1];
    size_t length = end ? (size_t)(end - (parser->text + at)) + 1 : 0;

    if (!length || length > MAX_NAME || memchr(parser->text + at, '\n', length) || parser->text[at + 1] == '[')
        return parser_fail(parser, STATUS_UNIMPLEMENTED, at, "a token is written as its name, such as <think>");
    memcpy(name, parser->text + at, length);
    name[length] = '\0';
    parser->at = at + length;
    return grammar_special(parser->builder, name);
}

static uint32_t gbnf_group(struct gbnf *gbnf, size_t at)
{
    struct parser *parser = &gbnf->parser;
    uint32_t node;

    if (++parser->nesting > MAX_NESTING)
        return parser_fail(parser, STATUS_RESOURCE_EXHAUSTED, at, "groups are nested deeper than %d", MAX_NESTING);
    node = gbnf_either(gbnf);
    parser->nesting--;
    if (!parser_skip(parser, ")"))
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "the group has no end");
    return node;
}

static uint32_t gbnf_atom(struct gbnf *gbnf)
{
    struct parser *parser = &gbnf->parser;
    size_t at = parser->at;
    struct gbnf_name *name;

    if (parser_skip(parser, "\""))
        return gbnf_literal(gbnf, at);
    if (parser_skip(parser, "["))
        return gbnf_class(gbnf, at);
    if (parser_skip(parser, "("))
        return gbnf_group(gbnf, at);
    if (parser_skip(parser, "."))
        return grammar_chars(parser->builder, NULL, 0, true);
    if (parser_skip(parser, "<"))
        return gbnf_token(gbnf, at);
    if (!gbnf_is_name(parser_peek(parser)))
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "this begins no part of a rule");
    name = gbnf_take_name(gbnf);
    return name ? grammar_call(parser->builder, name->rule) : 0;
}

static uint32_t gbnf_sequence(struct gbnf *gbnf)
{
    struct parser *parser = &gbnf->parser;
    const uint32_t first = parser->node_count;

    for (;;) {
        uint32_t code = parser_peek(parser);
        if (code == TEXT_END || code == '|' || code == ')' || code == '\n')
            return parser_take_sequence(parser, first);
        parser_push(parser, parser_quantifier(parser, gbnf_atom(gbnf), false));
        gbnf_skip_space(gbnf, parser->nesting > 0);
    }
}

static uint32_t gbnf_either(struct gbnf *gbnf)
{
    struct parser *parser = &gbnf->parser;
    const uint32_t first = parser->node_count;

    do {
        gbnf_skip_space(gbnf, true);
        parser_push(parser, gbnf_sequence(gbnf));
    } while (parser_skip(parser, "|"));
    return parser_take_either(parser, first);
}

static void gbnf_rule(struct gbnf *gbnf)
{
    struct parser *parser = &gbnf->parser;
    size_t at = parser->at;
    struct gbnf_name *name = gbnf_take_name(gbnf);
    uint32_t node;

    gbnf_skip_space(gbnf, false);
    if (!name || !parser_skip(parser, "::=")) {
        parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "::= is expected here");
        return;
    }
    if (name->is_set) {
        parser_fail(parser, STATUS_INVALID_ARGUMENT, at, "rule '%.*s' is there twice", (int)name->length, name->text);
        return;
    }
    name->is_set = true;
    node = gbnf_either(gbnf);
    grammar_rule_set(parser->builder, name->rule, node);
    if (parser->at < parser->length && !parser_skip(parser, "\n"))
        parser_fail(parser, STATUS_INVALID_ARGUMENT, parser->at, "the parenthesis closes nothing");
}

static uint32_t gbnf_rules(struct gbnf *gbnf)
{
    struct parser *parser = &gbnf->parser;
    struct gbnf_name *root = NULL;

    for (gbnf_skip_space(gbnf, true); parser->at < parser->length && !grammar_builder_failed(parser->builder);
         gbnf_skip_space(gbnf, true))
        gbnf_rule(gbnf);
    for (uint32_t slot = 0; slot < gbnf->slots; slot++) {
        struct gbnf_name *name = &gbnf->names[slot];
        if (name->length && !name->is_set)
            return parser_fail(parser, STATUS_INVALID_ARGUMENT, name->used_at, "rule '%.*s' is not defined", (int)name->length,
                               name->text);
        if (name->length == strlen("root") && memcmp(name->text, "root", strlen("root")) == 0)
            root = name;
    }
    if (!root)
        return parser_fail(parser, STATUS_INVALID_ARGUMENT, 0, "there is no rule 'root'");
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
        return grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
    node = gbnf_rules(&gbnf);
    parser_close(&gbnf.parser);
    free(gbnf.names);
    return node;
}

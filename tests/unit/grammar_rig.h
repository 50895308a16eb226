// grammar_rig.h: grammars opened for tests, and random ones with a matcher that is nothing but their definition.
//
// An expression is matched by the set of places where what it matches may end, a bit each, so a text has at most 31 bytes. Rules are matched
// by repeating that until nothing is added.
#ifndef FD_TESTS_UNIT_GRAMMAR_RIG_H
#define FD_TESTS_UNIT_GRAMMAR_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "common/grammar/build.h"
#include "common/grammar/cursor.h"
#include "tests/cmocka.h"

enum { RIG_RULES = 3, RIG_EXPRESSIONS = 160, RIG_TEXT = 30, RIG_TRACKER_BYTES = GRAMMAR_TRACKER_MIN_BYTES };

static uint64_t rig_state;

static inline uint32_t rig_draw(uint32_t below) { return (uint32_t)(random_next(&rig_state) >> 33) % below; }

/* --- followers --------------------------------------------------------------------------------------------------------------- */

// A token for each byte.
static inline size_t rig_byte_token(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    scratch[0] = (char)token;
    *bytes = scratch;
    return 1;
}

static inline struct grammar_vocab *rig_vocab(uint32_t count, grammar_token_fn *bytes_of, void *arg)
{
    struct grammar_vocab *vocab;
    struct error error;

    assert_int_equal(grammar_vocab_open(count, bytes_of, arg, &vocab, &error), STATUS_OK);
    return vocab;
}

static inline struct grammar_tracker *rig_tracker(struct grammar *grammar, const struct grammar_vocab *vocab, size_t bytes)
{
    struct grammar_tracker *tracker;
    struct error error;

    assert_int_equal(grammar_tracker_open(grammar, vocab, bytes, &tracker, &error), STATUS_OK);
    return tracker;
}

// Returns whether a grammar, which stays the caller's, matches a text.
static inline bool rig_matches(const struct grammar *grammar, const char *text, size_t length)
{
    struct grammar_vocab *vocab = rig_vocab(256, rig_byte_token, NULL);
    struct grammar *copy;
    struct grammar_tracker *tracker;
    struct grammar_cursor *cursor;
    struct error error;
    size_t bytes;
    const void *packed = grammar_packed(grammar, &bytes);
    bool matches;

    assert_int_equal(grammar_unpack(packed, bytes, &copy, &error), STATUS_OK);
    tracker = rig_tracker(copy, vocab, RIG_TRACKER_BYTES);
    cursor = grammar_cursor_open(tracker);
    matches = grammar_cursor_take_bytes(cursor, text, length) && grammar_cursor_may_end(cursor);
    grammar_cursor_close(cursor);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
    return matches;
}

/* --- random expressions -------------------------------------------------------------------------------------------------------- */

enum rig_kind {
    RIG_EMPTY,
    RIG_TEXT_OF,
    RIG_CHARS,
    RIG_SEQUENCE,
    RIG_EITHER,
    RIG_REPEAT,
    RIG_CALL,
    RIG_BOTH,
    RIG_WITHOUT,
    RIG_SPECIAL,
    RIG_BEFORE
};

struct rig_expression {
    enum rig_kind kind;
    uint32_t children[3], count, min, max;
    const char *text;
    struct grammar_range ranges[2];
    bool negated;
};

struct rig_grammar {
    struct rig_expression expressions[RIG_EXPRESSIONS];
    uint32_t count, rules[RIG_RULES]; // the expression of each rule; rule 0 is the root
    const char *text;                 // that is matched
    uint32_t length;
    uint32_t ends[RIG_RULES][RIG_TEXT + 2]; // of each rule from each place, as far as known
};

static const char *const rig_texts[] = {"a", "b", "ab", "ba", "\xc3\xa9", "a\xc3\xa9", "\"", "<s>"};

static inline uint32_t rig_leaf(struct rig_grammar *grammar)
{
    static const struct grammar_range ranges[] = {{'a', 'a'}, {'a', 'b'}, {0xe9, 0xe9}, {'b', 0x3ff}, {'0', 0x10ffff}, {'"', '"'}};
    struct rig_expression *leaf = &grammar->expressions[grammar->count];

    leaf->kind = rig_draw(12) == 0 ? RIG_SPECIAL : rig_draw(3) ? RIG_TEXT_OF : RIG_CHARS;
    leaf->text = rig_texts[rig_draw(ARRAY_COUNT(rig_texts))];
    leaf->count = rig_draw(6) ? 1 : 2;
    for (uint32_t i = 0; i < 2; i++)
        leaf->ranges[i] = ranges[rig_draw(ARRAY_COUNT(ranges))];
    leaf->negated = rig_draw(5) == 0;
    return grammar->count++;
}

// Draws an expression of some depth. regular: without calls.
static inline uint32_t rig_expression(struct rig_grammar *grammar, uint32_t depth, bool regular)
{
    static const enum rig_kind kinds[] = {RIG_SEQUENCE, RIG_SEQUENCE, RIG_EITHER, RIG_EITHER,  RIG_REPEAT, RIG_REPEAT,
                                          RIG_CALL,     RIG_CALL,     RIG_BOTH,   RIG_WITHOUT, RIG_BEFORE, RIG_EMPTY};
    struct rig_expression drawn = {.kind = kinds[rig_draw(ARRAY_COUNT(kinds))]};

    if (depth == 0 || grammar->count + 40 > RIG_EXPRESSIONS || (regular && drawn.kind == RIG_CALL))
        return rig_leaf(grammar);
    drawn.min = rig_draw(3);
    drawn.max = rig_draw(2) ? GRAMMAR_NO_LIMIT : drawn.min + rig_draw(3);
    drawn.text = rig_texts[rig_draw(ARRAY_COUNT(rig_texts))];
    if (drawn.kind == RIG_CALL)
        drawn.children[0] = rig_draw(RIG_RULES);
    else if (drawn.kind != RIG_EMPTY && drawn.kind != RIG_BEFORE) {
        bool is_operation = drawn.kind == RIG_BOTH || drawn.kind == RIG_WITHOUT;
        drawn.count = drawn.kind == RIG_REPEAT ? 1 : is_operation ? 2 : 2 + rig_draw(2);
        for (uint32_t i = 0; i < drawn.count; i++)
            drawn.children[i] = rig_expression(grammar, depth - 1, regular || is_operation);
    }
    grammar->expressions[grammar->count] = drawn;
    return grammar->count++;
}

static inline void rig_draw_grammar(struct rig_grammar *grammar)
{
    memset(grammar, 0, sizeof *grammar);
    for (uint32_t r = 0; r < RIG_RULES; r++)
        grammar->rules[r] = rig_expression(grammar, 1 + rig_draw(4), false);
}

// Builds an expression. rules: the builder's.
static inline uint32_t rig_build(struct grammar_builder *builder, const struct rig_grammar *grammar, uint32_t index,
                                 const uint32_t *rules)
{
    const struct rig_expression *e = &grammar->expressions[index];
    uint32_t nodes[3];

    for (uint32_t i = 0; i < e->count && e->kind != RIG_CHARS && e->kind != RIG_TEXT_OF && e->kind != RIG_SPECIAL; i++)
        nodes[i] = rig_build(builder, grammar, e->children[i], rules);
    switch (e->kind) {
    case RIG_EMPTY: return grammar_empty(builder);
    case RIG_TEXT_OF: return grammar_text(builder, e->text);
    case RIG_CHARS: return grammar_chars(builder, e->ranges, e->count, e->negated);
    case RIG_SEQUENCE: return grammar_sequence(builder, nodes, e->count);
    case RIG_EITHER: return grammar_either(builder, nodes, e->count);
    case RIG_REPEAT: return grammar_repeat(builder, nodes[0], e->min, e->max);
    case RIG_CALL: return grammar_call(builder, rules[e->children[0]]);
    case RIG_BOTH: return grammar_both(builder, nodes[0], nodes[1]);
    case RIG_WITHOUT: return grammar_without(builder, nodes[0], nodes[1]);
    case RIG_SPECIAL: return grammar_special(builder, "<s>");
    case RIG_BEFORE: return grammar_text_before(builder, e->text);
    }
    return 0;
}

// Compiles it. Returns NULL with *error if it cannot be.
static inline struct grammar *rig_compile(const struct rig_grammar *grammar, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    struct grammar *compiled = NULL;
    uint32_t rules[RIG_RULES];
    enum status status;

    for (uint32_t r = 0; r < RIG_RULES; r++)
        rules[r] = grammar_rule(builder, "rule");
    for (uint32_t r = 0; r < RIG_RULES; r++)
        grammar_rule_set(builder, rules[r], rig_build(builder, grammar, grammar->rules[r], rules));
    status = grammar_compile(builder, grammar_call(builder, rules[0]), &compiled, error);
    assert_int_equal(status == STATUS_OK, compiled != NULL);
    assert_int_equal(status, compiled ? STATUS_OK : error->status);
    grammar_builder_close(builder);
    return compiled;
}

/* --- the matcher ---------------------------------------------------------------------------------------------------------------- */

// Decodes the character at a place of the text. Returns its bytes, 0 if there is none.
static inline uint32_t rig_char(const struct rig_grammar *grammar, uint32_t at, uint32_t *code)
{
    const unsigned char *in = (const unsigned char *)grammar->text + at;

    if (at >= grammar->length)
        return 0;
    *code = in[0];
    if (in[0] < 0x80)
        return 1;
    *code = (in[0] & 0x1fu) << 6 | (in[1] & 0x3fu); // texts have characters of two bytes at most
    return in[0] >= 0xc2 && in[0] < 0xe0 && at + 1 < grammar->length && (in[1] & 0xc0) == 0x80 ? 2 : 0;
}

static inline uint32_t rig_text_end(const struct rig_grammar *grammar, uint32_t at, const char *text)
{
    size_t length = strlen(text);

    return at + length <= grammar->length && memcmp(grammar->text + at, text, length) == 0 ? 1u << (at + length) : 0;
}

static inline uint32_t rig_ends(const struct rig_grammar *grammar, uint32_t index, uint32_t at);

// Returns the union of the ends from all places in a set.
static inline uint32_t rig_ends_from(const struct rig_grammar *grammar, uint32_t index, uint32_t places)
{
    uint32_t ends = 0;

    for (uint32_t at = 0; at <= grammar->length; at++)
        if (places & 1u << at)
            ends |= rig_ends(grammar, index, at);
    return ends;
}

static inline uint32_t rig_repeat_ends(const struct rig_grammar *grammar, const struct rig_expression *e, uint32_t at)
{
    uint32_t places = 1u << at, ends = 0;

    for (uint32_t times = 0; places && (e->max == GRAMMAR_NO_LIMIT ? times <= e->min + RIG_TEXT : times <= e->max); times++) {
        if (times >= e->min)
            ends |= places;
        places = rig_ends_from(grammar, e->children[0], places);
    }
    return ends;
}

static inline uint32_t rig_chars_end(const struct rig_grammar *grammar, const struct rig_expression *e, uint32_t at)
{
    uint32_t code, bytes = rig_char(grammar, at, &code);
    bool is_in = false;

    for (uint32_t i = 0; i < e->count && bytes; i++)
        is_in |= code >= e->ranges[i].first && code <= e->ranges[i].last;
    return bytes && is_in != e->negated ? 1u << (at + bytes) : 0;
}

// All valid text up to a place, without the marker.
static inline uint32_t rig_before_ends(const struct rig_grammar *grammar, const struct rig_expression *e, uint32_t at)
{
    uint32_t ends = 0, bytes = 0, code, end = at;
    size_t length = strlen(e->text);

    do {
        end += bytes;
        if (end - at >= length && memcmp(grammar->text + end - length, e->text, length) == 0)
            break;
        ends |= 1u << end;
        bytes = rig_char(grammar, end, &code);
    } while (bytes);
    return ends;
}

static inline uint32_t rig_ends(const struct rig_grammar *grammar, uint32_t index, uint32_t at)
{
    const struct rig_expression *e = &grammar->expressions[index];
    uint32_t ends = 0;

    switch (e->kind) {
    case RIG_EMPTY: return 1u << at;
    case RIG_TEXT_OF: return rig_text_end(grammar, at, e->text);
    case RIG_SPECIAL: return rig_text_end(grammar, at, "<s>") | rig_text_end(grammar, at, "\xff<s>");
    case RIG_CHARS: return rig_chars_end(grammar, e, at);
    case RIG_BEFORE: return rig_before_ends(grammar, e, at);
    case RIG_REPEAT: return rig_repeat_ends(grammar, e, at);
    case RIG_CALL: return grammar->ends[e->children[0]][at];
    case RIG_BOTH: return rig_ends(grammar, e->children[0], at) & rig_ends(grammar, e->children[1], at);
    case RIG_WITHOUT: return rig_ends(grammar, e->children[0], at) & ~rig_ends(grammar, e->children[1], at);
    case RIG_EITHER:
        for (uint32_t i = 0; i < e->count; i++)
            ends |= rig_ends(grammar, e->children[i], at);
        return ends;
    case RIG_SEQUENCE:
        ends = 1u << at;
        for (uint32_t i = 0; i < e->count; i++)
            ends = rig_ends_from(grammar, e->children[i], ends);
        return ends;
    }
    return 0;
}

// Returns which prefixes of a text the root matches, a bit each.
static inline uint32_t rig_matched_prefixes(struct rig_grammar *grammar, const char *text, uint32_t length)
{
    bool grows = true;

    assert_true(length <= RIG_TEXT);
    grammar->text = text;
    grammar->length = length;
    memset(grammar->ends, 0, sizeof grammar->ends);
    while (grows) {
        grows = false;
        for (uint32_t r = 0; r < RIG_RULES; r++)
            for (uint32_t at = 0; at <= length; at++) {
                uint32_t ends = rig_ends(grammar, grammar->rules[r], at);
                grows |= ends != grammar->ends[r][at];
                grammar->ends[r][at] = ends;
            }
    }
    return grammar->ends[0][0];
}

// Draws a text of pieces that the grammars are made of, and some that they are not.
static inline uint32_t rig_draw_text(char *text)
{
    static const char *const pieces[] = {"a", "b", "a", "b", "\xc3\xa9", "\"", "<s>", "\xff<s>", "\xc3", "z", "\xff", "\xd0\x80"};
    uint32_t length = 0, wanted = rig_draw(9);

    for (uint32_t i = 0; i < wanted; i++) {
        const char *piece = pieces[rig_draw(rig_draw(4) ? 5 : (uint32_t)ARRAY_COUNT(pieces))];
        memcpy(text + length, piece, strlen(piece));
        length += (uint32_t)strlen(piece);
    }
    return length;
}

#endif

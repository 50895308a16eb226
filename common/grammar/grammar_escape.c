// grammar_escape.c: see grammar_escape.h.
//
// What must be escaped is one byte long in UTF-8, so this is a change of single arcs: one that reads such bytes is joined by a way that reads
// their escapes.
#include "common/grammar/grammar_escape.h"

#include <stdlib.h>
#include <string.h>

#include "common/grammar/grammar_emit.h"

enum { KNOWN = 64, SPACE = 0x20, QUOTE = '"', BACKSLASH = '\\' };

static const struct {
    uint8_t byte, letter;
} letters[] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {QUOTE, QUOTE}, {BACKSLASH, BACKSLASH}};
enum { LETTERS = sizeof letters / sizeof letters[0] };

static void add_byte(struct grammar_fsa *fsa, uint32_t from, uint32_t byte, uint32_t to)
{
    grammar_fsa_add_arc(fsa, from, byte, byte, to);
}

static uint32_t add_step(struct grammar_fsa *fsa, uint32_t from, uint32_t byte)
{
    uint32_t next = grammar_fsa_add_state(fsa, false);

    add_byte(fsa, from, byte, next);
    return next;
}

// The control characters `low` and up to `high` of one half (0: U+0000 to U+000F, 1: the next sixteen): the last digit of \u00xx.
static void add_digits(struct grammar_fsa *fsa, uint32_t state, uint32_t low, uint32_t high, uint32_t to)
{
    for (uint32_t digit = low; digit <= high; digit++) {
        bool has_letter = false;
        uint32_t nibble = digit & 15;
        for (uint32_t i = 0; i < LETTERS; i++)
            has_letter |= letters[i].byte == digit;
        if (has_letter)
            continue;
        if (nibble < 10) {
            add_byte(fsa, state, '0' + nibble, to);
        } else {
            add_byte(fsa, state, 'a' + nibble - 10, to);
            add_byte(fsa, state, 'A' + nibble - 10, to);
        }
    }
}

static bool holds_any(const struct grammar_arc *arc, uint32_t byte) { return arc->first <= byte && byte <= arc->last; }

// The state behind the backslash of escapes that lead to a state. Most arcs of a language lead to few states, and share it.
struct escapes {
    uint32_t first, last, to, slash; // of the bytes; last 0: none yet
};

// Adds the ways from the state behind a backslash to `to` that read escapes of the bytes first to last.
static void add_escapes(struct grammar_fsa *fsa, uint32_t slash, uint32_t first, uint32_t last, uint32_t to)
{
    uint32_t zero;

    for (uint32_t i = 0; i < LETTERS; i++)
        if (letters[i].byte >= first && letters[i].byte <= last)
            add_byte(fsa, slash, letters[i].letter, to);
    if (first >= SPACE)
        return;
    zero = add_step(fsa, add_step(fsa, add_step(fsa, slash, 'u'), '0'), '0');
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t low = half * 16 > first ? half * 16 : first, high = half * 16 + 15 < last ? half * 16 + 15 : last;
        if (low <= high)
            add_digits(fsa, add_step(fsa, zero, '0' + half), low, high, to);
    }
}

// Adds the arc to the state behind the backslash, which is made unless there is one for the same escapes.
static void add_slash(struct grammar_fsa *fsa, const struct grammar_arc *arc, struct escapes *known)
{
    // Bytes in between are not escaped: ranges that differ in those are alike.
    const uint32_t first = arc->first < SPACE ? arc->first : arc->first <= QUOTE ? QUOTE : BACKSLASH;
    const uint32_t last = arc->last >= BACKSLASH ? BACKSLASH : arc->last >= QUOTE ? QUOTE : arc->last;
    struct escapes *escapes = &known[(arc->to * 3 + first + last) % KNOWN];

    if (!escapes->last || escapes->first != first || escapes->last != last || escapes->to != arc->to) {
        *escapes = (struct escapes){first, last, arc->to, grammar_fsa_add_state(fsa, false)};
        add_escapes(fsa, escapes->slash, first, last, arc->to);
    }
    add_byte(fsa, arc->from, BACKSLASH, escapes->slash);
}

static void add_escaped(struct grammar_fsa *fsa, const struct grammar_arc *arc, struct escapes *known)
{
    static const uint32_t plain[][2] = {{SPACE, QUOTE - 1}, {QUOTE + 1, BACKSLASH - 1}, {BACKSLASH + 1, 0xff}};

    if (arc->first == GRAMMAR_JUMP) {
        grammar_fsa_add_arc(fsa, arc->from, GRAMMAR_JUMP, GRAMMAR_JUMP, arc->to);
        return;
    }
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t first = arc->first > plain[i][0] ? arc->first : plain[i][0],
                 last = arc->last < plain[i][1] ? arc->last : plain[i][1];
        if (first <= last)
            grammar_fsa_add_arc(fsa, arc->from, first, last, arc->to);
    }
    if (arc->first < SPACE || holds_any(arc, QUOTE) || holds_any(arc, BACKSLASH))
        add_slash(fsa, arc, known);
}

uint32_t grammar_json_escaped(struct grammar_builder *builder, uint32_t node)
{
    uint8_t *uses = malloc((size_t)builder->rules.count + 1);
    struct grammar_fsa from = {0}, to = {.max_states = GRAMMAR_DRAFT_STATES, .max_arcs = GRAMMAR_DRAFT_ARCS};
    struct escapes known[KNOWN] = {0};
    uint32_t result = 0;

    if (!uses)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (grammar_survey(builder, node, true, uses)) {
        grammar_emit(builder, node, uses, &from);
        to.failure = from.failure;
        for (uint32_t s = 0; s < from.state_count; s++)
            grammar_fsa_add_state(&to, from.accepts[s]);
        to.start = from.start;
        for (uint32_t a = 0; a < from.arc_count; a++)
            if (from.arcs[a].first >= GRAMMAR_CALL && from.arcs[a].first != GRAMMAR_JUMP)
                grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT, "a rule that calls itself cannot be part of a string");
            else
                add_escaped(&to, &from.arcs[a], known);
        if (grammar_fsa_seal(&to))
            grammar_fsa_trim(&to);
        if (builder->failure.status)
            grammar_fsa_free(&to);
        else
            result = grammar_add_regular(builder, &to);
    }
    free(uses);
    grammar_fsa_free(&from);
    return result;
}

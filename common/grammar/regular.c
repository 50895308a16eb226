// regular.c: operations on regular languages: what is in both, what is in one only, and texts as JSON escapes them.
//
// Both operations walk pairs of states of two deterministic automata, as far as they are reached; for a difference the second one of a pair
// may be lost (GRAMMAR_NO_STATE), from where on everything is let through. What comes out is trimmed and minimized.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/builder_state.h"

// Returns what is left of the work, 0 with a failed builder if nothing is.
static uint64_t work_left(struct grammar_builder *builder)
{
    if (builder->work < GRAMMAR_MAX_WORK)
        return GRAMMAR_MAX_WORK - builder->work;
    grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "the grammar takes too long to work out");
    return 0;
}

bool grammar_check_fsa(struct grammar_builder *builder, struct grammar_fsa *fsa)
{
    struct error error;

    if (grammar_fsa_status(fsa, "a part of the grammar", &error) == STATUS_OK)
        return true;
    grammar_builder_fail(builder, error.status, "%s", error.text);
    grammar_fsa_free(fsa);
    return false;
}

bool grammar_regular_fsa(struct grammar_builder *builder, uint32_t node, struct grammar_fsa *out)
{
    uint8_t *uses = malloc((size_t)builder->rules.count + 1);
    bool is_known = false;

    *out = (struct grammar_fsa){0};
    if (!uses)
        grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
    else if (work_left(builder))
        is_known = grammar_survey(builder, node, true, uses);
    for (uint32_t r = 0; is_known && r < builder->rules.count; r++)
        if (uses[r] == GRAMMAR_RULE_LOOPS)
            grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT,
                                 "rule '%s' calls itself, and cannot be combined with other languages",
                                 grammar_rule_of(builder, r)->name);
    is_known = is_known && !builder->failure.status;
    if (is_known) {
        grammar_emit(builder, node, uses, out);
        grammar_fsa_trim(out);
        is_known = grammar_check_fsa(builder, out);
    }
    free(uses);
    return is_known;
}

// Makes a deterministic automaton of a regular node.
static bool deterministic_fsa(struct grammar_builder *builder, uint32_t node, struct grammar_fsa *out)
{
    struct grammar_fsa fsa;
    uint64_t work = work_left(builder), left = work;

    if (!work || !grammar_regular_fsa(builder, node, &fsa))
        return false;
    grammar_determinize(&fsa, GRAMMAR_MAX_REGULAR_STATES, &left, out);
    builder->work += work - left;
    grammar_fsa_free(&fsa);
    return grammar_check_fsa(builder, out);
}

// --- pairs of states ----------------------------------------------------------------------------------------------------

struct product {
    const struct grammar_fsa *a, *b;
    bool is_difference;
    struct grammar_fsa *out; // state i is pair i
    struct state_pair {
        uint32_t a, b;
    } * pairs;
    uint32_t *table, table_mask; // pair + 1
};

static uint32_t pair_of(struct product *product, uint32_t a, uint32_t b)
{
    uint64_t hash = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    uint32_t slot = (uint32_t)(hash >> 32) & product->table_mask, pair;
    bool b_accepts = b != GRAMMAR_NO_STATE && product->b->accepts[b];

    for (; product->table[slot]; slot = (slot + 1) & product->table_mask) {
        pair = product->table[slot] - 1;
        if (product->pairs[pair].a == a && product->pairs[pair].b == b)
            return pair;
    }
    pair = grammar_fsa_add_state(product->out, product->a->accepts[a] && b_accepts != product->is_difference);
    if (product->out->failure)
        return 0;
    product->pairs[pair] = (struct state_pair){a, b};
    product->table[slot] = pair + 1;
    return pair;
}

// Adds what follows from one arc of a: parts that arcs of b read too, and for a difference the rest.
static void add_parts(struct product *product, uint32_t pair, const struct grammar_arc *arc, uint32_t b)
{
    uint32_t next = b == GRAMMAR_NO_STATE ? 0 : product->b->index[b], end = b == GRAMMAR_NO_STATE ? 0 : product->b->index[b + 1];
    uint32_t symbol = arc->first;

    for (; next < end && symbol <= arc->last; next++) {
        const struct grammar_arc *other = &product->b->arcs[next];
        uint32_t first = MAX(symbol, other->first), last = MIN(arc->last, other->last);
        if (other->last < symbol)
            continue;
        if (other->first > arc->last)
            break;
        if (first > symbol && product->is_difference)
            grammar_fsa_add_arc(product->out, pair, symbol, first - 1, pair_of(product, arc->to, GRAMMAR_NO_STATE));
        grammar_fsa_add_arc(product->out, pair, first, last, pair_of(product, arc->to, other->to));
        symbol = last + 1;
    }
    if (symbol <= arc->last && product->is_difference)
        grammar_fsa_add_arc(product->out, pair, symbol, arc->last, pair_of(product, arc->to, GRAMMAR_NO_STATE));
}

// Multiplies two deterministic automata.
static void multiply(const struct grammar_fsa *a, const struct grammar_fsa *b, bool is_difference, struct grammar_fsa *out)
{
    enum { SLOTS = 2 * GRAMMAR_MAX_REGULAR_STATES };
    struct product product = {.a = a, .b = b, .is_difference = is_difference, .out = out, .table_mask = SLOTS - 1};

    *out = (struct grammar_fsa){.max_states = GRAMMAR_MAX_REGULAR_STATES, .max_arcs = GRAMMAR_DRAFT_ARCS};
    product.pairs = malloc(GRAMMAR_MAX_REGULAR_STATES * sizeof *product.pairs);
    product.table = calloc(SLOTS, sizeof *product.table);
    if (product.pairs && product.table) {
        pair_of(&product, a->start, b->start);
        for (uint32_t pair = 0; pair < out->state_count && !out->failure; pair++) {
            const struct state_pair states = product.pairs[pair];
            for (uint32_t i = a->index[states.a]; i < a->index[states.a + 1]; i++)
                add_parts(&product, pair, &a->arcs[i], states.b);
        }
    } else
        out->failure = GRAMMAR_FSA_NO_MEMORY;
    free(product.pairs);
    free(product.table);
    if (grammar_fsa_seal(out))
        grammar_fsa_trim(out);
}

static uint32_t combine(struct grammar_builder *builder, uint32_t node_a, uint32_t node_b, bool is_difference)
{
    struct grammar_fsa a, b, out;
    uint32_t node = GRAMMAR_NODE_NOTHING;

    if (!deterministic_fsa(builder, node_a, &a))
        return node;
    if (deterministic_fsa(builder, node_b, &b)) {
        multiply(&a, &b, is_difference, &out);
        builder->work += out.arc_count;
        if (grammar_check_fsa(builder, &out)) {
            grammar_minimize(&out);
            node = grammar_add_regular(builder, &out);
        }
        grammar_fsa_free(&b);
    }
    grammar_fsa_free(&a);
    return node;
}

uint32_t grammar_both(struct grammar_builder *builder, uint32_t a, uint32_t b) { return combine(builder, a, b, false); }

uint32_t grammar_without(struct grammar_builder *builder, uint32_t a, uint32_t b) { return combine(builder, a, b, true); }

bool grammar_is_empty(struct grammar_builder *builder, uint32_t node)
{
    struct grammar_fsa fsa;
    bool is_empty;

    if (node <= GRAMMAR_NODE_EMPTY || !grammar_regular_fsa(builder, node, &fsa))
        return node == GRAMMAR_NODE_NOTHING;
    is_empty = !fsa.arc_count && !fsa.accepts[fsa.start];
    grammar_fsa_free(&fsa);
    return is_empty;
}

uint32_t grammar_text_before(struct grammar_builder *builder, const char *marker)
{
    uint32_t any = grammar_repeat(builder, grammar_chars(builder, NULL, 0, true), 0, GRAMMAR_NO_LIMIT);
    uint32_t with[3];

    with[0] = with[2] = any;
    with[1] = grammar_text(builder, marker);
    return grammar_without(builder, any, grammar_sequence(builder, with, 3));
}

// --- JSON escapes -------------------------------------------------------------------------------------------------------

// A character that must be escaped is one byte long in UTF-8, so single arcs change: one that reads such bytes is joined by a way that reads
// their escapes.

enum { KNOWN = 64, SPACE = 0x20, QUOTE = '"', BACKSLASH = '\\' };

static const struct {
    uint8_t byte, letter;
} letters[] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {QUOTE, QUOTE}, {BACKSLASH, BACKSLASH}};
enum { LETTERS = sizeof letters / sizeof letters[0] };

static void escape_add_byte(struct grammar_fsa *fsa, uint32_t from, uint32_t byte, uint32_t to)
{
    grammar_fsa_add_arc(fsa, from, byte, byte, to);
}

static uint32_t escape_add_step(struct grammar_fsa *fsa, uint32_t from, uint32_t byte)
{
    uint32_t next = grammar_fsa_add_state(fsa, false);

    escape_add_byte(fsa, from, byte, next);
    return next;
}

// Adds the last digit of \u00xx for the control characters `low` to `high` of one half (0: U+0000 to U+000F, 1: the next sixteen).
static void escape_add_digits(struct grammar_fsa *fsa, uint32_t state, uint32_t low, uint32_t high, uint32_t to)
{
    for (uint32_t digit = low; digit <= high; digit++) {
        bool has_letter = false;
        uint32_t nibble = digit & 15;
        for (uint32_t i = 0; i < LETTERS; i++)
            has_letter |= letters[i].byte == digit;
        if (has_letter)
            continue;
        if (nibble < 10) {
            escape_add_byte(fsa, state, '0' + nibble, to);
        } else {
            escape_add_byte(fsa, state, 'a' + nibble - 10, to);
            escape_add_byte(fsa, state, 'A' + nibble - 10, to);
        }
    }
}

static bool holds_any(const struct grammar_arc *arc, uint32_t byte) { return arc->first <= byte && byte <= arc->last; }

// The state behind the backslash of escapes that lead to a state. Most arcs of a language lead to few states, and share it.
struct escapes {
    uint32_t first, last, to, slash; // first, last: the bytes; last 0: none yet
};

// Adds the ways from the state behind a backslash to `to` that read escapes of the bytes first to last.
static void escape_add_ways(struct grammar_fsa *fsa, uint32_t slash, uint32_t first, uint32_t last, uint32_t to)
{
    uint32_t zero;

    for (uint32_t i = 0; i < LETTERS; i++)
        if (letters[i].byte >= first && letters[i].byte <= last)
            escape_add_byte(fsa, slash, letters[i].letter, to);
    if (first >= SPACE)
        return;
    zero = escape_add_step(fsa, escape_add_step(fsa, escape_add_step(fsa, slash, 'u'), '0'), '0');
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t low = half * 16 > first ? half * 16 : first, high = half * 16 + 15 < last ? half * 16 + 15 : last;
        if (low <= high)
            escape_add_digits(fsa, escape_add_step(fsa, zero, '0' + half), low, high, to);
    }
}

// Adds the arc to the state behind the backslash, which is made unless there is one for the same escapes.
static void escape_add_slash(struct grammar_fsa *fsa, const struct grammar_arc *arc, struct escapes *known)
{
    // Bytes in between are not escaped: ranges that differ in those are alike.
    const uint32_t first = arc->first < SPACE ? arc->first : arc->first <= QUOTE ? QUOTE : BACKSLASH;
    const uint32_t last = arc->last >= BACKSLASH ? BACKSLASH : arc->last >= QUOTE ? QUOTE : arc->last;
    struct escapes *escapes = &known[(arc->to * 3 + first + last) % KNOWN];

    if (!escapes->last || escapes->first != first || escapes->last != last || escapes->to != arc->to) {
        *escapes = (struct escapes){.first = first, .last = last, .to = arc->to, .slash = grammar_fsa_add_state(fsa, false)};
        escape_add_ways(fsa, escapes->slash, first, last, arc->to);
    }
    escape_add_byte(fsa, arc->from, BACKSLASH, escapes->slash);
}

static void escape_add_arc(struct grammar_fsa *fsa, const struct grammar_arc *arc, struct escapes *known)
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
        escape_add_slash(fsa, arc, known);
}

uint32_t grammar_json_escaped(struct grammar_builder *builder, uint32_t node)
{
    uint8_t *uses = malloc((size_t)builder->rules.count + 1);
    struct grammar_fsa from = {0}, to = {.max_states = GRAMMAR_DRAFT_STATES, .max_arcs = GRAMMAR_DRAFT_ARCS};
    struct escapes known[KNOWN] = {0};
    uint32_t result = 0;

    if (!uses)
        return grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
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
                escape_add_arc(&to, &from.arcs[a], known);
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

// grammar_regular.c: see grammar_regular.h, and the operations on regular languages of grammar_build.h.
//
// Both operations walk pairs of states of two deterministic automata, as far as they are reached; for a difference the second one of a pair
// may be lost (GRAMMAR_NO_STATE), from where on everything is let through. What comes out is trimmed and minimized.
#include "common/grammar/grammar_regular.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/grammar/grammar_emit.h"
#include "common/grammar/grammar_reduce.h"

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
        grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
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

// The same, deterministic.
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

/* --- pairs of states -------------------------------------------------------------------------------------------------------- */

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

// step.c: where a byte leads.
//
// The arcs that read the byte are followed from each pair (state, stack) of a configuration. What they lead to is closed in two phases, as a
// subset construction closes over empty moves:
//
//   1. Upwards and along: at the end of a rule, the states to which its stack returns; behind a jump or a call of a rule that may be empty,
//      the target. All with stacks that exist already.
//   2. Downwards: rules that are called. All callers of a rule are known before it is entered, since rules are taken by rank
//      (grammar.c), so it gets one stack for all of them: the number of stacks does not multiply. A call at the very end of a
//      rule returns to where that rule would (a tail call), so a list of any length needs no stack.
//
// Pairs of one state are then joined to one, with the union of their stacks; only states that read a byte are kept. A configuration without any
// but with may_end is the end of the text.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/tracker_state.h"

static uint32_t closure_slot_of(struct grammar_pair pair)
{
    uint64_t hash = ((uint64_t)pair.state << 32 | pair.stack) * 0x9e3779b97f4a7c15u;

    return (uint32_t)(hash >> 40) & (2 * GRAMMAR_MAX_CLOSURE - 1);
}

// Adds a pair to the closure unless it is there.
static void closure_add(struct grammar_closure *closure, uint32_t state, uint32_t stack)
{
    const struct grammar_pair pair = {state, stack};
    uint32_t slot = closure_slot_of(pair);

    for (; closure->slots[slot]; slot = (slot + 1) & (2 * GRAMMAR_MAX_CLOSURE - 1)) {
        const struct grammar_pair *other = &closure->pairs[closure->slots[slot] - 1];
        if (other->state == state && other->stack == stack)
            return;
    }
    if (closure->count == GRAMMAR_MAX_CLOSURE) {
        closure->is_full = true;
        return;
    }
    closure->pairs[closure->count++] = pair;
    closure->slots[slot] = closure->count;
}

// Empties the hash set, by what is in it.
static void forget_slots(struct grammar_closure *closure)
{
    if (closure->count > GRAMMAR_MAX_CLOSURE / 8)
        memset(closure->slots, 0, sizeof closure->slots);
    for (uint32_t i = 0; i < closure->count && closure->count <= GRAMMAR_MAX_CLOSURE / 8; i++)
        for (uint32_t slot = closure_slot_of(closure->pairs[i]); closure->slots[slot];
             slot = (slot + 1) & (2 * GRAMMAR_MAX_CLOSURE - 1))
            closure->slots[slot] = 0;
}

static int compare_pairs(const void *left, const void *right)
{
    const struct grammar_pair *a = left, *b = right;

    return a->state != b->state ? (a->state < b->state ? -1 : 1) : (a->stack > b->stack) - (a->stack < b->stack);
}

static void sort_pairs(struct grammar_pair *pairs, uint32_t count)
{
    if (count > 24) {
        qsort(pairs, count, sizeof *pairs, compare_pairs);
        return;
    }
    for (uint32_t i = 1; i < count; i++) {
        struct grammar_pair pair = pairs[i];
        uint32_t at = i;
        for (; at && compare_pairs(&pair, &pairs[at - 1]) < 0; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = pair;
    }
}

// --- sets of stacks -----------------------------------------------------------------------------------------------------

// Adds a pair to the set that is being put together in closure->joined.
static void closure_join(struct grammar_closure *closure, uint32_t *count, struct grammar_pair pair)
{
    if (*count == GRAMMAR_MAX_CLOSURE)
        closure->is_full = true;
    else
        closure->joined[(*count)++] = pair;
}

static void join_stack(struct grammar_tracker *tracker, uint32_t *count, uint32_t stack)
{
    uint32_t pair_count;
    const struct grammar_pair *pairs = grammar_pairs_of(tracker, stack, &pair_count);

    for (uint32_t i = 0; i < pair_count; i++)
        closure_join(tracker->closure, count, pairs[i]);
}

static uint32_t joined_stack(struct grammar_tracker *tracker, uint32_t count)
{
    struct grammar_closure *closure = tracker->closure;
    uint32_t kept = 0;

    sort_pairs(closure->joined, count);
    for (uint32_t i = 0; i < count; i++)
        if (!i || compare_pairs(&closure->joined[i], &closure->joined[kept - 1]) != 0)
            closure->joined[kept++] = closure->joined[i];
    return closure->is_full ? GRAMMAR_NO_STACK : grammar_stack_of(tracker, closure->joined, kept);
}

// Joins the closure's pairs of one state each to one, and sorts them.
static void closure_merge(struct grammar_tracker *tracker)
{
    struct grammar_closure *closure = tracker->closure;
    uint32_t kept = 0;

    sort_pairs(closure->pairs, closure->count);
    for (uint32_t i = 0, end; i < closure->count && !closure->is_full; i = end) {
        struct grammar_pair pair = closure->pairs[i];
        uint32_t count = 0;
        for (end = i + 1; end < closure->count && closure->pairs[end].state == pair.state;)
            end++;
        if (end > i + 1) {
            for (uint32_t p = i; p < end; p++)
                join_stack(tracker, &count, closure->pairs[p].stack);
            pair.stack = joined_stack(tracker, count);
        }
        closure->pairs[kept++] = pair;
    }
    closure->count = closure->is_full ? 0 : kept;
}

// --- the two phases -----------------------------------------------------------------------------------------------------

// Adds what is behind the jumps, and the calls of rules that may be empty, of a state.
static void closure_add_behind(struct grammar_tracker *tracker, struct grammar_pair pair)
{
    const struct grammar *grammar = tracker->grammar;

    if (!(grammar->flags[pair.state] & GRAMMAR_STATE_CALLS))
        return;
    for (uint32_t a = grammar->fsa.index[pair.state + 1]; a-- > grammar->fsa.index[pair.state];) {
        const struct grammar_arc *arc = &grammar->fsa.arcs[a];
        if (arc->first < GRAMMAR_CALL)
            break;
        if (arc->first == GRAMMAR_JUMP || grammar->rules[arc->first - GRAMMAR_CALL].is_nullable)
            closure_add(tracker->closure, arc->to, pair.stack);
    }
}

// Returns whether the text may end.
static bool close_upwards(struct grammar_tracker *tracker)
{
    struct grammar_closure *closure = tracker->closure;
    bool may_end = false;

    for (uint32_t i = 0; i < closure->count && !closure->is_full; i++) {
        const struct grammar_pair pair = closure->pairs[i];
        if (tracker->grammar->flags[pair.state] & GRAMMAR_STATE_ACCEPTS) {
            uint32_t count;
            const struct grammar_pair *returns = grammar_pairs_of(tracker, pair.stack, &count);
            for (uint32_t r = 0; r < count; r++)
                if (returns[r].state == GRAMMAR_TEXT_ENDS)
                    may_end = true;
                else
                    closure_add(closure, returns[r].state, returns[r].stack);
        }
        closure_add_behind(tracker, pair);
    }
    return may_end;
}

// Notes the calls of a state for when the rule's turn comes.
static void closure_note_calls(struct grammar_tracker *tracker, struct grammar_pair pair)
{
    const struct grammar *grammar = tracker->grammar;
    struct grammar_closure *closure = tracker->closure;

    if (!(grammar->flags[pair.state] & GRAMMAR_STATE_CALLS))
        return;
    for (uint32_t a = grammar->fsa.index[pair.state + 1]; a-- > grammar->fsa.index[pair.state];) {
        const struct grammar_arc *arc = &grammar->fsa.arcs[a];
        uint32_t rule = arc->first - GRAMMAR_CALL, rank;
        if (arc->first < GRAMMAR_CALL)
            break;
        if (arc->first == GRAMMAR_JUMP)
            continue;
        if (closure->contribution_count == GRAMMAR_MAX_CLOSURE) {
            closure->is_full = true;
            return;
        }
        rank = grammar->rules[rule].rank;
        tracker->pending[rank / 64] |= (uint64_t)1 << rank % 64;
        closure->contributions[closure->contribution_count].next = tracker->rule_calls[rule];
        closure->contributions[closure->contribution_count].pair = (struct grammar_pair){arc->to, pair.stack};
        tracker->rule_calls[rule] = ++closure->contribution_count;
    }
}

// Enters a rule with one stack for all who call it.
static void closure_enter(struct grammar_tracker *tracker, uint32_t rule)
{
    struct grammar_closure *closure = tracker->closure;
    uint32_t count = 0, stack, next = tracker->rule_calls[rule], first = closure->count;

    tracker->rule_calls[rule] = 0;
    for (; next; next = closure->contributions[next - 1].next) {
        const struct grammar_pair pair = closure->contributions[next - 1].pair;
        if (tracker->grammar->flags[pair.state] & GRAMMAR_STATE_EXITS)
            join_stack(tracker, &count, pair.stack);
        else
            closure_join(closure, &count, pair);
    }
    stack = closure->is_full ? GRAMMAR_NO_STACK : joined_stack(tracker, count);
    if (closure->is_full)
        return;
    closure_add(closure, tracker->grammar->rules[rule].start, stack);
    for (uint32_t i = first; i < closure->count && !closure->is_full; i++) {
        const struct grammar_pair pair = closure->pairs[i];
        closure_add_behind(tracker, pair);
        closure_note_calls(tracker, pair);
    }
}

static void close_downwards(struct grammar_tracker *tracker)
{
    struct grammar_closure *closure = tracker->closure;
    const uint32_t words = (tracker->grammar->rule_count + 63) / 64, known = closure->count;

    closure->contribution_count = 0;
    for (uint32_t i = 0; i < known && !closure->is_full; i++)
        closure_note_calls(tracker, closure->pairs[i]);
    if (!closure->contribution_count)
        return;
    for (uint32_t word = 0; word < words; word++)
        while (tracker->pending[word]) {
            uint32_t rank = word * 64 + (uint32_t)__builtin_ctzll(tracker->pending[word]);
            tracker->pending[word] &= tracker->pending[word] - 1;
            if (closure->is_full) // but leave nothing behind
                tracker->rule_calls[tracker->grammar->rank_rules[rank]] = 0;
            else
                closure_enter(tracker, tracker->grammar->rank_rules[rank]);
        }
}

// Closes the closure's pairs and returns the configuration that they are.
static uint32_t close_all(struct grammar_tracker *tracker)
{
    struct grammar_closure *closure = tracker->closure;
    bool may_end = close_upwards(tracker);
    uint32_t kept = 0;

    tracker->work += closure->count;
    forget_slots(closure);
    closure_merge(tracker);
    close_downwards(tracker);
    tracker->work += closure->count + closure->contribution_count + closure->words;
    forget_slots(closure);
    for (uint32_t i = 0; i < closure->count; i++)
        if (tracker->grammar->flags[closure->pairs[i].state] & GRAMMAR_STATE_READS)
            closure->pairs[kept++] = closure->pairs[i];
    closure->count = kept;
    closure_merge(tracker);
    if (closure->is_full || (!closure->count && !may_end))
        return GRAMMAR_DEAD;
    return grammar_configuration_of(tracker, closure->pairs, closure->count, may_end);
}

static void closure_begin(struct grammar_closure *closure)
{
    closure->count = closure->words = 0;
    closure->is_full = false;
}

uint32_t grammar_first_configuration(struct grammar_tracker *tracker)
{
    const struct grammar_pair end = {GRAMMAR_TEXT_ENDS, GRAMMAR_NO_STACK};
    uint32_t none = GRAMMAR_DEAD;

    grammar_memory_prepare(tracker, &none);
    closure_begin(tracker->closure);
    closure_add(tracker->closure, tracker->grammar->rules[0].start, grammar_stack_of(tracker, &end, 1));
    return close_all(tracker);
}

uint32_t grammar_find_next(struct grammar_tracker *tracker, uint32_t *configuration, uint32_t byte_class)
{
    const struct grammar *grammar = tracker->grammar;
    const uint8_t byte = grammar->class_byte[byte_class];
    const struct grammar_pair *pairs;
    uint32_t count, next;

    grammar_memory_prepare(tracker, configuration);
    closure_begin(tracker->closure);
    pairs = grammar_pairs_of(tracker, *configuration, &count);
    tracker->work += count;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t a = grammar->fsa.index[pairs[i].state]; a < grammar->fsa.index[pairs[i].state + 1]; a++) {
            const struct grammar_arc *arc = &grammar->fsa.arcs[a];
            if (arc->first > byte) // arcs are sorted by their first symbol
                break;
            if (arc->last >= byte)
                closure_add(tracker->closure, arc->to, pairs[i].stack);
        }
    next = tracker->closure->count ? close_all(tracker) : (uint32_t)GRAMMAR_DEAD;
    tracker->words[*configuration + CONFIGURATION_NEXT + byte_class] = next;
    return next;
}

// grammar_schema_length.c: minLength and maxLength beside a pattern, format or choices.
//
// A product with a count has as many states as both together, times each other. Most of them are not needed: what a language's own shortest and
// longest texts keep to says nothing, and then there is nothing to count. Where the count remains and is large, fewer characters are allowed than
// it would allow, so that the product stays bearable.
#include <string.h>

#include "common/grammar/grammar_builder_state.h"
#include "common/grammar/grammar_schema_internal.h"

// MAX_COUNT: of any characters, each of which takes some eight states of GRAMMAR_MAX_REGULAR_STATES.
enum { MAX_STATES = 6000, LEAST = 64, MAX_COUNT = 1900 };

// Characters are counted by their first bytes.
static uint32_t weight_of(const struct grammar_arc *arc) { return arc->first < 0x80 || arc->first >= 0xc0; }

// The fewest characters on a way from the start to an end. States are taken in the order of their distance: those at the same one first.
static uint64_t shortest(struct jschema *schema, const struct grammar_fsa *fsa)
{
    uint32_t *here = jschema_take(schema, 2 * (size_t)fsa->arc_count + 2, sizeof *here), *next = here + fsa->arc_count + 1, *swap;
    uint32_t here_count = 1, next_count = 0;
    bool *is_done = jschema_take(schema, fsa->state_count, sizeof *is_done);

    if (!here || !is_done)
        return 0;
    here[0] = fsa->start;
    for (uint64_t distance = 0; here_count; distance++) {
        while (here_count) {
            uint32_t state = here[--here_count];
            if (is_done[state])
                continue;
            if (fsa->accepts[state])
                return distance;
            is_done[state] = true;
            for (uint32_t a = fsa->index[state]; a < fsa->index[state + 1]; a++)
                if (weight_of(&fsa->arcs[a]))
                    next[next_count++] = fsa->arcs[a].to;
                else
                    here[here_count++] = fsa->arcs[a].to;
        }
        swap = here;
        here = next;
        next = swap;
        here_count = next_count;
        next_count = 0;
    }
    return 0;
}

// The most characters on a way from the start; UINT64_MAX: it goes in circles, all of which lead to an end.
static uint64_t longest(struct jschema *schema, const struct grammar_fsa *fsa)
{
    uint32_t *entries = jschema_take(schema, fsa->state_count, sizeof *entries),
             *queue = jschema_take(schema, fsa->state_count, sizeof *queue);
    uint64_t *distances = jschema_take(schema, fsa->state_count, sizeof *distances), most = 0;
    uint32_t count = 0;

    if (!entries || !queue || !distances)
        return UINT64_MAX;
    for (uint32_t a = 0; a < fsa->arc_count; a++)
        entries[fsa->arcs[a].to]++;
    for (uint32_t s = 0; s < fsa->state_count; s++)
        if (entries[s] == 0)
            queue[count++] = s;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t a = fsa->index[queue[i]]; a < fsa->index[queue[i] + 1]; a++) {
            const struct grammar_arc *arc = &fsa->arcs[a];
            uint64_t distance = distances[queue[i]] + weight_of(arc);
            if (distance > distances[arc->to])
                distances[arc->to] = distance;
            if (distances[arc->to] > most)
                most = distances[arc->to];
            if (--entries[arc->to] == 0)
                queue[count++] = arc->to;
        }
    return count == fsa->state_count ? most : UINT64_MAX;
}

uint32_t jschema_of_length(struct jschema *schema, uint32_t entry, uint32_t content, uint64_t min, uint64_t max)
{
    struct grammar_builder *builder = schema->builder;
    uint32_t any = grammar_chars(builder, NULL, 0, true), states = 1;

    content = jschema_both(schema, content, jschema_any_content(schema)); // as an automaton
    if (content == schema->nothing || jschema_failed(schema))
        return schema->nothing;
    if (grammar_node_of(builder, content)->kind == NODE_REGULAR) {
        const struct grammar_fsa *fsa = grammar_regular_of(builder, grammar_node_of(builder, content)->at);
        states = fsa->state_count;
        min = shortest(schema, fsa) >= min ? 0 : min;
        max = longest(schema, fsa) <= max ? UINT64_MAX : max;
    }
    if (min == 0 && max == UINT64_MAX)
        return content;
    if (max != UINT64_MAX && max > LEAST && max > MAX_STATES / states)
        max = MAX_STATES / states > LEAST ? MAX_STATES / states : LEAST;
    if (max != UINT64_MAX && max > MAX_COUNT)
        max = MAX_COUNT;
    if (min > max || min > MAX_COUNT)
        return jschema_fail(schema, entry, "minLength", STATUS_RESOURCE_EXHAUSTED, "is too large beside pattern, format or enum");
    return jschema_both(schema, content,
                        grammar_repeat(builder, any, (uint32_t)min, max == UINT64_MAX ? GRAMMAR_NO_LIMIT : (uint32_t)max));
}

// grammar_emit.c: see grammar_emit.h.
//
// A node becomes states and arcs between two states that are there already:
//
//     sequence ab   from ─a▶ s ─b▶ to         either a|b   from ─a▶ to, from ─b▶ to
//     a{1,3}        from ─a▶ s ─a▶ t ─a▶ to, s ╌▶ to, t ╌▶ to        a*   from ╌▶ m ─a▶ m ╌▶ to
//
// where ╌▶ reads nothing. Since no arc ever goes back to `from` or out of `to` but by what is between other states, alternatives may share
// both. What is still to be done is a stack of (node, from, to), so depth is no matter; what bounds it all is the limit of states and arcs.
#include "common/grammar/grammar_emit.h"

#include <stdlib.h>

#include "common/base/checked.h"

enum {
    INLINE_STATES = 24,    // a rule of at most so many is inlined
    MOST_STATES = 1 << 24, // nobody needs a larger estimate
    FIRST_ITEMS = 64,
};

/* --- the survey: strongly connected components of nodes (Tarjan), whose calls are those that loop ------------------------------- */

struct visit {
    uint32_t node, next; // next: of its children
};

struct survey {
    const struct grammar_builder *builder;
    bool inline_all;
    uint8_t *uses;
    uint32_t *sizes;   // [nodes] about how many states it takes
    uint32_t *numbers; // [nodes] in the order of first visits; 0: none yet
    uint32_t *lowest;  // [nodes] the first that it leads back to
    bool *is_open;     // [nodes] its component is not complete yet
    uint32_t *open;    // those, in order
    struct visit *path;
    uint32_t path_count, open_count, number;
    uint64_t steps;
};

// Returns child `next` of a node, or GRAMMAR_NO_NODE after the last one. A call's child is the rule's node.
static uint32_t child_of(const struct survey *survey, const struct grammar_node *node, uint32_t next)
{
    switch (node->kind) {
    case NODE_SEQUENCE:
    case NODE_EITHER: return next < node->count ? grammar_children_of(survey->builder, node)[next] : GRAMMAR_NO_NODE;
    case NODE_REPEAT: return next == 0 ? node->at : GRAMMAR_NO_NODE;
    case NODE_CALL: return next == 0 ? grammar_rule_of(survey->builder, node->at)->node : GRAMMAR_NO_NODE;
    default: return GRAMMAR_NO_NODE;
    }
}

static uint32_t size_of_call(struct survey *survey, const struct grammar_node *node)
{
    uint32_t child = grammar_rule_of(survey->builder, node->at)->node;
    uint8_t *use = &survey->uses[node->at];

    if (survey->is_open[child])
        *use = GRAMMAR_RULE_LOOPS;
    else if (*use == GRAMMAR_RULE_UNUSED)
        *use = survey->inline_all || (survey->sizes[child] <= INLINE_STATES && !grammar_rule_of(survey->builder, node->at)->is_kept)
                   ? (uint8_t)GRAMMAR_RULE_INLINED
                   : (uint8_t)GRAMMAR_RULE_KEPT;
    return *use == GRAMMAR_RULE_INLINED ? survey->sizes[child] : 2;
}

// Returns about how many states a node takes whose children are known.
static uint32_t size_of(struct survey *survey, const struct grammar_node *node)
{
    uint64_t size = 1;

    switch (node->kind) {
    case NODE_BYTES:
    case NODE_CHARS: size = node->count; break;
    case NODE_REGULAR: size = grammar_regular_of(survey->builder, node->at)->state_count; break;
    case NODE_REPEAT:
        size = (uint64_t)survey->sizes[node->at] * (node->max == GRAMMAR_NO_LIMIT ? MAX(node->min, 1u) : node->max);
        break;
    case NODE_CALL: size = size_of_call(survey, node); break;
    case NODE_SEQUENCE:
    case NODE_EITHER:
        for (uint32_t i = 0; i < node->count && size < MOST_STATES; i++)
            size += survey->sizes[grammar_children_of(survey->builder, node)[i]];
        break;
    default: break;
    }
    return (uint32_t)MIN(MAX(size, 1u), (uint64_t)MOST_STATES);
}

static void enter(struct survey *survey, uint32_t node)
{
    survey->path[survey->path_count++] = (struct visit){node, 0};
    survey->open[survey->open_count++] = node;
    survey->is_open[node] = true;
    survey->numbers[node] = survey->lowest[node] = ++survey->number;
}

static void leave(struct survey *survey, uint32_t node)
{
    survey->sizes[node] = size_of(survey, grammar_node_of(survey->builder, node));
    if (--survey->path_count) {
        uint32_t parent = survey->path[survey->path_count - 1].node;
        survey->lowest[parent] = MIN(survey->lowest[parent], survey->lowest[node]);
    }
    if (survey->lowest[node] != survey->numbers[node])
        return;
    do
        survey->is_open[survey->open[--survey->open_count]] = false;
    while (survey->open[survey->open_count] != node);
}

// Returns the rule that is called but has no node, or GRAMMAR_NO_NODE.
static uint32_t walk(struct survey *survey, uint32_t root)
{
    enter(survey, root);
    while (survey->path_count) {
        struct visit *visit = &survey->path[survey->path_count - 1];
        const struct grammar_node *node = grammar_node_of(survey->builder, visit->node);
        uint32_t child = child_of(survey, node, visit->next);

        survey->steps++;
        if (child == GRAMMAR_NO_NODE && node->kind == NODE_CALL && visit->next == 0)
            return node->at;
        visit->next++;
        if (child == GRAMMAR_NO_NODE)
            leave(survey, visit->node);
        else if (!survey->numbers[child])
            enter(survey, child);
        else if (survey->is_open[child])
            survey->lowest[visit->node] = MIN(survey->lowest[visit->node], survey->numbers[child]);
    }
    return GRAMMAR_NO_NODE;
}

bool grammar_survey(struct grammar_builder *builder, uint32_t node, bool inline_all, uint8_t *uses)
{
    const size_t nodes = builder->nodes.count;
    struct survey survey = {.builder = builder, .inline_all = inline_all, .uses = uses};
    uint32_t undefined;

    for (uint32_t r = 0; r < builder->rules.count; r++)
        uses[r] = GRAMMAR_RULE_UNUSED;
    if (builder->failure.status || !nodes) // no nodes: the two that are always there
        return !builder->failure.status;
    survey.sizes = calloc(4 * nodes, sizeof *survey.sizes);
    survey.path = calloc(nodes, sizeof *survey.path);
    survey.is_open = calloc(nodes, sizeof *survey.is_open);
    if (survey.sizes && survey.path && survey.is_open) {
        survey.numbers = survey.sizes + nodes;
        survey.lowest = survey.numbers + nodes;
        survey.open = survey.lowest + nodes;
        undefined = walk(&survey, node);
        if (undefined != GRAMMAR_NO_NODE)
            grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT, "rule '%s' is used but not defined",
                                 grammar_rule_of(builder, undefined)->name);
    } else
        grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    builder->work += survey.steps;
    free(survey.sizes);
    free(survey.path);
    free(survey.is_open);
    return !builder->failure.status;
}

/* --- automata --------------------------------------------------------------------------------------------------------- */

struct item {
    uint32_t node, from, to;
};

struct emitter {
    const struct grammar_builder *builder;
    const uint8_t *uses;
    struct grammar_fsa *out;
    struct item *items;
    uint32_t count, capacity;
};

static void later(struct emitter *emitter, uint32_t node, uint32_t from, uint32_t to)
{
    if (emitter->out->failure)
        return;
    if (emitter->count == emitter->capacity) {
        uint32_t capacity = emitter->capacity ? emitter->capacity * 2 : FIRST_ITEMS;
        struct item *grown = capacity <= GRAMMAR_DRAFT_ARCS ? realloc(emitter->items, capacity * sizeof *grown) : NULL;
        if (!grown) {
            emitter->out->failure = capacity <= GRAMMAR_DRAFT_ARCS ? GRAMMAR_FSA_NO_MEMORY : GRAMMAR_FSA_TOO_LARGE;
            return;
        }
        emitter->items = grown;
        emitter->capacity = capacity;
    }
    emitter->items[emitter->count++] = (struct item){node, from, to};
}

static uint32_t fresh(struct emitter *emitter) { return grammar_fsa_add_state(emitter->out, false); }

static void jump(struct emitter *emitter, uint32_t from, uint32_t to)
{
    if (from != to)
        grammar_fsa_add_arc(emitter->out, from, GRAMMAR_JUMP, GRAMMAR_JUMP, to);
}

static void emit_bytes(struct emitter *emitter, const struct grammar_node *node, uint32_t from, uint32_t to)
{
    const unsigned char *text = (const unsigned char *)grammar_text_of(emitter->builder, node);

    for (uint32_t i = 0; i < node->count && !emitter->out->failure; i++) {
        uint32_t next = i + 1 == node->count ? to : fresh(emitter);
        grammar_fsa_add_arc(emitter->out, from, text[i], text[i], next);
        from = next;
    }
}

// Spellings that end alike, with bytes that may be any of a character's later ones, share those states.
static void emit_chars(struct emitter *emitter, const struct grammar_node *node, uint32_t start, uint32_t to)
{
    uint32_t tails[GRAMMAR_CHAR_BYTES] = {to, GRAMMAR_NO_STATE, GRAMMAR_NO_STATE, GRAMMAR_NO_STATE};
    const struct grammar_spelling *spellings = grammar_spellings_of(emitter->builder, node);

    for (uint32_t i = 0; i < node->count && !emitter->out->failure; i++) {
        const struct grammar_spelling *spelling = &spellings[i];
        uint32_t full = 0, from = start;

        while (full + 1 < spelling->count && spelling->first[spelling->count - 1 - full] == 0x80 &&
               spelling->last[spelling->count - 1 - full] == 0xbf)
            full++;
        for (uint32_t left = 1; left <= full; left++)
            if (tails[left] == GRAMMAR_NO_STATE) {
                tails[left] = fresh(emitter);
                grammar_fsa_add_arc(emitter->out, tails[left], 0x80, 0xbf, tails[left - 1]);
            }
        for (uint32_t b = 0; b < spelling->count - full; b++) {
            uint32_t next = b + 1 == spelling->count - full ? tails[full] : fresh(emitter);
            grammar_fsa_add_arc(emitter->out, from, spelling->first[b], spelling->last[b], next);
            from = next;
        }
    }
}

static void emit_repeat(struct emitter *emitter, const struct grammar_node *node, uint32_t from, uint32_t to)
{
    const bool is_open = node->max == GRAMMAR_NO_LIMIT;
    const uint32_t copies = is_open ? node->min : node->max;

    for (uint32_t i = 0; i < copies && !emitter->out->failure; i++) {
        uint32_t next = !is_open && i + 1 == copies ? to : fresh(emitter);
        if (i >= node->min)
            jump(emitter, from, to);
        later(emitter, node->at, from, next);
        from = next;
    }
    if (is_open) {
        uint32_t loop = node->min ? from : fresh(emitter); // never the caller's `from`, to which no arc may lead
        if (loop != from)
            jump(emitter, from, loop);
        later(emitter, node->at, loop, loop);
        jump(emitter, loop, to);
    }
}

static void emit_regular(struct emitter *emitter, const struct grammar_node *node, uint32_t from, uint32_t to)
{
    const struct grammar_fsa *part = grammar_regular_of(emitter->builder, node->at);
    uint32_t base = grammar_fsa_append(emitter->out, part);

    jump(emitter, from, base + part->start);
    for (uint32_t s = 0; s < part->state_count && !emitter->out->failure; s++)
        if (part->accepts[s]) {
            emitter->out->accepts[base + s] = false;
            jump(emitter, base + s, to);
        }
}

static void emit_node(struct emitter *emitter, struct item item)
{
    const struct grammar_node *node = grammar_node_of(emitter->builder, item.node);
    uint32_t from = item.from;

    switch (node->kind) {
    case NODE_NOTHING: break;
    case NODE_EMPTY: jump(emitter, from, item.to); break;
    case NODE_BYTES: emit_bytes(emitter, node, from, item.to); break;
    case NODE_CHARS: emit_chars(emitter, node, from, item.to); break;
    case NODE_REPEAT: emit_repeat(emitter, node, from, item.to); break;
    case NODE_REGULAR: emit_regular(emitter, node, from, item.to); break;
    case NODE_ANCHOR: grammar_fsa_add_arc(emitter->out, from, node->at, node->at, item.to); break;
    case NODE_EITHER:
        for (uint32_t i = node->count; i-- > 0;)
            later(emitter, grammar_children_of(emitter->builder, node)[i], from, item.to);
        break;
    case NODE_SEQUENCE:
        for (uint32_t i = 0; i < node->count && !emitter->out->failure; i++) {
            uint32_t next = i + 1 == node->count ? item.to : fresh(emitter);
            later(emitter, grammar_children_of(emitter->builder, node)[i], from, next);
            from = next;
        }
        break;
    case NODE_CALL:
        if (emitter->uses[node->at] == GRAMMAR_RULE_INLINED)
            later(emitter, grammar_rule_of(emitter->builder, node->at)->node, from, item.to);
        else
            grammar_fsa_add_arc(emitter->out, from, GRAMMAR_CALL + node->at, GRAMMAR_CALL + node->at, item.to);
        break;
    }
}

void grammar_emit(struct grammar_builder *builder, uint32_t node, const uint8_t *uses, struct grammar_fsa *out)
{
    struct emitter emitter = {.builder = builder, .uses = uses, .out = out};
    uint32_t to;

    *out = (struct grammar_fsa){.max_states = GRAMMAR_DRAFT_STATES, .max_arcs = GRAMMAR_DRAFT_ARCS};
    out->start = grammar_fsa_add_state(out, node == GRAMMAR_NODE_EMPTY);
    if (node > GRAMMAR_NODE_EMPTY) {
        to = grammar_fsa_add_state(out, true);
        later(&emitter, node, out->start, to);
        while (emitter.count && !out->failure)
            emit_node(&emitter, emitter.items[--emitter.count]);
    }
    free(emitter.items);
    builder->work += out->arc_count;
    if (!grammar_fsa_seal(out))
        return;
}

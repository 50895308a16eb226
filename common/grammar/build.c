// build.c: see build.h: the nodes.
//
// A node refers only to nodes that were there before it, so nodes form no circle but through rules, and their lists are never walked
// recursively: a hostile caller can nest as deep as it has nodes. What is obvious is simplified at once (nothing in a sequence makes it
// nothing, a choice of one is that one); everything else is left to compile.c, which makes automata of nodes.
#include "common/grammar/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/builder_state.h"

enum { MAX_RULE_NAME = 80, MAX_RANGES = 4096 };

struct grammar_builder *grammar_builder_open(void)
{
    struct grammar_builder *builder = calloc(1, sizeof *builder);

    if (!builder)
        return NULL;
    builder->nodes.size = sizeof(struct grammar_node);
    builder->children.size = sizeof(uint32_t);
    builder->text.size = 1;
    builder->spellings.size = sizeof(struct grammar_spelling);
    builder->rules.size = sizeof(struct grammar_build_rule);
    builder->regulars.size = sizeof(struct grammar_fsa);
    return builder;
}

void grammar_builder_close(struct grammar_builder *builder)
{
    if (!builder)
        return;
    for (uint32_t r = 0; r < builder->rules.count; r++)
        free(grammar_rule_of(builder, r)->name);
    for (uint32_t r = 0; r < builder->regulars.count; r++)
        grammar_fsa_free(grammar_regular_of(builder, r));
    free(builder->nodes.data);
    free(builder->children.data);
    free(builder->text.data);
    free(builder->spellings.data);
    free(builder->rules.data);
    free(builder->regulars.data);
    free(builder);
}

uint32_t grammar_builder_fail(struct grammar_builder *builder, enum status status, const char *format, ...)
{
    va_list args;

    if (builder->failure.status)
        return GRAMMAR_NODE_NOTHING;
    builder->failure.status = status;
    va_start(args, format);
    vsnprintf(builder->failure.text, sizeof builder->failure.text, format, args);
    va_end(args);
    return GRAMMAR_NODE_NOTHING;
}

void grammar_builder_blame(struct grammar_builder *builder, const char *format, ...)
{
    char context[128];
    va_list args;

    if (!builder->failure.status)
        return;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    error_prefix(&builder->failure, "%s", context);
}

struct error *grammar_builder_failure(struct grammar_builder *builder) { return &builder->failure; }

uint64_t grammar_builder_work(const struct grammar_builder *builder) { return builder->work; }

bool grammar_builder_failed(const struct grammar_builder *builder) { return builder->failure.status != STATUS_OK; }

// Counts `bytes` that the builder takes. Returns false, and the builder fails, if that is too much.
static bool builder_charge(struct grammar_builder *builder, size_t bytes)
{
    if (builder->failure.status)
        return false;
    if (bytes > GRAMMAR_MAX_BUILDER_BYTES - MIN(builder->bytes, (size_t)GRAMMAR_MAX_BUILDER_BYTES)) {
        grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "the grammar is too large: its parts take more than %d MiB",
                             GRAMMAR_MAX_BUILDER_BYTES >> 20);
        return false;
    }
    builder->bytes += bytes;
    return true;
}

// Adds `count` elements, which are copied, or left as they are if `from` is NULL. Returns where they begin, or NULL when the builder has failed.
static void *list_push(struct grammar_builder *builder, struct grammar_list *list, const void *from, uint32_t count)
{
    char *place;

    if (!builder_charge(builder, (size_t)count * list->size))
        return NULL;
    if (!list->data || count > list->capacity - list->count) {
        uint32_t capacity = MAX(list->capacity * 2, list->count + count + 32);
        void *grown = realloc(list->data, (size_t)capacity * list->size);
        if (!grown) {
            grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
            return NULL;
        }
        list->data = grown;
        list->capacity = capacity;
    }
    place = (char *)list->data + (size_t)list->count * list->size;
    if (from && count)
        memcpy(place, from, (size_t)count * list->size);
    list->count += count;
    return place;
}

static uint32_t add_node(struct grammar_builder *builder, struct grammar_node node)
{
    static const struct grammar_node first[] = {{.kind = NODE_NOTHING}, {.kind = NODE_EMPTY}};

    if (!builder->nodes.count)
        list_push(builder, &builder->nodes, first, ARRAY_COUNT(first));
    if (builder->nodes.count >= GRAMMAR_MAX_NODES)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "the grammar has more than %d parts", GRAMMAR_MAX_NODES);
    if (!list_push(builder, &builder->nodes, &node, 1))
        return GRAMMAR_NODE_NOTHING;
    return builder->nodes.count - 1;
}

uint32_t grammar_empty(struct grammar_builder *builder)
{
    return builder->failure.status ? GRAMMAR_NODE_NOTHING : GRAMMAR_NODE_EMPTY;
}

uint32_t grammar_nothing(struct grammar_builder *builder)
{
    (void)builder;
    return GRAMMAR_NODE_NOTHING;
}

// Adds bytes of which one may be what no text has.
static uint32_t add_bytes(struct grammar_builder *builder, const char *bytes, size_t length)
{
    uint32_t at = builder->text.count;

    if (!length)
        return grammar_empty(builder);
    if (length >= GRAMMAR_MAX_BUILDER_BYTES)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "the grammar has a text of %zu bytes", length);
    if (!list_push(builder, &builder->text, bytes, (uint32_t)length))
        return GRAMMAR_NODE_NOTHING;
    return add_node(builder, (struct grammar_node){.kind = NODE_BYTES, .at = at, .count = (uint32_t)length});
}

uint32_t grammar_bytes(struct grammar_builder *builder, const char *bytes, size_t length)
{
    if (!grammar_utf8_is_valid(bytes, length))
        return grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT, "the grammar has a text that is not UTF-8");
    return add_bytes(builder, bytes, length);
}

uint32_t grammar_text(struct grammar_builder *builder, const char *text) { return grammar_bytes(builder, text, strlen(text)); }

uint32_t grammar_control(struct grammar_builder *builder, const char *name)
{
    size_t length = strlen(name);
    char *token = malloc(length + 2);
    uint32_t node;

    if (!token)
        return grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
    token[0] = '\xff';
    memcpy(token + 1, name, length + 1);
    node = add_bytes(builder, token, length + 1);
    free(token);
    return node;
}

uint32_t grammar_special(struct grammar_builder *builder, const char *name)
{
    return grammar_either(builder, (const uint32_t[]){grammar_text(builder, name), grammar_control(builder, name)}, 2);
}

// --- characters ---------------------------------------------------------------------------------------------------------

static int compare_ranges(const void *left, const void *right)
{
    const struct grammar_range *a = left, *b = right;

    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a->last > b->last) - (a->last < b->last);
}

static void add_spellings(struct grammar_builder *builder, uint32_t first, uint32_t last)
{
    struct grammar_spelling spelling;

    while (first <= last && !builder->failure.status) {
        first = grammar_utf8_spell(first, last, &spelling);
        list_push(builder, &builder->spellings, &spelling, 1);
    }
}

// Adds a range without what it has of surrogates, which no text has.
static void add_range(struct grammar_builder *builder, uint32_t first, uint32_t last)
{
    enum { BEFORE = 0xd7ff, AFTER = 0xe000 };

    if (first <= BEFORE)
        add_spellings(builder, first, MIN(last, (uint32_t)BEFORE));
    if (last >= AFTER)
        add_spellings(builder, MAX(first, (uint32_t)AFTER), MIN(last, (uint32_t)GRAMMAR_CHAR_MAX));
}

uint32_t grammar_chars(struct grammar_builder *builder, const struct grammar_range *ranges, uint32_t count, bool negated)
{
    struct grammar_range *sorted = count <= MAX_RANGES ? malloc((count + 1) * sizeof *sorted) : NULL;
    uint32_t at = builder->spellings.count, next = 0, i = 0;

    if (!sorted)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED,
                                    count > MAX_RANGES ? "a set has more than %d ranges of characters" : "out of memory",
                                    MAX_RANGES);
    if (count)
        memcpy(sorted, ranges, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_ranges);
    while (i < count) { // joins what overlaps or touches
        struct grammar_range range = sorted[i++];
        if (range.first > range.last)
            continue;
        while (i < count && sorted[i].first <= MIN(range.last, (uint32_t)GRAMMAR_CHAR_MAX) + 1) {
            if (sorted[i].first <= sorted[i].last)
                range.last = MAX(range.last, sorted[i].last);
            i++;
        }
        if (!negated)
            add_range(builder, range.first, range.last);
        else if (range.first > next)
            add_range(builder, next, range.first - 1);
        next = MIN(range.last, (uint32_t)GRAMMAR_CHAR_MAX) + 1;
    }
    if (negated)
        add_range(builder, next, GRAMMAR_CHAR_MAX);
    free(sorted);
    if (builder->spellings.count == at)
        return GRAMMAR_NODE_NOTHING;
    return add_node(builder, (struct grammar_node){.kind = NODE_CHARS, .at = at, .count = builder->spellings.count - at});
}

// --- what is made of nodes ----------------------------------------------------------------------------------------------

// Adds a sequence or a choice of the nodes but for those that change nothing.
static uint32_t add_list(struct grammar_builder *builder, enum grammar_node_kind kind, const uint32_t *nodes, uint32_t count)
{
    const bool is_sequence = kind == NODE_SEQUENCE;
    const uint32_t neutral = is_sequence ? GRAMMAR_NODE_EMPTY : GRAMMAR_NODE_NOTHING;
    uint32_t at = builder->children.count, kept = 0, *children;

    for (uint32_t i = 0; i < count; i++) {
        assert_always(nodes[i] < MAX(builder->nodes.count, 2u));
        if (is_sequence && nodes[i] == GRAMMAR_NODE_NOTHING)
            return GRAMMAR_NODE_NOTHING;
        kept += nodes[i] != neutral;
    }
    if (kept <= 1) {
        for (uint32_t i = 0; i < count; i++)
            if (nodes[i] != neutral)
                return nodes[i];
        return builder->failure.status ? GRAMMAR_NODE_NOTHING : neutral;
    }
    children = list_push(builder, &builder->children, NULL, kept);
    if (!children)
        return GRAMMAR_NODE_NOTHING;
    for (uint32_t i = 0; i < count; i++)
        if (nodes[i] != neutral)
            *children++ = nodes[i];
    return add_node(builder, (struct grammar_node){.kind = kind, .at = at, .count = kept});
}

uint32_t grammar_sequence(struct grammar_builder *builder, const uint32_t *nodes, uint32_t count)
{
    return add_list(builder, NODE_SEQUENCE, nodes, count);
}

uint32_t grammar_either(struct grammar_builder *builder, const uint32_t *nodes, uint32_t count)
{
    return add_list(builder, NODE_EITHER, nodes, count);
}

uint32_t grammar_repeat(struct grammar_builder *builder, uint32_t node, uint32_t min, uint32_t max)
{
    assert_always(node < MAX(builder->nodes.count, 2u));
    if (builder->failure.status || min > max)
        return GRAMMAR_NODE_NOTHING;
    if (max == 0 || node == GRAMMAR_NODE_EMPTY || (node == GRAMMAR_NODE_NOTHING && min == 0))
        return GRAMMAR_NODE_EMPTY;
    if (node == GRAMMAR_NODE_NOTHING || (min == 1 && max == 1))
        return node;
    return add_node(builder, (struct grammar_node){.kind = NODE_REPEAT, .at = node, .min = min, .max = max});
}

const struct grammar_fsa *grammar_node_fsa(const struct grammar_builder *builder, uint32_t node)
{
    if (node >= builder->nodes.count || grammar_node_of(builder, node)->kind != NODE_REGULAR)
        return NULL;
    return grammar_regular_of(builder, grammar_node_of(builder, node)->at);
}

uint32_t grammar_add_regular(struct grammar_builder *builder, struct grammar_fsa *fsa)
{
    const uint32_t at = builder->regulars.count;
    const bool is_small = !fsa->failure && !fsa->arc_count, has_empty = is_small && fsa->accepts[fsa->start];

    if (is_small) { // the empty string or nothing
        grammar_fsa_free(fsa);
        return has_empty ? grammar_empty(builder) : GRAMMAR_NODE_NOTHING;
    }
    if (fsa->failure == GRAMMAR_FSA_TOO_LARGE)
        grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "a regular language needs more than %u states or %u edges",
                             fsa->max_states, fsa->max_arcs);
    if (fsa->failure || !builder_charge(builder, fsa->state_count + fsa->arc_count * sizeof *fsa->arcs) ||
        !list_push(builder, &builder->regulars, fsa, 1)) {
        grammar_fsa_free(fsa);
        return grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
    }
    *fsa = (struct grammar_fsa){0};
    return add_node(builder, (struct grammar_node){.kind = NODE_REGULAR, .at = at});
}

uint32_t grammar_add_anchor(struct grammar_builder *builder, uint32_t symbol)
{
    return add_node(builder, (struct grammar_node){.kind = NODE_ANCHOR, .at = symbol});
}

uint32_t grammar_add_look_anchor(struct grammar_builder *builder, const uint32_t nodes[3])
{
    const uint32_t at = builder->children.count;

    return list_push(builder, &builder->children, nodes, 3) ? grammar_add_anchor(builder, GRAMMAR_LOOK + at) : GRAMMAR_NODE_NOTHING;
}

// --- rules --------------------------------------------------------------------------------------------------------------

uint32_t grammar_rule(struct grammar_builder *builder, const char *name)
{
    struct grammar_build_rule rule = {.node = GRAMMAR_NO_NODE, .name = NULL};

    if (builder->rules.count >= GRAMMAR_MAX_RULES)
        return grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "the grammar has more than %d rules", GRAMMAR_MAX_RULES);
    if (!builder_charge(builder, strnlen(name, MAX_RULE_NAME)))
        return 0;
    rule.name = strndup(name, MAX_RULE_NAME);
    if (!rule.name || !list_push(builder, &builder->rules, &rule, 1)) {
        free(rule.name);
        return grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
    }
    return builder->rules.count - 1;
}

void grammar_rule_set(struct grammar_builder *builder, uint32_t rule, uint32_t node)
{
    if (builder->failure.status)
        return;
    assert_always(rule < builder->rules.count && node < MAX(builder->nodes.count, 2u));
    grammar_rule_of(builder, rule)->node = node;
}

void grammar_rule_keep(struct grammar_builder *builder, uint32_t rule)
{
    if (builder->failure.status)
        return;
    assert_always(rule < builder->rules.count);
    grammar_rule_of(builder, rule)->is_kept = true;
}

uint32_t grammar_call(struct grammar_builder *builder, uint32_t rule)
{
    if (builder->failure.status)
        return GRAMMAR_NODE_NOTHING;
    assert_always(rule < builder->rules.count);
    return add_node(builder, (struct grammar_node){.kind = NODE_CALL, .at = rule});
}

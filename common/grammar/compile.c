// compile.c: makes automata of a builder's nodes, and a grammar of those.
//
// A node becomes states and arcs between two states that are there already:
//
//     sequence ab   from ─a▶ s ─b▶ to         either a|b   from ─a▶ to, from ─b▶ to
//     a{1,3}        from ─a▶ s ─a▶ t ─a▶ to, s ╌▶ to, t ╌▶ to        a*   from ╌▶ m ─a▶ m ╌▶ to
//
// where ╌▶ reads nothing. Since no arc ever goes back to `from` or out of `to` but by what is between other states, alternatives may share
// both. What is still to be done is a stack of (node, from, to), so depth is no matter; what bounds it all is the limit of states and arcs.
//
// Each rule that is kept becomes an automaton of its own, made deterministic and minimal where that does not make it larger
// (reduce.c), and put behind those before it. What can never be completed, and rules that are then no longer used, go.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/grammar/builder_state.h"
#include "common/grammar/state.h"

enum {
    INLINE_STATES = 24,    // a rule of at most so many is inlined
    MOST_STATES = 1 << 24, // nobody needs a larger estimate
    FIRST_ITEMS = 64,
};

// --- the survey: strongly connected components of nodes (Tarjan), whose calls are those that loop -----------------------

struct survey_visit {
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
    struct survey_visit *path;
    uint32_t path_count, open_count, number;
    uint64_t steps;
};

// Returns child `next` of a node, or GRAMMAR_NO_NODE after the last one. A call's child is the rule's node.
static uint32_t survey_child_of(const struct survey *survey, const struct grammar_node *node, uint32_t next)
{
    switch (node->kind) {
    case NODE_SEQUENCE:
    case NODE_EITHER: return next < node->count ? grammar_children_of(survey->builder, node)[next] : GRAMMAR_NO_NODE;
    case NODE_REPEAT: return next == 0 ? node->at : GRAMMAR_NO_NODE;
    case NODE_CALL: return next == 0 ? grammar_rule_of(survey->builder, node->at)->node : GRAMMAR_NO_NODE;
    default: return GRAMMAR_NO_NODE;
    }
}

static uint32_t survey_size_of_call(struct survey *survey, const struct grammar_node *node)
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
static uint32_t survey_size_of(struct survey *survey, const struct grammar_node *node)
{
    uint64_t size = 1;

    switch (node->kind) {
    case NODE_BYTES:
    case NODE_CHARS: size = node->count; break;
    case NODE_REGULAR: size = grammar_regular_of(survey->builder, node->at)->state_count; break;
    case NODE_REPEAT:
        size = (uint64_t)survey->sizes[node->at] * (node->max == GRAMMAR_NO_LIMIT ? MAX(node->min, 1u) : node->max);
        break;
    case NODE_CALL: size = survey_size_of_call(survey, node); break;
    case NODE_SEQUENCE:
    case NODE_EITHER:
        for (uint32_t i = 0; i < node->count && size < MOST_STATES; i++)
            size += survey->sizes[grammar_children_of(survey->builder, node)[i]];
        break;
    default: break;
    }
    return (uint32_t)MIN(MAX(size, 1u), (uint64_t)MOST_STATES);
}

static void survey_enter(struct survey *survey, uint32_t node)
{
    survey->path[survey->path_count++] = (struct survey_visit){node, 0};
    survey->open[survey->open_count++] = node;
    survey->is_open[node] = true;
    survey->numbers[node] = survey->lowest[node] = ++survey->number;
}

static void survey_leave(struct survey *survey, uint32_t node)
{
    survey->sizes[node] = survey_size_of(survey, grammar_node_of(survey->builder, node));
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
static uint32_t survey_walk(struct survey *survey, uint32_t root)
{
    survey_enter(survey, root);
    while (survey->path_count) {
        struct survey_visit *visit = &survey->path[survey->path_count - 1];
        const struct grammar_node *node = grammar_node_of(survey->builder, visit->node);
        uint32_t child = survey_child_of(survey, node, visit->next);

        survey->steps++;
        if (child == GRAMMAR_NO_NODE && node->kind == NODE_CALL && visit->next == 0)
            return node->at;
        visit->next++;
        if (child == GRAMMAR_NO_NODE)
            survey_leave(survey, visit->node);
        else if (!survey->numbers[child])
            survey_enter(survey, child);
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
        undefined = survey_walk(&survey, node);
        if (undefined != GRAMMAR_NO_NODE)
            grammar_builder_fail(builder, STATUS_INVALID_ARGUMENT, "rule '%s' is used but not defined",
                                 grammar_rule_of(builder, undefined)->name);
    } else
        grammar_builder_fail(builder, STATUS_UNAVAILABLE, "out of memory");
    builder->work += survey.steps;
    free(survey.sizes);
    free(survey.path);
    free(survey.is_open);
    return !builder->failure.status;
}

// --- automata -----------------------------------------------------------------------------------------------------------

struct emit_item {
    uint32_t node, from, to;
};

struct emitter {
    const struct grammar_builder *builder;
    const uint8_t *uses;
    struct grammar_fsa *out;
    struct emit_item *items;
    uint32_t count, capacity;
};

static void emit_later(struct emitter *emitter, uint32_t node, uint32_t from, uint32_t to)
{
    if (emitter->out->failure)
        return;
    if (emitter->count == emitter->capacity) {
        uint32_t capacity = emitter->capacity ? emitter->capacity * 2 : FIRST_ITEMS;
        struct emit_item *grown = capacity <= GRAMMAR_DRAFT_ARCS ? realloc(emitter->items, capacity * sizeof *grown) : NULL;
        if (!grown) {
            emitter->out->failure = capacity <= GRAMMAR_DRAFT_ARCS ? GRAMMAR_FSA_NO_MEMORY : GRAMMAR_FSA_TOO_LARGE;
            return;
        }
        emitter->items = grown;
        emitter->capacity = capacity;
    }
    emitter->items[emitter->count++] = (struct emit_item){.node = node, .from = from, .to = to};
}

static uint32_t emit_state(struct emitter *emitter) { return grammar_fsa_add_state(emitter->out, false); }

static void emit_jump(struct emitter *emitter, uint32_t from, uint32_t to)
{
    if (from != to)
        grammar_fsa_add_arc(emitter->out, from, GRAMMAR_JUMP, GRAMMAR_JUMP, to);
}

static void emit_bytes(struct emitter *emitter, const struct grammar_node *node, uint32_t from, uint32_t to)
{
    const unsigned char *text = (const unsigned char *)grammar_text_of(emitter->builder, node);

    for (uint32_t i = 0; i < node->count && !emitter->out->failure; i++) {
        uint32_t next = i + 1 == node->count ? to : emit_state(emitter);
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
                tails[left] = emit_state(emitter);
                grammar_fsa_add_arc(emitter->out, tails[left], 0x80, 0xbf, tails[left - 1]);
            }
        for (uint32_t b = 0; b < spelling->count - full; b++) {
            uint32_t next = b + 1 == spelling->count - full ? tails[full] : emit_state(emitter);
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
        uint32_t next = !is_open && i + 1 == copies ? to : emit_state(emitter);
        if (i >= node->min)
            emit_jump(emitter, from, to);
        emit_later(emitter, node->at, from, next);
        from = next;
    }
    if (is_open) {
        uint32_t loop = node->min ? from : emit_state(emitter); // never the caller's `from`, to which no arc may lead
        if (loop != from)
            emit_jump(emitter, from, loop);
        emit_later(emitter, node->at, loop, loop);
        emit_jump(emitter, loop, to);
    }
}

static void emit_regular(struct emitter *emitter, const struct grammar_node *node, uint32_t from, uint32_t to)
{
    const struct grammar_fsa *part = grammar_regular_of(emitter->builder, node->at);
    uint32_t base = grammar_fsa_append(emitter->out, part);

    emit_jump(emitter, from, base + part->start);
    for (uint32_t s = 0; s < part->state_count && !emitter->out->failure; s++)
        if (part->accepts[s]) {
            emitter->out->accepts[base + s] = false;
            emit_jump(emitter, base + s, to);
        }
}

static void emit_node(struct emitter *emitter, struct emit_item item)
{
    const struct grammar_node *node = grammar_node_of(emitter->builder, item.node);
    uint32_t from = item.from;

    switch (node->kind) {
    case NODE_NOTHING: break;
    case NODE_EMPTY: emit_jump(emitter, from, item.to); break;
    case NODE_BYTES: emit_bytes(emitter, node, from, item.to); break;
    case NODE_CHARS: emit_chars(emitter, node, from, item.to); break;
    case NODE_REPEAT: emit_repeat(emitter, node, from, item.to); break;
    case NODE_REGULAR: emit_regular(emitter, node, from, item.to); break;
    case NODE_ANCHOR: grammar_fsa_add_arc(emitter->out, from, node->at, node->at, item.to); break;
    case NODE_EITHER:
        for (uint32_t i = node->count; i-- > 0;)
            emit_later(emitter, grammar_children_of(emitter->builder, node)[i], from, item.to);
        break;
    case NODE_SEQUENCE:
        for (uint32_t i = 0; i < node->count && !emitter->out->failure; i++) {
            uint32_t next = i + 1 == node->count ? item.to : emit_state(emitter);
            emit_later(emitter, grammar_children_of(emitter->builder, node)[i], from, next);
            from = next;
        }
        break;
    case NODE_CALL:
        if (emitter->uses[node->at] == GRAMMAR_RULE_INLINED)
            emit_later(emitter, grammar_rule_of(emitter->builder, node->at)->node, from, item.to);
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
        emit_later(&emitter, node, out->start, to);
        while (emitter.count && !out->failure)
            emit_node(&emitter, emitter.items[--emitter.count]);
    }
    free(emitter.items);
    builder->work += out->arc_count;
    if (!grammar_fsa_seal(out))
        return;
}

// --- compiling ----------------------------------------------------------------------------------------------------------

// How much larger a deterministic automaton may be, and how many arcs may be looked at to make it.
enum { GROWTH = 2, GROWTH_MIN = 64, WORK_AN_ARC = 16, WORK_MIN = 4096 };

struct compilation {
    struct grammar_builder *builder;
    uint8_t *uses;     // [builder's rules] enum grammar_rule_use
    uint32_t *numbers; // [builder's rules] its number among those kept, or GRAMMAR_NO_STATE
    uint32_t *kept;    // [rule_count] the builder's rule; the first one is the root
    uint32_t *starts;  // [rule_count + 1]
    uint32_t rule_count;
    bool matches;           // the root matches some text
    struct grammar_fsa fsa; // all rules' automata
};

// Gives a rule a number unless it has one.
static uint32_t number_of(struct compilation *compilation, uint32_t rule)
{
    if (compilation->numbers[rule] == GRAMMAR_NO_STATE) {
        compilation->numbers[rule] = compilation->rule_count;
        compilation->kept[compilation->rule_count++] = rule;
    }
    return compilation->numbers[rule];
}

// Makes a rule's automaton deterministic, unless it would get much larger: then it stays as it is, and step.c does the same as it goes.
// Either way states that go on alike are merged.
static void reduce_rule(struct compilation *compilation, struct grammar_fsa *part)
{
    struct grammar_fsa deterministic;
    uint64_t work = WORK_MIN + (uint64_t)part->arc_count * WORK_AN_ARC, left = work;

    grammar_determinize(part, GROWTH_MIN + GROWTH * part->state_count, &left, &deterministic);
    compilation->builder->work += work - left;
    if (!deterministic.failure) {
        grammar_fsa_free(part);
        *part = deterministic;
    } else
        grammar_fsa_free(&deterministic);
    grammar_minimize(part);
}

// Puts one rule's automaton behind the others. Its calls get the numbers of the kept rules.
static void add_rule(struct compilation *compilation, uint32_t node, uint32_t number)
{
    struct grammar_fsa part;

    grammar_emit(compilation->builder, node, compilation->uses, &part);
    grammar_fsa_trim(&part);
    reduce_rule(compilation, &part);
    if (part.failure && !compilation->fsa.failure)
        compilation->fsa.failure = part.failure;
    for (uint32_t a = 0; a < part.arc_count; a++) {
        struct grammar_arc *arc = &part.arcs[a];
        if (arc->first >= GRAMMAR_CALL && arc->first != GRAMMAR_JUMP)
            arc->first = arc->last = GRAMMAR_CALL + number_of(compilation, arc->first - GRAMMAR_CALL);
    }
    compilation->starts[number] = grammar_fsa_append(&compilation->fsa, &part);
    compilation->starts[number + 1] = compilation->fsa.state_count;
    grammar_fsa_free(&part);
}

// Removes the states that cannot be completed, and arcs that call a rule without any text.
static bool remove_useless(struct compilation *compilation)
{
    struct grammar_fsa *fsa = &compilation->fsa;
    const struct grammar_rule_set set = {.fsa = fsa, .starts = compilation->starts, .count = compilation->rule_count};
    bool *productive = malloc((size_t)fsa->state_count + 1), fits;
    uint32_t arcs = 0, states = 0;

    fits = productive && grammar_rules_productive(&set, productive);
    if (fits) {
        compilation->matches = productive[0];
        for (uint32_t a = 0; a < fsa->arc_count; a++) {
            const struct grammar_arc arc = fsa->arcs[a];
            bool calls = arc.first >= GRAMMAR_CALL && arc.first != GRAMMAR_JUMP;
            if (!calls || productive[compilation->starts[arc.first - GRAMMAR_CALL]])
                fsa->arcs[arcs++] = arc;
        }
        fsa->arc_count = arcs;
        for (uint32_t r = 0, s = 0; r < compilation->rule_count; r++) {
            compilation->starts[r] = states;
            // starts[r + 1] still has its old value
            for (; s < compilation->starts[r + 1]; s++)
                states += productive[s];
        }
        compilation->starts[compilation->rule_count] = states;
        fits = states == 0 || (grammar_fsa_keep(fsa, productive), !fsa->failure);
        fsa->state_count = states;
    }
    free(productive);
    return fits;
}

// Renames the rules that the root still uses, in the order in which they are met, and drops the others.
static bool drop_unused(struct compilation *compilation, struct grammar_fsa *out, uint32_t *starts, uint32_t *order,
                        uint32_t *count)
{
    const struct grammar_fsa *fsa = &compilation->fsa;
    uint32_t *numbers = malloc((size_t)compilation->rule_count * sizeof *numbers);

    if (!numbers)
        return false;
    for (uint32_t r = 0; r < compilation->rule_count; r++)
        numbers[r] = GRAMMAR_NO_STATE;
    order[0] = 0;
    numbers[0] = 0;
    *count = 1;
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t first = compilation->starts[order[i]], end = compilation->starts[order[i] + 1], base = out->state_count;
        starts[i] = base;
        for (uint32_t s = first; s < end; s++)
            grammar_fsa_add_state(out, fsa->accepts[s]);
        for (uint32_t a = fsa->index[first]; a < fsa->index[end]; a++) {
            struct grammar_arc arc = fsa->arcs[a];
            if (arc.first >= GRAMMAR_CALL && arc.first != GRAMMAR_JUMP) {
                uint32_t rule = arc.first - GRAMMAR_CALL;
                if (numbers[rule] == GRAMMAR_NO_STATE) {
                    numbers[rule] = *count;
                    order[(*count)++] = rule;
                }
                arc.first = arc.last = GRAMMAR_CALL + numbers[rule];
            }
            grammar_fsa_add_arc(out, base + arc.from - first, arc.first, arc.last, base + arc.to - first);
        }
    }
    starts[*count] = out->state_count;
    free(numbers);
    return grammar_fsa_seal(out);
}

// Packs what is left and loads it. *looping: as grammar_load() has it, but the builder's rule.
static enum status pack_and_load(struct compilation *compilation, struct grammar **out, uint32_t *looping, struct error *error)
{
    struct grammar_fsa fsa = {.max_states = GRAMMAR_MAX_STATES, .max_arcs = GRAMMAR_MAX_EDGES};
    uint32_t *starts = malloc(((size_t)compilation->rule_count + 1) * 2 * sizeof *starts), *order, count = 0;
    unsigned char *packed = NULL;
    size_t bytes;
    enum status status;

    if (!starts)
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    order = starts + compilation->rule_count + 1;
    if (!drop_unused(compilation, &fsa, starts, order, &count) && !fsa.failure)
        fsa.failure = GRAMMAR_FSA_NO_MEMORY;
    status = grammar_fsa_status(&fsa, "the grammar", error);
    if (!status)
        status = grammar_pack(&fsa, starts, count, &packed, &bytes, error);
    if (!status)
        status = grammar_load(packed, bytes, out, looping, error);
    if (status && packed && *looping != GRAMMAR_NO_STATE)
        *looping = compilation->kept[order[*looping]];
    grammar_fsa_free(&fsa);
    free(packed);
    free(starts);
    return status;
}

static enum status compile_root(struct compilation *compilation, uint32_t root, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = compilation->builder;
    uint32_t looping = GRAMMAR_NO_STATE;
    enum status status;

    if (!grammar_survey(builder, root, false, compilation->uses))
        return error_set(error, builder->failure.status, "%s", builder->failure.text);
    compilation->kept[0] = GRAMMAR_NO_STATE;
    compilation->rule_count = 1;
    for (uint32_t number = 0; number < compilation->rule_count && !compilation->fsa.failure; number++)
        add_rule(compilation, number ? grammar_rule_of(builder, compilation->kept[number])->node : root, number);
    if (!compilation->fsa.failure && (!grammar_fsa_seal(&compilation->fsa) || !remove_useless(compilation)))
        compilation->fsa.failure = GRAMMAR_FSA_NO_MEMORY;
    status = grammar_fsa_status(&compilation->fsa, "the grammar", error);
    if (status)
        return status;
    if (!compilation->matches)
        return error_set(error, STATUS_INVALID_ARGUMENT, "the grammar matches no text at all");
    status = pack_and_load(compilation, out, &looping, error);
    if (status && looping != GRAMMAR_NO_STATE)
        return error_set(error, STATUS_INVALID_ARGUMENT, "rule '%s' calls itself before it has read anything",
                         grammar_rule_of(builder, looping)->name);
    return status;
}

enum status grammar_compile(struct grammar_builder *builder, uint32_t root, struct grammar **out, struct error *error)
{
    const size_t rules = (size_t)builder->rules.count + 2;
    struct compilation compilation = {
        .builder = builder,
        .uses = calloc(rules, 1),
        .numbers = malloc(rules * sizeof *compilation.numbers),
        .kept = calloc(rules, sizeof *compilation.kept),
        .starts = calloc(rules + 1, sizeof *compilation.starts),
        .fsa = {.max_states = GRAMMAR_DRAFT_STATES, .max_arcs = GRAMMAR_DRAFT_ARCS},
    };
    enum status status;

    *out = NULL;
    if (compilation.uses && compilation.numbers && compilation.kept && compilation.starts) {
        for (size_t r = 0; r < rules; r++)
            compilation.numbers[r] = GRAMMAR_NO_STATE;
        status = compile_root(&compilation, root, out, error);
    } else
        status = error_set(error, STATUS_UNAVAILABLE, "out of memory");
    free(compilation.uses);
    free(compilation.numbers);
    free(compilation.kept);
    free(compilation.starts);
    grammar_fsa_free(&compilation.fsa);
    return status;
}

// grammar_compile.c: see grammar_compile() in grammar_build.h.
//
// Each rule that is kept becomes an automaton of its own: emitted (grammar_emit.c), made deterministic and minimal where that does not make it
// larger (grammar_reduce.c), and put behind those before it. What can never be completed, and rules that are then no longer used, go.
#include "common/grammar/grammar_build.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/grammar/grammar_builder_state.h"
#include "common/grammar/grammar_emit.h"
#include "common/grammar/grammar_pack.h"
#include "common/grammar/grammar_reduce.h"
#include "common/grammar/grammar_rules.h"
#include "common/grammar/grammar_state.h"

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
    struct grammar_fsa fsa; // of all
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

// Makes a rule's automaton deterministic, unless it would get much larger: then it stays as it is, and grammar_step.c does the same as it goes.
// Either way states that go on alike are merged.
static void reduce(struct compilation *compilation, struct grammar_fsa *part)
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
    reduce(compilation, &part);
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
    const struct grammar_rule_set set = {fsa, compilation->starts, compilation->rule_count};
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
static enum status finish(struct compilation *compilation, struct grammar **out, uint32_t *looping, struct error *error)
{
    struct grammar_fsa fsa = {.max_states = GRAMMAR_MAX_STATES, .max_arcs = GRAMMAR_MAX_EDGES};
    uint32_t *starts = malloc(((size_t)compilation->rule_count + 1) * 2 * sizeof *starts), *order, count = 0;
    unsigned char *packed = NULL;
    size_t bytes;
    enum status status;

    if (!starts)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
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

static enum status compile(struct compilation *compilation, uint32_t root, struct grammar **out, struct error *error)
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
    status = finish(compilation, out, &looping, error);
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
        status = compile(&compilation, root, out, error);
    } else
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    free(compilation.uses);
    free(compilation.numbers);
    free(compilation.kept);
    free(compilation.starts);
    grammar_fsa_free(&compilation.fsa);
    return status;
}

enum status grammar_builder_finish(struct grammar_builder *builder, uint32_t root, struct grammar **out, struct error *error)
{
    enum status status;

    *out = NULL;
    if (!builder)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    status = grammar_compile(builder, root, out, error);
    grammar_builder_close(builder);
    return status;
}

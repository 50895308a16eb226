// grammar.c: see grammar.h: a packed grammar, and what follows from it.
//
// A grammar is compiled by packing it and loading it again, so what is checked here of strangers' bytes holds of all grammars: arcs stay within
// their rules, each state can still reach the end of its rule, the whole text's rule is rule 0, and no rule calls itself before it has
// read a byte, so that a closure (grammar_step.c) ends.
#include "common/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "common/grammar/grammar_pack.h"
#include "common/grammar/grammar_rules.h"
#include "common/grammar/grammar_state.h"

static uint64_t hash_bytes(const unsigned char *bytes, size_t count)
{
    uint64_t hash = count;

    for (size_t i = 0; i < count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, count - i < 8 ? count - i : 8);
        hash ^= word;
        hash = random_next(&hash);
    }
    return hash;
}

static void set_flags(struct grammar *grammar)
{
    const struct grammar_fsa *fsa = &grammar->fsa;

    for (uint32_t s = 0; s < fsa->state_count; s++) {
        uint32_t first = fsa->index[s], end = fsa->index[s + 1];
        grammar->flags[s] = fsa->accepts[s] ? GRAMMAR_STATE_ACCEPTS : 0;
        if (fsa->accepts[s] && first == end)
            grammar->flags[s] |= GRAMMAR_STATE_EXITS;
        if (first < end && fsa->arcs[first].first < GRAMMAR_CALL)
            grammar->flags[s] |= GRAMMAR_STATE_READS;
        if (first < end && fsa->arcs[end - 1].first >= GRAMMAR_CALL)
            grammar->flags[s] |= GRAMMAR_STATE_CALLS;
    }
}

// Bytes are of one class if the same arcs read them: the sums of those arcs' hashes are equal. (A chance collision would take 2^32 grammars, and
// one on purpose spoils only its own grammar.)
static void set_classes(struct grammar *grammar)
{
    const struct grammar_fsa *fsa = &grammar->fsa;
    uint64_t sums[GRAMMAR_CALL + 1] = {0}, sum = 0;

    for (uint32_t a = 0; a < fsa->arc_count; a++) {
        uint64_t state = (uint64_t)fsa->arcs[a].from << 32 | fsa->arcs[a].to;
        if (fsa->arcs[a].first >= GRAMMAR_CALL)
            continue;
        state = random_next(&state);
        sums[fsa->arcs[a].first] += state;
        sums[fsa->arcs[a].last + 1] -= state;
    }
    for (uint32_t byte = 0; byte < GRAMMAR_CALL; byte++) {
        uint32_t class = 0;
        sums[byte] = sum += sums[byte];
        while (class < grammar->class_count && sums[grammar->class_byte[class]] != sum)
            class ++;
        if (class == grammar->class_count)
            grammar->class_byte[grammar->class_count++] = (uint8_t)byte;
        grammar->class_of[byte] = (uint8_t) class;
    }
}

// Finds out what follows from the rules. marks: [states + rules].
static enum status analyse(struct grammar *grammar, const uint32_t *starts, bool *marks, uint32_t *looping, struct error *error)
{
    const struct grammar_rule_set set = {&grammar->fsa, starts, grammar->rule_count};
    bool *nullable = marks + grammar->fsa.state_count;

    if (!grammar_rules_productive(&set, marks))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    for (uint32_t s = 0; s < grammar->fsa.state_count; s++)
        if (!marks[s])
            return error_set(error, STATUS_INVALID_ARGUMENT, "packed grammar: state %u leads nowhere", s);
    if (!grammar_rules_nullable(&set, nullable, marks) || !grammar_rules_rank(&set, marks, grammar->rank_rules, looping))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (*looping != GRAMMAR_NO_STATE)
        return error_set(error, STATUS_INVALID_ARGUMENT, "packed grammar: rule %u calls itself before it has read anything",
                         *looping);
    for (uint32_t r = 0; r < grammar->rule_count; r++)
        grammar->rules[r] = (struct grammar_rule){.start = starts[r], .end = starts[r + 1], .is_nullable = nullable[r]};
    for (uint32_t rank = 0; rank < grammar->rule_count; rank++)
        grammar->rules[grammar->rank_rules[rank]].rank = rank;
    set_flags(grammar);
    set_classes(grammar);
    return STATUS_OK;
}

enum status grammar_load(const void *bytes, size_t count, struct grammar **out, uint32_t *looping_rule, struct error *error)
{
    struct grammar *grammar = calloc(1, sizeof *grammar);
    uint32_t *starts = NULL;
    bool *marks = NULL;
    enum status status;

    *out = NULL;
    *looping_rule = GRAMMAR_NO_STATE;
    if (!grammar)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    status = grammar_read_pack(bytes, count, &grammar->fsa, &starts, &grammar->rule_count, error);
    if (status)
        goto cleanup;
    grammar->packed = malloc(count);
    grammar->flags = malloc(grammar->fsa.state_count);
    grammar->rules = calloc(grammar->rule_count, sizeof *grammar->rules);
    grammar->rank_rules = calloc(grammar->rule_count, sizeof *grammar->rank_rules);
    marks = malloc((size_t)grammar->fsa.state_count + grammar->rule_count);
    if (!grammar->packed || !grammar->flags || !grammar->rules || !grammar->rank_rules || !marks) {
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        goto cleanup;
    }
    memcpy(grammar->packed, bytes, count);
    grammar->packed_bytes = count;
    grammar->hash = hash_bytes(grammar->packed, count);
    status = analyse(grammar, starts, marks, looping_rule, error);
cleanup:
    free(starts);
    free(marks);
    if (status)
        grammar_free(grammar);
    else
        *out = grammar;
    return status;
}

enum status grammar_unpack(const void *bytes, size_t count, struct grammar **out, struct error *error)
{
    uint32_t looping_rule;

    return grammar_load(bytes, count, out, &looping_rule, error);
}

const void *grammar_packed(const struct grammar *grammar, size_t *count)
{
    *count = grammar->packed_bytes;
    return grammar->packed;
}

void grammar_free(struct grammar *grammar)
{
    if (!grammar)
        return;
    grammar_fsa_free(&grammar->fsa);
    free(grammar->packed);
    free(grammar->flags);
    free(grammar->rules);
    free(grammar->rank_rules);
    free(grammar);
}

uint64_t grammar_hash(const struct grammar *grammar) { return grammar->hash; }

uint64_t grammar_packed_hash(const void *packed, size_t count) { return hash_bytes(packed, count); }

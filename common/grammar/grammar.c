// grammar.c: a packed grammar, and what follows from it.
//
// A grammar is compiled by packing it and loading it again, so what is checked here of strangers' bytes holds of all grammars: arcs stay within
// their rules, each state can still reach the end of its rule, the whole text's rule is rule 0, and no rule calls itself before it has
// read a byte, so that a closure (step.c) ends.
#include "common/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "common/base/text.h"
#include "common/grammar/state.h"

static const char magic[4] = {'F', 'D', 'G', '1'};

// --- packing ------------------------------------------------------------------------------------------------------------

static void put_number(struct text *out, uint64_t number)
{
    unsigned char bytes[10];
    size_t count = 0;

    do {
        bytes[count++] = (unsigned char)((number & 0x7f) | (number > 0x7f ? 0x80 : 0));
        number >>= 7;
    } while (number);
    text_append(out, bytes, count);
}

static uint64_t zigzag(uint32_t to, uint32_t from)
{
    int64_t delta = (int64_t)to - (int64_t)from;

    return delta < 0 ? (uint64_t)(-delta) * 2 - 1 : (uint64_t)delta * 2;
}

static void put_state(struct text *out, const struct grammar_fsa *fsa, uint32_t state)
{
    const struct grammar_arc *arc = fsa->arcs + fsa->index[state], *end = fsa->arcs + fsa->index[state + 1], *calls = arc;

    while (calls < end && calls->first < GRAMMAR_CALL)
        calls++;
    put_number(out, ((uint64_t)(calls - arc) * 2 + (calls < end)) * 2 + fsa->accepts[state]);
    for (; arc < calls; arc++) {
        put_number(out, arc->first);
        put_number(out, zigzag(arc->to, state) * 2 + (arc->first != arc->last));
        if (arc->first != arc->last)
            put_number(out, arc->last);
    }
    if (calls < end)
        put_number(out, (uint64_t)(end - calls));
    for (; arc < end; arc++) {
        put_number(out, arc->first == GRAMMAR_JUMP ? 0 : arc->first - GRAMMAR_CALL + 1);
        put_number(out, zigzag(arc->to, state));
    }
}

enum status grammar_pack(const struct grammar_fsa *fsa, const uint32_t *rule_starts, uint32_t rule_count, unsigned char **out,
                         size_t *bytes, struct error *error)
{
    struct text text = {0};

    text_append(&text, magic, sizeof magic);
    put_number(&text, rule_count);
    for (uint32_t r = 0; r < rule_count; r++) {
        put_number(&text, rule_starts[r + 1] - rule_starts[r]);
        for (uint32_t s = rule_starts[r]; s < rule_starts[r + 1]; s++)
            put_state(&text, fsa, s);
    }
    if (text.failed || text.bytes > GRAMMAR_MAX_BYTES) {
        bool failed = text.failed;
        text_free(&text);
        if (failed)
            return error_set(error, STATUS_UNAVAILABLE, "out of memory");
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "the grammar takes more than %d bytes", GRAMMAR_MAX_BYTES);
    }
    *out = (unsigned char *)text.data;
    *bytes = text.bytes;
    return STATUS_OK;
}

// --- unpacking ----------------------------------------------------------------------------------------------------------

struct reader {
    const unsigned char *in;
    size_t bytes, at;
    bool failed; // it ends early, or a number is too large
};

// Returns a number of at most 32 bits.
static uint32_t get_number(struct reader *reader)
{
    uint64_t number = 0;

    for (uint32_t shift = 0; shift < 35 && reader->at < reader->bytes; shift += 7) {
        unsigned char byte = reader->in[reader->at++];
        number |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            if (number > UINT32_MAX)
                break;
            return (uint32_t)number;
        }
    }
    reader->failed = true;
    return 0;
}

// Reads a target, which is a state of the rule that has the states from `first` up to `end`.
static uint32_t get_target(struct reader *reader, uint32_t zigzagged, uint32_t state, uint32_t first, uint32_t end)
{
    int64_t delta = zigzagged & 1 ? -(int64_t)(zigzagged / 2) - 1 : (int64_t)(zigzagged / 2), to = (int64_t)state + delta;

    if (to >= (int64_t)first && to < (int64_t)end)
        return (uint32_t)to;
    reader->failed = true;
    return first;
}

static void get_state(struct reader *reader, struct grammar_fsa *fsa, uint32_t state, uint32_t end_state, uint32_t rule_count)
{
    uint32_t head = get_number(reader), first_state = fsa->start;

    fsa->accepts[state] = head & 1;
    for (uint32_t i = 0; i < head >> 2 && !reader->failed; i++) {
        uint32_t first = get_number(reader), target = get_number(reader), last = target & 1 ? get_number(reader) : first;
        uint32_t to = get_target(reader, target >> 1, state, first_state, end_state);
        reader->failed |= first > last || last >= GRAMMAR_CALL;
        if (!reader->failed)
            grammar_fsa_add_arc(fsa, state, first, last, to);
        reader->failed |= fsa->failure != GRAMMAR_FSA_FINE;
    }
    for (uint32_t i = 0, calls = head & 2 ? get_number(reader) : 0; i < calls && !reader->failed; i++) {
        uint32_t rule = get_number(reader), to = get_target(reader, get_number(reader), state, first_state, end_state);
        uint32_t symbol = rule ? GRAMMAR_CALL + rule - 1 : (uint32_t)GRAMMAR_JUMP;
        reader->failed |= rule > rule_count;
        if (!reader->failed)
            grammar_fsa_add_arc(fsa, state, symbol, symbol, to);
        reader->failed |= fsa->failure != GRAMMAR_FSA_FINE;
    }
}

static void get_rules(struct reader *reader, struct grammar_fsa *fsa, uint32_t *rule_starts, uint32_t rule_count)
{
    for (uint32_t r = 0; r < rule_count && !reader->failed; r++) {
        uint32_t states = get_number(reader), first = fsa->state_count;

        rule_starts[r] = first;
        reader->failed |= states == 0 || states > reader->bytes - reader->at; // a state takes a byte at least
        for (uint32_t s = 0; s < states && !reader->failed; s++) {
            grammar_fsa_add_state(fsa, false);
            reader->failed |= fsa->failure != GRAMMAR_FSA_FINE;
        }
        fsa->start = first;
        for (uint32_t s = 0; s < states && !reader->failed; s++)
            get_state(reader, fsa, first + s, first + states, rule_count);
    }
    rule_starts[rule_count] = fsa->state_count;
    fsa->start = 0;
    reader->failed |= reader->at != reader->bytes;
}

// Reads it from untrusted bytes. *rule_starts is malloc'd: [*rule_count + 1]. On failure there is nothing to free.
static enum status read_pack(const unsigned char *in, size_t bytes, struct grammar_fsa *fsa, uint32_t **rule_starts,
                             uint32_t *rule_count, struct error *error)
{
    struct reader reader = {.in = in, .bytes = bytes, .at = sizeof magic};
    enum status status;

    *fsa = (struct grammar_fsa){.max_states = GRAMMAR_MAX_STATES, .max_arcs = GRAMMAR_MAX_EDGES};
    if (bytes > GRAMMAR_MAX_BYTES || bytes < sizeof magic || memcmp(in, magic, sizeof magic) != 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "packed grammar: %s",
                         bytes > GRAMMAR_MAX_BYTES ? "too long" : "it does not begin as one");
    *rule_count = get_number(&reader);
    if (reader.failed || *rule_count == 0 || *rule_count > GRAMMAR_MAX_RULES || *rule_count > bytes)
        return error_set(error, STATUS_INVALID_ARGUMENT, "packed grammar: byte %zu: no number of rules", reader.at);
    *rule_starts = calloc((size_t)*rule_count + 1, sizeof **rule_starts);
    if (!*rule_starts)
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    get_rules(&reader, fsa, *rule_starts, *rule_count);
    status = grammar_fsa_status(fsa, "a packed grammar", error);
    if (!status && reader.failed)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "packed grammar: byte %zu: broken", reader.at);
    if (!status && !grammar_fsa_seal(fsa))
        status = grammar_fsa_status(fsa, "a packed grammar", error);
    if (status) {
        grammar_fsa_free(fsa);
        free(*rule_starts);
        *rule_starts = NULL;
    }
    return status;
}

// --- rules that call each other: each is a search from what is known, along lists of what waits for it ------------------

// Returns the rule that an arc calls, or GRAMMAR_NO_STATE.
static uint32_t called(const struct grammar_arc *arc)
{
    return arc->first < GRAMMAR_CALL || arc->first == GRAMMAR_JUMP ? GRAMMAR_NO_STATE : arc->first - GRAMMAR_CALL;
}

static uint32_t rule_of_state(const struct grammar_rule_set *set, uint32_t state)
{
    uint32_t low = 0, high = set->count;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (set->starts[middle] <= state)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Lists of arcs, by the state that they lead to or by the rule that they call.
struct arc_lists {
    uint32_t *heads, *links;
};

static bool lists_open(struct arc_lists *lists, uint32_t heads, uint32_t arcs)
{
    lists->heads = malloc(((size_t)heads + 1) * sizeof *lists->heads);
    lists->links = malloc(((size_t)arcs + 1) * sizeof *lists->links);
    for (uint32_t i = 0; lists->heads && i < heads; i++)
        lists->heads[i] = GRAMMAR_NO_STATE;
    return lists->heads && lists->links;
}

static void lists_close(struct arc_lists *lists)
{
    free(lists->heads);
    free(lists->links);
}

static void lists_add(struct arc_lists *lists, uint32_t head, uint32_t arc)
{
    lists->links[arc] = lists->heads[head];
    lists->heads[head] = arc;
}

static bool calls_open(struct arc_lists *calls, const struct grammar_rule_set *set)
{
    if (!lists_open(calls, set->count, set->fsa->arc_count))
        return false;
    for (uint32_t a = 0; a < set->fsa->arc_count; a++)
        if (called(&set->fsa->arcs[a]) != GRAMMAR_NO_STATE)
            lists_add(calls, called(&set->fsa->arcs[a]), a);
    return true;
}

// States that were marked and are still to be looked at.
struct marker {
    bool *marks;
    uint32_t *queue, count;
};

static void marker_mark(struct marker *marker, uint32_t state)
{
    if (!marker->marks[state]) {
        marker->marks[state] = true;
        marker->queue[marker->count++] = state;
    }
}

// --- productive ---------------------------------------------------------------------------------------------------------

static void search_productive(const struct grammar_rule_set *set, struct marker *marker, const struct arc_lists *into,
                              const struct arc_lists *calls)
{
    const struct grammar_fsa *fsa = set->fsa;

    for (uint32_t s = 0; s < fsa->state_count; s++)
        if (fsa->accepts[s])
            marker_mark(marker, s);
    for (uint32_t i = 0; i < marker->count; i++) {
        uint32_t state = marker->queue[i], rule = rule_of_state(set, state);
        for (uint32_t a = into->heads[state]; a != GRAMMAR_NO_STATE; a = into->links[a]) {
            uint32_t callee = called(&fsa->arcs[a]);
            if (callee == GRAMMAR_NO_STATE || marker->marks[set->starts[callee]])
                marker_mark(marker, fsa->arcs[a].from);
        }
        if (state == set->starts[rule]) // calls of the rule can be gone through now
            for (uint32_t a = calls->heads[rule]; a != GRAMMAR_NO_STATE; a = calls->links[a])
                if (marker->marks[fsa->arcs[a].to])
                    marker_mark(marker, fsa->arcs[a].from);
    }
}

bool grammar_rules_productive(const struct grammar_rule_set *set, bool *productive)
{
    const struct grammar_fsa *fsa = set->fsa;
    struct marker marker = {.marks = productive, .queue = malloc(((size_t)fsa->state_count + 1) * sizeof *marker.queue)};
    struct arc_lists into = {0}, calls = {0};
    bool opened = lists_open(&into, fsa->state_count, fsa->arc_count) && calls_open(&calls, set) && marker.queue;

    for (uint32_t s = 0; s < fsa->state_count; s++)
        productive[s] = false;
    if (opened) {
        for (uint32_t a = 0; a < fsa->arc_count; a++)
            lists_add(&into, fsa->arcs[a].to, a);
        search_productive(set, &marker, &into, &calls);
    }
    lists_close(&into);
    lists_close(&calls);
    free(marker.queue);
    return opened;
}

// --- nullable -----------------------------------------------------------------------------------------------------------

// Marks the rules that match the empty string, and the states in which one may be before any byte is read. Returns false without memory.
static bool rules_nullable(const struct grammar_rule_set *set, bool *nullable, bool *early)
{
    const struct grammar_fsa *fsa = set->fsa;
    struct marker marker = {.marks = early, .queue = malloc(((size_t)fsa->state_count + 1) * sizeof *marker.queue)};
    struct arc_lists calls = {0};
    bool opened = calls_open(&calls, set) && marker.queue;
    uint32_t rule;

    for (uint32_t s = 0; s < fsa->state_count; s++)
        early[s] = false;
    for (uint32_t r = 0; r < set->count; r++)
        nullable[r] = false;
    for (uint32_t r = 0; opened && r < set->count; r++)
        marker_mark(&marker, set->starts[r]);
    for (uint32_t i = 0; opened && i < marker.count; i++) {
        uint32_t state = marker.queue[i];
        for (uint32_t a = fsa->index[state]; a < fsa->index[state + 1]; a++) {
            uint32_t callee = called(&fsa->arcs[a]);
            if (fsa->arcs[a].first == GRAMMAR_JUMP || (callee != GRAMMAR_NO_STATE && nullable[callee]))
                marker_mark(&marker, fsa->arcs[a].to);
        }
        if (!fsa->accepts[state])
            continue;
        rule = rule_of_state(set, state);
        if (nullable[rule])
            continue;
        nullable[rule] = true;
        for (uint32_t a = calls.heads[rule]; a != GRAMMAR_NO_STATE; a = calls.links[a])
            if (early[fsa->arcs[a].from])
                marker_mark(&marker, fsa->arcs[a].to);
    }
    lists_close(&calls);
    free(marker.queue);
    return opened;
}

// --- ranks --------------------------------------------------------------------------------------------------------------

struct rank_visit {
    uint32_t rule, arc; // arc: the next to be looked at
};

enum { RANK_NEW, RANK_ON_PATH, RANK_DONE };

// Goes depth first from a rule; those that are done are put before `*place`, which goes down. Returns a rule that is met on its own path.
static uint32_t rank_from(const struct grammar_rule_set *set, const bool *early, uint32_t root, uint8_t *seen,
                          struct rank_visit *path, uint32_t *ranked, uint32_t *place)
{
    const struct grammar_fsa *fsa = set->fsa;
    uint32_t count = 0;

    seen[root] = RANK_ON_PATH;
    path[count++] = (struct rank_visit){root, fsa->index[set->starts[root]]};
    while (count) {
        struct rank_visit *visit = &path[count - 1];
        const struct grammar_arc *arc = &fsa->arcs[visit->arc];
        uint32_t callee;

        if (visit->arc == fsa->index[set->starts[visit->rule + 1]]) {
            seen[visit->rule] = RANK_DONE;
            ranked[--*place] = visit->rule;
            count--;
            continue;
        }
        visit->arc++;
        callee = early[arc->from] ? called(arc) : GRAMMAR_NO_STATE;
        if (callee == GRAMMAR_NO_STATE || seen[callee] == RANK_DONE)
            continue;
        if (seen[callee] == RANK_ON_PATH)
            return callee;
        seen[callee] = RANK_ON_PATH;
        path[count++] = (struct rank_visit){callee, fsa->index[set->starts[callee]]};
    }
    return GRAMMAR_NO_STATE;
}

// Sorts the rules such that one comes before those that it may call before any byte is read. Returns a rule that so calls itself, through
// others or not, in *looping; GRAMMAR_NO_STATE: there is none. Returns false without memory.
static bool rules_rank(const struct grammar_rule_set *set, const bool *early, uint32_t *ranked, uint32_t *looping)
{
    uint8_t *seen = calloc((size_t)set->count + 1, 1);
    struct rank_visit *path = malloc(((size_t)set->count + 1) * sizeof *path);
    bool opened = seen && path;
    uint32_t place = set->count;

    *looping = GRAMMAR_NO_STATE;
    for (uint32_t r = 0; opened && r < set->count && *looping == GRAMMAR_NO_STATE; r++)
        if (seen[r] == RANK_NEW)
            *looping = rank_from(set, early, r, seen, path, ranked, &place);
    free(seen);
    free(path);
    return opened;
}

// --- the grammar --------------------------------------------------------------------------------------------------------

uint64_t grammar_packed_hash(const void *packed, size_t count)
{
    const unsigned char *bytes = packed;
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
    const struct grammar_rule_set set = {.fsa = &grammar->fsa, .starts = starts, .count = grammar->rule_count};
    bool *nullable = marks + grammar->fsa.state_count;

    if (!grammar_rules_productive(&set, marks))
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    for (uint32_t s = 0; s < grammar->fsa.state_count; s++)
        if (!marks[s])
            return error_set(error, STATUS_INVALID_ARGUMENT, "packed grammar: state %u leads nowhere", s);
    if (!rules_nullable(&set, nullable, marks) || !rules_rank(&set, marks, grammar->rank_rules, looping))
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
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
        return error_set(error, STATUS_UNAVAILABLE, "out of memory");
    status = read_pack(bytes, count, &grammar->fsa, &starts, &grammar->rule_count, error);
    if (status)
        goto cleanup;
    grammar->packed = malloc(count);
    grammar->flags = malloc(grammar->fsa.state_count);
    grammar->rules = calloc(grammar->rule_count, sizeof *grammar->rules);
    grammar->rank_rules = calloc(grammar->rule_count, sizeof *grammar->rank_rules);
    marks = malloc((size_t)grammar->fsa.state_count + grammar->rule_count);
    if (!grammar->packed || !grammar->flags || !grammar->rules || !grammar->rank_rules || !marks) {
        status = error_set(error, STATUS_UNAVAILABLE, "out of memory");
        goto cleanup;
    }
    memcpy(grammar->packed, bytes, count);
    grammar->packed_bytes = count;
    grammar->hash = grammar_packed_hash(grammar->packed, count);
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

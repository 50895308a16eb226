// grammar_pack.c: see grammar_pack.h.
#include "common/grammar/grammar_pack.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/grammar/grammar.h"

static const char magic[4] = {'F', 'D', 'G', '1'};

/* --- writing ---------------------------------------------------------------------------------------------------------- */

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
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "the grammar takes more than %d bytes", GRAMMAR_MAX_BYTES);
    }
    *out = (unsigned char *)text.data;
    *bytes = text.bytes;
    return STATUS_OK;
}

/* --- reading ---------------------------------------------------------------------------------------------------------- */

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

enum status grammar_read_pack(const unsigned char *in, size_t bytes, struct grammar_fsa *fsa, uint32_t **rule_starts,
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
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
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

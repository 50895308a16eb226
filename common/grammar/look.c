// look.c: anchors and look-ahead of regular expressions: ^, $, \b, (?=...), (?!...).
//
// While an expression is read these are symbols of its automaton that read nothing. Their demands are then worked out by walking the
// automaton with what is known of the text beside its state:
//
//     phase     whether something has been read, and whether the text must be at its end
//     behind    whether the last character was one of \w
//     duties    states of other automata, deterministic ones, which read the same text from here on and must accept it at its end
//
// (?=x) is the duty to be in x followed by anything, (?!x) in all texts but those, so that a text of /^(?!a).b/ is read by the automaton of
// ^.b and by that of what does not begin with a. Duties are few, since equal ones are one; the walk fails where there are more than MAX_DUTIES.
#include "common/grammar/builder_state.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

enum { MAX_DUTIES = 12, FIRST_SLOTS = 256 };
enum phase { NOTHING_READ, END_AT_ONCE, BYTES_READ, END_READ, NO_PHASE };

struct duty {
    uint32_t regular, state; // regular: in builder->regulars
};

struct place {
    uint32_t state; // in the automaton with anchors
    uint16_t phase, is_behind_word;
    uint32_t duty_count;
    struct duty duties[MAX_DUTIES]; // in order
};

struct walk {
    struct grammar_builder *builder;
    struct grammar_fsa fsa, out; // state i of out is places[i]
    bool tells_words;            // whether it matters what is behind
    struct place *places;
    uint32_t place_capacity;
    uint32_t *table, slot_count; // place + 1
    uint64_t work;
};

static const struct grammar_fsa *machine_of(const struct walk *walk, struct duty duty)
{
    return grammar_regular_of(walk->builder, duty.regular);
}

// --- places -------------------------------------------------------------------------------------------------------------

static uint64_t look_hash_of(const struct place *place)
{
    uint64_t hash = ((uint64_t)place->state << 3 | (uint64_t)place->phase << 1 | place->is_behind_word) * 0x9e3779b97f4a7c15u;

    for (uint32_t i = 0; i < place->duty_count; i++)
        hash = (hash ^ hash >> 29 ^ ((uint64_t)place->duties[i].regular << 32 | place->duties[i].state)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

static bool look_is_same(const struct place *a, const struct place *b)
{
    return a->state == b->state && a->phase == b->phase && a->is_behind_word == b->is_behind_word &&
           a->duty_count == b->duty_count && memcmp(a->duties, b->duties, a->duty_count * sizeof a->duties[0]) == 0;
}

static uint32_t *look_slot_of(const struct walk *walk, const struct place *place)
{
    uint32_t slot = (uint32_t)look_hash_of(place) & (walk->slot_count - 1);

    while (walk->table[slot] && !look_is_same(&walk->places[walk->table[slot] - 1], place))
        slot = (slot + 1) & (walk->slot_count - 1);
    return &walk->table[slot];
}

// Makes room for another place, with a table that is at most half full. Returns false if there is no memory.
static bool reserve_place(struct walk *walk)
{
    if (walk->out.state_count < walk->place_capacity)
        return true;
    const uint32_t slots = MAX(walk->slot_count * 2, (uint32_t)FIRST_SLOTS);
    struct place *places = realloc(walk->places, (size_t)slots / 2 * sizeof *places);
    uint32_t *table = calloc(slots, sizeof *table);

    walk->places = places ? places : walk->places;
    if (!places || !table) {
        free(table);
        walk->out.failure = GRAMMAR_FSA_NO_MEMORY;
        return false;
    }
    free(walk->table);
    walk->table = table;
    walk->slot_count = slots;
    walk->place_capacity = slots / 2;
    for (uint32_t i = 0; i < walk->out.state_count; i++)
        *look_slot_of(walk, &places[i]) = i + 1;
    return true;
}

static bool look_accepts(const struct walk *walk, const struct place *place)
{
    bool accepted = walk->fsa.accepts[place->state];

    for (uint32_t i = 0; i < place->duty_count; i++)
        accepted &= machine_of(walk, place->duties[i])->accepts[place->duties[i].state];
    return accepted;
}

static uint32_t look_number_of(struct walk *walk, const struct place *place)
{
    uint32_t *slot;

    if (walk->out.failure || !reserve_place(walk))
        return 0;
    slot = look_slot_of(walk, place);
    if (*slot == 0) {
        const uint32_t number = grammar_fsa_add_state(&walk->out, look_accepts(walk, place));
        if (walk->out.failure)
            return 0;
        walk->places[number] = *place;
        *slot = number + 1;
    }
    return *slot - 1;
}

static void add_duty(struct walk *walk, struct place *place, struct duty duty)
{
    uint32_t at = 0;

    while (at < place->duty_count && (place->duties[at].regular < duty.regular ||
                                      (place->duties[at].regular == duty.regular && place->duties[at].state < duty.state)))
        at++;
    if (at < place->duty_count && place->duties[at].regular == duty.regular && place->duties[at].state == duty.state)
        return;
    if (place->duty_count == MAX_DUTIES) {
        grammar_builder_fail(walk->builder, STATUS_RESOURCE_EXHAUSTED, "more than %d look-aheads hold at once", MAX_DUTIES);
        walk->out.failure = GRAMMAR_FSA_TOO_LARGE;
        return;
    }
    memmove(&place->duties[at + 1], &place->duties[at], (place->duty_count - at) * sizeof duty);
    place->duties[at] = duty;
    place->duty_count++;
}

// --- arcs ---------------------------------------------------------------------------------------------------------------

static enum phase phase_after(enum phase phase, uint32_t symbol)
{
    static const enum phase after_start[] = {NOTHING_READ, END_AT_ONCE, NO_PHASE, NO_PHASE};
    static const enum phase after_end[] = {END_AT_ONCE, END_AT_ONCE, END_READ, END_READ};
    static const enum phase after_byte[] = {BYTES_READ, NO_PHASE, BYTES_READ, NO_PHASE};

    if (symbol < GRAMMAR_CALL)
        return after_byte[phase];
    return symbol == GRAMMAR_AT_START ? after_start[phase] : symbol == GRAMMAR_AT_END ? after_end[phase] : phase;
}

static bool look_is_word(uint32_t byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || byte == '_' || (byte >= 'a' && byte <= 'z');
}

// Moves the duties over a byte. Returns false if one of them cannot read it. *last: bytes up to that do the same.
static bool move_duties(struct walk *walk, const struct place *place, uint32_t byte, uint32_t *last, struct place *next)
{
    bool all = true;

    for (uint32_t i = 0; i < place->duty_count; i++) {
        const struct grammar_fsa *machine = machine_of(walk, place->duties[i]);
        uint32_t a = machine->index[place->duties[i].state], end = machine->index[place->duties[i].state + 1];
        while (a < end && machine->arcs[a].last < byte)
            a++;
        if (a == end) {
            all = false;
        } else if (machine->arcs[a].first > byte) {
            all = false;
            *last = MIN(*last, machine->arcs[a].first - 1);
        } else {
            *last = MIN(*last, machine->arcs[a].last);
            add_duty(walk, next, (struct duty){place->duties[i].regular, machine->arcs[a].to});
        }
    }
    return all;
}

static void read_bytes(struct walk *walk, uint32_t from, const struct grammar_arc *arc, enum phase phase)
{
    const struct place place = walk->places[from]; // they move

    for (uint32_t byte = arc->first, last; byte <= arc->last && !walk->out.failure; byte = last + 1) {
        struct place next = {.state = arc->to, .phase = (uint16_t)phase, .is_behind_word = walk->tells_words && look_is_word(byte)};
        last = arc->last;
        for (uint32_t b = byte; walk->tells_words && b <= last; b++)
            if (look_is_word(b) != look_is_word(byte))
                last = b - 1;
        if (move_duties(walk, &place, byte, &last, &next))
            grammar_fsa_add_arc(&walk->out, from, byte, last, look_number_of(walk, &next));
    }
}

static const uint32_t *looked_at(const struct grammar_builder *builder, const struct grammar_arc *arc)
{
    return (const uint32_t *)builder->children.data + (arc->first - GRAMMAR_LOOK);
}

static bool is_look(const struct grammar_arc *arc) { return arc->first >= GRAMMAR_LOOK && arc->first != GRAMMAR_JUMP; }

static bool tells_words(const struct grammar_builder *builder, const struct grammar_fsa *fsa)
{
    for (uint32_t a = 0; a < fsa->arc_count; a++) {
        const struct grammar_arc *arc = &fsa->arcs[a];
        if (is_look(arc) ? looked_at(builder, arc)[1] != looked_at(builder, arc)[2]
                         : arc->first == GRAMMAR_BEHIND_WORD || arc->first == GRAMMAR_BEHIND_OTHER)
            return true;
    }
    return false;
}

// Crosses an arc that reads nothing, if it may be crossed here.
static void look_cross(struct walk *walk, uint32_t from, const struct grammar_arc *arc, enum phase phase)
{
    struct place next = walk->places[from];
    const struct grammar_node *node;

    if ((arc->first == GRAMMAR_BEHIND_WORD && !next.is_behind_word) || (arc->first == GRAMMAR_BEHIND_OTHER && next.is_behind_word))
        return;
    if (is_look(arc)) {
        const bool is_start = next.phase == NOTHING_READ || next.phase == END_AT_ONCE;
        const uint32_t wanted = looked_at(walk->builder, arc)[is_start ? 0 : 1 + next.is_behind_word];
        if (wanted == GRAMMAR_NODE_NOTHING)
            return;
        node = grammar_node_of(walk->builder, wanted);
        if (node->kind == NODE_REGULAR)
            add_duty(walk, &next, (struct duty){node->at, grammar_regular_of(walk->builder, node->at)->start});
        else if (phase == NOTHING_READ || phase == BYTES_READ) // only the empty text is left
            phase = phase_after(phase, GRAMMAR_AT_END);
    }
    next.state = arc->to;
    next.phase = (uint16_t)phase;
    grammar_fsa_add_arc(&walk->out, from, GRAMMAR_JUMP, GRAMMAR_JUMP, look_number_of(walk, &next));
}

// Returns what the node matches behind what `first` says. *tells: whether it matters if that is a character of \w.
static uint32_t look_settle(struct grammar_builder *builder, uint32_t node, struct place first, bool *tells)
{
    struct walk walk = {.builder = builder, .out = {.max_states = GRAMMAR_DRAFT_STATES, .max_arcs = GRAMMAR_DRAFT_ARCS}};

    if (!grammar_regular_fsa(builder, node, &walk.fsa))
        return GRAMMAR_NODE_NOTHING;
    walk.tells_words = *tells = tells_words(builder, &walk.fsa);
    for (uint32_t a = 0; a < walk.fsa.arc_count; a++)
        if (is_look(&walk.fsa.arcs[a]))
            walk.out.max_states = GRAMMAR_MAX_REGULAR_STATES;
    first.state = walk.fsa.start;
    look_number_of(&walk, &first);
    for (uint32_t i = 0; i < walk.out.state_count && !walk.out.failure; i++) {
        const struct place place = walk.places[i];
        for (uint32_t a = walk.fsa.index[place.state]; a < walk.fsa.index[place.state + 1]; a++) {
            const struct grammar_arc *arc = &walk.fsa.arcs[a];
            const enum phase next = phase_after((enum phase)place.phase, arc->first);
            walk.work += 1 + place.duty_count * 4;
            if (next != NO_PHASE && arc->first < GRAMMAR_CALL)
                read_bytes(&walk, i, arc, next);
            else if (next != NO_PHASE)
                look_cross(&walk, i, arc, next);
        }
    }
    builder->work += walk.work;
    grammar_fsa_free(&walk.fsa);
    free(walk.places);
    free(walk.table);
    if (grammar_fsa_seal(&walk.out))
        grammar_fsa_trim(&walk.out);
    return grammar_check_fsa(builder, &walk.out) ? grammar_add_regular(builder, &walk.out) : (uint32_t)GRAMMAR_NODE_NOTHING;
}

uint32_t grammar_settle_anchors(struct grammar_builder *builder, uint32_t node)
{
    bool tells;

    return look_settle(builder, node, (struct place){.phase = NOTHING_READ}, &tells);
}

uint32_t grammar_add_look(struct grammar_builder *builder, uint32_t node, bool is_negative)
{
    static const struct place firsts[] = {
        {.phase = NOTHING_READ}, {.phase = BYTES_READ}, {.phase = BYTES_READ, .is_behind_word = 1}};
    const uint32_t any = grammar_repeat(builder, grammar_chars(builder, NULL, 0, true), 0, GRAMMAR_NO_LIMIT);
    const uint32_t begun = grammar_sequence(builder, (const uint32_t[]){node, any}, 2);
    uint32_t nodes[3];
    bool tells = true;

    for (int i = 0; i < 3; i++) {
        if (i == 2 && !tells) {
            nodes[2] = nodes[1];
            break;
        }
        nodes[i] = look_settle(builder, begun, firsts[i], &tells);
        nodes[i] = is_negative ? grammar_without(builder, any, nodes[i]) : grammar_both(builder, any, nodes[i]);
    }
    return grammar_add_look_anchor(builder, nodes);
}

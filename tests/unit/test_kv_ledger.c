/* test_kv_ledger.c: the ledger of pages beside a plain model, under operations drawn by a seed.
 *
 * The model knows of each sequence how many positions and pages it should have, and writes into each position who wrote it: a page's
 * content travels where the ledger says that it is copied. So a page that two sequences have by mistake, or that is freed while somebody
 * reads it, shows as a position with another's content.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "tests/cmocka.h"

enum { PAGES = 24, PAGE_TOKENS = 4, SEQUENCES = 6, CONTEXT = 40, IDS = 9, OPERATIONS = 20000, SEEDS = 8 };

static const struct kv_ledger_shape all_kept = {
    .pages = PAGES, .page_tokens = PAGE_TOKENS, .max_sequences = SEQUENCES, .max_context = CONTEXT};
static const struct kv_ledger_shape ring = {
    .pages = PAGES, .page_tokens = PAGE_TOKENS, .max_sequences = SEQUENCES, .max_context = CONTEXT, .ring_pages = 5, .window = 9};

struct modelled {
    bool known;
    uint32_t complete, pages;
    uint32_t begin;            /* pages given back */
    uint32_t certain;          /* before the latest step */
    uint32_t content[CONTEXT]; /* of the positions that are complete */
};

struct model {
    struct modelled of[IDS];
    uint32_t written[PAGES][PAGE_TOKENS]; /* what stands in the pages themselves */
    uint32_t writes;                      /* so far; the content of the next */
    uint64_t state;
};

static uint32_t draw(struct model *model, uint32_t below)
{
    model->state = model->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(model->state >> 33) % below;
}

static uint64_t id_of(uint32_t index) { return 5 * (index + 1ull); } /* these fall into five buckets that touch each other */

static uint32_t pages_for(uint32_t positions) { return (positions + PAGE_TOKENS - 1) / PAGE_TOKENS; }

static uint32_t page_of(const struct kv_ledger *ledger, uint32_t slot, uint32_t index)
{
    uint32_t in_table = ledger->shape.ring_pages ? index % ledger->shape.ring_pages : index;
    assert_int_equal(kv_ledger_page(ledger, slot, index), kv_ledger_table(ledger, slot)[in_table]);
    return kv_ledger_page(ledger, slot, index);
}

/* Whether a row there reads pages that have not been given back. */
static bool sees_window(const struct kv_ledger *ledger, uint32_t begin, uint32_t position)
{
    return begin == 0 || position + 1 >= begin * PAGE_TOKENS + ledger->shape.window;
}

/* All that can be said of a ledger without knowing what was done to it. */
static void check_counts(const struct kv_ledger *ledger)
{
    uint32_t references[PAGES] = {0}, used = 0, known = 0, cursor = 0;
    struct kv_held held;

    while (kv_ledger_next(ledger, &cursor, &held)) {
        uint32_t slot = kv_ledger_slot(ledger, held.sequence);
        known++;
        assert_int_not_equal(slot, KV_NONE);
        for (uint32_t i = 0; i < ledger->sequences[slot].page_count; i++)
            references[page_of(ledger, slot, ledger->sequences[slot].begin / PAGE_TOKENS + i)]++;
        assert_true(held.positions <= ledger->sequences[slot].begin + ledger->sequences[slot].page_count * PAGE_TOKENS);
    }
    assert_memory_equal(references, ledger->references, sizeof references);
    for (uint32_t page = 0; page < PAGES; page++)
        used += references[page] > 0;
    assert_int_equal(ledger->free_count, PAGES - used);
    assert_true(ledger->pages_peak >= used);
    for (uint32_t i = 0; i < ledger->free_count; i++)
        assert_int_equal(references[ledger->free_pages[i]]++, 0); /* free, and listed once */
    assert_int_equal(ledger->slots.count, known);
}

static void check_content(const struct kv_ledger *ledger, const struct model *model)
{
    uint32_t known = 0;

    for (uint32_t index = 0; index < IDS; index++) {
        const struct modelled *want = &model->of[index];
        struct kv_held held;
        uint32_t slot = kv_ledger_slot(ledger, id_of(index));
        assert_int_equal(kv_ledger_find(ledger, id_of(index), &held), want->known);
        assert_int_equal(slot != KV_NONE, want->known);
        if (!want->known)
            continue;
        known++;
        assert_int_equal(held.positions, want->complete);
        assert_int_equal(held.certain, want->certain);
        assert_int_equal(ledger->sequences[slot].page_count, want->pages);
        assert_int_equal(ledger->sequences[slot].begin, want->begin * PAGE_TOKENS);
        for (uint32_t at = want->begin * PAGE_TOKENS; at < want->complete; at++)
            assert_int_equal(model->written[page_of(ledger, slot, at / PAGE_TOKENS)][at % PAGE_TOKENS], want->content[at]);
    }
    assert_true(known <= SEQUENCES);
}

/* The result that reserving positions up to `end` should have. */
struct reservation {
    uint32_t begin, pages; /* of the sequence, afterwards */
    bool shared;           /* the page that is written next is somebody else's too: it is copied */
    bool room;
};

static struct reservation expect(const struct kv_ledger *ledger, const struct modelled *own, uint32_t slot, uint32_t end)
{
    uint32_t most = ledger->shape.ring_pages ? ledger->shape.ring_pages : CONTEXT,
             last = MAX(own->begin + own->pages, pages_for(end));
    struct reservation r = {.begin = MAX(own->begin, last - MIN(last, most))};
    uint32_t back = MIN(r.begin - own->begin, own->pages), free_count = ledger->free_count;

    r.pages = last - r.begin;
    for (uint32_t i = 0; i < back; i++)
        free_count += ledger->references[page_of(ledger, slot, own->begin + i)] == 1;
    r.shared = end > own->complete && own->complete % PAGE_TOKENS &&
               ledger->references[page_of(ledger, slot, own->complete / PAGE_TOKENS)] > 1;
    r.room = r.pages - (own->pages - back) + r.shared <= free_count && (own->known || ledger->slots.count < ledger->slots.capacity);
    return r;
}

static void reserved(struct model *model, struct modelled *own, const struct reservation *r, const struct kv_copy *copy)
{
    assert_int_equal(copy->needed, r->shared);
    if (copy->needed)
        memcpy(model->written[copy->to], model->written[copy->from], sizeof model->written[0]);
    own->known = true;
    own->begin = r->begin;
    own->pages = r->pages;
}

/* Reserves some positions and writes the next ones, as a step does. */
static void extend(struct kv_ledger *ledger, struct model *model, uint32_t index)
{
    struct modelled *own = &model->of[index];
    uint32_t count = 1 + draw(model, 6), end = own->complete + count, slot = kv_ledger_slot(ledger, id_of(index));
    const struct reservation r = expect(ledger, own, slot, end);
    struct kv_row rows[8];
    struct kv_row_walk walk;
    struct kv_copy copy;
    struct error error;

    bool fits = end <= CONTEXT && (r.begin == own->begin || sees_window(ledger, r.begin, own->complete));
    assert_int_equal(kv_ledger_reserve(ledger, id_of(index), end, &copy, &error), !fits     ? STATUS_OUT_OF_RANGE
                                                                                  : !r.room ? STATUS_RESOURCE_EXHAUSTED
                                                                                            : STATUS_OK);
    if (!fits || !r.room)
        return;
    reserved(model, own, &r, &copy);
    slot = kv_ledger_slot(ledger, id_of(index));
    for (uint32_t i = 0; i < count; i++)
        rows[i] = (struct kv_row){.sequence = id_of(index), .position = own->complete + i};
    if (!sees_window(ledger, own->begin, own->complete)) { /* it began with a page behind that: it cannot go on */
        assert_int_equal(kv_ledger_check_row(ledger, rows, 0, &walk, &error), STATUS_FAILED_PRECONDITION);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(kv_ledger_check_row(ledger, rows, i, &walk, &error), STATUS_OK);
        assert_int_equal(walk.slot, slot);
        assert_int_equal(walk.first, i == 0);
        uint32_t at = rows[i].position, page = page_of(ledger, slot, at / PAGE_TOKENS);
        model->written[page][at % PAGE_TOKENS] = own->content[at] = ++model->writes;
    }
    own->certain = own->complete;
    own->complete = ledger->sequences[slot].complete = end;
}

static void share(struct kv_ledger *ledger, struct model *model, uint32_t from, uint32_t to)
{
    struct modelled *source = &model->of[from], *own = &model->of[to];
    uint32_t positions = draw(model, CONTEXT + 1), known = 0;
    struct error error;

    for (uint32_t i = 0; i < IDS; i++)
        known += model->of[i].known;
    bool had = own->known && own->complete >= positions, room = own->known || known < SEQUENCES;
    bool can = from != to && positions && source->known && source->complete >= positions &&
               positions > source->begin * PAGE_TOKENS && sees_window(ledger, source->begin, positions);
    uint32_t slot = kv_ledger_slot(ledger, id_of(to)), other = kv_ledger_slot(ledger, id_of(from));
    for (uint32_t page = MAX(own->begin, source->begin); had && can && page < positions / PAGE_TOKENS; page++)
        had = page_of(ledger, slot, page) == page_of(ledger, other, page);
    enum status status = kv_ledger_share(ledger, id_of(from), positions, id_of(to), &error);

    if (had || !can || !room) {
        assert_int_equal(status, had ? STATUS_OK : !can ? STATUS_FAILED_PRECONDITION : STATUS_RESOURCE_EXHAUSTED);
        return;
    }
    assert_int_equal(status, STATUS_OK);
    *own = *source;
    own->complete = own->certain = positions;
    own->pages = pages_for(positions) - own->begin;
}

/* Checks where a page lies that is to go elsewhere, and what stands in it. */
static void give(const struct kv_ledger *ledger, struct model *model, uint32_t index)
{
    const struct modelled *own = &model->of[index];
    uint32_t page_index = draw(model, CONTEXT / PAGE_TOKENS + 2), begin = page_index * PAGE_TOKENS, page, positions;
    bool has = own->known && begin < own->complete && page_index >= own->begin;

    assert_int_equal(kv_ledger_give_page(ledger, id_of(index), page_index, &page, &positions), has ? STATUS_OK : STATUS_NOT_FOUND);
    if (!has)
        return;
    assert_int_equal(positions, MIN(own->complete - begin, (uint32_t)PAGE_TOKENS));
    assert_memory_equal(model->written[page], own->content + begin, positions * sizeof own->content[0]);
}

/* A page of a sequence that comes from elsewhere: what is held of it comes once more, what follows is new. One in four is given up
 * on its way: it has overwritten what it may, and nothing is complete by it. */
static void take(struct kv_ledger *ledger, struct model *model, uint32_t index)
{
    struct modelled *own = &model->of[index];
    uint32_t page_index = draw(model, 3) ? own->complete / PAGE_TOKENS : draw(model, CONTEXT / PAGE_TOKENS + 2);
    uint32_t positions = draw(model, PAGE_TOKENS + 2), begin = page_index * PAGE_TOKENS, end = begin + positions, slot, page;
    bool begins = !own->known && ledger->shape.ring_pages; /* with whatever page */
    if (begins) {
        own->begin = page_index;
        own->complete = own->certain = begin;
    }
    const struct reservation r = expect(ledger, own, kv_ledger_slot(ledger, id_of(index)), end);
    bool arrives = draw(model, 4) > 0;
    struct kv_copy copy;
    struct error error;
    enum status want = positions == 0 || positions > PAGE_TOKENS                                 ? STATUS_INVALID_ARGUMENT
                       : end > CONTEXT                                                           ? STATUS_OUT_OF_RANGE
                       : own->complete < begin || own->complete > end || own->begin > page_index ? STATUS_FAILED_PRECONDITION
                       : r.begin > own->begin && !sees_window(ledger, r.begin, own->complete)    ? STATUS_OUT_OF_RANGE
                       : !r.room                                                                 ? STATUS_RESOURCE_EXHAUSTED
                                                                                                 : STATUS_OK;

    assert_int_equal(kv_ledger_take_page(ledger, id_of(index), page_index, positions, &slot, &page, &copy, &error), want);
    if (want) {
        if (begins)
            *own = (struct modelled){0};
        return;
    }
    reserved(model, own, &r, &copy);
    assert_int_equal(slot, kv_ledger_slot(ledger, id_of(index)));
    assert_int_equal(page, page_of(ledger, slot, page_index));
    for (uint32_t at = begin; at < end; at++) {
        if (at >= own->complete)
            own->content[at] = ++model->writes;
        model->written[page][at - begin] = own->content[at];
    }
    if (arrives)
        own->complete = ledger->sequences[slot].complete = end;
}

static void operate(struct kv_ledger *ledger, struct model *model)
{
    uint32_t kind = draw(model, 13), index = draw(model, IDS);

    if (kind < 5) {
        extend(ledger, model, index);
    } else if (kind < 7) {
        share(ledger, model, index, draw(model, IDS));
    } else if (kind < 8) {
        give(ledger, model, index);
    } else if (kind < 11) {
        take(ledger, model, index);
    } else {
        kv_ledger_free(ledger, id_of(index));
        model->of[index] = (struct modelled){0};
    }
}

static void run_beside_a_model(const struct kv_ledger_shape *shape)
{
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        struct kv_ledger ledger;
        struct error error;
        struct model *model = calloc(1, sizeof *model);
        model->state = seed;
        assert_int_equal(kv_ledger_open(shape, &ledger, &error), STATUS_OK);
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            operate(&ledger, model);
            check_counts(&ledger);
            check_content(&ledger, model);
        }
        for (uint32_t index = 0; index < IDS; index++)
            kv_ledger_free(&ledger, id_of(index));
        assert_int_equal(ledger.free_count, PAGES);
        assert_int_equal(ledger.pages_peak, PAGES);
        kv_ledger_close(&ledger);
        free(model);
    }
}

static void test_beside_a_model(void **state) { run_beside_a_model(&all_kept); }

/* The first pages of a sequence are given back as it grows. */
static void test_ring_beside_a_model(void **state) { run_beside_a_model(&ring); }

/* A step's rows are refused if they are out of order, have a gap, are nobody's, are beyond the pages, or would go into a page that somebody
 * else reads. */
static void test_rows_that_are_refused(void **state)
{
    struct kv_ledger ledger;
    struct kv_row_walk walk;
    struct kv_copy copy;
    struct error error;

    assert_int_equal(kv_ledger_open(&all_kept, &ledger, &error), STATUS_OK);
    assert_int_equal(kv_ledger_reserve(&ledger, 5, 6, &copy, &error), STATUS_OK);
    ledger.sequences[kv_ledger_slot(&ledger, 5)].complete = 6;
    assert_int_equal(kv_ledger_share(&ledger, 5, 6, 6, &error), STATUS_OK);
    const struct {
        struct kv_row rows[2];
        enum status status;
        const char *why;
    } cases[] = {
        {{{.sequence = 5, .position = 3}, {.sequence = 5, .position = 3}}, STATUS_INVALID_ARGUMENT, "not sorted"},
        {{{.sequence = 6, .position = 0}, {.sequence = 5, .position = 0}}, STATUS_INVALID_ARGUMENT, "not sorted"},
        {{{.sequence = 5, .position = 0}, {.sequence = 7, .position = 0}},
         STATUS_FAILED_PRECONDITION,
         "sequence 7 has 0 positions"},
        {{{.sequence = 5, .position = 5}, {.sequence = 5, .position = 7}},
         STATUS_FAILED_PRECONDITION,
         "has 6 positions, not the 7"},
        {{{.sequence = 5, .position = 0}, {.sequence = 5, .position = 6}}, STATUS_FAILED_PRECONDITION, "shares the page"},
        {{{.sequence = 5, .position = 0}, {.sequence = 6, .position = 6}}, STATUS_FAILED_PRECONDITION, "shares the page"},
    };
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        assert_int_equal(kv_ledger_check_row(&ledger, cases[i].rows, 0, &walk, &error), STATUS_OK);
        assert_int_equal(kv_ledger_check_row(&ledger, cases[i].rows, 1, &walk, &error), cases[i].status);
        assert_non_null(strstr(error.text, cases[i].why));
    }
    assert_int_equal(kv_ledger_reserve(&ledger, 6, 8, &copy, &error), STATUS_OK);
    assert_true(copy.needed && copy.from == kv_ledger_table(&ledger, kv_ledger_slot(&ledger, 5))[1]);
    const struct kv_row behind[] = {{.sequence = 6, .position = 6}, {.sequence = 6, .position = 7}, {.sequence = 6, .position = 8}};
    assert_int_equal(kv_ledger_check_row(&ledger, behind, 0, &walk, &error), STATUS_OK);
    assert_int_equal(kv_ledger_check_row(&ledger, behind, 1, &walk, &error), STATUS_OK);
    assert_int_equal(kv_ledger_check_row(&ledger, behind, 2, &walk, &error), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(error.text, "no page for position 8"));
    kv_ledger_close(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_a_model),
        cmocka_unit_test(test_ring_beside_a_model),
        cmocka_unit_test(test_rows_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

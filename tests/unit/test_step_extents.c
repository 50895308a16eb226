// test_step_extents.c: steps with sequences at several places: which are refused, and that each row has one read at each frozen extent's place,
// in the order in which a worker wants them.
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_shape.h"
#include "services/s-part/step/step_plan.h"
#include "tests/cmocka.h"

enum { ROWS = 64, VOCAB = 32, CONTEXT = 40000, PLACES = 12, RUNS = 6, FLOATS = 100 };

static struct step_plan plan;
static struct sequence_table *table;
static Fastdecode__StepRequest request;
static Fastdecode__Run runs[RUNS], *run_pointers[RUNS];
static Fastdecode__Place places[PLACES], *place_pointers[PLACES];
static Fastdecode__Extent extents[RUNS][SCHED_EXTENTS_MAX + 2], *extent_pointers[RUNS][SCHED_EXTENTS_MAX + 2];
static uint32_t tokens[ROWS];
static struct step_limits limits;
static uint64_t seed = 5;

static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static int open_all(void **state)
{
    const struct sampler_params pure = {.top_p = 1, .repetition_penalty = 1};
    struct error error;

    fastdecode__step_request__init(&request);
    for (uint32_t p = 0; p < PLACES; p++) {
        fastdecode__place__init(&places[p]);
        places[p].worker = p;
        place_pointers[p] = &places[p];
    }
    request.n_places = PLACES, request.places = place_pointers;
    request.n_runs = RUNS, request.runs = run_pointers;
    if (step_plan_open(ROWS, &plan) || sequence_table_open(RUNS, VOCAB, CONTEXT, &table))
        return 1;
    for (uint32_t i = 0; i < RUNS; i++) {
        fastdecode__run__init(&runs[i]);
        run_pointers[i] = &runs[i];
        runs[i].sequence = 1 + i;
        runs[i].tokens = tokens;
        runs[i].n_tokens = 1;
        runs[i].extents = extent_pointers[i];
        for (uint32_t e = 0; e < ARRAY_COUNT(extents[0]); e++) {
            fastdecode__extent__init(&extents[i][e]);
            extent_pointers[i][e] = &extents[i][e];
        }
        if (sequence_table_put(table, 1 + i, &pure, false, tokens, 1, 1, &error))
            return 1;
    }
    limits = (struct step_limits){.vocab = VOCAB, .context_tokens = CONTEXT, .partial_floats = FLOATS, .pool_takes_extents = true};
    return 0;
}

static int close_all(void **state)
{
    step_plan_close(&plan);
    sequence_table_close(table);
    return 0;
}

static enum status check(void)
{
    struct error error;
    return step_plan_check(&plan, &request, &limits, &error);
}

// A run of three extents that is right, and one thing that is wrong with it.
static void what_cannot_be_is_refused(void **state)
{
    for (uint32_t wrong = 0; wrong <= 15; wrong++) {
        static const uint32_t at[] = {2, 1, 3}, from[] = {0, 512, 4608};
        struct Fastdecode__Run *run = &runs[0];
        run->place = 3, run->position = 4608, run->n_extents = 3, run->n_tokens = 1, run->share_from = run->share_positions = 0;
        limits.has_sparse = false, limits.pool_takes_extents = true;
        for (uint32_t e = 0; e < 3; e++)
            extents[0][e].place = at[e], extents[0][e].first_position = from[e];
        switch (wrong) {
        case 1: extents[0][0].first_position = 512; break;  // where is the start?
        case 2: extents[0][1].first_position = 0; break;    // they overlap
        case 3: extents[0][1].first_position = 5120; break; // out of order
        case 4: extents[0][1].first_position = 520; break;  // not at a range's start
        case 5: extents[0][2].first_position = 5120; break; // the tail begins behind the rows
        case 6: extents[0][1].place = 2; break;             // two at one place
        case 7: extents[0][1].place = 3; break;             // the same, the tail's
        case 8: extents[0][1].place = PLACES; break;
        case 9: run->place = 2; break; // rows at a frozen extent
        case 10: run->share_from = 9, run->share_positions = 512; break;
        case 11: limits.has_sparse = true; break;
        case 12: limits.pool_takes_extents = false, extents[0][1].place = 0; break;
        case 13: run->n_extents = SCHED_EXTENTS_MAX + 2; break;
        case 14: run->position = UINT32_MAX; break;
        case 15: // two in the local pool, under two numbers
            places[1].kind = FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL, extents[0][0].place = 0;
            break;
        default: break;
        }
        if (check() != (wrong ? STATUS_INVALID_ARGUMENT : STATUS_OK))
            fail_msg("case %u", wrong);
        places[1].kind = FASTDECODE__PLACE_KIND__PLACE_KIND_UNSPECIFIED;
    }
}

// However few floats a partial has, all of a step's fit a reply.
static void partials_have_a_limit(void **state)
{
    runs[0].n_extents = 2, runs[0].place = 1, runs[0].position = 16384, runs[0].n_tokens = ROWS - RUNS;
    extents[0][0].place = 2, extents[0][1].place = 1, extents[0][1].first_position = 16384;
    const uint32_t partials = (16384 / 4096 + 1) * (ROWS - RUNS);
    limits.partial_floats = (128u << 20) / 4 / partials;
    assert_int_equal(check(), STATUS_OK);
    limits.partial_floats++;
    assert_int_equal(check(), STATUS_INVALID_ARGUMENT);
}

static void random_run(uint32_t i)
{
    bool taken[PLACES] = {false};
    uint32_t first = 0;

    runs[i].n_tokens = 1 + draw(ROWS / RUNS - 1);
    runs[i].n_extents = draw(3) ? 1 + draw(SCHED_EXTENTS_MAX) : 0;
    runs[i].place = draw(PLACES);
    for (uint32_t e = 0; e < runs[i].n_extents; e++) {
        uint32_t place = draw(PLACES);
        while (taken[place])
            place = (place + 1) % PLACES;
        taken[place] = true;
        extents[i][e].place = runs[i].place = place;
        extents[i][e].first_position = first;
        first += 512 * (1 + draw(9));
    }
    runs[i].position = (runs[i].n_extents ? extents[i][runs[i].n_extents - 1].first_position : 0) + draw(3000);
}

// Checks one place's rows and reads.
static void check_place(const struct step_place *place, uint32_t *reads_of)
{
    uint32_t partials = 0, with_o = 0;

    for (uint32_t row = place->first_row; row < place->first_row + place->row_count; row++) {
        const struct backend_row *own = &plan.rows[row];
        assert_int_equal(plan.runs[plan.row_run[row]].place, place->index);
        if (own->first) {
            assert_int_equal(plan.row_partial[row], partials);
            partials += kv_partial_count(own->first, own->position + 1);
        }
        with_o += own->first == 0;
    }
    for (uint32_t i = place->first_read; i < place->first_read + place->read_count; i++) {
        const struct step_read *read = &plan.reads[i];
        const struct step_run *run = &plan.runs[plan.row_run[read->row]];
        const struct step_read *before = i > place->first_read ? read - 1 : NULL;
        if (before)
            assert_true(plan.rows[before->row].sequence < plan.rows[read->row].sequence ||
                        (plan.rows[before->row].sequence == plan.rows[read->row].sequence && before->row + 1 == read->row));
        assert_int_equal(run->run->extents[read->extent]->place, place->index);
        assert_int_equal(run->run->extents[read->extent]->first_position, read->first);
        assert_int_equal(run->run->extents[read->extent + 1]->first_position, read->end);
        assert_int_equal(plan.splits[read->split].run, plan.row_run[read->row]);
        assert_int_equal(plan.splits[read->split].read[read->extent] + read->row - run->first_row, i);
        assert_int_equal(read->partial, partials);
        partials += kv_partial_count(read->first, read->end);
        reads_of[read->row]++;
    }
    assert_int_equal(place->o_count, with_o);
    assert_int_equal(place->partial_count, partials);
}

static void each_row_reads_at_each_frozen_extent(void **state)
{
    struct error error;
    for (uint32_t turn = 0; turn < 500; turn++) {
        uint32_t reads_of[ROWS] = {0}, local = 0;
        for (uint32_t i = 0; i < RUNS; i++)
            random_run(i);
        assert_int_equal(check(), STATUS_OK);
        assert_int_equal(step_plan_fill(&plan, &request, table, &error), STATUS_OK);
        if (turn % 3 == 0)
            step_plan_drop(&plan, draw(RUNS));
        for (uint32_t p = 0; p < plan.place_count; p++)
            check_place(&plan.places[p], reads_of);
        for (uint32_t row = 0; row < plan.row_count; row++) {
            const Fastdecode__Run *run = plan.runs[plan.row_run[row]].run;
            assert_int_equal(reads_of[row], run->n_extents ? run->n_extents - 1 : 0);
        }
        for (uint32_t i = 0; i < plan.read_count; i++) // place 0 is the local pool
            if (plan.runs[plan.row_run[plan.reads[i].row]].run->extents[plan.reads[i].extent]->place == 0)
                assert_int_equal(plan.local_reads[local++].row, plan.reads[i].row);
        assert_int_equal(plan.local_read_count, local);
    }
}

static void the_first_lost_extent_counts(void **state)
{
    struct step_run run = {.run = &runs[0]};
    runs[0].n_extents = 4;
    step_plan_lose(&run, 2);
    assert_true(run.lost && run.lost_extent == 3);
    step_plan_lose(&run, 3);
    assert_int_equal(run.lost_extent, 3);
    step_plan_lose(&run, 0);
    assert_int_equal(run.lost_extent, 1);
    runs[0].n_extents = 0;
    run = (struct step_run){.run = &runs[0]};
    step_plan_lose(&run, UINT32_MAX);
    assert_true(run.lost && run.lost_extent == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_cannot_be_is_refused, open_all, close_all),
        cmocka_unit_test_setup_teardown(partials_have_a_limit, open_all, close_all),
        cmocka_unit_test_setup_teardown(each_row_reads_at_each_frozen_extent, open_all, close_all),
        cmocka_unit_test_setup_teardown(the_first_lost_extent_counts, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

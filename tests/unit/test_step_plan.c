/* test_step_plan.c: the s-part's rows and samples of a step, where some of its tokens are guessed. */
#include <string.h>

#include "common/base/checked.h"
#include "common/sched/settings.h"
#include "services/s-part/step/step_plan.h"
#include "tests/cmocka.h"

enum { ROWS = 128, VOCAB = 1000, CONTEXT = 1000, PROMPT = 4, SEQUENCES = 3 };

static struct step_plan plan;
static struct sequence_table *table;
static Fastdecode__Run runs[SEQUENCES], *run_pointers[SEQUENCES] = {&runs[0], &runs[1], &runs[2]};
static Fastdecode__Place place, *places[1] = {&place};
static Fastdecode__StepRequest request;
static uint32_t tokens[SEQUENCES][ROWS];

/* Sequences 1, 2 and 3 have a prompt of four tokens and six that were generated; 2 has penalties. */
static int open_all(void **state)
{
    const uint32_t known[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const struct sampler_params pure = {.top_p = 1, .repetition_penalty = 1}, other = {.top_p = 1, .repetition_penalty = 1.5f};
    struct error error;
    fastdecode__place__init(&place);
    fastdecode__step_request__init(&request);
    request.n_runs = request.n_places = 1;
    request.runs = run_pointers;
    request.places = places;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        for (uint32_t n = 0; n < ROWS; n++)
            tokens[i][n] = 10 + 200 * i + n;
        fastdecode__run__init(&runs[i]);
        runs[i].sequence = i + 1;
        runs[i].position = 9;
        runs[i].tokens = tokens[i];
        runs[i].n_tokens = 4;
        runs[i].drafts = 3;
        runs[i].sample = true;
    }
    return step_plan_open(ROWS, &plan) || sequence_table_open(4, VOCAB, CONTEXT, &table) ||
           sequence_table_put(table, 1, &pure, false, known, 10, PROMPT, &error) ||
           sequence_table_put(table, 2, &other, false, known, 10, PROMPT, &error) ||
           sequence_table_put(table, 3, &pure, false, known, 10, PROMPT, &error);
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
    const struct step_limits limits = {
        .vocab = VOCAB, .context_tokens = CONTEXT, .partial_floats = 100, .pool_takes_extents = true};
    return step_plan_check(&plan, &request, &limits, &error);
}

static void drafts_are_behind_a_token_and_before_a_sample(void **state)
{
    assert_int_equal(check(), STATUS_OK);
    runs[0].drafts = 4;
    assert_int_equal(check(), STATUS_INVALID_ARGUMENT);
    runs[0].drafts = UINT32_MAX;
    assert_int_equal(check(), STATUS_INVALID_ARGUMENT);
    runs[0].drafts = 3;
    runs[0].sample = false;
    assert_int_equal(check(), STATUS_INVALID_ARGUMENT);
    runs[0].sample = true;
    runs[0].n_tokens = SCHED_DRAFT_TOKENS_MAX + 2;
    runs[0].drafts = SCHED_DRAFT_TOKENS_MAX + 1;
    assert_int_equal(check(), STATUS_INVALID_ARGUMENT);
    runs[0].drafts--;
    assert_int_equal(check(), STATUS_OK);
    runs[0].n_tokens = 0; // the token that was sampled last, and guesses: of what?
    assert_int_equal(check(), STATUS_INVALID_ARGUMENT);
}

static void a_step_may_have_rows_at_every_place(void **state)
{
    Fastdecode__Place *all[SCHED_PLACES_MAX + 1];
    for (uint32_t i = 0; i < ARRAY_COUNT(all); i++)
        all[i] = &place;
    request.places = all;
    request.n_places = SCHED_PLACES_MAX;
    assert_int_equal(check(), STATUS_OK);
    request.n_places = SCHED_PLACES_MAX + 1;
    assert_int_equal(check(), STATUS_INVALID_ARGUMENT);
}

static void fill(uint32_t run_count)
{
    struct error error;
    request.n_runs = run_count;
    assert_int_equal(check(), STATUS_OK);
    assert_int_equal(step_plan_fill(&plan, &request, table, &error), STATUS_OK);
}

static void each_row_from_the_known_one_on_is_sampled(void **state)
{
    runs[0].position = 8; // two rows that are known
    fill(1);
    assert_int_equal(plan.row_count, 4);
    runs[0].drafts = 2;
    fill(1);
    assert_int_equal(plan.output_count, 3);
    assert_int_equal(plan.runs[0].sample_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(plan.output_row[i], i + 1);
        assert_non_null(plan.outputs[i].sampler);
        assert_int_equal(plan.outputs[i].index, 9 + i + 1 - PROMPT);
    }
    for (uint32_t row = 0; row < 4; row++)
        assert_int_equal(plan.rows[row].needs_output, row != 0);
    runs[0].sample = false;
    runs[0].drafts = 0;
    fill(1);
    for (uint32_t row = 0; row < 4; row++)
        assert_false(plan.rows[row].needs_output);
}

static uint32_t taken(uint32_t run, const uint32_t *sampled) // [sample_count]
{
    const struct step_run *of = &plan.runs[run];
    for (uint32_t i = 0; i < of->sample_count; i++)
        plan.results[of->first_output + of->output_count - of->sample_count + i].token = sampled[i];
    step_plan_take(&plan, run);
    return of->taken;
}

static void samples_count_up_to_the_first_after_a_wrong_draft(void **state)
{
    fill(1); // guessed: 11, 12, 13
    assert_int_equal(taken(0, (uint32_t[]){77, 12, 13, 14}), 1);
    assert_int_equal(sequence_table_find(table, 1)->last_token, 77);
    assert_int_equal(taken(0, (uint32_t[]){11, 12, 55, 14}), 3);
    assert_int_equal(sequence_table_find(table, 1)->last_token, 55);
    assert_int_equal(taken(0, (uint32_t[]){11, 12, 13, 14}), 4);
    assert_int_equal(sequence_table_find(table, 1)->last_token, 14);
    assert_int_equal(taken(0, (uint32_t[]){77, 12, 13, 14}), 1); // not those behind, however right they are
}

/* A draft whose sample has no mask is not taken, nor one for which no token is left; if that is the first, the sequence has a fault. */
static void samples_need_their_masks(void **state)
{
    struct masked_sequence masked = {.generated = 6};
    const uint32_t mask[(VOCAB + 31) / 32] = {0};
    sequence_table_find(table, 1)->masked = &masked;
    fill(1);
    plan.runs[0].mask_count = 2;
    assert_int_equal(taken(0, (uint32_t[]){11, 12, 13, 14}), 2);
    assert_true(masked.taken_count == 2 && masked.taken[1] == 12 && masked.generated == 8);
    masked = (struct masked_sequence){.generated = 6};
    plan.runs[0].mask_count = 4;
    plan.outputs[plan.runs[0].first_output + 1].allowed = plan.outputs[plan.runs[0].first_output].allowed = mask;
    plan.results[plan.runs[0].first_output + 1].all_banned = true;
    assert_int_equal(taken(0, (uint32_t[]){11, 12, 13, 14}), 1);
    assert_null(plan.runs[0].fault);
    plan.results[plan.runs[0].first_output].all_banned = true;
    assert_int_equal(taken(0, (uint32_t[]){11, 12, 13, 14}), 0);
    assert_non_null(strstr(plan.runs[0].fault, "no token is left"));
    assert_true(plan.runs[0].request_fault);
    memset(plan.results, 0, ROWS * sizeof *plan.results);
    sequence_table_find(table, 1)->masked = NULL;
}

/* The answer to the step before was lost: the sequence is not known as it was, and is to be opened anew. */
static void a_grammar_that_is_elsewhere_makes_its_sequence_unknown(void **state)
{
    struct masked_sequence masked = {.generated = 7}; // one was taken that nobody heard of
    sequence_table_find(table, 1)->masked = &masked;
    fill(1);
    assert_true(plan.runs[0].sequence == NULL && plan.row_count == 0);
    masked.generated = 6;
    fill(1);
    assert_non_null(plan.runs[0].sequence);
    sequence_table_find(table, 1)->masked = NULL;
}

/* Whatever the run, its drafts included, and however the sequence came to it. */
static void generated_positions_are_sparse(void **state)
{
    for (uint32_t position = 0; position < 10; position++) {
        runs[0].position = position;
        runs[0].n_tokens = 14 - position;
        fill(1);
        assert_int_equal(plan.row_count, 14 - position);
        for (uint32_t row = 0; row < plan.row_count; row++)
            assert_int_equal(plan.rows[row].sparse, plan.rows[row].position >= PROMPT);
    }
}

static void samples_are_of_their_own_run(void **state)
{
    fill(3); // the third has guessed 411, 412, 413
    assert_int_equal(taken(0, (uint32_t[]){11, 77, 13, 14}), 2);
    assert_int_equal(taken(2, (uint32_t[]){411, 412, 413, 414}), 4);
    assert_int_equal(taken(2, (uint32_t[]){411, 412, 13, 414}), 3);
    assert_int_equal(sequence_table_find(table, 1)->last_token, 77);
    assert_int_equal(sequence_table_find(table, 3)->last_token, 13);
    assert_int_equal(plan.runs[0].taken, 2);
}

/* Scores come before samples; rows that have a next token in the prompt are not sampled, whatever was asked for. */
static void samples_are_behind_scores_and_the_prompt(void **state)
{
    runs[0].position = 1;
    runs[0].score = true;
    fill(1);
    assert_int_equal(plan.output_count, 4);
    assert_int_equal(plan.runs[0].sample_count, 2);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(plan.output_row[i], i);
        assert_true(!plan.outputs[i].sampler == (i < 2));
    }
    assert_int_equal(plan.outputs[2].index, 0);
    assert_int_equal(plan.outputs[3].index, 1);
    plan.results[0].token = 11; // of the prompt: no samples
    plan.results[1].token = 12;
    assert_int_equal(taken(0, (uint32_t[]){77, 14}), 1);
    assert_int_equal(sequence_table_find(table, 1)->last_token, 77);
    assert_int_equal(taken(0, (uint32_t[]){13, 14}), 2);
    assert_int_equal(sequence_table_find(table, 1)->last_token, 14);
}

static void with_penalties_only_the_first_counts(void **state)
{
    uint32_t count;
    fill(2); // guessed: 211, 212, 213
    assert_int_equal(taken(1, (uint32_t[]){211, 212, 213, 214}), 1);
    const struct sequence *sequence = sequence_table_find(table, 2);
    assert_int_equal(sequence->last_token, 211);
    const struct sampler_seen *seen = sampler_seen_tokens(sequence->sampler, &count);
    assert_int_equal(count, 11); // prompt, what was generated, and 211, once each
    assert_int_equal(seen[10].token, 211);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(seen[i].generated, i >= PROMPT);
}

static void a_run_that_is_lost_has_no_samples(void **state)
{
    fill(2);
    step_plan_drop(&plan, 0);
    assert_int_equal(plan.runs[0].sample_count, 0);
    assert_int_equal(plan.output_count, 4);
    assert_int_equal(plan.runs[1].first_output, 0);
    step_plan_take(&plan, 0);
    assert_int_equal(plan.runs[0].taken, 0);
    assert_int_equal(sequence_table_find(table, 1)->last_token, 10);
}

// By its kind, whatever its index; by its index where no kind is named.
static void the_local_pool_may_have_any_index(void **state)
{
    const struct {
        Fastdecode__PlaceKind kind;
        uint32_t index;
        bool local;
    } cases[] = {
        {FASTDECODE__PLACE_KIND__PLACE_KIND_UNSPECIFIED, 0, true},
        {FASTDECODE__PLACE_KIND__PLACE_KIND_UNSPECIFIED, 3, false},
        {FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL, 3, true},
        {FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER, 0, false},
    };
    struct error error;
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        place.kind = cases[i].kind;
        place.worker = cases[i].index;
        assert_int_equal(check(), STATUS_OK);
        assert_int_equal(step_plan_fill(&plan, &request, table, &error), STATUS_OK);
        assert_int_equal(plan.rows[0].local, cases[i].local);
    }
    fastdecode__place__init(&place);
}

/* A prompt that is pooled has no samples and no scores; rows that some are missing before are lost. */
static void rows_of_a_pooled_prompt(void **state)
{
    const struct model model = {.shape = {.hidden = 8}};
    const struct model_pooling pooling = {.kind = MODEL_POOL_MEAN};
    const float row[8] = {0};
    struct sequence *sequence = sequence_table_find(table, 3);
    struct pooler *pooler;
    struct error error;
    assert_int_equal(pooler_open(&model, &pooling, &pooler, &error), STATUS_OK);
    assert_int_equal(pooled_open(pooler, MODEL_POOL_MEAN, PROMPT, &sequence->pooled, &error), STATUS_OK);
    request.runs[0] = &runs[2];
    runs[2].position = 0;
    runs[2].n_tokens = 2;
    runs[2].drafts = 0;
    runs[2].sample = false;
    runs[2].score = true;
    assert_int_equal(step_plan_fill(&plan, &request, table, &error), STATUS_OK);
    assert_true(plan.hidden_count == 2 && plan.output_count == 0 && plan.hidden_row[1] == 1 && plan.rows[1].needs_output);
    assert_false(plan.runs[0].lost);
    pooled_take(sequence->pooled, 0, row);
    assert_int_equal(step_plan_fill(&plan, &request, table, &error), STATUS_OK);
    assert_true(plan.hidden_count == 1 && plan.hidden_row[0] == 1 && !plan.rows[0].needs_output);
    runs[2].position = 2;
    assert_int_equal(step_plan_fill(&plan, &request, table, &error), STATUS_OK);
    assert_true(plan.runs[0].lost && plan.hidden_count == 0 && plan.row_count == 2);
    request.runs[0] = &runs[0];
    pooled_close(sequence->pooled);
    sequence->pooled = NULL;
    pooler_close(pooler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(drafts_are_behind_a_token_and_before_a_sample, open_all, close_all),
        cmocka_unit_test_setup_teardown(the_local_pool_may_have_any_index, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_step_may_have_rows_at_every_place, open_all, close_all),
        cmocka_unit_test_setup_teardown(each_row_from_the_known_one_on_is_sampled, open_all, close_all),
        cmocka_unit_test_setup_teardown(samples_count_up_to_the_first_after_a_wrong_draft, open_all, close_all),
        cmocka_unit_test_setup_teardown(samples_need_their_masks, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_grammar_that_is_elsewhere_makes_its_sequence_unknown, open_all, close_all),
        cmocka_unit_test_setup_teardown(generated_positions_are_sparse, open_all, close_all),
        cmocka_unit_test_setup_teardown(samples_are_of_their_own_run, open_all, close_all),
        cmocka_unit_test_setup_teardown(samples_are_behind_scores_and_the_prompt, open_all, close_all),
        cmocka_unit_test_setup_teardown(with_penalties_only_the_first_counts, open_all, close_all),
        cmocka_unit_test_setup_teardown(a_run_that_is_lost_has_no_samples, open_all, close_all),
        cmocka_unit_test_setup_teardown(rows_of_a_pooled_prompt, open_all, close_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

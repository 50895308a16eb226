// step_plan.c: see step_plan.h.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "common/kv/kv_shape.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "services/s-part/step/step_plan.h"

enum status step_plan_open(uint32_t max_rows, struct step_plan *plan)
{
    *plan = (struct step_plan){.max_rows = max_rows};
    plan->runs = calloc(max_rows, sizeof *plan->runs);
    plan->rows = calloc(max_rows, sizeof *plan->rows);
    plan->row_run = calloc(max_rows, sizeof *plan->row_run);
    plan->output_row = calloc(max_rows, sizeof *plan->output_row);
    plan->outputs = calloc(max_rows, sizeof *plan->outputs);
    plan->results = calloc(max_rows, sizeof *plan->results);
    plan->hidden_row = calloc(max_rows, sizeof *plan->hidden_row);
    plan->listed = calloc(max_rows, sizeof *plan->listed);
    plan->row_partial = calloc(max_rows, sizeof *plan->row_partial);
    plan->splits = calloc(max_rows, sizeof *plan->splits);
    plan->reads = calloc((size_t)max_rows * SCHED_EXTENTS_MAX, sizeof *plan->reads);
    plan->local_reads = calloc(max_rows, sizeof *plan->local_reads);
    if (plan->row_partial && plan->splits && plan->reads && plan->local_reads && plan->listed && plan->runs && plan->rows &&
        plan->row_run && plan->hidden_row && plan->output_row && plan->outputs && plan->results)
        return STATUS_OK;
    step_plan_close(plan);
    return STATUS_RESOURCE_EXHAUSTED;
}

void step_plan_close(struct step_plan *plan)
{
    free(plan->runs);
    free(plan->rows);
    free(plan->row_run);
    free(plan->output_row);
    free(plan->outputs);
    free(plan->results);
    free(plan->hidden_row);
    free(plan->listed);
    free(plan->row_partial);
    free(plan->splits);
    free(plan->reads);
    free(plan->local_reads);
    memset(plan, 0, sizeof *plan);
}

// --- sequences that lie at several places

static uint32_t extents_first(const Fastdecode__Run *run)
{
    return run->n_extents ? run->extents[run->n_extents - 1]->first_position : 0;
}

uint32_t step_extents_at(const Fastdecode__Run *run, uint32_t place)
{
    uint32_t extent = 0;
    while (extent + 1 < run->n_extents && run->extents[extent]->place != place)
        extent++;
    return extent;
}

// Extent number e: at a place of its own, and where the one before ends.
static bool fits(const Fastdecode__StepRequest *request, const Fastdecode__Run *run, size_t e, bool pool_takes_extents)
{
    const Fastdecode__Extent *extent = run->extents[e];

    if (extent->place >= request->n_places || extent->first_position % KV_EXTENT_TOKENS ||
        (e == 0 ? extent->first_position != 0 : extent->first_position <= run->extents[e - 1]->first_position) ||
        (run->n_extents > 1 && !pool_takes_extents && step_place_is_local(request->places[extent->place])))
        return false;
    for (size_t other = 0; other < e; other++)
        if (run->extents[other]->place == extent->place || // the local pool is one place, whatever its number
            (step_place_is_local(request->places[run->extents[other]->place]) &&
             step_place_is_local(request->places[extent->place])))
            return false;
    return e + 1 < run->n_extents || (extent->place == run->place && extent->first_position <= run->position);
}

static enum status extents_check(const Fastdecode__StepRequest *request, const Fastdecode__Run *run, uint32_t row_count,
                                 const struct step_limits *limits, uint64_t *partial_bytes, struct error *error)
{
    unsigned long long id = run->sequence;
    uint64_t partials = 0;

    if (run->n_extents == 0)
        return STATUS_OK;
    if (run->n_extents > SCHED_EXTENTS_MAX + 1 || run->share_from || (run->n_extents > 1 && limits->has_sparse))
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: %zu extents, at most %d, not with pages shared%s",
                         id, run->n_extents, SCHED_EXTENTS_MAX + 1, limits->has_sparse ? " or sparse rows" : "");
    for (size_t e = 0; e < run->n_extents; e++)
        if (!fits(request, run, e, limits->pool_takes_extents))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "run of sequence %llx at position %u, place %u: extent %zu at place %u begins at position %u", id,
                             run->position, run->place, e, run->extents[e]->place, run->extents[e]->first_position);
    for (size_t e = 0; run->n_extents > 1 && e < run->n_extents; e++) {
        bool tail = e + 1 == run->n_extents;
        partials += kv_partial_count(run->extents[e]->first_position,
                                     tail ? run->position + row_count : run->extents[e + 1]->first_position);
    }
    *partial_bytes += partials * row_count * limits->partial_floats * sizeof(float);
    if (*partial_bytes > ATTEND_PARTIAL_BYTES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: partials of the step take more than %u MiB", id,
                         ATTEND_PARTIAL_BYTES_MAX >> 20);
    return STATUS_OK;
}

// The runs with rows whose sequences lie at several places, by sequence. There are few: each is put where it belongs.
static void find_splits(struct step_plan *plan)
{
    plan->split_count = 0;
    for (uint32_t i = 0; i < plan->run_count; i++) {
        const struct step_run *run = &plan->runs[i];
        uint32_t at = plan->split_count;
        if (!run->row_count || run->run->n_extents < 2)
            continue;
        for (; at && plan->runs[plan->splits[at - 1].run].run->sequence > run->run->sequence; at--)
            plan->splits[at] = plan->splits[at - 1];
        plan->splits[at] = (struct step_split){.run = i, .frozen_count = (uint32_t)run->run->n_extents - 1};
        plan->split_count++;
    }
}

// The place of the plan that is the request's place `index`; one without rows is added.
static uint32_t place_of(struct step_plan *plan, uint32_t index)
{
    for (uint32_t p = 0; p < plan->place_count; p++)
        if (plan->places[p].index == index)
            return p;
    plan->places[plan->place_count] = (struct step_place){.index = index, .first_row = plan->row_count};
    return plan->place_count++;
}

// Which rows of a place get o, and where the partials of the others begin.
static void count_results(struct step_plan *plan, struct step_place *place)
{
    place->o_count = place->row_count;
    place->partial_count = 0;
    for (uint32_t row = place->first_row; plan->split_count && row < place->first_row + place->row_count; row++) {
        const uint32_t first = plan->rows[row].first;
        if (!first)
            continue;
        place->o_count--;
        plan->row_partial[row] = place->partial_count;
        place->partial_count += kv_partial_count(first, plan->rows[row].position + 1);
    }
}

static void add_read(struct step_plan *plan, struct step_place *place, const struct step_read *read)
{
    struct step_read *to = &plan->reads[plan->read_count++];

    *to = *read;
    to->partial = place->partial_count;
    place->partial_count += kv_partial_count(read->first, read->end);
    place->read_count++;
    if (step_place_is_local(plan->request->places[place->index]))
        plan->local_reads[plan->local_read_count++] =
            (struct backend_read){.row = read->row, .first = read->first, .end = read->end};
}

// The reads of one place.
static void read_at(struct step_plan *plan, uint32_t p)
{
    struct step_place *place = &plan->places[p];

    place->first_read = plan->read_count;
    for (uint32_t s = 0; s < plan->split_count; s++) {
        struct step_split *split = &plan->splits[s];
        const struct step_run *run = &plan->runs[split->run];
        Fastdecode__Extent *const *extents = run->run->extents;
        uint32_t e = step_extents_at(run->run, place->index);
        if (split->place[e] != p || e == split->frozen_count)
            continue;
        split->read[e] = plan->read_count;
        for (uint32_t row = run->first_row; row < run->first_row + run->row_count; row++)
            add_read(plan, place,
                     &(struct step_read){.row = row,
                                         .split = s,
                                         .extent = e,
                                         .first = extents[e]->first_position,
                                         .end = extents[e + 1]->first_position});
    }
}

static void extents_read(struct step_plan *plan)
{
    plan->read_count = plan->local_read_count = 0;
    find_splits(plan);
    for (uint32_t s = 0; s < plan->split_count; s++) {
        struct step_split *split = &plan->splits[s];
        const Fastdecode__Run *run = plan->runs[split->run].run;
        for (uint32_t e = 0; e <= split->frozen_count; e++)
            split->place[e] = place_of(plan, run->extents[e]->place);
    }
    for (uint32_t p = 0; p < plan->place_count; p++)
        count_results(plan, &plan->places[p]);
    for (uint32_t p = 0; plan->split_count && p < plan->place_count; p++)
        read_at(plan, p);
}

// --- the plan

static bool before(const struct step_run *a, const struct step_run *b)
{
    return a->place != b->place ? a->place < b->place : a->run->sequence < b->run->sequence;
}

// By place, then sequence. A shell sort (Ciura's gaps): qsort(3) may allocate, and a step does not.
static void sort_runs(struct step_run *runs, uint32_t count)
{
    static const uint32_t gaps[] = {3548, 1577, 701, 301, 132, 57, 23, 10, 4, 1};
    for (size_t g = 0; g < ARRAY_COUNT(gaps); g++)
        for (uint32_t i = gaps[g]; i < count; i++) {
            struct step_run moving = runs[i];
            uint32_t at = i;
            for (; at >= gaps[g] && before(&moving, &runs[at - gaps[g]]); at -= gaps[g])
                runs[at] = runs[at - gaps[g]];
            runs[at] = moving;
        }
}

static uint32_t run_rows(const Fastdecode__Run *run) { return run->n_tokens ? (uint32_t)run->n_tokens : 1; }

static enum status check_run(const Fastdecode__StepRequest *request, const Fastdecode__Run *run, uint32_t vocab,
                             uint32_t context_tokens, struct error *error)
{
    unsigned long long id = run->sequence;

    if (run->place >= request->n_places)
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: place %u of %zu", id, run->place,
                         request->n_places);
    if (run->position >= context_tokens || run_rows(run) > context_tokens - run->position)
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: %u rows at position %u, context %u", id,
                         run_rows(run), run->position, context_tokens);
    for (size_t i = 0; i < run->n_tokens; i++)
        if (run->tokens[i] >= vocab)
            return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: token %u, the vocabulary has %u", id,
                             run->tokens[i], vocab);
    if (run->drafts > SCHED_DRAFT_TOKENS_MAX || (run->drafts && (run->drafts >= run->n_tokens || !run->sample)))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "run of sequence %llx: %u drafts in %zu tokens, at most %u before a sample", id, run->drafts,
                         run->n_tokens, (unsigned)SCHED_DRAFT_TOKENS_MAX);
    if (run->share_positions > run->position || (run->share_from == 0) != (run->share_positions == 0) ||
        (run->share_from && run->share_from == run->sequence))
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: %u positions of sequence %llx before position %u",
                         id, run->share_positions, (unsigned long long)run->share_from, run->position);
    if (run->next >= vocab)
        return error_set(error, STATUS_INVALID_ARGUMENT, "run of sequence %llx: next token %u, the vocabulary has %u", id,
                         run->next, vocab);
    return STATUS_OK;
}

enum status step_plan_check(const struct step_plan *plan, const Fastdecode__StepRequest *request, const struct step_limits *limits,
                            struct error *error)
{
    uint64_t rows = 0, partial_bytes = 0;

    if (request->n_runs > plan->max_rows || request->n_places > SCHED_PLACES_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "a step of %zu runs at %zu places (limits %u and %u)", request->n_runs,
                         request->n_places, plan->max_rows, (unsigned)SCHED_PLACES_MAX);
    for (size_t i = 0; i < request->n_runs; i++) {
        const Fastdecode__Run *run = request->runs[i];
        enum status status = check_run(request, run, limits->vocab, limits->context_tokens, error);
        if (!status)
            status = extents_check(request, run, run_rows(run), limits, &partial_bytes, error);
        if (status)
            return status;
        rows += run_rows(request->runs[i]);
    }
    if (rows > plan->max_rows)
        return error_set(error, STATUS_INVALID_ARGUMENT, "a step of %llu rows, the limit is %u", (unsigned long long)rows,
                         plan->max_rows);
    return STATUS_OK;
}

// A sequence whose grammar is elsewhere than its log, since the answer to a step was lost, is to be opened anew.
static bool is_out_of_step(const struct sequence *sequence, const Fastdecode__Run *run)
{
    const uint32_t known = run->position + run_rows(run) - run->drafts;

    return sequence->masked && run->sample && known >= sequence->prompt_tokens &&
           known - sequence->prompt_tokens != sequence->masked->generated;
}

// The runs of the request, sorted.
static enum status take_runs(struct step_plan *plan, const Fastdecode__StepRequest *request, struct sequence_table *table,
                             struct error *error)
{
    for (size_t i = 0; i < request->n_runs; i++) {
        const Fastdecode__Run *run = request->runs[i];
        plan->runs[i] = (struct step_run){
            .run = run,
            .place = run->place,
            .result_index = (uint32_t)i,
            .sequence = sequence_table_find(table, run->sequence),
            .first = extents_first(run),
        };
        if (plan->runs[i].sequence && is_out_of_step(plan->runs[i].sequence, run))
            plan->runs[i].sequence = NULL;
    }
    plan->run_count = (uint32_t)request->n_runs;
    for (uint32_t i = 0; i < plan->run_count; i++)
        if (plan->runs[i].sequence)
            plan->runs[i].sequence->in_step = false;
    for (uint32_t i = 0; i < plan->run_count; i++) { // unknown ones have no rows: they may come as often as they like
        struct sequence *sequence = plan->runs[i].sequence;
        if (sequence && sequence->in_step)
            return error_set(error, STATUS_INVALID_ARGUMENT, "sequence %llx has two runs in one step",
                             (unsigned long long)sequence->id);
        if (sequence)
            sequence->in_step = true;
    }
    sort_runs(plan->runs, plan->run_count);
    return STATUS_OK;
}

static void add_output(struct step_plan *plan, uint32_t row, const struct step_run *run, bool score)
{
    const struct sequence *sequence = run->sequence;
    uint32_t position = plan->rows[row].position, at = plan->output_count++;
    struct backend_sample *output = &plan->outputs[at];

    plan->output_row[at] = row;
    plan->rows[row].needs_output = true;
    *output = (struct backend_sample){.result = &plan->results[at]};
    if (score) {
        uint32_t next = row + 1 < run->first_row + run->row_count ? plan->rows[row + 1].token : run->run->next;
        output->token = next;
        output->top_count = sequence->top_logprobs;
    } else {
        output->sampler = sequence->sampler;
        output->index = position + 1 - sequence->prompt_tokens;
    }
}

// Rows of a prompt that is pooled. If some before them are missing here, since this s-part has not seen them, the sequence is lost: it is computed
// anew from its beginning.
static void add_hidden(struct step_plan *plan, struct step_run *run)
{
    run->first_output = plan->output_count;
    run->output_count = run->sample_count = run->taken = 0;
    if (pooled_lacks(run->sequence->pooled, run->run->position)) {
        step_plan_lose(run, 0);
        return;
    }
    for (uint32_t row = run->first_row; row < run->first_row + run->row_count; row++)
        if (pooled_wants(run->sequence->pooled, plan->rows[row].position)) {
            plan->rows[row].needs_output = true;
            plan->hidden_row[plan->hidden_count++] = row;
        }
}

// Scores of the prompt's rows that have a next token in it; then the sample after the last row, or after each from that before the
// drafts on.
static void add_outputs(struct step_plan *plan, struct step_run *run)
{
    uint32_t end = run->first_row + run->row_count;

    run->first_output = plan->output_count;
    for (uint32_t row = run->first_row; run->run->score && row < end; row++)
        if (plan->rows[row].position + 1 < run->sequence->prompt_tokens)
            add_output(plan, row, run, true);
    run->sample_count = run->taken = 0;
    for (uint32_t row = end - 1 - run->run->drafts; run->run->sample && row < end; row++)
        if (plan->rows[row].position + 1 >= run->sequence->prompt_tokens) {
            add_output(plan, row, run, false);
            run->sample_count++;
        }
    run->output_count = plan->output_count - run->first_output;
}

// Rows and outputs of the runs that are not absent. Those of sequences that only an earlier stage knows have no outputs.
void step_plan_rebuild(struct step_plan *plan)
{
    uint32_t row = 0;

    plan->place_count = plan->output_count = plan->hidden_count = 0;
    for (uint32_t i = 0; i < plan->run_count; i++) {
        struct step_run *run = &plan->runs[i];
        run->first_row = row;
        run->row_count = run->output_count = run->sample_count = 0;
        if (run->absent || (!run->sequence && !plan->forwarded))
            continue;
        run->row_count = run_rows(run->run);
        if (plan->place_count == 0 || plan->places[plan->place_count - 1].index != run->place)
            plan->places[plan->place_count++] = (struct step_place){.index = run->place, .first_row = row};
        plan->places[plan->place_count - 1].row_count += run->row_count;
        plan->places[plan->place_count - 1].share_count += run->run->share_from != 0;
        for (uint32_t n = 0; n < run->row_count; n++, row++) {
            plan->row_run[row] = i;
            plan->rows[row] = (struct backend_row){
                .sequence = run->run->sequence,
                .token = run->run->n_tokens ? run->run->tokens[n]
                         : run->sequence    ? run->sequence->last_token
                                            : 0,
                .position = run->run->position + n,
                .local = step_place_is_local(plan->request->places[run->place]),
                .first = run->first,
                .sparse = run->sequence && run->run->position + n >= run->sequence->prompt_tokens,
            };
        }
        if (run->sequence)
            (run->sequence->pooled ? add_hidden : add_outputs)(plan, run);
    }
    plan->row_count = row;
    extents_read(plan);
}

enum status step_plan_fill(struct step_plan *plan, const Fastdecode__StepRequest *request, struct sequence_table *table,
                           struct error *error)
{
    enum status status = take_runs(plan, request, table, error);
    if (status)
        return status;
    plan->request = request;
    plan->forwarded = false;
    step_plan_rebuild(plan);
    return STATUS_OK;
}

enum { LISTED_ABSENT = 1, LISTED_LOST = 2 };

static enum status take_list(struct step_plan *plan, const unsigned char *list, uint32_t count, unsigned char mark,
                             struct error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t run = wire_load_u32(list + i * 4ull);
        if (run >= plan->run_count)
            return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: run %u of %u is absent or lost", run,
                             plan->run_count);
        plan->listed[run] |= mark;
    }
    return STATUS_OK;
}

enum status step_plan_fill_forwarded(struct step_plan *plan, const Fastdecode__StepRequest *request, struct sequence_table *table,
                                     const struct forward_request *forward, struct error *error)
{
    enum status status = take_runs(plan, request, table, error);

    memset(plan->listed, 0, plan->run_count);
    if (status || (status = take_list(plan, forward->absent_run, forward->absent_count, LISTED_ABSENT, error)) ||
        (status = take_list(plan, forward->lost_run, forward->lost_count, LISTED_LOST, error)))
        return status;
    plan->request = request;
    plan->forwarded = true;
    for (uint32_t i = 0; i < plan->run_count; i++) {
        struct step_run *run = &plan->runs[i];
        run->absent = plan->listed[run->result_index] & LISTED_ABSENT;
        run->lost = plan->listed[run->result_index] != 0;
    }
    step_plan_rebuild(plan);
    if (plan->row_count == forward->row_count)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: %u rows, the runs that are not absent have %u",
                     forward->row_count, plan->row_count);
}

void step_plan_take(struct step_plan *plan, uint32_t run_index)
{
    struct step_run *run = &plan->runs[run_index];
    uint32_t first = run->first_output + run->output_count - run->sample_count;
    uint32_t row = run->first_row + run->row_count - run->sample_count;

    for (run->taken = 0; run->taken < run->sample_count; run->taken++) {
        struct sampler *sampler = run->sequence->sampler;
        uint32_t at = run->taken;
        const struct backend_sample *output = &plan->outputs[first + at];
        if (run->sequence->masked && at >= run->mask_count)
            break;
        if (plan->results[first + at].all_banned && (output->allowed || !sampler_is_simple(sampler, output->index))) {
            run->request_fault = !at;
            run->fault =
                at ? NULL : "no token is left: all are banned by the request's fields (grammar, allowed_token_ids, bad_words, ...)";
            break;
        }
        bool known = at == 0 || (plan->results[first + at - 1].token == plan->rows[row + at].token && sampler_is_pure(sampler));
        if (!known)
            break;
        run->sequence->last_token = plan->results[first + at].token;
        sampler_see_generated(sampler, run->sequence->last_token);
        if (run->sequence->masked)
            masker_sequence_took(run->sequence->masked, run->sequence->last_token);
    }
}

void step_plan_lose(struct step_run *run, uint32_t extent)
{
    run->lost = true;
    if (run->run->n_extents)
        run->lost_extent = run->lost_extent ? MIN(run->lost_extent, extent + 1) : extent + 1;
}

void step_plan_drop(struct step_plan *plan, uint32_t run_index)
{
    plan->runs[run_index].lost = plan->runs[run_index].absent = true;
    step_plan_rebuild(plan);
}

// test_sched_mesh.h: a tiny mesh for the scheduling core, with everything that can go wrong, and checks of the core's promises.
//
// It executes the steps of each mini-batch in order after random times, keeps what each place really holds, and the
// token logs as the service would. Every taken result is checked when it is taken, and every action when it comes
// (test_sched_mesh_actions.h):
//
//   interactive rows come first in a step; without any, no interactive sequence of its mini-batch could have a row (in calm workloads);
//   positions follow one another; a row's token is known or being sampled; no step has too many rows, and not too many are in flight;
//   a taken row found all earlier positions in its place; tokens and scores are taken once each, in order;
//   no page is released under a step in flight, or twice; no place holds more than its pages;
//   FINISHED once, with the exact count, then the last RELEASE once; REJECT instead of both or not at all.
#ifndef FD_TESTS_UNIT_TEST_SCHED_MESH_H
#define FD_TESTS_UNIT_TEST_SCHED_MESH_H

#include "tests/unit/test_sched_mesh_actions.h"

// --- requests and trouble -----------------------------------------------------------------------------------------------

MESH_FUNCTION struct mesh_seq *mesh_arrive(struct mesh *m, uint32_t prompt, uint32_t max_new, uint32_t eos_at)
{
    MESH_CHECK(m->seq_count < MESH_SEQS);
    struct mesh_seq *q = &m->seqs[m->seq_count++];
    memset(q, 0, sizeof(*q));
    q->id = (UINT64_C(7) << 40) + m->seq_count;
    q->prompt = q->log = prompt;
    q->max_new = max_new;
    q->eos_at = eos_at;
    q->arrived = true;
    struct sched_event *e = mesh_event(m, SCHED_ARRIVE);
    e->arrive.sequence = q->id;
    e->arrive.prompt_tokens = prompt;
    e->arrive.max_new_tokens = max_new;
    e->arrive.held_place = SCHED_NO_PLACE;
    return q;
}

MESH_FUNCTION struct mesh_seq *mesh_arrive_batch(struct mesh *m, uint32_t prompt, uint32_t max_new, uint32_t eos_at)
{
    struct mesh_seq *q = mesh_arrive(m, prompt, max_new, eos_at);
    q->class = m->events[m->event_count - 1].arrive.class = SCHED_CLASS_BATCH;
    return q;
}

MESH_FUNCTION void mesh_cancel(struct mesh *m, struct mesh_seq *q)
{
    q->cancelled = true;
    mesh_event(m, SCHED_CANCEL)->sequence = q->id;
}

MESH_FUNCTION void mesh_place_lose(struct mesh *m, uint32_t place)
{
    for (uint32_t i = 0; i < m->seq_count; i++) {
        struct mesh_seq *q = &m->seqs[i];
        q->kept = q->kept && q->place != place;
        if (q->place == place || q->kv[place] > 0)
            mesh_unhold(q, place);
        if (q->moving_until != 0 && q->move_from == place)
            q->moving_until = 0; // PLACE_DOWN is the answer
        else if (q->moving_until != 0 && q->move_to == place)
            q->taker_lost = true;
        q->release_until[place] = 0;
    }
    m->up[place] = m->draining[place] = false;
    m->serial[place]++;
}

MESH_FUNCTION void mesh_place_up(struct mesh *m, uint32_t place, uint32_t pages)
{
    mesh_place_lose(m, place); // a new incarnation that replaces one that is up is a loss as well
    m->up[place] = true;
    m->draining[place] = m->drained[place] = false;
    m->pages_total[place] = pages;
    m->serial[place]++;
    struct sched_event *e = mesh_event(m, SCHED_PLACE_UP);
    e->place_up.place = place;
    e->place_up.pages_total = pages;
    e->place_up.bytes_per_second = mesh_chance(m, m->slow_permille) ? 10000000 : 10000000000;
    e->place_up.link_us = place == 0 ? 0 : 60;
    e->place_up.kind = place == 0 ? SCHED_LOCAL_POOL : SCHED_KV_WORKER;
    e->place_up.shares_cores = m->shares_cores && place != 0;
    e->place_up.accepts_moves = place != 0 || m->local_moves;
}

MESH_FUNCTION void mesh_place_down(struct mesh *m, uint32_t place)
{
    mesh_place_lose(m, place);
    mesh_event(m, SCHED_PLACE_DOWN)->place = place;
}

MESH_FUNCTION void mesh_place_drain(struct mesh *m, uint32_t place)
{
    if (!m->up[place] || m->draining[place])
        return;
    m->draining[place] = true;
    mesh_event(m, SCHED_PLACE_DRAIN)->place = place;
}

MESH_FUNCTION void mesh_place_suspect(struct mesh *m, uint32_t place, uint64_t until_us)
{
    struct sched_event *e = mesh_event(m, SCHED_PLACE_SUSPECT);
    e->suspect.place = place;
    e->suspect.until_us = until_us;
}

MESH_FUNCTION void mesh_s_part_up(struct mesh *m)
{
    struct sched_event *e = mesh_event(m, SCHED_S_PART_UP);
    m->s_part_up = true;
    e->s_part_up.rows_alike = true;
    e->s_part_up.takes_extents = e->s_part_up.pool_takes_extents = m->config.extent_tokens > 0;
    e->s_part_up.takes_aside = ++m->s_part_ups % 4 != 0; // now and then it is an older one
    e->s_part_up.stream_us = m->stream_us;
    e->s_part_up.on_device = m->device_permille != 0 && mesh_chance(m, m->device_permille);
}

MESH_FUNCTION void mesh_s_part_down(struct mesh *m)
{
    m->s_part_up = false;
    for (uint32_t b = 0; b < m->config.mini_batches + m->config.aside; b++) {
        for (uint32_t k = 0; k < m->flight_count[b]; k++) {
            for (uint32_t r = 0; r < m->flight[b][k].a.run_count; r++) {
                struct mesh_seq *q = mesh_find(m, m->flight[b][k].a.runs[r].sequence);
                q->in_flight--;
                q->samples = 0;
                q->decoding = false;
                if (m->flight[b][k].a.runs[r].share_from != 0)
                    mesh_find(m, m->flight[b][k].a.runs[r].share_from)->pinned--;
            }
        }
        m->flight_count[b] = 0;
    }
    if (m->up[0])
        mesh_place_lose(m, 0);
    mesh_event(m, SCHED_S_PART_DOWN);
}

// Cancels one that is not over, by chance.
MESH_FUNCTION void mesh_cancel_any(struct mesh *m)
{
    if (m->seq_count == 0)
        return;
    struct mesh_seq *q = &m->seqs[mesh_random(m, m->seq_count)];
    if (!q->rejected && !q->finished)
        mesh_cancel(m, q);
}

// Nothing goes wrong from now on, and everything is up: places that were not, with so many pages.
MESH_FUNCTION void mesh_mend(struct mesh *m, uint32_t pages)
{
    m->unknown_permille = m->lost_permille = m->failed_permille = m->move_fails_permille = 0;
    if (!m->s_part_up)
        mesh_s_part_up(m);
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        if (!m->up[p] || m->draining[p])
            mesh_place_up(m, p, pages);
    }
}

// --- one tick --------------------------------------------------------------------------------------------------------

struct mesh_answer {
    const struct sched_run *runs;
    struct sched_result *results;
    uint32_t count;
    bool found[64]; // the row's earlier positions were there
};

MESH_FUNCTION void mesh_taken(struct mesh *m, const struct sched_run *r, const struct sched_result *result, bool found)
{
    struct mesh_seq *q = mesh_find(m, r->sequence);
    if (!result->taken) {
        q->samples = 0;
        q->decoding = false;
        return;
    }
    MESH_CHECK(found && !q->finished && r->position == q->held);
    uint32_t wrong = r->drafts > 0 ? r->count - result->sampled : 0;
    q->held = r->position + r->count - wrong;
    if (r->drafts > 0)
        q->next = q->held;
    m->drafts_right += r->drafts - wrong;
    if (q->first_taken_us == 0)
        q->first_taken_us = m->now_us;
    if (r->score) {
        MESH_CHECK(r->position == q->scored);
        q->scored += r->count;
    }
    if (r->sample) {
        MESH_CHECK(r->position + r->count - r->drafts == q->log);
        q->samples -= 1 + r->drafts;
        q->log += result->sampled;
    }
}

// Returns how many tokens a run samples: the right drafts and one more, up to the end of the sequence.
MESH_FUNCTION void mesh_sample(struct mesh *m, const struct mesh_seq *q, const struct sched_run *r, struct sched_result *result)
{
    uint32_t generated = r->position + r->count - r->drafts - q->prompt;
    result->sampled = 1;
    while (result->sampled <= r->drafts && mesh_chance(m, m->draft_right_permille))
        result->sampled++;
    if (q->eos_at > generated && q->eos_at <= generated + result->sampled) {
        result->sampled = (uint8_t)(q->eos_at - generated);
        result->ended = true;
    }
}

// Whether all that is before a run is where the run says.
MESH_FUNCTION bool mesh_holds(const struct mesh_seq *q, const struct sched_run *r)
{
    for (uint32_t k = 0; k < r->extent_count; k++) {
        const struct sched_extent *e = &r->extents[k];
        if (q->kv_first[e->place] != e->first || q->kv[e->place] < (k + 1 < r->extent_count ? e[1].first : r->first))
            return false;
    }
    return r->position == r->first ? q->kv[r->place] == 0 || q->kv_first[r->place] == r->first
                                   : q->kv_first[r->place] == r->first && q->kv[r->place] >= r->position;
}

// Whether the pages that the first row of a run reads are there still.
MESH_FUNCTION bool mesh_has_window(const struct mesh *m, const struct mesh_seq *q, uint32_t place, uint32_t position)
{
    return q->kv[place] == 0 || q->begin[place] == 0 || position + 1 >= q->begin[place] * m->config.page_tokens + m->window;
}

// Whether all that a run needs is where it was when its step was sent. If not, *lost_part is 1 + the first of its extents that is lost, or 0.
MESH_FUNCTION bool mesh_finds(struct mesh *m, const struct mesh_step *s, const struct sched_run *r, uint8_t *lost_part)
{
    *lost_part = 0;
    if (!m->up[r->place] || m->serial[r->place] != s->serial[r->place] || mesh_chance(m, m->lost_permille))
        return false;
    for (uint32_t k = 0; k < r->extent_count; k++) {
        uint32_t place = r->extents[k].place;
        if (m->up[place] && m->serial[place] == s->serial[place] && !mesh_chance(m, m->lost_permille))
            continue;
        *lost_part = (uint8_t)(k + 1);
        return false;
    }
    return true;
}

// Executes a run of a step; ran: the places did what they were asked for. Returns whether its earlier positions were there.
MESH_FUNCTION bool mesh_execute_run(struct mesh *m, const struct mesh_step *s, const struct sched_run *r, bool ran,
                                    struct sched_result *result)
{
    struct mesh_seq *q = mesh_find(m, r->sequence);
    struct mesh_seq *from = r->share_from != 0 ? mesh_find(m, r->share_from) : NULL;
    uint8_t lost_part;
    q->in_flight--;
    if (from != NULL)
        from->pinned--;
    bool there = mesh_finds(m, s, r, &lost_part);
    if (there && from != NULL && q->kv[r->place] < r->position && ran) {
        MESH_CHECK(from->kv[r->place] >= r->position && from->begin[r->place] == 0);
        q->kv[r->place] = 0;
        mesh_hold(m, q, r->place, r->position, from);
    }
    bool found = there && mesh_holds(q, r) && mesh_has_window(m, q, r->place, r->position);
    *result = (struct sched_result){.outcome = there ? SCHED_DONE : SCHED_LOST, .lost_part = lost_part};
    if (!there)
        return found;
    if (mesh_chance(m, m->unknown_permille)) {
        result->outcome = SCHED_UNKNOWN;
        return found;
    }
    if (found && r->position + r->count > q->kv[r->place] && ran) {
        q->kv_first[r->place] = r->first;
        mesh_hold(m, q, r->place, r->position + r->count, NULL);
    }
    if (r->sample)
        mesh_sample(m, q, r, result);
    return found;
}

// Tells the core that a step failed.
MESH_FUNCTION void mesh_fail_step(struct mesh *m, const struct mesh_step *s)
{
    mesh_event(m, SCHED_STEP_FAILED)->step = s->a.step;
    for (uint32_t i = 0; i < s->a.run_count; i++) {
        struct mesh_seq *q = mesh_find(m, s->a.runs[i].sequence);
        q->samples = 0;
        q->decoding = false;
    }
}

// Reports how long attention at the step's only place took.
MESH_FUNCTION void mesh_report_place(struct mesh *m, const struct sched_step_action *a, struct sched_event *e)
{
    uint64_t read = 0;
    for (uint32_t i = 0; i < a->run_count; i++)
        read += (uint64_t)a->runs[i].count * a->runs[i].position + a->runs[i].count * (a->runs[i].count + 1ull) / 2;
    uint32_t attend_us = (uint32_t)(read * m->place_token_ns / 1000);
    m->place_time = (struct sched_place_time){a->runs[0].place, attend_us + 100, attend_us, read};
    e->step_done.places = &m->place_time;
    e->step_done.place_count = 1;
}

// Tells the core that a step is done, and how long it took.
MESH_FUNCTION void mesh_report_step(struct mesh *m, const struct sched_step_action *a, struct sched_result *results)
{
    struct sched_event *e = mesh_event(m, SCHED_STEP_DONE);
    e->step_done.step = a->step;
    e->step_done.results = results;
    e->step_done.result_count = a->run_count;
    for (uint32_t i = 0; i < SCHED_STAGES_MAX && m->stages_reported; i++)
        m->stage_us[i] = 100 + 40 * i + 5 * a->row_count;
    e->step_done.stage_us = m->stage_us;
    e->step_done.stage_count = m->stages_reported ? (m->config.stages > 0 ? m->config.stages : 1) : 0;
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < a->run_count && m->pair_ns > 0; i++)
        pairs += a->runs[i].count > 1 ? (uint64_t)a->runs[i].count * (a->runs[i].position + (a->runs[i].count + 1) / 2) : 0;
    uint32_t total_us = 1000 + 50 * a->row_count + (uint32_t)(pairs * m->pair_ns / 1000) + m->slow_us;
    if (m->place_token_ns > 0)
        mesh_report_place(m, a, e);
    total_us = total_us > m->stream_us ? total_us : m->stream_us;
    e->step_done.stream_us = m->stream_us;
    uint32_t jitter_us = total_us * m->jitter_permille / 1000;
    e->step_done.total_us = total_us + (jitter_us > 0 ? mesh_random(m, 2 * jitter_us) - jitter_us : 0);
    e->step_done.s_part_us = m->s_part_row_us > 0         ? 500 + m->s_part_row_us * a->row_count
                             : m->s_part_us != UINT32_MAX ? m->s_part_us
                                                          : 1 + mesh_random(m, 2 * total_us);
}

// Executes the oldest step of a mini-batch.
MESH_FUNCTION void mesh_execute(struct mesh *m, uint32_t b, struct sched_result *results, struct mesh_answer *answer)
{
    struct mesh_step s = m->flight[b][0];
    m->flight_count[b]--;
    memmove(&m->flight[b][0], &m->flight[b][1], m->flight_count[b] * sizeof(m->flight[b][0]));
    bool fails = mesh_chance(m, m->failed_permille), ran = !fails || mesh_chance(m, 500); // it may be the answer that was lost
    *answer = (struct mesh_answer){.runs = s.a.runs, .results = results, .count = fails ? 0 : s.a.run_count};
    for (uint32_t i = 0; i < s.a.run_count; i++)
        answer->found[i] = mesh_execute_run(m, &s, &s.a.runs[i], ran, &results[i]);
    if (fails)
        mesh_fail_step(m, &s);
    else
        mesh_report_step(m, &s.a, results);
}

MESH_FUNCTION void mesh_answer_others(struct mesh *m)
{
    for (uint32_t i = 0; i < m->seq_count; i++) {
        struct mesh_seq *q = &m->seqs[i];
        if (q->moving_until != 0 && q->moving_until <= m->now_us && m->event_count < MESH_EVENTS - 8) {
            struct sched_event *e = mesh_event(m, SCHED_MOVED);
            e->moved.sequence = q->id;
            e->moved.id = q->move_id;
            e->moved.ok = !mesh_chance(m, m->move_fails_permille);
            e->moved.positions = q->move_positions;
            if (e->moved.ok && q->taker_lost) {
                mesh_unhold(q, q->move_from);
            } else if (e->moved.ok) {
                q->kv[q->move_to] = 0;
                q->kv_first[q->move_to] = q->kv_first[q->move_from];
                mesh_hold(m, q, q->move_to, q->move_positions, NULL);
                q->kv[q->move_from] = q->kv_first[q->move_from] = 0;
                q->next = q->held;
                q->place = q->place == q->move_from ? q->move_to : q->place;
            }
            q->moving_until = 0;
        }
        for (uint32_t p = 0; p < MESH_PLACES; p++) {
            if (q->release_until[p] == 0 || q->release_until[p] > m->now_us || m->event_count >= MESH_EVENTS - 8)
                continue;
            struct sched_event *e = mesh_event(m, SCHED_RELEASED);
            e->released.sequence = q->id;
            e->released.place = p;
            q->release_until[p] = 0;
        }
    }
}

// Brings the core up to date with all that happened until now_us. Returns the number of actions.
MESH_FUNCTION size_t mesh_tick(struct mesh *m)
{
    static struct sched_result results[SCHED_MINI_BATCHES_MAX][512];
    struct mesh_answer answers[SCHED_MINI_BATCHES_MAX];
    uint32_t answer_count = 0;
    mesh_answer_others(m);
    for (uint32_t b = 0; b < m->config.mini_batches + m->config.aside; b++) {
        if (m->flight_count[b] > 0 && m->flight[b][0].done_us <= m->now_us) {
            mesh_execute(m, b, results[b], &answers[answer_count]);
            answer_count++;
        }
    }
    // The runs belong to the core only until it gets the answer.
    static struct sched_run runs[SCHED_MINI_BATCHES_MAX][512];
    for (uint32_t i = 0; i < answer_count; i++) {
        memcpy(runs[i], answers[i].runs, answers[i].count * sizeof(runs[i][0])); // without what their extents point to
        answers[i].runs = runs[i];
    }
    size_t capacity = m->event_count + SCHED_ACTIONS_SPARE + mesh_random(m, 64);
    size_t count = sched_step(m->sched, m->now_us, m->events, m->event_count, m->actions, capacity);
    m->event_count = 0;
    for (uint32_t i = 0; i < answer_count; i++) {
        for (uint32_t r = 0; r < answers[i].count; r++)
            mesh_taken(m, &answers[i].runs[r], &answers[i].results[r], answers[i].found[r]);
    }
    for (size_t i = 0; i < count; i++)
        mesh_take_action(m, &m->actions[i]);
    mesh_check_ledger(m);
    return count;
}

// Returns when something happens next by itself; SCHED_NEVER: nothing will.
MESH_FUNCTION uint64_t mesh_next_us(const struct mesh *m)
{
    uint64_t next = sched_next_wake_us(m->sched);
    for (uint32_t b = 0; b < m->config.mini_batches + m->config.aside; b++) {
        if (m->flight_count[b] > 0 && m->flight[b][0].done_us < next)
            next = m->flight[b][0].done_us;
    }
    for (uint32_t i = 0; i < m->seq_count; i++) {
        const struct mesh_seq *q = &m->seqs[i];
        if (q->moving_until != 0 && q->moving_until < next)
            next = q->moving_until;
        for (uint32_t p = 0; p < MESH_PLACES; p++) {
            if (q->release_until[p] != 0 && q->release_until[p] < next)
                next = q->release_until[p];
        }
    }
    return next;
}

// Ticks when something happens next.
MESH_FUNCTION size_t mesh_next_tick(struct mesh *m)
{
    uint64_t next = mesh_next_us(m);
    m->now_us = next != SCHED_NEVER && next > m->now_us ? next : m->now_us;
    return mesh_tick(m);
}

// Ticks until nothing happens any more; the tick limit is the bound on waiting.
MESH_FUNCTION void mesh_run(struct mesh *m, uint32_t tick_limit)
{
    for (uint32_t tick = 0;; tick++) {
        MESH_CHECK(tick < tick_limit);
        mesh_tick(m);
        uint64_t next = mesh_next_us(m);
        if (next == SCHED_NEVER)
            return;
        m->now_us = next > m->now_us ? next : m->now_us;
    }
}

// config.drafts
MESH_FUNCTION uint32_t mesh_drafts(void *user, uint64_t sequence, uint32_t most, double *chance)
{
    struct mesh *m = user;
    const struct mesh_seq *q = mesh_find(m, sequence);
    MESH_CHECK(!q->finished && !q->rejected && most > 0 && most <= m->drafts_max);
    m->drafts_asked++;
    *chance = m->draft_chance_permille / 1000.0;
    return mesh_random(m, most + 1);
}

// The configuration that most tests start from.
static const struct sched_config mesh_config = {
    .max_sequences = 64,
    .max_waiting = 64,
    .max_batch_rows = 256,
    .mini_batches = 1,
    .mini_batch_fill = 1,
    .plan_ahead = 2,
    .tile_rows = 16,
    .step_target_us = 50000,
    .page_tokens = 16,
    .context_tokens = 1024,
    .max_places = MESH_PLACES,
    .layers = 10,
    .kv_bytes_per_token = 1000,
};

MESH_FUNCTION void mesh_init(struct mesh *m, const struct sched_config *config, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    m->config = *config;
    m->rng = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    m->now_us = 1000;
    m->step_us_min = 900;
    m->step_us_max = 1100;
    m->config.user = m;
    m->drafts_max = config->draft_tokens > 0 ? config->draft_tokens : SCHED_DRAFT_TOKENS;
    struct error error;
    if (sched_init(&m->config, &m->sched, &error) != STATUS_OK)
        fail_msg("%s", error.text);
}

MESH_FUNCTION void mesh_fini(struct mesh *m) { sched_fini(m->sched); }

MESH_FUNCTION struct sched_stats mesh_stats(const struct mesh *m)
{
    struct sched_stats stats;
    sched_get_stats(m->sched, &stats);
    return stats;
}

MESH_FUNCTION struct sched_place_info mesh_place_info(const struct mesh *m, uint32_t place)
{
    struct sched_place_info info;
    sched_get_place(m->sched, place, &info);
    return info;
}

// Checks that every sequence has ended as it should, and that nothing is left anywhere.
MESH_FUNCTION void mesh_check_end(struct mesh *m)
{
    struct sched_stats stats = mesh_stats(m);
    MESH_CHECK(stats.shared_pages == 0);
    MESH_CHECK(stats.kept <= m->config.max_kept);
    MESH_CHECK(stats.running == 0 && stats.waiting == 0 && stats.retiring == 0 && stats.steps_in_flight == 0);
    for (uint32_t class = 0; class < SCHED_CLASSES; class ++)
        MESH_CHECK(stats.waiting_tokens[class] == 0);
    for (uint32_t i = 0; i < m->seq_count; i++) {
        struct mesh_seq *q = &m->seqs[i];
        MESH_CHECK(q->rejected || (q->finished && q->last));
        if (q->score && q->finished && (q->reason == SCHED_EOS || q->reason == SCHED_LENGTH))
            MESH_CHECK(q->scored == q->prompt);
    }
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        struct sched_place_info info = mesh_place_info(m, p);
        MESH_CHECK(info.pages_used == info.pages_idle && info.sequences == 0);
        if (m->calm) // no step was lost: pages behind what is held are of rows that were in flight at the end
            MESH_CHECK(info.pages_used <= mesh_pages_held(m, p) + stats.kept * m->config.plan_ahead);
        MESH_CHECK(m->config.max_kept > 0 || info.pages_used == 0);
        for (uint32_t b = 0; b < SCHED_MINI_BATCHES_MAX; b++)
            MESH_CHECK(info.load[b] == 0);
    }
}

// Runs to the end, checks it, and takes the mesh down.
MESH_FUNCTION void mesh_end(struct mesh *m, uint32_t tick_limit)
{
    mesh_run(m, tick_limit);
    mesh_check_end(m);
    mesh_fini(m);
}

#endif

// test_sched_mesh_actions.h: how the mesh of test_sched_mesh.h takes the core's actions: each is checked when it comes, and noted.
#ifndef FD_TESTS_UNIT_TEST_SCHED_MESH_ACTIONS_H
#define FD_TESTS_UNIT_TEST_SCHED_MESH_ACTIONS_H

#include "tests/unit/test_sched_mesh_state.h"

// Its parts follow one another from position 0 on, each at another place.
MESH_FUNCTION void mesh_check_extents(struct mesh *m, const struct sched_run *r)
{
    MESH_CHECK(r->extent_count <= SCHED_EXTENTS_MAX && r->position >= r->first && (r->extent_count > 0) == (r->first > 0));
    for (uint32_t i = 0; i < r->extent_count; i++) {
        const struct sched_extent *e = &r->extents[i];
        uint32_t end = i + 1 < r->extent_count ? e[1].first : r->first;
        MESH_CHECK(e->first < end && (i > 0 || e->first == 0) && end % m->config.extent_tokens == 0);
        MESH_CHECK(e->place < MESH_PLACES && e->place != r->place && (m->up[e->place] || m->silent[e->place]));
        for (uint32_t k = 0; k < i; k++)
            MESH_CHECK(r->extents[k].place != e->place);
    }
    m->extents_seen = r->extent_count > m->extents_seen ? r->extent_count : m->extents_seen;
}

MESH_FUNCTION void mesh_check_run(struct mesh *m, const struct sched_run *r)
{
    struct mesh_seq *q = mesh_find(m, r->sequence);
    MESH_CHECK(q->arrived && !q->rejected && !q->finished && q->moving_until == 0 && !mesh_is_releasing(q));
    mesh_check_extents(m, r);
    MESH_CHECK(r->count >= 1 && r->place < MESH_PLACES);
    MESH_CHECK(m->up[r->place] || m->silent[r->place]);
    if (r->share_from != 0) { // its first run there: the source really holds these positions, with the same tokens
        struct mesh_seq *from = mesh_find(m, r->share_from);
        MESH_CHECK(q->in_flight == 0 && !q->score && from->pinned++ < 100 && from != q);
        MESH_CHECK(r->position > 0 && r->position % m->config.page_tokens == 0 && r->position + 2 <= q->log);
        MESH_CHECK(from->kv[r->place] >= r->position && from->kv_first[r->place] == 0 && from->release_until[r->place] == 0 &&
                   from->moving_until == 0);
        const struct sched_page_name a = mesh_page_name(m, q, r->position / m->config.page_tokens - 1);
        const struct sched_page_name b = mesh_page_name(m, from, r->position / m->config.page_tokens - 1);
        MESH_CHECK(a.low == b.low && a.high == b.high);
        q->held = q->next = r->position;
        m->shared++;
    }
    if (r->position != q->next) { // it may only go back to what is held, and not beside void rows
        MESH_CHECK(q->in_flight == 0);
        // Or to where its tail begins at another place, because it had no page left before the next boundary.
        bool frozen = r->position < q->held && r->position == r->first && q->held - r->first < m->config.extent_tokens;
        MESH_CHECK(r->position == q->held || frozen);
        m->recomputed += q->held - r->position;
        q->held = r->position;
    }
    if (q->in_flight > 0 && q->place != r->place) { // the one before it was the last of its part
        MESH_CHECK(r->position == r->first && r->extent_count > 0 && r->extents[r->extent_count - 1].place == q->place);
    }
    MESH_CHECK(r->position + r->count - r->drafts <= q->log + q->samples);
    uint32_t end = r->position + r->count - r->drafts; // of what is known
    if (r->drafts > 0)                                 // behind its only row in flight, and not beyond its limit
        MESH_CHECK(r->drafts < r->count && r->drafts <= m->drafts_max && q->in_flight == 0 && r->sample &&
                   end + r->drafts < mesh_limit(m, q));
    if (r->use_last_sampled)
        MESH_CHECK(r->count == 1 && r->position >= q->log);
    else
        MESH_CHECK(end <= q->log);
    MESH_CHECK(r->sample == (end == q->log + q->samples && q->log + q->samples < mesh_limit(m, q)));
    if (r->score)
        MESH_CHECK(q->score && r->position + r->count <= q->prompt);
    MESH_CHECK(!q->cancelled);
    q->decoding = r->sample;
    q->next = r->position + r->count;
    q->samples += r->sample ? 1 + r->drafts : 0;
    m->drafted += r->drafts;
    q->place = r->place;
    q->in_flight++;
}

// Checks the order of classes in a step. Returns whether it has interactive rows.
MESH_FUNCTION bool mesh_check_classes(struct mesh *m, const struct sched_step_action *a)
{
    bool interactive = false, behind = false;
    for (uint32_t i = 0; i < a->run_count; i++) {
        enum sched_class class = mesh_find(m, a->runs[i].sequence)->class;
        MESH_CHECK(!behind || class == SCHED_CLASS_BATCH);
        interactive = interactive || class == SCHED_CLASS_INTERACTIVE;
        behind = class == SCHED_CLASS_BATCH;
        if (interactive && behind)
            m->late_rows += a->runs[i].count;
        else
            m->own_rows[class] += a->runs[i].count;
    }
    return interactive;
}

// Counts the partial results of the rows of split sequences: a run of one row may have more than are allowed.
MESH_FUNCTION void mesh_check_partials(const struct mesh *m, const struct sched_step_action *a)
{
    uint64_t all = 0, rows = 0, unit = m->config.extent_tokens, span = m->config.span_ranges;
    for (uint32_t i = 0; i < a->run_count && m->config.max_partials > 0; i++) {
        const struct sched_run *r = &a->runs[i];
        for (uint32_t k = 0; r->extent_count > 0 && k <= r->extent_count; k++) {
            uint64_t first = k < r->extent_count ? r->extents[k].first : r->first, count = 0;
            uint64_t end = k + 1 < r->extent_count ? r->extents[k + 1].first
                           : k < r->extent_count   ? r->first
                                                   : r->position + r->count;
            for (uint64_t at = first; at < end; at += unit, count++)
                at += at % (span * unit) == 0 ? (span - 1) * unit : 0;
            all += count * r->count;
        }
        rows += r->extent_count > 0 ? r->count : 0;
    }
    MESH_CHECK(rows <= 1 || all <= m->config.max_partials);
}

MESH_FUNCTION void mesh_take_step(struct mesh *m, const struct sched_step_action *a)
{
    uint32_t b = a->mini_batch, rows = 0, prefill = 0;
    MESH_CHECK(m->s_part_up && a->step > m->last_step && b < m->config.mini_batches + m->config.aside);
    MESH_CHECK(a->aside == (b == m->config.mini_batches) && (!a->aside || a->aside_us == 0));
    MESH_CHECK(m->flight_count[b] < m->config.plan_ahead && a->row_count <= m->config.max_batch_rows && a->row_count > 0);
    m->last_step = a->step;
    m->steps++;
    bool was_decoding[MESH_SEQS], included[MESH_SEQS] = {false};
    for (uint32_t i = 0; i < m->seq_count; i++) {
        const struct mesh_seq *q = &m->seqs[i];
        was_decoding[i] = !a->aside && q->decoding && q->mini_batch == b && !q->finished && q->log + q->samples < mesh_limit(m, q);
    }
    for (uint32_t i = 0; i < a->run_count; i++) {
        struct mesh_seq *q = mesh_find(m, a->runs[i].sequence);
        MESH_CHECK(!included[q - m->seqs]);
        included[q - m->seqs] = true;
        prefill += was_decoding[q - m->seqs] ? 0 : a->runs[i].count;
        q->mini_batch = b;
        rows += a->runs[i].count;
        mesh_check_run(m, &a->runs[i]);
    }
    MESH_CHECK(rows == a->row_count);
    mesh_check_partials(m, a);
    bool interactive = mesh_check_classes(m, a);
    for (uint32_t i = 0; i < m->seq_count && m->calm; i++)
        MESH_CHECK(!was_decoding[i] || included[i] ||
                   m->config.mini_batch_auto ||            // or it is in another mini-batch by now, as one of
                   m->seqs[i].class == SCHED_CLASS_BATCH); // class batch may be in any case
    // With mini_batch_auto its rows may be in flight in a mini-batch that is no longer in use.
    for (uint32_t i = 0; i < m->seq_count && m->calm && !interactive && !m->config.mini_batch_auto; i++) {
        const struct mesh_seq *q = &m->seqs[i]; // in whatever mini-batch: its tokens would come later
        MESH_CHECK(q->class == SCHED_CLASS_BATCH || !q->decoding || q->finished || q->cancelled ||
                   q->mini_batch == m->config.mini_batches || // the last rows of its prompt are aside
                   q->log + q->samples >= mesh_limit(m, q));
    }
    m->prefill_beside_decode += prefill > 0 && prefill < rows;
    struct mesh_step *s = &m->flight[b][m->flight_count[b]++];
    s->a = *a;
    memcpy(s->serial, m->serial, sizeof(s->serial));
    uint64_t start = m->flight_count[b] > 1 ? s[-1].done_us : m->now_us;
    s->done_us = start + m->step_us_min + mesh_random(m, m->step_us_max - m->step_us_min + 1);
}

MESH_FUNCTION bool mesh_is_nowhere(const struct mesh_seq *q)
{
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        if (q->kv[p] > 0)
            return false;
    }
    return true;
}

MESH_FUNCTION void mesh_take_release(struct mesh *m, uint64_t sequence, uint32_t place, bool last)
{
    struct mesh_seq *q = mesh_find(m, sequence);
    MESH_CHECK(q->arrived && !q->rejected && (!q->last || q->kept));
    MESH_CHECK(q->in_flight == 0);
    MESH_CHECK(q->moving_until == 0 && (place == SCHED_NO_PLACE || q->release_until[place] == 0));
    if (last && place == SCHED_NO_PLACE && m->config.max_kept > 0) {
        for (uint32_t p = 0; p < MESH_PLACES; p++)
            q->kept = q->kept || q->kv[p] > 0;
        m->kept += q->kept;
    } else if (q->kept) { // no sequence may begin with its pages any more
        MESH_CHECK(!last && place != SCHED_NO_PLACE && q->kv[place] > 0 && q->pinned == 0);
        q->kept = false;
        m->evicted++;
        last = true;
    }
    MESH_CHECK(q->pinned == 0 || q->kept);
    MESH_CHECK(last == q->finished || m->config.extent_tokens > 0); // extents are released before the last one
    MESH_CHECK(place != SCHED_NO_PLACE || last);
    q->last = last;
    if (place == SCHED_NO_PLACE) {
        MESH_CHECK(q->kept || m->config.max_kept == 0 || mesh_is_nowhere(q));
        return;
    }
    MESH_CHECK(m->up[place] || m->silent[place]);
    mesh_unhold(q, place);
    for (uint32_t p = 0; p < MESH_PLACES && last; p++)
        MESH_CHECK(q->kv[p] == 0); // no place holds anything of it any more
    if (m->config.release_ack)
        q->release_until[place] = m->now_us + 1 + mesh_random(m, 20000);
}

MESH_FUNCTION void mesh_note_decision(struct mesh *m, const struct sched_action *a)
{
    uint64_t hash = m->decisions ^ (uint64_t)a->kind;
    const uint64_t prime = UINT64_C(0x9e3779b97f4a7c15);
    if (a->kind == SCHED_STEP) {
        hash = (hash ^ a->step.mini_batch ^ a->step.step << 8) * prime;
        for (uint32_t i = 0; i < a->step.run_count; i++) {
            const struct sched_run *r = &a->step.runs[i];
            hash = ((hash ^ r->sequence) * prime ^ r->position ^ (uint64_t)r->count << 32) * prime;
            hash ^= hash >> 29 ^ r->place ^ (uint64_t)r->drafts << 20;
        }
    } else if (a->kind == SCHED_MOVE) {
        hash = (hash ^ a->move.sequence ^ (uint64_t)a->move.to << 50) * prime;
    } else if (a->kind != SCHED_DRAINED) {
        hash = (hash ^ a->finished.sequence) * prime; // the first member of all others
    }
    m->decisions = hash ^ hash >> 31;
}

MESH_FUNCTION void mesh_take_action(struct mesh *m, const struct sched_action *a)
{
    struct mesh_seq *q;
    mesh_note_decision(m, a);
    switch (a->kind) {
    case SCHED_STEP: mesh_take_step(m, &a->step); break;
    case SCHED_RELEASE: mesh_take_release(m, a->release.sequence, a->release.place, a->release.last); break;
    case SCHED_FINISHED:
        q = mesh_find(m, a->finished.sequence);
        MESH_CHECK(!q->finished && !q->rejected);
        MESH_CHECK(a->finished.generated_tokens == q->log - q->prompt);
        q->finished = true;
        q->reason = a->finished.reason;
        if (q->reason == SCHED_LENGTH)
            MESH_CHECK(q->log >= mesh_limit(m, q));
        if (q->reason == SCHED_EOS)
            MESH_CHECK(q->eos_at != 0 && q->log - q->prompt == q->eos_at);
        if (q->reason == SCHED_CANCELLED)
            MESH_CHECK(q->cancelled);
        break;
    case SCHED_REJECT:
        q = mesh_find(m, a->reject.sequence);
        MESH_CHECK(!q->rejected && !q->finished && q->in_flight == 0);
        q->rejected = true;
        memset(q->kv, 0, sizeof(q->kv)); // the service tells its worker
        break;
    case SCHED_MOVE:
        q = mesh_find(m, a->move.sequence);
        MESH_CHECK(!q->finished && q->in_flight == 0 && q->moving_until == 0 && q->pinned == 0 && a->move.from != a->move.to);
        MESH_CHECK(m->up[a->move.to] && m->up[a->move.from] && (q->place == a->move.from || m->config.extent_tokens > 0));
        MESH_CHECK(a->move.positions == q->held ||
                   (a->move.positions < q->held && a->move.positions % m->config.extent_tokens == 0));
        MESH_CHECK(q->kv[a->move.from] >= a->move.positions && q->kv_first[a->move.from] == a->move.first &&
                   q->kv[a->move.to] == 0);
        m->extents_moved += q->place != a->move.from;
        q->move_positions = a->move.positions;
        q->moving_until = m->now_us + 1 + mesh_random(m, mesh_chance(m, m->slow_permille) ? 1000000 : 30000);
        q->move_id = a->move.id;
        q->move_from = a->move.from;
        q->move_to = a->move.to;
        q->taker_lost = false;
        MESH_CHECK(m->local_moves || a->move.to != 0);
        m->moves_to_local += a->move.to == 0;
        m->moves_from_local += a->move.from == 0;
        q->decoding = false;
        break;
    case SCHED_DRAINED:
        MESH_CHECK(m->draining[a->place] && !m->drained[a->place]);
        for (uint32_t i = 0; i < m->seq_count; i++)
            MESH_CHECK(m->seqs[i].kv[a->place] == 0);
        m->drained[a->place] = true;
        m->drains++;
        break;
    }
}

MESH_FUNCTION void mesh_check_ledger(struct mesh *m)
{
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        struct sched_place_info info;
        sched_get_place(m->sched, p, &info);
        uint64_t held = mesh_pages_held(m, p);
        MESH_CHECK(info.pages_used <= info.pages_total);
        MESH_CHECK(held <= m->pages_total[p]);
        MESH_CHECK(held <= info.pages_used);
        MESH_CHECK(info.pages_idle <= info.pages_used);
    }
}

#endif

// test_sched_mesh_state.h: the parts of the mesh of test_sched_mesh.h: sequences, places, steps in flight, and pages, each with a number
// of its own however many sequences share it.
#ifndef FD_TESTS_UNIT_TEST_SCHED_MESH_STATE_H
#define FD_TESTS_UNIT_TEST_SCHED_MESH_STATE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/sched/sched.h"
#include "tests/cmocka.h"

#define MESH_FUNCTION static __attribute__((unused))

#ifndef MESH_PLACES
#define MESH_PLACES 4
#endif
enum { MESH_PAGES = 256, MESH_PAGE_IDS = 1 << 20 };
enum { MESH_SEQS = 96, MESH_FLIGHT = 16, MESH_EVENTS = 256, MESH_ACTIONS = 512 };

struct mesh_seq {
    uint64_t id;
    uint32_t prompt, max_new, log, eos_at; // log: tokens known to the service; eos_at: tokens generated then, 0 none
    uint32_t scored, held, next, samples, in_flight, mini_batch, place;
    uint32_t kv_first[MESH_PLACES], kv[MESH_PLACES]; // positions really held: from the one up to the other
    uint32_t pages[MESH_PLACES][MESH_PAGES];         // with page names: which pages they are in
    uint32_t begin[MESH_PLACES];                     // with config.ring_pages: how many of its first pages were given back
    uint32_t family, alike;                          // its first `alike` tokens are those of the family; 0: it is like no other
    uint32_t pinned;                                 // steps in flight that give its pages to others
    bool kept;                                       // it is over, and its pages are still there
    bool score, arrived, rejected, finished, last, cancelled, decoding;
    enum sched_reason reason;
    enum sched_class class;
    uint64_t moving_until; // when its MOVE is answered; 0: there is none
    uint64_t move_id;
    uint32_t move_from, move_to, move_positions;
    bool taker_lost;                     // move_to went down
    uint64_t release_until[MESH_PLACES]; // when its RELEASE there is acknowledged
    uint64_t first_taken_us;
};

struct mesh_step {
    struct sched_step_action a;
    uint64_t done_us, serial[MESH_PLACES];
};

struct mesh {
    struct sched *sched;
    struct sched_config config;
    uint64_t now_us, rng;
    struct mesh_seq seqs[MESH_SEQS];
    uint32_t seq_count;
    bool up[MESH_PLACES], draining[MESH_PLACES], drained[MESH_PLACES];
    bool silent[MESH_PLACES]; // down, but not noticed yet
    uint32_t window;          // with config.ring_pages: how many positions a row reads
    uint64_t rolled;          // pages given back
    uint32_t pages_total[MESH_PLACES];
    uint64_t serial[MESH_PLACES]; // its incarnation: a step is lost if that has changed meanwhile
    bool s_part_up;
    uint32_t s_part_ups; // so far
    struct mesh_step flight[SCHED_MINI_BATCHES_MAX][MESH_FLIGHT];
    uint32_t flight_count[SCHED_MINI_BATCHES_MAX];
    struct sched_event events[MESH_EVENTS];
    uint32_t event_count;
    struct sched_action actions[MESH_ACTIONS];
    uint32_t step_us_min, step_us_max;
    uint32_t jitter_permille;            // of reported step times
    uint32_t stream_us;                  // the s-part reads weights so long in each step, beside what it computes; 0: none
    uint32_t pair_ns;                    // reported step times contain so much for each prefill row and token of its context
    uint32_t s_part_row_us;              // 0, or the s-part's reported work for a row
    uint32_t stage_us[SCHED_STAGES_MAX]; // each stage's part of a step, reported
    bool stages_reported;
    uint64_t decisions;     // a hash of all actions
    uint32_t slow_us;       // added to reported step times, as by a disturbance
    uint32_t s_part_us;     // reported as the s-part's time; 0: none; UINT32_MAX: at random
    uint32_t slow_permille; // of the places, which read a thousand times as slowly, and of the moves, which take as much longer
    bool local_moves;       // pages are handed to the local pool, too
    uint32_t moves_to_local, moves_from_local;
    uint32_t unknown_permille, lost_permille, failed_permille, move_fails_permille;
    uint32_t place_token_ns; // 0, or the only place's reported attention time of one token of context
    struct sched_place_time place_time;
    uint32_t drafts_max, draft_chance_permille; // guesses for a sequence (0: none); their chance, as the core is told
    uint32_t draft_right_permille;              // their chance in truth, each if those before it are right
    uint64_t drafts_asked, drafted, drafts_right;
    bool shares_cores;        // the workers share cores with the s-part
    uint32_t device_permille; // of the s-parts, which compute on a device
    uint32_t batch_permille;  // of the requests, which are of class batch
    uint32_t extents_seen;    // the most of one run
    uint32_t extents_moved;
    uint64_t recomputed; // rows behind the last boundary that were computed again when a tail was frozen
    bool calm;           // no drain, no shortage, no balancing: no decode row may be missing from a step
    uint64_t last_step, steps, prefill_beside_decode, drains;
    uint64_t late_rows, own_rows[SCHED_CLASSES]; // rows of class batch behind interactive ones; other rows
    uint32_t page_ids;                           // given out so far
    uint64_t shared, kept, evicted;              // runs that began with others' pages; sequences
};

MESH_FUNCTION uint32_t mesh_random(struct mesh *m, uint32_t below)
{
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return below == 0 ? 0 : (uint32_t)((m->rng >> 20) % below);
}

MESH_FUNCTION bool mesh_chance(struct mesh *m, uint32_t permille) { return mesh_random(m, 1000) < permille; }

#define MESH_CHECK(condition)                                                                                \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("%s:%d: %s (now %llu)", __FILE__, __LINE__, #condition, (unsigned long long)m->now_us); \
    } while (0)

MESH_FUNCTION struct mesh_seq *mesh_find(struct mesh *m, uint64_t id)
{
    for (uint32_t i = 0; i < m->seq_count; i++) {
        if (m->seqs[i].id == id)
            return &m->seqs[i];
    }
    fail_msg("unknown sequence");
    return NULL;
}

MESH_FUNCTION struct sched_event *mesh_event(struct mesh *m, enum sched_event_kind kind)
{
    MESH_CHECK(m->event_count < MESH_EVENTS);
    struct sched_event *e = &m->events[m->event_count++];
    memset(e, 0, sizeof(*e));
    e->kind = kind;
    return e;
}

MESH_FUNCTION uint32_t mesh_pages(const struct mesh *m, uint32_t positions)
{
    return (positions + m->config.page_tokens - 1) / m->config.page_tokens;
}

MESH_FUNCTION uint32_t mesh_limit(const struct mesh *m, const struct mesh_seq *q)
{
    uint32_t limit = q->prompt + q->max_new;
    return limit < m->config.context_tokens ? limit : m->config.context_tokens;
}

// --- pages that are shared --------------------------------------------------------------------------------------------

// Names a page as a chain of tokens would: it belongs to the family if all of its tokens do, otherwise to this sequence alone.
MESH_FUNCTION struct sched_page_name mesh_page_name(const struct mesh *m, const struct mesh_seq *q, uint32_t page)
{
    bool alike = (page + 1) * m->config.page_tokens <= q->alike;
    uint64_t whose = alike ? q->family : q->id, low = (whose * 1000003 + page) * UINT64_C(0x9e3779b97f4a7c15);
    return (struct sched_page_name){low ^ low >> 29, whose};
}

MESH_FUNCTION const struct sched_page_name *mesh_page_names(void *user, uint64_t sequence, uint32_t *count)
{
    static struct sched_page_name names[MESH_PAGES];
    struct mesh *m = user;
    const struct mesh_seq *q = mesh_find(m, sequence);
    *count = q->log / m->config.page_tokens;
    for (uint32_t i = 0; i < *count; i++)
        names[i] = mesh_page_name(m, q, i);
    return names;
}

MESH_FUNCTION uint32_t mesh_pages_of(const struct mesh *m, const struct mesh_seq *q, uint32_t place)
{
    return q->kv[place] > 0 ? mesh_pages(m, q->kv[place] - q->kv_first[place]) : 0; // those given back included
}

// Notes that it holds positions up to that one there now, the first of them in another's pages.
MESH_FUNCTION void mesh_hold(struct mesh *m, struct mesh_seq *q, uint32_t place, uint32_t positions, const struct mesh_seq *from)
{
    uint32_t have = mesh_pages_of(m, q, place), ring = m->config.ring_pages;
    q->begin[place] = have == 0 ? 0 : q->begin[place];
    q->kv[place] = positions;
    if (ring > 0 && mesh_pages(m, positions) > q->begin[place] + ring) {
        m->rolled += mesh_pages(m, positions) - ring - q->begin[place];
        q->begin[place] = mesh_pages(m, positions) - ring;
    }
    for (uint32_t i = have; m->config.page_names != NULL && i < mesh_pages_of(m, q, place); i++) {
        MESH_CHECK(i < MESH_PAGES && m->page_ids < MESH_PAGE_IDS);
        q->pages[place][i] = from != NULL ? from->pages[place][i] : m->page_ids++;
    }
}

// Whether a place has yet to say that it has freed something of it.
MESH_FUNCTION bool mesh_is_releasing(const struct mesh_seq *q)
{
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        if (q->release_until[p] != 0)
            return true;
    }
    return false;
}

// Notes that a place has nothing of it any more: what it held behind that is of no use either.
MESH_FUNCTION void mesh_unhold(struct mesh_seq *q, uint32_t place)
{
    uint32_t covered = 0;
    q->kv[place] = q->kv_first[place] = 0;
    for (uint32_t p = 0; p < MESH_PLACES; p++) {
        if (q->kv_first[p] <= covered && q->kv[p] > covered) {
            covered = q->kv[p];
            p = UINT32_MAX;
        }
    }
    q->held = covered < q->held ? covered : q->held;
    q->next = q->held;
    q->samples = 0;
    q->decoding = false;
}

// Counts the pages at a place, each once however many sequences hold it.
MESH_FUNCTION uint64_t mesh_pages_held(const struct mesh *m, uint32_t place)
{
    static uint32_t seen[MESH_PAGE_IDS], stamp;
    uint64_t held = 0;
    stamp++;
    for (uint32_t i = 0; i < m->seq_count; i++) {
        const struct mesh_seq *q = &m->seqs[i];
        uint32_t pages = mesh_pages_of(m, q, place), first = pages > 0 ? q->begin[place] : 0;
        held += m->config.page_names == NULL ? pages - first : 0;
        for (uint32_t k = first; m->config.page_names != NULL && k < pages; k++) {
            held += seen[q->pages[place][k]] != stamp;
            seen[q->pages[place][k]] = stamp;
        }
    }
    return held;
}

#endif

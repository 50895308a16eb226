/* sched_state.h: what the core remembers. Private to common/sched; the files by subject:
 *
 *   sched_init.c      memory, id map                     sched_event.c   what each event changes
 *   sched_place.c     page ledger, load, choice          sched_admit.c   waiting -> running, page shortage, drains
 *   sched_sequence.c  a sequence's moves between states  sched_plan.c    the rows of one step
 *   sched_balance.c   who goes elsewhere when workers drift apart; sched_migrate.c  when the local pool, or it alone, would do better
 *   sched_move.c      on what terms anybody goes
 *   sched_batches.c   one mini-batch in flight, or more    sched_model.c   how long a step takes
 *   sched_load.c      the load to come, who may start    sched_survival.c  how long sequences live
 *   sched_overlap.c   local pool, workers, or both         sched_speed.c   how fast places read
 *   sched_lengths.c   what those that start will read      sched_chunk.c   how many rows of a step are prefill
 *   sched_prefix.c    pages that sequences share, and those kept for others to come; sched_prefix_tree.c  who has which
 *   sched_draft.c     rows of tokens that are guessed
 *   sched.c           the tick, the outbox, the queries
 *
 *                ┌────────────── rebuilt: lost, preempted ◀──────────────┐
 *                ▼                                                       │
 *   ARRIVE ─▶ WAITING ─▶ PREFILL ─▶ DECODE ──▶ DRAINING ─▶ RELEASING ────┴──▶ FREE
 *                            │  ▲      │ ▲      no step in   RELEASE said,
 *                            └──┴MOVING┴─┘      flight left  pages not yet free
 *                                                    │  ▲
 *                                                    └─▶KEPT: over, its pages are there for others
 *
 * Positions of a sequence: 0 <= held <= next_pos <= known + samples <= limit, where `held` are complete in its place,
 * [held, next_pos) are in flight, `known` tokens (prompt + confirmed) exist and `samples` more are being sampled.
 * A decode row may have rows of guessed tokens behind it (drafts); it has no other row in flight then: samples counts them too, and
 * next_pos goes back to the first that was wrong.
 * In DECODE with prompt 10, two steps in flight and three tokens confirmed: known 13, held 12, next_pos 14, samples 2.
 */
#ifndef FD_SCHED_SCHED_STATE_H
#define FD_SCHED_SCHED_STATE_H

#include "common/base/checked.h"
#include "common/sched/sched.h"
#include "common/sched/sched_heap.h"
#include "common/sched/sched_load.h"
#include "common/sched/sched_prefix.h"
#include "common/sched/sched_time.h"
#include "common/sched/sched_tuning.h"

#define NONE UINT32_MAX
#define FRESH_KEY (UINT64_C(1) << 63) // waiting order: rebuilt ones first, then by arrival

enum seq_state {
    SEQ_FREE = 0,
    SEQ_WAITING,   // in the queue; may hold pages (a resubmission that its worker still has)
    SEQ_PREFILL,   // in a mini-batch; rows below `target` are left to plan
    SEQ_DECODE,    // in a mini-batch; one row a step
    SEQ_MOVING,    // being handed over: no rows are planned
    SEQ_DRAINING,  // left its mini-batch; waits for the steps in flight, then for the outbox to say RELEASE
    SEQ_RELEASING, // RELEASE said; waits for RELEASED
    SEQ_KEPT,      // its last RELEASE said, without its pages
};

/* What planning and answers touch, one cache line a sequence. */
struct seq {
    uint64_t id;
    uint32_t epoch;     // grows whenever rows in flight become void
    uint32_t next_pos;  // first position not yet planned
    uint32_t held;      // positions complete in its place
    uint32_t known;     // prompt + confirmed generated tokens
    uint32_t limit;     // prompt + max_new
    uint32_t target;    // rows below it are prefill
    uint32_t pages;     // it has in its place
    uint32_t shared;    // the first of them: named, and counted once for all that have them (sched_prefix.h)
    uint32_t load;      // what it adds to the load of place and mini-batch
    uint32_t member;    // index in its mini-batch's decode array
    uint32_t passes_at; // known tokens at which it comes to the next bucket of lengths
    uint16_t in_flight; // steps that carry rows of it, void ones too
    uint16_t pins;      // sequences that will begin with its pages, and steps in flight that give them: it stays where it is
    uint16_t samples;   // tokens being sampled by valid rows
    uint16_t place;
    uint8_t mini_batch;
    uint8_t state;      // enum seq_state
    bool fenced : 1;    // void rows are still in flight: nothing is planned until they are back
    bool starved : 1;   // needs a page that its place does not have
    bool open : 1;      // its next run carries `open`
    bool scoring : 1;   // prompt rows are scored
    bool gathering : 1; // has no rows yet: more pages may be found
    bool sharing : 1;   // has not got its first pages yet: its first run says from whom
} __attribute__((aligned(64)));
_Static_assert(sizeof(struct seq) == 64, "one cache line");

#define SEQ_NO_PLACE UINT16_MAX

struct seq_cold {
    uint64_t arrival; // order of arrival
    uint64_t admitted_us;
    uint64_t deadline_us;
    uint32_t prompt;
    uint32_t scored;                     // prompt positions whose scores came back
    uint32_t place_prev, place_next;     // holders of pages in a place, oldest first; or those kept, least recently used first
    uint32_t named;                      // node of its last named page, NONE
    uint32_t holder_prev, holder_next;   // of that node
    uint32_t source;                     // slot of whom its first pages come from, pinned; NONE
    uint32_t written;                    // pages that its place may have for rows that were planned and did not count
    uint32_t leaving;                    // pages of it that are counted as releasing in its place
    uint32_t cached;                     // positions that it found, at most
    uint32_t prefill_prev, prefill_next; // of a mini-batch, oldest first
    uint32_t out_next;                   // outbox
    uint64_t move_id;                    // of the MOVE that was emitted and not answered; 0: none
    uint32_t move_to;                    // place, NONE
    uint32_t move_pages;                 // reserved there; with move_to its own place: none, it only changes its mini-batch
    uint32_t move_load;                  // context that it will read there
    uint8_t move_batch;                  // for that mini-batch
    uint64_t stays_until;                // steps emitted by then: it is not handed over again
    double cohort_base;                  // what it adds to its cohort's
    uint8_t cohort;                      // of its mini-batch, while it runs
    uint8_t reason;                      // enum sched_reason
    bool rebuild;                        // goes to the front of the queue
    bool over;                           // finished: leaves for good
    bool last_said;                      // its last RELEASE was emitted
    bool keep;                           // is kept, or will be when its rows are back
    bool was_kept;                       // that it is or was: its slot is the cache's
    bool idle;                           // is kept, or was until now: its pages count as idle
    bool stopped;                        // is about to leave its place
    bool alone;                          // shares nothing: what it should have shared was not there
    bool out_queued, out_finished, out_release, out_kept, out_move;
    bool relabels;        // MOVING, but only to another mini-batch: move_to is its own place
    bool move_failed;     // the last one did
    uint8_t moves_failed; // one after the other: each time it stays for longer
};

// Linked by place_prev and place_next: a slot is in one list at most.
struct slot_list {
    uint32_t head, tail;
};

struct place {
    uint64_t suspect_until_us; // no rows
    uint64_t avoid_until_us;   // no new sequences
    uint64_t moves_from_us;    // balance() takes nothing from it and gives it nothing before
    uint64_t load[SCHED_MINI_BATCHES_MAX];
    uint64_t incoming[SCHED_MINI_BATCHES_MAX]; // load of sequences that are being handed over to it
    uint32_t readers[SCHED_MINI_BATCHES_MAX];  // sequences whose context that is
    double token_us;                           // R-part time of one context token
    double token_last_us, token_noise;         // the last one measured; mean relative difference of one from the next, over sqrt 2
    double off;                                // by what part of what was expected its latest steps took longer, mean
    double pair_us;                            // of a prefill row and one context token; 0: not known
    double link_step_us;                       // link round trips of a step; of those that share cores the largest counts
    uint64_t step_pairs;                       // scratch: of the step that is answered
    bool up, draining, drained, local, accepts_moves;
    bool beside_s_part;    // on its machine's cores
    bool shares_cores;     // so it is, and the s-part that is up computes on them
    bool attends_measured; // token_us is what it said itself
    bool slow;             // shares cores, and is much slower than the others that do
    uint32_t pages_total;
    uint32_t pages_used;      // all that is not free: held, releasing and incoming
    uint32_t pages_releasing; // of sequences that are leaving
    uint32_t pages_incoming;  // reserved for sequences that are being handed over to it
    uint32_t pages_idle;      // that only kept sequences have
    uint32_t starved;         // sequences that wait for a page
    struct slot_list holders; // of pages, those that are kept aside; oldest first
    struct slot_list kept;    // least recently used first
    uint32_t count;           // of holders
    uint64_t down_since_us;
};

struct step_ref {
    uint32_t slot, epoch;
    uint32_t source; // pinned: who gives it its first pages; NONE
};

struct step {
    uint64_t id;
    uint32_t mini_batch, run_count, row_count, prefill_rows, draft_rows;
    uint64_t emitted_us;
    bool queued;            // behind another one
    struct sched_run *runs; // [max_batch_rows]
    struct step_ref *refs;  // [max_batch_rows]
};

/* Least squares through points that are forgotten slowly: sums of their weights, of x and y and their products. */
struct line {
    double count, x, y, xx, xy;
};

struct mini_batch {
    uint32_t *members; // [max_sequences] slots in DECODE
    uint32_t member_count;
    uint32_t cursor; // where decode rows start when not all fit a step
    uint32_t prefill_head, prefill_tail, prefill_count;
    uint64_t prefill_rows; // left to plan
    uint64_t load;
    struct load_plan plan;
    struct step *in_flight[SCHED_PLAN_AHEAD_MAX]; // oldest first
    uint32_t in_flight_count;
    struct step *spare[SCHED_PLAN_AHEAD_MAX];
    uint32_t spare_count;
    struct line other; // what a step takes beside the s-part's work, by its rows
    double gap_us;     // from an answer to the start of the step that waited for it; smoothed, as draft_gain
    double draft_gain; // tokens a second with drafts, as part of those without; 0: not known
    bool drafting;     // steps wait for the one before: what it samples decides what is guessed
};

/* Step time by rows (sched_model.c). Class i holds steps of 2^i rows and more, below 2^(i+1). */
enum { STEP_SIZES = 16 };
struct step_model {
    struct step_size {
        double rows, us; // smoothed; rows 0: nothing known
        uint64_t seen;   // steps learned by then
        double drift;    // of the model, then
    } sizes[STEP_SIZES];
    double drift; // grows and falls with the classes that are seen
    bool whole;   // of whole steps: classes that are not seen stay as they were
    uint64_t steps;
    double base_us, row_us; // base + row x rows, a line through the classes
    double rows_seen;       // of the largest class seen; 0: nothing measured
};

/* Of predictions of steps that were then measured. */
struct model_error {
    uint64_t steps;
    double ratio;                     // |predicted - measured| / measured, smoothed
    double predicted_us, measured_us; // sums
};

/* What prefill adds to a step (sched_chunk.c). */
struct chunk_model {
    struct step_time {
        double rows, us, count;
    } decodes[STEP_SIZES];              // steps without prefill, smoothed, by rows as in step_model; count 0: none seen
    double decode, products, attention; // factors by which that, and what is known of s-part and places, are corrected
    double context, seen_context;       // tokens that decode rows read, lately; when there was a step without prefill
};

/* Which places new sequences go to. */
enum overlap { OVERLAP_UNKNOWN = 0, OVERLAP_BOTH, OVERLAP_LOCAL, OVERLAP_WORKERS, OVERLAPS };

struct sched {
    struct sched_config config;
    uint64_t now_us;
    bool s_part_up, s_part_on_device, rows_alike;
    uint32_t rows_max; // of a step, with the s-part that is up

    struct seq *seqs;      // [max_sequences]
    struct seq_cold *cold; // [max_sequences]
    uint32_t *free_slots;  // stack
    uint32_t free_count;
    uint32_t *map; // [map_mask + 1] slots by id, NONE empty
    uint32_t map_mask;

    struct sched_heap waiting, deadlines;
    uint32_t fresh_waiting; // of `waiting`, those that were never placed
    uint32_t running, retiring, coming_back;
    uint64_t arrivals;

    struct place *places; // [max_places]
    uint32_t draining_places, starved_places;
    uint32_t *moving;                   // [max_moves + RELABELS_MAX] slots, in any order
    uint32_t moving_count, relabelling; // of them, those that only change their mini-batch
    enum overlap overlap;
    uint64_t overlap_judged; // steps emitted by then + 1; 0: never
    double overlap_count;    // sequences it was judged for
    double local_share;      // with OVERLAP_BOTH: of the load
    uint64_t balanced;       // steps emitted when it last looked
    uint64_t migrated;       // the same, of migrate()
    double sharing_us;       // a context token at the fastest worker on the s-part's cores; 0: not measured

    struct mini_batch mini_batches[SCHED_MINI_BATCHES_MAX];
    uint32_t batches, batches_wanted; // in use; after what is in flight is back
    uint64_t batches_judged;          // steps emitted by then
    uint32_t turn;                    // mini-batch that is planned first
    struct step *steps;               // all records, behind in_flight and spare
    uint64_t next_step, next_move;

    uint32_t out_head, out_tail;
    struct sched_action *actions; // of the call in progress
    size_t action_count, action_capacity;
    bool unsettled;          // the last tick ended before all was done
    uint64_t grace_until_us; // places that were never up are expected until then; 0: there was none yet
    uint64_t grace_wake_us;  // when the head of the queue is judged again, SCHED_NEVER

    struct step_model model;          // of whole steps
    struct step_model s_model, heads; // of the s-part's own work: layers by rows; head and sampling by sampled rows
    struct chunk_model chunk;
    struct model_error error;
    struct prefix_tree prefix;
    struct survival survival;
    struct lengths lengths;
    double lifetime_us; // smoothed: from placement to end
    struct sched_stats stats;
};

static inline uint32_t pages_for(const struct sched *s, uint32_t positions)
{
    return positions / s->config.page_tokens + (positions % s->config.page_tokens != 0);
}

static inline bool seq_runs(const struct seq *q) { return q->state == SEQ_PREFILL || q->state == SEQ_DECODE; }

static inline struct place *seq_place(struct sched *s, const struct seq *q)
{
    return q->place == SEQ_NO_PLACE ? NULL : &s->places[q->place];
}

/* No rows are planned for it at present. */
static inline bool seq_blocked(const struct sched *s, const struct seq *q)
{
    return q->fenced || s->places[q->place].suspect_until_us > s->now_us;
}

/* sched_init.c: slots by id. find: NONE if there is none. */
uint32_t map_find(const struct sched *s, uint64_t id);
void map_insert(struct sched *s, uint64_t id, uint32_t slot);
void map_erase(struct sched *s, uint64_t id);

/* sched_place.c */
void place_attach(struct sched *s, uint32_t slot, uint32_t place, uint32_t pages); // pages are counted as used
void place_detach(struct sched *s, uint32_t slot);                                 // frees them in the ledger
void leaving_begin(struct sched *s, uint32_t slot, uint32_t pages);                // what it has there will soon be free
void leaving_end(struct sched *s, uint32_t slot);
void list_insert(struct sched *s, struct slot_list *list, uint32_t after, uint32_t slot); // after NONE: as its first
void list_remove(struct sched *s, struct slot_list *list, uint32_t slot);
void place_list(struct sched *s, struct place *p, uint32_t slot); // among the holders of pages
void place_unlist(struct sched *s, struct place *p, uint32_t slot);
uint32_t place_spared(const struct place *p);                          // pages that newcomers leave to those that grow
bool place_fits(const struct place *p, uint32_t pages, bool evicting); // evicting: what is kept may go for it
bool place_grow(struct sched *s, struct seq *q);                       // one page more
void place_starve(struct sched *s, struct seq *q, bool starved);
void place_reserve(struct sched *s, uint32_t place, uint32_t pages);
void place_unreserve(struct sched *s, uint32_t place, uint32_t pages);
void seq_set_load(struct sched *s, struct seq *q, uint32_t load);
bool place_takes(const struct sched *s, const struct place *p);     // something new: up, not draining or suspect, nobody starved
bool place_permitted(const struct sched *s, const struct place *p); // sequences may be placed there at all
uint32_t pages_wanted(const struct sched *s, uint32_t slot);        // to be placed: known + margin
enum { KIND_LOCAL = 1, KIND_WORKERS = 2 };                          // of places
uint32_t place_choose(const struct sched *s, uint32_t mini_batch, uint32_t tokens, uint32_t pages, uint32_t not_this,
                      uint32_t kinds);
bool place_none_can_hold(struct sched *s, uint32_t pages); // now or within grace; may set grace_wake_us

/* sched_speed.c */
double place_token_us(const struct sched *s, const struct place *p); // to compare places by
double place_read_us(const struct sched *s, const struct place *p, uint32_t mini_batch, uint32_t tokens, double weight);
double place_time_us(const struct sched *s, const struct place *p, uint32_t mini_batch, uint32_t tokens, double weight);
double place_attend_us(const struct place *p, uint64_t tokens_read); // of a step, p->step_pairs of the tokens by prefill rows
void place_measure(struct sched *s, const struct sched_place_time *time,
                   double here_us); // that all places on the s-part's cores attended for the step

/* sched_overlap.c: which places take part; of those, where a new sequence goes (NONE: it waits). */
struct crowd {
    double count, context, deviation,
        end;          // of the sequences: tokens that each reads on average, by how much they differ, at its end
    double local;     // of them, in the local pool: by what they read
    double local_end; // tokens that those there will have
};
struct wish {
    double local;   // as many should be there
    double step_us; // that a round of all then takes less
    bool crowded;   // the local pool will not hold those that are there to their end
};
void overlap_judge(struct sched *s);
bool overlap_wish(const struct sched *s, const struct crowd *crowd, struct wish *out); // false: they are best where they are
uint32_t overlap_choose(const struct sched *s, uint32_t mini_batch, uint32_t tokens, uint32_t pages);

/* sched_outbox.c */
void out_queue(struct sched *s, uint32_t slot);
void out_release(struct sched *s, uint32_t slot);

/* sched_batch.c */
void prefill_link(struct sched *s, struct mini_batch *b, uint32_t slot);
void prefill_unlink(struct sched *s, uint32_t slot);
void member_add(struct sched *s, uint32_t slot);
void prefill_done(struct sched *s, uint32_t slot); // PREFILL -> DECODE: all rows below target are planned

/* sched_answer.c */
struct step *step_find(struct sched *s, uint64_t id); // in flight; NULL: unknown, or void already
void step_void(struct sched *s, struct step *step);
void step_done(struct sched *s, const struct sched_step_done *done);

/* sched_learn.c */
void step_learn(struct sched *s, const struct step *step, const struct sched_step_done *done);

/* sched_sequence.c */
void mini_batch_join(struct sched *s, uint32_t slot, uint32_t mini_batch); // as PREFILL or DECODE, by what is held
void mini_batch_leave(struct sched *s, uint32_t slot);
void seq_void(struct sched *s, uint32_t slot);    // rows in flight will be ignored
void seq_rewind(struct sched *s, uint32_t slot);  // and are planned again
void seq_requeue(struct sched *s, uint32_t slot); // gives its pages up and waits to be rebuilt
void seq_lost(struct sched *s, uint32_t slot);    // its pages are gone already
void seq_finish(struct sched *s, uint32_t slot, enum sched_reason reason);
void seq_row_back(struct sched *s, uint32_t slot); // a step that carried it is over
void seq_unpin(struct sched *s, uint32_t slot);
void seq_released(struct sched *s, uint32_t slot); // its pages are free (or never were)
void seq_wait(struct sched *s, uint32_t slot);     // into the queue
void seq_free(struct sched *s, uint32_t slot);
void move_start(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch);
void relabel_start(struct sched *s, uint32_t slot, uint32_t mini_batch); // it stays where it is
void move_forget(struct sched *s, uint32_t slot);                        // gives up what is reserved; the state stays
void move_landed(struct sched *s, uint32_t slot);                        // its pages are where they were to go; the state stays

/* sched_event.c */
void event_apply(struct sched *s, const struct sched_event *event);

/* sched_admit.c */
void admit(struct sched *s);
bool shortage_resolve(struct sched *s); // true: pages are on their way that were not before
void drain_advance(struct sched *s);

/* sched_balance.c: starts what is to be handed over because workers have drifted apart. */
void balance(struct sched *s);

/* sched_move.c: the terms of handing over. */
bool seq_may_go(const struct sched *s, uint32_t slot);
void seq_stay(struct sched *s, uint32_t slot); // for a while it does not go again
void seq_move_ended(struct sched *s, uint32_t slot, bool ok);
double seq_steps_left(const struct sched *s, uint32_t slot);          // that it is expected to run yet
double seq_move_us(const struct sched *s, uint32_t slot);             // of its place's time, to hand its pages over
bool move_pays(const struct sched *s, uint32_t slot, double gain_us); // gain: of each step to come
bool place_rests(const struct sched *s, uint32_t place);              // has handed over enough for now
void hand_over(struct sched *s, uint32_t slot, uint32_t to, uint32_t pages, uint32_t mini_batch,
               double hurry); // both places rest afterwards; less, with a hurry below 1

/* sched_migrate.c: between the local pool and the workers, when nobody waits and the rule would now place otherwise. */
void migrate(struct sched *s);

/* sched_batches.c: chooses how many mini-batches are in use; false: nothing is to be planned until what is in flight is back. */
bool batches_settled(struct sched *s);

/* sched_model.c. calibrate: for sizes of which nothing is known. us: 0 while nothing is known; never calls learn. */
void model_learn(struct step_model *model, double rows, double total_us);
void model_calibrate(struct step_model *model, const struct sched_time *points, uint32_t count);
double model_us(const struct step_model *model, double rows);
double model_s_part_us(const struct sched *s, double rows, double sampled);
void model_judge(struct model_error *error, double predicted_us, double measured_us);

/* sched_chunk.c. rows: prefill rows that a step may have beside its decode rows; cap: at most, in any; learn: what a step took. */
void chunk_init(struct sched *s);
void chunk_learn(struct sched *s, const struct step *step, double total_us);
uint32_t chunk_rows(const struct sched *s, const struct mini_batch *b, uint32_t decode_rows);
uint32_t chunk_cap(const struct sched *s);

/* sched_draft.c. plan: of each member (by index) how many guessed tokens its row of the next step should have behind it, into
 * drafts[TUNE_DRAFT_SEQUENCES_MAX]; false: the step is to wait for those in flight. fit: those that its pages have room for behind its row,
 * with pages that nobody else wants. learn: from an answered step; forget: what was learned. */
bool draft_plan(struct sched *s, struct mini_batch *b, uint8_t *drafts);
uint32_t draft_fit(struct sched *s, struct seq *q, uint32_t drafts);
void draft_forget(struct mini_batch *b);
void draft_learn(struct sched *s, const struct step *step, const struct sched_step_done *done);

/* sched_plan.c: emits one step of a mini-batch; false: nothing to do. */
bool plan_step(struct sched *s, uint32_t mini_batch);

#endif

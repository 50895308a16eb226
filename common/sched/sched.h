// sched.h: the pure scheduling core: which rows run in which step, and where each sequence's KV lives.
//
// sched_step(state, now, events, actions) takes what has happened since the last call and says what to do next. It has
// no clock, no I/O and no threads, and allocates nothing after sched_init(): the scheduler service runs it against the
// mesh, the simulator runs the same object code against a cost model. It sees counts only, never a token.
//
// The life of a sequence, as the caller sees it:
//
//   ARRIVE ──▶ REJECT                                           (queue full: the core knows nothing of it any more)
//     └──────▶ runs in STEPs ... ──▶ FINISHED ──▶ RELEASE{last}  (once each, in this order, whatever happens between)
//
// In between there may be RELEASEs without `last`: the sequence was paused or lost and will be rebuilt by prefill. If its pages are
// kept so that sequences with the same beginning can share them, RELEASE{last} names no place. A RELEASE without `last` follows
// when the pages are needed, perhaps much later. Until then the id must not be reused; sched_knows() tells.
//
// Thread: a state belongs to one thread at a time. Nothing here blocks. Times are microseconds of the caller's clock
// (monotonic, same origin for all calls); durations are microseconds too.
#ifndef FD_SCHED_SCHED_H
#define FD_SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sched/settings.h"

#define SCHED_PLAN_AHEAD_MAX 4
#define SCHED_NO_PLACE UINT32_MAX
#define SCHED_NEVER UINT64_MAX

// Lower classes go first. Sequences of class batch take only the time that interactive ones leave, and give way to them; nor do they count
// for max_running where one of those is to start.
enum sched_class {
    SCHED_CLASS_INTERACTIVE = 0,
    SCHED_CLASS_BATCH,
    SCHED_CLASSES,
};

// Names a full page. Sequences whose pages have the same name have the same tokens up to the end of that page, and the same right
// to see them.
struct sched_page_name {
    uint64_t low, high;
};

// --- configuration ---------------------------------------------------------------------------------------------

// All limits and sizes; fixed for the life of a state. Fields marked "0:" have a default.
struct sched_config {
    uint32_t max_sequences;    // the most sequences known at one time, in any phase
    uint32_t max_running;      // the most sequences that have a place and a mini-batch at one time (B); 0: max_sequences
    uint32_t max_waiting;      // the most new interactive sequences in the queue; rebuilt and resubmitted ones are not rejected
    uint32_t max_batch_rows;   // the most rows of a step, decode and prefill together
    uint32_t mini_batches;     // M, 1 to SCHED_MINI_BATCHES_MAX
    uint32_t stages;           // P, s-parts in a pipeline, each with a range of the layers; 0: 1
    uint32_t micro_batch;      // enum sched_micro_batch
    bool mini_batch_auto;      // the core chooses how many are used, at most mini_batches
    uint32_t mini_batch_fill;  // another mini-batch is used only when those in use average this many running sequences; 0: 2
    bool aside;                // prompts beside decode rows have steps of their own (plan.c) where the s-part takes them. Only
                               // with mini_batches 1
    uint32_t plan_ahead;       // steps of one mini-batch in flight; 0: 2
    uint32_t chunk_tokens;     // the most prefill rows of a step; 0: chosen for each step so that the step keeps to step_target_us
    uint32_t chunk_max_tokens; // the cap of the chosen chunk; 0: 512
    uint32_t tile_rows;        // the S-part's tile: decode rows + chunk is a multiple of it; 0: 8
    uint32_t step_target_us;   // target time of a step with decode rows, or 2.4 times the time of its decode rows alone if that is
                               // longer. 0: 2.2 times that time, raised up to fourfold while more sequences wait than run
    bool step_target_auto;     // step_target_us was 0 (set by sched_init)
    // Not greedy: the longest that decode rows with their context may make a step (sched_load_limit()); 0: no limit.
    uint32_t step_limit_us;
    enum sched_admission admission;
    enum sched_placement placement;
    uint32_t spacing_steps; // steps between two groups of starts (F in load.h), with which auto is sls; 0: a 32nd of the expected
                            // length, with starts spread evenly
    bool balance;           // sequences move between places and mini-batches when some workers take longer than others
    uint32_t page_tokens;   // tokens of a page
    // If all layers of the model are windowed: the most pages of a sequence, the first of which are given back as it grows; and the most rows
    // of a sequence in a step. 0: a sequence keeps its pages. Such places take no extents.
    uint32_t ring_pages, ring_rows;
    uint32_t context_tokens;     // the most tokens of a sequence, prompt and generated together
    uint32_t max_places;         // place indices are below this
    uint32_t max_moves;          // the most sequences being handed over at one time; 0: 8
    uint32_t layers;             // model layers; a step makes one link round trip per layer
    uint64_t kv_bytes_per_token; // bytes that attention reads per context token, all layers together
    // Returns the names of the full pages of a sequence's known tokens, *count of them, valid until the next call. A page always has the
    // same name. Called by sched_step() only, for sequences that are not over. NULL: no page is shared.
    const struct sched_page_name *(*page_names)(void *user, uint64_t sequence, uint32_t *count);
    // Returns how many tokens, at most `most`, can be guessed to follow the sequence's known tokens. Known tokens include those of
    // results that this call has marked `taken`. *chance is the probability that a guess is right if those before it are. Called by
    // sched_step() only. NULL: nothing is guessed.
    uint32_t (*drafts)(void *user, uint64_t sequence, uint32_t most, double *chance);
    uint32_t draft_tokens; // the most guessed tokens of one sequence in a step; 0: SCHED_DRAFT_TOKENS
    void *user;
    uint32_t max_waiting_batch; // the most new sequences of class batch in the queue
    uint32_t max_kept;          // the most ended sequences whose pages are kept for others; 0: none
    uint32_t max_named_pages;   // the most pages with a name, all places together; 0: 262,144
    // A sequence that no place can hold is split: its tail, where it grows, is at one place, and what comes before at others, in extents
    // that begin at multiples of this many tokens, itself a multiple of page_tokens. 0: such a sequence ends with NO_SPACE.
    uint32_t extent_tokens;
    // A place gives a row of a split sequence one partial result for each span of so many ranges of extent_tokens that it holds from its
    // start, and one for each range before those. 0: one for each range.
    uint32_t span_ranges;
    uint64_t max_partials; // the most partial results of all rows of a step; 0: no limit
    uint32_t max_extents;  // the most extents of all sequences together, tails not counted; 0: 1,024
    bool release_ack;      // pages count as used until RELEASED is reported, and the sequence is not placed again before that.
                           // false: they are free as soon as RELEASE is emitted
};

// --- events: what happened -------------------------------------------------------------------------------------

enum sched_event_kind {
    SCHED_EVENT_NONE = 0,
    SCHED_ARRIVE,        // .arrive
    SCHED_CANCEL,        // .sequence; unknown or finished: ignored
    SCHED_STEP_DONE,     // .step_done
    SCHED_STEP_FAILED,   // .step: the s-part did not answer this step: its results are void and its rows are planned again
    SCHED_PLACE_UP,      // .place_up: a new, empty place; it replaces any place with the same index
    SCHED_PLACE_DOWN,    // .place: what it held is gone
    SCHED_PLACE_SUSPECT, // .suspect: no rows are sent and nothing is placed there until until_us, PLACE_UP or PLACE_DOWN
    SCHED_PLACE_DRAIN,   // .place: its sequences are handed over; ends with DRAINED
    SCHED_RECLAIM,       // .reclaim: a place came up again and still holds a sequence for which sched_awaits_rebuild() is true
    SCHED_MOVED,         // .moved: the answer to MOVE
    SCHED_RELEASED,      // .released: the answer to RELEASE, with config.release_ack
    SCHED_S_PART_UP,     // .s_part_up. The local pool then needs PLACE_UP
    SCHED_S_PART_DOWN,   // steps in flight are void and the local pool is down; sequences at KV workers keep their KV
};

// A part of a sequence that a place holds: positions [first, positions), complete through all layers. pages: that it has, if more than for those.
struct sched_held {
    uint32_t place, first, positions, pages;
};

struct sched_arrive {
    uint64_t sequence;         // never used before in this state
    uint32_t prompt_tokens;    // at least 1
    uint32_t generated_tokens; // tokens generated before, in a resubmission; max_new_tokens includes them
    uint32_t max_new_tokens;   // 0, with score_prompt: only the prompt is computed. Reduced if prompt and generated tokens would
                               // exceed context_tokens
    uint64_t deadline_us;      // at this time the sequence ends with the tokens it has; 0: no deadline
    enum sched_class class;    // interactive unless said otherwise
    bool last_row_only;        // with score_prompt: only the prompt's last row is wanted, so rows whose KV is held are not computed
    bool resubmitted;          // it was accepted before: a full queue takes it all the same, and only max_sequences limits these
    bool score_prompt;         // log-probabilities of the prompt are wanted: its rows are computed even where their KV is held
    uint32_t held_place;       // SCHED_NO_PLACE, or a place that is up and already holds KV of this sequence
    uint32_t held_positions;   // how many of this sequence's first positions that place holds, complete through all layers. Its
                               // last known token is computed again even if it is among them
    uint32_t held_pages;       // as in sched_held
    // The parts that other places hold behind that, in order. Each begins at a multiple of extent_tokens that the one before it reaches,
    // and each is at a place of its own that is up. Parts that are of no use are released.
    uint32_t more_count;
    struct sched_held more[SCHED_EXTENTS_MAX];
};

enum sched_outcome {
    SCHED_DONE = 0,
    SCHED_LOST,    // its place is gone, or lacks positions before this run: the sequence is rebuilt from the token log
    SCHED_UNKNOWN, // the s-part does not know the sequence: the same rows are planned again, with `open`
};

// The result of one run, in the order of the step's runs.
struct sched_result {
    uint8_t outcome;   // enum sched_outcome
    uint8_t sampled;   // number of tokens sampled, if the run asked for it: 1, plus 1 for each draft before the first wrong one
    uint8_t lost_part; // with LOST of a run with extents: 0, its own place lacks something; otherwise its extent lost_part - 1 does
    bool ended;        // the last sampled token is EOS: it counts as generated and ends the sequence
    bool taken;        // OUT. true: append the run's tokens to the log and pass its scores on. false: treat the run as if it had
                       // never happened (the sequence ended or is being rebuilt); the same positions may come again later
};

struct sched_place_time {
    uint32_t place;
    uint32_t r_part_us;   // from the first row sent to the last answer, summed over layers
    uint32_t attend_us;   // the part of r_part_us that the place measured as attention; 0: not measured
    uint64_t tokens_read; // context tokens read, counted once for all layers together
};

struct sched_step_done {
    uint64_t step;
    struct sched_result *results; // [result_count], borrowed for the call; a wrong count fails the step
    uint32_t result_count;
    uint32_t total_us;                     // execution time, without queueing; 0: not measured
    uint32_t s_part_us;                    // the part of total_us that was the s-part's own work; 0: not measured
    double stream_us;                      // as in sched_s_part_up, as measured by now
    const struct sched_place_time *places; // [place_count], borrowed for the call
    uint32_t place_count;
    const uint32_t *stage_us; // [stage_count] each stage's part of s_part_us, head included with the last; borrowed for the call
    uint32_t stage_count;     // config.stages, or 0: not measured
};

// A measured point: so many rows took so long.
struct sched_time {
    double rows, us;
};

// Measured at the start: a stage's layers by rows, without head and attention. Borrowed for the call.
struct sched_stage_up {
    const struct sched_time *layers; // [layer_count]
    uint32_t layer_count;
};

struct sched_s_part_up {
    uint32_t max_rows; // the most rows of a step; 0: the s-part sets no limit
    bool rows_alike;   // a row's numbers do not depend on the rows beside it: only then are tokens guessed (config.drafts)
    bool on_device;    // it computes on a device, so it does not compete for cores with places that have shares_cores
    bool takes_aside;  // it takes steps that go aside (config.aside)
    bool takes_extents,
        pool_takes_extents; // its steps may name parts of a sequence (config.extent_tokens) at workers; at the local pool
    // Times measured when the s-part started, all stages together; steps correct them. A count of 0: nothing was measured. Borrowed for the call.
    const struct sched_time *layers; // [layer_count] time of a step as a function of its rows, without head and attention
    const struct sched_time *heads;  // [head_count] time of head and sampling as a function of the number of sampled rows
    uint32_t layer_count, head_count;
    const struct sched_stage_up *stages; // [stage_count]
    uint32_t stage_count;                // config.stages, or 0: not measured
    double stream_us;                    // in which weights that do not stay in its memory are read, each step; 0: all stay
};

enum sched_place_kind {
    SCHED_KV_WORKER = 0,
    SCHED_LOCAL_POOL, // in the s-part's own memory: goes down with it
};

struct sched_place_up {
    uint32_t place; // index below max_places
    enum sched_place_kind kind;
    uint32_t pages_total;
    uint64_t bytes_per_second; // read bandwidth for KV: a first guess, corrected by measured steps
    uint32_t link_us;          // one layer's round trip; 0 for the local pool
    double call_us;            // what one layer of a step occupies it for, whatever it reads; 0: not known
    double prefill_pair_us;    // first guess of a prefill row's attention time per context token, all layers; 0: not known
    bool shares_cores;         // attention there takes cores from an s-part on CPUs, so its time adds to the local pool's
    bool accepts_moves;        // sequences' pages can be handed over to it
};

struct sched_moved {
    uint64_t sequence;
    uint64_t id;        // the id of the MOVE; ignored if that MOVE is void because a place went down
    uint32_t positions; // how many positions `to` now holds complete
    bool ok;            // true: `from` has freed its pages. false: `to` holds nothing, `from` still does
};

struct sched_event {
    enum sched_event_kind kind;
    union {
        struct sched_arrive arrive;
        uint64_t sequence;
        struct sched_step_done step_done;
        uint64_t step;
        struct sched_place_up place_up;
        uint32_t place;
        struct {
            uint32_t place;
            uint64_t until_us;
        } suspect;
        struct {
            uint64_t sequence;
            struct sched_held held;
        } reclaim;
        struct sched_moved moved;
        struct {
            uint64_t sequence;
            uint32_t place;
        } released;
        struct sched_s_part_up s_part_up;
    };
};

// --- actions: what to do ---------------------------------------------------------------------------------------

enum sched_action_kind {
    SCHED_STEP = 1, // .step
    SCHED_RELEASE,  // .release: free the sequence's pages; no step in flight uses them
    SCHED_FINISHED, // .finished
    SCHED_REJECT,   // .reject: the queue is full. The core forgets the sequence and whatever a place holds of it
    SCHED_MOVE,     // .move: hand its pages over; answered by MOVED, or by PLACE_DOWN of the place that gives them
    SCHED_DRAINED,  // .place: it no longer holds anything
};

// A part of a sequence that is split: from a position on, up to the next part.
struct sched_extent {
    uint32_t place, first;
};

// Consecutive rows of one sequence; a sequence has at most one run in a step.
struct sched_run {
    uint64_t sequence;
    uint32_t position;     // of the first row
    uint32_t count;        // rows, at least 1
    uint32_t place;        // index
    bool use_last_sampled; // the row's token is the one that the previous step samples, not yet known here
    bool sample;           // sample after the last row; with drafts, after the row before the drafts and after each draft
    uint8_t drafts;        // how many of the `count` rows, the last ones, carry guessed tokens (config.drafts)
    bool score;            // log-probabilities of the prompt token after each row (the prompt's last row has none)
    bool open;             // the s-part may not know the sequence's present state: send the token log too
    uint64_t share_from;   // 0, or a sequence at the same place whose first `position` positions this one shares
    uint32_t first;        // the first position of the sequence that `place` holds; not 0: it is split
    uint32_t extent_count; // where the positions before `first` are, in order
    const struct sched_extent *extents; // [extent_count] each at another place, none at `place`; valid as long as the run is
};

struct sched_step_action {
    uint64_t step; // grows by one a step, never reused
    uint32_t mini_batch;
    uint32_t row_count; // sum of the runs' counts
    uint32_t run_count;
    // The step has prompts alone, in a mini-batch of their own behind the others: its segments are to be computed in the time that the
    // steps of the others leave, aside_us for each of those; all the time while there is none.
    bool aside;
    uint32_t aside_us;
    const struct sched_run *runs; // [run_count], owned by the core: valid until the call that takes this step's answer or
                                  // S_PART_DOWN
};

struct sched_move {
    uint64_t sequence;
    uint64_t id; // grows by one a move, never reused
    uint32_t from, to;
    uint32_t first, positions; // [first, positions) are complete in `from`; not all of the sequence if it is split
};

enum sched_reason {
    SCHED_LENGTH = 1, // max_new_tokens, or the context is full
    SCHED_EOS,
    SCHED_DEADLINE,
    SCHED_CANCELLED,
    SCHED_TOO_LONG, // the prompt leaves no room in context_tokens
    SCHED_NO_SPACE, // no place that is up, or expected back soon, has enough pages
};

struct sched_action {
    enum sched_action_kind kind;
    union {
        struct sched_step_action step;
        struct {
            uint64_t sequence;
            uint32_t place; // SCHED_NO_PLACE: the sequence holds no pages, or they are kept (only with `last`)
            bool last;      // the sequence is over: forget its sampler state and log, too. Sent once, after FINISHED
        } release;
        struct {
            uint64_t sequence;
            enum sched_reason reason;
            uint32_t generated_tokens; // confirmed by STEP_DONE
            uint32_t cached_tokens;    // prompt tokens whose KV was reused from other sequences
        } finished;
        struct {
            uint64_t sequence;
            uint64_t retry_after_us;
        } reject;
        struct sched_move move;
        uint32_t place;
    };
};

// --- the core --------------------------------------------------------------------------------------------------

struct sched;

// Allocates all memory that the state will ever need. INVALID_ARGUMENT names the field; RESOURCE_EXHAUSTED: no memory. On
// failure *out is NULL. The caller frees the state with sched_fini(). The s-part counts as down until S_PART_UP.
MUST_CHECK enum status sched_init(const struct sched_config *config, struct sched **out, struct error *error);
void sched_fini(struct sched *sched); // NULL is fine

// One tick: takes the events in order, then emits the resulting actions. Returns the number of actions written. action_capacity
// must be at least event_count + SCHED_ACTIONS_SPARE (asserted); the next call emits actions that did not fit. O(rows of the steps
// answered and emitted), not O(sequences). Events are checked against the state: late answers to void steps and moves are ignored.
// A place index out of range fails an assertion, because the caller chose it.
#define SCHED_ACTIONS_SPARE (SCHED_MINI_BATCHES_MAX * SCHED_PLAN_AHEAD_MAX)
size_t sched_step(struct sched *sched, uint64_t now_us, const struct sched_event *events, size_t event_count,
                  struct sched_action *actions, size_t action_capacity);

// Returns when sched_step() must be called even if nothing happens (a deadline, the end of a suspicion, actions left over);
// SCHED_NEVER: no call is needed. A time in the past means at once.
uint64_t sched_next_wake_us(const struct sched *sched);

// Predicts how long a sequence of that class that arrived now would wait until its prefill starts.
uint64_t sched_predicted_wait_us(const struct sched *sched, enum sched_class class);

// Returns whether an ARRIVE of that id would be ignored: an id is known until its last RELEASE is answered.
bool sched_knows(const struct sched *sched, uint64_t sequence);

// Returns whether a sequence waits to be computed anew because its KV is lost.
bool sched_awaits_rebuild(const struct sched *sched, uint64_t sequence);
// Returns where that begins: 0, or behind the extents that it still has. RECLAIM is for what begins there.
uint32_t sched_rebuilds_from(const struct sched *sched, uint64_t sequence);

// Tells a sequence's whereabouts, as seen from a place. THERE: the core counts pages of it there, or is about to; it has them released by itself. WAITS: it may be
// placed there at any time.
enum sched_where { SCHED_NOWHERE, SCHED_WAITS, SCHED_THERE, SCHED_ELSEWHERE };
enum sched_where sched_where(const struct sched *sched, uint64_t sequence, uint32_t place);

// --- what it knows ---------------------------------------------------------------------------------------------

struct sched_stats {
    uint32_t running, waiting, retiring; // sequences now; retiring: pages not free yet
    uint32_t running_of[SCHED_CLASSES], waiting_of[SCHED_CLASSES];
    uint64_t waiting_tokens[SCHED_CLASSES]; // prompt and generated tokens of sequences in the queue
    uint64_t rows_of[SCHED_CLASSES];        // emitted
    uint64_t gave_way;                      // of those preempted, sequences of class batch
    uint32_t steps_in_flight;
    uint64_t prefill_rows, decode_rows;   // emitted
    uint64_t wasted_rows;                 // rows whose results were not used (ended, cancelled, lost, failed), without wrong drafts
    uint64_t drafted, drafts_right;       // rows of guessed tokens; how many of the guesses were right
    uint32_t mini_batches;                // in use
    uint64_t steps, steps_failed;         // emitted; failed or void
    uint64_t arrived, finished, rejected; // sequences
    uint64_t reclaimed;                   // sequences sent back to the queue whose KV was found again (RECLAIM)
    uint64_t rebuilt, preempted, moved;   // sequences sent back as their KV was lost; sent back as pages ran out; handed over
    uint64_t relabelled;                  // sequences that changed their mini-batch and stayed at their place
    uint64_t rebuilt_tokens;              // tokens of sequences sent back, to be prefilled again
    uint64_t shared_tokens;               // context tokens that sequences started with because they had been computed before
    uint32_t kept;                        // ended sequences whose pages are kept for others
    uint64_t evicted;                     // kept sequences whose pages were freed for others
    uint32_t split, extents;              // sequences that are split now; their extents, tails not counted
    uint64_t frozen;                      // extents made so far
    uint32_t shared_pages;                // pages saved now because several running sequences share them
    uint64_t ignored_events;              // events for an unknown step or sequence: late, or a caller's mistake
    double step_base_us, row_us;          // learned: a step takes base + row x rows
    uint64_t predicted_steps;             // steps whose time was predicted before it was measured
    double prediction_error_ratio;        // their |predicted - measured| / measured, mean of about the last fifty
    double predicted_us, measured_us;     // sums over them
};
void sched_get_stats(const struct sched *sched, struct sched_stats *out);

// Returns W_lim, the context tokens that a mini-batch may read in a step: the smallest of the limits set by balance, step_limit_us
// and the pages. Balance sets no limit while it is faster to start the whole queue at once. UINT64_MAX: no limit (there is no KV
// worker, sequence lengths are not known yet, or admission is greedy). While interactive sequences run it is their limit alone. O(places).
uint64_t sched_load_limit(const struct sched *sched, uint32_t mini_batch);

struct sched_place_info {
    enum sched_place_kind kind;
    bool up, draining, suspect;
    bool shares_cores; // it shares cores with the s-part, which computes on them
    bool takes_extents;
    uint32_t pages_used, pages_total;
    uint32_t pages_idle;                   // used pages that only kept sequences hold
    uint32_t sequences;                    // number of sequences that hold pages there
    uint64_t load[SCHED_MINI_BATCHES_MAX]; // context tokens per mini-batch, including those about to be prefilled
    double token_us;                       // measured, smoothed: R-part time of one context token, all layers
};
void sched_get_place(const struct sched *sched, uint32_t place, struct sched_place_info *out);

#endif

// masker.h: which tokens grammars allow: a thread of its own writes masks while a step's rows go through the layers.
//
//     engine's thread                                      the masker's thread
//       SequenceOpen: masker_sequence_open()
//       a step begins: mask_job_add() …, mask_job_post() ─▶ opens what is new, takes the tokens drawn since, writes masks
//       … layers …                                            │
//       head: mask_job_done()? ◀───────── on_done ────────────┘
//       sampling by the masks; masker_sequence_took()
//
// The masker's thread owns all trackers and cursors of common/grammar. A sequence's entry belongs to it from mask_job_post() until the job is
// done, and otherwise to the engine's thread, as does the job. Sequences with the same grammar share a tracker; some that nobody uses any more are
// kept for the next ones.
//
// There is neither a thread nor memory before the first sequence with a grammar is opened; the memory plan says what it will take. A tracker for
// which there is no memory then fails the sequences that need it. Where no thread can be begun, the engine's does the work.
#ifndef FD_S_PART_STEP_MASKER_H
#define FD_S_PART_STEP_MASKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sampler/sampler.h"
#include "common/sched/settings.h"

struct grammar_cursor;
struct grammar_vocab;
struct model;
struct masker;
struct masker_tracker;

enum {
    MASKER_ERROR_BYTES = 256,
    MASKER_REPLAY_WORK = 1 << 25, // grammar_tracker_work() that what was generated before may cost; 0.7 s
};

// A sequence with a grammar.
struct masked_sequence {
    struct masker *masker;
    // The engine's thread reads and writes these while no job has the sequence.
    uint32_t taken[SCHED_DRAFT_TOKENS_MAX + 1]; // [taken_count] drawn since its last job
    uint32_t taken_count;
    uint32_t generated;             // tokens of its log that were generated, those included
    bool failed;                    // no mask: `error` says why
    bool request_fault;             // with `failed`: its grammar, or what stands beside it, is why
    char error[MASKER_ERROR_BYTES]; // for people
    // The masker's thread.
    struct masked_sequence *next; // among those to be closed
    void *packed;                 // [packed_bytes] the grammar, until it is opened
    size_t packed_bytes;
    uint32_t *replay; // [replay_count] what was generated before it was opened, until then
    uint32_t replay_count;
    bool ends_late; // it ends only where it must
    bool is_over;   // it has drawn an end token
    uint32_t end_tokens[SAMPLER_END_TOKENS_MAX], end_count;
    struct masker_tracker *tracker;
    struct grammar_cursor *cursor;
};

// A sequence that is opened; all of it is copied.
struct masked_sequence_config {
    const void *packed; // the grammar (grammar_packed()), from anywhere
    size_t packed_bytes;
    const uint32_t *generated; // what its log has behind the prompt
    uint32_t generated_count;
    const uint32_t *end_tokens;
    uint32_t end_count;
    bool ends_late;
};

struct masker_config {
    const struct model *model; // whose vocabulary it is; borrowed
    uint32_t vocab;
    void (*on_done)(void *user); // the masker's thread: a job is done
    void *user;
};

// Returns what the masker takes in the usual case, for the memory plan.
uint64_t masker_planned_bytes(uint32_t vocab, uint32_t max_batch);

// config is copied. close: all sequences are closed and no job is under way; waits for the thread. NULL is allowed.
enum status masker_open(const struct masker_config *config, struct masker **out) MUST_CHECK;
void masker_close(struct masker *masker);

// Opens a sequence; NULL: no memory. A fault of its grammar shows in `failed` once its first job is done.
struct masked_sequence *masker_sequence_open(struct masker *masker, const struct masked_sequence_config *config);
// Closes it; no job has it. NULL is allowed.
void masker_sequence_close(struct masked_sequence *sequence);
// Notes a token that was drawn for it. Allocates nothing.
void masker_sequence_took(struct masked_sequence *sequence, uint32_t token);

struct mask_item {
    struct masked_sequence *sequence;
    const uint32_t *drafts; // guesses; mask k is for what comes after the first k of them
    uint32_t first, count;  // masks
};

// The masks of a step. Plain memory of the engine's; zero it to begin with.
struct mask_job {
    struct masker *masker; // of a job that was posted last
    struct mask_item *items;
    uint32_t *words; // [capacity][mask words]
    uint32_t item_count, mask_count, capacity, mask_words;
    bool posted, done; // under the masker's mutex, while posted
    struct mask_job *next;
};

// Makes room for so many masks, and for as many sequences; it is never made smaller. False: no memory.
bool mask_job_reserve(struct mask_job *job, const struct masker *masker, uint32_t masks) MUST_CHECK;
void mask_job_free(struct mask_job *job);
// Adds a sequence with as many masks as there is room for, at most `count`; returns how many. drafts is borrowed until the job is done.
uint32_t mask_job_add(struct mask_job *job, struct masked_sequence *sequence, const uint32_t *drafts, uint32_t count);
// Returns a mask for sampler_sample().
const uint32_t *mask_job_mask(const struct mask_job *job, uint32_t index);
// post: hands the job to the masker; it has items. done: polls; true for a job that was not posted. wait: blocks until it is done. Then it is empty.
void mask_job_post(struct mask_job *job, struct masker *masker);
bool mask_job_done(struct mask_job *job);
void mask_job_wait(struct mask_job *job);
void mask_job_clear(struct mask_job *job);

#endif

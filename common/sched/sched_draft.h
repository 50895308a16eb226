// sched_draft.h: rows of tokens that are guessed. Private to common/sched.
#ifndef FD_SCHED_SCHED_DRAFT_H
#define FD_SCHED_SCHED_DRAFT_H

#include "common/sched/sched_batch.h"
#include "common/sched/sched_seq.h"
#include "common/sched/sched_tuning.h"

// What is known of a mini-batch.
struct sched_draft {
    // Least squares through points that are forgotten slowly: sums of their weights, of x and y and their products.
    struct sched_draft_line {
        double count, x, y, xx, xy;
    } other;       // what a step takes beside the s-part's work, by its rows
    double gap_us; // from an answer to the start of the step that waited for it; smoothed, as gain
    double gain;   // tokens a second with drafts, as part of those without; 0: not known
    bool drafting; // steps wait for the one before: what it samples decides what is guessed
};

// Says of each member (by index) how many guessed tokens its row of the next step should have behind it, into
// drafts[TUNE_DRAFT_SEQUENCES_MAX]. False: the step is to wait for those in flight.
bool sched_draft_plan(struct sched *s, uint32_t mini_batch, uint8_t *drafts);

// Returns how many of so many drafts its pages have room for, behind its row. Takes pages only if no other sequence needs them.
uint32_t sched_draft_fit(struct sched *s, struct sched_seq *seq, uint32_t drafts);

void sched_draft_learn(struct sched *s, const struct sched_flight *flight, const struct sched_step_done *done);
void sched_draft_init(struct sched *s); // nothing is known, or no longer

#endif

// draft.h: rows of guessed tokens. Private to common/sched.
#ifndef FD_SCHED_DRAFT_H
#define FD_SCHED_DRAFT_H

#include "common/sched/batch.h"
#include "common/sched/slots.h"
#include "common/sched/tuning.h"

// A mini-batch's steps with and without guesses, as far as they are known.
struct sched_draft {
    // Least squares through points whose weight decays: the sums of their weights, of x and y, and of the products.
    struct sched_draft_line {
        double count, x, y, xx, xy;
        double slope; // the last that the points showed
    } other;          // time of a step apart from the s-part's work, as a function of its rows
    double gap_us;    // from an answer to the start of the step that waited for it; smoothed, like `gain`
    double gain;      // tokens a second with drafts divided by those without; 0: not known
    bool drafting;    // each step waits for the one before, whose samples decide what is guessed
};

// Writes to drafts[TUNE_DRAFT_SEQUENCES_MAX], for each member of a class by index, how many guessed tokens should follow its row in the
// next step. Returns false if the step must wait for those in flight.
bool sched_draft_plan(struct sched *s, uint32_t mini_batch, enum sched_class class, uint8_t *drafts);

// Returns how many of `drafts` fit into the sequence's pages behind its row. Takes more pages only if no other sequence needs them.
uint32_t sched_draft_fit(struct sched *s, struct sched_seq *seq, uint32_t drafts);

void sched_draft_learn(struct sched *s, const struct sched_flight *flight, const struct sched_step_done *done);
void sched_draft_init(struct sched *s); // forgets all that is known

#endif

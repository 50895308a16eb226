/* drafts.h: guesses at a sequence's next tokens: what followed when its last ones came before, in its prompt or in what it generated.
 *
 * Summaries, edits of code, answers that quote: what comes is often there already (Yang et al., "Inference with Reference",
 * arXiv 2304.04487). A guess costs no model; a step computes the guessed tokens as rows of their own, and what is sampled before each
 * says whether it was right. No token ever depends on a guess (Leviathan et al., arXiv 2211.17192).
 *
 *     tokens   … the cat sat on the mat. the cat sat        the last three came before, at "the cat sat on":
 *     guess                                          on the mat. the cat …
 *
 * How often guesses are right is counted whether they were computed or not, by how many tokens before them were the same.
 */
#ifndef FD_SERVICES_SCHEDULER_DRAFTS_H
#define FD_SERVICES_SCHEDULER_DRAFTS_H

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_KINDS = 4 }; /* 2 tokens and more that were the same, 4, 8, 16 */

/* Smoothed, of each kind: how many of the tokens guessed next were right. */
struct draft_odds {
    float right[DRAFT_KINDS];
};

/* Of one sequence. All zero: nothing of it was seen. */
struct draft {
    uint32_t seen;   /* tokens */
    uint32_t at;     /* the next one is guessed to be tokens[at]; only if length is not 0 */
    uint32_t length; /* tokens before `at` that are the last ones */
    struct draft_odds odds;
};

/* What a new scheduler takes them for. */
void draft_odds_init(struct draft_odds *odds);

/* Takes in tokens[0, count), of which those before draft->seen have not changed. all: of all sequences, learns too; a new one begins with
 * it. O(new tokens), and O(count) where a guess was wrong or there was none. */
void draft_follow(struct draft *draft, const uint32_t *tokens, uint32_t count, struct draft_odds *all);

/* Writes guesses to tokens[count, …) for as many as there is room, `most`; how many: 0 or that. *chance: that one is right where those
 * before it are. After draft_follow(count). */
uint32_t draft_guess(const struct draft *draft, uint32_t *tokens, uint32_t count, uint32_t most, double *chance);

#endif

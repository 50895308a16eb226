// drafts.h: guesses at a sequence's next tokens: those that followed the same last tokens earlier in its prompt or its answer.
//
// In summaries, edits of code and answers that quote, the next tokens are often there already (Yang et al., "Inference with Reference",
// arXiv 2304.04487). A guess needs no model. A step computes guessed tokens as rows of their own, and the token that is sampled before
// each says whether the guess was right. No token ever depends on a guess (Leviathan et al., arXiv 2211.17192).
//
//     tokens   … the cat sat on the mat. the cat sat        the last three were there before, in "the cat sat on":
//     guess                                          on the mat. the cat …
//
// Guesses are scored whether they were computed or not, in classes by the number of tokens that matched before them.
#ifndef FD_SERVICES_SCHEDULER_DRAFTS_H
#define FD_SERVICES_SCHEDULER_DRAFTS_H

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_KINDS = 4 }; // classes of matched tokens: from 2, 4, 8 and 16 on

// The share of right guesses in each class, smoothed.
struct draft_odds {
    float right[DRAFT_KINDS];
};

// Of one sequence. All zero: none of its tokens has been seen.
struct draft {
    uint32_t seen;   // tokens that have been taken in
    uint32_t at;     // the next token is guessed to be tokens[at], unless length is 0
    uint32_t length; // tokens before `at` that match the last ones
    struct draft_odds odds;
};

// Sets them to what a new scheduler assumes.
void draft_odds_init(struct draft_odds *odds);

// Takes in tokens[0, count), of which those before draft->seen have not changed. `all` are the odds of all sequences: they learn too,
// and a new sequence starts with them. O(new tokens), or O(count) if a guess was wrong or there was none.
void draft_follow(struct draft *draft, const uint32_t *tokens, uint32_t count, struct draft_odds *all);

// Writes `most` guesses to tokens[count, …), which must have room for them, and returns `most`; or 0 if there is nothing to guess.
// *chance: of a guess to be right if those before it are. Call draft_follow() for the same count before.
uint32_t draft_guess(const struct draft *draft, uint32_t *tokens, uint32_t count, uint32_t most, double *chance);

#endif

// drafts.h: guesses a sequence's next tokens: the tokens that followed when its last tokens occurred earlier in its prompt or
// answer.
//
// In summaries, edits of code and answers that quote, the next tokens have often occurred already (Yang et al., "Inference with
// Reference", arXiv 2304.04487). A guess needs no model. A step computes guessed tokens as rows of their own, and the token that is
// sampled before each says whether the guess was right. No token ever depends on a guess (Leviathan et al., arXiv 2211.17192).
//
//     tokens   … the cat sat on the mat. the cat sat        the last three occurred before, in "the cat sat on":
//     guess                                          on the mat. the cat …
//
// Every guess, computed or not, counts as right or wrong for its class. The classes are by the number of tokens that matched before
// the guess.
#ifndef FD_SERVICES_SCHEDULER_DRAFTS_H
#define FD_SERVICES_SCHEDULER_DRAFTS_H

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_KINDS = 4 }; // classes by matched tokens: at least 2, 4, 8 and 16

// The share of right guesses in each class, smoothed.
struct draft_odds {
    float right[DRAFT_KINDS];
};

// The guess for one sequence. All zero: none of its tokens has been seen.
struct draft {
    uint32_t seen;   // number of tokens taken in so far
    uint32_t at;     // the next token is guessed to be tokens[at], unless length is 0
    uint32_t length; // how many tokens before `at` match the sequence's last ones
    struct draft_odds odds;
};

// Sets the odds that a new scheduler assumes.
void draft_odds_init(struct draft_odds *odds);

// Takes in tokens[0, count); those before draft->seen must not have changed. Updates the sequence's odds and `all`, the odds over
// all sequences, with which a new sequence starts. O(new tokens), or O(count) if a guess was wrong or there was none.
void draft_follow(struct draft *draft, const uint32_t *tokens, uint32_t count, struct draft_odds *all);

// Writes `most` guesses to tokens[count, …), which must have room for them, and returns `most`; or 0 if there is nothing to guess.
// *chance is the probability that a guess is right if those before it are. Call draft_follow() with the same count first.
uint32_t draft_guess(const struct draft *draft, uint32_t *tokens, uint32_t count, uint32_t most, double *chance);

#endif

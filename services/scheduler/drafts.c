// drafts.c: see drafts.h.
#include "services/scheduler/drafts.h"

#include "common/base/checked.h"

enum {
    LEAST = 2,          // tokens that have to match for a guess
    LONGEST = 32,       // a longer match is not looked for
    CATCH_UP = 16,      // new tokens at once, beyond which none is scored
    WORK_MAX = 1 << 13, // comparisons of one search
};
#define GAIN 0.1f      // weight of one guess in a sequence's odds
#define GAIN_ALL 0.01f // and in those of all

void draft_odds_init(struct draft_odds *odds) { *odds = (struct draft_odds){{0.3f, 0.5f, 0.7f, 0.8f}}; }

static uint32_t kind_of(uint32_t length) { return length < 4 ? 0 : length < 8 ? 1 : length < 16 ? 2 : 3; }

// Finds where most of the last tokens were before; of equal matches the latest.
static void look_up(struct draft *draft, const uint32_t *tokens, uint32_t count)
{
    uint32_t work = 0;

    draft->length = 0;
    if (count < LEAST + 1)
        return;
    for (uint32_t end = count - 1; end > 0 && draft->length < LONGEST && work < WORK_MAX;
         end--) { // tokens[end - 1] is to match the last one
        uint32_t length = 0;
        while (length < end && length < LONGEST && tokens[end - 1 - length] == tokens[count - 1 - length])
            length++;
        work += length + 1;
        if (length >= LEAST && length > draft->length) {
            draft->length = length;
            draft->at = end;
        }
    }
}

static void learn(float *right, bool was_right, float gain) { *right += gain * ((was_right ? 1.0f : 0.0f) - *right); }

void draft_follow(struct draft *draft, const uint32_t *tokens, uint32_t count, struct draft_odds *all)
{
    if (draft->seen == 0)
        draft->odds = *all;
    if (count - draft->seen > CATCH_UP) {
        draft->seen = count;
        look_up(draft, tokens, count);
    }
    for (; draft->seen < count; draft->seen++) {
        bool right = draft->length > 0 && tokens[draft->at] == tokens[draft->seen];
        if (draft->length > 0) {
            learn(&draft->odds.right[kind_of(draft->length)], right, GAIN);
            learn(&all->right[kind_of(draft->length)], right, GAIN_ALL);
        }
        if (right) {
            draft->at++;
            draft->length++;
        } else {
            look_up(draft, tokens, draft->seen + 1);
        }
    }
}

uint32_t draft_guess(const struct draft *draft, uint32_t *tokens, uint32_t count, uint32_t most, double *chance)
{
    *chance = 0;
    if (draft->length == 0)
        return 0;
    *chance = (double)draft->odds.right[kind_of(draft->length)];
    for (uint32_t i = 0; i < most; i++)
        tokens[count + i] = tokens[draft->at + i]; // may be one that was just guessed: what repeats goes on repeating
    return most;
}

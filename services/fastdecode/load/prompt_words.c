// prompt_words.c: see prompt_words.h.
#include "services/fastdecode/load/prompt_words.h"

#include <math.h>

#include "common/base/checked.h"
#include "common/base/random.h"

enum { WORD_BYTES_MAX = 8, WORDS_MAX = 1 << 24 };

static const char *const words_list[64] = {
    "time",  "people", "water", "house", "school", "city",  "story", "night", "light", "river", "paper", "music", "money",
    "table", "white",  "black", "green", "small",  "great", "young", "early", "under", "after", "again", "never", "often",
    "place", "world",  "woman", "point", "group",  "right", "book",  "word",  "side",  "hand",  "home",  "food",  "land",
    "line",  "name",   "road",  "room",  "face",   "door",  "body",  "idea",  "game",  "team",  "tree",  "fire",  "wind",
    "long",  "high",   "open",  "free",  "dark",   "cold",  "warm",  "slow",  "fast",  "deep",  "wide",  "near",
};

void prompt_fit_learn(struct prompt_fit *fit, uint32_t words, uint32_t tokens, uint32_t more_words, uint32_t more_tokens)
{
    if (more_words <= words || more_tokens <= tokens)
        return;
    fit->a_word = (double)(more_tokens - tokens) / (more_words - words);
    fit->fixed = MAX(tokens - fit->a_word * words, 0);
}

uint32_t prompt_fit_words(const struct prompt_fit *fit, uint32_t tokens)
{
    return (uint32_t)MIN(MAX(round((tokens - fit->fixed) / fit->a_word), 1), WORDS_MAX);
}

void prompt_words_append(struct text *out, uint32_t words, uint64_t serial)
{
    uint64_t state = serial, bits = 0;

    if (!text_reserve(out, (size_t)words * WORD_BYTES_MAX))
        return;
    for (uint32_t i = 0; i < words; i++) {
        if (i % 10 == 0) // ten times six bits
            bits = random_next(&state);
        if (i > 0)
            text_append(out, " ", 1);
        text_string(out, words_list[bits & 63]);
        bits >>= 6;
    }
}

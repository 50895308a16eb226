// special.c: finds special tokens in a text: the leftmost one, and the longest if several begin there.
//
// The tokens are sorted by their bytes. A table of first bytes rejects nearly every position at once. Otherwise binary searches narrow the
// range of candidates byte by byte, like descending a trie.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/tokenizer/special.h"
#include "common/tokenizer/tokenizer_state.h"

static int compare(const void *a, const void *b, void *context)
{
    const struct tokenizer *tokenizer = context;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    struct text_span s = token_span(tokenizer, x), t = token_span(tokenizer, y);
    int order = memcmp(s.bytes, t.bytes, MIN(s.length, t.length));
    if (order)
        return order;
    if (s.length != t.length)
        return s.length < t.length ? -1 : 1;
    return x < y ? -1 : 1; // of equal texts the lower id comes first, and is found
}

static bool is_special(const struct tokenizer *tokenizer, uint32_t id)
{
    uint8_t type = tokenizer->types[id];
    bool kind = type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED || type == TOKEN_UNKNOWN;
    return kind && token_span(tokenizer, id).length > 0;
}

bool special_init(struct special_index *index, const struct tokenizer *tokenizer)
{
    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        index->count += is_special(tokenizer, id);
    index->ids = malloc((index->count + 1) * sizeof(uint32_t));
    if (!index->ids)
        return false;
    uint32_t n = 0;
    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        if (is_special(tokenizer, id))
            index->ids[n++] = id;
    qsort_r(index->ids, n, sizeof(uint32_t), compare, (void *)tokenizer);
    for (uint32_t i = 0; i < n; i++)
        index->first[(unsigned char)token_span(tokenizer, index->ids[i]).bytes[0] + 1] = i + 1;
    for (int b = 1; b <= 256; b++)
        index->first[b] = MAX(index->first[b], index->first[b - 1]);
    return true;
}

void special_free(struct special_index *index)
{
    free(index->ids);
    index->ids = NULL;
}

// The first of ids[lo .. hi) whose byte `depth` is at least `byte`. All are longer than depth.
static uint32_t lower(const struct tokenizer *tokenizer, uint32_t lo, uint32_t hi, size_t depth, int byte)
{
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        struct text_span span = token_span(tokenizer, tokenizer->specials.ids[middle]);
        if ((unsigned char)span.bytes[depth] < byte)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

// The longest special token that text begins with, or TOKEN_NONE.
static uint32_t longest(const struct tokenizer *tokenizer, const char *text, size_t length)
{
    const struct special_index *index = &tokenizer->specials;
    int byte = (unsigned char)text[0];
    uint32_t lo = index->first[byte], hi = index->first[byte + 1], best = TOKEN_NONE;
    for (size_t depth = 1; lo < hi; depth++) {
        bool found = false;
        while (lo < hi && token_span(tokenizer, index->ids[lo]).length == depth) {
            if (!found)
                best = index->ids[lo];
            found = true;
            lo++;
        }
        if (depth == length)
            break;
        byte = (unsigned char)text[depth];
        lo = lower(tokenizer, lo, hi, depth, byte);
        hi = lower(tokenizer, lo, hi, depth, byte + 1);
    }
    return best;
}

bool special_find(const struct tokenizer *tokenizer, const char *text, size_t from, size_t length, size_t *at, uint32_t *id)
{
    const uint32_t *first = tokenizer->specials.first;
    for (size_t i = from; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (first[byte] == first[byte + 1])
            continue;
        uint32_t found = longest(tokenizer, text + i, length - i);
        if (found == TOKEN_NONE)
            continue;
        *at = i;
        *id = found;
        return true;
    }
    return false;
}

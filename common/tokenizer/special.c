// special.c: see special.h.
//
// Patterns are sorted by their bytes. A table of first bytes rejects nearly every position at once. Otherwise binary searches narrow the
// range of candidates byte by byte, like descending a trie.
#include "common/tokenizer/special.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/checked.h"
#include "common/tokenizer/tokenizer_state.h"

// --- the index ----------------------------------------------------------------------------------------------------------

static int pattern_compare(const void *a, const void *b)
{
    const struct special_pattern *s = a, *t = b;
    int order = memcmp(s->bytes, t->bytes, MIN(s->length, t->length));
    if (order)
        return order;
    if (s->length != t->length)
        return s->length < t->length ? -1 : 1;
    if (s->is_control != t->is_control) // the first of equal texts is found
        return s->is_control ? -1 : 1;
    return s->id < t->id ? -1 : 1;
}

static bool is_control(const struct tokenizer *tokenizer, uint32_t id)
{
    return tokenizer->types[id] == TOKEN_CONTROL || tokenizer->types[id] == TOKEN_UNKNOWN;
}

static bool is_pattern(const struct tokenizer *tokenizer, const struct tokenizer_spec *spec, uint32_t id, bool normalized)
{
    uint8_t flags = tokenizer->flags[id];
    return flags & TOKEN_FLAG_ADDED && spec->tokens[id].length > 0 && !!(flags & TOKEN_FLAG_NORMALIZED) == normalized;
}

// Writes what a token looks like in the text of its pass, at most 3 times as long as the file's text and 1 more. NULL: only counts.
static enum status pattern_text(const struct tokenizer *tokenizer, struct text_span text, uint8_t flags, char *out, size_t *length,
                                struct error *error)
{
    const char *clean = text.bytes;
    char *owned = NULL;
    size_t clean_length = text.length;
    enum status status = STATUS_OK;

    *length = 0;
    if (flags & TOKEN_FLAG_NORMALIZED)
        status = clean_text(text.bytes, text.length, tokenizer->normalize, &clean, &clean_length, &owned, error);
    if (status)
        return status;
    if (flags & TOKEN_FLAG_NORMALIZED && tokenizer->spaces_first) {
        if (flags & TOKEN_FLAG_PREFIXED)
            out[(*length)++] = ' ';
        *length += spm_mark_spaces(clean, clean_length, out + *length);
    } else {
        memcpy(out, clean, clean_length);
        *length = clean_length;
    }
    free(owned);
    return STATUS_OK;
}

enum status special_init(struct special_index *index, const struct tokenizer *tokenizer, const struct tokenizer_spec *spec,
                         bool normalized, struct error *error)
{
    size_t room = 1, used = 0, length;
    enum status status = STATUS_OK;

    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        if (is_pattern(tokenizer, spec, id, normalized)) {
            index->count++;
            room += 4 * spec->tokens[id].length + 1; // canonical composition and U+FFFD triple it at most
        }
    index->patterns = malloc((index->count + 1) * sizeof *index->patterns);
    index->bytes = malloc(room);
    if (!index->patterns || !index->bytes)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for special tokens");
    index->count = 0;
    for (uint32_t id = 0; status == STATUS_OK && id < tokenizer->vocab; id++) {
        if (!is_pattern(tokenizer, spec, id, normalized))
            continue;
        status = pattern_text(tokenizer, spec->tokens[id], tokenizer->flags[id], index->bytes + used, &length, error);
        index->patterns[index->count++] = (struct special_pattern){
            .bytes = index->bytes + used, .length = (uint32_t)length, .id = id, .is_control = is_control(tokenizer, id)};
        index->has_control |= is_control(tokenizer, id);
        used += length;
    }
    if (status)
        return status;
    qsort(index->patterns, index->count, sizeof *index->patterns, pattern_compare);
    for (uint32_t i = 0; i < index->count; i++)
        index->first[(unsigned char)index->patterns[i].bytes[0] + 1] = i + 1;
    for (int b = 1; b <= 256; b++)
        index->first[b] = MAX(index->first[b], index->first[b - 1]);
    return STATUS_OK;
}

void special_free(struct special_index *index)
{
    free(index->patterns);
    free(index->bytes);
    *index = (struct special_index){0};
}

// --- the search ---------------------------------------------------------------------------------------------------------

// The first of patterns[lo .. hi) whose byte `depth` is at least `byte`. All are longer than depth.
static uint32_t lower(const struct special_index *index, uint32_t lo, uint32_t hi, size_t depth, int byte)
{
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        if ((unsigned char)index->patterns[middle].bytes[depth] < byte)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

// The longest pattern that text begins with, or NULL. Control tokens must not be longer than control_length.
static const struct special_pattern *special_longest(const struct special_scan *scan, const char *text, size_t length,
                                                     size_t control_length)
{
    const struct special_index *index = scan->index;
    const struct special_pattern *best = NULL;
    int byte = (unsigned char)text[0];
    uint32_t lo = index->first[byte], hi = index->first[byte + 1];

    for (size_t depth = 1; lo < hi; depth++) {
        bool found = false;
        for (; lo < hi && index->patterns[lo].length == depth; lo++) {
            const struct special_pattern *pattern = &index->patterns[lo];
            if (found || (depth > control_length && pattern->is_control))
                continue;
            best = pattern;
            found = true;
        }
        if (depth == length)
            break;
        byte = (unsigned char)text[depth];
        lo = lower(index, lo, hi, depth, byte);
        hi = lower(index, lo, hi, depth, byte + 1);
    }
    return best;
}

static bool special_find(struct special_scan *scan, size_t *at, const struct special_pattern **found)
{
    const uint32_t *first = scan->index->first;

    for (size_t i = scan->search; i < scan->length; i++) {
        unsigned char byte = (unsigned char)scan->text[i];
        if (first[byte] == first[byte + 1])
            continue;
        while (scan->zone_count && scan->zones->end <= i)
            scan->zones++, scan->zone_count--;
        size_t control_length = scan->zone_count && scan->zones->parse_special ? scan->zones->end - i : 0;
        *found = special_longest(scan, scan->text + i, scan->length - i, control_length);
        if (!*found)
            continue;
        *at = i;
        scan->search = i + (*found)->length;
        return true;
    }
    scan->search = scan->length;
    return false;
}

// --- what is beside a token ---------------------------------------------------------------------------------------------

// The character at the start of a text or, with `last`, at its end, and its length. Broken bytes are one U+FFFD each.
static int32_t character_at(const char *text, size_t length, bool last, size_t *bytes)
{
    utf8proc_int32_t character;
    size_t from = 0;

    if (last) {
        from = length - 1;
        while (from > 0 && length - from < 4 && ((unsigned char)text[from] & 0xc0) == 0x80)
            from--;
    }
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + from, (utf8proc_ssize_t)(length - from), &character);
    if (n <= 0 || (last && from + (size_t)n != length)) {
        *bytes = 1;
        return 0xfffd;
    }
    *bytes = (size_t)n;
    return character;
}

// White_Space of Unicode's PropList.txt.
static bool is_space(const struct special_scan *scan, int32_t c)
{
    if (c == ' ')
        return !scan->marks_spaces;
    return (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// Part of a word as Unicode's technical standard 18 has it: alphabetic, mark, digit, connector or joiner.
static bool is_word(int32_t c)
{
    bool circled = (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
                   (c >= 0x1f170 && c <= 0x1f189); // symbols that are alphabetic

    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return circled || c == 0x200c || c == 0x200d;
    }
}

// Returns whether a token at text[at .. end) has a word's character on neither side.
static bool stands_alone(const struct special_scan *scan, size_t at, size_t end)
{
    size_t bytes;

    return !(at > 0 && is_word(character_at(scan->text, at, true, &bytes))) &&
           !(end < scan->length && is_word(character_at(scan->text + end, scan->length - end, false, &bytes)));
}

void special_next(struct special_scan *scan, size_t *from, size_t *to, uint32_t *id)
{
    const struct special_pattern *found;
    size_t at, bytes;

    while (special_find(scan, &at, &found)) {
        size_t end = scan->search;
        uint8_t flags = scan->tokenizer->flags[found->id];
        if (flags & TOKEN_FLAG_SINGLE_WORD && !stands_alone(scan, at, end))
            continue;
        if (flags & TOKEN_FLAG_LSTRIP) {
            while (at > scan->plain && is_space(scan, character_at(scan->text, at, true, &bytes)))
                at -= bytes;
            at = MAX(at, scan->plain);
        }
        if (flags & TOKEN_FLAG_RSTRIP) {
            end = MAX(end, scan->stripped);
            while (end < scan->length && is_space(scan, character_at(scan->text + end, scan->length - end, false, &bytes)))
                end += bytes;
            scan->stripped = end;
        }
        if (at >= end) // the token before it took all of it
            continue;
        *from = scan->plain;
        *to = MAX(at, scan->plain);
        *id = found->id;
        scan->plain = end; // a token of white space may be found in what another took, as `tokenizers` does
        return;
    }
    *from = MIN(scan->plain, scan->length);
    *to = scan->length;
    *id = TOKEN_NONE;
}

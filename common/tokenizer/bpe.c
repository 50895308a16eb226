// bpe.c: byte-level BPE: the words of a text, their merges, and the tables of both. SentencePiece-style tokenizing (spm.c) merges with it, too.
//
// Symbols are merged pair by pair: the lowest rank first, and among equal ranks the leftmost. Short words are merged in an array: look at all
// pairs, merge the best one, move the rest up. Longer words use a heap of pairs over a linked list, which takes n log n time:
//
//     symbols   h   e   l   l   o          list: previous[] and next[] by position; a merged symbol lies at its left part's
//     heap      (he 3 @0) (ll 9 @2) …      place. A popped pair is stale if its symbols have changed since it was pushed.
//
// Every merge pops one pair and pushes at most two, so a word of n symbols needs at most 2n heap entries: 12 bytes of
// lists and 32 of heap a symbol, 440 MB for a word of 10 MB. A word that must have more than max_tokens tokens however well it merges is
// refused before that is allocated.
//
// A text is cut into words by the published regular expressions. They run on PCRE2, with its JIT compiler if there is one. Its Unicode tables
// decide what is a letter or a number (14.0 in PCRE2 10.42: a letter that was added later counts as a symbol). White space is written out as a
// class (WS), because PCRE2's \s has one character more (U+180E) than the engines that the expressions were published for. "smollm" splits off
// every \p{N} and then applies GPT-2's expression to what is between; here both are one expression, in which a digit ends a piece as the end
// of text does for \s+(?!\S).
//
// Every expression takes at least one character wherever it starts, and none backtracks into a group, so the work is linear in the text. The
// limits of PCRE2 can be high: they are for runaway matches, not long ones. If JIT code runs out of stack all the same, the interpreter, which
// keeps its state on the heap, tries again.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/tokenizer/tokenizer_state.h"

enum { SHORT_WORD = 24, NO_LINK = UINT32_MAX };

enum status encoder_put(struct encoder *encoder, uint32_t id)
{
    if (encoder->count == encoder->max_tokens) {
        encoder->count += encoder->count < UINT32_MAX;
        return error_set(encoder->error, STATUS_OUT_OF_RANGE, "the text has more than %u tokens", encoder->max_tokens);
    }
    if (encoder->count == encoder->capacity) {
        uint64_t capacity = MIN(MAX((uint64_t)encoder->capacity * 2, 64), (uint64_t)encoder->max_tokens);
        uint32_t *ids = realloc(encoder->ids, capacity * sizeof *ids);
        if (!ids)
            return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for %llu ids",
                             (unsigned long long)capacity);
        encoder->ids = ids;
        encoder->capacity = (uint32_t)capacity;
    }
    encoder->ids[encoder->count++] = id;
    return STATUS_OK;
}

// --- merging ------------------------------------------------------------------------------------------------------------

enum status bpe_reserve(struct encoder *encoder, size_t count, size_t covered)
{
    if (count <= encoder->symbol_capacity)
        return STATUS_OK;
    if (covered / encoder->tokenizer->max_symbols > encoder->max_tokens - encoder->count) {
        encoder->count = encoder->max_tokens;
        return encoder_put(encoder, 0); // fails: it is one too many
    }
    size_t capacity = MAX(count, 2 * encoder->symbol_capacity);
    if (capacity >= NO_LINK)
        return error_set(encoder->error, STATUS_OUT_OF_RANGE, "a word of %zu characters is too long to tokenize", count);
    free(encoder->symbols);
    encoder->symbol_capacity = 0;
    encoder->symbols = malloc(capacity * 3 * sizeof(uint32_t));
    if (!encoder->symbols)
        return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "no memory to tokenize a word of %zu bytes", count);
    encoder->previous = encoder->symbols + capacity;
    encoder->next = encoder->previous + capacity;
    encoder->symbol_capacity = capacity;
    return STATUS_OK;
}

static size_t merge_short(const struct merge_map *map, uint32_t *symbols, size_t count)
{
    const struct merge_slot *pairs[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++)
        pairs[i] = merge_map_get(map, symbols[i], symbols[i + 1]);
    while (count > 1) {
        size_t best = count;
        uint32_t rank = UINT32_MAX;
        for (size_t i = 0; i + 1 < count; i++)
            if (pairs[i] && pairs[i]->rank < rank)
                rank = pairs[i]->rank, best = i;
        if (best == count)
            break;
        symbols[best] = pairs[best]->result;
        count--;
        for (size_t i = best + 1; i < count; i++)
            symbols[i] = symbols[i + 1];
        for (size_t i = best + 1; i + 1 < count; i++)
            pairs[i] = pairs[i + 1];
        if (best > 0)
            pairs[best - 1] = merge_map_get(map, symbols[best - 1], symbols[best]);
        if (best + 1 < count)
            pairs[best] = merge_map_get(map, symbols[best], symbols[best + 1]);
    }
    return count;
}

static bool sooner(const struct merge_item *a, const struct merge_item *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void sift_down(struct merge_item *heap, size_t count, size_t at)
{
    struct merge_item item = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && sooner(&heap[child + 1], &heap[child]))
            child++;
        if (!sooner(&heap[child], &item))
            break;
        heap[at] = heap[child];
    }
    heap[at] = item;
}

static void push_pair(struct encoder *encoder, size_t *heap_count, uint32_t at)
{
    uint32_t right_at = at == NO_LINK ? NO_LINK : encoder->next[at];
    if (right_at == NO_LINK)
        return;
    uint32_t left = encoder->symbols[at], right = encoder->symbols[right_at];
    const struct merge_slot *merge = merge_map_get(&encoder->tokenizer->merges, left, right);
    if (!merge)
        return;
    struct merge_item item = {.rank = merge->rank, .at = at, .left = left, .right = right};
    size_t slot = (*heap_count)++;
    for (; slot > 0 && sooner(&item, &encoder->heap[(slot - 1) / 2]); slot = (slot - 1) / 2)
        encoder->heap[slot] = encoder->heap[(slot - 1) / 2];
    encoder->heap[slot] = item;
}

// Merges until the heap is empty.
static void merge_list(struct encoder *encoder, size_t heap_count)
{
    uint32_t *symbols = encoder->symbols, *previous = encoder->previous, *next = encoder->next;
    while (heap_count > 0) {
        struct merge_item item = encoder->heap[0];
        encoder->heap[0] = encoder->heap[--heap_count];
        if (heap_count > 0)
            sift_down(encoder->heap, heap_count, 0);
        uint32_t right = next[item.at];
        if (symbols[item.at] != item.left || right == NO_LINK || symbols[right] != item.right)
            continue;
        symbols[item.at] = merge_map_get(&encoder->tokenizer->merges, item.left, item.right)->result;
        symbols[right] = TOKEN_NONE; // makes all pairs that begin there stale
        next[item.at] = next[right];
        if (next[right] != NO_LINK)
            previous[next[right]] = item.at;
        push_pair(encoder, &heap_count, previous[item.at]);
        push_pair(encoder, &heap_count, item.at);
    }
}

enum status bpe_merge(struct encoder *encoder, size_t count, size_t *left)
{
    if (count <= SHORT_WORD) {
        *left = merge_short(&encoder->tokenizer->merges, encoder->symbols, count);
        return STATUS_OK;
    }
    if (encoder->heap_capacity < 2 * count) {
        free(encoder->heap);
        encoder->heap_capacity = 0;
        encoder->heap = malloc(2 * encoder->symbol_capacity * sizeof *encoder->heap);
        if (!encoder->heap)
            return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "no memory to tokenize a word of %zu bytes", count);
        encoder->heap_capacity = 2 * encoder->symbol_capacity;
    }
    for (size_t i = 0; i < count; i++) {
        encoder->previous[i] = i > 0 ? (uint32_t)i - 1 : NO_LINK;
        encoder->next[i] = i + 1 < count ? (uint32_t)i + 1 : NO_LINK;
    }
    size_t heap_count = 0;
    for (size_t i = 0; i < count; i++)
        push_pair(encoder, &heap_count, (uint32_t)i);
    merge_list(encoder, heap_count);
    *left = 0;
    for (uint32_t at = 0; at != NO_LINK; at = encoder->next[at])
        encoder->symbols[(*left)++] = encoder->symbols[at];
    return STATUS_OK;
}

// Encodes one word of the pre-tokenizer.
static enum status bpe_encode_word(struct encoder *encoder, const char *bytes, size_t length)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (length <= tokenizer->max_symbols) {
        uint32_t id = text_map_get(&tokenizer->texts, tokenizer, bytes, length);
        if (id != TOKEN_NONE && tokenizer->whole[id])
            return encoder_put(encoder, id);
    }
    size_t known = 0, count = 0, left;
    for (size_t i = 0; i < length; i++)
        known += tokenizer->byte_ids[(unsigned char)bytes[i]] != TOKEN_NONE;
    enum status status = bpe_reserve(encoder, known, known);
    if (status)
        return status;
    for (size_t i = 0; i < length; i++) {
        uint32_t id = tokenizer->byte_ids[(unsigned char)bytes[i]];
        if (id != TOKEN_NONE)
            encoder->symbols[count++] = id; // a vocabulary may lack bytes: they are left out
    }
    status = bpe_merge(encoder, count, &left);
    for (size_t i = 0; status == STATUS_OK && i < left; i++)
        status = encoder_put(encoder, encoder->symbols[i]);
    return status;
}

// --- words --------------------------------------------------------------------------------------------------------------

#define WS "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SHORT_FORMS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]+"
#define GPT2 SHORT_FORMS "| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES
#define SMOLLM "\\p{N}|" SHORT_FORMS "| ?\\p{L}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "\\p{N}])|[" WS "]+"
#define LLAMA3_WITH_NUMBERS(numbers) \
    "(?i:" SHORT_FORMS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" SPACES
// A word's capitals come first; marks and letters without case (LOOSE) may be on either side. `after` follows a word.
#define LOOSE "\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(after, numbers)                                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" LOOSE "]*[\\p{Ll}" LOOSE "]+" after "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" LOOSE \
    "]+[\\p{Ll}" LOOSE "]*" after "|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|" SPACES
#define GPT4O CASED("(?i:" SHORT_FORMS ")?", "\\p{N}{1,3}")

static const struct rule {
    const char *name, *expression;
    bool normalize, ignore_merges;
} rules[] = {
    {"gpt-2", GPT2, false, false},
    {"smollm", SMOLLM, false, false},
    {"starcoder", SMOLLM, false, false},
    {"refact", SMOLLM, false, false}, // Granite
    {"llama-bpe", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, true},
    {"llama3", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, true}, // older names of the same
    {"llama-v3", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, true},
    {"dbrx", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, false},
    {"smaug-bpe", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, false}, // SmolLM3
    {"gpt-4o", GPT4O, false, false},
    {"gpt-oss", GPT4O, false, true},
    {"tekken", CASED("", "\\p{N}"), false, true},
    {"qwen2", LLAMA3_WITH_NUMBERS("\\p{N}"), true, false},
    {"deepseek-r1-qwen", LLAMA3_WITH_NUMBERS("\\p{N}"), false, false},
};

enum { MATCH_LIMIT = 2000000000, HEAP_LIMIT_KB = 1 << 20 };

struct pretokenizer {
    pcre2_code *code;
    pcre2_match_context *limits; // read only while matching
};

static const struct rule *find_rule(const char *name, struct error *error)
{
    if (!name || strcmp(name, "default") == 0) {
        log_warn("TOKENIZER-PRE", "pre=default taken=gpt-2 reason=\"the model does not name its pre-tokenizer\"");
        return &rules[0];
    }
    for (size_t i = 0; i < ARRAY_COUNT(rules); i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    char shown[64], names[256];
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_COUNT(rules) && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", rules[i].name);
    (void)error_set(error, STATUS_UNIMPLEMENTED, "tokenizer: pre-tokenizer %s is not supported; supported: %s",
                    log_quote(shown, sizeof shown, name), names);
    return NULL;
}

void pretokenizer_close(struct pretokenizer *pre)
{
    if (!pre)
        return;
    pcre2_match_context_free(pre->limits);
    pcre2_code_free(pre->code);
    free(pre);
}

// name NULL is "default". *normalize: the text must be NFC first. *ignore_merges: a word that is a token is not merged.
static enum status pretokenizer_open(const char *name, struct pretokenizer **out, bool *normalize, bool *ignore_merges,
                                     struct error *error)
{
    const struct rule *rule = find_rule(name, error);
    if (!rule)
        return STATUS_UNIMPLEMENTED;
    struct pretokenizer *pre = calloc(1, sizeof *pre);
    if (!pre)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory");
    int code;
    PCRE2_SIZE offset;
    pre->code = pcre2_compile((PCRE2_SPTR)rule->expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    pre->limits = pcre2_match_context_create(NULL);
    if (!pre->code || !pre->limits) {
        pretokenizer_close(pre);
        return error_set(error, STATUS_INTERNAL, "tokenizer: PCRE2 does not compile the expression of %s: error %d at %zu",
                         rule->name, code, offset);
    }
    pcre2_set_match_limit(pre->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(pre->limits, HEAP_LIMIT_KB);
    if (pcre2_jit_compile(pre->code, PCRE2_JIT_COMPLETE) != 0)
        log_info("TOKENIZER-JIT", "pre=%s jit=no reason=\"PCRE2 cannot compile to machine code here\"", rule->name);
    *normalize = rule->normalize;
    *ignore_merges = rule->ignore_merges;
    *out = pre;
    return STATUS_OK;
}

// Returns where the word that begins at `at` ends. 0: PCRE2 failed with *code.
static size_t next_word(const struct pretokenizer *pre, pcre2_match_data *match, const char *text, size_t length, size_t at,
                        int *code)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    *code = pcre2_match(pre->code, subject, length, at, options, match, pre->limits);
    if (*code == PCRE2_ERROR_JIT_STACKLIMIT || *code == PCRE2_ERROR_MATCHLIMIT)
        *code = pcre2_match(pre->code, subject, length, at, options | PCRE2_NO_JIT, match, pre->limits);
    if (*code < 0)
        return 0;
    return pcre2_get_ovector_pointer(match)[1];
}

enum status pretokenizer_encode(const struct pretokenizer *pre, struct encoder *encoder, const char *text, size_t length)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match)
        return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory");
    enum status status = STATUS_OK;
    for (size_t at = 0; status == STATUS_OK && at < length;) {
        int code;
        size_t end = next_word(pre, match, text, length, at, &code);
        if (end <= at) {
            status = error_set(encoder->error, STATUS_INTERNAL, "tokenizer: PCRE2 error %d at byte %zu of %zu", code, at, length);
            break;
        }
        status = bpe_encode_word(encoder, text + at, end - at);
        at = end;
    }
    pcre2_match_data_free(match);
    return status;
}

// --- tables -------------------------------------------------------------------------------------------------------------

// Files write each byte of a token as a printable character, as GPT-2 did: bytes 0x21–0x7E, 0xA1–0xAC and 0xAE–0xFF are the characters of
// the same number, and the other 68 are U+0100 … U+0143 in ascending order. So a space is "Ġ" (U+0120).
static bool shows_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// Returns the byte that a character stands for, or -1.
static int byte_of(unsigned character)
{
    if (character < 0x100)
        return shows_itself((int)character) ? (int)character : -1;
    if (character > 0x143)
        return -1;
    unsigned place = character - 0x100;
    for (int byte = 0; byte < 256; byte++)
        if (!shows_itself(byte) && place-- == 0)
            return byte;
    return -1;
}

bool bpe_decode_text(struct text_span text, char *out, size_t *length)
{
    size_t n = 0, broken;
    bool open;
    for (size_t i = 0; i < text.length;) {
        unsigned char first = (unsigned char)text.bytes[i];
        size_t bytes = clean_text_utf8_length(text.bytes + i, text.length - i, &broken, &open);
        if (bytes == 0 || bytes > 2)
            return false;
        unsigned character = bytes == 1 ? first : (first & 0x1fu) << 6 | ((unsigned char)text.bytes[i + 1] & 0x3fu);
        int byte = byte_of(character);
        if (byte < 0)
            return false;
        out[n++] = (char)byte;
        i += bytes;
    }
    *length = n;
    return true;
}

// Returns the symbol of the file's text "Ġa", or TOKEN_NONE.
static uint32_t find_text(const struct tokenizer *tokenizer, struct text_span text)
{
    char bytes[TOKENIZER_MAX_TOKEN_BYTES];
    size_t length;
    if (text.length == 0 || text.length > sizeof bytes)
        return TOKEN_NONE;
    if (!bpe_decode_text(text, bytes, &length))
        return TOKEN_NONE;
    return text_map_get(&tokenizer->texts, tokenizer, bytes, length);
}

// Reads merge `index` into the table. A merge that would make a control token out of plain text is skipped and counted.
static enum status add_merge(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, uint32_t index, uint32_t *skipped,
                             struct error *error)
{
    struct text_span merge = spec->merges[index];
    char joined[TOKENIZER_MAX_TOKEN_BYTES];
    const char *space = merge.length > 2 ? memchr(merge.bytes + 1, ' ', merge.length - 1) : NULL;
    if (!space || merge.length > sizeof joined)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: merge %u is not \"left right\"", index);
    size_t left_length = (size_t)(space - merge.bytes), right_length = merge.length - left_length - 1;
    memcpy(joined, merge.bytes, left_length);
    memcpy(joined + left_length, space + 1, right_length);
    uint32_t left = find_text(tokenizer, (struct text_span){merge.bytes, left_length});
    uint32_t right = find_text(tokenizer, (struct text_span){space + 1, right_length});
    uint32_t result = find_text(tokenizer, (struct text_span){joined, left_length + right_length});
    if (left == TOKEN_NONE || right == TOKEN_NONE || result == TOKEN_NONE)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: merge %u: %s is no token", index,
                         left == TOKEN_NONE    ? "its left part"
                         : right == TOKEN_NONE ? "its right part"
                                               : "its result");
    if (tokenizer->types[result] == TOKEN_CONTROL)
        *skipped += 1;
    else
        merge_map_put(&tokenizer->merges, left, right, index, result);
    return STATUS_OK;
}

// A token is "whole" if merging its bytes yields it alone: then a word of these bytes needs no merging.
static enum status find_whole(struct tokenizer *tokenizer, struct error *error)
{
    struct encoder encoder = {.tokenizer = tokenizer, .error = error, .max_tokens = UINT32_MAX};
    enum status status = STATUS_OK;
    for (uint32_t id = 0; status == STATUS_OK && id < tokenizer->vocab; id++) {
        struct text_span span = token_span(tokenizer, id);
        if (span.length == 0 || tokenizer->types[id] != TOKEN_NORMAL)
            continue;
        encoder.count = 0;
        status = bpe_encode_word(&encoder, span.bytes, span.length);
        if (status == STATUS_OK && encoder.count == 1 && encoder.ids[0] == id)
            tokenizer->whole[id] = 1;
    }
    free(encoder.ids);
    free(encoder.symbols);
    free(encoder.heap);
    return status;
}

enum status bpe_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error)
{
    bool ignore_merges = false;
    enum status status = pretokenizer_open(spec->pre, &tokenizer->pre, &tokenizer->normalize, &ignore_merges, error);
    if (status)
        return status;
    if (!merge_map_init(&tokenizer->merges, spec->merge_count))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for %u merges", spec->merge_count);
    uint32_t missing = 0, skipped = 0;
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        uint32_t id = text_map_get(&tokenizer->texts, tokenizer, &c, 1);
        tokenizer->byte_ids[byte] = id != TOKEN_NONE && tokenizer->types[id] != TOKEN_CONTROL ? id : TOKEN_NONE;
        missing += tokenizer->byte_ids[byte] == TOKEN_NONE;
    }
    if (missing == 256)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: no token is a single byte");
    if (missing)
        log_debug("TOKENIZER-BYTES", "missing=%u", missing);
    for (uint32_t i = 0; status == STATUS_OK && i < spec->merge_count; i++)
        status = add_merge(tokenizer, spec, i, &skipped, error);
    if (status)
        return status;
    if (skipped)
        log_warn("TOKENIZER-MERGES", "skipped=%u reason=\"they make control tokens of plain text\"", skipped);
    if (!ignore_merges)
        return find_whole(tokenizer, error);
    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        tokenizer->whole[id] = tokenizer->types[id] == TOKEN_NORMAL;
    return STATUS_OK;
}

// bpe_open.c: builds the tables of byte-level BPE from the tokens and merges of a model file.
//
// Files write each byte of a token as a printable character, as GPT-2 did: bytes 0x21–0x7E, 0xA1–0xAC and 0xAE–0xFF are the characters of
// the same number, and the other 68 are U+0100 … U+0143 in ascending order. So a space is "Ġ" (U+0120).
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/clean_text.h"
#include "common/tokenizer/pretokenize.h"

static bool shows_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// The byte that a character stands for, or -1.
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

// The symbol of the file's text "Ġa", or TOKEN_NONE.
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
    bool ignore_merges;
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

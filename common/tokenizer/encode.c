// encode.c: encodes segments: finds special tokens first, then encodes the text between them.
//
//     segments   [<|im_start|>user\n]  [tell me about <|im_end|>]  [<|im_end|>\n]
//                 parse_special         plain                       parse_special
//     ids        special, text ……………………………………………………………, special, text
//
// The segments are joined first: plain text continues across their boundaries.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/tokenizer/clean_text.h"
#include "common/tokenizer/encoder.h"
#include "common/tokenizer/pretokenize.h"
#include "common/tokenizer/spm.h"

static enum status put_plain(struct encoder *encoder, const char *text, size_t length, bool space_first)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (length == 0)
        return STATUS_OK;
    const char *clean;
    char *owned;
    size_t clean_length;
    enum status status = clean_text(text, length, tokenizer->normalize, &clean, &clean_length, &owned, encoder->error);
    if (status)
        return status;
    if (tokenizer->kind == TOKENIZER_BPE)
        status = pretokenizer_encode(tokenizer->pre, encoder, clean, clean_length);
    else
        status = spm_encode(encoder, clean, clean_length, space_first && tokenizer->add_space_prefix);
    free(owned);
    return status;
}

// Encodes the joined text. ends[i]: where segment i ends.
static enum status put_segments(struct encoder *encoder, const char *text, const size_t *ends, const struct text_segment *segments,
                                uint32_t segment_count)
{
    size_t plain = 0, length = segment_count ? ends[segment_count - 1] : 0;
    bool prefix = true; // a space is put before the text that follows: at the start, and after a special token
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < segment_count && status == STATUS_OK; i++) {
        if (!segments[i].parse_special)
            continue;
        size_t from = i ? ends[i - 1] : 0, at;
        while (i + 1 < segment_count && segments[i + 1].parse_special)
            i++; // neighbours with parse_special count as one segment
        for (uint32_t id; status == STATUS_OK && special_find(encoder->tokenizer, text, from, ends[i], &at, &id);) {
            status = put_plain(encoder, text + plain, at - plain, prefix);
            if (status == STATUS_OK)
                status = encoder_put(encoder, id);
            prefix = !encoder->tokenizer->prefix_at_start_only;
            plain = from = at + encoder->tokenizer->offsets[id + 1] - encoder->tokenizer->offsets[id];
        }
    }
    if (status == STATUS_OK)
        status = put_plain(encoder, text + plain, length - plain, prefix);
    return status;
}

// Joins the segments: *text and *ends are malloc'd.
static enum status join(const struct text_segment *segments, uint32_t segment_count, char **text, size_t **ends,
                        struct error *error)
{
    size_t length = 0;
    *text = NULL;
    *ends = calloc((size_t)segment_count + 1, sizeof **ends);
    bool ok = *ends != NULL;
    for (uint32_t i = 0; ok && i < segment_count; i++) {
        ok = checked_add_size(length, segments[i].length, &length) && length < SIZE_MAX;
        if (ok)
            (*ends)[i] = length;
    }
    if (ok)
        *text = malloc(length + 1);
    if (!*text)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory to join %u pieces of text", segment_count);
    (*text)[length] = '\0'; // so that an empty text has a buffer too
    for (uint32_t i = 0; i < segment_count; i++)
        if (segments[i].length)
            memcpy(*text + (i ? (*ends)[i - 1] : 0), segments[i].bytes, segments[i].length);
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_segment *segments, uint32_t segment_count,
                             bool add_special, uint32_t max_tokens, uint32_t **ids, uint32_t *count, struct error *error)
{
    struct encoder encoder = {.tokenizer = tokenizer, .error = error, .max_tokens = max_tokens};
    char *text = NULL;
    size_t *ends = NULL;
    *ids = NULL;
    *count = 0;
    enum status status = join(segments, segment_count, &text, &ends, error);
    bool bos = add_special && tokenizer->add_bos && tokenizer->bos != TOKEN_NONE;
    bool eos = add_special && tokenizer->add_eos && tokenizer->eos != TOKEN_NONE;
    if (status == STATUS_OK && bos)
        status = encoder_put(&encoder, tokenizer->bos);
    if (status == STATUS_OK)
        status = put_segments(&encoder, text, ends, segments, segment_count);
    if (status == STATUS_OK && eos)
        status = encoder_put(&encoder, tokenizer->eos);
    free(text);
    free(ends);
    free(encoder.symbols);
    free(encoder.heap);
    if (status == STATUS_OK && !encoder.ids && !(encoder.ids = malloc(sizeof *encoder.ids)))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory");
    *count = encoder.count;
    if (status == STATUS_OK)
        *ids = encoder.ids;
    else
        free(encoder.ids);
    return status;
}

// encode.c: encodes segments: finds special and user-defined tokens first, then encodes the text between them.
//
//     segments   [<|im_start|>user\n]  [tell me about <|im_end|>]  [<|im_end|>\n]
//                 parse_special         plain                       parse_special
//     ids        special, text ……………………………………………………………, special, text
//
// The segments are joined first: plain text continues across their boundaries. The tokens are looked for twice, in the text as it is and in
// what normalizing makes of the rest (special.h).
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/tokenizer/tokenizer_state.h"

// The segments as one text.
struct joined {
    char *text;
    size_t length;
    struct special_zone *zones; // a segment each; neighbours with parse_special are one
    uint32_t zone_count;
    uint32_t zone; // in which normalizing goes on
};

static enum status encode_no_memory(struct encoder *encoder, size_t length)
{
    return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for a text of %zu bytes", length);
}

// A word or more of clean text, without tokens to look for. "llama": its spaces are still to be marked where mark is set.
static enum status put_words(struct encoder *encoder, const char *text, size_t length, bool mark, bool prefix)
{
    if (length == 0)
        return STATUS_OK;
    if (encoder->tokenizer->kind == TOKENIZER_BPE)
        return pretokenizer_encode(encoder->tokenizer->pre, encoder, text, length);
    if (!mark && !prefix)
        return spm_encode(encoder, text, length);
    char *marked = malloc(length + 1);
    if (!marked)
        return encode_no_memory(encoder, length);
    size_t n = 0;
    if (prefix)
        marked[n++] = ' ';
    n += spm_mark_spaces(text, length, marked + n);
    enum status status = spm_encode(encoder, marked, n);
    free(marked);
    return status;
}

// A text, normalized bit by bit where control tokens match in some of its zones.
struct normal_text {
    char *bytes; // owned
    size_t length;
    struct special_zone *zones; // owned
    uint32_t zone_count;
};

static bool begins_with_space(const char *text, size_t length)
{
    return length && (text[0] == ' ' || (length >= 3 && memcmp(text, SPM_MARK, 3) == 0));
}

// Appends a stretch, normalized.
static enum status normal_append(struct encoder *encoder, struct normal_text *out, const char *text, size_t length, bool prefix)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    const char *clean;
    char *owned;
    size_t clean_length;
    enum status status = clean_text(text, length, tokenizer->normalize, &clean, &clean_length, &owned, encoder->error);
    if (status)
        return status;
    if (owned && out->length == 0 && !tokenizer->spaces_first) { // it is the text
        free(out->bytes);
        *out = (struct normal_text){.bytes = owned, .length = clean_length, .zones = out->zones, .zone_count = out->zone_count};
        return STATUS_OK;
    }
    char *bytes = realloc(out->bytes, out->length + clean_length + 1);
    if (bytes) {
        out->bytes = bytes;
        if (prefix)
            out->bytes[out->length++] = ' ';
        if (tokenizer->spaces_first) {
            out->length += spm_mark_spaces(clean, clean_length, out->bytes + out->length);
        } else {
            memcpy(out->bytes + out->length, clean, clean_length);
            out->length += clean_length;
        }
    }
    free(owned);
    return bytes ? STATUS_OK : encode_no_memory(encoder, length);
}

// Normalizes text[from .. to). Its zones become those of *out where control tokens are looked for in it.
static enum status encode_normalize(struct encoder *encoder, struct joined *joined, size_t from, size_t to, bool prefix,
                                    struct normal_text *out)
{
    *out = (struct normal_text){0};
    if (!encoder->tokenizer->normalized.has_control)
        return normal_append(encoder, out, joined->text + from, to - from, prefix);
    out->zones = malloc((joined->zone_count - joined->zone + 1) * sizeof *out->zones);
    if (!out->zones)
        return encode_no_memory(encoder, to - from);
    enum status status = STATUS_OK;
    while (from < to && status == STATUS_OK) {
        const struct special_zone *zone = &joined->zones[joined->zone];
        size_t end = MIN(zone->end, to);
        if (end > from) {
            status = normal_append(encoder, out, joined->text + from, end - from, prefix && out->length == 0);
            out->zones[out->zone_count++] = (struct special_zone){out->length, zone->parse_special};
            from = end;
        }
        joined->zone += zone->end <= to;
    }
    return status;
}

// Encodes text[from .. to), which has no more of the tokens that are looked for in the text as it is.
static enum status put_plain(struct encoder *encoder, struct joined *joined, size_t from, size_t to, bool prefix)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (from == to)
        return STATUS_OK;
    prefix = prefix && tokenizer->add_space_prefix;
    bool with_words = tokenizer->prefix_unless_space || !tokenizer->spaces_first; // else normalizing puts the prefix
    struct normal_text normal;
    enum status status = encode_normalize(encoder, joined, from, to, prefix && !with_words, &normal);
    struct special_scan scan = {.tokenizer = tokenizer,
                                .index = &tokenizer->normalized,
                                .text = normal.bytes,
                                .length = normal.length,
                                .zones = normal.zones,
                                .zone_count = normal.zone_count,
                                .marks_spaces = tokenizer->spaces_first};
    uint32_t id = 0;
    while (status == STATUS_OK && id != TOKEN_NONE) {
        special_next(&scan, &from, &to, &id);
        const char *text = normal.bytes + from;
        bool put = prefix && with_words && !(tokenizer->prefix_unless_space && begins_with_space(text, to - from));
        status = put_words(encoder, text, to - from, !tokenizer->spaces_first, put);
        if (status == STATUS_OK && id != TOKEN_NONE)
            status = encoder_put(encoder, id);
        prefix = prefix && !tokenizer->prefix_at_start_only;
    }
    free(normal.bytes);
    free(normal.zones);
    return status;
}

static enum status put_joined(struct encoder *encoder, struct joined *joined)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    struct special_scan scan = {.tokenizer = tokenizer,
                                .index = &tokenizer->raw,
                                .text = joined->text,
                                .length = joined->length,
                                .zones = joined->zones,
                                .zone_count = joined->zone_count};
    bool prefix = true; // a space is put before the text that follows: at the start, and after a special token
    uint32_t id = 0;
    size_t from, to;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && id != TOKEN_NONE) {
        special_next(&scan, &from, &to, &id);
        status = put_plain(encoder, joined, from, to, prefix);
        if (status == STATUS_OK && id != TOKEN_NONE)
            status = encoder_put(encoder, id);
        prefix = !tokenizer->prefix_at_start_only;
    }
    return status;
}

// Joins the segments; the caller frees what *out has, on failure too.
static enum status join_segments(const struct text_segment *segments, uint32_t segment_count, struct joined *out,
                                 struct error *error)
{
    *out = (struct joined){.zones = calloc((size_t)segment_count + 1, sizeof *out->zones)};
    bool ok = out->zones != NULL;
    for (uint32_t i = 0; ok && i < segment_count; i++) {
        ok = checked_add_size(out->length, segments[i].length, &out->length) && out->length < SIZE_MAX;
        bool more = out->zone_count > 0 && out->zones[out->zone_count - 1].parse_special && segments[i].parse_special;
        out->zone_count += !more;
        out->zones[out->zone_count - 1] = (struct special_zone){out->length, segments[i].parse_special};
    }
    if (ok)
        out->text = malloc(out->length + 1);
    if (!out->text)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory to join %u pieces of text", segment_count);
    size_t at = 0;
    for (uint32_t i = 0; i < segment_count; at += segments[i].length, i++)
        if (segments[i].length)
            memcpy(out->text + at, segments[i].bytes, segments[i].length);
    out->text[at] = '\0'; // an empty text has a buffer, too
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_segment *segments, uint32_t segment_count,
                             bool add_special, uint32_t max_tokens, uint32_t **ids, uint32_t *count, struct error *error)
{
    struct encoder encoder = {.tokenizer = tokenizer, .error = error, .max_tokens = max_tokens};
    struct joined joined;
    *ids = NULL;
    *count = 0;
    enum status status = join_segments(segments, segment_count, &joined, error);
    bool bos = add_special && tokenizer->add_bos && tokenizer->bos != TOKEN_NONE;
    bool eos = add_special && tokenizer->add_eos && tokenizer->eos != TOKEN_NONE;
    if (status == STATUS_OK && bos)
        status = encoder_put(&encoder, tokenizer->bos);
    if (status == STATUS_OK)
        status = put_joined(&encoder, &joined);
    if (status == STATUS_OK && eos)
        status = encoder_put(&encoder, tokenizer->eos);
    free(joined.text);
    free(joined.zones);
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

// spm.c: SentencePiece-style tokenizing: characters are merged to pieces, the piece of highest score first.
//
// It is the merging of bpe.c with other tables. When the tokenizer is opened, every piece is cut in two at each place. If both parts are
// symbols, (left, right) → piece goes into the merge map, with the rank of the piece's score among all scores. A character that occurs in
// pieces but is no piece itself gets a symbol above the vocabulary, so that it can be merged. In this file a space stands for U+2581, in pieces
// as well as in the text.
//
//     piece "▁the" score -12:  (▁, the) (▁t, he) (▁th, e)  all → ▁the, where the parts exist
//
// Most vocabularies have no piece with a space after another character. Then no merge can cross such a space, and the text is cut before each
// of them, which keeps words short.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/text.h"
#include "common/tokenizer/tokenizer_state.h"

int spm_byte_of(struct text_span text)
{
    if (text.length != 6 || memcmp(text.bytes, "<0x", 3) != 0 || text.bytes[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text.bytes[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static bool is_piece(const struct tokenizer *tokenizer, uint32_t id)
{
    return tokenizer->types[id] == TOKEN_NORMAL && token_span(tokenizer, id).length > 0;
}

static bool is_valid_piece(struct text_span span)
{
    size_t broken;
    bool open;
    for (size_t i = 0, n; i < span.length; i += n)
        if ((n = clean_text_utf8_length(span.bytes + i, span.length - i, &broken, &open)) == 0)
            return false;
    return true;
}

struct scored {
    float score;
    uint32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

// Ranks pieces by score, equal for equal; *out is malloc'd [vocab].
static enum status rank_pieces(const struct tokenizer *tokenizer, const float *scores, uint32_t **out, struct error *error)
{
    uint32_t count = 0;
    uint32_t *ranks = calloc(tokenizer->vocab, sizeof *ranks);
    struct scored *order = malloc(tokenizer->vocab * sizeof *order);
    enum status status = STATUS_OK;
    if (!ranks || !order)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for the scores");
    for (uint32_t id = 0; status == STATUS_OK && id < tokenizer->vocab; id++) {
        if (scores[id] != scores[id])
            status = error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: the score of token %u is not a number", id);
        if (is_piece(tokenizer, id))
            order[count++] = (struct scored){scores[id], id};
    }
    if (status == STATUS_OK) {
        qsort(order, count, sizeof *order, by_score);
        for (uint32_t i = 0, rank = 0; i < count; i++) {
            if (i > 0 && order[i].score != order[i - 1].score)
                rank = i;
            ranks[order[i].id] = rank;
        }
    }
    free(order);
    if (status == STATUS_OK)
        *out = ranks;
    else
        free(ranks);
    return status;
}

static uint32_t symbol_of(const struct tokenizer *tokenizer, const char *bytes, size_t length)
{
    return text_map_get(&tokenizer->texts, tokenizer, bytes, length);
}

static int32_t decode_character(const char *bytes, size_t length)
{
    static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    int32_t character = (unsigned char)bytes[0] & masks[length];
    for (size_t i = 1; i < length; i++)
        character = character << 6 | ((unsigned char)bytes[i] & 0x3f);
    return character;
}

// Walks all pieces: marks in `known` the characters that are pieces, and then appends those that are not, once each.
static bool append_characters(struct tokenizer *tokenizer, unsigned char *known)
{
    size_t room = 0;
    uint32_t extra = 0;
    for (uint32_t id = 0; id < tokenizer->vocab; id++) {
        struct text_span span = token_span(tokenizer, id);
        if (!is_piece(tokenizer, id))
            continue;
        room += span.length;
        if (text_character_bytes(span.bytes[0]) == span.length)
            known[decode_character(span.bytes, span.length)] = 1;
    }
    room = MIN(room, 4 * (size_t)0x110000);
    char *bytes = realloc(tokenizer->bytes, tokenizer->offsets[tokenizer->vocab] + room + 1);
    if (!bytes)
        return false;
    tokenizer->bytes = bytes;
    uint32_t *offsets = realloc(tokenizer->offsets, (tokenizer->vocab + room + 1) * sizeof *offsets);
    if (!offsets)
        return false;
    tokenizer->offsets = offsets;
    for (uint32_t id = 0; id < tokenizer->vocab; id++) {
        struct text_span span = token_span(tokenizer, id);
        if (!is_piece(tokenizer, id))
            continue;
        for (size_t at = 0, length; at < span.length; at += length) {
            length = text_character_bytes(span.bytes[at]);
            unsigned char *mark = &known[decode_character(span.bytes + at, length)];
            if (*mark)
                continue;
            *mark = 1;
            uint32_t symbol = tokenizer->vocab + extra++;
            memcpy(bytes + offsets[symbol], span.bytes + at, length);
            offsets[symbol + 1] = offsets[symbol] + (uint32_t)length;
        }
    }
    tokenizer->symbol_count = tokenizer->vocab + extra;
    return true;
}

enum status spm_add_characters(struct tokenizer *tokenizer, struct error *error)
{
    for (uint32_t id = 0; id < tokenizer->vocab; id++)
        if (is_piece(tokenizer, id) && !is_valid_piece(token_span(tokenizer, id)))
            return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: token %u is not UTF-8", id);
    unsigned char *known = calloc(0x110000, 1);
    bool ok = known && append_characters(tokenizer, known);
    free(known);
    return ok ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for the characters of pieces");
}

// Visits each cut of piece `id`; counts those with two symbols, and puts them into the map if ranks is given.
static uint32_t cut_piece(struct tokenizer *tokenizer, uint32_t id, const uint32_t *ranks)
{
    struct text_span span = token_span(tokenizer, id);
    uint32_t cuts = 0;
    for (size_t at = text_character_bytes(span.bytes[0]); at < span.length; at += text_character_bytes(span.bytes[at])) {
        uint32_t left = symbol_of(tokenizer, span.bytes, at), right = symbol_of(tokenizer, span.bytes + at, span.length - at);
        if (left == TOKEN_NONE || right == TOKEN_NONE)
            continue;
        if (ranks)
            merge_map_put(&tokenizer->merges, left, right, ranks[id], id);
        cuts++;
    }
    return cuts;
}

// Returns whether a space follows another character in it.
static bool has_inner_space(struct text_span span)
{
    for (size_t i = 1; i < span.length; i++)
        if (span.bytes[i] == ' ' && span.bytes[i - 1] != ' ')
            return true;
    return false;
}

enum status spm_open(struct tokenizer *tokenizer, const struct tokenizer_spec *spec, struct error *error)
{
    if (!spec->scores)
        return error_set(error, STATUS_INVALID_ARGUMENT, "tokenizer: model llama needs scores");
    uint64_t cuts = 0;
    tokenizer->cut_at_spaces = true;
    for (uint32_t id = 0; id < tokenizer->vocab; id++) {
        struct text_span span = token_span(tokenizer, id);
        if (!is_piece(tokenizer, id))
            continue;
        if (has_inner_space(span))
            tokenizer->cut_at_spaces = false;
        cuts += cut_piece(tokenizer, id, NULL);
    }
    if (cuts > 1u << 28)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: the pieces make %llu merges, too many",
                         (unsigned long long)cuts);
    uint32_t *ranks;
    enum status status = rank_pieces(tokenizer, spec->scores, &ranks, error);
    if (status)
        return status;
    if (merge_map_init(&tokenizer->merges, (uint32_t)cuts)) {
        for (uint32_t id = 0; id < tokenizer->vocab; id++)
            if (is_piece(tokenizer, id))
                (void)cut_piece(tokenizer, id, ranks);
    } else {
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for %llu merges", (unsigned long long)cuts);
    }
    free(ranks);
    return status;
}

// A character without a piece: its bytes, else the unknown token.
static enum status put_unknown(struct encoder *encoder, const char *bytes, size_t length, bool *was_unknown)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    enum status status = STATUS_OK;
    if (!tokenizer->has_bytes) {
        bool again = *was_unknown; // a run of unknown characters is one token
        *was_unknown = true;
        return again || tokenizer->unknown == TOKEN_NONE ? STATUS_OK : encoder_put(encoder, tokenizer->unknown);
    }
    for (size_t i = 0; i < length && status == STATUS_OK; i++) {
        uint32_t id = tokenizer->byte_ids[(unsigned char)bytes[i]];
        if (id == TOKEN_NONE)
            id = tokenizer->unknown;
        if (id != TOKEN_NONE)
            status = encoder_put(encoder, id);
    }
    return status;
}

// How many of a stretch's characters are sure to be part of some token's text. Without byte tokens one unknown token stands for
// any number of characters, and only those that are pieces themselves count.
static size_t count_covered(const struct tokenizer *tokenizer, const char *text, size_t length, size_t count)
{
    if (tokenizer->has_bytes && tokenizer->unknown != TOKEN_NONE)
        return count;
    size_t covered = 0;
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = text_character_bytes(text[i]);
        covered += symbol_of(tokenizer, text + i, bytes) < tokenizer->vocab;
    }
    return covered;
}

// Encodes one stretch whose ends no merge crosses.
static enum status encode_stretch(struct encoder *encoder, const char *text, size_t length, bool *was_unknown)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    size_t count = 0, left = 0;
    for (size_t i = 0; i < length; i += text_character_bytes(text[i]))
        count++;
    size_t covered = count > encoder->symbol_capacity ? count_covered(tokenizer, text, length, count) : count;
    enum status status = bpe_reserve(encoder, count, covered);
    if (status)
        return status;
    count = 0;
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = text_character_bytes(text[i]);
        encoder->symbols[count++] = symbol_of(tokenizer, text + i, bytes);
    }
    status = bpe_merge(encoder, count, &left);
    for (size_t i = 0, at = 0, bytes; i < left && status == STATUS_OK; i++, at += bytes) {
        uint32_t symbol = encoder->symbols[i];
        bytes = symbol == TOKEN_NONE ? text_character_bytes(text[at]) : token_span(tokenizer, symbol).length;
        if (symbol >= tokenizer->vocab) {
            bool space = bytes == 1 && text[at] == ' ';
            status = put_unknown(encoder, space ? SPM_MARK : text + at, space ? 3 : bytes, was_unknown);
            continue;
        }
        *was_unknown = false;
        status = encoder_put(encoder, symbol);
    }
    return status;
}

size_t spm_mark_spaces(const char *text, size_t length, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < length;) {
        bool mark = length - i >= 3 && memcmp(text + i, SPM_MARK, 3) == 0;
        out[n++] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return n;
}

enum status spm_encode(struct encoder *encoder, const char *text, size_t length)
{
    enum status status = STATUS_OK;
    bool was_unknown = false;
    for (size_t from = 0, to; from < length && status == STATUS_OK; from = to) {
        to = encoder->tokenizer->cut_at_spaces ? from + 1 : length;
        while (to < length && !(text[to] == ' ' && text[to - 1] != ' '))
            to++;
        status = encode_stretch(encoder, text + from, to - from, &was_unknown);
    }
    return status;
}

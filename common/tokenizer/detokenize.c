// detokenize.c: tokens to text in a stream: whole characters only, broken ones as U+FFFD.
//
//     token bytes   "caf" | C3 | A9 " " | FF        out   "caf" | "" | "é " | "�"
#include <string.h>

#include "common/base/checked.h"
#include "common/tokenizer/tokenizer_state.h"

void detokenizer_init(struct detokenizer *detokenizer, const struct tokenizer *tokenizer, bool skip_special)
{
    memset(detokenizer, 0, sizeof *detokenizer);
    detokenizer->tokenizer = tokenizer;
    detokenizer->skip_special = skip_special;
    detokenizer->drop_space = tokenizer->kind == TOKENIZER_SPM && tokenizer->add_space_prefix;
}

static size_t put_replacement(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

// Adds one byte to the pending start of a character, which it completes, continues or breaks.
static size_t push_byte(struct detokenizer *d, char byte, char *out)
{
    size_t n = 0, broken;
    bool open;
    char *pending = (char *)d->pending;
    pending[d->pending_bytes++] = byte;
    size_t bytes = clean_text_utf8_length(pending, d->pending_bytes, &broken, &open);
    if (bytes == 0 && open)
        return 0;
    if (bytes == 0 && d->pending_bytes > 1) { // the byte does not continue the pending character: it starts a new one
        n = put_replacement(out);
        pending[0] = byte;
        d->pending_bytes = 1;
        bytes = clean_text_utf8_length(pending, 1, &broken, &open);
        if (bytes == 0 && open)
            return n;
    }
    if (bytes == 0) {
        n += put_replacement(out + n);
    } else {
        memcpy(out + n, pending, bytes);
        n += bytes;
    }
    d->pending_bytes = 0;
    return n;
}

size_t detokenizer_push(struct detokenizer *detokenizer, uint32_t id, char *out, size_t out_capacity)
{
    const struct tokenizer *tokenizer = detokenizer->tokenizer;
    assert_always(out_capacity >= tokenizer->max_token_bytes + 8);
    if (detokenizer->skip_special && tokenizer_is_control(tokenizer, id))
        return 0;
    struct text_span span = tokenizer_token_bytes(tokenizer, id);
    bool control = tokenizer_is_control(tokenizer, id);
    if (detokenizer->drop_space && !control && span.length > 0) {
        if (span.bytes[0] == ' ')
            span = (struct text_span){span.bytes + 1, span.length - 1};
        detokenizer->drop_space = false;
    }
    size_t n = 0;
    for (size_t i = 0; i < span.length; i++)
        n += push_byte(detokenizer, span.bytes[i], out + n);
    return n;
}

size_t detokenizer_flush(struct detokenizer *detokenizer, char *out, size_t out_capacity)
{
    assert_always(out_capacity >= 4);
    detokenizer->drop_space = false;
    if (detokenizer->pending_bytes == 0)
        return 0;
    detokenizer->pending_bytes = 0;
    return put_replacement(out);
}

// grammar_vocab.c: see grammar_vocab.h.
#include "common/grammar/grammar_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/grammar/grammar_vocab_state.h"

enum { MAX_BYTES = 1 << 30, MAX_TOKENS = 1 << 24 };

static enum status copy_bytes(struct grammar_vocab *vocab, grammar_token_fn *bytes_of, void *arg, struct error *error)
{
    char *scratch = malloc(GRAMMAR_TOKEN_BYTES);
    struct text text = {0};

    for (uint32_t t = 0; scratch && t < vocab->token_count; t++) {
        const char *bytes = scratch;
        size_t length = bytes_of(arg, t, scratch, &bytes);
        vocab->starts[t] = (uint32_t)text.bytes;
        if (length <= GRAMMAR_TOKEN_BYTES) // longer ones are none
            text_append(&text, bytes, length);
        if (text.failed || text.bytes > MAX_BYTES)
            break;
        vocab->starts[t + 1] = (uint32_t)text.bytes;
    }
    free(scratch);
    vocab->bytes = text.data;
    if (!scratch || text.failed || text.bytes > MAX_BYTES)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    return STATUS_OK;
}

enum status grammar_vocab_open(uint32_t token_count, grammar_token_fn *bytes_of, void *arg, struct grammar_vocab **out,
                               struct error *error)
{
    struct grammar_vocab *vocab = token_count <= MAX_TOKENS ? calloc(1, sizeof *vocab) : NULL;
    enum status status;

    *out = NULL;
    if (!vocab)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    vocab->token_count = token_count;
    vocab->starts = calloc((size_t)token_count + 1, sizeof *vocab->starts);
    status = vocab->starts ? copy_bytes(vocab, bytes_of, arg, error) : error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    if (status)
        grammar_vocab_close(vocab);
    else
        *out = vocab;
    return status;
}

void grammar_vocab_close(struct grammar_vocab *vocab)
{
    if (!vocab)
        return;
    free(vocab->starts);
    free(vocab->bytes);
    free(vocab);
}

uint32_t grammar_vocab_tokens(const struct grammar_vocab *vocab) { return vocab->token_count; }

// fuzz_grammar_text.c: libFuzzer target: any bytes as a regular expression or as GBNF. The first byte says which; what is behind the first zero byte is followed
// through what was compiled, whose packed form must give the same.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/build.h"
#include "common/grammar/cursor.h"

enum { MAX_FOLLOWED = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t byte_token(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    (void)arg;
    scratch[0] = (char)token;
    *bytes = scratch;
    return 1;
}

static struct grammar_tracker *open_tracker(struct grammar *grammar)
{
    static struct grammar_vocab *vocab; // of all runs
    struct grammar_tracker *tracker;
    struct error error;

    if (!vocab && grammar_vocab_open(256, byte_token, NULL, &vocab, &error))
        abort();
    if (grammar_tracker_open(grammar, vocab, GRAMMAR_TRACKER_MIN_BYTES, &tracker, &error))
        abort();
    return tracker;
}

static void follow(struct grammar *grammar, const char *text, size_t length)
{
    struct grammar *copy;
    struct error error;
    size_t bytes;
    const void *packed = grammar_packed(grammar, &bytes);
    uint32_t words[8];

    assert_always(grammar_unpack(packed, bytes, &copy, &error) == STATUS_OK && grammar_hash(copy) == grammar_hash(grammar));
    struct grammar_tracker *trackers[] = {open_tracker(grammar), open_tracker(copy)};
    struct grammar_cursor *a = grammar_cursor_open(trackers[0]), *b = grammar_cursor_open(trackers[1]);
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i];
        grammar_cursor_mask(a, words);
        bool allowed = words[byte / 32] >> byte % 32 & 1;
        assert_always(grammar_cursor_take(a, byte) == allowed && grammar_cursor_take_bytes(b, text + i, 1) == allowed);
        assert_always(grammar_cursor_may_end(a) == grammar_cursor_may_end(b));
        grammar_cursor_mask(a, words);
        bool any = false; // whoever is alive can end or go on
        for (uint32_t w = 0; w < 8; w++)
            any |= words[w] != 0;
        assert_always(any != (grammar_cursor_is_dead(a) || grammar_cursor_must_end(a)));
    }
    grammar_cursor_close(a);
    grammar_cursor_close(b);
    grammar_tracker_close(trackers[0]);
    grammar_tracker_close(trackers[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1, *zero = size ? memchr(text, 0, size - 1) : NULL;
    size_t length = zero ? (size_t)(zero - text) : size - 1;
    struct grammar_builder *builder;
    struct grammar *grammar;
    struct error error;
    enum status status;
    uint32_t root;

    if (size < 1)
        return 0;
    builder = grammar_builder_open();
    root = data[0] % 4 == 0   ? grammar_add_gbnf(builder, text, length)
           : data[0] % 4 == 1 ? grammar_add_regex(builder, text, length, true)
           : data[0] % 4 == 2
               ? grammar_add_regex(builder, text, length, false)
               : grammar_without(builder, grammar_add_regex(builder, text, length, false), grammar_text_before(builder, "a"));
    status = grammar_compile(builder, root, &grammar, &error);
    grammar_builder_close(builder);
    if (status)
        assert_always(!grammar && error.text[0] && error.status == status);
    else
        follow(grammar, zero ? zero + 1 : "", zero ? MIN(size - length - 2, (size_t)MAX_FOLLOWED) : 0);
    return 0;
}

// fuzz_grammar_unpack.c: libFuzzer target: any bytes as a packed grammar. What is accepted can be followed, and its masks are what trials of the tokens say.
// The first byte is the number of bytes at the end that are followed.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/grammar/cursor.h"

enum { TOKENS = 64, SHORT = 400 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const texts[] = {"a",  "b",   "\"",      "{",   "}",          "\xc3\xa9", "\xc3", "\xa9",
                                    "ab", "\":", "\xff<s>", "a\"", "\xc3\xa9\"", "1",        "[",    "]"};

static size_t token_text(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    (void)arg;
    if (token < ARRAY_COUNT(texts)) {
        *bytes = texts[token];
        return strlen(texts[token]);
    }
    scratch[0] = (char)(token * 5);
    scratch[1] = (char)(token * 3);
    *bytes = scratch;
    return 1 + token % 2;
}

static void check_masks(struct grammar_tracker *tracker, const uint8_t *text, size_t length)
{
    struct grammar_cursor *cursor = grammar_cursor_open(tracker), *trial = grammar_cursor_open(tracker);
    uint32_t words[TOKENS / 32];

    for (size_t i = 0; i < length; i++) {
        grammar_cursor_mask(cursor, words);
        for (uint32_t t = 0; t < TOKENS; t++) {
            grammar_cursor_copy(trial, cursor);
            assert_always(grammar_cursor_take(trial, t) == (words[t / 32] >> t % 32 & 1));
        }
        if (!grammar_cursor_take(cursor, text[i] % TOKENS))
            break;
    }
    grammar_cursor_close(cursor);
    grammar_cursor_close(trial);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct grammar_vocab *vocab; // of all runs
    struct grammar_tracker *tracker;
    struct grammar *grammar;
    struct error error = {0};
    size_t followed = size ? MIN((size_t)data[0] % 16, size - 1) : 0;

    if (!size)
        return 0;
    if (!vocab && grammar_vocab_open(TOKENS, token_text, NULL, &vocab, &error))
        abort();
    if (grammar_unpack(data + 1, size - 1 - followed, &grammar, &error)) {
        assert_always(!grammar && error.text[0]);
        return 0;
    }
    if (grammar_tracker_open(grammar, vocab, GRAMMAR_TRACKER_MIN_BYTES, &tracker, &error))
        abort();
    check_masks(tracker, data + size - followed, size < SHORT ? followed : MIN(followed, (size_t)1));
    grammar_tracker_close(tracker);
    return 0;
}

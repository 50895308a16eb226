// test_grammar_build.c: random grammars beside a matcher that is nothing but their definition; each kind of node; limits; packing.
#include "common/grammar/grammar_tracker_state.h"
#include "tests/unit/grammar_rig.h"
#include "tests/unit/sample.h"

enum { GRAMMARS = 6000, TEXTS = 24, SEARCH_CURSORS = 400, SEARCH_BYTES = 24 };

static uint32_t searches, far; // ends looked for, and those that are too far away to be found
static const char letters[] = "ab\"<s>\xff\xc3\xa9\x80z0 \xd0\xe1\xf1";

// Looks for a way to end the text, the shortest first. Returns its length, or -1.
static int find_end(struct grammar_tracker *tracker, const struct grammar_cursor *from, char *out)
{
    static struct found {
        struct grammar_cursor *cursor;
        char text[SEARCH_BYTES];
        uint32_t length;
    } queue[SEARCH_CURSORS];
    uint32_t count = 1;
    int length = -1;

    queue[0] = (struct found){.cursor = grammar_cursor_open(tracker)};
    grammar_cursor_copy(queue[0].cursor, from);
    for (uint32_t i = 0; i < count && length < 0; i++) {
        if (grammar_cursor_may_end(queue[i].cursor)) {
            length = (int)queue[i].length;
            memcpy(out, queue[i].text, queue[i].length);
        }
        for (uint32_t b = 0; b < sizeof letters - 1 && length < 0 && count < SEARCH_CURSORS && queue[i].length < SEARCH_BYTES;
             b++) {
            struct found *next = &queue[count];
            *next = queue[i];
            next->cursor = grammar_cursor_open(tracker);
            grammar_cursor_copy(next->cursor, queue[i].cursor);
            next->text[next->length++] = letters[b];
            bool is_new = grammar_cursor_take_bytes(next->cursor, letters + b, 1);
            for (uint32_t k = 0; k < count && is_new;
                 k++) // nothing is tidied up in so little time, so equal places are known by their names
                is_new = queue[k].cursor->configuration != next->cursor->configuration;
            if (is_new)
                count++;
            else
                grammar_cursor_close(next->cursor);
        }
    }
    while (count)
        grammar_cursor_close(queue[--count].cursor);
    return length;
}

// What is alive can be completed, and the completion is a match; what must end has no byte after it.
static void check_rest(struct rig_grammar *drawn, struct grammar_tracker *tracker, struct grammar_cursor *cursor, const char *text,
                       uint32_t length)
{
    char whole[RIG_TEXT + SEARCH_BYTES];
    int more = find_end(tracker, cursor, whole + length);
    struct grammar_cursor *copy = grammar_cursor_open(tracker);
    bool any = false;

    searches++;
    far += more < 0;
    memcpy(whole, text, length);
    if (more >= 0 && length + (uint32_t)more <= RIG_TEXT)
        assert_true(rig_matched_prefixes(drawn, whole, length + (uint32_t)more) >> (length + (uint32_t)more) & 1);
    for (int byte = 0; byte < 256; byte++) {
        const char one = (char)byte;
        grammar_cursor_copy(copy, cursor);
        any |= grammar_cursor_take_bytes(copy, &one, 1);
    }
    assert_int_equal(grammar_cursor_must_end(cursor), !any);
    grammar_cursor_close(copy);
}

// Returns how many prefixes matched.
static uint32_t check_text(struct rig_grammar *drawn, struct grammar_tracker *tracker, const char *text, uint32_t length)
{
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    uint32_t prefixes = rig_matched_prefixes(drawn, text, length), matched = 0;

    for (uint32_t at = 0; at <= length; at++) {
        bool matches = prefixes >> at & 1;
        assert_int_equal(grammar_cursor_may_end(cursor), matches);
        matched += matches;
        if (at == length || !grammar_cursor_take_bytes(cursor, text + at, 1))
            break;
    }
    if (!grammar_cursor_is_dead(cursor))
        check_rest(drawn, tracker, cursor, text, length);
    else
        for (uint32_t byte = 0; byte < length; byte++)
            assert_false(grammar_cursor_take_bytes(cursor, text + byte, 1));
    grammar_cursor_close(cursor);
    return matched;
}

static void check_packed(const struct rig_grammar *drawn, const struct grammar *compiled, struct grammar **copy)
{
    struct grammar *again;
    struct error error;
    size_t bytes, bytes_again;
    const void *packed = grammar_packed(compiled, &bytes);

    assert_int_equal(grammar_unpack(packed, bytes, copy, &error), STATUS_OK);
    again = rig_compile(drawn, &error);
    const void *packed_again = grammar_packed(again, &bytes_again);
    assert_int_equal(bytes, bytes_again);
    assert_memory_equal(packed, packed_again, bytes);
    assert_true(grammar_hash(compiled) == grammar_hash(again) && grammar_hash(compiled) == grammar_hash(*copy));
    grammar_free(again);
}

static void random_grammars(void **unused)
{
    (void)unused;
    static struct rig_grammar drawn;
    struct grammar_vocab *vocab = rig_vocab(256, rig_byte_token, NULL);
    uint32_t compiled_count = 0, looping = 0, nothing = 0, matched = 0;

    for (uint32_t i = 0; i < GRAMMARS; i++) {
        char text[RIG_TEXT + 8];
        struct error error;
        struct grammar *grammar, *copy;
        if (!in_sample(i, 7, 101))
            continue;
        rig_state = i;
        rig_draw_grammar(&drawn);
        grammar = rig_compile(&drawn, &error);
        if (!grammar) {
            assert_int_equal(error.status, STATUS_INVALID_ARGUMENT);
            looping += strstr(error.text, "calls itself") != NULL;
            nothing += strstr(error.text, "no text") != NULL;
            continue;
        }
        compiled_count++;
        check_packed(&drawn, grammar, &copy);
        grammar_free(grammar);
        struct grammar_tracker *tracker = rig_tracker(copy, vocab, RIG_TRACKER_BYTES);
        for (uint32_t t = 0; t < TEXTS; t++) {
            uint32_t length = rig_draw_text(text);
            matched += length <= RIG_TEXT ? check_text(&drawn, tracker, text, length) : 0;
        }
        grammar_tracker_close(tracker);
    }
    grammar_vocab_close(vocab);
    print_message("%u grammars, %u looping, %u empty, %u matches, %u of %u ends far\n", compiled_count, looping, nothing, matched,
                  far, searches);
    assert_true(compiled_count > 2 * looping && matched > compiled_count && far * 50 < searches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_grammars)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

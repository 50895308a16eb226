// test_grammar_cursor.c: masks beside the trial of each token, memory that is tidied up all the time, cursors that share a tracker.
#include "common/grammar/tracker_state.h"
#include "tests/unit/grammar_from.h"
#include "tests/unit/grammar_rig.h"
#include "tests/unit/sample.h"

enum {
    TOKENS = 600,
    WORDS = (TOKENS + 31) / 32,
    GRAMMARS = 700,
    STEPS = 12,
    SLACK_WORDS = 60, // of a tracker that is tight: beside what a step may take
    CURSORS = 5,
    TOKEN_MAX = 16,
};

static char tokens[TOKENS][TOKEN_MAX];
static uint8_t token_bytes[TOKENS];

static size_t token_text(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    *bytes = tokens[token];
    return token_bytes[token];
}

// Bytes and parts of characters, words, ends of strings, control tokens, some tokens twice and some that are none.
static struct grammar_vocab *draw_vocab(void)
{
    static const char *const pieces[] = {"a",
                                         "b",
                                         "ab",
                                         "\xc3\xa9",
                                         "\xc3",
                                         "\xa9",
                                         "\"",
                                         "\\",
                                         ",",
                                         ":",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         "1",
                                         "x",
                                         " ",
                                         "\n",
                                         "\xe2\x80\xa8",
                                         "\xe2\x80",
                                         "\xf0\x9f\x98\x80",
                                         "\xf0\x9f",
                                         "\x7f",
                                         "true"};
    rig_state = 99;
    for (uint32_t t = 0; t < TOKENS; t++) {
        uint32_t wanted = t < ARRAY_COUNT(pieces) ? 1 : t % 50 == 0 ? 0 : 1 + rig_draw(5);
        token_bytes[t] = 0;
        for (uint32_t i = 0; i < wanted; i++) {
            const char *piece = pieces[t < ARRAY_COUNT(pieces) ? t : rig_draw(rig_draw(2) ? 4 : (uint32_t)ARRAY_COUNT(pieces))];
            if (token_bytes[t] + strlen(piece) > TOKEN_MAX)
                break;
            memcpy(tokens[t] + token_bytes[t], piece, strlen(piece));
            token_bytes[t] = (uint8_t)(token_bytes[t] + strlen(piece));
        }
    }
    memcpy(tokens[TOKENS - 1], "\xff<s>", 4);
    memcpy(tokens[TOKENS - 2], "<s>", 3);
    memcpy(tokens[TOKENS - 3], "\xff<t>", 4);
    token_bytes[TOKENS - 1] = token_bytes[TOKENS - 3] = 4;
    token_bytes[TOKENS - 2] = 3;
    return rig_vocab(TOKENS, token_text, NULL);
}

static bool is_allowed(const uint32_t *words, uint32_t token) { return words[token / 32] >> token % 32 & 1; }

static void check_mask(struct grammar_tracker *tracker, struct grammar_cursor *cursor, uint32_t *words)
{
    struct grammar_cursor *trial = grammar_cursor_open(tracker);

    grammar_cursor_mask(cursor, words);
    for (uint32_t t = 0; t < TOKENS; t++) {
        grammar_cursor_copy(trial, cursor);
        assert_int_equal(grammar_cursor_take(trial, t), is_allowed(words, t));
        assert_int_equal(grammar_cursor_is_dead(trial), !is_allowed(words, t));
    }
    grammar_cursor_close(trial);
    assert_true(grammar_cursor_mask_is_ready(cursor));
}

// Draws an allowed token, or TOKENS if there is none.
static uint32_t draw_token(const uint32_t *words)
{
    uint32_t allowed[TOKENS], count = 0;

    for (uint32_t t = 0; t < TOKENS; t++)
        if (is_allowed(words, t))
            allowed[count++] = t;
    return count ? allowed[rig_draw(count)] : (uint32_t)TOKENS;
}

static struct grammar *copy_of(const struct grammar *grammar)
{
    struct grammar *copy;
    struct error error;
    size_t bytes;
    const void *packed = grammar_packed(grammar, &bytes);

    assert_int_equal(grammar_unpack(packed, bytes, &copy, &error), STATUS_OK);
    return copy;
}

// Makes memory so tight that it is tidied up after every few steps.
static void tighten(struct grammar_tracker *tracker)
{
    assert_true(tracker->word_count + GRAMMAR_MAX_STEP + SLACK_WORDS < tracker->word_capacity);
    tracker->word_capacity = GRAMMAR_MAX_STEP + SLACK_WORDS;
}

// Follows a random way through a grammar, which it takes over. Returns how often the tight tracker was tidied up.
static uint32_t follow(struct grammar *grammar, const struct grammar_vocab *vocab)
{
    struct grammar_tracker *tight = rig_tracker(copy_of(grammar), vocab, RIG_TRACKER_BYTES);
    struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = grammar_cursor_open(tracker), *other = grammar_cursor_open(tight);
    uint32_t words[WORDS], tight_words[WORDS], tidied;

    tighten(tight);
    for (uint32_t step = 0; step < STEPS; step++) {
        check_mask(tracker, cursor, words);
        grammar_cursor_mask(other, tight_words);
        assert_memory_equal(words, tight_words, sizeof words);
        assert_int_equal(grammar_cursor_may_end(cursor), grammar_cursor_may_end(other));
        assert_int_equal(grammar_cursor_must_end(cursor), grammar_cursor_must_end(other));
        uint32_t token = draw_token(words);
        if (token == TOKENS)
            break;
        assert_true(grammar_cursor_take(cursor, token) && grammar_cursor_take(other, token));
    }
    tidied = tight->tidied;
    grammar_cursor_close(cursor);
    grammar_cursor_close(other);
    grammar_tracker_close(tracker);
    grammar_tracker_close(tight);
    return tidied;
}

static void random_grammars(void **unused)
{
    static struct rig_grammar drawn;
    struct grammar_vocab *vocab = draw_vocab();
    uint32_t followed = 0, tidied = 0;

    for (uint32_t i = 0; i < GRAMMARS; i++) {
        struct error error;
        struct grammar *grammar;
        if (!in_sample(i, 17, 53))
            continue;
        rig_state = 1000000 + i;
        rig_draw_grammar(&drawn);
        grammar = rig_compile(&drawn, &error);
        if (!grammar)
            continue;
        followed++;
        tidied += follow(grammar, vocab);
    }
    print_message("%u grammars, tidied up %u times\n", followed, tidied);
    assert_true(followed > 5 && tidied > followed / 2);
    grammar_vocab_close(vocab);
}

// Strings of any length, of at least and at most so many characters, with parts that are not plain, in which all characters are not alike.
static const char *const string_grammars[] = {
    "root ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1f] | \"\\\\\" [\"\\\\n] )* \"\\\"\"",
    "root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{0,5} \"\\\"\"",
    "root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{3,7} \"\\\"\" \",\"? \"x\"*",
    "root ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f\\x7f] | \"\\\\\" \"x\"){2,} \"\\\"\"",
    "root ::= [^\"]* \"\\\"\" | [^\"] [^\"] \"\\n\" .*",
    "root ::= . . [ab]* | .{4} \"x\"",
    "root ::= ( .{2} ( \"a\" | \"\\u00e9\" ) )*",
    "root ::= \"\\\"\" [a-z\\u00e9]* \"\\\"\"",
    "root ::= [^\\U0001F600]* \"\\U0001F600\" root | .*",
    "root ::= <s> \"a\"* <s> <t>?",
};

static void strings(void **unused)
{
    struct grammar_vocab *vocab = draw_vocab();
    uint32_t chains = 0;

    for (uint32_t i = 0; i < ARRAY_COUNT(string_grammars); i++)
        for (uint32_t turn = 0; turn < 6; turn++) {
            struct grammar *grammar;
            struct error error;
            assert_int_equal(grammar_from_gbnf(string_grammars[i], strlen(string_grammars[i]), &grammar, &error), STATUS_OK);
            rig_state = i * 100 + turn;
            follow(grammar, vocab);
        }
    // The short way is taken: in the string of the first grammar all plain tokens are allowed, without a walk over them.
    struct grammar *grammar;
    struct error error;
    assert_int_equal(grammar_from_gbnf(string_grammars[0], strlen(string_grammars[0]), &grammar, &error), STATUS_OK);
    struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    uint32_t words[WORDS];
    assert_true(grammar_cursor_take_bytes(cursor, "\"", 1));
    assert_false(grammar_cursor_mask_is_ready(cursor));
    grammar_cursor_mask(cursor, words);
    chains += tracker->words[cursor->configuration + CONFIGURATION_PLAIN] == cursor->configuration;
    assert_int_equal(chains, 1);
    grammar_cursor_close(cursor);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
}

// Cursors of one tracker, whose memory is tight and whose masks are few, go their ways in turn; each is where one alone would be.
static void shared_tracker(void **unused)
{
    static const char text[] =
        "root ::= \"[\" ( item ( \",\" item )* )? \"]\"\n"
        "item ::= root | \"\\\"\" [^\"]{0,9} \"\\\"\" | [0-9]+ | \"true\" | \"{\" ( \"a\" | \"b\" ) \":\" item \"}\"\n";
    struct grammar_vocab *vocab = draw_vocab();
    struct grammar *grammar;
    struct grammar_cursor *cursors[CURSORS];
    uint32_t taken[CURSORS][64], counts[CURSORS] = {0}, words[WORDS], alone_words[WORDS];
    struct error error;

    assert_int_equal(grammar_from_gbnf(text, strlen(text), &grammar, &error), STATUS_OK);
    struct grammar_tracker *alone = rig_tracker(copy_of(grammar), vocab, RIG_TRACKER_BYTES);
    struct grammar_tracker *shared = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    for (uint32_t c = 0; c < CURSORS; c++)
        cursors[c] = grammar_cursor_open(shared);
    tighten(shared);
    shared->word_capacity += 500;
    shared->mask_count = 2;
    rig_state = 5;
    for (uint32_t turn = 0; turn < 120; turn++) {
        uint32_t c = rig_draw(CURSORS);
        struct grammar_cursor *one = grammar_cursor_open(alone);
        for (uint32_t i = 0; i < counts[c]; i++)
            assert_true(grammar_cursor_take(one, taken[c][i]));
        grammar_cursor_mask(one, alone_words);
        grammar_cursor_mask(cursors[c], words);
        assert_memory_equal(words, alone_words, sizeof words);
        assert_int_equal(grammar_cursor_may_end(one), grammar_cursor_may_end(cursors[c]));
        uint32_t token = draw_token(words);
        if (token == TOKENS || counts[c] == 60) { // goes on where another one is
            uint32_t other = (c + 1) % CURSORS;
            grammar_cursor_copy(cursors[c], cursors[other]);
            memcpy(taken[c], taken[other], sizeof taken[c]);
            counts[c] = counts[other] == 60 ? 0 : counts[other];
            if (counts[other] == 60) {
                grammar_cursor_close(cursors[c]);
                shared->word_capacity *= 8; // so that opening one allocates nothing
                cursors[c] = grammar_cursor_open(shared);
                shared->word_capacity /= 8;
            }
        } else {
            assert_true(grammar_cursor_take(cursors[c], token));
            taken[c][counts[c]++] = token;
        }
        grammar_cursor_close(one);
    }
    assert_true(shared->tidied > 20);
    for (uint32_t c = 0; c < CURSORS; c++)
        grammar_cursor_close(cursors[c]);
    grammar_tracker_close(shared);
    grammar_tracker_close(alone);
    grammar_vocab_close(vocab);
}

// Tidying up keeps the masks as long as there is room for what they belong to.
static void kept_masks(void **unused)
{
    static const char text[] = "root ::= \"\\\"\" [^\"\\x00-\\x1f]{0,6000} \"\\\"\"\n";
    struct grammar_vocab *vocab = draw_vocab();
    struct grammar *grammar;
    struct error error;
    uint32_t words[WORDS], again[WORDS];

    assert_int_equal(grammar_from_gbnf(text, strlen(text), &grammar, &error), STATUS_OK);
    struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = grammar_cursor_open(tracker), *start = grammar_cursor_open(tracker);
    grammar_cursor_mask(start, words);
    grammar_cursor_close(start);
    assert_true(grammar_cursor_take_bytes(cursor, "\"", 1));
    while (!tracker->tidied)
        assert_true(grammar_cursor_take_bytes(cursor, "a", 1));
    start = grammar_cursor_open(tracker);
    assert_true(grammar_cursor_mask_is_ready(start));
    grammar_cursor_mask(start, again);
    assert_memory_equal(words, again, sizeof words);
    check_mask(tracker, start, again);
    grammar_cursor_close(start);
    grammar_cursor_close(cursor);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
}

static void dead_cursors(void **unused)
{
    struct grammar_vocab *vocab = draw_vocab();
    struct grammar *grammar;
    struct error error;
    uint32_t words[WORDS];

    assert_int_equal(grammar_from_regex("ab?", 3, &grammar, &error), STATUS_OK);
    struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = grammar_cursor_open(tracker), *dead = grammar_cursor_open(tracker);
    assert_true(grammar_tracker_grammar(tracker) == grammar);
    assert_false(grammar_cursor_take(dead, 1)); // "b"
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(grammar_cursor_is_dead(dead) && !grammar_cursor_may_end(dead) && !grammar_cursor_must_end(dead));
        assert_true(grammar_cursor_mask_is_ready(dead));
        memset(words, 0xff, sizeof words);
        grammar_cursor_mask(dead, words);
        for (uint32_t w = 0; w < WORDS; w++)
            assert_int_equal(words[w], 0);
        assert_false(grammar_cursor_take(dead, 0));
    }
    grammar_cursor_copy(dead, cursor);
    assert_true(grammar_cursor_take(dead, 2) && grammar_cursor_must_end(dead) && grammar_cursor_may_end(dead)); // "ab"
    grammar_cursor_mask(dead, words);
    assert_int_equal(draw_token(words), TOKENS);
    assert_true(grammar_cursor_take(cursor, 0) && grammar_cursor_may_end(cursor) && !grammar_cursor_must_end(cursor));
    assert_false(grammar_cursor_take(cursor, 50)); // it has no bytes
    assert_true(grammar_cursor_is_dead(cursor));
    grammar_cursor_copy(cursor, dead);
    assert_false(grammar_cursor_take(cursor, TOKENS));
    assert_false(grammar_cursor_take(cursor, UINT32_MAX));
    grammar_cursor_close(cursor);
    grammar_cursor_close(dead);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
}

// A text that nests without end meets the limit, always at the same depth, and can still be completed.
static void deep_nesting(void **unused)
{
    static const char text[] = "root ::= \"[\" ( root ( \",\" root )* )? \"]\"\n";
    struct grammar_vocab *vocab = draw_vocab();
    uint32_t depths[2] = {0};

    for (uint32_t is_tight = 0; is_tight < 2; is_tight++) {
        struct grammar *grammar;
        struct error error;
        assert_int_equal(grammar_from_gbnf(text, strlen(text), &grammar, &error), STATUS_OK);
        struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
        struct grammar_cursor *cursor = grammar_cursor_open(tracker), *before = grammar_cursor_open(tracker);
        if (is_tight) // with room for two cursors and little more
            tracker->word_capacity = 4 * GRAMMAR_MAX_CONFIGURATION + GRAMMAR_MAX_STEP;
        while (grammar_cursor_take_bytes(cursor, "[", 1)) {
            grammar_cursor_copy(before, cursor);
            depths[is_tight]++;
        }
        for (uint32_t i = 0; i < depths[is_tight]; i++)
            assert_true(!grammar_cursor_may_end(before) && grammar_cursor_take_bytes(before, "]", 1));
        assert_true(grammar_cursor_must_end(before));
        grammar_cursor_close(cursor);
        grammar_cursor_close(before);
        grammar_tracker_close(tracker);
    }
    print_message("%u levels\n", depths[0]);
    assert_true(depths[0] > 500);
    assert_int_equal(depths[0], depths[1]);
    grammar_vocab_close(vocab);
}

// A list that calls itself at its end needs no stack, however long it gets.
static void tail_calls(void **unused)
{
    static const char text[] = "root ::= \"a\" root | \"b\"\n";
    struct grammar_vocab *vocab = draw_vocab();
    struct grammar *grammar;
    struct error error;

    assert_int_equal(grammar_from_gbnf(text, strlen(text), &grammar, &error), STATUS_OK);
    struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    assert_true(grammar_cursor_take_bytes(cursor, "a", 1));
    const uint32_t words = tracker->word_count;
    for (uint32_t i = 0; i < 10000; i++)
        assert_true(grammar_cursor_take_bytes(cursor, "a", 1));
    assert_int_equal(tracker->word_count, words);
    grammar_cursor_close(cursor);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
}

enum { WORD_LETTERS = 12, WORD_TOKENS = 1 << WORD_LETTERS, WORD_MASK = WORD_TOKENS / 32 };

// All words of so many letters a and b.
static size_t two_letters(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    for (uint32_t i = 0; i < WORD_LETTERS; i++)
        scratch[i] = (char)('a' + (token >> i & 1));
    *bytes = scratch;
    return WORD_LETTERS;
}

static struct grammar_tracker *ambiguous_tracker(const struct grammar_vocab *vocab, uint32_t length)
{
    char regex[64];
    struct grammar *grammar;
    struct error error;

    snprintf(regex, sizeof regex, "[ab]*a[ab]{%u}", length);
    assert_int_equal(grammar_from_regex(regex, strlen(regex), &grammar, &error), STATUS_OK);
    return rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
}

// There is no mask if each token leads to a configuration of its own that has hundreds of pairs; otherwise, and without the limit, there is.
static void masks_that_cost_too_much(void **unused)
{
    struct grammar_vocab *vocab = rig_vocab(WORD_TOKENS, two_letters, NULL);
    uint32_t words[WORD_MASK];

    for (uint32_t length = 8; length <= 800; length *= 100) {
        struct grammar_tracker *tracker = ambiguous_tracker(vocab, length);
        struct grammar_cursor *cursor = grammar_cursor_open(tracker);
        rig_state = 7;
        for (uint32_t i = 0; i < length; i++) {
            const char letter = (char)('a' + rig_draw(2));
            assert_true(grammar_cursor_take_bytes(cursor, &letter, 1));
        }
        memset(words, 0xff, sizeof words);
        assert_int_equal(grammar_cursor_mask(cursor, words), length == 8);
        assert_int_equal(grammar_cursor_mask_is_ready(cursor), length == 8);
        for (uint32_t w = 0; w < WORD_MASK; w++)
            assert_int_equal(words[w], length == 8 ? UINT32_MAX : 0);
        tracker->mask_work = UINT64_MAX / 2;
        assert_true(grammar_cursor_mask(cursor, words));
        for (uint32_t w = 0; w < WORD_MASK; w++)
            assert_int_equal(words[w], UINT32_MAX);
        grammar_cursor_close(cursor);
        grammar_tracker_close(tracker);
    }
    grammar_vocab_close(vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars), cmocka_unit_test(strings),
        cmocka_unit_test(shared_tracker),  cmocka_unit_test(kept_masks),
        cmocka_unit_test(dead_cursors),    cmocka_unit_test(deep_nesting),
        cmocka_unit_test(tail_calls),      cmocka_unit_test(masks_that_cost_too_much),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

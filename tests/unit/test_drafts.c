// test_drafts.c: the guesses at a sequence's next tokens.
#include <string.h>

#include "services/scheduler/drafts.h"
#include "tests/cmocka.h"

enum { CAPACITY = 40000 };

static uint32_t tokens[CAPACITY];
static struct draft_odds all;

static uint32_t put(const char *letters)
{
    uint32_t count = (uint32_t)strlen(letters);
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (uint32_t)letters[i];
    return count;
}

// Returns the guesses after the letters, as letters; "": none. Checks that they are the same whether tokens came one by one or at once.
static const char *guessed(const char *letters, uint32_t most)
{
    static char text[64];
    struct draft draft = {0}, at_once = {0};
    double chance = -1;
    uint32_t count = put(letters);
    draft_odds_init(&all);
    draft_follow(&at_once, tokens, count, &all);
    for (uint32_t i = 1; i <= count; i++)
        draft_follow(&draft, tokens, i, &all);
    assert_int_equal(at_once.length, draft.length);
    assert_true(draft.length == 0 || at_once.at == draft.at);
    uint32_t guesses = draft_guess(&draft, tokens, count, most, &chance);
    assert_true(draft.length == 0 ? guesses == 0 && chance == 0 : guesses == most && chance > 0 && chance < 1);
    for (uint32_t i = 0; i < guesses; i++)
        text[i] = (char)tokens[count + i];
    text[guesses] = '\0';
    return text;
}

static void what_followed_before_is_guessed(void **state)
{
    assert_string_equal(guessed("", 4), "");
    assert_string_equal(guessed("a", 4), "");
    assert_string_equal(guessed("abcdefgh", 4), "");
    assert_string_equal(guessed("abcdea", 4), ""); // one alike is no run
    assert_string_equal(guessed("abcdefg..bc", 4), "defg");
    assert_string_equal(guessed("abcdefg..bc", 2), "de");
    assert_string_equal(guessed("abcdefg..bc", 0), "");
    assert_string_equal(guessed("xyabcabcab", 8), "cabcabca"); // behind the end of what is known, too
    assert_string_equal(guessed("aa", 3), "");
    assert_string_equal(guessed("aaa", 3), "aaa");
}

// There are more tokens than draft_follow() scores at once, so both of its ways are taken: one look-up, and token by token.
static void the_longest_run_counts_then_the_latest(void **state)
{
    assert_string_equal(guessed("0123456789.wxyz1-yz2+wxyz", 1), "1");
    assert_string_equal(guessed("0123456789.wxyz1-wxyz2+wxyz", 1), "2");
    assert_string_equal(guessed("0123456789.wxyz1-xyz2+wxyz3*xyz", 1), "3");
}

static void a_wrong_guess_is_followed_by_another(void **state)
{
    assert_string_equal(guessed("qa1.ba2!qa", 2), "1.");
    assert_string_equal(guessed("qa1.ba2!qa2", 2), "!q"); // not the 1 that was guessed, but what followed a2
    assert_string_equal(guessed("qa1.ba2!qa3", 2), "");   // what never followed
    assert_string_equal(guessed("qa1.ba2!qa3qa", 1), "3");
}

// Finds the longest earlier match of the last tokens by comparing with every place; of equal ones the latest. 0: there is none.
static uint32_t longest(uint32_t count, uint32_t *at)
{
    uint32_t best = 0;
    for (uint32_t end = 1; end < count; end++) {
        uint32_t length = 0;
        while (length < end && tokens[end - 1 - length] == tokens[count - 1 - length])
            length++;
        if (length >= 2 && length >= best)
            best = length, *at = end;
    }
    return best;
}

static uint64_t next_random(uint64_t *random)
{
    *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
    return *random >> 16;
}

// Random texts that repeat themselves: following token by token finds what comparing with every place finds. Of matches longer than the
// longest that is looked for, it finds any.
static void following_is_as_looking_up(void **state)
{
    enum { ENOUGH = 32, TOKENS = 150 };
    uint64_t random = 88172645463325252u;
    uint32_t guesses = 0, long_ones = 0;
    for (uint32_t round = 0; round < 200; round++) {
        struct draft followed = {0};
        uint32_t letters = 2 + round % 5, back = 0, at = 0;
        draft_odds_init(&all);
        for (uint32_t count = 1; count <= TOKENS; count++) {
            struct draft at_once = {0};
            if (next_random(&random) % 16 == 0)
                back = round % 2 && count > 1 ? 1 + (uint32_t)(next_random(&random) % (count - 1)) : 0;
            tokens[count - 1] = back ? tokens[count - 1 - back] : (uint32_t)(next_random(&random) % letters);
            draft_follow(&followed, tokens, count, &all);
            draft_follow(&at_once, tokens, count, &all);
            uint32_t length = longest(count, &at);
            guesses += length > 0;
            long_ones += length >= ENOUGH;
            for (uint32_t i = 0; i < 2; i++) {
                const struct draft *draft = i ? &at_once : &followed;
                if (length < ENOUGH)
                    assert_int_equal(draft->length, length);
                else
                    assert_in_range(draft->length, ENOUGH, length);
                if (length > 0 && length < ENOUGH)
                    assert_int_equal(draft->at, at);
                for (uint32_t n = 1; n <= draft->length; n++) // what it goes by is really there
                    assert_int_equal(tokens[draft->at - n], tokens[count - n]);
            }
        }
    }
    assert_true(guesses > 10000 && long_ones > 100);
}

static void many_new_tokens_are_looked_up_at_once(void **state)
{
    struct draft draft = {0};
    double chance;
    draft_odds_init(&all);
    uint32_t count = put("the cat sat on the mat, and then the dog sat on");
    draft_follow(&draft, tokens, 10, &all);
    draft_follow(&draft, tokens, count, &all);
    assert_int_equal(draft.seen, count);
    assert_int_equal(draft_guess(&draft, tokens, count, 5, &chance), 5);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(tokens[count + i], (uint32_t) " the m"[i]);
}

static void odds_follow_what_comes(void **state)
{
    struct draft draft = {0};
    double chance;
    draft_odds_init(&all);
    for (uint32_t i = 0; i < 400; i++)
        tokens[i] = i % 7;
    for (uint32_t count = 1; count <= 400; count++)
        draft_follow(&draft, tokens, count, &all);
    draft_guess(&draft, tokens, 400, 1, &chance);
    assert_true(chance > 0.98 && all.right[DRAFT_KINDS - 1] > 0.9F);
    struct draft next = {0}; // of another sequence
    uint32_t count = put("abcdefghijklmnopqrstuvwx-abcdefghijklmnopqrst");
    draft_follow(&next, tokens, count, &all);
    draft_guess(&next, tokens, count, 1, &chance);
    assert_true(chance > 0.9);
    uint64_t random = 12345; // pairs that come again, and then something else
    for (uint32_t i = 0; i < 2000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (uint32_t)(random >> 40) % 12;
    }
    memset(&draft, 0, sizeof draft);
    for (count = 1; count <= 2000; count++)
        draft_follow(&draft, tokens, count, &all);
    assert_true(draft.odds.right[0] < 0.3F);
}

// Puts a run of `length` tokens, something else, and the run again, so that exactly `length` tokens match.
static uint32_t put_again(uint32_t length)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < 20; i++)
        tokens[count++] = 1000 + i;
    for (uint32_t i = 0; i < 2 * length; i++) {
        if (i == length)
            tokens[count++] = 2000;
        tokens[count++] = i % length;
    }
    return count;
}

static void odds_are_of_each_kind(void **state)
{
    static const struct {
        uint32_t length, kind;
    } cases[] = {{2, 0}, {3, 0}, {4, 1}, {7, 1}, {8, 2}, {15, 2}, {16, 3}, {50, 3}};
    for (uint32_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const struct draft_odds before = {{0.25f, 0.375f, 0.5f, 0.625f}};
        struct draft draft = {0};
        uint32_t kind = cases[i / 2].kind, count = put_again(cases[i / 2].length);
        bool right = i % 2;
        double chance;
        all = before;
        draft_follow(&draft, tokens, count, &all);
        assert_int_equal(draft_guess(&draft, tokens, count, 1, &chance), 1);
        assert_int_equal(tokens[count], 2000);
        assert_true(chance == before.right[kind]);                      // a new one begins with those of all
        assert_memory_equal(all.right, before.right, sizeof all.right); // which learn nothing of tokens that nobody guessed
        tokens[count] = right ? 2000 : 3000;
        draft_follow(&draft, tokens, count + 1, &all);
        for (uint32_t k = 0; k < DRAFT_KINDS; k++) {
            float change = draft.odds.right[k] - before.right[k], change_all = all.right[k] - before.right[k];
            if (k != kind)
                assert_true(change == 0 && change_all == 0);
            else
                assert_true(right ? change > change_all && change_all > 0 : change < change_all && change_all < 0);
        }
        struct draft_odds learned = draft.odds; // its own, from then on
        tokens[count + 1] = 4000;
        draft_follow(&draft, tokens, count + 1, &all);
        assert_memory_equal(draft.odds.right, learned.right, sizeof learned.right);
    }
}

// Whether the 7 is guessed after: 4, fifteen ones, 7, then `between` other tokens, then 4 and fifteen ones again. Every `once`th of the
// other tokens occurs once in the text; the rest are ones.
static bool is_found(uint32_t between, uint32_t once)
{
    struct draft draft = {0};
    double chance;
    uint32_t count = 0;
    for (uint32_t n = 0; n < 16; n++)
        tokens[count++] = n ? 1 : 4;
    tokens[count++] = 7;
    for (uint32_t n = 1; n <= between; n++)
        tokens[count++] = n % once ? 1 : 1000 + n;
    for (uint32_t n = 0; n < 16; n++)
        tokens[count++] = n ? 1 : 4;
    draft_odds_init(&all);
    draft_follow(&draft, tokens, count, &all);
    return draft_guess(&draft, tokens, count, 1, &chance) == 1 && tokens[count] == 7;
}

// The limit counts comparisons, so that near matches use it up sooner.
static void a_search_has_an_end(void **state)
{
    assert_true(is_found(4000, 1));
    assert_false(is_found(30000, 1));
    assert_true(is_found(4 * 32, 32));
    assert_false(is_found(4000 / 32 * 32, 32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_before_is_guessed),
        cmocka_unit_test(the_longest_run_counts_then_the_latest),
        cmocka_unit_test(a_wrong_guess_is_followed_by_another),
        cmocka_unit_test(following_is_as_looking_up),
        cmocka_unit_test(many_new_tokens_are_looked_up_at_once),
        cmocka_unit_test(odds_follow_what_comes),
        cmocka_unit_test(odds_are_of_each_kind),
        cmocka_unit_test(a_search_has_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_grammar_build.c: random grammars beside a matcher that is nothing but their definition; each kind of node; limits; packing.
#include "common/grammar/tracker_state.h"
#include "common/grammar/utf8.h"
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

// Checks that a text can be completed to a match, and that a text which must end has no byte after it.
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

/* --- nodes by hand --------------------------------------------------------------------------------------------------------------- */

static struct grammar_builder *builder; // of the test at hand

static uint32_t text(const char *bytes) { return grammar_text(builder, bytes); }

static uint32_t either(uint32_t a, uint32_t b) { return grammar_either(builder, (uint32_t[]){a, b}, 2); }

static uint32_t then(uint32_t a, uint32_t b) { return grammar_sequence(builder, (uint32_t[]){a, b}, 2); }

static uint32_t many(uint32_t node) { return grammar_repeat(builder, node, 0, GRAMMAR_NO_LIMIT); }

// Compiles a node and closes the builder. Returns the grammar, or NULL with *error.
static struct grammar *finish(uint32_t node, struct error *error)
{
    struct grammar *grammar;

    *error = (struct error){0};
    if (grammar_compile(builder, node, &grammar, error))
        assert_true(!grammar && error->status && error->text[0]);
    grammar_builder_close(builder);
    builder = NULL;
    return grammar;
}

static void check_node(uint32_t node, const char *match, const char *other)
{
    struct error error;
    struct grammar *grammar = finish(node, &error);

    if (!grammar)
        fail_msg("%s: %s", match, error.text);
    if (!rig_matches(grammar, match, strlen(match)) || rig_matches(grammar, other, strlen(other)))
        fail_msg("'%s' or '%s'", match, other);
    grammar_free(grammar);
}

static void begin(void)
{
    builder = grammar_builder_open();
    assert_non_null(builder);
}

static void each_node(void **unused)
{
    static const struct grammar_range digits = {'0', '9'}, reversed = {'9', '0'};
    uint32_t rule;

    begin(), check_node(grammar_empty(builder), "", "a");
    begin(), check_node(grammar_bytes(builder, "abc", 2), "ab", "abc");
    begin(), check_node(grammar_chars(builder, &digits, 1, false), "7", "a");
    begin(), check_node(grammar_chars(builder, &digits, 1, true), "\xf4\x8f\xbf\xbf", "7");
    begin(), check_node(grammar_chars(builder, NULL, 0, true), "\xed\x9f\xbf", "\xed\xa0\x80"); // no surrogates
    begin(), check_node(grammar_chars(builder, &reversed, 1, true), "7", "77");
    begin(), check_node(either(text("a"), grammar_chars(builder, &reversed, 1, false)), "a", "7");
    begin(), check_node(either(text("ab"), text("cd")), "cd", "ad");
    begin(), check_node(then(many(text("ab")), text("a")), "ababa", "abab");
    begin(), check_node(grammar_repeat(builder, text("ab"), 2, 3), "ababab", "ab");
    begin(), check_node(either(text("a"), grammar_repeat(builder, text("b"), 3, 2)), "a", "bbb");
    begin(), check_node(grammar_repeat(builder, grammar_nothing(builder), 0, 5), "", "a");
    begin(), check_node(grammar_repeat(builder, text("a"), 0, 0), "", "a");
    begin(), check_node(many(many(many(text("a")))), "aaa", "b");
    begin(), check_node(grammar_special(builder, "<s>"), "\xff<s>", "\xff");
    begin(), check_node(grammar_special(builder, "<s>"), "<s>", "s");
    begin(), check_node(grammar_both(builder, many(text("aa")), many(text("aaa"))), "aaaaaa", "aaa");
    begin(), check_node(grammar_without(builder, many(text("a")), many(text("aa"))), "aaa", "aa");
    begin(), check_node(grammar_text_before(builder, "<t>"), "<t<<\xc3\xa9>", "a<t>");
    begin();
    rule = grammar_rule(builder, "pair");
    grammar_rule_set(builder, rule, either(grammar_empty(builder), then(then(text("("), grammar_call(builder, rule)), text(")"))));
    check_node(grammar_call(builder, rule), "((()))", "(()");
}

static void check_failure(uint32_t node, enum status status, const char *wanted)
{
    struct error error;
    struct grammar *grammar = finish(node, &error);

    assert_null(grammar);
    if (error.status != status || strcmp(error.text, wanted) != 0)
        fail_msg("%s: %s, not %s", status_name(error.status), error.text, wanted);
}

static void failures(void **unused)
{
    uint32_t rule, other;

    begin(), check_failure(grammar_nothing(builder), STATUS_INVALID_ARGUMENT, "the grammar matches no text at all");
    begin(), check_failure(text("a\xff"), STATUS_INVALID_ARGUMENT, "the grammar has a text that is not UTF-8");
    begin();
    rule = grammar_rule(builder, "lost");
    check_failure(then(text("a"), grammar_call(builder, rule)), STATUS_INVALID_ARGUMENT, "rule 'lost' is used but not defined");
    begin();
    rule = grammar_rule(builder, "loop");
    other = grammar_rule(builder, "other");
    grammar_rule_set(builder, rule, then(many(text("a")), grammar_call(builder, other)));
    grammar_rule_set(builder, other, either(text("b"), then(grammar_call(builder, rule), text("c"))));
    check_failure(grammar_call(builder, other), STATUS_INVALID_ARGUMENT, "rule 'other' calls itself before it has read anything");
    begin();
    rule = grammar_rule(builder, "nest");
    grammar_rule_set(builder, rule, either(text("b"), then(text("a"), grammar_call(builder, rule))));
    check_failure(grammar_both(builder, grammar_call(builder, rule), text("b")), STATUS_INVALID_ARGUMENT,
                  "rule 'nest' calls itself, and cannot be combined with other languages");
    begin();
    rule = grammar_rule(builder, "endless");
    grammar_rule_set(builder, rule, then(text("a"), grammar_call(builder, rule)));
    check_failure(grammar_call(builder, rule), STATUS_INVALID_ARGUMENT, "the grammar matches no text at all");
    begin();
    assert_false(grammar_builder_failed(builder));
    assert_int_equal(grammar_builder_fail(builder, STATUS_UNIMPLEMENTED, "%s: no", "#/a"), 0);
    assert_true(grammar_builder_failed(builder));
    grammar_builder_fail(builder, STATUS_INTERNAL, "later");
    assert_int_equal(grammar_call(builder, grammar_rule(builder, "x")), 0);
    check_failure(text("a"), STATUS_UNIMPLEMENTED, "#/a: no");
    // An alternative without an end is left out.
    begin();
    rule = grammar_rule(builder, "endless");
    grammar_rule_set(builder, rule, then(text("a"), grammar_call(builder, rule)));
    check_node(either(grammar_call(builder, rule), text("b")), "b", "a");
}

static void emptiness(void **unused)
{
    uint32_t a, b;

    begin();
    a = many(text("ab"));
    b = many(text("ba"));
    assert_true(grammar_is_empty(builder, grammar_nothing(builder)) && !grammar_is_empty(builder, grammar_empty(builder)));
    assert_true(grammar_is_empty(builder, grammar_both(builder, then(text("a"), a), then(text("b"), b))));
    assert_false(grammar_is_empty(builder, grammar_both(builder, a, b))); // the empty string
    assert_true(grammar_is_empty(builder, grammar_without(builder, a, either(b, a))));
    assert_false(grammar_is_empty(builder, grammar_without(builder, either(b, a), a)));
    assert_false(grammar_builder_failed(builder));
    grammar_builder_close(builder);
}

// Each range of characters takes what is in it, and not what is beside it.
static void characters(void **unused)
{
    static const uint32_t edges[] = {0,      0x7f,   0x80,   0x7ff,   0x800,   0xfff,   0x1000,
                                     0xd7ff, 0xe000, 0xffff, 0x10000, 0x3ffff, 0x40000, 0x10ffff};
    struct grammar_vocab *vocab = rig_vocab(256, rig_byte_token, NULL);

    rig_state = 3;
    for (uint32_t i = 0; i < 300; i++) {
        struct grammar_range range = {rig_draw(2) ? edges[rig_draw(ARRAY_COUNT(edges))] : rig_draw(0x110000),
                                      rig_draw(2) ? edges[rig_draw(ARRAY_COUNT(edges))] : rig_draw(0x110000)};
        bool negated = rig_draw(4) == 0;
        struct error error;
        begin();
        struct grammar *grammar = finish(grammar_chars(builder, &range, 1, negated), &error);
        if (!grammar)
            continue;
        struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
        for (uint32_t k = 0; k < 60; k++) {
            uint32_t code = k < 14 ? edges[k] : k < 17 ? range.first + k - 15 : k < 20 ? range.last + k - 18 : rig_draw(0x110000);
            unsigned char bytes[4];
            if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
                continue;
            uint32_t length = grammar_utf8_write(code, bytes);
            struct grammar_cursor *cursor = grammar_cursor_open(tracker);
            bool is_in = code >= range.first && code <= range.last;
            bool took = grammar_cursor_take_bytes(cursor, (const char *)bytes, length) && grammar_cursor_must_end(cursor);
            if (took != (is_in != negated))
                fail_msg("%x of %s%x to %x", code, negated ? "all but " : "", range.first, range.last);
            grammar_cursor_close(cursor);
        }
        grammar_tracker_close(tracker);
    }
    grammar_vocab_close(vocab);
}

/* --- limits ------------------------------------------------------------------------------------------------------------------------ */

static void limits(void **unused)
{
    struct error error;
    uint32_t node, nodes[2];

    begin(); // more states than there are
    assert_null(finish(grammar_repeat(builder, text("0123456789"), 100000, 100000), &error));
    assert_int_equal(error.status, STATUS_RESOURCE_EXHAUSTED);
    begin(); // copies of copies
    for (node = text("a"), nodes[0] = 0; nodes[0] < 40; nodes[0]++)
        node = then(node, node);
    assert_null(finish(node, &error));
    assert_int_equal(error.status, STATUS_RESOURCE_EXHAUSTED);
    begin(); // choices of choices, which need no state
    for (node = text("a"), nodes[0] = 0; nodes[0] < 60; nodes[0]++)
        node = either(node, node);
    assert_null(finish(node, &error));
    assert_int_equal(error.status, STATUS_RESOURCE_EXHAUSTED);
    begin(); // nested as deep as there are nodes
    for (node = text("a"); !grammar_builder_failed(builder);)
        node = grammar_repeat(builder, node, 0, 1);
    assert_null(finish(node, &error));
    assert_int_equal(error.status, STATUS_RESOURCE_EXHAUSTED);
    begin(); // and a little less deep
    for (node = text("a"), nodes[0] = 0; nodes[0] < 50000; nodes[0]++)
        node = either(grammar_empty(builder), then(node, text("b")));
    struct grammar *deep = finish(node, &error);
    assert_non_null(deep);
    grammar_free(deep);
    begin(); // rules
    for (uint32_t r = 0; r <= GRAMMAR_MAX_RULES; r++)
        grammar_rule(builder, "r");
    assert_null(finish(text("a"), &error));
    assert_int_equal(error.status, STATUS_RESOURCE_EXHAUSTED);
    begin(); // the subset construction has 2^30 states
    nodes[0] = many(either(text("a"), text("b")));
    nodes[1] = then(nodes[0], then(text("a"), grammar_repeat(builder, either(text("a"), text("b")), 30, 30)));
    assert_null(finish(grammar_both(builder, nodes[1], nodes[0]), &error));
    assert_int_equal(error.status, STATUS_RESOURCE_EXHAUSTED);
}

// An automaton that would explode stays as it is, and is followed all the same.
static void exploding(void **unused)
{
    enum { BACK = 40 };
    struct error error;
    struct grammar *grammar;
    char letters_read[200];
    size_t bytes;

    begin();
    uint32_t any = either(text("a"), text("b"));
    grammar = finish(then(many(any), then(text("a"), grammar_repeat(builder, any, BACK, BACK))), &error);
    assert_non_null(grammar);
    grammar_packed(grammar, &bytes);
    assert_true(bytes < 1000);
    struct grammar_vocab *vocab = rig_vocab(256, rig_byte_token, NULL);
    struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    rig_state = 8;
    for (uint32_t i = 0; i < sizeof letters_read; i++) {
        letters_read[i] = rig_draw(2) ? 'a' : 'b';
        assert_true(grammar_cursor_take_bytes(cursor, letters_read + i, 1));
        assert_int_equal(grammar_cursor_may_end(cursor), i >= BACK && letters_read[i - BACK] == 'a');
    }
    grammar_cursor_close(cursor);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
}

// Two rules that call each other in two ways have 2^n stacks after n bytes, which are kept as n sets.
static void ambiguous_stacks(void **unused)
{
    enum { LEVELS = 60 };
    struct error error;
    uint32_t rules[2], words_before;

    begin();
    for (uint32_t r = 0; r < 2; r++)
        rules[r] = grammar_rule(builder, "r");
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t first = then(text("a"), then(grammar_call(builder, rules[0]), text(r ? "b" : "c")));
        uint32_t second = then(text("a"), then(grammar_call(builder, rules[1]), text(r ? "c" : "d")));
        grammar_rule_set(builder, rules[r], either(either(first, second), text(r ? "x" : "y")));
    }
    struct grammar *grammar = finish(either(grammar_call(builder, rules[0]), grammar_call(builder, rules[1])), &error);
    struct grammar_vocab *vocab = rig_vocab(256, rig_byte_token, NULL);
    struct grammar_tracker *tracker = rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    words_before = tracker->word_count;
    for (uint32_t i = 0; i < LEVELS; i++)
        assert_true(grammar_cursor_take_bytes(cursor, "a", 1));
    assert_true(tracker->word_count - words_before < LEVELS * 200);
    // "x" is of rule 1, to which both return: by "d" from rule 0, by "c" from rule 1; "b" is what rule 1 reads after rule 0.
    assert_true(grammar_cursor_take_bytes(cursor, "x", 1));
    for (uint32_t i = 0; i < LEVELS; i++)
        assert_true(grammar_cursor_take_bytes(cursor, i % 2 ? "b" : "d", 1));
    assert_true(grammar_cursor_must_end(cursor));
    grammar_cursor_close(cursor);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
}

// A rule that is left to several places at once goes on to all of them: (a* of rule) as "x" rule "b" | rule "c", where the rule eats "x" too.
static void joined_stacks(void **unused)
{
    uint32_t rule, tail;

    for (uint32_t which = 0; which < 2; which++) {
        begin();
        rule = grammar_rule(builder, "long"); // too long to be copied
        tail = then(text("0123456789012345678901234567890123456789"), grammar_empty(builder));
        grammar_rule_set(builder, rule, either(many(either(text("x"), text("a"))), tail));
        uint32_t first = then(then(text("x"), grammar_call(builder, rule)), text("b"));
        uint32_t second = then(grammar_call(builder, rule), text("c"));
        check_node(either(first, second), which ? "xaac" : "xaab", which ? "aab" : "xaa");
    }
}

// Rules that may all begin at one place are so many that a step has no room for them: nothing is allowed there, however much memory there is.
static void wide_steps(void **unused)
{
    struct grammar_vocab *vocab = rig_vocab(256, rig_byte_token, NULL);

    for (uint32_t is_wide = 0; is_wide < 2; is_wide++) {
        const uint32_t count = is_wide ? GRAMMAR_MAX_CLOSURE + 1 : 200;
        uint32_t *nodes = malloc(count * sizeof *nodes);
        struct error error;
        begin();
        for (uint32_t i = 0; i < count; i++) {
            char name[16];
            uint32_t rule = grammar_rule(builder, "r");
            snprintf(name, sizeof name, "%u;", i);
            grammar_rule_set(builder, rule, either(text(name), then(text("("), then(grammar_call(builder, rule), text(")")))));
            nodes[i] = then(grammar_call(builder, rule), text(i % 2 ? "odd" : "even"));
        }
        struct grammar *grammar = finish(grammar_either(builder, nodes, count), &error);
        struct grammar_tracker *tracker = rig_tracker(grammar, vocab, is_wide ? (size_t)64 << 20 : (size_t)RIG_TRACKER_BYTES);
        struct grammar_cursor *cursor = grammar_cursor_open(tracker);
        assert_int_equal(grammar_cursor_is_dead(cursor), is_wide);
        assert_int_equal(grammar_cursor_take_bytes(cursor, "((199;))odd", 11), !is_wide);
        assert_int_equal(grammar_cursor_must_end(cursor), !is_wide);
        grammar_cursor_close(cursor);
        grammar_tracker_close(tracker);
        free(nodes);
    }
    grammar_vocab_close(vocab);
}

/* --- packed by strangers ------------------------------------------------------------------------------------------------------------ */

static void broken_packs(void **unused)
{
    static const struct {
        const char *name;
        unsigned char bytes[16];
        size_t count;
        const char *error;
    } cases[] = {
        {"nothing", "", 0, "it does not begin"},
        {"magic", "FDG2\1\1\1", 7, "it does not begin"},
        {"no rules", "FDG1\0", 5, "no number of rules"},
        {"many rules", "FDG1\xff\xff\xff\x7f", 8, "no number of rules"},
        {"long number", "FDG1\xff\xff\xff\xff\xff\x01", 10, "no number of rules"},
        {"no states", "FDG1\1\0", 6, "broken"},
        {"more states than bytes", "FDG1\1\5\1", 7, "broken"},
        {"target outside", "FDG1\1\1\5a\4", 9, "broken"},
        {"target before", "FDG1\1\1\5a\2", 9, "broken"},
        {"range backwards", "FDG1\1\1\5b\1a", 10, "broken"},
        {"no such rule", "FDG1\1\1\3\1\2\0", 10, "broken"},
        {"target in another rule", "FDG1\2\1\3\1\2\0\1\5a\2", 14, "broken"},
        {"more behind", "FDG1\1\1\1\1", 8, "broken"},
        {"leads nowhere", "FDG1\1\2\5a\4\0", 10, "state 1 leads nowhere"},
        {"calls itself", "FDG1\1\1\3\1\1\0", 10, "rule 0 calls itself"},
    };
    struct grammar *grammar;
    struct error error;

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        enum status status = grammar_unpack(cases[i].bytes, cases[i].count, &grammar, &error);
        if (status != STATUS_INVALID_ARGUMENT || !strstr(error.text, cases[i].error) || grammar)
            fail_msg("%s: %s: %s", cases[i].name, status_name(status), status ? error.text : "");
    }
    assert_int_equal(grammar_unpack("FDG1\1\1\5a\0", 9, &grammar, &error), STATUS_OK); // what the cases are changed from: a*
    assert_true(rig_matches(grammar, "aaa", 3) && !rig_matches(grammar, "b", 1));
    grammar_free(grammar);
}

// Any one byte may be wrong, or the end be missing.
static void damaged_packs(void **unused)
{
    static struct rig_grammar drawn;
    struct error error;
    uint32_t accepted = 0, refused = 0;

    rig_state = 17;
    for (uint32_t i = 0; i < 40; i++) {
        rig_draw_grammar(&drawn);
        struct grammar *whole = rig_compile(&drawn, &error), *grammar;
        size_t count;
        if (!whole)
            continue;
        const unsigned char *packed = grammar_packed(whole, &count);
        unsigned char *copy = malloc(count);
        for (size_t length = 0; length < count; length++) {
            memcpy(copy, packed, length); // so that a sanitizer sees a read beyond
            unsigned char *exact = malloc(length + !length);
            memcpy(exact, packed, length);
            assert_int_not_equal(grammar_unpack(exact, length, &grammar, &error), STATUS_OK);
            free(exact);
        }
        for (size_t at = 0; at < count; at++) {
            memcpy(copy, packed, count);
            copy[at] ^= (unsigned char)(1 + rig_draw(255));
            if (grammar_unpack(copy, count, &grammar, &error) == STATUS_OK) {
                if (accepted++ % 16 == 0)
                    rig_matches(grammar,
                                "ab\xc3\xa9"
                                "ab",
                                6);
                grammar_free(grammar);
            } else
                refused++;
        }
        free(copy);
        grammar_free(whole);
    }
    assert_true(accepted > 10 && refused > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_grammars), cmocka_unit_test(each_node),        cmocka_unit_test(failures),
        cmocka_unit_test(emptiness),       cmocka_unit_test(characters),       cmocka_unit_test(limits),
        cmocka_unit_test(exploding),       cmocka_unit_test(ambiguous_stacks), cmocka_unit_test(joined_stacks),
        cmocka_unit_test(wide_steps),      cmocka_unit_test(broken_packs),     cmocka_unit_test(damaged_packs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

// test_grammar_text.c: regular expressions beside PCRE2, which knows nothing of this code; GBNF; errors and where they are; hostile text.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include "common/base/text.h"
#include "tests/unit/grammar_from.h"
#include "tests/unit/grammar_rig.h"
#include "tests/unit/sample.h"

enum { PATTERNS = 6000, TEXTS = 30 };

/* --- beside PCRE2 ------------------------------------------------------------------------------------------------------------ */

static void draw_pattern(struct text *out, uint32_t depth);

static void draw_atom(struct text *out, uint32_t depth)
{
    static const char *const atoms[] = {"a",
                                        "b",
                                        "c",
                                        ".",
                                        "[ab]",
                                        "[^a]",
                                        "[a-c]",
                                        "[^a-b\\n]",
                                        "\\d",
                                        "\\w",
                                        "\\n",
                                        "\xc3\xa9",
                                        "[\xc3\xa9"
                                        "b]",
                                        "\\x61",
                                        "\\.",
                                        "[\\d.]",
                                        "[\\w-]",
                                        "\\D",
                                        "\\W",
                                        "[^\\d]",
                                        "\\u0062",
                                        "\xe2\x82\xac",
                                        "\\/",
                                        "[\\]]"};
    static const char *const opening[] = {"(", "(?:", "(", "(?:", "(?=", "(?!"};

    if (depth && rig_draw(3) == 0) {
        text_string(out, opening[rig_draw(ARRAY_COUNT(opening))]);
        draw_pattern(out, depth - 1);
        text_string(out, ")");
    } else
        text_string(out, atoms[rig_draw(rig_draw(2) ? 4 : (uint32_t)ARRAY_COUNT(atoms))]);
}

static void draw_pattern(struct text *out, uint32_t depth)
{
    static const char *const quantifiers[] = {"*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?", "??", "{1,2}?"};
    static const char *const anchors[] = {"^", "$", "^", "$", "\\b", "\\B"};

    for (uint32_t i = 0, alternatives = 1 + rig_draw(3) / 2; i < alternatives; i++) {
        if (i)
            text_string(out, "|");
        for (uint32_t k = 0, atoms = rig_draw(4); k < atoms; k++) {
            if (rig_draw(9) == 0)
                text_string(out, anchors[rig_draw(ARRAY_COUNT(anchors))]);
            else {
                draw_atom(out, depth);
                if (rig_draw(3) == 0)
                    text_string(out, quantifiers[rig_draw(ARRAY_COUNT(quantifiers))]);
            }
        }
    }
}

// Draws a text of at most 12 characters, and without two lines, where '$' and '.' mean several things.
static size_t draw_subject(char *out)
{
    static const char *const pieces[] = {"a", "b", "c", "aa", "1", ".", "\xc3\xa9", "_", "-", "\xe2\x82\xac", "/", "]"};
    size_t length = 0;

    for (uint32_t i = 0, count = rig_draw(8); i < count; i++) {
        const char *piece = pieces[rig_draw(rig_draw(3) ? 3 : (uint32_t)ARRAY_COUNT(pieces))];
        memcpy(out + length, piece, strlen(piece));
        length += strlen(piece);
    }
    return length;
}

// Compiles a pattern for PCRE2; anchored: the whole text must match. NULL: it is not one.
static pcre2_code *pcre_of(const char *pattern, size_t length, bool anchored)
{
    const uint32_t options = PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX | PCRE2_MATCH_UNSET_BACKREF |
                             (anchored ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0);
    PCRE2_SIZE offset;
    int number;

    return pcre2_compile((PCRE2_SPTR)pattern, length, options, &number, &offset, NULL);
}

static void check_pattern(const char *pattern, size_t length, bool anchored, uint32_t *matched)
{
    struct grammar_builder *builder = grammar_builder_open();
    struct grammar_vocab *vocab = rig_vocab(256, rig_byte_token, NULL);
    pcre2_code *code = pcre_of(pattern, length, anchored);
    pcre2_match_data *match;
    struct grammar *grammar;
    struct error error;
    enum status status = grammar_compile(builder, grammar_add_regex(builder, pattern, length, anchored), &grammar, &error);

    grammar_builder_close(builder);
    if (!code)
        fail_msg("PCRE2 does not take %.*s", (int)length, pattern);
    match = pcre2_match_data_create_from_pattern(code, NULL);
    if (status && (status != STATUS_INVALID_ARGUMENT || !strstr(error.text, "no text")))
        fail_msg("%.*s: %s", (int)length, pattern, error.text);
    struct grammar_tracker *tracker = status ? NULL : rig_tracker(grammar, vocab, RIG_TRACKER_BYTES);
    struct grammar_cursor *cursor = tracker ? grammar_cursor_open(tracker) : NULL;
    struct grammar_cursor *start = tracker ? grammar_cursor_open(tracker) : NULL;
    for (uint32_t t = 0; t < TEXTS; t++) {
        char text[64];
        size_t text_length = draw_subject(text);
        bool wanted = pcre2_match(code, (PCRE2_SPTR)text, text_length, 0, 0, match, NULL) >= 0, is = false;
        if (tracker) {
            grammar_cursor_copy(cursor, start);
            is = grammar_cursor_take_bytes(cursor, text, text_length) && grammar_cursor_may_end(cursor);
        }
        if (is != wanted)
            fail_msg("%.*s (%s) beside '%.*s': PCRE2 says %d", (int)length, pattern, anchored ? "anchored" : "anywhere",
                     (int)text_length, text, wanted);
        *matched += is;
    }
    grammar_cursor_close(cursor);
    grammar_cursor_close(start);
    grammar_tracker_close(tracker);
    grammar_vocab_close(vocab);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
}

static void regex_beside_pcre2(void **unused)
{
    uint32_t matched = 0, checked = 0;

    for (uint32_t i = 0; i < PATTERNS; i++) {
        struct text pattern = {0};
        if (!in_sample(i, 11, 151))
            continue;
        rig_state = i;
        draw_pattern(&pattern, 2);
        text_reserve(&pattern, 1);
        check_pattern(pattern.data, pattern.bytes, i % 2, &matched);
        checked++;
        text_free(&pattern);
    }
    print_message("%u patterns, %u matches of %u\n", checked, matched, checked * TEXTS);
    assert_true(matched > checked);
}

/* --- what PCRE2 reads otherwise, or is not asked ------------------------------------------------------------------------------- */

static bool regex_matches(const char *regex, const char *text)
{
    struct grammar *grammar;
    struct error error;
    bool matches;

    if (grammar_from_regex(regex, strlen(regex), &grammar, &error))
        fail_msg("%s: %s", regex, error.text);
    matches = rig_matches(grammar, text, strlen(text));
    grammar_free(grammar);
    return matches;
}

static void regex_escapes(void **unused)
{
    static const struct {
        const char *regex, *match, *other;
    } cases[] = {
        {"\\u{1F600}", "\xf0\x9f\x98\x80", "a"},
        {"\\ud83d\\ude00", "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x81"},
        {"[\\u{1F600}-\\u{1F602}]", "\xf0\x9f\x98\x82", "\xf0\x9f\x98\x83"},
        {"\\cA\\t\\v\\f\\r\\n", "\x01\t\v\f\r\n", "A"},
        {"\\s\\S",
         "\xe3\x80\x80"
         "a",
         "aa"},
        {"[\\b]", "\b", "b"},
        {"[^]", "\n", ""},
        {".", "\xe2\x80\xa7", "\xe2\x80\xa8"},
        {"(?<year>\\d{4})-(?P<month>\\d\\d)", "2024-05", "2024-5"},
        {"{\"a\": {1}}", "{\"a\": }", "{\"a\":  }"},
        {"a]}", "a]}", "a"},
        {"x{,3}", "x{,3}", "xx"},
        {"^abc$", "abc", "abcd"},
        {"", "", "a"},
        {"a||b", "", "ab"},
        {"[a-]+[-z]", "a--", "b"},
        {"\\$\\^\\(\\)\\*\\+\\?\\{\\}\\[\\]\\|\\\\\\/\\-", "$^()*+?{}[]|\\/-", "$"},
    };

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        if (!regex_matches(cases[i].regex, cases[i].match) || regex_matches(cases[i].regex, cases[i].other))
            fail_msg("%s", cases[i].regex);
    }
}

struct failure {
    const char *text;
    enum status status;
    const char *error; // how it begins
};

static void regex_errors(void **unused)
{
    static const struct failure failures[] = {
        {"ab(c", STATUS_INVALID_ARGUMENT, "regex: byte 2: the group has no end"},
        {"abc)", STATUS_INVALID_ARGUMENT, "regex: byte 3: the parenthesis closes nothing"},
        {"a[bc", STATUS_INVALID_ARGUMENT, "regex: byte 1: the class has no end"},
        {"a[z-a]", STATUS_INVALID_ARGUMENT, "regex: byte 2: a range of the class"},
        {"*", STATUS_INVALID_ARGUMENT, "regex: byte 0: there is nothing to repeat"},
        {"a**", STATUS_INVALID_ARGUMENT, "regex: byte 2: there is nothing to repeat"},
        {"a{2}{3}", STATUS_INVALID_ARGUMENT, "regex: byte 4: there is nothing to repeat"},
        {"a{3,2}", STATUS_INVALID_ARGUMENT, "regex: byte 1: the repetition counts"},
        {"a{9999999999}", STATUS_RESOURCE_EXHAUSTED, "regex: byte 1: the repetition count"},
        {"a\\", STATUS_INVALID_ARGUMENT, "regex: byte 1: nothing follows"},
        {"\\q", STATUS_INVALID_ARGUMENT, "regex: byte 0: unknown escape \\q"},
        {"\\u12", STATUS_INVALID_ARGUMENT, "regex: byte 0: \\u without"},
        {"\\ud83d", STATUS_INVALID_ARGUMENT, "regex: byte 0: \\u without"},
        {"\\u{110000}", STATUS_INVALID_ARGUMENT, "regex: byte 0: \\u without"},
        {"\\xg", STATUS_INVALID_ARGUMENT, "regex: byte 0: \\x without"},
        {"\\c1", STATUS_INVALID_ARGUMENT, "regex: byte 0: \\c without"},
        {"\\01", STATUS_INVALID_ARGUMENT, "regex: byte 0: octal"},
        {"(?<!b)a", STATUS_UNIMPLEMENTED, "regex: byte 0: look-behind"},
        {"a(?=b", STATUS_INVALID_ARGUMENT, "regex: byte 1: the group has no end"},
        {"(a)\\1", STATUS_UNIMPLEMENTED, "regex: byte 3: back references"},
        {"(?<x>a)\\k<x>", STATUS_UNIMPLEMENTED, "regex: byte 7: back references"},
        {"\\p{L}", STATUS_UNIMPLEMENTED, "regex: byte 0: \\p"},
        {"(?i)a", STATUS_UNIMPLEMENTED, "regex: byte 0: this kind of group"},
        {"a\xff", STATUS_INVALID_ARGUMENT, "regex: byte 1: it is not UTF-8"},
        {"a^b", STATUS_INVALID_ARGUMENT, "the grammar matches no text"},
        {"[]", STATUS_INVALID_ARGUMENT, "the grammar matches no text"},
    };

    for (size_t i = 0; i < ARRAY_COUNT(failures); i++) {
        struct grammar *grammar;
        struct error error = {0};
        enum status status = grammar_from_regex(failures[i].text, strlen(failures[i].text), &grammar, &error);
        if (status != failures[i].status || strncmp(error.text, failures[i].error, strlen(failures[i].error)) != 0)
            fail_msg("%s: %s: %s", failures[i].text, status_name(status), error.text);
        assert_null(grammar);
    }
}

/* --- GBNF ------------------------------------------------------------------------------------------------------------------------ */

static const char json[] =
    "# any JSON\n"
    "root   ::= value\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::=\n"
    "  \"{\" ws (\n"
    "            string \":\" ws value\n"
    "    (\",\" ws string \":\" ws value)*   # more\n"
    "  )? \"}\" ws\n"
    "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "ws     ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";
static const char arithmetic[] = "root ::= (expr \"=\" ws term \"\\n\")+\r\n"
                                 "expr ::= term ([-+*/] term)*\r\n"
                                 "term ::= ident | num | \"(\" ws expr \")\" ws\r\n"
                                 "ident ::= [a-z] [a-z0-9_]* ws\r\n"
                                 "num ::= [0-9]+ ws\r\n"
                                 "ws ::= [ \\t\\n]*\r\n";
static const char list[] =
    "root ::= item+\n\n# Excludes various line breaks\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"";
static const char chess[] = "root ::= (move \" \" move \"\\n\")+ |\n"
                            "  \"-\"\n"
                            "move ::= (pawn | nonpawn | castle) [+#]?\n"
                            "nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
                            "pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
                            "castle ::= \"O-O\" \"-O\"?";

static void gbnf_texts(void **unused)
{
    static const struct {
        const char *grammar, *text;
        bool matches;
    } cases[] = {
        {json, "{\"a\": [1, 2.5e-3, {\"b\": null}], \"c\": \"\\u00e9\xc3\xa9\\n\"}", true},
        {json, "[]", true},
        {json, "[1,]", false},
        {json, "{\"a\" 1}", false},
        {json, "\"\x7f\"", false},
        {json, "{\"a\":\n    true}", true},
        {json, "012", false},
        {arithmetic, "a +(b1 *3)= 7\n", true},
        {arithmetic, "a=b\n1-2=x\n", true},
        {arithmetic, "(a=b\n", false},
        {list, "- one\n- t\xc3\xa9o\n", true},
        {list, "- one\xe2\x80\xa8\n", false},
        {chess, "e4 e5\nNf3 Nc6\nO-O O-O-O\n", true},
        {chess, "exd8=Q+ Kxd8\n", true},
        {chess, "-", true},
        {chess, "e9 e5\n", false},
        {"root ::= <think> [a-z]* \"</think>\"", "<think>ab</think>", true},
        {"root ::= <think> [a-z]* \"</think>\"", "\xff<think>ab</think>", true},
        {"root ::= <think> [a-z]* \"</think>\"", "\xff<think>ab\xff</think>", false},
        {"root ::= \"\\x41\\u00e9\\U0001F600\\[\\]\" . [\\]\\-^]", "A\xc3\xa9\xf0\x9f\x98\x80[]\n]", true},
        {"root ::= ab-c_1\nab-c_1 ::= \"x\"{2} \"y\"{1,} \"z\"{0,2} ()", "xxyyz", true},
        {"root ::= \"(\" root \")\" root | ", "(()())()", true},
        {"root ::= \"(\" root \")\" root | ", "(()", false},
    };

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct grammar *grammar;
        struct error error;
        if (grammar_from_gbnf(cases[i].grammar, strlen(cases[i].grammar), &grammar, &error))
            fail_msg("case %zu: %s", i, error.text);
        if (rig_matches(grammar, cases[i].text, strlen(cases[i].text)) != cases[i].matches)
            fail_msg("case %zu: %s", i, cases[i].text);
        grammar_free(grammar);
    }
}

static void gbnf_errors(void **unused)
{
    static const struct failure failures[] = {
        {"", STATUS_INVALID_ARGUMENT, "grammar: line 1: there is no rule 'root'"},
        {"a ::= \"b\"\n", STATUS_INVALID_ARGUMENT, "grammar: line 1: there is no rule 'root'"},
        {"root ::= \"a\"\n\nroot ::= \"b\"", STATUS_INVALID_ARGUMENT, "grammar: line 3: rule 'root' is there twice"},
        {"root ::= \"a\"\n  b\n", STATUS_INVALID_ARGUMENT, "grammar: line 2: ::= is expected here"},
        {"root ::= \"a\"\n  | *\n", STATUS_INVALID_ARGUMENT, "grammar: line 2: the name of a rule is expected"},
        {"root ::= \"a\" |\n  *\n", STATUS_INVALID_ARGUMENT, "grammar: line 2: this begins no part"},
        {"root ::= \"a\" \"b", STATUS_INVALID_ARGUMENT, "grammar: line 1: the literal has no end"},
        {"root ::= ( \"a\"\n\n", STATUS_INVALID_ARGUMENT, "grammar: line 1: the group has no end"},
        {"root ::= \"a\" )\n", STATUS_INVALID_ARGUMENT, "grammar: line 1: the parenthesis closes nothing"},
        {"root ::= [ab", STATUS_INVALID_ARGUMENT, "grammar: line 1: the class has no end"},
        {"root ::= \"\\q\"", STATUS_INVALID_ARGUMENT, "grammar: line 1: unknown escape"},
        {"root ::= x\nx ::= \"a\" y\n", STATUS_INVALID_ARGUMENT, "grammar: line 2: rule 'y' is not defined"},
        {"root ::= left\nleft ::= left \"a\" | \"b\"\n", STATUS_INVALID_ARGUMENT, "rule 'left' calls itself"},
        {"root ::= a\na ::= \"x\"? b\nb ::= [0-9]* a \"y\" | \"z\"\n", STATUS_INVALID_ARGUMENT, "rule '"},
        {"root ::= \"a\" root", STATUS_INVALID_ARGUMENT, "the grammar matches no text"},
        {"root ::= <[1234]>", STATUS_UNIMPLEMENTED, "grammar: line 1: a token is written as its name"},
        {"root ::= \"\xc3\"", STATUS_INVALID_ARGUMENT, "grammar: line 1: it is not UTF-8"},
    };

    for (size_t i = 0; i < ARRAY_COUNT(failures); i++) {
        struct grammar *grammar;
        struct error error = {0};
        enum status status = grammar_from_gbnf(failures[i].text, strlen(failures[i].text), &grammar, &error);
        if (status != failures[i].status || strncmp(error.text, failures[i].error, strlen(failures[i].error)) != 0)
            fail_msg("%s: %s: %s", failures[i].text, status_name(status), error.text);
        assert_null(grammar);
    }
}

/* --- hostile text ------------------------------------------------------------------------------------------------------------------ */

static double processor_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double seconds_of_regex(const char *regex)
{
    struct grammar *grammar;
    struct error error;
    const double began = processor_seconds();
    enum status status = grammar_from_regex(regex, strlen(regex), &grammar, &error);

    if (status && status != STATUS_RESOURCE_EXHAUSTED)
        fail_msg("%s: %s", regex, error.text);
    grammar_free(grammar);
    return processor_seconds() - began;
}

// Texts that ask for more than there is are refused, and what is accepted stays within the limits. Each takes about as long as the largest
// ordinary one.
static void hostile_texts(void **unused)
{
    static const char *const regexes[] = {
        "(x{1,1000}){1,1000}",
        "((((x{0,99}){0,99}){0,99}){0,99}){0,99}",
        "(.*){1,100000}",
        "(a|b)*a(a|b){60}",
        "((a?){300}){300}",
        "(.|..|...|....){1,5000}",
        "((((((((((((((((((((((((a*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*)*",
        "(x+x+)+y",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*.*=)+",
        "([^a]{0,500}a){0,500}",
        "(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e)(?=.*f)(?=.*g)(?=.*h)(?=.*i)(?=.*j)(?=.*k)(?=.*l)(?=.*m)(?=.*n)(?=.*o)(?=.*p).*",
        "((?!a.{200}b)(?!c.{300}d).)*",
        "(?!(?!(?!(?!(?!(?!(?!a{1,900}).{0,900}).{0,900}).{0,900}).{0,900}).{0,900}).{0,900})",
        "((?=.*a.{12}).)*((?=[ab].{12}c).)*",
        "(\\b.{0,40}){0,200}(?!\\B(?=\\b))",
    };
    enum { TRIES = 5 };                                     // a busy machine takes longer for one of two
    const char *ordinary = "(abcdefghij|klmnopqrst){3000}"; // close to the limit of states

    for (size_t i = 0; i < ARRAY_COUNT(regexes); i++) {
        double times = 0;
        for (int try = 0; try == 0 || (times > 4 && try < TRIES); try++) {
            const double usual = seconds_of_regex(ordinary);
            times = seconds_of_regex(regexes[i]) / usual;
        }
        if (times > 4)
            fail_msg("%s took %.1f times as long as one that is large", regexes[i], times);
    }
}

static void deep_texts(void **unused)
{
    static const char *const opening[] = {"(", "((?:", "[", "(a|", "(a{2}", "(?=", "(?!a"};

    for (size_t i = 0; i < ARRAY_COUNT(opening); i++) {
        struct text text = {0};
        struct grammar *grammar;
        struct error error;
        for (uint32_t k = 0; k < 100000; k++)
            text_string(&text, opening[i]);
        assert_int_not_equal(grammar_from_regex(text.data, text.bytes, &grammar, &error), STATUS_OK);
        text.bytes = 0;
        text_string(&text, "root ::= ");
        for (uint32_t k = 0; k < 100000; k++)
            text_string(&text, "(\"a\"|");
        assert_int_equal(grammar_from_gbnf(text.data, text.bytes, &grammar, &error), STATUS_RESOURCE_EXHAUSTED);
        text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regex_beside_pcre2), cmocka_unit_test(regex_escapes), cmocka_unit_test(regex_errors),
        cmocka_unit_test(gbnf_texts),         cmocka_unit_test(gbnf_errors),   cmocka_unit_test(hostile_texts),
        cmocka_unit_test(deep_texts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

// bench_grammar.c: what grammars cost: compiling one, making a vocabulary into a trie, and the mask of each kind of place in a text, cold (nothing is
// known of the grammar yet) and warm (the mask is there). For the model's vocabulary, and for one of 262,144 tokens that is made of pairs of them.
//
//     bench_grammar MODEL.gguf
//
// The ceiling beside a cold mask is reading all tokens' bytes once; beside a warm one, copying it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/grammar/cursor.h"
#include "common/model/vocabulary.h"
#include "tests/bench/report.h"
#include "tests/unit/grammar_from.h"

enum { PASSES = 9, LARGE_TOKENS = 262144, TRACKER_BYTES = 16 << 20, PROPERTIES = 50, WARM_ROUNDS = 1000 };

static void die(const struct error *error)
{
    fprintf(stderr, "bench_grammar: %s\n", error->text);
    exit(1);
}

static double now_us(void) { return (double)clock_now_ns() / 1e3; }

/* --- vocabularies ---------------------------------------------------------------------------------------------------------------- */

struct words {
    const struct tokenizer *tokenizer;
    uint32_t count; // of tokens of the tokenizer
};

static size_t bytes_of(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    const struct words *words = arg;
    const uint32_t first = token % words->count, second = token < words->count ? words->count : (token * 7919u) % words->count;
    struct text_span a = tokenizer_token_bytes(words->tokenizer, first), b = tokenizer_token_bytes(words->tokenizer, second);
    const bool is_control = tokenizer_is_control(words->tokenizer, first);

    scratch[0] = '\xff';
    memcpy(scratch + is_control, a.bytes, MIN(a.length, (size_t)2000));
    if (b.length)
        memcpy(scratch + is_control + MIN(a.length, (size_t)2000), b.bytes, MIN(b.length, (size_t)2000));
    *bytes = scratch;
    return is_control + MIN(a.length, (size_t)2000) + MIN(b.length, (size_t)2000);
}

static struct grammar_vocab *open_vocab(struct words *words, uint32_t count)
{
    struct grammar_vocab *vocab;
    struct error error;
    char name[80];
    double began = now_us();

    if (grammar_vocab_open(count, bytes_of, words, &vocab, &error))
        die(&error);
    snprintf(name, sizeof name, "trie of %u tokens", count);
    report_value(name, "ms", (now_us() - began) / 1e3);
    return vocab;
}

/* --- grammars -------------------------------------------------------------------------------------------------------------------- */

static const char json[] =
    "root ::= value\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" space ( pair ( \",\" space pair )* )? \"}\"\n"
    "pair ::= string \":\" space value\n"
    "array ::= \"[\" space ( value ( \",\" space value )* )? \"]\"\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1f] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4} ) )* \"\\\"\"\n"
    "number ::= \"-\"? ( \"0\" | [1-9] [0-9]* ) ( \".\" [0-9]+ )? ( [eE] [-+]? [0-9]+ )?\n"
    "space ::= \" \"?\n";

// An object of properties as a schema has them: strings, short strings, numbers, choices, lists.
static size_t write_schema(char *out, size_t capacity)
{
    static const char *const kinds[] = {"string", "number", "short", "choice", "list"};
    size_t length = (size_t)snprintf(out, capacity, "%s", strchr(json, '\n') + 1);

    length += (size_t)snprintf(out + length, capacity - length,
                               "short ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{0,100} \"\\\"\"\n"
                               "choice ::= \"\\\"red\\\"\" | \"\\\"green\\\"\" | \"\\\"blue\\\"\"\n"
                               "list ::= \"[\" ( string ( \",\" space string )* )? \"]\"\nroot ::= \"{\"");
    for (uint32_t p = 0; p < PROPERTIES; p++)
        length += (size_t)snprintf(out + length, capacity - length, " \"%s\\\"property_%u\\\":\" space %s", p ? "," : "", p,
                                   kinds[p % ARRAY_COUNT(kinds)]);
    return length + (size_t)snprintf(out + length, capacity - length, " \"}\"\n");
}

struct place {
    const char *name, *text; // what has been read
    bool is_schema;
    const char *regex; // another grammar
};

static const struct place places[] = {
    {"at the start of a JSON value", "", false, NULL},
    {"inside a JSON string", "{\"a\": \"b", false, NULL},
    {"after a JSON string", "{\"a\": \"b\"", false, NULL},
    {"in a JSON number", "[12", false, NULL},
    {"inside a string of at most 100 characters", "{\"property_0\":\"x\",\"property_1\":1,\"property_2\":\"abc", true, NULL},
    {"at a property's name", "{\"property_0\":\"x\",", true, NULL},
    {"in a word, [a-z]+( [a-z]+)*", "ab", false, "[a-z]+( [a-z]+)*"},
    {"in text before a marker", "ab", false, "([^<]|<[^t])*<tool>"},
};

static struct grammar *open_grammar(const struct place *place)
{
    static char schema[16384];
    struct grammar *grammar;
    struct error error;
    enum status status;

    if (place->regex)
        status = grammar_from_regex(place->regex, strlen(place->regex), &grammar, &error);
    else if (place->is_schema)
        status = grammar_from_gbnf(schema, write_schema(schema, sizeof schema), &grammar, &error);
    else
        status = grammar_from_gbnf(json, strlen(json), &grammar, &error);
    if (status)
        die(&error);
    return grammar;
}

static void measure_compilation(const struct place *place, const char *name)
{
    double best = 1e9;
    size_t bytes = 0;
    char line[80];

    for (uint32_t pass = 0; pass < PASSES; pass++) {
        double began = now_us();
        struct grammar *grammar = open_grammar(place);
        best = MIN(best, now_us() - began);
        grammar_packed(grammar, &bytes);
        grammar_free(grammar);
    }
    snprintf(line, sizeof line, "compiling %s, best of %d", name, PASSES);
    report_value(line, "us", best);
    snprintf(line, sizeof line, "%s, packed", name);
    report_value(line, "bytes", (double)bytes);
}

/* --- masks ------------------------------------------------------------------------------------------------------------------------ */

static volatile uint32_t sink;

static double read_all_us(const char *bytes, size_t count)
{
    double began = now_us();
    uint32_t sum = 0;

    for (size_t i = 0; i < count; i++)
        sum = sum * 31 + (unsigned char)bytes[i];
    sink = sum;
    return now_us() - began;
}

static double copy_us(uint32_t *to, const uint32_t *from, size_t words)
{
    double began = now_us();

    for (uint32_t i = 0; i < WARM_ROUNDS; i++) {
        memcpy(to, from, words * sizeof *to);
        sink = to[i % words];
    }
    return (now_us() - began) / WARM_ROUNDS;
}

static void measure_place(const struct place *place, const struct grammar_vocab *vocab, uint32_t tokens, const char *bytes,
                          size_t byte_count)
{
    const size_t words = (tokens + 31) / 32;
    uint32_t *mask = calloc(2 * words, sizeof *mask), allowed = 0;
    struct report_passes cold = {0}, warm = {0};
    char name[120];

    for (uint32_t pass = 0; pass < PASSES; pass++) {
        struct grammar_tracker *tracker;
        struct error error;
        if (grammar_tracker_open(open_grammar(place), vocab, TRACKER_BYTES, &tracker, &error))
            die(&error);
        struct grammar_cursor *cursor = grammar_cursor_open(tracker);
        if (!grammar_cursor_take_bytes(cursor, place->text, strlen(place->text)))
            exit(2);
        double began = now_us();
        grammar_cursor_mask(cursor, mask);
        double taken = now_us() - began;
        report_pass(&cold, taken, read_all_us(bytes, byte_count));
        began = now_us();
        for (uint32_t i = 0; i < WARM_ROUNDS; i++)
            grammar_cursor_mask(cursor, mask);
        taken = (now_us() - began) / WARM_ROUNDS;
        report_pass(&warm, taken, copy_us(mask + words, mask, words));
        grammar_cursor_close(cursor);
        grammar_tracker_close(tracker);
    }
    for (size_t w = 0; w < words; w++)
        allowed += (uint32_t)__builtin_popcount(mask[w]);
    snprintf(name, sizeof name, "cold mask %s, %u of %u", place->name, allowed, tokens);
    report_figure_below(name, "us", &cold, 0);
    snprintf(name, sizeof name, "warm mask %s, of %u", place->name, tokens);
    report_figure_below(name, "us", &warm, 0);
    free(mask);
}

static void measure_vocab(struct words *words, uint32_t count)
{
    struct grammar_vocab *vocab = open_vocab(words, count);
    char *scratch = malloc(GRAMMAR_TOKEN_BYTES), *all;
    size_t bytes = 0;

    for (uint32_t t = 0; t < count; t++) {
        const char *text;
        bytes += bytes_of(words, t, scratch, &text);
    }
    all = malloc(bytes + 1);
    memset(all, 'x', bytes + 1);
    for (size_t p = 0; p < ARRAY_COUNT(places); p++)
        measure_place(&places[p], vocab, count, all, bytes);
    free(all);
    free(scratch);
    grammar_vocab_close(vocab);
}

int main(int argc, char **argv)
{
    struct model *model;
    struct tokenizer *tokenizer;
    struct error error;

    log_init("bench", LOG_ERROR, false);
    if (argc < 2) {
        fprintf(stderr, "usage: bench_grammar MODEL.gguf\n");
        return 2;
    }
    if (model_open(argv[1], &model, &error) || vocabulary_open(model, &tokenizer, &error))
        die(&error);
    struct words words = {tokenizer, tokenizer_vocab(tokenizer)};
    measure_compilation(&places[0], "any JSON");
    measure_compilation(&places[4], "an object of 50 properties");
    measure_vocab(&words, words.count);
    measure_vocab(&words, LARGE_TOKENS);
    tokenizer_close(tokenizer);
    model_close(model);
    return 0;
}

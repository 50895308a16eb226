// schema_texts.c: JSON Schemas as grammars, for tests in Python: which texts a schema's grammar takes, and texts made up under its masks.
//
//   schema_texts [MODEL.gguf]    reads a request a line and writes an answer a line, both JSON
//
//   {"schema": ..., "space": "none", "closed": false, "strict": false, "any_order": false, "accept": ["{}", ...], "random": 50, "seed": 7}
//   {"status": "OK", "compile_us": 812.5, "bytes": 4711, "accepted": [true, ...], "texts": ["{\"a\":1}", ...]}
//   {"status": "UNIMPLEMENTED", "error": "#/not: ...", "compile_us": 12.1}    (of the processor)
//
// Without a model the vocabulary is the 256 bytes. A text is made up of tokens chosen evenly among those that the mask allows; the longer it gets,
// the more often one of a single byte is taken, and of these one that closes something, so that it comes to an end. "texts" has null for one that did not.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/random.h"
#include "common/grammar/cursor.h"
#include "common/json/json_text.h"
#include "common/model/model.h"
#include "common/model/vocabulary.h"
#include "tests/unit/grammar_from.h"

enum { TRACKER_BYTES = 8 << 20, SOFT_TOKENS = 30, MAX_TOKENS = 6000 };

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static uint32_t token_count = 256;

static size_t bytes_of(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    (void)arg;
    if (!tokenizer) {
        scratch[0] = (char)token;
        *bytes = scratch;
        return token == 0xff ? 0 : 1;
    }
    struct text_span span = tokenizer_token_bytes(tokenizer, token);
    *bytes = span.bytes;
    return tokenizer_is_control(tokenizer, token) ? 0 : span.length;
}

static _Noreturn void give_up(const struct error *error)
{
    fprintf(stderr, "schema_texts: %s\n", error->text);
    exit(1);
}

static void open_vocabulary(const char *path)
{
    struct error error;

    if (path) {
        struct model *model;
        if (model_open(path, &model, &error) || vocabulary_open(model, &tokenizer, &error))
            give_up(&error);
        model_close(model);
        token_count = tokenizer_vocab(tokenizer);
    }
    if (grammar_vocab_open(token_count, bytes_of, NULL, &vocab, &error))
        give_up(&error);
}

static bool is_allowed(const uint32_t *mask, uint32_t token) { return mask[token / 32] >> token % 32 & 1; }

enum among { ALL, ONE_BYTE, CLOSING };

static bool is_among(enum among among, uint32_t token)
{
    char scratch[GRAMMAR_TOKEN_BYTES];
    const char *bytes;

    return among == ALL || (bytes_of(NULL, token, scratch, &bytes) == 1 && (among == ONE_BYTE || strchr("\"]}", bytes[0])));
}

// Returns a random token of those allowed, or UINT32_MAX; of a narrower choice if that has one.
static uint32_t choose(const uint32_t *mask, enum among among, uint64_t *random)
{
    uint32_t found = 0, chosen = UINT32_MAX;

    for (uint32_t token = 0; token < token_count; token++) {
        if (mask[token / 32] == 0)
            token |= 31;
        else if (is_allowed(mask, token) && is_among(among, token) && random_next(random) % ++found == 0)
            chosen = token;
    }
    return chosen == UINT32_MAX && among != ALL ? choose(mask, among - 1, random) : chosen;
}

static json_t *make_up(struct grammar_tracker *tracker, uint64_t *random)
{
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    uint32_t *mask = calloc((token_count + 31) / 32, sizeof *mask);
    char *text = calloc(MAX_TOKENS + 1, GRAMMAR_TOKEN_BYTES);
    size_t length = 0;
    json_t *made = json_null();

    for (uint32_t count = 0; cursor && mask && text && count < MAX_TOKENS; count++) {
        char scratch[GRAMMAR_TOKEN_BYTES];
        const char *bytes;
        uint32_t token;
        if (grammar_cursor_must_end(cursor) || (grammar_cursor_may_end(cursor) && random_next(random) % 4 == 0)) {
            made = json_stringn(text, length);
            break;
        }
        grammar_cursor_mask(cursor, mask);
        bool is_late = random_next(random) % SOFT_TOKENS < count;
        token = choose(mask, !is_late ? ALL : random_next(random) % 2 ? CLOSING : ONE_BYTE, random);
        if (token == UINT32_MAX && grammar_cursor_may_end(cursor)) {
            made = json_stringn(text, length);
            break;
        }
        if (token == UINT32_MAX || !grammar_cursor_take(cursor, token)) {
            fprintf(stderr, "schema_texts: nothing may follow %.*s\n", (int)length, text);
            break;
        }
        size_t taken = bytes_of(NULL, token, scratch, &bytes);
        memcpy(text + length, bytes, taken);
        length += taken;
    }
    free(text);
    free(mask);
    grammar_cursor_close(cursor);
    return made ? made : json_string("text that is not UTF-8");
}

static bool accepts(struct grammar_tracker *tracker, const json_t *text)
{
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    bool taken = cursor && grammar_cursor_take_bytes(cursor, json_string_value(text), json_string_length(text)) &&
                 grammar_cursor_may_end(cursor);

    grammar_cursor_close(cursor);
    return taken;
}

static void answer_texts(struct grammar *grammar, const json_t *request, json_t *answer)
{
    struct grammar_tracker *tracker;
    struct error error;
    uint64_t random = (uint64_t)json_integer_value(json_object_get(request, "seed"));
    json_t *accepted = json_array(), *texts = json_array(), *text;
    size_t i;

    if (grammar_tracker_open(grammar, vocab, TRACKER_BYTES, &tracker, &error))
        give_up(&error);
    json_array_foreach (json_object_get(request, "accept"), i, text)
        json_array_append_new(accepted, json_boolean(accepts(tracker, text)));
    for (json_int_t n = json_integer_value(json_object_get(request, "random")); n > 0; n--)
        json_array_append_new(texts, make_up(tracker, &random));
    grammar_tracker_close(tracker);
    json_object_set_new(answer, "accepted", accepted);
    json_object_set_new(answer, "texts", texts);
}

static json_t *answer_to(const json_t *request)
{
    const char *space = json_string_value(json_object_get(request, "space"));
    struct grammar_schema_options options = {.closed_by_default = json_is_true(json_object_get(request, "closed")),
                                             .is_strict = json_is_true(json_object_get(request, "strict")),
                                             .in_any_order = json_is_true(json_object_get(request, "any_order"))};
    struct grammar *grammar;
    struct error error = {0};
    struct timespec began, ended;
    size_t bytes = 0;

    if (space && strcmp(space, "none") != 0)
        options.space = strcmp(space, "one") == 0 ? GRAMMAR_SPACE_ONE : GRAMMAR_SPACE_LINES;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    enum status status = grammar_from_schema(json_object_get(request, "schema"), &options, &grammar, &error);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    json_t *answer = json_pack("{s:s, s:f}", "status", status_name(status), "compile_us",
                               (double)(ended.tv_sec - began.tv_sec) * 1e6 + (double)(ended.tv_nsec - began.tv_nsec) / 1e3);
    if (status) {
        json_object_set_new(answer, "error", json_string(error.text) ?: json_string("a text that is not UTF-8"));
        return answer;
    }
    grammar_packed(grammar, &bytes);
    json_object_set_new(answer, "bytes", json_integer((json_int_t)bytes));
    answer_texts(grammar, request, answer);
    return answer;
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t capacity = 0;

    open_vocabulary(argc > 1 ? argv[1] : NULL);
    while (getline(&line, &capacity, stdin) > 0) {
        json_error_t error;
        json_t *request = json_text_read(line, strlen(line), JSON_ALLOW_NUL | JSON_DECODE_ANY, &error), *answer;
        answer = request ? answer_to(request) : json_pack("{s:s, s:s}", "status", "UNREADABLE", "error", error.text);
        json_dumpf(answer, stdout, JSON_COMPACT | JSON_ENCODE_ANY);
        putchar('\n');
        fflush(stdout);
        json_decref(answer);
        json_decref(request);
    }
    free(line);
    grammar_vocab_close(vocab);
    tokenizer_close(tokenizer);
    return 0;
}

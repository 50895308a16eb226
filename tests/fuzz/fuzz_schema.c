// fuzz_schema.c: JSON Schemas from anywhere. The first byte chooses the options, the rest is the schema. What compiles makes texts that are JSON.
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/grammar/cursor.h"
#include "common/json/json_text.h"
#include "tests/unit/grammar_from.h"

enum { TRACKER_BYTES = 2 << 20, MAX_TEXT = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t byte_of(void *arg, uint32_t token, char *scratch, const char **bytes)
{
    (void)arg;
    scratch[0] = (char)token;
    *bytes = scratch;
    return token == 0xff ? 0 : 1;
}

// A random byte of those that may come next; 256: none.
static uint32_t pick(const uint32_t *mask, uint64_t *random)
{
    uint32_t found = 0, chosen = 256;

    for (uint32_t byte = 0; byte < 256; byte++)
        if (mask[byte / 32] >> byte % 32 & 1 && random_next(random) % ++found == 0)
            chosen = byte;
    return chosen;
}

static void walk(struct grammar_tracker *tracker, uint64_t random)
{
    struct grammar_cursor *cursor = grammar_cursor_open(tracker);
    char text[MAX_TEXT];
    size_t length = 0;
    uint32_t byte;

    assert_always(cursor);
    for (; length < MAX_TEXT && !grammar_cursor_must_end(cursor); text[length++] = (char)byte) {
        uint32_t mask[8] = {0};
        grammar_cursor_mask(cursor, mask);
        byte = pick(mask, &random);
        if (byte == 256)
            break;
        assert_always(grammar_cursor_take(cursor, byte));
    }
    if (grammar_cursor_may_end(cursor)) {
        json_error_t error;
        json_t *value = json_text_read(text, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        assert_always(value);
        json_decref(value);
    } else {
        assert_always(length == MAX_TEXT); // a text can always be completed
    }
    grammar_cursor_close(cursor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct grammar_vocab *vocab;
    struct grammar_schema_options options;
    struct grammar_tracker *tracker;
    struct grammar *grammar;
    struct error error = {0};
    json_error_t json_error;
    json_t *schema;

    log_threshold = LOG_ERROR;
    if (!vocab)
        assert_always(grammar_vocab_open(256, byte_of, NULL, &vocab, &error) == STATUS_OK);
    if (size == 0 || !(schema = json_text_read((const char *)data + 1, size - 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, &json_error)))
        return 0;
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (reference)
        (void)grammar_schema_at(schema, reference);
    options = (struct grammar_schema_options){.space = (enum grammar_space)(data[0] % 3),
                                              .closed_by_default = data[0] & 4,
                                              .is_strict = data[0] & 8,
                                              .in_any_order = data[0] & 16};
    if (grammar_from_schema(schema, &options, &grammar, &error) == STATUS_OK) {
        assert_always(grammar_tracker_open(grammar, vocab, TRACKER_BYTES, &tracker, &error) == STATUS_OK);
        walk(tracker, size);
        walk(tracker, size + 1);
        grammar_tracker_close(tracker);
    } else {
        assert_always(!grammar && error.text[0]);
    }
    json_decref(schema);
    return 0;
}

// fuzz_answer.c: what a model wrote, in any notation. The first byte chooses the family, the second the rest; in the text a control token lies
// between the bytes 1 and 2. However the text is cut, the same must come out.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/base/text.h"
#include "services/gateway/answer/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KINDS = ANSWER_ARGUMENTS + 1 };

struct seen {
    struct text kinds[KINDS];
    uint32_t calls;
};

static void take(void *arg, const struct answer_event *event)
{
    struct seen *seen = arg;

    assert_always(event->count > 0 && (size_t)event->kind < KINDS);
    if (event->kind == ANSWER_CALL) {
        assert_always(event->call == seen->calls && event->count <= ANSWER_MAX_NAME_BYTES && seen->calls < ANSWER_MAX_CALLS);
        seen->calls++;
        text_string(&seen->kinds[ANSWER_ARGUMENTS], "\n");
    }
    assert_always(event->kind != ANSWER_ARGUMENTS || event->call + 1 == seen->calls);
    text_append(&seen->kinds[event->kind], event->bytes, event->count);
}

static enum answer_type type_of(void *arg, const char *name, size_t name_bytes, const char *parameter, size_t parameter_bytes)
{
    (void)arg;
    (void)name;
    (void)parameter;
    return (enum answer_type)((name_bytes + parameter_bytes) % 3);
}

static void run(struct answer_options options, const char *text, size_t size, size_t step, struct seen *seen)
{
    options.arg = seen;
    struct answer_parser *parser = answer_open(&options);

    assert_always(parser);
    for (size_t at = 0; at < size;) {
        const char *end = text[at] == 1 ? memchr(text + at, 2, size - at) : NULL;
        size_t length = 1;
        if (end) {
            answer_push_unit(parser, text + at + 1, (size_t)(end - text) - at - 1);
            at = (size_t)(end - text) + 1;
            continue;
        }
        while (length < step && at + length < size && text[at + length] != 1)
            length++;
        answer_push(parser, text + at, length);
        at += length;
    }
    answer_finish(parser);
    assert_always(answer_calls(parser) == seen->calls);
    answer_close(parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const families[] = {"",       "harmony",     "deepseek", "kimi", "mistral", "functiongemma",
                                           "gemma4", "qwen3-coder", "minimax",  "glm",  "phi4",    "granite",
                                           "hermes", "nemotron",    "llama3",   "json"};
    static const char *const reasonings[] = {"", "think", "granite", "mistral"};
    struct seen seen[3] = {0};

    if (size < 2)
        return 0;
    const struct answer_options options = {.family = answer_find_family(families[data[0] % 16]),
                                           .reasoning = answer_find_reasoning(reasonings[data[1] & 3]),
                                           .reasoning_is_open = data[1] & 4,
                                           .one_call = data[1] & 8,
                                           .unit_markers = data[1] & 16 ? UINT32_MAX : 0,
                                           .take = take,
                                           .type_of = data[1] & 32 ? type_of : NULL};
    for (size_t i = 0; i < 3; i++)
        run(options, (const char *)data + 2, size - 2, i == 0 ? size : i == 1 ? 1 : 5, &seen[i]);
    for (size_t i = 0; i < 3; i++)
        for (size_t kind = 0; kind < KINDS; kind++) {
            const struct text *first = &seen[0].kinds[kind], *other = &seen[i].kinds[kind];
            assert_always(first->bytes == other->bytes && (first->bytes == 0 || !memcmp(first->data, other->data, first->bytes)));
        }
    for (size_t i = 0; i < 3; i++)
        for (size_t kind = 0; kind < KINDS; kind++)
            text_free(&seen[i].kinds[kind]);
    return 0;
}

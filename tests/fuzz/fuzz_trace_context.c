// fuzz_trace_context.c: traceparent and tracestate as strangers send them: what is taken is written as it was read, and has what it must have. The
// first line of the input is the traceparent, the rest the tracestate.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/trace/otlp_span.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// In memory of exactly that size, so that a byte read behind it is seen.
static char *copy(const uint8_t *data, size_t size)
{
    char *text = malloc(size ? size : 1);

    assert_always(text);
    if (size)
        memcpy(text, data, size);
    return text;
}

static void check_parent(const uint8_t *data, size_t size)
{
    static const struct otlp_context none;
    struct otlp_context found, again;
    char *text = copy(data, size), written[OTLP_PARENT_BYTES];

    if (otlp_context_parse(text, size, &found)) {
        assert_always(size >= OTLP_PARENT_BYTES - 1 && memcmp(found.trace_id, none.trace_id, sizeof none.trace_id));
        otlp_context_format(&found, written);
        assert_always(strlen(written) == OTLP_PARENT_BYTES - 1 && !memcmp(written + 2, text + 2, 51)); // up to the flags
        assert_always(otlp_context_parse(written, strlen(written), &again) && !memcmp(&found, &again, sizeof found));
        assert_always(!otlp_is_in_ratio(found.trace_id, 0) && otlp_is_in_ratio(found.trace_id, 1));
    } else {
        assert_always(!memcmp(&found, &none, sizeof none));
    }
    free(text);
}

static void check_state(const uint8_t *data, size_t size)
{
    char *text = copy(data, size);

    if (otlp_state_is_valid(text, size)) {
        assert_always(size < OTLP_STATE_BYTES && memchr(text, '=', size));
        for (size_t i = 0; i < size; i++)
            assert_always((text[i] >= ' ' && text[i] <= '~') || text[i] == '\t');
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    const size_t first = line ? (size_t)(line - data) : size;

    check_parent(data, first);
    check_state(data + first + (line != NULL), size - first - (line != NULL));
    return 0;
}

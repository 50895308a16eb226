// fuzz_length_trace.c: libFuzzer target: any bytes as a list of lengths. What is accepted can be drawn from, within its limits.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "services/fastdecode/capacity/capacity.h"

enum { DRAWN = 50, CONTEXT = 1000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct length_trace trace;
    struct load_request *requests;
    uint32_t limited;
    struct error error;

    if (length_trace_parse((const char *)data, size, "fuzz", &trace, &error) != STATUS_OK) {
        assert_always(trace.pairs == NULL && error.text[0] != 0);
        return 0;
    }
    assert_always(trace.count > 0);
    for (uint32_t i = 0; i < trace.count; i++)
        assert_always(trace.pairs[i].prompt_tokens - 1 < TRACE_TOKENS_MAX && trace.pairs[i].answer_tokens - 1 < TRACE_TOKENS_MAX);
    trace.context_tokens = CONTEXT;
    if (length_trace_draw(&trace, DRAWN, 10, size, &requests, &limited, &error) == STATUS_OK) {
        for (uint32_t i = 0; i < DRAWN; i++) {
            const struct length_pair *length = &requests[i].length;
            assert_always(length->prompt_tokens > 0 && length->answer_tokens > 0);
            assert_always(length->prompt_tokens + length->answer_tokens <= CONTEXT && requests[i].due_us <= 10000000);
        }
        free(requests);
    }
    length_trace_free(&trace);
    return 0;
}

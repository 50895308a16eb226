// encoder.c: see encoder.h.
#include "common/tokenizer/encoder.h"

#include <stdlib.h>

#include "common/base/checked.h"

enum status encoder_put(struct encoder *encoder, uint32_t id)
{
    if (encoder->count == encoder->max_tokens) {
        encoder->count += encoder->count < UINT32_MAX;
        return error_set(encoder->error, STATUS_OUT_OF_RANGE, "the text has more than %u tokens", encoder->max_tokens);
    }
    if (encoder->count == encoder->capacity) {
        uint64_t capacity = MIN(MAX((uint64_t)encoder->capacity * 2, 64), (uint64_t)encoder->max_tokens);
        uint32_t *ids = realloc(encoder->ids, capacity * sizeof *ids);
        if (!ids)
            return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for %llu ids",
                             (unsigned long long)capacity);
        encoder->ids = ids;
        encoder->capacity = (uint32_t)capacity;
    }
    encoder->ids[encoder->count++] = id;
    return STATUS_OK;
}

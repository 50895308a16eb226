// shape_reader.h: reads numbers of an architecture's metadata, each checked against limits. Private to common/model.
#ifndef FD_MODEL_SHAPE_READER_H
#define FD_MODEL_SHAPE_READER_H

#include "common/model/arch.h"

struct shape_reader {
    const struct gguf *gguf;
    const struct arch *arch;
    struct error *error;
    enum status status; // the first failure; later reads do nothing
    char key[GGUF_MAX_NAME_BYTES + 1];
};

// Whether the file has "<name>.<suffix>", which becomes reader->key.
bool shape_has(struct shape_reader *reader, const char *suffix);
// A number from minimum to maximum, required or with a value if the key is missing.
uint32_t shape_u32(struct shape_reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum);
uint32_t shape_u32_or(struct shape_reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum, uint32_t fallback);
// Likewise (NaN is neither); required if fallback is NaN.
float shape_f32_or(struct shape_reader *reader, const char *suffix, float minimum, float maximum, float fallback);
// Sets reader->status and its error, unless there is one.
void shape_fail(struct shape_reader *reader, enum status status, const char *format, ...) PRINTF_LIKE(3, 4);

#endif

// synthetic.h: model files of a known shape with random weights, for measuring speed when the real ones are not at hand.
#ifndef FD_FASTDECODE_MODEL_SYNTHETIC_H
#define FD_FASTDECODE_MODEL_SYNTHETIC_H

#include <stdint.h>

#include "common/base/status.h"

#define SYNTHETIC_SHAPES "llama-1b, llama-7b, llama-13b, qwen3moe-1b, llama-tiny"
#define SYNTHETIC_TYPES "f16, q8_0, q4_1, q4_0"

struct synthetic_config {
    const char *shape; // one of SYNTHETIC_SHAPES
    const char *type;  // of the matrices: one of SYNTHETIC_TYPES
    const char *path;  // "-": standard output; otherwise complete when it appears
    uint32_t layers;   // 0: the shape's
    uint64_t seed;
};

// Writes a GGUF file. The same shape, type and seed give the same bytes. Blocks on the disk and shows progress on standard error if that
// is a terminal. A failure leaves no file.
enum status synthetic_write(const struct synthetic_config *config, struct error *error) MUST_CHECK;

#endif

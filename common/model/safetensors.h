// safetensors.h: the header of a safetensors file:
//
//     u64 header_bytes   JSON { "NAME": { "dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end] }, … }   data
//
// It knows the container but nothing of models. The file is untrusted: opening checks the header's length against the file and a
// limit, and of each tensor that its type is known, that its shape agrees with its number of bytes and that these lie in the file.
// Private to common/model.
#ifndef FD_MODEL_SAFETENSORS_H
#define FD_MODEL_SAFETENSORS_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/status.h"
#include "kernels/quant/tensor_type.h"

enum {
    SAFETENSORS_MAX_HEADER_BYTES = 100 * 1000 * 1000, // the format's own limit
    SAFETENSORS_MAX_TENSORS = 1 << 16,
    SAFETENSORS_MAX_DIMS = 4,
};

struct safetensor {
    const char *name;      // terminated; lives until safetensors_close()
    enum tensor_type type; // of floats
    bool is_bytes;         // U8: parts of a quantized tensor
    uint32_t dim_count;
    uint64_t shape[SAFETENSORS_MAX_DIMS]; // as in the file: the last varies fastest
    uint64_t offset;                      // in the file
    uint64_t bytes;
};

struct safetensors {
    struct safetensor *tensors; // [tensor_count], in the header's order
    uint32_t tensor_count;
    uint32_t lead_bytes; // its values are aligned where the file lies so many bytes behind an aligned place; 0: at one
    json_t *header;
};

// Reads the header of a whole file in memory. label stands for it in messages. The caller closes *out. DATA_LOSS: cut short or broken;
// UNIMPLEMENTED: a type that is not read; INVALID_ARGUMENT: not a safetensors file.
MUST_CHECK enum status safetensors_open(const char *label, const unsigned char *bytes, uint64_t byte_count, struct safetensors *out,
                                        struct error *error);

void safetensors_close(struct safetensors *file);

#endif

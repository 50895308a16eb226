// quantize.h: a GGUF file written anew with its matrices in another type.
#ifndef FD_FASTDECODE_MODEL_QUANTIZE_H
#define FD_FASTDECODE_MODEL_QUANTIZE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "kernels/quant/dequant.h"

struct quantize_request {
    const char *in, *out;
    enum tensor_type type;             // one of ENCODE_TYPES
    bool requantize;                   // matrices that are quantized already, too
    bool check_only;                   // read and check what there is, write nothing
    struct thread_pool *pool;          // borrowed
    const volatile sig_atomic_t *stop; // set by a signal: give up; NULL: nothing does
};

struct quantize_result {
    uint32_t converted, kept;             // tensors
    uint64_t values;                      // of what was converted
    uint64_t values_before, values_after; // bytes of what was converted
    uint64_t bytes_before, bytes_after;   // of the files
};

// Reads "q4_1" and so on, in any case. INVALID_ARGUMENT names what is accepted.
enum status quantize_type_parse(const char *text, enum tensor_type *out, struct error *error) MUST_CHECK;

// Converts all matrices that are F32, F16 or BF16 (with `requantize` all) and have rows of whole blocks. The rest and all metadata
// stay byte for byte, save for general.file_type, which tells the type. Writes OUT.part and gives it its name when it is whole and on
// disk; what was at OUT is there until then. Says how far it is on standard error. Blocks. A failure leaves no file behind:
// INVALID_ARGUMENT (nothing to convert, or OUT is IN), RESOURCE_EXHAUSTED (the disk), DATA_LOSS (a value that is not finite),
// CANCELLED (stop), and those of model_file_open().
enum status quantize_file(const struct quantize_request *request, struct quantize_result *result, struct error *error) MUST_CHECK;

#endif

// loaded_type.h: the type in which a matrix is loaded: the file's, or with quantize_bits the one that it is quantized to on its way. For every
// backend, so that a device has the numbers that the CPU has, and both those of `fastdecode quantize`.
#ifndef FD_KERNELS_BACKEND_LOADED_TYPE_H
#define FD_KERNELS_BACKEND_LOADED_TYPE_H

#include "common/model/model.h"
#include "kernels/backend/backend.h"

// Returns Q4_1 or Q8_0 for a matrix in F32, F16 or BF16 if the configuration asks for it and rows are whole blocks; else the view's type.
enum tensor_type loaded_type_of(const struct backend_config *config, const struct tensor_view *view);

// INVALID_ARGUMENT: quantize_bits would change no matrix.
enum status loaded_type_check(const struct backend_config *config, struct error *error) MUST_CHECK;

#endif

// compute.h: names and help texts of --compute (the type in which products are computed), --device and --batch-invariant. This is a
// separate header because `up` only passes the options on and needs nothing of the model.
#ifndef FD_MODEL_COMPUTE_H
#define FD_MODEL_COMPUTE_H

#define COMPUTE_NAMES "auto|f32|int8"
#define COMPUTE_HELP \
    "how matrix products are computed; auto: weights keep the size that they have in the file; f32: the reference, by OpenBLAS; a GPU knows only auto, which is f16 or bf16"
#define INVARIANT_HELP \
    "an answer has the same bytes alone, in a batch and after failover; on a GPU this costs speed and keeps all KV in places of one kind; a CPU always does so, except with --compute f32"
#define QUANTIZE_NAMES "none|4|8"
#define QUANTIZE_HELP "quantize F32, F16 and BF16 matrices to this many bits while loading (4: Q4_1, 8: Q8_0)"
// Bits of one of QUANTIZE_NAMES; 0: none.
#define QUANTIZE_BITS(word) ((word)[0] == '4' ? 4u : (word)[0] == '8' ? 8u : 0u)
#define DEVICE_HELP "cpu, cuda or cuda:N; auto: a GPU if there is one, else the CPU"

#define CACHE_DIR_HELP \
    "folder where converted weights are kept, so that the next start reads them; none: beside the model if they do not fit memory, else nowhere"
#define WEIGHTS_MEMORY_HELP                                                                                                        \
    "memory for weights, on the GPU if there is one; weights that do not fit are read in each step from disk, or copied to a GPU " \
    "from the host (docs/offloading.md); auto: all weights, or as much as is left"
#define WEIGHTS_HOST_MEMORY_HELP                                                                                               \
    "with a GPU: pinned host memory for weights that do not fit on it; the rest is read from disk in each step; auto: all of " \
    "those, or as much as is left"
#define DISK_READS_HELP "how weights are read from disk: by io_uring or by threads; auto: threads if the kernel forbids io_uring"

#endif

// compute.h: names and help texts of --compute (the type in which products are computed), --device and --batch-invariant. This is a
// separate header because `up` only passes the options on and needs nothing of the model.
#ifndef FD_MODEL_COMPUTE_H
#define FD_MODEL_COMPUTE_H

#define COMPUTE_NAMES "auto|f32|int8"
#define COMPUTE_HELP \
    "how products are computed; auto: weights stay as small as in the file; f32: the reference, by OpenBLAS; a GPU takes only auto, which is f16 or bf16"
#define INVARIANT_HELP \
    "equal bytes alone, in company and after failover; on a GPU this costs speed, and KV lies in places of one kind. A CPU always has them, but for --compute f32"
#define QUANTIZE_NAMES "none|4|8"
#define QUANTIZE_HELP "bits to which matrices in F32, F16 and BF16 are quantized while they are loaded (4: Q4_1, 8: Q8_0)"
// Bits of one of QUANTIZE_NAMES; 0: none.
#define QUANTIZE_BITS(word) ((word)[0] == '4' ? 4u : (word)[0] == '8' ? 8u : 0u)
#define DEVICE_HELP "cpu, cuda or cuda:N; auto: a GPU if there is one, else the CPU"

#define CACHE_DIR_HELP \
    "folder where converted weights are kept, so that the next start reads them; none: beside the model if they do not fit memory, else nowhere"
#define WEIGHTS_MEMORY_HELP                                                                                                      \
    "memory for weights, of the GPU if one computes; what does not fit comes from disk in each step, or to a GPU from the host " \
    "(docs/offloading.md). auto: all weights, or what the rest leaves"
#define WEIGHTS_HOST_MEMORY_HELP                                                                                                \
    "with a GPU: memory of the host, pinned, for weights that do not fit there; what does not fit here either comes from disk " \
    "in each step. auto: all of those, or what the rest leaves"
#define DISK_READS_HELP "how files of weights are read: uring, threads (where the kernel lets no process have io_uring), auto"

#endif

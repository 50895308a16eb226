// compute.h: --compute: what products of weights and activations are computed in, --device: where, --batch-invariant. Its own header, because `up` only
// passes the words on and needs nothing of the model.
#ifndef FD_MODEL_COMPUTE_H
#define FD_MODEL_COMPUTE_H

#define COMPUTE_NAMES "auto|f32|int8"
#define COMPUTE_HELP "f32 is the reference, by OpenBLAS; a GPU has auto alone, which is f16 or bf16"
#define INVARIANT_HELP                                                                                                                        \
    "equal bytes alone, in company and after failover: on a GPU one algorithm and tile for any number of rows, and KV in one kind of place; " \
    "a CPU's int8 is so anyway"
#define DEVICE_HELP "cpu; cuda or cuda:N; auto: a GPU if there is one, else the CPU"

#endif

// compute.h: names and help texts of --compute (the type in which products are computed), --device and --batch-invariant. This is a
// separate header because `up` only passes the options on and needs nothing of the model.
#ifndef FD_MODEL_COMPUTE_H
#define FD_MODEL_COMPUTE_H

#define COMPUTE_NAMES "auto|f32|int8"
#define COMPUTE_HELP "how products are computed; f32: the reference, by OpenBLAS; a GPU takes only auto, which is f16 or bf16"
#define INVARIANT_HELP \
    "equal bytes alone, in company and after failover; on a GPU this costs speed, and KV lies in places of one kind. A CPU's int8 always has them"
#define DEVICE_HELP "cpu, cuda or cuda:N; auto: a GPU if there is one, else the CPU"

#endif

/* compute.h: --compute: what products of weights and activations are computed in. Its own header, because `up` only passes the word on
 * and needs nothing of the model. */
#ifndef FD_MODEL_COMPUTE_H
#define FD_MODEL_COMPUTE_H

#define COMPUTE_NAMES "auto|f32|int8"
#define COMPUTE_HELP "f32 is the reference, by OpenBLAS"

#endif

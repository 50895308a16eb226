/* device.h: which device the S-part computes on. The CPU backend is part of the program; others are shared objects beside it,
 * opened when they are wanted, so that one program runs where there is no such device, no driver and no library of it at all.
 */
#ifndef FD_KERNELS_BACKEND_DEVICE_H
#define FD_KERNELS_BACKEND_DEVICE_H

#include "common/model/model.h"
#include "kernels/backend/backend.h"

/* What such a shared object exports, under the name fastdecode_device. */
struct device_library {
    uint64_t layout; /* DEVICE_LAYOUT of its build */
    const struct backend_ops *ops;
    /* Whether device `index` can be used; name: what it is, in a few words. UNAVAILABLE says why not. */
    enum status (*probe)(int index, char *name, size_t name_bytes, struct error *error);
};

/* Tells builds apart whose structs differ. */
#define DEVICE_MIX(mixed, type) ((mixed)*1000003u ^ sizeof(type))
#define DEVICE_MIX_3(mixed, a, b, c) DEVICE_MIX(DEVICE_MIX(DEVICE_MIX(mixed, a), b), c)
#define DEVICE_LAYOUT                                                                                             \
    DEVICE_MIX_3(DEVICE_MIX_3(DEVICE_MIX_3(2ull, struct backend_config, struct backend_plan, struct backend_ops), \
                              struct backend_row, struct backend_info, struct backend_sample),                    \
                 struct model, struct model_layer, struct sampler_result)

struct device_choice {
    const struct backend_ops *ops;
    int index;
    char line[300]; /* which and why, for the log */
};

/* wanted: "auto", "cpu", "cuda" or "cuda:N". The library is FD_CUDA_LIBRARY, else libfastdecode-cuda.so in the program's directory; it
 * stays open. INVALID_ARGUMENT for another word, UNAVAILABLE where the device that was asked for by name cannot be had. */
enum status device_choose(const char *wanted, struct device_choice *out, struct error *error) MUST_CHECK;

#endif

// device.h: chooses the device that the S-part computes on. The CPU backend is part of the program. Others are shared objects
// beside it, opened only when wanted, so that the same program runs on machines without such a device, its driver or its libraries.
#ifndef FD_KERNELS_BACKEND_DEVICE_H
#define FD_KERNELS_BACKEND_DEVICE_H

#include "common/kv/kv_ledger.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"

// The measured rates of a device, for `fastdecode plan --measure`.
struct device_rates {
    char name[128];
    uint64_t memory_bytes; // free now
    double compute_capability;
    double read_bytes;     // per second, by a kernel that only reads memory
    double weight_bytes;   // per second: weights in f16, in products with one row
    double f16_operations; // per second, in the fastest product with many rows; a multiply-add is two
};

// The table that such a shared object exports by the name fastdecode_device.
struct device_library {
    uint64_t layout; // DEVICE_LAYOUT of its build
    const struct backend_ops *ops;
    // Checks whether device `index` can be used; name: describes it in a few words. UNAVAILABLE: it cannot; the error says why.
    enum status (*probe)(int index, char *name, size_t name_bytes, struct error *error);
    // Measures a device. Blocks for about limit_us, and for at least three passes of each kind. Takes up to 1 GiB, and at most a
    // quarter, of the device's memory. RESOURCE_EXHAUSTED: not enough memory.
    enum status (*measure)(int index, uint64_t limit_us, struct device_rates *out, struct error *error);
};

// Differs between builds in which shared structs have different sizes. Raise the first number when only the order of fields
// changes.
#define DEVICE_MIX(mixed, type) ((mixed)*1000003u ^ sizeof(type))
#define DEVICE_MIX_3(mixed, a, b, c) DEVICE_MIX(DEVICE_MIX(DEVICE_MIX(mixed, a), b), c)
#define DEVICE_LAYOUT                                                                                                         \
    (DEVICE_MIX_3(DEVICE_MIX_3(DEVICE_MIX_3(DEVICE_MIX(DEVICE_MIX(9ull, struct device_library), struct device_rates),         \
                                            struct backend_config, struct backend_plan, struct backend_ops),                  \
                               struct backend_row, struct backend_info, struct backend_sample),                               \
                  struct model, struct model_layer, struct sampler_result) ^                                                  \
     DEVICE_MIX(DEVICE_MIX_3(DEVICE_MIX_3(7ull, struct kernels, struct kv_ledger, struct kv_sequence), struct sampler_params, \
                             struct backend_links, struct kv_held),                                                           \
                struct backend_span))

struct device_choice {
    const struct backend_ops *ops;
    const struct device_library *library; // NULL: the CPU
    int index;
    char line[300]; // the device and the reason for it, for the log
};

// wanted: "auto", "cpu", "cuda" or "cuda:N". The library is named by FD_CUDA_LIBRARY, or is libfastdecode-cuda.so in the program's
// directory; it stays open. INVALID_ARGUMENT: `wanted` is none of these. UNAVAILABLE: the device that was asked for by name cannot
// be used.
enum status device_choose(const char *wanted, struct device_choice *out, struct error *error) MUST_CHECK;

#endif

// device.h: which device the S-part computes on. The CPU backend is part of the program; others are shared objects beside it,
// opened when they are wanted, so that one program runs where there is no such device, no driver and no library of it at all.
#ifndef FD_KERNELS_BACKEND_DEVICE_H
#define FD_KERNELS_BACKEND_DEVICE_H

#include "common/kv/kv_ledger.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"

// What a device was measured to do, for `fastdecode plan --measure`.
struct device_rates {
    char name[128];
    uint64_t memory_bytes; // free now
    double read_bytes;     // a second: memory as a kernel reads it that does nothing else
    double weight_bytes;   // a second: weights in f16, by products of one row
    double f16_operations; // a second: by the best product of many rows, a multiply-add being two
};

// What such a shared object exports, under the name fastdecode_device.
struct device_library {
    uint64_t layout; // DEVICE_LAYOUT of its build
    const struct backend_ops *ops;
    // Whether device `index` can be used; name: what it is, in a few words. UNAVAILABLE says why not.
    enum status (*probe)(int index, char *name, size_t name_bytes, struct error *error);
    // Blocks for about limit_us, three passes of each kind whatever that takes; takes up to 1 GiB of its memory, a quarter at most,
    // meanwhile. RESOURCE_EXHAUSTED without.
    enum status (*measure)(int index, uint64_t limit_us, struct device_rates *out, struct error *error);
};

// Tells builds apart in which what program and library share has another size. The first number grows when only an order changes.
#define DEVICE_MIX(mixed, type) ((mixed)*1000003u ^ sizeof(type))
#define DEVICE_MIX_3(mixed, a, b, c) DEVICE_MIX(DEVICE_MIX(DEVICE_MIX(mixed, a), b), c)
#define DEVICE_LAYOUT                                                                                                         \
    (DEVICE_MIX_3(DEVICE_MIX_3(DEVICE_MIX_3(DEVICE_MIX(DEVICE_MIX(6ull, struct device_library), struct device_rates),         \
                                            struct backend_config, struct backend_plan, struct backend_ops),                  \
                               struct backend_row, struct backend_info, struct backend_sample),                               \
                  struct model, struct model_layer, struct sampler_result) ^                                                  \
     DEVICE_MIX(DEVICE_MIX_3(DEVICE_MIX_3(7ull, struct kernels, struct kv_ledger, struct kv_sequence), struct sampler_params, \
                             struct backend_links, struct backend_held),                                                      \
                struct backend_span))

struct device_choice {
    const struct backend_ops *ops;
    const struct device_library *library; // NULL: the CPU
    int index;
    char line[300]; // which and why, for the log
};

// wanted: "auto", "cpu", "cuda" or "cuda:N". The library is FD_CUDA_LIBRARY, else libfastdecode-cuda.so in the program's directory; it
// stays open. INVALID_ARGUMENT for another word, UNAVAILABLE where the device that was asked for by name cannot be had.
enum status device_choose(const char *wanted, struct device_choice *out, struct error *error) MUST_CHECK;

#endif

// calibrate.h: measures at start how long the loaded model takes on this machine: T(b), the head, and attention of the local pool.
#ifndef FD_SERVICES_S_PART_CALIBRATE_H
#define FD_SERVICES_S_PART_CALIBRATE_H

#include "cluster.pb-c.h"
#include "common/kv/kv_shape.h"
#include "kernels/backend/backend_measure.h"

enum { CALIBRATE_BYTES = 64 << 20 }; // memory used while measuring

struct calibration {
    bool done;
    struct backend_times times;
    struct kv_costs kv;              // of the local pool
    struct kv_costs host_kv;         // with this host's kernels, which workers use too; token_us 0: these do not support the shape
    Fastdecode__Calibration message; // times and kv in the form that registrations send; points into this struct
    Fastdecode__KvCosts kv_message;
};

// Measures, and logs CALIBRATED. Takes about 0.75 s (1.1 s with a pool in a device's memory) and up to CALIBRATE_BYTES of memory.
// Call it before anything else runs on the backend and the pool. what: the open backend; its pages are those of a pool in the
// device's memory; with 0 pages, the pool's attention is that of the host, on `kv`. max_sampled: the most rows to measure the head
// with. A failure leaves `done` false. `out` must not be moved afterwards.
enum status calibrate(const struct attend_measure *what, const struct kv_shape *kv, struct thread_pool *pool, uint32_t max_sampled,
                      struct calibration *out, struct error *error) MUST_CHECK;

// Returns how long the longest uninterrupted piece of an engine's work takes: a layer of `rows` rows whose last has `context`
// tokens, or their head. 0: not measured.
uint64_t calibration_slowest_us(const struct calibration *calibration, uint32_t rows, uint32_t context);

#endif

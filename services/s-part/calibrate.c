// calibrate.c: see calibrate.h.
#include "services/s-part/calibrate.h"

#include <stdio.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/messages.h"
#include "kernels/kv/kv_store.h"

enum { STEPS_US = 600000, ATTENTION_US = 120000, DEVICE_ATTENTION_US = 400000, ROWS_MAX = 512, TEXT = 400 };

// "1:92.3 2:96.0 …"
static void list(const double *rows, const double *us, uint32_t count, char *out)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < count && at < TEXT - 1; i++)
        at += (size_t)snprintf(out + at, TEXT - at, "%s%.0f:%.1f", i ? " " : "", rows[i], us[i]);
}

static void fill_message(struct calibration *c)
{
    fastdecode__calibration__init(&c->message);
    messages_from_kv_costs(&c->kv, &c->kv_message);
    c->message.n_layer_rows = c->message.n_layer_us = c->times.layer_count;
    c->message.layer_rows = c->times.layer_rows;
    c->message.layer_us = c->times.layer_us;
    c->message.n_head_rows = c->message.n_head_us = c->times.head_count;
    c->message.head_rows = c->times.head_rows;
    c->message.head_us = c->times.head_us;
}

// The host's kernels are measured beside a pool on a device too. They may not have its shape: then no worker has it either.
static enum status measure_attention(const struct attend_measure *what, const struct kv_shape *kv, struct thread_pool *pool,
                                     struct calibration *out, struct error *error)
{
    enum status status = kv_measure(kv, CALIBRATE_BYTES, pool, ATTENTION_US, &out->host_kv, error);

    if (what->pages) {
        if (!backend_measure_attention(what, DEVICE_ATTENTION_US, &out->kv, error)) // half of it lays sequences into the pool
            return STATUS_OK;
        log_warn("POOL-NOT-MEASURED", "why=\"%s\" instead=\"as fast as the host\"", error->text);
    }
    out->kv = out->host_kv;
    return status;
}

static double at_rows(const double *rows, const double *us, uint32_t count, uint32_t wanted)
{
    return count ? us[count - 1] * MAX(1.0, wanted / rows[count - 1]) : 0;
}

uint64_t calibration_slowest_us(const struct calibration *c, uint32_t rows, uint32_t context)
{
    if (!c->done)
        return 0;
    double layer = at_rows(c->times.layer_rows, c->times.layer_us, c->times.layer_count, rows);
    double head = at_rows(c->times.head_rows, c->times.head_us, c->times.head_count, rows);
    double attention = c->kv.call_us + rows * (c->kv.prefill_row_us + context * c->kv.pair_us);
    return (uint64_t)MAX(layer + attention, head);
}

enum status calibrate(const struct attend_measure *what, const struct kv_shape *kv, struct thread_pool *pool, uint32_t max_sampled,
                      struct calibration *out, struct error *error)
{
    char layers[TEXT], heads[TEXT];
    struct backend_info info;
    uint64_t began_us = clock_now_us();
    what->ops->info(what->backend, &info);
    if (what->ops->hold)
        what->ops->hold(what->backend, true);
    enum status status = backend_measure(what->ops, what->batch, what->shape, MIN(what->max_rows, (uint32_t)ROWS_MAX), max_sampled,
                                         info.stream_step_us > 0 ? 1 : UINT32_MAX, STEPS_US, &out->times, error);

    if (what->ops->hold)
        what->ops->hold(what->backend, false);
    if (!status)
        status = measure_attention(what, kv, pool, out, error);
    if (status)
        return status;
    fill_message(out);
    what->ops->info(what->backend, &info);
    out->message.stream_us = info.stream_step_us;
    out->done = true;
    list(out->times.layer_rows, out->times.layer_us, out->times.layer_count, layers);
    list(out->times.head_rows, out->times.head_us, out->times.head_count, heads);
    log_info(
        "CALIBRATED",
        "ms=%llu layer_us=\"%s\" head_us=\"%s\" attend_call_us=%.1f attend_row_us=%.2f attend_token_us=%.5f attend_prefill_row_us=%.2f attend_pair_us=%.5f stream_us=%.0f",
        (unsigned long long)(clock_now_us() - began_us) / 1000, layers, heads, out->kv.call_us, out->kv.row_us, out->kv.token_us,
        out->kv.prefill_row_us, out->kv.pair_us, info.stream_step_us);
    return STATUS_OK;
}

// cpu_attend.c: attention of the local rows: a job of its own, or, of few rows, a phase of the segment's job (cpu_segment.c).
#include "kernels/backend/cpu_internal.h"

// In the last layer: K and V of rows without output are stored, and no attention is computed for them.
static void skip_attention_of_kv_only(struct backend_batch *batch)
{
    for (uint32_t row = 0, local = 0; row < batch->row_count; row++) {
        if (!batch->rows[row].needs_output && batch->rows[row].local)
            batch->kv_o[local] = NULL;
        local += batch->rows[row].local;
    }
    for (uint32_t i = 0; i < batch->read_count; i++)
        if (!batch->rows[batch->reads[i].row].needs_output)
            batch->kv_o[batch->local_count - batch->read_count + i] = NULL;
}

// What comes before and after the attention of a layer's local rows.
static void attend_begins(struct backend_batch *batch, uint32_t layer)
{
    struct backend *backend = batch->backend;

    if (backend->range.is_last && layer + 1 == backend->range.count && batch->kv_only_count)
        skip_attention_of_kv_only(batch);
    kv_batch_sinks(batch->kv, backend->config.model->layers[backend->range.first + layer].sink_scores);
}

// Returns how long it took, in ns.
static uint64_t attend_ended(struct backend *backend)
{
    const uint64_t before_ns = backend->attend_ns;
    struct kv_stats stats;

    kv_store_stats(backend->kv, &stats);
    backend->attend_bytes = stats.bytes_read;
    backend->attend_ns = stats.attend_ns;
    return stats.attend_ns - before_ns;
}

void cpu_attend(struct backend_batch *batch, uint32_t layer)
{
    if (!batch->local_count || layer < batch->joined)
        return;
    attend_begins(batch, layer);
    kv_batch_attend(batch->kv, layer, batch->kv_q, batch->kv_k, batch->kv_v, batch->kv_o);
    attend_ended(batch->backend);
}

void cpu_join_begin(struct backend_batch *batch, uint32_t layer)
{
    attend_begins(batch, layer);
    kv_batch_join_begin(batch->kv, layer, batch->kv_o);
}

void cpu_join_end(struct backend_batch *batch)
{
    kv_batch_join_end(batch->kv);
    batch->joined_ns = attend_ended(batch->backend);
    batch->joined++;
}

uint64_t cpu_attended_ns(const struct backend_batch *batch) { return batch->joined ? batch->joined_ns : 0; }

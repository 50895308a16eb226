/* cuda_pool.c: the local pool in device memory: the ledger is the host's (kv_ledger), pages and attention are the device's. */
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

uint64_t cuda_page_bytes(const struct model_shape *shape)
{
    return (uint64_t)shape->layers * shape->kv_heads * 2 * GPU_PAGE_TOKENS * shape->head_dim * 2;
}

struct kv_ledger_shape cuda_ledger_shape(const struct backend_config *config, uint32_t pages)
{
    return (struct kv_ledger_shape){
        .pages = pages,
        .page_tokens = GPU_PAGE_TOKENS,
        .max_sequences = config->max_sequences,
        .max_context = config->context_tokens,
    };
}

enum status cuda_pool_open(struct backend *backend, struct error *error)
{
    const struct backend_config *config = &backend->config;
    uint64_t page_bytes = cuda_page_bytes(&backend->shape), pages = config->local_pool_bytes / page_bytes;
    enum status status;

    backend->pool = (struct gpu_pool){
        .layers = backend->shape.layers,
        .heads = backend->shape.heads,
        .kv_heads = backend->shape.kv_heads,
        .head_dim = backend->shape.head_dim,
    };
    if (!config->local_pool_bytes)
        return STATUS_OK;
    if (!pages || pages > 1u << 30)
        return error_set(error, STATUS_INVALID_ARGUMENT, "a local pool of %llu bytes: a page has %llu",
                         (unsigned long long)config->local_pool_bytes, (unsigned long long)page_bytes);
    const struct kv_ledger_shape shape = cuda_ledger_shape(config, (uint32_t)pages);
    if ((status = kv_ledger_open(&shape, &backend->ledger, error)))
        return status;
    if (cudaMalloc(&backend->pool.pages, pages * page_bytes)) {
        backend->pool.pages = NULL;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no %llu MiB of device memory in one piece for the local pool",
                         backend->name, (unsigned long long)(pages * page_bytes >> 20));
    }
    return STATUS_OK;
}

void cuda_pool_close(struct backend *backend)
{
    cudaFree(backend->pool.pages);
    kv_ledger_close(&backend->ledger);
}

/* Gives the local rows their pages, copying those that were shared. */
static enum status reserve(struct backend_batch *batch, uint32_t *bad_row, struct error *error)
{
    struct backend *backend = batch->backend;
    uint64_t page_bytes = cuda_page_bytes(&backend->shape);
    unsigned char *pages = backend->pool.pages;
    struct kv_copy copy;
    bool copied = false;
    enum status status = STATUS_OK;

    for (uint32_t row = 0; row < batch->row_count; row++) {
        const struct backend_row *own = &batch->rows[row];
        if (!own->local)
            continue;
        *bad_row = row;
        if (!pages)
            return error_set(error, STATUS_FAILED_PRECONDITION, "there is no local pool");
        batch->kv_rows[batch->local_count++] = (struct kv_row){own->sequence, own->position};
        if (row + 1 < batch->row_count && own[1].local && own[1].sequence == own->sequence)
            continue;
        if ((status = kv_ledger_reserve(&backend->ledger, own->sequence, own->position + 1, &copy, error)))
            break;
        if (copy.needed)
            cuda_must(cudaMemcpyAsync(pages + copy.to * page_bytes, pages + copy.from * page_bytes, page_bytes,
                                      cudaMemcpyDeviceToDevice, batch->stream),
                      "copying a shared page");
        copied |= copy.needed;
    }
    if (copied) /* others may write to the page that was copied, on streams of their own */
        cuda_must(cudaStreamSynchronize(batch->stream), "copying a shared page");
    return status;
}

/* Words of a step, which begin copies to the device: after token and position of all rows come row, position and table of the local ones, and then the
 * page tables of their sequences as far as the rows reach. */
enum status cuda_plan_local(struct backend_batch *batch, uint32_t *bad_row, struct error *error)
{
    struct backend *backend = batch->backend;
    const struct kv_ledger *ledger = &backend->ledger;
    uint32_t max_rows = backend->config.max_rows, entries = 0, longest = 0, local = 0, begun = 0;
    uint32_t *row_words = batch->words_host + 2 * (size_t)max_rows, *positions = row_words + max_rows,
             *tables = positions + max_rows, *pages = tables + max_rows;
    struct kv_row_walk walk;
    enum status status;

    batch->local_count = 0;
    if ((status = reserve(batch, bad_row, error)))
        return status;
    for (uint32_t row = 0; row < batch->row_count; row++) {
        if (!batch->rows[row].local)
            continue;
        *bad_row = row;
        if ((status = kv_ledger_check_row(ledger, batch->kv_rows, local, &walk, error)))
            return status;
        if (walk.first)
            begun = entries;
        uint32_t need = batch->rows[row].position / GPU_PAGE_TOKENS + 1;
        if (begun + need > CUDA_TABLE_ENTRIES_MAX)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "row %u: the step's sequences have more than %d pages", row,
                             CUDA_TABLE_ENTRIES_MAX);
        if (begun + need > entries) {
            memcpy(pages + entries, kv_ledger_table(ledger, walk.slot) + (entries - begun),
                   (begun + need - entries) * sizeof *pages);
            entries = begun + need;
        }
        row_words[local] = row;
        positions[local] = batch->rows[row].position;
        tables[local] = begun;
        batch->slots[local] = walk.slot;
        longest = MAX(longest, batch->rows[row].position + 1);
        local++;
    }
    const uint32_t *device = batch->words + 2 * (size_t)max_rows;
    batch->local =
        (struct gpu_rows){device, device + max_rows, device + 2 * (size_t)max_rows, device + 3 * (size_t)max_rows, local, longest};
    batch->table_entries = entries;
    return STATUS_OK;
}

void cuda_attend(struct backend_batch *batch, uint32_t layer)
{
    struct backend *backend = batch->backend;

    if (!batch->local_count)
        return;
    cuda_span_begin(batch, CUDA_ATTEND, layer);
    gpu_store_kv(&backend->pool, layer, &batch->local, batch->qkv, batch->stream);
    /* As many rows at once as there is scratch for, with ranges as far as their own longest reaches: a row's result is its own. */
    for (uint32_t first = 0, count; first < batch->local_count; first += count) {
        struct gpu_rows part = batch->local;
        part.row += first, part.position += first, part.table += first;
        part.longest = 0;
        for (count = 0; first + count < batch->local_count; count++) {
            uint32_t longest = MAX(part.longest, batch->kv_rows[first + count].position + 1);
            if (count && gpu_attend_scratch(&backend->pool, count + 1, longest) > batch->scratch_floats)
                break;
            part.longest = longest;
        }
        part.count = count;
        gpu_attend(&backend->pool, layer, &part, batch->qkv, batch->att, batch->scratch, batch->stream);
    }
    cuda_span_end(batch, CUDA_ATTEND, layer);
    cuda_queued(batch, "starting attention");
    for (uint32_t i = 0; i < batch->local_count; i++)
        backend->attend_bytes += (batch->kv_rows[i].position + 1ull) * 2 * backend->kv_width * 2;
    if (layer + 1 < backend->shape.layers)
        return;
    for (uint32_t i = 0; i < batch->local_count; i++) {
        struct kv_sequence *sequence = &backend->ledger.sequences[batch->slots[i]];
        if (sequence->used && sequence->id == batch->kv_rows[i].sequence)
            sequence->complete = MAX(sequence->complete, batch->kv_rows[i].position + 1);
    }
}

void cuda_pool_release(struct backend *backend, uint64_t sequence)
{
    if (backend->pool.pages)
        kv_ledger_free(&backend->ledger, sequence);
}

enum status cuda_pool_share(struct backend *backend, uint64_t from, uint32_t positions, uint64_t to, struct error *error)
{
    if (!backend->pool.pages)
        return error_set(error, STATUS_FAILED_PRECONDITION, "there is no local pool");
    return kv_ledger_share(&backend->ledger, from, positions, to, error);
}

uint32_t cuda_pool_held(const struct backend *backend, struct backend_held *held, uint32_t capacity)
{
    uint32_t count = 0;
    struct kv_held item;

    if (!backend->pool.pages)
        return 0;
    for (uint32_t at = 0; kv_ledger_next(&backend->ledger, &at, &item); count++)
        if (count < capacity)
            held[count] = (struct backend_held){item.sequence, item.positions};
    return count;
}

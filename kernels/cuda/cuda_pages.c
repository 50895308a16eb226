// cuda_pages.c: pages of the local pool to and from the host, while steps go on.
//
// A page goes in slices, two at a time, on a stream of its own: while the device turns one and brings it over the bus, the thread
// that asks copies the other between pinned memory and the caller's page. Each time it asks, one slice at most is copied, some 50 us,
// so that no step waits longer for it: a page of 8 MiB is 16 slices, each 20 us on a bus of 25 GB/s.
//
//     export   pool ─kernel▶ slice 0, 1, 0, … ─memcpy, in copied▶ page
//     import   page ─memcpy, in copied▶ slice 0, 1, 0, … ─kernel▶ pool
//
// The host orders this with the steps' streams: exported positions are of steps whose end it has seen; pages that are imported into were
// freed by steps that have ended, and are used by steps that begin after `copied`.
#include <string.h>

#include "common/base/checked.h"
#include "common/kv/kv_type.h"
#include "kernels/cuda/cuda.h"

static bool store_has_form(const struct model_shape *shape) { return shape->head_dim % 16 == 0; }

uint64_t cuda_copy_bytes(const struct backend_config *config)
{
    return config->local_pool_bytes && store_has_form(&config->model->shape) ? (uint64_t)CUDA_SLICES * CUDA_SLICE_BYTES : 0;
}

enum status cuda_copy_open(struct backend *backend, struct error *error)
{
    struct cuda_copy *copy = &backend->copy;
    uint64_t bytes = cuda_copy_bytes(&backend->config);

    if (!bytes)
        return STATUS_OK;
    copy->tile_bytes = 2 * GPU_PAGE_TOKENS * backend->shape.head_dim * 2;
    copy->slice_tiles = CUDA_SLICE_BYTES / copy->tile_bytes;
    if (cudaHostAlloc((void **)&copy->slices, bytes, cudaHostAllocDefault)) {
        copy->slices = NULL;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no %llu KiB of pinned memory to hand pages over", backend->name,
                         (unsigned long long)bytes >> 10);
    }
    cuda_must(cudaStreamCreateWithFlags(&copy->stream, cudaStreamNonBlocking), "a stream");
    for (uint32_t i = 0; i < CUDA_SLICES; i++)
        cuda_must(cudaEventCreateWithFlags(&copy->event[i], cudaEventDisableTiming), "an event");
    return STATUS_OK;
}

void cuda_copy_close(struct backend *backend)
{
    struct cuda_copy *copy = &backend->copy;

    if (!copy->slices)
        return;
    cudaStreamSynchronize(copy->stream);
    for (uint32_t i = 0; i < CUDA_SLICES; i++)
        cudaEventDestroy(copy->event[i]);
    cudaStreamDestroy(copy->stream);
    cudaFreeHost(copy->slices);
}

uint64_t cuda_pool_page_bytes(const struct backend *backend)
{
    return backend->pool.pages && backend->copy.slices ? cuda_page_bytes(&backend->shape, &backend->range) : 0;
}

// --- slices ---

static uint32_t page_tiles(const struct backend *backend) { return backend->range.count * backend->shape.kv_heads; }

// Returns the slice that begins with this tile.
static uint32_t slice_of(const struct cuda_copy *copy, uint32_t tile) { return tile / copy->slice_tiles % CUDA_SLICES; }

static unsigned char *slice_at(const struct cuda_copy *copy, uint32_t tile)
{
    return copy->slices + (size_t)slice_of(copy, tile) * CUDA_SLICE_BYTES;
}

static bool arrived(const struct cuda_copy *copy, uint32_t tile)
{
    return cuda_has_come(copy->event[slice_of(copy, tile)], "handing a page over");
}

// Starts the next slice on the device. A page that comes in lies in pinned memory already.
static void begin_slice(struct backend *backend)
{
    struct cuda_copy *copy = &backend->copy;
    uint32_t first = copy->tiles_begun, count = MIN(copy->slice_tiles, page_tiles(backend) - first);

    if (copy->out)
        gpu_pages_out(&backend->pool, copy->page, first, count, slice_at(copy, first), copy->stream);
    else
        gpu_pages_in(&backend->pool, copy->page, first, count, slice_at(copy, first), copy->stream);
    cuda_must(cudaGetLastError(), "handing a page over");
    cuda_must(cudaEventRecord(copy->event[slice_of(copy, first)], copy->stream), "handing a page over");
    copy->tiles_begun += count;
}

static void advance_out(struct backend *backend)
{
    struct cuda_copy *copy = &backend->copy;
    uint32_t done = copy->tiles_done;

    if (!arrived(copy, done))
        return;
    uint32_t count = MIN(copy->slice_tiles, page_tiles(backend) - done);
    memcpy(copy->out + (size_t)done * copy->tile_bytes, slice_at(copy, done), (size_t)count * copy->tile_bytes);
    copy->tiles_done += count;
    if (copy->tiles_begun < page_tiles(backend))
        begin_slice(backend);
}

static void advance_in(struct backend *backend)
{
    struct cuda_copy *copy = &backend->copy;
    uint32_t tiles = page_tiles(backend), begun = copy->tiles_begun;

    if (copy->tiles_done < begun && arrived(copy, copy->tiles_done))
        copy->tiles_done += MIN(copy->slice_tiles, tiles - copy->tiles_done);
    if (begun == tiles || begun - copy->tiles_done >= CUDA_SLICES * copy->slice_tiles)
        return;
    memcpy(slice_at(copy, begun), copy->in + (size_t)begun * copy->tile_bytes,
           (size_t)MIN(copy->slice_tiles, tiles - begun) * copy->tile_bytes);
    begin_slice(backend);
}

// --- entries ---

enum status cuda_pool_export(struct backend *backend, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                             struct error *error)
{
    struct cuda_copy *copy = &backend->copy;
    uint32_t from;

    assert_always(!copy->active);
    if (kv_ledger_give_page(&backend->ledger, sequence, page_index, &from, positions))
        return error_set(error, STATUS_NOT_FOUND, "page %u of sequence %llx is not held", page_index, (unsigned long long)sequence);
    cuda_must(cudaSetDevice(backend->config.device), "choosing the device");
    copy->active = true;
    copy->page = from;
    copy->tiles_begun = copy->tiles_done = 0;
    copy->out = page;
    for (uint32_t i = 0; i < CUDA_SLICES && copy->tiles_begun < page_tiles(backend); i++)
        begin_slice(backend);
    return STATUS_OK;
}

enum status cuda_pool_import(struct backend *backend, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                             struct error *error)
{
    struct cuda_copy *copy = &backend->copy;
    struct kv_copy unused; // of a shared page: this one is written as a whole

    assert_always(!copy->active);
    enum status status =
        kv_ledger_take_page(&backend->ledger, sequence, page_index, positions, &copy->slot, &copy->page, &unused, error);
    if (status)
        return status;
    cuda_must(cudaSetDevice(backend->config.device), "choosing the device");
    copy->active = true;
    copy->tiles_begun = copy->tiles_done = 0;
    copy->out = NULL;
    copy->in = page;
    struct kv_sequence *to = &backend->ledger.sequences[copy->slot];
    to->complete = page_index * GPU_PAGE_TOKENS; // what it held of this page is held again when all of it has come
    copy->generation = kv_ledger_generation(&backend->ledger, copy->slot);
    copy->complete = page_index * GPU_PAGE_TOKENS + positions;
    advance_in(backend);
    return STATUS_OK;
}

bool cuda_pool_copied(struct backend *backend)
{
    struct cuda_copy *copy = &backend->copy;

    if (!copy->active)
        return true;
    if (copy->out)
        advance_out(backend);
    else
        advance_in(backend);
    if (copy->tiles_done < page_tiles(backend))
        return false;
    copy->active = false;
    struct kv_sequence *sequence = &backend->ledger.sequences[copy->slot];
    if (!copy->out && kv_ledger_is_current(&backend->ledger, copy->slot, copy->generation))
        sequence->complete = copy->complete;
    return true;
}

void cuda_pool_stop_copy(struct backend *backend)
{
    struct cuda_copy *copy = &backend->copy;

    if (copy->active)
        cuda_must(cudaStreamSynchronize(copy->stream), "handing a page over"); // two slices: as long as one of them is copied
    copy->active = false;
}

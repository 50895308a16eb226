// cuda_pool.c: the local pool in device memory: the ledger is the host's (kv_ledger), pages and attention are the device's.
//
// Attention has two kernels. Rows of one sequence at positions one after the other (a chunk of a prompt) are put together in tiles,
// whose rows read K and V once (gpu_attend_tiles); the others, as decoding has them, are attended one by one (gpu_attend). in_tiles
// says which.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

uint64_t cuda_page_bytes(const struct model_shape *shape, const struct layer_range *range)
{
    return (uint64_t)range->count * shape->kv_heads * 2 * GPU_PAGE_TOKENS * shape->head_dim * 2;
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
    uint64_t page_bytes = cuda_page_bytes(&backend->shape, &backend->range), pages = config->local_pool_bytes / page_bytes;
    enum status status;

    backend->pool = (struct gpu_pool){
        .layers = backend->range.count,
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
    struct cudaDeviceProp properties;
    cuda_must(cudaGetDeviceProperties(&properties, config->device), "asking for the device's properties");
    backend->pool.small_shared = properties.sharedMemPerBlockOptin < GPU_USUAL_SHARED;
    if (gpu_tile_rows(&backend->pool))
        cuda_must(gpu_tile_open(&backend->pool, &backend->tile_blocks), "allowing attention its shared memory");
    backend->tile_blocks *= (uint32_t)properties.multiProcessorCount;
    return STATUS_OK;
}

void cuda_pool_close(struct backend *backend)
{
    cudaFree(backend->pool.pages);
    kv_ledger_close(&backend->ledger);
}

// Checks that the sequence is not being taken over: its pages are being written to, and must be neither shared nor given away.
static enum status not_coming_in(const struct backend *backend, uint64_t sequence, struct error *error)
{
    const struct cuda_copy *copy = &backend->copy;
    if (!copy->active || copy->out || backend->ledger.sequences[copy->slot].id != sequence)
        return STATUS_OK;
    return error_set(error, STATUS_FAILED_PRECONDITION, "sequence %llx is being taken over", (unsigned long long)sequence);
}

// Reserves pages for the local rows, and copies shared ones before they are written.
static enum status reserve(struct backend_batch *batch, uint32_t *bad_row, struct error *error)
{
    struct backend *backend = batch->backend;
    uint64_t page_bytes = cuda_page_bytes(&backend->shape, &backend->range);
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
        batch->kv_rows[batch->local_count++] = (struct kv_row){.sequence = own->sequence, .position = own->position};
        if (row + 1 < batch->row_count && own[1].local && own[1].sequence == own->sequence)
            continue;
        if ((status = not_coming_in(backend, own->sequence, error)) ||
            (status = kv_ledger_reserve(&backend->ledger, own->sequence, own->position + 1, &copy, error)))
            break;
        if (copy.needed)
            cuda_must(cudaMemcpyAsync(pages + copy.to * page_bytes, pages + copy.from * page_bytes, page_bytes,
                                      cudaMemcpyDeviceToDevice, batch->stream),
                      "copying a shared page");
        copied |= copy.needed;
    }
    if (copied) // others may write to the page that was copied, on streams of their own
        cuda_must(cudaStreamSynchronize(batch->stream), "copying a shared page");
    return status;
}

// --- the plan of a step ---

// Words of a step, which begin copies to the device: after token and position of all rows come row, position and table of the local ones
// (those of tiles from the front on, single ones from the back), tiles, and page tables of the sequences as far as the rows reach.
struct step_words {
    uint32_t *row, *position, *table, *tiles, *pages;
};

static struct step_words words_of(uint32_t *words, size_t max_rows)
{
    return (struct step_words){.row = words + 2 * max_rows,
                               .position = words + 3 * max_rows,
                               .table = words + 4 * max_rows,
                               .tiles = words + 5 * max_rows,
                               .pages = words + CUDA_ROW_WORDS * max_rows};
}

// Chooses the kernel for `count` rows of a sequence at consecutive positions. A block of gpu_attend_tiles reads
// K and V once for all of them, in about the time in which gpu_attend reads them for one or two; tiles of fewer rows than TILE_ROWS_MIN are not
// worth a second launch.
enum { TILE_ROWS_MIN = 4 };

static bool in_tiles(const struct backend *backend, uint32_t count)
{
    return !backend->config.batch_invariant && count >= TILE_ROWS_MIN && gpu_tile_rows(&backend->pool);
}

// Counts the rows from `row` on that are of one sequence at consecutive positions.
static uint32_t chunk_rows(const struct backend_batch *batch, uint32_t row)
{
    const struct backend_row *rows = &batch->rows[row];
    uint32_t count = 1;
    while (row + count < batch->row_count && rows[count].local && rows[count].sequence == rows->sequence &&
           rows[count].position == rows->position + count)
        count++;
    return count;
}

// Adds the tiles of a chunk whose rows are the local rows from `first` on. max_rows words are enough: a chunk has four rows at least, and so
// has each of its tiles but the last, so there is at most one tile for two rows.
static void add_tiles(struct backend_batch *batch, const struct step_words *words, uint32_t first, uint32_t position,
                      uint32_t count)
{
    const uint32_t most = gpu_tile_rows(&batch->backend->pool);
    _Static_assert(TILE_ROWS_MIN >= 4, "else there could be more tiles than words for them");
    for (uint32_t done = 0, rows; done < count; done += rows) {
        rows = MIN(most, count - done);
        assert_always(2 * batch->tiles.count + 2 <= batch->backend->config.max_rows);
        words->tiles[2 * batch->tiles.count] = first + done;
        words->tiles[2 * batch->tiles.count++ + 1] = rows;
    }
    batch->tile_rows += count;
    batch->tiles.longest = MAX(batch->tiles.longest, position + count);
}

// Contexts are cut where there are fewer tiles than the device runs blocks of: into spans that give each as much to do as it had of an
// even share; no shorter than SPAN_MIN, which writing and merging a span's parts (a fifth of the time of so many keys) is worth, and
// no more of them than there is scratch for with a single tile.
static uint32_t choose_span(const struct backend_batch *batch, const struct step_words *words)
{
    enum { SPAN_MIN = 2 * GPU_TILE_SPAN };
    const struct backend *backend = batch->backend;
    struct gpu_tiles one = {.count = 1, .longest = batch->tiles.longest};
    uint64_t positions = 0;
    for (uint32_t tile = 0; tile < batch->tiles.count; tile++)
        positions += (uint64_t)words->position[words->tiles[2 * tile]] + words->tiles[2 * tile + 1];
    positions = positions * backend->shape.kv_heads / backend->tile_blocks;
    one.span = SPAN_MIN;
    while (one.span < one.longest && (one.span < positions || gpu_tile_scratch(&backend->pool, &one) > batch->scratch_floats))
        one.span *= 2;
    return one.span;
}

enum status cuda_plan_local(struct backend_batch *batch, uint32_t *bad_row, struct error *error)
{
    struct backend *backend = batch->backend;
    struct kv_ledger *ledger = &backend->ledger;
    const struct step_words words = words_of(batch->words_host, backend->config.max_rows),
                            device = words_of(batch->words, backend->config.max_rows);
    uint32_t entries = 0, longest = 0, local = 0, begun = 0, chunk_end = 0, single;
    bool tiled = false;
    struct kv_row_walk walk;
    enum status status;

    batch->local_count = batch->tile_rows = 0;
    batch->tiles = (struct gpu_tiles){.words = device.tiles};
    if ((status = reserve(batch, bad_row, error)))
        return status;
    single = batch->local_count;
    for (uint32_t row = 0; row < batch->row_count; row++) {
        const uint32_t position = batch->rows[row].position, need = position / GPU_PAGE_TOKENS + 1;
        if (!batch->rows[row].local)
            continue;
        *bad_row = row;
        if ((status = kv_ledger_check_row(ledger, batch->kv_rows, local, &walk, error)))
            return status;
        if (walk.first)
            begun = entries;
        if (begun + need > CUDA_TABLE_ENTRIES_MAX)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "row %u: the step's sequences have more than %d pages", row,
                             CUDA_TABLE_ENTRIES_MAX);
        if (begun + need > entries) {
            memcpy(words.pages + entries, kv_ledger_table(ledger, walk.slot) + (entries - begun),
                   (begun + need - entries) * sizeof *words.pages);
            entries = begun + need;
        }
        if (row >= chunk_end) {
            chunk_end = row + chunk_rows(batch, row);
            tiled = in_tiles(backend, chunk_end - row);
            if (tiled)
                add_tiles(batch, &words, batch->tile_rows, position, chunk_end - row);
        }
        const uint32_t at = tiled ? batch->tile_rows - (chunk_end - row) : --single;
        words.row[at] = row, words.position[at] = position, words.table[at] = begun;
        batch->slots[local++] = walk.slot;
        longest = MAX(longest, position + 1);
    }
    if (batch->tiles.count)
        batch->tiles.span = choose_span(batch, &words);
    batch->local = (struct gpu_rows){.row = device.row,
                                     .position = device.position,
                                     .table = device.table,
                                     .pages = device.pages,
                                     .count = local,
                                     .longest = longest};
    batch->table_entries = entries;
    return STATUS_OK;
}

// --- attention ---

// Attends to as many rows at once as there is scratch for, with ranges up to the longest of them: a row's result depends on no other.
static void attend_singles(struct backend_batch *batch, uint32_t layer, const uint32_t *position)
{
    const struct backend *backend = batch->backend;

    for (uint32_t first = batch->tile_rows, count; first < batch->local_count; first += count) {
        struct gpu_rows part = batch->local;
        part.row += first, part.position += first, part.table += first;
        part.longest = 0;
        for (count = 0; first + count < batch->local_count; count++) {
            uint32_t longest = MAX(part.longest, position[first + count] + 1);
            if (count && gpu_attend_scratch(&backend->pool, count + 1, longest) > batch->scratch_floats)
                break;
            part.longest = longest;
        }
        part.count = count;
        gpu_attend(&backend->pool, layer, &part, batch->qkv, batch->att, batch->scratch, batch->stream);
    }
}

// Attends to as many tiles at once as there is scratch for.
static void attend_tiles(struct backend_batch *batch, uint32_t layer, const struct step_words *words)
{
    const struct backend *backend = batch->backend;

    for (uint32_t first = 0, count; first < batch->tiles.count; first += count) {
        struct gpu_tiles part = {.words = batch->tiles.words + 2 * (size_t)first, .span = batch->tiles.span};
        for (count = 0; first + count < batch->tiles.count; count++) {
            const uint32_t *tile = words->tiles + 2 * (first + count);
            struct gpu_tiles more = part;
            more.count++;
            more.longest = MAX(part.longest, words->position[tile[0]] + tile[1]);
            if (count && gpu_tile_scratch(&backend->pool, &more) > batch->scratch_floats)
                break;
            part = more;
        }
        gpu_attend_tiles(&backend->pool, layer, &batch->local, &part, batch->qkv, batch->att, batch->scratch, batch->stream);
    }
}

void cuda_attend(struct backend_batch *batch, uint32_t layer)
{
    struct backend *backend = batch->backend;
    const struct step_words words = words_of(batch->words_host, backend->config.max_rows);
    uint64_t positions = 0; // read

    if (!batch->local_count)
        return;
    cuda_span_begin(batch, CUDA_ATTEND, layer);
    gpu_store_kv(&backend->pool, layer, &batch->local, batch->qkv, batch->stream);
    attend_tiles(batch, layer, &words);
    attend_singles(batch, layer, words.position);
    cuda_span_end(batch, CUDA_ATTEND, layer);
    cuda_queued(batch, "starting attention");
    for (uint32_t tile = 0; tile < batch->tiles.count; tile++)
        positions += (uint64_t)words.position[words.tiles[2 * tile]] + words.tiles[2 * tile + 1];
    for (uint32_t i = batch->tile_rows; i < batch->local_count; i++)
        positions += words.position[i] + 1ull;
    backend->attend_bytes += positions * 2 * backend->kv_width * 2;
    batch->completes = layer + 1 == backend->range.count;
}

void cuda_complete(struct backend_batch *batch)
{
    struct backend *backend = batch->backend;

    batch->completes = false;
    for (uint32_t i = 0; i < batch->local_count; i++) {
        const uint32_t slot = kv_ledger_slot(&backend->ledger, batch->kv_rows[i].sequence);
        struct kv_sequence *sequence = &backend->ledger.sequences[batch->slots[i]];
        if (slot == batch->slots[i]) // it was not released meanwhile
            sequence->complete = MAX(sequence->complete, batch->kv_rows[i].position + 1);
    }
}

// --- the rest of the entries ---

void cuda_pool_release(struct backend *backend, uint64_t sequence)
{
    if (backend->pool.pages)
        kv_ledger_free(&backend->ledger, sequence);
}

enum status cuda_pool_share(struct backend *backend, uint64_t from, uint32_t positions, uint64_t to, struct error *error)
{
    if (!backend->pool.pages)
        return error_set(error, STATUS_FAILED_PRECONDITION, "there is no local pool");
    enum status status = not_coming_in(backend, to, error);
    if (status)
        return status;
    return kv_ledger_share(&backend->ledger, from, positions, to, error);
}

uint32_t cuda_pool_held(const struct backend *backend, struct kv_held *held, uint32_t capacity)
{
    uint32_t count = 0;
    struct kv_held item;

    if (!backend->pool.pages)
        return 0;
    for (uint32_t at = 0; kv_ledger_next(&backend->ledger, &at, &item); count++)
        if (count < capacity)
            held[count] = item;
    return count;
}

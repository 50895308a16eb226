// cuda_packed.c: the file of the segments' blobs as the device computes with them (packed_file.h), for a model whose weights fit neither the
// device nor the host: blob s is what segment s reads. It holds all of them, also those that stay, so that it does not depend on how much
// memory there is.
//
// Bytes that pass through the host do so in pieces: a blob of a large model is some gigabytes, and memory is what is short.
//
//     writing: cuda_load.c converts ─▶ memory, until it is full ─▶ file
//     reading: file ─▶ two halves of the staging memory ─▶ checksum ─▶ device, if it stays there; what stays on the host is read in place
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "kernels/backend/packed_file.h"
#include "kernels/cuda/cuda.h"

enum { HALVES = 2, HALF_BYTES = CUDA_STAGING_BYTES / HALVES };

// --- writing ---

static enum status flush(struct cuda_packing *packing, struct error *error)
{
    const uint64_t bytes = packing->held;

    packing->held = 0;
    if (!bytes)
        return STATUS_OK;
    packing->done += bytes;
    packed_log_writing(&packing->said_us, packing->done, packed_layout_bytes(&packing->layout));
    return packed_writer_add(packing->writer, packing->memory, bytes, error);
}

// Appends bytes, or zeros, to the blob that is being written.
static enum status append(struct cuda_packing *packing, const unsigned char *bytes, uint64_t count, struct error *error)
{
    enum status status = STATUS_OK;

    packing->at += count;
    for (uint64_t take; count && !status; count -= take) {
        take = MIN(count, CUDA_STAGING_BYTES - packing->held);
        if (bytes) {
            memcpy(packing->memory + packing->held, bytes, take);
            bytes += take;
        } else
            memset(packing->memory + packing->held, 0, take);
        packing->held += take;
        if (packing->held == CUDA_STAGING_BYTES)
            status = flush(packing, error);
    }
    return status;
}

static enum status end_blob(struct cuda_packing *packing, struct error *error)
{
    enum status status = append(packing, NULL, packing->layout.blob_bytes[packing->segment] - packing->at, error);

    packing->segment++;
    packing->at = 0;
    return status ? status : flush(packing, error);
}

enum status cuda_packing_begin(const char *path, const struct packed_layout *layout, struct cuda_packing *packing,
                               struct error *error)
{
    *packing = (struct cuda_packing){.layout = *layout, .began_us = clock_now_us()};
    packing->said_us = packing->began_us;
    packing->memory = aligned_alloc(PACKED_FILE_ALIGN, CUDA_STAGING_BYTES);
    if (!packing->memory)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to write %s", path);
    enum status status = packed_writer_open(path, layout, true, &packing->writer, error);
    if (status)
        free(packing->memory);
    return status;
}

enum status cuda_packing_put(struct cuda_packing *packing, uint32_t segment, uint64_t at, const void *bytes, uint64_t count,
                             struct error *error)
{
    enum status status = STATUS_OK;

    while (packing->segment < segment && !status)
        status = end_blob(packing, error);
    assert_always(status || (packing->segment == segment && at >= packing->at));
    if (!status)
        status = append(packing, NULL, at - packing->at, error);
    return status ? status : append(packing, bytes, count, error);
}

enum status cuda_packing_end(struct cuda_packing *packing, const char *path, enum status status, struct error *error)
{
    struct packed_writer *writer = packing->writer;

    while (packing->segment < packing->layout.blob_count && !status)
        status = end_blob(packing, error);
    free(packing->memory);
    if (status) {
        packed_writer_abort(writer);
        return status;
    }
    if ((status = packed_writer_commit(writer, error)))
        return status;
    packed_log_written(path, packed_layout_bytes(&packing->layout), packing->began_us);
    return STATUS_OK;
}

// --- reading ---

// A piece of a blob.
struct piece {
    struct disk_read read;
    uint32_t segment;
    uint64_t at;
};

struct reading {
    struct backend *backend;
    struct packed_file *file;
    struct disk_queue *queue;
    unsigned char *staging; // [HALVES][HALF_BYTES]
    cudaStream_t stream;
    uint32_t segment; // of the piece that is asked for next
    uint64_t at;
    struct piece pieces[HALVES];
    struct packed_sum sum; // of the blob that is being checked
};

// Asks for the next piece, into its place or a half of the staging memory. False: there is none left.
static bool ask(struct reading *reading, uint32_t half)
{
    const struct cuda_tier *tier = &reading->backend->tier;
    struct piece *piece = &reading->pieces[half];

    if (reading->segment == tier->tiers.segment_count)
        return false;
    const struct packed_blob *blob = packed_file_blob(reading->file, reading->segment);
    unsigned char *host = tier->blobs[reading->segment].host;
    *piece = (struct piece){.segment = reading->segment,
                            .at = reading->at,
                            .read = {.descriptor = packed_file_descriptor(reading->file),
                                     .offset = blob->offset + reading->at,
                                     .bytes = MIN(blob->bytes - reading->at, (uint64_t)HALF_BYTES),
                                     .memory = host ? host + reading->at : reading->staging + (size_t)half * HALF_BYTES}};
    reading->at += piece->read.bytes;
    if (reading->at == blob->bytes)
        reading->segment++, reading->at = 0;
    disk_queue_read(reading->queue, &piece->read);
    return true;
}

// Checks a piece that has been read, and takes it to where it stays.
static enum status take(struct reading *reading, struct piece *piece, struct error *error)
{
    const struct cuda_blob *blob = &reading->backend->tier.blobs[piece->segment];
    const bool last = piece->at + piece->read.bytes == packed_file_blob(reading->file, piece->segment)->bytes;
    enum status status;

    disk_queue_wait(reading->queue, &piece->read);
    if ((status = disk_read_status(&piece->read, packed_file_path(reading->file), error)))
        return status;
    if (piece->at == 0)
        packed_sum_begin(&reading->sum);
    packed_sum_add(&reading->sum, piece->read.memory, piece->read.bytes);
    if (!blob->slot && piece->at < blob->bytes) {
        cuda_must(cudaMemcpyAsync(blob->device + piece->at, piece->read.memory, MIN(piece->read.bytes, blob->bytes - piece->at),
                                  cudaMemcpyHostToDevice, reading->stream),
                  "copying weights");
        cuda_must(cudaStreamSynchronize(reading->stream), "copying weights");
    }
    return last ? packed_file_check_sum(reading->file, piece->segment, &reading->sum, error) : STATUS_OK;
}

// Reads and checks all blobs, the next piece while one is checked.
static enum status read_blobs(struct reading *reading, uint64_t total, struct error *error)
{
    uint64_t said_us = clock_now_us(), done = 0;
    enum status status = STATUS_OK;
    bool more = ask(reading, 0);

    for (uint32_t half = 0; more && !status; half = 1 - half) {
        more = ask(reading, 1 - half);
        status = take(reading, &reading->pieces[half], error);
        done += reading->pieces[half].read.bytes;
        packed_log_reading(&said_us, done, total);
    }
    return status;
}

enum status cuda_packed_read(struct backend *backend, const struct packed_layout *layout, unsigned char *staging,
                             cudaStream_t stream, struct packed_file **out, double *us_per_byte, struct error *error)
{
    const char *path = backend->config.packed_path;
    const struct disk_config config = {.method = backend->config.disk};
    const uint64_t began_us = clock_now_us(), total = packed_layout_bytes(layout);
    struct reading reading = {.backend = backend, .staging = staging, .stream = stream};
    enum status status = packed_file_open(path, layout, &reading.file, error);

    if (status)
        return status;
    status = disk_queue_open(&config, &reading.queue, error);
    if (!status)
        status = read_blobs(&reading, total, error);
    disk_queue_close(reading.queue);
    if (status) {
        packed_file_close(reading.file);
        return status;
    }
    *us_per_byte = packed_log_read(path, total, began_us) / (double)total;
    *out = reading.file;
    return STATUS_OK;
}

// cpu_stream.c: weights that do not stay in memory: a segment's tables are pointed to the slot that its weights were read into, before it runs.
#include <stdlib.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "kernels/backend/cpu_internal.h"

enum { HOLDER = WEIGHT_USERS_MAX - 1 };

// Weights that cannot be read are a device that is lost: the process ends, and goes on with the sequences when it is started again.
static void die(const struct error *error)
{
    log_error("DEVICE-FAILED", "why=\"%s\" what=\"this s-part ends, and goes on when it is started again\"", error->text);
    _exit(EXIT_FAILURE);
}

enum status cpu_stream_open(struct backend *backend, struct error *error)
{
    const struct disk_config disk = {
        .method = backend->config.disk, .on_done = backend->config.on_weights, .user = backend->config.on_weights_user};
    enum status status = disk_queue_open(&disk, &backend->disk, error);
    const struct weight_stream_config config = {
        .file = backend->packed,
        .queue = backend->disk,
        .tiers = &backend->tiers,
        .memory = backend->weights + backend->tiers.resident_bytes,
        .us_per_byte = 1 / backend->disk_bytes_per_us,
    };

    return status ? status : weight_stream_open(&config, &backend->stream, error);
}

void cpu_stream_close(struct backend *backend)
{
    weight_stream_close(backend->stream);
    disk_queue_close(backend->disk);
    packed_file_close(backend->packed);
}

void cpu_stream_join(struct backend_batch *batch)
{
    struct backend *backend = batch->backend;

    while (batch->user < HOLDER && backend->users >> batch->user & 1)
        batch->user++;
    assert_always(batch->user < HOLDER);
    backend->users |= 1u << batch->user;
}

void cpu_stream_leave(struct backend_batch *batch)
{
    cpu_stream_end(batch);
    batch->backend->users &= ~(1u << batch->user);
}

void cpu_stream_enter(struct backend_batch *batch, uint32_t s)
{
    struct backend *backend = batch->backend;
    struct error error;

    if (!backend->stream)
        return;
    weight_stream_want(backend->stream, batch->user, s);
    if (!weight_tiers_streams(&backend->tiers, s))
        return;
    unsigned char *memory = (unsigned char *)weight_stream_wait(backend->stream, s, &error);
    if (!memory)
        die(&error);
    if (backend->section_at[1 + s] == memory)
        return;
    backend->section_at[1 + s] = memory;
    cpu_place_section(backend, 1 + s, memory);
}

void cpu_stream_want(struct backend_batch *batch, uint32_t s)
{
    if (batch->backend->stream)
        weight_stream_want(batch->backend->stream, batch->user, s);
}

uint32_t cpu_stream_turn(struct backend_batch *batch, uint32_t s)
{
    struct backend *backend = batch->backend;
    struct error error;

    if (!backend->stream)
        return 0;
    if (weight_stream_failed(backend->stream, &error))
        die(&error);
    if (weight_tiers_streams(&backend->tiers, s) && !weight_stream_get(backend->stream, s))
        return BACKEND_NOT_YET;
    return weight_stream_age(backend->stream, s);
}

// A user beside the mini-batches, who never goes on.
void cpu_stream_hold(struct backend *backend, bool hold)
{
    if (backend->stream)
        weight_stream_want(backend->stream, HOLDER, hold ? 0 : WEIGHT_NONE);
}

void cpu_stream_end(struct backend_batch *batch)
{
    if (batch->backend->stream)
        weight_stream_want(batch->backend->stream, batch->user, WEIGHT_NONE);
}

void cpu_stream_info(const struct backend *backend, struct backend_info *info)
{
    struct weight_stream_counts counts;

    if (!backend->stream)
        return;
    weight_stream_count(backend->stream, &counts);
    info->streamed_segments = counts.segments;
    info->streamed_bytes = counts.bytes;
    info->stream_pieces = disk_queue_pieces(backend->disk);
    info->stream_step_us = counts.step_us;
}

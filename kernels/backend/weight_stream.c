// weight_stream.c: see weight_stream.h.
#include "kernels/backend/weight_stream.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { RATE_READS = 32 };

struct slot {
    struct disk_read read;
    bool reading; // or not yet looked at since
};

struct weight_stream {
    struct weight_stream_config config;
    struct weight_window window;
    struct slot slots[WEIGHT_SLOTS_MAX];
    struct weight_stream_counts counts;
    double recent_bytes, recent_us; // of the disk, while it was busy; older reads count less and less
    uint64_t busy_until_us;
    struct error failure; // status OK: none
};

// Learns from a read that has ended. While reads follow one another, the time from the end of one to the end of the next is the disk's.
static void learn_rate(struct weight_stream *stream, const struct disk_read *read)
{
    const uint64_t from_us = MAX(read->began_us, stream->busy_until_us);

    stream->busy_until_us = MAX(stream->busy_until_us, read->ended_us);
    if (read->ended_us <= from_us)
        return;
    stream->recent_bytes += (double)read->bytes - stream->recent_bytes / RATE_READS;
    stream->recent_us += (double)(read->ended_us - from_us) - stream->recent_us / RATE_READS;
}

// Looks whether a slot's read has ended.
static bool is_idle(struct weight_stream *stream, struct slot *slot)
{
    struct error error;

    if (!slot->reading)
        return true;
    if (!disk_queue_done(stream->config.queue, &slot->read))
        return false;
    slot->reading = false;
    if (!disk_read_status(&slot->read, packed_file_path(stream->config.file), &error))
        learn_rate(stream, &slot->read);
    else if (!stream->failure.status)
        stream->failure = error;
    return true;
}

// Asks for what comes next, as far as slots are free.
static void read_ahead(struct weight_stream *stream)
{
    struct weight_window *window = &stream->window;
    uint32_t at;

    while ((at = weight_window_free_slot(window)) != WEIGHT_NONE && is_idle(stream, &stream->slots[at])) {
        const uint32_t s = weight_window_take(window), number = stream->config.blobs ? stream->config.blobs[s] : 1 + s;
        const struct packed_blob *blob = packed_file_blob(stream->config.file, number);
        struct slot *slot = &stream->slots[at];
        slot->read = (struct disk_read){.descriptor = packed_file_descriptor(stream->config.file),
                                        .offset = blob->offset,
                                        .bytes = blob->bytes,
                                        .memory = stream->config.memory + at * stream->config.tiers->slot_bytes};
        slot->reading = true;
        disk_queue_read(stream->config.queue, &slot->read);
        stream->counts.segments++;
        stream->counts.bytes += blob->bytes;
    }
}

static void go_on(struct weight_stream *stream)
{
    weight_window_give_up(&stream->window);
    read_ahead(stream);
}

enum status weight_stream_open(const struct weight_stream_config *config, struct weight_stream **out, struct error *error)
{
    struct weight_stream *stream = calloc(1, sizeof *stream);

    if (!stream)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to read weights while steps run");
    stream->config = *config;
    weight_window_init(&stream->window, config->tiers);
    stream->recent_bytes = (double)config->tiers->slot_bytes * RATE_READS;
    stream->recent_us = stream->recent_bytes * config->us_per_byte;
    go_on(stream);
    *out = stream;
    return STATUS_OK;
}

void weight_stream_close(struct weight_stream *stream)
{
    if (!stream)
        return;
    for (uint32_t i = 0; i < stream->window.slots; i++)
        if (stream->slots[i].reading)
            disk_queue_wait(stream->config.queue, &stream->slots[i].read);
    free(stream);
}

void weight_stream_want(struct weight_stream *stream, uint32_t user, uint32_t segment)
{
    weight_window_want(&stream->window, user, segment);
    go_on(stream);
}

// The memory of a segment that is in the window, once its read has ended well.
static const unsigned char *memory_of(struct weight_stream *stream, uint32_t at)
{
    if (at == WEIGHT_NONE || !is_idle(stream, &stream->slots[at]) || stream->failure.status)
        return NULL;
    return stream->slots[at].read.memory;
}

const unsigned char *weight_stream_get(struct weight_stream *stream, uint32_t segment)
{
    uint32_t age;
    go_on(stream);
    return memory_of(stream, weight_window_find(&stream->window, segment, &age));
}

const unsigned char *weight_stream_wait(struct weight_stream *stream, uint32_t segment, struct error *error)
{
    const uint64_t began_us = clock_now_us();
    uint32_t age, at = weight_window_find(&stream->window, segment, &age);

    if (at == WEIGHT_NONE) {
        for (uint32_t i = 0; i < stream->window.slots; i++)
            if (stream->slots[i].reading)
                disk_queue_wait(stream->config.queue, &stream->slots[i].read);
        weight_window_seek(&stream->window, segment);
        at = weight_window_free_slot(&stream->window);
        read_ahead(stream);
    }
    if (stream->slots[at].reading)
        disk_queue_wait(stream->config.queue, &stream->slots[at].read);
    stream->counts.wait_us += clock_now_us() - began_us;
    const unsigned char *memory = memory_of(stream, at);
    if (!memory)
        *error = stream->failure;
    return memory;
}

enum status weight_stream_failed(struct weight_stream *stream, struct error *error)
{
    for (uint32_t i = 0; i < stream->window.slots; i++)
        (void)is_idle(stream, &stream->slots[i]);
    if (stream->failure.status)
        *error = stream->failure;
    return stream->failure.status;
}

uint32_t weight_stream_age(const struct weight_stream *stream, uint32_t segment)
{
    uint32_t age;
    (void)weight_window_find(&stream->window, segment, &age);
    return age;
}

void weight_stream_count(const struct weight_stream *stream, struct weight_stream_counts *out)
{
    *out = stream->counts;
    out->step_us = (double)stream->config.tiers->streamed_bytes * stream->recent_us / stream->recent_bytes;
}

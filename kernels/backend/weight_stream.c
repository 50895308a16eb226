// weight_stream.c: chooses which segments stream, keeps the window of slots, and reads into them.
#include "kernels/backend/weight_stream.h"

#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

// --- which segments stay, and which are read each step ---

// Fills in what a number of streamed segments comes to.
static void count_up(const uint64_t *segment_bytes, uint64_t always_bytes, struct weight_tiers *tiers)
{
    tiers->slot_bytes = tiers->streamed_bytes = 0;
    tiers->resident_bytes = always_bytes;
    for (uint32_t s = 0; s < tiers->segment_count; s++) {
        if (!weight_tiers_streams(tiers, s)) {
            tiers->resident_bytes += segment_bytes[s];
            continue;
        }
        tiers->streamed_bytes += segment_bytes[s];
        tiers->slot_bytes = MAX(tiers->slot_bytes, segment_bytes[s]);
    }
}

enum status weight_tiers_choose(const uint64_t *segment_bytes, uint32_t segment_count, uint64_t always_bytes, uint64_t memory_bytes,
                                struct weight_tiers *out, struct error *error)
{
    struct weight_tiers tiers = {.segment_count = segment_count};
    uint64_t least = UINT64_MAX;

    count_up(segment_bytes, always_bytes, &tiers);
    if (weight_tiers_bytes(&tiers) <= memory_bytes) {
        *out = tiers;
        return STATUS_OK;
    }
    for (tiers.slots = WEIGHT_SLOTS_MAX; tiers.slots >= WEIGHT_SLOTS_MIN; tiers.slots--)
        for (tiers.streamed_count = tiers.slots + 1; tiers.streamed_count <= segment_count; tiers.streamed_count++) {
            count_up(segment_bytes, always_bytes, &tiers);
            least = MIN(least, weight_tiers_bytes(&tiers));
            if (weight_tiers_bytes(&tiers) <= memory_bytes) {
                *out = tiers;
                return STATUS_OK;
            }
        }
    tiers = (struct weight_tiers){.segment_count = segment_count}; // a model of few layers has nothing to gain by it
    count_up(segment_bytes, always_bytes, &tiers);
    least = MIN(least, weight_tiers_bytes(&tiers));
    return error_set(
        error, STATUS_RESOURCE_EXHAUSTED,
        "the weights need %.1f MiB of memory even if all layers are fetched anew each step, there are %.1f MiB for them",
        (double)least / 1048576, (double)memory_bytes / 1048576);
}

// --- which of the streamed segments lie in slots ---

void weight_window_init(struct weight_window *window, const struct weight_tiers *tiers)
{
    assert_always(tiers->segment_count <= WEIGHT_SEGMENTS_MAX && tiers->streamed_count > tiers->slots && tiers->slots > 0);
    *window = (struct weight_window){.slots = tiers->slots};
    for (uint32_t s = 0; s < tiers->segment_count; s++) {
        window->next_of[s] = window->count % tiers->streamed_count;
        if (weight_tiers_streams(tiers, s))
            window->segments[window->count++] = s;
    }
    for (uint32_t user = 0; user < WEIGHT_USERS_MAX; user++)
        window->wanted[user] = WEIGHT_NONE;
}

void weight_window_want(struct weight_window *window, uint32_t user, uint32_t segment)
{
    assert_always(user < WEIGHT_USERS_MAX);
    window->wanted[user] = segment == WEIGHT_NONE ? WEIGHT_NONE : segment < WEIGHT_SEGMENTS_MAX ? window->next_of[segment] : 0;
}

// The first index from `from` on, round the circle, that a user needs next; the circle's beginning without users.
static uint32_t first_wanted(const struct weight_window *window, uint32_t from)
{
    uint32_t least = WEIGHT_NONE;

    for (uint32_t user = 0; user < WEIGHT_USERS_MAX; user++)
        if (window->wanted[user] != WEIGHT_NONE)
            least = MIN(least, (window->wanted[user] + window->count - from) % window->count);
    return least == WEIGHT_NONE ? 0 : (from + least) % window->count;
}

void weight_window_give_up(struct weight_window *window)
{
    const uint32_t wanted = first_wanted(window, window->begin);

    while (window->length > 0 && window->begin != wanted) {
        window->begin = (window->begin + 1) % window->count;
        window->first_slot = (window->first_slot + 1) % window->slots;
        window->length--;
    }
    if (window->length == 0)
        window->begin = wanted;
}

uint32_t weight_window_free_slot(const struct weight_window *window)
{
    return window->length == window->slots ? WEIGHT_NONE : (window->first_slot + window->length) % window->slots;
}

uint32_t weight_window_take(struct weight_window *window)
{
    assert_always(window->length < window->slots);
    return window->segments[(window->begin + window->length++) % window->count];
}

void weight_window_seek(struct weight_window *window, uint32_t segment)
{
    window->begin = window->next_of[segment];
    window->first_slot = (window->first_slot + window->length) % window->slots;
    window->length = 0;
    assert_always(window->segments[window->begin] == segment);
}

uint32_t weight_window_find(const struct weight_window *window, uint32_t segment, uint32_t *age)
{
    const uint32_t index = window->next_of[segment];

    *age = (index + window->count - window->begin) % window->count;
    if (window->segments[index] != segment || *age >= window->length)
        return WEIGHT_NONE;
    return (window->first_slot + *age) % window->slots;
}

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

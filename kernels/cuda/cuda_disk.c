// cuda_disk.c: weights that neither the device nor the host has memory for: read from the packed file into pinned slots, and copied on from
// there.
//
//     blobs from the host   k:  0    1    2    3    4    5    6    7        of those that do not stay on the device (cuda_tier.c)
//     blob is in              host disk host disk host disk host disk       weight_stream.h chooses, for the pinned memory there is
//
//     reads                [1        ][3        ][5        ][7  …           weight_stream.h: into two or three pinned slots
//     copies            [0 ]         [1 ][2 ]   [3 ][4 ]   [5 ][6 ]         one stream, in order, to the device's slots
//     mini-batch            [ … ]        [ … ][ … ] …
//
// Each blob is read once and copied once a step, whatever the number of mini-batches. For that the device's slots hold a window of the circle of
// blobs (weight_stream.h), which moves on when no mini-batch in flight needs its oldest blob next: one that is far ahead or behind waits until
// the window has come to where it is. Copies follow the window's end, and reads follow the copies: a pinned slot is read into once what was
// there is on the device. A blob's device slot is fixed all the same, k mod slots: where the circle closes, the window may be a slot shorter.
//
// Reads fill pinned memory past the page cache while steps run. on_weights wakes the caller when one ends; cuda_tier_advance() then queues
// its copy. A read that fails ends the process like a lost device.
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { HOLDER = WEIGHT_USERS_MAX - 1 }; // of the window, beside the mini-batches
enum { READER, COPIER };                // users of the stream: the window's end, and the oldest copy under way

enum status cuda_disk_open(struct cuda_tier *tier, struct packed_file *file, const struct disk_config *config, double us_per_byte,
                           struct error *error)
{
    struct cuda_disk *disk = &tier->disk;
    enum status status;

    disk->file = file;
    weight_window_init(&disk->window, &tier->tiers);
    disk->told[READER] = disk->told[COPIER] = WEIGHT_NONE;
    for (uint32_t i = 0; i < disk->tiers.slots; i++) {
        disk->copying[i] = WEIGHT_NONE;
        if (cudaEventCreateWithFlags(&disk->copied[i], cudaEventDisableTiming))
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no events for the copies of weights");
    }
    if ((status = disk_queue_open(config, &disk->queue, error)))
        return status;
    const struct weight_stream_config stream = {.file = file,
                                                .queue = disk->queue,
                                                .tiers = &disk->tiers,
                                                .blobs = disk->window.segments, // blob s of the file is that of segment s
                                                .memory = tier->host,
                                                .us_per_byte = us_per_byte};
    return weight_stream_open(&stream, &disk->stream, error);
}

void cuda_disk_close(struct cuda_tier *tier)
{
    struct cuda_disk *disk = &tier->disk;

    weight_stream_close(disk->stream);
    disk_queue_close(disk->queue);
    packed_file_close(disk->file);
    for (uint32_t i = 0; i < WEIGHT_SLOTS_MAX; i++)
        if (disk->copied[i])
            cudaEventDestroy(disk->copied[i]);
}

void cuda_disk_join(struct cuda_tier *tier, struct cuda_visit *visit)
{
    while (visit->user < HOLDER && tier->disk.users >> visit->user & 1)
        visit->user++;
    assert_always(visit->user < HOLDER);
    tier->disk.users |= 1u << visit->user;
}

void cuda_disk_leave(struct cuda_tier *tier, struct cuda_visit *visit)
{
    if (tier->disk.stream)
        weight_window_want(&tier->disk.window, visit->user, WEIGHT_NONE);
    tier->disk.users &= ~(1u << visit->user);
}

// --- reads ---

static void check_reads(struct cuda_disk *disk)
{
    struct error error;
    if (weight_stream_failed(disk->stream, &error))
        cuda_die("%s", error.text);
}

// Tells the stream only what is new: this is called again and again while the caller waits for the device.
static void tell(struct cuda_disk *disk, uint32_t user, uint32_t k)
{
    if (disk->told[user] == k)
        return;
    disk->told[user] = k;
    weight_stream_want(disk->stream, user, k);
}

// The index of the blob that comes into the window next.
static uint32_t next_index(const struct weight_window *window) { return (window->begin + window->length) % window->count; }

// The blob whose copy is the oldest in the stream's window.
static uint32_t oldest_copy(const struct cuda_disk *disk)
{
    uint32_t oldest = WEIGHT_NONE, least = UINT32_MAX;

    for (uint32_t i = 0; i < disk->tiers.slots; i++) {
        if (disk->copying[i] == WEIGHT_NONE)
            continue;
        const uint32_t age = weight_stream_age(disk->stream, disk->copying[i]);
        if (age < least)
            least = age, oldest = disk->copying[i];
    }
    return oldest;
}

bool cuda_disk_advance(struct cuda_tier *tier)
{
    struct cuda_disk *disk = &tier->disk;

    check_reads(disk);
    for (uint32_t i = 0; i < disk->tiers.slots; i++)
        if (disk->copying[i] != WEIGHT_NONE && cuda_has_come(disk->copied[i], "copying weights to the device"))
            disk->copying[i] = WEIGHT_NONE;
    for (const struct cuda_visit *visit = tier->visits; visit; visit = visit->next)
        weight_window_want(&disk->window, visit->user, visit->segment == CUDA_NO_SEGMENT ? WEIGHT_NONE : visit->segment);
    weight_window_want(&disk->window, HOLDER, disk->held ? 0 : WEIGHT_NONE);
    weight_window_give_up(&disk->window);
    const uint32_t oldest = oldest_copy(disk);
    tell(disk, READER, next_index(&disk->window));
    tell(disk, COPIER, oldest);
    return oldest != WEIGHT_NONE;
}

void cuda_disk_copying(struct cuda_tier *tier, const unsigned char *memory, uint32_t s)
{
    struct cuda_disk *disk = &tier->disk;
    const uint64_t at = (uint64_t)(memory - tier->host) / disk->tiers.slot_bytes;

    if (at >= disk->tiers.slots) // it stays on the host
        return;
    cuda_must(cudaEventRecord(disk->copied[at], tier->stream), "copying weights to the device");
    disk->copying[at] = disk->window.next_of[s];
    tell(disk, COPIER, oldest_copy(disk)); // before the reader needs it no more
}

// --- the window ---

// Whether the slot of the window's next blob is that of another one in it.
static bool is_in_use(const struct cuda_tier *tier, uint32_t next)
{
    const struct weight_window *window = &tier->disk.window;

    for (uint32_t i = 0; i < window->length; i++)
        if ((window->begin + i) % window->count % tier->tiers.slots == next % tier->tiers.slots)
            return true;
    return false;
}

uint32_t cuda_disk_take(struct cuda_tier *tier, const unsigned char **from)
{
    struct weight_window *window = &tier->disk.window;

    while (window->length < window->slots) {
        const uint32_t k = next_index(window), s = window->segments[k];
        if (is_in_use(tier, k))
            break;
        if (tier->blobs[s].slot->segment != s && !(*from = tier->blobs[s].host) &&
            !(*from = weight_stream_get(tier->disk.stream, k)))
            break;
        weight_window_take(window);
        if (tier->blobs[s].slot->segment != s)
            return s;
        tell(&tier->disk, READER, next_index(window)); // it is in its slot from the round before
    }
    return CUDA_NO_SEGMENT;
}

const unsigned char *cuda_disk_seek(struct cuda_tier *tier, uint32_t s)
{
    struct cuda_disk *disk = &tier->disk;
    const unsigned char *memory = tier->blobs[s].host;
    struct error error;

    weight_window_seek(&disk->window, s);
    if (!memory) {
        cuda_must(cudaStreamSynchronize(tier->stream),
                  "copying weights to the device"); // so that every pinned slot may be read into
        (void)cuda_disk_advance(tier);
        memory = weight_stream_wait(disk->stream, next_index(&disk->window), &error);
        if (!memory)
            cuda_die("%s", error.text);
    }
    weight_window_take(&disk->window);
    return memory;
}

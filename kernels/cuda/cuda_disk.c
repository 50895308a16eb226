// cuda_disk.c: weights that neither the device nor the host has memory for: read from the packed file into pinned slots, and copied on from
// there.
//
//     blobs from the host   k:  0    1    2    3    4    5    6    7        of those that do not stay on the device (cuda_tier.c)
//     blob is in              host disk host disk host disk host disk       weight_tiers.h chooses, for the pinned memory there is
//
//     reads                [1        ][3        ][5        ][7  …           weight_stream.h: into two or three pinned slots
//     copies            [0 ]         [1 ][2 ]   [3 ][4 ]   [5 ][6 ]         one stream, to the device's slots
//     mini-batch            [ … ]        [ … ][ … ] …
//
// Each blob is read once and copied once a step, whatever the number of mini-batches: the stream's users are the mini-batches, each of which
// needs next the first blob on disk that is not in its device slot yet, and the copier, who needs the oldest blob whose copy is under way. A
// read takes a pinned slot once nobody needs what is there. So a mini-batch that is far ahead or behind waits until the others have come to
// where it is, and the blob in a device slot is not overwritten while a mini-batch in flight needs it next: it would have to be read again.
//
// Reads fill pinned memory past the page cache while steps run. on_weights wakes the caller when one ends; cuda_tier_advance() then queues
// its copy. A read that fails ends the process like a lost device.
#include <stdlib.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { HOLDER = WEIGHT_USERS_MAX - 1, COPIER = HOLDER - 1 };

enum status cuda_disk_open(struct cuda_tier *tier, struct packed_file *file, const struct disk_config *config, double us_per_byte,
                           struct error *error)
{
    struct cuda_disk *disk = &tier->disk;
    enum status status;

    disk->file = file;
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
                                                .blobs = disk->segment_of,
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
    free(disk->index_of);
    free(disk->segment_of);
}

void cuda_disk_join(struct cuda_tier *tier, struct cuda_visit *visit)
{
    while (visit->user < COPIER && tier->disk.users >> visit->user & 1)
        visit->user++;
    assert_always(visit->user < COPIER);
    tier->disk.users |= 1u << visit->user;
}

void cuda_disk_leave(struct cuda_tier *tier, struct cuda_visit *visit)
{
    if (tier->disk.stream)
        weight_stream_want(tier->disk.stream, visit->user, WEIGHT_NONE);
    tier->disk.users &= ~(1u << visit->user);
}

bool cuda_disk_has(const struct cuda_tier *tier, uint32_t s)
{
    const struct cuda_disk *disk = &tier->disk;
    return disk->stream && tier->blobs[s].slot && weight_tiers_streams(&disk->tiers, disk->index_of[s]);
}

// A read that failed is a device that is lost: the process ends, and goes on with the sequences when it is started again.
static void check_reads(struct cuda_disk *disk)
{
    struct error error;
    if (weight_stream_failed(disk->stream, &error))
        cuda_die("%s", error.text);
}

// What a mini-batch needs next of the disk: blobs that are in their device slots it need not wait for.
static uint32_t needs(const struct cuda_tier *tier, const struct cuda_visit *visit)
{
    const struct cuda_disk *disk = &tier->disk;
    uint32_t k;

    if (visit->segment == CUDA_NO_SEGMENT)
        return WEIGHT_NONE;
    for (k = disk->index_of[visit->segment]; k < disk->tiers.segment_count; k++) {
        const uint32_t s = disk->segment_of[k];
        if (weight_tiers_streams(&disk->tiers, k) && tier->blobs[s].slot->segment != s)
            break;
    }
    return k; // behind the last one: the first, with which its next step begins
}

// The blob whose copy is the oldest in the window.
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
    const uint32_t oldest = oldest_copy(disk);
    for (struct cuda_visit *visit = tier->visits; visit; visit = visit->next)
        weight_stream_want(disk->stream, visit->user, needs(tier, visit));
    weight_stream_want(disk->stream, COPIER, oldest);
    weight_stream_want(disk->stream, HOLDER, tier->held ? 0 : WEIGHT_NONE);
    return oldest != WEIGHT_NONE;
}

const unsigned char *cuda_disk_get(struct cuda_tier *tier, uint32_t s)
{
    check_reads(&tier->disk);
    return weight_stream_get(tier->disk.stream, tier->disk.index_of[s]);
}

const unsigned char *cuda_disk_wait(struct cuda_tier *tier, uint32_t s)
{
    struct cuda_disk *disk = &tier->disk;
    struct error error;

    cuda_must(cudaStreamSynchronize(tier->stream), "copying weights to the device"); // so that every pinned slot may be read into
    (void)cuda_disk_advance(tier);
    const unsigned char *memory = weight_stream_wait(disk->stream, disk->index_of[s], &error);
    if (!memory)
        cuda_die("%s", error.text);
    return memory;
}

void cuda_disk_copying(struct cuda_tier *tier, uint32_t s, const unsigned char *memory)
{
    struct cuda_disk *disk = &tier->disk;
    const uint64_t at = (uint64_t)(memory - tier->host) / disk->tiers.slot_bytes;

    assert_always(at < disk->tiers.slots);
    cuda_must(cudaEventRecord(disk->copied[at], tier->stream), "copying weights to the device");
    disk->copying[at] = disk->index_of[s];
    weight_stream_want(disk->stream, COPIER, oldest_copy(disk)); // before the mini-batches need it no more
    (void)cuda_disk_advance(tier);
}

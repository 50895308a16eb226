// cuda_tier.c: weights that do not stay on the device: their blobs lie in pinned host memory, and cross the link each step.
//
// A blob is all matrices of one segment, so that a segment needs one blob: out-projection and MLP of the layer it finishes, q, k, v of the
// layer it starts. Embedding, head, norms, biases and the table of RoPE stay on the device. What does not fit is spread evenly among what
// does, so that each copy has several segments' time:
//
//     segment        0    1    2    3    4    5    6    7    8         of 9; weight_stream.h chooses
//     blob is in     dev  host dev  host dev  host dev  host dev
//     slot                0         1         0         1              the k-th blob of the host has slot k mod 2 (or 3), always
//
//     copies             [1      ][3      ] [5      ]                  one stream; each waits for the last use of its slot
//     mini-batch     [0 ][ 1 ][2 ][ 3 ][ 4 ][ 5 ]                      waits for the copy of its blob
//
// The slot of a segment is fixed, so captured graphs keep valid pointers. Once a segment is queued, the next blob that its mini-batch needs
// is asked for; once all have passed the last, the first blob of the next step, while the head runs. A blob that a mini-batch in flight needs
// next is not overwritten for that: cuda_tier_turn() has that mini-batch go first, and all mini-batches share one copy (FlexGen's zig-zag,
// arXiv 2303.06865, section 4.2). A mini-batch that is started out of turn gets its blob all the same.
//
// Blobs that the host has no memory for are read from disk into pinned slots before; then cuda_disk.c says which blob is copied when.
//
// Copies are cut to pieces: tokens, and o of the workers' rows, come up over the same link and must not wait for a whole layer.
#include "kernels/cuda/cuda_tier.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "kernels/cuda/cuda.h"

enum { PIECES = 16, PIECE_BYTES_LEAST = 16 << 10, PIECE_BYTES_MOST = 2 << 20 }; // 2 MiB: 80 us over 16 lanes of PCIe 4

// --- opening ---

static enum status open_slots(struct cuda_tier *tier, struct error *error)
{
    for (uint32_t i = 0; i < tier->tiers.slots; i++) {
        tier->slots[i].segment = CUDA_NO_SEGMENT;
        if (cudaEventCreateWithFlags(&tier->slots[i].begun, cudaEventDefault) ||
            cudaEventCreateWithFlags(&tier->slots[i].copied, cudaEventDefault))
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no events for the copies of weights");
    }
    if (cudaStreamCreateWithFlags(&tier->stream, cudaStreamNonBlocking))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no stream for the copies of weights");
    return STATUS_OK;
}

// Pinned memory: slots for what is read from disk, then what stays there.
static enum status open_host(struct cuda_tier *tier, struct error *error)
{
    const uint64_t bytes = weight_tiers_bytes(&tier->disk.tiers);

    if (bytes && cudaHostAlloc((void **)&tier->host, bytes, cudaHostAllocDefault)) {
        tier->host = NULL;
        (void)cudaGetLastError();
        return error_set(error, STATUS_RESOURCE_EXHAUSTED,
                         "no %llu MiB of pinned memory for weights that the device has no room for (--weights-host-memory)",
                         (unsigned long long)(bytes >> 20));
    }
    return STATUS_OK;
}

// Says where each blob is, and which slot it comes through.
static void place_blobs(struct cuda_tier *tier, const uint64_t *blob_bytes, unsigned char *device)
{
    const struct weight_tiers *pinned = &tier->disk.tiers;
    unsigned char *host = tier->host + pinned->slots * pinned->slot_bytes;
    uint32_t k = 0;

    for (uint32_t i = 0; i < tier->tiers.slots; i++, device += tier->tiers.slot_bytes)
        tier->slots[i].data = device;
    for (uint32_t s = 0; s < tier->tiers.segment_count; s++) {
        struct cuda_blob *blob = &tier->blobs[s];
        *blob = (struct cuda_blob){.bytes = blob_bytes[s], .device = device};
        if (!weight_tiers_streams(&tier->tiers, s)) {
            device += blob->bytes;
            continue;
        }
        blob->slot = &tier->slots[k % tier->tiers.slots];
        blob->device = blob->slot->data;
        if (!weight_tiers_streams(pinned, k++))
            blob->host = host, host += packed_file_align(blob->bytes);
    }
    assert_always(k == pinned->segment_count);
}

enum status cuda_tier_open(const struct weight_tiers *tiers, const struct weight_tiers *host, const uint64_t *blob_bytes,
                           uint64_t always_bytes, unsigned char *device, struct cuda_tier *tier, struct error *error)
{
    const uint32_t count = tiers->segment_count;
    enum status status;

    *tier = (struct cuda_tier){.tiers = *tiers, .disk.tiers = *host, .blobs = calloc(count, sizeof *tier->blobs)};
    if (!tier->blobs)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the table of weights");
    if ((status = open_host(tier, error)))
        return status;
    place_blobs(tier, blob_bytes, device + always_bytes);
    return tiers->streamed_count ? open_slots(tier, error) : STATUS_OK;
}

void cuda_tier_close(struct cuda_tier *tier)
{
    if (tier->stream) {
        cudaStreamSynchronize(tier->stream);
        cudaStreamDestroy(tier->stream);
    }
    cuda_disk_close(tier);
    for (uint32_t i = 0; i < tier->tiers.slots; i++) {
        if (tier->slots[i].begun)
            cudaEventDestroy(tier->slots[i].begun);
        if (tier->slots[i].copied)
            cudaEventDestroy(tier->slots[i].copied);
    }
    cudaFreeHost(tier->host);
    free(tier->blobs);
    *tier = (struct cuda_tier){.host = NULL};
}

enum status cuda_visit_open(struct cuda_tier *tier, struct cuda_visit *visit)
{
    *visit = (struct cuda_visit){.next = tier->visits, .segment = CUDA_NO_SEGMENT};
    for (uint32_t i = 0; i < tier->tiers.slots; i++)
        if (cudaEventCreateWithFlags(&visit->used[i], cudaEventDisableTiming))
            return STATUS_RESOURCE_EXHAUSTED; // cuda_visit_close frees what there is
    cuda_disk_join(tier, visit);
    tier->visits = visit;
    return STATUS_OK;
}

void cuda_visit_close(struct cuda_tier *tier, struct cuda_visit *visit)
{
    struct cuda_visit **at = &tier->visits;

    while (*at && *at != visit)
        at = &(*at)->next;
    if (*at) {
        *at = visit->next;
        cuda_disk_leave(tier, visit);
    }
    for (uint32_t i = 0; i < tier->tiers.slots; i++)
        if (visit->used[i])
            cudaEventDestroy(visit->used[i]);
}

// --- steps ---

// The first segment from s on whose blob is on the host; behind the last one the first. There is one.
static uint32_t next_streamed(const struct cuda_tier *tier, uint32_t s)
{
    for (s %= tier->tiers.segment_count; !tier->blobs[s].slot; s = (s + 1) % tier->tiers.segment_count) {}
    return s;
}

// Learns from a copy that is over what a byte takes: an eighth of the difference to what is known.
static void learn_rate(struct cuda_tier *tier, const struct cuda_slot *slot)
{
    float ms;

    if (slot->segment == CUDA_NO_SEGMENT || !cuda_has_come(slot->copied, "copying weights to the device"))
        return;
    cuda_must(cudaEventElapsedTime(&ms, slot->begun, slot->copied), "timing a copy of weights");
    const double us = 1e3 * (double)ms / (double)tier->blobs[slot->segment].bytes;
    tier->byte_us += tier->byte_us > 0 ? (us - tier->byte_us) / 8 : us;
}

// Queues the copy of a blob into its slot, behind all that uses what is there.
static void copy_blob(struct cuda_tier *tier, uint32_t s, const unsigned char *from)
{
    const struct cuda_blob *blob = &tier->blobs[s];
    struct cuda_slot *slot = blob->slot;
    const ptrdiff_t index = slot - tier->slots;
    const uint64_t piece = MIN(MAX(tier->tiers.slot_bytes / PIECES, (uint64_t)PIECE_BYTES_LEAST), (uint64_t)PIECE_BYTES_MOST);

    learn_rate(tier, slot);
    for (struct cuda_visit *visit = tier->visits; visit; visit = visit->next)
        cuda_must(cudaStreamWaitEvent(tier->stream, visit->used[index], 0), "waiting for the last use of weights");
    cuda_must(cudaEventRecord(slot->begun, tier->stream), "copying weights to the device");
    for (uint64_t at = 0; at < blob->bytes; at += piece)
        cuda_must(cudaMemcpyAsync(slot->data + at, from + at, MIN(piece, blob->bytes - at), cudaMemcpyHostToDevice, tier->stream),
                  "copying weights to the device");
    cuda_must(cudaEventRecord(slot->copied, tier->stream), "copying weights to the device");
    slot->segment = s;
    tier->copies++;
    tier->copied_bytes += blob->bytes;
    if (tier->disk.stream)
        cuda_disk_copying(tier, from, s);
}

// Whether the next blob of the host that a mini-batch in flight needs is that of segment s.
static bool is_awaited(const struct cuda_tier *tier, uint32_t s)
{
    for (const struct cuda_visit *visit = tier->visits; visit; visit = visit->next)
        if (visit->segment <= s && next_streamed(tier, visit->segment) == s)
            return true;
    return false;
}

static void fetch(struct cuda_tier *tier, uint32_t s)
{
    const uint32_t in_slot = tier->blobs[s].slot->segment;

    if (in_slot != s && (in_slot == CUDA_NO_SEGMENT || !is_awaited(tier, in_slot)))
        copy_blob(tier, s, tier->blobs[s].host);
}

// Copies what the mini-batches in flight need next, where a slot has nothing that is needed sooner; with none in flight, what the next
// step begins with.
static void fetch_next(struct cuda_tier *tier)
{
    bool in_flight = false;

    for (const struct cuda_visit *visit = tier->visits; visit; visit = visit->next) {
        if (visit->segment == CUDA_NO_SEGMENT)
            continue;
        const uint32_t next = next_streamed(tier, visit->segment);
        in_flight = true;
        if (next >= visit->segment) // before it has passed the last one
            fetch(tier, next);
    }
    if (!in_flight)
        fetch(tier, next_streamed(tier, 0));
}

void cuda_tier_enter(struct cuda_tier *tier, struct cuda_visit *visit, uint32_t s, cudaStream_t stream)
{
    const struct cuda_slot *slot = tier->blobs[s].slot;

    visit->segment = s;
    if (!slot)
        return;
    (void)cuda_tier_advance(tier);
    if (slot->segment != s)
        copy_blob(tier, s, tier->disk.stream ? cuda_disk_seek(tier, s) : tier->blobs[s].host);
    cuda_must(cudaStreamWaitEvent(stream, slot->copied, 0), "waiting for weights");
}

void cuda_tier_leave(struct cuda_tier *tier, struct cuda_visit *visit, uint32_t s, cudaStream_t stream)
{
    const struct cuda_slot *slot = tier->blobs[s].slot;

    visit->segment = s + 1 < tier->tiers.segment_count ? s + 1 : CUDA_NO_SEGMENT;
    if (slot)
        cuda_must(cudaEventRecord(visit->used[slot - tier->slots], stream), "using weights");
    if (tier->disk.stream)
        (void)cuda_tier_advance(tier);
    else if (tier->tiers.streamed_count)
        fetch_next(tier);
}

void cuda_tier_begin(struct cuda_visit *visit) { visit->segment = 0; }

void cuda_tier_end(struct cuda_visit *visit) { visit->segment = CUDA_NO_SEGMENT; }

bool cuda_tier_advance(struct cuda_tier *tier)
{
    const unsigned char *from;
    bool copying;

    if (!tier->disk.stream)
        return false;
    copying = cuda_disk_advance(tier);
    for (uint32_t s; (s = cuda_disk_take(tier, &from)) != CUDA_NO_SEGMENT; copying = true) {
        copy_blob(tier, s, from);
        (void)cuda_disk_advance(tier);
    }
    return copying;
}

uint32_t cuda_tier_turn(struct cuda_tier *tier, uint32_t s)
{
    const struct cuda_slot *slot = tier->blobs[s].slot;

    if (slot && slot->segment != s)
        (void)cuda_tier_advance(tier);
    if (!slot || slot->segment == s)
        return 0;
    return tier->disk.stream ? BACKEND_NOT_YET : 1;
}

void cuda_tier_hold(struct cuda_tier *tier, bool hold)
{
    tier->disk.held = hold;
    (void)cuda_tier_advance(tier);
}

double cuda_tier_step_us(const struct cuda_tier *tier)
{
    const double link_us = tier->byte_us * (double)tier->tiers.streamed_bytes;
    struct weight_stream_counts counts;

    if (!tier->disk.stream)
        return link_us;
    weight_stream_count(tier->disk.stream, &counts);
    return MAX(link_us, counts.step_us);
}

// frame.c: the pool of frames, frames that wait, and reading frames out of a stream of bytes.
//
// Frames come in sizes of powers of two. Freed ones are kept for the next, up to POOL_BYTES in all, so that a decode step
// allocates nothing. Where the process has lent memory (rpc_lend_memory), those of channels that ask for it lie there while it has
// room. (Worked number: a layer of 128 rows of a 135M model is two requests of 240 KB and two replies of 144 KB,
// 1 MiB with the frames that the next ones are read into.)
//
// While messages are small, a reader reads READ_AHEAD bytes and copies the messages out, so that one system call brings many. While
// they are large, it reads one at a time into a frame sized like the previous ones, and hands that frame on. If smaller messages
// arrive instead, they are copied out, so a frame is never more than four times as large as its message.
//
//     small:  [head msg head msg head ms│         ] ─▶ a frame each; the rest moves to the front
//     large:  [head msg                          │] ─▶ this frame itself; the next one goes into another
#include "common/rpc/frame.h"

#include <pthread.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif
#include <stdlib.h>
#include <string.h>

#include "common/base/alloc.h"
#include "common/base/checked.h"
#include "common/rpc/rpc.h"
#include "common/rpc/wire.h"

enum {
    CLASS_FIRST = 8, // 256 bytes
    CLASS_LAST = 22, // 4 MiB; larger ones are not kept
    CLASS_LENT_LAST = 30,
    CLASS_NONE = CLASS_LENT_LAST + 1,
    READ_AHEAD = 64 << 10,
    LARGE = 1 << 10,
#if defined(FRAME_POOL_BYTES)
    POOL_BYTES = FRAME_POOL_BYTES
#elif defined(__SANITIZE_ADDRESS__)
    POOL_BYTES = 0 // so that use after free is noticed
#else
    POOL_BYTES = 8 << 20
#endif
};

static const unsigned char magic[4] = {'F', 'D', 'R', '1'};

static struct {
    pthread_mutex_t lock;
    struct frame *free[CLASS_LAST + 1];
    size_t bytes;
    unsigned char *lent; // NULL: none
    uint64_t lent_bytes;
    struct buddy *blocks;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

// --- the pool ---

static size_t class_bytes(uint32_t size_class) { return (size_t)1 << size_class; }

enum status rpc_lend_memory(void *memory, size_t bytes)
{
    struct buddy *blocks;

    if (buddy_open(bytes, &blocks))
        return STATUS_RESOURCE_EXHAUSTED;
    pthread_mutex_lock(&pool.lock);
    assert_always(!pool.lent);
    pool.blocks = blocks;
    pool.lent = memory;
    pool.lent_bytes = buddy_free_bytes(blocks);
    ASAN_POISON_MEMORY_REGION(pool.lent, pool.lent_bytes);
    pthread_mutex_unlock(&pool.lock);
    return STATUS_OK;
}

bool rpc_take_memory_back(void)
{
    pthread_mutex_lock(&pool.lock);
    const bool all = !pool.lent || buddy_free_bytes(pool.blocks) == pool.lent_bytes;
    if (all && pool.lent) {
        ASAN_UNPOISON_MEMORY_REGION(pool.lent, pool.lent_bytes);
        buddy_close(pool.blocks);
        pool.blocks = NULL;
        pool.lent = NULL;
    }
    pthread_mutex_unlock(&pool.lock);
    return all;
}

// Under the lock. NULL: no room.
static struct frame *take_lent(uint32_t size_class)
{
    uint64_t offset = pool.lent && size_class <= CLASS_LENT_LAST ? buddy_take(pool.blocks, size_class) : BUDDY_NONE;
    if (offset == BUDDY_NONE)
        return NULL;
    ASAN_UNPOISON_MEMORY_REGION(pool.lent + offset, class_bytes(size_class));
    return (struct frame *)(void *)(pool.lent + offset);
}

// Returns a frame of `bytes` on the wire, in lent memory if that is wanted and there is room.
static struct frame *take(size_t wire_bytes, bool wants_lent)
{
    uint32_t size_class = CLASS_FIRST;
    struct frame *frame = NULL;

    pthread_mutex_lock(&pool.lock);
    if (wants_lent && pool.lent)
        size_class = BUDDY_ORDER_LEAST;
    while (size_class < CLASS_NONE && class_bytes(size_class) - sizeof *frame < wire_bytes)
        size_class++;
    if (wants_lent)
        frame = take_lent(size_class);
    const bool lent = frame;
    if (!frame && size_class <= CLASS_LAST && (frame = pool.free[size_class])) {
        pool.free[size_class] = frame->next;
        pool.bytes -= class_bytes(size_class);
    }
    pthread_mutex_unlock(&pool.lock);
    size_t bytes = lent || size_class <= CLASS_LAST ? class_bytes(size_class) : sizeof *frame + wire_bytes;
    if (!frame && !(frame = malloc(bytes)))
        return NULL;
    *frame = (struct frame){.size_class = size_class, .lent = lent, .capacity = bytes - sizeof *frame};
    return frame;
}

struct frame *frame_open(size_t length, bool lent)
{
    struct frame *frame = length <= UINT32_MAX ? take(FRAME_HEAD + length, lent) : NULL;

    if (!frame)
        return NULL;
    frame->length = length;
    memcpy(frame->wire, magic, sizeof magic);
    wire_store_u32(frame->wire + sizeof magic, (uint32_t)length);
    return frame;
}

void frame_free(struct frame *frame)
{
    if (!frame)
        return;
    if (frame->lent || frame->size_class <= CLASS_LAST) {
        size_t bytes = class_bytes(frame->size_class);
        pthread_mutex_lock(&pool.lock);
        if (frame->lent) {
            buddy_give(pool.blocks, (uint64_t)((unsigned char *)frame - pool.lent));
            ASAN_POISON_MEMORY_REGION(frame, bytes); // so that use after free is noticed
            frame = NULL;
        } else if (pool.bytes + bytes <= POOL_BYTES) {
            frame->next = pool.free[frame->size_class];
            pool.free[frame->size_class] = frame;
            pool.bytes += bytes;
            frame = NULL;
        }
        pthread_mutex_unlock(&pool.lock);
    }
    free(frame);
}

// --- frames that wait for a peer ---

bool frame_queue_put(struct frame_queue *queue, struct frame *frame, size_t most_bytes)
{
    if (queue->count == RPC_QUEUE_MAX || (queue->count && queue->bytes + frame->length > most_bytes))
        return false;
    frame->next = NULL;
    *(queue->count ? &queue->last->next : &queue->first) = frame;
    queue->last = frame;
    queue->count++;
    queue->bytes += frame->length;
    return true;
}

struct frame *frame_queue_take(struct frame_queue *queue)
{
    struct frame *frame = queue->first;

    if (!frame)
        return NULL;
    queue->first = frame->next;
    queue->count--;
    queue->bytes -= frame->length;
    return frame;
}

void frame_queue_clear(struct frame_queue *queue)
{
    while (queue->first)
        frame_free(frame_queue_take(queue));
}

// --- reading ---

// Returns the size on the wire of the message at `at`. 0: its head is incomplete.
static size_t message_bytes(const struct frame_reader *reader, size_t at)
{
    return reader->have - at >= FRAME_HEAD ? FRAME_HEAD + (size_t)wire_load_u32(reader->frame->wire + at + 4) : 0;
}

size_t frame_reader_space(struct frame_reader *reader, void **at)
{
    size_t end = reader->frame ? message_bytes(reader, 0) : 0, needed;
    struct frame *grown;

    if (!end)
        end = reader->expected;
    needed = end >= LARGE ? end : (size_t)READ_AHEAD - sizeof *grown;
    if (!reader->frame || reader->frame->capacity < needed) {
        if (!(grown = take(needed, reader->lent)))
            return 0;
        if (reader->frame)
            memcpy(grown->wire, reader->frame->wire, reader->have);
        frame_free(reader->frame);
        reader->frame = grown;
    }
    *at = reader->frame->wire + reader->have;
    return needed - reader->have;
}

// True if the reader's frame holds little besides its first message. Handing on a fuller frame would cost more than a copy: it would pin
// the memory of everything that came with the message, and the rest would have to be moved.
static bool is_mostly(const struct frame_reader *reader, size_t total)
{
    return total >= LARGE && reader->have - total <= total && reader->frame->capacity / 4 <= total;
}

// Hands on the reader's frame; `rest` bytes of the next message follow in it. False: no memory.
static bool hand_on(struct frame_reader *reader, size_t length, size_t rest, void (*deliver)(void *arg, struct frame *frame),
                    void *arg)
{
    struct frame *whole = reader->frame, *next = rest ? take(MAX(rest, (size_t)READ_AHEAD - sizeof *next), reader->lent) : NULL;

    if (rest && !next)
        return false;
    if (rest)
        memcpy(next->wire, whole->wire + FRAME_HEAD + length, rest);
    reader->frame = next;
    reader->have = rest;
    whole->length = length;
    deliver(arg, whole);
    return true;
}

static bool copy_out(struct frame_reader *reader, size_t at, size_t length, void (*deliver)(void *arg, struct frame *frame),
                     void *arg)
{
    struct frame *copy = frame_open(length, reader->lent);

    if (!copy)
        return false;
    memcpy(frame_bytes(copy), reader->frame->wire + at + FRAME_HEAD, length);
    deliver(arg, copy);
    return true;
}

bool frame_reader_take(struct frame_reader *reader, size_t count, void (*deliver)(void *arg, struct frame *frame), void *arg)
{
    size_t at = 0, total;

    reader->have += count;
    while (reader->have > at) {
        size_t have = reader->have - at;
        if (memcmp(reader->frame->wire + at, magic, MIN(have, sizeof magic)) != 0) // notices strangers at the first byte
            return false;
        if (!(total = message_bytes(reader, at)))
            break;
        if (total - FRAME_HEAD > reader->max_message_bytes)
            return false;
        if (have < total)
            break;
        reader->expected = MAX(total, reader->expected - reader->expected / 8);
        if (at == 0 && is_mostly(reader, total)) {
            if (!hand_on(reader, total - FRAME_HEAD, have - total, deliver, arg))
                return false;
            continue;
        }
        if (!copy_out(reader, at, total - FRAME_HEAD, deliver, arg))
            return false;
        at += total;
    }
    if (at) {
        reader->have -= at;
        memmove(reader->frame->wire, reader->frame->wire + at, reader->have);
    }
    if (reader->have == 0 && reader->frame && reader->frame->capacity / 4 > MAX(reader->expected, (size_t)READ_AHEAD)) {
        frame_free(reader->frame); // sized for larger messages; return it to the pool
        reader->frame = NULL;
    }
    return true;
}

void frame_reader_close(struct frame_reader *reader)
{
    frame_free(reader->frame);
    reader->frame = NULL;
    reader->have = 0;
}

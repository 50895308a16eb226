/* message.c: received messages and their arenas, outgoing buffers. */
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/rpc/internal.h"

/* A packed message of n bytes may take CAP_BASE + CAP_FACTOR * n bytes unpacked, and no more than CAP_MOST: sub-messages of
 * two bytes become structs of a hundred. Worked number: a prompt of 8,192 ids is 24 KB packed and 32 KB unpacked. */
enum { CHUNK_BYTES = 4096, CHUNK_KEPT_BYTES = 1 << 18, CAP_BASE = 1 << 16, CAP_FACTOR = 100, CAP_MOST = 256 << 20 };

void *arena_take(struct arena *arena, size_t size)
{
    struct arena_chunk *chunk = arena->chunks;

    if (size > arena->cap - MIN(arena->taken, arena->cap))
        return NULL;
    size = (size + 15) & ~(size_t)15;
    if (!chunk || size > chunk->size - chunk->used) {
        size_t bytes = MAX(size, chunk ? chunk->size * 2 : (size_t)CHUNK_BYTES);
        struct arena_chunk *fresh = malloc(sizeof *fresh + bytes);
        if (!fresh)
            return NULL;
        *fresh = (struct arena_chunk){.next = chunk, .size = bytes};
        arena->chunks = chunk = fresh;
    }
    void *taken = chunk->bytes + chunk->used;
    chunk->used += size;
    arena->taken += size;
    return taken;
}

/* Keeps the newest chunk, which is the largest, unless it is huge: the next message needs no malloc. */
void arena_reset(struct arena *arena)
{
    struct arena_chunk *keep = arena->chunks;

    if (keep && keep->size > CHUNK_KEPT_BYTES)
        keep = NULL;
    for (struct arena_chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        if (chunk != keep)
            free(chunk);
    }
    if (keep) {
        keep->next = NULL;
        keep->used = 0;
    }
    arena->chunks = keep;
    arena->taken = 0;
}

void arena_free(struct arena *arena)
{
    for (struct arena_chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    arena->chunks = NULL;
}

static void *arena_alloc(void *data, size_t size) { return arena_take(data, size); }
static void arena_release(void *data, void *pointer) { (void)data, (void)pointer; }

struct rpc_message *message_open(struct rpc_loop *loop, struct frame *frame)
{
    struct rpc_message *message = loop_take_message(loop);

    if (!message || !envelope_parse(frame_bytes(frame), frame->length, &message->envelope)) {
        frame_free(frame);
        if (message)
            loop_give_message(loop, message);
        return NULL;
    }
    message->loop = loop;
    message->frame = frame;
    message->kept = message->borrowed = false;
    return message;
}

void rpc_message_free(struct rpc_message *message)
{
    if (!message)
        return;
    if (message->borrowed) { /* inside the callback that kept it: it ends with the callback after all */
        message->kept = false;
        return;
    }
    frame_free(message->frame);
    message->frame = NULL;
    arena_reset(&message->arena);
    loop_give_message(message->loop, message);
}

struct rpc_message *rpc_message_keep(struct rpc_message *message)
{
    message->kept = true;
    return message;
}

const unsigned char *rpc_message_payload(const struct rpc_message *message, size_t *length)
{
    *length = message->envelope.payload_length;
    return message->envelope.payload;
}

void *rpc_message_unpack(struct rpc_message *message, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCAllocator allocator = {arena_alloc, arena_release, &message->arena};
    message->arena.cap = message->arena.taken + MIN(CAP_BASE + message->envelope.payload_length * CAP_FACTOR, (size_t)CAP_MOST);
    return protobuf_c_message_unpack(descriptor, &allocator, message->envelope.payload_length, message->envelope.payload);
}

struct rpc_buffer *buffer_open(struct rpc_loop *loop, const struct envelope *head, size_t payload_bytes, bool lent,
                               unsigned char **payload)
{
    size_t payload_at, size = envelope_size(head, payload_bytes, &payload_at);
    struct rpc_buffer *buffer = loop_take_buffer(loop);

    if (!buffer)
        return NULL;
    buffer->loop = loop;
    buffer->timeout_ms = head->timeout_ms;
    if (!(buffer->frame = frame_open(size, lent))) {
        loop_give_buffer(loop, buffer);
        return NULL;
    }
    envelope_write(head, payload_bytes, frame_bytes(buffer->frame));
    *payload = frame_bytes(buffer->frame) + payload_at;
    return buffer;
}

struct frame *buffer_take(struct rpc_buffer *buffer)
{
    struct frame *frame = buffer->frame;
    buffer->frame = NULL;
    loop_give_buffer(buffer->loop, buffer);
    return frame;
}

void rpc_buffer_free(struct rpc_buffer *buffer)
{
    if (buffer)
        frame_free(buffer_take(buffer));
}

struct frame *pack_message(struct rpc_loop *loop, const struct envelope *head, const ProtobufCMessage *payload)
{
    unsigned char *bytes;
    size_t size = payload ? protobuf_c_message_get_packed_size(payload) : 0;
    struct rpc_buffer *buffer = buffer_open(loop, head, size, false, &bytes);

    if (!buffer)
        return NULL;
    if (payload)
        protobuf_c_message_pack(payload, bytes);
    return buffer_take(buffer);
}

// message.c: reads and writes envelopes; keeps messages and their memory in a pool.
#include "common/rpc/message.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/rpc/wire.h"

// --- envelopes ---

enum {
    F_KIND = 1,
    F_CALL = 2,
    F_METHOD = 3,
    F_STATUS = 4,
    F_ERROR = 5,
    F_TIMEOUT = 6,
    F_REQUEST_ID = 7,
    F_TRACE_ID = 8,
    F_TRACE_STATE = 9,
    F_PADDING = 14,
    F_PAYLOAD = 15,
    CALL_ID_AT = 3
};

static void take_text(char *to, size_t to_bytes, const struct wire_field *field)
{
    size_t length = field->length < to_bytes ? field->length : to_bytes - 1;
    for (size_t i = 0; i < length; i++) // logged later: no control characters
        to[i] = field->bytes[i] < 0x20 || field->bytes[i] == 0x7f ? '?' : (char)field->bytes[i];
    to[length] = '\0';
}

static bool take_field(struct envelope *out, const struct wire_field *field)
{
    static const enum wire_type types[F_PAYLOAD + 1] = {
        [F_KIND] = WIRE_VARINT,   [F_CALL] = WIRE_FIXED64,   [F_METHOD] = WIRE_FIXED32,    [F_STATUS] = WIRE_VARINT,
        [F_ERROR] = WIRE_BYTES,   [F_TIMEOUT] = WIRE_VARINT, [F_REQUEST_ID] = WIRE_BYTES,  [F_TRACE_ID] = WIRE_BYTES,
        [F_PADDING] = WIRE_BYTES, [F_PAYLOAD] = WIRE_BYTES,  [F_TRACE_STATE] = WIRE_BYTES,
    };
    bool known = (field->number >= F_KIND && field->number <= F_TRACE_STATE) || field->number == F_PADDING ||
                 field->number == F_PAYLOAD;

    if (!known)
        return true;
    if (field->type != types[field->number] || (field->type == WIRE_VARINT && field->value > UINT32_MAX))
        return false;
    switch (field->number) {
    case F_KIND: out->kind = (uint32_t)field->value; break;
    case F_CALL: out->call_id = field->value; break;
    case F_METHOD: out->method = (uint32_t)field->value; break;
    case F_STATUS: out->status = (uint32_t)field->value; break;
    case F_TIMEOUT: out->timeout_ms = (uint32_t)field->value; break;
    case F_ERROR: take_text(out->error, sizeof out->error, field); break;
    case F_REQUEST_ID: take_text(out->request_id, sizeof out->request_id, field); break;
    case F_TRACE_ID: take_text(out->trace_id, sizeof out->trace_id, field); break;
    case F_TRACE_STATE:
        out->trace_state = (const char *)field->bytes;
        out->trace_state_length = field->length;
        break;
    case F_PAYLOAD:
        out->payload = field->bytes;
        out->payload_length = field->length;
        break;
    default: break;
    }
    return true;
}

bool envelope_parse(const unsigned char *bytes, size_t length, struct envelope *out)
{
    struct wire_reader reader;
    struct wire_field field;
    bool bad;

    memset(out, 0, offsetof(struct envelope, request_id));
    out->request_id[0] = out->trace_id[0] = out->error[0] = '\0';
    out->trace_state = NULL;
    out->trace_state_length = 0;
    out->payload = bytes + length;
    out->payload_length = 0;
    wire_reader_init(&reader, bytes, length);
    while (wire_next(&reader, &field, &bad))
        if (!take_field(out, &field))
            return false;
    return !bad && out->kind >= ENVELOPE_HELLO && out->kind <= ENVELOPE_PROOF;
}

// Writes the head, up to the payload.
static void write_head(struct wire_writer *writer, const struct envelope *head, size_t payload_length)
{
    wire_put_varint(writer, F_KIND, head->kind);
    wire_put_fixed64(writer, F_CALL, head->call_id);
    if (head->method)
        wire_put_fixed32(writer, F_METHOD, head->method);
    if (head->status)
        wire_put_varint(writer, F_STATUS, head->status);
    if (head->error[0])
        wire_put_bytes(writer, F_ERROR, head->error, strlen(head->error));
    if (head->timeout_ms)
        wire_put_varint(writer, F_TIMEOUT, head->timeout_ms);
    if (head->request_id[0])
        wire_put_bytes(writer, F_REQUEST_ID, head->request_id, strlen(head->request_id));
    if (head->trace_id[0])
        wire_put_bytes(writer, F_TRACE_ID, head->trace_id, strlen(head->trace_id));
    if (head->trace_state_length)
        wire_put_bytes(writer, F_TRACE_STATE, head->trace_state, head->trace_state_length);
    wire_put_padded(writer, F_PADDING, F_PAYLOAD, payload_length);
}

size_t envelope_size(const struct envelope *head, size_t payload_length, size_t *payload_at)
{
    struct wire_writer writer = {0};

    write_head(&writer, head, payload_length);
    *payload_at = writer.at - payload_length;
    return writer.at;
}

void envelope_write(const struct envelope *head, size_t payload_length, unsigned char *bytes)
{
    size_t payload_at;
    struct wire_writer writer = {.bytes = bytes, .length = envelope_size(head, payload_length, &payload_at)};

    write_head(&writer, head, payload_length);
}

void envelope_set_call_id(unsigned char *bytes, uint64_t call_id) { wire_store_u64(bytes + CALL_ID_AT, call_id); }

// A packed message of n bytes may take CAP_BASE + CAP_FACTOR * n bytes unpacked, and no more than CAP_MOST: sub-messages of
// two bytes become structs of a hundred. Worked number: a prompt of 8,192 ids is 24 KB packed and 32 KB unpacked.
enum { CAP_BASE = 1 << 16, CAP_FACTOR = 100, CAP_MOST = 256 << 20 };
// Messages and buffers that are there from the start: a decode step with one more of them alive than ever before must not allocate.
enum { MESSAGES_AT_START = 16, MESSAGES_KEPT_MAX = 4096 };

// --- the pool ---

static struct rpc_message *take_message(struct message_pool *pool)
{
    struct rpc_message *message = pool->messages;
    if (!message)
        return calloc(1, sizeof *message);
    pool->messages = message->next;
    pool->message_count--;
    return message;
}

static void give_message(struct message_pool *pool, struct rpc_message *message)
{
    if (pool->message_count >= MESSAGES_KEPT_MAX) {
        arena_free(&message->arena);
        free(message);
        return;
    }
    message->next = pool->messages;
    pool->messages = message;
    pool->message_count++;
}

static struct rpc_buffer *take_buffer(struct message_pool *pool)
{
    struct rpc_buffer *buffer = pool->buffers;
    if (!buffer)
        return calloc(1, sizeof *buffer);
    pool->buffers = buffer->next;
    return buffer;
}

static void give_buffer(struct message_pool *pool, struct rpc_buffer *buffer)
{
    buffer->next = pool->buffers;
    pool->buffers = buffer;
}

bool message_pool_open(struct message_pool *pool)
{
    for (uint32_t i = 0; i < MESSAGES_AT_START; i++) {
        struct rpc_message *message = calloc(1, sizeof *message);
        struct rpc_buffer *buffer = calloc(1, sizeof *buffer);
        if (message)
            give_message(pool, message);
        if (buffer)
            give_buffer(pool, buffer);
        if (!message || !buffer)
            return false;
        message->arena.cap = 1;
        if (!arena_take(&message->arena, 1)) // its first chunk, which it keeps
            return false;
        arena_reset(&message->arena);
    }
    return true;
}

void message_pool_close(struct message_pool *pool)
{
    while (pool->messages) {
        struct rpc_message *message = pool->messages;
        pool->messages = message->next;
        arena_free(&message->arena);
        free(message);
    }
    while (pool->buffers) {
        struct rpc_buffer *buffer = pool->buffers;
        pool->buffers = buffer->next;
        free(buffer);
    }
    *pool = (struct message_pool){0};
}

// --- received messages ---

static void *arena_alloc(void *data, size_t size) { return arena_take(data, size); }
static void arena_release(void *data, void *pointer) { (void)data, (void)pointer; }

struct rpc_message *message_open(struct message_pool *pool, struct frame *frame)
{
    struct rpc_message *message = take_message(pool);

    if (!message || !envelope_parse(frame_bytes(frame), frame->length, &message->envelope)) {
        frame_free(frame);
        if (message)
            give_message(pool, message);
        return NULL;
    }
    message->pool = pool;
    message->frame = frame;
    message->kept = message->borrowed = false;
    return message;
}

void rpc_message_free(struct rpc_message *message)
{
    if (!message)
        return;
    if (message->borrowed) { // inside the callback that kept it: it ends with the callback after all
        message->kept = false;
        return;
    }
    frame_free(message->frame);
    message->frame = NULL;
    arena_reset(&message->arena);
    give_message(message->pool, message);
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

void *rpc_message_unpack_part(struct rpc_message *message, const unsigned char *bytes, size_t length,
                              const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCAllocator allocator = {arena_alloc, arena_release, &message->arena};
    message->arena.cap = message->arena.taken + MIN(CAP_BASE + length * CAP_FACTOR, (size_t)CAP_MOST);
    return protobuf_c_message_unpack(descriptor, &allocator, length, bytes);
}

void *rpc_message_unpack(struct rpc_message *message, const ProtobufCMessageDescriptor *descriptor)
{
    return rpc_message_unpack_part(message, message->envelope.payload, message->envelope.payload_length, descriptor);
}

// --- messages to be sent ---

struct rpc_buffer *message_buffer_open(struct message_pool *pool, const struct envelope *head, size_t payload_bytes, bool lent,
                                       unsigned char **payload)
{
    size_t payload_at, size = envelope_size(head, payload_bytes, &payload_at);
    struct rpc_buffer *buffer = take_buffer(pool);

    if (!buffer)
        return NULL;
    buffer->pool = pool;
    buffer->timeout_ms = head->timeout_ms;
    if (!(buffer->frame = frame_open(size, lent))) {
        give_buffer(pool, buffer);
        return NULL;
    }
    envelope_write(head, payload_bytes, frame_bytes(buffer->frame));
    *payload = frame_bytes(buffer->frame) + payload_at;
    return buffer;
}

struct frame *message_buffer_take(struct rpc_buffer *buffer)
{
    struct frame *frame = buffer->frame;
    buffer->frame = NULL;
    give_buffer(buffer->pool, buffer);
    return frame;
}

void rpc_buffer_free(struct rpc_buffer *buffer)
{
    if (buffer)
        frame_free(message_buffer_take(buffer));
}

struct frame *message_pack(struct message_pool *pool, const struct envelope *head, const ProtobufCMessage *payload)
{
    unsigned char *bytes;
    size_t size = payload ? protobuf_c_message_get_packed_size(payload) : 0;
    struct rpc_buffer *buffer = message_buffer_open(pool, head, size, false, &bytes);

    if (!buffer)
        return NULL;
    if (payload)
        protobuf_c_message_pack(payload, bytes);
    return message_buffer_take(buffer);
}

// envelope.c: see envelope.h.
#include "common/rpc/envelope.h"

#include <string.h>

#include "common/wire/wire.h"

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

// Writes the head up to the padding field; wire_put_* assert that it fits.
static void write_head(struct wire_writer *writer, const struct envelope *head)
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
}

static size_t head_size(const struct envelope *head)
{
    return wire_size_varint(F_KIND, head->kind) + wire_size_fixed64(F_CALL) + (head->method ? wire_size_fixed32(F_METHOD) : 0) +
           (head->status ? wire_size_varint(F_STATUS, head->status) : 0) +
           (head->error[0] ? wire_size_bytes(F_ERROR, strlen(head->error)) : 0) +
           (head->timeout_ms ? wire_size_varint(F_TIMEOUT, head->timeout_ms) : 0) +
           (head->request_id[0] ? wire_size_bytes(F_REQUEST_ID, strlen(head->request_id)) : 0) +
           (head->trace_id[0] ? wire_size_bytes(F_TRACE_ID, strlen(head->trace_id)) : 0) +
           (head->trace_state_length ? wire_size_bytes(F_TRACE_STATE, head->trace_state_length) : 0);
}

size_t envelope_size(const struct envelope *head, size_t payload_length, size_t *payload_at)
{
    size_t at = head_size(head), payload_head = wire_size_bytes(F_PAYLOAD, payload_length) - payload_length;
    *payload_at = at + 2 + wire_padding_length(at, payload_head) + payload_head;
    return *payload_at + payload_length;
}

void envelope_write(const struct envelope *head, size_t payload_length, unsigned char *bytes)
{
    static const unsigned char zeros[4];
    size_t payload_at, size = envelope_size(head, payload_length, &payload_at), at;
    struct wire_writer writer = {bytes, bytes + size};

    write_head(&writer, head);
    at = (size_t)(writer.at - bytes);
    wire_put_bytes(&writer, F_PADDING, zeros, wire_padding_length(at, wire_size_bytes(F_PAYLOAD, payload_length) - payload_length));
    wire_put_bytes_in_place(&writer, F_PAYLOAD, payload_length);
}

void envelope_set_call_id(unsigned char *bytes, uint64_t call_id) { wire_store_u64(bytes + CALL_ID_AT, call_id); }

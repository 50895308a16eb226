// wire.c: writes and reads fields of protobuf's wire format in place.
#include "common/rpc/wire.h"

#include <string.h>

// Returns where the next `count` bytes go, or NULL.
static unsigned char *wire_room(struct wire_writer *writer, size_t count)
{
    const size_t at = writer->at;

    writer->at += count;
    if (!writer->bytes)
        return NULL;
    assert_always(at <= writer->length && count <= writer->length - at);
    return writer->bytes + at;
}

static void raw_byte(struct wire_writer *writer, uint64_t value)
{
    unsigned char *to = wire_room(writer, 1);
    if (to)
        *to = (unsigned char)value;
}

static void raw_varint(struct wire_writer *writer, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        raw_byte(writer, value | 0x80);
    raw_byte(writer, value);
}

static void tag(struct wire_writer *writer, uint32_t field, enum wire_type type)
{
    raw_varint(writer, (uint64_t)field << 3 | (uint64_t)type);
}

void wire_put_varint(struct wire_writer *writer, uint32_t field, uint64_t value)
{
    tag(writer, field, WIRE_VARINT);
    raw_varint(writer, value);
}

void wire_put_fixed32(struct wire_writer *writer, uint32_t field, uint32_t value)
{
    tag(writer, field, WIRE_FIXED32);
    unsigned char *to = wire_room(writer, 4);
    if (to)
        wire_store_u32(to, value);
}

void wire_put_fixed64(struct wire_writer *writer, uint32_t field, uint64_t value)
{
    tag(writer, field, WIRE_FIXED64);
    unsigned char *to = wire_room(writer, 8);
    if (to)
        wire_store_u64(to, value);
}

unsigned char *wire_put_bytes_in_place(struct wire_writer *writer, uint32_t field, size_t length)
{
    tag(writer, field, WIRE_BYTES);
    raw_varint(writer, length);
    return wire_room(writer, length);
}

void wire_put_bytes(struct wire_writer *writer, uint32_t field, const void *bytes, size_t length)
{
    unsigned char *to = wire_put_bytes_in_place(writer, field, length);
    if (to && length)
        memcpy(to, bytes, length);
}

unsigned char *wire_put_padded(struct wire_writer *writer, uint32_t padding, uint32_t field, size_t length)
{
    enum { PADDING_HEAD_BYTES = 2 };
    static const unsigned char zeros[4];
    struct wire_writer head = {.at = writer->at + PADDING_HEAD_BYTES};

    tag(&head, field, WIRE_BYTES);
    raw_varint(&head, length);
    wire_put_bytes(writer, padding, zeros, (4 - head.at % 4) % 4);
    return wire_put_bytes_in_place(writer, field, length);
}

void wire_reader_init(struct wire_reader *reader, const void *bytes, size_t length)
{
    reader->begin = reader->at = bytes;
    reader->end = reader->begin + length;
}

static bool read_varint(struct wire_reader *reader, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && reader->at < reader->end; shift += 7) {
        unsigned char byte = *reader->at++;
        if (shift == 63 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool take_bytes(struct wire_reader *reader, uint64_t length, const unsigned char **out)
{
    if (length > (uint64_t)(reader->end - reader->at))
        return false;
    *out = reader->at;
    reader->at += length;
    return true;
}

bool wire_next(struct wire_reader *reader, struct wire_field *field, bool *bad)
{
    uint64_t key, length;
    bool ok;

    *bad = false;
    if (reader->at == reader->end)
        return false;
    *bad = true;
    if (!read_varint(reader, &key) || key >> 3 == 0 || key >> 3 > 536870911)
        return false;
    *field = (struct wire_field){.number = (uint32_t)(key >> 3), .type = (enum wire_type)(key & 7)};
    switch (field->type) {
    case WIRE_VARINT: ok = read_varint(reader, &field->value); break;
    case WIRE_FIXED32:
        ok = take_bytes(reader, 4, &field->bytes);
        field->value = ok ? wire_load_u32(field->bytes) : 0;
        break;
    case WIRE_FIXED64:
        ok = take_bytes(reader, 8, &field->bytes);
        field->value = ok ? wire_load_u64(field->bytes) : 0;
        break;
    case WIRE_BYTES:
        ok = read_varint(reader, &length) && take_bytes(reader, length, &field->bytes);
        field->length = ok ? (size_t)length : 0;
        break;
    default: /* groups: not in proto3 */ ok = false;
    }
    *bad = !ok;
    return ok;
}

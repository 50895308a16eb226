// wire.c: writes and reads fields of protobuf's wire format in place.
#include "common/rpc/wire.h"

#include <string.h>

static size_t wire_varint_size(uint64_t value)
{
    size_t size = 1;
    for (; value >= 0x80; value >>= 7)
        size++;
    return size;
}

static size_t tag_size(uint32_t field) { return wire_varint_size((uint64_t)field << 3); }

size_t wire_size_varint(uint32_t field, uint64_t value) { return tag_size(field) + wire_varint_size(value); }
size_t wire_size_fixed32(uint32_t field) { return tag_size(field) + 4; }
size_t wire_size_fixed64(uint32_t field) { return tag_size(field) + 8; }

size_t wire_size_bytes(uint32_t field, size_t length) { return tag_size(field) + wire_varint_size(length) + length; }

static void raw_varint(struct wire_writer *writer, uint64_t value)
{
    assert_always((size_t)(writer->end - writer->at) >= wire_varint_size(value));
    for (; value >= 0x80; value >>= 7)
        *writer->at++ = (unsigned char)(value | 0x80);
    *writer->at++ = (unsigned char)value;
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
    assert_always(writer->end - writer->at >= 4);
    wire_store_u32(writer->at, value);
    writer->at += 4;
}

void wire_put_fixed64(struct wire_writer *writer, uint32_t field, uint64_t value)
{
    tag(writer, field, WIRE_FIXED64);
    assert_always(writer->end - writer->at >= 8);
    wire_store_u64(writer->at, value);
    writer->at += 8;
}

unsigned char *wire_put_bytes_in_place(struct wire_writer *writer, uint32_t field, size_t length)
{
    unsigned char *bytes;
    tag(writer, field, WIRE_BYTES);
    raw_varint(writer, length);
    assert_always((size_t)(writer->end - writer->at) >= length);
    bytes = writer->at;
    writer->at += length;
    return bytes;
}

void wire_put_bytes(struct wire_writer *writer, uint32_t field, const void *bytes, size_t length)
{
    unsigned char *to = wire_put_bytes_in_place(writer, field, length);
    if (length)
        memcpy(to, bytes, length);
}

size_t wire_padding_length(size_t at, size_t after) { return (4 - (at + 2 + after) % 4) % 4; }

size_t wire_size_padded(size_t at, uint32_t field, size_t length)
{
    const size_t size = wire_size_bytes(field, length);
    return 2 + wire_padding_length(at, size - length) + size;
}

unsigned char *wire_put_padded(struct wire_writer *writer, const unsigned char *begin, uint32_t padding, uint32_t field,
                               size_t length)
{
    static const unsigned char zeros[4];

    wire_put_bytes(writer, padding, zeros,
                   wire_padding_length((size_t)(writer->at - begin), wire_size_bytes(field, length) - length));
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

/* attend_wire.c: see attend_wire.h. Hosts are little-endian (asserted at compile time): tensors are used as they lie. */
#include "services/kv-worker/attend_wire.h"

#include "common/wire/wire.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors travel in little-endian order");

enum { Q_INCARNATION = 1, Q_STEP = 2, Q_MINI_BATCH = 3, Q_LAYER = 4, Q_ROW_COUNT = 5, Q_SEQUENCE = 6, Q_POSITION = 7,
       Q_Q = 9, Q_K = 10, Q_V = 11 };
enum { R_STEP = 1, R_LAYER = 2, R_ATTEND_US = 3, R_LOST = 4, R_PADDING = 5, R_O = 6 };

/* The fields as ranges, before their sizes are checked. */
struct ranges {
    struct { const unsigned char *bytes; size_t length; } field[Q_V + 1];
};

static enum status take(struct attend_request *out, struct ranges *ranges, const struct wire_field *field, struct error *error)
{
    static const enum wire_type types[Q_V + 1] = {
        [Q_INCARNATION] = WIRE_FIXED64, [Q_STEP] = WIRE_FIXED64, [Q_MINI_BATCH] = WIRE_VARINT, [Q_LAYER] = WIRE_VARINT,
        [Q_ROW_COUNT] = WIRE_VARINT, [Q_SEQUENCE] = WIRE_BYTES, [Q_POSITION] = WIRE_BYTES, [8] = WIRE_BYTES,
        [Q_Q] = WIRE_BYTES, [Q_K] = WIRE_BYTES, [Q_V] = WIRE_BYTES,
    };

    if (field->number > Q_V)
        return STATUS_OK;
    if (field->type != types[field->number])
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: field %u has wire type %d", field->number, (int)field->type);
    if (field->type == WIRE_VARINT && field->value > UINT32_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: field %u is out of range", field->number);
    switch (field->number) {
    case Q_INCARNATION: out->incarnation = field->value; break;
    case Q_STEP: out->step = field->value; break;
    case Q_MINI_BATCH: out->mini_batch = (uint32_t)field->value; break;
    case Q_LAYER: out->layer = (uint32_t)field->value; break;
    case Q_ROW_COUNT: out->row_count = (uint32_t)field->value; break;
    default:
        ranges->field[field->number].bytes = field->bytes;
        ranges->field[field->number].length = field->length;
    }
    return STATUS_OK;
}

static enum status check_length(const struct ranges *ranges, uint32_t number, const char *name, uint64_t wanted, struct error *error)
{
    if (ranges->field[number].length == wanted)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %s has %zu bytes, want %llu", name,
                     ranges->field[number].length, (unsigned long long)wanted);
}

static enum status tensor(const struct ranges *ranges, uint32_t number, const char *name, uint64_t values, const float **out,
                          struct error *error)
{
    enum status status = check_length(ranges, number, name, values * sizeof(float), error);
    if (status)
        return status;
    if ((uintptr_t)ranges->field[number].bytes % sizeof(float))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %s is not aligned to 4 bytes", name);
    *out = (const float *)(const void *)ranges->field[number].bytes;
    return STATUS_OK;
}

enum status attend_request_parse(const unsigned char *bytes, size_t length, uint32_t max_rows, uint32_t q_width, uint32_t kv_width,
                                 struct attend_request *out, struct error *error)
{
    struct wire_reader reader;
    struct wire_field field;
    struct ranges ranges = {0};
    enum status status = STATUS_OK;
    bool bad;

    *out = (struct attend_request){0};
    wire_reader_init(&reader, bytes, length);
    while (wire_next(&reader, &field, &bad))
        if ((status = take(out, &ranges, &field, error)))
            return status;
    if (bad)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: malformed at byte %zu", (size_t)(reader.at - reader.begin));
    if (out->row_count == 0 || out->row_count > max_rows)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %u rows, want 1 to %u", out->row_count, max_rows);
    if (out->layer == 0) {
        if ((status = check_length(&ranges, Q_SEQUENCE, "row_sequence", out->row_count * 8ull, error)) ||
            (status = check_length(&ranges, Q_POSITION, "row_position", out->row_count * 4ull, error)))
            return status;
        out->row_sequence = ranges.field[Q_SEQUENCE].bytes;
        out->row_position = ranges.field[Q_POSITION].bytes;
    }
    if ((status = tensor(&ranges, Q_Q, "q", (uint64_t)out->row_count * q_width, &out->q, error)) ||
        (status = tensor(&ranges, Q_K, "k", (uint64_t)out->row_count * kv_width, &out->k, error)))
        return status;
    return tensor(&ranges, Q_V, "v", (uint64_t)out->row_count * kv_width, &out->v, error);
}

static size_t lost_bytes(uint32_t lost_count, const uint32_t *lost)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < lost_count; i++)
        bytes += wire_size_varint(R_LOST, lost[i]);
    return bytes;
}

/* Bytes before the padding field. */
static size_t head_bytes(uint32_t lost_count, const uint32_t *lost, uint32_t layer)
{
    return wire_size_fixed64(R_STEP) + wire_size_varint(R_LAYER, layer) + wire_size_fixed32(R_ATTEND_US) + lost_bytes(lost_count, lost);
}

size_t attend_reply_size(uint32_t row_count, uint32_t lost_count, const uint32_t *lost, uint32_t layer, uint32_t q_width)
{
    size_t o = (size_t)row_count * q_width * sizeof(float), at = head_bytes(lost_count, lost, layer);
    size_t o_head = wire_size_bytes(R_O, o) - o;
    return at + 2 + wire_padding_length(at, o_head) + o_head + o;
}

float *attend_reply_begin(unsigned char *bytes, size_t length, uint64_t step, uint32_t layer, uint32_t row_count,
                          uint32_t lost_count, const uint32_t *lost, uint32_t q_width, unsigned char **attend_us)
{
    static const unsigned char zeros[4];
    struct wire_writer writer = {bytes, bytes + length};
    size_t o = (size_t)row_count * q_width * sizeof(float);

    wire_put_fixed64(&writer, R_STEP, step);
    wire_put_varint(&writer, R_LAYER, layer);
    wire_put_fixed32(&writer, R_ATTEND_US, 0);
    *attend_us = writer.at - 4;
    for (uint32_t i = 0; i < lost_count; i++)
        wire_put_varint(&writer, R_LOST, lost[i]);
    wire_put_bytes(&writer, R_PADDING, zeros, wire_padding_length((size_t)(writer.at - bytes), wire_size_bytes(R_O, o) - o));
    return (float *)(void *)wire_put_bytes_in_place(&writer, R_O, o);
}

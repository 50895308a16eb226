// attend.c: see attend.h. Hosts are little-endian (asserted at compile time): tensors are used as they lie.
#include "common/wire/attend.h"

#include "common/wire/wire.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors travel in little-endian order");

enum {
    Q_INCARNATION = 1,
    Q_STEP = 2,
    Q_MINI_BATCH = 3,
    Q_LAYER = 4,
    Q_ROW_COUNT = 5,
    Q_SEQUENCE = 6,
    Q_POSITION = 7,
    Q_PADDING = 8,
    Q_Q = 9,
    Q_K = 10,
    Q_V = 11,
    Q_SHARE_SEQUENCE = 12,
    Q_SHARE_FROM = 13,
    Q_SHARE_POSITIONS = 14,
    Q_SPARSE = 15,
    Q_END
};
enum { R_STEP = 1, R_LAYER = 2, R_ATTEND_US = 3, R_LOST = 4, R_PADDING = 5, R_O = 6 };

// Fields as ranges of the message, before their sizes are checked.
struct ranges {
    struct {
        const unsigned char *bytes;
        size_t length;
    } field[Q_END];
};

static enum status take(struct attend_request *out, struct ranges *ranges, const struct wire_field *field, struct error *error)
{
    static const enum wire_type types[Q_END] = {
        [Q_INCARNATION] = WIRE_FIXED64,
        [Q_STEP] = WIRE_FIXED64,
        [Q_MINI_BATCH] = WIRE_VARINT,
        [Q_LAYER] = WIRE_VARINT,
        [Q_ROW_COUNT] = WIRE_VARINT,
        [Q_SEQUENCE] = WIRE_BYTES,
        [Q_POSITION] = WIRE_BYTES,
        [Q_PADDING] = WIRE_BYTES,
        [Q_Q] = WIRE_BYTES,
        [Q_K] = WIRE_BYTES,
        [Q_V] = WIRE_BYTES,
        [Q_SHARE_SEQUENCE] = WIRE_BYTES,
        [Q_SHARE_FROM] = WIRE_BYTES,
        [Q_SHARE_POSITIONS] = WIRE_BYTES,
        [Q_SPARSE] = WIRE_BYTES,
    };

    if (field->number >= Q_END)
        return STATUS_OK;
    if (field->type != types[field->number])
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: field %u has wire type %d", field->number,
                         (int)field->type);
    if (field->type == WIRE_VARINT && field->value > UINT32_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: field %u is out of range", field->number);
    switch (field->number) {
    case Q_INCARNATION: out->incarnation = field->value; break;
    case Q_STEP: out->step = field->value; break;
    case Q_MINI_BATCH: out->mini_batch = (uint32_t)field->value; break;
    case Q_LAYER: out->layer = (uint32_t)field->value; break;
    case Q_ROW_COUNT: out->row_count = (uint32_t)field->value; break;
    default: ranges->field[field->number].bytes = field->bytes; ranges->field[field->number].length = field->length;
    }
    return STATUS_OK;
}

static enum status check_length(const struct ranges *ranges, uint32_t number, const char *name, uint64_t wanted,
                                struct error *error)
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

static enum status take_sparse(const struct ranges *ranges, struct attend_request *out, struct error *error)
{
    const unsigned char *sparse = ranges->field[Q_SPARSE].bytes;
    size_t length = ranges->field[Q_SPARSE].length;
    enum status status;

    if (length == 0)
        return STATUS_OK;
    if ((status = check_length(ranges, Q_SPARSE, "row_sparse", out->row_count, error)))
        return status;
    for (size_t i = 0; i < length; i++)
        if (sparse[i] > 1)
            return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: row_sparse[%zu] is %u, want 0 or 1", i, sparse[i]);
    out->row_sparse = sparse;
    return STATUS_OK;
}

static enum status take_shares(const struct ranges *ranges, struct attend_request *out, struct error *error)
{
    uint64_t count = ranges->field[Q_SHARE_SEQUENCE].length / 8;
    enum status status;

    if (count > out->row_count)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %llu shares of %u rows", (unsigned long long)count,
                         out->row_count);
    if ((status = check_length(ranges, Q_SHARE_SEQUENCE, "share_sequence", count * 8, error)) ||
        (status = check_length(ranges, Q_SHARE_FROM, "share_from", count * 8, error)) ||
        (status = check_length(ranges, Q_SHARE_POSITIONS, "share_positions", count * 4, error)))
        return status;
    out->share_count = (uint32_t)count;
    out->share_sequence = ranges->field[Q_SHARE_SEQUENCE].bytes;
    out->share_from = ranges->field[Q_SHARE_FROM].bytes;
    out->share_positions = ranges->field[Q_SHARE_POSITIONS].bytes;
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
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: malformed at byte %zu",
                         (size_t)(reader.at - reader.begin));
    if (out->row_count == 0 || out->row_count > max_rows)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %u rows, want 1 to %u", out->row_count, max_rows);
    if (out->layer == 0) {
        if ((status = check_length(&ranges, Q_SEQUENCE, "row_sequence", out->row_count * 8ull, error)) ||
            (status = check_length(&ranges, Q_POSITION, "row_position", out->row_count * 4ull, error)) ||
            (status = take_shares(&ranges, out, error)) || (status = take_sparse(&ranges, out, error)))
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

// Bytes before the padding field.
static size_t head_bytes(uint32_t lost_count, const uint32_t *lost, uint32_t layer)
{
    return wire_size_fixed64(R_STEP) + wire_size_varint(R_LAYER, layer) + wire_size_fixed32(R_ATTEND_US) +
           lost_bytes(lost_count, lost);
}

// Bytes of the padding and o behind the head.
static size_t size_behind(size_t head, uint32_t row_count, uint32_t q_width)
{
    size_t o = (size_t)row_count * q_width * sizeof(float), o_head = wire_size_bytes(R_O, o) - o;
    return 2 + wire_padding_length(head, o_head) + o_head + o;
}

size_t attend_reply_size(uint32_t row_count, uint32_t lost_count, const uint32_t *lost, uint32_t layer, uint32_t q_width)
{
    size_t head = head_bytes(lost_count, lost, layer);
    return head + size_behind(head, row_count, q_width);
}

size_t attend_reply_size_most(uint32_t row_count, uint32_t q_width)
{
    enum { PADDING_MOST = 3 };
    size_t head = head_bytes(0, NULL, UINT32_MAX) + row_count * wire_size_varint(R_LOST, row_count);
    return head + size_behind(head, row_count, q_width) + PADDING_MOST;
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

// --- the s-part's side ---

static uint32_t shares_of(const struct attend_request_form *form) { return form->layer == 0 ? form->share_count : 0; }

static size_t request_head_bytes(const struct attend_request_form *form)
{
    uint32_t rows = form->row_count, shares = shares_of(form);
    size_t bytes = wire_size_fixed64(Q_INCARNATION) + wire_size_fixed64(Q_STEP) + wire_size_varint(Q_MINI_BATCH, form->mini_batch) +
                   wire_size_varint(Q_LAYER, form->layer) + wire_size_varint(Q_ROW_COUNT, rows);
    if (form->layer == 0)
        bytes += wire_size_bytes(Q_SEQUENCE, rows * 8ull) + wire_size_bytes(Q_POSITION, rows * 4ull);
    if (shares)
        bytes += 2 * wire_size_bytes(Q_SHARE_FROM, shares * 8ull) + wire_size_bytes(Q_SHARE_POSITIONS, shares * 4ull);
    if (form->layer == 0 && form->has_sparse)
        bytes += wire_size_bytes(Q_SPARSE, rows);
    return bytes;
}

// Each tensor has a padding field before it, so that all three are aligned. Protobuf allows a field to be repeated.
size_t attend_request_size(const struct attend_request_form *form)
{
    size_t at = request_head_bytes(form), q = (size_t)form->row_count * form->q_width * 4,
           kv = (size_t)form->row_count * form->kv_width * 4;
    at += 2 + wire_padding_length(at, wire_size_bytes(Q_Q, q) - q) + wire_size_bytes(Q_Q, q);
    at += 2 + wire_padding_length(at, wire_size_bytes(Q_K, kv) - kv) + wire_size_bytes(Q_K, kv);
    return at + 2 + wire_padding_length(at, wire_size_bytes(Q_V, kv) - kv) + wire_size_bytes(Q_V, kv);
}

static float *put_tensor(struct wire_writer *writer, const unsigned char *begin, uint32_t number, size_t bytes)
{
    static const unsigned char zeros[4];
    wire_put_bytes(writer, Q_PADDING, zeros,
                   wire_padding_length((size_t)(writer->at - begin), wire_size_bytes(number, bytes) - bytes));
    return (float *)(void *)wire_put_bytes_in_place(writer, number, bytes);
}

void attend_request_begin(unsigned char *bytes, size_t length, const struct attend_request_form *form,
                          struct attend_request_parts *out)
{
    struct wire_writer writer = {bytes, bytes + length};
    uint32_t rows = form->row_count, shares = shares_of(form);

    *out = (struct attend_request_parts){0};
    wire_put_fixed64(&writer, Q_INCARNATION, form->incarnation);
    wire_put_fixed64(&writer, Q_STEP, form->step);
    wire_put_varint(&writer, Q_MINI_BATCH, form->mini_batch);
    wire_put_varint(&writer, Q_LAYER, form->layer);
    wire_put_varint(&writer, Q_ROW_COUNT, rows);
    if (form->layer == 0) {
        out->row_sequence = wire_put_bytes_in_place(&writer, Q_SEQUENCE, rows * 8ull);
        out->row_position = wire_put_bytes_in_place(&writer, Q_POSITION, rows * 4ull);
    }
    if (shares) {
        out->share_sequence = wire_put_bytes_in_place(&writer, Q_SHARE_SEQUENCE, shares * 8ull);
        out->share_from = wire_put_bytes_in_place(&writer, Q_SHARE_FROM, shares * 8ull);
        out->share_positions = wire_put_bytes_in_place(&writer, Q_SHARE_POSITIONS, shares * 4ull);
    }
    if (form->layer == 0 && form->has_sparse)
        out->row_sparse = wire_put_bytes_in_place(&writer, Q_SPARSE, rows);
    out->q = put_tensor(&writer, bytes, Q_Q, (size_t)rows * form->q_width * 4);
    out->k = put_tensor(&writer, bytes, Q_K, (size_t)rows * form->kv_width * 4);
    out->v = put_tensor(&writer, bytes, Q_V, (size_t)rows * form->kv_width * 4);
}

enum status attend_reply_parse(const unsigned char *bytes, size_t length, uint32_t row_count, uint32_t q_width,
                               void (*on_lost)(void *user, uint32_t row), void *user, struct attend_reply *out, struct error *error)
{
    struct wire_reader reader;
    struct wire_field field;
    size_t wanted = (size_t)row_count * q_width * sizeof(float);
    bool bad;

    *out = (struct attend_reply){0};
    wire_reader_init(&reader, bytes, length);
    while (wire_next(&reader, &field, &bad)) {
        if (field.number == R_STEP && field.type == WIRE_FIXED64) {
            out->step = field.value;
        } else if (field.number == R_LAYER && field.type == WIRE_VARINT) {
            out->layer = (uint32_t)field.value;
        } else if (field.number == R_ATTEND_US && field.type == WIRE_FIXED32) {
            out->attend_us = (uint32_t)field.value;
        } else if (field.number == R_LOST && field.type == WIRE_VARINT) {
            if (field.value >= row_count)
                return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: lost row %llu of %u",
                                 (unsigned long long)field.value, row_count);
            on_lost(user, (uint32_t)field.value);
        } else if (field.number == R_O && field.type == WIRE_BYTES) {
            if (field.length != wanted || (uintptr_t)field.bytes % sizeof(float))
                return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: o has %zu bytes, want %zu, aligned to 4",
                                 field.length, wanted);
            out->o = (const float *)(const void *)field.bytes;
        } else if (field.number <= R_O && field.number != R_PADDING) {
            return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: field %u has wire type %d", field.number,
                             (int)field.type);
        }
    }
    if (bad || !out->o)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: malformed, or without o");
    return STATUS_OK;
}

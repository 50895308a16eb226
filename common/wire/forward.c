// forward.c: see forward.h. Hosts are little-endian (asserted in attend.c): x is used as it lies.
#include "common/wire/forward.h"

#include "common/wire/wire.h"

enum {
    F_INCARNATION = 1,
    F_TERM = 2,
    F_ROW_COUNT = 3,
    F_PIPELINE_US = 4,
    F_STEP = 5,
    F_ABSENT = 6,
    F_LOST = 7,
    F_PADDING = 14,
    F_X = 15,
    F_END
};

// Fields as ranges of the message, before their sizes are checked.
struct ranges {
    struct {
        const unsigned char *bytes;
        size_t length;
    } field[F_END];
};

static enum status take(struct forward_request *out, struct ranges *ranges, const struct wire_field *field, struct error *error)
{
    static const struct {
        bool known;
        enum wire_type type;
    } fields[F_END] = {
        [F_INCARNATION] = {true, WIRE_FIXED64}, [F_TERM] = {true, WIRE_VARINT},   [F_ROW_COUNT] = {true, WIRE_VARINT},
        [F_PIPELINE_US] = {true, WIRE_VARINT},  [F_STEP] = {true, WIRE_BYTES},    [F_ABSENT] = {true, WIRE_BYTES},
        [F_LOST] = {true, WIRE_BYTES},          [F_PADDING] = {true, WIRE_BYTES}, [F_X] = {true, WIRE_BYTES},
    };

    if (field->number >= F_END || !fields[field->number].known)
        return STATUS_OK;
    if (field->type != fields[field->number].type)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: field %u has wire type %d", field->number,
                         (int)field->type);
    if (field->number == F_ROW_COUNT && field->value > UINT32_MAX)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: row_count is out of range");
    switch (field->number) {
    case F_INCARNATION: out->incarnation = field->value; break;
    case F_TERM: out->term = field->value; break;
    case F_ROW_COUNT: out->row_count = (uint32_t)field->value; break;
    case F_PIPELINE_US: out->pipeline_us = field->value; break;
    default: ranges->field[field->number].bytes = field->bytes; ranges->field[field->number].length = field->length;
    }
    return STATUS_OK;
}

static enum status take_runs(const struct ranges *ranges, uint32_t number, const char *name, uint32_t most,
                             const unsigned char **runs, uint32_t *count, struct error *error)
{
    const size_t length = ranges->field[number].length;

    if (length % 4 || length / 4 > most)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: %s has %zu bytes, want up to %u runs of 4", name, length,
                         most);
    *runs = ranges->field[number].bytes;
    *count = (uint32_t)(length / 4);
    return STATUS_OK;
}

enum status forward_request_parse(const unsigned char *bytes, size_t length, uint32_t max_rows, uint32_t hidden,
                                  struct forward_request *out, struct error *error)
{
    struct wire_reader reader;
    struct wire_field field;
    struct ranges ranges = {0};
    enum status status = STATUS_OK;
    bool bad;

    *out = (struct forward_request){0};
    wire_reader_init(&reader, bytes, length);
    while (wire_next(&reader, &field, &bad))
        if ((status = take(out, &ranges, &field, error)))
            return status;
    if (bad)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: malformed at byte %zu",
                         (size_t)(reader.at - reader.begin));
    if (out->row_count == 0 || out->row_count > max_rows)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: %u rows, want 1 to %u", out->row_count, max_rows);
    if ((status = take_runs(&ranges, F_ABSENT, "absent_run", max_rows, &out->absent_run, &out->absent_count, error)) ||
        (status = take_runs(&ranges, F_LOST, "lost_run", max_rows, &out->lost_run, &out->lost_count, error)))
        return status;
    const uint64_t wanted = (uint64_t)out->row_count * hidden * sizeof(float);
    if (ranges.field[F_X].length != wanted || (uintptr_t)ranges.field[F_X].bytes % sizeof(float))
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: x has %zu bytes, want %llu, aligned to 4",
                         ranges.field[F_X].length, (unsigned long long)wanted);
    if (!ranges.field[F_STEP].bytes)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: step is missing");
    out->step = ranges.field[F_STEP].bytes;
    out->step_bytes = ranges.field[F_STEP].length;
    out->x = (const float *)(const void *)ranges.field[F_X].bytes;
    return STATUS_OK;
}

// Bytes before the padding field.
static size_t head_bytes(const struct forward_request_form *form)
{
    return wire_size_fixed64(F_INCARNATION) + wire_size_varint(F_TERM, form->term) +
           wire_size_varint(F_ROW_COUNT, form->row_count) + wire_size_varint(F_PIPELINE_US, form->pipeline_us) +
           wire_size_bytes(F_STEP, form->step_bytes) + wire_size_bytes(F_ABSENT, form->absent_count * 4ull) +
           wire_size_bytes(F_LOST, form->lost_count * 4ull);
}

size_t forward_request_size(const struct forward_request_form *form)
{
    const size_t head = head_bytes(form), x = (size_t)form->row_count * form->hidden * sizeof(float),
                 x_head = wire_size_bytes(F_X, x) - x;
    return head + 2 + wire_padding_length(head, x_head) + x_head + x;
}

size_t forward_request_size_most(uint32_t max_rows, uint32_t hidden)
{
    enum { PADDING_MOST = 3, LENGTH_MOST = 10 };
    const struct forward_request_form form = {.term = UINT64_MAX,
                                              .pipeline_us = UINT64_MAX,
                                              .row_count = max_rows,
                                              .absent_count = max_rows,
                                              .lost_count = max_rows,
                                              .hidden = hidden};
    return forward_request_size(&form) + PADDING_MOST + LENGTH_MOST;
}

void forward_request_begin(unsigned char *bytes, size_t length, const struct forward_request_form *form,
                           struct forward_request_parts *out)
{
    static const unsigned char zeros[4];
    struct wire_writer writer = {bytes, bytes + length};
    const size_t x = (size_t)form->row_count * form->hidden * sizeof(float);

    wire_put_fixed64(&writer, F_INCARNATION, form->incarnation);
    wire_put_varint(&writer, F_TERM, form->term);
    wire_put_varint(&writer, F_ROW_COUNT, form->row_count);
    wire_put_varint(&writer, F_PIPELINE_US, form->pipeline_us);
    out->step = wire_put_bytes_in_place(&writer, F_STEP, form->step_bytes);
    out->absent_run = wire_put_bytes_in_place(&writer, F_ABSENT, form->absent_count * 4ull);
    out->lost_run = wire_put_bytes_in_place(&writer, F_LOST, form->lost_count * 4ull);
    wire_put_bytes(&writer, F_PADDING, zeros, wire_padding_length((size_t)(writer.at - bytes), wire_size_bytes(F_X, x) - x));
    out->x = (float *)(void *)wire_put_bytes_in_place(&writer, F_X, x);
}

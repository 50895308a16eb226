// tensors.c: AttendRequest, AttendReply and ForwardRequest, written and read in place. Hosts are little-endian (asserted at compile time):
// tensors are used as they lie.
#include "common/mesh/tensors.h"

#include "common/rpc/wire.h"

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
    Q_FIRST = 16,
    Q_READ_COUNT = 17,
    Q_READ_SEQUENCE = 18,
    Q_READ_FIRST = 19,
    Q_READ_END = 20,
    Q_READ_Q = 21,
    Q_SINKS = 22,
    Q_TRACE_SEQUENCE = 23,
    Q_TRACE_CONTEXT = 24,
    Q_SCHEDULER = 25,
    Q_END
};
enum {
    R_STEP = 1,
    R_LAYER = 2,
    R_ATTEND_US = 3,
    R_LOST = 4,
    R_PADDING = 5,
    R_O = 6,
    R_PARTIAL_COUNT = 7,
    R_PARTIALS = 8,
    R_LOST_READ = 9,
    R_END
};

// Name and type of the field that a message may have at a number; no name: there is none.
struct field_kind {
    const char *name;
    enum wire_type type;
};

static enum status check_type(const char *message, const struct wire_field *field, enum wire_type wanted, struct error *error)
{
    if (field->type == wanted)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "%s: field %u has wire type %d", message, field->number, (int)field->type);
}

// Finds the fields of a message, before their sizes are checked: fields[number], for numbers below `end`. Unknown ones are skipped. Varints have 32
// bits, but for those with a bit in `wide`.
static enum status find_fields(const char *message, const struct field_kind *kinds, uint32_t end, uint32_t wide,
                               const unsigned char *bytes, size_t length, struct wire_field *fields, struct error *error)
{
    struct wire_reader reader;
    struct wire_field field;
    bool bad;

    wire_reader_init(&reader, bytes, length);
    while (wire_next(&reader, &field, &bad)) {
        if (field.number >= end || !kinds[field.number].name)
            continue;
        if (check_type(message, &field, kinds[field.number].type, error))
            return STATUS_INVALID_ARGUMENT;
        if (field.type == WIRE_VARINT && field.value > UINT32_MAX && !(wide >> field.number & 1))
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s: %s is out of range", message, kinds[field.number].name);
        fields[field.number] = field;
    }
    if (bad)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: malformed at byte %zu", message, (size_t)(reader.at - reader.begin));
    return STATUS_OK;
}

// --- AttendRequest, the worker's side ---

static const struct field_kind attend_kinds[Q_END] = {
    [Q_INCARNATION] = {"incarnation", WIRE_FIXED64},
    [Q_STEP] = {"step", WIRE_FIXED64},
    [Q_MINI_BATCH] = {"mini_batch", WIRE_VARINT},
    [Q_LAYER] = {"layer", WIRE_VARINT},
    [Q_ROW_COUNT] = {"row_count", WIRE_VARINT},
    [Q_SEQUENCE] = {"row_sequence", WIRE_BYTES},
    [Q_POSITION] = {"row_position", WIRE_BYTES},
    [Q_PADDING] = {"padding", WIRE_BYTES},
    [Q_Q] = {"q", WIRE_BYTES},
    [Q_K] = {"k", WIRE_BYTES},
    [Q_V] = {"v", WIRE_BYTES},
    [Q_SHARE_SEQUENCE] = {"share_sequence", WIRE_BYTES},
    [Q_SHARE_FROM] = {"share_from", WIRE_BYTES},
    [Q_SHARE_POSITIONS] = {"share_positions", WIRE_BYTES},
    [Q_SPARSE] = {"row_sparse", WIRE_BYTES},
    [Q_FIRST] = {"row_first", WIRE_BYTES},
    [Q_READ_COUNT] = {"read_count", WIRE_VARINT},
    [Q_READ_SEQUENCE] = {"read_sequence", WIRE_BYTES},
    [Q_READ_FIRST] = {"read_first", WIRE_BYTES},
    [Q_READ_END] = {"read_end", WIRE_BYTES},
    [Q_READ_Q] = {"read_q", WIRE_BYTES},
    [Q_SINKS] = {"sinks", WIRE_BYTES},
    [Q_TRACE_SEQUENCE] = {"trace_sequence", WIRE_BYTES},
    [Q_TRACE_CONTEXT] = {"trace_context", WIRE_BYTES},
    [Q_SCHEDULER] = {"scheduler_incarnation", WIRE_FIXED64},
};

static enum status check_length(const struct wire_field *fields, uint32_t number, uint64_t wanted, struct error *error)
{
    if (fields[number].length == wanted)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %s has %zu bytes, want %llu", attend_kinds[number].name,
                     fields[number].length, (unsigned long long)wanted);
}

static enum status tensor(const struct wire_field *fields, uint32_t number, uint64_t values, const float **out, struct error *error)
{
    enum status status = check_length(fields, number, values * sizeof(float), error);
    if (status)
        return status;
    if ((uintptr_t)fields[number].bytes % sizeof(float))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %s is not aligned to 4 bytes", attend_kinds[number].name);
    *out = (const float *)(const void *)fields[number].bytes;
    return STATUS_OK;
}

static enum status take_sparse(const struct wire_field *fields, struct attend_request *out, struct error *error)
{
    const unsigned char *sparse = fields[Q_SPARSE].bytes;
    size_t length = fields[Q_SPARSE].length;
    enum status status;

    if (length == 0)
        return STATUS_OK;
    if ((status = check_length(fields, Q_SPARSE, out->row_count, error)))
        return status;
    for (size_t i = 0; i < length; i++)
        if (sparse[i] > 1)
            return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: row_sparse[%zu] is %u, want 0 or 1", i, sparse[i]);
    out->row_sparse = sparse;
    return STATUS_OK;
}

static enum status take_shares(const struct wire_field *fields, struct attend_request *out, struct error *error)
{
    uint64_t count = fields[Q_SHARE_SEQUENCE].length / 8;
    enum status status;

    if (count > out->row_count)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %llu shares of %u rows", (unsigned long long)count,
                         out->row_count);
    if ((status = check_length(fields, Q_SHARE_SEQUENCE, count * 8, error)) ||
        (status = check_length(fields, Q_SHARE_FROM, count * 8, error)) ||
        (status = check_length(fields, Q_SHARE_POSITIONS, count * 4, error)))
        return status;
    out->share_count = (uint32_t)count;
    out->share_sequence = fields[Q_SHARE_SEQUENCE].bytes;
    out->share_from = fields[Q_SHARE_FROM].bytes;
    out->share_positions = fields[Q_SHARE_POSITIONS].bytes;
    return STATUS_OK;
}

// First positions of rows, and the rows that only read.
static enum status take_extents(const struct wire_field *fields, struct attend_request *out, struct error *error)
{
    enum status status;

    if (fields[Q_FIRST].length && (status = check_length(fields, Q_FIRST, out->row_count * 4ull, error)))
        return status;
    if ((status = check_length(fields, Q_READ_SEQUENCE, out->read_count * 8ull, error)) ||
        (status = check_length(fields, Q_READ_FIRST, out->read_count * 4ull, error)) ||
        (status = check_length(fields, Q_READ_END, out->read_count * 4ull, error)))
        return status;
    out->row_first = fields[Q_FIRST].length ? fields[Q_FIRST].bytes : NULL;
    out->read_sequence = fields[Q_READ_SEQUENCE].bytes;
    out->read_first = fields[Q_READ_FIRST].bytes;
    out->read_end = fields[Q_READ_END].bytes;
    return STATUS_OK;
}

// Sequences that are traced: at most one a row or read.
static enum status take_traces(const struct wire_field *fields, struct attend_request *out, struct error *error)
{
    const uint64_t count = fields[Q_TRACE_SEQUENCE].length / 8, most = (uint64_t)out->row_count + out->read_count;
    enum status status;

    if (count > most)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %llu traced sequences of %llu rows",
                         (unsigned long long)count, (unsigned long long)most);
    if ((status = check_length(fields, Q_TRACE_SEQUENCE, count * 8, error)) ||
        (status = check_length(fields, Q_TRACE_CONTEXT, count * ATTEND_TRACE_BYTES, error)))
        return status;
    out->trace_count = (uint32_t)count;
    out->trace_sequence = fields[Q_TRACE_SEQUENCE].bytes;
    out->trace_context = fields[Q_TRACE_CONTEXT].bytes;
    return STATUS_OK;
}

enum status attend_request_parse(const unsigned char *bytes, size_t length, uint32_t max_rows, uint32_t q_width, uint32_t kv_width,
                                 struct attend_request *out, struct error *error)
{
    struct wire_field fields[Q_END] = {0};
    enum status status = find_fields("AttendRequest", attend_kinds, Q_END, 0, bytes, length, fields, error);

    *out = (struct attend_request){.incarnation = fields[Q_INCARNATION].value,
                                   .step = fields[Q_STEP].value,
                                   .scheduler = fields[Q_SCHEDULER].value,
                                   .mini_batch = (uint32_t)fields[Q_MINI_BATCH].value,
                                   .layer = (uint32_t)fields[Q_LAYER].value,
                                   .row_count = (uint32_t)fields[Q_ROW_COUNT].value,
                                   .read_count = (uint32_t)fields[Q_READ_COUNT].value};
    if (status)
        return status;
    const uint64_t count = (uint64_t)out->row_count + out->read_count;
    if (count == 0 || count > max_rows)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: %llu rows, want 1 to %u", (unsigned long long)count,
                         max_rows);
    if (out->layer == 0) {
        if ((status = check_length(fields, Q_SEQUENCE, out->row_count * 8ull, error)) ||
            (status = check_length(fields, Q_POSITION, out->row_count * 4ull, error)) ||
            (status = take_shares(fields, out, error)) || (status = take_sparse(fields, out, error)) ||
            (status = take_extents(fields, out, error)) || (status = take_traces(fields, out, error)))
            return status;
        out->row_sequence = fields[Q_SEQUENCE].bytes;
        out->row_position = fields[Q_POSITION].bytes;
    }
    if (fields[Q_SINKS].length % sizeof(float) || fields[Q_SINKS].length > q_width * sizeof(float))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendRequest: sinks has %zu bytes, want 4 for each head",
                         fields[Q_SINKS].length);
    out->sinks = fields[Q_SINKS].bytes;
    out->sink_count = (uint32_t)(fields[Q_SINKS].length / sizeof(float));
    if ((status = tensor(fields, Q_Q, (uint64_t)out->row_count * q_width, &out->q, error)) ||
        (status = tensor(fields, Q_K, (uint64_t)out->row_count * kv_width, &out->k, error)) ||
        (status = tensor(fields, Q_READ_Q, (uint64_t)out->read_count * q_width, &out->read_q, error)))
        return status;
    return tensor(fields, Q_V, (uint64_t)out->row_count * kv_width, &out->v, error);
}

// --- the worker's reply ---

static size_t o_bytes(const struct attend_reply_form *form) { return (size_t)form->o_count * form->q_width * sizeof(float); }

static size_t partial_bytes(const struct attend_reply_form *form)
{
    return (size_t)form->partial_count * form->partial_floats * sizeof(float);
}

static float *put_tensor(struct wire_writer *writer, uint32_t padding, uint32_t number, size_t bytes)
{
    return (float *)(void *)wire_put_padded(writer, padding, number, bytes);
}

static void write_reply(struct wire_writer *writer, const struct attend_reply_form *form, struct attend_reply_parts *out)
{
    *out = (struct attend_reply_parts){0};
    wire_put_fixed64(writer, R_STEP, form->step);
    wire_put_varint(writer, R_LAYER, form->layer);
    wire_put_fixed32(writer, R_ATTEND_US, 0);
    out->attend_us = writer->bytes ? writer->bytes + writer->at - 4 : NULL;
    for (uint32_t i = 0; i < form->lost_count; i++)
        wire_put_varint(writer, R_LOST, form->lost[i]);
    for (uint32_t i = 0; i < form->lost_read_count; i++)
        wire_put_varint(writer, R_LOST_READ, form->lost_reads[i]);
    if (form->partial_count)
        wire_put_varint(writer, R_PARTIAL_COUNT, form->partial_count);
    out->o = put_tensor(writer, R_PADDING, R_O, o_bytes(form));
    if (form->partial_count)
        out->partials = put_tensor(writer, R_PADDING, R_PARTIALS, partial_bytes(form));
}

size_t attend_reply_size(const struct attend_reply_form *form)
{
    struct wire_writer writer = {0};
    struct attend_reply_parts ignored;

    write_reply(&writer, form, &ignored);
    return writer.at;
}

size_t attend_reply_size_most(uint32_t row_count, uint32_t q_width)
{
    enum { PADDING_MOST = 3 };
    const struct attend_reply_form form = {.layer = UINT32_MAX, .o_count = row_count, .q_width = q_width};
    struct wire_writer partials = {0}, lost = {0};

    wire_put_varint(&partials, R_PARTIAL_COUNT, UINT32_MAX);
    (void)wire_put_bytes_in_place(&partials, R_PADDING, PADDING_MOST);
    (void)wire_put_bytes_in_place(&partials, R_PARTIALS, ATTEND_PARTIAL_BYTES_MAX);
    wire_put_varint(&lost, R_LOST, row_count);
    return attend_reply_size(&form) + row_count * lost.at + partials.at + PADDING_MOST;
}

void attend_reply_begin(unsigned char *bytes, size_t length, const struct attend_reply_form *form, struct attend_reply_parts *out)
{
    struct wire_writer writer = {.bytes = bytes, .length = length};
    write_reply(&writer, form, out);
}

// --- the s-part's side ---

// Each tensor has a padding field before it, so that all of them are aligned. Protobuf allows a field to be repeated.
static void write_request(struct wire_writer *writer, const struct attend_request_form *form, struct attend_request_parts *out)
{
    const uint32_t rows = form->row_count;

    *out = (struct attend_request_parts){0};
    wire_put_fixed64(writer, Q_INCARNATION, form->incarnation);
    wire_put_fixed64(writer, Q_STEP, form->step);
    wire_put_varint(writer, Q_MINI_BATCH, form->mini_batch);
    wire_put_varint(writer, Q_LAYER, form->layer);
    wire_put_varint(writer, Q_ROW_COUNT, rows);
    if (form->layer == 0 && form->scheduler)
        wire_put_fixed64(writer, Q_SCHEDULER, form->scheduler);
    if (form->layer == 0) {
        out->row_sequence = wire_put_bytes_in_place(writer, Q_SEQUENCE, rows * 8ull);
        out->row_position = wire_put_bytes_in_place(writer, Q_POSITION, rows * 4ull);
    }
    if (form->layer == 0 && form->share_count) {
        out->share_sequence = wire_put_bytes_in_place(writer, Q_SHARE_SEQUENCE, form->share_count * 8ull);
        out->share_from = wire_put_bytes_in_place(writer, Q_SHARE_FROM, form->share_count * 8ull);
        out->share_positions = wire_put_bytes_in_place(writer, Q_SHARE_POSITIONS, form->share_count * 4ull);
    }
    if (form->layer == 0 && form->has_sparse)
        out->row_sparse = wire_put_bytes_in_place(writer, Q_SPARSE, rows);
    if (form->layer == 0 && form->has_first)
        out->row_first = wire_put_bytes_in_place(writer, Q_FIRST, rows * 4ull);
    if (form->read_count)
        wire_put_varint(writer, Q_READ_COUNT, form->read_count);
    if (form->layer == 0 && form->read_count) {
        out->read_sequence = wire_put_bytes_in_place(writer, Q_READ_SEQUENCE, form->read_count * 8ull);
        out->read_first = wire_put_bytes_in_place(writer, Q_READ_FIRST, form->read_count * 4ull);
        out->read_end = wire_put_bytes_in_place(writer, Q_READ_END, form->read_count * 4ull);
    }
    if (form->sink_count)
        out->sinks = wire_put_bytes_in_place(writer, Q_SINKS, form->sink_count * 4ull);
    if (form->layer == 0 && form->trace_count) {
        out->trace_sequence = wire_put_bytes_in_place(writer, Q_TRACE_SEQUENCE, form->trace_count * 8ull);
        out->trace_context = wire_put_bytes_in_place(writer, Q_TRACE_CONTEXT, form->trace_count * (size_t)ATTEND_TRACE_BYTES);
    }
    out->q = put_tensor(writer, Q_PADDING, Q_Q, (size_t)rows * form->q_width * 4);
    out->k = put_tensor(writer, Q_PADDING, Q_K, (size_t)rows * form->kv_width * 4);
    out->v = put_tensor(writer, Q_PADDING, Q_V, (size_t)rows * form->kv_width * 4);
    if (form->read_count)
        out->read_q = put_tensor(writer, Q_PADDING, Q_READ_Q, (size_t)form->read_count * form->q_width * 4);
}

size_t attend_request_size(const struct attend_request_form *form)
{
    struct wire_writer writer = {0};
    struct attend_request_parts ignored;

    write_request(&writer, form, &ignored);
    return writer.at;
}

void attend_request_begin(unsigned char *bytes, size_t length, const struct attend_request_form *form,
                          struct attend_request_parts *out)
{
    struct wire_writer writer = {.bytes = bytes, .length = length};
    write_request(&writer, form, out);
}

// A lost row or read.
static enum status take_lost(const struct wire_field *field, uint32_t count, bool is_read,
                             void (*on_lost)(void *user, uint32_t index, bool is_read), void *user, struct error *error)
{
    if (field->value >= count)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: lost %s %llu of %u", is_read ? "read" : "row",
                         (unsigned long long)field->value, count);
    on_lost(user, (uint32_t)field->value, is_read);
    return STATUS_OK;
}

static enum status take_reply_tensor(const struct wire_field *field, const char *name, size_t wanted, const float **out,
                                     struct error *error)
{
    if (field->length != wanted || (uintptr_t)field->bytes % sizeof(float))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: %s has %zu bytes, want %zu, aligned to 4", name,
                         field->length, wanted);
    *out = (const float *)(const void *)field->bytes;
    return STATUS_OK;
}

enum status attend_reply_parse(const unsigned char *bytes, size_t length, const struct attend_reply_form *form,
                               void (*on_lost)(void *user, uint32_t index, bool is_read), void *user, struct attend_reply *out,
                               struct error *error)
{
    static const enum wire_type types[R_END] = {
        [R_STEP] = WIRE_FIXED64,         [R_LAYER] = WIRE_VARINT,   [R_ATTEND_US] = WIRE_FIXED32,
        [R_LOST] = WIRE_VARINT,          [R_PADDING] = WIRE_BYTES,  [R_O] = WIRE_BYTES,
        [R_PARTIAL_COUNT] = WIRE_VARINT, [R_PARTIALS] = WIRE_BYTES, [R_LOST_READ] = WIRE_VARINT,
    };
    struct wire_reader reader;
    struct wire_field field;
    uint64_t partial_count = 0;
    bool bad;

    *out = (struct attend_reply){0};
    wire_reader_init(&reader, bytes, length);
    while (wire_next(&reader, &field, &bad)) {
        enum status status = STATUS_OK;
        if (field.number >= R_END)
            continue;
        if (check_type("AttendReply", &field, types[field.number], error))
            return STATUS_INVALID_ARGUMENT;
        switch (field.number) {
        case R_STEP: out->step = field.value; break;
        case R_LAYER: out->layer = (uint32_t)field.value; break;
        case R_ATTEND_US: out->attend_us = (uint32_t)field.value; break;
        case R_LOST: status = take_lost(&field, form->row_count, false, on_lost, user, error); break;
        case R_LOST_READ: status = take_lost(&field, form->read_count, true, on_lost, user, error); break;
        case R_PARTIAL_COUNT: partial_count = field.value; break;
        case R_O: status = take_reply_tensor(&field, "o", o_bytes(form), &out->o, error); break;
        case R_PARTIALS: status = take_reply_tensor(&field, "partials", partial_bytes(form), &out->partials, error); break;
        default: break;
        }
        if (status)
            return status;
    }
    if (partial_count != form->partial_count)
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: %llu partials, want %u", (unsigned long long)partial_count,
                         form->partial_count);
    if (bad || (form->o_count && !out->o) || (form->partial_count && !out->partials))
        return error_set(error, STATUS_INVALID_ARGUMENT, "AttendReply: malformed, or without what was asked for");
    return STATUS_OK;
}

// --- ForwardRequest: what a stage of a pipeline hands to the next one ---

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

static const struct field_kind forward_kinds[F_END] = {
    [F_INCARNATION] = {"incarnation", WIRE_FIXED64},
    [F_TERM] = {"term", WIRE_VARINT},
    [F_ROW_COUNT] = {"row_count", WIRE_VARINT},
    [F_PIPELINE_US] = {"pipeline_us", WIRE_VARINT},
    [F_STEP] = {"step", WIRE_BYTES},
    [F_ABSENT] = {"absent_run", WIRE_BYTES},
    [F_LOST] = {"lost_run", WIRE_BYTES},
    [F_PADDING] = {"padding", WIRE_BYTES},
    [F_X] = {"x", WIRE_BYTES},
};

static enum status take_runs(const struct wire_field *field, uint32_t most, const unsigned char **runs, uint32_t *count,
                             struct error *error)
{
    const size_t length = field->length;

    if (length % 4 || length / 4 > most)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: %s has %zu bytes, want up to %u runs of 4",
                         forward_kinds[field->number].name, length, most);
    *runs = field->bytes;
    *count = (uint32_t)(length / 4);
    return STATUS_OK;
}

enum status forward_request_parse(const unsigned char *bytes, size_t length, uint32_t max_rows, uint32_t hidden,
                                  struct forward_request *out, struct error *error)
{
    const uint32_t wide = 1u << F_TERM | 1u << F_PIPELINE_US;
    struct wire_field fields[F_END] = {0};
    enum status status = find_fields("ForwardRequest", forward_kinds, F_END, wide, bytes, length, fields, error);

    *out = (struct forward_request){.incarnation = fields[F_INCARNATION].value,
                                    .term = fields[F_TERM].value,
                                    .row_count = (uint32_t)fields[F_ROW_COUNT].value,
                                    .pipeline_us = fields[F_PIPELINE_US].value,
                                    .step = fields[F_STEP].bytes,
                                    .step_bytes = fields[F_STEP].length};
    if (status)
        return status;
    if (out->row_count == 0 || out->row_count > max_rows)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: %u rows, want 1 to %u", out->row_count, max_rows);
    if ((status = take_runs(&fields[F_ABSENT], max_rows, &out->absent_run, &out->absent_count, error)) ||
        (status = take_runs(&fields[F_LOST], max_rows, &out->lost_run, &out->lost_count, error)))
        return status;
    const uint64_t wanted = (uint64_t)out->row_count * hidden * sizeof(float);
    if (fields[F_X].length != wanted || (uintptr_t)fields[F_X].bytes % sizeof(float))
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: x has %zu bytes, want %llu, aligned to 4",
                         fields[F_X].length, (unsigned long long)wanted);
    if (!out->step)
        return error_set(error, STATUS_INVALID_ARGUMENT, "ForwardRequest: step is missing");
    out->x = (const float *)(const void *)fields[F_X].bytes;
    return STATUS_OK;
}

static void write_forward(struct wire_writer *writer, const struct forward_request_form *form, struct forward_request_parts *out)
{
    wire_put_fixed64(writer, F_INCARNATION, form->incarnation);
    wire_put_varint(writer, F_TERM, form->term);
    wire_put_varint(writer, F_ROW_COUNT, form->row_count);
    wire_put_varint(writer, F_PIPELINE_US, form->pipeline_us);
    out->step = wire_put_bytes_in_place(writer, F_STEP, form->step_bytes);
    out->absent_run = wire_put_bytes_in_place(writer, F_ABSENT, form->absent_count * 4ull);
    out->lost_run = wire_put_bytes_in_place(writer, F_LOST, form->lost_count * 4ull);
    out->x = put_tensor(writer, F_PADDING, F_X, (size_t)form->row_count * form->hidden * sizeof(float));
}

size_t forward_request_size(const struct forward_request_form *form)
{
    struct wire_writer writer = {0};
    struct forward_request_parts ignored;

    write_forward(&writer, form, &ignored);
    return writer.at;
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
    struct wire_writer writer = {.bytes = bytes, .length = length};
    write_forward(&writer, form, out);
}

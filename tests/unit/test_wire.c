// test_wire.c: protobuf's wire format in place: equal to protobuf-c's bytes, every malformed field refused; the envelope.
#include <stdlib.h>
#include <string.h>

#include "attend.pb-c.h"
#include "common/base/checked.h"
#include "common/mesh/tensors.h"
#include "common/rpc/message.h"
#include "common/rpc/wire.h"
#include "envelope.pb-c.h"
#include "step.pb-c.h"
#include "tests/cmocka.h"

#define B(text) (const unsigned char *)(text), sizeof(text) - 1

static void numbers_are_written_as_protobuf_does(void **state)
{
    static const uint64_t values[] = {0, 1, 127, 128, 16383, 16384, UINT32_MAX, 1ull << 63, UINT64_MAX};
    unsigned char bytes[64];
    for (size_t i = 0; i < ARRAY_COUNT(values); i++) {
        struct wire_writer writer = {.bytes = bytes, .length = sizeof bytes}, measured = {0};
        struct wire_reader reader;
        struct wire_field field;
        bool bad;
        wire_put_varint(&writer, 3, values[i]);
        wire_put_varint(&measured, 3, values[i]);
        assert_int_equal(writer.at, measured.at);
        wire_put_fixed64(&writer, 200, values[i]);
        wire_put_fixed32(&writer, 536870911, (uint32_t)values[i]);
        wire_put_fixed64(&measured, 200, values[i]);
        wire_put_fixed32(&measured, 536870911, (uint32_t)values[i]);
        assert_int_equal(writer.at, measured.at);
        wire_reader_init(&reader, bytes, writer.at);
        assert_true(wire_next(&reader, &field, &bad) && field.number == 3 && field.type == WIRE_VARINT && field.value == values[i]);
        assert_true(wire_next(&reader, &field, &bad) && field.number == 200 && field.type == WIRE_FIXED64 &&
                    field.value == values[i]);
        assert_true(wire_next(&reader, &field, &bad) && field.number == 536870911 && field.value == (uint32_t)values[i]);
        assert_false(wire_next(&reader, &field, &bad));
        assert_false(bad);
    }
}

// Bytes, and where the reader must stop.
static const struct {
    const char *name;
    const unsigned char *bytes;
    size_t length;
} malformed[] = {
    {"a tag without an end", B("\x80")},
    {"a tag of eleven bytes", B("\x88\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x00")},
    {"a tag beyond 64 bits", B("\x88\x80\x80\x80\x80\x80\x80\x80\x80\x02\x00")},
    {"field number 0", B("\x00\x00")},
    {"field number 2^29", B("\x80\x80\x80\x80\x10\x00")},
    {"no value", B("\x08")},
    {"a value without an end", B("\x08\xff\xff")},
    {"a value of eleven bytes", B("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")},
    {"a value beyond 64 bits", B("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02")},
    {"fixed32 of three bytes", B("\x0d\1\2\3")},
    {"fixed64 of seven bytes", B("\x09\1\2\3\4\5\6\7")},
    {"bytes without a length", B("\x0a")},
    {"bytes beyond the end", B("\x0a\x02x")},
    {"2^64-1 bytes", B("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x")},
    {"a group's begin", B("\x0b")},
    {"a group's end", B("\x0c")},
    {"wire type 6", B("\x0e\x00")},
    {"wire type 7", B("\x0f\x00")},
};

static void malformed_fields_are_refused(void **state)
{
    for (size_t i = 0; i < ARRAY_COUNT(malformed); i++) {
        unsigned char *exact = malloc(malformed[i].length); // a byte too far is seen by the sanitizer
        struct wire_reader reader;
        struct wire_field field;
        bool bad;
        memcpy(exact, malformed[i].bytes, malformed[i].length);
        wire_reader_init(&reader, exact, malformed[i].length);
        if (wire_next(&reader, &field, &bad) || !bad)
            fail_msg("%s was taken", malformed[i].name);
        assert_true(reader.at <= reader.end);
        free(exact);
    }
}

// Any decoder reads our envelopes, we read any encoder's, and the payload is aligned whatever stands before it.
static void envelopes_are_protobuf(void **state)
{
    for (size_t length = 0; length < 300; length = length * 2 + 1)
        for (size_t id = 0; id < 20; id++) {
            struct envelope head = {.kind = ENVELOPE_REPLY,
                                    .call_id = 0x0102030405060708,
                                    .method = (uint32_t)(id % 3) * 77,
                                    .status = (uint32_t)id % 17,
                                    .timeout_ms = (uint32_t)id * 100},
                            back;
            size_t payload_at, size;
            unsigned char *bytes;
            memset(head.request_id, 'r', id);
            memset(head.trace_id, 't', id * 3);
            memset(head.error, 'e', id * 2);
            head.trace_state = id % 4 ? "vendor=opaque,other=1" : NULL;
            head.trace_state_length = id % 4 ? id : 0;
            size = envelope_size(&head, length, &payload_at);
            assert_int_equal(payload_at % 4, 0);
            bytes = malloc(size);
            envelope_write(&head, length, bytes);
            memset(bytes + payload_at, 0x5a, length);
            envelope_set_call_id(bytes, 99);
            Fastdecode__Envelope *read = fastdecode__envelope__unpack(NULL, size, bytes);
            assert_non_null(read);
            assert_int_equal(read->kind, ENVELOPE_REPLY);
            assert_int_equal(read->call_id, 99);
            assert_int_equal(read->method, head.method);
            assert_int_equal(read->status, head.status);
            assert_int_equal(read->timeout_ms, head.timeout_ms);
            assert_string_equal(read->request_id, head.request_id);
            assert_string_equal(read->trace_id, head.trace_id);
            assert_string_equal(read->error, head.error);
            assert_int_equal(strlen(read->trace_state), head.trace_state_length);
            assert_memory_equal(read->trace_state, "vendor=opaque,other=1", head.trace_state_length);
            assert_int_equal(read->payload.len, length);
            unsigned char *again = malloc(fastdecode__envelope__get_packed_size(read));
            assert_true(envelope_parse(again, fastdecode__envelope__pack(read, again), &back));
            assert_int_equal(back.call_id, 99);
            assert_string_equal(back.error, head.error);
            assert_int_equal(back.trace_state_length, head.trace_state_length);
            assert_memory_equal(back.trace_state_length ? back.trace_state : "", "vendor=opaque,other=1", back.trace_state_length);
            assert_int_equal(back.payload_length, length);
            fastdecode__envelope__free_unpacked(read, NULL);
            free(again);
            free(bytes);
        }
}

static void texts_are_cut_and_clean(void **state)
{
    Fastdecode__Envelope envelope = FASTDECODE__ENVELOPE__INIT;
    char text[1000];
    unsigned char bytes[4096];
    struct envelope back;
    memset(text, 'x', sizeof text);
    text[3] = '\n';
    text[sizeof text - 1] = '\0';
    envelope.kind = FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST;
    envelope.request_id = envelope.trace_id = envelope.error = text;
    assert_true(envelope_parse(bytes, fastdecode__envelope__pack(&envelope, bytes), &back));
    assert_int_equal(strlen(back.request_id), RPC_ID_BYTES - 1);
    assert_int_equal(strlen(back.trace_id), RPC_ID_BYTES - 1);
    assert_int_equal(strlen(back.error), sizeof back.error - 1);
    assert_int_equal(back.request_id[3], '?');
}

enum { Q = 5, KV = 3 }; // widths

// Writes a request of that form, each field with numbers of its own. Returns its bytes, which are the caller's.
static unsigned char *write_request(const struct attend_request_form *form, struct attend_request_parts *parts)
{
    size_t size = attend_request_size(form);
    unsigned char *bytes = malloc(size);
    attend_request_begin(bytes, size, form, parts);
    for (uint32_t i = 0; i < form->row_count * Q; i++)
        parts->q[i] = (float)i;
    for (uint32_t i = 0; i < form->row_count * KV; i++) {
        parts->k[i] = (float)i + 0.25f;
        parts->v[i] = (float)i + 0.5f;
    }
    for (uint32_t i = 0; i < form->read_count * Q; i++)
        parts->read_q[i] = (float)i + 0.75f;
    if (form->layer > 0)
        return bytes;
    for (uint32_t i = 0; i < form->row_count; i++) {
        wire_store_u64(parts->row_sequence + 8 * i, 1000 + i);
        wire_store_u32(parts->row_position + 4 * i, i);
        if (form->has_sparse)
            parts->row_sparse[i] = i % 3 == 0;
        if (form->has_first)
            wire_store_u32(parts->row_first + 4 * i, 512 * i);
    }
    for (uint32_t i = 0; i < form->read_count; i++) {
        wire_store_u64(parts->read_sequence + 8 * i, 3000 + i);
        wire_store_u32(parts->read_first + 4 * i, 512 * i);
        wire_store_u32(parts->read_end + 4 * i, 4096);
    }
    for (uint32_t i = 0; i < form->trace_count; i++) {
        wire_store_u64(parts->trace_sequence + 8 * i, 1000 + i);
        memset(parts->trace_context + ATTEND_TRACE_BYTES * i, (int)i + 1, ATTEND_TRACE_BYTES);
    }
    for (uint32_t i = 0; i < form->share_count; i++) {
        wire_store_u64(parts->share_sequence + 8 * i, 1000 + i);
        wire_store_u64(parts->share_from + 8 * i, 2000 + i);
        wire_store_u32(parts->share_positions + 4 * i, 16 * i);
    }
    return bytes;
}

static enum status parse_request(const unsigned char *bytes, size_t size, struct attend_request *request, struct error *error)
{
    return attend_request_parse(bytes, size, 64, Q, KV, request, error);
}

// Checks what protobuf-c reads in a request, and that the parser finds the same where it lies.
static void check_request(const struct attend_request_form *form, const struct attend_request_parts *parts,
                          const unsigned char *bytes, const Fastdecode__AttendRequest *read)
{
    const uint32_t layer = form->layer, rows = form->row_count, shares = form->share_count, reads = form->read_count;
    struct attend_request request;
    struct error error;
    assert_int_equal(read->incarnation, 11);
    assert_int_equal(read->step, 7);
    assert_int_equal(read->row_count, rows);
    assert_int_equal(read->n_row_sequence, layer ? 0 : rows);
    assert_int_equal(read->q.len, rows * Q * sizeof(float));
    assert_memory_equal(read->q.data, parts->q, read->q.len);
    assert_memory_equal(read->v.data, parts->v, read->v.len);
    assert_int_equal(parse_request(bytes, attend_request_size(form), &request, &error), STATUS_OK);
    assert_int_equal(read->n_share_from, layer ? 0 : shares);
    assert_int_equal(request.share_count, layer ? 0 : shares);
    for (uint32_t i = 0; i < request.share_count; i++) {
        assert_int_equal(read->share_sequence[i], 1000 + i);
        assert_int_equal(wire_load_u64(request.share_from + 8 * i), 2000 + i);
        assert_int_equal(wire_load_u32(request.share_positions + 4 * i), read->share_positions[i]);
    }
    assert_int_equal(read->row_sparse.len, form->has_sparse && layer == 0 ? rows : 0);
    assert_ptr_equal(request.row_sparse, parts->row_sparse);
    assert_true((request.row_sparse != NULL) == (form->has_sparse && layer == 0));
    assert_int_equal(read->n_row_first, form->has_first && layer == 0 ? rows : 0);
    assert_ptr_equal(request.row_first, parts->row_first);
    assert_int_equal(read->n_read_first, layer ? 0 : reads);
    assert_int_equal(request.read_count, reads);
    assert_ptr_equal(request.read_q, parts->read_q);
    for (uint32_t i = 0; layer == 0 && i < reads; i++) {
        assert_int_equal(wire_load_u64(request.read_sequence + 8 * i), read->read_sequence[i]);
        assert_int_equal(wire_load_u32(request.read_first + 4 * i), 512 * i);
        assert_int_equal(wire_load_u32(request.read_end + 4 * i), read->read_end[i]);
    }
    assert_int_equal(read->n_trace_sequence, layer ? 0 : form->trace_count);
    assert_int_equal(request.trace_count, read->n_trace_sequence);
    assert_int_equal(read->trace_context.len, request.trace_count * ATTEND_TRACE_BYTES);
    for (uint32_t i = 0; i < request.trace_count; i++) {
        assert_int_equal(wire_load_u64(request.trace_sequence + 8 * i), read->trace_sequence[i]);
        assert_int_equal(request.trace_context[(i + 1) * ATTEND_TRACE_BYTES - 1], i + 1);
    }
    assert_ptr_equal(request.q, parts->q);
    assert_ptr_equal(request.k, parts->k);
    assert_ptr_equal(request.v, parts->v);
    assert_int_equal(request.row_sequence ? wire_load_u64(request.row_sequence) : 1000, 1000);
}

// Widths that do not fit, too many rows, a cut message: refused with a reason.
static void check_refusals(const struct attend_request_form *form, const unsigned char *bytes)
{
    const size_t size = attend_request_size(form);
    const uint32_t too_few = form->row_count + form->read_count - 1;
    struct attend_request request;
    struct error error;
    assert_int_equal(attend_request_parse(bytes, size, 64, Q + 1, KV, &request, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(attend_request_parse(bytes, size, 64, Q, KV - 1, &request, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(attend_request_parse(bytes, size, too_few, Q, KV, &request, &error), STATUS_INVALID_ARGUMENT);
    for (size_t cut = 0; cut < size; cut += 1 + size / 50)
        assert_int_equal(parse_request(bytes, cut, &request, &error), STATUS_INVALID_ARGUMENT);
}

// Columns of other lengths than the request says, and a flag that is neither 0 nor 1. The bytes are written over.
static void check_refused_columns(const struct attend_request_form *form, const struct attend_request_parts *parts,
                                  unsigned char *bytes, Fastdecode__AttendRequest *read)
{
    struct attend_request request;
    struct error error;
    size_t packed;
    if (parts->row_sparse) {
        parts->row_sparse[form->row_count - 1] = 2;
        assert_int_equal(parse_request(bytes, attend_request_size(form), &request, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "row_sparse"));
        parts->row_sparse[form->row_count - 1] = 1;
        read->row_sparse.len--;
        packed = fastdecode__attend_request__pack(read, bytes);
        assert_int_equal(parse_request(bytes, packed, &request, &error), STATUS_INVALID_ARGUMENT);
        read->row_sparse.len++;
    }
    if (form->has_first && form->layer == 0) {
        read->n_row_first--;
        packed = fastdecode__attend_request__pack(read, bytes);
        assert_int_equal(parse_request(bytes, packed, &request, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "row_first"));
        read->n_row_first++;
    }
    if (form->trace_count && form->layer == 0) {
        read->trace_context.len--;
        packed = fastdecode__attend_request__pack(read, bytes);
        assert_int_equal(parse_request(bytes, packed, &request, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "trace_context"));
        read->trace_context.len++;
    }
    if (form->read_count && form->layer == 0) {
        read->n_read_end--;
        packed = fastdecode__attend_request__pack(read, bytes);
        assert_int_equal(parse_request(bytes, packed, &request, &error), STATUS_INVALID_ARGUMENT);
        read->n_read_end++;
    }
}

// protobuf-c reads our requests of attention, field by field; the parser reads them back where they lie.
static void requests_are_protobuf(void **state)
{
    for (uint32_t layer = 0; layer < 2; layer++)
        for (uint32_t rows = 1; rows < 40; rows += 7) {
            const struct attend_request_form form = {.incarnation = 11,
                                                     .step = 7,
                                                     .mini_batch = 1,
                                                     .layer = layer,
                                                     .row_count = rows,
                                                     .share_count = rows / 3,
                                                     .has_sparse = rows % 2 == 0,
                                                     .has_first = rows % 3 == 0,
                                                     .read_count = rows % 4,
                                                     .trace_count = rows % 5 ? rows / 2 : rows + rows % 4,
                                                     .q_width = Q,
                                                     .kv_width = KV};
            struct attend_request_parts parts;
            unsigned char *bytes = write_request(&form, &parts);
            Fastdecode__AttendRequest *read = fastdecode__attend_request__unpack(NULL, attend_request_size(&form), bytes);
            assert_non_null(read);
            check_request(&form, &parts, bytes, read);
            check_refusals(&form, bytes);
            check_refused_columns(&form, &parts, bytes, read);
            fastdecode__attend_request__free_unpacked(read, NULL);
            free(bytes);
        }
}

// More traced sequences than rows and reads: refused.
static void traces_have_rows(void **state)
{
    const struct attend_request_form form = {
        .incarnation = 1, .step = 2, .row_count = 2, .trace_count = 3, .q_width = Q, .kv_width = KV};
    struct attend_request_parts parts;
    unsigned char *bytes = write_request(&form, &parts);
    struct attend_request request;
    struct error error;

    assert_int_equal(parse_request(bytes, attend_request_size(&form), &request, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "3 traced sequences of 2 rows"));
    free(bytes);
}

// A request may only read.
static void reads_alone_are_a_request(void **state)
{
    const struct attend_request_form form = {.incarnation = 11, .step = 7, .read_count = 2, .q_width = 5, .kv_width = 3};
    const size_t size = attend_request_size(&form);
    unsigned char *bytes = malloc(size);
    struct attend_request_parts parts;
    struct attend_request request;
    struct error error;

    attend_request_begin(bytes, size, &form, &parts);
    memset(parts.read_sequence, 1, 2 * 8), memset(parts.read_first, 0, 2 * 4), memset(parts.read_end, 0, 2 * 4);
    memset(parts.read_q, 0, 2 * 5 * sizeof(float));
    assert_int_equal(attend_request_parse(bytes, size, 2, 5, 3, &request, &error), STATUS_OK);
    assert_int_equal(request.row_count, 0);
    assert_ptr_equal(request.read_q, parts.read_q);
    assert_int_equal(attend_request_parse(bytes, size, 1, 5, 3, &request, &error), STATUS_INVALID_ARGUMENT);
    free(bytes);
}

static uint32_t lost_rows, lost_reads;
static void count_lost(void *user, uint32_t index, bool is_read) { *(is_read ? &lost_reads : &lost_rows) += 1; }

// A reply is read by protobuf-c and by us; counts and sizes that were not asked for are refused.
static void replies_have_what_was_asked_for(void **state)
{
    const uint32_t lost[] = {2}, reads[] = {0, 1};
    const struct attend_reply_form form = {.step = 9,
                                           .layer = 3,
                                           .row_count = 4,
                                           .read_count = 2,
                                           .o_count = 3,
                                           .partial_count = 5,
                                           .q_width = 6,
                                           .partial_floats = 10,
                                           .lost_count = 1,
                                           .lost = lost,
                                           .lost_read_count = 2,
                                           .lost_reads = reads};
    const size_t size = attend_reply_size(&form);
    unsigned char *bytes = malloc(size);
    struct attend_reply_parts parts;
    struct attend_reply reply;
    struct error error;

    attend_reply_begin(bytes, size, &form, &parts);
    for (uint32_t i = 0; i < 3 * 6; i++)
        parts.o[i] = (float)i;
    for (uint32_t i = 0; i < 5 * 10; i++)
        parts.partials[i] = (float)i;
    assert_int_equal(attend_reply_parse(bytes, size, &form, count_lost, NULL, &reply, &error), STATUS_OK);
    assert_ptr_equal(reply.o, parts.o);
    assert_ptr_equal(reply.partials, parts.partials);
    assert_true(lost_rows == 1 && lost_reads == 2 && reply.layer == 3);
    Fastdecode__AttendReply *read = fastdecode__attend_reply__unpack(NULL, size, bytes);
    assert_non_null(read);
    assert_int_equal(read->partial_count, 5);
    assert_memory_equal(read->partials.data, parts.partials, 5 * 10 * sizeof(float));
    fastdecode__attend_reply__free_unpacked(read, NULL);
    for (uint32_t wrong = 0; wrong < 6; wrong++) {
        struct attend_reply_form other = form;
        other.o_count += wrong == 0, other.partial_count += wrong == 1, other.partial_floats += wrong == 2;
        other.row_count -= wrong == 3 ? 2 : 0, other.read_count -= wrong == 4;
        other.partial_count = wrong == 5 ? 0 : other.partial_count;
        if (attend_reply_parse(bytes, size, &other, count_lost, NULL, &reply, &error) != STATUS_INVALID_ARGUMENT)
            fail_msg("case %u is accepted", wrong);
    }
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(attend_reply_parse(bytes, cut, &form, count_lost, NULL, &reply, &error), STATUS_INVALID_ARGUMENT);
    free(bytes);
}

static void no_reply_is_larger_than_the_most(void **state)
{
    enum { ROWS = 150, WIDTH = 9 };
    uint32_t lost[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        lost[i] = i;
    for (uint32_t rows = 1; rows <= ROWS; rows++)
        for (uint32_t width = 1; width <= WIDTH; width++) {
            struct attend_reply_form form = {
                .layer = UINT32_MAX, .o_count = rows, .q_width = width, .lost_count = rows, .lost = lost, .partial_floats = 1};
            size_t most = attend_reply_size_most(rows, width), largest;
            form.partial_count = ATTEND_PARTIAL_BYTES_MAX / 4;
            largest = attend_reply_size(&form);
            assert_true(largest <= most && most <= largest + 8 + rows); // of lost rows, some have a shorter number
            form.partial_count = 0;
            for (form.lost_count = 0; form.lost_count <= rows; form.lost_count++) {
                form.layer = 1u << form.lost_count % 32;
                assert_true(attend_reply_size(&form) <= most);
            }
        }
}

static void padding_aligns(void **state)
{
    unsigned char bytes[600];

    for (size_t before = 0; before < 9; before++)
        for (size_t length = 0; length < 260; length++) { // heads of two and three bytes
            struct wire_writer writer = {.bytes = bytes, .length = sizeof bytes}, measured = {0};
            wire_put_bytes(&writer, 1, "12345678", before);
            wire_put_bytes(&measured, 1, "12345678", before);
            const unsigned char *at = wire_put_padded(&writer, 2, 3, length);
            assert_int_equal((at - bytes) % 4, 0);
            assert_true(at - bytes <= (ptrdiff_t)(2 + before + 2 + 3 + 3));
            assert_null(wire_put_padded(&measured, 2, 3, length));
            assert_int_equal(measured.at, writer.at);
        }
}

// A number that comes twice counts as it came last, but no value of it may be too large for its type.
static void numbers_that_come_twice(void **state)
{
    enum { HEAD = 12, ROWS = 2, HIDDEN = 4, UNKNOWN = 100, UNKNOWN_HEAD = 3 };
    static const struct {
        uint32_t number;
        bool is_forward;
        enum status status;
    } cases[] = {{3, false, STATUS_INVALID_ARGUMENT},
                 {4, false, STATUS_INVALID_ARGUMENT},
                 {5, false, STATUS_INVALID_ARGUMENT},
                 {17, false, STATUS_INVALID_ARGUMENT},
                 {2, true, STATUS_OK},
                 {3, true, STATUS_INVALID_ARGUMENT},
                 {4, true, STATUS_OK}};
    const struct attend_request_form attend = {.layer = 1, .row_count = ROWS, .read_count = 1, .q_width = Q, .kv_width = KV};
    const struct forward_request_form forward = {.row_count = ROWS, .term = 5, .pipeline_us = 6, .step_bytes = 1, .hidden = HIDDEN};

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        const size_t size = cases[i].is_forward ? forward_request_size(&forward) : attend_request_size(&attend);
        unsigned char *bytes = calloc(1, HEAD + size);
        struct wire_writer writer = {.bytes = bytes, .length = HEAD};
        struct attend_request_parts attend_parts;
        struct forward_request_parts forward_parts;
        struct attend_request request;
        struct forward_request rows;
        struct error error;

        wire_put_varint(&writer, cases[i].number, 1ull << 32);
        wire_put_bytes(&writer, UNKNOWN, "\0\0\0", (8 - (writer.at + UNKNOWN_HEAD) % 4) % 4); // so that what is aligned stays so
        const size_t head = writer.at;
        assert_int_equal(head % 4, 0);
        if (cases[i].is_forward)
            forward_request_begin(bytes + head, size, &forward, &forward_parts);
        else
            attend_request_begin(bytes + head, size, &attend, &attend_parts);
        assert_int_equal(cases[i].is_forward ? forward_request_parse(bytes, head + size, ROWS, HIDDEN, &rows, &error)
                                             : parse_request(bytes, head + size, &request, &error),
                         cases[i].status);
        if (cases[i].status)
            assert_non_null(strstr(error.text, "out of range"));
        else
            assert_true(rows.term == 5 && rows.pipeline_us == 6);
        free(bytes);
    }
}

// Any protobuf decoder reads what a stage hands on; it is read where it lies, and every wrong size is refused.
static void rows_of_a_stage_are_protobuf(void **state)
{
    enum { ROWS = 3, HIDDEN = 5, STEP = 7 };
    static const float x[ROWS * HIDDEN] = {1, 2, 3};
    struct forward_request_form form = {.incarnation = 11,
                                        .pipeline_us = 1234567,
                                        .row_count = ROWS,
                                        .absent_count = 1,
                                        .lost_count = 2,
                                        .hidden = HIDDEN,
                                        .step_bytes = STEP};
    Fastdecode__StepRequest step = FASTDECODE__STEP_REQUEST__INIT;
    struct error error;

    for (form.term = 1; form.term < 1u << 30; form.term *= 37) { // each length of the head: x is aligned always
        struct forward_request_parts parts;
        struct forward_request request;
        const size_t size = forward_request_size(&form);
        unsigned char *bytes = malloc(size);

        forward_request_begin(bytes, size, &form, &parts);
        wire_store_u32(parts.absent_run, 4);
        wire_store_u32(parts.lost_run, 0);
        wire_store_u32(parts.lost_run + 4, 2);
        memcpy(parts.x, x, sizeof x);
        memset(parts.step, 0x10, STEP); // whatever it is: it lies there as it was written
        assert_int_equal(forward_request_parse(bytes, size, ROWS, HIDDEN, &request, &error), STATUS_OK);
        assert_true(request.incarnation == 11 && request.term == form.term && request.pipeline_us == 1234567);
        assert_true(request.row_count == ROWS && request.absent_count == 1 && request.lost_count == 2);
        assert_true(wire_load_u32(request.absent_run) == 4 && wire_load_u32(request.lost_run + 4) == 2);
        assert_true(request.step == parts.step && request.step_bytes == STEP && request.x == parts.x);
        assert_memory_equal(request.x, x, sizeof x);
        assert_true(size <= forward_request_size_most(ROWS, HIDDEN) + STEP);
        assert_int_equal(forward_request_parse(bytes, size, ROWS - 1, HIDDEN, &request, &error), STATUS_INVALID_ARGUMENT);
        assert_int_equal(forward_request_parse(bytes, size, ROWS, HIDDEN + 1, &request, &error), STATUS_INVALID_ARGUMENT);
        for (size_t cut = 0; cut < size; cut++)
            assert_int_equal(forward_request_parse(bytes, cut, ROWS, HIDDEN, &request, &error), STATUS_INVALID_ARGUMENT);
        free(bytes);
    }
    step.step = 99;
    form.step_bytes = fastdecode__step_request__get_packed_size(&step);
    struct forward_request_parts parts;
    const size_t size = forward_request_size(&form);
    unsigned char *bytes = malloc(size);
    forward_request_begin(bytes, size, &form, &parts);
    memset(parts.absent_run, 0, 4);
    memset(parts.lost_run, 0, 8);
    memcpy(parts.x, x, sizeof x);
    fastdecode__step_request__pack(&step, parts.step);
    Fastdecode__ForwardRequest *read = fastdecode__forward_request__unpack(NULL, size, bytes);
    assert_true(read && read->step->step == 99 && read->n_absent_run == 1 && read->n_lost_run == 2 && read->x.len == sizeof x);
    assert_memory_equal(read->x.data, x, sizeof x);
    fastdecode__forward_request__free_unpacked(read, NULL);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_written_as_protobuf_does),
        cmocka_unit_test(malformed_fields_are_refused),
        cmocka_unit_test(envelopes_are_protobuf),
        cmocka_unit_test(texts_are_cut_and_clean),
        cmocka_unit_test(requests_are_protobuf),
        cmocka_unit_test(rows_of_a_stage_are_protobuf),
        cmocka_unit_test(traces_have_rows),
        cmocka_unit_test(reads_alone_are_a_request),
        cmocka_unit_test(replies_have_what_was_asked_for),
        cmocka_unit_test(no_reply_is_larger_than_the_most),
        cmocka_unit_test(padding_aligns),
        cmocka_unit_test(numbers_that_come_twice),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}

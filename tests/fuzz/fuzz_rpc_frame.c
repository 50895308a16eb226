// fuzz_rpc_frame.c: envelopes, and the tensor messages inside them: whatever the bytes, what is handed out lies within them,
// and what was parsed can be written and parsed again.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/mesh/tensors.h"
#include "common/rpc/message.h"
#include "common/rpc/wire.h"

enum { ROWS_MAX = 64, Q_WIDTH = 6, KV_WIDTH = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void within(const void *part, size_t part_bytes, const uint8_t *data, size_t size)
{
    const uint8_t *at = part;
    assert_always(at >= data && at <= data + size && part_bytes <= (size_t)(data + size - at));
}

static void check_envelope(const uint8_t *data, size_t size)
{
    struct envelope first, second;
    size_t payload_at, bytes;
    unsigned char *written;

    if (!envelope_parse(data, size, &first))
        return;
    within(first.payload, first.payload_length, data, size);
    if (first.trace_state)
        within((const uint8_t *)first.trace_state, first.trace_state_length, data, size);
    bytes = envelope_size(&first, first.payload_length, &payload_at);
    assert_always(payload_at % 4 == 0);
    written = malloc(bytes);
    envelope_write(&first, first.payload_length, written);
    memcpy(written + payload_at, first.payload, first.payload_length);
    assert_always(envelope_parse(written, bytes, &second));
    assert_always(first.kind == second.kind && first.call_id == second.call_id && first.method == second.method &&
                  first.status == second.status && first.timeout_ms == second.timeout_ms &&
                  first.payload_length == second.payload_length && first.trace_state_length == second.trace_state_length &&
                  !strcmp(first.error, second.error) && !strcmp(first.request_id, second.request_id) &&
                  !strcmp(first.trace_id, second.trace_id));
    free(written);
}

static void on_lost(void *user, uint32_t index, bool is_read)
{
    const struct attend_reply_form *form = user;
    assert_always(index < (is_read ? form->read_count : form->row_count));
}

static void check_tensors(const uint8_t *data, size_t size)
{
    struct attend_request request;
    struct attend_reply reply;
    struct error error;
    struct attend_reply_form form = {.row_count = 3,
                                     .read_count = 2,
                                     .o_count = 2,
                                     .partial_count = size % 3,
                                     .q_width = Q_WIDTH,
                                     .partial_floats = Q_WIDTH + 2};

    if (attend_request_parse(data, size, ROWS_MAX, Q_WIDTH, KV_WIDTH, &request, &error) == STATUS_OK) {
        assert_always(request.row_count + request.read_count >= 1 && request.row_count + request.read_count <= ROWS_MAX);
        if (request.row_count) {
            within(request.q, request.row_count * Q_WIDTH * sizeof(float), data, size);
            within(request.k, request.row_count * KV_WIDTH * sizeof(float), data, size);
            within(request.v, request.row_count * KV_WIDTH * sizeof(float), data, size);
        }
        if (request.read_count)
            within(request.read_q, request.read_count * Q_WIDTH * sizeof(float), data, size);
        if (request.read_count && request.layer == 0) {
            within(request.read_sequence, request.read_count * sizeof(uint64_t), data, size);
            within(request.read_first, request.read_count * sizeof(uint32_t), data, size);
            within(request.read_end, request.read_count * sizeof(uint32_t), data, size);
        }
        if (request.row_first)
            within(request.row_first, request.row_count * sizeof(uint32_t), data, size);
        if (request.row_count && request.row_sequence)
            within(request.row_sequence, request.row_count * sizeof(uint64_t), data, size);
        if (request.row_count && request.row_position)
            within(request.row_position, request.row_count * sizeof(uint32_t), data, size);
        if (request.row_sparse)
            within(request.row_sparse, request.row_count, data, size);
    }
    if (attend_reply_parse(data, size, &form, on_lost, &form, &reply, &error))
        return;
    within(reply.o, form.o_count * Q_WIDTH * sizeof(float), data, size);
    if (form.partial_count)
        within(reply.partials, form.partial_count * form.partial_floats * sizeof(float), data, size);
}

// Checks messages to a stage of a pipeline: one that is read and written again says the same.
static void check_forward(const uint8_t *data, size_t size)
{
    struct forward_request first, second;
    struct forward_request_parts parts;
    struct error error;

    if (forward_request_parse(data, size, ROWS_MAX, Q_WIDTH, &first, &error))
        return;
    assert_always(first.row_count >= 1 && first.row_count <= ROWS_MAX);
    within(first.x, first.row_count * Q_WIDTH * sizeof(float), data, size);
    within(first.step, first.step_bytes, data, size);
    if (first.absent_count)
        within(first.absent_run, first.absent_count * 4ull, data, size);
    if (first.lost_count)
        within(first.lost_run, first.lost_count * 4ull, data, size);
    const struct forward_request_form form = {.incarnation = first.incarnation,
                                              .term = first.term,
                                              .pipeline_us = first.pipeline_us,
                                              .row_count = first.row_count,
                                              .absent_count = first.absent_count,
                                              .lost_count = first.lost_count,
                                              .hidden = Q_WIDTH,
                                              .step_bytes = first.step_bytes};
    const size_t bytes = forward_request_size(&form);
    unsigned char *written = malloc(bytes);
    assert_always(written && bytes <= forward_request_size_most(ROWS_MAX, Q_WIDTH) + first.step_bytes);
    forward_request_begin(written, bytes, &form, &parts);
    memcpy(parts.x, first.x, first.row_count * Q_WIDTH * sizeof(float));
    memcpy(parts.step, first.step, first.step_bytes);
    memset(parts.absent_run, 0, first.absent_count * 4ull);
    memset(parts.lost_run, 0, first.lost_count * 4ull);
    assert_always(!forward_request_parse(written, bytes, ROWS_MAX, Q_WIDTH, &second, &error));
    assert_always(second.incarnation == first.incarnation && second.term == first.term && second.row_count == first.row_count &&
                  second.absent_count == first.absent_count && second.lost_count == first.lost_count &&
                  second.step_bytes == first.step_bytes);
    free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_reader reader;
    struct wire_field field;
    bool bad;

    wire_reader_init(&reader, data, size);
    while (wire_next(&reader, &field, &bad)) {
        if (field.type == WIRE_BYTES)
            within(field.bytes, field.length, data, size);
        assert_always(field.number >= 1);
    }
    within(reader.at, 0, data, size);
    check_envelope(data, size);
    check_tensors(data, size);
    check_forward(data, size);
    return 0;
}

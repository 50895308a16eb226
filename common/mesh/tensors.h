// tensors.h: the messages with tensors, read and written in place by both sides: AttendRequest and AttendReply (proto/attend.proto) between
// an s-part and a kv-worker, ForwardRequest (proto/step.proto) between the stages of a pipeline.
#ifndef FD_MESH_TENSORS_H
#define FD_MESH_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { ATTEND_TRACE_BYTES = 24 }; // trace id and span id

// A parsed request; pointers point into the message.
struct attend_request {
    uint64_t incarnation, step;
    uint64_t scheduler; // incarnation of the one whose step it is, with layer 0; 0: not told
    uint32_t mini_batch, layer, row_count;
    const unsigned char *row_sequence;    // [row_count] u64 little-endian, with layer 0; else NULL
    const unsigned char *row_position;    // [row_count] u32 little-endian, with layer 0; else NULL
    const unsigned char *row_sparse;      // [row_count] 0 or 1, with layer 0; NULL: no row is sparse
    uint32_t share_count;                 // with layer 0; else 0
    const unsigned char *share_sequence;  // [share_count] u64: its first positions ...
    const unsigned char *share_from;      // [share_count] u64: ... are those of this sequence
    const unsigned char *share_positions; // [share_count] u32
    const unsigned char *row_first;      // [row_count] u32 first position held of the row's sequence, with layer 0; NULL: 0 for all
    uint32_t read_count;                 // rows that only read a frozen extent; row_count may be 0 then
    const unsigned char *read_sequence;  // [read_count] u64, with layer 0; else NULL
    const unsigned char *read_first;     // [read_count] u32, with layer 0; else NULL
    const unsigned char *read_end;       // the same
    const float *q;                      // [row_count][q_width] f32, aligned to 4 bytes
    const float *k, *v;                  // [row_count][kv_width] f32
    const float *read_q;                 // [read_count][q_width] f32
    uint32_t sink_count;                 // scores without a value of this layer, one a head; 0: there are none
    const unsigned char *sinks;          // [sink_count] f32 little-endian
    uint32_t trace_count;                // traced sequences, with layer 0; else 0
    const unsigned char *trace_sequence; // [trace_count] u64
    const unsigned char *trace_context;  // [trace_count] of ATTEND_TRACE_BYTES
};

// Mini-batches that a worker has open: as many as an s-part may have in flight.
#define ATTEND_BATCHES_MAX 16

// A reply has at most so many bytes of partials: who asks for more is refused.
#define ATTEND_PARTIAL_BYTES_MAX (128u << 20)

// Checks sizes against row_count, read_count (together at most max_rows) and the widths, and that there is at most one share a row. INVALID_ARGUMENT: the error names the field.
enum status attend_request_parse(const unsigned char *bytes, size_t length, uint32_t max_rows, uint32_t q_width, uint32_t kv_width,
                                 struct attend_request *out, struct error *error) MUST_CHECK;

// The parts of a reply: o of some rows, partials of the others and of the reads.
struct attend_reply_form {
    uint64_t step;
    uint32_t layer;
    uint32_t row_count, read_count; // asked for
    uint32_t o_count;               // rows that get o
    uint32_t partial_count;
    uint32_t q_width, partial_floats; // partial_floats: of one partial
    uint32_t lost_count, lost_read_count;
    const uint32_t *lost, *lost_reads; // [lost_count] rows; [lost_read_count] reads
};

// Returns the size of a reply.
size_t attend_reply_size(const struct attend_reply_form *form);

// Returns an upper bound for replies of row_count rows and reads, whatever was lost.
size_t attend_reply_size_most(uint32_t row_count, uint32_t q_width);

// The places to which the caller writes the parts of a reply.
struct attend_reply_parts {
    float *o;        // [o_count][q_width] f32
    float *partials; // [partial_count][partial_floats]; NULL if nothing gets any
    unsigned char *attend_us;
};

// Writes the head of a reply of attend_reply_size() bytes; the caller fills the parts.
void attend_reply_begin(unsigned char *bytes, size_t length, const struct attend_reply_form *form, struct attend_reply_parts *out);

// --- the s-part's side ---

// Describes a request to be written.
struct attend_request_form {
    uint64_t incarnation, step, scheduler; // scheduler: with layer 0; else ignored
    uint32_t mini_batch, layer, row_count;
    uint32_t share_count; // with layer 0; else ignored
    bool has_sparse;      // rows may be sparse: the same
    bool has_first;       // rows' sequences may begin later than at position 0: the same
    uint32_t read_count;
    uint32_t q_width, kv_width;
    uint32_t sink_count;  // heads of a layer with sinks, else 0
    uint32_t trace_count; // with layer 0; else ignored
};
size_t attend_request_size(const struct attend_request_form *form);

// The places to which the caller writes the parts of a request.
struct attend_request_parts {
    unsigned char *row_sequence;                // [row_count] u64, with layer 0; else NULL
    unsigned char *row_position;                // [row_count] u32, with layer 0; else NULL
    unsigned char *share_sequence, *share_from; // [share_count] u64; NULL without
    unsigned char *share_positions;             // [share_count] u32
    unsigned char *row_sparse;                  // [row_count] 0 or 1, with layer 0 and has_sparse; else NULL
    unsigned char *row_first;                   // [row_count] u32, with layer 0 and has_first; else NULL
    unsigned char *read_sequence;               // [read_count] u64, with layer 0 and reads; else NULL
    unsigned char *read_first, *read_end;       // [read_count] u32: the same
    float *q, *k, *v;
    float *read_q;                 // NULL without reads
    unsigned char *sinks;          // [sink_count] f32; NULL without
    unsigned char *trace_sequence; // [trace_count] u64; NULL without
    unsigned char *trace_context;  // [trace_count] of ATTEND_TRACE_BYTES
};

// Writes the head of a request of attend_request_size() bytes; the caller fills the parts.
void attend_request_begin(unsigned char *bytes, size_t length, const struct attend_request_form *form,
                          struct attend_request_parts *out);

// A parsed reply; pointers point into the message.
struct attend_reply {
    uint64_t step;
    uint32_t layer, attend_us;
    const float *o;        // [o_count][q_width] f32, aligned to 4 bytes
    const float *partials; // [partial_count][partial_floats] f32, aligned to 4 bytes; NULL if none was asked for
};

// Checks a reply against what was asked for: the counts and widths of `form`. Calls on_lost(user, index, is_read) for each lost row, all below
// row_count, and each lost read, all below read_count. INVALID_ARGUMENT: the error names the field.
enum status attend_reply_parse(const unsigned char *bytes, size_t length, const struct attend_reply_form *form,
                               void (*on_lost)(void *user, uint32_t index, bool is_read), void *user, struct attend_reply *out,
                               struct error *error) MUST_CHECK;

// --- from a stage of a pipeline to the next one ---

// A parsed request; pointers point into the message.
struct forward_request {
    uint64_t incarnation, term, pipeline_us;
    uint32_t row_count, absent_count, lost_count;
    const unsigned char *absent_run; // [absent_count] u32 little-endian
    const unsigned char *lost_run;   // [lost_count] u32
    const unsigned char *step;       // [step_bytes] a packed StepRequest, not looked at
    size_t step_bytes;
    const float *x; // [row_count][hidden] f32, aligned to 4 bytes
};

// Checks sizes against row_count and hidden; a step has no more runs than max_rows. INVALID_ARGUMENT: the error names the field.
enum status forward_request_parse(const unsigned char *bytes, size_t length, uint32_t max_rows, uint32_t hidden,
                                  struct forward_request *out, struct error *error) MUST_CHECK;

// Describes a request to be written.
struct forward_request_form {
    uint64_t incarnation, term, pipeline_us;
    uint32_t row_count, absent_count, lost_count, hidden;
    size_t step_bytes;
};
size_t forward_request_size(const struct forward_request_form *form);

// Returns an upper bound for the part of a request that is not its step.
size_t forward_request_size_most(uint32_t max_rows, uint32_t hidden);

// The places to which the caller writes the parts of a request.
struct forward_request_parts {
    unsigned char *absent_run, *lost_run, *step;
    float *x;
};

// Writes the head of a request of forward_request_size() bytes; the caller fills the parts.
void forward_request_begin(unsigned char *bytes, size_t length, const struct forward_request_form *form,
                           struct forward_request_parts *out);

#endif

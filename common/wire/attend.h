// attend.h: AttendRequest and AttendReply (proto/attend.proto) read and written in place, both sides.
#ifndef FD_WIRE_ATTEND_H
#define FD_WIRE_ATTEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

// A parsed request; pointers point into the message.
struct attend_request {
    uint64_t incarnation, step;
    uint32_t mini_batch, layer, row_count;
    const unsigned char *row_sequence;    // [row_count] u64 little-endian, with layer 0; else NULL
    const unsigned char *row_position;    // [row_count] u32 little-endian, with layer 0; else NULL
    const unsigned char *row_sparse;      // [row_count] 0 or 1, with layer 0; NULL: no row is sparse
    uint32_t share_count;                 // with layer 0; else 0
    const unsigned char *share_sequence;  // [share_count] u64: its first positions ...
    const unsigned char *share_from;      // [share_count] u64: ... are those of this sequence
    const unsigned char *share_positions; // [share_count] u32
    const float *q;                       // [row_count][q_width] f32, aligned to 4 bytes
    const float *k, *v;                   // [row_count][kv_width] f32
};

// Checks sizes against row_count and the widths, and that there is at most one share a row. INVALID_ARGUMENT: the error names the field.
enum status attend_request_parse(const unsigned char *bytes, size_t length, uint32_t max_rows, uint32_t q_width, uint32_t kv_width,
                                 struct attend_request *out, struct error *error) MUST_CHECK;

// Returns the size of a reply with lost_count lost rows.
size_t attend_reply_size(uint32_t row_count, uint32_t lost_count, const uint32_t *lost, uint32_t layer, uint32_t q_width);

// Returns an upper bound for replies of row_count rows, whatever was lost.
size_t attend_reply_size_most(uint32_t row_count, uint32_t q_width);

// Writes the head of a reply and returns where o goes: [row_count][q_width] f32; *attend_us: where to put the time.
float *attend_reply_begin(unsigned char *bytes, size_t length, uint64_t step, uint32_t layer, uint32_t row_count,
                          uint32_t lost_count, const uint32_t *lost, uint32_t q_width, unsigned char **attend_us);

// --- the s-part's side ---

// Describes a request to be written.
struct attend_request_form {
    uint64_t incarnation, step;
    uint32_t mini_batch, layer, row_count;
    uint32_t share_count; // with layer 0; else ignored
    bool has_sparse;      // rows may be sparse: the same
    uint32_t q_width, kv_width;
};
size_t attend_request_size(const struct attend_request_form *form);

// Where the caller writes the parts of a request.
struct attend_request_parts {
    unsigned char *row_sequence;                // [row_count] u64, with layer 0; else NULL
    unsigned char *row_position;                // [row_count] u32, with layer 0; else NULL
    unsigned char *share_sequence, *share_from; // [share_count] u64; NULL without
    unsigned char *share_positions;             // [share_count] u32
    unsigned char *row_sparse;                  // [row_count] 0 or 1, with layer 0 and has_sparse; else NULL
    float *q, *k, *v;
};

// Writes the head of a request of attend_request_size() bytes; the caller fills the parts.
void attend_request_begin(unsigned char *bytes, size_t length, const struct attend_request_form *form,
                          struct attend_request_parts *out);

// A parsed reply; pointers point into the message.
struct attend_reply {
    uint64_t step;
    uint32_t layer, attend_us;
    const float *o; // [row_count][q_width] f32, aligned to 4 bytes
};

// Calls on_lost(user, row) for each lost row, all below row_count. INVALID_ARGUMENT: the error names the field.
enum status attend_reply_parse(const unsigned char *bytes, size_t length, uint32_t row_count, uint32_t q_width,
                               void (*on_lost)(void *user, uint32_t row), void *user, struct attend_reply *out,
                               struct error *error) MUST_CHECK;

#endif

// forward.h: ForwardRequest (proto/step.proto) read and written in place: what a stage of a pipeline hands to the next one.
#ifndef FD_WIRE_FORWARD_H
#define FD_WIRE_FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

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

// Where the caller writes the parts of a request.
struct forward_request_parts {
    unsigned char *absent_run, *lost_run, *step;
    float *x;
};

// Writes the head of a request of forward_request_size() bytes; the caller fills the parts.
void forward_request_begin(unsigned char *bytes, size_t length, const struct forward_request_form *form,
                           struct forward_request_parts *out);

#endif

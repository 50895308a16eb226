// sequence_trace.h: what is counted of a traced sequence between steps; its two spans are made of it when it is over (engine_spans.c).
#ifndef FD_SERVICES_S_PART_SEQUENCE_TRACE_H
#define FD_SERVICES_S_PART_SEQUENCE_TRACE_H

#include "common/trace/otlp_span.h"

#include <stdint.h>

enum { SEQUENCE_PREFILL, SEQUENCE_DECODE, SEQUENCE_PHASES };

// Sums over its steps, which it shares with other sequences.
struct sequence_phase {
    unsigned char parent_id[OTLP_SPAN_ID_BYTES]; // the scheduler's span
    uint64_t began_ns, ended_ns, s_part_us, r_part_us;
    uint32_t steps, rows; // steps 0: there was none
};

struct sequence_trace {
    bool on;
    bool sampled; // its first token has been sampled: what follows is decoding
    unsigned char trace_id[OTLP_TRACE_ID_BYTES], request_id[OTLP_SPAN_ID_BYTES]; // request_id: the gateway's span
    struct sequence_phase phases[SEQUENCE_PHASES];
};

#endif

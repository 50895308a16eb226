// otlp_sequence.h: the parts of SequenceOpen.trace, by which the scheduler tells an s-part that a sequence is traced: where each begins.
//
//     trace id | the request's span | the scheduler's span of the prefill | that of decoding
//     \____ what a KV worker is told ___/
#ifndef FD_OTLP_OTLP_SEQUENCE_H
#define FD_OTLP_OTLP_SEQUENCE_H

#include "common/otlp/otlp_context.h"

enum {
    OTLP_SEQUENCE_REQUEST = OTLP_TRACE_ID_BYTES,
    OTLP_SEQUENCE_PREFILL = OTLP_SEQUENCE_REQUEST + OTLP_SPAN_ID_BYTES,
    OTLP_SEQUENCE_DECODE = OTLP_SEQUENCE_PREFILL + OTLP_SPAN_ID_BYTES,
    OTLP_SEQUENCE_BYTES = OTLP_SEQUENCE_DECODE + OTLP_SPAN_ID_BYTES,
};

#endif

// attend_spans.h: traced sequences at this worker (common/trace): for each a span from its first attention here to its last, put on record when
// its pages are freed or the scheduler says that it is over.
//
// The s-part names the traced sequences of each step with layer 0. Their entries are allocated with the store; without an exporter there are
// none. On the tensor thread.
#ifndef FD_SERVICES_KV_WORKER_ATTEND_SPANS_H
#define FD_SERVICES_KV_WORKER_ATTEND_SPANS_H

#include "common/base/id_map.h"
#include "common/mesh/tensors.h"
#include "common/trace/otlp.h"

enum { ATTEND_SPANS_MAX = 4096, ATTEND_SPANS_IDLE_US = 10000000 };

struct attend_span {
    struct otlp_context request; // the gateway's span
    uint64_t began_ns, ended_ns; // ended_ns: of the latest step; began_ns until one has ended
    uint64_t rows, steps, reads, busy_us;
};

// A traced sequence of the step under way.
struct attend_traced {
    uint32_t slot, generation, rows, reads;
};

// The traced sequences of a mini-batch's step.
struct attend_step_spans {
    struct attend_traced *traced; // [ATTEND_SPANS_MAX]
    uint32_t traced_count;
    uint64_t busy_us; // of attention in the step so far
};

struct attend_spans {
    struct otlp *otlp; // NULL: no sequence is traced
    struct id_map slots;
    struct attend_span *spans; // [ATTEND_SPANS_MAX]
    uint64_t full_until_ns;    // until then none of a full table's spans can have been idle for long
};

// Sets spans->otlp first. RESOURCE_EXHAUSTED: no memory; close it all the same.
enum status attend_spans_open(struct attend_spans *spans) MUST_CHECK;
void attend_spans_close(struct attend_spans *spans); // what is there is put on record
enum status attend_spans_open_step(const struct attend_spans *spans, struct attend_step_spans *step) MUST_CHECK;
void attend_spans_close_step(struct attend_step_spans *step);

// A step begins.
void attend_spans_begin(struct attend_spans *spans, struct attend_step_spans *step, const struct attend_request *request);
// A layer of it took so long.
static inline void attend_spans_layer(struct attend_step_spans *step, uint64_t us) { step->busy_us += us; }
// It has ended.
void attend_spans_step(struct attend_spans *spans, struct attend_step_spans *step);
// The sequence is over, or elsewhere. Ignores one that is not traced.
void attend_spans_end(struct attend_spans *spans, uint64_t sequence);

#endif

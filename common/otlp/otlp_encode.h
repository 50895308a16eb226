// otlp_encode.h: a batch of spans as an ExportRequest. All messages are allocated once.
#ifndef FD_OTLP_OTLP_ENCODE_H
#define FD_OTLP_OTLP_ENCODE_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/otlp/otlp_span.h"

enum { OTLP_BATCH_SPANS = 128 };

struct otlp_encoder;

// What the spans of this process have in common. Strings are copied. RESOURCE_EXHAUSTED: no memory.
enum status otlp_encoder_open(const char *service, const char *instance, struct otlp_encoder **out) MUST_CHECK;
void otlp_encoder_close(struct otlp_encoder *encoder); // NULL is allowed

// Writes the request into `out`, which is emptied first; out->failed: no memory. count: at most OTLP_BATCH_SPANS. wall_offset_ns: what
// is added to the spans' times to make them nanoseconds since 1970.
void otlp_encode(struct otlp_encoder *encoder, const struct otlp_span *spans, uint32_t count, int64_t wall_offset_ns,
                 struct text *out);

// Returns how many spans an ExportResponse says were rejected; 0 too if it is malformed.
uint64_t otlp_decode_rejected(const unsigned char *bytes, size_t length);

#endif

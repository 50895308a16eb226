// sampling.h: the Sampling message (proto/generate.proto) as the sampler's parameters, checked.
//
// The scheduler checks with it what gateways send, so that a bad request never gets into a step; the s-part opens samplers
// with it. Zero, the default on the wire, means "off" for top_p and repetition_penalty too.
//
// Lists of tokens are borrowed from the message.
#ifndef FD_MESSAGES_SAMPLING_H
#define FD_MESSAGES_SAMPLING_H

#include "common/sampler/sampler.h"
#include "generate.pb-c.h"

// sampling may be NULL (an error). bias: [SAMPLER_BIAS_MAX], the caller's; out points to it. INVALID_ARGUMENT names the
// parameter.
enum status sampling_parse(const Fastdecode__Sampling *sampling, uint32_t vocab, struct sampler_bias *bias,
                           struct sampler_params *out, struct error *error) MUST_CHECK;

// Returns whether what is drawn depends on no token that was generated before, as for sampler_is_pure().
bool sampling_is_pure(const Fastdecode__Sampling *sampling);

#endif

// sampling_checks.h: what a file says of sampling is within the limits of requests, whatever its bytes are.
#ifndef FD_FUZZ_SAMPLING_CHECKS_H
#define FD_FUZZ_SAMPLING_CHECKS_H

#include "common/base/log.h"
#include "services/gateway/text/language.h"

static inline void check_sampling_of(const struct gguf *gguf)
{
    struct api_model model = api_model_of(0);
    const Fastdecode__Sampling *s = &model.sampling;

    log_threshold = LOG_ERROR;
    language_read_sampling(gguf, &model);
    assert_always(s->temperature >= 0 && s->temperature <= 2 && s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1);
    assert_always(s->typical_p >= 0 && s->typical_p <= 1 && s->repetition_penalty > 0 && s->repetition_penalty <= 10);
    assert_always(s->xtc_probability >= 0 && s->xtc_probability <= 1 && s->xtc_threshold >= 0 && s->xtc_threshold <= 1);
    assert_always(s->top_k <= 1000000000);
}

#endif

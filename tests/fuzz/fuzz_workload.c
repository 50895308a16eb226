// fuzz_workload.c: libFuzzer target: any bytes as a file of requests. What is accepted keeps the rules of sim.h.
#include <stddef.h>
#include <stdint.h>

#include "common/sim/workload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct workload w;
    struct error error;

    if (workload_parse((const char *)data, size, "fuzz", &w, &error) != STATUS_OK) {
        assert_always(w.requests == NULL && error.text[0] != 0);
        return 0;
    }
    assert_always(w.count > 0);
    for (uint64_t i = 0; i < w.count; i++) {
        const struct sim_request *r = &w.requests[i];
        assert_always(r->prompt_tokens > 0 && r->generated_tokens > 0 && r->max_new_tokens >= r->generated_tokens);
        assert_always(r->prompt_tokens + r->max_new_tokens <= w.context_tokens);
        assert_always(i == 0 || r->arrival_us >= w.requests[i - 1].arrival_us);
    }
    workload_free(&w);
    return 0;
}

// api_error.h: what a client is told when its request is refused or fails.
#ifndef FD_GATEWAY_HTTP_API_ERROR_H
#define FD_GATEWAY_HTTP_API_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "services/gateway/http/json_write.h"

// An error as the client sees it. status 0: no error. All texts are ASCII or valid UTF-8.
struct api_error {
    int status;         // HTTP status
    const char *type;   // static
    const char *code;   // static, or NULL
    const char *reason; // in metrics; static, or NULL: the code
    char param[96];     // "": none
    char message[512];
    uint32_t retry_after_s; // 0: no Retry-After header
    // Forms of the API say these in words of their own, which their clients look for.
    char model[128]; // of model_not_found; "": another error
    struct api_length {
        uint32_t context, prompt, answer; // tokens; answer 0: the prompt alone is too long
    } length;                             // of context_length_exceeded; context 0: another error
};

// Fills *error; returns false, so that a parser can return it. param may be NULL. The type follows from the status.
bool api_fail(struct api_error *error, int status, const char *code, const char *param, const char *format, ...) PRINTF_LIKE(5, 6);

// The same, with status 429 and code rate_limit_exceeded: a limit is reached. reason: which one, for metrics; static.
bool api_limit(struct api_error *error, const char *reason, const char *format, ...) PRINTF_LIKE(3, 4);
// The same, with status 500: out of memory.
bool api_no_memory(struct api_error *error);
// Status 400: a parameter that must be there is not.
bool api_missing(struct api_error *error, const char *param);

// Appends {"error":{...}}, without a line end.
void api_error_append(const struct api_error *error, struct text *out);

// Says that a prompt has more tokens than the context; returns false. bound: "at least ", or nothing.
bool api_too_long(struct api_error *error, const char *param, uint32_t context, const char *bound, uint32_t count);

#endif

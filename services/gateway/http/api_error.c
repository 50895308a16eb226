// api_error.c: see api_error.h.
#include "services/gateway/http/api_error.h"

#include <stdarg.h>
#include <stdio.h>

static const char *type_of_status(int status)
{
    switch (status) {
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

bool api_fail(struct api_error *error, int status, const char *code, const char *param, const char *format, ...)
{
    va_list args;

    *error = (struct api_error){.status = status, .type = type_of_status(status), .code = code};
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return false;
}

bool api_limit(struct api_error *error, const char *reason, const char *format, ...)
{
    va_list args;

    *error = (struct api_error){.status = 429, .type = type_of_status(429), .code = "rate_limit_exceeded", .reason = reason};
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return false;
}

bool api_no_memory(struct api_error *error) { return api_fail(error, 500, NULL, NULL, "out of memory"); }

bool api_missing(struct api_error *error, const char *param)
{
    return api_fail(error, 400, "missing_required_parameter", param, "'%s' is required", param);
}

void api_error_append(const struct api_error *error, struct text *out)
{
    text_json_after(out, "{\"error\":{\"message\":", error->message);
    text_json_after(out, ",\"type\":", error->type);
    text_json_after(out, ",\"param\":", error->param[0] ? error->param : NULL);
    text_json_after(out, ",\"code\":", error->code);
    text_string(out, "}}");
}

// Clients of this API look for the first words of this message.
bool api_too_long(struct api_error *error, const char *param, uint32_t context, const char *bound, uint32_t count)
{
    (void)api_fail(error, 400, "context_length_exceeded", param,
                   "This model's maximum context length is %u tokens. However, your %s resulted in %s%u tokens. "
                   "Please reduce the length of the %s.",
                   context, param, bound, count, param);
    error->length = (struct api_length){.context = context, .prompt = count};
    return false;
}

// render.c: files and batches as JSON, and what the store refuses as an error of the API.
#include "services/gateway/batch/api_internal.h"

bool batch_api_fail(struct api_error *error, const char *param, const struct error *reason)
{
    switch (reason->status) {
    case STATUS_NOT_FOUND: return api_fail(error, 404, NULL, param, "%s", reason->text);
    case STATUS_FAILED_PRECONDITION: return api_fail(error, 409, "conflict", param, "%s", reason->text);
    case STATUS_RESOURCE_EXHAUSTED: return api_fail(error, 429, "rate_limit_exceeded", param, "%s", reason->text);
    case STATUS_OUT_OF_RANGE: return api_fail(error, 413, "storage_full", param, "%s", reason->text);
    case STATUS_UNAVAILABLE: return api_fail(error, 507, "insufficient_storage", param, "%s", reason->text);
    default: return api_fail(error, 500, NULL, NULL, "%s", reason->text);
    }
}

static void append_time(struct text *out, const char *name, uint64_t at_s)
{
    if (at_s)
        text_format(out, ",\"%s\":%llu", name, (unsigned long long)at_s);
    else
        text_format(out, ",\"%s\":null", name);
}

void batch_api_append_id(struct text *out, const char *name, const char *id, bool there)
{
    text_format(out, there ? ",\"%s\":\"%s\"" : ",\"%s\":null", name, id);
}

void batch_api_append_file(struct text *out, const struct batch_file *file)
{
    text_format(out, "{\"id\":\"%s\",\"object\":\"file\",\"bytes\":%llu,\"created_at\":%llu", file->id,
                (unsigned long long)file->bytes, (unsigned long long)file->created_s);
    append_time(out, "expires_at", file->expires_s);
    text_string(out, ",\"filename\":");
    text_json_string(out, file->filename);
    text_format(out, ",\"purpose\":\"%s\",\"status\":\"processed\",\"status_details\":null}", file->purpose);
}

static void append_errors(struct text *out, const struct batch_record *record)
{
    if (!record->error_code[0]) {
        text_string(out, ",\"errors\":null");
        return;
    }
    text_format(out, ",\"errors\":{\"object\":\"list\",\"data\":[{\"code\":\"%s\",\"message\":", record->error_code);
    text_json_string(out, record->error_message);
    text_string(out, ",\"param\":null,\"line\":");
    if (record->error_line)
        text_format(out, "%llu}]}", (unsigned long long)record->error_line);
    else
        text_string(out, "null}]}");
}

void batch_api_append_batch(struct text *out, const struct batch_record *record)
{
    text_format(out, "{\"id\":\"%s\",\"object\":\"batch\",\"endpoint\":\"%s\"", record->id, batch_endpoint_path(record->endpoint));
    append_errors(out, record);
    text_format(out, ",\"input_file_id\":\"%s\",\"completion_window\":\"%s\",\"status\":\"%s\"", record->input, record->window,
                batch_status_name(record->status));
    batch_api_append_id(out, "output_file_id", record->output, record->has_output);
    batch_api_append_id(out, "error_file_id", record->errors, record->has_errors);
    append_time(out, "created_at", record->at_s[BATCH_VALIDATING]);
    append_time(out, "in_progress_at", record->at_s[BATCH_IN_PROGRESS]);
    append_time(out, "expires_at", record->expires_s);
    append_time(out, "finalizing_at", record->at_s[BATCH_FINALIZING]);
    append_time(out, "completed_at", record->at_s[BATCH_COMPLETED]);
    append_time(out, "failed_at", record->at_s[BATCH_FAILED]);
    append_time(out, "expired_at", record->at_s[BATCH_EXPIRED]);
    append_time(out, "cancelling_at", record->at_s[BATCH_CANCELLING]);
    append_time(out, "cancelled_at", record->at_s[BATCH_CANCELLED]);
    text_format(out, ",\"request_counts\":{\"total\":%llu,\"completed\":%llu,\"failed\":%llu},\"metadata\":",
                (unsigned long long)record->counts.total, (unsigned long long)record->counts.completed,
                (unsigned long long)record->counts.failed);
    text_string(out, record->metadata ? record->metadata : "null");
    text_append(out, "}", 1);
}

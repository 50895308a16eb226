// api.c: see api.h: the calls, each a function on the thread, and the JSON that they answer.
#include "services/gateway/batch/api.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/json/json_text.h"
#include "services/gateway/api/schema/value.h"
#include "services/gateway/batch/api_internal.h"

// --- files and batches as JSON, and what the store refuses as an error of the API ------------------------------------

static void append_time(struct text *out, const char *name, uint64_t at_s)
{
    if (at_s)
        text_format(out, ",\"%s\":%llu", name, (unsigned long long)at_s);
    else
        text_format(out, ",\"%s\":null", name);
}

static void batch_api_append_id(struct text *out, const char *name, const char *id, bool there)
{
    text_format(out, there ? ",\"%s\":\"%s\"" : ",\"%s\":null", name, id);
}

static void batch_api_append_file(struct text *out, const struct batch_file *file)
{
    text_format(out, "{\"id\":\"%s\",\"object\":\"file\",\"bytes\":%llu,\"created_at\":%llu", file->id,
                (unsigned long long)file->bytes, (unsigned long long)file->created_s);
    append_time(out, "expires_at", file->expires_s);
    text_json_after(out, ",\"filename\":", file->filename);
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

static void batch_api_append_batch(struct text *out, const struct batch_record *record)
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

// --- the body of POST /v1/batches: types, limits, defaults -----------------------------------------------------------

enum { METADATA_MAX = 16, METADATA_KEY_BYTES = 64, METADATA_VALUE_BYTES = 512, WINDOW_MOST_S = 30 * 24 * 3600 };

// "24h" -> seconds; 0: not a window.
static uint64_t batch_window_s(const char *window)
{
    static const struct {
        char unit;
        uint32_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 24 * 3600}};
    size_t digits = strspn(window, "0123456789"), i;
    uint64_t count = digits > 0 && digits < 8 ? strtoull(window, NULL, 10) : 0;

    for (i = 0; i < sizeof units / sizeof units[0]; i++)
        if (window[digits] == units[i].unit && window[digits + 1] == '\0' && count * units[i].seconds <= WINDOW_MOST_S)
            return count * units[i].seconds;
    return 0;
}

static const char *read_text(json_t *root, const char *name, struct api_error *error)
{
    const json_t *value = json_object_get(root, name);

    if (!value || json_is_null(value)) {
        api_missing(error, name);
        return NULL;
    }
    if (!json_is_string(value)) {
        schema_wrong_type(error, name, "a string", value);
        return NULL;
    }
    if (schema_has_zero(value)) {
        api_fail(error, 400, "invalid_value", name, "'%s' has a zero byte", name);
        return NULL;
    }
    return json_string_value(value);
}

static bool read_metadata(json_t *root, struct batch_record *out, struct api_error *error)
{
    json_t *metadata = json_object_get(root, "metadata"), *value;
    const char *name;

    if (!metadata || json_is_null(metadata))
        return true;
    if (!json_text_is_object(metadata))
        return schema_wrong_type(error, "metadata", "an object", metadata);
    if (json_object_size(metadata) > METADATA_MAX)
        return api_fail(error, 400, "invalid_value", "metadata", "'metadata' has %zu pairs, the most is %d",
                        json_object_size(metadata), METADATA_MAX);
    json_object_foreach (metadata, name, value) {
        if (!json_is_string(value))
            return api_fail(error, 400, "invalid_type", "metadata", "a value in 'metadata' must be a string, not %s",
                            schema_type_name(value));
        if (schema_has_zero(value))
            return api_fail(error, 400, "invalid_value", "metadata", "a value in 'metadata' has a zero byte");
        if (strlen(name) > METADATA_KEY_BYTES || json_string_length(value) > METADATA_VALUE_BYTES)
            return api_fail(error, 400, "invalid_value", "metadata", "a pair in 'metadata' is longer than %d and %d bytes",
                            METADATA_KEY_BYTES, METADATA_VALUE_BYTES);
    }
    out->metadata = json_text_write(metadata, false);
    return out->metadata || api_no_memory(error);
}

static bool read_expiry(json_t *root, struct batch_record *out, struct api_error *error)
{
    json_t *expiry = json_object_get(root, "output_expires_after"), *seconds = json_object_get(expiry, "seconds");

    out->output_kept_s = BATCH_KEPT_S;
    if (!expiry || json_is_null(expiry))
        return true;
    if (!schema_is_string(json_object_get(expiry, "anchor"), "created_at") || !json_is_integer(seconds) ||
        json_integer_value(seconds) < EXPIRY_LEAST_S || json_integer_value(seconds) > EXPIRY_MOST_S)
        return api_fail(error, 400, "invalid_value", "output_expires_after",
                        "'output_expires_after' must be {\"anchor\": \"created_at\", \"seconds\": N} with N from %d to %d",
                        EXPIRY_LEAST_S, EXPIRY_MOST_S);
    out->output_kept_s = (uint64_t)json_integer_value(seconds);
    return true;
}

static bool read_record(json_t *root, uint64_t now_s, struct batch_record *out, struct api_error *error)
{
    const char *input = read_text(root, "input_file_id", error);
    const char *endpoint = input ? read_text(root, "endpoint", error) : NULL;
    const char *window = endpoint ? read_text(root, "completion_window", error) : NULL;
    uint64_t window_s;

    if (!window)
        return false;
    if (strlen(input) >= sizeof out->input)
        return api_fail(error, 404, NULL, "input_file_id", "No such File object: %.64s", input);
    out->endpoint = batch_endpoint_named(endpoint);
    if (out->endpoint == BATCH_ENDPOINT_NONE)
        return api_fail(error, 400, "invalid_value", "endpoint",
                        "'endpoint' must be \"/v1/chat/completions\", \"/v1/completions\" or \"/v1/embeddings\"");
    window_s = batch_window_s(window);
    if (window_s == 0)
        return api_fail(error, 400, "invalid_value", "completion_window",
                        "'completion_window' must be \"24h\", or a number of s, m, h or d up to 30 days");
    snprintf(out->input, sizeof out->input, "%s", input);
    snprintf(out->window, sizeof out->window, "%s", window);
    out->at_s[BATCH_VALIDATING] = now_s;
    out->expires_s = now_s + window_s;
    return read_metadata(root, out, error) && read_expiry(root, out, error);
}

// Reads a body of POST /v1/batches. Pure. The caller frees the record. False: *error.
static bool batch_create_parse(const char *body, size_t bytes, uint64_t now_s, struct batch_record *out, struct api_error *error)
{
    json_t *root = schema_parse_json(body, bytes, error);
    bool ok;

    *out = (struct batch_record){.status = BATCH_VALIDATING};
    ok = root && read_record(root, now_s, out, error);
    json_decref(root);
    return ok;
}

// --- calls -----------------------------------------------------------------------------------------------------------
enum { FILES_PAGE = 10000, BATCHES_PAGE = 100, BATCHES_PAGE_DEFAULT = 20, QUERY_BYTES = 64 };

struct batch_call {
    struct batch_work work; // first
    struct batch_api *api;
    struct exchange *exchange; // held
    enum batch_call_kind kind;
    char tenant[KEY_TENANT_BYTES];
    char id[QUERY_BYTES];
    char after[QUERY_BYTES], limit[QUERY_BYTES], order[QUERY_BYTES], purpose[QUERY_BYTES]; // of the query
};

static bool answer(struct batch_call *call, struct text *body)
{
    text_append(body, "\n", 1);
    exchange_respond(call->exchange, 200, HTTP_JSON, body);
    return true;
}

// --- lists ---------------------------------------------------------------------------------------------------------
struct list {
    struct text body;
    char first[BATCH_ID_BYTES], last[BATCH_ID_BYTES];
};

static void add_to_list(struct list *list, const char *id)
{
    if (!list->first[0])
        snprintf(list->first, sizeof list->first, "%s", id);
    else
        text_append(&list->body, ",", 1);
    snprintf(list->last, sizeof list->last, "%s", id);
}

static void list_file(void *arg, const struct batch_file *file)
{
    struct list *list = arg;

    add_to_list(list, file->id);
    batch_api_append_file(&list->body, file);
}

static void list_batch(void *arg, const struct batch_record *record)
{
    struct list *list = arg;

    add_to_list(list, record->id);
    batch_api_append_batch(&list->body, record);
}

static bool read_limit(const struct batch_call *call, uint32_t most, uint32_t *out, struct api_error *error)
{
    char *end;
    unsigned long limit;

    if (!call->limit[0])
        return true;
    limit = strtoul(call->limit, &end, 10);
    if (call->limit[0] < '0' || call->limit[0] > '9' || *end || limit < 1 || limit > most)
        return api_fail(error, 400, "invalid_value", "limit", "'limit' must be a number from 1 to %u", most);
    *out = (uint32_t)limit;
    return true;
}

static bool answer_list(struct batch_call *call, bool files, struct api_error *error)
{
    struct batch_page page = {.tenant = call->tenant,
                              .after = call->after,
                              .purpose = call->purpose,
                              .limit = files ? FILES_PAGE : BATCHES_PAGE_DEFAULT,
                              .ascending = strcmp(call->order, "asc") == 0};
    struct list list = {0};
    struct error reason;
    enum status status;
    bool more;

    if (!read_limit(call, files ? FILES_PAGE : BATCHES_PAGE, &page.limit, error))
        return false;
    if (files && call->order[0] && !page.ascending && strcmp(call->order, "desc") != 0)
        return api_fail(error, 400, "invalid_value", "order", "'order' must be \"asc\" or \"desc\"");
    text_string(&list.body, "{\"object\":\"list\",\"data\":[");
    status = files ? batch_store_list_files(call->api->store, &page, list_file, &list, &more, &reason)
                   : batch_store_list_batches(call->api->store, &page, list_batch, &list, &more, &reason);
    if (status != STATUS_OK) {
        text_free(&list.body);
        return batch_api_fail(error, "after", &reason);
    }
    text_append(&list.body, "]", 1);
    batch_api_append_id(&list.body, "first_id", list.first, list.first[0]);
    batch_api_append_id(&list.body, "last_id", list.last, list.last[0]);
    text_string(&list.body, more ? ",\"has_more\":true}" : ",\"has_more\":false}");
    return answer(call, &list.body);
}

// --- files ---------------------------------------------------------------------------------------------------------
static bool create_file(struct batch_call *call, struct api_error *error)
{
    struct batch_file file;
    struct text body = {0};

    if (!batch_upload_finish(call->exchange, &file, error))
        return false;
    batch_api_append_file(&body, &file);
    return answer(call, &body);
}

static bool get_file(struct batch_call *call, struct api_error *error)
{
    struct batch_file file;
    struct error reason;
    struct text body = {0};

    if (batch_store_get_file(call->api->store, call->tenant, call->id, &file, &reason) != STATUS_OK)
        return batch_api_fail(error, "id", &reason);
    batch_api_append_file(&body, &file);
    return answer(call, &body);
}

static bool get_content(struct batch_call *call, struct api_error *error)
{
    char path[BATCH_PATH_BYTES];
    struct batch_file file;
    struct error reason;
    struct stat about;
    int fd;

    if (batch_store_get_file(call->api->store, call->tenant, call->id, &file, &reason) != STATUS_OK)
        return batch_api_fail(error, "id", &reason);
    batch_store_path(call->api->store, file.id, false, path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return api_fail(error, 500, NULL, NULL, "the file cannot be read: %s", strerror(errno));
    if (fstat(fd, &about) != 0 || (uint64_t)about.st_size < file.bytes) { // its reader would wait for the rest
        close(fd);
        return api_fail(error, 500, NULL, NULL, "the file is damaged: it is shorter than what was stored");
    }
    (void)!posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); // the polling thread should not wait for the disk
    (void)!posix_fadvise(fd, 0, 8 << 20, POSIX_FADV_WILLNEED);
    exchange_respond_file(call->exchange, "application/octet-stream", fd, file.bytes);
    return true;
}

static bool delete_file(struct batch_call *call, struct api_error *error)
{
    struct error reason;
    struct text body = {0};

    if (batch_store_delete_file(call->api->store, call->tenant, call->id, &reason) != STATUS_OK)
        return batch_api_fail(error, "id", &reason);
    text_format(&body, "{\"id\":\"%s\",\"object\":\"file\",\"deleted\":true}", call->id);
    return answer(call, &body);
}

// --- batches -------------------------------------------------------------------------------------------------------
static bool answer_batch(struct batch_call *call, const char *id, struct api_error *error)
{
    struct batch_record record;
    struct error reason;
    struct text body = {0};

    if (batch_store_get_batch(call->api->store, call->tenant, id, &record, &reason) != STATUS_OK)
        return batch_api_fail(error, "batch_id", &reason);
    batch_api_append_batch(&body, &record);
    batch_record_free(&record);
    return answer(call, &body);
}

static bool create_batch(struct batch_call *call, struct api_error *error)
{
    struct batch_record record;
    struct batch_file input;
    struct error reason;
    size_t bytes;
    const char *body = exchange_body(call->exchange, &bytes);
    bool ok = batch_create_parse(body, bytes, clock_wall_us() / 1000000, &record, error);

    if (ok && batch_store_get_file(call->api->store, call->tenant, record.input, &input, &reason) != STATUS_OK)
        ok = batch_api_fail(error, "input_file_id", &reason);
    if (ok && strcmp(input.purpose, "batch") != 0)
        ok = api_fail(error, 400, "invalid_value", "input_file_id", "the purpose of the file must be \"batch\", not \"%s\"",
                      input.purpose);
    if (ok && batch_store_is_full(call->api->store, call->tenant))
        ok = api_fail(error, 413, "storage_full", NULL, "there is no room for results: delete files that are not needed any more");
    if (ok) {
        batch_store_make_id("batch_", record.id);
        batch_store_make_id("file-", record.output);
        batch_store_make_id("file-", record.errors);
        snprintf(record.tenant, sizeof record.tenant, "%s", call->tenant);
        if (batch_store_add_batch(call->api->store, &record, &reason) != STATUS_OK)
            ok = batch_api_fail(error, "input_file_id", &reason);
    }
    if (ok)
        ok = answer_batch(call, record.id, error);
    batch_record_free(&record);
    batch_runner_wake(call->api->runner);
    return ok;
}

static bool cancel_batch(struct batch_call *call, struct api_error *error)
{
    struct error reason;

    if (batch_store_cancel_batch(call->api->store, call->tenant, call->id, &reason) != STATUS_OK)
        return batch_api_fail(error, "batch_id", &reason);
    batch_runner_wake(call->api->runner);
    return answer_batch(call, call->id, error);
}

// --- calls ---------------------------------------------------------------------------------------------------------
static void run_call(struct batch_work *work)
{
    struct batch_call *call = (struct batch_call *)(void *)work;
    struct api_error error = {0};
    bool ok = true;

    switch (call->kind) {
    case BATCH_FILE_CREATE: ok = create_file(call, &error); break;
    case BATCH_FILE_LIST: ok = answer_list(call, true, &error); break;
    case BATCH_FILE_GET: ok = get_file(call, &error); break;
    case BATCH_FILE_CONTENT: ok = get_content(call, &error); break;
    case BATCH_FILE_DELETE: ok = delete_file(call, &error); break;
    case BATCH_CREATE: ok = create_batch(call, &error); break;
    case BATCH_LIST: ok = answer_list(call, false, &error); break;
    case BATCH_GET: ok = answer_batch(call, call->id, &error); break;
    case BATCH_CANCEL: ok = cancel_batch(call, &error); break;
    default: break;
    }
    if (!ok)
        exchange_refuse(call->exchange, &error);
    exchange_drop_body(call->exchange);
    exchange_release(call->exchange);
    free(call);
}

void batch_api_call(struct batch_api *api, struct exchange *exchange, enum batch_call_kind kind, const char *tenant, const char *id,
                    size_t id_bytes)
{
    struct batch_call *call = calloc(1, sizeof *call);
    struct api_error error = {0};

    if (!call) {
        api_no_memory(&error);
        exchange_refuse(exchange, &error);
        return;
    }
    call->work.run = run_call;
    call->api = api;
    call->exchange = exchange_hold(exchange);
    call->kind = kind;
    snprintf(call->tenant, sizeof call->tenant, "%s", tenant);
    snprintf(call->id, sizeof call->id, "%.*s", (int)MIN(id_bytes, sizeof call->id - 1), id);
    snprintf(call->after, sizeof call->after, "%s", exchange_query(exchange, "after"));
    snprintf(call->limit, sizeof call->limit, "%s", exchange_query(exchange, "limit"));
    snprintf(call->order, sizeof call->order, "%s", exchange_query(exchange, "order"));
    snprintf(call->purpose, sizeof call->purpose, "%s", exchange_query(exchange, "purpose"));
    if (work_pool_push(api->thread, &call->work) == STATUS_OK)
        return;
    api_limit(&error, "file_requests", "too many requests for files wait, try again later");
    error.retry_after_s = 1;
    exchange_refuse(exchange, &error);
    exchange_release(exchange);
    free(call);
}

// --- life ----------------------------------------------------------------------------------------------------------
static void run_work(void *arg, void *item)
{
    struct batch_work *work = item;

    (void)arg;
    work->run(work);
}

enum status batch_api_open(const struct batch_api_config *config, struct batch_api **out, struct error *error)
{
    struct batch_store_config store = {
        .dir = config->dir, .max_bytes = config->max_bytes, .share = config->share, .max_files = BATCH_FILES_MAX};
    struct batch_api *api = calloc(1, sizeof *api);
    enum status status;

    *out = NULL;
    if (!api)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    api->config = *config;
    pthread_mutex_init(&api->mutex, NULL);
    status = batch_store_open(&store, &api->store, error);
    api->config.runner.store = api->store;
    api->config.runner.max_lines = config->max_lines;
    if (status == STATUS_OK && (work_pool_start(1, config->capacity, false, run_work, api, &api->thread) != STATUS_OK ||
                                batch_runner_start(&api->config.runner, &api->runner) != STATUS_OK))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot start the threads of --batch-dir");
    if (status != STATUS_OK) {
        batch_api_stop(api);
        batch_api_close(api);
        return status;
    }
    *out = api;
    return STATUS_OK;
}

void batch_api_stop(struct batch_api *api)
{
    if (!api)
        return;
    work_pool_stop(api->thread);
    api->thread = NULL;
    batch_runner_stop(api->runner);
}

void batch_api_close(struct batch_api *api)
{
    if (!api)
        return;
    batch_runner_free(api->runner);
    batch_store_close(api->store);
    pthread_mutex_destroy(&api->mutex);
    free(api);
}

void batch_api_stats(struct batch_api *api, struct batch_runner_stats *out)
{
    batch_runner_stats(api->runner, out);
    batch_store_failures(api->store, out->not_written);
}

// upload.c: POST /v1/files: a multipart body that goes to disk while it arrives.
//
//   polling thread ──take()──▶ waiting bytes ──the thread──▶ parser ──▶ files/ID.part ──(all there)──▶ files/ID, row
//
// A connection whose bytes are not all taken waits until the thread has written what was there before. An upload belongs to its exchange and
// is freed with it: what is not complete by then is removed.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/batch/api_internal.h"
#include "services/gateway/batch/multipart.h"

enum { FIELD_BYTES = 64, WRITE_BYTES = 64 << 10 };

enum upload_part { PART_NONE, PART_FILE, PART_PURPOSE, PART_ANCHOR, PART_SECONDS, PART_OTHER };

struct upload {
    struct batch_work work; // first: what the pool is given
    struct batch_api *api;
    struct exchange *exchange; // not held, but while queued: it frees this
    pthread_mutex_t mutex;
    struct text waiting;  // under mutex
    bool queued, refused; // under mutex. refused: the thread's queue was full
    // the thread's
    struct multipart parser;
    enum upload_part part;
    char purpose[FIELD_BYTES], anchor[FIELD_BYTES], seconds[FIELD_BYTES];
    size_t field_bytes;
    bool has_file, complete;
    struct batch_file file;
    int fd;
    struct text pending; // of the file: the parser gives a byte at a time where there are many line ends
    uint64_t reserved;
    struct api_error error;     // status 0: none
    struct upload_place *place; // set before its first byte; NULL: there was none
};

bool batch_api_fail(struct api_error *error, const char *param, const struct error *reason)
{
    switch (reason->status) {
    case STATUS_NOT_FOUND: return api_fail(error, 404, NULL, param, "%s", reason->text);
    case STATUS_FAILED_PRECONDITION: return api_fail(error, 409, "conflict", param, "%s", reason->text);
    case STATUS_RESOURCE_EXHAUSTED:
        (void)api_fail(error, 429, "rate_limit_exceeded", param, "%s", reason->text);
        error->reason = "open_batches";
        return false;
    case STATUS_OUT_OF_RANGE: return api_fail(error, 413, "storage_full", param, "%s", reason->text);
    case STATUS_UNAVAILABLE: return api_fail(error, 507, "insufficient_storage", param, "%s", reason->text);
    default: return api_fail(error, 500, NULL, NULL, "%s", reason->text);
    }
}

// --- the parser's calls, on the thread -----------------------------------------------------------------------------
static char *field_of(struct upload *upload, enum upload_part part)
{
    switch (part) {
    case PART_PURPOSE: return upload->purpose;
    case PART_ANCHOR: return upload->anchor;
    case PART_SECONDS: return upload->seconds;
    default: return NULL;
    }
}

static bool not_stored(struct upload *upload)
{
    batch_store_failed(upload->api->store, BATCH_WRITE_UPLOADS, upload->file.id, strerror(errno));
    return api_fail(&upload->error, 507, "insufficient_storage", "file", "the file cannot be stored: %s", strerror(errno));
}

static bool on_begin(void *arg, const char *name, const char *filename)
{
    static const struct {
        const char *name;
        enum upload_part part;
    } parts[] = {{"file", PART_FILE},
                 {"purpose", PART_PURPOSE},
                 {"expires_after[anchor]", PART_ANCHOR},
                 {"expires_after[seconds]", PART_SECONDS}};
    struct upload *upload = arg;
    char path[BATCH_PATH_BYTES];
    struct error reason;
    size_t i;

    upload->part = PART_OTHER;
    upload->field_bytes = 0;
    for (i = 0; i < ARRAY_COUNT(parts); i++)
        if (strcmp(name, parts[i].name) == 0)
            upload->part = parts[i].part;
    if (field_of(upload, upload->part) && field_of(upload, upload->part)[0])
        return api_fail(&upload->error, 400, "invalid_value", name, "'%.64s' is there twice", name);
    if (upload->part != PART_FILE)
        return true;
    if (upload->has_file)
        return api_fail(&upload->error, 400, "invalid_value", "file", "'file' is there twice");
    upload->has_file = true;
    if (batch_store_check_upload(upload->api->store, upload->file.tenant, &reason) != STATUS_OK)
        return batch_api_fail(&upload->error, "file", &reason);
    snprintf(upload->file.filename, sizeof upload->file.filename, "%s", filename && *filename ? filename : "file");
    batch_store_path(upload->api->store, upload->file.id, true, path);
    upload->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return upload->fd >= 0 || not_stored(upload);
}

static bool write_pending(struct upload *upload)
{
    struct batch_api *api = upload->api;
    const char *data = upload->pending.data;
    size_t bytes = upload->pending.bytes;

    if (upload->pending.failed)
        return api_no_memory(&upload->error);
    if (upload->file.bytes + bytes > api->config.max_file_bytes)
        return api_fail(&upload->error, 413, "request_too_large", "file", "the file is larger than %llu bytes",
                        (unsigned long long)api->config.max_file_bytes);
    if (!batch_store_reserve(api->store, upload->file.tenant, bytes))
        return api_fail(&upload->error, 413, "storage_full", "file",
                        "there is no room for the file: delete files that are not needed any more");
    upload->reserved += bytes;
    upload->file.bytes += bytes;
    text_clear(&upload->pending);
    while (bytes > 0) {
        ssize_t wrote = write(upload->fd, data, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return not_stored(upload);
        data += wrote;
        bytes -= (size_t)wrote;
    }
    return true;
}

static bool on_data(void *arg, const char *data, size_t bytes)
{
    struct upload *upload = arg;
    char *field = field_of(upload, upload->part);

    if (field) {
        if (upload->field_bytes + bytes >= FIELD_BYTES || memchr(data, 0, bytes))
            return api_fail(&upload->error, 400, "invalid_value", NULL, "a field is longer than %d bytes", FIELD_BYTES - 1);
        memcpy(field + upload->field_bytes, data, bytes);
        upload->field_bytes += bytes;
        field[upload->field_bytes] = '\0';
        return true;
    }
    if (upload->part != PART_FILE)
        return true;
    text_append(&upload->pending, data, bytes);
    return (upload->pending.bytes < WRITE_BYTES && !upload->pending.failed) || write_pending(upload);
}

static bool on_end(void *arg)
{
    struct upload *upload = arg;
    bool ok = upload->part != PART_FILE || write_pending(upload);

    upload->part = PART_NONE;
    return ok;
}

// --- between the threads -------------------------------------------------------------------------------------------
static size_t take(void *arg, const char *data, size_t bytes)
{
    struct upload *upload = arg;
    bool queue, refused;
    size_t room;

    pthread_mutex_lock(&upload->mutex);
    room = UPLOAD_BUFFER_BYTES - MIN(upload->waiting.bytes, (size_t)UPLOAD_BUFFER_BYTES);
    room = MIN(room, bytes);
    text_append(&upload->waiting, data, room);
    queue = !upload->queued;
    upload->queued = true;
    upload->refused |= upload->waiting.failed;
    pthread_mutex_unlock(&upload->mutex);
    if (queue) {
        exchange_hold(upload->exchange);
        if (work_pool_push(upload->api->thread, &upload->work) != STATUS_OK) {
            pthread_mutex_lock(&upload->mutex);
            upload->refused = true; // nobody empties the buffer: the rest is dropped
            pthread_mutex_unlock(&upload->mutex);
            exchange_release(upload->exchange); // not the last: the polling thread has one
        }
    }
    pthread_mutex_lock(&upload->mutex);
    refused = upload->refused;
    pthread_mutex_unlock(&upload->mutex);
    return refused ? bytes : room;
}

// The waiting bytes, which become the caller's; false: there are none, and the upload is not queued any more.
static bool next_bytes(struct upload *upload, struct text *out)
{
    bool some;

    pthread_mutex_lock(&upload->mutex);
    some = upload->waiting.bytes > 0 && !upload->waiting.failed;
    *out = upload->waiting;
    upload->waiting = (struct text){0};
    upload->queued = some;
    pthread_mutex_unlock(&upload->mutex);
    return some;
}

static void drain(struct upload *upload)
{
    struct text bytes;

    while (next_bytes(upload, &bytes)) {
        if (!upload->error.status && !multipart_feed(&upload->parser, bytes.data, bytes.bytes) && !upload->error.status)
            api_fail(&upload->error, 400, "invalid_multipart", NULL, "malformed multipart body: %s", upload->parser.why);
        text_free(&bytes);
        if (upload->error.status && !exchange_is_answered(upload->exchange))
            exchange_refuse(upload->exchange, &upload->error); // the rest of the body is dropped
        exchange_go_on(upload->exchange);
    }
    text_free(&bytes);
}

static void run_drain(struct batch_work *work)
{
    struct upload *upload = (struct upload *)(void *)work;
    struct exchange *exchange = upload->exchange;

    drain(upload);
    exchange_release(exchange);
}

// --- life ----------------------------------------------------------------------------------------------------------
// Takes one of the places for uploads. False: there is none for this tenant.
static bool take_place(struct upload *upload)
{
    struct batch_api *api = upload->api;
    const uint32_t most = (uint32_t)MAX(UPLOADS_MAX * MIN(api->config.share, 1), 1);
    struct upload_place *found = NULL;
    uint32_t i, own = 0;

    pthread_mutex_lock(&api->mutex);
    for (i = 0; i < UPLOADS_MAX; i++) {
        struct upload_place *place = &api->uploads[i];
        if (!place->taken)
            found = found ? found : place;
        else
            own += strcmp(place->tenant, upload->file.tenant) == 0;
    }
    if (found && own < most) {
        found->taken = true;
        memcpy(found->tenant, upload->file.tenant, sizeof found->tenant);
        upload->place = found;
    }
    pthread_mutex_unlock(&api->mutex);
    return upload->place != NULL;
}

static void end_place(struct upload *upload)
{
    pthread_mutex_lock(&upload->api->mutex);
    if (upload->place)
        upload->place->taken = false;
    pthread_mutex_unlock(&upload->api->mutex);
}

static void on_ended(void *arg)
{
    struct upload *upload = arg;
    char path[BATCH_PATH_BYTES];

    if (upload->fd >= 0)
        close(upload->fd);
    if (upload->fd >= 0 && !upload->complete) { // neither is there without a file
        batch_store_path(upload->api->store, upload->file.id, true, path);
        unlink(path);
        batch_store_release(upload->api->store, upload->file.tenant, upload->reserved);
    }
    end_place(upload);
    text_free(&upload->waiting);
    text_free(&upload->pending);
    pthread_mutex_destroy(&upload->mutex);
    free(upload);
}

bool batch_api_begin_upload(struct batch_api *api, struct exchange *exchange, const char *tenant, struct api_error *error)
{
    struct upload *upload = calloc(1, sizeof *upload);
    struct multipart_calls calls = {.begin = on_begin, .data = on_data, .end = on_end, .arg = upload};
    struct http_sink sink = {
        .max_bytes = api->config.max_file_bytes + UPLOAD_SLACK_BYTES, .take = take, .ended = on_ended, .arg = upload};

    if (!upload)
        return api_no_memory(error);
    if (!multipart_open(exchange_header(exchange, "Content-Type"), &calls, &upload->parser)) {
        free(upload);
        return api_fail(error, 415, "unsupported_media_type", NULL,
                        "the body must be multipart/form-data with 'file' and 'purpose'");
    }
    upload->api = api;
    upload->work.run = run_drain;
    upload->exchange = exchange;
    upload->fd = -1;
    pthread_mutex_init(&upload->mutex, NULL);
    snprintf(upload->file.tenant, sizeof upload->file.tenant, "%s", tenant);
    batch_store_make_id("file-", upload->file.id);
    exchange_set_sink(exchange, &sink); // from here on it is freed with the exchange
    if (!take_place(upload)) {
        error->retry_after_s = 1;
        return api_limit(error, "uploads", "too many files are being uploaded, try again later");
    }
    return true;
}

static bool check_fields(struct upload *upload, uint64_t now_s, struct api_error *error)
{
    char *end = upload->seconds;
    uint64_t seconds = strtoull(upload->seconds, &end, 10);

    if (!upload->has_file)
        return api_missing(error, "file");
    if (!upload->purpose[0])
        return api_missing(error, "purpose");
    if (strcmp(upload->purpose, "batch") != 0)
        return api_fail(error, 400, "invalid_value", "purpose", "'purpose' must be \"batch\": files are for batches only");
    if (upload->file.bytes == 0)
        return api_fail(error, 400, "invalid_value", "file", "the file is empty");
    upload->file.created_s = now_s;
    upload->file.expires_s = now_s + BATCH_KEPT_S;
    if (!upload->anchor[0] && !upload->seconds[0])
        return true;
    if (strcmp(upload->anchor, "created_at") != 0 || *end || seconds < EXPIRY_LEAST_S || seconds > EXPIRY_MOST_S)
        return api_fail(error, 400, "invalid_value", "expires_after",
                        "'expires_after[anchor]' must be \"created_at\" and 'expires_after[seconds]' a number from %d to %d",
                        EXPIRY_LEAST_S, EXPIRY_MOST_S);
    upload->file.expires_s = now_s + seconds;
    return true;
}

bool batch_upload_finish(struct exchange *exchange, struct batch_file *out, struct api_error *error)
{
    struct upload *upload = exchange_sink(exchange)->arg;
    struct error reason = {0};
    bool refused;

    drain(upload);
    pthread_mutex_lock(&upload->mutex);
    refused = upload->refused;
    pthread_mutex_unlock(&upload->mutex);
    if (refused) {
        error->retry_after_s = 1;
        return api_limit(error, "uploads", "too many files are being uploaded, try again later");
    }
    if (upload->error.status) {
        *error = upload->error;
        return false;
    }
    if (upload->parser.state != MULTIPART_DONE)
        return api_fail(error, 400, "invalid_multipart", NULL, "malformed multipart body: it ends before its last boundary");
    if (!check_fields(upload, clock_wall_us() / 1000000, error))
        return false;
    snprintf(upload->file.purpose, sizeof upload->file.purpose, "batch");
    const enum status status = batch_store_add_file(upload->api->store, &upload->file, upload->fd, &reason);
    if (status == STATUS_UNAVAILABLE)
        batch_store_failed(upload->api->store, BATCH_WRITE_UPLOADS, upload->file.id, reason.text);
    if (status != STATUS_OK)
        return batch_api_fail(error, "file", &reason);
    upload->complete = true;
    *out = upload->file;
    return true;
}

// api_internal.h: what api.c (calls), upload.c (uploads), create.c (a batch's body) and render.c
// (answers) share.
#ifndef FD_GATEWAY_BATCH_API_INTERNAL_H
#define FD_GATEWAY_BATCH_API_INTERNAL_H

#include <pthread.h>

#include "services/gateway/batch/api.h"
#include "services/gateway/http/work_pool.h"

enum {
    UPLOADS_MAX = 64, // at a time; with several API keys, --key-share is the part that one may have
    UPLOAD_BUFFER_BYTES = 256 << 10,
    UPLOAD_SLACK_BYTES = 64 << 10, // of a body beside the file in it
    EXPIRY_LEAST_S = 3600,
    EXPIRY_MOST_S = 30 * 24 * 3600,
};

struct upload_place {
    bool taken;
    char tenant[KEY_TENANT_BYTES];
};

struct batch_api {
    struct batch_api_config config;
    struct batch_store *store;
    struct batch_runner *runner;
    struct work_pool *thread;
    pthread_mutex_t mutex;
    struct upload_place uploads[UPLOADS_MAX]; // under mutex
};

// What the thread does next; the first member of its kind.
struct batch_work {
    void (*run)(struct batch_work *work); // and frees it, if need be
};

// render.c. Fills *error from the store's reason. param may be NULL.
bool batch_api_fail(struct api_error *error, const char *param, const struct error *reason);
void batch_api_append_id(struct text *out, const char *name, const char *id, bool there); // ,"name":"id" or ,"name":null
void batch_api_append_file(struct text *out, const struct batch_file *file);
void batch_api_append_batch(struct text *out, const struct batch_record *record);

// upload.c, on the thread: the body of the exchange has come. False: *error, unless the exchange is answered already.
bool batch_upload_finish(struct exchange *exchange, struct batch_file *out, struct api_error *error);

// create.c: a body of POST /v1/batches. Pure. The caller frees the record. False: *error.
bool batch_create_parse(const char *body, size_t bytes, uint64_t now_s, struct batch_record *out, struct api_error *error);
// "24h" -> seconds; 0: not a window.
uint64_t batch_window_s(const char *window);

#endif

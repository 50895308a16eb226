// api_internal.h: what api.c (calls and their answers) and upload.c share.
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

// The thread's next work; the first member of its kind.
struct batch_work {
    void (*run)(struct batch_work *work); // and frees it, if need be
};

// Fills *error from the store's reason. param may be NULL.
bool batch_api_fail(struct api_error *error, const char *param, const struct error *reason);

// upload.c, on the thread: the body of the exchange has come. False: *error, unless the exchange is answered already.
bool batch_upload_finish(struct exchange *exchange, struct batch_file *out, struct api_error *error);

#endif

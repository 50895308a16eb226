// api.h: OpenAI's /v1/files and /v1/batches over the store (store.h) and the runner (runner.h).
//
// The polling thread hands each call to a thread of its own, because the disk may block it. An upload goes to disk as it arrives: its bytes
// wait in a buffer of UPLOAD_BUFFER_BYTES, and its connection waits while that is full, so that memory does not grow with the file.
#ifndef FD_GATEWAY_BATCH_API_H
#define FD_GATEWAY_BATCH_API_H

#include "services/gateway/batch/runner.h"
#include "services/gateway/http/api_error.h"

struct batch_api;

struct batch_api_config {
    const char *dir;
    uint64_t max_file_bytes, max_bytes, max_lines;
    double share;                      // of max_bytes that one tenant may have
    uint32_t capacity;                 // calls that may wait for the thread
    struct batch_runner_config runner; // all but the store, max_lines
};

enum batch_call_kind {
    BATCH_CALL_NONE,
    BATCH_FILE_CREATE,
    BATCH_FILE_LIST,
    BATCH_FILE_GET,
    BATCH_FILE_CONTENT,
    BATCH_FILE_DELETE,
    BATCH_CREATE,
    BATCH_LIST,
    BATCH_GET,
    BATCH_CANCEL,
};

enum status batch_api_open(const struct batch_api_config *config, struct batch_api **out, struct error *error) MUST_CHECK;
// Ends the threads: nothing is asked or written any more. After the HTTP server has stopped. Blocks. NULL is allowed.
void batch_api_stop(struct batch_api *api);
// After all exchanges are freed. NULL is allowed.
void batch_api_close(struct batch_api *api);

// Polling thread, at the end of the headers of BATCH_FILE_CREATE: makes the exchange's body go to disk. False: *error.
bool batch_api_begin_upload(struct batch_api *api, struct exchange *exchange, const char *tenant, struct api_error *error);
// Polling thread: answers the exchange, later. tenant: who asks; "" where no key is needed. id: the one in the path, or "".
void batch_api_call(struct batch_api *api, struct exchange *exchange, enum batch_call_kind kind, const char *tenant, const char *id,
                    size_t id_bytes);

void batch_api_stats(struct batch_api *api, struct batch_runner_stats *out);

#endif

// store.h: what --batch-dir holds: uploaded files, batches and their results, and who owns them.
//
//   DIR/lock           held by the gateway that uses the folder
//   DIR/batches.db     SQLite: a row a file, a row a batch
//   DIR/files/ID       what was uploaded, and the results of batches
//   DIR/files/ID.part  an upload that is not complete; removed at start
//   DIR/reserve        room on the disk that nothing uses until it is full: the database needs some to forget a file, and to be opened
//
// A file is there once its row is: its bytes and its name are synced before the row is committed, and a file without a row, or without a
// batch that is still at work on it, is removed at start. Every look-up names the tenant, so that what belongs to another does not exist.
//
// Safe from any thread; may block on the disk: never from the polling or the RPC thread.
#ifndef FD_GATEWAY_BATCH_STORE_H
#define FD_GATEWAY_BATCH_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/api/batch.h"
#include "common/base/status.h"
#include "services/gateway/http/keys.h"

enum {
    BATCH_ID_BYTES = 40, // "file-" or "batch_" and 24 digits
    BATCH_NAME_BYTES = 256,
    BATCH_WINDOW_BYTES = 16,
    BATCH_PATH_BYTES = 4096,
    BATCH_FILES_MAX = 10000,       // of a tenant, with two for each of its batches that is not over
    BATCH_OPEN_MAX = 1000,         // batches of a tenant that are not over
    BATCH_OVER_MAX = 10000,        // batches of a tenant that are over: older ones are forgotten
    BATCH_KEPT_S = 30 * 24 * 3600, // how long a file is kept that says nothing else, and a batch that is over
};

struct batch_store;

struct batch_store_config {
    const char *dir;
    uint64_t max_bytes; // of all files together
    double share;       // of max_bytes that one tenant may have
    uint64_t max_files; // of a tenant
};

struct batch_file {
    char id[BATCH_ID_BYTES];
    char tenant[KEY_TENANT_BYTES];
    char purpose[16]; // "batch" or "batch_output"
    char filename[BATCH_NAME_BYTES];
    uint64_t bytes, created_s, expires_s; // expires_s 0: never
};

enum batch_status {
    BATCH_VALIDATING,
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_CANCELLING,
    BATCH_COMPLETED, // this and what follows is over
    BATCH_FAILED,
    BATCH_EXPIRED,
    BATCH_CANCELLED,
    BATCH_STATUS_COUNT,
};

const char *batch_status_name(enum batch_status status);

struct batch_counts {
    uint64_t total, completed, failed;
};

struct batch_record {
    char id[BATCH_ID_BYTES];
    char tenant[KEY_TENANT_BYTES];
    enum batch_status status;
    enum batch_endpoint endpoint;
    char input[BATCH_ID_BYTES], output[BATCH_ID_BYTES], errors[BATCH_ID_BYTES]; // files; the last two are chosen at creation
    bool has_output, has_errors;                                                // and are files once it is over
    char window[BATCH_WINDOW_BYTES];
    char *metadata;                    // owned: JSON; NULL: none
    uint64_t at_s[BATCH_STATUS_COUNT]; // when the status was reached; 0: never. [VALIDATING] is the creation
    uint64_t expires_s;                // the end of the window
    uint64_t output_kept_s;            // how long the results are kept
    struct batch_counts counts;
    char error_code[32], error_message[256]; // of a batch that failed; "": none
    uint64_t error_line;                     // 0: none
};

void batch_record_free(struct batch_record *record);

// Opens the folder and makes what is missing. ALREADY_EXISTS: another gateway uses it. The caller closes *out.
enum status batch_store_open(const struct batch_store_config *config, struct batch_store **out, struct error *error) MUST_CHECK;
void batch_store_close(struct batch_store *store); // NULL is allowed

// A new id: prefix and 24 random digits.
void batch_store_make_id(const char *prefix, char out[BATCH_ID_BYTES]);
// The path of a file. part: of its upload.
void batch_store_path(const struct batch_store *store, const char *id, bool part, char out[BATCH_PATH_BYTES]);

// --- room: bytes on disk, and bytes promised to uploads ---------------------------------------------------------------
// Takes bytes of the room for an upload, until its file is deleted or they are released. False: the limit would be passed, or the tenant's
// share of it by its files, the results of its batches and all its uploads.
bool batch_store_reserve(struct batch_store *store, const char *tenant, uint64_t bytes);
void batch_store_release(struct batch_store *store, const char *tenant, uint64_t bytes);
// Takes bytes that are already there, whatever the limit. is_full: whether the limit or the tenant's share is passed.
void batch_store_add_bytes(struct batch_store *store, const char *tenant, uint64_t bytes);
bool batch_store_is_full(struct batch_store *store, const char *tenant);
// OUT_OF_RANGE: the tenant has as many files as it may have.
enum status batch_store_check_upload(struct batch_store *store, const char *tenant, struct error *error) MUST_CHECK;

// --- a disk that does not take something --------------------------------------------------------------------------------
enum batch_write { BATCH_WRITE_RESULTS, BATCH_WRITE_UPLOADS, BATCH_WRITE_DATABASE, BATCH_WRITE_COUNT };
// Counts it, and logs it unless the log has just said so. id: of the batch or the file; "": neither.
void batch_store_failed(struct batch_store *store, enum batch_write what, const char *id, const char *why);
// How often each has failed since the start.
void batch_store_failures(struct batch_store *store, uint64_t counts[BATCH_WRITE_COUNT]);

// --- files --------------------------------------------------------------------------------------------------------------
// Makes a file of an upload that is complete: syncs it, gives it its own name and adds its row. Its bytes were reserved. fd: the upload's.
// UNAVAILABLE: the disk does not take it. OUT_OF_RANGE: the tenant has too many files.
enum status batch_store_add_file(struct batch_store *store, const struct batch_file *file, int fd, struct error *error) MUST_CHECK;
// NOT_FOUND: there is no such file of this tenant, or it has expired.
enum status batch_store_get_file(struct batch_store *store, const char *tenant, const char *id, struct batch_file *out,
                                 struct error *error) MUST_CHECK;
// FAILED_PRECONDITION: a batch that is not over needs it.
enum status batch_store_delete_file(struct batch_store *store, const char *tenant, const char *id, struct error *error) MUST_CHECK;

struct batch_page {
    const char *tenant;
    const char *after;   // an id; "": from the beginning
    const char *purpose; // of files; "": all
    uint32_t limit;
    bool ascending; // of files; batches are given newest first
};
// Calls each() for at most limit rows; *more: there are others. NOT_FOUND: `after` is not there.
enum status batch_store_list_files(struct batch_store *store, const struct batch_page *page,
                                   void (*each)(void *arg, const struct batch_file *file), void *arg, bool *more,
                                   struct error *error) MUST_CHECK;
// Removes files that have expired, and batches that have been over for BATCH_KEPT_S; for good, so now_s must not be a moment's error of the clock
// (common/base/clock.h).
void batch_store_purge(struct batch_store *store, uint64_t now_s);

// --- batches --------------------------------------------------------------------------------------------------------------
// RESOURCE_EXHAUSTED: the tenant has BATCH_OPEN_MAX that are not over. OUT_OF_RANGE: there would be too many files with its results.
enum status batch_store_add_batch(struct batch_store *store, const struct batch_record *record, struct error *error) MUST_CHECK;
enum status batch_store_get_batch(struct batch_store *store, const char *tenant, const char *id, struct batch_record *out,
                                  struct error *error) MUST_CHECK;
enum status batch_store_list_batches(struct batch_store *store, const struct batch_page *page,
                                     void (*each)(void *arg, const struct batch_record *record), void *arg, bool *more,
                                     struct error *error) MUST_CHECK;
// Moves a batch that is not over to CANCELLING; FAILED_PRECONDITION: it is over.
enum status batch_store_cancel_batch(struct batch_store *store, const char *tenant, const char *id, struct error *error) MUST_CHECK;

// Lists the batches of all tenants that are not over, oldest first.
enum status batch_store_each_open(struct batch_store *store, void (*each)(void *arg, const struct batch_record *record), void *arg,
                                  struct error *error) MUST_CHECK;
// Whether it is to be cancelled.
enum status batch_store_is_cancelling(struct batch_store *store, const char *id, bool *out, struct error *error) MUST_CHECK;
// Sets status and counts. A batch that is CANCELLING stays so.
enum status batch_store_set_progress(struct batch_store *store, const char *id, enum batch_status status,
                                     const struct batch_counts *counts, struct error *error) MUST_CHECK;
// Ends a batch: syncs the names of its results, whose bytes are synced, and sets its status, counts, results and error, and the rows of its
// results, in one transaction.
enum status batch_store_end_batch(struct batch_store *store, const struct batch_record *record, uint64_t output_bytes,
                                  uint64_t errors_bytes, struct error *error) MUST_CHECK;

#endif

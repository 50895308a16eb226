// store.c: see store.h: names, and the room that each tenant has.
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/gateway/batch/store_internal.h"

static const char *const status_names[BATCH_STATUS_COUNT] = {
    [BATCH_VALIDATING] = "validating", [BATCH_IN_PROGRESS] = "in_progress", [BATCH_FINALIZING] = "finalizing",
    [BATCH_CANCELLING] = "cancelling", [BATCH_COMPLETED] = "completed",     [BATCH_FAILED] = "failed",
    [BATCH_EXPIRED] = "expired",       [BATCH_CANCELLED] = "cancelled",
};

const char *batch_status_name(enum batch_status status) { return status_names[status]; }

void batch_record_free(struct batch_record *record)
{
    free(record->metadata);
    record->metadata = NULL;
}

void batch_store_make_id(const char *prefix, char out[BATCH_ID_BYTES])
{
    unsigned char random[BATCH_ID_DIGITS / 2];
    char digits[2 * sizeof random + 1];

    randombytes_buf(random, sizeof random);
    sodium_bin2hex(digits, sizeof digits, random, sizeof random);
    snprintf(out, BATCH_ID_BYTES, "%s%s", prefix, digits);
}

void batch_store_path(const struct batch_store *store, const char *id, bool part, char out[BATCH_PATH_BYTES])
{
    snprintf(out, BATCH_PATH_BYTES, "%s/files/%s%s", store->config.dir, id, part ? ".part" : "");
}

// --- room ----------------------------------------------------------------------------------------------------------
struct batch_tenant *batch_store_tenant(struct batch_store *store, const char *name)
{
    struct batch_tenant *tenant = store->tenants;

    while (tenant && strcmp(tenant->name, name) != 0)
        tenant = tenant->next;
    if (tenant || !(tenant = calloc(1, sizeof *tenant)))
        return tenant;
    snprintf(tenant->name, sizeof tenant->name, "%s", name);
    tenant->next = store->tenants;
    store->tenants = tenant;
    return tenant;
}

static uint64_t add_signed(uint64_t sum, int64_t more)
{
    return more >= 0 ? sum + (uint64_t)more : sum - MIN(sum, (uint64_t)-more);
}

void batch_store_count_bytes(struct batch_store *store, const char *tenant, int64_t bytes)
{
    struct batch_tenant *owner = batch_store_tenant(store, tenant);

    store->bytes = add_signed(store->bytes, bytes);
    if (owner)
        owner->bytes = add_signed(owner->bytes, bytes);
}

// With the mutex held. Whether the tenant may have so many bytes more.
static bool has_room(struct batch_store *store, const char *tenant, uint64_t bytes)
{
    const struct batch_tenant *owner = batch_store_tenant(store, tenant);
    const struct batch_store_config *config = &store->config;

    if (!owner || store->bytes + bytes > config->max_bytes)
        return false;
    return config->share >= 1 || (double)(owner->bytes + bytes) <= config->share * (double)config->max_bytes;
}

bool batch_store_reserve(struct batch_store *store, const char *tenant, uint64_t bytes)
{
    bool fits;

    pthread_mutex_lock(&store->mutex);
    fits = has_room(store, tenant, bytes);
    if (fits)
        batch_store_count_bytes(store, tenant, (int64_t)bytes);
    pthread_mutex_unlock(&store->mutex);
    return fits;
}

void batch_store_release(struct batch_store *store, const char *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&store->mutex);
    batch_store_count_bytes(store, tenant, -(int64_t)bytes);
    pthread_mutex_unlock(&store->mutex);
}

void batch_store_add_bytes(struct batch_store *store, const char *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&store->mutex);
    batch_store_count_bytes(store, tenant, (int64_t)bytes);
    pthread_mutex_unlock(&store->mutex);
}

bool batch_store_is_full(struct batch_store *store, const char *tenant)
{
    bool full;

    pthread_mutex_lock(&store->mutex);
    full = !has_room(store, tenant, 1);
    pthread_mutex_unlock(&store->mutex);
    return full;
}

enum status batch_store_count_open(struct batch_store *store, const char *tenant, uint64_t *count, struct error *error)
{
    struct batch_sql sql = batch_sql_open(store->db, "SELECT count(*) FROM batches WHERE tenant = ?1 AND status < ?2",
                                          BATCH_VALUES(batch_text(tenant), batch_number(BATCH_COMPLETED)));

    if (batch_sql_step(&sql))
        *count = batch_sql_u64(&sql, 0);
    return batch_sql_close(&sql, error);
}

enum status batch_store_check_files(struct batch_store *store, const char *tenant, uint64_t more, struct error *error)
{
    const struct batch_tenant *owner = batch_store_tenant(store, tenant);
    uint64_t open = 0;
    enum status status;

    if (!owner)
        return error_set(error, STATUS_INTERNAL, "out of memory");
    status = batch_store_count_open(store, tenant, &open, error);
    if (status != STATUS_OK || owner->files + 2 * open + more <= store->config.max_files)
        return status;
    return error_set(error, STATUS_OUT_OF_RANGE,
                     "there are %llu files, and %llu batches that are not over will have two each; the most is %llu: delete files "
                     "that are not needed any more",
                     (unsigned long long)owner->files, (unsigned long long)open, (unsigned long long)store->config.max_files);
}

enum status batch_store_check_upload(struct batch_store *store, const char *tenant, struct error *error)
{
    enum status status;

    pthread_mutex_lock(&store->mutex);
    status = batch_store_check_files(store, tenant, 1, error);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

static uint64_t reserved_bytes(const struct batch_store *store)
{
    struct stat about;

    return store->reserve >= 0 && fstat(store->reserve, &about) == 0 ? (uint64_t)about.st_size : 0;
}

bool batch_store_spend_reserve(struct batch_store *store)
{
    return sqlite3_errcode(store->db) != SQLITE_BUSY && reserved_bytes(store) > 0 && ftruncate(store->reserve, 0) == 0;
}

void batch_store_keep_reserve(struct batch_store *store)
{
    if (store->reserve < 0 || reserved_bytes(store) >= BATCH_RESERVE_BYTES)
        return;
    sqlite3_busy_timeout(store->db, 0);
    sqlite3_wal_checkpoint_v2(store->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL); // what was spent may lie in its journal
    sqlite3_busy_timeout(store->db, BATCH_BUSY_MS);
    for (off_t bytes = BATCH_RESERVE_BYTES; bytes >= BATCH_RESERVE_LEAST_BYTES; bytes /= 2)
        if (posix_fallocate(store->reserve, 0, bytes) == 0)
            break;
}

enum status batch_store_insist(struct batch_store *store, batch_store_write_fn *write, const void *arg, struct error *error)
{
    enum status status;
    bool again = true;

    while (again) {
        status = batch_sql_run(store->db, "BEGIN", error);
        if (status == STATUS_OK)
            status = write(store, arg, error);
        if (status == STATUS_OK)
            status = batch_sql_run(store->db, "COMMIT", error);
        again = status == STATUS_UNAVAILABLE && batch_store_spend_reserve(store);
        if (status != STATUS_OK)
            (void)!batch_sql_run(store->db, "ROLLBACK", NULL);
    }
    batch_store_keep_reserve(store);
    return status;
}

enum status batch_store_no_file(const char *id, struct error *error)
{
    return error_set(error, STATUS_NOT_FOUND, "No such File object: %.64s", id);
}

enum status batch_store_find_after(struct batch_store *store, const char *text, const struct batch_page *page, uint64_t *seq,
                                   struct error *error)
{
    struct batch_sql sql = batch_sql_open(store->db, text, BATCH_VALUES(batch_text(page->after), batch_text(page->tenant)));
    const bool found = batch_sql_step(&sql);
    enum status status;

    if (found)
        *seq = batch_sql_u64(&sql, 0);
    status = batch_sql_close(&sql, error);
    return status == STATUS_OK && !found ? STATUS_NOT_FOUND : status;
}

enum status batch_store_sync_names(struct batch_store *store, struct error *error)
{
    if (fsync(store->folder) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_UNAVAILABLE, "%s/files: %s", store->config.dir, strerror(errno));
}

// --- a disk that does not take something ------------------------------------------------------------------------------
void batch_store_failed(struct batch_store *store, enum batch_write what, const char *id, const char *why)
{
    struct repeat *repeat = &store->failed[what];

    pthread_mutex_lock(&store->mutex);
    store->failures[what]++;
    const bool due = repeat_is_due(repeat, clock_now_us(), "");
    const uint32_t count = repeat->count;
    pthread_mutex_unlock(&store->mutex);
    if (due && what == BATCH_WRITE_DATABASE)
        log_warn("BATCH-STORE",
                 "file=%s/batches.db error=\"%s\" times=%u what=\"free space on that disk, or mend it: batches wait until then\"",
                 store->config.dir, why, count);
    else if (due)
        log_warn("BATCH-DISK",
                 "dir=%s/files id=%s error=\"%s\" times=%u what=\"free space on that disk, or mend it: results wait until then, "
                 "and uploads get status 507\"",
                 store->config.dir, id, why, count);
}

void batch_store_failures(struct batch_store *store, uint64_t counts[BATCH_WRITE_COUNT])
{
    pthread_mutex_lock(&store->mutex);
    memcpy(counts, store->failures, sizeof store->failures);
    pthread_mutex_unlock(&store->mutex);
}

// --- SQLite statements, with one look at what failed -----------------------------------------------------------------

struct batch_sql batch_sql_open(sqlite3 *db, const char *text, const struct batch_value *values, size_t count)
{
    struct batch_sql sql = {.db = db};

    sql.code = sqlite3_prepare_v2(db, text, -1, &sql.statement, NULL);
    for (size_t i = 0; i < count && sql.code == SQLITE_OK; i++)
        sql.code = values[i].is_text ? sqlite3_bind_text(sql.statement, (int)i + 1, values[i].text, -1, SQLITE_STATIC)
                                     : sqlite3_bind_int64(sql.statement, (int)i + 1, (sqlite3_int64)values[i].number);
    return sql;
}

bool batch_sql_step(struct batch_sql *sql)
{
    if (sql->code == SQLITE_OK || sql->code == SQLITE_ROW)
        sql->code = sqlite3_step(sql->statement);
    return sql->code == SQLITE_ROW;
}

void batch_sql_copy(struct batch_sql *sql, int column, char *out, size_t out_bytes)
{
    const char *text = (const char *)sqlite3_column_text(sql->statement, column);

    snprintf(out, out_bytes, "%s", text ? text : "");
}

uint64_t batch_sql_u64(struct batch_sql *sql, int column) { return (uint64_t)sqlite3_column_int64(sql->statement, column); }

// A disk that is full or broken is no defect of this program.
static enum status status_of(int code)
{
    switch (code & 0xFF) { // of an extended code
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_BUSY: return STATUS_UNAVAILABLE;
    default: return STATUS_INTERNAL;
    }
}

enum status batch_sql_close(struct batch_sql *sql, struct error *error)
{
    bool ok = sql->code == SQLITE_OK || sql->code == SQLITE_ROW || sql->code == SQLITE_DONE;
    enum status status = ok ? STATUS_OK : status_of(sql->code);

    if (!ok)
        error_set(error, status, "--batch-dir: database: %s", sqlite3_errmsg(sql->db));
    sqlite3_finalize(sql->statement);
    sql->statement = NULL;
    return status;
}

enum status batch_sql_do(sqlite3 *db, const char *text, const struct batch_value *values, size_t count, struct error *error)
{
    struct batch_sql sql = batch_sql_open(db, text, values, count);

    batch_sql_step(&sql);
    return batch_sql_close(&sql, error);
}

enum status batch_sql_run(sqlite3 *db, const char *text, struct error *error)
{
    int code = sqlite3_exec(db, text, NULL, NULL, NULL);

    return code == SQLITE_OK ? STATUS_OK : error_set(error, status_of(code), "--batch-dir: database: %s", sqlite3_errmsg(db));
}

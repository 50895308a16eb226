// store_files.c: see store.h: rows of files.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/gateway/batch/store_internal.h"

#define COLUMNS "id, tenant, purpose, filename, bytes, created, expires"
#define IS_LIVE "(expires = 0 OR expires > ?2)"

static struct batch_file read_file(struct batch_sql *sql)
{
    struct batch_file file;

    batch_sql_copy(sql, 0, file.id, sizeof file.id);
    batch_sql_copy(sql, 1, file.tenant, sizeof file.tenant);
    batch_sql_copy(sql, 2, file.purpose, sizeof file.purpose);
    batch_sql_copy(sql, 3, file.filename, sizeof file.filename);
    file.bytes = batch_sql_u64(sql, 4);
    file.created_s = batch_sql_u64(sql, 5);
    file.expires_s = batch_sql_u64(sql, 6);
    return file;
}

static uint64_t now_s(void) { return clock_wall_us() / 1000000; }

enum status batch_store_insert_file(struct batch_store *store, const struct batch_file *file, struct error *error)
{
    return batch_sql_do(store->db, "INSERT INTO files (" COLUMNS ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                        BATCH_VALUES(batch_text(file->id), batch_text(file->tenant), batch_text(file->purpose),
                                     batch_text(file->filename), batch_number(file->bytes), batch_number(file->created_s),
                                     batch_number(file->expires_s)),
                        error);
}

enum status batch_store_check_file_table(struct batch_store *store, struct error *error)
{
    struct batch_sql sql = batch_sql_open(store->db, "SELECT seq, " COLUMNS " FROM files LIMIT 0", NULL, 0);

    return batch_sql_close(&sql, error);
}

enum status batch_store_count_files(struct batch_store *store, struct error *error)
{
    struct batch_sql sql = batch_sql_open(store->db, "SELECT tenant, count(*) FROM files GROUP BY tenant", NULL, 0);

    while (batch_sql_step(&sql)) {
        char name[KEY_TENANT_BYTES];
        struct batch_tenant *tenant;
        batch_sql_copy(&sql, 0, name, sizeof name);
        tenant = batch_store_tenant(store, name);
        if (tenant)
            tenant->files = batch_sql_u64(&sql, 1);
    }
    return batch_sql_close(&sql, error);
}

// With the mutex held, after a commit that has failed: whether the next start may find it in the journal, where it is whole if only its sync has
// failed. Another commit that succeeds takes its place there.
static bool may_come_back(struct batch_store *store)
{
    return sqlite3_errcode(store->db) == SQLITE_IOERR && batch_sql_run(store->db, "PRAGMA application_id = 0", NULL) != STATUS_OK;
}

enum status batch_store_add_file(struct batch_store *store, const struct batch_file *file, int fd, struct error *error)
{
    char part[BATCH_PATH_BYTES], path[BATCH_PATH_BYTES];
    struct batch_tenant *tenant;
    bool in_doubt = false;
    enum status status;

    batch_store_path(store, file->id, true, part);
    batch_store_path(store, file->id, false, path);
    if (fsync(fd) != 0 || rename(part, path) != 0)
        return error_set(error, STATUS_UNAVAILABLE, "the file cannot be stored: %s", strerror(errno));
    status = batch_store_sync_names(store, error);
    pthread_mutex_lock(&store->mutex);
    tenant = batch_store_tenant(store, file->tenant);
    if (status == STATUS_OK)
        status = batch_store_check_files(store, file->tenant, 1, error);
    if (status == STATUS_OK) {
        status = batch_store_insert_file(store, file, error);
        in_doubt = status == STATUS_UNAVAILABLE && may_come_back(store);
    }
    if (status == STATUS_OK && tenant)
        tenant->files++;
    if (in_doubt)
        batch_store_count_bytes(store, file->tenant, (int64_t)file->bytes);
    pthread_mutex_unlock(&store->mutex);
    if (status != STATUS_OK && !in_doubt) // else the next start finds the row and the file, or removes the file
        unlink(path);
    return status;
}

// With the mutex held.
static enum status get_file(struct batch_store *store, const char *tenant, const char *id, struct batch_file *out,
                            struct error *error)
{
    struct batch_sql sql = batch_sql_open(store->db, "SELECT " COLUMNS " FROM files WHERE id = ?1 AND " IS_LIVE " AND tenant = ?3",
                                          BATCH_VALUES(batch_text(id), batch_number(now_s()), batch_text(tenant)));
    enum status status;
    bool found;

    found = batch_sql_step(&sql);
    if (found)
        *out = read_file(&sql);
    status = batch_sql_close(&sql, error);
    return status == STATUS_OK && !found ? batch_store_no_file(id, error) : status;
}

enum status batch_store_get_file(struct batch_store *store, const char *tenant, const char *id, struct batch_file *out,
                                 struct error *error)
{
    enum status status;

    pthread_mutex_lock(&store->mutex);
    status = get_file(store, tenant, id, out, error);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

static enum status remove_row(struct batch_store *store, const void *arg, struct error *error)
{
    const struct batch_file *file = arg;

    return batch_sql_do(store->db, "DELETE FROM files WHERE id = ?1", BATCH_VALUES(batch_text(file->id)), error);
}

// With the mutex held: the row, then the file, whose loss the next start makes up for.
static enum status remove_file(struct batch_store *store, const struct batch_file *file, struct error *error)
{
    struct batch_tenant *tenant = batch_store_tenant(store, file->tenant);
    enum status status = batch_store_insist(store, remove_row, file, error);
    char path[BATCH_PATH_BYTES];

    if (status != STATUS_OK)
        return status;
    batch_store_path(store, file->id, false, path);
    if (unlink(path) != 0)
        log_warn("BATCH-FILE-STAYS", "file=%s", file->id);
    batch_store_count_bytes(store, file->tenant, -(int64_t)file->bytes);
    if (tenant && tenant->files > 0)
        tenant->files--;
    batch_store_keep_reserve(store);
    return STATUS_OK;
}

// With the mutex held. The batch that needs the file, if there is one.
static bool is_needed(struct batch_store *store, const char *id, char batch[BATCH_ID_BYTES])
{
    struct batch_sql sql = batch_sql_open(store->db, "SELECT id FROM batches WHERE status < ?2 AND input = ?1",
                                          BATCH_VALUES(batch_text(id), batch_number(BATCH_COMPLETED)));
    bool needed;

    needed = batch_sql_step(&sql);
    if (needed)
        batch_sql_copy(&sql, 0, batch, BATCH_ID_BYTES);
    return batch_sql_close(&sql, NULL) != STATUS_OK || needed;
}

enum status batch_store_delete_file(struct batch_store *store, const char *tenant, const char *id, struct error *error)
{
    char batch[BATCH_ID_BYTES] = "";
    struct batch_file file;
    enum status status;

    pthread_mutex_lock(&store->mutex);
    status = get_file(store, tenant, id, &file, error);
    if (status == STATUS_OK && is_needed(store, id, batch))
        status = error_set(error, STATUS_FAILED_PRECONDITION,
                           "the file is the input of batch '%s', which is not over: cancel it first", batch);
    if (status == STATUS_OK)
        status = remove_file(store, &file, error);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

enum status batch_store_list_files(struct batch_store *store, const struct batch_page *page,
                                   void (*each)(void *arg, const struct batch_file *file), void *arg, bool *more,
                                   struct error *error)
{
    uint64_t after = page->ascending ? 0 : INT64_MAX;
    enum status status = STATUS_OK;
    struct batch_sql sql;
    uint32_t count = 0;

    *more = false;
    pthread_mutex_lock(&store->mutex);
    if (page->after[0])
        status = batch_store_find_after(store, "SELECT seq FROM files WHERE id = ?1 AND tenant = ?2", page, &after, error);
    if (status == STATUS_NOT_FOUND)
        status = batch_store_no_file(page->after, error);
    if (status == STATUS_OK) {
        sql = batch_sql_open(store->db,
                             page->ascending ? "SELECT " COLUMNS " FROM files WHERE tenant = ?1 AND " IS_LIVE
                                               " AND seq > ?3 AND (?4 = '' OR purpose = ?4) ORDER BY seq LIMIT ?5"
                                             : "SELECT " COLUMNS " FROM files WHERE tenant = ?1 AND " IS_LIVE
                                               " AND seq < ?3 AND (?4 = '' OR purpose = ?4) ORDER BY seq DESC LIMIT ?5",
                             BATCH_VALUES(batch_text(page->tenant), batch_number(now_s()), batch_number(after),
                                          batch_text(page->purpose), batch_number((uint64_t)page->limit + 1)));
        while (batch_sql_step(&sql)) {
            struct batch_file file = read_file(&sql);
            *more = count++ == page->limit;
            if (!*more)
                each(arg, &file);
        }
        status = batch_sql_close(&sql, error);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

// With the mutex held. False: there is none that has expired and is not needed.
static bool purge_one(struct batch_store *store, uint64_t at_s)
{
    struct batch_sql sql = batch_sql_open(store->db,
                                          "SELECT " COLUMNS " FROM files WHERE expires > 0 AND expires <= ?1 AND NOT EXISTS "
                                          "(SELECT 1 FROM batches WHERE status < ?2 AND input = files.id) LIMIT 1",
                                          BATCH_VALUES(batch_number(at_s), batch_number(BATCH_COMPLETED)));
    struct batch_file file;
    bool found;

    found = batch_sql_step(&sql);
    if (found)
        file = read_file(&sql);
    if (batch_sql_close(&sql, NULL) != STATUS_OK || !found)
        return false;
    if (remove_file(store, &file, NULL) != STATUS_OK)
        return false;
    log_info("BATCH-FILE-EXPIRED", "file=%s", file.id);
    return true;
}

void batch_store_purge(struct batch_store *store, uint64_t at_s)
{
    const uint64_t over_s = at_s > BATCH_KEPT_S ? at_s - BATCH_KEPT_S : 0;

    for (bool found = true; found;) { // the lock is given up between two, so that nobody waits long
        pthread_mutex_lock(&store->mutex);
        found = purge_one(store, at_s);
        pthread_mutex_unlock(&store->mutex);
    }
    pthread_mutex_lock(&store->mutex);
    (void)!batch_sql_do(store->db, "DELETE FROM batches WHERE status >= ?1 AND max(at_4, at_5, at_6, at_7) <= ?2",
                        BATCH_VALUES(batch_number(BATCH_COMPLETED), batch_number(over_s)), NULL);
    batch_store_keep_reserve(store);
    pthread_mutex_unlock(&store->mutex);
}

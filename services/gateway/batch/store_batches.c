// store_batches.c: see store.h: rows of batches.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/gateway/batch/store_internal.h"

#define COLUMNS                                                                                                                    \
    "id, tenant, status, endpoint, input, output, errors, has_output, has_errors, window, metadata, expires, output_kept, total, " \
    "completed, failed, error_code, error_message, error_line, at_0, at_1, at_2, at_3, at_4, at_5, at_6, at_7"

static uint64_t now_s(void) { return clock_wall_us() / 1000000; }

static struct batch_record read_record(struct batch_sql *sql)
{
    struct batch_record record = {.status = (enum batch_status)batch_sql_u64(sql, 2),
                                  .endpoint = (enum batch_endpoint)batch_sql_u64(sql, 3),
                                  .has_output = batch_sql_u64(sql, 7) != 0,
                                  .has_errors = batch_sql_u64(sql, 8) != 0,
                                  .expires_s = batch_sql_u64(sql, 11),
                                  .output_kept_s = batch_sql_u64(sql, 12),
                                  .counts = {batch_sql_u64(sql, 13), batch_sql_u64(sql, 14), batch_sql_u64(sql, 15)},
                                  .error_line = batch_sql_u64(sql, 18)};
    const char *metadata = (const char *)sqlite3_column_text(sql->statement, 10);
    int i;

    batch_sql_copy(sql, 0, record.id, sizeof record.id);
    batch_sql_copy(sql, 1, record.tenant, sizeof record.tenant);
    batch_sql_copy(sql, 4, record.input, sizeof record.input);
    batch_sql_copy(sql, 5, record.output, sizeof record.output);
    batch_sql_copy(sql, 6, record.errors, sizeof record.errors);
    batch_sql_copy(sql, 9, record.window, sizeof record.window);
    batch_sql_copy(sql, 16, record.error_code, sizeof record.error_code);
    batch_sql_copy(sql, 17, record.error_message, sizeof record.error_message);
    record.metadata = metadata ? strdup(metadata) : NULL;
    for (i = 0; i < BATCH_STATUS_COUNT; i++)
        record.at_s[i] = batch_sql_u64(sql, 19 + i);
    if (record.status >= BATCH_STATUS_COUNT || record.endpoint >= BATCH_ENDPOINT_COUNT) // of another program's making
        record.status = BATCH_FAILED, record.endpoint = BATCH_ENDPOINT_COMPLETIONS;
    return record;
}

enum status batch_store_check_batch_table(struct batch_store *store, struct error *error)
{
    struct batch_sql sql = batch_sql_open(store->db, "SELECT seq, " COLUMNS " FROM batches LIMIT 0", NULL, 0);

    return batch_sql_close(&sql, error);
}

static enum status insert(struct batch_store *store, const struct batch_record *record, struct error *error)
{
    enum status status =
        batch_sql_do(store->db,
                     "INSERT INTO batches (id, tenant, status, endpoint, input, output, errors, window, metadata, expires, "
                     "output_kept, at_0) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 "
                     "WHERE EXISTS (SELECT 1 FROM files WHERE id = ?5 AND tenant = ?2)",
                     BATCH_VALUES(batch_text(record->id), batch_text(record->tenant), batch_number(record->status),
                                  batch_number(record->endpoint), batch_text(record->input), batch_text(record->output),
                                  batch_text(record->errors), batch_text(record->window), batch_text(record->metadata),
                                  batch_number(record->expires_s), batch_number(record->output_kept_s),
                                  batch_number(record->at_s[BATCH_VALIDATING])),
                     error);

    if (status == STATUS_OK && sqlite3_changes(store->db) == 0) // deleted since the caller looked
        return batch_store_no_file(record->input, error);
    return status;
}

// With the mutex held: what is over, beyond BATCH_OVER_MAX. A failure is made up for by the next batch.
static void forget_oldest(struct batch_store *store, const char *tenant)
{
    (void)!batch_sql_do(store->db,
                        "DELETE FROM batches WHERE tenant = ?1 AND status >= ?2 AND seq <= (SELECT seq FROM batches "
                        "WHERE tenant = ?1 AND status >= ?2 ORDER BY seq DESC LIMIT 1 OFFSET ?3)",
                        BATCH_VALUES(batch_text(tenant), batch_number(BATCH_COMPLETED), batch_number(BATCH_OVER_MAX)), NULL);
}

enum status batch_store_add_batch(struct batch_store *store, const struct batch_record *record, struct error *error)
{
    enum status status;
    uint64_t open = 0;

    pthread_mutex_lock(&store->mutex);
    status = batch_store_count_open(store, record->tenant, &open, error);
    if (status == STATUS_OK && open >= BATCH_OPEN_MAX)
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%d batches are not over yet, which is the most", BATCH_OPEN_MAX);
    if (status == STATUS_OK)
        status = batch_store_check_files(store, record->tenant, 2, error);
    if (status == STATUS_OK)
        status = insert(store, record, error);
    if (status == STATUS_OK)
        forget_oldest(store, record->tenant);
    pthread_mutex_unlock(&store->mutex);
    if (status == STATUS_UNAVAILABLE)
        batch_store_failed(store, BATCH_WRITE_DATABASE, "", error->text);
    return status;
}

static enum status fail_no_batch(const char *id, struct error *error)
{
    return error_set(error, STATUS_NOT_FOUND, "No batch found with id '%.64s'", id);
}

// With the mutex held.
static enum status get(struct batch_store *store, const char *tenant, const char *id, struct batch_record *out, struct error *error)
{
    struct batch_sql sql = batch_sql_open(store->db, "SELECT " COLUMNS " FROM batches WHERE id = ?1 AND tenant = ?2",
                                          BATCH_VALUES(batch_text(id), batch_text(tenant)));
    enum status status;
    bool found;

    *out = (struct batch_record){0};
    found = batch_sql_step(&sql);
    if (found)
        *out = read_record(&sql);
    status = batch_sql_close(&sql, error);
    return status == STATUS_OK && !found ? fail_no_batch(id, error) : status;
}

enum status batch_store_get_batch(struct batch_store *store, const char *tenant, const char *id, struct batch_record *out,
                                  struct error *error)
{
    enum status status;

    pthread_mutex_lock(&store->mutex);
    status = get(store, tenant, id, out, error);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

enum status batch_store_list_batches(struct batch_store *store, const struct batch_page *page,
                                     void (*each)(void *arg, const struct batch_record *record), void *arg, bool *more,
                                     struct error *error)
{
    enum status status = STATUS_OK;
    uint64_t before = INT64_MAX;
    struct batch_sql sql;
    uint32_t count = 0;

    *more = false;
    pthread_mutex_lock(&store->mutex);
    if (page->after[0])
        status = batch_store_find_after(store, "SELECT seq FROM batches WHERE id = ?1 AND tenant = ?2", page, &before, error);
    if (status == STATUS_NOT_FOUND)
        status = fail_no_batch(page->after, error);
    if (status == STATUS_OK) {
        sql = batch_sql_open(store->db, "SELECT " COLUMNS " FROM batches WHERE tenant = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3",
                             BATCH_VALUES(batch_text(page->tenant), batch_number(before), batch_number((uint64_t)page->limit + 1)));
        while (batch_sql_step(&sql)) {
            struct batch_record record = read_record(&sql);
            *more = count++ == page->limit;
            if (!*more)
                each(arg, &record);
            batch_record_free(&record);
        }
        status = batch_sql_close(&sql, error);
    }
    pthread_mutex_unlock(&store->mutex);
    return status;
}

static enum status set_cancelling(struct batch_store *store, const void *arg, struct error *error)
{
    const struct batch_record *record = arg;

    return batch_sql_do(store->db, "UPDATE batches SET status = ?2, at_3 = ?3 WHERE id = ?1",
                        BATCH_VALUES(batch_text(record->id), batch_number(BATCH_CANCELLING), batch_number(now_s())), error);
}

enum status batch_store_cancel_batch(struct batch_store *store, const char *tenant, const char *id, struct error *error)
{
    struct batch_record record;
    enum status status;

    pthread_mutex_lock(&store->mutex);
    status = get(store, tenant, id, &record, error);
    if (status == STATUS_OK && record.status >= BATCH_COMPLETED && record.status != BATCH_CANCELLED)
        status = error_set(error, STATUS_FAILED_PRECONDITION, "Cannot cancel a batch with status '%s'",
                           batch_status_name(record.status));
    if (status == STATUS_OK && record.status < BATCH_CANCELLING)
        status = batch_store_insist(store, set_cancelling, &record, error); // its files can be deleted once it has ended
    batch_record_free(&record);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

enum status batch_store_each_open(struct batch_store *store, void (*each)(void *arg, const struct batch_record *record), void *arg,
                                  struct error *error)
{
    struct batch_sql sql;
    enum status status;

    pthread_mutex_lock(&store->mutex);
    sql = batch_sql_open(store->db, "SELECT " COLUMNS " FROM batches WHERE status < ?1 ORDER BY seq",
                         BATCH_VALUES(batch_number(BATCH_COMPLETED)));
    while (batch_sql_step(&sql)) {
        struct batch_record record = read_record(&sql);
        each(arg, &record);
        batch_record_free(&record);
    }
    status = batch_sql_close(&sql, error);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

enum status batch_store_is_cancelling(struct batch_store *store, const char *id, bool *out, struct error *error)
{
    struct batch_sql sql;
    enum status status;

    pthread_mutex_lock(&store->mutex);
    sql = batch_sql_open(store->db, "SELECT 1 FROM batches WHERE id = ?1 AND status = ?2",
                         BATCH_VALUES(batch_text(id), batch_number(BATCH_CANCELLING)));
    *out = batch_sql_step(&sql);
    status = batch_sql_close(&sql, error);
    pthread_mutex_unlock(&store->mutex);
    return status;
}

enum status batch_store_set_progress(struct batch_store *store, const char *id, enum batch_status status,
                                     const struct batch_counts *counts, struct error *error)
{
    enum status result;
    char text[256];

    // the time at which a status is first reached stays, after a restart too
    snprintf(text, sizeof text,
             "UPDATE batches SET at_%d = CASE at_%d WHEN 0 THEN ?3 ELSE at_%d END, total = ?4, completed = ?5, failed = ?6, "
             "status = CASE status WHEN %d THEN status ELSE ?2 END WHERE id = ?1",
             status, status, status, BATCH_CANCELLING);
    pthread_mutex_lock(&store->mutex);
    result = batch_sql_do(store->db, text,
                          BATCH_VALUES(batch_text(id), batch_number(status), batch_number(now_s()), batch_number(counts->total),
                                       batch_number(counts->completed), batch_number(counts->failed)),
                          error);
    pthread_mutex_unlock(&store->mutex);
    return result;
}

static enum status update_end(struct batch_store *store, const struct batch_record *record, struct error *error)
{
    const struct batch_counts *counts = &record->counts;
    char text[320];

    snprintf(
        text, sizeof text,
        "UPDATE batches SET status = ?2, at_%d = ?3, total = ?4, completed = ?5, failed = ?6, has_output = ?7, has_errors = ?8, "
        "error_code = ?9, error_message = ?10, error_line = ?11 WHERE id = ?1",
        record->status);
    return batch_sql_do(store->db, text,
                        BATCH_VALUES(batch_text(record->id), batch_number(record->status), batch_number(now_s()),
                                     batch_number(counts->total), batch_number(counts->completed), batch_number(counts->failed),
                                     batch_number(record->has_output), batch_number(record->has_errors),
                                     batch_text(record->error_code), batch_text(record->error_message),
                                     batch_number(record->error_line)),
                        error);
}

static enum status add_results(struct batch_store *store, const struct batch_record *record, const char *id, const char *kind,
                               uint64_t bytes, struct error *error)
{
    struct batch_file file = {.purpose = "batch_output", .bytes = bytes, .created_s = now_s()};

    snprintf(file.id, sizeof file.id, "%s", id);
    snprintf(file.tenant, sizeof file.tenant, "%s", record->tenant);
    snprintf(file.filename, sizeof file.filename, "%s_%s.jsonl", record->id, kind);
    file.expires_s = file.created_s + record->output_kept_s;
    return batch_store_insert_file(store, &file, error);
}

struct end {
    const struct batch_record *record;
    uint64_t output_bytes, errors_bytes;
};

static enum status write_end(struct batch_store *store, const void *arg, struct error *error)
{
    const struct end *end = arg;
    const struct batch_record *record = end->record;
    enum status status = update_end(store, record, error);

    if (status == STATUS_OK && record->has_output)
        status = add_results(store, record, record->output, "output", end->output_bytes, error);
    if (status == STATUS_OK && record->has_errors)
        status = add_results(store, record, record->errors, "error", end->errors_bytes, error);
    return status;
}

enum status batch_store_end_batch(struct batch_store *store, const struct batch_record *record, uint64_t output_bytes,
                                  uint64_t errors_bytes, struct error *error)
{
    const struct end end = {.record = record, .output_bytes = output_bytes, .errors_bytes = errors_bytes};
    struct batch_tenant *tenant;
    enum status status = STATUS_OK;

    if (record->has_output || record->has_errors)
        status = batch_store_sync_names(store, error);
    if (status != STATUS_OK)
        return status;
    pthread_mutex_lock(&store->mutex);
    tenant = batch_store_tenant(store, record->tenant);
    status = batch_store_insist(store, write_end, &end, error);
    if (status == STATUS_OK && tenant)
        tenant->files += (uint64_t)record->has_output + record->has_errors;
    pthread_mutex_unlock(&store->mutex);
    return status;
}

// batch_store_internal.h: what the files of the store share: batch_store.c (folder, room), batch_store_files.c and batch_store_batches.c
// (rows), over batch_sql.c (statements).
#ifndef FD_GATEWAY_BATCH_STORE_INTERNAL_H
#define FD_GATEWAY_BATCH_STORE_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>

#include "services/gateway/batch_store.h"

struct batch_promise { // to the uploads of a tenant
    struct batch_promise *next;
    char tenant[KEY_TENANT_BYTES];
    uint64_t bytes;
};

struct batch_store {
    struct batch_store_config config;
    int lock;              // descriptor
    pthread_mutex_t mutex; // for all below
    sqlite3 *db;
    uint64_t bytes; // on disk and promised
    struct batch_promise *promises;
};

// A statement at work. The first failure is kept and makes what follows do nothing.
struct batch_sql {
    sqlite3 *db;
    sqlite3_stmt *statement;
    int code; // SQLITE_OK, SQLITE_ROW, SQLITE_DONE, or what failed
};

struct batch_sql batch_sql_open(sqlite3 *db, const char *text);
void batch_sql_text(struct batch_sql *sql, int index, const char *value); // value outlives the statement; NULL: null
void batch_sql_number(struct batch_sql *sql, int index, uint64_t value);
// True: there is a row.
bool batch_sql_step(struct batch_sql *sql);
void batch_sql_copy(struct batch_sql *sql, int column, char *out, size_t out_bytes); // null: ""
uint64_t batch_sql_u64(struct batch_sql *sql, int column);
// Ends it. INTERNAL with *error if anything failed.
enum status batch_sql_close(struct batch_sql *sql, struct error *error);
// One or more statements without values.
enum status batch_sql_run(sqlite3 *db, const char *text, struct error *error);

// With the mutex held: bytes of the tenant's uploads that are a file's now, or nobody's.
void batch_store_end_promise(struct batch_store *store, const char *tenant, uint64_t bytes);
// With the mutex held: the row of a file.
enum status batch_store_insert_file(struct batch_store *store, const struct batch_file *file, struct error *error);

#endif

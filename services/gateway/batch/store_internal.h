// store_internal.h: what the files of the store share: store_open.c (folder, database), over store_files.c and
// store_batches.c (rows), over store.c (names, room, statements).
#ifndef FD_GATEWAY_BATCH_STORE_INTERNAL_H
#define FD_GATEWAY_BATCH_STORE_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "services/gateway/batch/store.h"

enum { BATCH_ID_DIGITS = 24, BATCH_RESERVE_BYTES = 1 << 20, BATCH_RESERVE_LEAST_BYTES = 64 << 10 };

struct batch_tenant {
    struct batch_tenant *next;
    char name[KEY_TENANT_BYTES];
    uint64_t bytes; // of its files, of results that are being written, and promised to its uploads
    uint64_t files; // rows
};

enum { BATCH_BUSY_MS = 2000 }; // another program may look at the database, or copy it

struct batch_store {
    struct batch_store_config config;
    int lock, folder;      // descriptors; folder: `files`
    int reserve;           // likewise; -1: none, so a disk that is full stays so
    pthread_mutex_t mutex; // for all below
    sqlite3 *db;
    uint64_t bytes; // of all tenants
    struct batch_tenant *tenants;
    uint64_t failures[BATCH_WRITE_COUNT];
    struct repeat failed[BATCH_WRITE_COUNT];
};

// A statement at work. The first failure is kept and makes what follows do nothing.
struct batch_sql {
    sqlite3 *db;
    sqlite3_stmt *statement;
    int code; // SQLITE_OK, SQLITE_ROW, SQLITE_DONE, or what failed
};

// Values that take the place of ?1, ?2 and so on, in this order.
struct batch_value {
    const char *text; // outlives the statement; NULL: null
    uint64_t number;
    bool is_text;
};
#define BATCH_VALUES(...) (const struct batch_value[]){__VA_ARGS__}, ARRAY_COUNT(((const struct batch_value[]){__VA_ARGS__}))
static inline struct batch_value batch_text(const char *text) { return (struct batch_value){.text = text, .is_text = true}; }
static inline struct batch_value batch_number(uint64_t number) { return (struct batch_value){.number = number}; }

struct batch_sql batch_sql_open(sqlite3 *db, const char *text, const struct batch_value *values, size_t count);
// True: there is a row.
bool batch_sql_step(struct batch_sql *sql);
void batch_sql_copy(struct batch_sql *sql, int column, char *out, size_t out_bytes); // null: ""
uint64_t batch_sql_u64(struct batch_sql *sql, int column);
// Ends it. INTERNAL with *error if anything failed.
enum status batch_sql_close(struct batch_sql *sql, struct error *error);
// A statement that has no rows.
enum status batch_sql_do(sqlite3 *db, const char *text, const struct batch_value *values, size_t count, struct error *error);
// One or more statements without values.
enum status batch_sql_run(sqlite3 *db, const char *text, struct error *error);

// With the mutex held: what is known of a tenant, kept until the store is closed. NULL: no memory.
struct batch_tenant *batch_store_tenant(struct batch_store *store, const char *name);
// With the mutex held: adds to the bytes of the tenant and of all.
void batch_store_count_bytes(struct batch_store *store, const char *tenant, int64_t bytes);
// With the mutex held: batches of the tenant that are not over.
enum status batch_store_count_open(struct batch_store *store, const char *tenant, uint64_t *count, struct error *error);
// With the mutex held. OUT_OF_RANGE: so many files more, with the results of batches that are not over, would be too many.
enum status batch_store_check_files(struct batch_store *store, const char *tenant, uint64_t more, struct error *error);
// With the mutex held: the row of a file.
enum status batch_store_insert_file(struct batch_store *store, const struct batch_file *file, struct error *error);
// With the mutex held, after the database did not take something (UNAVAILABLE). Gives up the reserve, so that it may be tried again. False: there
// is none, or it is not the disk.
bool batch_store_spend_reserve(struct batch_store *store);
// With the mutex held. Makes the reserve again, as large as there is room for.
void batch_store_keep_reserve(struct batch_store *store);
typedef enum status batch_store_write_fn(struct batch_store *store, const void *arg, struct error *error);
// With the mutex held. Writes what makes room, or lets others make it, as one transaction; on a full disk with the reserve.
enum status batch_store_insist(struct batch_store *store, batch_store_write_fn *write, const void *arg, struct error *error);
// NOT_FOUND with *error: there is no such file.
enum status batch_store_no_file(const char *id, struct error *error);
// With the mutex held: the place in its list, by this statement, of the row that a page begins after. NOT_FOUND, without *error: there is none.
enum status batch_store_find_after(struct batch_store *store, const char *text, const struct batch_page *page, uint64_t *seq,
                                   struct error *error);
// Syncs the names in `files`.
enum status batch_store_sync_names(struct batch_store *store, struct error *error);
// At start: whether the tables have the columns of this gateway.
enum status batch_store_check_file_table(struct batch_store *store, struct error *error);
enum status batch_store_check_batch_table(struct batch_store *store, struct error *error);
// At start: counts the files of each tenant.
enum status batch_store_count_files(struct batch_store *store, struct error *error);

#endif

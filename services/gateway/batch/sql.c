// sql.c: SQLite statements, with one look at what failed.
#include <stdio.h>
#include <string.h>

#include "services/gateway/batch/store_internal.h"

struct batch_sql batch_sql_open(sqlite3 *db, const char *text)
{
    struct batch_sql sql = {.db = db};

    sql.code = sqlite3_prepare_v2(db, text, -1, &sql.statement, NULL);
    return sql;
}

void batch_sql_text(struct batch_sql *sql, int index, const char *value)
{
    if (sql->code == SQLITE_OK)
        sql->code = sqlite3_bind_text(sql->statement, index, value, -1, SQLITE_STATIC);
}

void batch_sql_number(struct batch_sql *sql, int index, uint64_t value)
{
    if (sql->code == SQLITE_OK)
        sql->code = sqlite3_bind_int64(sql->statement, index, (sqlite3_int64)value);
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

enum status batch_sql_run(sqlite3 *db, const char *text, struct error *error)
{
    int code = sqlite3_exec(db, text, NULL, NULL, NULL);

    return code == SQLITE_OK ? STATUS_OK : error_set(error, status_of(code), "--batch-dir: database: %s", sqlite3_errmsg(db));
}

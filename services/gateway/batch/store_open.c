// store_open.c: see store.h: the folder, its lock, its database, and what a gateway that was killed left in it.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "services/gateway/batch/store_internal.h"

enum { SCHEMA_VERSION = 1 };

static const char schema[] =
    "CREATE TABLE files (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, purpose TEXT NOT NULL,"
    "  filename TEXT NOT NULL, bytes INTEGER NOT NULL, created INTEGER NOT NULL, expires INTEGER NOT NULL);"
    "CREATE INDEX files_of_tenant ON files (tenant, seq);"
    "CREATE TABLE batches (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,"
    "  status INTEGER NOT NULL, endpoint INTEGER NOT NULL, input TEXT NOT NULL, output TEXT NOT NULL, errors TEXT NOT NULL,"
    "  has_output INTEGER NOT NULL DEFAULT 0, has_errors INTEGER NOT NULL DEFAULT 0, window TEXT NOT NULL, metadata TEXT,"
    "  at_0 INTEGER NOT NULL, at_1 INTEGER NOT NULL DEFAULT 0, at_2 INTEGER NOT NULL DEFAULT 0, at_3 INTEGER NOT NULL DEFAULT 0,"
    "  at_4 INTEGER NOT NULL DEFAULT 0, at_5 INTEGER NOT NULL DEFAULT 0, at_6 INTEGER NOT NULL DEFAULT 0,"
    "  at_7 INTEGER NOT NULL DEFAULT 0, expires INTEGER NOT NULL, output_kept INTEGER NOT NULL,"
    "  total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,"
    "  error_code TEXT NOT NULL DEFAULT '', error_message TEXT NOT NULL DEFAULT '', error_line INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX batches_of_tenant ON batches (tenant, seq);"
    "CREATE INDEX batches_by_status ON batches (status);"
    "PRAGMA user_version = 1;";

// Whether a name in `files` is one that a gateway gives: "file-" and 24 digits, ".part" behind them while it is written. *part: whether it
// has that. Whatever else lies there is somebody else's.
static bool is_own_name(const char *name, bool *part)
{
    const size_t prefix = strlen("file-");

    if (strncmp(name, "file-", prefix) != 0 || strspn(name + prefix, "0123456789abcdef") != BATCH_ID_DIGITS)
        return false;
    *part = strcmp(name + prefix + BATCH_ID_DIGITS, ".part") == 0;
    return *part || name[prefix + BATCH_ID_DIGITS] == '\0';
}

// --- opening -------------------------------------------------------------------------------------------------------
static enum status make_folder(const char *path, struct error *error)
{
    struct stat there;

    if (mkdir(path, 0700) == 0 || (errno == EEXIST && stat(path, &there) == 0 && S_ISDIR(there.st_mode)))
        return STATUS_OK;
    const int number = errno == EEXIST ? ENOTDIR : errno;
    return error_set(error, status_of_path(number), "--batch-dir: cannot make the folder %s: %s%s", path, strerror(number),
                     number == ENOENT ? " above it" : "");
}

// Syncs a file, or the names in a folder. UNAVAILABLE, with errno.
static enum status sync_path(const char *path, struct error *error)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool synced = fd >= 0 && fsync(fd) == 0;
    const int number = errno;

    if (fd >= 0)
        close(fd);
    if (synced)
        return STATUS_OK;
    error_set(error, STATUS_UNAVAILABLE, "--batch-dir: %s: %s", path, strerror(number));
    errno = number;
    return STATUS_UNAVAILABLE;
}

// Makes what the database says last, before anybody is told of it and files are removed by it: a process that was killed may have left a commit
// that was never synced. A checkpoint writes it once more, so that it lasts even if the sync of that process has failed; for that a disk may be
// too full.
static enum status sync_database(struct batch_store *store, struct error *error)
{
    char path[BATCH_PATH_BYTES];

    if (sqlite3_wal_checkpoint_v2(store->db, NULL, SQLITE_CHECKPOINT_FULL, NULL, NULL) == SQLITE_OK)
        return STATUS_OK;
    snprintf(path, sizeof path, "%s/batches.db-wal", store->config.dir);
    return sync_path(path, error);
}

// Makes the names of the folder, of `files` and of the database last. SQLite syncs the folder once it has made its journal, but goes on if that
// fails, and then what it commits could be lost with the journal's name. Whoever owns the folder above may keep it closed to others.
static enum status sync_folders(struct batch_store *store, struct error *error)
{
    char above[BATCH_PATH_BYTES];
    enum status status = sync_path(store->config.dir, error);

    snprintf(above, sizeof above, "%s/..", store->config.dir);
    if (status == STATUS_OK && sync_path(above, error) != STATUS_OK && errno != EACCES && errno != EINVAL && errno != EROFS)
        status = STATUS_UNAVAILABLE;
    return status;
}

static enum status take_lock(struct batch_store *store, struct error *error)
{
    char path[BATCH_PATH_BYTES], owner[32] = "";
    ssize_t bytes;

    snprintf(path, sizeof path, "%s/lock", store->config.dir);
    store->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (store->lock < 0)
        return error_set(error, status_of_path(errno), "--batch-dir: %s: %s: give a folder where files can be made", path,
                         strerror(errno));
    if (flock(store->lock, LOCK_EX | LOCK_NB) != 0) {
        bytes = read(store->lock, owner, sizeof owner - 1);
        owner[bytes > 0 ? strcspn(owner, "\n") : 0] = '\0';
        return error_set(error, STATUS_ALREADY_EXISTS,
                         "--batch-dir %s is in use by another gateway (process %s): a folder belongs to one, give this one its own",
                         store->config.dir, owner);
    }
    if (ftruncate(store->lock, 0) != 0 || dprintf(store->lock, "%ld\n", (long)getpid()) < 0)
        log_warn("BATCH-LOCK", "file=%s error=\"%s\"", path, strerror(errno)); // it is held, but does not say by whom
    return STATUS_OK;
}

// Refuses to make a database beside files of an earlier one: all of them would be removed as unfinished.
static enum status check_no_files(struct batch_store *store, struct error *error)
{
    char path[BATCH_PATH_BYTES];
    struct dirent *entry;
    bool part, found = false;
    DIR *folder;

    snprintf(path, sizeof path, "%s/files", store->config.dir);
    folder = opendir(path);
    if (!folder)
        return error_set(error, STATUS_UNAVAILABLE, "--batch-dir: %s: %s", path, strerror(errno));
    while (!found && (entry = readdir(folder)) != NULL)
        found = is_own_name(entry->d_name, &part) && !part;
    closedir(folder);
    if (!found)
        return STATUS_OK;
    return error_set(
        error, STATUS_FAILED_PRECONDITION,
        "--batch-dir: %s has files, but %s/batches.db, which says whose they are, is gone: put it back, or move the files away",
        path, store->config.dir);
}

static void open_reserve(struct batch_store *store)
{
    char path[BATCH_PATH_BYTES];

    snprintf(path, sizeof path, "%s/reserve", store->config.dir);
    store->reserve = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static enum status try_database(struct batch_store *store, struct error *error)
{
    char path[BATCH_PATH_BYTES];
    struct batch_sql sql;
    enum status status;
    uint64_t version = 0;

    snprintf(path, sizeof path, "%s/batches.db", store->config.dir);
    if (sqlite3_open_v2(path, &store->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) != SQLITE_OK)
        return error_set(error, STATUS_UNAVAILABLE, "--batch-dir: %s: %s", path, sqlite3_errmsg(store->db));
    sqlite3_busy_timeout(store->db, BATCH_BUSY_MS);
    status = batch_sql_run(store->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;", error);
    if (status != STATUS_OK) {
        error_prefix(error, "--batch-dir: %s cannot be used (put a copy back, or name another folder)", path);
        return status;
    }
    sql = batch_sql_open(store->db, "PRAGMA user_version", NULL, 0);
    if (batch_sql_step(&sql))
        version = batch_sql_u64(&sql, 0);
    status = batch_sql_close(&sql, error);
    if (status == STATUS_OK && version == SCHEMA_VERSION) {
        status = batch_store_check_file_table(store, error);
        if (status == STATUS_OK)
            status = batch_store_check_batch_table(store, error);
        if (status != STATUS_OK)
            error_prefix(error, "--batch-dir: %s is damaged (put a copy back, or name another folder)", path);
    }
    if (status != STATUS_OK || version == SCHEMA_VERSION)
        return status;
    if (version != 0)
        return error_set(
            error, STATUS_FAILED_PRECONDITION,
            "--batch-dir: %s is of version %llu, this gateway knows %d: use the gateway that made it, or another folder", path,
            (unsigned long long)version, SCHEMA_VERSION);
    status = check_no_files(store, error);
    if (status == STATUS_OK)
        status = batch_sql_run(store->db, "BEGIN", error);
    if (status == STATUS_OK)
        status = batch_sql_run(store->db, schema, error);
    return status == STATUS_OK ? batch_sql_run(store->db, "COMMIT", error) : status;
}

// SQLite needs some room to open a database.
static enum status open_database(struct batch_store *store, struct error *error)
{
    enum status status = try_database(store, error);

    if (status == STATUS_UNAVAILABLE && batch_store_spend_reserve(store)) {
        sqlite3_close(store->db);
        status = try_database(store, error);
    }
    if (status == STATUS_OK)
        batch_store_keep_reserve(store);
    return status;
}

// Whether anything refers to the file, and whose it is.
static bool is_known(struct batch_store *store, const char *id, char tenant[KEY_TENANT_BYTES])
{
    struct batch_sql sql = batch_sql_open(store->db,
                                          "SELECT tenant FROM files WHERE id = ?1 UNION ALL "
                                          "SELECT tenant FROM batches WHERE status < ?2 AND (output = ?1 OR errors = ?1)",
                                          BATCH_VALUES(batch_text(id), batch_number(BATCH_COMPLETED)));
    bool known;

    tenant[0] = '\0';
    known = batch_sql_step(&sql);
    if (known)
        batch_sql_copy(&sql, 0, tenant, KEY_TENANT_BYTES);
    return batch_sql_close(&sql, NULL) != STATUS_OK || known; // in doubt, it stays
}

// Removes what a gateway that was killed left behind, and adds up the rest.
static enum status sweep_files(struct batch_store *store, struct error *error)
{
    char path[BATCH_PATH_BYTES], tenant[KEY_TENANT_BYTES];
    struct dirent *entry;
    struct stat about;
    uint32_t removed = 0;
    bool part;
    DIR *folder;

    snprintf(path, sizeof path, "%s/files", store->config.dir);
    folder = opendir(path);
    if (!folder)
        return error_set(error, STATUS_UNAVAILABLE, "--batch-dir: %s: %s", path, strerror(errno));
    while ((entry = readdir(folder)) != NULL) {
        if (!is_own_name(entry->d_name, &part) || fstatat(dirfd(folder), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(about.st_mode))
            continue;
        if (is_known(store, entry->d_name, tenant))
            batch_store_count_bytes(store, tenant, about.st_size);
        else
            removed += unlinkat(dirfd(folder), entry->d_name, 0) == 0;
    }
    closedir(folder);
    if (removed)
        log_info("BATCH-FILES-REMOVED", "files=%u why=unfinished", removed);
    return STATUS_OK;
}

enum status batch_store_open(const struct batch_store_config *config, struct batch_store **out, struct error *error)
{
    struct batch_store *store = calloc(1, sizeof *store);
    char files[BATCH_PATH_BYTES];
    enum status status;

    *out = NULL;
    if (!store)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    store->config = *config;
    store->lock = store->folder = store->reserve = -1;
    pthread_mutex_init(&store->mutex, NULL);
    if (strlen(config->dir) > BATCH_PATH_BYTES / 2)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--batch-dir: the name is too long");
    else if (sodium_init() < 0)
        status = error_set(error, STATUS_UNAVAILABLE, "libsodium finds no source of random bytes");
    else
        status = make_folder(config->dir, error);
    snprintf(files, sizeof files, "%s/files", config->dir);
    if (status == STATUS_OK)
        status = take_lock(store, error);
    if (status == STATUS_OK)
        status = make_folder(files, error);
    if (status == STATUS_OK) {
        open_reserve(store);
        status = open_database(store, error);
    }
    if (status == STATUS_OK)
        status = sync_database(store, error);
    if (status == STATUS_OK)
        status = sync_folders(store, error);
    if (status == STATUS_OK && (store->folder = open(files, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        status = error_set(error, STATUS_UNAVAILABLE, "--batch-dir: %s: %s", files, strerror(errno));
    if (status == STATUS_OK)
        status = sweep_files(store, error);
    if (status == STATUS_OK)
        status = batch_store_count_files(store, error);
    if (status != STATUS_OK) {
        batch_store_close(store);
        return status;
    }
    *out = store;
    return STATUS_OK;
}

void batch_store_close(struct batch_store *store)
{
    struct batch_tenant *tenant;

    if (!store)
        return;
    sqlite3_close(store->db);
    if (store->folder >= 0)
        close(store->folder);
    if (store->reserve >= 0)
        close(store->reserve);
    if (store->lock >= 0)
        close(store->lock);
    while ((tenant = store->tenants) != NULL) {
        store->tenants = tenant->next;
        free(tenant);
    }
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

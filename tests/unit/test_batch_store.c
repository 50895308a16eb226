// test_batch_store.c: what a gateway keeps of files and batches: owners, lists, room, and what it does when its database fails it.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "services/gateway/batch/job.h"
#include "tests/unit/batch_store_rig.h"

// Stands before libc's. Notes what is synced, and fails for folders when told to.
static uint32_t folder_syncs;
static bool folders_fail;

int fsync(int fd)
{
    struct stat about;

    if (fstat(fd, &about) == 0 && S_ISDIR(about.st_mode)) {
        folder_syncs++;
        if (folders_fail) {
            errno = EIO;
            return -1;
        }
    }
    return (int)syscall(SYS_fsync, fd);
}

static bool is_cancelling(const struct batch_record *record)
{
    struct error error;
    bool cancelling;

    assert_int_equal(batch_store_is_cancelling(store, record->id, &cancelling, &error), STATUS_OK);
    return cancelling;
}

static void test_owners(void **state)
{
    struct batch_file file = put_file("key-a", "x\n", 0), got;
    struct batch_record record = put_batch(&file), seen;
    struct error error;

    assert_int_equal(batch_store_get_file(store, "key-a", file.id, &got, &error), STATUS_OK);
    assert_string_equal(got.filename, "in.jsonl");
    assert_int_equal(batch_store_get_file(store, "key-b", file.id, &got, &error), STATUS_NOT_FOUND);
    assert_int_equal(batch_store_get_file(store, "", file.id, &got, &error), STATUS_NOT_FOUND);
    assert_int_equal(batch_store_delete_file(store, "key-b", file.id, &error), STATUS_NOT_FOUND);
    assert_int_equal(batch_store_get_batch(store, "key-a", record.id, &seen, &error), STATUS_OK);
    batch_record_free(&seen);
    assert_int_equal(batch_store_get_batch(store, "key-b", record.id, &seen, &error), STATUS_NOT_FOUND);
    assert_int_equal(batch_store_cancel_batch(store, "key-b", record.id, &error), STATUS_NOT_FOUND);
    // a file of another tenant is no input
    memcpy(record.tenant, "key-b", 6);
    batch_store_make_id("batch_", record.id);
    assert_int_equal(batch_store_add_batch(store, &record, &error), STATUS_NOT_FOUND);
}

struct seen {
    char ids[8][BATCH_ID_BYTES];
    uint32_t count;
};

static void see_file(void *arg, const struct batch_file *file)
{
    struct seen *seen = arg;
    assert_true(seen->count < 8);
    memcpy(seen->ids[seen->count++], file->id, BATCH_ID_BYTES);
}

static void see_batch(void *arg, const struct batch_record *record)
{
    struct seen *seen = arg;
    assert_true(seen->count < 8);
    memcpy(seen->ids[seen->count++], record->id, BATCH_ID_BYTES);
}

static void test_lists(void **state)
{
    struct batch_page page = {.tenant = "key-l", .after = "", .purpose = "", .limit = 2, .ascending = true};
    struct batch_file files[5];
    struct batch_record records[3];
    struct seen seen = {.count = 0};
    struct error error;
    bool more;
    uint32_t i;

    for (i = 0; i < 5; i++)
        files[i] = put_file(i == 2 ? "key-other" : "key-l", "x\n", i == 4 ? 1 : 0); // the last has expired
    for (i = 0; i < 3; i++)
        records[i] = put_batch(&files[0]);
    assert_int_equal(batch_store_list_files(store, &page, see_file, &seen, &more, &error), STATUS_OK);
    assert_true(seen.count == 2 && more);
    assert_string_equal(seen.ids[1], files[1].id);
    page.after = files[1].id;
    seen.count = 0;
    assert_int_equal(batch_store_list_files(store, &page, see_file, &seen, &more, &error), STATUS_OK);
    assert_true(seen.count == 1 && !more);
    assert_string_equal(seen.ids[0], files[3].id);
    page = (struct batch_page){.tenant = "key-l", .after = "", .purpose = "batch_output", .limit = 2};
    seen.count = 0;
    assert_int_equal(batch_store_list_files(store, &page, see_file, &seen, &more, &error), STATUS_OK);
    assert_int_equal(seen.count, 0);
    page.after = files[2].id; // another's
    assert_int_equal(batch_store_list_files(store, &page, see_file, &seen, &more, &error), STATUS_NOT_FOUND);
    page.after = records[2].id;
    assert_int_equal(batch_store_list_batches(store, &page, see_batch, &seen, &more, &error), STATUS_OK);
    assert_true(seen.count == 2 && !more);
    assert_string_equal(seen.ids[0], records[1].id); // newest first
}

// A folder has one owner; what an upload that was cut off left is removed; what is needed stays.
static void test_opening(void **state)
{
    struct batch_store_config config = {.dir = folder, .max_bytes = 1 << 20, .share = 1};
    struct batch_file file = put_file("key-a", "x\n", 0);
    char part[BATCH_PATH_BYTES], stray[BATCH_PATH_BYTES], kept[BATCH_PATH_BYTES], foreign[BATCH_PATH_BYTES], id[BATCH_ID_BYTES];
    struct batch_store *second;
    struct error error;

    assert_int_equal(batch_store_open(&config, &second, &error), STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(error.text, "in use by another gateway"));
    batch_store_make_id("file-", id);
    batch_store_path(store, id, true, part);
    batch_store_path(store, id, false, stray);
    batch_store_path(store, "thesis.tex", false, foreign);
    batch_store_path(store, file.id, false, kept);
    close(open(part, O_WRONLY | O_CREAT, 0600));
    close(open(stray, O_WRONLY | O_CREAT, 0600));
    close(open(foreign, O_WRONLY | O_CREAT, 0600));
    batch_store_close(store);
    store = open_store();
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(access(stray, F_OK), -1);
    assert_int_equal(access(kept, F_OK), 0);
    assert_int_equal(access(foreign, F_OK), 0); // no gateway's: it stays
}

// Without its database nobody knows whose the files are: they stay, and the gateway does not start.
static void test_lost_database(void **state)
{
    struct batch_store_config config = {.dir = folder, .max_bytes = 1 << 20, .share = 1, .max_files = MAX_FILES};
    struct batch_file file = put_file("key-a", "x\n", 0);
    char command[3 * sizeof folder + 80], kept[BATCH_PATH_BYTES];
    struct batch_store *second;
    struct error error;

    batch_store_path(store, file.id, false, kept);
    batch_store_close(store);
    snprintf(command, sizeof command, "mkdir %s/aside && mv %s/batches.db* %s/aside", folder, folder, folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(batch_store_open(&config, &second, &error), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(error.text, "put it back"));
    assert_int_equal(access(kept, F_OK), 0);
    snprintf(command, sizeof command, "echo no database at all >%s/batches.db", folder);
    assert_int_equal(system(command), 0);
    assert_int_not_equal(batch_store_open(&config, &second, &error), STATUS_OK);
    assert_non_null(strstr(error.text, "batches.db cannot be used"));
    snprintf(command, sizeof command, "rm -f %s/batches.db* && mv %s/aside/batches.db* %s", folder, folder, folder);
    assert_int_equal(system(command), 0);
    store = open_store();
    assert_int_equal(batch_store_delete_file(store, "key-a", file.id, &error), STATUS_OK);
}

static void test_room(void **state)
{
    struct batch_file file;
    struct error error;

    assert_false(batch_store_reserve(store, "key-r", (512 << 10) + 1)); // half is a tenant's share
    assert_true(batch_store_reserve(store, "key-r", 400 << 10));
    assert_false(batch_store_reserve(store, "key-r", 200 << 10)); // with its other uploads
    assert_true(batch_store_reserve(store, "key-s", 500 << 10));
    assert_false(batch_store_reserve(store, "key-t", 200 << 10)); // the folder's limit
    assert_false(batch_store_is_full(store, "key-r"));
    batch_store_add_bytes(store, "key-r", 150 << 10); // results are taken whatever the limit
    assert_true(batch_store_is_full(store, "key-r"));
    assert_true(batch_store_is_full(store, "key-t")); // the folder's limit
    batch_store_release(store, "key-s", 500 << 10);
    assert_true(batch_store_is_full(store, "key-r")); // the results are its own
    assert_false(batch_store_is_full(store, "key-t"));
    batch_store_release(store, "key-r", 550 << 10);
    assert_true(batch_store_reserve(store, "key-r", 500 << 10)); // nothing is left of the first
    batch_store_release(store, "key-r", 500 << 10);
    file = put_file("key-r", "0123456789", 0);
    assert_int_equal(batch_store_delete_file(store, "key-r", file.id, &error), STATUS_OK);
    assert_int_equal(batch_store_delete_file(store, "key-r", file.id, &error), STATUS_NOT_FOUND);
}

// Results of a batch that is at work are its owner's: before and after a restart, and once it is over.
static void test_room_of_results(void **state)
{
    struct batch_file file = put_file("key-w", "x\n", 0);
    struct batch_record record = put_batch(&file), copy;
    struct batch_job job;
    struct error error;
    char path[BATCH_PATH_BYTES], *results = calloc(1, 400 << 10);
    int fd;

    batch_store_path(store, record.output, false, path);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    memset(results, '{', 400 << 10);
    assert_int_equal(write(fd, results, 400 << 10), 400 << 10);
    close(fd);
    free(results);
    batch_store_close(store);
    store = open_store();
    assert_false(batch_store_reserve(store, "key-w", 200 << 10));
    assert_true(batch_store_reserve(store, "key-x", 200 << 10));
    batch_store_release(store, "key-x", 200 << 10);
    copy = record;
    assert_int_equal(batch_job_open(store, &copy, 1000, 4096, &job, &error), STATUS_OK); // cuts what is torn
    assert_true(batch_store_reserve(store, "key-w", 500 << 10));
    batch_store_release(store, "key-w", 500 << 10);
    batch_store_add_bytes(store, "key-w", 450 << 10); // as the job does with each result
    assert_false(batch_store_reserve(store, "key-w", 200 << 10));
    job.record.status = BATCH_COMPLETED;
    job.record.has_output = true;
    assert_int_equal(batch_store_end_batch(store, &job.record, 450 << 10, 0, &error), STATUS_OK);
    batch_job_close(&job);
    assert_false(batch_store_reserve(store, "key-w", 200 << 10));
    assert_int_equal(batch_store_delete_file(store, "key-w", record.output, &error), STATUS_OK);
    assert_true(batch_store_reserve(store, "key-w", 500 << 10));
    batch_store_release(store, "key-w", 500 << 10);
}

// However small they are. A batch that is not over will have two.
static void test_number_of_files(void **state)
{
    struct batch_file file = put_file("key-f", "x\n", 0), last, refused;
    struct batch_record record = put_batch(&file);
    struct error error;
    char path[BATCH_PATH_BYTES];
    uint32_t i;

    for (i = 3; i < MAX_FILES; i++)
        last = put_file("key-f", "x\n", 0);
    assert_int_equal(batch_store_check_upload(store, "key-f", &error), STATUS_OUT_OF_RANGE);
    assert_non_null(strstr(error.text, "delete files"));
    assert_int_equal(try_file("key-f", "x\n", 0, &refused, &error), STATUS_OUT_OF_RANGE);
    batch_store_path(store, refused.id, false, path);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(batch_store_check_upload(store, "key-g", &error), STATUS_OK);
    batch_store_close(store);
    store = open_store(); // and afterwards
    assert_int_equal(batch_store_check_upload(store, "key-f", &error), STATUS_OUT_OF_RANGE);
    record.status = BATCH_COMPLETED;
    record.has_output = true;
    assert_int_equal(batch_store_end_batch(store, &record, 0, 0, &error), STATUS_OK); // one of its two
    assert_int_equal(batch_store_check_upload(store, "key-f", &error), STATUS_OK);
    batch_store_make_id("batch_", record.id);
    assert_int_equal(batch_store_add_batch(store, &record, &error), STATUS_OUT_OF_RANGE);
    assert_int_equal(batch_store_delete_file(store, "key-f", last.id, &error), STATUS_OK);
    assert_int_equal(batch_store_add_batch(store, &record, &error), STATUS_OK);
}

static uint64_t count_batches(sqlite3 *db, const char *tenant, const char *where)
{
    char text[160];
    sqlite3_stmt *statement;
    uint64_t count;

    snprintf(text, sizeof text, "SELECT count(*) FROM batches WHERE tenant = '%s' AND %s", tenant, where);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    count = (uint64_t)sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return count;
}

// Rows do not add up for 30 days: of those that are over, the oldest go.
static void test_forgotten_batches(void **state)
{
    static const char many[] =
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10006) "
        "INSERT INTO batches (id, tenant, status, endpoint, input, output, errors, window, at_0, expires, output_kept) "
        "SELECT 'batch_' || i, CASE WHEN i IN (3, 10000) THEN 'key-z' ELSE 'key-v' END, CASE i WHEN 2 THEN 1 ELSE 4 END, 1, 'f', 'o' || i, 'e' || i, "
        "'24h', 1, 1, 1 FROM n";
    struct batch_file file = put_file("key-v", "x\n", 0);
    char path[96];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/batches.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, many, NULL, NULL, NULL), SQLITE_OK);
    (void)put_batch(&file);
    assert_int_equal(count_batches(db, "key-v", "status = 4"), BATCH_OVER_MAX);
    assert_int_equal(count_batches(db, "key-v", "status < 4"), 2); // the new one, and an old one that is not over
    assert_int_equal(count_batches(db, "key-v", "id IN ('batch_1', 'batch_4', 'batch_5')"), 0);
    assert_int_equal(count_batches(db, "key-v", "id = 'batch_6'"), 1);
    assert_int_equal(count_batches(db, "key-z", "status = 4"), 2); // another's stay, and do not count
    assert_int_equal(sqlite3_exec(db, "DELETE FROM batches WHERE tenant IN ('key-v', 'key-z')", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

// A name that is not synced is not a file yet.
static void test_synced_names(void **state)
{
    struct batch_file file;
    struct batch_record record;
    struct error error;
    char path[BATCH_PATH_BYTES];
    uint32_t before = folder_syncs;

    file = put_file("key-y", "x\n", 0);
    assert_int_equal(folder_syncs, before + 1);
    record = put_batch(&file);
    folders_fail = true;
    assert_int_equal(try_file("key-y", "x\n", 0, &file, &error), STATUS_UNAVAILABLE);
    batch_store_path(store, file.id, false, path);
    assert_int_equal(access(path, F_OK), -1);
    record.status = BATCH_COMPLETED;
    record.has_output = true;
    assert_int_equal(batch_store_end_batch(store, &record, 0, 0, &error), STATUS_UNAVAILABLE);
    folders_fail = false;
    assert_int_equal(batch_store_end_batch(store, &record, 0, 0, &error), STATUS_OK);
    assert_int_equal(folder_syncs, before + 4);
}

// A database of our version that lacks a table or a column is refused.
static void test_damaged_database(void **state)
{
    static const char *const damages[] = {"DROP TABLE batches", "DROP TABLE files", "ALTER TABLE files DROP COLUMN expires"};
    struct batch_store_config config = {.dir = folder, .max_bytes = 1 << 20, .share = 1, .max_files = MAX_FILES};
    char command[3 * sizeof folder + 80], path[96];
    struct batch_store *second;
    struct error error;
    sqlite3 *db;
    size_t i;

    batch_store_close(store);
    snprintf(command, sizeof command, "mkdir -p %s/aside && cp %s/batches.db* %s/aside", folder, folder, folder);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/batches.db", folder);
    for (i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, damages[i], NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        assert_int_not_equal(batch_store_open(&config, &second, &error), STATUS_OK);
        assert_non_null(strstr(error.text, "is damaged"));
        snprintf(command, sizeof command, "rm -f %s/batches.db* && cp %s/aside/batches.db* %s", folder, folder, folder);
        assert_int_equal(system(command), 0);
    }
    store = open_store();
}

// Not in vain for ever: the caller asks again.
static void test_look_up_that_fails(void **state)
{
    struct batch_file file = put_file("key-u", "x\n", 0);
    struct batch_record record = put_batch(&file);
    char path[96];
    struct error error;
    sqlite3 *db;
    bool cancelled = true;

    snprintf(path, sizeof path, "%s/batches.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "ALTER TABLE batches RENAME TO aside", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(batch_store_is_cancelling(store, record.id, &cancelled, &error), STATUS_INTERNAL);
    assert_false(cancelled);
    assert_int_equal(sqlite3_exec(db, "ALTER TABLE aside RENAME TO batches", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_false(is_cancelling(&record));
}

// A disk of its own for the folder, which only this process sees. False: that is not allowed here.
static bool mount_small_disk(void)
{
    return (unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
           mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("fd-batch", folder, "tmpfs", 0, "size=4m") == 0;
}

// Another program takes what is left of the disk.
static void fill_disk(void)
{
    static const char zeros[4096];
    char path[96];
    int fd;

    snprintf(path, sizeof path, "%s/filler", folder);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    while (write(fd, zeros, sizeof zeros) > 0)
        continue;
    assert_int_equal(errno, ENOSPC);
    close(fd);
}

static off_t reserve_bytes(void)
{
    struct stat about;
    char path[96];

    snprintf(path, sizeof path, "%s/reserve", folder);
    assert_int_equal(stat(path, &about), 0);
    return about.st_size;
}

// Files of a block each can be deleted, by their owner or when they expire, and batches cancelled and ended, each time the disk is full again; after
// a start too. What another program keeps from the database is no reason to give the reserve away.
static void test_full_disk(void **state)
{
    enum { FILES = 12 };
    struct batch_file files[FILES];
    struct batch_record record;
    char path[BATCH_PATH_BYTES];
    struct error error;
    sqlite3 *db;

    batch_store_close(store);
    if (!mount_small_disk()) {
        store = open_store();
        skip();
    }
    store = open_store();
    for (uint32_t i = 0; i < FILES; i++)
        files[i] = put_file("key-d", "x\n", i == FILES - 1 ? 1 : 0);
    record = put_batch(&files[0]);
    for (uint32_t i = 1; i < FILES - 2; i++) {
        fill_disk();
        if (batch_store_delete_file(store, "key-d", files[i].id, &error) != STATUS_OK)
            fail_msg("file %u: %s", i, error.text);
        if (i != FILES / 2)
            continue;
        fill_disk();
        batch_store_close(store);
        snprintf(path, sizeof path, "%s/lock", folder);
        assert_int_equal(truncate(path, 0), 0); // as after a gateway that could not write there
        fill_disk();
        store = open_store();
    }
    fill_disk();
    snprintf(path, sizeof path, "%s/batches.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    const off_t kept = reserve_bytes();
    assert_true(kept > 0);
    assert_int_equal(batch_store_delete_file(store, "key-d", files[FILES - 2].id, &error), STATUS_UNAVAILABLE);
    assert_int_equal(reserve_bytes(), kept);
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    fill_disk();
    batch_store_path(store, files[FILES - 1].id, false, path);
    batch_store_purge(store, 1);
    assert_int_equal(access(path, F_OK), -1);
    fill_disk();
    if (batch_store_cancel_batch(store, "key-d", record.id, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    fill_disk();
    record.status = BATCH_CANCELLED;
    if (batch_store_end_batch(store, &record, 0, 0, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    fill_disk();
    if (batch_store_delete_file(store, "key-d", files[0].id, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    batch_store_close(store);
    assert_int_equal(umount(folder), 0);
    store = open_store();
}

static void test_needed_files(void **state)
{
    struct batch_file file = put_file("key-n", "x\n", 1); // has expired
    struct batch_file other = put_file("key-n", "x\n", 0);
    struct batch_record record = put_batch(&other);
    struct batch_counts counts = {3, 1, 1};
    char path[BATCH_PATH_BYTES];
    struct error error;

    assert_int_equal(batch_store_delete_file(store, "key-n", other.id, &error), STATUS_FAILED_PRECONDITION);
    batch_store_path(store, file.id, false, path);
    batch_store_purge(store, clock_wall_us() / 1000000);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(batch_store_set_progress(store, record.id, BATCH_IN_PROGRESS, &counts, &error), STATUS_OK);
    assert_false(is_cancelling(&record));
    assert_int_equal(batch_store_cancel_batch(store, "key-n", record.id, &error), STATUS_OK);
    assert_int_equal(batch_store_cancel_batch(store, "key-n", record.id, &error), STATUS_OK);
    assert_int_equal(batch_store_set_progress(store, record.id, BATCH_IN_PROGRESS, &counts, &error), STATUS_OK);
    assert_true(is_cancelling(&record)); // progress does not undo it
    record.status = BATCH_CANCELLED;
    assert_int_equal(batch_store_end_batch(store, &record, 0, 0, &error), STATUS_OK);
    assert_int_equal(batch_store_delete_file(store, "key-n", other.id, &error), STATUS_OK);
}

// The wall clock is 31 days ahead for half a minute, while the store is used and when it is opened: what has not expired is still there. What has
// goes, an hour after a start.
static void test_clock_that_is_ahead(void **state)
{
    const uint64_t second_us = 1000000, ahead_us = 31 * 86400 * second_us, wall_us = clock_wall_us();
    const struct batch_file kept = put_file("key-c", "x\n", wall_us / second_us + BATCH_KEPT_S);
    const struct batch_file expired = put_file("key-c", "x\n", wall_us / second_us + 3600);
    char kept_path[BATCH_PATH_BYTES], expired_path[BATCH_PATH_BYTES];

    batch_store_path(store, kept.id, false, kept_path);
    batch_store_path(store, expired.id, false, expired_path);
    for (uint32_t start = 0; start < 2; start++) {
        struct expiry_clock clock = {0};
        for (uint64_t s = 0; s <= 7200; s += 30) {
            const bool is_ahead = start == 0 ? s >= 4000 && s < 4060 : s < 60;
            expiry_look(&clock, second_us + s * second_us, wall_us + s * second_us + (is_ahead ? ahead_us : 0));
            batch_store_purge(store, expiry_time_s(&clock, 0));
            assert_int_equal(access(kept_path, F_OK), 0);
            assert_int_equal(access(expired_path, F_OK), start == 0 && s < 3600 ? 0 : -1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_opening),
        cmocka_unit_test(test_lost_database),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_needed_files),
        cmocka_unit_test(test_clock_that_is_ahead),
        cmocka_unit_test(test_room_of_results),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_number_of_files),
        cmocka_unit_test(test_forgotten_batches),
        cmocka_unit_test(test_synced_names),
        cmocka_unit_test(test_damaged_database),
        cmocka_unit_test(test_look_up_that_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

// test_gateway_batches.c: batches through a gateway over a scheduler of canned tokens: their latency class, and what happens while the mesh
// is full, away, or the gateway itself ends. The mesh is gateway_rig.h's.
#include <errno.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "services/gateway/batch/runner_internal.h"
#include "tests/cmocka.h"
#include "tests/integration/await.h"
#include "tests/integration/gateway_rig.h"

#define FORM "Content-Type: multipart/form-data; boundary=xyz\r\n"

#define SLOW_PART "Content-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nslow"

static const char small_file[] = "--xyz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--xyz\r\n"
                                 "Content-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n{}\r\n--xyz--\r\n";
static char batch_dir[80];
static struct gateway *other; // with --batch-dir
static uint32_t at;           // its port

// Stand before libc's, and SQLite's: a disk that is full, or read-only, for what lies in the folder. The first half of a write is taken.
enum { DISK_GOOD, DISK_FULL_FOR_FILES, DISK_FULL_FOR_DATABASE, DISK_FULL, DISK_READ_ONLY };
static atomic_int disk;

static bool refuses(int fd)
{
    char link[64], path[256];
    ssize_t bytes;

    if (atomic_load(&disk) == DISK_GOOD)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bytes = readlink(link, path, sizeof path - 1);
    path[bytes > 0 ? bytes : 0] = '\0';
    return strncmp(path, batch_dir, strlen(batch_dir)) == 0 &&
           !(atomic_load(&disk) == DISK_FULL_FOR_FILES && strstr(path, ".db")) &&
           !(atomic_load(&disk) == DISK_FULL_FOR_DATABASE && strstr(path, "/files/"));
}

// Lines of the log about the database (warnings are not shown), and attempts to save how far a batch is.
static atomic_uint store_lines, saves;

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (fd == STDERR_FILENO && memmem(data, bytes, " warn ", 6) && !getenv("FD_TEST_LOG")) {
        atomic_fetch_add(&store_lines, memmem(data, bytes, "BATCH-STORE file=/", 18) != NULL);
        return (ssize_t)bytes;
    }
    if (!refuses(fd))
        return syscall(SYS_write, fd, data, bytes);
    if (bytes > 1 && atomic_load(&disk) != DISK_READ_ONLY)
        return syscall(SYS_write, fd, data, bytes / 2);
    errno = atomic_load(&disk) == DISK_READ_ONLY ? EROFS : ENOSPC;
    return -1;
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
    if (!refuses(fd))
        return syscall(SYS_pwrite64, fd, data, bytes, offset);
    errno = ENOSPC;
    return -1;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) { return pwrite64(fd, data, bytes, offset); }

// Times that the runner has asked in vain whether a batch is cancelled.
static atomic_uint failed_look_ups;

int sqlite3_prepare_v2(sqlite3 *db, const char *text, int bytes, sqlite3_stmt **out, const char **tail)
{
    const int code = sqlite3_prepare_v3(db, text, bytes, 0, out, tail);

    if (code != SQLITE_OK && strstr(text, "SELECT 1 FROM batches WHERE id = ?1 AND status = ?2"))
        atomic_fetch_add(&failed_look_ups, 1);
    atomic_fetch_add(&saves, strstr(text, "UPDATE batches SET at_1 = CASE") != NULL);
    return code;
}

// There is no memory for a line, where a test says so (not under sanitizers, which have their own malloc).
static atomic_bool lacks_memory;
static atomic_uint lacked;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_LACK = false };
#else
enum { CAN_LACK = true };
void *__libc_malloc(size_t size);

void *malloc(size_t size)
{
    if (!atomic_load(&lacks_memory) || size != sizeof(struct batch_item))
        return __libc_malloc(size);
    atomic_fetch_add(&lacked, 1);
    return NULL;
}
#endif

static const char *key_file; // of the next gateway that is opened; NULL: none

static double body_timeout_s = 60; // of the next gateway

static void open_other(void)
{
    struct gateway_config config = make_config();
    struct error error;

    config.api_key_file = key_file;
    config.key_share = 0.25;
    config.max_connections_per_address = 200;
    if (!*batch_dir) // once: threads of the other gateway read it
        snprintf(batch_dir, sizeof batch_dir, "%s/batches", folder);
    config.batch_dir = batch_dir;
    config.batch_concurrency = 4;
    config.body_timeout_s = body_timeout_s;
    if (gateway_open(&config, &other, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    at = gateway_port(other);
    wait_ready(at);
}

static int open_both(void **state)
{
    atomic_store(&disk, DISK_GOOD);
    reset(state);
    open_other();
    return 0;
}

static int close_other(void **state)
{
    gateway_close(other);
    other = NULL;
    return 0;
}

// The string of a name in a JSON text.
static void take_string(const struct http_reply *reply, const char *name, char *out, size_t out_bytes)
{
    char key[64];
    const char *found;

    snprintf(key, sizeof key, "\"%s\":\"", name);
    found = reply->data ? strstr(reply->data, key) : NULL;
    if (!found)
        fail_msg("no %s in %s", name, reply->data);
    snprintf(out, out_bytes, "%.*s", (int)strcspn(found + strlen(key), "\""), found + strlen(key));
}

static struct http_reply create_batch(const char *file)
{
    char create[256];

    snprintf(create, sizeof create, "{\"input_file_id\":\"%s\",\"endpoint\":\"" COMPLETION "\",\"completion_window\":\"24h\"}",
             file);
    return http_call(at, "POST", "/v1/batches", "", create);
}

static uint32_t last_tokens_more; // in the next batch

// A batch of so many lines, each with a prompt of 1 to 5 tokens. The name of the batch is written to id.
static void start_batch(uint32_t lines, uint32_t max_tokens, char id[64])
{
    char *body = malloc(lines * 256 + 1024), file[64];
    struct http_reply reply;
    size_t length = (size_t)sprintf(body, "--xyz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--xyz\r\n"
                                          "Content-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n");

    for (uint32_t i = 0; i < lines; i++)
        length += (size_t)sprintf(body + length,
                                  "{\"custom_id\":\"r%u\",\"method\":\"POST\",\"url\":\"" COMPLETION
                                  "\",\"body\":{\"prompt\":[%.*s],\"max_tokens\":%u}}\n",
                                  i, (int)(1 + 2 * (i % 5)), "5,6,7,8,9", max_tokens + (i == lines - 1 ? last_tokens_more : 0));
    sprintf(body + length, "\r\n--xyz--\r\n");
    reply = http_call(at, "POST", "/v1/files", FORM, body);
    assert_int_equal(http_status(&reply), 200);
    take_string(&reply, "id", file, sizeof file);
    http_free(&reply);
    reply = create_batch(file);
    assert_int_equal(http_status(&reply), 200);
    take_string(&reply, "id", id, 64);
    http_free(&reply);
    free(body);
}

static struct http_reply look(const char *id)
{
    char path[128];

    snprintf(path, sizeof path, "/v1/batches/%s", id);
    return http_call(at, "GET", path, "", "");
}

static void wait_status(const char *id, const char *wanted)
{
    struct pace_deadline deadline = pace_deadline(PACE_WAIT_US);
    char status[64] = "";

    while (strcmp(status, wanted) != 0) {
        struct http_reply reply = look(id);
        take_string(&reply, "status", status, sizeof status);
        if (pace_passed(&deadline))
            fail_msg("%s is not what is wanted (%s): %s", status, wanted, reply.data);
        http_free(&reply);
        usleep(5000);
    }
}

// Each line has one result, which is the text of its prompt.
static void check_results(const char *id, uint32_t lines, uint32_t max_tokens)
{
    struct http_reply reply = look(id), content;
    char file[64], path[128], key[64];

    take_string(&reply, "output_file_id", file, sizeof file);
    assert_non_null(strstr(reply.data, "\"error_file_id\":null"));
    http_free(&reply);
    snprintf(path, sizeof path, "/v1/files/%s/content", file);
    content = http_call(at, "GET", path, "", "");
    assert_int_equal(http_status(&content), 200);
    assert_int_equal(http_count(&content, "\"custom_id\":"), lines);
    for (uint32_t i = 0; i < lines; i++) {
        const char *line, *text;
        snprintf(key, sizeof key, "\"custom_id\":\"r%u\"", i);
        assert_int_equal(http_count(&content, key), 1);
        line = strstr(content.data, key);
        text = strstr(line, "\"text\":\"");
        assert_non_null(text);
        assert_int_equal(strncmp(text + 8, canned(1 + i % 5, 0, max_tokens), max_tokens), 0);
    }
    http_free(&content);
}

static void test_class(void **state)
{
    char id[64];

    start_batch(20, 3, id);
    wait_status(id, "completed");
    assert_int_equal(fake_look(&fake).latency_class, FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_BATCH);
    check_results(id, 20, 3);
}

// A line waits for memory, and no other one is left out.
static void test_no_memory_for_a_line(void **state)
{
    char id[64];

    if (!CAN_LACK)
        skip();
    atomic_store(&lacks_memory, true);
    start_batch(20, 3, id);
    AWAIT(usleep(1000), atomic_load(&lacked) > 2);
    atomic_store(&lacks_memory, false);
    wait_status(id, "completed");
    check_results(id, 20, 3);
}

// No more requests than the window are in the mesh.
static void test_window(void **state)
{
    uint32_t before = fake_look(&fake).started;
    char id[64];

    fake_set_tokens(&fake, 1, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    start_batch(20, 3, id);
    assert_true(fake_wait(&fake, saw_open, 4));
    usleep(20000); // a fifth would come here
    assert_int_equal(fake_look(&fake).started - before, 4);
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    wait_status(id, "completed");
    check_results(id, 20, 3);
}

// A queue that is full and a mesh that is not ready are no answer.
static void test_refused(void **state)
{
    char id[64];

    fake_set(&fake, true, true, 0, 10000);
    start_batch(6, 3, id);
    usleep(100000);
    fake_set(&fake, false, false, 0, 10000);
    usleep(100000);
    fake_set(&fake, true, false, 0, 10000);
    wait_status(id, "completed");
    check_results(id, 6, 3);
}

static void test_scheduler_away(void **state)
{
    char id[64];

    fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    start_batch(10, 5, id);
    assert_true(fake_wait(&fake, saw_open, 4));
    fake_go_away(&fake);
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    fake_come_back(&fake);
    wait_status(id, "completed");
    check_results(id, 10, 5);
}

static bool saw_started(const struct fake_settings *settings, uint32_t wanted) { return settings->started >= wanted; }

// A gateway that ends in the middle of everything goes on when it is back.
static void test_gateway_ends(void **state)
{
    enum { LINES = 300 };
    char id[64];

    start_batch(LINES, 5, id);
    for (uint32_t round = 0; round < 3; round++) {
        assert_true(fake_wait(&fake, saw_started, fake_look(&fake).started + 10));
        fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
        assert_true(fake_wait(&fake, saw_open, 4));
        gateway_close(other);
        assert_true(fake_wait(&fake, saw_at_most_open, 0));
        fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
        open_other();
    }
    wait_status(id, "completed");
    check_results(id, LINES, 5);
}

// A cancelled batch's requests are taken out of the mesh. On a full disk it ends without its file of errors, and its input can be deleted.
static void test_cancelled(void **state)
{
    static const int disks[] = {DISK_GOOD, DISK_FULL_FOR_FILES};
    char id[64], path[128], input[64];
    struct http_reply reply;

    for (size_t i = 0; i < sizeof disks / sizeof disks[0]; i++) {
        fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
        start_batch(50, 5, id);
        assert_true(fake_wait(&fake, saw_open, 4));
        atomic_store(&disk, disks[i]);
        snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
        reply = http_call(at, "POST", path, "", "");
        assert_int_equal(http_status(&reply), 200);
        http_free(&reply);
        wait_status(id, "cancelled");
        assert_true(fake_wait(&fake, saw_at_most_open, 0));
        reply = look(id);
        assert_non_null(strstr(reply.data, "\"request_counts\":{\"total\":50,\"completed\":0,\"failed\":50}"));
        assert_int_equal(strstr(reply.data, "\"error_file_id\":null") != NULL, disks[i] != DISK_GOOD);
        take_string(&reply, "input_file_id", input, sizeof input);
        http_free(&reply);
        snprintf(path, sizeof path, "/v1/files/%s", input);
        reply = http_call(at, "DELETE", path, "", "");
        assert_int_equal(http_status(&reply), 200);
        http_free(&reply);
        atomic_store(&disk, DISK_GOOD);
    }
}

// A batch whose results cannot be opened holds up no other.
static void test_results_that_cannot_be_opened(void **state)
{
    char first[64], second[64], command[200];

    fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    start_batch(3, 5, first);
    assert_true(fake_wait(&fake, saw_open, 3)); // its files of results are there, and empty
    gateway_close(other);
    assert_true(fake_wait(&fake, saw_at_most_open, 0));
    snprintf(command, sizeof command, "cd %s/files && for f in $(find . -type f -size 0); do rm $f && mkdir $f; done", batch_dir);
    assert_int_equal(system(command), 0);
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    open_other();
    start_batch(3, 5, second);
    wait_status(second, "completed");
}

// A client that leaves in the middle of an upload, and one that sends more than it may.
static void test_uploads(void **state)
{
    char path[160], header[256];
    struct http_reply reply;
    int fd;

    fd = http_connect(at);
    snprintf(header, sizeof header, "POST /v1/files HTTP/1.1\r\nHost: test\r\n" FORM "Content-Length: 100000\r\n\r\n");
    assert_int_equal(send(fd, header, strlen(header), 0), strlen(header));
    snprintf(path, sizeof path, "--xyz\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nhalf");
    assert_int_equal(send(fd, path, strlen(path), 0), strlen(path));
    snprintf(path, sizeof path, "ls %s/files | grep -q part", batch_dir);
    AWAIT(usleep(10000), system(path) == 0);
    close(fd);
    AWAIT(usleep(10000), system(path) != 0);
    reply = http_call(at, "POST", "/v1/files", FORM "Expect: 100-continue\r\nContent-Length: 600000000\r\n", "");
    assert_int_equal(http_status(&reply), 400); // two lengths
    http_free(&reply);
    fd = http_connect(at);
    snprintf(header, sizeof header,
             "POST /v1/files HTTP/1.1\r\nHost: test\r\n" FORM "Expect: 100-continue\r\nContent-Length: 600000000\r\n\r\n");
    assert_int_equal(send(fd, header, strlen(header), 0), strlen(header));
    reply = (struct http_reply){.fd = fd};
    assert_true(http_read_until(&reply, "request_too_large", 1));
    assert_int_equal(http_status(&reply), 413);
    http_free(&reply);
}

static void change_database(const char *statement)
{
    char path[160];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/batches.db", batch_dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    assert_int_equal(sqlite3_exec(db, statement, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

// Whether a batch is cancelled cannot be looked up for a while: it is looked up again, without another change.
static void test_cancel_that_is_not_seen(void **state)
{
    uint32_t before = atomic_load(&failed_look_ups);
    struct http_reply reply;
    char id[64];

    fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    start_batch(50, 5, id);
    assert_true(fake_wait(&fake, saw_open, 4));
    change_database("UPDATE batches SET status = 3 WHERE status = 1; ALTER TABLE batches RENAME TO aside");
    reply = http_call(at, "POST", "/v1/batches/batch_0/cancel", "", "");
    assert_int_equal(http_status(&reply), 500);
    http_free(&reply);
    reply = http_call(at, "POST", "/v1/batches", "", // tells the runner, too
                      "{\"input_file_id\":\"x\",\"endpoint\":\"" COMPLETION "\",\"completion_window\":\"24h\"}");
    assert_int_equal(http_status(&reply), 404);
    http_free(&reply);
    AWAIT(usleep(1000), atomic_load(&failed_look_ups) != before);
    change_database("ALTER TABLE aside RENAME TO batches");
    wait_status(id, "cancelled");
}

static struct http_reply begin_upload(const char *key)
{
    char headers[256];
    struct http_reply reply = {.fd = http_connect(at)};

    snprintf(headers, sizeof headers,
             "POST /v1/files HTTP/1.1\r\nHost: test\r\n" FORM "Authorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n--xyz\r\n",
             key);
    assert_int_equal(send(reply.fd, headers, strlen(headers), 0), strlen(headers));
    return reply;
}

static void assert_not_written(int kind)
{
    struct http_reply reply = http_call(at, "GET", "/metrics", "", "");

    assert_int_equal(http_status(&reply), 200);
    if (kind == DISK_FULL_FOR_FILES || kind == DISK_FULL)
        assert_null(strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"batch_results\"} 0\n"));
    assert_null(strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"batch_uploads\"} 0\n"));
    assert_non_null(strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"batch_database\"} "));
    http_free(&reply);
}

// Results wait for the disk, and each line has one in the end. Uploads and new batches are refused meanwhile.
static void test_full_disk(void **state)
{
    static const int disks[] = {DISK_FULL_FOR_FILES, DISK_FULL_FOR_DATABASE, DISK_FULL, DISK_READ_ONLY};
    char id[64], command[200];

    for (size_t i = 0; i < sizeof disks / sizeof disks[0]; i++) {
        struct http_reply reply;
        fake_set_tokens(&fake, 1, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
        start_batch(20, 3, id);
        assert_true(fake_wait(&fake, saw_open, 4));
        atomic_store(&disk, disks[i]);
        fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
        assert_true(fake_wait(&fake, saw_at_most_open, 0)); // answered, and the window is full of what waits for the disk
        reply = http_call(at, "POST", "/v1/files", FORM, small_file);
        if (http_status(&reply) != 507)
            fail_msg("disk %d: %s", disks[i], reply.data);
        http_free(&reply);
        assert_not_written(disks[i]);
        reply = look(id); // can be looked at
        assert_int_equal(http_status(&reply), 200);
        http_free(&reply);
        atomic_store(&disk, DISK_GOOD);
        wait_status(id, "completed");
        check_results(id, 20, 3);
        snprintf(command, sizeof command, "ls %s/files | grep part", batch_dir);
        assert_int_not_equal(system(command), 0);
    }
}

// A batch that cannot be created is refused, counted and logged.
static void test_a_database_without_room_for_a_batch(void **state)
{
    struct http_reply reply;
    char id[64], file[64];

    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    start_batch(1, 1, id);
    wait_status(id, "completed");
    reply = look(id);
    take_string(&reply, "input_file_id", file, sizeof file);
    http_free(&reply);
    reply = http_call(at, "GET", "/metrics", "", "");
    assert_non_null(strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"batch_database\"} 0\n"));
    http_free(&reply);
    const uint32_t said = atomic_load(&store_lines);
    atomic_store(&disk, DISK_FULL_FOR_DATABASE);
    reply = create_batch(file);
    assert_int_equal(http_status(&reply), 507);
    http_free(&reply);
    reply = http_call(at, "GET", "/metrics", "", "");
    assert_non_null(strstr(reply.data, "fastdecode_gateway_not_written_total{what=\"batch_database\"} 1\n"));
    http_free(&reply);
    assert_int_equal(atomic_load(&store_lines), said + 1);
}

// How far a batch is cannot be saved, which is tried again each second and said now and then.
static void test_failures_of_the_database(void **state)
{
    uint32_t tried, said;
    char id[64];

    fake_set_tokens(&fake, 1, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    last_tokens_more = 1;
    start_batch(4, 2, id);
    last_tokens_more = 0;
    assert_true(fake_wait(&fake, saw_open, 4));
    atomic_store(&disk, DISK_FULL_FOR_DATABASE);
    tried = atomic_load(&saves);
    said = atomic_load(&store_lines);
    fake_set_tokens(&fake, 2, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED); // all but the last end
    AWAIT(usleep(10000), atomic_load(&saves) - tried > atomic_load(&store_lines) - said + 1);
    assert_int_not_equal(atomic_load(&store_lines), said);
    atomic_store(&disk, DISK_GOOD);
    fake_set_tokens(&fake, UINT32_MAX, UINT32_MAX, FASTDECODE__FINISH__FINISH_UNSPECIFIED);
    wait_status(id, "completed");
}

enum { SLOW_UPLOADS = 64 };

// Sends another byte of each upload that is neither answered nor shut; returns how many those are.
static uint32_t send_slowly(const struct http_reply *uploads)
{
    uint32_t open = 0;
    char byte;

    for (uint32_t i = 0; i < SLOW_UPLOADS; i++)
        open += recv(uploads[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && send(uploads[i].fd, "x", 1, MSG_NOSIGNAL) == 1;
    return open;
}

// Uploads of a byte now and then are ended, their places are free again, and nothing is left of them.
static void test_slow_uploads(void **state)
{
    struct http_reply uploads[SLOW_UPLOADS];
    char command[200];
    int status;

    gateway_close(other);
    body_timeout_s = (double)pace_us(1000000) / 1e6;
    open_other();
    body_timeout_s = 60;
    for (uint32_t i = 0; i < SLOW_UPLOADS; i++) {
        uploads[i] = begin_upload("none");
        assert_true(send(uploads[i].fd, SLOW_PART, strlen(SLOW_PART), MSG_NOSIGNAL) > 0);
    }
    AWAIT(usleep((useconds_t)pace_us(50000)), send_slowly(uploads) == 0);
    for (uint32_t i = 0; i < SLOW_UPLOADS; i++) {
        http_read_all(&uploads[i]);
        assert_int_equal(http_status(&uploads[i]), 408);
        http_free(&uploads[i]);
    }
    AWAIT(usleep(10000), (status = http_ask(at, "POST", "/v1/files", FORM, small_file)) != 429);
    assert_int_equal(status, 200);
    snprintf(command, sizeof command, "ls %s/files | grep part", batch_dir);
    AWAIT(usleep(10000), system(command) != 0);
}

// One key has its share of the places for uploads, and the others have theirs.
static void test_uploads_of_one_key(void **state)
{
    enum { SHARE = 16 };
    struct http_reply uploads[SHARE];
    static char path[160];

    snprintf(path, sizeof path, "%s/keys", folder);
    write_file(path, "alpha\nbeta\n", 11);
    gateway_close(other);
    key_file = path;
    open_other();
    for (uint32_t i = 0; i < SHARE; i++)
        uploads[i] = begin_upload("alpha");
    AWAIT((void)0, http_ask(at, "POST", "/v1/files", FORM "Authorization: Bearer alpha\r\n", small_file) ==
                       429); // once it has seen them all
    assert_int_equal(http_ask(at, "POST", "/v1/files", FORM "Authorization: Bearer beta\r\n", small_file), 200);
    for (uint32_t i = 0; i < SHARE; i++)
        http_free(&uploads[i]);
    key_file = NULL;
}

int main(int argc, char **argv)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, open_both, close_other)
    const struct CMUnitTest tests[] = {
        CASE(test_class),
        CASE(test_no_memory_for_a_line),
        CASE(test_window),
        CASE(test_refused),
        CASE(test_scheduler_away),
        CASE(test_gateway_ends),
        CASE(test_cancelled),
        CASE(test_results_that_cannot_be_opened),
        CASE(test_uploads),
        CASE(test_cancel_that_is_not_seen),
        CASE(test_uploads_of_one_key),
        CASE(test_full_disk),
        CASE(test_a_database_without_room_for_a_batch),
        CASE(test_failures_of_the_database),
        CASE(test_slow_uploads),
    };
    rig_log_level = LOG_WARN;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

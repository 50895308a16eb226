// batches.c: a gateway's files and batches, as clients use them, over several lives of the gateway.
//
//     a life:  start ─▶ all is there? ─▶ clients, while the disk fails ─┬─▶ the disk is well again: so is all else? ─▶ it ends, or is killed
//                ▲                                                      └─▶ killed, or the power is cut
//                └──────────────────────────────────────────────────────────────────────────────────┘
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "services/gateway/http/http.h"
#include "tests/sim/disk/model.h"

enum { ASKED_MAX = 16, TURNS_MAX = 600, UPLOAD_BYTES_MAX = 1 << 20 };
static const char boundary[] = "simulated";
static const char *const tenants[TENANTS] = {"", "tenant-b"};

struct asked {
    struct exchange *exchange;
    uint32_t file, line;
};

static struct {
    struct batch_api *api; // NULL: none runs
    struct batch_store *store;
    struct asked asked[ASKED_MAX];
    uint32_t asked_count;
} gateway;

const char *__wrap_exchange_header(struct exchange *exchange, const char *name);
const char *__wrap_exchange_query(struct exchange *exchange, const char *name);
enum status __real_batch_store_open(const struct batch_store_config *config, struct batch_store **out, struct error *error);
enum status __wrap_batch_store_open(const struct batch_store_config *config, struct batch_store **out, struct error *error);
bool __real_batch_job_write(struct batch_job *job, struct batch_store *store, uint64_t number, const struct batch_result *result);
bool __wrap_batch_job_write(struct batch_job *job, struct batch_store *store, uint64_t number, const struct batch_result *result);

// --- what a connection would have, and what only insiders see

const char *__wrap_exchange_header(struct exchange *exchange, const char *name)
{
    (void)exchange;
    return strcmp(name, "Content-Type") == 0 ? "multipart/form-data; boundary=simulated" : "";
}

const char *__wrap_exchange_query(struct exchange *exchange, const char *name)
{
    (void)exchange;
    return strcmp(name, "limit") == 0 ? "100" : "";
}

enum status __wrap_batch_store_open(const struct batch_store_config *config, struct batch_store **out, struct error *error)
{
    const enum status status = __real_batch_store_open(config, out, error);

    gateway.store = *out;
    return status;
}

bool __wrap_batch_job_write(struct batch_job *job, struct batch_store *store, uint64_t number, const struct batch_result *result)
{
    struct batch_model *batch = model_batch(job->record.id);
    const bool ok = __real_batch_job_write(job, store, number, result);

    sim_say("   result of line %llu of %s: %s", (unsigned long long)number, job->record.id, ok ? "written" : "not written");
    if (batch && ok && !disk.off && number <= LINES_MAX) {
        if (batch->stored[number])
            sim_fail("line %llu of %s has a result already", (unsigned long long)number, batch->id);
        batch->stored[number] = true;
    }
    return ok;
}

struct batch_store *gateway_store(void) { return gateway.store; }

// --- requests of batches

static void on_ask(void *arg, struct exchange *exchange, enum api_kind kind, struct key *key)
{
    size_t bytes;
    const char *body = exchange_body(exchange, &bytes), *prompt = memmem(body, bytes, "p#", 2);
    struct asked *asked = &gateway.asked[gateway.asked_count++];

    (void)arg, (void)kind, (void)key;
    assert_always(gateway.asked_count <= ASKED_MAX && prompt && sscanf(prompt, "p#%u#%u#", &asked->file, &asked->line) == 2);
    asked->exchange = exchange;
    sim_say("   asked: line %u of up-%u", asked->line, asked->file);
}

static struct exchange *take_asked(uint32_t index)
{
    struct exchange *exchange = gateway.asked[index].exchange;

    gateway.asked[index] = gateway.asked[--gateway.asked_count];
    return exchange;
}

static void on_cancel(void *arg, struct exchange *exchange)
{
    (void)arg;
    for (uint32_t i = 0; i < gateway.asked_count; i++)
        if (gateway.asked[i].exchange == exchange) {
            exchange_release(take_asked(i));
            return;
        }
}

static bool is_ready(void *arg)
{
    (void)arg;
    return true;
}

static void answer_one(void)
{
    const uint32_t index = (uint32_t)sim_below(gateway.asked_count);
    struct text body = {0};
    char text[ANSWER_BYTES_MAX];
    int status;

    if (!gateway.asked_count)
        return;
    status = model_answer(gateway.asked[index].file, gateway.asked[index].line, text, sizeof text);
    struct exchange *exchange = take_asked(index);
    text_string(&body, text);
    exchange_respond(exchange, sim_chance(5) ? 503 : status, HTTP_JSON, &body);
    exchange_release(exchange);
}

// --- a process

static bool start(bool must)
{
    const struct batch_api_config config = {
        .dir = STORE_DIR,
        .max_file_bytes = UPLOAD_BYTES_MAX,
        .max_bytes = STORE_BYTES_MAX,
        .max_lines = 1000,
        .share = 1,
        .capacity = 16,
        .runner = {.concurrency = 4, .max_line_bytes = 64 << 10, .ask = on_ask, .cancel = on_cancel, .is_ready = is_ready}};
    struct error error = {.status = STATUS_OK};

    sim_say("-- a gateway starts");
    counts.lives++;
    const enum status status = batch_api_open(&config, &gateway.api, &error);
    sim_note("start", status, 0);
    if (status != STATUS_OK)
        sim_say("   it does not: %s", error.text);
    if (status != STATUS_OK && must)
        sim_fail("the gateway does not start: %s", error.text);
    return status == STATUS_OK;
}

static void stop(void)
{
    static sqlite3_int64 sqlite_bytes; // that it keeps for itself

    sim_say("-- the gateway stops");
    batch_api_stop(gateway.api);
    while (gateway.asked_count)
        exchange_release(take_asked(0));
    batch_api_close(gateway.api);
    gateway.api = NULL;
    gateway.store = NULL;
    if (!sqlite_bytes)
        sqlite_bytes = sqlite3_memory_used();
    if (sim.blocks || sim.descriptors || sqlite3_memory_used() > sqlite_bytes)
        sim_fail("%llu blocks of memory, %lld bytes of SQLite and %u descriptors are left", (unsigned long long)sim.blocks,
                 (long long)(sqlite3_memory_used() - sqlite_bytes), sim.descriptors);
}

// --- calls

static void on_reply(void *arg, int status, const char *body, size_t bytes)
{
    *(struct reply *)arg = (struct reply){.done = true, .status = status, .body = sim_alloc(bytes + 1), .bytes = bytes};
    if (bytes)
        memcpy(((struct reply *)arg)->body, body, bytes);
}

void reply_free(struct reply *reply)
{
    sim_free(reply->body);
    reply->body = NULL;
}

struct reply gateway_call(enum batch_call_kind kind, uint32_t tenant, const char *id, const char *body)
{
    struct reply reply = {0};
    struct text text = {0};

    text_string(&text, body ? body : "");
    struct exchange *exchange = exchange_open_local("call", &text, on_reply, &reply);
    batch_api_call(gateway.api, exchange, kind, tenants[tenant], id, strlen(id));
    exchange_release(exchange);
    assert_always(reply.done);
    sim_note("call", kind, (uint64_t)reply.status);
    return reply;
}

enum outcome { DONE, REFUSED, UNKNOWN };

// Returns what a client has learned from the reply, which may be no other than 200, or `other`; but while the disk fails, that the server has failed.
static enum outcome outcome_of(struct reply *reply, int other, const char *what)
{
    const int status = reply->status;

    sim_say("%s: %s%d %.160s", what, disk.off ? "nobody hears of it: " : "", status, reply->body);
    if (!disk.off && status != 200 && status != other && (status < 500 || !disk.armed))
        sim_fail("%s: status %d: %.200s", what, status, reply->body);
    reply_free(reply);
    return disk.off ? UNKNOWN : status == 200 ? DONE : REFUSED;
}

static void copy_id(const struct reply *reply, char out[BATCH_ID_BYTES])
{
    const char *id = reply->status == 200 && !disk.off ? strstr(reply->body, "\"id\":\"") : NULL;
    const size_t bytes = id ? strcspn(id + 6, "\"") : 0;

    if (bytes && bytes < BATCH_ID_BYTES)
        snprintf(out, BATCH_ID_BYTES, "%.*s", (int)bytes, id + 6);
}

// Sends a body to where an upload goes, in pieces. False: not to its end.
static bool pour(struct exchange *exchange, const char *body, size_t bytes, bool leaves)
{
    const struct http_sink *sink = exchange_sink(exchange);

    while (bytes > 0) {
        const size_t some = 1 + sim_below(UINT64_C(1) << sim_below(18)), piece = MIN(bytes, some);
        if (leaves && sim_chance(30))
            return false;
        size_t taken = sink->take(sink->arg, body, piece);
        assert_always(taken == piece);
        body += piece;
        bytes -= piece;
    }
    return true;
}

static void upload(void)
{
    static const char head[] = "--%s\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--%s\r\n"
                               "Content-Disposition: form-data; name=\"file\"; filename=\"up-%u\"\r\n\r\n";
    struct file_model *file = model.file_count < FILES_MAX ? model_add_file() : NULL;
    struct reply reply = {0};
    struct api_error error = {0};
    struct text text = {0}, none = {0};
    char what[64];

    if (!file)
        return;
    counts.uploads++;
    snprintf(what, sizeof what, "upload up-%u of %zu bytes", (uint32_t)(file - model.files), file->bytes);
    sim_say("%s", what);
    text_format(&text, head, boundary, boundary, (uint32_t)(file - model.files));
    text_append(&text, file->content, file->bytes);
    text_format(&text, "\r\n--%s--\r\n", boundary);
    struct exchange *exchange = exchange_open_local("call", &none, on_reply, &reply);
    assert_always(batch_api_begin_upload(gateway.api, exchange, tenants[file->tenant], &error));
    const bool whole = pour(exchange, text.data, text.bytes, sim_chance(10));
    text_free(&text);
    if (whole)
        batch_api_call(gateway.api, exchange, BATCH_FILE_CREATE, tenants[file->tenant], "", 0);
    exchange_release(exchange);
    sim_note("upload", whole, (uint64_t)reply.status);
    if (!whole) { // its client has left
        reply_free(&reply);
        return;
    }
    copy_id(&reply, file->id);
    const enum outcome outcome = outcome_of(&reply, 0, what);
    file->is = outcome == DONE ? THERE : MAYBE;
    file->refused = outcome == REFUSED;
}

static struct file_model *some_file(void)
{
    struct file_model *file = model.file_count ? &model.files[sim_below(model.file_count)] : NULL;
    return file && file->id[0] ? file : NULL;
}

static void create_batch(void)
{
    struct file_model *file = some_file();
    char body[256], what[64];

    if (!file || model.batch_count == BATCHES_MAX)
        return;
    const uint32_t index = model.batch_count++;
    struct batch_model *batch = &model.batches[index];
    *batch = (struct batch_model){.tenant = file->tenant, .file = (uint32_t)(file - model.files)};
    counts.batches++;
    snprintf(
        body, sizeof body,
        "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"24h\",\"metadata\":{\"n\":\"%u\"}}",
        file->id, index);
    snprintf(what, sizeof what, "batch %u of up-%u", index, batch->file);
    struct reply reply = gateway_call(BATCH_CREATE, file->tenant, "", body);
    const int status = reply.status;
    copy_id(&reply, batch->id);
    const enum outcome outcome = outcome_of(&reply, file->is == THERE ? 0 : 404, what);
    batch->is = outcome == DONE ? THERE : outcome == REFUSED && status == 404 ? GONE : MAYBE;
    batch->refused = outcome == REFUSED;
    if (outcome == DONE && file->is == GONE)
        sim_fail("%s, which was deleted", what);
    file->is = outcome == DONE ? THERE : file->is;
}

static bool reserve_is_there(void)
{
    enum { LEAST_BYTES = 64 << 10 };
    struct inode *reserve;

    return !files_find(STORE_DIR "/reserve", &reserve) && files_bytes(reserve) >= LEAST_BYTES;
}

// With a reserve, a disk that is full is no reason not to start, and not to make room.
static bool has_reserve(void) { return disk_lacks_room_only() && reserve_is_there(); }

static void cancel_batch(void)
{
    struct batch_model *batch = model.batch_count ? &model.batches[sim_below(model.batch_count)] : NULL;
    char what[64];

    if (!batch || !batch->id[0] || batch->is != THERE)
        return;
    snprintf(what, sizeof what, "cancel %s", batch->id);
    const bool must = has_reserve();
    struct reply reply = gateway_call(BATCH_CANCEL, batch->tenant, batch->id, NULL);
    const int status = reply.status;
    const enum outcome outcome = outcome_of(&reply, strcmp(batch->over, "cancelled") ? 409 : 0, what); // it may be over by now
    if (outcome == REFUSED && status >= 500 && must)
        sim_fail("%s: status %d, though there is a reserve", what, status);
    if (batch->cancel != THERE && !(outcome == REFUSED && status == 409))
        batch->cancel = outcome == DONE ? THERE : MAYBE;
}

static void delete_file(void)
{
    struct file_model *file = some_file();
    char what[64];

    if (!file)
        return;
    snprintf(what, sizeof what, "delete up-%u, %s", (uint32_t)(file - model.files), file->id);
    const bool must = has_reserve();
    struct reply reply = gateway_call(BATCH_FILE_DELETE, file->tenant, file->id, NULL);
    const int status = reply.status;
    const int other = status == 404 && file->is != THERE ? 404 : model_is_needed(file) ? 409 : 0;
    const enum outcome outcome = outcome_of(&reply, other, what);
    if (outcome == REFUSED && status >= 500 && must)
        sim_fail("%s: status %d, though there is a reserve", what, status);
    if (outcome == DONE && file->is == GONE)
        sim_fail("%s: it was deleted before", what);
    if (outcome == DONE || (outcome == REFUSED && status == 404))
        file->is = GONE;
    else if (file->is == THERE && status != 409)
        file->is = MAYBE;
}

static void get_file(void)
{
    struct file_model *file = some_file();
    char what[64];

    if (file && file->is == THERE) {
        check_content(file);
    } else if (file && file->is == GONE) {
        snprintf(what, sizeof what, "get %s", file->id);
        struct reply reply = gateway_call(BATCH_FILE_GET, file->tenant, file->id, NULL);
        if (outcome_of(&reply, 404, what) == DONE)
            sim_fail("%s: it was deleted", what);
    }
}

// --- lives

static void turn(void) { (void)thread_turn(sim_chance(60)); }

// More of what clients upload, or more of what batches do.
static void act(bool uploads)
{
    static const struct {
        void (*fn)(void);
        uint32_t weights[2]; // with batches, with uploads
    } acts[] = {{upload, {10, 30}}, {create_batch, {12, 10}}, {cancel_batch, {3, 3}}, {delete_file, {3, 10}},
                {get_file, {2, 4}}, {answer_one, {35, 18}},   {turn, {35, 25}}};
    uint64_t left = 100;

    for (uint32_t i = 0; i < ARRAY_COUNT(acts); i++) {
        const uint64_t weight = acts[i].weights[uploads];
        if (sim_below(left) < weight) {
            acts[i].fn();
            return;
        }
        left -= weight;
    }
}

static void count_batch(void *arg, const struct batch_record *record)
{
    (void)record;
    ++*(uint32_t *)arg;
}

// Batches come to their end.
static void go_to_rest(void)
{
    struct error error = {.status = STATUS_OK};
    uint32_t open = 1;

    for (uint32_t i = 0; open && i < TURNS_MAX && !sim.failure[0]; i++) {
        while (gateway.asked_count)
            answer_one();
        (void)thread_turn(true);
        open = 0;
        if (batch_store_each_open(gateway.store, count_batch, &open, &error) != STATUS_OK)
            sim_fail("the list of open batches: %s", error.text);
    }
    if (open)
        sim_fail("%u batches do not come to their end", open);
}

// Nothing fails any more: all is as it should be, and goes on.
static void check_well(bool to_rest)
{
    disk_calm();
    sim_say("-- the disk is well");
    upload();
    if (to_rest)
        go_to_rest();
    check_all(false);
}

static void live(void)
{
    const bool fails_early = sim_chance(35);
    struct faults faults;

    disk_live();
    disk_plan(&faults);
    const bool is_full_at_most = !faults.kinds && !faults.end_at && reserve_is_there();
    if (fails_early)
        disk_arm(&faults);
    if (!start(!fails_early || is_full_at_most))
        return;
    if (!fails_early)
        check_all(true);
    if (!fails_early)
        disk_arm(&faults);
    const bool uploads = sim_chance(50);
    for (uint64_t i = sim_chance(25) ? 0 : 5 + sim_below(40); i > 0 && !disk.off && !sim.failure[0]; i--)
        act(uploads);
    if (!disk.off && sim_chance(60))
        check_well(sim_chance(40));
}

// The process ends, one way or another.
static void end(void)
{
    const uint64_t how = sim_below(4);

    if (how < 2 && !disk.off)
        disk_end(how == 0);
    if (gateway.api)
        stop();
    if (how == 2 && !disk.off)
        disk_end(true);
    if (!disk.cut)
        return;
    files_cut();
    model_cut();
}

void batches_run(void)
{
    model_begin();
    for (uint64_t lives = 1 + sim_below(4); lives > 0 && !sim.failure[0]; lives--) {
        live();
        end();
    }
    for (uint32_t last = 0; last < 2 && !sim.failure[0]; last++) { // and once more, after a clean end
        disk_live();
        if (!start(true))
            break;
        check_all(true);
        if (!last)
            check_well(true);
        stop();
    }
    if (gateway.api) // a check has failed
        stop();
    model_end();
}

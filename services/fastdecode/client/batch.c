// batch.c: `fastdecode batch IN.jsonl OUT.jsonl`: asks every line of a file of requests, and writes a line for each answer.
//
// OUT is all that a run leaves behind, and what the next one goes on from: a line is written by one call, in the order of the answers, so
// that a run that is killed at any moment leaves whole lines and at most a torn last one, which is cut. A line whose custom_id is in OUT is
// not asked again. A line of IN that cannot be asked has its error in OUT under the number of the line.
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/api/batch.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/base/status.h"
#include "services/fastdecode/client/client.h"
#include "services/fastdecode/client/commands.h"

// --- how far a batch is ----------------------------------------------------------------------------------------------
//
// A bar on a terminal, else a line every ten seconds. On standard error. Rates are those of the last minute, by marks two seconds apart.

enum { PROGRESS_MARKS = 32, SHOW_US = 200000, LINE_US = 10000000, MARK_US = 2000000, BAR_CELLS = 24 };

struct batch_progress {
    uint64_t total, done, failed;          // requests; done counts failed ones and those of earlier runs
    uint64_t prompt_tokens, answer_tokens; // of this run
    uint32_t in_flight;
    // private
    bool quiet, terminal;
    uint64_t start_us, shown_us, marked_us;
    uint64_t done_at_start;
    // what was done and answered a while ago, so that rates follow the present
    struct {
        uint64_t at_us, done, tokens;
    } marks[PROGRESS_MARKS];
    uint32_t mark_count, mark_next;
};

// Begins the clock. total and done are set before.
static void batch_progress_begin(struct batch_progress *progress, bool quiet)
{
    progress->quiet = quiet;
    progress->terminal = isatty(STDERR_FILENO);
    progress->start_us = progress->marked_us = clock_now_us();
    progress->shown_us = progress->start_us;
    progress->done_at_start = progress->done;
    progress->marks[0].at_us = progress->start_us;
    progress->marks[0].done = progress->done;
    progress->mark_count = progress->mark_next = 1;
}

static void mark(struct batch_progress *progress, uint64_t now_us)
{
    if (now_us - progress->marked_us < MARK_US)
        return;
    progress->marked_us = now_us;
    progress->marks[progress->mark_next].at_us = now_us;
    progress->marks[progress->mark_next].done = progress->done;
    progress->marks[progress->mark_next].tokens = progress->answer_tokens;
    progress->mark_next = (progress->mark_next + 1) % PROGRESS_MARKS;
    progress->mark_count = MIN(progress->mark_count + 1, (uint32_t)PROGRESS_MARKS);
}

// A second since the oldest mark, and per second: requests and tokens.
static void rates(const struct batch_progress *progress, uint64_t now_us, double *requests, double *tokens)
{
    uint32_t oldest = (progress->mark_next + PROGRESS_MARKS - progress->mark_count) % PROGRESS_MARKS;
    double seconds = (double)(now_us - progress->marks[oldest].at_us) / 1e6;

    *requests = seconds > 0 ? (double)(progress->done - progress->marks[oldest].done) / seconds : 0;
    *tokens = seconds > 0 ? (double)(progress->answer_tokens - progress->marks[oldest].tokens) / seconds : 0;
}

// Seconds left at the present rate; below 0: not known yet.
static double batch_progress_left_s(const struct batch_progress *progress, uint64_t now_us)
{
    double requests, tokens;

    rates(progress, now_us, &requests, &tokens);
    return requests > 0 ? (double)(progress->total - MIN(progress->done, progress->total)) / requests : -1;
}

static const char *duration(double seconds, char out[32])
{
    uint64_t whole = (uint64_t)seconds;

    if (seconds < 0)
        snprintf(out, 32, "--:--");
    else if (whole >= 3600)
        snprintf(out, 32, "%llu:%02u:%02u", (unsigned long long)(whole / 3600), (unsigned)(whole / 60 % 60),
                 (unsigned)(whole % 60));
    else
        snprintf(out, 32, "%u:%02u", (unsigned)(whole / 60), (unsigned)(whole % 60));
    return out;
}

static void print_now(const struct batch_progress *progress, uint64_t now_us)
{
    double requests, tokens, share = progress->total ? (double)progress->done / (double)progress->total : 1;
    uint32_t cells = (uint32_t)(MIN(share, 1.0) * BAR_CELLS), i;
    char bar[BAR_CELLS + 1], left[32];

    for (i = 0; i < BAR_CELLS; i++)
        bar[i] = i < cells ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    rates(progress, now_us, &requests, &tokens);
    fprintf(stderr, "%s[%s] %llu/%llu  %.1f requests/s  %.0f tokens/s  %u asked  %llu failed  ETA %s%s",
            progress->terminal ? "\r" : "", bar, (unsigned long long)progress->done, (unsigned long long)progress->total, requests,
            tokens, progress->in_flight, (unsigned long long)progress->failed,
            duration(batch_progress_left_s(progress, now_us), left), progress->terminal ? "\033[K" : "\n");
}

// Shows what has changed, at most five times a second.
static void batch_progress_show(struct batch_progress *progress)
{
    uint64_t now_us = clock_now_us();

    mark(progress, now_us);
    if (progress->quiet || now_us - progress->shown_us < (progress->terminal ? (uint64_t)SHOW_US : (uint64_t)LINE_US))
        return;
    progress->shown_us = now_us;
    print_now(progress, now_us);
}

// The last word: what was done in which time.
static void batch_progress_end(struct batch_progress *progress)
{
    double seconds = MAX((double)(clock_now_us() - progress->start_us) / 1e6, 1e-3);
    uint64_t done = progress->done - progress->done_at_start;
    char took[32];

    if (progress->quiet)
        return;
    if (progress->terminal) {
        print_now(progress, clock_now_us());
        fputc('\n', stderr);
    }
    fprintf(
        stderr,
        "%llu of %llu requests done, %llu of them failed; this run: %llu in %s, %llu prompt and %llu answer tokens, %.1f tokens/s\n",
        (unsigned long long)progress->done, (unsigned long long)progress->total, (unsigned long long)progress->failed,
        (unsigned long long)done, duration(seconds, took), (unsigned long long)progress->prompt_tokens,
        (unsigned long long)progress->answer_tokens, (double)progress->answer_tokens / seconds);
}

// --- a run -----------------------------------------------------------------------------------------------------------
enum {
    LINE_BYTES_MAX = 64 << 20,
    RESULT_BYTES_MAX = 256 << 20,
    ANSWER_BYTES_MAX = 64 << 20,
    WAIT_MS = 100,
    PAUSE_FIRST_MS = 500,
    PAUSE_MOST_MS = 30000,
    RETRY_AFTER_MOST_S = 600,
    SERVER_ERRORS_MAX = 3, // times that a request may fail in the server before that is its answer
    ID_BYTES = 40,
    INTERRUPTED = 130,
};

enum slot_state { SLOT_FREE, SLOT_ASKED, SLOT_PAUSED };

// A request in flight.
struct slot {
    struct batch *batch;
    enum slot_state state;
    CURL *easy;
    uint64_t number; // of the line
    struct batch_line line;
    struct text answer;
    bool too_large;
    char request_id[128]; // "" if the server gave none
    uint32_t retry_after_s;
    uint32_t pauses, server_errors;
    uint64_t again_us;
};

struct batch {
    const char *in_path, *out_path;
    const char *url; // "http://host:port", with or without "/v1"
    const char *api_key;
    uint32_t concurrency;
    double patience_s;
    bool resume, flex, quiet;
    int in, out;
    struct line_reader reader;
    struct text_set done_ids, done_lines; // custom_ids that OUT has; ids of results without one
    struct text_set seen;                 // custom_ids of IN so far
    struct batch_progress progress;
    struct error error; // what ends the run
    // requests in flight
    CURLM *multi;
    struct curl_slist *headers;
    struct slot *slots;   // [concurrency]
    uint32_t in_flight;   // of them: those that are asked or paused
    uint64_t answered_us; // when the server last gave an answer that stands; 0: never
    uint64_t jitter;
    bool refused;      // whatever is asked; trouble says why
    char trouble[256]; // what was wrong last; "": nothing
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

// --- OUT -----------------------------------------------------------------------------------------------------------
static const char *line_id(uint64_t number, char out[ID_BYTES])
{
    snprintf(out, ID_BYTES, "batch_req_%llu", (unsigned long long)number);
    return out;
}

// Writes a result by one call: what is torn is the last line of the file.
static void write_result(struct batch *batch, const struct batch_result *result)
{
    struct text text = {0};

    batch_result_write(&text, result);
    if (text.failed)
        error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    else if (write(batch->out, text.data, text.bytes) != (ssize_t)text.bytes)
        error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "cannot write %s: %s", batch->out_path,
                  strerror(errno ? errno : ENOSPC));
    text_free(&text);
    batch->progress.done++;
    batch->progress.failed += result->status != 200;
}

// Takes what an earlier run left. False: *error.
static bool take_result(struct batch *batch, const char *line, size_t bytes, bool ended, uint64_t line_end)
{
    static const char start[] = "{\"id\":\"batch_req_"; // of a line that a run writes: what is cut is no other's
    struct batch_result_about about;
    bool ok = batch_result_read(line, bytes, &about);

    if (ok) {
        batch->progress.done++;
        batch->progress.failed += about.failed;
        if ((about.custom_id ? text_set_add(&batch->done_ids, about.custom_id) : text_set_add(&batch->done_lines, about.id)) ==
            STATUS_RESOURCE_EXHAUSTED)
            error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        else if (!ended && write(batch->out, "\n", 1) != 1)
            error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "cannot write %s: %s", batch->out_path, strerror(errno));
    } else if (!ended && (batch->progress.done > 0 || memcmp(line, start, MIN(bytes, sizeof start - 1)) == 0)) {
        fprintf(stderr, "cutting %zu bytes of a torn line off %s\n", bytes, batch->out_path);
        if (ftruncate(batch->out, (off_t)(line_end - bytes)) != 0)
            error_set(&batch->error, STATUS_UNKNOWN, "cannot cut %s: %s", batch->out_path, strerror(errno));
    } else if (!batch_line_is_blank(line, bytes)) {
        error_set(&batch->error, STATUS_INVALID_ARGUMENT,
                  "%s line %llu is not a result of a batch: name another file, or --no-resume to overwrite it", batch->out_path,
                  (unsigned long long)batch->reader.number);
    }
    batch_result_about_free(&about);
    return !batch->error.status;
}

static bool scan_results(struct batch *batch)
{
    const char *line;
    size_t bytes;
    enum line_kind kind;

    line_reader_open(batch->out, RESULT_BYTES_MAX, &batch->reader);
    while ((kind = line_reader_next(&batch->reader, &line, &bytes)) == LINE_WHOLE || kind == LINE_UNENDED)
        if (!take_result(batch, line, bytes, kind == LINE_WHOLE, batch->reader.position))
            break;
    if (kind == LINE_TOO_LONG || kind == LINE_FAILED)
        error_set(&batch->error, STATUS_INVALID_ARGUMENT, "cannot read %s line %llu: %s", batch->out_path,
                  (unsigned long long)batch->reader.number, kind == LINE_FAILED ? strerror(errno) : "it is too long");
    line_reader_close(&batch->reader);
    return !batch->error.status;
}

// --- requests in flight over HTTP, many at a time on one thread, until each has an answer that stands ----------------
//
// An answer stands if asking again would not change it: 200, and the errors that the request itself is to blame for. A server that is away,
// full or not ready (no connection, 408, 429, 502 to 504) is asked again after a pause: 0.5 s, doubled up to 30 s, or what Retry-After
// says. Other errors of the server are asked again three times. An answer about the key or the URL (401, 403, an unknown path) is none: the
// run should end.

// --- what a transfer brings ----------------------------------------------------------------------------------------
static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    struct slot *slot = user;
    size_t bytes = size * count;

    slot->too_large = slot->answer.bytes + bytes > ANSWER_BYTES_MAX;
    if (!slot->too_large)
        text_append(&slot->answer, data, bytes);
    return slot->too_large || slot->answer.failed ? 0 : bytes;
}

// The value of a header line if it has this name, without blanks around it; NULL: another one.
static const char *header_value(const char *line, size_t bytes, const char *name, char *out, size_t out_bytes)
{
    size_t length = strlen(name);

    if (bytes <= length || strncasecmp(line, name, length) != 0 || line[length] != ':')
        return NULL;
    for (line += length + 1, bytes -= length + 1; bytes > 0 && *line == ' '; line++)
        bytes--;
    while (bytes > 0 && memchr(" \t\r\n", line[bytes - 1], 4))
        bytes--;
    snprintf(out, out_bytes, "%.*s", (int)bytes, line);
    return out;
}

static size_t on_header(char *data, size_t size, size_t count, void *user)
{
    struct slot *slot = user;
    char value[128];

    header_value(data, size * count, "X-Request-Id", slot->request_id, sizeof slot->request_id);
    if (header_value(data, size * count, "Retry-After", value, sizeof value))
        slot->retry_after_s = (uint32_t)MIN(strtoul(value, NULL, 10), (unsigned long)RETRY_AFTER_MOST_S);
    return size * count;
}

// --- life of a slot ------------------------------------------------------------------------------------------------
static void start(struct slot *slot)
{
    slot->state = SLOT_ASKED;
    text_clear(&slot->answer);
    slot->too_large = false;
    slot->request_id[0] = '\0';
    slot->retry_after_s = 0;
    curl_multi_add_handle(slot->batch->multi, slot->easy);
}

static void count_tokens(struct batch *batch, const struct batch_result *answer)
{
    json_t *root = json_loadb(answer->body, answer->body_bytes, JSON_ALLOW_NUL, NULL), *usage = json_object_get(root, "usage");

    batch->progress.prompt_tokens += (uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    batch->progress.answer_tokens += (uint64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    json_decref(root);
}

// The answer stands. status 0: none, see error.
static void finish(struct slot *slot, int status, const struct batch_error *error)
{
    struct batch *batch = slot->batch;
    char id[ID_BYTES];
    struct batch_result answer = {.id = line_id(slot->number, id),
                                  .custom_id = slot->line.custom_id,
                                  .status = status,
                                  .request_id = slot->request_id,
                                  .body = slot->answer.data ? slot->answer.data : "",
                                  .body_bytes = slot->answer.bytes,
                                  .error = error};

    batch->answered_us = clock_now_us();
    batch->trouble[0] = '\0';
    count_tokens(batch, &answer);
    write_result(batch, &answer);
    batch_line_free(&slot->line);
    text_free(&slot->answer);
    slot->state = SLOT_FREE;
    batch->in_flight--;
}

// Jitter of a half, so that requests that failed together do not come back together.
static void pause_slot(struct slot *slot)
{
    struct batch *batch = slot->batch;
    uint64_t pause_ms = MIN((uint64_t)PAUSE_FIRST_MS << MIN(slot->pauses, 10u), (uint64_t)PAUSE_MOST_MS);

    if (slot->retry_after_s)
        pause_ms = slot->retry_after_s * 1000ull;
    batch->jitter = batch->jitter * 6364136223846793005u + 1442695040888963407u;
    pause_ms += pause_ms * (batch->jitter >> 40) / (2ull << 24);
    slot->pauses++;
    slot->state = SLOT_PAUSED;
    slot->again_us = clock_now_us() + pause_ms * 1000;
}

// Whether the answer is about the key or the URL rather than about the request: that of all others would be the same.
static bool refuses_all(const struct slot *slot, long status)
{
    static const char unknown_path[] = "\"code\":\"not_found\"";

    return status == 401 || status == 403 ||
           (status == 404 && slot->answer.data &&
            memmem(slot->answer.data, slot->answer.bytes, unknown_path, sizeof unknown_path - 1));
}

static void conclude(struct slot *slot, CURLcode result)
{
    struct batch *batch = slot->batch;
    struct batch_error error = {.code = "answer_too_large"};
    long status = 0;

    curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(batch->multi, slot->easy);
    if (slot->too_large) {
        snprintf(error.message, sizeof error.message, "the answer is larger than %d MiB", ANSWER_BYTES_MAX >> 20);
        finish(slot, 0, &error);
    } else if (result != CURLE_OK) {
        snprintf(batch->trouble, sizeof batch->trouble, "%s", curl_easy_strerror(result));
        pause_slot(slot);
    } else if (status == 408 || status == 429 || (status >= 502 && status <= 504) || refuses_all(slot, status)) {
        batch->refused |= refuses_all(slot, status);
        snprintf(batch->trouble, sizeof batch->trouble, "status %ld: %.*s", status, (int)MIN(slot->answer.bytes, (size_t)200),
                 slot->answer.data ? slot->answer.data : "");
        pause_slot(slot);
    } else if (status >= 500 && ++slot->server_errors < SERVER_ERRORS_MAX) {
        snprintf(batch->trouble, sizeof batch->trouble, "status %ld", status);
        pause_slot(slot);
    } else {
        finish(slot, (int)status, NULL);
    }
}

static bool open_slot(struct batch *batch, struct slot *slot)
{
    slot->batch = batch;
    slot->easy = api_handle_open(batch->headers, on_body, slot);
    if (!slot->easy)
        return false;
    curl_easy_setopt(slot->easy, CURLOPT_PRIVATE, slot);
    curl_easy_setopt(slot->easy, CURLOPT_TCP_KEEPALIVE, 1L); // an answer may take long, but not from a host that is gone
    curl_easy_setopt(slot->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(slot->easy, CURLOPT_HEADERDATA, slot);
    return true;
}

static bool open_slots(struct batch *batch)
{
    bool ok;

    batch->jitter = clock_now_ns();
    batch->multi = curl_multi_init();
    batch->slots = calloc(batch->concurrency, sizeof *batch->slots);
    batch->headers = api_headers_make(batch->api_key);
    ok = batch->multi && batch->slots && batch->headers;
    for (uint32_t i = 0; ok && i < batch->concurrency; i++)
        ok = open_slot(batch, &batch->slots[i]);
    if (!ok)
        error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "no memory for %u requests at a time", batch->concurrency);
    else
        curl_multi_setopt(batch->multi, CURLMOPT_MAXCONNECTS, (long)batch->concurrency);
    return ok;
}

// Requests in flight are dropped.
static void close_slots(struct batch *batch)
{
    for (uint32_t i = 0; batch->slots && i < batch->concurrency; i++) {
        struct slot *slot = &batch->slots[i];
        if (slot->state == SLOT_ASKED)
            curl_multi_remove_handle(batch->multi, slot->easy);
        curl_easy_cleanup(slot->easy);
        batch_line_free(&slot->line);
        text_free(&slot->answer);
    }
    curl_multi_cleanup(batch->multi);
    curl_slist_free_all(batch->headers);
    free(batch->slots);
}

// Asks. line is moved from. There must be a free slot.
static void ask(struct batch *batch, uint64_t number, struct batch_line *line)
{
    struct slot *slot = batch->slots;
    char url[1280];

    assert_always(batch->in_flight < batch->concurrency);
    while (slot->state != SLOT_FREE)
        slot++;
    slot->number = number;
    slot->line = *line;
    slot->pauses = slot->server_errors = 0;
    *line = (struct batch_line){0};
    snprintf(url, sizeof url, "%.*s%s", api_server_length(batch->url), batch->url, batch_endpoint_path(slot->line.endpoint));
    curl_easy_setopt(slot->easy, CURLOPT_URL, url);
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDS, slot->line.body);
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)slot->line.body_bytes);
    batch->in_flight++;
    start(slot);
}

// Goes on for at most WAIT_MS. Returns early at a signal.
static void go_on(struct batch *batch)
{
    uint64_t now_us = clock_now_us();
    CURLMsg *message;
    int running, left;

    for (uint32_t i = 0; i < batch->concurrency; i++)
        if (batch->slots[i].state == SLOT_PAUSED && batch->slots[i].again_us <= now_us)
            start(&batch->slots[i]);
    curl_multi_perform(batch->multi, &running);
    curl_multi_poll(batch->multi, NULL, 0, WAIT_MS, NULL);
    curl_multi_perform(batch->multi, &running);
    while ((message = curl_multi_info_read(batch->multi, &left)) != NULL) {
        struct slot *slot;
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&slot);
        conclude(slot, message->data.result);
    }
}

// --- IN ------------------------------------------------------------------------------------------------------------
static void write_refusal(struct batch *batch, const char *custom_id, const struct batch_error *error)
{
    char id[ID_BYTES];
    struct batch_error named = *error;

    snprintf(named.message, sizeof named.message, "line %llu: %.200s", (unsigned long long)batch->reader.number, error->message);
    write_result(batch, &(struct batch_result){line_id(batch->reader.number, id), custom_id, .error = &named});
}

// A line that cannot be asked: once in all runs.
static void refuse(struct batch *batch, const char *custom_id, const struct batch_error *error)
{
    char id[ID_BYTES];

    if (custom_id ? !text_set_has(&batch->done_ids, custom_id)
                  : !text_set_has(&batch->done_lines, line_id(batch->reader.number, id)))
        write_refusal(batch, custom_id, error);
}

static void take_line(struct batch *batch, const char *text, size_t bytes)
{
    struct batch_line line;
    struct batch_error error;
    bool ok = batch_line_parse(text, bytes, batch->flex, &line, &error);
    enum status seen = line.custom_id ? text_set_add(&batch->seen, line.custom_id) : STATUS_OK;

    if (seen == STATUS_RESOURCE_EXHAUSTED) {
        error_set(&batch->error, seen, "out of memory");
    } else if (seen == STATUS_ALREADY_EXISTS) {
        error.code = "duplicate_custom_id";
        snprintf(error.message, sizeof error.message, "an earlier line has the custom_id '%.100s'", line.custom_id);
        refuse(batch, NULL, &error);
    } else if (!ok) {
        refuse(batch, line.custom_id, &error);
    } else if (!text_set_has(&batch->done_ids, line.custom_id)) {
        ask(batch, batch->reader.number, &line);
    }
    batch_line_free(&line);
}

// Takes the next line of IN. False: there is none.
static bool take_next(struct batch *batch)
{
    static const struct batch_error too_long = {"line_too_long", "the line is longer than 64 MiB"};
    const char *line;
    size_t bytes;

    switch (line_reader_next(&batch->reader, &line, &bytes)) {
    case LINE_WHOLE:
    case LINE_UNENDED:
        if (!batch_line_is_blank(line, bytes))
            take_line(batch, line, bytes);
        return true;
    case LINE_TOO_LONG: refuse(batch, NULL, &too_long); return true;
    case LINE_FAILED: error_set(&batch->error, STATUS_UNKNOWN, "cannot read %s: %s", batch->in_path, strerror(errno)); return false;
    default: return false;
    }
}

// How many lines IN has, for the progress.
static bool count_lines(struct batch *batch)
{
    const char *line;
    size_t bytes;
    enum line_kind kind;

    line_reader_open(batch->in, LINE_BYTES_MAX, &batch->reader);
    while ((kind = line_reader_next(&batch->reader, &line, &bytes)) < LINE_NONE)
        batch->progress.total += kind == LINE_TOO_LONG || !batch_line_is_blank(line, bytes);
    line_reader_close(&batch->reader);
    if (kind == LINE_FAILED || lseek(batch->in, 0, SEEK_SET) < 0)
        error_set(&batch->error, STATUS_UNKNOWN, "cannot read %s: %s", batch->in_path, strerror(errno));
    return !batch->error.status;
}

// --- the run -------------------------------------------------------------------------------------------------------
// Whether the server has given no answer for too long, or will not.
static bool lost_patience(struct batch *batch, uint64_t began_us)
{
    uint64_t since_us = MAX(batch->answered_us, began_us);

    if (batch->refused) {
        error_set(&batch->error, STATUS_FAILED_PRECONDITION, "%s refuses all requests (see --url and --api-key): %s", batch->url,
                  batch->trouble);
        return true;
    }
    if (!batch->trouble[0] || (double)(clock_now_us() - since_us) < batch->patience_s * 1e6)
        return false;
    error_set(&batch->error, STATUS_UNAVAILABLE, "no answer from %s for %g s: %s", batch->url, batch->patience_s, batch->trouble);
    return true;
}

static void run(struct batch *batch)
{
    uint64_t began_us = clock_now_us();
    bool more = true;

    line_reader_open(batch->in, LINE_BYTES_MAX, &batch->reader);
    batch_progress_begin(&batch->progress, batch->quiet);
    while (!batch->error.status && !interrupted && (more || batch->in_flight > 0)) {
        while (more && !batch->error.status && !interrupted && batch->in_flight < batch->concurrency)
            more = take_next(batch);
        batch->progress.in_flight = batch->in_flight; // with the places filled: what has come since leaves gaps for a moment
        if (batch->in_flight > 0)
            go_on(batch);
        batch_progress_show(&batch->progress);
        if (lost_patience(batch, began_us))
            break;
    }
    batch->progress.in_flight = 0;
    line_reader_close(&batch->reader);
    if (fsync(batch->out) != 0 && errno != EINVAL && !batch->error.status)
        error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "cannot write %s: %s", batch->out_path, strerror(errno));
    batch_progress_end(&batch->progress);
}

// --- the files -----------------------------------------------------------------------------------------------------
static bool open_files(struct batch *batch)
{
    struct stat in, out;

    batch->in = open(batch->in_path, O_RDONLY | O_CLOEXEC);
    if (batch->in < 0 || fstat(batch->in, &in) != 0) {
        error_set(&batch->error, STATUS_NOT_FOUND, "%s: %s", batch->in_path, strerror(errno));
        return false;
    }
    batch->out = open(batch->out_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (batch->out < 0 || fstat(batch->out, &out) != 0)
        error_set(&batch->error, STATUS_NOT_FOUND, "%s: %s", batch->out_path, strerror(errno));
    else if (!S_ISREG(in.st_mode) || !S_ISREG(out.st_mode))
        error_set(&batch->error, STATUS_INVALID_ARGUMENT, "IN and OUT must be files: both are read more than once");
    else if (in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        error_set(&batch->error, STATUS_INVALID_ARGUMENT, "IN and OUT are the same file");
    else if (flock(batch->out, LOCK_EX | LOCK_NB) != 0)
        error_set(&batch->error, STATUS_ALREADY_EXISTS, "%s is being written by another run", batch->out_path);
    else if (!batch->resume && ftruncate(batch->out, 0) != 0)
        error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "%s: %s", batch->out_path, strerror(errno));
    return !batch->error.status;
}

static int work(struct batch *batch)
{
    struct sigaction on_signal = {.sa_handler = on_interrupt};

    text_set_open(&batch->done_ids);
    text_set_open(&batch->done_lines);
    text_set_open(&batch->seen);
    if (open_files(batch) && scan_results(batch) && count_lines(batch) && open_slots(batch)) {
        sigaction(SIGINT, &on_signal, NULL);
        sigaction(SIGTERM, &on_signal, NULL);
        if (batch->progress.done > 0 && !batch->quiet)
            fprintf(stderr, "%s has %llu answers already\n", batch->out_path, (unsigned long long)batch->progress.done);
        run(batch);
    }
    close_slots(batch);
    text_set_close(&batch->done_ids);
    text_set_close(&batch->done_lines);
    text_set_close(&batch->seen);
    if (batch->error.status)
        fprintf(stderr, "fastdecode batch: %s\n", batch->error.text);
    if (batch->error.status == STATUS_UNAVAILABLE || interrupted)
        fprintf(stderr, "the same command goes on where this run ended\n");
    return batch->error.status ? (int)error_exit_code(&batch->error) : interrupted ? INTERRUPTED : 0;
}

int batch_main(int argc, char **argv)
{
    struct batch batch = {
        .url = "http://127.0.0.1:8080", .concurrency = 128, .patience_s = 300, .resume = true, .flex = true, .in = -1, .out = -1};
    const struct option options[] = {
        {"url", OPTION_STRING, &batch.url, "URL", "address of the gateway", 0, 0},
        {"api-key", OPTION_STRING, &batch.api_key, "KEY", "API key, if the gateway needs one", 0, 0},
        {"concurrency", OPTION_U32, &batch.concurrency, "N", "most requests at once", 1, 4096},
        {"resume", OPTION_BOOL, &batch.resume, NULL, "skip lines whose answer OUT already has; --no-resume overwrites OUT", 0, 0},
        {"flex", OPTION_BOOL, &batch.flex, NULL,
         "ask with service_tier flex, which uses only time that interactive requests leave; a line's own service_tier comes first",
         0, 0},
        {"patience", OPTION_F64, &batch.patience_s, "S", "give up after this long without any answer from the gateway", 0.1, 1e7},
        {"quiet", OPTION_BOOL, &batch.quiet, NULL, "no progress", 0, 0},
    };
    struct program program = {
        .name = "fastdecode batch",
        .purpose = "sends every line of a batch file as a request and writes a line for each answer, in OpenAI's format",
        .options = options,
        .option_count = ARRAY_COUNT(options),
        .operand_name = "IN.jsonl OUT.jsonl"};
    enum status status = options_parse(&program, argc, argv, &batch.error);

    if (!status && program.operand_count != 2)
        status = error_set(&batch.error, STATUS_INVALID_ARGUMENT, "want two files, IN.jsonl and OUT.jsonl (see --help)");
    if (status) {
        fprintf(stderr, "fastdecode batch: %s\n", batch.error.text);
        return error_exit_code(&batch.error);
    }
    if (program.check_only)
        return 0;
    batch.in_path = program.operands[0];
    batch.out_path = program.operands[1];
    return work(&batch);
}

// batch.c: `fastdecode batch IN.jsonl OUT.jsonl`: asks every line of a file of requests, and writes a line for each answer.
//
// OUT is all that a run leaves behind, and what the next one goes on from: a line is written by one call, in the order of the answers, so
// that a run that is killed at any moment leaves whole lines and at most a torn last one, which is cut. A line whose custom_id is in OUT is
// not asked again. A line of IN that cannot be asked has its error in OUT under the number of the line.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/batch/batch_line.h"
#include "common/batch/line_reader.h"
#include "common/batch/text_set.h"
#include "services/fastdecode/load/batch_ask.h"
#include "services/fastdecode/load/batch_progress.h"
#include "services/fastdecode/load/commands.h"

enum { LINE_BYTES_MAX = 64 << 20, RESULT_BYTES_MAX = 256 << 20, WAIT_MS = 100, ID_BYTES = 40, INTERRUPTED = 130 };

struct batch {
    const char *in_path, *out_path, *url, *api_key;
    uint32_t concurrency;
    double patience_s;
    bool resume, flex, quiet;
    int in, out;
    struct line_reader reader;
    struct text_set done_ids, done_lines; // custom_ids that OUT has; ids of results without one
    struct text_set seen;                 // custom_ids of IN so far
    struct batch_progress progress;
    struct batch_asker *asker;
    struct error error; // what ends the run
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
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    bool ok = stream != NULL;

    if (stream) {
        batch_result_write(stream, result);
        ok = !ferror(stream);
        ok = fclose(stream) == 0 && ok;
    }
    if (!ok)
        error_set(&batch->error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    else if (write(batch->out, text, bytes) != (ssize_t)bytes)
        error_set(&batch->error, STATUS_UNKNOWN, "cannot write %s: %s", batch->out_path, strerror(errno ? errno : ENOSPC));
    free(text);
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
            error_set(&batch->error, STATUS_UNKNOWN, "cannot write %s: %s", batch->out_path, strerror(errno));
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
        batch_asker_add(batch->asker, batch->reader.number, &line);
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
static void count_tokens(struct batch *batch, const struct batch_answer *answer)
{
    json_t *root = json_loadb(answer->body, answer->body_bytes, JSON_ALLOW_NUL, NULL), *usage = json_object_get(root, "usage");

    batch->progress.prompt_tokens += (uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    batch->progress.answer_tokens += (uint64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    json_decref(root);
}

static void on_answer(void *arg, const struct batch_answer *answer)
{
    struct batch *batch = arg;
    char id[ID_BYTES];

    count_tokens(batch, answer);
    write_result(batch, &(struct batch_result){.id = line_id(answer->number, id),
                                               .custom_id = answer->custom_id,
                                               .status = answer->status,
                                               .request_id = answer->request_id,
                                               .body = answer->body,
                                               .body_bytes = answer->body_bytes,
                                               .error = answer->error});
}

// Whether the server has given no answer for too long, or will not.
static bool lost_patience(struct batch *batch, uint64_t began_us)
{
    uint64_t since_us = MAX(batch_asker_answered_us(batch->asker), began_us);

    if (batch_asker_is_refused(batch->asker)) {
        error_set(&batch->error, STATUS_PERMISSION_DENIED, "%s refuses all requests (see --url and --api-key): %s", batch->url,
                  batch_asker_trouble(batch->asker));
        return true;
    }
    if (!*batch_asker_trouble(batch->asker) || (double)(clock_now_us() - since_us) < batch->patience_s * 1e6)
        return false;
    error_set(&batch->error, STATUS_UNAVAILABLE, "no answer from %s for %g s: %s", batch->url, batch->patience_s,
              batch_asker_trouble(batch->asker));
    return true;
}

static void run(struct batch *batch)
{
    uint64_t began_us = clock_now_us();
    bool more = true;

    line_reader_open(batch->in, LINE_BYTES_MAX, &batch->reader);
    batch_progress_begin(&batch->progress, batch->quiet);
    while (!batch->error.status && !interrupted && (more || batch_asker_in_flight(batch->asker) > 0)) {
        while (more && !batch->error.status && !interrupted && batch_asker_has_room(batch->asker))
            more = take_next(batch);
        batch->progress.in_flight = batch_asker_in_flight(batch->asker);
        if (batch->progress.in_flight > 0)
            batch_asker_run(batch->asker, WAIT_MS);
        batch_progress_show(&batch->progress);
        if (lost_patience(batch, began_us))
            break;
    }
    batch->progress.in_flight = 0;
    line_reader_close(&batch->reader);
    if (fsync(batch->out) != 0 && errno != EINVAL && !batch->error.status)
        error_set(&batch->error, STATUS_UNKNOWN, "cannot write %s: %s", batch->out_path, strerror(errno));
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
        error_set(&batch->error, STATUS_UNKNOWN, "%s: %s", batch->out_path, strerror(errno));
    else if (!S_ISREG(in.st_mode) || !S_ISREG(out.st_mode))
        error_set(&batch->error, STATUS_INVALID_ARGUMENT, "IN and OUT must be files: both are read more than once");
    else if (in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        error_set(&batch->error, STATUS_INVALID_ARGUMENT, "IN and OUT are the same file");
    else if (flock(batch->out, LOCK_EX | LOCK_NB) != 0)
        error_set(&batch->error, STATUS_ALREADY_EXISTS, "%s is being written by another run", batch->out_path);
    else if (!batch->resume && ftruncate(batch->out, 0) != 0)
        error_set(&batch->error, STATUS_UNKNOWN, "%s: %s", batch->out_path, strerror(errno));
    return !batch->error.status;
}

static int work(struct batch *batch)
{
    struct sigaction on_signal = {.sa_handler = on_interrupt};
    struct batch_asker_config config = {
        .url = batch->url, .api_key = batch->api_key, .concurrency = batch->concurrency, .answered = on_answer, .arg = batch};

    text_set_open(&batch->done_ids);
    text_set_open(&batch->done_lines);
    text_set_open(&batch->seen);
    if (open_files(batch) && scan_results(batch) && count_lines(batch) &&
        batch_asker_open(&config, &batch->asker, &batch->error) == STATUS_OK) {
        sigaction(SIGINT, &on_signal, NULL);
        sigaction(SIGTERM, &on_signal, NULL);
        if (batch->progress.done > 0 && !batch->quiet)
            fprintf(stderr, "%s has %llu answers already\n", batch->out_path, (unsigned long long)batch->progress.done);
        run(batch);
    }
    batch_asker_close(batch->asker);
    text_set_close(&batch->done_ids);
    text_set_close(&batch->done_lines);
    text_set_close(&batch->seen);
    if (batch->error.status)
        fprintf(stderr, "fastdecode batch: %s\n", batch->error.text);
    if (batch->error.status == STATUS_UNAVAILABLE || interrupted)
        fprintf(stderr, "the same command goes on where this run ended\n");
    return batch->error.status ? 1 : interrupted ? INTERRUPTED : 0;
}

int batch_main(int argc, char **argv)
{
    struct batch batch = {
        .url = "http://127.0.0.1:8080", .concurrency = 128, .patience_s = 300, .resume = true, .flex = true, .in = -1, .out = -1};
    const struct option options[] = {
        {"url", OPTION_STRING, &batch.url, "URL", "address of the gateway", 0, 0},
        {"api-key", OPTION_STRING, &batch.api_key, "KEY", "API key, if the gateway needs one", 0, 0},
        {"concurrency", OPTION_U32, &batch.concurrency, "N", "most requests at a time", 1, 4096},
        {"resume", OPTION_BOOL, &batch.resume, NULL, "do not ask again what OUT has an answer to; --no-resume overwrites OUT", 0,
         0},
        {"flex", OPTION_BOOL, &batch.flex, NULL,
         "ask with service_tier flex, which takes only the time that interactive requests leave, unless a body names another", 0,
         0},
        {"patience", OPTION_F64, &batch.patience_s, "S", "give up after this long without any answer from the gateway", 0.1, 1e7},
        {"quiet", OPTION_BOOL, &batch.quiet, NULL, "no progress", 0, 0},
    };
    struct program program = {.name = "fastdecode batch",
                              .purpose = "asks every line of a batch file and writes a line for each answer, in OpenAI's format",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "IN.jsonl OUT.jsonl"};
    enum status status = options_parse(&program, argc, argv, &batch.error);

    if (!status && program.operand_count != 2)
        status = error_set(&batch.error, STATUS_INVALID_ARGUMENT, "want two files, IN.jsonl and OUT.jsonl (see --help)");
    if (status) {
        fprintf(stderr, "fastdecode batch: %s\n", batch.error.text);
        return 2;
    }
    if (program.check_only)
        return 0;
    batch.in_path = program.operands[0];
    batch.out_path = program.operands[1];
    return work(&batch);
}

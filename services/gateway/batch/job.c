// job.c: see job.h.
#include "services/gateway/batch/job.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/log.h"

enum { RESULT_BYTES_MAX = 1 << 30, DIGITS = 16 }; // of a batch's id in those of its results

// --- bits ----------------------------------------------------------------------------------------------------------
static bool has_bit(const struct batch_bits *bits, uint64_t index)
{
    return index < bits->capacity && (bits->words[index / 64] >> (index % 64) & 1);
}

static bool set_bit(struct batch_bits *bits, uint64_t index)
{
    if (index >= bits->capacity) {
        uint64_t wanted = MAX(bits->capacity * 2, (index / 4096 + 1) * 4096);
        uint64_t *grown = realloc(bits->words, wanted / 8);
        if (!grown)
            return false;
        memset(grown + bits->capacity / 64, 0, (wanted - bits->capacity) / 8);
        bits->words = grown;
        bits->capacity = wanted;
    }
    bits->words[index / 64] |= 1ull << (index % 64);
    return true;
}

// --- opening -------------------------------------------------------------------------------------------------------
void batch_job_result_id(const struct batch_job *job, uint64_t number, char out[BATCH_ID_BYTES + 24])
{
    snprintf(out, BATCH_ID_BYTES + 24, "batch_req_%.*s_%" PRIu64, DIGITS, job->record.id + strlen("batch_"), number);
}

// The number of the line in the id of its result; 0: it is none of this batch.
static uint64_t number_in(const struct batch_job *job, const char *id)
{
    char wanted[BATCH_ID_BYTES + 24];
    const char *digits = strrchr(id, '_');
    uint64_t number = digits ? strtoull(digits + 1, NULL, 10) : 0;

    batch_job_result_id(job, number, wanted);
    return strcmp(id, wanted) == 0 && number <= job->max_lines ? number : 0;
}

// Cuts off what lies behind the bytes. Synced, so that after a power cut none of it is amid the lines that come in its place.
static bool cut(int fd, uint64_t bytes, bool is_there) { return ftruncate(fd, (off_t)bytes) == 0 && (!is_there || fsync(fd) == 0); }

// Takes the results that are there, and cuts the file where they end.
static enum status take_results(struct batch_job *job, struct batch_store *store, int fd, uint64_t *bytes_out, struct error *error)
{
    struct batch_result_about about;
    struct line_reader reader;
    enum line_kind kind;
    const char *line;
    size_t bytes;
    bool ok = true;
    off_t end;

    *bytes_out = 0;
    line_reader_open(fd, RESULT_BYTES_MAX, &reader);
    while (ok && (kind = line_reader_next(&reader, &line, &bytes)) == LINE_WHOLE) {
        bool is_result = batch_result_read(line, bytes, &about);
        uint64_t number = is_result ? number_in(job, about.id) : 0;
        ok = number > 0 && !has_bit(&job->done, number) && set_bit(&job->done, number);
        if (ok) {
            *bytes_out = reader.position;
            job->record.counts.failed += about.failed;
            job->record.counts.completed += !about.failed;
        }
        batch_result_about_free(&about);
    }
    line_reader_close(&reader);
    end = lseek(fd, 0, SEEK_END);
    if (end > (off_t)*bytes_out)
        log_info("BATCH-RESULTS-CUT", "batch=%s bytes=%llu", job->record.id, (unsigned long long)*bytes_out);
    if (!cut(fd, *bytes_out, end > (off_t)*bytes_out))
        return error_set(error, STATUS_UNAVAILABLE, "the results cannot be written: %s", strerror(errno));
    if (end > (off_t)*bytes_out)
        batch_store_release(store, job->record.tenant, (uint64_t)end - *bytes_out);
    return STATUS_OK;
}

static int open_results(struct batch_store *store, const char *id)
{
    char path[BATCH_PATH_BYTES];

    batch_store_path(store, id, false, path);
    return open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

enum status batch_job_open(struct batch_store *store, struct batch_record *record, uint64_t max_lines, size_t max_line_bytes,
                           struct batch_job *out, struct error *error)
{
    char path[BATCH_PATH_BYTES];
    enum status status;

    *out = (struct batch_job){.record = *record, .max_lines = max_lines, .max_line_bytes = max_line_bytes};
    record->metadata = NULL;
    memcpy(out->key.tenant, record->tenant, sizeof out->key.tenant);
    out->record.counts = (struct batch_counts){.total = record->counts.total};
    text_set_open(&out->seen);
    batch_store_path(store, out->record.input, false, path);
    out->input = open(path, O_RDONLY | O_CLOEXEC);
    out->output = open_results(store, out->record.output);
    out->errors = open_results(store, out->record.errors);
    line_reader_open(out->input, max_line_bytes, &out->reader);
    if (out->input < 0)
        return error_set(error, STATUS_NOT_FOUND, "the input file is gone");
    if (out->output < 0 || out->errors < 0)
        return error_set(error, STATUS_UNAVAILABLE, "the results cannot be written: %s", strerror(errno));
    status = take_results(out, store, out->output, &out->output_bytes, error);
    if (status == STATUS_OK)
        status = take_results(out, store, out->errors, &out->errors_bytes, error);
    out->output_trouble.unsynced = out->output_bytes > 0; // the process that wrote them may have seen it fail
    out->errors_trouble.unsynced = out->errors_bytes > 0;
    out->saved = out->record.counts;
    return status;
}

void batch_job_close(struct batch_job *job)
{
    if (job->input >= 0)
        close(job->input);
    if (job->output >= 0)
        close(job->output);
    if (job->errors >= 0)
        close(job->errors);
    line_reader_close(&job->reader);
    text_set_close(&job->seen);
    free(job->done.words);
    free(job->duplicate.words);
    batch_record_free(&job->record);
}

// --- validating ----------------------------------------------------------------------------------------------------
enum batch_validation batch_job_fail(struct batch_job *job, const char *code, uint64_t line, const char *message)
{
    job->record.status = BATCH_FAILED;
    snprintf(job->record.error_code, sizeof job->record.error_code, "%s", code);
    snprintf(job->record.error_message, sizeof job->record.error_message, "%.200s", message);
    job->record.error_line = line;
    return BATCH_INVALID;
}

static bool rewind_input(struct batch_job *job)
{
    line_reader_close(&job->reader);
    line_reader_open(job->input, job->max_line_bytes, &job->reader);
    job->at_end = false;
    return lseek(job->input, 0, SEEK_SET) == 0;
}

// False: no memory.
static bool look_at(struct batch_job *job, const char *text, size_t bytes)
{
    struct batch_line line;
    struct batch_error error;
    bool ok = true;

    (void)batch_line_parse(text, bytes, false, &line, &error);
    if (line.custom_id) {
        enum status status = text_set_add(&job->seen, line.custom_id);
        ok = status == STATUS_OK || (status == STATUS_ALREADY_EXISTS && set_bit(&job->duplicate, job->reader.number));
    }
    batch_line_free(&line);
    return ok;
}

static enum batch_validation end_of_input(struct batch_job *job)
{
    text_set_close(&job->seen);
    if (job->record.counts.total == 0)
        return batch_job_fail(job, "empty_file", 0, "the input file has no line with a request");
    if (!rewind_input(job))
        return batch_job_fail(job, "server_error", 0, "the input file cannot be read");
    job->phase = BATCH_JOB_RUNNING;
    return BATCH_VALID;
}

enum batch_validation batch_job_validate(struct batch_job *job, uint32_t lines)
{
    const char *line;
    size_t bytes;
    char text[96];

    if (job->reader.number == 0)
        job->record.counts.total = 0;
    for (; lines > 0; lines--) {
        switch (line_reader_next(&job->reader, &line, &bytes)) {
        case LINE_NONE: return end_of_input(job);
        case LINE_FAILED: return batch_job_fail(job, "server_error", job->reader.number, "the input file cannot be read");
        case LINE_TOO_LONG: job->record.counts.total++; break;
        default:
            if (batch_line_is_blank(line, bytes))
                break;
            job->record.counts.total++;
            if (!look_at(job, line, bytes))
                return batch_job_fail(job, "server_error", job->reader.number, "out of memory");
        }
        if (job->reader.number > job->max_lines) {
            snprintf(text, sizeof text, "the input file has more than %" PRIu64 " lines", job->max_lines);
            return batch_job_fail(job, "too_many_lines", job->reader.number, text);
        }
    }
    return BATCH_VALID_MORE;
}

// --- lines ---------------------------------------------------------------------------------------------------------
void batch_job_begin_ending(struct batch_job *job, enum batch_status ends_as)
{
    job->phase = BATCH_JOB_ENDING;
    job->ends_as = ends_as;
}

const struct batch_error *batch_job_ending_error(const struct batch_job *job)
{
    static const struct batch_error cancelled = {"batch_cancelled", "The batch was cancelled before this request was answered."};
    static const struct batch_error expired = {"batch_expired",
                                               "This request could not be executed before the completion window expired."};

    return job->ends_as == BATCH_CANCELLED ? &cancelled : &expired;
}

static bool refuse(struct batch_error *error, const char *code, uint64_t number, const char *message)
{
    struct batch_error named = {.code = code};

    snprintf(named.message, sizeof named.message, "line %" PRIu64 ": %.200s", number, message);
    *error = named;
    return false;
}

// Whether the line can be asked.
static bool read_line(struct batch_job *job, const char *text, size_t bytes, struct batch_line *line, struct batch_error *error)
{
    uint64_t number = job->reader.number;

    if (!batch_line_parse(text, bytes, false, line, error)) {
        const char *code = error->code;
        char message[sizeof error->message];
        memcpy(message, error->message, sizeof message);
        if (has_bit(&job->duplicate, number))
            batch_line_free(line);
        return refuse(error, code, number, message);
    }
    if (has_bit(&job->duplicate, number)) {
        batch_line_free(line); // an earlier line has the custom_id
        return refuse(error, "duplicate_custom_id", number, "an earlier line has this custom_id");
    }
    return line->endpoint == job->record.endpoint || refuse(error, "mismatched_url", number, "'url' is not the batch's endpoint");
}

enum batch_next batch_job_next(struct batch_job *job, uint64_t *number, struct batch_line *line, struct batch_error *error)
{
    const char *text;
    size_t bytes;

    *line = (struct batch_line){0};
    while (!job->at_end) {
        enum line_kind kind = line_reader_next(&job->reader, &text, &bytes);
        *number = job->reader.number;
        if (kind == LINE_FAILED)
            return BATCH_NEXT_FAILED;
        if (kind == LINE_NONE) {
            job->at_end = true;
        } else if (has_bit(&job->done, *number)) {
            continue;
        } else if (kind == LINE_TOO_LONG) {
            refuse(error, "line_too_long", *number, "the line is too long");
            return BATCH_NEXT_ERROR;
        } else if (!batch_line_is_blank(text, bytes)) {
            return read_line(job, text, bytes, line, error) ? BATCH_NEXT_ASK : BATCH_NEXT_ERROR;
        }
    }
    return BATCH_NEXT_NONE;
}

// --- results -------------------------------------------------------------------------------------------------------
// Cuts off a part of a line. False: it stays there for now; errno.
static bool cut_torn(int fd, uint64_t bytes, struct batch_trouble *trouble)
{
    trouble->torn = trouble->torn && !cut(fd, bytes, true);
    return !trouble->torn;
}

bool batch_job_write(struct batch_job *job, struct batch_store *store, uint64_t number, const struct batch_result *result)
{
    bool failed = result->status != 200;
    int fd = failed ? job->errors : job->output;
    uint64_t *file_bytes = failed ? &job->errors_bytes : &job->output_bytes;
    struct batch_trouble *trouble = failed ? &job->errors_trouble : &job->output_trouble;
    struct text text = {0};
    bool ok;

    if (!cut_torn(fd, *file_bytes, trouble))
        return false;
    batch_result_write(&text, result);
    ok = !text.failed && set_bit(&job->done, number);
    errno = ok ? ENOSPC : ENOMEM; // write() may be cut short without saying why
    if (ok && write(fd, text.data, text.bytes) != (ssize_t)text.bytes) {
        int reason = errno;
        job->done.words[number / 64] &= ~(1ull << (number % 64));
        trouble->torn = true;
        if (!cut_torn(fd, *file_bytes, trouble))
            log_error("BATCH-RESULTS-TORN", "batch=%s", job->record.id);
        errno = reason;
        ok = false;
    }
    if (ok) {
        *file_bytes += text.bytes;
        batch_store_add_bytes(store, job->record.tenant, text.bytes);
        job->record.counts.failed += failed;
        job->record.counts.completed += !failed;
    }
    text_free(&text);
    return ok;
}

bool batch_job_gives_up(struct batch_job *job, int reason)
{
    const bool gives_up = job->phase == BATCH_JOB_ENDING && job->ends_as == BATCH_CANCELLED &&
                          (reason == ENOSPC || reason == EDQUOT);

    job->at_end |= gives_up;
    return gives_up;
}

// Writes what is in a file of results once more, in its place.
static bool write_again(int fd, const char *path, uint64_t bytes)
{
    const int other = open(path, O_WRONLY | O_CLOEXEC); // fd appends
    bool ok = other >= 0;
    char piece[16 << 10];

    for (uint64_t at = 0; ok && at < bytes;) {
        const ssize_t got = pread(fd, piece, MIN(bytes - at, sizeof piece), (off_t)at);
        ok = got > 0 && pwrite(other, piece, (size_t)got, (off_t)at) == got;
        at += got > 0 ? (uint64_t)got : 0;
    }
    const int reason = errno;
    if (other >= 0)
        close(other);
    errno = reason;
    return ok;
}

// A file that nothing was written to is no result. After a sync that has failed the kernel takes for written what it could not write, so that another
// one alone would say that all is well.
static bool settle(struct batch_store *store, int fd, const char *id, uint64_t bytes, struct batch_trouble *trouble)
{
    char path[BATCH_PATH_BYTES];

    batch_store_path(store, id, false, path);
    if (bytes == 0)
        return unlink(path) == 0 || errno == ENOENT;
    if (!cut_torn(fd, bytes, trouble))
        return false;
    trouble->unsynced = (trouble->unsynced && !write_again(fd, path, bytes)) || fsync(fd) != 0;
    return !trouble->unsynced;
}

enum status batch_job_end(struct batch_job *job, struct batch_store *store, struct error *error)
{
    struct batch_record *record = &job->record;
    enum status status;

    if (record->status != BATCH_FAILED) {
        record->status = job->phase == BATCH_JOB_ENDING ? job->ends_as : BATCH_COMPLETED;
        if (job->phase == BATCH_JOB_RUNNING) {
            status = batch_store_set_progress(store, record->id, BATCH_FINALIZING, &record->counts, error);
            if (status != STATUS_OK)
                return status;
        }
        record->counts.total = MAX(record->counts.total, record->counts.completed + record->counts.failed);
        if (job->phase == BATCH_JOB_ENDING)
            record->counts.failed = record->counts.total - record->counts.completed; // also lines that were given up
    }
    record->has_output = job->output_bytes > 0;
    record->has_errors = job->errors_bytes > 0;
    if (!settle(store, job->output, record->output, job->output_bytes, &job->output_trouble) ||
        !settle(store, job->errors, record->errors, job->errors_bytes, &job->errors_trouble))
        return error_set(error, STATUS_UNAVAILABLE, "results: %s", strerror(errno));
    return batch_store_end_batch(store, record, job->output_bytes, job->errors_bytes, error);
}

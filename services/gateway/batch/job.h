// job.h: one batch at work: which lines are to be asked, and what was answered.
//
//   VALIDATING ──▶ RUNNING ──▶ (all lines have a result) ──▶ ended
//                     │
//                     └──▶ ENDING: cancelled or expired; lines that are left get an error
//
// The two files of results are the job's memory: a result is one write() of one line, whose id ends in the number of the line of the input.
// A gateway that was killed reads them again, cuts what is torn, and asks the lines that are missing. In memory a job is two bits a line
// and the longest line: 25 KB for 100,000 lines.
//
// Not shared between threads: the runner's.
#ifndef FD_GATEWAY_BATCH_JOB_H
#define FD_GATEWAY_BATCH_JOB_H

#include "common/api/batch.h"
#include "services/gateway/batch/store.h"

enum batch_phase { BATCH_JOB_VALIDATING, BATCH_JOB_RUNNING, BATCH_JOB_ENDING };

struct batch_bits {
    uint64_t *words;
    uint64_t capacity; // bits
};

// The state of a file of results on a disk that has failed.
struct batch_trouble {
    bool torn;     // behind its bytes lies a part of a line that could not be cut off
    bool unsynced; // a sync has failed, perhaps of an earlier process
};

struct batch_job {
    struct batch_record record; // its counts are kept up to date
    struct key key;             // for the requests: the tenant
    enum batch_phase phase;
    enum batch_status ends_as; // with ENDING: CANCELLED or EXPIRED
    uint32_t in_flight;        // lines that next() gave and that have no result yet; the runner counts
    uint64_t max_lines;
    size_t max_line_bytes;
    int input, output, errors; // descriptors
    uint64_t output_bytes, errors_bytes;
    struct batch_trouble output_trouble, errors_trouble;
    struct line_reader reader;
    bool at_end;                       // the reader has given all lines
    bool look_again;                   // the runner's: whether it is cancelled could not be looked up
    struct text_set seen;              // while validating
    struct batch_bits done, duplicate; // by number of line
    struct batch_counts saved;         // as the store has them
};

// Opens the input, and takes what an earlier process left of the results. Moves from record. On failure the batch cannot run:
// *error is for its owner, and the record stays with *out. The caller closes *out either way.
enum status batch_job_open(struct batch_store *store, struct batch_record *record, uint64_t max_lines, size_t max_line_bytes,
                           struct batch_job *out, struct error *error) MUST_CHECK;
void batch_job_close(struct batch_job *job);

enum batch_validation { BATCH_VALID_MORE, BATCH_VALID, BATCH_INVALID };
// Looks at some more lines. VALID: the job is RUNNING and its total known. INVALID: the record says why.
enum batch_validation batch_job_validate(struct batch_job *job, uint32_t lines);

// The batch cannot run: its record says why, and at which line (0: none). Returns INVALID.
enum batch_validation batch_job_fail(struct batch_job *job, const char *code, uint64_t line, const char *message);

// Cancelled or expired. The job is RUNNING, or expired and is cancelled now.
void batch_job_begin_ending(struct batch_job *job, enum batch_status ends_as);
// Why a line has no answer in a job that is ending.
const struct batch_error *batch_job_ending_error(const struct batch_job *job);

enum batch_next { BATCH_NEXT_ASK, BATCH_NEXT_ERROR, BATCH_NEXT_NONE, BATCH_NEXT_FAILED };
// The next line without a result. ASK: *line is the caller's. ERROR: *line may have a custom_id, and *error says what is wrong.
// FAILED: the input cannot be read.
enum batch_next batch_job_next(struct batch_job *job, uint64_t *number, struct batch_line *line, struct batch_error *error);

// The id of a line's result.
void batch_job_result_id(const struct batch_job *job, uint64_t number, char out[BATCH_ID_BYTES + 24]);
// Writes the result of a line. False: it could not be, and nothing of it is there; errno.
bool batch_job_write(struct batch_job *job, struct batch_store *store, uint64_t number, const struct batch_result *result);

// After a write that failed with this errno: whether the line, and all that are left, go without a result. True for a job that was cancelled, on a
// full disk: whoever cancelled it may want to delete its files.
bool batch_job_gives_up(struct batch_job *job, int reason);

// All lines have a result, or were given up: syncs them and ends the batch in the store. May be called again after a failure.
enum status batch_job_end(struct batch_job *job, struct batch_store *store, struct error *error) MUST_CHECK;

#endif

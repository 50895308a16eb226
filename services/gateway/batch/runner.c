// runner.c: see runner.h: the thread, and the jobs that it works off line by line.
//
// An exchange that ends tells the runner by a list under the mutex; all else is the thread's own. It sleeps until an exchange ends, a batch
// comes, a pause is over or a second has passed.
#include "services/gateway/batch/runner_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"

// --- one line of a batch that is being answered ----------------------------------------------------------------------
//
//   ASKED ──ended──▶ answered ──▶ written, freed
//     ▲                 │ the mesh is full or away, or the disk is
//     └───── PAUSED ◀───┘

enum {
    SERVER_ERRORS_MAX = 3, // times that a request may fail in the mesh before that is its answer
    PAUSE_FIRST_MS = 250,
    PAUSE_MOST_MS = 15000,
    DISK_PAUSE_MS = 1000,
};

// Adds the item of a job's line; line is moved from. Takes the item, which malloc() has given.
static void batch_item_add(struct batch_item *item, struct batch_runner *runner, struct batch_job *job, uint64_t number,
                           struct batch_line *line)
{
    *item = (struct batch_item){.next = runner->items, .runner = runner, .job = job, .number = number, .line = *line};
    *line = (struct batch_line){0};
    if (item->next)
        item->next->previous = item;
    runner->items = item;
    runner->item_count++;
    job->in_flight++;
}

static void batch_item_remove(struct batch_item *item)
{
    struct batch_runner *runner = item->runner;

    if (item->previous)
        item->previous->next = item->next;
    else
        runner->items = item->next;
    if (item->next)
        item->next->previous = item->previous;
    runner->item_count--;
    item->job->in_flight--;
    batch_line_free(&item->line);
    free(item->body);
    free(item);
}

// The exchange is being freed, by any thread.
static void on_ended(void *arg, int status, const char *body, size_t bytes)
{
    struct batch_item *item = arg;
    struct batch_runner *runner = item->runner;
    char *copy = status && bytes ? malloc(bytes) : NULL;

    if (copy)
        memcpy(copy, body, bytes);
    else if (bytes)
        status = 0; // no memory: asked again
    pthread_mutex_lock(&runner->mutex);
    item->exchange = NULL;
    item->status = status;
    item->body = copy;
    item->body_bytes = copy ? bytes : 0;
    item->next_ended = runner->ended;
    runner->ended = item;
    pthread_cond_signal(&runner->wake);
    pthread_mutex_unlock(&runner->mutex);
}

static void pause_item(struct batch_item *item, uint64_t pause_ms)
{
    item->state = BATCH_ITEM_PAUSED;
    item->again_us = clock_now_us() + pause_ms * 1000;
    free(item->body);
    item->body = NULL;
    item->body_bytes = 0;
    item->status = 0;
}

// Waits before it is asked again, longer each time.
static void batch_item_pause(struct batch_item *item)
{
    pause_item(item, MIN((uint64_t)PAUSE_FIRST_MS << MIN(item->pauses, 10u), (uint64_t)PAUSE_MOST_MS));
    item->pauses++;
}

// Asks; the item comes back in the list of those that ended.
static void batch_item_ask(struct batch_item *item)
{
    static const enum api_kind kinds[] = {
        [BATCH_ENDPOINT_COMPLETIONS] = API_COMPLETION, [BATCH_ENDPOINT_CHAT] = API_CHAT, [BATCH_ENDPOINT_EMBEDDINGS] = API_EMBED};
    const struct batch_runner_config *config = &item->runner->config;
    struct key *key = item->job->key.tenant[0] ? &item->job->key : NULL;
    char id[BATCH_ID_BYTES + 24];
    struct text body = {0};
    struct exchange *exchange;

    item->state = BATCH_ITEM_ASKED;
    batch_job_result_id(item->job, item->number, id);
    text_append(&body, item->line.body, item->line.body_bytes);
    exchange = body.failed ? NULL : exchange_open_local(id, &body, on_ended, item);
    if (!exchange) {
        batch_item_pause(item);
        return;
    }
    pthread_mutex_lock(&item->runner->mutex);
    item->exchange = exchange;
    pthread_mutex_unlock(&item->runner->mutex);
    config->ask(config->arg, exchange, kinds[item->line.endpoint], key);
}

// Ends its request, because its job ends. It comes back in that list.
static void batch_item_leave(struct batch_item *item)
{
    const struct batch_runner_config *config = &item->runner->config;
    struct exchange *exchange;

    item->left = true;
    pthread_mutex_lock(&item->runner->mutex);
    exchange = item->exchange && exchange_hold_if_alive(item->exchange) ? item->exchange : NULL;
    pthread_mutex_unlock(&item->runner->mutex);
    if (!exchange)
        return;
    exchange_leave(exchange);
    config->cancel(config->arg, exchange);
    exchange_release(exchange);
}

// Writes the result and frees the item; if the disk does not take it, the item waits.
static void batch_item_write(struct batch_item *item)
{
    struct batch_runner *runner = item->runner;
    char id[BATCH_ID_BYTES + 24];
    struct batch_result result = {.id = id,
                                  .custom_id = item->line.custom_id,
                                  .status = item->status,
                                  .request_id = id,
                                  .body = item->body ? item->body : "",
                                  .body_bytes = item->body_bytes,
                                  .error = item->error.code ? &item->error : NULL};

    batch_job_result_id(item->job, item->number, id);
    if (batch_job_write(item->job, runner->config.store, item->number, &result)) {
        pthread_mutex_lock(&runner->mutex);
        runner->stats.completed += item->status == 200;
        runner->stats.failed += item->status != 200;
        pthread_mutex_unlock(&runner->mutex);
        batch_item_remove(item);
        return;
    }
    const int number = errno;
    batch_store_failed(runner->config.store, BATCH_WRITE_RESULTS, item->job->record.id, strerror(number));
    if (batch_job_gives_up(item->job, number)) {
        batch_item_remove(item);
        return;
    }
    item->state = BATCH_ITEM_ANSWERED;
    item->again_us = clock_now_us() + DISK_PAUSE_MS * 1000ull;
}

static void batch_item_write_error(struct batch_item *item, const struct batch_error *error)
{
    item->status = 0;
    item->error = *error;
    batch_item_write(item);
}

// The exchange of the item has ended.
static void batch_item_take_ended(struct batch_item *item)
{
    bool again = item->status == 0 || item->status == 408 || item->status == 429 || item->status == 503;

    again |= item->status >= 500 && ++item->server_errors < SERVER_ERRORS_MAX;
    if (!again)
        batch_item_write(item);
    else if (item->job->phase == BATCH_JOB_ENDING)
        batch_item_write_error(item, batch_job_ending_error(item->job));
    else
        batch_item_pause(item);
}

// --- the runner ------------------------------------------------------------------------------------------------------
enum {
    LINES_A_ROUND = 512, // validated or given errors before the others have their turn
    NOT_READY_MS = 200,
    ROUND_MS = 1000,
    IDLE_MS = 30000,
    SAVE_US = 1000000,
    PURGE_US = 30000000,
    FAILED_MAX = 64, // batches that cannot be opened now and are passed over
};

// --- jobs ----------------------------------------------------------------------------------------------------------
struct choice_of_job {
    struct batch_runner *runner;
    struct batch_record best;
    uint32_t best_active; // jobs of its tenant
    bool found, ends;
    char failed[FAILED_MAX][BATCH_ID_BYTES]; // that could not be opened: others do not wait for them
    uint32_t failed_count;
};

static bool is_late(const struct batch_runner *runner, const struct batch_record *record)
{
    return record->expires_s <= expiry_time_s(&runner->expiry, record->at_s[BATCH_VALIDATING]);
}

// Chooses among the batches that are not at work: one that only ends, else the oldest of the tenant with the fewest at work.
static void consider(void *arg, const struct batch_record *record)
{
    struct choice_of_job *choice = arg;
    bool ends = record->status == BATCH_CANCELLING || is_late(choice->runner, record);
    uint32_t i, active = 0;

    for (i = 0; i < choice->failed_count; i++)
        if (strcmp(choice->failed[i], record->id) == 0)
            return;
    for (i = 0; i < choice->runner->job_count; i++) {
        const struct batch_record *other = &choice->runner->jobs[i]->record;
        if (strcmp(other->id, record->id) == 0)
            return;
        active += strcmp(other->tenant, record->tenant) == 0;
    }
    if (choice->found && (choice->ends || (!ends && active >= choice->best_active)))
        return;
    batch_record_free(&choice->best);
    choice->best = *record;
    choice->best.metadata = NULL;
    choice->best_active = active;
    choice->found = true;
    choice->ends = ends;
}

// Ends a job whose lines all have a result, or that cannot run. False: to be tried again.
static bool end_job(struct batch_runner *runner, uint32_t index)
{
    struct batch_job *job = runner->jobs[index];
    struct error error;

    if (batch_job_end(job, runner->config.store, &error) != STATUS_OK) {
        batch_store_failed(runner->config.store, BATCH_WRITE_RESULTS, job->record.id, error.text);
        return false;
    }
    log_info("BATCH-END", "batch=%s status=%s completed=%llu failed=%llu", job->record.id, batch_status_name(job->record.status),
             (unsigned long long)job->record.counts.completed, (unsigned long long)job->record.counts.failed);
    batch_job_close(job);
    free(job);
    runner->jobs[index] = runner->jobs[--runner->job_count];
    return true;
}

static bool open_job(struct batch_runner *runner, struct batch_record *record)
{
    struct batch_job *job = calloc(1, sizeof *job);
    struct error error;

    if (!job)
        return false;
    runner->jobs[runner->job_count++] = job;
    if (batch_job_open(runner->config.store, record, runner->config.max_lines, runner->config.max_line_bytes, job, &error) ==
        STATUS_OK) {
        log_info("BATCH-BEGIN", "batch=%s status=%s", job->record.id, batch_status_name(job->record.status));
        return true;
    }
    if (error.status == STATUS_NOT_FOUND) {
        log_warn("BATCH-FAILED", "batch=%s error=%s", job->record.id, error.text);
    } else { // the disk, say: tried again with the next purge
        batch_store_failed(runner->config.store, BATCH_WRITE_RESULTS, job->record.id, error.text);
        batch_job_close(job);
        free(job);
        runner->job_count--;
        return false;
    }
    batch_job_fail(job, "server_error", 0, error.text);
    return true; // ended in the next round
}

static void find_jobs(struct batch_runner *runner)
{
    struct choice_of_job choice = {.runner = runner};
    struct error error;
    bool opened;

    do {
        choice.best = (struct batch_record){.status = BATCH_VALIDATING};
        choice.best_active = 0;
        choice.found = choice.ends = opened = false;
        if (batch_store_each_open(runner->config.store, consider, &choice, &error) != STATUS_OK) {
            batch_store_failed(runner->config.store, BATCH_WRITE_DATABASE, "", error.text);
            choice.found = false;
        }
        choice.found = choice.found && runner->job_count < BATCH_JOBS_MAX + (choice.ends ? BATCH_JOBS_ENDING_MAX : 0);
        if (!choice.found)
            break;
        memcpy(choice.failed[choice.failed_count], choice.best.id, BATCH_ID_BYTES);
        opened = open_job(runner, &choice.best);
        choice.failed_count += !opened;
    } while (opened || choice.failed_count < FAILED_MAX);
}

static void check_ending(struct batch_runner *runner, struct batch_job *job, bool changed)
{
    struct batch_item *item, *next;
    bool cancelled = false;
    struct error error;

    if (job->phase == BATCH_JOB_VALIDATING || job->ends_as == BATCH_CANCELLED)
        return;
    if (changed || job->look_again) {
        job->look_again = batch_store_is_cancelling(runner->config.store, job->record.id, &cancelled, &error) != STATUS_OK;
        if (job->look_again)
            batch_store_failed(runner->config.store, BATCH_WRITE_DATABASE, "", error.text);
    }
    if (cancelled)
        batch_job_begin_ending(job, BATCH_CANCELLED);
    else if (job->phase == BATCH_JOB_RUNNING && is_late(runner, &job->record))
        batch_job_begin_ending(job, BATCH_EXPIRED);
    else
        return;
    for (item = runner->items; item; item = next) {
        next = item->next;
        if (item->job != job)
            continue;
        if (item->state == BATCH_ITEM_ASKED && !item->left)
            batch_item_leave(item);
        else if (item->state == BATCH_ITEM_PAUSED)
            batch_item_write_error(item, batch_job_ending_error(job));
    }
}

static bool save(struct batch_runner *runner, struct batch_job *job, enum batch_status status)
{
    struct error error;

    if (batch_store_set_progress(runner->config.store, job->record.id, status, &job->record.counts, &error) != STATUS_OK) {
        batch_store_failed(runner->config.store, BATCH_WRITE_DATABASE, "", error.text);
        return false;
    }
    job->saved = job->record.counts;
    return true;
}

static void validate(struct batch_runner *runner, struct batch_job *job)
{
    runner->busy = true;
    if (batch_job_validate(job, LINES_A_ROUND) != BATCH_VALID)
        return;
    save(runner, job, BATCH_IN_PROGRESS);
    check_ending(runner, job, true);
}

// Takes the job's next line. False: there is none for now.
static bool take_line(struct batch_runner *runner, struct batch_job *job)
{
    struct batch_line line;
    struct batch_error error;
    enum batch_next next;
    struct batch_item *item = malloc(sizeof *item); // first: a line that was taken does not come again
    uint64_t number;

    if (!item)
        return false;
    next = batch_job_next(job, &number, &line, &error);
    if (next == BATCH_NEXT_NONE || next == BATCH_NEXT_FAILED)
        free(item);
    if (next == BATCH_NEXT_NONE)
        return false;
    if (next == BATCH_NEXT_FAILED) {
        batch_job_fail(job, "server_error", 0, "the input file cannot be read");
        job->at_end = true;
        return false;
    }
    batch_item_add(item, runner, job, number, &line);
    if (next == BATCH_NEXT_ERROR)
        batch_item_write_error(item, &error);
    else if (job->phase == BATCH_JOB_ENDING)
        batch_item_write_error(item, batch_job_ending_error(job));
    else
        batch_item_ask(item);
    return true;
}

static bool is_over(const struct batch_job *job)
{
    return job->in_flight == 0 && (job->record.status == BATCH_FAILED || (job->phase != BATCH_JOB_VALIDATING && job->at_end));
}

// Fills the window, a line of each job in turn.
static void fill(struct batch_runner *runner)
{
    uint32_t without = 0, lines = 0;

    while (lines < LINES_A_ROUND && runner->job_count > 0 && without < runner->job_count &&
           runner->item_count < runner->config.concurrency && runner->config.is_ready(runner->config.arg)) {
        struct batch_job *job = runner->jobs[runner->turn++ % runner->job_count];
        bool took = job->phase == BATCH_JOB_RUNNING && job->record.status != BATCH_FAILED &&
                    !batch_store_is_full(runner->config.store, job->record.tenant) && take_line(runner, job);
        without = took ? 0 : without + 1;
        lines += took;
    }
    runner->busy |= lines == LINES_A_ROUND;
}

static void give_errors(struct batch_runner *runner, struct batch_job *job)
{
    uint32_t i;

    for (i = 0; i < LINES_A_ROUND && runner->item_count < runner->config.concurrency && !job->at_end; i++)
        take_line(runner, job);
    runner->busy |= !job->at_end && runner->item_count < runner->config.concurrency;
}

// Returns how long the thread may sleep.
static uint64_t work(struct batch_runner *runner, struct batch_item *ended, bool changed)
{
    uint64_t now_us = clock_now_us();
    struct batch_item *item, *next;
    uint32_t i;
    bool some_ended = false;

    expiry_look(&runner->expiry, now_us, clock_wall_us());
    for (; ended; ended = next) {
        next = ended->next_ended;
        batch_item_take_ended(ended);
    }
    if (changed || now_us - runner->purged_us > PURGE_US)
        find_jobs(runner);
    runner->busy = false;
    for (item = runner->items; item; item = next) {
        next = item->next;
        if (item->state == BATCH_ITEM_ASKED || item->again_us > now_us)
            continue;
        if (item->state == BATCH_ITEM_ANSWERED)
            batch_item_write(item);
        else if (runner->config.is_ready(runner->config.arg))
            batch_item_ask(item);
    }
    for (i = 0; i < runner->job_count; i++) {
        struct batch_job *job = runner->jobs[i];
        if (job->record.status != BATCH_FAILED && job->phase == BATCH_JOB_VALIDATING)
            validate(runner, job);
        check_ending(runner, job, changed);
        if (job->record.status != BATCH_FAILED && job->phase == BATCH_JOB_ENDING)
            give_errors(runner, job);
    }
    fill(runner);
    for (i = runner->job_count; i-- > 0;) {
        if (is_over(runner->jobs[i]))
            some_ended |= end_job(runner, i);
        else if (now_us - runner->saved_us > SAVE_US &&
                 memcmp(&runner->jobs[i]->saved, &runner->jobs[i]->record.counts, sizeof(struct batch_counts)) &&
                 runner->jobs[i]->phase != BATCH_JOB_VALIDATING)
            save(runner, runner->jobs[i], BATCH_IN_PROGRESS);
    }
    if (now_us - runner->saved_us > SAVE_US)
        runner->saved_us = now_us;
    if (some_ended) {
        find_jobs(runner);
        runner->busy = true;
    }
    if (now_us - runner->purged_us > PURGE_US) {
        runner->purged_us = now_us;
        batch_store_purge(runner->config.store, expiry_time_s(&runner->expiry, 0));
    }
    if (runner->busy)
        return 0;
    return runner->job_count == 0 ? IDLE_MS : runner->item_count < runner->config.concurrency ? NOT_READY_MS : ROUND_MS;
}

// --- the thread ----------------------------------------------------------------------------------------------------
// With the mutex held.
static void sleep_until_woken(struct batch_runner *runner, uint64_t wait_ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(wait_ms / 1000);
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    while (!runner->stopping && !runner->changed && !runner->ended)
        if (pthread_cond_timedwait(&runner->wake, &runner->mutex, &until) == ETIMEDOUT)
            break;
}

static void *run(void *arg)
{
    struct batch_runner *runner = arg;
    uint64_t wait_ms = 0;

    pthread_mutex_lock(&runner->mutex);
    for (;;) {
        struct batch_item *ended;
        bool changed;
        sleep_until_woken(runner, wait_ms);
        if (runner->stopping)
            break;
        ended = runner->ended;
        runner->ended = NULL;
        changed = runner->changed;
        runner->changed = false;
        runner->stats.jobs = runner->job_count;
        runner->stats.in_flight = runner->item_count;
        pthread_mutex_unlock(&runner->mutex);
        wait_ms = work(runner, ended, changed);
        pthread_mutex_lock(&runner->mutex);
    }
    pthread_mutex_unlock(&runner->mutex);
    return NULL;
}

enum status batch_runner_start(const struct batch_runner_config *config, struct batch_runner **out)
{
    struct batch_runner *runner = calloc(1, sizeof *runner);
    pthread_condattr_t attributes;

    *out = NULL;
    if (!runner)
        return STATUS_RESOURCE_EXHAUSTED;
    runner->config = *config;
    runner->changed = true; // what an earlier process left
    pthread_mutex_init(&runner->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&runner->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    runner->has_thread = pthread_create(&runner->thread, NULL, run, runner) == 0;
    if (!runner->has_thread) {
        batch_runner_free(runner);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = runner;
    return STATUS_OK;
}

void batch_runner_stop(struct batch_runner *runner)
{
    if (!runner || !runner->has_thread)
        return;
    pthread_mutex_lock(&runner->mutex);
    runner->stopping = true;
    pthread_cond_signal(&runner->wake);
    pthread_mutex_unlock(&runner->mutex);
    pthread_join(runner->thread, NULL);
    runner->has_thread = false;
}

void batch_runner_free(struct batch_runner *runner)
{
    uint32_t i;

    if (!runner)
        return;
    while (runner->items)
        batch_item_remove(runner->items);
    for (i = 0; i < runner->job_count; i++) {
        batch_job_close(runner->jobs[i]);
        free(runner->jobs[i]);
    }
    pthread_cond_destroy(&runner->wake);
    pthread_mutex_destroy(&runner->mutex);
    free(runner);
}

void batch_runner_wake(struct batch_runner *runner)
{
    pthread_mutex_lock(&runner->mutex);
    runner->changed = true;
    pthread_cond_signal(&runner->wake);
    pthread_mutex_unlock(&runner->mutex);
}

void batch_runner_stats(struct batch_runner *runner, struct batch_runner_stats *out)
{
    pthread_mutex_lock(&runner->mutex);
    *out = runner->stats;
    pthread_mutex_unlock(&runner->mutex);
}

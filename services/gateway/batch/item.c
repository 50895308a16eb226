// item.c: one line of a batch that is being answered.
//
//   ASKED ──ended──▶ answered ──▶ written, freed
//     ▲                 │ the mesh is full or away, or the disk is
//     └───── PAUSED ◀───┘
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/gateway/batch/runner_internal.h"

enum {
    SERVER_ERRORS_MAX = 3, // times that a request may fail in the mesh before that is its answer
    PAUSE_FIRST_MS = 250,
    PAUSE_MOST_MS = 15000,
    DISK_PAUSE_MS = 1000,
};

void batch_item_add(struct batch_item *item, struct batch_runner *runner, struct batch_job *job, uint64_t number,
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

void batch_item_remove(struct batch_item *item)
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

void batch_item_pause(struct batch_item *item)
{
    pause_item(item, MIN((uint64_t)PAUSE_FIRST_MS << MIN(item->pauses, 10u), (uint64_t)PAUSE_MOST_MS));
    item->pauses++;
}

void batch_item_ask(struct batch_item *item)
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

void batch_item_leave(struct batch_item *item)
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

void batch_item_write(struct batch_item *item)
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
    if (repeat_is_due(&runner->disk_failures, clock_now_us(), ""))
        log_warn("BATCH-DISK", "batch=%s error=\"%s\" times=%u", item->job->record.id, strerror(number),
                 runner->disk_failures.count);
    if (batch_job_gives_up(item->job, number)) {
        batch_item_remove(item);
        return;
    }
    item->state = BATCH_ITEM_ANSWERED;
    item->again_us = clock_now_us() + DISK_PAUSE_MS * 1000ull;
}

void batch_item_write_error(struct batch_item *item, const struct batch_error *error)
{
    item->status = 0;
    item->error = *error;
    batch_item_write(item);
}

void batch_item_take_ended(struct batch_item *item)
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

// disk.c: the queue as its users see it. See disk.h.
//
//     disk.c ─▶ disk_uring.c or disk_threads.c ─▶ disk_pieces.c
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/disk/disk_internal.h"

enum status disk_method_parse(const char *name, enum disk_method *out)
{
    static const char *const names[] = {[DISK_AUTO] = "auto", [DISK_URING] = "uring", [DISK_THREADS] = "threads"};
    for (size_t i = 0; i < ARRAY_COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *out = (enum disk_method)i;
            return STATUS_OK;
        }
    return STATUS_INVALID_ARGUMENT;
}

enum status disk_queue_open(const struct disk_config *config, struct disk_queue **out, struct error *error)
{
    struct disk_queue *queue = calloc(1, sizeof *queue);
    enum status status = STATUS_UNAVAILABLE;

    if (!queue)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a queue of reads");
    queue->config = *config;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->work, NULL);
    pthread_cond_init(&queue->done, NULL);
    if (config->method != DISK_THREADS)
        status = disk_uring_open(queue, error);
    if (status && config->method != DISK_URING)
        status = disk_threads_open(queue, error);
    if (status) {
        disk_queue_close(queue);
        return status;
    }
    *out = queue;
    return STATUS_OK;
}

void disk_queue_close(struct disk_queue *queue)
{
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->closing = true;
    disk_cancel_all(queue);
    pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
    disk_uring_close(queue);
    disk_threads_close(queue);
    pthread_cond_destroy(&queue->done);
    pthread_cond_destroy(&queue->work);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

const char *disk_queue_name(const struct disk_queue *queue) { return queue->uring ? "io_uring" : "threads"; }

void disk_queue_read(struct disk_queue *queue, struct disk_read *read)
{
    assert_always(read->bytes > 0);
    read->next = NULL;
    read->asked_bytes = 0;
    read->left_bytes = read->bytes;
    read->failure = 0;
    read->done = false;
    pthread_mutex_lock(&queue->lock);
    *(queue->last ? &queue->last->next : &queue->first) = read;
    queue->last = read;
    pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
    if (queue->uring)
        disk_uring_wake(queue);
}

bool disk_queue_done(struct disk_queue *queue, const struct disk_read *read)
{
    pthread_mutex_lock(&queue->lock);
    bool done = read->done;
    pthread_mutex_unlock(&queue->lock);
    return done;
}

void disk_queue_wait(struct disk_queue *queue, const struct disk_read *read)
{
    pthread_mutex_lock(&queue->lock);
    while (!read->done)
        pthread_cond_wait(&queue->done, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
}

uint64_t disk_queue_pieces(struct disk_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    uint64_t count = queue->piece_count;
    pthread_mutex_unlock(&queue->lock);
    return count;
}

enum status disk_read_status(const struct disk_read *read, const char *what, struct error *error)
{
    const unsigned long long first = read->offset, end = read->offset + read->bytes;

    if (!read->failure)
        return STATUS_OK;
    if (read->failure == DISK_ENDED_EARLY)
        return error_set(error, STATUS_DATA_LOSS, "%s: bytes %llu to %llu cannot be read: the file ends before", what, first, end);
    return error_set(error, read->failure == ECANCELED ? STATUS_CANCELLED : STATUS_UNAVAILABLE,
                     "%s: bytes %llu to %llu cannot be read: %s", what, first, end, strerror(read->failure));
}

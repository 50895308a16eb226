// disk_threads.c: pieces by threads that call pread(2), for where there is no io_uring.
#include <errno.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/disk/disk_internal.h"

static void read_piece(struct disk_queue *queue, struct disk_piece *piece)
{
    ssize_t got;

    do {
        got = pread(piece->descriptor, piece->memory + piece->done_bytes, piece->bytes - piece->done_bytes,
                    (off_t)(piece->offset + piece->done_bytes));
    } while (!disk_piece_got(queue, piece, got < 0 ? -errno : got));
}

static void *thread_main(void *arg)
{
    struct disk_queue *queue = arg;
    struct disk_piece piece;

    pthread_mutex_lock(&queue->lock);
    while (!queue->closing || queue->first) {
        if (!disk_take_piece(queue, &piece)) {
            pthread_cond_wait(&queue->work, &queue->lock);
            continue;
        }
        pthread_mutex_unlock(&queue->lock);
        read_piece(queue, &piece);
        pthread_mutex_lock(&queue->lock);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

enum status disk_threads_open(struct disk_queue *queue, struct error *error)
{
    while (queue->thread_count < DISK_THREAD_COUNT) {
        if (pthread_create(&queue->threads[queue->thread_count], NULL, thread_main, queue))
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no threads to read from the disk with");
        queue->thread_count++;
    }
    return STATUS_OK;
}

void disk_threads_close(struct disk_queue *queue)
{
    for (uint32_t i = 0; i < queue->thread_count; i++)
        pthread_join(queue->threads[i], NULL);
    queue->thread_count = 0;
}

// disk_pieces.c: reads in order, cut into pieces, and what becomes of them.
#include <errno.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/disk/disk_internal.h"

enum { SECTOR = 512 };

// Ends a read. With the lock held.
static void end_read(struct disk_queue *queue, struct disk_read *read)
{
    read->ended_us = clock_now_us();
    read->done = true;
    pthread_cond_broadcast(&queue->done);
}

// Gives up what has not been handed out of a read that has failed. With the lock held.
static void drop_rest(struct disk_queue *queue, struct disk_read *read)
{
    struct disk_read **at = &queue->first, *before = NULL;

    for (; *at && *at != read; at = &(*at)->next)
        before = *at;
    if (!*at)
        return;
    *at = read->next;
    if (queue->last == read)
        queue->last = before;
    read->left_bytes -= read->bytes - read->asked_bytes;
    read->asked_bytes = read->bytes;
}

void disk_cancel_all(struct disk_queue *queue)
{
    while (queue->first) {
        struct disk_read *read = queue->first;
        read->failure = read->failure ? read->failure : ECANCELED;
        drop_rest(queue, read);
        if (!read->left_bytes)
            end_read(queue, read);
    }
}

bool disk_take_piece(struct disk_queue *queue, struct disk_piece *piece)
{
    struct disk_read *read = queue->first;

    if (!read)
        return false;
    *piece = (struct disk_piece){
        .read = read,
        .descriptor = read->descriptor,
        .memory = (unsigned char *)read->memory + read->asked_bytes,
        .offset = read->offset + read->asked_bytes,
        .bytes = (uint32_t)MIN((uint64_t)DISK_PIECE_BYTES, read->bytes - read->asked_bytes),
    };
    if (read->asked_bytes == 0)
        read->began_us = clock_now_us();
    read->asked_bytes += piece->bytes;
    if (read->asked_bytes == read->bytes) {
        queue->first = read->next;
        if (!queue->first)
            queue->last = NULL;
    }
    return true;
}

bool disk_piece_got(struct disk_queue *queue, struct disk_piece *piece, int64_t got)
{
    struct disk_read *read = piece->read;
    int failure = got < 0 ? (int)-got : 0;

    if (failure == EINTR || failure == EAGAIN)
        return false;
    piece->done_bytes += got > 0 ? (uint32_t)got : 0;
    if (!failure && piece->done_bytes < piece->bytes) {
        if (got > 0 &&
            piece->done_bytes % SECTOR == 0) // a read may give less; one that ends within a sector was cut by the file's end
            return false;
        failure = DISK_ENDED_EARLY;
    }
    pthread_mutex_lock(&queue->lock);
    if (failure && !read->failure) {
        read->failure = failure;
        drop_rest(queue, read);
    }
    read->left_bytes -= piece->bytes;
    queue->piece_count++;
    bool over = read->left_bytes == 0;
    if (over)
        end_read(queue, read);
    pthread_mutex_unlock(&queue->lock);
    if (over && queue->config.on_done)
        queue->config.on_done(queue->config.user);
    return true;
}

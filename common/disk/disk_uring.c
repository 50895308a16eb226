// disk_uring.c: pieces through io_uring. One thread owns the ring: it fills it with pieces and waits for what comes back.
//
// Who adds a read wakes that thread through an eventfd, of which a read is always queued in the same ring.
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/disk/disk_internal.h"

struct disk_uring {
    struct io_uring ring;
    int wake;            // eventfd
    uint64_t wake_count; // what its read in the ring fills
    bool wake_queued;
    struct disk_piece pieces[DISK_DEPTH]; // read NULL: free
    uint32_t in_flight;
    pthread_t thread;
};

static void queue_piece(struct disk_uring *uring, struct disk_piece *piece)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&uring->ring);

    assert_always(entry); // the ring has one for each piece, and one for the eventfd
    io_uring_prep_read(entry, piece->descriptor, piece->memory + piece->done_bytes, piece->bytes - piece->done_bytes,
                       piece->offset + piece->done_bytes);
    io_uring_sqe_set_data(entry, piece);
}

static void queue_wake(struct disk_uring *uring)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&uring->ring);

    assert_always(entry);
    io_uring_prep_read(entry, uring->wake, &uring->wake_count, sizeof uring->wake_count, 0);
    io_uring_sqe_set_data(entry, NULL);
    uring->wake_queued = true;
}

// Queues pieces into all places that are free. False: nothing is under way, and the queue closes.
static bool fill(struct disk_queue *queue)
{
    struct disk_uring *uring = queue->uring;

    if (!uring->wake_queued)
        queue_wake(uring);
    pthread_mutex_lock(&queue->lock);
    for (uint32_t i = 0; i < DISK_DEPTH; i++) {
        struct disk_piece *piece = &uring->pieces[i];
        if (piece->read || !disk_take_piece(queue, piece))
            continue;
        queue_piece(uring, piece);
        uring->in_flight++;
    }
    bool go_on = uring->in_flight > 0 || !queue->closing;
    pthread_mutex_unlock(&queue->lock);
    return go_on;
}

static void take_answers(struct disk_queue *queue)
{
    struct disk_uring *uring = queue->uring;
    struct io_uring_cqe *answer;

    while (!io_uring_peek_cqe(&uring->ring, &answer)) {
        struct disk_piece *piece = io_uring_cqe_get_data(answer);
        int got = answer->res;
        io_uring_cqe_seen(&uring->ring, answer);
        if (!piece) {
            uring->wake_queued = false;
            continue;
        }
        if (!disk_piece_got(queue, piece, got)) {
            queue_piece(uring, piece);
            continue;
        }
        piece->read = NULL;
        uring->in_flight--;
    }
}

static void *uring_main(void *arg)
{
    struct disk_queue *queue = arg;

    while (fill(queue)) {
        int result = io_uring_submit_and_wait(&queue->uring->ring, 1);
        assert_always(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
        take_answers(queue);
    }
    return NULL;
}

// Whether the kernel reads through a ring: not before 5.6, and not where a container's rules forbid it.
static int open_ring(struct io_uring *ring)
{
    int failed = io_uring_queue_init(DISK_DEPTH * 2, ring, 0);
    if (failed)
        return failed;
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool reads = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
    io_uring_free_probe(probe);
    if (!reads)
        io_uring_queue_exit(ring);
    return reads ? 0 : -ENOSYS;
}

enum status disk_uring_open(struct disk_queue *queue, struct error *error)
{
    struct disk_uring *uring = calloc(1, sizeof *uring);
    int failed = uring ? open_ring(&uring->ring) : -ENOMEM;

    if (failed) {
        free(uring);
        return error_set(error, STATUS_UNAVAILABLE, "io_uring: %s (--disk-reads threads goes without)", strerror(-failed));
    }
    uring->wake = eventfd(0, EFD_CLOEXEC);
    queue->uring = uring;
    if (uring->wake < 0 || pthread_create(&uring->thread, NULL, uring_main, queue)) {
        if (uring->wake >= 0)
            close(uring->wake);
        io_uring_queue_exit(&uring->ring);
        free(uring);
        queue->uring = NULL;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no thread to read from the disk with");
    }
    return STATUS_OK;
}

void disk_uring_wake(struct disk_queue *queue)
{
    const uint64_t one = 1;
    (void)!write(queue->uring->wake, &one, sizeof one); // fails only when it would overflow: then it is awake
}

void disk_uring_close(struct disk_queue *queue)
{
    struct disk_uring *uring = queue->uring;

    if (!uring)
        return;
    disk_uring_wake(queue);
    pthread_join(uring->thread, NULL);
    io_uring_queue_exit(&uring->ring);
    close(uring->wake);
    free(uring);
    queue->uring = NULL;
}

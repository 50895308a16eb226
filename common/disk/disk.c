// disk.c: reads in order, cut into pieces, which an io_uring or a few threads bring.
#include "common/disk/disk.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { DISK_THREAD_COUNT = 8 };

struct disk_uring;

// A part of a read: what one system call asks for.
struct disk_piece {
    struct disk_read *read;
    int descriptor;
    unsigned char *memory;
    uint64_t offset;
    uint32_t bytes, done_bytes;
};

struct disk_queue {
    struct disk_config config;
    pthread_mutex_t lock;
    pthread_cond_t work, done;      // threads wait for pieces; callers for reads
    struct disk_read *first, *last; // with pieces that are not handed out
    bool closing;
    uint64_t piece_count;     // that have come
    struct disk_uring *uring; // or:
    pthread_t threads[DISK_THREAD_COUNT];
    uint32_t thread_count;
};

// --- pieces ---

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

// Gives up what has not been handed out. With the lock held.
static void disk_cancel_all(struct disk_queue *queue)
{
    while (queue->first) {
        struct disk_read *read = queue->first;
        read->failure = read->failure ? read->failure : ECANCELED;
        drop_rest(queue, read);
        if (!read->left_bytes)
            end_read(queue, read);
    }
}

// Takes the next piece; false: there is none. With the lock held.
static bool disk_take_piece(struct disk_queue *queue, struct disk_piece *piece)
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

// Books what a system call for the rest of a piece has given: bytes, 0 at the end of the file, or a negative errno. True: the piece is
// over; false: its rest is to be asked for. Without the lock.
static bool disk_piece_got(struct disk_queue *queue, struct disk_piece *piece, int64_t got)
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

// --- pieces by threads that call pread(2), for where there is no io_uring ---

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

static enum status disk_threads_open(struct disk_queue *queue, struct error *error)
{
    while (queue->thread_count < DISK_THREAD_COUNT) {
        if (pthread_create(&queue->threads[queue->thread_count], NULL, thread_main, queue))
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no threads to read from the disk with");
        queue->thread_count++;
    }
    return STATUS_OK;
}

static void disk_threads_close(struct disk_queue *queue)
{
    for (uint32_t i = 0; i < queue->thread_count; i++)
        pthread_join(queue->threads[i], NULL);
    queue->thread_count = 0;
}

// --- pieces through io_uring ---
//
// One thread owns the ring: it fills it with pieces and waits for what comes back.
//
// Adding a read wakes that thread through an eventfd, of which a read is always queued in the same ring.

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

// There are reads, or the queue closes.
static enum status disk_uring_open(struct disk_queue *queue, struct error *error)
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

static void disk_uring_wake(struct disk_queue *queue)
{
    const uint64_t one = 1;
    (void)!write(queue->uring->wake, &one, sizeof one); // fails only when it would overflow: then it is awake
}

static void disk_uring_close(struct disk_queue *queue)
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

// --- the queue ---

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

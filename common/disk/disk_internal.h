// disk_internal.h: what the files of the read queue share.
#ifndef FD_DISK_DISK_INTERNAL_H
#define FD_DISK_DISK_INTERNAL_H

#include <pthread.h>

#include "common/disk/disk.h"

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

// disk_pieces.c. Takes the next piece; false: there is none. With the lock held.
bool disk_take_piece(struct disk_queue *queue, struct disk_piece *piece);

// Books what a system call for the rest of a piece has given: bytes, 0 at the end of the file, or a negative errno. True: the piece is
// over; false: its rest is to be asked for. Without the lock.
bool disk_piece_got(struct disk_queue *queue, struct disk_piece *piece, int64_t got);

// Gives up what has not been handed out. With the lock held.
void disk_cancel_all(struct disk_queue *queue);

// disk_threads.c
enum status disk_threads_open(struct disk_queue *queue, struct error *error) MUST_CHECK;
void disk_threads_close(struct disk_queue *queue);

// disk_uring.c. wake: there are reads, or the queue closes.
enum status disk_uring_open(struct disk_queue *queue, struct error *error) MUST_CHECK;
void disk_uring_wake(struct disk_queue *queue);
void disk_uring_close(struct disk_queue *queue);

#endif

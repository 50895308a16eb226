// disk.h: a queue of large reads from files, which goes on while the caller computes.
//
//     disk_queue_read() ─▶ reads, first come first served ─▶ pieces of 1 MiB, 16 under way ─▶ memory; done, on_done()
//
// Reads are served in order, so that the one asked for first is complete first; pieces of the next fill the queue at the end of one, so
// that the disk never waits. Pieces go through io_uring where the kernel lets a process have one (containers often do not), else through
// a few threads that call pread(2). A file that was opened with O_DIRECT bypasses the page cache: then offset, bytes and memory must be
// multiples of 4,096.
//
// Threads: any thread may call everything but open and close; each read has one caller. on_done is called on a thread of the queue.
#ifndef FD_DISK_DISK_H
#define FD_DISK_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum disk_method { DISK_AUTO, DISK_URING, DISK_THREADS };
#define DISK_METHOD_NAMES "auto|uring|threads"

enum { DISK_PIECE_BYTES = 1 << 20, DISK_DEPTH = 16, DISK_ENDED_EARLY = -1 };

struct disk_queue;

// A read, in the caller's memory, which stays where it is until the read is done.
struct disk_read {
    // set by the caller
    int descriptor;
    uint64_t offset, bytes; // bytes > 0
    void *memory;
    // the queue's
    struct disk_read *next;
    uint64_t asked_bytes, left_bytes; // handed out in pieces; not yet there
    uint64_t began_us, ended_us;      // its first piece handed out, its last one there: for a rate
    int failure;                      // errno of the first piece that failed, or DISK_ENDED_EARLY
    bool done;
};

struct disk_config {
    enum disk_method method;
    void (*on_done)(void *user); // after each read, outside any lock; NULL: none
    void *user;
};

// *out is the caller's, to be closed. UNAVAILABLE: DISK_URING was asked for and there is none. RESOURCE_EXHAUSTED: no memory or threads.
enum status disk_queue_open(const struct disk_config *config, struct disk_queue **out, struct error *error) MUST_CHECK;
// Gives up what has not begun, and waits until nothing is written to any read's memory. NULL is allowed.
void disk_queue_close(struct disk_queue *queue);

// Appends a read; never blocks.
void disk_queue_read(struct disk_queue *queue, struct disk_read *read);
// Polls. True: the memory is filled, or the read has failed.
bool disk_queue_done(struct disk_queue *queue, const struct disk_read *read);
// Blocks until that is so.
void disk_queue_wait(struct disk_queue *queue, const struct disk_read *read);

// Returns how many pieces have come since the start: while reads are under way and it does not grow, the disk hangs.
uint64_t disk_queue_pieces(struct disk_queue *queue);

// Returns what became of a read that is done. DATA_LOSS: the file ended before it; UNAVAILABLE: the disk failed; CANCELLED: the queue was closed. `what`
// names the file in the message.
enum status disk_read_status(const struct disk_read *read, const char *what, struct error *error) MUST_CHECK;

// "auto", "uring" or "threads" -> method; INVALID_ARGUMENT for another word.
enum status disk_method_parse(const char *name, enum disk_method *out) MUST_CHECK;

#endif

// disk.h: what the product keeps on disk, over a disk that fails: the gateway's files and batches, and packed weights. Their own code, in one thread,
// with disk, clock, chance and memory taken from the simulation; all follows from the seed.
//
//     main.c: seeds ─┬▶ batches.c (model.c: what must be there) ─▶ the gateway's batch_api ─┬─▶ wrap.c: libc's calls ─┬─▶ files.c, platter.c
//                    └▶ weights.c ─▶ packed_writer, packed_file ────────────────────────────┘                         │    └─▶ faults.c
//                                                                                  SQLite ────▶ vfs.c ────────────────┘
//
// A process lives until it ends, is killed, or the power is cut. From then on every call of it fails and changes nothing, so that its code comes to
// an end by the way of its errors, and frees what it has; what it says after that counts for nothing.
#ifndef FD_TESTS_SIM_DISK_DISK_H
#define FD_TESTS_SIM_DISK_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define SIM_ROOT "/sim" // paths below it are the simulation's

struct sim {
    uint64_t random;
    uint64_t hash; // of all that has happened
    uint64_t now_ns;
    uint64_t blocks, bytes; // of memory that the product holds
    uint32_t descriptors;   // likewise
    bool says;              // what happens goes to stdout
    char failure[1024];     // "": none yet
};
extern struct sim sim;

// --- system.c: chance, time, memory, the log, and the one thread

void sim_begin(uint64_t seed);
uint64_t sim_below(uint64_t limit); // 0: 0
bool sim_chance(uint32_t percent);
void sim_note(const char *what, uint64_t a, uint64_t b);
void sim_say(const char *format, ...) PRINTF_LIKE(1, 2);
void sim_fail(const char *format, ...) PRINTF_LIKE(1, 2); // the first one is kept
void *sim_alloc(size_t bytes);                            // zeros, of the simulation's own
void *sim_grow(void *memory, size_t bytes);
void sim_free(void *memory);
uint64_t real_now_ns(void);

// The runner's thread takes turns with its maker. Lets it go on until it sleeps. time_passes: until it would wake. False: it has ended, or there
// is none.
bool thread_turn(bool time_passes);

// --- faults.c: what fails, and when

enum disk_op { OP_MAKE, OP_WRITE, OP_RESIZE, OP_SYNC, OP_NAME, OP_KINDS };

// The faults of one life of a process. Counted from 1, in operations that change something or sync it.
struct faults {
    uint32_t kinds;                // 1 << enum disk_op: what fails
    const char *names;             // and what their names begin with
    uint64_t fail_first, fail_end; // among those of `kinds`
    int error;                     // they fail with; 0: the process ends in the first of them
    uint64_t full_first, full_end; // meanwhile the disk takes no more than full_pages
    uint64_t full_pages;
    uint64_t end_at;    // the process ends in this one; 0: it does not
    uint64_t end_after; // or so many after the first one that fails; 0: no
    bool end_cuts;      // with the power
};

struct disk_state {
    struct faults faults;
    bool armed;                  // the faults are to come
    bool off;                    // the process has come to its end
    bool cut;                    // with the power
    bool sync_forgets;           // after fsync() has failed, the next one says that all is well, and what was to be synced never is
    bool direct, falls_through;  // of the file system: O_DIRECT; opens so, and refuses writes then
    bool can_allocate;           // fallocate()
    uint32_t sector_bytes;       // that are written whole
    uint64_t count, matched;     // operations; those of faults.kinds
    bool names_stay, bytes_stay; // some could not be removed, or cut off, in this life
    uint64_t operations, failed;
};
extern struct disk_state disk;

void disk_begin(void); // a file system, from the seed
void disk_plan(struct faults *out);
void disk_live(void); // a process begins
void disk_arm(const struct faults *faults);
void disk_calm(void);            // nothing fails any more
bool disk_lacks_room_only(void); // it is full now, and nothing else is wrong
// Ends the process here.
void disk_end(bool cuts);
// Takes note of an operation. 0, or an errno: it fails. *end: the process ends in it, and what it has done is up to the caller.
int disk_operation(enum disk_op op, const char *name, uint64_t at, uint64_t bytes, bool *end);

// --- files.c, platter.c: files, and what of them is on the disk

enum { PAGE_BYTES = 4096 };

struct inode;

void files_begin(void);
void files_end(void);
// The power is cut: what was not synced is there, or not.
void files_cut(void);

// These return 0 or an errno.
int files_find(const char *path, struct inode **out);
int files_make(const char *path, bool is_folder, struct inode **out);
int files_read(const struct inode *inode, uint64_t at, void *out, size_t bytes, size_t *done);
int files_write(struct inode *inode, uint64_t at, const void *bytes, size_t count, size_t *done);
int files_resize(struct inode *inode, uint64_t bytes);
int files_allocate(struct inode *inode, uint64_t at, uint64_t bytes);
int files_sync(struct inode *inode);
int files_rename(const char *from, const char *to);
int files_unlink(const char *path);
int files_unlink_in(struct inode *folder, const char *name);
struct inode *files_in(struct inode *folder, const char *name); // NULL: none
const char *files_name(struct inode *folder, uint32_t index);   // NULL: there are no more

void files_open(struct inode *inode);
void files_close(struct inode *inode, const void *holder);
bool files_lock(struct inode *inode, const void *holder); // false: another has it
bool files_is_folder(const struct inode *inode);
uint64_t files_bytes(const struct inode *inode);
uint64_t files_number(const struct inode *inode);
uint64_t files_used_pages(void);

// --- vfs.c, wrap.c

void vfs_register(void);
struct inode *wrap_inode(int fd); // NULL: none of the simulation's
struct exchange;
// Returns what the latest answer that is a file had in it; owned by wrap.c.
const char *wrap_content(size_t *bytes);

// --- batches.c, weights.c

void batches_run(void);
void weights_run(void);

struct disk_counts {
    uint64_t lives, kills, cuts, uploads, batches, weights;
    uint64_t after_all; // operations that had failed, and were there after a start
};
extern struct disk_counts counts;

#endif

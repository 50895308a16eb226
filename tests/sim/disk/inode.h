// inode.h: a file or a folder as a process sees it, as it is on the disk, and the changes between.
//
//     write, resize ──▶ now (what is read)                       make, rename, unlink ──▶ names of a folder
//            └────────▶ changes ──fsync()──▶ disk                          └────────▶ changes ──fsync() of the folder──▶ disk
//                          └──────power cut: each sector has come as far as chance has it,
//                                            and so have the length and each name ──▶ disk
//
// A page is never changed once it is there: a write makes another one.
#ifndef FD_TESTS_SIM_DISK_INODE_H
#define FD_TESTS_SIM_DISK_INODE_H

#include "tests/sim/disk/disk.h"

enum { NAME_BYTES = 64, FILE_PAGES_MAX = 4096 };

struct page {
    struct page *next; // that is free
    uint32_t users;
    unsigned char bytes[PAGE_BYTES];
};

enum change_kind { CHANGE_PAGE, CHANGE_BYTES, CHANGE_LINK, CHANGE_UNLINK, CHANGE_RENAME };

struct change {
    enum change_kind kind;
    bool shrinks;
    uint32_t page;      // its number
    struct page *after; // what it is then
    uint64_t bytes;     // of the file, then
    char name[NAME_BYTES], other[NAME_BYTES];
    struct inode *inode; // that is linked or renamed
};

struct names {
    struct {
        char name[NAME_BYTES];
        struct inode *inode;
    } * all;
    uint32_t count, capacity;
};

struct inode {
    struct inode *next;
    uint64_t number;
    bool is_folder, reached;
    char name[NAME_BYTES]; // the latest
    uint32_t opens, links;
    const void *holder; // of the lock
    struct change *changes;
    uint32_t change_count, change_capacity;
    // of a file
    uint64_t bytes, disk_bytes;
    struct page **now, **disk; // [page_capacity] NULL: zeros
    bool *taken;               // [page_capacity] it has its room on the disk
    uint32_t page_capacity;
    // of a folder
    struct names names, disk_names;
    struct inode *parent;
};

struct files {
    struct inode *all, *root;
    struct page *free;
    uint64_t number, used_pages;
};
extern struct files files;

struct page *page_hold(struct page *page); // NULL is allowed here and below
void page_drop(struct page *page);
void page_set(struct page **place, struct page *page);
struct page *page_copy(const struct page *from); // for one user; of NULL, zeros
uint32_t pages_of(uint64_t bytes);
void pages_reserve(struct inode *inode, uint32_t count);

struct inode *inode_new(const char *name, bool is_folder);
void inode_give_room(struct inode *inode); // if the process sees it no more; it may still be on the disk
void inode_free(struct inode *inode);

struct change *change_add(struct inode *inode, enum change_kind kind);
void changes_drop(struct inode *inode);

struct inode *names_find(const struct names *names, const char *name); // NULL: none
void names_set(struct names *names, const char *name, struct inode *inode);
void names_copy(struct names *to, const struct names *from);
void names_apply(struct names *names, const struct change *change);

#endif

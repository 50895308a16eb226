// files.c: what a process does with files: finds, makes, reads and writes them.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/disk/inode.h"

// --- names

// The folder of a path, and the name in it.
static int find_folder(const char *path, struct inode **folder, const char **name)
{
    const char *at = path + strlen(SIM_ROOT);

    assert_always(strncmp(path, SIM_ROOT, strlen(SIM_ROOT)) == 0);
    *folder = files.root;
    for (;;) {
        while (*at == '/')
            at++;
        const size_t length = strcspn(at, "/");
        char part[NAME_BYTES];
        assert_always(length < sizeof part);
        if (!at[length]) {
            *name = at;
            return 0;
        }
        snprintf(part, sizeof part, "%.*s", (int)length, at);
        struct inode *next = names_find(&(*folder)->names, part);
        if (!next)
            return ENOENT;
        if (!next->is_folder)
            return ENOTDIR;
        *folder = next;
        at += length;
    }
}

int files_find(const char *path, struct inode **out)
{
    struct inode *folder;
    const char *name;
    const int error = disk.off ? EIO : find_folder(path, &folder, &name);

    if (error)
        return error;
    *out = strcmp(name, "..") == 0 ? folder->parent : *name ? names_find(&folder->names, name) : folder;
    return *out ? 0 : ENOENT;
}

struct inode *files_in(struct inode *folder, const char *name) { return disk.off ? NULL : names_find(&folder->names, name); }

const char *files_name(struct inode *folder, uint32_t index)
{
    return index < folder->names.count ? folder->names.all[index].name : NULL;
}

// Changes the names of a folder, unless the process ends before.
static void change_names(struct inode *folder, const struct change *wanted, bool end)
{
    if (!end || sim_chance(50)) {
        struct inode *replaced = wanted->kind == CHANGE_RENAME   ? names_find(&folder->names, wanted->other)
                                 : wanted->kind == CHANGE_UNLINK ? names_find(&folder->names, wanted->name)
                                                                 : NULL;
        *change_add(folder, wanted->kind) = *wanted;
        names_apply(&folder->names, wanted);
        if (replaced && replaced != wanted->inode) {
            replaced->links = 0;
            inode_give_room(replaced);
        }
        if (wanted->inode) {
            wanted->inode->links = 1;
            snprintf(wanted->inode->name, NAME_BYTES, "%s", wanted->kind == CHANGE_RENAME ? wanted->other : wanted->name);
        }
    }
    if (end)
        disk_end(disk.faults.end_cuts);
}

int files_make(const char *path, bool is_folder, struct inode **out)
{
    struct change change = {.kind = CHANGE_LINK};
    struct inode *folder;
    const char *name;
    bool end;
    int error = find_folder(path, &folder, &name);

    error = error ? error : !disk.off && names_find(&folder->names, name) ? EEXIST : disk_operation(OP_MAKE, name, 0, 0, &end);
    if (error)
        return error;
    change.inode = inode_new(name, is_folder);
    change.inode->parent = folder;
    snprintf(change.name, sizeof change.name, "%s", name);
    change_names(folder, &change, end);
    *out = change.inode;
    return end ? EIO : 0;
}

int files_unlink_in(struct inode *folder, const char *name)
{
    struct change change = {.kind = CHANGE_UNLINK};
    bool end;
    int error = disk.off ? EIO : names_find(&folder->names, name) ? disk_operation(OP_NAME, name, 0, 0, &end) : ENOENT;

    if (error)
        return error;
    snprintf(change.name, sizeof change.name, "%s", name);
    change_names(folder, &change, end);
    return end ? EIO : 0;
}

int files_unlink(const char *path)
{
    struct inode *folder;
    const char *name;
    const int error = disk.off ? EIO : find_folder(path, &folder, &name);

    return error ? error : files_unlink_in(folder, name);
}

int files_rename(const char *from, const char *to)
{
    struct change change = {.kind = CHANGE_RENAME};
    struct inode *folder, *other;
    const char *name, *new_name;
    bool end;
    int error = disk.off ? EIO : find_folder(from, &folder, &name);

    error = error ? error : find_folder(to, &other, &new_name);
    if (error)
        return error;
    assert_always(folder == other);
    change.inode = names_find(&folder->names, name);
    error = change.inode ? disk_operation(OP_NAME, new_name, 0, 0, &end) : ENOENT;
    if (error)
        return error;
    snprintf(change.name, sizeof change.name, "%s", name);
    snprintf(change.other, sizeof change.other, "%s", new_name);
    change_names(folder, &change, end);
    return end ? EIO : 0;
}

// --- what is in a file

int files_read(const struct inode *inode, uint64_t at, void *out, size_t bytes, size_t *done)
{
    *done = 0;
    if (disk.off)
        return EIO;
    const uint64_t end = at < inode->bytes ? MIN(inode->bytes, at + bytes) : at;
    while (at < end) {
        const struct page *page = inode->now[at / PAGE_BYTES];
        const size_t part = MIN(PAGE_BYTES - at % PAGE_BYTES, end - at);
        if (page)
            memcpy((char *)out + *done, page->bytes + at % PAGE_BYTES, part);
        else
            memset((char *)out + *done, 0, part);
        at += part;
        *done += part;
    }
    return 0;
}

static bool take_room(struct inode *inode, uint32_t page)
{
    const bool full = disk.armed && disk.count >= disk.faults.full_first && disk.count < disk.faults.full_end;

    if (inode->taken[page])
        return true;
    if (full && files.used_pages >= disk.faults.full_pages)
        return false;
    files.used_pages++;
    inode->taken[page] = true;
    return true;
}

static void set_bytes(struct inode *inode, uint64_t bytes)
{
    struct change *change = change_add(inode, CHANGE_BYTES);

    change->bytes = bytes;
    change->shrinks = bytes < inode->bytes;
    inode->bytes = bytes;
}

static void set_page(struct inode *inode, uint32_t number, struct page *page)
{
    struct change *change = change_add(inode, CHANGE_PAGE);

    change->page = number;
    change->after = page;
    page_set(&inode->now[number], page);
}

int files_write(struct inode *inode, uint64_t at, const void *bytes, size_t count, size_t *done)
{
    bool end;
    const int error = disk_operation(OP_WRITE, inode->name, at, count, &end);

    *done = 0;
    if (error && !disk.off && sim_chance(50)) // it fails after a part
        count = (size_t)sim_below(count);
    else if (error)
        return error;
    if (error && !count)
        return error;
    if (end && !disk.faults.end_cuts) // killed between two pages
        count = sim_chance(50) ? count : (size_t)sim_below(count / PAGE_BYTES + 1) * PAGE_BYTES;
    pages_reserve(inode, pages_of(at + count));
    while (*done < count) {
        const uint32_t number = (uint32_t)(at / PAGE_BYTES);
        const size_t part = MIN(PAGE_BYTES - at % PAGE_BYTES, count - *done);
        if (!take_room(inode, number))
            break;
        struct page *page = page_copy(inode->now[number]);
        memcpy(page->bytes + at % PAGE_BYTES, (const char *)bytes + *done, part);
        set_page(inode, number, page);
        at += part;
        *done += part;
    }
    if (at > inode->bytes && *done)
        set_bytes(inode, at);
    if (end)
        disk_end(disk.faults.end_cuts);
    if (*done < count)
        sim_say("      full after %zu", *done);
    return end ? EIO : *done || !count ? 0 : ENOSPC;
}

int files_resize(struct inode *inode, uint64_t bytes)
{
    bool end;
    const int error = disk_operation(OP_RESIZE, inode->name, 0, bytes, &end);

    if (error)
        return error;
    if (bytes != inode->bytes && (!end || sim_chance(50))) {
        const uint32_t keep = pages_of(bytes);
        const bool shrinks = bytes < inode->bytes;
        pages_reserve(inode, keep);
        set_bytes(inode, bytes);
        for (uint32_t i = keep; shrinks && i < inode->page_capacity; i++) {
            page_set(&inode->now[i], NULL);
            files.used_pages -= inode->taken[i];
            inode->taken[i] = false;
        }
        if (shrinks && bytes % PAGE_BYTES && inode->now[keep - 1]) { // what comes behind the end is zeros
            struct page *page = page_copy(inode->now[keep - 1]);
            memset(page->bytes + bytes % PAGE_BYTES, 0, PAGE_BYTES - bytes % PAGE_BYTES);
            set_page(inode, keep - 1, page);
        }
    }
    if (end)
        disk_end(disk.faults.end_cuts);
    return end ? EIO : 0;
}

int files_allocate(struct inode *inode, uint64_t at, uint64_t bytes)
{
    bool end;
    const uint32_t first = (uint32_t)(at / PAGE_BYTES), pages = pages_of(at + bytes);
    const int error = disk_operation(OP_RESIZE, inode->name, at, bytes, &end);
    uint32_t i;

    if (error)
        return error;
    pages_reserve(inode, pages);
    for (i = first; i < pages && take_room(inode, i); i++)
        ;
    if (i < pages) // what was taken stays, as with ext4
        sim_say("      full after %u pages", i - first);
    else if (at + bytes > inode->bytes && (!end || sim_chance(50)))
        set_bytes(inode, at + bytes);
    if (end)
        disk_end(disk.faults.end_cuts);
    return end ? EIO : i < pages ? ENOSPC : 0;
}

// --- what is open

void files_open(struct inode *inode) { inode->opens++; }

void files_close(struct inode *inode, const void *holder)
{
    if (inode->holder == holder)
        inode->holder = NULL;
    inode->opens--;
    inode_give_room(inode);
}

bool files_lock(struct inode *inode, const void *holder)
{
    if (inode->holder && inode->holder != holder)
        return false;
    inode->holder = holder;
    return true;
}

bool files_is_folder(const struct inode *inode) { return inode->is_folder; }
uint64_t files_bytes(const struct inode *inode) { return inode->bytes; }
uint64_t files_number(const struct inode *inode) { return inode->number; }
uint64_t files_used_pages(void) { return files.used_pages; }

// inode.c: see inode.h: pages, inodes, names, and the life of them all.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/disk/inode.h"

struct files files;

// --- pages

struct page *page_hold(struct page *page)
{
    if (page)
        page->users++;
    return page;
}

void page_drop(struct page *page)
{
    if (!page || --page->users)
        return;
    page->next = files.free;
    files.free = page;
}

void page_set(struct page **place, struct page *page)
{
    page_hold(page);
    page_drop(*place);
    *place = page;
}

struct page *page_copy(const struct page *from)
{
    struct page *page = files.free;

    if (page)
        files.free = page->next;
    else
        page = sim_alloc(sizeof *page);
    page->users = 1;
    if (from)
        memcpy(page->bytes, from->bytes, PAGE_BYTES);
    else
        memset(page->bytes, 0, PAGE_BYTES);
    return page;
}

uint32_t pages_of(uint64_t bytes) { return (uint32_t)((bytes + PAGE_BYTES - 1) / PAGE_BYTES); }

// --- inodes

struct change *change_add(struct inode *inode, enum change_kind kind)
{
    if (inode->change_count == inode->change_capacity) {
        inode->change_capacity = MAX(inode->change_capacity * 2, 16u);
        inode->changes = sim_grow(inode->changes, inode->change_capacity * sizeof *inode->changes);
    }
    struct change *change = &inode->changes[inode->change_count++];
    *change = (struct change){.kind = kind};
    return change;
}

void changes_drop(struct inode *inode)
{
    for (uint32_t i = 0; i < inode->change_count; i++)
        page_drop(inode->changes[i].after);
    inode->change_count = 0;
}

struct inode *inode_new(const char *name, bool is_folder)
{
    struct inode *inode = sim_alloc(sizeof *inode);

    inode->number = ++files.number;
    inode->is_folder = is_folder;
    snprintf(inode->name, sizeof inode->name, "%s", name);
    inode->next = files.all;
    files.all = inode;
    return inode;
}

void inode_give_room(struct inode *inode)
{
    if (inode->links || inode->opens || inode->is_folder)
        return;
    for (uint32_t i = 0; i < inode->page_capacity; i++) {
        files.used_pages -= inode->taken[i];
        inode->taken[i] = false;
    }
}

void inode_free(struct inode *inode)
{
    changes_drop(inode);
    for (uint32_t i = 0; i < inode->page_capacity; i++) {
        page_drop(inode->now[i]);
        page_drop(inode->disk[i]);
    }
    sim_free(inode->changes);
    sim_free(inode->now);
    sim_free(inode->disk);
    sim_free(inode->taken);
    sim_free(inode->names.all);
    sim_free(inode->disk_names.all);
    sim_free(inode);
}

void pages_reserve(struct inode *inode, uint32_t count)
{
    if (count <= inode->page_capacity)
        return;
    const uint32_t before = inode->page_capacity, after = MAX(count, before * 2);
    assert_always(after <= FILE_PAGES_MAX);
    inode->now = sim_grow(inode->now, after * sizeof *inode->now);
    inode->disk = sim_grow(inode->disk, after * sizeof *inode->disk);
    inode->taken = sim_grow(inode->taken, after);
    for (uint32_t i = before; i < after; i++) {
        inode->now[i] = inode->disk[i] = NULL;
        inode->taken[i] = false;
    }
    inode->page_capacity = after;
}

// --- names

struct inode *names_find(const struct names *names, const char *name)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (strcmp(names->all[i].name, name) == 0)
            return names->all[i].inode;
    return NULL;
}

static void names_remove(struct names *names, const char *name)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (strcmp(names->all[i].name, name) == 0) {
            names->count--;
            memmove(&names->all[i], &names->all[i + 1], (names->count - i) * sizeof *names->all);
            return;
        }
}

void names_set(struct names *names, const char *name, struct inode *inode)
{
    names_remove(names, name);
    if (names->count == names->capacity) {
        names->capacity = MAX(names->capacity * 2, 8u);
        names->all = sim_grow(names->all, names->capacity * sizeof *names->all);
    }
    snprintf(names->all[names->count].name, NAME_BYTES, "%s", name);
    names->all[names->count++].inode = inode;
}

void names_copy(struct names *to, const struct names *from)
{
    to->count = 0;
    for (uint32_t i = 0; i < from->count; i++)
        names_set(to, from->all[i].name, from->all[i].inode);
}

void names_apply(struct names *names, const struct change *change)
{
    if (change->kind == CHANGE_UNLINK || change->kind == CHANGE_RENAME)
        names_remove(names, change->name);
    if (change->kind == CHANGE_LINK)
        names_set(names, change->name, change->inode);
    if (change->kind == CHANGE_RENAME)
        names_set(names, change->other, change->inode);
}

// --- life

void files_begin(void)
{
    files.all = NULL;
    files.number = files.used_pages = 0;
    files.root = inode_new(SIM_ROOT, true);
    files.root->links = 1;
}

void files_end(void)
{
    while (files.all) {
        struct inode *inode = files.all;
        files.all = inode->next;
        inode_free(inode);
    }
}

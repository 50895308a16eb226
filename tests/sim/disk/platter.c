// platter.c: what is on the disk, after a sync, after one that has failed, and after a power cut.
#include <errno.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/disk/inode.h"

enum { VERSIONS_MAX = 64 };

struct versions {
    struct page *all[VERSIONS_MAX];
    uint32_t count;
};

// Finds out as what a page may be on the disk if the first `kept` changes of the length are there: before a truncation that is not, or after one
// that is.
static void find_versions(const struct inode *inode, uint32_t number, uint32_t kept, struct versions *out)
{
    *out = (struct versions){.all = {inode->disk[number]}, .count = 1};
    for (uint32_t i = 0; i < inode->change_count; i++) {
        const struct change *change = &inode->changes[i];
        if (change->kind == CHANGE_PAGE && change->page == number) {
            if (out->count == VERSIONS_MAX) // the oldest but one
                memmove(&out->all[1], &out->all[2], (--out->count - 1) * sizeof out->all[0]);
            out->all[out->count++] = change->after;
        } else if (change->kind == CHANGE_BYTES && change->shrinks && pages_of(change->bytes) <= number) {
            if (i >= kept)
                return;
            *out = (struct versions){.count = 1};
        }
    }
}

// Returns a page that has some version of each sector, the latest in `percent` of all cases.
static struct page *mix_versions(const struct versions *versions, uint32_t percent)
{
    const uint32_t sectors = PAGE_BYTES / disk.sector_bytes;
    struct page *mixed = NULL;

    if (versions->count == 1 || percent == 100)
        return page_hold(versions->all[versions->count - 1]);
    if (!percent)
        return page_hold(versions->all[0]);
    if (sectors == 1)
        return page_hold(versions->all[sim_chance(percent) ? versions->count - 1 : sim_below(versions->count)]);
    mixed = page_copy(NULL);
    for (uint32_t i = 0; i < sectors; i++) {
        const struct page *page = versions->all[sim_chance(percent) ? versions->count - 1 : sim_below(versions->count)];
        if (page)
            memcpy(mixed->bytes + i * disk.sector_bytes, page->bytes + i * disk.sector_bytes, disk.sector_bytes);
    }
    return mixed;
}

// Lets chance say how far each page that was written has come.
static void settle_pages(struct inode *inode, uint32_t kept, uint32_t percent)
{
    for (uint32_t number = 0; number < inode->page_capacity; number++) {
        struct versions versions;
        find_versions(inode, number, kept, &versions);
        if (versions.count == 1 && versions.all[0] == inode->disk[number])
            continue;
        struct page *page = mix_versions(&versions, percent);
        page_drop(inode->disk[number]);
        inode->disk[number] = page;
    }
}

static uint32_t some_percent(void)
{
    static const uint32_t percents[] = {0, 0, 10, 50, 50, 90, 100};
    return percents[sim_below(ARRAY_COUNT(percents))];
}

// fsync() has failed, and the kernel takes for written what it could not write.
static void forget(struct inode *inode)
{
    uint32_t count = 0;

    settle_pages(inode, inode->change_count, some_percent());
    for (uint32_t i = 0; i < inode->change_count; i++) {
        if (inode->changes[i].kind == CHANGE_PAGE)
            page_drop(inode->changes[i].after);
        else
            inode->changes[count++] = inode->changes[i];
    }
    inode->change_count = count;
}

int files_sync(struct inode *inode)
{
    bool end;
    const int error = disk_operation(OP_SYNC, inode->name, 0, inode->change_count, &end);

    if (end)
        disk_end(disk.faults.end_cuts);
    if (error || end) {
        if (error && !disk.off && !inode->is_folder && disk.sync_forgets)
            forget(inode);
        return end ? EIO : error;
    }
    bool shrinks = false;
    for (uint32_t i = 0; i < inode->change_count; i++) {
        const struct change *change = &inode->changes[i];
        shrinks |= change->kind == CHANGE_BYTES && change->shrinks;
        if (change->kind == CHANGE_PAGE)
            page_set(&inode->disk[change->page], inode->now[change->page]);
    }
    for (uint32_t i = pages_of(inode->bytes); shrinks && i < inode->page_capacity; i++)
        page_set(&inode->disk[i], NULL);
    inode->disk_bytes = inode->bytes;
    if (inode->is_folder)
        names_copy(&inode->disk_names, &inode->names);
    changes_drop(inode);
    return 0;
}

// --- a power cut

static void cut_file(struct inode *inode)
{
    const uint32_t percent = some_percent();
    const uint32_t kept = percent == 0 ? 0 : percent == 100 ? inode->change_count : (uint32_t)sim_below(inode->change_count + 1);

    settle_pages(inode, kept, percent);
    for (uint32_t i = 0; i < kept; i++)
        if (inode->changes[i].kind == CHANGE_BYTES)
            inode->disk_bytes = inode->changes[i].bytes;
    const uint32_t pages = pages_of(inode->disk_bytes), tail = (uint32_t)(inode->disk_bytes % PAGE_BYTES);
    for (uint32_t i = pages; i < inode->page_capacity; i++)
        page_set(&inode->disk[i], NULL);
    if (tail && inode->disk[pages - 1]) {
        struct page *page = page_copy(inode->disk[pages - 1]);
        memset(page->bytes + tail, 0, PAGE_BYTES - tail);
        page_drop(inode->disk[pages - 1]);
        inode->disk[pages - 1] = page;
    }
    for (uint32_t i = 0; i < inode->page_capacity; i++) {
        page_set(&inode->now[i], inode->disk[i]);
        inode->taken[i] &= i < pages;
    }
    inode->bytes = inode->disk_bytes;
}

static bool names_have(const struct names *names, const struct change *change)
{
    return names_find(names, change->name) || (change->kind == CHANGE_RENAME && names_find(names, change->other));
}

// Either the changes up to some one are there, as a journal has them, or any of them; but none of a name that has missed one.
static void cut_folder(struct inode *inode)
{
    const uint32_t percent = some_percent();
    const bool in_order = sim_chance(50);
    struct names missed = {0};

    for (uint32_t i = 0; i < inode->change_count; i++) {
        const struct change *change = &inode->changes[i];
        if ((!in_order || !missed.count) && !names_have(&missed, change) && sim_chance(percent)) {
            names_apply(&inode->disk_names, change);
            continue;
        }
        names_set(&missed, change->name, inode);
        if (change->kind == CHANGE_RENAME)
            names_set(&missed, change->other, inode);
    }
    sim_free(missed.all);
    names_copy(&inode->names, &inode->disk_names);
}

static void reach(struct inode *inode)
{
    inode->reached = true;
    for (uint32_t i = 0; i < inode->names.count; i++)
        reach(inode->names.all[i].inode);
}

void files_cut(void)
{
    struct inode **place = &files.all;

    for (struct inode *inode = files.all; inode; inode = inode->next) {
        assert_always(!inode->opens);
        if (inode->is_folder)
            cut_folder(inode);
        else
            cut_file(inode);
        changes_drop(inode);
        inode->reached = false;
        inode->holder = NULL;
    }
    reach(files.root);
    files.used_pages = 0;
    while (*place) {
        struct inode *inode = *place;
        inode->links = inode->reached;
        if (!inode->reached) {
            *place = inode->next;
            inode_free(inode);
            continue;
        }
        for (uint32_t i = 0; i < inode->page_capacity; i++)
            files.used_pages += inode->taken[i];
        place = &inode->next;
    }
}

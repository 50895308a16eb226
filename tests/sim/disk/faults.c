// faults.c: counts the operations of the disk, and lets those fail that the plan names.
#include <errno.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/disk/disk.h"

struct disk_state disk;

static const char *const op_names[OP_KINDS] = {"make", "write", "resize", "sync", "name"};

void disk_begin(void)
{
    disk = (struct disk_state){.sector_bytes = sim_chance(50) ? 512 : PAGE_BYTES,
                               .sync_forgets = sim_chance(50),
                               .direct = sim_chance(70),
                               .falls_through = sim_chance(10),
                               .can_allocate = sim_chance(80)};
    files_begin();
}

// Small numbers are more likely: much happens at the beginning.
static uint64_t some_number(uint64_t bits) { return 1 + sim_below(UINT64_C(1) << (1 + sim_below(bits))); }

void disk_plan(struct faults *out)
{
    static const uint32_t kinds[] = {1 << OP_SYNC, 1 << OP_SYNC, 1 << OP_WRITE,  1 << OP_WRITE,
                                     1 << OP_MAKE, 1 << OP_NAME, 1 << OP_RESIZE, 0x1f};
    static const char *const names[] = {"", "", "file-", "batches.db"};
    const uint64_t how = sim_below(10);

    *out = (struct faults){.names = names[sim_below(ARRAY_COUNT(names))], .end_cuts = sim_chance(70)};
    if (how < 8) {
        out->kinds = kinds[sim_below(ARRAY_COUNT(kinds))];
        out->fail_first = some_number(out->kinds == 1 << OP_WRITE ? 6 : 5);
        out->fail_end = out->fail_first + (sim_chance(60) ? 1 : some_number(6));
        out->error = how < 2 ? 0 : how < 7 ? EIO : ENOSPC;
    }
    if (sim_chance(30)) {
        out->full_first = some_number(9);
        out->full_end = out->full_first + some_number(8);
        out->full_pages = sim_chance(50) ? 0 : sim_below(24);
    }
    if (how >= 2 && how < 8 && sim_chance(40))
        out->end_after = some_number(5);
    else if (how >= 2 && sim_chance(50))
        out->end_at = some_number(9);
}

void disk_live(void)
{
    disk_calm();
    disk.off = disk.cut = disk.names_stay = disk.bytes_stay = false;
}

void disk_arm(const struct faults *faults)
{
    disk.faults = *faults;
    disk.armed = true;
    disk.count = disk.matched = 0;
}

void disk_calm(void)
{
    disk.armed = false;
    disk.faults = (struct faults){0};
}

void disk_end(bool cuts)
{
    sim_say("-- %s", cuts ? "the power is cut" : "the process is killed");
    sim_note("end", cuts, 0);
    disk.off = true;
    disk.cut = cuts;
    if (cuts)
        counts.cuts++;
    else
        counts.kills++;
}

bool disk_lacks_room_only(void)
{
    return disk.armed && !disk.off && !disk.faults.kinds && disk.count >= disk.faults.full_first &&
           disk.count < disk.faults.full_end;
}

// Whether it is one of those that fail.
static bool is_meant(enum disk_op op, const char *name)
{
    if (!disk.armed || !(disk.faults.kinds >> op & 1) || strncmp(name, disk.faults.names, strlen(disk.faults.names)))
        return false;
    disk.matched++;
    return disk.matched >= disk.faults.fail_first && disk.matched < disk.faults.fail_end;
}

int disk_operation(enum disk_op op, const char *name, uint64_t at, uint64_t bytes, bool *end)
{
    *end = false;
    if (disk.off)
        return EIO;
    disk.operations++;
    disk.count++;
    sim_note(op_names[op], at, bytes);
    if (disk.armed && disk.count == disk.faults.full_first) {
        disk.faults.full_pages += files_used_pages();
        sim_say("   the disk is full");
    }
    const bool meant = is_meant(op, name);
    *end = disk.armed && (disk.count == disk.faults.end_at || (meant && !disk.faults.error));
    const bool needs_room = op == OP_MAKE || op == OP_WRITE || op == OP_SYNC;
    const int error = !meant || *end ? 0 : needs_room ? disk.faults.error : EIO;
    if (error) {
        disk.failed++;
        disk.names_stay |= op == OP_NAME;
        disk.bytes_stay |= op == OP_NAME || op == OP_RESIZE || op == OP_SYNC;
        if (disk.faults.end_after && !disk.faults.end_at)
            disk.faults.end_at = disk.count + disk.faults.end_after;
        sim_note("fails", (uint64_t)error, 0);
    }
    sim_say("   %s %s at %llu bytes %llu%s%s", op_names[op], name, (unsigned long long)at, (unsigned long long)bytes,
            *end    ? ": not to its end"
            : error ? ": "
                    : "",
            error ? strerror(error) : "");
    return error;
}

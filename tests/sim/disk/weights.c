// weights.c: a backend's packed weights, over several starts: each reads them, or writes them and reads them then.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/random.h"
#include "kernels/backend/packed_file.h"
#include "tests/sim/disk/disk.h"

enum { BLOBS_MAX = 4, BLOB_PAGES_MAX = 6, KINDS = 3 };
#define WEIGHTS_DIR SIM_ROOT "/cache"
#define WEIGHTS_PATH WEIGHTS_DIR "/weights.packed"

static struct {
    struct {
        struct packed_layout layout;
        uint64_t blob_bytes[BLOBS_MAX];
    } kinds[KINDS];
    uint32_t kind;                 // at work
    bool is_last;                  // the file of `last` was written, and its name synced
    uint32_t last;                 // kind
    bool maybe[KINDS];             // or one of these
    unsigned char *bytes, *wanted; // [BLOB_PAGES_MAX] pages, aligned
} weights;

// Makes up what a blob holds, by layout and number.
static void make_blob(uint32_t kind, uint32_t blob, unsigned char *out)
{
    uint64_t random = weights.kinds[kind].layout.layout * 31 + blob;

    for (uint64_t at = 0; at < weights.kinds[kind].blob_bytes[blob]; at += sizeof random) {
        const uint64_t word = random_next(&random);
        memcpy(out + at, &word, sizeof word);
    }
}

static void make_kinds(void)
{
    for (uint32_t i = 0; i < KINDS; i++) {
        struct packed_layout *layout = &weights.kinds[i].layout;
        *layout = (struct packed_layout){.model = 7, .layout = i + 1, .blob_count = 1 + (uint32_t)sim_below(BLOBS_MAX)};
        for (uint32_t k = 0; k < layout->blob_count; k++)
            weights.kinds[i].blob_bytes[k] = (1 + sim_below(BLOB_PAGES_MAX)) * PACKED_FILE_ALIGN;
        layout->blob_bytes = weights.kinds[i].blob_bytes;
    }
}

// --- reading

static bool read_blob(const struct packed_file *file, uint32_t blob)
{
    const struct packed_blob *place = packed_file_blob(file, blob);
    uint64_t done = 0;

    while (done < place->bytes) {
        const ssize_t got =
            pread(packed_file_descriptor(file), weights.bytes + done, place->bytes - done, (off_t)(place->offset + done));
        if (got <= 0)
            return false;
        done += (uint64_t)got;
    }
    return true;
}

// Whoever sees the name sees the whole file.
static void check_blobs(const struct packed_file *file)
{
    const struct packed_layout *layout = &weights.kinds[weights.kind].layout;
    struct error error = {.status = STATUS_OK};

    for (uint32_t i = 0; i < layout->blob_count && !disk.off; i++) {
        make_blob(weights.kind, i, weights.wanted);
        if (!read_blob(file, i)) {
            sim_fail("blob %u cannot be read", i);
            return;
        }
        if (packed_file_check(file, i, weights.bytes, &error) != STATUS_OK)
            sim_fail("%s", error.text);
        if (memcmp(weights.bytes, weights.wanted, layout->blob_bytes[i]))
            sim_fail("blob %u has other bytes than those that were written", i);
    }
}

// Whether they are there.
static bool read_weights(void)
{
    struct packed_file *file = NULL;
    struct error error = {.status = STATUS_OK};
    const enum status status = packed_file_open(WEIGHTS_PATH, &weights.kinds[weights.kind].layout, &file, &error);

    sim_note("read", weights.kind, status);
    sim_say("read layout %u: %s %s", weights.kind + 1, status_name(status), error.text);
    if (disk.off) {
        packed_file_close(file);
        return false;
    }
    if (status == STATUS_OK) {
        check_blobs(file);
        packed_file_close(file);
    }
    if (status != STATUS_OK && status != STATUS_NOT_FOUND && status != STATUS_FAILED_PRECONDITION)
        sim_fail("%s", error.text);
    if (status != STATUS_OK && weights.is_last && weights.last == weights.kind)
        sim_fail("the file that was written is gone: %s", error.text);
    if (status == STATUS_OK && !(weights.is_last && weights.last == weights.kind) && !weights.maybe[weights.kind])
        sim_fail("nobody has written the file that is there");
    return status == STATUS_OK;
}

// --- writing

// Another process finds that it is being written.
static void check_lock(void)
{
    struct packed_writer *other = NULL;
    struct error error = {.status = STATUS_OK};

    if (packed_writer_open(WEIGHTS_PATH, &weights.kinds[weights.kind].layout, false, &other, &error) == STATUS_OK)
        sim_fail("two write the file at a time");
}

static enum status write_blobs(struct packed_writer *writer, struct error *error)
{
    const struct packed_layout *layout = &weights.kinds[weights.kind].layout;
    enum status status = STATUS_OK;

    for (uint32_t i = 0; i < layout->blob_count && !status; i++) {
        make_blob(weights.kind, i, weights.wanted);
        if (sim_chance(50)) {
            status = packed_writer_put(writer, weights.wanted, error);
            continue;
        }
        for (uint64_t at = 0; at < layout->blob_bytes[i] && !status; at += PACKED_FILE_ALIGN)
            status = packed_writer_add(writer, weights.wanted + at, PACKED_FILE_ALIGN, error);
    }
    return status;
}

// Another file may have come in the place of the last one.
static void doubt_last(void)
{
    if (!weights.is_last || weights.last == weights.kind)
        return;
    weights.maybe[weights.last] = true;
    weights.is_last = false;
}

static bool write_weights(void)
{
    struct packed_writer *writer = NULL;
    struct error error = {.status = STATUS_OK};
    struct inode *part;

    counts.weights++;
    const uint64_t failed = disk.failed;
    enum status status = packed_writer_open(WEIGHTS_PATH, &weights.kinds[weights.kind].layout, sim_chance(50), &writer, &error);
    if (status == STATUS_OK && sim_chance(10))
        check_lock();
    if (status == STATUS_OK && (status = write_blobs(writer, &error)) != STATUS_OK)
        packed_writer_abort(writer);
    else if (status == STATUS_OK) {
        weights.maybe[weights.kind] = true; // from here on it may have its name
        status = packed_writer_commit(writer, &error);
    }
    sim_note("write", weights.kind, status);
    sim_say("write layout %u: %s %s", weights.kind + 1, status_name(status), error.text);
    if (disk.off) {
        doubt_last();
        return false;
    }
    if (status != STATUS_OK) {
        if (status != STATUS_RESOURCE_EXHAUSTED && status != STATUS_UNAVAILABLE)
            sim_fail("cannot write: %s %s", status_name(status), error.text);
        if (!disk.names_stay && files_find(WEIGHTS_PATH ".part", &part) == 0)
            sim_fail("what was written before the failure stays: %s", error.text);
        return false;
    }
    if (disk.failed > failed) { // the name may not be synced
        doubt_last();
        return true;
    }
    memset(weights.maybe, 0, sizeof weights.maybe);
    weights.is_last = true;
    weights.last = weights.kind;
    return true;
}

// --- starts

static void live(bool well)
{
    struct faults faults;

    disk_live();
    counts.lives++;
    sim_say("-- a backend starts");
    disk_plan(&faults);
    faults.names = "";
    if (!well && faults.end_at)
        faults.end_at = faults.end_at % 32 + 1;
    if (!well)
        disk_arm(&faults);
    for (uint64_t i = 1 + sim_below(3); i > 0 && !disk.off && !sim.failure[0]; i--) {
        if (sim_chance(40))
            weights.kind = (uint32_t)sim_below(KINDS);
        if (read_weights() || disk.off)
            continue;
        if (write_weights() && !read_weights() && !disk.off)
            sim_fail("what was written is not there");
        else if (well && !disk.off && !read_weights())
            sim_fail("weights cannot be written");
    }
    if (sim.descriptors || sim.blocks)
        sim_fail("%llu blocks of memory and %u descriptors are left", (unsigned long long)sim.blocks, sim.descriptors);
}

void weights_run(void)
{
    struct inode *folder;

    memset(&weights, 0, sizeof weights);
    weights.bytes = sim_alloc(2 * (BLOB_PAGES_MAX + 1) * PACKED_FILE_ALIGN);
    void *memory = weights.bytes;
    weights.bytes += PACKED_FILE_ALIGN - (uintptr_t)weights.bytes % PACKED_FILE_ALIGN;
    weights.wanted = weights.bytes + BLOB_PAGES_MAX * PACKED_FILE_ALIGN;
    make_kinds();
    disk_live();
    assert_always(files_make(WEIGHTS_DIR, true, &folder) == 0 && files_find(SIM_ROOT, &folder) == 0 && files_sync(folder) == 0);
    for (uint64_t lives = 2 + sim_below(8); lives > 0 && !sim.failure[0]; lives--) {
        live(false);
        if (!disk.off && sim_chance(50))
            disk_end(sim_chance(60));
        if (disk.cut)
            files_cut();
    }
    if (!sim.failure[0])
        live(true);
    sim_free(memory);
}

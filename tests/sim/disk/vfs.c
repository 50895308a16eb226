// vfs.c: SQLite's files, as its own layer for Unix has them (os_unix.c): its calls, what it makes of an error, and when it syncs the folder.
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/disk/disk.h"

enum { PATH_BYTES = 256, SHARED_MAX = 16, SHARED_PAGES = 8 };

struct vfs_file {
    sqlite3_file base;
    struct inode *inode;
    char path[PATH_BYTES];
    bool syncs_folder;    // with the next sync: it is new, and a journal
    struct inode *shared; // the index of the journal: memory, which takes room on the disk
    void *regions[SHARED_MAX];
};

static int vfs_close(sqlite3_file *base)
{
    struct vfs_file *file = (struct vfs_file *)base;

    files_close(file->inode, file);
    sim.descriptors--;
    return SQLITE_OK;
}

static int vfs_read(sqlite3_file *base, void *out, int bytes, sqlite3_int64 at)
{
    struct vfs_file *file = (struct vfs_file *)base;
    size_t done;

    if (files_read(file->inode, (uint64_t)at, out, (size_t)bytes, &done))
        return SQLITE_IOERR_READ;
    if (done == (size_t)bytes)
        return SQLITE_OK;
    memset((char *)out + done, 0, (size_t)bytes - done);
    return SQLITE_IOERR_SHORT_READ;
}

static int vfs_write(sqlite3_file *base, const void *bytes, int count, sqlite3_int64 at)
{
    struct vfs_file *file = (struct vfs_file *)base;
    size_t done = 0;

    while (count > 0) {
        const int error = files_write(file->inode, (uint64_t)at, bytes, (size_t)count, &done);
        if (error)
            return error == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
        bytes = (const char *)bytes + done;
        at += (sqlite3_int64)done;
        count -= (int)done;
    }
    return SQLITE_OK;
}

static int vfs_truncate(sqlite3_file *base, sqlite3_int64 bytes)
{
    return files_resize(((struct vfs_file *)base)->inode, (uint64_t)bytes) ? SQLITE_IOERR_TRUNCATE : SQLITE_OK;
}

static int sync_folder(const char *path)
{
    char folder[PATH_BYTES];
    struct inode *inode;

    memcpy(folder, path, sizeof folder);
    *strrchr(folder, '/') = '\0';
    const int error = files_find(folder, &inode);
    return error ? error : files_sync(inode);
}

static int vfs_sync(sqlite3_file *base, int flags)
{
    struct vfs_file *file = (struct vfs_file *)base;

    (void)flags;
    if (files_sync(file->inode))
        return SQLITE_IOERR_FSYNC;
    if (file->syncs_folder)
        (void)sync_folder(file->path); // it asks no more than that
    file->syncs_folder = false;
    return SQLITE_OK;
}

static int vfs_size(sqlite3_file *base, sqlite3_int64 *out)
{
    *out = (sqlite3_int64)files_bytes(((struct vfs_file *)base)->inode);
    return disk.off ? SQLITE_IOERR_FSTAT : SQLITE_OK;
}

// One process, one connection: nobody else is there.
static int vfs_lock(sqlite3_file *base, int level)
{
    (void)base, (void)level;
    return SQLITE_OK;
}

static int vfs_is_reserved(sqlite3_file *base, int *out)
{
    (void)base;
    *out = 0;
    return SQLITE_OK;
}

static int vfs_control(sqlite3_file *base, int what, void *arg)
{
    (void)base, (void)what, (void)arg;
    return SQLITE_NOTFOUND;
}

static int vfs_sector_bytes(sqlite3_file *base)
{
    (void)base;
    return PAGE_BYTES;
}

static int vfs_traits(sqlite3_file *base)
{
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

// --- memory that connections share

static int open_shared(struct vfs_file *file)
{
    char path[PATH_BYTES + 8];

    snprintf(path, sizeof path, "%s-shm", file->path);
    int error = files_find(path, &file->shared);
    error = error == ENOENT ? files_make(path, false, &file->shared) : error;
    error = !error && files_bytes(file->shared) ? files_resize(file->shared, 3) : error; // an earlier process'
    if (error) {
        file->shared = NULL;
        return SQLITE_CANTOPEN;
    }
    files_open(file->shared);
    return SQLITE_OK;
}

static int vfs_map(sqlite3_file *base, int region, int bytes, int extend, void volatile **out)
{
    struct vfs_file *file = (struct vfs_file *)base;

    *out = NULL;
    if (!file->shared && open_shared(file))
        return SQLITE_CANTOPEN;
    assert_always(region < SHARED_MAX && bytes == SHARED_PAGES * PAGE_BYTES);
    if (!file->regions[region] && !extend)
        return SQLITE_OK;
    if (!file->regions[region]) {
        if (files_allocate(file->shared, (uint64_t)region * (uint64_t)bytes, (uint64_t)bytes))
            return SQLITE_IOERR_SHMSIZE;
        file->regions[region] = sim_alloc((size_t)bytes);
    }
    *out = file->regions[region];
    return SQLITE_OK;
}

static int vfs_shared_lock(sqlite3_file *base, int offset, int count, int flags)
{
    (void)base, (void)offset, (void)count, (void)flags;
    return SQLITE_OK;
}

static void vfs_barrier(sqlite3_file *base) { (void)base; }

static int vfs_unmap(sqlite3_file *base, int removes)
{
    struct vfs_file *file = (struct vfs_file *)base;
    char path[PATH_BYTES + 8];

    if (!file->shared)
        return SQLITE_OK;
    snprintf(path, sizeof path, "%s-shm", file->path);
    if (removes)
        (void)files_unlink(path);
    files_close(file->shared, file);
    file->shared = NULL;
    for (uint32_t i = 0; i < SHARED_MAX; i++) {
        sim_free(file->regions[i]);
        file->regions[i] = NULL;
    }
    return SQLITE_OK;
}

// --- the layer

static int vfs_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *base, int flags, int *out_flags)
{
    static const sqlite3_io_methods methods = {.iVersion = 2,
                                               .xClose = vfs_close,
                                               .xRead = vfs_read,
                                               .xWrite = vfs_write,
                                               .xTruncate = vfs_truncate,
                                               .xSync = vfs_sync,
                                               .xFileSize = vfs_size,
                                               .xLock = vfs_lock,
                                               .xUnlock = vfs_lock,
                                               .xCheckReservedLock = vfs_is_reserved,
                                               .xFileControl = vfs_control,
                                               .xSectorSize = vfs_sector_bytes,
                                               .xDeviceCharacteristics = vfs_traits,
                                               .xShmMap = vfs_map,
                                               .xShmLock = vfs_shared_lock,
                                               .xShmBarrier = vfs_barrier,
                                               .xShmUnmap = vfs_unmap};
    struct vfs_file *file = (struct vfs_file *)base;
    const int journals = SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL;

    (void)vfs;
    memset(file, 0, sizeof *file);
    assert_always(path && strlen(path) < PATH_BYTES);
    int error = files_find(path, &file->inode);
    if (error == ENOENT && (flags & SQLITE_OPEN_CREATE))
        error = files_make(path, false, &file->inode);
    if (error)
        return SQLITE_CANTOPEN;
    strcpy(file->path, path);
    file->syncs_folder = (flags & SQLITE_OPEN_CREATE) && (flags & journals);
    files_open(file->inode);
    sim.descriptors++;
    file->base.pMethods = &methods;
    if (out_flags)
        *out_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *path, int syncs)
{
    (void)vfs;
    const int error = files_unlink(path);
    if (error)
        return error == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
    return syncs && sync_folder(path) ? SQLITE_IOERR_DIR_FSYNC : SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *out)
{
    struct inode *inode;

    (void)vfs;
    *out = !files_find(path, &inode) && (flags != SQLITE_ACCESS_EXISTS || files_bytes(inode) > 0);
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *path, int bytes, char *out)
{
    (void)vfs;
    snprintf(out, (size_t)bytes, "%s", path);
    return SQLITE_OK;
}

static int vfs_random(sqlite3_vfs *vfs, int bytes, char *out)
{
    (void)vfs;
    for (int i = 0; i < bytes; i++)
        out[i] = (char)sim_below(256);
    return bytes;
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs;
    sim.now_ns += (uint64_t)us * 1000;
    return us;
}

static int vfs_time(sqlite3_vfs *vfs, sqlite3_int64 *out)
{
    (void)vfs;
    *out = 212932800000000 + (sqlite3_int64)(sim.now_ns / 1000000);
    return SQLITE_OK;
}

static int vfs_last_error(sqlite3_vfs *vfs, int bytes, char *out)
{
    (void)vfs, (void)bytes, (void)out;
    return 0;
}

void vfs_register(void)
{
    static sqlite3_vfs vfs = {.iVersion = 2,
                              .szOsFile = sizeof(struct vfs_file),
                              .mxPathname = PATH_BYTES - 8,
                              .zName = "sim",
                              .xOpen = vfs_open,
                              .xDelete = vfs_delete,
                              .xAccess = vfs_access,
                              .xFullPathname = vfs_full_path,
                              .xRandomness = vfs_random,
                              .xSleep = vfs_sleep,
                              .xGetLastError = vfs_last_error,
                              .xCurrentTimeInt64 = vfs_time};

    assert_always(sqlite3_vfs_register(&vfs, 1) == SQLITE_OK);
}

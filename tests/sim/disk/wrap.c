// wrap.c: libc's calls with paths and descriptors; the linker puts these in the place of libc's (--wrap in the Makefile). What is below SIM_ROOT is
// files.c's, all else libc's.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "services/gateway/http/http.h"
#include "tests/sim/disk/disk.h"

enum { FIRST_FD = 1 << 20, OPEN_MAX_FILES = 64, DIRECT_BYTES = 512 };

struct open_file {
    struct inode *inode; // NULL: free
    uint64_t position;
    int flags;
    bool lists; // a folder, by opendir()
    uint32_t next_name;
    struct dirent entry;
};
static struct open_file open_files[OPEN_MAX_FILES];

static struct {
    char *data;
    size_t bytes, capacity;
} content; // of the latest answer that is a file

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_read(int fd, void *out, size_t bytes);
ssize_t __real_write(int fd, const void *bytes, size_t count);
ssize_t __real_pread(int fd, void *out, size_t bytes, off_t at);
ssize_t __real_pwrite(int fd, const void *bytes, size_t count, off_t at);
off_t __real_lseek(int fd, off_t offset, int whence);
int __real_fsync(int fd);
int __real_fdatasync(int fd);
int __real_ftruncate(int fd, off_t bytes);
int __real_fallocate(int fd, int mode, off_t at, off_t bytes);
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __real_posix_fadvise(int fd, off_t at, off_t bytes, int advice);
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_unlinkat(int folder, const char *name, int flags);
int __real_mkdir(const char *path, mode_t mode);
int __real_stat(const char *path, struct stat *out);
int __real_fstat(int fd, struct stat *out);
int __real_fstatat(int folder, const char *name, struct stat *out, int flags);
int __real_access(const char *path, int mode);
int __real_flock(int fd, int operation);
int __real_fcntl(int fd, int command, ...);
DIR *__real_opendir(const char *path);
struct dirent *__real_readdir(DIR *folder);
int __real_closedir(DIR *folder);
int __real_dirfd(DIR *folder);
void __real_exchange_respond_file(struct exchange *exchange, const char *content_type, int fd, uint64_t bytes);

int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int fd);
ssize_t __wrap_read(int fd, void *out, size_t bytes);
ssize_t __wrap_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_pread(int fd, void *out, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at);
off_t __wrap_lseek(int fd, off_t offset, int whence);
int __wrap_fsync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes);
int __wrap_posix_fadvise(int fd, off_t at, off_t bytes, int advice);
int __wrap_rename(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_unlinkat(int folder, const char *name, int flags);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_stat(const char *path, struct stat *out);
int __wrap_fstat(int fd, struct stat *out);
int __wrap_fstatat(int folder, const char *name, struct stat *out, int flags);
int __wrap_access(const char *path, int mode);
int __wrap_flock(int fd, int operation);
int __wrap_fcntl(int fd, int command, ...);
DIR *__wrap_opendir(const char *path);
struct dirent *__wrap_readdir(DIR *folder);
int __wrap_closedir(DIR *folder);
int __wrap_dirfd(DIR *folder);
int __wrap_dprintf(int fd, const char *format, ...) PRINTF_LIKE(2, 3);
void __wrap_exchange_respond_file(struct exchange *exchange, const char *content_type, int fd, uint64_t bytes);

static bool is_ours(const char *path)
{
    const size_t length = strlen(SIM_ROOT);
    return strncmp(path, SIM_ROOT, length) == 0 && (!path[length] || path[length] == '/');
}

static struct open_file *file_of(int fd)
{
    if (fd < FIRST_FD || fd >= FIRST_FD + OPEN_MAX_FILES)
        return NULL;
    assert_always(open_files[fd - FIRST_FD].inode); // not closed twice, nor used after that
    return &open_files[fd - FIRST_FD];
}

struct inode *wrap_inode(int fd) { return file_of(fd) ? file_of(fd)->inode : NULL; }

// 0, or -1 with errno.
static int result(int error)
{
    if (error)
        errno = error;
    return error ? -1 : 0;
}

// --- opening

static int open_inode(struct inode *inode, int flags)
{
    for (int i = 0; i < OPEN_MAX_FILES; i++)
        if (!open_files[i].inode) {
            open_files[i] = (struct open_file){.inode = inode, .flags = flags};
            files_open(inode);
            sim.descriptors++;
            return FIRST_FD + i;
        }
    return result(EMFILE);
}

int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;

    if (flags & O_CREAT) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    if (!is_ours(path))
        return __real_open(path, flags, mode);
    struct inode *inode;
    int error = files_find(path, &inode);
    if (!error && (flags & O_CREAT) && (flags & O_EXCL))
        error = EEXIST;
    if (error == ENOENT && (flags & O_CREAT))
        error = files_make(path, false, &inode);
    if (!error && !files_is_folder(inode) && (flags & O_DIRECTORY))
        error = ENOTDIR;
    if (!error && (flags & O_DIRECT) && !disk.direct && !disk.falls_through)
        error = EINVAL;
    return error ? result(error) : open_inode(inode, flags);
}

int __wrap_close(int fd)
{
    struct open_file *file = file_of(fd);

    if (!file)
        return __real_close(fd);
    files_close(file->inode, file);
    file->inode = NULL;
    sim.descriptors--;
    return 0;
}

DIR *__wrap_opendir(const char *path)
{
    if (!is_ours(path))
        return __real_opendir(path);
    const int fd = __wrap_open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return NULL;
    file_of(fd)->lists = true;
    return (DIR *)(void *)file_of(fd);
}

static struct open_file *folder_of(DIR *folder)
{
    struct open_file *file = (struct open_file *)(void *)folder;
    return file >= open_files && file < open_files + OPEN_MAX_FILES ? file : NULL;
}

int __wrap_dirfd(DIR *folder)
{
    return folder_of(folder) ? FIRST_FD + (int)(folder_of(folder) - open_files) : __real_dirfd(folder);
}

int __wrap_closedir(DIR *folder) { return folder_of(folder) ? __wrap_close(__wrap_dirfd(folder)) : __real_closedir(folder); }

// One name after the other, in an order that does not change with a removal of those before.
struct dirent *__wrap_readdir(DIR *folder)
{
    struct open_file *file = folder_of(folder);

    if (!file)
        return __real_readdir(folder);
    const char *found = NULL;
    for (uint32_t i = 0; files_name(file->inode, i); i++) { // the next one by the alphabet
        const char *name = files_name(file->inode, i);
        if (strcmp(name, file->entry.d_name) > 0 && (!found || strcmp(name, found) < 0))
            found = name;
    }
    if (!found || disk.off)
        return NULL;
    snprintf(file->entry.d_name, sizeof file->entry.d_name, "%s", found);
    return &file->entry;
}

// --- reading and writing

static ssize_t read_at(struct open_file *file, void *out, size_t bytes, uint64_t at)
{
    size_t done;

    if ((file->flags & O_DIRECT) && disk.direct && ((uintptr_t)out | bytes | at) % DIRECT_BYTES)
        return result(EINVAL);
    const int error = files_read(file->inode, at, out, bytes, &done);
    return error ? result(error) : (ssize_t)done;
}

static ssize_t write_at(struct open_file *file, const void *bytes, size_t count, uint64_t at)
{
    size_t done;

    assert_always((file->flags & O_ACCMODE) != O_RDONLY);
    if ((file->flags & O_DIRECT) && (!disk.direct || ((uintptr_t)bytes | count | at) % DIRECT_BYTES))
        return result(EINVAL);
    const int error = files_write(file->inode, at, bytes, count, &done);
    return error ? result(error) : (ssize_t)done;
}

ssize_t __wrap_read(int fd, void *out, size_t bytes)
{
    struct open_file *file = file_of(fd);

    if (!file)
        return __real_read(fd, out, bytes);
    const ssize_t got = read_at(file, out, bytes, file->position);
    file->position += got > 0 ? (uint64_t)got : 0;
    return got;
}

ssize_t __wrap_pread(int fd, void *out, size_t bytes, off_t at)
{
    struct open_file *file = file_of(fd);
    return file ? read_at(file, out, bytes, (uint64_t)at) : __real_pread(fd, out, bytes, at);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t count)
{
    struct open_file *file = file_of(fd);

    if (!file)
        return __real_write(fd, bytes, count);
    if (file->flags & O_APPEND)
        file->position = files_bytes(file->inode);
    const ssize_t done = write_at(file, bytes, count, file->position);
    file->position += done > 0 ? (uint64_t)done : 0;
    return done;
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    struct open_file *file = file_of(fd);

    if (!file)
        return __real_pwrite(fd, bytes, count, at);
    return write_at(file, bytes, count, file->flags & O_APPEND ? files_bytes(file->inode) : (uint64_t)at);
}

int __wrap_dprintf(int fd, const char *format, ...)
{
    char text[256];
    va_list arguments;

    va_start(arguments, format);
    const int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    assert_always(bytes >= 0 && (size_t)bytes < sizeof text);
    return (int)__wrap_write(fd, text, (size_t)bytes);
}

off_t __wrap_lseek(int fd, off_t offset, int whence)
{
    struct open_file *file = file_of(fd);

    if (!file)
        return __real_lseek(fd, offset, whence);
    if (disk.off)
        return result(EIO);
    file->position = (uint64_t)offset + (whence == SEEK_END ? files_bytes(file->inode) : whence == SEEK_CUR ? file->position : 0);
    return (off_t)file->position;
}

int __wrap_ftruncate(int fd, off_t bytes)
{
    return file_of(fd) ? result(files_resize(file_of(fd)->inode, (uint64_t)bytes)) : __real_ftruncate(fd, bytes);
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes)
{
    struct open_file *file = file_of(fd);

    if (!file)
        return __real_fallocate(fd, mode, at, bytes);
    return result(disk.can_allocate ? files_allocate(file->inode, (uint64_t)at, (uint64_t)bytes) : EOPNOTSUPP);
}

// If the file system cannot, libc writes zeros: that is much the same.
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes)
{
    return file_of(fd) ? files_allocate(file_of(fd)->inode, (uint64_t)at, (uint64_t)bytes) : __real_posix_fallocate(fd, at, bytes);
}

int __wrap_posix_fadvise(int fd, off_t at, off_t bytes, int advice)
{
    return file_of(fd) ? 0 : __real_posix_fadvise(fd, at, bytes, advice);
}

int __wrap_fsync(int fd) { return file_of(fd) ? result(files_sync(file_of(fd)->inode)) : __real_fsync(fd); }
int __wrap_fdatasync(int fd) { return file_of(fd) ? result(files_sync(file_of(fd)->inode)) : __real_fdatasync(fd); }

// --- names

int __wrap_rename(const char *from, const char *to)
{
    return is_ours(from) ? result(files_rename(from, to)) : __real_rename(from, to);
}
int __wrap_unlink(const char *path) { return is_ours(path) ? result(files_unlink(path)) : __real_unlink(path); }

int __wrap_unlinkat(int folder, const char *name, int flags)
{
    return file_of(folder) ? result(files_unlink_in(file_of(folder)->inode, name)) : __real_unlinkat(folder, name, flags);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    struct inode *inode;
    return is_ours(path) ? result(files_make(path, true, &inode)) : __real_mkdir(path, mode);
}

static int stat_inode(const struct inode *inode, struct stat *out)
{
    if (disk.off)
        return result(EIO);
    *out = (struct stat){.st_ino = files_number(inode),
                         .st_mode = files_is_folder(inode) ? S_IFDIR | 0700 : S_IFREG | 0600,
                         .st_size = (off_t)files_bytes(inode)};
    return 0;
}

int __wrap_stat(const char *path, struct stat *out)
{
    struct inode *inode;

    if (!is_ours(path))
        return __real_stat(path, out);
    const int error = files_find(path, &inode);
    return error ? result(error) : stat_inode(inode, out);
}

int __wrap_fstat(int fd, struct stat *out) { return file_of(fd) ? stat_inode(file_of(fd)->inode, out) : __real_fstat(fd, out); }

int __wrap_fstatat(int folder, const char *name, struct stat *out, int flags)
{
    if (!file_of(folder))
        return __real_fstatat(folder, name, out, flags);
    const struct inode *inode = files_in(file_of(folder)->inode, name);
    return inode ? stat_inode(inode, out) : result(disk.off ? EIO : ENOENT);
}

int __wrap_access(const char *path, int mode)
{
    struct inode *inode;
    return is_ours(path) ? result(files_find(path, &inode)) : __real_access(path, mode);
}

int __wrap_flock(int fd, int operation)
{
    struct open_file *file = file_of(fd);

    if (!file)
        return __real_flock(fd, operation);
    return result(files_lock(file->inode, file) ? 0 : EWOULDBLOCK);
}

int __wrap_fcntl(int fd, int command, ...)
{
    struct open_file *file = file_of(fd);
    va_list arguments;

    va_start(arguments, command);
    const long value = va_arg(arguments, long);
    va_end(arguments);
    if (!file)
        return __real_fcntl(fd, command, value);
    if (command == F_GETFL)
        return file->flags;
    assert_always(command == F_SETFL);
    if ((value & O_DIRECT) && !disk.direct && !disk.falls_through)
        return result(EINVAL);
    file->flags = (int)value;
    return 0;
}

// --- an answer that is a file

void __wrap_exchange_respond_file(struct exchange *exchange, const char *content_type, int fd, uint64_t bytes)
{
    struct open_file *file = file_of(fd);

    assert_always(file);
    if (content.capacity < bytes)
        content.data = sim_grow(content.data, content.capacity = bytes);
    (void)files_read(file->inode, 0, content.data, bytes, &content.bytes);
    __real_exchange_respond_file(exchange, content_type, fd, bytes);
}

const char *wrap_content(size_t *bytes)
{
    *bytes = content.bytes;
    return content.data;
}

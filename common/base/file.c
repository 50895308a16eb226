// file.c: see file.h.
#include "common/base/file.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/log.h"

struct file_version file_version_of(const char *path)
{
    struct stat is;

    if (stat(path, &is))
        return (struct file_version){0};
    return (struct file_version){.device = is.st_dev, .inode = is.st_ino, .bytes = is.st_size, .changed = is.st_ctim};
}

bool file_version_same(const struct file_version *a, const struct file_version *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

enum status file_check_secret(const char *path, struct error *error)
{
    const mode_t others = S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;
    struct statvfs mount;
    struct stat file;

    if (stat(path, &file) != 0 || !S_ISREG(file.st_mode) || !(file.st_mode & others) ||
        (statvfs(path, &mount) == 0 && mount.f_flag & ST_RDONLY))
        return STATUS_OK;
    if (file.st_uid == geteuid())
        return error_set(error, STATUS_FAILED_PRECONDITION, "%s: other users can read or change it (mode %03o): chmod 600 %s", path,
                         file.st_mode & 0777u, path);
    if (file.st_mode & (S_IROTH | S_IWOTH))
        log_warn("SECRET-OPEN",
                 "file=%s mode=%03o what=\"every user of this machine can read or change it: its owner should chmod it to 600, or "
                 "to 640 with a group of its readers\"",
                 path, file.st_mode & 0777u);
    return STATUS_OK;
}

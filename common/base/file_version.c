// file_version.c: tells by stat(2) whether a file is another one than it was.
#include "common/base/file_version.h"

#include <sys/stat.h>

struct file_version file_version_of(const char *path)
{
    struct stat is;

    if (stat(path, &is))
        return (struct file_version){0};
    return (struct file_version){.device = is.st_dev, .inode = is.st_ino, .bytes = is.st_size, .modified = is.st_mtim};
}

bool file_version_same(const struct file_version *a, const struct file_version *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes && a->modified.tv_sec == b->modified.tv_sec &&
           a->modified.tv_nsec == b->modified.tv_nsec;
}

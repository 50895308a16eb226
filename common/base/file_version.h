// file_version.h: whether a file is another one than it was, so that it is read again. A file that is replaced by renaming, as editors and
// Kubernetes do, or through a link, is another one.
#ifndef FD_BASE_FILE_VERSION_H
#define FD_BASE_FILE_VERSION_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

// All zero: there is no file.
struct file_version {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec modified;
};

struct file_version file_version_of(const char *path);
bool file_version_same(const struct file_version *a, const struct file_version *b);

#endif

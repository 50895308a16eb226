// file.h: what stat(2) says of a file: whether it is another one than it was, and whether others can read it.
#ifndef FD_BASE_FILE_H
#define FD_BASE_FILE_H

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "common/base/status.h"

// Tells whether a file is to be read again. One that is replaced by renaming, as editors and Kubernetes do, or through a link, is another one.
// All zero: there is no file.
struct file_version {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec changed; // also by chmod
};

struct file_version file_version_of(const char *path);
bool file_version_same(const struct file_version *a, const struct file_version *b);

// Checks that a file with a secret (a key, the mesh secret) is closed to others. FAILED_PRECONDITION: others can read or change it, and its
// owner, who runs this process, can mend that; the error has the command. A file of another owner is logged (SECRET-OPEN) if everybody can
// read it. A read-only mount is its maker's decision, as Kubernetes' secrets are; what is no regular file, or is not there, is the reader's
// question.
enum status file_check_secret(const char *path, struct error *error) MUST_CHECK;

#endif

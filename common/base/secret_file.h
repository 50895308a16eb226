// secret_file.h: whether a file that holds a secret (a key, the mesh secret) is closed to others.
#ifndef FD_BASE_SECRET_FILE_H
#define FD_BASE_SECRET_FILE_H

#include "common/base/status.h"

// FAILED_PRECONDITION: others can read or change the file, and its owner, who runs this process, can mend that; the error has the command. A file of
// another owner is logged (SECRET-OPEN) if everybody can read it. A read-only mount is its maker's decision, as Kubernetes' secrets are; what is no regular
// file, or is not there, is the reader's question.
enum status secret_file_check(const char *path, struct error *error) MUST_CHECK;

#endif

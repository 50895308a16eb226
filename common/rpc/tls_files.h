// tls_files.h: a folder with ca.pem, cert.pem and key.pem, and the settings of TLS that are made of it. Not included from outside the RPC
// runtime.
#ifndef FD_RPC_TLS_FILES_H
#define FD_RPC_TLS_FILES_H

#include <openssl/ssl.h>

#include "common/base/file_version.h"
#include "common/rpc/tls_verify.h"

enum { TLS_DIR_BYTES = 4000 }; // of its path

struct tls_versions {
    struct file_version files[3];
};

struct tls_versions tls_files_versions(const char *dir);
bool tls_files_same(const struct tls_versions *a, const struct tls_versions *b);

// Reads and checks the files: the key is the certificate's, the certificate is of the CA, has not expired, and is for the service (NULL: of
// any). The caller frees *out. NOT_FOUND, INVALID_ARGUMENT: the error names the file and what is wrong.
enum status tls_files_load(const char *dir, const char *service, SSL_CTX **out, struct tls_certificate *own,
                           struct error *error) MUST_CHECK;

#endif

// tls_files.h: a folder with ca.pem, cert.pem and key.pem, and the settings of TLS that are made of it. Not included from outside the RPC
// runtime.
#ifndef FD_RPC_TLS_FILES_H
#define FD_RPC_TLS_FILES_H

#include <openssl/ssl.h>
#include <sys/types.h>

#include "common/rpc/tls_verify.h"

// What tells one version of the files from another.
struct tls_stamp {
    struct {
        uint64_t device, inode, size, changed_ns;
    } files[3];
};

struct tls_stamp tls_files_stamp(const char *dir);

// Reads and checks the files: the key is the certificate's, the certificate is of the CA, has not expired, and is for the service (NULL: of
// any). The caller frees *out. NOT_FOUND, INVALID_ARGUMENT: the error names the file and what is wrong.
enum status tls_files_load(const char *dir, const char *service, SSL_CTX **out, struct tls_certificate *own,
                           struct error *error) MUST_CHECK;

#endif

// certificate.h: makes X.509 certificates of a mesh: a CA, and what it signs. For `fastdecode certs`.
#ifndef FD_FASTDECODE_KEYS_CERTIFICATE_H
#define FD_FASTDECODE_KEYS_CERTIFICATE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/rpc/roles.h"

struct certificate; // with its private key, EC P-256

// The contents of a certificate. Strings are borrowed.
struct certificate_request {
    enum rpc_role role;       // RPC_ROLE_NONE: a CA
    const char *const *hosts; // [host_count] names and addresses at which it is good; none: at all
    uint32_t host_count;
    double days; // from now on
};

// True for a host's name, which may begin with "*.", and for an address.
bool certificate_takes_host(const char *host);
// Makes a key and a certificate, signed by `ca` (NULL: by itself). INVALID_ARGUMENT: a host is no name and no address.
enum status certificate_make(const struct certificate_request *request, const struct certificate *ca, struct certificate **out,
                             struct error *error) MUST_CHECK;
// Reads one and its key. The error names the file.
enum status certificate_read(const char *certificate_path, const char *key_path, struct certificate **out,
                             struct error *error) MUST_CHECK;
void certificate_free(struct certificate *certificate); // NULL is allowed

// Write files by their own name only once they are whole; what was there is replaced. The key's has mode 0600.
enum status certificate_write(const struct certificate *certificate, const char *path, struct error *error) MUST_CHECK;
enum status certificate_write_key(const struct certificate *certificate, const char *path, struct error *error) MUST_CHECK;

// "2027-11-26", of its last day.
void certificate_end(const struct certificate *certificate, char text[16]);

// Reads the hosts of a certificate in a file, for another like it: a new list for free(), *count long, each a text for free().
enum status certificate_read_hosts(const char *path, char ***hosts, uint32_t *count, struct error *error) MUST_CHECK;

#endif

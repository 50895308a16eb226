// tls_rig.h: certificates for tests, in folders of their own.
#ifndef FD_TESTS_TLS_RIG_H
#define FD_TESTS_TLS_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/rpc/rpc.h"
#include "services/fastdecode/keys/certs.c"

enum { RIG_PATH_BYTES = 256 };

struct rig_ca {
    char folder[RIG_PATH_BYTES];
    struct certificate *certificate;
};

static inline void rig_check(enum status status, const struct error *error)
{
    if (status)
        fprintf(stderr, "%s\n", error->text);
    assert_always(!status);
}

static inline void rig_ca_open(struct rig_ca *ca)
{
    const struct certificate_request request = {.days = 10};
    struct error error;

    snprintf(ca->folder, sizeof ca->folder, "/tmp/fd-tls-XXXXXX");
    assert_always(mkdtemp(ca->folder));
    rig_check(certificate_make(&request, NULL, &ca->certificate, &error), &error);
}

static inline void rig_ca_close(struct rig_ca *ca)
{
    char command[RIG_PATH_BYTES + 16];

    certificate_free(ca->certificate);
    snprintf(command, sizeof command, "rm -rf %s", ca->folder);
    assert_always(system(command) == 0);
}

// Writes folder/ca.pem, cert.pem and key.pem: a certificate by `ca`, and who is trusted: `trusted`.
static inline void rig_write(const char *folder, const struct rig_ca *ca, const struct rig_ca *trusted,
                             const struct certificate_request *request)
{
    struct certificate *made;
    char path[RIG_PATH_BYTES + 16];
    struct error error;

    mkdir(folder, 0700);
    rig_check(certificate_make(request, ca->certificate, &made, &error), &error);
    snprintf(path, sizeof path, "%s/ca.pem", folder);
    rig_check(certificate_write(trusted->certificate, path, false, &error), &error);
    snprintf(path, sizeof path, "%s/cert.pem", folder);
    rig_check(certificate_write(made, path, false, &error), &error);
    snprintf(path, sizeof path, "%s/key.pem", folder);
    rig_check(certificate_write(made, path, true, &error), &error);
    certificate_free(made);
}

// Writes folder/ca.pem, cert.pem and key.pem: all of them the CA itself.
static inline void rig_write_ca(const char *folder, const struct rig_ca *ca)
{
    static const char *const names[] = {"ca.pem", "cert.pem"};
    char path[RIG_PATH_BYTES + 16];
    struct error error;

    mkdir(folder, 0700);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        rig_check(certificate_write(ca->certificate, path, false, &error), &error);
    }
    snprintf(path, sizeof path, "%s/key.pem", folder);
    rig_check(certificate_write(ca->certificate, path, true, &error), &error);
}

// Adds a CA to folder/ca.pem: from then on both are trusted.
static inline void rig_trust_too(const char *folder, const struct rig_ca *ca)
{
    char command[4 * RIG_PATH_BYTES], path[RIG_PATH_BYTES + 16];
    struct error error;

    snprintf(path, sizeof path, "%.200s/own.pem", ca->folder);
    rig_check(certificate_write(ca->certificate, path, false, &error), &error);
    snprintf(command, sizeof command, "cat %s/ca.pem %s > %s/both && mv %s/both %s/ca.pem", folder, path, folder, folder, folder);
    assert_always(system(command) == 0);
}

// Returns the folder, a static text, of a good certificate of this role; it is made anew each time.
static inline const char *rig_folder(const struct rig_ca *ca, enum rpc_role role)
{
    static char folders[RPC_ROLES][RIG_PATH_BYTES];
    const struct certificate_request request = {.role = role, .days = 10};

    snprintf(folders[role], RIG_PATH_BYTES, "%.200s/%s", ca->folder, rpc_role_name(role));
    rig_write(folders[role], ca, ca, &request);
    return folders[role];
}

static inline struct rpc_security rig_security(const char *folder)
{
    const struct rpc_security_settings settings = {.tls = folder};
    struct rpc_security security;
    struct error error;

    rig_check(rpc_security_open(&settings, NULL, &security, &error), &error);
    return security;
}

#endif

// certs.c: `fastdecode certs DIR`: a CA of one's own and a certificate for each kind of service, for --tls.
//
//     DIR/ca.pem  DIR/ca-key.pem      the CA; its key signs, and no service needs it
//     DIR/ROLE/ca.pem, cert.pem, key.pem      what --tls DIR/ROLE reads; `fastdecode up --tls DIR` takes all of them
//
// A service sees that its files have changed: --renew beside running services is a rotation.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/service/service.h"
#include "services/fastdecode/keys/certificate.h"
#include "services/fastdecode/keys/commands.h"

enum { HOSTS_MAX = 64, PATH_BYTES = 4096 };

struct certs {
    const char *dir, *host_list;
    double days, ca_days;
    bool force, renew;
    char host_text[HOSTS_MAX * 256];
    const char *hosts[HOSTS_MAX];
    uint32_t host_count;
    struct certificate *ca;
};

static enum status split_hosts(struct certs *certs, struct error *error)
{
    char *rest;

    if (!certs->host_list)
        return STATUS_OK;
    if (strlen(certs->host_list) >= sizeof certs->host_text)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--host is longer than %zu bytes", sizeof certs->host_text - 1);
    strcpy(certs->host_text, certs->host_list);
    for (char *host = strtok_r(certs->host_text, ",", &rest); host; host = strtok_r(NULL, ",", &rest)) {
        if (certs->host_count == HOSTS_MAX)
            return error_set(error, STATUS_INVALID_ARGUMENT, "--host has more than %d names", HOSTS_MAX);
        if (!certificate_takes_host(host)) // before anything is written
            return error_set(error, STATUS_INVALID_ARGUMENT, "--host '%.100s' is neither a host's name nor an address", host);
        certs->hosts[certs->host_count++] = host;
    }
    return STATUS_OK;
}

// Returns path.
static const char *path_in(const struct certs *certs, const char *folder, const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s%s%s", certs->dir, folder, folder[0] ? "/" : "", name);
    return path;
}

static enum status make_folder(const char *path, struct error *error)
{
    if (!mkdir(path, 0700) || errno == EEXIST)
        return STATUS_OK;
    return error_set(error, status_of_path(errno), "%s: %s", path, strerror(errno));
}

static enum status read_ca(struct certs *certs, struct error *error)
{
    char path[PATH_BYTES], key[PATH_BYTES];
    return certificate_read(path_in(certs, "", "ca.pem", path), path_in(certs, "", "ca-key.pem", key), &certs->ca, error);
}

static enum status make_ca(struct certs *certs, struct error *error)
{
    const struct certificate_request request = {.days = certs->ca_days};
    char path[PATH_BYTES], end[16];
    enum status status;

    if (!certs->force &&
        (!access(path_in(certs, "", "ca.pem", path), F_OK) || !access(path_in(certs, "", "ca-key.pem", path), F_OK)))
        return error_set(
            error, STATUS_ALREADY_EXISTS,
            "%s is there already: --renew makes new certificates with that CA, --force replaces the CA too, so that all services "
            "need their new files",
            path);
    if ((status = make_folder(certs->dir, error)) || (status = certificate_make(&request, NULL, &certs->ca, error)) ||
        (status = certificate_write_key(certs->ca, path_in(certs, "", "ca-key.pem", path), error)) ||
        (status = certificate_write(certs->ca, path_in(certs, "", "ca.pem", path), error)))
        return status;
    certificate_end(certs->ca, end);
    printf("%-32s the CA, valid until %s\n", path, end);
    return STATUS_OK;
}

static enum status write_service(const struct certs *certs, const char *role, const struct certificate *made, struct error *error)
{
    char path[PATH_BYTES];
    enum status status = make_folder(path_in(certs, role, "", path), error);

    if (!status)
        status = certificate_write(certs->ca, path_in(certs, role, "ca.pem", path), error);
    if (!status)
        status = certificate_write_key(made, path_in(certs, role, "key.pem", path), error);
    return status ? status : certificate_write(made, path_in(certs, role, "cert.pem", path), error);
}

static void print_service(const struct certs *certs, const char *role, const struct certificate *made,
                          const struct certificate_request *request)
{
    char path[PATH_BYTES], end[16];

    certificate_end(made, end);
    printf("%-32s for --tls of the %s, valid until %s,", path_in(certs, role, "", path), role, end);
    for (uint32_t i = 0; i < request->host_count; i++)
        printf("%s %s", i ? "," : " at", request->hosts[i]);
    printf("%s\n", request->host_count ? "" : " at any host");
}

// One without --host that is renewed keeps the hosts that it has.
static enum status make_service(const struct certs *certs, enum rpc_role role, struct error *error)
{
    struct certificate_request request = {
        .role = role, .hosts = certs->hosts, .host_count = certs->host_count, .days = certs->days};
    const char *name = rpc_role_name(role);
    struct certificate *made = NULL;
    char path[PATH_BYTES], **old_hosts = NULL;
    uint32_t old_count = 0;
    enum status status = STATUS_OK;

    if (certs->renew && !certs->host_list && !access(path_in(certs, name, "cert.pem", path), F_OK)) {
        status = certificate_read_hosts(path, &old_hosts, &old_count, error);
        request.hosts = (const char *const *)old_hosts;
        request.host_count = old_count;
    }
    if (!status)
        status = certificate_make(&request, certs->ca, &made, error);
    if (!status)
        status = write_service(certs, name, made, error);
    if (!status)
        print_service(certs, name, made, &request);
    certificate_free(made);
    for (uint32_t i = 0; i < old_count; i++)
        free(old_hosts[i]);
    free(old_hosts);
    return status;
}

static void print_use(const struct certs *certs)
{
    if (certs->renew) {
        printf("\nServices that read these folders take the new files within seconds, without a restart.\n");
        return;
    }
    printf(
        "\nuse, on one machine:\n  fastdecode up --model FILE --tls %s\n"
        "or with each service by itself:\n"
        "  scheduler --tls %s/scheduler --listen tls+tcp://0.0.0.0:7400\n"
        "  s-part    --tls %s/s-part --scheduler tls+tcp://HOST:7400 --listen tls+tcp://0.0.0.0:7401 --advertise tls+tcp://HOST:7401 ...\n"
        "\nCopy only its own folder to a service's host. Keep %s/ca-key.pem away from all of them: who has it can act as any service.\n"
        "Before the certificates expire: fastdecode certs %s --renew, and copy the folders again.\n",
        certs->dir, certs->dir, certs->dir, certs->dir, certs->dir);
}

static enum status make_all(struct certs *certs, struct error *error)
{
    enum status status = split_hosts(certs, error);

    if (!status && certs->force && certs->renew)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--force makes a new CA, --renew keeps the old one: say one of them");
    if (!status && strlen(certs->dir) > PATH_BYTES - 64)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "the name of the folder is too long");
    if (!status)
        status = certs->renew ? read_ca(certs, error) : make_ca(certs, error);
    for (enum rpc_role role = RPC_ROLE_NONE + 1; role < RPC_ROLES && !status; role++)
        status = make_service(certs, role, error);
    certificate_free(certs->ca);
    return status;
}

int certs_main(int argc, char **argv)
{
    struct certs certs = {.days = 365, .ca_days = 3650};
    const struct option options[] = {
        {"host", OPTION_STRING, &certs.host_list, "NAME,NAME",
         "hosts (names, addresses) at which the services are reached; their certificates are good there only. Default: at any host",
         0, 0},
        {"days", OPTION_F64, &certs.days, "N", "how long the services' certificates are valid", 1e-5, 36500},
        {"ca-days", OPTION_F64, &certs.ca_days, "N", "how long the CA is valid", 1e-5, 36500},
        {"renew", OPTION_BOOL, &certs.renew, NULL,
         "make new certificates with the CA that is there, for the same hosts unless --host is given", 0, 0},
        {"force", OPTION_BOOL, &certs.force, NULL, "replace a CA that is there, and all that it has signed", 0, 0},
    };
    struct program program = {.name = "fastdecode certs",
                              .purpose = "makes a CA and a certificate for each kind of service (--tls)",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "DIR"};
    struct error error = {0};

    if (options_parse(&program, argc, argv, &error)) {
        fprintf(stderr, "fastdecode certs: %s\n", error.text);
        return SERVICE_EXIT_SETTINGS;
    }
    if (program.operand_count != 1) {
        fprintf(stderr, "fastdecode certs: want one DIR to write to\n");
        return SERVICE_EXIT_SETTINGS;
    }
    certs.dir = program.operands[0];
    if (program.check_only || !make_all(&certs, &error)) {
        if (!program.check_only)
            print_use(&certs);
        return SERVICE_EXIT_OK;
    }
    fprintf(stderr, "fastdecode certs: %s\n", error.text);
    return service_exit_of(&error);
}

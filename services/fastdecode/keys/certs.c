// certs.c: `fastdecode certs DIR`: a CA of one's own and a certificate for each kind of service, for --tls.
//
//     DIR/ca.pem  DIR/ca-key.pem      the CA; its key signs, and no service needs it
//     DIR/ROLE/ca.pem, cert.pem, key.pem      what --tls DIR/ROLE reads; `fastdecode up --tls DIR` takes all of them
//
// A service sees that its files have changed: --renew beside running services is a rotation.
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/base/status.h"
#include "common/rpc/roles.h"
#include "services/fastdecode/keys/commands.h"

// --- certificates: a CA, and what it signs ---------------------------------------------------------------------------

enum { SERIAL_BYTES = 16, HOST_BYTES_MAX = 253, CLOCKS_APART_S = 300 }; // a host whose clock is behind takes it all the same

struct certificate {
    X509 *x509;
    EVP_PKEY *key; // EC P-256
};

// The contents of a certificate. Strings are borrowed.
struct certificate_request {
    enum rpc_role role;       // RPC_ROLE_NONE: a CA
    const char *const *hosts; // [host_count] names and addresses at which it is good; none: at all
    uint32_t host_count;
    double days; // from now on
};

// NULL is allowed.
static void certificate_free(struct certificate *certificate)
{
    if (!certificate)
        return;
    X509_free(certificate->x509);
    EVP_PKEY_free(certificate->key);
    free(certificate);
}

// --- making ---

static bool set_serial(X509 *x509)
{
    unsigned char bytes[SERIAL_BYTES];
    if (RAND_bytes(bytes, sizeof bytes) != 1)
        return false;
    bytes[0] &= 0x7f; // positive
    BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
    bool is_set = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(x509));
    BN_free(number);
    return is_set;
}

static bool set_times(X509 *x509, double days)
{
    const time_t now = time(NULL);
    return ASN1_TIME_adj(X509_getm_notBefore(x509), now, 0, -CLOCKS_APART_S) &&
           ASN1_TIME_adj(X509_getm_notAfter(x509), now, (int)days, (long)((days - (int)days) * 86400));
}

// CAs get names of their own: by them a verifier finds the right one in a file with two.
static bool set_subject(X509 *x509, enum rpc_role role)
{
    X509_NAME *name = X509_get_subject_name(x509);
    unsigned char bytes[4];
    char text[64];

    if (RAND_bytes(bytes, sizeof bytes) != 1)
        return false;
    if (role == RPC_ROLE_NONE)
        snprintf(text, sizeof text, "FastDecode CA %02x%02x%02x%02x", bytes[0], bytes[1], bytes[2], bytes[3]);
    else
        snprintf(text, sizeof text, "%s", rpc_role_name(role));
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (unsigned char *)text, -1, -1, 0) == 1;
}

static bool add_extension(X509 *x509, const X509 *issuer, int id, const char *value)
{
    X509V3_CTX context;

    X509V3_set_ctx(&context, (X509 *)issuer, x509, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, id, value);
    bool is_added = extension && X509_add_ext(x509, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return is_added;
}

// Takes the string (NULL: no memory).
static bool push_name(GENERAL_NAMES *names, int type, ASN1_STRING *string)
{
    GENERAL_NAME *name = GENERAL_NAME_new();

    if (!name || !string) {
        GENERAL_NAME_free(name);
        ASN1_STRING_free(string);
        return false;
    }
    GENERAL_NAME_set0_value(name, type, string);
    if (sk_GENERAL_NAME_push(names, name))
        return true;
    GENERAL_NAME_free(name);
    return false;
}

static ASN1_STRING *ia5(const char *text)
{
    ASN1_STRING *string = ASN1_IA5STRING_new();
    if (string && ASN1_STRING_set(string, text, -1) == 1)
        return string;
    ASN1_STRING_free(string);
    return NULL;
}

// True for a host's name, which may begin with "*.", and for an address.
static bool certificate_takes_host(const char *host)
{
    unsigned char address[16];
    size_t length = strlen(host);
    bool is_good = length > 0 && length <= HOST_BYTES_MAX && host[0] != '-' && host[0] != '.';

    for (size_t i = 0; i < length; i++)
        is_good &= isalnum((unsigned char)host[i]) || strchr("-._", host[i]) || (host[i] == '*' && i == 0);
    return is_good || inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

static bool add_names(X509 *x509, const struct certificate_request *request)
{
    GENERAL_NAMES *names = GENERAL_NAMES_new();
    char uri[64];

    if (!names)
        return false;
    snprintf(uri, sizeof uri, RPC_ROLE_URI "%s", rpc_role_name(request->role));
    bool is_good = push_name(names, GEN_URI, ia5(uri));
    for (uint32_t i = 0; i < request->host_count && is_good; i++) {
        ASN1_OCTET_STRING *address = a2i_IPADDRESS(request->hosts[i]);
        is_good = address ? push_name(names, GEN_IPADD, address) : push_name(names, GEN_DNS, ia5(request->hosts[i]));
    }
    is_good = is_good && X509_add1_ext_i2d(x509, NID_subject_alt_name, names, 0, X509V3_ADD_DEFAULT) == 1;
    GENERAL_NAMES_free(names);
    return is_good;
}

static bool add_extensions(X509 *x509, const X509 *issuer, const struct certificate_request *request)
{
    const bool is_ca = request->role == RPC_ROLE_NONE;

    return add_extension(x509, issuer, NID_basic_constraints, is_ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
           add_extension(x509, issuer, NID_key_usage, is_ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
           add_extension(x509, issuer, NID_subject_key_identifier, "hash") &&
           add_extension(x509, issuer, NID_authority_key_identifier, "keyid") &&
           (is_ca || (add_extension(x509, issuer, NID_ext_key_usage, "serverAuth,clientAuth") && add_names(x509, request)));
}

static bool fill(struct certificate *made, const struct certificate_request *request, const struct certificate *ca)
{
    X509 *x509 = made->x509 = X509_new();
    const X509 *issuer = ca ? ca->x509 : x509;

    made->key = EVP_EC_gen("P-256");
    return x509 && made->key && X509_set_version(x509, X509_VERSION_3) == 1 && set_serial(x509) && set_times(x509, request->days) &&
           set_subject(x509, request->role) && X509_set_issuer_name(x509, X509_get_subject_name(issuer)) == 1 &&
           X509_set_pubkey(x509, made->key) == 1 && add_extensions(x509, issuer, request) &&
           X509_sign(x509, ca ? ca->key : made->key, EVP_sha256()) > 0;
}

// Makes a key and a certificate, signed by `ca` (NULL: by itself). INVALID_ARGUMENT: a host is no name and no address.
static MUST_CHECK enum status certificate_make(const struct certificate_request *request, const struct certificate *ca,
                                               struct certificate **out, struct error *error)
{
    struct certificate *made;

    for (uint32_t i = 0; i < request->host_count; i++)
        if (!certificate_takes_host(request->hosts[i]))
            return error_set(error, STATUS_INVALID_ARGUMENT, "'%.100s' is neither a host's name nor an address", request->hosts[i]);
    made = calloc(1, sizeof *made);
    if (made && fill(made, request, ca)) {
        *out = made;
        return STATUS_OK;
    }
    certificate_free(made);
    const char *reason = ERR_reason_error_string(ERR_get_error());
    return error_set(error, STATUS_INTERNAL, "no certificate could be made: %s", reason ? reason : "no memory");
}

// --- files ---

static enum status cannot(const char *path, struct error *error)
{
    return error_set(error, status_of_path(errno), "%s: %s", path, strerror(errno));
}

// Reads a certificate, or with `key` not NULL a private key. The error names the file.
static enum status read_file(const char *path, X509 **x509, EVP_PKEY **key, struct error *error)
{
    FILE *file = fopen(path, "re");
    bool is_read;

    if (!file)
        return cannot(path, error);
    is_read = key ? (*key = PEM_read_PrivateKey(file, NULL, NULL, NULL)) != NULL
                  : (*x509 = PEM_read_X509(file, NULL, NULL, NULL)) != NULL;
    fclose(file);
    return is_read ? STATUS_OK
                   : error_set(error, STATUS_INVALID_ARGUMENT, "%s is no %s (PEM)", path, key ? "private key" : "certificate");
}

// Reads one and its key.
static enum status certificate_read(const char *certificate_path, const char *key_path, struct certificate **out,
                                    struct error *error)
{
    struct certificate *certificate = calloc(1, sizeof *certificate);
    enum status status;

    if (!certificate)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a certificate");
    status = read_file(certificate_path, &certificate->x509, NULL, error);
    if (!status)
        status = read_file(key_path, NULL, &certificate->key, error);
    if (!status && X509_check_private_key(certificate->x509, certificate->key) != 1)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s is not the key of %s", key_path, certificate_path);
    if (status)
        certificate_free(certificate);
    else
        *out = certificate;
    return status;
}

// Writes a file by its own name only once it is whole; what was there is replaced. key: the private key, with mode 0600, alone.
static enum status certificate_write(const struct certificate *certificate, const char *path, bool key, struct error *error)
{
    char temporary[4200];
    const mode_t mode = key ? 0600 : 0644;

    snprintf(temporary, sizeof temporary, "%s.new", path);
    unlink(temporary); // one that exists may have another owner and mode
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        (void)!cannot(temporary, error);
        if (fd >= 0)
            close(fd);
        return error->status;
    }
    bool is_written = key ? PEM_write_PrivateKey(file, certificate->key, NULL, NULL, 0, NULL, NULL) == 1
                          : PEM_write_X509(file, certificate->x509) == 1;
    is_written = fflush(file) == 0 && fsync(fd) == 0 && is_written;
    is_written = fclose(file) == 0 && is_written;
    if (is_written && !rename(temporary, path))
        return STATUS_OK;
    (void)!cannot(path, error);
    unlink(temporary);
    return error->status;
}

// "2027-11-26", of its last day.
static void certificate_end(const struct certificate *certificate, char text[16])
{
    struct tm tm = {0};
    ASN1_TIME_to_tm(X509_get0_notAfter(certificate->x509), &tm);
    strftime(text, 16, "%Y-%m-%d", &tm);
}

// NULL: it is no host, or there is no memory.
static char *host_of(const GENERAL_NAME *name)
{
    char text[INET6_ADDRSTRLEN];

    if (name->type == GEN_DNS)
        return strndup((const char *)ASN1_STRING_get0_data(name->d.dNSName), (size_t)ASN1_STRING_length(name->d.dNSName));
    if (name->type != GEN_IPADD)
        return NULL;
    const int length = ASN1_STRING_length(name->d.iPAddress);
    if ((length == 4 || length == 16) &&
        inet_ntop(length == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text))
        return strdup(text);
    return NULL;
}

// Reads the hosts of a certificate in a file, for another like it: a new list for free(), *count long, each a text for free().
static enum status certificate_read_hosts(const char *path, char ***hosts, uint32_t *count, struct error *error)
{
    X509 *x509;

    if (read_file(path, &x509, NULL, error))
        return error->status;
    GENERAL_NAMES *names = X509_get_ext_d2i(x509, NID_subject_alt_name, NULL, NULL);
    const int most = MAX(sk_GENERAL_NAME_num(names), 0);
    *hosts = calloc((size_t)most + 1, sizeof **hosts);
    *count = 0;
    for (int i = 0; i < most && *hosts; i++)
        if (((*hosts)[*count] = host_of(sk_GENERAL_NAME_value(names, i))))
            ++*count;
    GENERAL_NAMES_free(names);
    X509_free(x509);
    return *hosts ? STATUS_OK : error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for the names in %s", path);
}

// --- the command -----------------------------------------------------------------------------------------------------

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
        (status = certificate_write(certs->ca, path_in(certs, "", "ca-key.pem", path), true, error)) ||
        (status = certificate_write(certs->ca, path_in(certs, "", "ca.pem", path), false, error)))
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
        status = certificate_write(certs->ca, path_in(certs, role, "ca.pem", path), false, error);
    if (!status)
        status = certificate_write(made, path_in(certs, role, "key.pem", path), true, error);
    return status ? status : certificate_write(made, path_in(certs, role, "cert.pem", path), false, error);
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
        "  fastdecode-scheduler --tls %s/scheduler --listen tls+tcp://0.0.0.0:7400\n"
        "  fastdecode-s-part    --tls %s/s-part --scheduler tls+tcp://HOST:7400 --listen tls+tcp://0.0.0.0:7401 --advertise tls+tcp://HOST:7401 ...\n"
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
         "hosts (names, addresses) at which the services are reached, and for which alone their certificates are valid; default: any host",
         0, 0},
        {"days", OPTION_F64, &certs.days, "N", "how long the services' certificates are valid", 1e-5, 36500},
        {"ca-days", OPTION_F64, &certs.ca_days, "N", "how long the CA is valid", 1e-5, 36500},
        {"renew", OPTION_BOOL, &certs.renew, NULL,
         "make new certificates with the existing CA, for the same hosts unless --host is given", 0, 0},
        {"force", OPTION_BOOL, &certs.force, NULL, "replace an existing CA and everything it has signed", 0, 0},
    };
    struct program program = {.name = "fastdecode certs",
                              .purpose = "makes a CA and a certificate for each kind of service (--tls)",
                              .options = options,
                              .option_count = ARRAY_COUNT(options),
                              .operand_name = "DIR"};
    struct error error = {0};

    if (options_parse(&program, argc, argv, &error)) {
        fprintf(stderr, "fastdecode certs: %s\n", error.text);
        return EXIT_CODE_SETTINGS;
    }
    if (program.operand_count != 1) {
        fprintf(stderr, "fastdecode certs: want one DIR to write to\n");
        return EXIT_CODE_SETTINGS;
    }
    certs.dir = program.operands[0];
    if (program.check_only || !make_all(&certs, &error)) {
        if (!program.check_only)
            print_use(&certs);
        return EXIT_CODE_OK;
    }
    fprintf(stderr, "fastdecode certs: %s\n", error.text);
    return error_exit_code(&error);
}

// security.c: see security.h.
#include "common/rpc/security.h"

#include <string.h>

#include "common/rpc/address.h"

static const char *tls_of(const struct rpc_security_settings *settings)
{
    return settings->tls && strcmp(settings->tls, "none") != 0 ? settings->tls : NULL;
}

enum status rpc_security_check(const struct rpc_security_settings *settings, const char *service, struct error *error)
{
    struct rpc_secret secret;
    enum status status = rpc_secret_read(settings->mesh_secret_file, &secret, error);

    if (!status && tls_of(settings))
        status = rpc_tls_check(tls_of(settings), service, error);
    return status;
}

enum status rpc_security_open(const struct rpc_security_settings *settings, const char *service, struct rpc_security *out,
                              struct error *error)
{
    enum status status;

    *out = (struct rpc_security){.is_insecure = settings->is_insecure};
    status = rpc_secret_read(settings->mesh_secret_file, &out->secret, error);
    if (!status && tls_of(settings))
        status = rpc_tls_open(tls_of(settings), service, &out->tls, error);
    return status;
}

void rpc_security_close(struct rpc_security *security)
{
    rpc_tls_close(security->tls);
    *security = (struct rpc_security){0};
}

// What holds of both ends.
static enum status check(const struct rpc_security *security, const char *who, const char *does, const char *address,
                         struct error *error)
{
    if (!rpc_address_is_known(address))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%s cannot %s '%s': want tls+tcp://HOST:PORT, tcp://HOST:PORT, ipc:///PATH or inproc://NAME", who, does,
                         address);
    if (rpc_address_is_tls(address) && !security->tls)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "%s may not %s '%s' without a certificate: --tls DIR names a folder with one (fastdecode certs makes them)", who, does,
            address);
    if (rpc_address_is_open(address) && !security->is_insecure)
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "%s may not %s '%s': anyone on the way could read and change what passes over plain tcp. Make certificates "
            "(fastdecode certs DIR), give each service its own with --tls and write tls+tcp:// instead of tcp://; or "
            "say --insecure if this network is trusted",
            who, does, address);
    return STATUS_OK;
}

enum status rpc_security_allows_listening(const struct rpc_security *security, const char *who, const char *address,
                                          struct error *error)
{
    enum status status = check(security, who, "listen on", address, error);

    if (!status && !security->secret.is_set && !rpc_address_is_tls(address) && !rpc_address_is_local(address))
        status =
            error_set(error, STATUS_INVALID_ARGUMENT,
                      "%s may not listen on '%s' without a shared secret, since anyone who reaches that address could act as any "
                      "service: give all services of the mesh the same --" RPC_SECRET_OPTION " (openssl rand -hex 32 makes one)",
                      who, address);
    return status;
}

enum status rpc_security_allows_dialing(const struct rpc_security *security, const char *address, struct error *error)
{
    return check(security, "this service", "connect to", address, error);
}

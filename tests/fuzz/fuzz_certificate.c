// fuzz_certificate.c: what a peer's certificate says of its role and hosts, whatever OpenSSL lets through, and addresses.
#include <openssl/x509.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/address.h"
#include "common/rpc/tls_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_certificate(const uint8_t *data, size_t size)
{
    struct tls_certificate certificate;
    char why[200] = "";
    X509 *x509 = d2i_X509(NULL, &data, (long)size);

    if (!x509)
        return;
    if (tls_certificate_read(x509, &certificate, why, sizeof why))
        assert_always(certificate.role > RPC_ROLE_NONE && certificate.role < RPC_ROLES && !why[0]);
    else
        assert_always(why[0] && memchr(why, '\0', sizeof why));
    const bool is_for_any = tls_certificate_is_for(x509, &certificate, "any.example");
    if (!certificate.names_hosts)
        assert_always(is_for_any);
    X509_free(x509);
}

static void read_address(const uint8_t *data, size_t size)
{
    char host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES], *text = malloc(size + 1);

    assert_always(text);
    memcpy(text, data, size);
    text[size] = '\0';
    if (address_split(text, host, port)) {
        assert_always(!rpc_address_lacks_port(text));
        assert_always(strlen(host) < sizeof host && port[0] && strspn(port, "0123456789") == strlen(port));
    }
    assert_always(!(rpc_address_is_tls(text) && rpc_address_is_open(text)));
    assert_always(!(rpc_address_is_local(text) && rpc_address_is_open(text)));
    if (rpc_address_is_known(text) && !rpc_address_is_tls(text) && !rpc_address_is_local(text))
        assert_always(rpc_address_is_open(text)); // nothing else passes unprotected
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum rpc_role role = rpc_role_of_uri((const char *)data, size);

    assert_always(role < RPC_ROLES);
    read_certificate(data, size);
    read_address(data, size);
    return 0;
}

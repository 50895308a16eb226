// address.c: see address.h.
#include "common/rpc/address.h"

#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"

static bool starts_with(const char *text, const char *start) { return !strncmp(text, start, strlen(start)); }

static bool has_port(const char *address) { return starts_with(address, "tcp") || starts_with(address, "tls+tcp"); }

// Four numbers and nothing else: "127.example.org" is a name.
bool rpc_host_is_loopback(const char *host)
{
    unsigned part[4];
    int end = -1;

    if (!strcmp(host, "localhost") || !strcmp(host, "::1"))
        return true;
    return sscanf(host, "%3u.%3u.%3u.%3u%n", &part[0], &part[1], &part[2], &part[3], &end) == 4 && !host[end] && part[0] == 127;
}

bool rpc_address_lacks_port(const char *address)
{
    const char *host = strstr(address, "://"), *port = strrchr(address, ':');

    if (!host || !has_port(address))
        return false;
    return port == host || strchr(port, ']') || !port[1] || port[1 + strspn(port + 1, "0123456789")];
}

bool rpc_address_is_local(const char *address)
{
    const char *host = strstr(address, "://");

    if (starts_with(address, "ipc://") || starts_with(address, "inproc://"))
        return true;
    if (!host || !has_port(address))
        return false;
    host += 3;
    const char *colon = strrchr(host, ':');
    char alone[ADDRESS_HOST_BYTES];
    int length = snprintf(alone, sizeof alone, "%.*s", colon ? (int)(colon - host) : (int)strlen(host), host);
    if (length < 0 || length >= (int)sizeof alone)
        return false;
    return strchr(alone, ':') ? !strcmp(alone, "[::1]") : rpc_host_is_loopback(alone);
}

bool rpc_address_is_known(const char *address)
{
    static const char *const schemes[] = {TLS_SCHEME, "tcp://", "tcp4://", "tcp6://", "ipc://", "inproc://"};

    for (size_t i = 0; i < ARRAY_COUNT(schemes); i++)
        if (starts_with(address, schemes[i]))
            return true;
    return false;
}

bool rpc_address_is_tls(const char *address) { return starts_with(address, TLS_SCHEME); }

bool rpc_address_is_open(const char *address) { return starts_with(address, "tcp") && !rpc_address_is_local(address); }

bool address_split(const char *address, char host[ADDRESS_HOST_BYTES], char port[ADDRESS_PORT_BYTES])
{
    const char *begin = strstr(address, "://"), *colon = strrchr(address, ':');
    size_t length;

    if (!begin || !has_port(address) || rpc_address_lacks_port(address))
        return false;
    begin += 3;
    length = (size_t)(colon - begin);
    if (length >= 2 && begin[0] == '[' && begin[length - 1] == ']') { // [::1]
        begin++;
        length -= 2;
    }
    if (length >= ADDRESS_HOST_BYTES || strlen(colon + 1) >= ADDRESS_PORT_BYTES)
        return false;
    memcpy(host, begin, length);
    host[length] = '\0';
    if (!strcmp(host, "*"))
        host[0] = '\0';
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return true;
}

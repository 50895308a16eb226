// address.c: reads addresses of the mesh, and finds the own address at which other hosts reach a socket.
#include "common/rpc/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

// --- the own address ---

bool rpc_address_is_everywhere(const char *address)
{
    static const char *const hosts[] = {"", "*", "0.0.0.0", "::"};
    char host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES];

    if (!rpc_address_is_known(address) || rpc_address_is_local(address) || !address_split(address, host, port))
        return false;
    for (size_t i = 0; i < ARRAY_COUNT(hosts); i++)
        if (!strcmp(host, hosts[i]))
            return true;
    return false;
}

static bool is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24) == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

// Asks the kernel which way it would send: connect() of a datagram socket sends nothing and binds it to the interface.
static bool by_route(const char *towards, struct sockaddr_storage *own)
{
    char host[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES];
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    bool is_found = false;

    if (!rpc_address_is_known(towards) || !address_split(towards, host, port) || getaddrinfo(host, port, &hints, &found))
        return false;
    for (const struct addrinfo *a = found; a && !is_found; a = a->ai_next) {
        socklen_t length = sizeof *own;
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        is_found = !connect(fd, a->ai_addr, a->ai_addrlen) && !getsockname(fd, (struct sockaddr *)own, &length);
        close(fd);
    }
    freeaddrinfo(found);
    return is_found;
}

// IPv4 before IPv6, in the kernel's order; no addresses that are good on one link only.
static bool by_interface(struct sockaddr_storage *own)
{
    struct ifaddrs *all;
    bool is_found = false;

    if (getifaddrs(&all))
        return false;
    for (int family = AF_INET; !is_found && family; family = family == AF_INET ? AF_INET6 : 0) {
        size_t bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        for (const struct ifaddrs *i = all; i && !is_found; i = i->ifa_next) {
            if (!i->ifa_addr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_LOOPBACK) || !(i->ifa_flags & IFF_UP))
                continue;
            *own = (struct sockaddr_storage){0};
            memcpy(own, i->ifa_addr, bytes);
            is_found = family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)own)->sin6_addr);
        }
    }
    freeifaddrs(all);
    return is_found;
}

bool rpc_own_address(const char *listening, const char *towards, char *out, size_t out_bytes)
{
    char host[NI_MAXHOST], listens[ADDRESS_HOST_BYTES], port[ADDRESS_PORT_BYTES];
    struct sockaddr_storage own = {0};

    if (!address_split(listening, listens, port))
        return false;
    // A mesh on one host: loopback is the way to the scheduler, and all others go it, too.
    if (!by_route(towards, &own) && !by_interface(&own))
        return false;
    if (is_loopback(&own) && !rpc_address_is_local(towards) && !by_interface(&own))
        return false; // a name that /etc/hosts gives the host itself
    socklen_t length = own.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (getnameinfo((const struct sockaddr *)&own, length, host, sizeof host, NULL, 0, NI_NUMERICHOST))
        return false;
    const char *format = own.ss_family == AF_INET ? "%.*s%s:%s" : "%.*s[%s]:%s";
    int scheme = (int)(strstr(listening, "://") + 3 - listening);
    int written = snprintf(out, out_bytes, format, scheme, listening, host, port);
    return written > 0 && (size_t)written < out_bytes;
}

// addresses.c: see addresses.h: a hash table with chains, sized at start.
#include "services/gateway/http/addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { NONE = UINT32_MAX };

// An address without its port: an IPv4 address is kept as the IPv6 address that is mapped to it.
struct client {
    uint64_t network, host; // host is 0 for an IPv6 address
};

struct entry {
    struct client client;
    uint32_t count, next; // next: in its chain, or in the list of free entries
};

struct addresses {
    uint64_t salt; // random, so that nobody can choose addresses that fall into one chain
    uint32_t chain_count, first_free;
    uint32_t *chains; // [chain_count], a power of two
    struct entry *entries;
};

static struct client client_of(const struct sockaddr *address)
{
    struct client client = {0};

    if (address->sa_family == AF_INET) {
        client.host = (uint64_t)0xFFFF << 32 | ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr);
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *in6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
        uint32_t v4;
        memcpy(&client.network, in6->s6_addr, sizeof client.network);
        memcpy(&v4, in6->s6_addr + 12, sizeof v4);
        if (IN6_IS_ADDR_V4MAPPED(in6))
            client.host = (uint64_t)0xFFFF << 32 | ntohl(v4);
    }
    return client;
}

void addresses_text(const struct sockaddr *address, char *out, size_t out_bytes)
{
    const void *bytes = address->sa_family == AF_INET6
                            ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
                            : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;

    if ((address->sa_family != AF_INET && address->sa_family != AF_INET6) ||
        !inet_ntop(address->sa_family, bytes, out, (socklen_t)out_bytes))
        *out = '\0';
}

bool addresses_is_loopback(const struct sockaddr *address)
{
    struct client client = client_of(address);

    if (address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr))
        return true;
    return client.host >> 24 == ((uint64_t)0xFFFF << 8 | 127);
}

struct addresses *addresses_open(uint32_t capacity)
{
    struct addresses *addresses = calloc(1, sizeof *addresses);
    uint32_t i;

    if (!addresses)
        return NULL;
    addresses->chain_count = 1;
    while (addresses->chain_count < capacity)
        addresses->chain_count *= 2;
    addresses->chains = malloc(addresses->chain_count * sizeof *addresses->chains);
    addresses->entries = calloc(capacity, sizeof *addresses->entries);
    if (!addresses->chains || !addresses->entries) {
        addresses_close(addresses);
        return NULL;
    }
    if (getrandom(&addresses->salt, sizeof addresses->salt, GRND_NONBLOCK) < 0)
        addresses->salt = (uint64_t)(uintptr_t)addresses;
    memset(addresses->chains, 0xFF, addresses->chain_count * sizeof *addresses->chains); // NONE
    for (i = 0; i < capacity; i++)
        addresses->entries[i].next = i + 1 < capacity ? i + 1 : NONE;
    addresses->first_free = capacity > 0 ? 0 : NONE;
    return addresses;
}

void addresses_close(struct addresses *addresses)
{
    if (!addresses)
        return;
    free(addresses->chains);
    free(addresses->entries);
    free(addresses);
}

static uint32_t *chain_of(const struct addresses *addresses, struct client client)
{
    uint64_t hash = (client.network ^ addresses->salt) * 0x9E3779B97F4A7C15u;

    hash = (hash ^ hash >> 32 ^ client.host) * 0xD6E8FEB86659FD93u;
    return &addresses->chains[(hash ^ hash >> 32) & (addresses->chain_count - 1)];
}

// The link to the client's entry, or to where its chain ends.
static uint32_t *find(const struct addresses *addresses, struct client client)
{
    uint32_t *link = chain_of(addresses, client);

    while (*link != NONE &&
           (addresses->entries[*link].client.network != client.network || addresses->entries[*link].client.host != client.host))
        link = &addresses->entries[*link].next;
    return link;
}

void addresses_add(struct addresses *addresses, const struct sockaddr *address)
{
    struct client client = client_of(address);
    uint32_t *link = find(addresses, client), at = *link;

    if (at == NONE) {
        at = addresses->first_free;
        if (at == NONE)
            return;
        addresses->first_free = addresses->entries[at].next;
        addresses->entries[at] = (struct entry){.client = client, .next = NONE};
        *link = at;
    }
    addresses->entries[at].count++;
}

void addresses_remove(struct addresses *addresses, const struct sockaddr *address)
{
    uint32_t *link = find(addresses, client_of(address)), at = *link;

    if (at == NONE || --addresses->entries[at].count > 0)
        return;
    *link = addresses->entries[at].next;
    addresses->entries[at].next = addresses->first_free;
    addresses->first_free = at;
}

uint32_t addresses_count(const struct addresses *addresses, const struct sockaddr *address)
{
    uint32_t at = *find(addresses, client_of(address));

    return at == NONE ? 0 : addresses->entries[at].count;
}

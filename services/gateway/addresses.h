// addresses.h: how many connections each client's address has. One thread.
//
// A client is an IPv4 address or an IPv6 /64 network, because one host may own a whole network.
#ifndef FD_GATEWAY_ADDRESSES_H
#define FD_GATEWAY_ADDRESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct addresses;

// capacity: the most connections there may be at a time. NULL when out of memory. The caller closes it.
struct addresses *addresses_open(uint32_t capacity);
void addresses_close(struct addresses *addresses); // NULL is allowed

// Counts a connection, or takes one away. A connection beyond the capacity is not counted.
void addresses_add(struct addresses *addresses, const struct sockaddr *address);
void addresses_remove(struct addresses *addresses, const struct sockaddr *address);
uint32_t addresses_count(const struct addresses *addresses, const struct sockaddr *address);

// Whether the address is this host's own.
bool addresses_is_loopback(const struct sockaddr *address);

#endif

// addresses.h: counts the connections of each client's address. For use by one thread.
//
// A client is an IPv4 address or an IPv6 /64 network, because one host may own a whole network.
#ifndef FD_GATEWAY_HTTP_ADDRESSES_H
#define FD_GATEWAY_HTTP_ADDRESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct addresses;

// Returns NULL when out of memory. capacity: the most connections at one time. The caller closes it.
struct addresses *addresses_open(uint32_t capacity);
void addresses_close(struct addresses *addresses); // NULL is allowed

// addresses_add() counts a connection, unless the capacity is reached; addresses_remove() uncounts it.
void addresses_add(struct addresses *addresses, const struct sockaddr *address);
void addresses_remove(struct addresses *addresses, const struct sockaddr *address);
uint32_t addresses_count(const struct addresses *addresses, const struct sockaddr *address);

// Writes the address without its port; "" where it has no text.
void addresses_text(const struct sockaddr *address, char *out, size_t out_bytes);

// Returns whether the address is a loopback address.
bool addresses_is_loopback(const struct sockaddr *address);

#endif

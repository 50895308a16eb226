// dial.h: sockets of our own: listening, and connecting in a way that can be given up at any moment. Not included from outside the RPC runtime.
#ifndef FD_RPC_DIAL_H
#define FD_RPC_DIAL_H

#include <stdint.h>
#include <sys/socket.h>

enum { DIAL_PEER_BYTES = 64 };

// Listens on host ("" for all interfaces; a name, or an address) and port. Blocks while a name is looked up. Returns a socket that does not
// block, -1: *why says what is wrong. *port_number: the bound one.
int dial_listen(const char *host, const char *port, int *port_number, const char **why);

// Connects. Returns a connected socket that does not block, with no delay and keepalive set, -1: *why says what is wrong. Gives up at once when
// give_up_fd can be read, and after limit_us.
int dial_connect(const char *host, const char *port, int give_up_fd, uint64_t limit_us, const char **why);

// Without delay, with keepalive.
void dial_set_options(int fd);

// "10.0.0.3:4711", "[::1]:4711".
void dial_text(const struct sockaddr_storage *address, char text[DIAL_PEER_BYTES]);

#endif

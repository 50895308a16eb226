// commands.h: the commands of this folder. argv[0] is the command's name; each returns the exit status.
#ifndef FD_FASTDECODE_CLIENT_COMMANDS_H
#define FD_FASTDECODE_CLIENT_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>

int batch_main(int argc, char **argv);
int chat_main(int argc, char **argv);
int health_main(int argc, char **argv);

// --- asks a gateway whether it is ready ------------------------------------------------------------------------------

// True if GET /ready answers 200. Blocks for at most a second. host "0.0.0.0" is asked as 127.0.0.1. tls: by
// HTTPS, whatever the certificate.
bool http_probe_ready(const char *host, uint16_t port, bool tls);

#endif

// http_probe.h: asks a gateway whether it is ready.
#ifndef FD_FASTDECODE_LOAD_HTTP_PROBE_H
#define FD_FASTDECODE_LOAD_HTTP_PROBE_H

#include <stdbool.h>
#include <stdint.h>

// True if GET /ready answers 200. Blocks for at most a second. host "0.0.0.0" is asked as 127.0.0.1. tls: by
// HTTPS, whatever the certificate.
bool http_probe_ready(const char *host, uint16_t port, bool tls);

#endif

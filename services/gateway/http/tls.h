// tls.h: the certificate of an HTTPS server, which is read again when its files change.
//
// Connections that are open keep the certificate that they began with; new ones get the latest that could be used.
#ifndef FD_GATEWAY_HTTP_TLS_H
#define FD_GATEWAY_HTTP_TLS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct http_tls;

// TLS 1.2 and later, in GnuTLS's words.
#define HTTP_TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

// Reads a chain of certificates and its key, both PEM. One at a time in a process. The caller closes *out, after the server has ended.
enum status http_tls_open(const char *certificate_path, const char *key_path, struct http_tls **out,
                          struct error *error) MUST_CHECK;
void http_tls_close(struct http_tls *tls); // NULL is allowed

// Reads the files again if one of them has changed, or if `always`. What cannot be used changes nothing and is logged. Any thread, one
// at a time.
void http_tls_reload(struct http_tls *tls, bool always);

// When the present certificate ends, in seconds since 1970.
uint64_t http_tls_expires_s(struct http_tls *tls);

// A gnutls_certificate_retrieve_function3, for MHD_OPTION_HTTPS_CERT_CALLBACK2.
void *http_tls_callback(void);

#endif

// framing.h: protection against request smuggling.
//
// If headers can be read in two ways, a proxy and the gateway may disagree about where a request ends. The gateway may then take
// part of one client's body for the next client's request (RFC 9112, sections 5.1, 5.2, 6.1 and 6.3).
#ifndef FD_GATEWAY_HTTP_FRAMING_H
#define FD_GATEWAY_HTTP_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>

// Returns false if the request must be refused and its connection closed. method and version: those of the request line, where they were
// received. Call it on the polling thread once the headers are complete.
bool http_framing_is_certain(struct MHD_Connection *connection, const char *method, const char *version);

// Returns whether a body in chunks has headers behind it, which end like those before it and cannot be looked at like them: the connection
// must be closed. Call it on the polling thread once the body is complete.
bool http_framing_has_trailers(struct MHD_Connection *connection);

// Decodes %XX in place and returns the length; a text with %00 stays as it is, so that no path ends there, and so
// does the host of a URL. For MHD_OPTION_UNESCAPE_CALLBACK.
size_t http_framing_unescape(void *arg, struct MHD_Connection *connection, char *text);

// The parts of a request's target, borrowed from it.
struct http_target {
    const char *path;
    const char *host; // NULL: the target is a path; not terminated
    size_t host_bytes;
};

// Splits a target, which is a path, a whole URL (as to a proxy, RFC 9112 3.2.2), or "*" of OPTIONS. False: it is a URL without a host, with
// a user's name, or with a port that is none; *out then has the target as its path.
bool http_framing_split_target(const char *method, const char *target, struct http_target *out);

#endif

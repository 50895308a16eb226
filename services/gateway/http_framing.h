// http_framing.h: protection against request smuggling.
//
// If headers can be read in two ways, a proxy and the gateway may disagree about where a request ends. The gateway may then take
// part of one client's body for the next client's request (RFC 9112, sections 5.1, 5.2, 6.1 and 6.3).
#ifndef FD_GATEWAY_HTTP_FRAMING_H
#define FD_GATEWAY_HTTP_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>

// Returns false if the request must be refused and its connection closed. version is the HTTP version of the request line. Call it
// on the polling thread once the headers are complete.
bool http_framing_is_certain(struct MHD_Connection *connection, const char *version);

#endif

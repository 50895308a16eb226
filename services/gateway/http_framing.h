// http_framing.h: whether it is certain where a request ends.
//
// Where it is not, a proxy in front of the gateway and the gateway may disagree, and the proxy may then take part of one client's body
// for the next client's request (RFC 9112, sections 5.1, 5.2, 6.1 and 6.3).
#ifndef FD_GATEWAY_HTTP_FRAMING_H
#define FD_GATEWAY_HTTP_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>

// False: the request is to be refused and its connection closed. version is the request line's. Polling thread, once the headers are
// complete.
bool http_framing_is_certain(struct MHD_Connection *connection, const char *version);

#endif

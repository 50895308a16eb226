// framing.c: see framing.h.
//
// libmicrohttpd accepts any bytes before a colon as a header's name, so to it "Content-Length : 26" is an unknown header. It also joins a
// line that begins with a space to the line before, while other servers may take it for a header. Both are refused, whatever the header.
//
// It parses headers where they were received, and does not show all of them: a value ends at a zero byte, and a line that begins with a
// colon ends the headers. So each header must begin right behind the one before, and what ended them must lie right behind the last one. (A line
// of a colon and a bare LF alone cannot be told from the end.)
#include "services/gateway/http/framing.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"

enum { CRLF_BYTES = 2 };

struct framing {
    const char *end; // of the last value
    uint32_t length_count, coding_count, host_count;
    bool malformed;
};

static bool is_token(const char *name, size_t bytes)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    size_t i;

    for (i = 0; i < bytes; i++) {
        char c = name[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!plain && (c == '\0' || !strchr(marks, c)))
            return false;
    }
    return bytes > 0;
}

// libmicrohttpd parses a header in the receive buffer: its name, a zero byte in place of the colon, spaces, its value. It assembles the
// value of a folded header elsewhere.
static bool is_folded(const char *name, size_t name_bytes, const char *value)
{
    const char *expected = name + name_bytes + 1;

    return (uintptr_t)value < (uintptr_t)expected || value != expected + strspn(expected, " \t");
}

static bool is_all_digits(const char *value, size_t bytes)
{
    size_t i;

    for (i = 0; i < bytes; i++)
        if (value[i] < '0' || value[i] > '9')
            return false;
    return bytes > 0;
}

// Whether the name is `wanted`. A longer name that begins with it is malformed: a proxy may compare only the beginning.
static bool is_named(struct framing *framing, const char *name, size_t bytes, const char *wanted)
{
    size_t wanted_bytes = strlen(wanted);

    if (bytes < wanted_bytes || strncasecmp(name, wanted, wanted_bytes) != 0)
        return false;
    framing->malformed |= bytes > wanted_bytes;
    return bytes == wanted_bytes;
}

static enum MHD_Result look_at_header(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_bytes, const char *value,
                                      size_t value_bytes)
{
    static const char chunked[] = "chunked", host[] = MHD_HTTP_HEADER_HOST;
    struct framing *framing = arg;

    (void)kind;
    if (!is_token(name, name_bytes) || !value || is_folded(name, name_bytes, value) || memchr(value, '\r', value_bytes) ||
        (framing->end && name != framing->end + CRLF_BYTES)) {
        framing->malformed = true;
    } else if (is_named(framing, name, name_bytes, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        framing->length_count++;
        framing->malformed |= !is_all_digits(value, value_bytes);
    } else if (is_named(framing, name, name_bytes, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        framing->coding_count++;
        framing->malformed |= value_bytes != sizeof chunked - 1 || strncasecmp(value, chunked, value_bytes) != 0;
    } else if (name_bytes == sizeof host - 1 && strncasecmp(name, host, name_bytes) == 0) {
        framing->host_count++;
    }
    framing->end = value + value_bytes;
    return framing->malformed ? MHD_NO : MHD_YES;
}

bool http_framing_is_certain(struct MHD_Connection *connection, const char *method, const char *version)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct framing framing = {0};

    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, look_at_header, &framing);
    if (framing.malformed || framing.length_count + framing.coding_count > 1 || framing.host_count > 1)
        return false;
    if (framing.end && (!info || method + info->header_size != framing.end + 2 * CRLF_BYTES))
        return false;
    return framing.coding_count == 0 || strcmp(version, MHD_HTTP_VERSION_1_0) != 0; // HTTP/1.0 has no codings
}

// Returns the authority of a target that is a whole URL; NULL: it is none.
static const char *authority_of(const char *target)
{
    return strncasecmp(target, "http://", 7) == 0 ? target + 7 : strncasecmp(target, "https://", 8) == 0 ? target + 8 : NULL;
}

// Whether it is a host, and perhaps a port (RFC 3986, 3.2). A user's name is none of a request's (RFC 9110, 4.2.4).
static bool is_authority(const char *text, size_t bytes)
{
    static const char marks[] = "-._~", address[] = ":.[]";
    const char *port = bytes > 0 && text[0] == '[' ? memchr(text, ']', bytes) : memchr(text, ':', bytes);
    const size_t host_bytes = !port ? bytes : (size_t)(port - text) + (*port == ']');
    const size_t digits = host_bytes < bytes ? bytes - host_bytes - 1 : 0;

    for (size_t i = 0; i < host_bytes; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr(text[0] == '[' ? address : marks, text[i]))
            return false;
    if (host_bytes == 0 || (text[0] == '[' && !port) || (host_bytes < bytes && text[host_bytes] != ':'))
        return false;
    return digits == 0 ||
           (digits <= 5 && is_all_digits(text + host_bytes + 1, digits) && atoi(text + host_bytes + 1) <= UINT16_MAX);
}

bool http_framing_split_target(const char *method, const char *target, struct http_target *out)
{
    const char *host = authority_of(target);

    *out = (struct http_target){.path = target};
    if (!host)
        return true;
    const size_t bytes = strcspn(host, "/");
    if (!is_authority(host, bytes))
        return false;
    *out = (struct http_target){.path = host[bytes]                      ? host + bytes
                                        : strcmp(method, "OPTIONS") == 0 ? "*"
                                                                         : "/",
                                .host = host,
                                .host_bytes = bytes};
    return true;
}

bool http_framing_has_trailers(struct MHD_Connection *connection)
{
    return MHD_get_connection_values(connection, MHD_FOOTER_KIND, NULL, NULL) > 0;
}

size_t http_framing_unescape(void *arg, struct MHD_Connection *connection, char *text)
{
    const char *authority = authority_of(text);
    const size_t kept = authority ? (size_t)(authority - text) + strcspn(authority, "/") : 0; // no %2F ends a host

    (void)arg, (void)connection;
    return strstr(text, "%00") ? strlen(text) : kept + MHD_http_unescape(text + kept);
}

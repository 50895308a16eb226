// multipart.c: see multipart.h.
//
// Parts are divided by CR LF "--" boundary. A CR is only the delimiter's first byte, so what follows a mismatch is compared from the
// beginning again, and nothing needs to be looked at twice. The body counts as having a line end before it: it may begin with a boundary.
#include "services/gateway/batch/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_boundary_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("'()+_,-./:=? ", c));
}

// The value of a parameter (; name=value or ; name="value") of a header into out. False: it is not there or too long.
static bool find_parameter(const char *header, const char *name, char *out, size_t out_bytes)
{
    size_t length = strlen(name), bytes = 0;
    bool quoted = false, found = false;
    const char *at;

    for (at = header; *at; at++) { // a ';' outside of quotes begins a parameter
        if (*at == '\\' && quoted && at[1])
            at++;
        else if (*at == '"')
            quoted = !quoted;
        else if (*at == ';' && !quoted) {
            at += 1 + strspn(at + 1, " \t");
            found = strncasecmp(at, name, length) == 0 && at[length] == '=';
            if (found)
                break;
            at--;
        }
    }
    if (!found)
        return false;
    at += length + 1;
    quoted = *at == '"';
    for (at += quoted; *at && (quoted ? *at != '"' : !strchr("; \t", *at)); at++) {
        if (quoted && *at == '\\' && at[1])
            at++;
        if (bytes + 1 >= out_bytes)
            return false;
        out[bytes++] = *at;
    }
    out[bytes] = '\0';
    return !quoted || *at == '"';
}

bool multipart_open(const char *content_type, const struct multipart_calls *calls, struct multipart *out)
{
    char boundary[MULTIPART_BOUNDARY_BYTES + 1];
    size_t i, bytes;

    *out = (struct multipart){.calls = *calls, .matched = 2};
    if (strncasecmp(content_type, "multipart/form-data", 19) != 0 || (content_type[19] && !strchr("; \t", content_type[19])) ||
        !find_parameter(content_type, "boundary", boundary, sizeof boundary))
        return false;
    bytes = strlen(boundary);
    for (i = 0; i < bytes; i++)
        if (!is_boundary_byte(boundary[i]))
            return false;
    if (bytes == 0 || boundary[bytes - 1] == ' ')
        return false;
    out->delimiter_bytes = (size_t)snprintf(out->delimiter, sizeof out->delimiter, "\r\n--%s", boundary);
    return true;
}

static bool fail(struct multipart *m, const char *why)
{
    m->state = MULTIPART_BAD;
    m->why = why;
    return false;
}

static bool stop_unless(struct multipart *m, bool goes_on)
{
    if (!goes_on)
        m->state = MULTIPART_STOPPED;
    return goes_on;
}

static bool emit(struct multipart *m, const char *data, size_t bytes)
{
    return m->state != MULTIPART_DATA || bytes == 0 || stop_unless(m, m->calls.data(m->calls.arg, data, bytes));
}

// Data of a part, or what comes before the first: up to the delimiter. Returns how many bytes it took.
static size_t take_data(struct multipart *m, const char *data, size_t bytes)
{
    size_t at = 0, plain;
    const char *found;

    while (at < bytes) {
        if (m->matched > 0) {
            if (data[at] == m->delimiter[m->matched]) {
                at++;
                if (++m->matched < m->delimiter_bytes)
                    continue;
                m->matched = 0;
                if (m->state == MULTIPART_DATA && !stop_unless(m, m->calls.end(m->calls.arg)))
                    return at;
                m->state = MULTIPART_BOUNDARY;
                m->line_bytes = 0;
                return at;
            }
            plain = m->matched;
            m->matched = 0;
            if (!emit(m, m->delimiter, plain))
                return at;
        }
        found = memchr(data + at, '\r', bytes - at);
        plain = found ? (size_t)(found - data) - at : bytes - at;
        if (!emit(m, data + at, plain))
            return at;
        at += plain;
        if (found) {
            m->matched = 1;
            at++;
        }
    }
    return at;
}

static bool begin_part(struct multipart *m)
{
    char name[MULTIPART_NAME_BYTES], filename[MULTIPART_NAME_BYTES], *line, *next;
    bool has_name = false, has_file = false;

    if (++m->parts > MULTIPART_PARTS_MAX)
        return fail(m, "too many parts");
    m->line[m->line_bytes] = '\0';
    if (strlen(m->line) != m->line_bytes)
        return fail(m, "a part's headers have a zero byte");
    for (line = m->line; *line; line = next) {
        next = strstr(line, "\r\n");
        if (next) {
            *next = '\0';
            next += 2;
        } else {
            next = line + strlen(line);
        }
        if (strncasecmp(line, "Content-Disposition:", 20) != 0)
            continue;
        has_name = find_parameter(line, "name", name, sizeof name);
        has_file = find_parameter(line, "filename", filename, sizeof filename) ||
                   find_parameter(line, "filename*", filename, sizeof filename);
    }
    if (!has_name)
        return fail(m, "a part has no name (Content-Disposition: form-data; name=\"...\")");
    m->state = MULTIPART_DATA;
    return stop_unless(m, m->calls.begin(m->calls.arg, name, has_file ? filename : NULL));
}

// The rest of a boundary's line: "--" ends the body, else nothing but blanks.
static bool end_boundary(struct multipart *m)
{
    m->line[m->line_bytes] = '\0';
    if (strncmp(m->line, "--", 2) == 0) {
        m->state = MULTIPART_DONE;
        return true;
    }
    if (m->line_bytes == 0 || m->line[m->line_bytes - 1] != '\r' || strspn(m->line, " \t") != m->line_bytes - 1)
        return fail(m, "a boundary is followed by something else");
    m->state = MULTIPART_HEADERS;
    m->line_bytes = 0;
    return true;
}

static bool take_line_byte(struct multipart *m, char c)
{
    if (m->state == MULTIPART_BOUNDARY && m->line_bytes == 2 && m->line[0] == '-' && m->line[1] == '-')
        return end_boundary(m);
    if (m->state == MULTIPART_BOUNDARY && c == '\n')
        return end_boundary(m);
    if (m->line_bytes + 2 > sizeof m->line)
        return fail(m, "a part's headers are too long");
    m->line[m->line_bytes++] = c;
    if (m->state != MULTIPART_HEADERS || c != '\n')
        return true;
    if (m->line_bytes == 2 && m->line[0] == '\r') {
        m->line_bytes = 0;
        return begin_part(m);
    }
    if (m->line_bytes < 4 || memcmp(m->line + m->line_bytes - 4, "\r\n\r\n", 4) != 0)
        return true;
    m->line_bytes -= 4;
    return begin_part(m);
}

bool multipart_feed(struct multipart *m, const char *data, size_t bytes)
{
    size_t at = 0;

    while (at < bytes && m->state < MULTIPART_DONE) {
        if (m->state == MULTIPART_PREAMBLE || m->state == MULTIPART_DATA)
            at += take_data(m, data + at, bytes - at);
        else if (!take_line_byte(m, data[at++]))
            return false;
    }
    // the end is told by its two dashes; no line end need follow
    if (m->state == MULTIPART_BOUNDARY && m->line_bytes == 2 && memcmp(m->line, "--", 2) == 0)
        m->state = MULTIPART_DONE;
    return m->state <= MULTIPART_DONE;
}

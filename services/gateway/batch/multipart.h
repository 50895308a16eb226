// multipart.h: bodies of multipart/form-data (RFC 7578), in pieces of any size, in bounded memory.
//
// Pure: no thread, no I/O. The data of parts is handed on as it comes and never kept.
#ifndef FD_GATEWAY_BATCH_MULTIPART_H
#define FD_GATEWAY_BATCH_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MULTIPART_BOUNDARY_BYTES = 70, // RFC 2046
    MULTIPART_HEADER_BYTES = 4096, // of one part
    MULTIPART_NAME_BYTES = 256,
    MULTIPART_PARTS_MAX = 32,
};

// False ends the parse as MULTIPART_STOPPED.
struct multipart_calls {
    bool (*begin)(void *arg, const char *name, const char *filename); // filename NULL: the part is a field
    bool (*data)(void *arg, const char *data, size_t bytes);          // of the part begun last
    bool (*end)(void *arg);
    void *arg;
};

enum multipart_state {
    MULTIPART_PREAMBLE, // before the first boundary
    MULTIPART_BOUNDARY, // in the rest of a boundary's line
    MULTIPART_HEADERS,
    MULTIPART_DATA,
    MULTIPART_DONE, // what follows is ignored
    MULTIPART_BAD,
    MULTIPART_STOPPED,
};

struct multipart {
    struct multipart_calls calls;
    char delimiter[MULTIPART_BOUNDARY_BYTES + 5]; // CR LF - - boundary
    size_t delimiter_bytes, matched;
    enum multipart_state state;
    char line[MULTIPART_HEADER_BYTES]; // of a boundary or the headers
    size_t line_bytes;
    uint32_t parts;
    const char *why; // static, with MULTIPART_BAD
};

// content_type: the header's value. False: it is not multipart/form-data with a boundary.
bool multipart_open(const char *content_type, const struct multipart_calls *calls, struct multipart *out);
// Takes more of the body. False once the state is BAD or STOPPED.
bool multipart_feed(struct multipart *multipart, const char *data, size_t bytes);

#endif

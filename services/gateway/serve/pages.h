// pages.h: the files of the web pages, which are part of the program: services/gateway/serve/pages/embed.py makes them into arrays.
#ifndef FD_GATEWAY_SERVE_PAGES_H
#define FD_GATEWAY_SERVE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

struct page_file {
    const char *name; // "chat.html"
    const char *content_type;
    const char *etag; // of the bytes, with its quotes
    const unsigned char *data;
    size_t bytes;
};

// Ends with an entry without a name.
extern const struct page_file page_files[];

// Whether a client's If-None-Match says that it has what the etag names. "" is a header that was not sent.
bool pages_etag_matches(const char *if_none_match, const char *etag);

#endif

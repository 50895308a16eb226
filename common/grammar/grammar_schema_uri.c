// grammar_schema_uri.c: the address of a reference beside the base that it has (RFC 3986, 5.2), for documents with an $id.
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

// The length of "scheme:", 0 without.
static size_t scheme_length(const char *uri)
{
    size_t length = strspn(uri, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");

    return length > 0 && uri[length] == ':' ? length + 1 : 0;
}

// The length of "scheme://authority".
static size_t authority_end(const char *uri)
{
    size_t at = scheme_length(uri);

    return strncmp(uri + at, "//", 2) == 0 ? at + 2 + strcspn(uri + at + 2, "/?#") : at;
}

// Takes "." and ".." out of a path, in place.
static void remove_dots(char *path)
{
    char *out = path, *in = path;

    while (*in) {
        if (strncmp(in, "/./", 3) == 0 || strcmp(in, "/.") == 0) {
            in += 2;
            if (!*in)
                *out++ = '/';
        } else if (strncmp(in, "/../", 4) == 0 || strcmp(in, "/..") == 0) {
            in += 3;
            while (out > path && *--out != '/') {}
            if (!*in)
                *out++ = '/';
        } else {
            do
                *out++ = *in++;
            while (*in && *in != '/');
        }
    }
    *out = '\0';
}

void jschema_join(const char *base, const char *reference, char *joined)
{
    size_t base_bytes = strcspn(base, "#"), bytes = strcspn(reference, "#");
    size_t kept;

    if (scheme_length(reference) && scheme_length(reference) <= bytes)
        kept = 0;
    else if (bytes == 0)
        kept = base_bytes;
    else if (reference[0] == '/')
        kept = reference[1] == '/' ? scheme_length(base) : authority_end(base);
    else
        for (kept = strcspn(base, "?#"); kept > authority_end(base) && base[kept - 1] != '/';)
            kept--;
    memcpy(joined, base, kept);
    memcpy(joined + kept, reference, bytes);
    joined[kept + bytes] = '\0';
    if (strchr(joined + authority_end(joined), '/'))
        remove_dots(joined + authority_end(joined));
}

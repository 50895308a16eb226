// line_reader.c: see line_reader.h. The buffer grows to the longest line, at most max_bytes and one read.
#include "common/batch/line_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/checked.h"

enum { READ_BYTES = 64 << 10 };

void line_reader_open(int fd, size_t max_bytes, struct line_reader *out)
{
    *out = (struct line_reader){.fd = fd, .max_bytes = max_bytes};
}

void line_reader_close(struct line_reader *reader)
{
    free(reader->buffer);
    reader->buffer = NULL;
}

// Reads more behind what is there. False: errno.
static bool fill(struct line_reader *reader)
{
    ssize_t got;

    if (reader->begin > 0) {
        memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->capacity - reader->end < READ_BYTES) {
        size_t wanted = MAX(reader->capacity * 2, (size_t)2 * READ_BYTES);
        char *grown = realloc(reader->buffer, wanted);
        if (!grown)
            return false;
        reader->buffer = grown;
        reader->capacity = wanted;
    }
    do
        got = read(reader->fd, reader->buffer + reader->end, reader->capacity - reader->end);
    while (got < 0 && errno == EINTR);
    reader->at_end = got == 0;
    reader->end += got > 0 ? (size_t)got : 0;
    return got >= 0;
}

// Drops what is left of a line that is too long, up to and with its end.
static bool skip_line(struct line_reader *reader)
{
    for (;;) {
        char *found = memchr(reader->buffer + reader->begin, '\n', reader->end - reader->begin);
        size_t bytes = found ? (size_t)(found - reader->buffer) + 1 - reader->begin : reader->end - reader->begin;
        reader->begin += bytes;
        reader->position += bytes;
        if (found || reader->at_end)
            return true;
        if (!fill(reader))
            return false;
    }
}

enum line_kind line_reader_next(struct line_reader *reader, const char **line, size_t *bytes)
{
    size_t seen = 0; // bytes without a line end

    if (!reader->buffer && !fill(reader))
        return LINE_FAILED;
    for (;;) {
        size_t there = reader->end - reader->begin;
        char *start = reader->buffer + reader->begin;
        char *found = there > seen ? memchr(start + seen, '\n', there - seen) : NULL;
        size_t length = found ? (size_t)(found - start) : there;

        if (length > reader->max_bytes) {
            reader->number++;
            *line = NULL;
            *bytes = 0;
            return skip_line(reader) ? LINE_TOO_LONG : LINE_FAILED;
        }
        if (found || (reader->at_end && there > 0)) {
            size_t taken = length + (found != NULL);
            reader->number++;
            reader->begin += taken;
            reader->position += taken;
            *line = start;
            *bytes = length;
            return found ? LINE_WHOLE : LINE_UNENDED;
        }
        if (reader->at_end)
            return LINE_NONE;
        seen = there;
        if (!fill(reader))
            return LINE_FAILED;
    }
}

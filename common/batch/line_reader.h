// line_reader.h: the lines of a file, one after the other, in bounded memory whatever the file holds.
#ifndef FD_BATCH_LINE_READER_H
#define FD_BATCH_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct line_reader {
    int fd; // borrowed
    size_t max_bytes;
    char *buffer;
    size_t capacity, begin, end;
    bool at_end;       // of the file
    uint64_t number;   // of the line read last; the first is 1
    uint64_t position; // in the file, behind the line read last
};

enum line_kind {
    LINE_WHOLE,
    LINE_UNENDED,  // the last one, without a line end
    LINE_TOO_LONG, // more than max_bytes: nothing is given
    LINE_NONE,     // the end
    LINE_FAILED,   // the file cannot be read, or no memory: errno
};

// Reads from the descriptor's position, which is taken for the beginning. fd is borrowed.
void line_reader_open(int fd, size_t max_bytes, struct line_reader *out);
void line_reader_close(struct line_reader *reader);

// The next line, without its end; valid until the next call.
enum line_kind line_reader_next(struct line_reader *reader, const char **line, size_t *bytes);

#endif

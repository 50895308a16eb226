// fuzz_batch_line.c: files of batches, and results as an earlier run may have left them. What is taken can be written as a result, and read
// again as the same.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/api/batch.h"
#include "common/base/status.h"

enum { LINE_MAX_BYTES = 700 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_result(const struct batch_line *line)
{
    struct batch_result result = {"batch_req_1", line->custom_id, 200, "r", line->body, line->body_bytes, NULL};
    struct batch_result_about about;
    struct text text = {0};

    batch_result_write(&text, &result);
    assert_always(!text.failed && text.bytes > 0 && memchr(text.data, '\n', text.bytes) == text.data + text.bytes - 1);
    assert_always(batch_result_read(text.data, text.bytes, &about) && strcmp(about.custom_id, line->custom_id) == 0 &&
                  !about.failed);
    batch_result_about_free(&about);
    text_free(&text);
}

static void check_line(const char *text, size_t bytes)
{
    struct batch_result_about about;
    struct batch_line line;
    struct batch_error error;

    if (batch_line_parse(text, bytes, true, &line, &error)) {
        assert_always(line.custom_id[0] && strlen(line.custom_id) <= BATCH_CUSTOM_ID_BYTES_MAX &&
                      strlen(line.body) == line.body_bytes);
        assert_always(line.endpoint != BATCH_ENDPOINT_NONE && line.body[0] == '{');
        check_result(&line);
    } else {
        assert_always(error.code && error.message[0] && !line.body);
    }
    batch_line_free(&line);
    batch_result_read(text, bytes, &about);
    batch_result_about_free(&about);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("lines", MFD_CLOEXEC);
    struct line_reader reader;
    enum line_kind kind;
    const char *line;
    size_t bytes;

    assert_always(fd >= 0 && write(fd, data, size) == (ssize_t)size && lseek(fd, 0, SEEK_SET) == 0);
    line_reader_open(fd, LINE_MAX_BYTES, &reader);
    while ((kind = line_reader_next(&reader, &line, &bytes)) < LINE_NONE) {
        assert_always(bytes <= LINE_MAX_BYTES && reader.position <= size);
        if (kind != LINE_TOO_LONG)
            check_line(line, bytes);
    }
    assert_always(kind == LINE_NONE && reader.position == size);
    line_reader_close(&reader);
    close(fd);
    return 0;
}

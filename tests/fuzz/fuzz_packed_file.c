// fuzz_packed_file.c: libFuzzer target: any bytes as the head of a file of packed weights. What is accepted lies within the file, as expected.
//
// A checksum is hard to guess, so an input that begins with 'T' is laid, two bytes at a time (u8 offset, u8 value), over a valid head, whose
// checksum is then made right.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/packed_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOBS = 3, A = PACKED_FILE_ALIGN };

static const uint64_t sizes[BLOBS] = {A, 0, 2 * A};
static const struct packed_layout layout = {.model = 1, .layout = 2, .blob_count = BLOBS, .blob_bytes = sizes};

static void check(const uint8_t *bytes, size_t count, uint64_t file_bytes)
{
    struct packed_blob blobs[BLOBS];
    struct error error = {0};

    if (packed_header_parse(bytes, count, file_bytes, &layout, blobs, &error)) {
        assert_always(error.text[0] != 0);
        return;
    }
    for (uint32_t i = 0; i < BLOBS; i++)
        assert_always(blobs[i].bytes == sizes[i] && blobs[i].offset % A == 0 && blobs[i].offset >= packed_header_bytes(BLOBS) &&
                      blobs[i].offset + blobs[i].bytes <= file_bytes);
}

static void check_forged(const uint8_t *data, size_t size)
{
    const uint64_t head_bytes = packed_header_bytes(BLOBS);
    struct packed_header header = {.magic = PACKED_MAGIC,
                                   .version = PACKED_VERSION,
                                   .blob_count = BLOBS,
                                   .model = 1,
                                   .layout = 2,
                                   .file_bytes = head_bytes + 3 * A};
    struct packed_blob blobs[BLOBS] = {
        {.offset = head_bytes, .bytes = A}, {.offset = head_bytes + A}, {.offset = head_bytes + A, .bytes = 2 * A}};
    unsigned char *bytes = calloc(1, head_bytes);

    assert_always(bytes);
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, blobs, sizeof blobs);
    for (size_t i = 0; i + 1 < size; i += 2)
        bytes[data[i]] = data[i + 1];
    memcpy(&header, bytes, sizeof header);
    if (header.blob_count == BLOBS)
        header.checksum = packed_header_sum(bytes, BLOBS);
    memcpy(bytes, &header, sizeof header);
    check(bytes, head_bytes, head_bytes + 3 * A);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *copy = malloc(size + 1); // so that what is read beyond is seen

    assert_always(copy);
    memcpy(copy, data, size);
    check(copy, size, size);
    free(copy);
    if (size && data[0] == 'T')
        check_forged(data + 1, size - 1);
    return 0;
}

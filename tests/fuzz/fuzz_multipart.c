// fuzz_multipart.c: multipart bodies. The first byte is the size of the pieces. However a body is cut, the same is seen.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/status.h"
#include "services/gateway/batch/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A checksum of everything that the callbacks are told, in order.
struct sum {
    uint64_t value;
    size_t bytes;
    bool open;
};

static void add(struct sum *sum, uint64_t value) { sum->value = sum->value * 6364136223846793005u + value + 1; }

static bool on_begin(void *arg, const char *name, const char *filename)
{
    struct sum *sum = arg;

    assert_always(!sum->open && strlen(name) < MULTIPART_NAME_BYTES && (!filename || strlen(filename) < MULTIPART_NAME_BYTES));
    sum->open = true;
    for (; *name; name++)
        add(sum, (unsigned char)*name);
    add(sum, filename ? 1000 : 1001);
    return true;
}

static bool on_data(void *arg, const char *data, size_t bytes)
{
    struct sum *sum = arg;

    assert_always(sum->open && bytes > 0);
    for (size_t i = 0; i < bytes; i++)
        add(sum, (unsigned char)data[i]);
    sum->bytes += bytes;
    return true;
}

static bool on_end(void *arg)
{
    struct sum *sum = arg;

    assert_always(sum->open);
    sum->open = false;
    add(sum, 1002);
    return true;
}

static enum multipart_state feed(const char *body, size_t bytes, size_t piece, struct sum *sum)
{
    struct multipart_calls calls = {on_begin, on_data, on_end, sum};
    struct multipart multipart;
    size_t at;

    *sum = (struct sum){0};
    assert_always(multipart_open("multipart/form-data; boundary=b", &calls, &multipart));
    for (at = 0; at < bytes; at += piece)
        if (!multipart_feed(&multipart, body + at, MIN(piece, bytes - at)))
            break;
    assert_always(sum->bytes <= bytes && (multipart.state != MULTIPART_BAD || multipart.why));
    return multipart.state;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sum whole, pieces;
    enum multipart_state state;

    if (size < 2)
        return 0;
    state = feed((const char *)data + 1, size - 1, size, &whole);
    assert_always(feed((const char *)data + 1, size - 1, data[0] % 16 + 1u, &pieces) == state);
    assert_always(state == MULTIPART_BAD || (pieces.value == whole.value && pieces.open == whole.open));
    return 0;
}

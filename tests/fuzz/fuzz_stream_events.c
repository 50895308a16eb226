// fuzz_stream_events.c: libFuzzer target: any bytes as a streamed answer, cut in two at its first byte's place: the same events as in one piece.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "services/fastdecode/client/stream_events.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct sums {
    uint64_t events, tokens, usage, ends, errors;
};

static void on_event(void *arg, const struct stream_event *event)
{
    struct sums *sums = arg;

    sums->events++;
    sums->tokens += event->has_token;
    sums->usage += event->prompt_tokens + (uint64_t)event->answer_tokens;
    sums->ends += event->is_end;
    sums->errors += strnlen(event->error, sizeof event->error);
    assert_always(memchr(event->error, 0, sizeof event->error) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stream_reader reader = {0};
    struct sums whole = {0}, cut = {0};
    size_t at = size ? data[0] % size : 0;

    stream_reader_take(&reader, (const char *)data, size, on_event, &whole);
    stream_reader_clear(&reader);
    stream_reader_take(&reader, (const char *)data, at, on_event, &cut);
    stream_reader_take(&reader, (const char *)data + at, size - at, on_event, &cut);
    assert_always(memcmp(&whole, &cut, sizeof whole) == 0);
    stream_reader_free(&reader);
    return 0;
}

// test_frames.c: taking frames out of a stream, however it is cut, and the memory that they lie in.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"
#include "tests/cmocka.h"

struct taken {
    uint32_t count;
    size_t lengths[400];
};

static unsigned char byte_of(uint32_t message, size_t at) { return (unsigned char)(message * 31 + at * 7 + at / 251); }

static void on_frame(void *arg, struct frame *frame)
{
    struct taken *taken = arg;
    assert_true(taken->count < ARRAY_COUNT(taken->lengths));
    assert_int_equal(frame->length, taken->lengths[taken->count]);
    assert_int_equal((uintptr_t)frame_bytes(frame) % 8, 0);
    for (size_t i = 0; i < frame->length; i++)
        if (frame_bytes(frame)[i] != byte_of(taken->count, i))
            fail_msg("message %u differs at byte %zu", taken->count, i);
    taken->count++;
    frame_free(frame);
}

static void frames_come_out_however_the_stream_is_cut(void **state)
{
    static struct taken taken;
    uint32_t random = 1;
    size_t total = 0, at = 0;
    for (uint32_t i = 0; i < ARRAY_COUNT(taken.lengths); i++) {
        random = random * 1664525 + 1013904223;
        uint32_t kind = random >> 29;
        taken.lengths[i] = kind < 4 ? random >> 8 & 127 : kind < 6 ? random >> 8 & 4095 : i % 40 ? 61530 : 200000;
        total += FRAME_HEAD + taken.lengths[i];
    }
    unsigned char *stream = malloc(total);
    for (uint32_t i = 0; i < ARRAY_COUNT(taken.lengths); i++) {
        struct frame *frame = frame_open(taken.lengths[i], false);
        for (size_t k = 0; k < frame->length; k++)
            frame_bytes(frame)[k] = byte_of(i, k);
        memcpy(stream + at, frame->wire, FRAME_HEAD + frame->length);
        at += FRAME_HEAD + frame->length;
        frame_free(frame);
    }
    for (uint32_t cut = 0; cut < 5; cut++) { // all that fits; then at most so many bytes at once
        static const size_t most[] = {SIZE_MAX, 1 << 17, 5000, 33, 7};
        struct frame_reader reader = {.max_message_bytes = 200000};
        size_t end = cut < 3 ? total : total / 20;
        taken.count = 0;
        for (at = 0; at < end;) {
            void *space;
            size_t room = MIN(MIN(frame_reader_space(&reader, &space), most[cut]), total - at);
            assert_true(room > 0);
            memcpy(space, stream + at, room);
            assert_true(frame_reader_take(&reader, room, on_frame, &taken));
            at += room;
        }
        assert_true(cut >= 3 || taken.count == ARRAY_COUNT(taken.lengths));
        assert_true(taken.count > 10);
        frame_reader_close(&reader);
    }
    free(stream);
}

struct weighed {
    uint32_t count;
    size_t bytes; // of memory
};

static void on_weighed(void *arg, struct frame *frame)
{
    struct weighed *weighed = arg;
    weighed->count++;
    weighed->bytes += frame->capacity;
    frame_free(frame);
}

// One large message, then many of 1 KiB that come at once: each takes the memory that it is worth, not that of all behind it.
static void small_messages_behind_a_large_one_stay_small(void **state)
{
    enum { LARGEST = 4 << 20, SMALL = 1024, SMALLS = 3000 };
    struct frame_reader reader = {.max_message_bytes = LARGEST};
    struct weighed weighed = {0};
    struct frame *large = frame_open(LARGEST, false), *small = frame_open(SMALL, false);
    size_t at = 0, total = FRAME_HEAD + LARGEST;
    memset(frame_bytes(large), 0, LARGEST);
    memset(frame_bytes(small), 0, SMALL);
    while (at < total) {
        void *space;
        size_t room = MIN(frame_reader_space(&reader, &space), total - at);
        memcpy(space, large->wire + at, room);
        assert_true(frame_reader_take(&reader, room, on_weighed, &weighed));
        at += room;
    }
    assert_int_equal(weighed.count, 1);
    weighed = (struct weighed){0};
    while (weighed.count < SMALLS) {
        unsigned char *space;
        size_t room = frame_reader_space(&reader, (void **)&space), count = MIN(room / (FRAME_HEAD + SMALL), (size_t)SMALLS);
        assert_true(count > 0);
        for (size_t i = 0; i < count; i++)
            memcpy(space + i * (FRAME_HEAD + SMALL), small->wire, FRAME_HEAD + SMALL);
        assert_true(frame_reader_take(&reader, count * (FRAME_HEAD + SMALL), on_weighed, &weighed));
    }
    assert_in_range(weighed.bytes / weighed.count, SMALL, 8 * SMALL);
    frame_reader_close(&reader);
    frame_free(large);
    frame_free(small);
}

static void strangers_and_giants_are_no_frames(void **state)
{
    static const unsigned char stranger[] = "FDR2", giant[] = "FDR1\x01\x04\0\0", largest[] = "FDR1\0\x04\0\0";
    static const struct {
        const unsigned char *bytes;
        size_t length;
        bool good;
    } cases[] = {{stranger, 3, true}, {stranger, 4, false}, {giant, 7, true}, {giant, 8, false}, {largest, 8, true}};
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct frame_reader reader = {.max_message_bytes = 1024};
        void *space;
        assert_true(frame_reader_space(&reader, &space) > cases[i].length);
        memcpy(space, cases[i].bytes, cases[i].length);
        assert_int_equal(frame_reader_take(&reader, cases[i].length, on_frame, NULL), cases[i].good);
        frame_reader_close(&reader);
    }
}

static bool is_within(const struct frame *frame, const unsigned char *memory, size_t bytes)
{
    return (const unsigned char *)frame >= memory && (const unsigned char *)frame < memory + bytes;
}

// Those that ask for it, whatever their size, while there is room; and what is freed is room again.
static void frames_lie_in_memory_that_was_lent(void **state)
{
    enum { BYTES = 16 << 20, LARGE = (8 << 20) - 200 };
    unsigned char *memory = aligned_alloc(4096, BYTES);

    assert_int_equal(rpc_lend_memory(memory, BYTES), STATUS_OK);
    for (uint32_t round = 0; round < 3; round++) {
        struct frame *other = frame_open(3000, false), *small = frame_open(100, true), *large = frame_open(LARGE, true),
                     *more = frame_open(LARGE, true);
        assert_false(is_within(other, memory, BYTES)); // it did not ask for it
        assert_true(is_within(small, memory, BYTES) && is_within(large, memory, BYTES));
        assert_false(is_within(more, memory, BYTES)); // the small one has broken the other half
        memset(frame_bytes(large), 7, LARGE);
        memset(frame_bytes(more), 7, LARGE);
        memset(frame_bytes(small), 8, 100);
        assert_int_equal(frame_bytes(large)[LARGE - 1], 7);
        frame_free(small), frame_free(large), frame_free(other), frame_free(more);
    }
    struct frame *left = frame_open(100, true);
    assert_false(rpc_take_memory_back());
    frame_free(left);
    assert_true(rpc_take_memory_back() && rpc_take_memory_back());
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_out_however_the_stream_is_cut),
        cmocka_unit_test(small_messages_behind_a_large_one_stay_small),
        cmocka_unit_test(strangers_and_giants_are_no_frames),
        cmocka_unit_test(frames_lie_in_memory_that_was_lent),
    };
    return cmocka_run_group_tests_name("frames", tests, NULL, NULL);
}

/* test_attend_spans.c: what a KV worker counts of the traced sequences of a step, and its table of them when it is full. */
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/rpc/wire.h"
#include "services/kv-worker/attend_spans.h"
#include "tests/cmocka.h"

static struct attend_spans spans;
static struct attend_step_spans steps[2]; /* of two mini-batches */

static int begin(void **state)
{
    const struct otlp_config config = {.endpoint = "http://127.0.0.1:9", .service = "test", .again_ms = 60000}; /* nobody listens */
    struct error error;
    assert_int_equal(otlp_open(&config, &spans.otlp, &error), STATUS_OK);
    assert_int_equal(attend_spans_open(&spans), STATUS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(attend_spans_open_step(&spans, &steps[i]), STATUS_OK);
    return 0;
}

static int end(void **state)
{
    for (int i = 0; i < 2; i++)
        attend_spans_close_step(&steps[i]);
    attend_spans_close(&spans);
    otlp_close(spans.otlp);
    memset(&spans, 0, sizeof spans);
    return 0;
}

static void put_ids(unsigned char *out, const uint64_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        wire_store_u64(out + i * 8ull, ids[i]);
}

/* A step with a row of each of so many traced sequences from `first` on. */
static void step_of(struct attend_step_spans *step, uint64_t first, uint32_t count)
{
    static unsigned char sequences[8 * ATTEND_SPANS_MAX], contexts[ATTEND_TRACE_BYTES * ATTEND_SPANS_MAX];
    for (uint32_t i = 0; i < count; i++)
        wire_store_u64(sequences + i * 8ull, first + i);
    memset(contexts, 1, sizeof contexts);
    const struct attend_request request = {.row_count = count,
                                           .row_sequence = sequences,
                                           .trace_count = count,
                                           .trace_sequence = sequences,
                                           .trace_context = contexts};
    attend_spans_begin(&spans, step, &request);
}

static const struct attend_span *span_of(uint64_t sequence)
{
    const uint32_t slot = id_map_find(&spans.slots, sequence);
    return slot == ID_MAP_NONE ? NULL : &spans.spans[slot];
}

static void rows_and_reads_are_counted(void **state)
{
    static const uint64_t rows[] = {3, 5, 5, 7, 9}, reads[] = {2, 11, 11, 11, 12, 13}, traced[] = {5, 9, 11, 13};
    static const uint32_t rows_of[] = {2, 1, 0, 0}, reads_of[] = {0, 0, 3, 1};
    unsigned char row_bytes[sizeof rows], read_bytes[sizeof reads], traced_bytes[sizeof traced];
    static const unsigned char contexts[ARRAY_COUNT(traced) * ATTEND_TRACE_BYTES] = {1};
    const struct attend_request request = {.row_count = ARRAY_COUNT(rows),
                                           .row_sequence = row_bytes,
                                           .read_count = ARRAY_COUNT(reads),
                                           .read_sequence = read_bytes,
                                           .trace_count = ARRAY_COUNT(traced),
                                           .trace_sequence = traced_bytes,
                                           .trace_context = contexts};
    put_ids(row_bytes, rows, ARRAY_COUNT(rows));
    put_ids(read_bytes, reads, ARRAY_COUNT(reads));
    put_ids(traced_bytes, traced, ARRAY_COUNT(traced));
    for (uint32_t step = 1; step <= 3; step++) {
        attend_spans_begin(&spans, &steps[0], &request);
        attend_spans_layer(&steps[0], 20);
        attend_spans_layer(&steps[0], 30);
        attend_spans_step(&spans, &steps[0]);
        assert_int_equal(spans.slots.count, ARRAY_COUNT(traced));
        for (size_t i = 0; i < ARRAY_COUNT(traced); i++) {
            const struct attend_span *span = span_of(traced[i]);
            assert_non_null(span);
            assert_int_equal(span->steps, step);
            assert_int_equal(span->rows, step * rows_of[i]);
            assert_int_equal(span->reads, step * reads_of[i]);
            assert_int_equal(span->busy_us, step * 50);
            assert_true(span->began_ns <= span->ended_ns && span->ended_ns <= clock_now_ns());
        }
    }
}

/* Those whose first step is still under way are not idle: they stay. */
static void a_full_table_takes_no_more(void **state)
{
    step_of(&steps[0], 1, ATTEND_SPANS_MAX);
    assert_int_equal(steps[0].traced_count, ATTEND_SPANS_MAX);
    for (uint32_t round = 0; round < 3; round++) {
        step_of(&steps[1], ATTEND_SPANS_MAX + 1, 2);
        assert_int_equal(steps[1].traced_count, 0);
    }
    attend_spans_step(&spans, &steps[0]);
    for (uint64_t sequence = 1; sequence <= ATTEND_SPANS_MAX; sequence++)
        assert_true(span_of(sequence) && span_of(sequence)->steps == 1);
    attend_spans_end(&spans, 7);
    step_of(&steps[1], ATTEND_SPANS_MAX + 1, 2);
    assert_int_equal(steps[1].traced_count, 1);
}

static void an_idle_one_makes_room(void **state)
{
    step_of(&steps[0], 1, ATTEND_SPANS_MAX);
    attend_spans_step(&spans, &steps[0]);
    for (uint32_t i = 0; i < 2; i++) /* 40 has been idle for longer than 30 */
        spans.spans[id_map_find(&spans.slots, i ? 40 : 30)].ended_ns -= (ATTEND_SPANS_IDLE_US + i) * UINT64_C(1000);
    for (uint32_t round = 0; round < 3; round++) {
        step_of(&steps[1], ATTEND_SPANS_MAX + 1 + round, 1);
        assert_int_equal(steps[1].traced_count, round < 2);
        assert_null(span_of(40));
        assert_true(round == 0 ? span_of(30) != NULL : span_of(30) == NULL);
        assert_int_equal(spans.slots.count, ATTEND_SPANS_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_and_reads_are_counted, begin, end),
        cmocka_unit_test_setup_teardown(a_full_table_takes_no_more, begin, end),
        cmocka_unit_test_setup_teardown(an_idle_one_makes_room, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

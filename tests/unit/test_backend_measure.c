/* test_backend_measure.c: measuring through a backend that is asynchronous: a made-up device whose entries return at once and are done
 * when their time is over, on a clock of its own that only asking moves on. It ends the test where an entry comes before the one before
 * is done, or a row before those before it; what is measured must be the device's times, not those of asking.
 */
#include <string.h>
#include <time.h>

#include "common/base/checked.h"
#include "kernels/backend/backend_measure.h"
#include "tests/cmocka.h"

enum { LAYERS = 4, ROWS = 128, SEQUENCES = 512 };

static const struct model_shape shape = {.layers = LAYERS, .hidden = 8, .heads = 2, .kv_heads = 1, .head_dim = 8, .vocab = 32};

/* The device's times, in microseconds. */
static const double begin_us = 300, layer_us = 200, layer_row_us = 2, head_us = 150;
static const struct kv_costs costs = {.call_us = 40, .row_us = 1, .token_us = 0.02, .prefill_row_us = 1, .pair_us = 0.02};

static struct device {
    uint64_t ready_ns;
    bool pending; /* nobody has seen yet that it is done */
    struct backend_row rows[ROWS];
    uint32_t row_count, held[SEQUENCES], attends, segments;
    uint64_t passes_ns; /* when the first of all layers began: the pool is full */
} device;

static uint64_t now_ns = 1000000000;

/* In the place of the C library's: the tests take no time, and nothing that else runs disturbs them. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    now_ns += 50;
    *out = (struct timespec){.tv_sec = (time_t)(now_ns / 1000000000), .tv_nsec = (long)(now_ns % 1000000000)};
    return 0;
}

static void start(double us)
{
    assert_false(device.pending);
    device.pending = true;
    device.ready_ns = now_ns + (uint64_t)(us * 1e3);
}

static bool is_done(struct backend_batch *batch)
{
    now_ns += 50;
    if (now_ns < device.ready_ns)
        return false;
    device.pending = false;
    return true;
}

static enum status begin(struct backend_batch *batch, const struct backend_row *rows, uint32_t count, uint32_t *bad_row,
                         struct error *error)
{
    assert_in_range(count, 1, ROWS);
    start(begin_us);
    memcpy(device.rows, rows, count * sizeof *rows);
    device.row_count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (!rows[i].local)
            continue;
        assert_in_range(rows[i].sequence, 1, SEQUENCES - 1);
        bool follows = i && rows[i - 1].sequence == rows[i].sequence && rows[i - 1].position + 1 == rows[i].position;
        assert_true(follows || rows[i].position <= device.held[rows[i].sequence]);
    }
    return STATUS_OK;
}

static void segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    device.segments++;
    start(layer_us + device.row_count * layer_row_us);
}

static void attend(struct backend_batch *batch, uint32_t layer)
{
    bool prefill = device.row_count > 1 && device.rows[0].sequence == device.rows[1].sequence;
    double us = costs.call_us + device.row_count * (prefill ? costs.prefill_row_us : costs.row_us);
    device.attends++;
    if (layer == 0 && !device.passes_ns)
        device.passes_ns = now_ns;
    for (uint32_t i = 0; i < device.row_count; i++) {
        uint32_t context = device.rows[i].position + 1, *held = &device.held[device.rows[i].sequence];
        us += context * (prefill ? costs.pair_us : costs.token_us);
        if (layer + 1 == LAYERS)
            *held = MAX(*held, context);
    }
    start(us);
}

static void head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples, uint32_t count)
{
    start(head_us);
}

static void pool_release(struct backend *backend, uint64_t sequence)
{
    assert_in_range(sequence, 1, SEQUENCES - 1);
    device.held[sequence] = 0;
}

static const struct backend_ops ops = {
    .begin = begin, .segment = segment, .attend = attend, .head = head, .done = is_done, .pool_release = pool_release};

/* Asking takes some time, too. */
static void about(double got, double want)
{
    if (!(got > 0.99 * want && got < 1.02 * want))
        fail_msg("%.4g for %.4g", got, want);
}

static void steps_take_what_the_device_takes(void **state)
{
    struct backend_times times;
    struct error error;

    memset(&device, 0, sizeof device);
    assert_int_equal(backend_measure(&ops, NULL, &shape, ROWS, 8, UINT32_MAX, 200000, &times, &error), STATUS_OK);
    assert_int_equal(times.layer_count, 8); /* 1 to 128 */
    for (uint32_t i = 0; i < times.layer_count; i++)
        about(times.layer_us[i], layer_us + times.layer_rows[i] * layer_row_us + begin_us / LAYERS);
    assert_int_equal(times.head_count, 4);
    about(times.head_us[0], head_us);
}

static void attention_takes_what_the_device_takes(void **state)
{
    const struct attend_measure what = {
        .ops = &ops, .shape = &shape, .pages = 64 * 1024 / 16, .page_tokens = 16, .max_rows = ROWS, .context_tokens = 4096};
    struct kv_costs got;
    struct error error;

    memset(&device, 0, sizeof device);
    assert_int_equal(backend_measure_attention(&what, 400000, &got, &error), STATUS_OK);
    about(got.token_us, costs.token_us);
    about(got.pair_us, costs.pair_us);
    about(got.row_us, costs.row_us);
    about(got.call_us, costs.call_us);
    about(got.prefill_row_us, costs.prefill_row_us);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        assert_int_equal(device.held[i], 0); /* the pool is empty again */
}

/* Half of the time is for the passes, the first one among them. */
static void attention_takes_the_time_it_is_given(void **state)
{
    enum { LIMIT_US = 150000 };
    const struct attend_measure what = {
        .ops = &ops, .shape = &shape, .pages = 64 * 1024 / 16, .page_tokens = 16, .max_rows = ROWS, .context_tokens = 256};
    struct kv_costs got;
    struct error error;

    memset(&device, 0, sizeof device);
    assert_int_equal(backend_measure_attention(&what, LIMIT_US, &got, &error), STATUS_OK);
    assert_in_range((now_ns - device.passes_ns) / 1000, LIMIT_US * 4 / 10, LIMIT_US / 2);
}

static void a_pool_that_is_too_small(void **state)
{
    struct attend_measure what = {
        .ops = &ops, .shape = &shape, .pages = 15, .page_tokens = 16, .max_rows = ROWS, .context_tokens = 4096};
    struct kv_costs got;
    struct error error;

    memset(&device, 0, sizeof device);
    assert_int_equal(backend_measure_attention(&what, 1000, &got, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text,
                        "a pool of 240 tokens, contexts of 4096 and steps of 128 rows are too small to measure attention with");
    what.pages = 16; /* two sequences of 128 */
    assert_int_equal(backend_measure_attention(&what, 1000, &got, &error), STATUS_OK);
    what.max_rows = 63;
    assert_int_equal(backend_measure_attention(&what, 1000, &got, &error), STATUS_RESOURCE_EXHAUSTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_take_what_the_device_takes), cmocka_unit_test(attention_takes_what_the_device_takes),
        cmocka_unit_test(attention_takes_the_time_it_is_given), cmocka_unit_test(a_pool_that_is_too_small)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_cuda_measure.c: what is measured of a device: the kernels that measure, rates, and the costs of steps and of attention in the local
 * pool through the backend's entries, which are watched: none may come before the one before is done. How exact figures are is a
 * real device's to show (`make bench-gpu`); tests/unit/test_backend_measure.c has known times.
 */
#include "tests/cuda/backend_rig.h"

#include "kernels/backend/backend_measure.h"
#include "services/s-part/s_part.h"

static size_t free_bytes(void)
{
    size_t now = 0, total;
    assert_int_equal(cudaMemGetInfo(&now, &total), cudaSuccess);
    return now;
}

/* Each word is read, and by one thread alone: zeros but for the one that a thread's sum must not be, it writes to the sink. */
static void test_all_of_it_is_read(void **state)
{
    enum { BLOCKS = 3, WORDS = BLOCKS * GPU_READ_BLOCK_BYTES / 4 };
    const uint32_t key = 0x5bd1e995u, where[] = {0, 1, 2, 3, 4, 1023, 1024, 4095, 4096, 16383, 16384, 20001, WORDS - 1};
    uint32_t *words = calloc(WORDS, 4), none = 7, got;
    void *at = on_device(NULL, WORDS * 4), *sink = on_device(NULL, 4);

    for (size_t i = 0; i <= ARRAY_COUNT(where); i++) {
        bool has_key = i < ARRAY_COUNT(where);
        if (has_key)
            words[where[i]] = key;
        to_device(at, words, WORDS * 4);
        to_device(sink, &none, 4);
        gpu_read(at, WORDS * 4, sink, rig_stream);
        to_host(&got, sink, 4);
        assert_int_equal(got, has_key ? key : none);
        if (has_key)
            words[where[i]] = 0;
    }
    cudaFree(at), cudaFree(sink);
    free(words);
}

/* All within [-1, 1), no two neighbours alike, mean and deviation of a uniform distribution, nothing behind the last one. */
static void test_values_to_measure_with(void **state)
{
    enum { COUNT = 300001 };
    uint16_t *got = malloc((COUNT + 1) * 2), mark = 0x1234;
    double sum = 0, squares = 0;
    void *at = on_device(NULL, (COUNT + 1) * 2);

    to_device((uint16_t *)at + COUNT, &mark, 2);
    gpu_fill(at, COUNT, 3, rig_stream);
    to_host(got, at, (COUNT + 1) * 2);
    assert_int_equal(got[COUNT], mark);
    for (uint32_t i = 0; i < COUNT; i++) {
        double x = (double)f16_to_float(got[i]);
        assert_true(x >= -1 && x <= 1); /* 1 by rounding */
        sum += x, squares += x * x;
    }
    assert_true(fabs(sum / COUNT) < 0.005 && fabs(squares / COUNT - 1.0 / 3) < 0.005);
    gpu_fill(at, 10, 4, rig_stream);
    uint16_t other[10];
    to_host(other, at, sizeof other);
    assert_memory_not_equal(other, got, sizeof other);
    cudaFree(at);
    free(got);
}

static void test_rates(void **state)
{
    struct device_rates rates;
    struct error error;

#ifdef FD_TESTS_CUDA_RUNTIME_API_H /* the emulated device takes its time over a GiB */
    const uint64_t whole = emulate_device_bytes;
    emulate_device_bytes = 128 << 20;
#endif
    size_t before = free_bytes();
    assert_int_equal(fastdecode_device.measure(0, 30000, &rates, &error), STATUS_OK);
    assert_true(strlen(rates.name) > 3);
    assert_true(rates.memory_bytes > 0 && rates.memory_bytes <= before);
    assert_true(rates.read_bytes > 1e6 && rates.read_bytes < 1e14);
    assert_true(rates.weight_bytes > 1e6 && rates.weight_bytes < 1e14);
    assert_true(rates.f16_operations > 1e6 && rates.f16_operations < 1e17);
#ifdef FD_TESTS_CUDA_RUNTIME_API_H /* and nobody else takes of its memory */
    assert_int_equal(free_bytes(), before);
    emulate_device_bytes = 16 << 20;
    assert_int_equal(fastdecode_device.measure(0, 30000, &rates, &error), STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(error.text, "cuda:0 has 16 MiB free: too little to measure with");
    emulate_device_bytes = 64 << 20;
    assert_int_equal(fastdecode_device.measure(0, 30000, &rates, &error), STATUS_OK);
    emulate_device_bytes = whole;
#endif
}

/* --- through the backend ---------------------------------------------------------------------------------------------------- */

static const struct backend_ops *real;
static bool pending; /* an entry that has not been waited for */
static uint64_t asked, not_yet;

static void entry(void)
{
    if (pending)
        fail_msg("an entry before the one before is done");
    pending = true;
}
static enum status watched_begin(struct backend_batch *batch, const struct backend_row *rows, uint32_t count, uint32_t *bad_row,
                                 struct error *error)
{
    entry();
    return real->begin(batch, rows, count, bad_row, error);
}
static void watched_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    entry();
    real->segment(batch, s, links);
}
static void watched_attend(struct backend_batch *batch, uint32_t layer)
{
    entry();
    real->attend(batch, layer);
}
static void watched_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples,
                         uint32_t count)
{
    entry();
    real->head(batch, row_index, samples, count);
}
static bool watched_done(struct backend_batch *batch)
{
    bool done = real->done(batch);
    asked++, not_yet += !done;
    pending &= !done;
    return done;
}

static void test_steps_and_attention(void **state)
{
    enum { ROWS = 64, PAGES = 40 };
    struct backend_config config = rig_config(ROWS);
    struct backend_times times;
    struct kv_costs costs = {0};
    struct error error;
    struct rig rig;

    config.max_sequences = ROWS;
    real = fastdecode_device.ops;
    struct backend_ops watched = *real;
    watched.begin = watched_begin, watched.segment = watched_segment, watched.attend = watched_attend;
    watched.head = watched_head, watched.done = watched_done;
    rig_open(&rig, &watched, config, PAGES);
    const struct attend_measure what = {.ops = &watched,
                                        .backend = rig.backend,
                                        .batch = rig.batch,
                                        .shape = &rig_model->shape,
                                        .pages = PAGES,
                                        .page_tokens = config.page_tokens,
                                        .max_rows = ROWS,
                                        .context_tokens = config.context_tokens};
    assert_int_equal(backend_measure(&watched, rig.batch, &rig_model->shape, ROWS, 8, UINT32_MAX, 20000, &times, &error),
                     STATUS_OK);
    assert_true(times.layer_count && times.layer_us[0] > 0 && times.head_us[0] > 0);
    assert_int_equal(backend_measure_attention(&what, 20000, &costs, &error), STATUS_OK);
    assert_true(costs.token_us > 0 && isfinite(costs.token_us) && costs.pair_us > 0 && isfinite(costs.pair_us));
    assert_true(costs.call_us >= 0 && costs.row_us >= 0 && costs.prefill_row_us >= 0);
    assert_true(not_yet > 0 && asked > not_yet); /* it was asynchronous indeed */
    assert_int_equal(rig_pages_used(&rig), 0);
    rig_close(&rig);
}

// Beside a pool on the device the kernels of the host are measured too: they say when a worker's attention is late.
static void test_workers_are_measured_by_the_host(void **state)
{
    enum { ROWS = 64, PAGES = 40 };
    static struct s_part s_part;
    struct backend_config config = rig_config(ROWS);
    struct engine *engine = &s_part.engine;
    struct rig rig;

    config.max_sequences = ROWS;
    rig_open(&rig, fastdecode_device.ops, config, PAGES);
    s_part.loaded.model = rig_model;
    s_part.pool = rig_pool;
    s_part.settings = (struct s_part_settings){
        .calibrate = true, .context = config.context_tokens, .max_rows = ROWS, .max_batch = 8, .kv_type = KV_F16};
    s_part.loaded.plan = (struct backend_plan){.pool_on_device = true, .pool_pages = PAGES};
    engine->ops = fastdecode_device.ops;
    engine->backend = rig.backend;
    engine->batches.of[0].backend = rig.batch;
    engine->model.shape = rig_model->shape;
    engine->model.range = (struct layer_range){.count = engine->model.shape.layers, .is_first = true, .is_last = true};
    load_measure(&s_part);
    assert_true(s_part.loaded.calibration.done && s_part.loaded.calibration.kv.token_us > 0);
    assert_true(engine->links.costs.token_us > 0 && engine->links.costs.token_us != s_part.loaded.calibration.kv.token_us);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_of_it_is_read), cmocka_unit_test(test_values_to_measure_with),
                                       cmocka_unit_test(test_rates), cmocka_unit_test(test_steps_and_attention),
                                       cmocka_unit_test(test_workers_are_measured_by_the_host)};
    const struct tiny_llama tiny = TINY_LLAMA;
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("cuda measure", tests, NULL, NULL)) : 0;
}

/* test_cuda_graph.c: steps by graphs beside steps by plain launches, byte for byte: every count of rows, local and worker's rows in turn,
 * lost ones; that graphs are what ran; what padding rows may touch; limits and failures. And the counts of rows themselves.
 */
#include "tests/cuda/backend_rig.h"

enum { ROWS = 40, SEQUENCES = 40, PAGES = 160 };

/* --- counts of rows ---------------------------------------------------------------------------------------------------- */

static void test_buckets(void **state)
{
    for (uint32_t max_rows = 1; max_rows <= 700; max_rows++) {
        uint32_t buckets[GPU_BUCKETS_MAX], classes[GPU_CLASSES_MAX], count = gpu_buckets(max_rows, buckets),
                                                                     class_count = gpu_classes(max_rows, classes);
        assert_int_equal(buckets[count - 1], MIN(max_rows, (uint32_t)GPU_BUCKET_ROWS_MAX));
        assert_int_equal(classes[class_count - 1], max_rows);
        for (uint32_t i = 1; i < class_count; i++)
            assert_true(classes[i] > classes[i - 1] && classes[i] <= 2 * classes[i - 1]);
        for (uint32_t rows = 1; rows <= max_rows; rows++) {
            uint32_t padded = gpu_padded_rows(rows, max_rows), at = gpu_class_of(buckets, count, padded);
            assert_true(padded >= rows && padded <= max_rows && padded < 2 * rows + 1);
            assert_int_equal(gpu_padded_rows(padded, max_rows), padded);
            if (rows <= GPU_BUCKET_ROWS_MAX)
                assert_int_equal(buckets[at], padded); /* has a graph */
            else
                assert_true(at == count && padded - rows < GPU_ROWS_STEP);
        }
    }
    uint32_t classes[GPU_CLASSES_MAX], count = gpu_classes(UINT32_MAX, classes);
    assert_true(count <= GPU_CLASSES_MAX && classes[count - 1] == UINT32_MAX);
    assert_int_equal(gpu_padded_rows(UINT32_MAX, UINT32_MAX), UINT32_MAX);
    assert_int_equal(gpu_padded_rows(0, 40), 1);
}

/* --- the same bytes ------------------------------------------------------------------------------------------------------ */

/* The step's rows: sequence i takes part as row i, local or not; `held` counts what it has. */
static void fill_rows(struct backend_row *rows, uint32_t count, uint32_t *held, uint32_t salt)
{
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = (struct backend_row){.needs_output = true,
                                       .sequence = i + 1,
                                       .token = (i * 31 + held[i] * 7 + salt) % rig_model->shape.vocab,
                                       .position = held[i],
                                       .local = i % 5 != 1 && i % 5 != 2};
        held[i]++;
    }
}

static void same_step(struct rig *a, struct rig *b, const struct backend_row *rows, uint32_t count)
{
    rig_step(a, rows, count);
    rig_step(b, rows, count);
    assert_int_equal(a->sent_bytes, b->sent_bytes);
    assert_memory_equal(a->sent, b->sent, a->sent_bytes);
    assert_memory_equal(a->logits, b->logits, (size_t)count * rig_model->shape.vocab * sizeof(float));
    for (size_t i = 0; i < (size_t)count * rig_model->shape.vocab; i++)
        assert_true(a->logits[i] == a->logits[i]); /* not NaN: nobody read what was not written */
}

/* Whether so many rows, or one more or less, are what a graph is for. */
static bool is_near_a_bucket(uint32_t count)
{
    uint32_t buckets[GPU_BUCKETS_MAX], bucket_count = gpu_buckets(ROWS, buckets);
    bool near_one = false;

    for (uint32_t i = 0; i < bucket_count; i++)
        near_one |= count + 1 >= buckets[i] && count <= buckets[i] + 1;
    return near_one;
}

static void test_same_bytes(void **state)
{
    struct rig graphs, plain;
    struct backend_row rows[ROWS];
    uint32_t held[SEQUENCES] = {0}, segments = rig_model->shape.layers + 1, steps = 0;

    rig_open(&graphs, fastdecode_device.ops, rig_config(ROWS), PAGES);
    rig_open(&plain, fastdecode_device.ops, rig_config(ROWS), PAGES);
    cuda_graphs_close(plain.batch);
    assert_int_equal(graphs.batch->graphs.buckets, 8); /* 1 2 4 8 16 24 32 40 */
    for (uint32_t count = 1; count <= ROWS; count++) {
        if (!is_near_a_bucket(count) && !rig_sample(count, 3))
            continue;
        steps++;
        fill_rows(rows, count, held, count);
        same_step(&graphs, &plain, rows, count);
    }
    for (uint32_t count = ROWS; count >= 3; count -= 3) { /* again, behind steps that left other data: replayed */
        if (!rig_sample(count, 2))
            continue;
        steps++;
        fill_rows(rows, count, held, 100 + count);
        same_step(&graphs, &plain, rows, count);
    }
    assert_int_equal(graphs.batch->graphs.launched, (uint64_t)steps * segments);
    assert_int_equal(plain.batch->graphs.launched, 0);
    rig_close(&graphs);
    rig_close(&plain);
}

/* A worker that is lost in mid-step: its rows' q, k, v go nowhere, o is whatever the caller has. */
static void test_lost_rows(void **state)
{
    struct rig graphs, plain;
    struct backend_row rows[ROWS];
    uint32_t held[SEQUENCES] = {0};
    float zeros[256] = {0};

    rig_open(&graphs, fastdecode_device.ops, rig_config(ROWS), PAGES);
    rig_open(&plain, fastdecode_device.ops, rig_config(ROWS), PAGES);
    cuda_graphs_close(plain.batch);
    for (uint32_t step = 0; step < 3; step++) {
        if (step == 1)
            for (uint32_t i = 1; i <= 2; i++) {
                graphs.q[i] = plain.q[i] = NULL;
                graphs.o[i] = plain.o[i] = zeros;
            }
        fill_rows(rows, 9 + step, held, step);
        same_step(&graphs, &plain, rows, 9 + step);
    }
    assert_true(graphs.batch->graphs.launched > 0);
    rig_close(&graphs);
    rig_close(&plain);
}

/* --- padding --------------------------------------------------------------------------------------------------------------- */

/* 19 rows are computed as 24: nothing behind those is touched, no page but those of the rows' own, and their words are in range. */
static void test_padding(void **state)
{
    enum { COUNT = 19, PADDED = 24 };
    struct rig rig;
    struct backend_row rows[ROWS];
    uint32_t held[SEQUENCES] = {0};

    rig_open(&rig, fastdecode_device.ops, rig_config(ROWS), PAGES);
    fill_rows(rows, ROWS, held, 1); /* all buffers and a page of each local sequence are filled */
    rig_step(&rig, rows, ROWS);
    const size_t x_bytes = (size_t)ROWS * rig_model->shape.hidden * 4, qkv_bytes = (size_t)ROWS * rig.backend->qkv_width * 4,
                 page_bytes = cuda_page_bytes(&rig_model->shape, &rig.backend->range);
    unsigned char *x = on_host(rig.batch->x, x_bytes), *qkv = on_host(rig.batch->qkv, qkv_bytes),
                  *pages = on_host(rig.backend->pool.pages, PAGES * page_bytes);

    for (uint32_t i = 0; i < COUNT; i++)
        rows[i] =
            (struct backend_row){.needs_output = true, .sequence = 1000 + i, .token = 319, .position = 200 + i, .local = false};
    rig_step(&rig, rows, COUNT);
    assert_int_equal(rig.batch->padded_rows, PADDED);
    unsigned char *x_now = on_host(rig.batch->x, x_bytes), *qkv_now = on_host(rig.batch->qkv, qkv_bytes),
                  *pages_now = on_host(rig.backend->pool.pages, PAGES * page_bytes);
    uint32_t *words = on_host(rig.batch->words, 2 * ROWS * sizeof *words);
    const size_t x_own = x_bytes / ROWS * PADDED, qkv_own = qkv_bytes / ROWS * PADDED;
    assert_memory_equal(x + x_own, x_now + x_own, x_bytes - x_own);
    assert_memory_equal(qkv + qkv_own, qkv_now + qkv_own, qkv_bytes - qkv_own);
    assert_memory_equal(pages, pages_now, PAGES * page_bytes);
    for (uint32_t row = COUNT; row < PADDED; row++)
        assert_true(words[row] == 0 && words[ROWS + row] == 0); /* not what the step before had there */
    free(x), free(qkv), free(pages), free(x_now), free(qkv_now), free(pages_now), free(words);
    rig_close(&rig);
}

/* Rows beyond the largest bucket: prompts. */
static void test_without_a_graph(void **state)
{
    enum { PROMPT = 300 };
    struct rig rig;
    struct backend_row rows[PROMPT];

    rig_open(&rig, fastdecode_device.ops, rig_config(RIG_ROWS_MAX), PAGES);
    assert_int_equal(rig.batch->graphs.buckets, GPU_BUCKETS_MAX);
    for (uint32_t i = 0; i < PROMPT; i++)
        rows[i] = (struct backend_row){
            .needs_output = true, .sequence = 1 + i / 150, .token = i % 300, .position = i % 150, .local = true};
    rig_step(&rig, rows, PROMPT);
    assert_int_equal(rig.batch->padded_rows, 320);
    assert_int_equal(rig.batch->graphs.launched, 0);
    for (uint32_t i = 0; i < 2; i++) /* and then they decode */
        rows[i] = (struct backend_row){.needs_output = true, .sequence = 1 + i, .token = 5, .position = 150, .local = true};
    rig_step(&rig, rows, 2);
    assert_int_equal(rig.batch->graphs.launched, rig_model->shape.layers + 1);
    rig_close(&rig);
}

/* --- limits and failures --------------------------------------------------------------------------------------------------- */

static void test_limits(void **state)
{
    struct rig rig, plain;
    struct backend_row rows[ROWS];
    uint32_t held[SEQUENCES] = {0}, segments = rig_model->shape.layers + 1;

    rig_open(&rig, fastdecode_device.ops, rig_config(ROWS), PAGES);
    rig_open(&plain, fastdecode_device.ops, rig_config(ROWS), PAGES);
    cuda_graphs_close(plain.batch);
    cuda_graphs_close(rig.batch);
    cuda_graphs_open(rig.batch, 3 * segments + 1, UINT64_MAX); /* whole buckets, fewest rows first: 1 2 4 */
    assert_int_equal(rig.batch->graphs.buckets, 3);
    fill_rows(rows, 4, held, 1);
    same_step(&rig, &plain, rows, 4);
    assert_int_equal(rig.batch->graphs.launched, segments);
    fill_rows(rows, 5, held, 2);
    same_step(&rig, &plain, rows, 5);
    assert_int_equal(rig.batch->graphs.launched, segments);
    cuda_graphs_close(rig.batch);
    cuda_graphs_open(rig.batch, 0, UINT64_MAX);
    assert_int_equal(rig.batch->graphs.buckets, 0);
    cuda_graphs_close(rig.batch);
    cuda_graphs_open(rig.batch, UINT32_MAX, 0);
    assert_int_equal(rig.batch->graphs.buckets, 0);
#ifdef FD_TESTS_CUDA_RUNTIME_API_H /* the emulated device, which says what a graph takes */
    cuda_graphs_close(rig.batch);
    cuda_graphs_open(rig.batch, UINT32_MAX, 2 * segments * emulate_graph_bytes);
    assert_int_equal(rig.batch->graphs.buckets, 2);
#endif
    fill_rows(rows, 7, held, 3);
    same_step(&rig, &plain, rows, 7);
    rig_close(&rig);
    rig_close(&plain);
}

#ifdef FD_TESTS_CUDA_RUNTIME_API_H
/* No memory for the graphs, or in the middle of a bucket: what could be made is used, the rest is launched plainly. */
static void test_failures(void **state)
{
    struct rig rig, plain;
    struct backend_row rows[ROWS];
    uint32_t held[SEQUENCES] = {0}, segments = rig_model->shape.layers + 1;
    const uint64_t graph_bytes = emulate_graph_bytes;
    size_t left, total, before;

    emulate_graph_bytes = UINT64_MAX >> 1;
    rig_open(&rig, fastdecode_device.ops, rig_config(ROWS), PAGES);
    assert_int_equal(rig.batch->graphs.buckets, 0);
    emulate_graph_bytes = graph_bytes;
    rig_open(&plain, fastdecode_device.ops, rig_config(ROWS), PAGES);
    cuda_graphs_close(plain.batch);
    fill_rows(rows, 6, held, 1);
    same_step(&rig, &plain, rows, 6);

    cuda_graphs_close(rig.batch);
    assert_int_equal(cudaMemGetInfo(&before, &total), cudaSuccess);
    emulate_graph_bytes = before / (2 * segments + 1); /* the third bucket's second graph fails */
    cuda_graphs_open(rig.batch, UINT32_MAX, UINT64_MAX);
    assert_int_equal(rig.batch->graphs.buckets, 2);
    assert_int_equal(cudaMemGetInfo(&left, &total), cudaSuccess);
    assert_true(left == before - 2 * segments * emulate_graph_bytes); /* the third's first was given back */
    fill_rows(rows, 2, held, 2);
    same_step(&rig, &plain, rows, 2);
    assert_int_equal(rig.batch->graphs.launched, segments);
    fill_rows(rows, 3, held, 3);
    same_step(&rig, &plain, rows, 3);
    rig_close(&rig);
    emulate_graph_bytes = graph_bytes;
    rig_close(&plain);
}

/* A call that a capture must not contain spoils it: the stream then takes nothing more, and ending the capture gives no graph. */
static void check_spoiled_captures(cudaStream_t stream, cudaEvent_t event, cudaGraphExec_t exec)
{
    unsigned char bytes[4] = {1, 2, 3, 4};
    cudaGraph_t graph;
    void *memory;

    for (int what = 0; what < 4; what++) {
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
        cudaError_t said = what == 0   ? cudaStreamSynchronize(stream)
                           : what == 1 ? cudaMalloc(&memory, 16)
                           : what == 2 ? cudaEventRecord(event, stream)
                                       : cudaFree(NULL);
        assert_int_equal(said, cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
        const cudaError_t then[] = {
            cudaMemsetAsync(bytes, 9, 2, stream), cudaMemcpyAsync(bytes, bytes + 2, 2, cudaMemcpyHostToDevice, stream),
            cudaEventRecord(event, stream),       cudaGraphLaunch(exec, stream),
            cudaGraphUpload(exec, stream),        cudaStreamSynchronize(stream),
        };
        for (size_t i = 0; i < ARRAY_COUNT(then); i++)
            assert_int_equal(then[i], cudaErrorStreamCaptureInvalidated);
        (void)cudaGetLastError();
        gpu_fill(bytes, 2, 0, stream); /* a launch says so behind it */
        assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        (void)cudaGetLastError();
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        assert_memory_equal(bytes, ((unsigned char[]){1, 2, 3, 4}), 4);
        assert_int_equal(cudaMemsetAsync(bytes, 1, 1, stream), cudaSuccess); /* the stream is as ever */
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    }
}

static void test_emulated_capture(void **state)
{
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    unsigned char bytes[4] = {1, 2, 3, 4};

    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(rig_stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(bytes + 1, 9, 2, rig_stream), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(rig_stream, &graph), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(rig_stream), cudaSuccess);
    assert_memory_equal(bytes, ((unsigned char[]){1, 2, 3, 4}), 4); /* a capture runs nothing */
    assert_int_equal(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    check_spoiled_captures(rig_stream, event, exec);
    for (int launch = 0; launch < 2; launch++) {
        bytes[1] = bytes[2] = 0;
        assert_int_equal(cudaGraphLaunch(exec, rig_stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(rig_stream), cudaSuccess);
        assert_memory_equal(bytes, ((unsigned char[]){1, 9, 9, 4}), 4);
    }
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    cudaEventDestroy(event);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets),  cmocka_unit_test(test_same_bytes),       cmocka_unit_test(test_lost_rows),
        cmocka_unit_test(test_padding),  cmocka_unit_test(test_without_a_graph),  cmocka_unit_test(test_limits),
#ifdef FD_TESTS_CUDA_RUNTIME_API_H
        cmocka_unit_test(test_failures), cmocka_unit_test(test_emulated_capture),
#endif
    };
    const struct tiny_llama tiny = TINY_LLAMA;
    setenv("FD_CUDA_TRIAL_MS", "0", 1); /* two backends choose the same algorithms: their bytes are compared */
    return rig_begin(&tiny) ? rig_end(cmocka_run_group_tests_name("cuda graphs", tests, NULL, NULL)) : 0;
}

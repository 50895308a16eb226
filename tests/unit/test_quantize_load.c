// test_quantize_load.c: a model quantized while it is loaded computes the same bits as the file that `fastdecode quantize` makes of
// it, in int8 and in f32, and from the packed file of an earlier start.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/model.h"
#include "kernels/backend/backend.h"
#include "kernels/dispatch/kernels.h"
#include "services/fastdecode/model/quantize.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

enum { ROWS = 8, VOCAB = 320, LAYERS = 2 };

static char in[64], out[64], packed[64];
static struct thread_pool *pool;

static int open_files(void **state)
{
    struct error error;
    snprintf(in, sizeof in, "/tmp/test_quantize_load.%d.in", (int)getpid());
    snprintf(packed, sizeof packed, "/var/tmp/test_quantize_load.%d.fdw", (int)getpid());
    snprintf(out, sizeof out, "/tmp/test_quantize_load.%d.out", (int)getpid());
    return kernels_init(NULL, &error) || thread_pool_open(2, &pool);
}

static int close_files(void **state)
{
    unlink(in);
    unlink(out);
    unlink(packed);
    thread_pool_close(pool);
    return 0;
}

static void write_llama(enum tensor_type type)
{
    struct tiny_llama tiny = TINY_LLAMA;

    tiny.type = tiny.embedding_type = type;
    tiny.biases = true;
    gguf_write_llama(in, &tiny);
}

// Makes the last value of a matrix infinite; its file is F16.
static void break_matrix(void)
{
    const uint16_t infinity = 0x7c00;
    struct model *model;
    struct error error;

    assert_int_equal(model_open(in, &model, &error), STATUS_OK);
    const struct tensor_view *down = &model->layers[LAYERS - 1].down;
    long at = (long)((const unsigned char *)down->data + down->bytes - gguf_bytes(model->gguf)) - (long)sizeof infinity;
    model_close(model);
    FILE *file = fopen(in, "r+b");
    assert_true(file && !fseek(file, at, SEEK_SET) && fwrite(&infinity, sizeof infinity, 1, file) == 1);
    fclose(file);
}

static struct backend_config config_of(const struct model *model, enum compute_mode compute, uint32_t bits, const char *packed_path)
{
    return (struct backend_config){.model = model,
                                   .compute = compute,
                                   .quantize_bits = bits,
                                   .packed_path = packed_path,
                                   .pool = pool,
                                   .max_rows = ROWS,
                                   .max_batches = 1,
                                   .context_tokens = 64,
                                   .kv_type = 1,
                                   .page_tokens = 16,
                                   .max_sequences = 1,
                                   .local_pool_bytes = 1 << 20};
}

// Computes the logits of a sequence of ROWS tokens. Returns the bytes of the weights as planned.
static uint64_t run(const char *path, enum compute_mode compute, uint32_t bits, const char *packed_path, float logits[ROWS][VOCAB],
                    char *level)
{
    static struct backend_sample samples[ROWS];
    static struct sampler_result results[ROWS];
    struct backend_row rows[ROWS];
    uint32_t index[ROWS], bad;
    struct model *model;
    struct backend *backend;
    struct backend_batch *batch;
    struct backend_plan plan;
    struct backend_info info;
    struct error error;

    assert_int_equal(model_open(path, &model, &error), STATUS_OK);
    const struct backend_config config = config_of(model, compute, bits, packed_path);
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_OK);
    assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_OK);
    backend_cpu.info(backend, &info);
    strcpy(level, info.level);
    assert_int_equal(backend_cpu.batch_open(backend, &batch, &error), STATUS_OK);
    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = (struct backend_row){.sequence = 1, .token = i * 7 + 3, .position = i, .local = true, .needs_output = true};
        samples[i] = (struct backend_sample){.token = 7, .result = &results[i], .logits = logits[i]};
        index[i] = i;
    }
    assert_int_equal(backend_cpu.begin(batch, rows, ROWS, &bad, &error), STATUS_OK);
    for (uint32_t s = 0; s <= LAYERS; s++) {
        backend_cpu.segment(batch, s, &(struct backend_links){0});
        if (s < LAYERS)
            backend_cpu.attend(batch, s);
    }
    backend_cpu.head(batch, index, samples, ROWS);
    backend_cpu.batch_close(batch);
    backend_cpu.close(backend);
    model_close(model);
    return plan.weight_bytes;
}

static void the_same_bits_as_from_the_file(void **state)
{
    static const struct {
        enum tensor_type from, to;
        uint32_t bits;
        enum compute_mode compute;
    } cases[] = {
        {TENSOR_F16, TENSOR_Q4_1, 4, COMPUTE_INT8}, {TENSOR_F32, TENSOR_Q4_1, 4, COMPUTE_AUTO},
        {TENSOR_BF16, TENSOR_Q4_1, 4, COMPUTE_F32}, {TENSOR_BF16, TENSOR_Q8_0, 8, COMPUTE_INT8},
        {TENSOR_F16, TENSOR_Q8_0, 8, COMPUTE_F32},
    };
    static float loaded[ROWS][VOCAB], filed[ROWS][VOCAB], plain[ROWS][VOCAB];

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        const struct quantize_request request = {.in = in, .out = out, .type = cases[i].to, .pool = pool};
        struct quantize_result result;
        struct error error;
        char loaded_level[32], filed_level[32], unused[32];

        write_llama(cases[i].from);
        assert_int_equal(quantize_file(&request, &result, &error), STATUS_OK);
        uint64_t loaded_bytes = run(in, cases[i].compute, cases[i].bits, NULL, loaded, loaded_level);
        uint64_t filed_bytes = run(out, cases[i].compute, 0, NULL, filed, filed_level);
        run(in, COMPUTE_F32, 0, NULL, plain, unused);
        assert_memory_equal(loaded, filed, sizeof loaded);
        assert_true(loaded_bytes == filed_bytes);
        assert_string_equal(loaded_level, filed_level);
        assert_memory_not_equal(loaded, plain, sizeof loaded); // something was quantized
    }
}

// The packed file holds what was quantized, and one of weights as they are, or in other bits, is not taken for it.
static void the_packed_file_holds_it(void **state)
{
    static const enum compute_mode modes[] = {COMPUTE_INT8, COMPUTE_F32};
    static const uint32_t bits[] = {4, 0, 8, 4};
    static float wanted[ROWS][VOCAB], written[ROWS][VOCAB], read[ROWS][VOCAB];
    char level[32];

    write_llama(TENSOR_F16);
    for (size_t m = 0; m < ARRAY_COUNT(modes); m++)
        for (size_t b = 0; b < ARRAY_COUNT(bits); b++) {
            struct stat before, after;
            run(in, modes[m], bits[b], NULL, wanted, level);
            run(in, modes[m], bits[b], packed, written, level);
            assert_int_equal(stat(packed, &before), 0);
            run(in, modes[m], bits[b], packed, read, level);
            assert_int_equal(stat(packed, &after), 0);
            assert_true(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec); // was not written again
            assert_memory_equal(written, wanted, sizeof wanted);
            assert_memory_equal(read, wanted, sizeof wanted);
        }
}

static void refusals(void **state)
{
    struct model *model;
    struct backend *backend;
    struct backend_plan plan;
    struct error error;

    write_llama(TENSOR_Q8_0);
    assert_int_equal(model_open(in, &model, &error), STATUS_OK);
    struct backend_config config = config_of(model, COMPUTE_AUTO, 4, NULL);
    assert_false(backend_quantizes(model, 4));
    assert_int_equal(backend_cpu.plan(&config, &plan, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "has its matrices in Q8_0 already"));
    model_close(model);
    write_llama(TENSOR_F16);
    break_matrix();
    assert_int_equal(model_open(in, &model, &error), STATUS_OK);
    assert_true(backend_quantizes(model, 4));
    config = config_of(model, COMPUTE_AUTO, 4, NULL);
    assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_DATA_LOSS);
    assert_non_null(strstr(error.text, "cannot be quantized: a value is not finite"));
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits_as_from_the_file), cmocka_unit_test(the_packed_file_holds_it),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_files, close_files);
}

/* test_cuda_quantize.c: a model quantized while it is loaded (--quantize) gives the same bytes on the device, and takes as much of it, as
 * the file that `fastdecode quantize` makes of it.
 */
#include <stdio.h>
#include <unistd.h>

#include "services/fastdecode/model/quantize.h"
#include "tests/cuda/backend_rig.h"

enum { ROWS = 40, PAGES = 32 }; /* more rows than are multiplied directly, then few */

static char in[64], out[64], packed[64];

static void write_llama(enum tensor_type type)
{
    struct tiny_llama tiny = TINY_LLAMA;

    tiny.type = tiny.embedding_type = type;
    tiny.biases = true;
    gguf_write_llama(in, &tiny);
}

struct result {
    char level[32];
    uint64_t weight_bytes;
    float *logits; /* of both steps; the caller's */
    size_t bytes;
};

/* The logits of a prompt and of a token behind it. */
static void run(const char *path, uint32_t bits, struct result *result)
{
    struct rig rig;
    struct backend_row rows[ROWS];
    struct backend_plan plan;
    struct backend_info info;
    struct error error;

    assert_int_equal(model_open(path, &rig_model, &error), STATUS_OK);
    struct backend_config config = rig_config(ROWS);
    config.quantize_bits = bits;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_OK);
    rig_open(&rig, fastdecode_device.ops, config, PAGES);
    fastdecode_device.ops->info(rig.backend, &info);
    snprintf(result->level, sizeof result->level, "%s", info.level);
    result->weight_bytes = plan.device_weight_bytes;
    const size_t row_bytes = rig_model->shape.vocab * sizeof(float);
    result->bytes = (ROWS + 2) * row_bytes;
    result->logits = malloc(result->bytes);
    assert_non_null(result->logits);
    rig_step(&rig, rows, rig_rows(rows, 0, 1, 0, ROWS, true));
    memcpy(result->logits, rig.logits, ROWS * row_bytes);
    rig_step(&rig, rows, rig_rows(rows, 0, 1, ROWS, 2, true));
    memcpy((unsigned char *)result->logits + ROWS * row_bytes, rig.logits, 2 * row_bytes);
    rig_close(&rig);
    model_close(rig_model);
    rig_model = NULL;
}

static void the_same_bytes_as_from_the_file(void **state)
{
    static const struct {
        enum tensor_type from, to;
        uint32_t bits;
        const char *level;
    } cases[] = {
        {TENSOR_F16, TENSOR_Q4_1, 4, "4-bit/f16/cuda"},  {TENSOR_F32, TENSOR_Q4_1, 4, "4-bit/f16/cuda"},
        {TENSOR_BF16, TENSOR_Q4_1, 4, "4-bit/f16/cuda"}, {TENSOR_BF16, TENSOR_Q8_0, 8, "8-bit/f16/cuda"},
        {TENSOR_F16, TENSOR_Q8_0, 8, "8-bit/f16/cuda"},
    };

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        const struct quantize_request request = {.in = in, .out = out, .type = cases[i].to, .pool = rig_pool};
        struct result loaded, filed, plain;
        struct quantize_result quantized;
        struct error error;

        write_llama(cases[i].from);
        assert_int_equal(quantize_file(&request, &quantized, &error), STATUS_OK);
        run(in, cases[i].bits, &loaded);
        run(out, 0, &filed);
        run(in, 0, &plain);
        assert_memory_equal(loaded.logits, filed.logits, loaded.bytes);
        assert_memory_not_equal(loaded.logits, plain.logits, loaded.bytes);
        assert_true(loaded.weight_bytes == filed.weight_bytes && loaded.weight_bytes < plain.weight_bytes);
        assert_string_equal(loaded.level, filed.level);
        assert_string_equal(loaded.level, cases[i].level);
        free(loaded.logits), free(filed.logits), free(plain.logits);
    }
}

/* Weights that come from disk each step are quantized when their file is written, and a file of other bits is not taken for it. */
static void quantized_weights_come_from_disk(void **state)
{
    static const uint32_t bits[] = {4, 8};
    struct tiny_llama tiny = TINY_LLAMA;
    struct gguf_build build = {0};
    struct backend_row rows[ROWS];
    struct backend_plan plan;
    struct error error;

    tiny.layers = 6, tiny.type = TENSOR_F16;
    gguf_build_llama(&build, &tiny);
    rig_model_open(&build);
    for (size_t i = 0; i < ARRAY_COUNT(bits); i++) {
        struct backend_config config = rig_config(ROWS);
        struct rig resident, streamed;
        config.quantize_bits = bits[i];
        rig_open(&resident, fastdecode_device.ops, config, PAGES);
        config.packed_path = packed;
        assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_OK);
        for (config.weights_memory = plan.device_weight_bytes; plan.streamed_bytes < plan.device_weight_bytes / 3;
             config.weights_memory -= 256)
            assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_OK);
        config.weights_memory += 256;
        config.weights_host_memory = plan.weight_bytes * 3 / 4;
        assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_OK);
        assert_true(plan.disk_bytes > 0);
        assert_string_equal(plan.weights_kind, bits[i] == 4 ? "cuda-4bit" : "cuda-8bit");
        rig_open(&streamed, fastdecode_device.ops, config, PAGES);
        rig_step(&resident, rows, rig_rows(rows, 0, 1, 0, 8, true));
        rig_step(&streamed, rows, rig_rows(rows, 0, 1, 0, 8, true));
        assert_memory_equal(resident.logits, streamed.logits, (size_t)8 * rig_model->shape.vocab * sizeof(float));
        rig_close(&streamed);
        rig_close(&resident);
    }
    rig_model_close();
}

/* Makes the last value of a matrix infinite; its file is F16. */
static void break_matrix(void)
{
    const uint16_t infinity = 0x7c00;
    struct model *model;
    struct error error;

    assert_int_equal(model_open(in, &model, &error), STATUS_OK);
    const struct tensor_view *down = &model->layers[model->shape.layers - 1].down;
    long at = (long)((const unsigned char *)down->data + down->bytes - gguf_bytes(model->gguf)) - (long)sizeof infinity;
    model_close(model);
    FILE *file = fopen(in, "r+b");
    assert_true(file && !fseek(file, at, SEEK_SET) && fwrite(&infinity, sizeof infinity, 1, file) == 1);
    fclose(file);
}

static void refusals(void **state)
{
    struct backend_plan plan;
    struct backend *backend;
    struct error error;

    write_llama(TENSOR_Q8_0);
    assert_int_equal(model_open(in, &rig_model, &error), STATUS_OK);
    struct backend_config config = rig_config(ROWS);
    config.quantize_bits = 4;
    assert_int_equal(fastdecode_device.ops->plan(&config, &plan, &error), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "has its matrices in Q8_0 already"));
    model_close(rig_model);
    write_llama(TENSOR_F16);
    break_matrix();
    assert_int_equal(model_open(in, &rig_model, &error), STATUS_OK);
    config.model = rig_model;
    assert_int_equal(fastdecode_device.ops->open(&config, &backend, &error), STATUS_DATA_LOSS);
    assert_non_null(strstr(error.text, "cannot be quantized: a value is not finite"));
    model_close(rig_model);
    rig_model = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bytes_as_from_the_file),
                                       cmocka_unit_test(quantized_weights_come_from_disk), cmocka_unit_test(refusals)};

    setenv("FD_CUDA_TRIAL_MS", "0", 1); /* backends choose the same algorithms: their bytes are compared */
    snprintf(in, sizeof in, "/tmp/test_cuda_quantize.%d.in", (int)getpid());
    snprintf(packed, sizeof packed, "/var/tmp/test_cuda_quantize.%d.fdw", (int)getpid());
    snprintf(out, sizeof out, "/tmp/test_cuda_quantize.%d.out", (int)getpid());
    const int failed = rig_begin(NULL) ? rig_end(cmocka_run_group_tests_name("cuda quantize", tests, NULL, NULL)) : 0;
    unlink(in), unlink(out), unlink(packed);
    return failed;
}

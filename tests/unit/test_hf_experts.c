/* test_hf_experts.c: the experts of a directory of gpt-oss: read in GGUF's order from where they lie, the same model in both forms, and a line for
 * each way in which they do not fit together. */
#include "tests/unit/cpu_weights_rig.h"
#include "tests/unit/hf_assert.h"
#include "tests/unit/hf_build_gpt_oss.h"

#include "kernels/quant/dequant.h"
#include "services/fastdecode/model/quantize.h"

#include <math.h>

/* The bytes of a tensor of the shard. */
static const unsigned char *in_shard(struct hf_build *build, const char *name)
{
    struct hf_built_file *file = hf_build_find(build, HF_SHARD);
    char quoted[128];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *entry = strstr(file->text, quoted);
    assert_non_null(entry);
    return file->data.bytes + strtoul(strstr(entry, "\"data_offsets\":[") + strlen("\"data_offsets\":["), NULL, 10);
}

/* All values of a tensor as f32; the caller frees them. */
static float *values_of(const struct gguf *gguf, const char *name, enum tensor_type type, uint32_t columns, uint32_t rows,
                        uint32_t matrices)
{
    const struct gguf_tensor *t = gguf_find_tensor(gguf, name);
    assert_non_null(t);
    assert_int_equal(t->type, type);
    assert_true(t->dims[0] == columns && t->dims[1] == rows && t->dims[2] == matrices);
    uint64_t count = (uint64_t)columns * rows * matrices;
    float *out = malloc(count * sizeof *out);
    unsigned char *blocks = malloc(t->bytes);
    assert_true(out && blocks);
    if (t->stored)
        assert_true(stored_rows_read(t->stored, 0, count, blocks));
    dequantize(type, t->stored ? blocks : t->data, count, out);
    free(blocks);
    return out;
}

static float float_at(enum tensor_type type, const unsigned char *bytes, size_t index)
{
    float value;
    dequantize(type, bytes + index * tensor_type_info((uint32_t)type)->block_bytes, 1, &value);
    return value;
}

static void floats_are_turned(void **state)
{
    static const struct {
        const char *name;
        enum tensor_type type;
    } types[] = {{"F32", TENSOR_F32}, {"F16", TENSOR_F16}, {"BF16", TENSOR_BF16}};
    static const char *const halves[] = {"gate", "up"};
    for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
        const enum tensor_type type = types[i].type;
        struct hf_build build;
        char name[64];
        hf_build_gpt_oss(&build, types[i].name, false);
        struct gguf *gguf = open_kept(&build);
        const unsigned char *gate_up = in_shard(&build, "model.layers.1.mlp.experts.gate_up_proj");
        const unsigned char *bias = in_shard(&build, "model.layers.1.mlp.experts.gate_up_proj_bias");
        const unsigned char *down = in_shard(&build, "model.layers.1.mlp.experts.down_proj");
        for (size_t half = 0; half < 2; half++) {
            snprintf(name, sizeof name, "blk.1.ffn_%s_exps.weight", halves[half]);
            float *w = values_of(gguf, name, type, OSS_HIDDEN, OSS_FFN, OSS_EXPERTS);
            snprintf(name, sizeof name, "blk.1.ffn_%s_exps.bias", halves[half]);
            float *b = values_of(gguf, name, type, OSS_FFN, OSS_EXPERTS, 1);
            for (size_t e = 0; e < OSS_EXPERTS; e++)
                for (size_t o = 0; o < OSS_FFN; o++) {
                    assert_true(b[e * OSS_FFN + o] == float_at(type, bias, (e * OSS_FFN + o) * 2 + half));
                    for (size_t c = 0; c < OSS_HIDDEN; c++)
                        assert_true(w[(e * OSS_FFN + o) * OSS_HIDDEN + c] ==
                                    float_at(type, gate_up, ((e * OSS_HIDDEN + c) * OSS_FFN + o) * 2 + half));
                }
            free(w);
            free(b);
        }
        float *w = values_of(gguf, "blk.1.ffn_down_exps.weight", type, OSS_FFN, OSS_HIDDEN, OSS_EXPERTS);
        for (size_t e = 0; e < OSS_EXPERTS; e++)
            for (size_t o = 0; o < OSS_HIDDEN; o++)
                for (size_t c = 0; c < OSS_FFN; c++)
                    assert_true(w[(e * OSS_HIDDEN + o) * OSS_FFN + c] == float_at(type, down, (e * OSS_FFN + c) * OSS_HIDDEN + o));
        free(w);
        free(values_of(gguf, "blk.0.ffn_down_exps.bias", type, OSS_HIDDEN, OSS_EXPERTS, 1));
        assert_false(gguf_has(gguf, "fastdecode.gate_up_interleaved"));
        gguf_close(gguf);
        hf_build_free(&build);
    }
}

/* Value `column` of row `row` of blocks and scales in the shard. */
static float mx_value(const unsigned char *blocks, const unsigned char *scales, size_t row, size_t columns, size_t column)
{
    static const float codes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const size_t at = row * columns + column;
    const unsigned code = blocks[at / 2] >> (at % 2 * 4) & 15u;
    return ldexpf(code & 8 ? -codes[code & 7] : codes[code], scales[at / 32] - 127);
}

static void blocks_get_their_scales(void **state)
{
    static const char *const halves[] = {"gate", "up"};
    struct hf_build build;
    char name[64];
    hf_build_gpt_oss(&build, "BF16", true);
    struct gguf *gguf = open_kept(&build);
    const unsigned char *blocks = in_shard(&build, "model.layers.1.mlp.experts.gate_up_proj_blocks");
    const unsigned char *scales = in_shard(&build, "model.layers.1.mlp.experts.gate_up_proj_scales");
    for (size_t half = 0; half < 2; half++) {
        snprintf(name, sizeof name, "blk.1.ffn_%s_exps.weight", halves[half]);
        float *w = values_of(gguf, name, TENSOR_MXFP4, OSS_HIDDEN, OSS_FFN, OSS_EXPERTS);
        for (size_t o = 0; o < OSS_EXPERTS * OSS_FFN; o++) // an expert has twice as many rows there
            for (size_t c = 0; c < OSS_HIDDEN; c++)
                assert_true(w[o * OSS_HIDDEN + c] == mx_value(blocks, scales, 2 * o + half, OSS_HIDDEN, c));
        free(w);
    }
    blocks = in_shard(&build, "model.layers.0.mlp.experts.down_proj_blocks");
    scales = in_shard(&build, "model.layers.0.mlp.experts.down_proj_scales");
    float *w = values_of(gguf, "blk.0.ffn_down_exps.weight", TENSOR_MXFP4, OSS_FFN, OSS_HIDDEN, OSS_EXPERTS);
    for (size_t o = 0; o < OSS_EXPERTS * OSS_HIDDEN; o++)
        for (size_t c = 0; c < OSS_FFN; c++)
            assert_true(w[o * OSS_FFN + c] == mx_value(blocks, scales, o, OSS_FFN, c));
    free(w);
    gguf_close(gguf);
    hf_build_free(&build);
}

/* --- as a model on the disk ---------------------------------------------------------------------------------------------------- */

struct disk_model {
    char folder[40], out[64];
    struct hf_build build;
};

static void write_model(struct disk_model *disk, const struct hf_gpt_oss *what)
{
    hf_build_gpt_oss_of(&disk->build, what);
    strcpy(disk->folder, "/tmp/fd-experts-XXXXXX");
    assert_non_null(mkdtemp(disk->folder));
    snprintf(disk->out, sizeof disk->out, "%s.gguf", disk->folder);
    hf_build_write(&disk->build, disk->folder);
}

static void remove_model(struct disk_model *disk)
{
    for (uint32_t i = 0; i < disk->build.count; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", disk->folder, disk->build.files[i].name);
        unlink(path);
    }
    unlink(disk->out);
    assert_int_equal(rmdir(disk->folder), 0);
    hf_build_free(&disk->build);
}

static struct model *open_model(const char *path)
{
    struct model *model = NULL;
    struct error error = {0};
    if (model_open(path, &model, &error))
        fail_msg("%s", error.text);
    return model;
}

/* Every byte of blocks and of scales that a sample covers names the model. */
static void the_fingerprint_covers_both(void **state)
{
    static const char *const names[] = {"gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales"};
    struct disk_model disk;
    write_model(&disk, &(struct hf_gpt_oss){"F16", true, OSS_LAYERS, OSS_VOCAB, OSS_FFN});
    struct model *model = open_model(disk.folder);
    const uint64_t first = model->fingerprint;
    assert_int_equal(model->layers[1].up.rows, OSS_EXPERTS * OSS_FFN);
    assert_int_equal(model->layers[1].down.type, TENSOR_MXFP4);
    assert_true(model->layers[1].down.bytes == OSS_EXPERTS * OSS_FFN * OSS_HIDDEN / 32 * 17);
    model_close(model);
    for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%s", names[i]);
        unsigned char *byte = (unsigned char *)(uintptr_t)in_shard(&disk.build, name) + 5;
        *byte ^= 1;
        hf_build_write(&disk.build, disk.folder);
        *byte ^= 1;
        model = open_model(disk.folder);
        assert_int_not_equal(model->fingerprint, first);
        model_close(model);
    }
    remove_model(&disk);
}

/* The same keys and tensors as one GGUF file, in GGUF's order; the caller frees it. */
static unsigned char *as_gguf_file(const struct gguf *gguf, size_t *count)
{
    const unsigned char *bytes = gguf_bytes(gguf);
    struct gguf_bytes out = {0}, data = {0};
    gguf_append(&out, bytes, gguf_tensor_at(gguf, 0)->entry_offset);
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(gguf, i);
        unsigned char *blocks = malloc(t->bytes);
        assert_non_null(blocks);
        gguf_append(&out, bytes + t->entry_offset, 8 + t->name.length + 4 + 8 * t->dim_count + 4);
        gguf_pad(&data, 32);
        gguf_append_number(&out, data.count, 8);
        if (t->stored)
            assert_true(stored_rows_read(t->stored, 0, t->dims[0] * t->dims[1] * t->dims[2], blocks));
        gguf_append(&data, t->stored ? blocks : t->data, t->bytes);
        free(blocks);
    }
    gguf_pad(&out, 32);
    gguf_append(&out, data.bytes, data.count);
    free(data.bytes);
    *count = out.count;
    return out.bytes;
}

static void run_model(struct model *model, enum compute_mode compute, uint32_t quantize_bits, struct rig_output *out)
{
    struct rig rig = {.model = model};
    assert_int_equal(thread_pool_open(2, &rig.pool), STATUS_OK);
    struct backend_config config = rig_config(&rig);
    config.compute = compute;
    config.quantize_bits = quantize_bits;
    rig_open_and_run(&config, 1, out);
    thread_pool_close(rig.pool);
}

static const struct {
    const char *floats;
    bool mxfp4;
} forms[] = {{"F32", false}, {"F16", false}, {"BF16", false}, {"F32", true}, {"BF16", true}};

/* The backend computes with what a file in GGUF's order has, in each way in which weights are loaded. */
static void a_directory_computes_what_its_gguf_file_does(void **state)
{
    static const struct {
        enum compute_mode compute;
        uint32_t bits;
    } ways[] = {{COMPUTE_AUTO, 0}, {COMPUTE_AUTO, 8}, {COMPUTE_AUTO, 4}, {COMPUTE_F32, 0}, {COMPUTE_F32, 8}};
    static struct rig_output of_directory, of_file;
    for (size_t i = 0; i < ARRAY_COUNT(forms); i++) {
        struct disk_model disk;
        struct model *of_bytes = NULL;
        struct error error = {0};
        size_t count;
        write_model(&disk, &(struct hf_gpt_oss){forms[i].floats, forms[i].mxfp4, RIG_LAYERS, RIG_VOCAB, OSS_FFN});
        struct model *model = open_model(disk.folder);
        unsigned char *bytes = as_gguf_file(model->gguf, &count);
        if (model_open_memory("file", bytes, count, &of_bytes, &error))
            fail_msg("%s", error.text);
        for (size_t w = 0; w < ARRAY_COUNT(ways); w++) {
            run_model(model, ways[w].compute, ways[w].bits, &of_directory);
            run_model(of_bytes, ways[w].compute, ways[w].bits, &of_file);
            for (size_t v = 0; v < RIG_VOCAB; v++)
                assert_true(isfinite(of_directory.logits[0][0][v]));
            assert_memory_equal(&of_directory, &of_file, sizeof of_file);
        }
        model_close(of_bytes);
        model_close(model);
        free(bytes);
        remove_model(&disk);
    }
}

static unsigned char *read_whole(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    assert_true(file && fstat(fileno(file), &info) == 0);
    unsigned char *bytes = malloc((size_t)info.st_size);
    *count = fread(bytes, 1, (size_t)info.st_size, file);
    assert_int_equal(*count, info.st_size);
    fclose(file);
    return bytes;
}

static void check_quantized(const struct hf_gpt_oss *what, enum tensor_type type, bool again, struct thread_pool *pool)
{
    struct disk_model disk;
    struct quantize_result result;
    struct error error = {0};
    char in[80];
    size_t count, other;

    write_model(&disk, what);
    struct quantize_request request = {.in = disk.folder, .out = disk.out, .type = type, .pool = pool, .requantize = again};
    if (quantize_file(&request, &result, &error))
        fail_msg("%s", error.text);
    unsigned char *wanted = read_whole(disk.out, &count);
    struct model *model = open_model(disk.folder);
    unsigned char *bytes = as_gguf_file(model->gguf, &other);
    snprintf(in, sizeof in, "%s.in", disk.folder);
    FILE *file = fopen(in, "wb");
    assert_true(file && fwrite(bytes, 1, other, file) == other && fclose(file) == 0);
    request.in = in;
    if (quantize_file(&request, &result, &error))
        fail_msg("%s", error.text);
    unsigned char *found = read_whole(disk.out, &other);
    assert_int_equal(count, other);
    assert_memory_equal(found, wanted, count);
    model_close(open_model(disk.out));
    model_close(model);
    free(bytes);
    free(wanted);
    free(found);
    unlink(in);
    remove_model(&disk);
}

/* `quantize` writes the same bytes of a directory as of its GGUF file. */
static void it_is_quantized_as_its_gguf_file_is(void **state)
{
    static const enum tensor_type types[] = {TENSOR_Q4_1, TENSOR_Q8_0, TENSOR_F16};
    const struct hf_gpt_oss large = {"F32", true, 1, OSS_VOCAB, 175104}; /* a matrix fills more than a buffer */
    struct thread_pool *pool;
    assert_int_equal(thread_pool_open(2, &pool), STATUS_OK);
    for (size_t i = 0; i < ARRAY_COUNT(types); i++)
        for (int mxfp4 = 0; mxfp4 < 2; mxfp4++)
            check_quantized(&(struct hf_gpt_oss){"F32", mxfp4, OSS_LAYERS, OSS_VOCAB, OSS_FFN}, types[i], types[i] == TENSOR_F16,
                            pool);
    check_quantized(&large, TENSOR_Q8_0, false, pool);
    thread_pool_close(pool);
}

static void a_scale_of_255_is_told_at_the_start(void **state)
{
    static const enum compute_mode modes[] = {COMPUTE_AUTO, COMPUTE_F32};
    struct disk_model disk;
    write_model(&disk, &(struct hf_gpt_oss){"F16", true, RIG_LAYERS, RIG_VOCAB, OSS_FFN});
    ((unsigned char *)(uintptr_t)in_shard(&disk.build, "model.layers.1.mlp.experts.gate_up_proj_scales"))[1] =
        255; // up's first row
    hf_build_write(&disk.build, disk.folder);
    for (size_t i = 0; i < ARRAY_COUNT(modes); i++) {
        struct rig rig = {.model = open_model(disk.folder)};
        struct backend *backend = NULL;
        struct error error = {0};
        assert_int_equal(thread_pool_open(2, &rig.pool), STATUS_OK);
        struct backend_config config = rig_config(&rig);
        config.compute = modes[i];
        assert_int_equal(backend_cpu.open(&config, &backend, &error), STATUS_DATA_LOSS);
        assert_non_null(strstr(error.text, "tensor 'blk.1.ffn_up_exps.weight' cannot be converted: a scale is 255, not a number"));
        thread_pool_close(rig.pool);
        model_close(rig.model);
    }
    remove_model(&disk);
}

/* --- what is refused ------------------------------------------------------------------------------------------------------------ */

#define E0 "model.layers.0.mlp.experts."
#define E1 "model.layers.1.mlp.experts."
#define INVALID STATUS_INVALID_ARGUMENT
#define UNKNOWN STATUS_UNIMPLEMENTED

static const struct change {
    const char *label;
    bool mxfp4;
    const char *file, *from, *to;
    enum status status;
    const char *fragment;
} changes[] = {
    {"blocks without scales", true, HF_SHARD, "\"" E1 "down_proj_scales\"", "\"" E1 "down_proj\"", INVALID,
     "tensor '" E1 "down_proj_blocks': its layer has down_proj, too: expected one of them"},
    {"scales under another layer's name", true, HF_SHARD, "\"" E0 "gate_up_proj_scales\"",
     "\"model.layers.0.self_attn.rotary_emb.inv_freq\"", INVALID,
     "tensor '" E0 "gate_up_proj_blocks': its layer has no gate_up_proj_scales"},
    {"scales without blocks", true, HF_SHARD, "\"" E1 "gate_up_proj_blocks\"", "\"model.layers.1.self_attn.rotary_emb.inv_freq\"",
     INVALID, "tensor '" E1 "gate_up_proj_scales': its layer has no gate_up_proj_blocks"},
    {"blocks beside floats", false, HF_SHARD, "\"" E0 "down_proj_bias\"", "\"" E0 "down_proj_blocks\"", INVALID,
     "tensor '" E0 "down_proj_blocks': its layer has down_proj, too: expected one of them"},
    {"blocks that no key tells of", true, CONFIG, ",\n " OSS_QUANTIZATION, "", INVALID,
     "tensor '" E0 "gate_up_proj_blocks': config.json has no quantization_config whose quant_method is mxfp4"},
    {"floats in another shape", false, HF_SHARD, "\"shape\":[3,32,128]", "\"shape\":[3,128,32]", INVALID,
     "tensor '" E0 "gate_up_proj': shape is [3, 128, 32], expected [3, 32, 128]"},
    {"down in another shape", false, HF_SHARD, "\"shape\":[3,64,32]", "\"shape\":[3,32,64]", INVALID,
     "tensor '" E0 "down_proj': shape is [3, 32, 64], expected [3, 64, 32]"},
    {"floats of two dimensions", false, HF_SHARD, "\"shape\":[3,64,32]", "\"shape\":[192,32]", INVALID,
     "down_proj': shape is [192, 32], expected [3, 64, 32]"},
    {"a bias in another shape", false, HF_SHARD, "\"shape\":[3,128]", "\"shape\":[128,3]", INVALID,
     "tensor '" E0 "gate_up_proj_bias': shape is [128, 3], expected [3, 128]"},
    {"blocks in another shape", true, HF_SHARD, "\"shape\":[3,32,2,16]", "\"shape\":[3,32,1,32]", INVALID,
     "tensor '" E0 "down_proj_blocks': shape is [3, 32, 1, 32], expected [3, 32, 2, 16]"},
    {"blocks of three dimensions", true, HF_SHARD, "\"shape\":[3,32,2,16]", "\"shape\":[3,32,32]", INVALID,
     "down_proj_blocks': shape is [3, 32, 32], expected [3, 32, 2, 16]"},
    {"scales in another shape", true, HF_SHARD, "\"shape\":[3,128,1]", "\"shape\":[1,128,3]", INVALID,
     "tensor '" E0 "gate_up_proj_scales': shape is [1, 128, 3], expected [3, 128, 1]"},
    {"bytes instead of floats", false, HF_SHARD, "\"" E0 "gate_up_proj\":{\"dtype\":\"BF16\",\"shape\":[3,32,128]",
     "\"" E0 "gate_up_proj\":{\"dtype\":\"U8\",\"shape\":[3,32,256]", INVALID,
     "tensor '" E0 "gate_up_proj': dtype is 'U8', expected F32, F16 or BF16"},
    {"floats instead of bytes", true, HF_SHARD, "\"" E0 "gate_up_proj_blocks\":{\"dtype\":\"U8\",\"shape\":[3,128,1,16]",
     "\"" E0 "gate_up_proj_blocks\":{\"dtype\":\"BF16\",\"shape\":[3,128,1,8]", INVALID,
     "tensor '" E0 "gate_up_proj_blocks': dtype is a float, expected U8"},
    {"another dtype", true, HF_SHARD, "\"dtype\":\"U8\"", "\"dtype\":\"F8_E8M0\"", UNKNOWN,
     "dtype is 'F8_E8M0'; supported are F32, F16, BF16"},
    {"bytes elsewhere", false, HF_SHARD, "q_proj.bias\":{\"dtype\":\"BF16\",\"shape\":[32]",
     "q_proj.bias\":{\"dtype\":\"U8\",\"shape\":[64]", UNKNOWN,
     "tensor 'model.layers.0.self_attn.q_proj.bias': dtype is 'U8'; supported are F32"},
    {"another tensor of experts", true, HF_SHARD, "\"" E1 "down_proj_scales\"", "\"" E1 "down_proj_zeros\"", UNKNOWN,
     "tensor '" E1 "down_proj_zeros': GptOssForCausalLM with 2 layers has no such tensor"},
    {"a hidden size of no whole blocks", true, CONFIG, "\"hidden_size\": 32", "\"hidden_size\": 40", INVALID,
     "key 'hidden_size' is 40: with mxfp4 expected a multiple of 32"},
    {"an MLP of no whole blocks", true, CONFIG, "\"intermediate_size\": 64", "\"intermediate_size\": 72", INVALID,
     "key 'intermediate_size' is 72: with mxfp4 expected a multiple of 32"},
    {"more experts", true, CONFIG, "\"num_local_experts\": 3", "\"num_local_experts\": 4", INVALID,
     "gate_up_proj_blocks': shape is [3, 128, 1, 16], expected [4, 128, 1, 16]"},
    {"another method", true, CONFIG, "\"mxfp4\"", "\"gptq\"", UNKNOWN,
     "key 'quant_method' is 'gptq': only mxfp4 is read from a directory"},
    {"no method", true, CONFIG, ", \"quant_method\": \"mxfp4\"", "", UNKNOWN,
     "key 'quantization_config' is an object: only mxfp4 is read"},
    {"a method that is no text", true, CONFIG, "\"mxfp4\"", "4", UNKNOWN, "key 'quant_method' is 4: only mxfp4"},
    {"experts not converted", true, CONFIG, "\"lm_head\"", "\"model.layers.*.mlp.experts\"", UNKNOWN,
     "key 'modules_to_not_convert' is 'model.layers.*.mlp.experts': with mxfp4 it is the experts that are converted"},
    {"modules that are no names", true, CONFIG, "\"lm_head\"", "17", UNKNOWN,
     "key 'modules_to_not_convert' is 17: expected an array of names"},
    {"modules that are no list", true, CONFIG, "[\"model.layers.*.self_attn\", \"lm_head\"]", "\"lm_head\"", UNKNOWN,
     "key 'modules_to_not_convert' is 'lm_head': expected an array of names"},
    {"no scaling of RoPE", true, CONFIG, "\"rope_scaling\"", "\"rope_shape\"", INVALID,
     "key 'rope_scaling' is missing: expected an object"},
    {"another sharpness of the gate", true, CONFIG, "\"swiglu_limit\": 7.0", "\"swiglu_alpha\": 1.5", UNKNOWN,
     "key 'swiglu_alpha' is 1.5: only 1.702 is supported"},
};

static void what_is_wrong_is_told(void **state)
{
    uint32_t failed = 0;
    for (size_t i = 0; i < ARRAY_COUNT(changes); i++) {
        const struct change *c = &changes[i];
        struct hf_build build;
        hf_build_gpt_oss(&build, "BF16", c->mxfp4);
        hf_build_edit(&build, c->file, c->from, c->to);
        failed += !is_refused(&build, c->label, c->status, c->fragment);
    }
    assert_int_equal(failed, 0);
}

/* Experts that are missing are missed as in a GGUF file. */
static void missing_experts_are_told(void **state)
{
    struct disk_model disk;
    struct model *model = NULL;
    struct error error = {0};
    write_model(&disk, &(struct hf_gpt_oss){"BF16", true, OSS_LAYERS, OSS_VOCAB, OSS_FFN});
    hf_build_edit(&disk.build, HF_SHARD, E1 "down_proj_blocks", "model.layers.0.self_attn.rotary_emb.inv_freq");
    hf_build_edit(&disk.build, HF_SHARD, E1 "down_proj_scales", "model.layers.1.self_attn.rotary_emb.inv_freq");
    hf_build_write(&disk.build, disk.folder);
    assert_int_equal(model_open(disk.folder, &model, &error), INVALID);
    assert_non_null(strstr(error.text, "tensor 'blk.1.ffn_down_exps.weight' is missing"));
    remove_model(&disk);
}

static void every_flip_is_survived(void **state)
{
    struct hf_build build;
    hf_build_gpt_oss(&build, "BF16", true);
    assert_flips_are_survived(&build, 9, 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_are_turned),
        cmocka_unit_test(blocks_get_their_scales),
        cmocka_unit_test(the_fingerprint_covers_both),
        cmocka_unit_test(a_directory_computes_what_its_gguf_file_does),
        cmocka_unit_test(it_is_quantized_as_its_gguf_file_is),
        cmocka_unit_test(a_scale_of_255_is_told_at_the_start),
        cmocka_unit_test(what_is_wrong_is_told),
        cmocka_unit_test(missing_experts_are_told),
        cmocka_unit_test(every_flip_is_survived),
    };
    struct error error;

    assert_always(kernels_init(NULL, &error) == STATUS_OK);
    return cmocka_run_group_tests_name("hf_experts", tests, NULL, NULL);
}

/* test_model.c: a model's tables from a valid file, and a line for each way in which metadata and tensors do not fit. */
#include <unistd.h>

#include "common/base/checked.h"
#include "common/model/metadata.h"
#include "common/model/model.h"
#include "tests/cmocka.h"
#include "tests/unit/gguf_build.h"

#define LABEL "tiny.gguf: "

/* A key or tensor that is put into the file besides the tiny model, or left out of it. */
struct change {
    const char *label;
    const char *drop; /* this key or tensor; it may be added again with another value */
    enum { ADD_NOTHING, ADD_U32, ADD_F32, ADD_BOOL, ADD_STRING, ADD_U32_ARRAY, ADD_STRINGS, ADD_MATRIX, ADD_VECTOR } add;
    const char *name;
    double number; /* value, length of an array, or columns of a tensor (8 rows in a matrix) */
    const char *text;
    enum status status;
    const char *fragment;
};

#define EPSILON "llama.attention.layer_norm_rms_epsilon"

static const struct change changes[] = {
    {"no architecture", "general.architecture", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "key 'general.architecture' is missing"},
    {"another architecture", "general.architecture", ADD_STRING, "general.architecture", 0, "mam\nba", STATUS_UNIMPLEMENTED,
     "key 'general.architecture' is 'mam?ba'; supported are: llama, qwen2, qwen3, qwen3moe, phi3, gemma2, gemma3, gpt-oss, granite, olmo2, smollm3, opt, starcoder2"},
    {"architecture is a number", "general.architecture", ADD_U32, "general.architecture", 3, NULL, STATUS_INVALID_ARGUMENT,
     "has type u32, expected a string"},
    {"no layer count", "llama.block_count", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "key 'llama.block_count' is missing"},
    {"no layers", "llama.block_count", ADD_U32, "llama.block_count", 0, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.block_count' is 0, expected 1 to 1024"},
    {"absurd layers", "llama.block_count", ADD_U32, "llama.block_count", 4e9, NULL, STATUS_INVALID_ARGUMENT,
     "is 4000000000, expected 1 to 1024"},
    {"more layers than tensors", "llama.block_count", ADD_U32, "llama.block_count", 1000, NULL, STATUS_INVALID_ARGUMENT,
     "is 1000, the file has 20 tensors"},
    {"a layer that is not there", "llama.block_count", ADD_U32, "llama.block_count", 3, NULL, STATUS_INVALID_ARGUMENT,
     "tensor 'blk.2.attn_norm.weight' is missing"},
    {"a layer too many", "llama.block_count", ADD_U32, "llama.block_count", 1, NULL, STATUS_UNIMPLEMENTED,
     "tensor 'blk.1.attn_norm.weight' at offset"},
    {"pooling of another kind", NULL, ADD_U32, "llama.pooling_type", 5, NULL, STATUS_UNIMPLEMENTED,
     "key 'llama.pooling_type' is 5; supported are 0"},
    {"pooling by name", NULL, ADD_STRING, "llama.pooling_type", 0, "mean", STATUS_INVALID_ARGUMENT, "has type string"},
    {"a rank without a head", NULL, ADD_U32, "llama.pooling_type", 4, NULL, STATUS_INVALID_ARGUMENT,
     "there is no tensor 'cls.output.weight'"},
    {"a head of eight outputs", NULL, ADD_MATRIX, "cls.output.weight", 64, NULL, STATUS_UNIMPLEMENTED,
     "tensor 'cls.output.weight' at offset"},
    {"a head's bias alone", NULL, ADD_VECTOR, "cls.output.bias", 1, NULL, STATUS_UNIMPLEMENTED,
     "tensor 'cls.output.bias' at offset"},
    {"a dense part of another size", NULL, ADD_VECTOR, "cls.bias", 32, NULL, STATUS_UNIMPLEMENTED, "tensor 'cls.bias' at offset"},
    {"layers as a float", "llama.block_count", ADD_F32, "llama.block_count", 2, NULL, STATUS_INVALID_ARGUMENT,
     "has type f32, expected an unsigned integer"},
    {"no hidden size", "llama.embedding_length", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.embedding_length' is missing"},
    {"hidden size of another model", "llama.embedding_length", ADD_U32, "llama.embedding_length", 128, NULL,
     STATUS_INVALID_ARGUMENT, "tensor 'token_embd.weight' at offset"},
    {"absurd hidden size", "llama.embedding_length", ADD_U32, "llama.embedding_length", 1e9, NULL, STATUS_INVALID_ARGUMENT,
     "expected 1 to 131072"},
    {"no MLP size", "llama.feed_forward_length", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.feed_forward_length' is missing"},
    {"MLP sizes by layer", "llama.feed_forward_length", ADD_U32_ARRAY, "llama.feed_forward_length", 2, NULL,
     STATUS_INVALID_ARGUMENT, "has type array of u32, expected an unsigned integer"},
    {"no context length", "llama.context_length", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.context_length' is missing"},
    {"context of 0", "llama.context_length", ADD_U32, "llama.context_length", 0, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.context_length' is 0"},
    {"no heads", "llama.attention.head_count", ADD_U32, "llama.attention.head_count", 0, NULL, STATUS_INVALID_ARGUMENT,
     "is 0, expected 1 to 1024"},
    {"KV heads that do not divide", "llama.attention.head_count_kv", ADD_U32, "llama.attention.head_count_kv", 3, NULL,
     STATUS_INVALID_ARGUMENT, "'llama.attention.head_count_kv' is 3, which does not divide the 4 heads"},
    {"as many KV heads as heads", "llama.attention.head_count_kv", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "tensor 'blk.0.attn_k.weight' at offset"},
    {"odd head size", "llama.attention.key_length", ADD_U32, "llama.attention.key_length", 15, NULL, STATUS_INVALID_ARGUMENT,
     "heads of 15 dimensions"},
    {"absurd head size", "llama.attention.key_length", ADD_U32, "llama.attention.key_length", 4096, NULL, STATUS_INVALID_ARGUMENT,
     "expected 2 to 512"},
    {"another head size", "llama.attention.key_length", ADD_U32, "llama.attention.key_length", 32, NULL, STATUS_UNIMPLEMENTED,
     "'llama.attention.value_length' is 16, the keys have 32 dimensions"},
    {"RoPE wider than a head", "llama.rope.dimension_count", ADD_U32, "llama.rope.dimension_count", 32, NULL,
     STATUS_INVALID_ARGUMENT, "expected an even number up to the 16 dimensions"},
    {"odd RoPE", "llama.rope.dimension_count", ADD_U32, "llama.rope.dimension_count", 7, NULL, STATUS_INVALID_ARGUMENT,
     "is 7, expected an even number"},
    {"RoPE base NaN", "llama.rope.freq_base", ADD_F32, "llama.rope.freq_base", (double)NAN, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.rope.freq_base' is"},
    {"RoPE base 0", "llama.rope.freq_base", ADD_F32, "llama.rope.freq_base", 0, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.rope.freq_base' is 0"},
    {"dynamic scaling", NULL, ADD_STRING, "llama.rope.scaling.type", 0, "dynamic", STATUS_UNIMPLEMENTED,
     "'llama.rope.scaling.type' is 'dynamic': supported are none, linear, yarn, longrope, and factors in rope_freqs.weight"},
    {"infinite scaling", NULL, ADD_F32, "llama.rope.scale_linear", (double)INFINITY, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.rope.scale_linear' is inf"},
    {"no epsilon", EPSILON, ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT, "key '" EPSILON "' is missing: expected a float"},
    {"epsilon NaN", EPSILON, ADD_F32, EPSILON, (double)NAN, NULL, STATUS_INVALID_ARGUMENT, "expected 1e-12 to 1"},
    {"epsilon 0", EPSILON, ADD_F32, EPSILON, 0, NULL, STATUS_INVALID_ARGUMENT, "key '" EPSILON "' is 0, expected"},
    {"negative epsilon", EPSILON, ADD_F32, EPSILON, -1e-5, NULL, STATUS_INVALID_ARGUMENT, "expected 1e-12 to 1"},
    {"experts without their number", NULL, ADD_U32, "llama.expert_count", 8, NULL, STATUS_INVALID_ARGUMENT,
     "key 'llama.expert_used_count' is missing"},
    {"too many experts", NULL, ADD_U32, "llama.expert_count", 5000, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.expert_count' is 5000, expected 0 to 1024"},
    {"shared experts", NULL, ADD_U32, "llama.expert_shared_count", 1, NULL, STATUS_UNIMPLEMENTED,
     "shared experts are not supported"},
    {"a window as text", NULL, ADD_STRING, "llama.attention.sliding_window", 0, "4096", STATUS_INVALID_ARGUMENT,
     "has type string, expected an unsigned integer"},
    {"a scale of 0", NULL, ADD_F32, "llama.attention.scale", 0, NULL, STATUS_INVALID_ARGUMENT, "'llama.attention.scale' is 0"},
    {"a soft cap below 0", NULL, ADD_F32, "llama.attn_logit_softcapping", -1, NULL, STATUS_INVALID_ARGUMENT,
     "'llama.attn_logit_softcapping' is -1"},
    {"not causal", NULL, ADD_BOOL, "llama.attention.causal", 0, NULL, STATUS_UNIMPLEMENTED, "only causal attention"},
    {"experts as text", NULL, ADD_STRING, "llama.expert_count", 0, "8", STATUS_INVALID_ARGUMENT,
     "has type string, expected an unsigned integer"},
    {"no tokens", "tokenizer.ggml.tokens", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "'tokenizer.ggml.tokens' is missing"},
    {"tokens as numbers", "tokenizer.ggml.tokens", ADD_U32_ARRAY, "tokenizer.ggml.tokens", 320, NULL, STATUS_INVALID_ARGUMENT,
     "expected an array of strings"},
    {"no token at all", "tokenizer.ggml.tokens", ADD_STRINGS, "tokenizer.ggml.tokens", 0, "", STATUS_INVALID_ARGUMENT,
     "has 0 elements, expected 1 to"},
    {"fewer tokens than vocab_size", "tokenizer.ggml.tokens", ADD_STRINGS, "tokenizer.ggml.tokens", 319, "t",
     STATUS_INVALID_ARGUMENT, "has 319 elements, vocab_size is 320"},
    {"vocab_size of another model", "llama.vocab_size", ADD_U32, "llama.vocab_size", 100, NULL, STATUS_INVALID_ARGUMENT,
     "vocab_size is 100"},
    {"fewer token types", "tokenizer.ggml.token_type", ADD_U32_ARRAY, "tokenizer.ggml.token_type", 319, NULL,
     STATUS_INVALID_ARGUMENT, "'tokenizer.ggml.token_type' has 319 elements, there are 320 tokens"},
    {"scores as numbers", NULL, ADD_U32_ARRAY, "tokenizer.ggml.scores", 320, NULL, STATUS_INVALID_ARGUMENT,
     "expected an array of floats"},
    {"first token outside", "tokenizer.ggml.bos_token_id", ADD_U32, "tokenizer.ggml.bos_token_id", 320, NULL,
     STATUS_INVALID_ARGUMENT, "'tokenizer.ggml.bos_token_id' is 320, there are 320 tokens"},
    {"flag as number", "tokenizer.ggml.add_bos_token", ADD_U32, "tokenizer.ggml.add_bos_token", 1, NULL, STATUS_INVALID_ARGUMENT,
     "expected a bool"},
    {"chat template as number", "tokenizer.chat_template", ADD_U32, "tokenizer.chat_template", 1, NULL, STATUS_INVALID_ARGUMENT,
     "expected a string"},
    {"no embedding", "token_embd.weight", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "tensor 'token_embd.weight' is missing: expected 320 rows of 64"},
    {"no Q", "blk.1.attn_q.weight", ADD_NOTHING, NULL, 0, NULL, STATUS_INVALID_ARGUMENT,
     "tensor 'blk.1.attn_q.weight' is missing: expected 64 rows of 64"},
    {"Q of another shape", "blk.1.attn_q.weight", ADD_MATRIX, "blk.1.attn_q.weight", 64, NULL, STATUS_INVALID_ARGUMENT,
     "has dimensions 64 x 8 x 1 x 1, expected 64 x 64"},
    {"matrix for a norm", "output_norm.weight", ADD_MATRIX, "output_norm.weight", 64, NULL, STATUS_INVALID_ARGUMENT,
     "has dimensions 64 x 8 x 1 x 1, expected 64 x 1"},
    {"vector for a matrix", "blk.0.ffn_down.weight", ADD_VECTOR, "blk.0.ffn_down.weight", 96, NULL, STATUS_INVALID_ARGUMENT,
     "expected 96 x 64"},
    {"bias of another length", NULL, ADD_VECTOR, "blk.0.attn_k.bias", 64, NULL, STATUS_INVALID_ARGUMENT,
     "has dimensions 64 x 1 x 1 x 1, expected 32 x 1"},
    {"bias of one layer", NULL, ADD_VECTOR, "blk.0.attn_k.bias", 32, NULL, STATUS_INVALID_ARGUMENT,
     "tensor 'blk.1.attn_k.bias' is missing: other layers have theirs"},
    {"bias of a later layer", NULL, ADD_VECTOR, "blk.1.attn_q.bias", 64, NULL, STATUS_INVALID_ARGUMENT,
     "tensor 'blk.0.attn_q.bias' is missing: other layers have theirs"},
    {"tensor of another model", NULL, ADD_VECTOR, "blk.0.attn_q_norm.weight", 16, NULL, STATUS_UNIMPLEMENTED,
     "tensor 'blk.0.attn_q_norm.weight' at offset"},
    {"number of a layer with a zero in front", NULL, ADD_VECTOR, "blk.00.attn_norm.weight", 64, NULL, STATUS_UNIMPLEMENTED,
     "has no such tensor"},
    {"layer number that overflows", NULL, ADD_VECTOR, "blk.4294967296.attn_norm.weight", 64, NULL, STATUS_UNIMPLEMENTED,
     "has no such tensor"},
    {"RoPE factors of another length", NULL, ADD_VECTOR, "rope_freqs.weight", 16, NULL, STATUS_INVALID_ARGUMENT, "expected 8 x 1"},
    {"RoPE factors not positive", NULL, ADD_VECTOR, "rope_freqs.weight", 8, NULL, STATUS_INVALID_ARGUMENT,
     "expected a positive number"},
};

static void add(struct gguf_build *build, const struct change *change)
{
    static const float zeros[4096];
    uint32_t number = change->number >= 0 ? (uint32_t)change->number : 0;

    switch (change->add) {
    case ADD_NOTHING: break;
    case ADD_U32: gguf_build_u32(build, change->name, number); break;
    case ADD_F32: gguf_build_f32(build, change->name, (float)change->number); break;
    case ADD_BOOL: gguf_build_bool(build, change->name, number != 0); break;
    case ADD_STRING: gguf_build_string(build, change->name, change->text); break;
    case ADD_U32_ARRAY:
    case ADD_STRINGS:
        gguf_build_array(build, change->name, change->add == ADD_STRINGS ? GGUF_STRING : GGUF_U32, number);
        for (uint32_t i = 0; i < number; i++) {
            if (change->add == ADD_STRINGS)
                gguf_append_string(&build->keys, change->text);
            else
                gguf_append_number(&build->keys, 1, 4);
        }
        break;
    case ADD_MATRIX: gguf_build_tensor_of(build, change->name, TENSOR_F32, number, 8, 1, false, zeros); break;
    case ADD_VECTOR: gguf_build_tensor_of(build, change->name, TENSOR_F32, number, 0, 1, false, zeros); break;
    }
}

static unsigned char *build_tiny(const struct tiny_llama *tiny, size_t *count)
{
    struct gguf_build build = {0};
    gguf_build_llama(&build, tiny);
    return gguf_build_finish(&build, count);
}

static void what_does_not_fit_is_told(void **state)
{
    uint32_t failed = 0;
    for (size_t i = 0; i < ARRAY_COUNT(changes); i++) {
        const struct change *change = &changes[i];
        struct tiny_llama tiny = TINY_LLAMA;
        struct gguf_build build = {.drop = change->drop};
        struct model *model = NULL;
        struct error error = {0};
        size_t count;

        gguf_build_llama(&build, &tiny);
        build.drop = NULL;
        add(&build, change);
        unsigned char *bytes = gguf_build_finish(&build, &count);
        enum status status = model_open_memory("tiny.gguf", bytes, count, &model, &error);
        if (status != change->status || error.status != status || !strstr(error.text, change->fragment) ||
            strncmp(error.text, LABEL, strlen(LABEL)) != 0 || strchr(error.text, '\n'))
            failed++, print_error("%s: %s \"%s\", expected %s \"%s\"\n", change->label, status_name(status), error.text,
                                  status_name(change->status), change->fragment);
        model_close(status ? NULL : model);
        free(bytes);
    }
    assert_int_equal(failed, 0);
}

static void check_view(const struct tensor_view *view, const char *name, enum tensor_type type, uint32_t rows, uint32_t columns)
{
    const struct tensor_type_info *info = tensor_type_info((uint32_t)type);
    assert_non_null(view->data);
    assert_int_equal(view->name_length, strlen(name));
    assert_memory_equal(view->name, name, strlen(name));
    assert_int_equal(view->type, type);
    assert_int_equal(view->rows, rows);
    assert_int_equal(view->columns, columns);
    assert_int_equal(view->bytes, (uint64_t)rows * columns / info->block_values * info->block_bytes);
}

static void a_model_becomes_tables(void **state)
{
    struct tiny_llama tiny = TINY_LLAMA;
    struct model *model;
    struct error error = {0};
    size_t count;

    tiny.type = TENSOR_Q8_0;
    tiny.biases = true;
    unsigned char *bytes = build_tiny(&tiny, &count);
    if (model_open_memory("tiny.gguf", bytes, count, &model, &error))
        fail_msg("%s", error.text);
    const struct model_shape *shape = &model->shape;
    assert_string_equal(model->arch_name, "llama");
    assert_memory_equal(model->name.data, "Tiny", 4);
    assert_int_equal(shape->layers, 2);
    assert_int_equal(shape->hidden, 64);
    assert_int_equal(shape->heads, 4);
    assert_int_equal(shape->kv_heads, 2);
    assert_int_equal(shape->head_dim, 16);
    assert_int_equal(shape->ffn, 96);
    assert_int_equal(shape->vocab, 320);
    assert_int_equal(shape->context_length, 256);
    assert_int_equal(shape->rope_dim, 16);
    assert_int_equal(shape->rope_style, ROPE_PAIRS);
    assert_true(shape->rope[MODEL_ROPE_WHOLE].base == 10000 && shape->norm_epsilon == 1e-5f &&
                shape->rope[MODEL_ROPE_WHOLE].freq_scale == 1);
    assert_null(shape->rope[MODEL_ROPE_WHOLE].factors);
    assert_true(model->tied);
    check_view(&model->embedding, "token_embd.weight", TENSOR_F32, 320, 64);
    assert_ptr_equal(model->output.data, model->embedding.data);
    check_view(&model->output_norm, "output_norm.weight", TENSOR_F32, 1, 64);
    const struct model_layer *layer = &model->layers[1];
    check_view(&layer->attn_norm, "blk.1.attn_norm.weight", TENSOR_F32, 1, 64);
    check_view(&layer->q, "blk.1.attn_q.weight", TENSOR_Q8_0, 64, 64);
    check_view(&layer->k, "blk.1.attn_k.weight", TENSOR_Q8_0, 32, 64);
    check_view(&layer->v, "blk.1.attn_v.weight", TENSOR_Q8_0, 32, 64);
    check_view(&layer->o, "blk.1.attn_output.weight", TENSOR_Q8_0, 64, 64);
    check_view(&layer->q_bias, "blk.1.attn_q.bias", TENSOR_F32, 1, 64);
    check_view(&layer->k_bias, "blk.1.attn_k.bias", TENSOR_F32, 1, 32);
    check_view(&layer->v_bias, "blk.1.attn_v.bias", TENSOR_F32, 1, 32);
    assert_null(layer->o_bias.data);
    check_view(&layer->ffn_norm, "blk.1.ffn_norm.weight", TENSOR_F32, 1, 64);
    check_view(&layer->gate, "blk.1.ffn_gate.weight", TENSOR_Q8_0, 96, 64);
    check_view(&layer->up, "blk.1.ffn_up.weight", TENSOR_Q8_0, 96, 64);
    check_view(&layer->down, "blk.1.ffn_down.weight", TENSOR_Q8_0, 64, 96);
    const struct model_tokenizer *tokenizer = &model->tokenizer;
    assert_int_equal(tokenizer->kind.length, 4);
    assert_int_equal(tokenizer->tokens.count, 320);
    assert_int_equal(tokenizer->merges.count, 61);
    assert_int_equal(gguf_array_integer(&tokenizer->token_types, 2), 3);
    assert_int_equal(tokenizer->scores.count, 0);
    assert_int_equal(tokenizer->bos, 1);
    assert_int_equal(tokenizer->eos, 2);
    assert_int_equal(tokenizer->eot, MODEL_NO_TOKEN);
    assert_true(tokenizer->add_bos_known && !tokenizer->add_bos && !tokenizer->add_eos_known);
    assert_true(tokenizer->chat_template.length > 50);
    assert_int_equal(model->parameters, 320 * 64 + 64 + 2 * (2 * 64 + 64 + 32 + 32 + 64 * 64 * 2 + 32 * 64 * 2 + 3 * 96 * 64));
    model_close(model);
    free(bytes);
}

static void matrices_of_every_type_are_read(void **state)
{
    uint32_t types = 0;

    for (uint32_t type = 0; type < TENSOR_TYPE_END; type++) {
        struct tiny_llama tiny = TINY_LLAMA;
        struct model *model;
        struct error error = {0};
        size_t count;
        if (!tensor_type_info(type))
            continue;
        types++;
        tiny.type = tiny.embedding_type = (enum tensor_type)type;
        tiny.hidden = 256, tiny.heads = 8, tiny.head_dim = 32, tiny.ffn = 512; /* whole blocks of 256 */
        unsigned char *bytes = build_tiny(&tiny, &count);
        if (model_open_memory("tiny.gguf", bytes, count, &model, &error))
            fail_msg("%s", error.text);
        check_view(&model->embedding, "token_embd.weight", tiny.type, 320, 256);
        check_view(&model->layers[1].q, "blk.1.attn_q.weight", tiny.type, 256, 256);
        check_view(&model->layers[1].down, "blk.1.ffn_down.weight", tiny.type, 256, 512);
        model_close(model);
        free(bytes);
    }
    assert_int_equal(types, 17);
}

static void end_tokens_outside_are_left_out(void **state)
{
    struct gguf_build build = {.drop = "tokenizer.ggml.eos_token_id"};
    struct tiny_llama tiny = TINY_LLAMA;
    struct model *model;
    struct error error = {0};
    size_t count;

    gguf_build_llama(&build, &tiny);
    gguf_build_u32(&build, "tokenizer.ggml.eos_token_id", 320);
    gguf_build_u32(&build, "tokenizer.ggml.eot_token_id", 319);
    gguf_build_u32(&build, "tokenizer.ggml.eom_token_id", 1u << 31);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    if (model_open_memory("tiny.gguf", bytes, count, &model, &error))
        fail_msg("%s", error.text);
    assert_int_equal(model->tokenizer.eos, MODEL_NO_TOKEN);
    assert_int_equal(model->tokenizer.eot, 319);
    assert_int_equal(model->tokenizer.eom, MODEL_NO_TOKEN);
    model_close(model);
    free(bytes);
}

static void optional_parts_are_read(void **state)
{
    struct tiny_llama tiny = TINY_LLAMA;
    struct gguf_build build = {.drop = "llama.attention.key_length"};
    struct model *model;
    struct error error = {0};
    size_t count;

    tiny.tied = false;
    tiny.rope_factor = 4;
    tiny.rope_factors = true;
    gguf_build_llama(&build, &tiny); /* the head's size then follows from the others */
    gguf_build_u32(&build, "llama.expert_count", 0);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    if (model_open_memory("tiny.gguf", bytes, count, &model, &error))
        fail_msg("%s", error.text);
    assert_int_equal(model->shape.head_dim, 16);
    assert_true(model->shape.rope[MODEL_ROPE_WHOLE].freq_scale == 0.25f);
    assert_non_null(model->shape.rope[MODEL_ROPE_WHOLE].factors);
    assert_ptr_equal(model->shape.rope[MODEL_ROPE_WHOLE].factors, model->rope_factors.data);
    assert_false(model->tied);
    check_view(&model->output, "output.weight", TENSOR_F32, 320, 64);
    assert_ptr_not_equal(model->output.data, model->embedding.data);
    model_close(model);
    free(bytes);
}

/* A directory has no general.name, and messages and pages name it all the same. */
static void a_model_without_a_name_has_its_files(void **state)
{
    struct tiny_llama tiny = TINY_LLAMA;
    struct gguf_build build = {.drop = "general.name"};
    struct model *model;
    struct error error = {0};
    size_t count;

    gguf_build_llama(&build, &tiny);
    unsigned char *bytes = gguf_build_finish(&build, &count);
    if (model_open_memory("models/Some-Model/", bytes, count, &model, &error))
        fail_msg("%s", error.text);
    assert_int_equal(model->name.length, strlen("Some-Model"));
    assert_memory_equal(model->name.data, "Some-Model", model->name.length);
    model_close(model);
    free(bytes);
}

/* Values that converters leave unsaid are as in llama.cpp: Gemma's caps, the window of Gemma 2, and the scale of scores in those of 27B, which is not
 * that of a head's dimensions. */
static void gemma_has_its_own_defaults(void **state)
{
    static const struct {
        const char *arch;
        uint32_t layers;
        bool scale_known; /* by the file */
        float scale, attention_cap, logit_cap;
        uint32_t window;
    } cases[] = {
        {"gemma2", 26, false, 0.25f, 50, 30, 4096}, {"gemma2", 46, false, 0.35355339f, 50, 30, 4096}, /* 8 heads of 16, hidden 64 */
        {"gemma2", 46, true, 0.125f, 50, 30, 4096}, {"gemma3", 62, false, 0.35355339f, 0, 0, 0},
        {"gemma3", 48, false, 0.25f, 0, 0, 0},      {"llama", 62, false, 0.25f, 0, 0, 0},
    };

    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct gguf_build build = {0};
        struct model_shape shape;
        struct gguf *gguf;
        struct error error = {0};
        char key[64];
        const char *const suffixes[] = {"block_count",          "embedding_length",     "feed_forward_length",   "context_length",
                                        "attention.head_count", "attention.key_length", "attention.value_length"};
        const uint32_t values[] = {cases[i].layers, 64, 96, 8192, 8, 16, 16};
        size_t count;

        for (size_t k = 0; k < ARRAY_COUNT(suffixes); k++) {
            snprintf(key, sizeof key, "%s.%s", cases[i].arch, suffixes[k]);
            gguf_build_u32(&build, key, values[k]);
        }
        snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", cases[i].arch);
        gguf_build_f32(&build, key, 1e-5f);
        snprintf(key, sizeof key, "%s.attention.scale", cases[i].arch);
        if (cases[i].scale_known)
            gguf_build_f32(&build, key, 0.125f);
        unsigned char *bytes = gguf_build_finish(&build, &count);
        if (gguf_open_memory("gemma.gguf", bytes, count, &gguf, &error) ||
            model_read_shape(gguf, arch_find((struct gguf_string){cases[i].arch, strlen(cases[i].arch)}), &shape, &error))
            fail_msg("%s", error.text);
        assert_true(fabsf(shape.attention_scale - cases[i].scale) < 1e-6f);
        assert_true(shape.attention_soft_cap == cases[i].attention_cap && shape.logit_soft_cap == cases[i].logit_cap);
        assert_int_equal(shape.window, cases[i].window);
        gguf_close(gguf);
        free(bytes);
    }
}

static uint64_t fingerprint(const unsigned char *bytes, size_t count)
{
    struct model *model;
    struct error error = {0};
    if (model_open_memory("another name", bytes, count, &model, &error))
        fail_msg("%s", error.text);
    uint64_t result = model->fingerprint;
    model_close(model);
    return result;
}

static void the_fingerprint_tells_files_apart(void **state)
{
    struct tiny_llama tiny = TINY_LLAMA;
    size_t count;

    unsigned char *bytes = build_tiny(&tiny, &count), *same = build_tiny(&tiny, &count);
    assert_int_equal(fingerprint(bytes, count), fingerprint(same, count));
    same[count - 1] ^= 1; /* in the last tensor */
    assert_int_not_equal(fingerprint(bytes, count), fingerprint(same, count));
    same[count - 1] ^= 1;
    struct gguf *gguf;
    assert_int_equal(gguf_open_memory("same", same, count, &gguf, NULL), STATUS_OK);
    const struct gguf_tensor *up = gguf_find_tensor(gguf, "blk.0.ffn_up.weight");
    const uint64_t places[] = {up->data_offset, up->data_offset + up->bytes / 2, up->data_offset + up->bytes - 1};
    gguf_close(gguf);
    for (size_t i = 0; i < ARRAY_COUNT(places); i++) {
        same[places[i]] ^= 0x80;
        assert_int_not_equal(fingerprint(bytes, count), fingerprint(same, count));
        same[places[i]] ^= 0x80;
    }
    free(same);
    tiny.seed = 2;
    same = build_tiny(&tiny, &count);
    assert_int_not_equal(fingerprint(bytes, count), fingerprint(same, count));
    free(same);
    free(bytes);
}

/* The file's pages go; what is read afterwards is the same. */
static void pages_are_released(void **state)
{
    struct tiny_llama tiny = TINY_LLAMA;
    struct model *model;
    struct error error = {0};
    char path[] = "/tmp/fd-model-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    close(fd);
    tiny.vocab = 8192; /* 2 MB of embedding */
    gguf_write_llama(path, &tiny);
    if (model_open(path, &model, &error))
        fail_msg("%s", error.text);
    unlink(path);
    const float *values = model->embedding.data;
    size_t count = (size_t)model->embedding.rows * model->embedding.columns;
    double before = 0, after = 0;
    for (size_t i = 0; i < count; i++)
        before += (double)values[i];
    long resident[3], size;
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen("/proc/self/statm", "r");
        assert_true(file && fscanf(file, "%ld %ld", &size, &resident[i]) == 2);
        fclose(file);
        if (i == 0)
            model_release_file(model);
    }
    assert_true(resident[0] - resident[1] > 400); /* of 512 pages */
    for (size_t i = 0; i < count; i++)
        after += (double)values[i];
    assert_true(before == after);
    struct gguf_strings walk = gguf_strings_of(&model->tokenizer.tokens);
    struct gguf_string token;
    assert_true(gguf_next_string(&walk, &token) && token.length == 13);
    model_close(model);
}

/* No byte of the header, whatever its value, leads outside of the file or to a crash. */
static void every_flip_is_survived(void **state)
{
    struct tiny_llama tiny = TINY_LLAMA;
    size_t count;
    uint64_t seed = 7;

    tiny.vocab = 8;
    tiny.hidden = tiny.ffn = 8;
    tiny.heads = tiny.kv_heads = 1;
    tiny.head_dim = 8;
    unsigned char *bytes = build_tiny(&tiny, &count);
    for (size_t at = 0; at < count; at++) {
        struct model *model = NULL;
        struct error error = {0};
        unsigned char mask = (unsigned char)(random_next(&seed) % 255 + 1);
        bytes[at] ^= mask;
        if (model_open_memory("tiny.gguf", bytes, count, &model, &error) == STATUS_OK)
            model_close(model);
        else
            assert_true(strlen(error.text) > strlen(LABEL));
        bytes[at] ^= mask;
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_becomes_tables),
        cmocka_unit_test(matrices_of_every_type_are_read),
        cmocka_unit_test(end_tokens_outside_are_left_out),
        cmocka_unit_test(optional_parts_are_read),
        cmocka_unit_test(a_model_without_a_name_has_its_files),
        cmocka_unit_test(gemma_has_its_own_defaults),
        cmocka_unit_test(what_does_not_fit_is_told),
        cmocka_unit_test(the_fingerprint_tells_files_apart),
        cmocka_unit_test(pages_are_released),
        cmocka_unit_test(every_flip_is_survived),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}

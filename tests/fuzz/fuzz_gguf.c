/* fuzz_gguf.c: any bytes as a model file: an error line, or tables that lie inside of the bytes.
 *
 * The first bytes of a seed are hard to guess, so an input may also begin with 'T': the rest is then laid, four bytes at a
 * time (u24 offset, u8 value), over a valid tiny model.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/model/model.h"
#include "tests/fuzz/sampling_checks.h"
#include "tests/unit/gguf_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t walk(const struct model *model, const unsigned char *bytes, size_t count)
{
    uint64_t sum = 0;
    struct gguf_string string;
    struct gguf_strings tokens = gguf_strings_of(&model->tokenizer.tokens), merges = gguf_strings_of(&model->tokenizer.merges);
    while (gguf_next_string(&tokens, &string) || gguf_next_string(&merges, &string))
        for (uint64_t i = 0; i < string.length; i++)
            sum += (unsigned char)string.data[i];
    for (uint64_t i = 0; i < model->tokenizer.scores.count; i++)
        sum += gguf_array_float(&model->tokenizer.scores, i) > 0;
    for (uint64_t i = 0; i < model->tokenizer.token_types.count; i++)
        sum += (uint64_t)gguf_array_integer(&model->tokenizer.token_types, i);
    for (uint32_t i = 0; i < gguf_tensor_count(model->gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, i);
        const unsigned char *begin = tensor->data;
        assert_always(begin >= bytes && tensor->bytes > 0 && tensor->bytes <= (uint64_t)(bytes + count - begin));
        sum += begin[tensor->bytes - 1];
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char *tiny_bytes;
    static size_t tiny_count;
    static volatile uint64_t sink;
    struct model *model;
    struct error error = {0};
    unsigned char *copy;
    size_t count = size;

    if (!tiny_bytes) {
        struct tiny_llama tiny = {.arch = "llama",
                                  .layers = 1,
                                  .hidden = 8,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 8,
                                  .ffn = 8,
                                  .vocab = 5,
                                  .context = 16,
                                  .rope_factor = 2,
                                  .rope_factors = true,
                                  .biases = true,
                                  .seed = 1};
        struct gguf_build build = {0};
        gguf_build_llama(&build, &tiny);
        gguf_build_f32(&build, "general.sampling.temp", 0.6f);
        gguf_build_u32(&build, "general.sampling.top_k", 20);
        gguf_build_f32(&build, "general.sampling.top_p", 0.95f);
        tiny_bytes = gguf_build_finish(&build, &tiny_count);
    }
    bool overlay = size > 0 && data[0] == 'T';
    if (overlay)
        count = tiny_count;
    copy = malloc(count ? count : 1);
    assert_always(copy);
    if (count)
        memcpy(copy, overlay ? tiny_bytes : data, count);
    for (size_t i = 1; overlay && i + 4 <= size; i += 4)
        copy[(data[i] | (size_t)data[i + 1] << 8 | (size_t)data[i + 2] << 16) % count] = data[i + 3];
    if (model_open_memory("fuzz", copy, count, &model, &error) == STATUS_OK) {
        sink += walk(model, copy, count);
        check_sampling_of(model->gguf);
        model_close(model);
    } else {
        assert_always(strncmp(error.text, "fuzz: ", 6) == 0 && !strchr(error.text, '\n'));
    }
    free(copy);
    return 0;
}

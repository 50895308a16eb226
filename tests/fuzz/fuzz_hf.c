/* fuzz_hf.c: any bytes as a file of a Hugging Face directory: an error line, or tables that lie inside of the mapped range.
 *
 * The first byte chooses a file of the tiny directory (tests/unit/hf_build.h), and the rest takes its place:
 *   c config.json   k tokenizer.json   s tokenizer_config.json   g generation_config.json   i model.safetensors.index.json
 *   w model.safetensors, all of it     h its header, in front of the tiny model's data
 * or one of the tiny gpt-oss with experts in MXFP4 (hf_build_gpt_oss.h):
 *   x config.json   y the header of model.safetensors
 * A capital letter lays the rest over the file that is there, three bytes at a time (u16 offset, u8 value), as files of a real size are
 * longer than inputs.
 */
#include <ctype.h>

#include "common/model/gguf/gguf.h"
#include "tests/fuzz/sampling_checks.h"
#include "tests/unit/hf_build_gpt_oss.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* All that it reads lies in the map. */
static uint64_t read_stored(const struct gguf_tensor *tensor)
{
    unsigned char *out = malloc(tensor->bytes);
    assert_always(out);
    uint64_t sum = stored_rows_read(tensor->stored, 0, tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3], out);
    sum += out[tensor->bytes - 1];
    free(out);
    return sum;
}

static uint64_t walk(const struct gguf *gguf)
{
    static const char *const lists[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"};
    const unsigned char *bytes = gguf_bytes(gguf);
    uint64_t sum = 0, count = gguf_file_bytes(gguf);
    struct gguf_array array;
    struct gguf_string string;

    for (size_t l = 0; l < 2; l++) {
        if (gguf_get_strings(gguf, lists[l], &array, NULL))
            continue;
        struct gguf_strings strings = gguf_strings_of(&array);
        while (gguf_next_string(&strings, &string))
            for (uint64_t i = 0; i < string.length; i++)
                sum += (unsigned char)string.data[i];
    }
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        const unsigned char *begin = tensor->data;
        assert_always(begin >= bytes && begin < bytes + count && tensor->bytes > 0);
        if (tensor->stored) {
            sum += read_stored(tensor);
            continue;
        }
        assert_always(tensor->bytes <= (uint64_t)(bytes + count - begin));
        sum += begin[tensor->bytes - 1];
    }
    return sum;
}

static const char *file_of(int letter)
{
    switch (tolower(letter)) {
    case 'c':
    case 'x': return "config.json";
    case 'k': return "tokenizer.json";
    case 's': return "tokenizer_config.json";
    case 'g': return "generation_config.json";
    case 'i': return "model.safetensors.index.json";
    default: return HF_SHARD;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hf_build models[2];
    static volatile uint64_t sink;
    struct hf_memory_file files[HF_BUILD_FILES];
    unsigned char *bytes[HF_BUILD_FILES];
    struct gguf *gguf;
    struct error error = {0};
    uint32_t count, chosen = UINT32_MAX;

    if (size == 0)
        return 0;
    if (!models[0].count) {
        hf_build_tiny(&models[0]);
        hf_build_gpt_oss(&models[1], "BF16", true);
    }
    struct hf_build *tiny = &models[tolower(data[0]) == 'x' || tolower(data[0]) == 'y'];
    const char *name = file_of(data[0]);
    count = tiny->count;
    for (uint32_t i = 0; i < count; i++) {
        size_t length;
        bytes[i] = hf_build_bytes(&tiny->files[i], &length);
        files[i] = (struct hf_memory_file){tiny->files[i].name, bytes[i], length};
        if (strcmp(files[i].name, name) == 0)
            chosen = i;
    }
    if (chosen == UINT32_MAX) {
        chosen = count++;
        bytes[chosen] = NULL;
        files[chosen] = (struct hf_memory_file){name, "", 0};
    }
    if (isupper(data[0])) {
        for (size_t i = 1; i + 3 <= size && files[chosen].byte_count; i += 3)
            bytes[chosen][(data[i] | (size_t)data[i + 1] << 8) % files[chosen].byte_count] = data[i + 2];
    } else if (data[0] == 'h' || data[0] == 'y') {
        const struct hf_built_file *shard = hf_build_find(tiny, HF_SHARD);
        struct gguf_bytes out = {0};
        gguf_append_number(&out, size - 1, 8);
        gguf_append(&out, data + 1, size - 1);
        gguf_append(&out, shard->data.bytes, shard->data.count);
        free(bytes[chosen]);
        bytes[chosen] = out.bytes;
        files[chosen] = (struct hf_memory_file){name, out.bytes, out.count};
    } else {
        free(bytes[chosen]);
        bytes[chosen] = malloc(size > 1 ? size - 1 : 1); /* no byte more, so that reading too far is seen */
        assert_always(bytes[chosen]);
        memcpy(bytes[chosen], data + 1, size - 1);
        files[chosen] = (struct hf_memory_file){name, bytes[chosen], size - 1};
    }
    if (hf_open_memory("fuzz", files, count, &gguf, &error) == STATUS_OK) {
        sink += walk(gguf);
        check_sampling_of(gguf);
        gguf_close(gguf);
    } else {
        assert_always(strncmp(error.text, "fuzz", 4) == 0 && !strchr(error.text, '\n'));
    }
    for (uint32_t i = 0; i < count; i++)
        free(bytes[i]);
    return 0;
}

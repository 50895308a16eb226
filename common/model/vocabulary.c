// vocabulary.c: see vocabulary.h: arrays of the metadata as the plain struct that a tokenizer is built from.
#include "common/model/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/memory.h"

// Arrays that a spec points to.
struct spec_arrays {
    struct text_span *tokens, *merges;
    float *scores;
    int32_t *types;
    uint8_t *flags;
    int64_t *end_ids;
    char *kind, *pre;
};

static void free_arrays(struct spec_arrays *arrays)
{
    free(arrays->tokens);
    free(arrays->merges);
    free(arrays->scores);
    free(arrays->types);
    free(arrays->flags);
    free(arrays->end_ids);
    free(arrays->kind);
    free(arrays->pre);
}

static bool copy_spans(const struct gguf_array *from, struct text_span **out)
{
    struct gguf_strings strings = gguf_strings_of(from);
    struct gguf_string string;
    uint64_t i = 0;

    *out = calloc(from->count + 1, sizeof **out);
    if (!*out)
        return false;
    while (i < from->count && gguf_next_string(&strings, &string))
        (*out)[i++] = (struct text_span){string.data, string.length};
    return true;
}

// Makes room for as many elements as an array has, if it has any. False: no memory.
static bool take_array(const struct gguf_array *from, size_t element_bytes, void **out)
{
    *out = from->count ? calloc(from->count, element_bytes) : NULL;
    return *out || !from->count;
}

static bool fill_arrays(const struct model_tokenizer *from, bool decodes_only, struct spec_arrays *arrays)
{
    arrays->kind = strndup(from->kind.data, from->kind.length);
    arrays->pre = strndup(from->pre.data, from->pre.length);
    if (!arrays->kind || !arrays->pre || !copy_spans(&from->tokens, &arrays->tokens) ||
        (from->merges.count && !decodes_only && !copy_spans(&from->merges, &arrays->merges)) ||
        !take_array(&from->scores, sizeof *arrays->scores, (void **)&arrays->scores) ||
        !take_array(&from->token_types, sizeof *arrays->types, (void **)&arrays->types) ||
        !take_array(&from->token_flags, sizeof *arrays->flags, (void **)&arrays->flags) ||
        !take_array(&from->end_tokens, sizeof *arrays->end_ids, (void **)&arrays->end_ids))
        return false;
    for (uint64_t i = 0; i < from->scores.count; i++)
        arrays->scores[i] = (float)gguf_array_float(&from->scores, i);
    for (uint64_t i = 0; i < from->token_types.count; i++)
        arrays->types[i] = (int32_t)gguf_array_integer(&from->token_types, i);
    for (uint64_t i = 0; i < from->token_flags.count; i++)
        arrays->flags[i] = (uint8_t)gguf_array_integer(&from->token_flags, i);
    for (uint64_t i = 0; i < from->end_tokens.count; i++)
        arrays->end_ids[i] = gguf_array_integer(&from->end_tokens, i);
    return true;
}

// Returns whether a text begins with the token for that where the file does not say: these makers' do, and converters left the key out.
static bool begins_with_bos(const char *kind, const char *pre)
{
    static const char *const rules[] = {"llama-bpe", "llama3", "llama-v3", "tekken"};
    bool begins = strcmp(kind, "llama") == 0;

    for (size_t i = 0; i < ARRAY_COUNT(rules); i++)
        begins |= strcmp(kind, "gpt2") == 0 && strcmp(pre, rules[i]) == 0;
    return begins;
}

static int64_t optional_id(uint32_t id) { return id == MODEL_NO_TOKEN ? -1 : (int64_t)id; }

static enum status open_tokenizer(const struct model *model, bool decodes_only, struct tokenizer **out, struct error *error)
{
    const struct model_tokenizer *from = &model->tokenizer;
    struct spec_arrays arrays = {0};
    struct tokenizer_spec spec;
    bool is_llama;
    enum status status;

    if (!fill_arrays(from, decodes_only, &arrays)) {
        free_arrays(&arrays);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    is_llama = strcmp(arrays.kind, "llama") == 0;
    spec = (struct tokenizer_spec){
        .model = arrays.kind,
        .pre = from->pre.length ? arrays.pre : NULL,
        .token_count = (uint32_t)from->tokens.count,
        .tokens = arrays.tokens,
        .scores = arrays.scores,
        .types = arrays.types,
        .flags = arrays.flags,
        .merge_count = decodes_only ? 0 : (uint32_t)from->merges.count,
        .merges = arrays.merges,
        .bos_id = optional_id(from->bos),
        .eos_id = optional_id(from->eos),
        .unknown_id = optional_id(from->unknown),
        .eot_id = optional_id(from->eot),
        .end_count = (uint32_t)from->end_tokens.count,
        .end_ids = arrays.end_ids,
        .add_bos = from->add_bos_known ? from->add_bos : begins_with_bos(arrays.kind, arrays.pre),
        .add_eos = from->add_eos_known && from->add_eos,
        .add_space_prefix = from->add_space_prefix_known ? from->add_space_prefix : is_llama,
        .prefix_at_start_only = from->prefix_at_start_only,
        .prefix_unless_space = from->prefix_unless_space,
        .spaces_last = from->spaces_last,
        .decodes_only = decodes_only,
    };
    const struct memory_plan memory = {
        .fixed_bytes = tokenizer_planned_bytes(&spec),
        .start_bytes = gguf_header_bytes(model->gguf) + (spec.token_count + spec.merge_count) * sizeof(struct text_span),
    };
    model_release_file(model); // what was read to check it; the plan counts from here
    status = decodes_only ? STATUS_OK : memory_plan_check(&memory, "", error);
    if (!status)
        status = tokenizer_open(&spec, out, error);
    free_arrays(&arrays);
    return status;
}

enum status vocabulary_open(const struct model *model, struct tokenizer **out, struct error *error)
{
    return open_tokenizer(model, false, out, error);
}

enum status vocabulary_open_decoder(const struct model *model, struct tokenizer **out, struct error *error)
{
    return open_tokenizer(model, true, out, error);
}

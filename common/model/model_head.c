// model_head.c: what a file says of pooling, and the tensors of its classification head. See model_pooling.h.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "common/model/model_state.h"

struct head_tensor {
    const char *name;
    size_t offset;   // of the view in struct model
    bool is_matrix;  // with `hidden` columns
    bool of_outputs; // as many rows (or values) as there are outputs; otherwise `hidden`
};

static const struct head_tensor head_tensors[] = {
    {"cls.weight", offsetof(struct model, cls), true, false},
    {"cls.bias", offsetof(struct model, cls_bias), false, false},
    {"cls.output.weight", offsetof(struct model, cls_output), true, true},
    {"cls.output.bias", offsetof(struct model, cls_output_bias), false, true},
};

bool model_is_head_tensor(struct gguf_string name)
{
    for (size_t i = 0; i < ARRAY_COUNT(head_tensors); i++)
        if (strlen(head_tensors[i].name) == name.length && memcmp(head_tensors[i].name, name.data, name.length) == 0)
            return true;
    return false;
}

// Which of two classes is "yes": the first, unless the file's labels say otherwise.
static enum status read_labels(struct model *model, struct error *error)
{
    struct gguf_array labels;
    struct gguf_strings strings;
    struct gguf_string label;
    char key[128];
    uint32_t index = 0;

    snprintf(key, sizeof key, "%s.classifier.output_labels", model->arch->name);
    if (model->pooling.outputs != 2 || gguf_get_strings(model->gguf, key, &labels, NULL))
        return STATUS_OK;
    strings = gguf_strings_of(&labels);
    while (gguf_next_string(&strings, &label) && index < 2) {
        if (label.length == 3 && strncasecmp(label.data, "yes", 3) == 0) {
            model->pooling.yes = index;
            return STATUS_OK;
        }
        index++;
    }
    return error_set(error, STATUS_UNIMPLEMENTED, "%s: key '%s' has no label 'yes': of two classes the rank is that of \"yes\"",
                     gguf_label(model->gguf), key);
}

enum status model_place_head(struct model *model, uint32_t *placed, struct error *error)
{
    const uint32_t hidden = model->shape.hidden;

    for (size_t i = 0; i < ARRAY_COUNT(head_tensors); i++) {
        const struct head_tensor *wanted = &head_tensors[i];
        const struct gguf_tensor *tensor = gguf_find_tensor(model->gguf, wanted->name);
        if (!tensor)
            continue;
        const uint64_t columns = wanted->is_matrix ? tensor->dims[0] : 1, rows = tensor->dims[wanted->is_matrix];
        const bool good = columns == (wanted->is_matrix ? hidden : 1) && tensor->dims[1 + wanted->is_matrix] == 1 &&
                          tensor->dims[3] == 1 && (wanted->of_outputs ? rows >= 1 && rows <= MODEL_OUTPUTS_MAX : rows == hidden);
        if (!good || (wanted->of_outputs && !wanted->is_matrix && rows != model->pooling.outputs))
            return error_set(error, STATUS_UNIMPLEMENTED,
                             "%s: tensor '%s' at offset 0x%" PRIx64 ": has dimensions %" PRIu64 " x %" PRIu64
                             ": heads for ranking have 1 output, or 2, of %u values",
                             gguf_label(model->gguf), wanted->name, tensor->entry_offset, tensor->dims[0], tensor->dims[1], hidden);
        *(struct tensor_view *)((char *)model + wanted->offset) =
            (struct tensor_view){.data = tensor->data,
                                 .type = tensor->type,
                                 .rows = wanted->is_matrix ? (uint32_t)rows : 1,
                                 .columns = wanted->is_matrix ? hidden : (uint32_t)rows,
                                 .bytes = tensor->bytes,
                                 .name = tensor->name.data,
                                 .name_length = (uint32_t)tensor->name.length,
                                 .stored = tensor->stored};
        if (wanted->of_outputs)
            model->pooling.outputs = (uint32_t)rows;
        ++*placed;
    }
    return read_labels(model, error);
}

// The id of a token by its text; MODEL_NO_TOKEN: there is none.
static uint32_t find_token(const struct model *model, const char *text)
{
    struct gguf_strings strings = gguf_strings_of(&model->tokenizer.tokens);
    struct gguf_string token;

    for (uint32_t id = 0; gguf_next_string(&strings, &token); id++)
        if (token.length == strlen(text) && memcmp(token.data, text, token.length) == 0)
            return id;
    return MODEL_NO_TOKEN;
}

// Whether the file is a reranker by its name, or has a template of prompts to rank.
static bool is_named_reranker(const struct model *model)
{
    struct gguf_string template;
    static const char word[] = "reranker";

    if (gguf_get_string(model->gguf, "tokenizer.chat_template.rerank", &template, NULL) == STATUS_OK && template.length)
        return true;
    for (uint64_t i = 0; i + strlen(word) <= model->name.length; i++)
        if (strncasecmp(model->name.data + i, word, strlen(word)) == 0)
            return true;
    return false;
}

bool model_take_words(const struct model *model, struct model_pooling *out)
{
    out->yes_token = find_token(model, "yes");
    out->no_token = find_token(model, "no");
    if (out->yes_token == MODEL_NO_TOKEN || out->no_token == MODEL_NO_TOKEN)
        return false;
    out->kind = MODEL_POOL_RANK;
    out->outputs = 2;
    return true;
}

enum status model_read_pooling(struct model *model, struct error *error)
{
    struct model_pooling *pooling = &model->pooling;
    uint32_t kind = 0;
    bool truth;
    char key[128];

    snprintf(key, sizeof key, "%s.pooling_type", model->arch->name);
    enum status status = gguf_get_u32(model->gguf, key, &kind, error);
    if (status && status != STATUS_NOT_FOUND)
        return status;
    if (kind > MODEL_POOL_RANK)
        return error_set(error, STATUS_UNIMPLEMENTED,
                         "%s: key '%s' is %u; supported are 0 (none), 1 (mean), 2 (first token), 3 (last "
                         "token) and 4 (rank)",
                         gguf_label(model->gguf), key, kind);
    pooling->kind = (enum model_pool)kind;
    pooling->normalize = gguf_get_bool(model->gguf, "fastdecode.pooling_normalize", &truth, NULL) || truth;
    pooling->yes_token = pooling->no_token = MODEL_NO_TOKEN;
    pooling->named_reranker = is_named_reranker(model);
    if (pooling->outputs && (kind == MODEL_POOL_NONE || kind == MODEL_POOL_LAST))
        pooling->kind = MODEL_POOL_RANK;
    if (pooling->kind == MODEL_POOL_RANK && !pooling->outputs && !model_take_words(model, pooling))
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is 4 (rank), and there is no tensor 'cls.output.weight'",
                         gguf_label(model->gguf), key);
    if (pooling->kind == MODEL_POOL_NONE && pooling->named_reranker)
        (void)!model_take_words(model, pooling);
    return STATUS_OK;
}

// hf_tensors.c: gives tensors of safetensors files the names that GGUF has for them.
//
//     model.layers.3.mlp.experts.17.up_proj.weight  →  blk.3.ffn_up.17.weight
//
// A tensor that no table names is refused: a model that is another one than config.json says would answer nonsense.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/hf_state.h"

enum { SHOWN_BYTES = 120 };

// What the layers of all have, where they have it. "": buffers that older versions saved, which follow from config.json.
static const struct hf_name common_layer[] = {
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"self_attn.rotary_emb.inv_freq", ""},
    {NULL, NULL},
};

// Reads a number without a sign or zeros in front; returns what follows, or NULL.
static const char *read_index(const char *text, uint32_t *out)
{
    uint32_t value = 0, digits = 0;

    for (; text[digits] >= '0' && text[digits] <= '9' && digits < 7; digits++)
        value = value * 10 + (uint32_t)(text[digits] - '0');
    *out = value;
    return digits == 0 || (digits > 1 && text[0] == '0') || digits == 7 ? NULL : text + digits;
}

// Is text the pattern, with a number in place of %u?
static bool matches(const char *pattern, const char *text, uint32_t *index)
{
    const char *number = strstr(pattern, "%u");

    *index = 0;
    if (!number)
        return strcmp(pattern, text) == 0;
    if (strncmp(pattern, text, (size_t)(number - pattern)) != 0)
        return false;
    const char *rest = read_index(text + (number - pattern), index);
    return rest && strcmp(rest, number + 2) == 0;
}

// The name that the tables give to text; NULL: none.
static const char *find_name(const struct hf_name *names, const char *text, char *out, size_t bytes)
{
    uint32_t index;

    for (; names->from; names++)
        if (matches(names->from, text, &index)) {
            snprintf(out, bytes, names->to, index);
            return out;
        }
    return NULL;
}

static const char *prefix_of(const struct hf *hf) { return hf->no_prefix ? "" : hf->arch->prefix ? hf->arch->prefix : "model."; }

// What follows "model.layers.N."; NULL: the tensor is of no layer.
static const char *part_of_layer(const struct hf *hf, const char *name, uint32_t *layer)
{
    const char *prefix = prefix_of(hf);

    if (strncmp(name, prefix, strlen(prefix)) != 0 || strncmp(name + strlen(prefix), "layers.", 7) != 0)
        return NULL;
    const char *rest = read_index(name + strlen(prefix) + 7, layer);
    return rest && *rest == '.' && *layer < hf->layers ? rest + 1 : NULL;
}

// GGUF's name of a tensor; NULL: it has none. "": the tensor is left out.
static const char *translate_name(const struct hf *hf, const char *name, char *out, size_t bytes)
{
    const char *prefix = prefix_of(hf);
    uint32_t layer = 0;
    const char *part = part_of_layer(hf, name, &layer);

    if (hf->form == HF_CLASSIFIER && strcmp(name, "score.weight") == 0)
        return "cls.output.weight";
    if (hf->form == HF_CLASSIFIER && strcmp(name, "score.bias") == 0)
        return "cls.output.bias";

    if (strcmp(name, "lm_head.weight") == 0)
        return hf->tied ? "" : "output.weight"; // if tied, a copy of the embedding that is not used
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return NULL;
    name += strlen(prefix);
    if (strncmp(name, "layers.", 7) != 0)
        return find_name(hf->arch->model_names, name, out, bytes);
    if (!part)
        return NULL;
    size_t length = (size_t)snprintf(out, bytes, "blk.%u.", layer);
    if (!find_name(hf->arch->layer_names, part, out + length, bytes - length) &&
        !find_name(common_layer, part, out + length, bytes - length))
        return NULL;
    return out[length] ? out : "";
}

static void translate_tensor(struct hf *hf, uint32_t piece, const struct safetensor *tensor)
{
    char name[GGUF_MAX_NAME_BYTES + 1], shown[SHOWN_BYTES];
    const char *file = hf->shards[piece].name;
    uint64_t dims[GGUF_MAX_DIMS];
    uint32_t layer = 0;
    const char *part = part_of_layer(hf, tensor->name, &layer);

    if (part && hf_take_expert(hf, piece, tensor, layer, part))
        return;
    const char *to = translate_name(hf, tensor->name, name, sizeof name);
    if (!to)
        hf_fail(hf, STATUS_UNIMPLEMENTED, file, "tensor '%s': %s with %u layers has no such tensor",
                gguf_printable(shown, sizeof shown, (struct gguf_string){tensor->name, strlen(tensor->name)}), hf->arch->class_name,
                hf->layers);
    if (!to || !*to)
        return;
    if (tensor->is_bytes)
        hf_fail(hf, STATUS_UNIMPLEMENTED, file,
                "tensor '%s': dtype is 'U8'; supported are F32, F16, BF16 (for quantized weights use a GGUF file)",
                gguf_printable(shown, sizeof shown, (struct gguf_string){tensor->name, strlen(tensor->name)}));
    for (uint32_t i = 0; i < tensor->dim_count; i++)
        dims[i] = tensor->shape[tensor->dim_count - 1 - i];
    assembly_tensor(&hf->assembly, to, strlen(to), tensor->type, tensor->dim_count, dims, piece, tensor->offset);
}

static bool has_tensor(const struct assembly *assembly, const char *name)
{
    for (uint32_t i = 0; i < assembly->tensor_count; i++)
        if (strcmp(assembly->tensors[i].name, name) == 0)
            return true;
    return false;
}

// Embedding models are often saved without what generates, and then without its prefix, whatever class config.json names.
static void look_for_prefix(struct hf *hf)
{
    for (uint32_t piece = 0; !hf->arch->prefix && piece < hf->shard_count; piece++)
        for (uint32_t i = 0; i < hf->shards[piece].header.tensor_count; i++)
            hf->no_prefix |= strcmp(hf->shards[piece].header.tensors[i].name, "embed_tokens.weight") == 0;
}

void hf_translate_tensors(struct hf *hf)
{
    if (hf->status)
        return;
    look_for_prefix(hf);
    for (uint32_t piece = 0; piece < hf->shard_count && !hf->status; piece++)
        for (uint32_t i = 0; i < hf->shards[piece].header.tensor_count && !hf->status; i++)
            translate_tensor(hf, piece, &hf->shards[piece].header.tensors[i]);
    hf_put_experts(hf);
    if (!hf->status && hf->form == HF_CLASSIFIER && !has_tensor(&hf->assembly, "cls.output.weight"))
        hf_fail(hf, STATUS_INVALID_ARGUMENT, NULL,
                "tensor 'score.weight' is missing, which a class …ForSequenceClassification has");
    if (!hf->status && !hf->tied && hf->form == HF_GENERATES && !hf->no_prefix && !has_tensor(&hf->assembly, "output.weight"))
        hf_fail(hf, STATUS_INVALID_ARGUMENT, NULL,
                "tensor 'lm_head.weight' is missing, and tie_word_embeddings is false (in config.json, or for %s)",
                hf->arch->class_name);
}

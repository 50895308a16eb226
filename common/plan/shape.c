// shape.c: see shape.h.
#include "common/plan/shape.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "common/kv/kv_ledger.h"
#include "common/model/model.h"
#include "common/plan/hardware.h"
#include "kernels/quant/tensor_type.h"

// The matrices of one layer in a sum over several: values, and bits of them in each memory.
struct weights_sum {
    double values, quantized_values, bits[SHAPE_MEMORIES];
};

static void add_values(struct weights_sum *sum, double values, uint32_t type)
{
    const struct tensor_type_info *info = tensor_type_info(type);

    sum->values += values;
    sum->quantized_values += info->block_values > 1 ? values : 0;
    sum->bits[SHAPE_HOST] += values * info->host_bits;
    sum->bits[SHAPE_GPU] += values * info->gpu_bits;
}

// Fills in weights from what all layers, their experts, the head and the embedding have.
static void put_weights(const struct weights_sum *layers, const struct weights_sum *experts, const struct weights_sum *head,
                        const struct weights_sum *embedding, struct plan_shape *out)
{
    const double n = 8.0 * out->layers; // bits of all layers, to bytes of one

    out->layer_values = (uint64_t)(layers->values / out->layers);
    out->expert_values = (uint64_t)(experts->values / out->layers);
    out->head_values = (uint64_t)head->values;
    out->quantized = 2 * layers->quantized_values > layers->values;
    for (size_t i = 0; i < SHAPE_MEMORIES; i++)
        out->in[i] = (struct plan_weights){.layer_bytes = (uint64_t)(layers->bits[i] / n),
                                           .expert_bytes = (uint64_t)(experts->bits[i] / n),
                                           .head_bytes = (uint64_t)(head->bits[i] / 8),
                                           .embedding_bytes = (uint64_t)(embedding->bits[i] / 8)};
}

// --- a config.json --------------------------------------------------------------------------------------------------

enum { CONFIG_BYTES_MAX = 1 << 20, WIDTH_MAX = 1 << 20, COUNT_MAX = 1 << 14, VOCAB_MAX = 1 << 24 };

// The object that is read, and the first failure.
struct config {
    const char *path;
    const json_t *object;
    enum status status;
    struct error *error;
};

static uint32_t config_fail(struct config *c, const char *key, const char *want)
{
    if (!c->status)
        c->status = error_set(c->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' %s", c->path, key, want);
    return 1;
}

// Returns a whole number, or `otherwise` if there is none.
static uint32_t config_u32_or(struct config *c, const char *key, uint32_t most, uint32_t otherwise)
{
    const json_t *value = json_object_get(c->object, key);
    const json_int_t number = json_integer_value(value);

    if (!value || json_is_null(value))
        return otherwise;
    if (!json_is_integer(value) || number < 0 || number > most) {
        char want[64];
        snprintf(want, sizeof want, "is not a whole number from 0 to %u", most);
        return config_fail(c, key, want);
    }
    return (uint32_t)number;
}

// Returns a number that must be there, under one of two keys.
static uint32_t config_u32(struct config *c, const char *key, const char *other, uint32_t most)
{
    const uint32_t value = config_u32_or(c, key, most, other ? config_u32_or(c, other, most, 0) : 0);
    return value ? value : config_fail(c, key, "is missing or 0");
}

static bool config_is_true(const struct config *c, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(c->object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

// Returns whether the model is of a type, or of one whose name begins so: some keys have other defaults then, as in common/model/hf.
static bool config_is_of(const struct config *c, const char *type)
{
    const char *is = json_string_value(json_object_get(c->object, "model_type"));
    return is && !strncmp(is, type, strlen(type));
}

// Reads which layers have a window: a list of kinds, one in so many that has none, or all.
static void read_windows(struct config *c, struct plan_shape *out)
{
    const json_t *kinds = json_object_get(c->object, "layer_types"), *kind;
    const uint32_t window = config_u32_or(c, "sliding_window", UINT32_MAX / 2, 0);
    const uint32_t usual = config_is_of(c, "gemma2") ? 2 : config_is_of(c, "gemma3") ? 6 : 0;
    const uint32_t full_every =
        config_u32_or(c, "sliding_window_pattern", COUNT_MAX, config_u32_or(c, "_sliding_window_pattern", COUNT_MAX, usual));
    size_t i;

    if (!window || !config_is_true(c, "use_sliding_window", true))
        return;
    out->window = window;
    out->windowed_layers = out->layers - (full_every ? out->layers / full_every : 0);
    if (!json_is_array(kinds))
        return;
    out->windowed_layers = 0;
    json_array_foreach (kinds, i, kind)
        out->windowed_layers += json_is_string(kind) && !strcmp(json_string_value(kind), "sliding_attention");
    out->windowed_layers = MIN(out->windowed_layers, out->layers);
}

// Returns the values of a layer's attention; with latent attention, those of its two compressions and what expands them.
static double attention_values(struct config *c, struct plan_shape *out)
{
    const double hidden = out->hidden, heads = out->heads;
    const uint32_t latent = config_u32_or(c, "kv_lora_rank", WIDTH_MAX, 0);

    if (!latent)
        return hidden * out->head_dim * (2 * heads + 2.0 * out->kv_heads);
    const double rotated = config_u32(c, "qk_rope_head_dim", NULL, WIDTH_MAX),
                 plain = config_u32(c, "qk_nope_head_dim", NULL, WIDTH_MAX), value = config_u32(c, "v_head_dim", NULL, WIDTH_MAX),
                 q_rank = config_u32_or(c, "q_lora_rank", WIDTH_MAX, 0);
    const double q = q_rank > 0 ? q_rank * (hidden + heads * (plain + rotated)) : hidden * heads * (plain + rotated);
    out->latent = latent + (uint32_t)rotated;
    out->latent_value = latent;
    return q + hidden * out->latent + latent * heads * (plain + value) + heads * value * hidden;
}

// Adds the MLPs of all layers: dense ones, and those of experts with the experts that every row uses.
static void add_mlps(struct config *c, uint32_t type, struct plan_shape *out, struct weights_sum *layers,
                     struct weights_sum *experts)
{
    const double matrices = json_object_get(c->object, "ffn_dim") || config_is_of(c, "starcoder2") ? 2 : 3; // without a gate
    const uint32_t ffn = config_u32(c, "intermediate_size", "ffn_dim", WIDTH_MAX);
    uint32_t count = config_u32_or(c, "num_experts", COUNT_MAX, 0), dense = 0;

    count = count ? count : config_u32_or(c, "num_local_experts", COUNT_MAX, 0);
    count = count ? count : config_u32_or(c, "n_routed_experts", COUNT_MAX, 0);
    out->ffn = ffn;
    if (count == 0) {
        add_values(layers, matrices * out->hidden * ffn * out->layers, type);
        return;
    }
    const uint32_t width = config_u32_or(c, "moe_intermediate_size", WIDTH_MAX, ffn);
    const uint64_t shared = (uint64_t)config_u32_or(c, "n_shared_experts", COUNT_MAX, 0) * width +
                            config_u32_or(c, "shared_expert_intermediate_size", WIDTH_MAX, 0);
    dense = config_u32_or(c, "first_k_dense_replace", out->layers, 0);
    dense = MIN(dense + (uint32_t)json_array_size(json_object_get(c->object, "mlp_only_layers")), out->layers);
    const uint32_t every = MAX(config_u32_or(c, "decoder_sparse_step", COUNT_MAX, 1), 1u), sparse = (out->layers - dense) / every;
    out->experts = count;
    out->experts_used = MIN(config_u32(c, "num_experts_per_tok", NULL, COUNT_MAX), count);
    const uint64_t used = (uint64_t)out->experts_used * width + shared;
    out->ffn = (uint32_t)MIN(sparse < out->layers ? MAX(used, (uint64_t)ffn) : used, UINT64_C(1) << 31);
    add_values(layers, matrices * out->hidden * ffn * (out->layers - sparse), type);
    add_values(layers, (matrices * (double)shared + count) * out->hidden * sparse, type); // shared ones, and the router
    add_values(layers, matrices * out->hidden * width * count * sparse, type);
    add_values(experts, matrices * out->hidden * width * count * sparse, type);
}

// Writes the class unless this release has its architecture. A model with more than text is one of its text part in a GGUF file.
static void check_class(const json_t *root, struct plan_shape *out)
{
    static const char more[] = "ForConditionalGeneration";
    const char *class_name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    char text[sizeof out->unknown_class + 16];

    snprintf(text, sizeof text, "%s", class_name ? class_name : "");
    char *end = strstr(text, more);
    if (end)
        snprintf(end, sizeof text - (size_t)(end - text), "ForCausalLM");
    if (class_name && !model_knows_class(text))
        snprintf(out->unknown_class, sizeof out->unknown_class, "%s", class_name);
}

static enum status read_config(const char *path, const json_t *root, uint32_t type, struct plan_shape *out, struct error *error)
{
    const json_t *text = json_object_get(root, "text_config");
    struct config c = {.path = path, .object = json_is_object(text) ? text : root, .error = error};
    struct weights_sum layers = {0}, experts = {0}, head = {0}, embedding = {0};

    *out = (struct plan_shape){.layers = config_u32(&c, "num_hidden_layers", NULL, COUNT_MAX),
                               .hidden = config_u32(&c, "hidden_size", NULL, WIDTH_MAX),
                               .heads = config_u32(&c, "num_attention_heads", NULL, COUNT_MAX),
                               .vocab = config_u32(&c, "vocab_size", NULL, VOCAB_MAX),
                               .context_tokens = config_u32_or(&c, "max_position_embeddings", VOCAB_MAX, 0)};
    out->kv_heads = MAX(config_u32_or(&c, "num_key_value_heads", COUNT_MAX, out->heads), 1u);
    const bool ties = config_is_of(&c, "gemma") || config_is_of(&c, "opt") || config_is_of(&c, "smollm3") ||
                      config_is_of(&c, "starcoder2");
    out->head_dim = config_u32_or(&c, "head_dim", WIDTH_MAX, config_is_of(&c, "gemma") ? 256 : out->hidden / out->heads);
    read_windows(&c, out);
    add_values(&layers, attention_values(&c, out) * out->layers, type);
    if (!out->latent && (out->head_dim == 0 || out->head_dim % 16))
        config_fail(&c, "head_dim", "is not a multiple of 16, nor is hidden_size by num_attention_heads");
    add_mlps(&c, type, out, &layers, &experts);
    add_values(&head, (double)out->hidden * out->vocab, type);
    if (!config_is_true(&c, "tie_word_embeddings", ties))
        add_values(&embedding, (double)out->hidden * out->vocab, type);
    put_weights(&layers, &experts, &head, &embedding, out);
    check_class(root, out);
    return c.status;
}

enum status shape_of_config(const char *label, const char *text, size_t length, uint32_t type, struct plan_shape *out,
                            struct error *error)
{
    json_error_t wrong;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &wrong);
    enum status status = json_is_object(root) ? read_config(label, root, type, out, error)
                                              : error_set(error, STATUS_INVALID_ARGUMENT, "%s is no JSON object: %s", label,
                                                          root ? "another value" : wrong.text);
    json_decref(root);
    return status;
}

static enum status read_file(const char *path, uint32_t type, struct plan_shape *out, struct error *error)
{
    char *text = malloc(CONFIG_BYTES_MAX);
    FILE *file = fopen(path, "r");
    size_t length = file && text ? fread(text, 1, CONFIG_BYTES_MAX, file) : 0;
    enum status status;

    if (!file || !text || ferror(file))
        status = error_set(error, STATUS_NOT_FOUND, "--shape %s cannot be read: %s", path, strerror(errno));
    else if (length == CONFIG_BYTES_MAX)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "--shape %s is larger than 1 MiB: want a config.json", path);
    else
        status = shape_of_config(path, text, length, type, out, error);
    if (file)
        fclose(file);
    free(text);
    return status;
}

static const struct tensor_type_info *type_named(const char *name, uint32_t *type)
{
    for (*type = 0; *type < TENSOR_TYPE_END; ++*type) {
        const struct tensor_type_info *info = tensor_type_info(*type);
        if (info && !strcasecmp(info->name, name))
            return info;
    }
    return NULL;
}

enum status shape_named(const char *name, const char *type_name, struct plan_shape *out, struct error *error)
{
    static const struct shipped_files files = {.kind = "shapes", .suffix = ".json", .option_name = "shape"};
    uint32_t type;
    char path[SHIPPED_PATH_BYTES];
    const struct tensor_type_info *info = type_named(type_name, &type);
    const char *slash = strrchr(name, '/');

    if (!info)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--weights is '%s', want one of " TENSOR_TYPES_SUPPORTED, type_name);
    enum status status = shipped_find(&files, name, path, error);
    if (!status)
        status = read_file(path, type, out, error);
    if (!status)
        snprintf(out->name, sizeof out->name, "%s %s", slash ? slash + 1 : name, info->name);
    return status;
}

// --- a model file ---------------------------------------------------------------------------------------------------

static void add_view(struct weights_sum *sum, const struct tensor_view *view)
{
    if (view->bytes)
        add_values(sum, (double)view->rows * view->columns, (uint32_t)view->type);
}

enum status shape_read(const char *path, struct plan_shape *out, struct error *error)
{
    enum { FIRST_OF_MLP = 4 };
    struct weights_sum layers = {0}, experts = {0}, head = {0}, embedding = {0};
    const char *slash = strrchr(path, '/');
    struct model *model;
    enum status status = model_open(path, &model, error);

    if (status)
        return status;
    const struct model_shape *s = &model->shape;
    *out = (struct plan_shape){.layers = s->layers,
                               .hidden = s->hidden,
                               .heads = s->heads,
                               .kv_heads = s->kv_heads,
                               .head_dim = s->head_dim,
                               .ffn = s->ffn * MAX(s->experts_used, 1u),
                               .vocab = s->vocab,
                               .context_tokens = s->context_length,
                               .experts = s->experts,
                               .experts_used = s->experts_used,
                               .window = s->window};
    snprintf(out->name, sizeof out->name, "%s", slash ? slash + 1 : path);
    for (uint32_t i = 0; i < s->layers; i++) {
        const struct model_layer *l = &model->layers[i];
        const struct tensor_view *views[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < ARRAY_COUNT(views); j++)
            add_view(&layers, views[j]);
        for (size_t j = FIRST_OF_MLP; s->experts && j < ARRAY_COUNT(views); j++)
            add_view(&experts, views[j]);
        out->windowed_layers += l->windowed;
    }
    add_view(&head, &model->output);
    if (!model->tied)
        add_view(&embedding, &model->embedding);
    put_weights(&layers, &experts, &head, &embedding, out);
    model_close(model);
    return STATUS_OK;
}

// --- what follows from it ---------------------------------------------------------------------------------------------

double shape_kv_bytes(const struct plan_shape *shape, enum kv_type type)
{
    if (shape->latent) // as one K and V that have half of the values each
        return (double)kv_tile_bytes((shape->latent + 31) / 32 * 16, type) / KV_TILE;
    return shape->kv_heads * (double)kv_tile_bytes(shape->head_dim, type) / KV_TILE;
}

double shape_link_bytes(const struct plan_shape *shape)
{
    if (shape->latent)
        return 4.0 * ((double)shape->heads * (shape->latent + shape->latent_value) + shape->latent);
    return 4.0 * (2.0 * shape->heads + 2.0 * shape->kv_heads) * shape->head_dim;
}

double shape_pair_operations(const struct plan_shape *shape)
{
    return 2.0 * shape->heads * (shape->latent ? shape->latent + shape->latent_value : 2.0 * shape->head_dim);
}

uint32_t shape_ring_pages(const struct plan_shape *shape, uint32_t page_tokens, uint32_t context_tokens)
{
    return shape->windowed_layers == shape->layers ? kv_ring_pages_of(shape->window, page_tokens, context_tokens) : 0;
}

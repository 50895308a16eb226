// model.c: see model.h: opens a model.
#include "common/model/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/checked.h"
#include "common/model/hf/hf.h"
#include "common/model/metadata.h"
#include "kernels/quant/dequant.h"

// --- names of files -------------------------------------------------------------------------------------------------

enum { PART_BYTES = 15 }; // "-00001-of-00003"

static bool is_part(const char *text)
{
    static const char pattern[] = "-00000-of-00000";

    for (uint32_t i = 0; i < PART_BYTES; i++)
        if (pattern[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != pattern[i])
            return false;
    return true;
}

const char *model_stem(const char *path, size_t *length)
{
    static const char suffix[] = ".gguf";
    size_t end = strlen(path), begin;

    while (end > 1 && path[end - 1] == '/') // of a directory
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    if (end - begin > strlen(suffix) && memcmp(path + end - strlen(suffix), suffix, strlen(suffix)) == 0) {
        end -= strlen(suffix);
        if (end - begin > PART_BYTES && is_part(path + end - PART_BYTES))
            end -= PART_BYTES;
    }
    *length = end - begin;
    return path + begin;
}

// --- the tensors ----------------------------------------------------------------------------------------------------

// Finds the architecture's row, reads the shape, then places every tensor of the row and refuses
// what is missing, of another shape, or left over.
//
//     model_file_open ─▶ arch row ─▶ shape ─▶ tokenizer ─▶ tensors: look up, check dims, view ─▶ none left over ─▶ fingerprint

enum { SHOWN_BYTES = 72, NAMES_BYTES = 256, SAMPLE_BYTES = 4096 };

static uint32_t dim_of(const struct model_shape *shape, enum arch_dim dim)
{
    switch (dim) {
    case DIM_ONE: return 1;
    case DIM_HIDDEN: return shape->hidden;
    case DIM_Q: return shape->heads * shape->head_dim;
    case DIM_KV: return shape->kv_heads * shape->head_dim;
    case DIM_FFN: return shape->ffn;
    case DIM_VOCAB: return shape->vocab;
    case DIM_ROPE_HALF: return shape->rope_dim / 2;
    case DIM_HEAD: return shape->head_dim;
    case DIM_HEADS: return shape->heads;
    case DIM_POSITIONS: return shape->context_length + shape->positions_before;
    case DIM_EXPERTS: return shape->experts;
    case DIM_EXPERT_FFN: return shape->ffn;
    case DIM_EXPERTS_FFN: return shape->experts * shape->ffn;
    case DIM_EXPERTS_HIDDEN: return shape->experts * shape->hidden;
    }
    return 0;
}

// The beginning of the next part of a fused tensor.
struct part {
    uint32_t row;
};

// Returns whether a tensor has `columns` columns, and `rows` rows, perhaps as matrices of several experts. at_least: or more of them.
static bool has_shape(const struct gguf_tensor *tensor, uint32_t rows, uint32_t columns, bool at_least)
{
    uint64_t has = tensor->dims[2] <= MODEL_MAX_EXPERTS ? tensor->dims[1] * tensor->dims[2]
                                                        : 0; // dims are limited by the file's bytes
    return tensor->dims[0] == columns && tensor->dims[3] == 1 && (has == rows || (at_least && has > rows));
}

// Puts one tensor of a row into the view at base + offset. *placed counts those that the file has.
static enum status place_tensor(const struct model *model, const struct arch_tensor *wanted, uint32_t layer, void *base,
                                struct part *part, uint32_t *placed, struct error *error)
{
    char name[GGUF_MAX_NAME_BYTES + 1];
    uint32_t rows = dim_of(&model->shape, wanted->rows), columns = dim_of(&model->shape, wanted->columns);
    bool is_part = wanted->presence == ARCH_PART, goes_on = wanted[1].presence == ARCH_PART && wanted[1].pattern;

    snprintf(name, sizeof name, wanted->pattern, layer);
    const struct gguf_tensor *tensor = gguf_find_tensor(model->gguf, name);
    if (!tensor && wanted->presence == ARCH_OPTIONAL)
        return STATUS_OK;
    if (!tensor)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: tensor '%s' is missing: expected %u rows of %u values",
                         gguf_label(model->gguf), name, rows, columns);
    uint32_t begin = is_part ? part->row : 0;
    if (!has_shape(tensor, begin + rows, columns, goes_on))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%s: tensor '%s' at offset 0x%" PRIx64 ": has dimensions %" PRIu64 " x %" PRIu64 " x %" PRIu64
                         " x %" PRIu64 ", expected %u x %u%s",
                         gguf_label(model->gguf), name, tensor->entry_offset, tensor->dims[0], tensor->dims[1], tensor->dims[2],
                         tensor->dims[3], columns, begin + rows, goes_on ? " or more" : "");
    uint64_t row_bytes = tensor->bytes / (tensor->dims[1] * tensor->dims[2]);
    struct tensor_view *view = (struct tensor_view *)((char *)base + wanted->offset);
    *view = (struct tensor_view){.data = (const unsigned char *)tensor->data + begin * row_bytes,
                                 .type = tensor->type,
                                 .rows = rows,
                                 .columns = columns,
                                 .bytes = rows * row_bytes,
                                 .name = tensor->name.data,
                                 .name_length = (uint32_t)tensor->name.length,
                                 .stored = tensor->stored};
    part->row = begin + rows;
    *placed += !is_part;
    return STATUS_OK;
}

// Writes the name of one expert's matrix: "blk.0.ffn_gate.7.weight" where the pattern is "blk.%u.ffn_gate_exps.weight". Returns name.
static const char *name_of_one(const struct arch_tensor *wanted, uint32_t layer, uint32_t expert, char *name, size_t bytes)
{
    size_t length = (size_t)snprintf(name, bytes, wanted->pattern, layer) - strlen("_exps.weight");
    snprintf(name + length, bytes - length, ".%u.weight", expert);
    return name;
}

// Puts matrices of experts that a file has one by one, "blk.N.ffn_gate.E.weight", into the view of all of them.
static enum status place_listed(struct model *model, const struct arch_tensor *wanted, uint32_t layer, const void **pieces,
                                uint32_t *placed, struct error *error)
{
    const struct model_shape *shape = &model->shape;
    uint32_t rows = dim_of(shape, wanted->rows) / shape->experts, columns = dim_of(shape, wanted->columns);
    struct tensor_view *view = (struct tensor_view *)((char *)&model->layers[layer] + wanted->offset);

    for (uint32_t e = 0; e < shape->experts; e++) {
        char name[GGUF_MAX_NAME_BYTES + 1];
        const struct gguf_tensor *tensor = gguf_find_tensor(model->gguf, name_of_one(wanted, layer, e, name, sizeof name));
        if (!tensor || !has_shape(tensor, rows, columns, false) || (e && tensor->type != view->type))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "%s: tensor '%s' is missing, or has not %u rows of %u values of one type", gguf_label(model->gguf),
                             name, rows, columns);
        if (e == 0)
            *view = (struct tensor_view){.data = tensor->data,
                                         .type = tensor->type,
                                         .rows = rows * shape->experts,
                                         .columns = columns,
                                         .bytes = tensor->bytes * shape->experts,
                                         .name = tensor->name.data,
                                         .name_length = (uint32_t)tensor->name.length,
                                         .pieces = pieces,
                                         .piece_count = shape->experts};
        pieces[e] = tensor->data;
        ++*placed;
    }
    return STATUS_OK;
}

static bool is_of_experts(const struct arch_tensor *wanted)
{
    return wanted->rows == DIM_EXPERTS_FFN || wanted->rows == DIM_EXPERTS_HIDDEN;
}

static enum status place_list(const struct model *model, const struct arch_tensor *list, uint32_t layer, void *base,
                              uint32_t *placed, struct error *error)
{
    struct part part = {0};
    enum status status = STATUS_OK;

    for (const struct arch_tensor *wanted = list; wanted->pattern && !status; wanted++)
        status = place_tensor(model, wanted, layer, base, &part, placed, error);
    return status;
}

// Experts: each matrix in one piece, or one by one.
static enum status place_experts(struct model *model, uint32_t layer, uint32_t *placed, struct error *error)
{
    enum { MATRICES = 3 };
    struct part part = {0};
    enum status status = STATUS_OK;
    uint32_t matrix = 0;

    for (const struct arch_tensor *wanted = model->arch->expert_tensors; wanted->pattern && !status; wanted++) {
        char name[GGUF_MAX_NAME_BYTES + 1];
        const void **pieces = model->pieces_made + ((size_t)layer * MATRICES + matrix) * model->shape.experts;
        matrix += is_of_experts(wanted);
        assert_always(matrix <= MATRICES);
        if (is_of_experts(wanted) && gguf_find_tensor(model->gguf, name_of_one(wanted, layer, 0, name, sizeof name)))
            status = place_listed(model, wanted, layer, pieces, placed, error);
        else
            status = place_tensor(model, wanted, layer, &model->layers[layer], &part, placed, error);
    }
    return status;
}

// Returns the tensors that each layer has besides attention.
static const struct arch_tensor *mlp_list(const struct model *model)
{
    return model->shape.experts ? model->arch->expert_tensors : model->arch->mlp_tensors;
}

// Returns whether this is the name that `pattern` gives for some layer of the model?
static bool is_layer_name(const char *pattern, uint32_t layers, struct gguf_string name)
{
    char wanted[GGUF_MAX_NAME_BYTES + 1], copy[GGUF_MAX_NAME_BYTES + 1];
    uint32_t layer = 0;

    memcpy(copy, name.data, name.length);
    copy[name.length] = '\0';
    if (strncmp(copy, "blk.", 4) == 0)
        layer = (uint32_t)strtoul(copy + 4, NULL, 10);
    const char *each = strstr(pattern, "_exps.weight"), *found = strstr(copy, ".ffn_");
    const char *last = found ? strchr(found + 1, '.') : NULL;
    size_t length = (size_t)snprintf(wanted, sizeof wanted, pattern, layer);
    if (each && last && last[1] >= '0' && last[1] <= '9') // of one expert
        snprintf(wanted + length - strlen(each), sizeof wanted - length + strlen(each), ".%u.weight",
                 (uint32_t)strtoul(last + 1, NULL, 10));
    return layer < layers && strlen(copy) == name.length && strcmp(copy, wanted) == 0;
}

static bool is_in_list(const struct arch_tensor *list, uint32_t layers, struct gguf_string name)
{
    for (const struct arch_tensor *wanted = list; wanted->pattern; wanted++)
        if (is_layer_name(wanted->pattern, layers, name))
            return true;
    return false;
}

static bool is_known(const struct model *model, struct gguf_string name)
{
    return is_in_list(model->arch->model_tensors, 1, name) || is_in_list(model->arch->layer_tensors, model->shape.layers, name) ||
           is_in_list(mlp_list(model), model->shape.layers, name) || model_is_head_tensor(name);
}

// Weights that the forward pass would not use mean that the file is another model than it says.
static enum status check_none_left(const struct model *model, uint32_t placed, struct error *error)
{
    char shown[SHOWN_BYTES];

    for (uint32_t i = 0; placed < gguf_tensor_count(model->gguf) && i < gguf_tensor_count(model->gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, i);
        if (!is_known(model, tensor->name))
            return error_set(error, STATUS_UNIMPLEMENTED,
                             "%s: tensor '%s' at offset 0x%" PRIx64 ": architecture %s with %u layers has no such tensor",
                             gguf_label(model->gguf), gguf_printable(shown, sizeof shown, tensor->name), tensor->entry_offset,
                             model->arch->name, model->shape.layers);
    }
    return STATUS_OK;
}

// Optional tensors are there in all layers or in none: a bias that one layer lacks is lost, and the model would be another one.
static enum status check_alike(const struct model *model, const struct arch_tensor *list, struct error *error)
{
    for (const struct arch_tensor *wanted = list; wanted->pattern; wanted++) {
        uint32_t lacks = UINT32_MAX, has = 0;
        for (uint32_t layer = 0; layer < model->shape.layers && wanted->presence == ARCH_OPTIONAL; layer++) {
            const struct tensor_view *view = (const struct tensor_view *)((const char *)&model->layers[layer] + wanted->offset);
            has += view->data != NULL;
            lacks = view->data || lacks != UINT32_MAX ? lacks : layer;
        }
        if (has > 0 && lacks != UINT32_MAX) {
            char name[GGUF_MAX_NAME_BYTES + 1];
            snprintf(name, sizeof name, wanted->pattern, lacks);
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s: tensor '%s' is missing: other layers have theirs",
                             gguf_label(model->gguf), name);
        }
    }
    return STATUS_OK;
}

static enum status read_sinks(struct model *model, struct error *error)
{
    const struct model_shape *shape = &model->shape;

    if (!model->layers[0].sinks.data)
        return STATUS_OK;
    if (!(model->sinks_made = calloc((size_t)shape->layers * shape->heads, sizeof *model->sinks_made)))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for sinks", gguf_label(model->gguf));
    for (uint32_t l = 0; l < shape->layers; l++) {
        float *scores = model->sinks_made + (size_t)l * shape->heads;
        dequantize(model->layers[l].sinks.type, model->layers[l].sinks.data, shape->heads, scores);
        model->layers[l].sink_scores = scores;
    }
    return STATUS_OK;
}

static enum status place_tensors(struct model *model, struct error *error)
{
    uint32_t placed = 0;
    enum status status = STATUS_OK;

    // A layer has at least one tensor: what is missing is told before memory is asked for.
    if (model->shape.layers > gguf_tensor_count(model->gguf))
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: key '%s.block_count' is %u, the file has %u tensors",
                         gguf_label(model->gguf), model->arch->name, model->shape.layers, gguf_tensor_count(model->gguf));
    model->layers = calloc(model->shape.layers, sizeof *model->layers);
    if (!model->layers)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %u layers", gguf_label(model->gguf),
                         model->shape.layers);
    if (model->shape.experts &&
        !(model->pieces_made = calloc((size_t)model->shape.layers * model->shape.experts * 3, sizeof(void *))))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %u experts", gguf_label(model->gguf),
                         model->shape.experts);
    if (!(status = model_read_layers(model->gguf, model->arch, &model->shape, model->layers, error)))
        status = place_list(model, model->arch->model_tensors, 0, model, &placed, error);
    for (uint32_t layer = 0; layer < model->shape.layers && !status; layer++)
        if (!(status = place_list(model, model->arch->layer_tensors, layer, &model->layers[layer], &placed, error)))
            status = model->shape.experts
                         ? place_experts(model, layer, &placed, error)
                         : place_list(model, model->arch->mlp_tensors, layer, &model->layers[layer], &placed, error);
    if (!status)
        status = model_place_head(model, &placed, error);
    if (status || (status = check_none_left(model, placed, error)) ||
        (status = check_alike(model, model->arch->layer_tensors, error)) || (status = check_alike(model, mlp_list(model), error)))
        return status;
    if (!model->output.data) {
        if (!model->arch->tied_allowed)
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s: tensor 'output.weight' is missing", gguf_label(model->gguf));
        model->tied = true;
        model->output = model->embedding;
    }
    return STATUS_OK;
}

// FNV-1a over 8 bytes at a time, with a shift that brings high bits down.
static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + i, (size_t)MIN(count - i, (uint64_t)8));
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

// Hashes both ends and the middle of a tensor's bytes.
static uint64_t hash_samples(uint64_t hash, const struct gguf *gguf, const unsigned char *data, uint64_t bytes)
{
    uint64_t count = MIN(bytes, (uint64_t)SAMPLE_BYTES), rest = bytes - count;

    hash = hash_bytes(hash, data, count);
    if (rest) {
        hash = hash_bytes(hash, data + rest / 2, count);
        hash = hash_bytes(hash, data + rest, count);
    }
    gguf_release_pages(gguf, data, bytes); // the kernel maps a good deal around each sample
    return hash;
}

static uint64_t fingerprint_of(const struct gguf *gguf)
{
    uint64_t file_bytes = gguf_file_bytes(gguf);
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, (const unsigned char *)&file_bytes, sizeof file_bytes);

    hash = hash_bytes(hash, gguf_bytes(gguf), gguf_header_bytes(gguf));
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        const struct stored_rows *stored = tensor->stored;
        hash = hash_samples(hash, gguf, tensor->data, stored ? stored->values_bytes : tensor->bytes);
        if (stored && stored->scales)
            hash = hash_samples(hash, gguf, stored->scales, stored->scales_bytes);
    }
    return hash;
}

static enum status find_arch(struct model *model, struct error *error)
{
    char shown[SHOWN_BYTES], names[NAMES_BYTES];
    struct gguf_string name;
    enum status status = gguf_get_string(model->gguf, "general.architecture", &name, error);

    if (status == STATUS_NOT_FOUND)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: key 'general.architecture' is missing", gguf_label(model->gguf));
    if (status)
        return status;
    model->arch = arch_find(name);
    arch_names(names, sizeof names);
    if (!model->arch)
        return error_set(error, STATUS_UNIMPLEMENTED, "%s: key 'general.architecture' is '%s'; supported are: %s",
                         gguf_label(model->gguf), gguf_printable(shown, sizeof shown, name), names);
    model->arch_name = model->arch->name;
    return STATUS_OK;
}

static enum status fill_model(struct model *model, struct error *error)
{
    enum status status;

    if ((status = find_arch(model, error)) || (status = model_read_shape(model->gguf, model->arch, &model->shape, error)) ||
        (status = model_read_tokenizer(model->gguf, &model->shape.vocab, &model->tokenizer, error)) ||
        (status = place_tensors(model, error)) || (status = model_read_rope(model, error)) || (status = read_sinks(model, error)))
        return status;
    if (gguf_get_string(model->gguf, "general.name", &model->name, NULL) || model->name.length == 0) {
        size_t length;
        model->name.data = model_stem(gguf_file_name(model->gguf), &length);
        model->name.length = length;
    }
    if ((status = model_read_pooling(model, error)))
        return status;
    for (uint32_t i = 0; i < gguf_tensor_count(model->gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(model->gguf, i);
        model->parameters += tensor->dims[0] * tensor->dims[1] * tensor->dims[2];
    }
    model->fingerprint = fingerprint_of(model->gguf);
    return STATUS_OK;
}

// The file is to blame for any failure but a lack of memory.
static enum status blame_file(enum status status, struct error *error)
{
    if (error)
        error->about_model = status != STATUS_OK && status != STATUS_RESOURCE_EXHAUSTED;
    return status;
}

// Takes gguf, or its failure.
static enum status finish_open(struct gguf *gguf, enum status status, struct model **out, struct error *error)
{
    if (status)
        return blame_file(status, error);
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        gguf_close(gguf);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory to open a model");
    }
    model->gguf = gguf;
    status = fill_model(model, error);
    if (status)
        model_close(model);
    else
        *out = model;
    return blame_file(status, error);
}

enum status model_file_open(const char *path, struct gguf **out, struct error *error)
{
    struct stat info;
    const bool directory = stat(path, &info) == 0 && S_ISDIR(info.st_mode);

    return directory ? hf_open(path, out, error) : gguf_open(path, out, error);
}

bool model_knows_class(const char *class_name) { return hf_knows_class(class_name); }

enum status model_open(const char *path, struct model **out, struct error *error)
{
    struct gguf *gguf = NULL;
    enum status status = model_file_open(path, &gguf, error);
    return finish_open(gguf, status, out, error);
}

enum status model_open_memory(const char *name, const void *bytes, uint64_t byte_count, struct model **out, struct error *error)
{
    struct gguf *gguf = NULL;
    enum status status = gguf_open_memory(name, bytes, byte_count, &gguf, error);
    return finish_open(gguf, status, out, error);
}

void model_close(struct model *model)
{
    if (!model)
        return;
    gguf_close(model->gguf);
    free(model->layers);
    free(model->rope_made);
    free(model->pieces_made);
    free(model->sinks_made);
    free(model);
}

const void *model_view_rows(const struct tensor_view *view, uint32_t row, uint32_t count, void *buffer)
{
    if (!view->stored)
        return (const unsigned char *)view->data + row * (view->bytes / view->rows);
    return stored_rows_read(view->stored, (uint64_t)row * view->columns, (uint64_t)count * view->columns, buffer) ? buffer : NULL;
}

void model_release_tensor(const struct model *model, const struct tensor_view *view)
{
    if (view->stored)
        gguf_release_stored(model->gguf, view->stored);
    else if (view->data)
        gguf_release_pages(model->gguf, view->data, view->bytes);
}

void model_release_file(const struct model *model)
{
    gguf_release_pages(model->gguf, gguf_bytes(model->gguf), gguf_file_bytes(model->gguf));
}

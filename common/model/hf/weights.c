// weights.c: the weights of a directory: headers of safetensors files, the files, and GGUF's names and shapes for what they hold.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/model/gguf/header.h"
#include "common/model/hf/internal.h"

// --- the header of a safetensors file -------------------------------------------------------------------------------

enum { LENGTH_BYTES = 8, SHOWN_BYTES = 96, DATA_ALIGNMENT = 8 };

struct reader {
    const char *label;
    uint64_t data_begin, data_bytes;
    struct error *error;
    const char *name; // of the tensor that is being read
};

static const struct {
    const char *name;
    enum tensor_type type;
} types[] = {{"F32", TENSOR_F32}, {"F16", TENSOR_F16}, {"BF16", TENSOR_BF16}};

#define ABOUT "%s: tensor '%s': "
#define ABOUT_TENSOR(reader, buffer) \
    (reader)->label, gguf_printable((buffer), sizeof(buffer), (struct gguf_string){(reader)->name, strlen((reader)->name)})

static enum status read_type(const struct reader *reader, const json_t *value, struct safetensor *tensor)
{
    char shown[SHOWN_BYTES], type[32];

    for (size_t i = 0; json_is_string(value) && i < ARRAY_COUNT(types); i++)
        if (strcmp(types[i].name, json_string_value(value)) == 0) {
            tensor->type = types[i].type;
            return STATUS_OK;
        }
    tensor->is_bytes = json_is_string(value) && strcmp(json_string_value(value), "U8") == 0;
    if (tensor->is_bytes)
        return STATUS_OK;
    return error_set(reader->error, STATUS_UNIMPLEMENTED,
                     ABOUT "dtype is %s; supported are F32, F16, BF16 (for quantized weights use a GGUF file)",
                     ABOUT_TENSOR(reader, shown), hf_json_shown(type, sizeof type, value));
}

static uint32_t value_bytes_of(const struct safetensor *tensor)
{
    return tensor->is_bytes ? 1 : tensor_type_info((uint32_t)tensor->type)->block_bytes;
}

// Fills the shape and the bytes that follow from it.
static enum status read_shape(const struct reader *reader, const json_t *value, struct safetensor *tensor)
{
    char shown[SHOWN_BYTES];
    uint64_t values = 1;
    size_t count = json_array_size(value);

    if (!json_is_array(value) || count == 0 || count > SAFETENSORS_MAX_DIMS)
        return error_set(reader->error, json_is_array(value) ? STATUS_UNIMPLEMENTED : STATUS_DATA_LOSS,
                         ABOUT "shape is %s of %zu numbers, expected an array of 1 to %d", ABOUT_TENSOR(reader, shown),
                         json_is_array(value) ? "an array" : "no array", count, SAFETENSORS_MAX_DIMS);
    tensor->dim_count = (uint32_t)count;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        uint64_t dim;
        if (!hf_json_whole(json_array_get(value, i), &dim) || dim == 0)
            return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "dimension %u of its shape is no whole number above 0",
                             ABOUT_TENSOR(reader, shown), i);
        if (!checked_mul_u64(values, dim, &values) || values > (uint64_t)1 << 56)
            return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "its shape is absurd", ABOUT_TENSOR(reader, shown));
        tensor->shape[i] = dim;
    }
    tensor->bytes = values * value_bytes_of(tensor);
    return STATUS_OK;
}

static enum status read_offsets(const struct reader *reader, const json_t *value, struct safetensor *tensor)
{
    char shown[SHOWN_BYTES];
    uint64_t begin, end;
    uint32_t value_bytes = value_bytes_of(tensor);

    if (json_array_size(value) != 2 || !hf_json_whole(json_array_get(value, 0), &begin) ||
        !hf_json_whole(json_array_get(value, 1), &end))
        return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "data_offsets is not [begin, end]", ABOUT_TENSOR(reader, shown));
    if (begin > end || end > reader->data_bytes)
        return error_set(reader->error, STATUS_DATA_LOSS,
                         ABOUT "data_offsets [%" PRIu64 ", %" PRIu64 "] lie outside the %" PRIu64 " bytes of data (cut short?)",
                         ABOUT_TENSOR(reader, shown), begin, end, reader->data_bytes);
    if (end - begin != tensor->bytes)
        return error_set(reader->error, STATUS_DATA_LOSS,
                         ABOUT "has %" PRIu64 " bytes by data_offsets, %" PRIu64 " by shape and dtype", ABOUT_TENSOR(reader, shown),
                         end - begin, tensor->bytes);
    tensor->offset = reader->data_begin + begin;
    if (begin % value_bytes != 0)
        return error_set(reader->error, STATUS_UNIMPLEMENTED,
                         ABOUT "lies at byte %" PRIu64
                               " of the data, which is no multiple of %u: write the file again with a current "
                               "version of safetensors",
                         ABOUT_TENSOR(reader, shown), begin, value_bytes);
    return STATUS_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensor *x = *(const struct safetensor *const *)a, *y = *(const struct safetensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

// The tensors must cover the data: what overlaps, or is left over at the end, is another file than the header says.
static enum status check_cover(const struct reader *reader, const struct safetensors *file)
{
    char shown[SHOWN_BYTES], other[SHOWN_BYTES];
    struct safetensor **order = calloc(file->tensor_count + 1u, sizeof *order);
    uint64_t end = reader->data_begin;
    enum status status = STATUS_OK;

    if (!order)
        return error_set(reader->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %u tensors", reader->label,
                         file->tensor_count);
    for (uint32_t i = 0; i < file->tensor_count; i++)
        order[i] = &file->tensors[i];
    qsort(order, file->tensor_count, sizeof *order, compare_offsets);
    for (uint32_t i = 0; !status && i < file->tensor_count; i++) {
        if (order[i]->offset < end)
            status = error_set(
                reader->error, STATUS_DATA_LOSS, "%s: tensor '%s': its data lies over that of '%s'", reader->label,
                gguf_printable(shown, sizeof shown, (struct gguf_string){order[i]->name, strlen(order[i]->name)}),
                gguf_printable(other, sizeof other, (struct gguf_string){order[i - 1]->name, strlen(order[i - 1]->name)}));
        end = order[i]->offset + order[i]->bytes;
    }
    if (!status && end != reader->data_begin + reader->data_bytes)
        status = error_set(reader->error, STATUS_DATA_LOSS, "%s: its tensors end at byte %" PRIu64 ", the file at %" PRIu64,
                           reader->label, end, reader->data_begin + reader->data_bytes);
    free(order);
    return status;
}

static enum status read_tensors(struct reader *reader, struct safetensors *file)
{
    size_t count = json_object_size(file->header);
    const char *name;
    json_t *value;
    enum status status = STATUS_OK;

    if (count > SAFETENSORS_MAX_TENSORS)
        return error_set(reader->error, STATUS_RESOURCE_EXHAUSTED, "%s: %zu tensors, supported: up to %d", reader->label, count,
                         SAFETENSORS_MAX_TENSORS);
    file->tensors = calloc(count + 1, sizeof *file->tensors);
    if (!file->tensors)
        return error_set(reader->error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %zu tensors", reader->label, count);
    json_object_foreach (file->header, name, value) {
        char shown[SHOWN_BYTES];
        if (strcmp(name, "__metadata__") == 0)
            continue;
        struct safetensor *tensor = &file->tensors[file->tensor_count++];
        tensor->name = reader->name = name;
        if (!json_is_object(value))
            return error_set(reader->error, STATUS_DATA_LOSS, ABOUT "its entry is no object", ABOUT_TENSOR(reader, shown));
        if ((status = read_type(reader, json_object_get(value, "dtype"), tensor)) ||
            (status = read_shape(reader, json_object_get(value, "shape"), tensor)) ||
            (status = read_offsets(reader, json_object_get(value, "data_offsets"), tensor)))
            return status;
        if (tensor->offset % value_bytes_of(tensor) != 0) // the header is not padded
            file->lead_bytes = (uint32_t)(DATA_ALIGNMENT - reader->data_begin % DATA_ALIGNMENT);
    }
    return check_cover(reader, file);
}

// Reads the header of a whole file in memory. label stands for it in messages. The caller closes *out. DATA_LOSS: cut short or broken;
// UNIMPLEMENTED: a type that is not read; INVALID_ARGUMENT: not a safetensors file.
static enum status safetensors_open(const char *label, const unsigned char *bytes, uint64_t byte_count, struct safetensors *out,
                                    struct error *error)
{
    struct reader reader = {.label = label, .error = error};
    uint64_t header_bytes;
    enum status status;

    *out = (struct safetensors){0};
    if (byte_count < LENGTH_BYTES)
        return error_set(error, STATUS_DATA_LOSS, "%s: %" PRIu64 " bytes, too few for a safetensors file", label, byte_count);
    header_bytes = gguf_read_le(bytes, LENGTH_BYTES);
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%s: a header of %" PRIu64 " bytes, supported: up to %d; not a safetensors file?", label, header_bytes,
                         SAFETENSORS_MAX_HEADER_BYTES);
    if (header_bytes > byte_count - LENGTH_BYTES)
        return error_set(error, STATUS_DATA_LOSS, "%s: a header of %" PRIu64 " bytes, the file has %" PRIu64 " left (cut short?)",
                         label, header_bytes, byte_count - LENGTH_BYTES);
    if (header_bytes == 0 || bytes[LENGTH_BYTES] != '{')
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a safetensors file: its header does not begin with '{'", label);
    reader.data_begin = LENGTH_BYTES + header_bytes;
    reader.data_bytes = byte_count - reader.data_begin;
    status = hf_json_parse(label, bytes + LENGTH_BYTES, header_bytes, JSON_OBJECT, &out->header, error);
    if (!status)
        status = read_tensors(&reader, out);
    if (status)
        safetensors_close(out);
    return status;
}

void safetensors_close(struct safetensors *file)
{
    free(file->tensors);
    json_decref(file->header);
    *file = (struct safetensors){0};
}

// --- the files with the weights -------------------------------------------------------------------------------------

// They are model.safetensors, or those that model.safetensors.index.json names, each tensor
// in the one that the index gives it.

#define ONE_FILE "model.safetensors"
#define INDEX "model.safetensors.index.json"

enum { MAX_SHARDS = 4096 };

static const char *shown_text(char *buffer, size_t bytes, const char *text)
{
    return gguf_printable(buffer, bytes, (struct gguf_string){text, strlen(text)});
}

// Returns whether the name stays in the directory, and does nothing to a terminal or log that shows it. (Links may lead elsewhere: a cache of
// downloads is made of them.)
static bool is_plain_name(const char *name)
{
    size_t length = name ? strlen(name) : 0;

    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f)
            return false;
    return length > strlen(".safetensors") && length <= 255 && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\') &&
           strcmp(name + length - strlen(".safetensors"), ".safetensors") == 0;
}

// Opens one file as the next shard. False: there is none, or a failure.
static bool open_shard(struct hf *hf, const char *name)
{
    struct hf_shard *shard = &hf->shards[hf->shard_count];
    char label[HF_LABEL_BYTES];
    struct mapped_file file;

    if (!hf_file_open(hf, name, &file))
        return false;
    hf_file_label(hf, name, label);
    shard->name = strdup(name);
    if (!shard->name)
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, name, "no memory for its name");
    else
        hf->status = safetensors_open(label, file.bytes, file.byte_count, &shard->header, hf->error);
    if (hf->status) {
        free(shard->name);
        shard->name = NULL;
        mapped_file_close(&file);
        return false;
    }
    file.lead_bytes = shard->header.lead_bytes;
    if (file.lead_bytes)
        log_warn("HF-COPIED",
                 "file=\"%s\" bytes=%llu reason=\"its header is not padded to 8 bytes, so its weights are copied to memory\"",
                 label, (unsigned long long)file.byte_count);
    hf->pieces[hf->shard_count++] = file;
    return true;
}

static int compare_texts(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

// Tensors that are not read, so that an index may name them without any file having them, or a file have them unnamed: frequencies of RoPE
// that old versions saved, and an output projection that is the embedding.
static bool is_unused(const struct hf *hf, const char *name)
{
    static const char suffix[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name);

    return (length > strlen(suffix) && strcmp(name + length - strlen(suffix), suffix) == 0) ||
           (hf->tied && strcmp(name, "lm_head.weight") == 0);
}

// Returns the names of the index' files that have what is read, each once, in their order. The caller frees the array.
static const char **list_files(struct hf *hf, uint32_t *count)
{
    const char **names = calloc(json_object_size(hf->index) + 1, sizeof *names), *tensor;
    char shown[SHOWN_BYTES], other[SHOWN_BYTES];
    json_t *value;
    size_t all = 0;

    *count = 0;
    if (!names) {
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, INDEX, "no memory for its names");
        return NULL;
    }
    json_object_foreach ((json_t *)(uintptr_t)hf->index, tensor, value) {
        if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value) ||
            !is_plain_name(json_string_value(value))) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, INDEX, "tensor '%s' is in %s, expected the name of a .safetensors file beside it",
                    shown_text(shown, sizeof shown, tensor), hf_json_shown(other, sizeof other, value));
            break;
        }
        if (!is_unused(hf, tensor))
            names[all++] = json_string_value(value);
    }
    qsort(names, all, sizeof *names, compare_texts);
    for (size_t i = 0; i < all; i++)
        if (*count == 0 || strcmp(names[*count - 1], names[i]) != 0)
            names[(*count)++] = names[i];
    if (*count == 0 || *count > MAX_SHARDS)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, INDEX, "it names %u files, expected 1 to %d", *count, MAX_SHARDS);
    return names;
}

// Every tensor must be where the index says, and no other may be there.
static void check_index(struct hf *hf)
{
    char shown[SHOWN_BYTES];
    size_t total = 0;

    for (uint32_t i = 0; i < hf->shard_count; i++) {
        const struct hf_shard *shard = &hf->shards[i];
        for (uint32_t t = 0; t < shard->header.tensor_count && !hf->status; t++) {
            const char *name = shard->header.tensors[t].name, *file = json_string_value(json_object_get(hf->index, name));
            if ((!file || strcmp(file, shard->name) != 0) && !is_unused(hf, name))
                hf_fail(hf, STATUS_INVALID_ARGUMENT, shard->name, "tensor '%s': %s says that it is in %s",
                        shown_text(shown, sizeof shown, name), INDEX, file ? file : "no file");
            total++;
        }
    }
    if (hf->status || total == json_object_size(hf->index))
        return;
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)hf->index, name, value) {
        bool found = false;
        for (uint32_t i = 0; i < hf->shard_count && !found; i++)
            if (strcmp(hf->shards[i].name, json_string_value(value)) == 0)
                found = json_object_get(hf->shards[i].header.header, name) != NULL;
        if (found)
            continue;
        shown_text(shown, sizeof shown, name);
        if (is_unused(hf, name))
            log_warn("HF-INDEX", "file=\"%s/" INDEX "\" tensor=%s reason=\"no file that is read has it, and it is not needed\"",
                     hf->label, shown);
        else
            hf_fail(hf, STATUS_INVALID_ARGUMENT, json_string_value(value), "tensor '%s' is missing, which %s says is here", shown,
                    INDEX);
    }
}

static void make_room(struct hf *hf, uint32_t count)
{
    hf->shards = calloc(count, sizeof *hf->shards);
    hf->pieces = calloc(count, sizeof *hf->pieces);
    if (!hf->shards || !hf->pieces)
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, NULL, "no memory for %u files", count);
}

void hf_open_shards(struct hf *hf)
{
    uint32_t count = 0;

    if (hf->status)
        return;
    hf->index_root = hf_file_json(hf, INDEX);
    hf->index = hf_json_get(hf->index_root, "weight_map");
    if (!hf->index_root) {
        make_room(hf, 1);
        if (!open_shard(hf, ONE_FILE))
            hf_fail(hf, STATUS_INVALID_ARGUMENT, NULL,
                    "it has neither %s nor %s (weights in pytorch_model.bin are not read: convert them)", ONE_FILE, INDEX);
        return;
    }
    if (!json_is_object(hf->index)) {
        hf_fail(hf, STATUS_INVALID_ARGUMENT, INDEX, "key 'weight_map' is missing: expected an object");
        return;
    }
    const char **names = list_files(hf, &count);
    if (!hf->status)
        make_room(hf, count);
    for (uint32_t i = 0; i < count && !hf->status; i++)
        if (!open_shard(hf, names[i]))
            hf_fail(hf, STATUS_INVALID_ARGUMENT, names[i], "it is missing, and %s names it", INDEX);
    free(names);
    if (!hf->status)
        check_index(hf);
}

// --- stacked experts ------------------------------------------------------------------------------------------------

// The experts of gpt-oss, which lie in a directory in another order than in GGUF. They are read from where they lie
// (kernels/quant/stored_rows.h) under GGUF's names and shapes:
//
//     gate_up_proj           [experts][hidden][2 ffn]          ffn_gate_exps.weight, ffn_up_exps.weight   [experts][ffn][hidden]
//     gate_up_proj_blocks u8 [experts][2 ffn][hidden / 32][16]   or these, with
//     gate_up_proj_scales u8 [experts][2 ffn][hidden / 32]         quantization_config's mxfp4
//     gate_up_proj_bias      [experts][2 ffn]                  ffn_gate_exps.bias, ffn_up_exps.bias       [experts][ffn]
//     down_proj              [experts][ffn][hidden]            ffn_down_exps.weight                       [experts][hidden][ffn]
//     down_proj_blocks, _scales                                  likewise
//     down_proj_bias         [experts][hidden]                 ffn_down_exps.bias, as it is
//
// In the dimension of 2 ffn, gate and up take turns.

enum { BLOCK_VALUES = 32, BLOCK_BYTES = 16, SHAPE_BYTES = 112 };

// The tensors that a matrix may lie in: the parts of gate_up_proj, then those of down_proj.
enum { PLAIN, BIAS, BLOCKS, SCALES, PARTS };
static const char *const expert_names[2][PARTS] = {
    {"gate_up_proj", "gate_up_proj_bias", "gate_up_proj_blocks", "gate_up_proj_scales"},
    {"down_proj", "down_proj_bias", "down_proj_blocks", "down_proj_scales"},
};

struct hf_layer_experts {
    struct place {
        const struct safetensor *tensor; // NULL: there is none
        uint32_t piece;
    } of[2][PARTS];
};

// Takes a tensor of `part` of a layer, what follows its number. False: it is none of the stacked experts. After the last one, put checks and names
// them all.
static bool hf_take_expert(struct hf *hf, uint32_t piece, const struct safetensor *tensor, uint32_t layer, const char *part)
{
    if (!hf->arch->stacked_experts || strncmp(part, "mlp.experts.", 12) != 0)
        return false;
    if (!hf->layer_experts && !(hf->layer_experts = calloc(hf->layers, sizeof *hf->layer_experts))) {
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, NULL, "no memory for the experts of %u layers", hf->layers);
        return true;
    }
    for (uint32_t i = 0; i < 2 * PARTS; i++) {
        struct place *place = &hf->layer_experts[layer].of[i / PARTS][i % PARTS];
        if (strcmp(part + 12, expert_names[i / PARTS][i % PARTS]) != 0)
            continue;
        if (place->tensor)
            hf_fail(hf, STATUS_INVALID_ARGUMENT, hf->shards[piece].name, "tensor '%s' is in %s as well", tensor->name,
                    hf->shards[place->piece].name);
        *place = (struct place){tensor, piece};
        return true;
    }
    return false;
}

// --- what a tensor must be ------------------------------------------------------------------------------------------

static void refuse_expert(struct hf *hf, const struct place *place, const char *reason)
{
    hf_fail(hf, STATUS_INVALID_ARGUMENT, hf->shards[place->piece].name, "tensor '%s': %s", place->tensor->name, reason);
}

static int print_shape(char out[SHAPE_BYTES], const uint64_t *shape, uint32_t dim_count)
{
    int at = 0;

    for (uint32_t i = 0; i < dim_count; i++)
        at += snprintf(out + at, SHAPE_BYTES - (size_t)at, "%s%" PRIu64, i ? ", " : "[", shape[i]);
    return at + snprintf(out + at, SHAPE_BYTES - (size_t)at, "]");
}

// Checks a tensor that is there. bytes: u8, not floats.
static void expect_tensor(struct hf *hf, const struct place *place, bool bytes, uint32_t dim_count, const uint64_t *shape)
{
    const struct safetensor *t = place->tensor;
    char reason[2 * SHAPE_BYTES + 32];

    if (!t || hf->status)
        return;
    if (t->is_bytes != bytes)
        refuse_expert(hf, place, bytes ? "dtype is a float, expected U8" : "dtype is 'U8', expected F32, F16 or BF16");
    if (t->dim_count == dim_count && memcmp(t->shape, shape, dim_count * sizeof *shape) == 0)
        return;
    int at = snprintf(reason, sizeof reason, "shape is ");
    at += print_shape(reason + at, t->shape, t->dim_count);
    at += snprintf(reason + at, sizeof reason - (size_t)at, ", expected ");
    print_shape(reason + at, shape, dim_count);
    refuse_expert(hf, place, reason);
}

// A matrix is there in one form: floats, or blocks and scales.
static void check_form(struct hf *hf, const struct place of[PARTS], const char *const name[PARTS])
{
    char reason[160];
    const struct place *blocks = &of[BLOCKS], *scales = &of[SCALES], *either = blocks->tensor ? blocks : scales;

    if (!either->tensor || hf->status)
        return;
    if (of[PLAIN].tensor) {
        snprintf(reason, sizeof reason, "its layer has %s, too: expected one of them", name[PLAIN]);
        refuse_expert(hf, either, reason);
    } else if (!blocks->tensor || !scales->tensor) {
        snprintf(reason, sizeof reason, "its layer has no %s", name[blocks->tensor ? SCALES : BLOCKS]);
        refuse_expert(hf, either, reason);
    } else if (!hf->mxfp4) {
        refuse_expert(hf, either, "config.json has no quantization_config whose quant_method is mxfp4");
    }
}

// inputs, outputs: of one expert, in the file.
static void check_matrix(struct hf *hf, const struct place of[PARTS], const char *const name[PARTS], uint64_t inputs,
                         uint64_t outputs)
{
    const uint64_t experts = hf->experts, groups = inputs / BLOCK_VALUES;

    check_form(hf, of, name);
    expect_tensor(hf, &of[PLAIN], false, 3, (const uint64_t[]){experts, inputs, outputs});
    expect_tensor(hf, &of[BLOCKS], true, 4, (const uint64_t[]){experts, outputs, groups, BLOCK_BYTES});
    expect_tensor(hf, &of[SCALES], true, 3, (const uint64_t[]){experts, outputs, groups});
    expect_tensor(hf, &of[BIAS], false, 2, (const uint64_t[]){experts, outputs});
}

// A row of inputs is whole blocks.
static void check_inputs(struct hf *hf, const char *key, uint32_t inputs)
{
    if (hf->mxfp4 && inputs % BLOCK_VALUES != 0)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, "config.json", "key '%s' is %u: with mxfp4 expected a multiple of %d", key, inputs,
                BLOCK_VALUES);
}

// --- what it becomes ------------------------------------------------------------------------------------------------

static const char *name_in_gguf(char *name, uint32_t layer, const char *matrix, const char *kind)
{
    snprintf(name, GGUF_MAX_NAME_BYTES, "blk.%u.ffn_%s_exps.%s", layer, matrix, kind);
    return name;
}

// Every `step`th output of a matrix, from `first` on.
static void put_matrix(struct hf *hf, uint32_t layer, const char *matrix, const struct place of[PARTS], uint32_t inputs,
                       uint32_t outputs, uint32_t first, uint32_t step)
{
    const struct place *values = of[BLOCKS].tensor ? &of[BLOCKS] : &of[PLAIN], *scales = &of[SCALES];
    const uint64_t dims[] = {inputs, outputs, hf->experts}, groups = inputs / BLOCK_VALUES;
    struct stored_rows form = {.columns = inputs, .matrix_rows = outputs, .matrix_count = hf->experts};
    char name[GGUF_MAX_NAME_BYTES];

    if (!values->tensor)
        return;
    form.values_bytes = values->tensor->bytes;
    if (scales->tensor) {
        form.type = TENSOR_MXFP4;
        form.first = first * groups, form.row_step = step * groups, form.column_step = 1;
        form.scales_bytes = scales->tensor->bytes;
    } else {
        form.type = values->tensor->type;
        form.first = first, form.row_step = step, form.column_step = (uint64_t)step * outputs;
    }
    assembly_stored(&hf->assembly, name_in_gguf(name, layer, matrix, "weight"), 3, dims, &form, values->piece,
                    values->tensor->offset, scales->piece, scales->tensor ? scales->tensor->offset : 0);
}

static void put_half_bias(struct hf *hf, uint32_t layer, const char *matrix, const struct place *bias, uint32_t first)
{
    const uint64_t dims[] = {hf->ffn, hf->experts};
    char name[GGUF_MAX_NAME_BYTES];

    if (!bias->tensor)
        return;
    const struct stored_rows form = {.type = bias->tensor->type,
                                     .columns = hf->ffn,
                                     .matrix_rows = hf->experts,
                                     .matrix_count = 1,
                                     .first = first,
                                     .row_step = 2 * (uint64_t)hf->ffn,
                                     .column_step = 2,
                                     .values_bytes = bias->tensor->bytes};
    assembly_stored(&hf->assembly, name_in_gguf(name, layer, matrix, "bias"), 2, dims, &form, bias->piece, bias->tensor->offset, 0,
                    0);
}

static void put_layer(struct hf *hf, uint32_t layer, const struct hf_layer_experts *e)
{
    const struct place *gate_up = e->of[0], *down = e->of[1];
    const uint64_t dims[] = {hf->hidden, hf->experts};
    char name[GGUF_MAX_NAME_BYTES];

    put_matrix(hf, layer, "gate", gate_up, hf->hidden, hf->ffn, 0, 2);
    put_matrix(hf, layer, "up", gate_up, hf->hidden, hf->ffn, 1, 2);
    put_half_bias(hf, layer, "gate", &gate_up[BIAS], 0);
    put_half_bias(hf, layer, "up", &gate_up[BIAS], 1);
    put_matrix(hf, layer, "down", down, hf->ffn, hf->hidden, 0, 1);
    if (down[BIAS].tensor) {
        name_in_gguf(name, layer, "down", "bias");
        assembly_tensor(&hf->assembly, name, strlen(name), down[BIAS].tensor->type, 2, dims, down[BIAS].piece,
                        down[BIAS].tensor->offset);
    }
}

static void hf_put_experts(struct hf *hf)
{
    if (!hf->layer_experts)
        return;
    check_inputs(hf, "hidden_size", hf->hidden);
    check_inputs(hf, "intermediate_size", hf->ffn);
    for (uint32_t layer = 0; layer < hf->layers && !hf->status; layer++) {
        const struct hf_layer_experts *e = &hf->layer_experts[layer];
        check_matrix(hf, e->of[0], expert_names[0], hf->hidden, 2 * (uint64_t)hf->ffn);
        check_matrix(hf, e->of[1], expert_names[1], hf->ffn, hf->hidden);
        if (!hf->status)
            put_layer(hf, layer, e);
    }
}

// --- names ----------------------------------------------------------------------------------------------------------

// Gives tensors of safetensors files the names that GGUF has for them.
//
//     model.layers.3.mlp.experts.17.up_proj.weight  →  blk.3.ffn_up.17.weight
//
// A tensor that no table names is refused: a model that is another one than config.json says would answer nonsense.

enum { SHOWN_NAME_BYTES = 120 };

// Tensors that layers of any class may have. "": buffers that older versions saved, which follow from config.json.
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

// Returns whether text is the pattern, with a number in place of %u.
static bool matches_pattern(const char *pattern, const char *text, uint32_t *index)
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

// Returns the name that the tables give to text; NULL: none.
static const char *find_name(const struct hf_name *names, const char *text, char *out, size_t bytes)
{
    uint32_t index;

    for (; names->from; names++)
        if (matches_pattern(names->from, text, &index)) {
            snprintf(out, bytes, names->to, index);
            return out;
        }
    return NULL;
}

static const char *prefix_of(const struct hf *hf) { return hf->no_prefix ? "" : hf->arch->prefix ? hf->arch->prefix : "model."; }

// Returns what follows "model.layers.N."; NULL: the tensor is of no layer.
static const char *part_of_layer(const struct hf *hf, const char *name, uint32_t *layer)
{
    const char *prefix = prefix_of(hf);

    if (strncmp(name, prefix, strlen(prefix)) != 0 || strncmp(name + strlen(prefix), "layers.", 7) != 0)
        return NULL;
    const char *rest = read_index(name + strlen(prefix) + 7, layer);
    return rest && *rest == '.' && *layer < hf->layers ? rest + 1 : NULL;
}

// Returns GGUF's name of a tensor; NULL: it has none. "": the tensor is left out.
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
    char name[GGUF_MAX_NAME_BYTES + 1], shown[SHOWN_NAME_BYTES];
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

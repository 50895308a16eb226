// hf_shards.c: the files with a directory's weights: model.safetensors, or those that model.safetensors.index.json names, each tensor
// in the one that the index gives it.
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/model/hf_state.h"

#define ONE_FILE "model.safetensors"
#define INDEX "model.safetensors.index.json"

enum { MAX_SHARDS = 4096, SHOWN_BYTES = 96 };

static const char *shown_text(char *buffer, size_t bytes, const char *text)
{
    return gguf_printable(buffer, bytes, (struct gguf_string){text, strlen(text)});
}

// A name that stays in the directory, and does nothing to a terminal or log that shows it. (Links may lead elsewhere: a cache of
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

// The names of the index' files that have what is read, each once, in their order. The caller frees the array.
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

// open.c: translates the files of a directory one after another, and hands the result to gguf_assemble.
#include <stdlib.h>
#include <string.h>

#include "common/model/hf/hf.h"
#include "common/model/hf/internal.h"

static void find_arch(struct hf *hf)
{
    char names[320], shown[96];
    const json_t *classes = hf_json_get(hf->config.json, "architectures");
    const char *class_name = json_string_value(json_array_get(classes, 0));
    const char *model_type = json_string_value(hf_json_get(hf->config.json, "model_type"));

    hf->arch = hf_arch_find(class_name, model_type);
    if (!hf->arch)
        hf->arch = hf_pooling_arch(hf, class_name, model_type);
    if (hf->arch)
        return;
    hf_arch_names(names, sizeof names);
    const char *told = class_name ? class_name : model_type ? model_type : "";
    gguf_printable(shown, sizeof shown, (struct gguf_string){told, strlen(told)});
    if (class_name && hf_arch_find(class_name, NULL))
        hf_refuse(hf, "model_type", hf_json_get(hf->config.json, "model_type"), "not that of the class in 'architectures'");
    else
        hf_fail(hf, STATUS_UNIMPLEMENTED, "config.json", "key '%s' is '%s'; supported are: %s",
                class_name ? "architectures" : "model_type", shown, names);
}

static void translate(struct hf *hf)
{
    hf->config_root = hf_file_json(hf, "config.json");
    if (!hf->config_root) {
        hf_fail(hf, STATUS_INVALID_ARGUMENT, NULL, "not a model's directory: it has no config.json");
        return;
    }
    hf->config.json = hf->config_root;
    find_arch(hf);
    hf_translate_config(hf);
    hf_translate_rope(hf);
    hf_open_shards(hf);
    hf_translate_tensors(hf);
    hf_translate_pooling(hf);
    hf_translate_tokenizer(hf);
}

static enum status open_all(struct hf *hf, const char *name, struct gguf **out)
{
    translate(hf);
    enum status status = hf->status;
    if (!status)
        status = assembly_finish(&hf->assembly, name, hf->pieces, hf->shard_count, out, hf->error);
    assembly_free(&hf->assembly);
    for (uint32_t i = 0; i < hf->shard_count; i++) {
        mapped_file_close(&hf->pieces[i]);
        safetensors_close(&hf->shards[i].header);
        free(hf->shards[i].name);
    }
    free(hf->layer_experts);
    free(hf->pieces);
    free(hf->shards);
    json_decref(hf->index_root);
    json_decref(hf->config_root);
    return status;
}

enum status hf_open(const char *path, struct gguf **out, struct error *error)
{
    struct hf hf = {.path = path, .error = error};

    gguf_make_label(hf.label, path);
    return open_all(&hf, path, out);
}

enum status hf_open_memory(const char *name, const struct hf_memory_file *files, uint32_t file_count, struct gguf **out,
                           struct error *error)
{
    struct hf hf = {.files = files, .file_count = file_count, .error = error};

    gguf_make_label(hf.label, name);
    return open_all(&hf, name, out);
}

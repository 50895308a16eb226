// hf_pooling.c: what a directory says of embeddings: by its class, or in the files of sentence-transformers.
//
//     modules.json            a list of steps: Transformer, Pooling, Normalize; another one is refused
//     1_Pooling/config.json   how rows become a vector (the folder is named in modules.json)
//
// A class that ends in Model has no output projection, and its tensors lack the prefix "model."; one that ends in ForSequenceClassification has a
// head, score.weight. Both are read as the class of the same model that generates.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/model/hf_state.h"

#define MODULES "modules.json"

enum { MOST_MODULES = 16, NAME_BYTES = 128 };

// GGUF's numbers.
enum { POOL_NONE, POOL_MEAN, POOL_CLS, POOL_LAST, POOL_RANK };

static const struct {
    const char *key;  // of older files: a flag for each mode
    const char *mode; // of newer ones: pooling_mode
    uint32_t kind;    // POOL_NONE: not supported
} modes[] = {
    {"pooling_mode_cls_token", "cls", POOL_CLS},
    {"pooling_mode_mean_tokens", "mean", POOL_MEAN},
    {"pooling_mode_lasttoken", "lasttoken", POOL_LAST},
    {"pooling_mode_max_tokens", "max", POOL_NONE},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", POOL_NONE},
    {"pooling_mode_weightedmean_tokens", "weightedmean", POOL_NONE},
};

const struct hf_arch *hf_pooling_arch(struct hf *hf, const char *class_name, const char *model_type)
{
    static const struct {
        const char *suffix;
        enum hf_form form;
    } suffixes[] = {{"TextForSequenceClassification", HF_CLASSIFIER},
                    {"ForSequenceClassification", HF_CLASSIFIER},
                    {"TextModel", HF_BARE},
                    {"Model", HF_BARE}};
    char name[NAME_BYTES];

    for (size_t i = 0; class_name && i < ARRAY_COUNT(suffixes); i++) {
        const size_t length = strlen(class_name), suffix = strlen(suffixes[i].suffix);
        if (length <= suffix || length >= NAME_BYTES / 2 || strcmp(class_name + length - suffix, suffixes[i].suffix) != 0)
            continue;
        snprintf(name, sizeof name, "%.*sForCausalLM", (int)(length - suffix), class_name);
        const struct hf_arch *arch = hf_arch_find(name, model_type);
        if (arch && !arch->prefix) {
            hf->form = suffixes[i].form;
            return arch;
        }
    }
    return NULL;
}

// Whether the step's type is "….NAME".
static bool is_step(const char *type, const char *name)
{
    const size_t length = strlen(type), suffix = strlen(name);
    return length >= suffix && strcmp(type + length - suffix, name) == 0 && (length == suffix || type[length - suffix - 1] == '.');
}

// A folder beside config.json.
static bool is_plain_folder(const char *path)
{
    for (const char *at = path; *at; at++)
        if (!((*at >= '0' && *at <= '9') || (*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z') || *at == '_' || *at == '-'))
            return false;
    return *path && strlen(path) < NAME_BYTES / 2;
}

// How the step pools; POOL_NONE: a failure.
static uint32_t read_mode(struct hf *hf, const char *file, const json_t *config)
{
    const char *told = json_string_value(hf_json_get(config, "pooling_mode"));
    uint32_t kind = POOL_NONE, count = 0;
    const char *chosen = told ? told : "nothing";

    for (size_t i = 0; i < ARRAY_COUNT(modes) && !hf->status; i++)
        if (told ? strcmp(told, modes[i].mode) == 0 : hf_flag_of(hf, config, file, modes[i].key, false)) {
            kind = modes[i].kind;
            chosen = modes[i].mode;
            count++;
        }
    if (!hf->status && (count != 1 || kind == POOL_NONE)) {
        char shown[64];
        hf_fail(hf, STATUS_UNIMPLEMENTED, file, "the pooling is %s; supported are one of mean, cls and lasttoken",
                count > 1 ? "several at once" : gguf_printable(shown, sizeof shown, (struct gguf_string){chosen, strlen(chosen)}));
    }
    return kind;
}

static uint32_t read_pooling(struct hf *hf, const json_t *step)
{
    const char *path = json_string_value(hf_json_get(step, "path"));
    char file[NAME_BYTES];
    uint32_t kind = POOL_NONE;

    if (!path || !is_plain_folder(path)) {
        hf_fail(hf, STATUS_INVALID_ARGUMENT, MODULES, "the path of the step Pooling is not the name of a folder");
        return POOL_NONE;
    }
    snprintf(file, sizeof file, "%s/config.json", path);
    json_t *config = hf_file_json(hf, file);
    if (config)
        kind = read_mode(hf, file, config);
    else
        hf_fail(hf, STATUS_INVALID_ARGUMENT, file, "it is missing, and " MODULES " names it");
    json_decref(config);
    return kind;
}

static void translate_modules(struct hf *hf, const json_t *modules)
{
    bool normalize = false;
    uint32_t kind = POOL_NONE;

    if (json_array_size(modules) > MOST_MODULES)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, MODULES, "it has more than %d steps", MOST_MODULES);
    for (size_t i = 0; i < json_array_size(modules) && !hf->status; i++) {
        const json_t *step = json_array_get(modules, i);
        const char *type = json_string_value(hf_json_get(step, "type"));
        char shown[NAME_BYTES];
        if (!type)
            hf_fail(hf, STATUS_INVALID_ARGUMENT, MODULES, "step %zu has no type", i);
        else if (is_step(type, "Pooling"))
            kind = read_pooling(hf, step);
        else if (is_step(type, "Normalize"))
            normalize = true;
        else if (!is_step(type, "Transformer"))
            hf_fail(hf, STATUS_UNIMPLEMENTED, MODULES, "step %zu is '%s'; supported are Transformer, Pooling and Normalize", i,
                    gguf_printable(shown, sizeof shown, (struct gguf_string){type, strlen(type)}));
    }
    if (hf->status || kind == POOL_NONE)
        return;
    hf_put_u32(hf, "pooling_type", kind);
    assembly_bool(&hf->assembly, "fastdecode.pooling_normalize", normalize);
}

// Of two classes, their names in the order of the head's rows.
static void translate_labels(struct hf *hf)
{
    const json_t *labels = hf_json_get(hf->config.json, "id2label");
    const char *names[2];
    char key[NAME_BYTES];

    if (json_object_size(labels) != 2)
        return;
    names[0] = json_string_value(json_object_get(labels, "0"));
    names[1] = json_string_value(json_object_get(labels, "1"));
    if (!names[0] || !names[1]) {
        hf_refuse(hf, "id2label", labels, "expected the names of classes 0 and 1");
        return;
    }
    snprintf(key, sizeof key, "%s.classifier.output_labels", hf->arch->gguf);
    assembly_array(&hf->assembly, key, GGUF_STRING, 2);
    buffer_string(&hf->assembly.keys, names[0], strlen(names[0]));
    buffer_string(&hf->assembly.keys, names[1], strlen(names[1]));
}

void hf_translate_pooling(struct hf *hf)
{
    json_t *modules;

    if (hf->status)
        return;
    if (hf->form == HF_CLASSIFIER) {
        hf_put_u32(hf, "pooling_type", POOL_RANK);
        translate_labels(hf);
        return;
    }
    modules = hf_file_list(hf, MODULES);
    if (modules)
        translate_modules(hf, modules);
    json_decref(modules);
}

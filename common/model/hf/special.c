// special.c: what a directory says beside weights and vocabulary: tokens that begin and end a text, the chat template, and how
// answers are sampled.
//
// transformers adds a token in front of a text if tokenizer_config.json says so (add_bos_token), or else if tokenizer.json's
// post-processor does. An answer ends with any token of generation_config.json's eos_token_id, and here also with tokenizer_config.json's
// eos_token. GGUF has three ids for them: eos, eot and eom; fastdecode.end_token_ids has all.
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/model/hf/internal.h"

#define CONFIG "tokenizer_config.json"

enum { MAX_ENDS = 16, MAX_TEMPLATE_BYTES = 4 << 20, SHOWN_BYTES = 64 };

struct special {
    struct hf *hf;
    const json_t *tokenizer;
    const json_t *config, *map, *generation; // NULL where there is no such file
    bool has_bos, has_eos;
    uint32_t bos;
    uint32_t ends[MAX_ENDS];
    uint32_t end_count;
};

// A token is told by its text, or by an object with it.
static const char *token_text(const json_t *config, const char *key)
{
    const json_t *value = hf_json_get(config, key);
    return json_string_value(json_is_object(value) ? hf_json_get(value, "content") : value);
}

// Finds the id of the token that a key of tokenizer_config.json, or in older directories of special_tokens_map.json, names.
static bool find_named(struct special *special, const char *key, uint32_t *id)
{
    const json_t *from = json_object_get(special->config, key) ? special->config : special->map;
    const char *text = token_text(from, key);
    return text && hf_find_token(special->hf, special->tokenizer, text, id);
}

static void add_end(struct special *special, uint32_t id)
{
    for (uint32_t i = 0; i < special->end_count; i++)
        if (special->ends[i] == id)
            return;
    if (special->end_count < MAX_ENDS)
        special->ends[special->end_count++] = id;
    else
        hf_fail(special->hf, STATUS_UNIMPLEMENTED, "generation_config.json", "key 'eos_token_id' has more than %d tokens",
                MAX_ENDS);
}

static void add_ends(struct special *special, const json_t *value, const char *file)
{
    size_t count = json_is_array(value) ? json_array_size(value) : value != NULL;

    for (size_t i = 0; i < count; i++) {
        uint64_t id;
        if (!hf_json_whole(json_is_array(value) ? json_array_get(value, i) : value, &id)) {
            hf_fail(special->hf, STATUS_INVALID_ARGUMENT, file, "key 'eos_token_id': element %zu is no whole number from 0 on", i);
            return;
        }
        if (id < special->hf->vocab)
            add_end(special, (uint32_t)id);
        else
            log_warn("END-IGNORED", "file=\"%s/%s\" key=eos_token_id id=%llu reason=\"there are %u tokens\"", special->hf->label,
                     file, (unsigned long long)id, special->hf->vocab);
    }
}

static void put_ends(struct special *special)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    struct hf *hf = special->hf;
    const json_t *told = hf_json_get(special->generation, "eos_token_id");
    uint32_t id;

    special->has_eos = find_named(special, "eos_token", &id);
    if (special->has_eos)
        add_end(special, id);
    if (told)
        add_ends(special, told, "generation_config.json");
    else
        add_ends(special, hf_json_get(hf->config.json, "eos_token_id"), "config.json");
    if (hf->status || special->end_count == 0)
        return;
    for (uint32_t i = 0; i < MIN(special->end_count, (uint32_t)ARRAY_COUNT(keys)); i++)
        assembly_u32(&hf->assembly, keys[i], special->ends[i]);
    assembly_array(&hf->assembly, "fastdecode.end_token_ids", GGUF_U32, special->end_count);
    for (uint32_t i = 0; i < special->end_count; i++)
        buffer_number(&hf->assembly.keys, special->ends[i], 4);
}

// --- what is put around a text --------------------------------------------------------------------------------------

// Returns the post-processor that has a template, which may be one of a sequence. *other: a kind that is not known.
static const json_t *find_template(const json_t *step, const char **other)
{
    const char *type = json_string_value(hf_json_get(step, "type"));
    const json_t *list = hf_json_get(step, "processors"), *found = NULL;

    if (!type || strcmp(type, "ByteLevel") == 0)
        return NULL;
    if (strcmp(type, "TemplateProcessing") == 0)
        return step;
    if (strcmp(type, "Sequence") != 0)
        *other = type;
    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = find_template(json_array_get(list, i), other);
    return found;
}

struct around {
    const char *before, *after;
    bool unknown; // more than one token on a side
};

static struct around read_template(const json_t *template)
{
    const json_t *list = hf_json_get(template, "single");
    struct around around = {0};
    bool text = false;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *piece = json_array_get(list, i);
        const char *token = json_string_value(hf_json_get(hf_json_get(piece, "SpecialToken"), "id"));
        const char **side = text ? &around.after : &around.before;
        text |= hf_json_get(piece, "Sequence") != NULL;
        if (!token)
            continue;
        around.unknown |= *side != NULL;
        *side = token;
    }
    return around;
}

static void put_around(struct special *special)
{
    struct hf *hf = special->hf;
    const char *other = NULL;
    const json_t *template = find_template(hf_json_get(special->tokenizer, "post_processor"), &other);
    struct around around = read_template(template);
    char shown[SHOWN_BYTES];
    uint32_t id;

    special->has_bos = find_named(special, "bos_token", &special->bos);
    if (other || around.unknown) {
        hf_fail(hf, STATUS_UNIMPLEMENTED, "tokenizer.json", "its post-processor is not supported: %s%.32s",
                other ? "type " : "several tokens on one side of a text", other ? other : "");
        return;
    }
    bool add_bos = hf_flag_of(hf, special->config, CONFIG, "add_bos_token", around.before != NULL);
    bool add_eos = hf_flag_of(hf, special->config, CONFIG, "add_eos_token", around.after != NULL);
    if (add_bos && around.before) {
        if (!hf_find_token(hf, special->tokenizer, around.before, &id) || (special->has_bos && id != special->bos))
            hf_fail(hf, STATUS_UNIMPLEMENTED, "tokenizer.json",
                    "its post-processor begins a text with '%s', which is not the bos_token",
                    gguf_printable(shown, sizeof shown, (struct gguf_string){around.before, strlen(around.before)}));
        else
            special->has_bos = true, special->bos = id;
    }
    if (add_eos && around.after &&
        (!hf_find_token(hf, special->tokenizer, around.after, &id) || !special->end_count || id != special->ends[0]))
        hf_fail(hf, STATUS_UNIMPLEMENTED, "tokenizer.json", "its post-processor ends a text with '%s', which is not the eos_token",
                gguf_printable(shown, sizeof shown, (struct gguf_string){around.after, strlen(around.after)}));
    if (hf->status)
        return;
    if (special->has_bos)
        assembly_u32(&hf->assembly, "tokenizer.ggml.bos_token_id", special->bos);
    assembly_bool(&hf->assembly, "tokenizer.ggml.add_bos_token", add_bos && special->has_bos);
    assembly_bool(&hf->assembly, "tokenizer.ggml.add_eos_token", add_eos && special->end_count > 0);
    if (find_named(special, "pad_token", &id))
        assembly_u32(&hf->assembly, "tokenizer.ggml.padding_token_id", id);
}

// --- the chat template ----------------------------------------------------------------------------------------------

static void put_template(struct hf *hf, const char *name, const char *bytes, uint64_t length, const char *file)
{
    char key[HF_TEMPLATE_NAME_BYTES + 32];

    snprintf(key, sizeof key, "tokenizer.chat_template%s%s", name ? "." : "", name ? name : "");
    if (length > MAX_TEMPLATE_BYTES)
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, file, "a chat template of %llu bytes, supported: up to %d",
                (unsigned long long)length, MAX_TEMPLATE_BYTES);
    else
        assembly_string(&hf->assembly, key, bytes, (size_t)length);
}

// Returns whether a key can have that name. "rerank" is no chat template's key, but that of prompts to rank.
static bool is_template_name(const char *name)
{
    const size_t length = strlen(name);

    return length > 0 && length < HF_TEMPLATE_NAME_BYTES && strcmp(name, "rerank") != 0 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == length;
}

static bool is_default(const char *name) { return !name || strcmp(name, "default") == 0; }

// Puts those of an older list [{"name": ..., "template": ...}, ...]; from two of a name the first.
static void put_listed(struct hf *hf, const json_t *list, bool default_alone)
{
    char names[HF_TEMPLATES_MAX][HF_TEMPLATE_NAME_BYTES];
    uint32_t count = 0;

    for (size_t i = 0; i < json_array_size(list) && !hf->status && count < HF_TEMPLATES_MAX; i++) {
        const json_t *entry = json_array_get(list, i), *source = hf_json_get(entry, "template");
        const char *name = json_string_value(hf_json_get(entry, "name"));
        bool known = false;
        for (uint32_t n = 0; name && n < count; n++)
            known |= strcmp(names[n], name) == 0;
        if (!name || known || !json_is_string(source) || !is_template_name(name) || (default_alone && !is_default(name)))
            continue;
        snprintf(names[count++], HF_TEMPLATE_NAME_BYTES, "%s", name);
        put_template(hf, is_default(name) ? NULL : name, json_string_value(source), json_string_length(source), CONFIG);
    }
}

static bool put_file(struct hf *hf, const char *name, const char *path)
{
    struct mapped_file file;

    if (!hf_file_open(hf, path, &file))
        return false;
    put_template(hf, name, (const char *)file.bytes, file.byte_count, path);
    mapped_file_close(&file);
    return true;
}

// Files come before tokenizer_config.json, as transformers has it: chat_template.jinja, and additional_chat_templates/NAME.jinja.
static void put_chat_templates(struct special *special)
{
    static const char folder[] = "additional_chat_templates";
    struct hf *hf = special->hf;
    char names[HF_TEMPLATES_MAX][HF_TEMPLATE_NAME_BYTES];
    const json_t *value = hf_json_get(special->config, "chat_template");
    const bool has_file = put_file(hf, NULL, "chat_template.jinja");
    const uint32_t count = hf_file_names(hf, folder, ".jinja", names, HF_TEMPLATES_MAX);

    for (uint32_t i = 0; i < count && !hf->status; i++) {
        char path[sizeof folder + HF_TEMPLATE_NAME_BYTES + 8];
        snprintf(path, sizeof path, "%s/%s.jinja", folder, names[i]);
        if (is_template_name(names[i]) && !is_default(names[i]))
            (void)put_file(hf, names[i], path);
    }
    if (hf->status || has_file)
        return;
    if (json_is_string(value))
        put_template(hf, NULL, json_string_value(value), json_string_length(value), CONFIG);
    else
        put_listed(hf, value, count > 0);
}

// --- sampling -------------------------------------------------------------------------------------------------------

// Leaves out what is no number, with a warning. Their ranges are checked where they are read.
static void put_sampling(struct special *special)
{
    static const struct {
        const char *from, *to;
        bool is_whole, always; // always: transformers reads it without do_sample, too
    } numbers[] = {{"temperature", "general.sampling.temp", false, false},
                   {"top_k", "general.sampling.top_k", true, false},
                   {"top_p", "general.sampling.top_p", false, false},
                   {"min_p", "general.sampling.min_p", false, false},
                   {"typical_p", "general.sampling.typical_p", false, false},
                   {"repetition_penalty", "general.sampling.penalty_repeat", false, true}};
    const bool samples = json_is_true(hf_json_get(special->generation, "do_sample"));

    for (size_t i = 0; i < ARRAY_COUNT(numbers) && !special->hf->status; i++) {
        const json_t *value = hf_json_get(special->generation, numbers[i].from);
        uint64_t whole;
        if (!value || json_is_null(value) || (!samples && !numbers[i].always))
            continue;
        if (numbers[i].is_whole && hf_json_whole(value, &whole) && whole <= UINT32_MAX)
            assembly_u32(&special->hf->assembly, numbers[i].to, (uint32_t)whole);
        else if (!numbers[i].is_whole && json_is_number(value) && fabs(json_number_value(value)) <= (double)FLT_MAX)
            assembly_f32(&special->hf->assembly, numbers[i].to, (float)json_number_value(value));
        else
            log_warn("DEFAULT-IGNORED", "file=generation_config.json key=%s why=\"%s\"", numbers[i].from,
                     numbers[i].is_whole ? "no whole number from 0 on" : "no number");
    }
}

void hf_translate_special(struct hf *hf, const json_t *tokenizer)
{
    json_t *config = hf_file_json(hf, CONFIG), *map = hf_file_json(hf, "special_tokens_map.json");
    json_t *generation = hf_file_json(hf, "generation_config.json");
    struct special special = {.hf = hf, .tokenizer = tokenizer, .config = config, .map = map, .generation = generation};

    if (!hf->status)
        put_ends(&special);
    if (!hf->status)
        put_around(&special);
    if (!hf->status)
        put_chat_templates(&special);
    put_sampling(&special);
    json_decref(config);
    json_decref(map);
    json_decref(generation);
}

// hf_state.h: what the files of hf_open() share. Private to common/model.
#ifndef FD_MODEL_HF_STATE_H
#define FD_MODEL_HF_STATE_H

#include "common/model/gguf_assemble.h"
#include "common/model/hf_json.h"
#include "common/model/safetensors.h"

struct hf_memory_file;

struct hf_shard {
    char *name;
    struct safetensors header;
};

// A tensor's name after the prefix of its layer, and what GGUF calls it. One %u stands for an expert in both.
struct hf_name {
    const char *from; // ends with NULL
    const char *to;   // "": left out
};

enum hf_expected { HF_FALSE, HF_TRUE, HF_NOTHING, HF_NUMBER, HF_TEXT };

// A key of config.json that must be missing or null, or have this value.
struct hf_neutral {
    const char *key; // ends with NULL
    enum hf_expected expected;
    double number;
    const char *text; // of HF_TEXT; a second one may follow after '|'
};

struct hf;

struct hf_arch {
    const char *class_name; // in config.json's architectures
    const char *model_type;
    const char *gguf;                 // general.architecture
    const char *prefix;               // of all tensors but lm_head: "model."
    bool tied;                        // tie_word_embeddings where config.json does not say
    uint32_t full_every;              // one layer in so many has no sliding window; 0: none has one
    uint32_t head_dim;                // where config.json does not say; 0: hidden / heads
    double rope_theta;                // where config.json does not say; 0: no RoPE
    bool stacked_experts;             // hf_experts.c reads the experts
    bool may_rotate_part;             // partial_rotary_factor may be less than 1
    const char *layer_norm_epsilon;   // config.json's key of it; NULL: norms are RMS, and theirs is rms_norm_eps
    const struct hf_neutral *neutral; // beside those of all
    const struct hf_name *model_names;
    const struct hf_name *layer_names; // beside those of all
    void (*translate)(struct hf *hf);  // keys of this architecture alone, or NULL
};

struct hf_layer_experts;

// What the class in config.json has beside the layers.
enum hf_form {
    HF_GENERATES,  // …ForCausalLM: lm_head
    HF_BARE,       // …Model: nothing
    HF_CLASSIFIER, // …ForSequenceClassification: score
};

struct hf {
    char label[GGUF_LABEL_BYTES];
    const char *path; // of the directory; NULL: files are in memory
    const struct hf_memory_file *files;
    uint32_t file_count;
    struct error *error;
    enum status status; // the first failure; later calls do nothing
    struct assembly assembly;
    struct hf_object config;
    json_t *config_root;
    const struct hf_arch *arch;
    enum hf_form form;
    bool no_prefix; // tensors' names lack the prefix that those of the architecture have
    uint32_t layers, hidden, heads, head_dim, rope_dim, vocab, context;
    uint32_t experts, ffn;                  // with stacked_experts
    bool mxfp4;                             // quantization_config says so
    struct hf_layer_experts *layer_experts; // [layers] of hf_experts.c, or NULL
    bool tied;
    struct hf_shard *shards;    // [shard_count]
    struct mapped_file *pieces; // [shard_count]
    uint32_t shard_count;
    const json_t *index; // weight_map of model.safetensors.index.json, or NULL
    json_t *index_root;
};

// --- hf_files.c ---

// Sets the first failure: "DIR/FILE: …". Returns hf->status.
enum status hf_fail(struct hf *hf, enum status status, const char *file, const char *format, ...) PRINTF_LIKE(4, 5);

// Writes "DIR/NAME" for messages.
void hf_file_label(const struct hf *hf, const char *name, char label[HF_LABEL_BYTES]);

// Opens a file of the directory; the caller closes it. False: there is none, or (status) it cannot be opened.
MUST_CHECK bool hf_file_open(struct hf *hf, const char *name, struct mapped_file *out);

// Lists the files of a folder inside of the directory that end so, without the ending, in the order of their bytes; those with longer names and
// those beyond `most` are left out. Returns how many.
enum { HF_TEMPLATES_MAX = 16, HF_TEMPLATE_NAME_BYTES = 48 };
uint32_t hf_file_names(struct hf *hf, const char *folder, const char *ending, char (*names)[HF_TEMPLATE_NAME_BYTES], uint32_t most);

// Reads a file as a JSON object; the caller calls json_decref(). NULL: there is none, or (status) it is not one.
json_t *hf_file_json(struct hf *hf, const char *name);
// The same for an array.
json_t *hf_file_list(struct hf *hf, const char *name);

// --- hf_values.c: values of config.json (object: that or one inside of it); a wrong one is a failure ---
uint32_t hf_u32(struct hf *hf, const json_t *object, const char *key, uint32_t minimum, uint32_t maximum); // required
uint32_t hf_u32_or(struct hf *hf, const json_t *object, const char *key, uint32_t minimum, uint32_t maximum, uint32_t fallback);
double hf_number(struct hf *hf, const json_t *object, const char *key); // required
double hf_number_or(struct hf *hf, const json_t *object, const char *key, double fallback);
bool hf_flag_or(struct hf *hf, const json_t *object, const char *key, bool fallback);
bool hf_flag_of(struct hf *hf, const json_t *object, const char *file, const char *key, bool fallback); // of another file
const char *hf_text_or(struct hf *hf, const json_t *object, const char *key, const char *fallback);
void hf_refuse(struct hf *hf, const char *key, const json_t *value, const char *reason); // "key 'K' is V: reason"
void hf_check_neutral(struct hf *hf, const struct hf_neutral *neutral);

// These write "<arch>.<suffix>".
void hf_put_u32(struct hf *hf, const char *suffix, uint32_t value);
void hf_put_bool(struct hf *hf, const char *suffix, bool value);
void hf_put_f32(struct hf *hf, const char *suffix, double value);
void hf_put_string(struct hf *hf, const char *suffix, const char *value);

// An entry of tokenizer.json's added_tokens by its text; NULL: there is none.
const json_t *hf_find_added(const json_t *tokenizer, const char *text);
// Finds any token of tokenizer.json by its text. False: there is none, or none below vocab_size.
MUST_CHECK bool hf_find_token(const struct hf *hf, const json_t *tokenizer, const char *text, uint32_t *id);

// --- the parts of a translation, in this order ---
const struct hf_arch *hf_arch_find(const char *class_name, const char *model_type); // hf_arch.c; either may be NULL; NULL: none
void hf_arch_names(char *out, size_t bytes);
void hf_translate_config(struct hf *hf);
void hf_translate_rope(struct hf *hf);
void hf_open_shards(struct hf *hf);
void hf_translate_tensors(struct hf *hf);
// hf_pooling.c. arch: the row of a class that has another end; NULL: none.
const struct hf_arch *hf_pooling_arch(struct hf *hf, const char *class_name, const char *model_type);
void hf_translate_pooling(struct hf *hf);
// Takes a tensor of `part` of a layer, what follows its number. False: it is none of the stacked experts. After the last one, put checks and names
// them all.
bool hf_take_expert(struct hf *hf, uint32_t piece, const struct safetensor *tensor, uint32_t layer, const char *part);
void hf_put_experts(struct hf *hf);
void hf_translate_tokenizer(struct hf *hf);
// Names the pre-tokenizer of a byte-level tokenizer.json for common/tokenizer; NULL: a failure.
const char *hf_name_pre_tokenizer(struct hf *hf, const json_t *tokenizer);
// tokenizer: tokenizer.json.
void hf_translate_special(struct hf *hf, const json_t *tokenizer);

#endif

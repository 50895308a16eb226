// internal.h: what the files of hf_open() share. Private to common/model/hf.
#ifndef FD_MODEL_HF_INTERNAL_H
#define FD_MODEL_HF_INTERNAL_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/gguf/header.h"
#include "kernels/quant/tensor_type.h"

struct hf_memory_file;

struct hf;

struct hf_layer_experts;

// --- JSON -----------------------------------------------------------------------------------------------------------

// Limits are checked before anything is parsed.
// Numbers are read as doubles: model_max_length is often 1e30 written as an integer. Whole ones are exact up to 2^53.

enum {
    HF_JSON_MAX_BYTES = 256 << 20, // tokenizer.json of the largest vocabularies has 40 MB
    HF_JSON_MAX_DEPTH = 64,
    HF_JSON_MAX_VALUES = 16 << 20,
    HF_LABEL_BYTES = GGUF_LABEL_BYTES + 64,
};

// An object of a file and how messages call it.
struct hf_object {
    const json_t *json;         // NULL: there is none, and every lookup finds nothing
    char label[HF_LABEL_BYTES]; // "DIR/config.json"
};

// Parses a text that must be one object without duplicate keys; the caller frees *out by json_decref(). INVALID_ARGUMENT: it is not;
// RESOURCE_EXHAUSTED: too large.
MUST_CHECK enum status hf_json_parse(const char *label, const void *bytes, uint64_t byte_count, json_type type, json_t **out,
                                     struct error *error);

// Returns the value of a key; NULL if it is missing or null.
const json_t *hf_json_get(const json_t *object, const char *key);

// Reads a whole number from 0 to 2^53; false: it is none.
MUST_CHECK bool hf_json_whole(const json_t *value, uint64_t *out);

// Writes a value for a message, printable and cut to fit. Returns buffer.
const char *hf_json_shown(char *buffer, size_t bytes, const json_t *value);

// --- the header of a safetensors file -------------------------------------------------------------------------------

//
//     u64 header_bytes   JSON { "NAME": { "dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end] }, … }   data
//
// It knows the container but nothing of models. The file is untrusted: opening checks the header's length against the file and a
// limit, and of each tensor that its type is known, that its shape agrees with its number of bytes and that these lie in the file.

enum {
    SAFETENSORS_MAX_HEADER_BYTES = 100 * 1000 * 1000, // the format's own limit
    SAFETENSORS_MAX_TENSORS = 1 << 16,
    SAFETENSORS_MAX_DIMS = 4,
};

struct safetensor {
    const char *name;      // terminated; lives until safetensors_close()
    enum tensor_type type; // of floats
    bool is_bytes;         // U8: parts of a quantized tensor
    uint32_t dim_count;
    uint64_t shape[SAFETENSORS_MAX_DIMS]; // as in the file: the last varies fastest
    uint64_t offset;                      // in the file
    uint64_t bytes;
};

struct safetensors {
    struct safetensor *tensors; // [tensor_count], in the header's order
    uint32_t tensor_count;
    uint32_t lead_bytes; // its values are aligned where the file lies so many bytes behind an aligned place; 0: at one
    json_t *header;
};

void safetensors_close(struct safetensors *file);

// --- a translation --------------------------------------------------------------------------------------------------
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

struct hf_arch {
    const char *class_name; // in config.json's architectures
    const char *model_type;
    const char *gguf;                 // general.architecture
    const char *prefix;               // of all tensors but lm_head: "model."
    bool tied;                        // tie_word_embeddings where config.json does not say
    uint32_t full_every;              // one layer in so many has no sliding window; 0: none has one
    uint32_t head_dim;                // where config.json does not say; 0: hidden / heads
    double rope_theta;                // where config.json does not say; 0: no RoPE
    bool stacked_experts;             // weights.c reads the experts
    bool may_rotate_part;             // partial_rotary_factor may be less than 1
    const char *layer_norm_epsilon;   // config.json's key of it; NULL: norms are RMS, and theirs is rms_norm_eps
    const struct hf_neutral *neutral; // beside those of all
    const struct hf_name *model_names;
    const struct hf_name *layer_names; // beside those of all
    void (*translate)(struct hf *hf);  // keys of this architecture alone, or NULL
};

// The end of the class in config.json, beside the layers.
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
    struct hf_layer_experts *layer_experts; // [layers] of weights.c, or NULL
    bool tied;
    struct hf_shard *shards;    // [shard_count]
    struct mapped_file *pieces; // [shard_count]
    uint32_t shard_count;
    const json_t *index; // weight_map of model.safetensors.index.json, or NULL
    json_t *index_root;
};

// --- files.c -----------------------------------------------------------------------------------------------------

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

// --- files.c: values of config.json (object: that or one inside of it); a wrong one is a failure -----------------
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

// Returns an entry of tokenizer.json's added_tokens by its text; NULL: there is none.
const json_t *hf_find_added(const json_t *tokenizer, const char *text);
// Finds any token of tokenizer.json by its text. False: there is none, or none below vocab_size.
MUST_CHECK bool hf_find_token(const struct hf *hf, const json_t *tokenizer, const char *text, uint32_t *id);

// --- the parts of a translation, in this order ----------------------------------------------------------------------
const struct hf_arch *hf_arch_find(const char *class_name, const char *model_type); // arch.c; either may be NULL; NULL: none
void hf_arch_names(char *out, size_t bytes);
void hf_translate_config(struct hf *hf);
void hf_translate_rope(struct hf *hf);
void hf_open_shards(struct hf *hf);
void hf_translate_tensors(struct hf *hf);
// config.c. arch: the row of a class that has another end; NULL: none.
const struct hf_arch *hf_pooling_arch(struct hf *hf, const char *class_name, const char *model_type);
void hf_translate_pooling(struct hf *hf);
void hf_translate_tokenizer(struct hf *hf);
// tokenizer: tokenizer.json.
void hf_translate_special(struct hf *hf, const json_t *tokenizer);

#endif

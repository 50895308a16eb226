// hf.h: a directory as Hugging Face's transformers writes it, read as if it were the GGUF file of the same model. Private to
// common/model, tests and fuzzers.
//
//     config.json                                   → general.architecture, ARCH.…                  config.c
//     model.safetensors, or …index.json and shards  → tensors under GGUF's names                    weights.c
//     tokenizer.json                                → tokenizer.ggml.…                              tokenizer.c
//     modules.json, 1_Pooling/config.json           → ARCH.pooling_type, …                          config.c
//     tokenizer_config.json, special_tokens_map.json, chat_template.jinja, additional_chat_templates/NAME.jinja,
//     generation_config.json                        → ids of special tokens, chat template, …       special.c
//
// Weights stay where they are. Experts that are stacked in another order are read from there in GGUF's (gguf_tensor.stored); other differences
// to a GGUF file's layout are told by keys.
//
//     fastdecode.rope_halves             bool true: rows of Q and K lie so that RoPE turns values half a head apart (ROPE_NEOX),
//                                        whatever the architecture's row says
//     fastdecode.norm_plus_one           bool true: the weights of RMS norms are to be increased by 1
//     fastdecode.experts_listed          bool true: each expert's matrices are tensors of their own, blk.N.ffn_gate.E.weight,
//                                        ffn_up.E, ffn_down.E
//     fastdecode.rope_yarn_truncate      bool false: YaRN's first and last dimension are not rounded to whole ones
//     fastdecode.prefix_at_start_only    bool true: the space that tokenizer.ggml.add_space_prefix puts in front is not put after special
//     fastdecode.prefix_unless_space     tokens; it is not put before a text that begins with one
//     fastdecode.spaces_last             bool true: added tokens that are `normalized` are found before spaces become U+2581
//     fastdecode.token_flags             array of u8, [vocab]: how added tokens are looked for (enum token_flag of common/tokenizer)
//     fastdecode.pooling_normalize       bool false: pooled vectors are not scaled to length 1
//     fastdecode.end_token_ids           array of u32: every token that ends an answer, eos first
//
// A key that would change the answer, and that is not translated, is refused by its name.
#ifndef FD_MODEL_HF_HF_H
#define FD_MODEL_HF_HF_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct gguf;

// Opens a directory. The caller closes *out. Blocks on the disk. Statuses as for gguf_open().
MUST_CHECK enum status hf_open(const char *path, struct gguf **out, struct error *error);

// Returns whether this release has the architecture of a class of config.json.
bool hf_knows_class(const char *class_name);

struct hf_memory_file {
    const char *name; // "config.json"
    const void *bytes;
    uint64_t byte_count;
};

// The same for files in memory, of which nothing is kept. `name` stands for the directory in messages.
MUST_CHECK enum status hf_open_memory(const char *name, const struct hf_memory_file *files, uint32_t file_count, struct gguf **out,
                                      struct error *error);

#endif

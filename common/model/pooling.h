// pooling.h: what a model makes of a prompt's hidden states instead of an answer: an embedding, or a rank.
//
// GGUF says it with ARCH.pooling_type; a Hugging Face directory with the files of sentence-transformers or with its class, which hf_open()
// translates (hf/config.c). A classification head ranks:
//
//     h = hidden state of the last token, behind the final norm             [hidden]
//     h = tanh(cls.weight · h + cls.bias)                                   if the file has them
//     outputs = cls.output.weight · h + cls.output.bias                     1, or 2
//
// With one output the rank is its sigmoid; with two, which are the classes "yes" and "no", the softmax's "yes". Rerankers that were published as
// generative models (Qwen3-Reranker) have no head: then its rows are those of the output projection for the tokens "yes" and "no".
#ifndef FD_MODEL_POOLING_H
#define FD_MODEL_POOLING_H

#include "common/model/model.h"

// Options --pooling: the names of enum model_pool, in its order, after auto.
#define POOLING_NAMES "auto|none|mean|cls|last|rank"
#define POOLING_HELP "how /v1/embeddings and /v1/rerank pool the rows of a prompt; auto: as the model's file says"

// Reads a name of POOLING_NAMES. auto: what the model's file says, or NONE. The rank of a model that has no head and no tokens "yes" and "no" is
// UNIMPLEMENTED.
MUST_CHECK enum status model_pooling_choose(const struct model *model, const char *name, struct model_pooling *out,
                                            struct error *error);

// Returns the name of a kind.
const char *model_pool_name(enum model_pool kind);

// A classification head in f32. Absent parts are NULL.
struct model_head {
    uint32_t hidden, outputs;
    float *dense, *dense_bias; // [hidden][hidden], [hidden]
    float *output;             // [outputs][hidden]
    float *output_bias;        // [outputs]
};

// Reads the head of a model that ranks. The caller closes *out, also after a failure. Blocks on the disk.
MUST_CHECK enum status model_head_open(const struct model *model, const struct model_pooling *pooling, struct model_head *out,
                                       struct error *error);
void model_head_close(struct model_head *head);
// Returns the memory that it takes.
uint64_t model_head_bytes(const struct model *model, const struct model_pooling *pooling);
// Computes outputs ([outputs]) from a row ([hidden]); scratch is [hidden], and is not used without a dense part. Sums are in double, in order.
void model_head_apply(const struct model_head *head, const float *row, float *scratch, float *outputs);

#endif

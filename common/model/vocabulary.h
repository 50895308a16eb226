// vocabulary.h: a model's tokenizer, made from what its file says.
//
// If the file does not say whether a begin token or a space goes before a text, the kind's custom holds: SentencePiece
// vocabularies have both, byte-level ones neither.
#ifndef FD_MODEL_VOCABULARY_H
#define FD_MODEL_VOCABULARY_H

#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"

// Builds the tokenizer; *out is the caller's (tokenizer_close) and does not need the model any more. The map's pages are given
// back before, and what the tokenizer will take is logged as a MEMORY-PLAN. Statuses as for tokenizer_open(), and
// RESOURCE_EXHAUSTED with numbers where memory will not do.
enum status vocabulary_open(const struct model *model, struct tokenizer **out, struct error *error) MUST_CHECK;

// The same without what encoding needs, and without a memory plan: for what tokens stand for. It takes a fraction of the time.
enum status vocabulary_open_decoder(const struct model *model, struct tokenizer **out, struct error *error) MUST_CHECK;

#endif

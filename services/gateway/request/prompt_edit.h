// prompt_edit.h: what a request asks to be done to a prompt between its tokenization and its use.
//
//   truncate_prompt_tokens: the last tokens stay, since an answer depends most on what comes right before it.
//   suffix: the model fills the gap between prompt and suffix. Models that are trained for that have tokens for the three parts, which
//   are known by their names.
//
// Pure. Safe from any thread.
#ifndef FD_GATEWAY_REQUEST_PROMPT_EDIT_H
#define FD_GATEWAY_REQUEST_PROMPT_EDIT_H

#include "services/gateway/text/language.h"

// Returns whether the request asks for what a model of that context length can do; fills *error otherwise.
bool prompt_edit_check(const struct api_request *api, uint32_t context, struct api_error *error);

// Drops tokens from the front until there are no more than the request allows. Returns whether it dropped any.
bool prompt_edit_truncate(const struct api_request *api, uint32_t context, uint32_t *ids, uint32_t *count);

// Returns whether the model has tokens for filling a gap.
bool prompt_edit_can_fill(const struct language *language);

// Turns the ids of a prompt, without special tokens, into those of a gap to be filled. On failure fills *error and leaves *ids as it was.
bool prompt_edit_add_suffix(const struct language *language, const char *suffix, uint32_t context, uint32_t **ids, uint32_t *count,
                            struct api_error *error);

#endif

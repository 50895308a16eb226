// dialects.h: the forms of the API that there are, and which path has which.
#ifndef FD_GATEWAY_API_DIALECTS_DIALECTS_H
#define FD_GATEWAY_API_DIALECTS_DIALECTS_H

#include "services/gateway/api/dialects/dialect.h"

extern const struct dialect dialect_responses, dialect_count_responses, dialect_messages, dialect_count_tokens, dialect_ollama_chat,
    dialect_ollama_generate, dialect_ollama_embed, dialect_ollama_embeddings, dialect_ollama_other;

// Returns the dialect of a path, or NULL: OpenAI's chats and completions, and all that has no form of its own.
const struct dialect *dialect_of_path(const char *path);

#endif

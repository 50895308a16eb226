// ollama_ask.h: requests of Ollama's API, translated.
#ifndef FD_GATEWAY_API_DIALECTS_OLLAMA_ASK_H
#define FD_GATEWAY_API_DIALECTS_OLLAMA_ASK_H

#include "services/gateway/api/dialects/dialect.h"

// ollama_ask.c
bool dialect_ollama_translate_chat(struct dialect_ask *ask, struct api_error *error);
bool dialect_ollama_translate_generate(struct dialect_ask *ask, struct api_error *error);
// Translate requests of kind API_EMBED: of /api/embed, and of the older /api/embeddings.
bool dialect_ollama_translate_embed(struct dialect_ask *ask, struct api_error *error);
bool dialect_ollama_translate_embeddings(struct dialect_ask *ask, struct api_error *error);

#endif

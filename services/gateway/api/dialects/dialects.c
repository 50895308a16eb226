// dialects.c: see dialects.h.
#include "services/gateway/api/dialects/dialects.h"

#include <string.h>

#include "common/base/checked.h"

// The first that fits counts. A path that ends with "/" stands for all below it.
static const struct {
    const char *path;
    const struct dialect *dialect;
} paths[] = {
    {"/v1/responses", &dialect_responses},
    {"/v1/responses/input_tokens", &dialect_count_responses},
    {"/v1/messages", &dialect_messages},
    {"/v1/messages/count_tokens", &dialect_count_tokens},
    {"/v1/messages/", &dialect_messages},
    {"/api/chat", &dialect_ollama_chat},
    {"/api/generate", &dialect_ollama_generate},
    {"/api/embed", &dialect_ollama_embed},
    {"/api/embeddings", &dialect_ollama_embeddings},
    {"/api/", &dialect_ollama_other},
};

const struct dialect *dialect_of_path(const char *path)
{
    for (size_t i = 0; i < ARRAY_COUNT(paths); i++) {
        const size_t length = strlen(paths[i].path);
        if (strncmp(path, paths[i].path, length) == 0 && (path[length] == '\0' || paths[i].path[length - 1] == '/'))
            return paths[i].dialect;
    }
    return NULL;
}

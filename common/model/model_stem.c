// model_stem.c: see model.h.
#include <string.h>

#include "common/model/model.h"

enum { PART_BYTES = 15 }; // "-00001-of-00003"

static bool is_part(const char *text)
{
    static const char pattern[] = "-00000-of-00000";

    for (uint32_t i = 0; i < PART_BYTES; i++)
        if (pattern[i] == '0' ? text[i] < '0' || text[i] > '9' : text[i] != pattern[i])
            return false;
    return true;
}

const char *model_stem(const char *path, size_t *length)
{
    static const char suffix[] = ".gguf";
    size_t end = strlen(path), begin;

    while (end > 1 && path[end - 1] == '/') // of a directory
        end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    if (end - begin > strlen(suffix) && memcmp(path + end - strlen(suffix), suffix, strlen(suffix)) == 0) {
        end -= strlen(suffix);
        if (end - begin > PART_BYTES && is_part(path + end - PART_BYTES))
            end -= PART_BYTES;
    }
    *length = end - begin;
    return path + begin;
}

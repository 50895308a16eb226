// strings.c: libc's functions that give memory with text in it: they take it from the simulation's malloc, of mesh or of disk.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"

char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t most);
int __wrap_asprintf(char **out, const char *format, ...) PRINTF_LIKE(2, 3);

char *__wrap_strndup(const char *text, size_t most)
{
    const size_t length = strnlen(text, most);
    char *copy = malloc(length + 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

char *__wrap_strdup(const char *text) { return __wrap_strndup(text, SIZE_MAX); }

int __wrap_asprintf(char **out, const char *format, ...)
{
    va_list arguments, again;

    va_start(arguments, format);
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0 && (*out = malloc((size_t)length + 1)))
        vsnprintf(*out, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return length >= 0 && *out ? length : -1;
}

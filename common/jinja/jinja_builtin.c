// jinja_builtin.c: looks up filters, tests, methods and functions by name.
#include <stdio.h>
#include <string.h>

#include "common/jinja/jinja_tree.h"

const struct jinja_builtin *jinja_find_builtin(const struct jinja_builtin *table, const char *name, size_t length)
{
    for (; table->name; table++)
        if (strlen(table->name) == length && !memcmp(table->name, name, length))
            return table;
    return NULL;
}

const char *jinja_builtin_names(const struct jinja_builtin *table, char *out, size_t out_bytes)
{
    size_t length = 0;
    out[0] = 0;
    for (const struct jinja_builtin *entry = table; entry->name && length < out_bytes; entry++)
        length += (size_t)snprintf(out + length, out_bytes - length, "%s%s", entry == table ? "" : ", ", entry->name);
    return out;
}

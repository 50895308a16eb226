// kv_sparse.c: see kv_sparse.h.
#include "common/kv/kv_sparse.h"

#include <stdlib.h>
#include <string.h>

enum status kv_sparse_parse(const char *text, uint32_t *percent, struct error *error)
{
    char *end = NULL;
    unsigned long value = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;

    *percent = 0;
    if (!strcmp(text, "off"))
        return STATUS_OK;
    if (!end || strcmp(end, *end ? "%" : "") || value < 1 || value > 100)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--" KV_SPARSE_OPTION " is '%s', want off or 1%% to 100%%", text);
    *percent = (uint32_t)value;
    return STATUS_OK;
}

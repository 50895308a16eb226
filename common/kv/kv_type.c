// kv_type.c: names of element types.
#include "common/kv/kv_type.h"

#include <string.h>

static const char *const names[KV_TYPE_END] = {
    [KV_F16] = "f16", [KV_F32] = "f32", [KV_BF16] = "bf16", [KV_INT8] = "int8", [KV_INT4] = "int4", [KV_INT4X] = "int4x",
};

const char *kv_type_name(enum kv_type type) { return (unsigned)type < KV_TYPE_END && names[type] ? names[type] : "unknown"; }

enum status kv_type_parse(const char *name, enum kv_type *out, struct error *error)
{
    for (int type = KV_F16; type < KV_TYPE_END; type++)
        if (!strcmp(name, names[type])) {
            *out = (enum kv_type)type;
            return STATUS_OK;
        }
    return error_set(error, STATUS_INVALID_ARGUMENT, "--kv-type is '%s', want " KV_TYPE_NAMES, name);
}

// shape_reader.c: see shape_reader.h.
#include "common/model/shape_reader.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

bool shape_has(struct shape_reader *reader, const char *suffix)
{
    snprintf(reader->key, sizeof reader->key, "%s.%s", reader->arch->name, suffix);
    return !reader->status && gguf_has(reader->gguf, reader->key);
}

// A key that is missing makes the file wrong, not the call.
static void fail_as_invalid(struct shape_reader *reader)
{
    if (reader->status == STATUS_NOT_FOUND) {
        reader->status = STATUS_INVALID_ARGUMENT;
        if (reader->error)
            reader->error->status = STATUS_INVALID_ARGUMENT;
    }
}

uint32_t shape_u32(struct shape_reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum)
{
    uint32_t value = 0;
    (void)shape_has(reader, suffix);
    if (reader->status)
        return minimum;
    reader->status = gguf_get_u32(reader->gguf, reader->key, &value, reader->error);
    fail_as_invalid(reader);
    if (!reader->status && (value < minimum || value > maximum))
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is %u, expected %u to %u",
                                   gguf_label(reader->gguf), reader->key, value, minimum, maximum);
    return reader->status ? minimum : value;
}

uint32_t shape_u32_or(struct shape_reader *reader, const char *suffix, uint32_t minimum, uint32_t maximum, uint32_t fallback)
{
    return shape_has(reader, suffix) ? shape_u32(reader, suffix, minimum, maximum) : fallback;
}

float shape_f32_or(struct shape_reader *reader, const char *suffix, float minimum, float maximum, float fallback)
{
    float value = fallback;
    if (!shape_has(reader, suffix) && !isnan(fallback))
        return fallback;
    if (reader->status)
        return minimum;
    reader->status = gguf_get_f32(reader->gguf, reader->key, &value, reader->error);
    fail_as_invalid(reader);
    if (!reader->status && !(value >= minimum && value <= maximum))
        reader->status = error_set(reader->error, STATUS_INVALID_ARGUMENT, "%s: key '%s' is %g, expected %g to %g",
                                   gguf_label(reader->gguf), reader->key, (double)value, (double)minimum, (double)maximum);
    return value;
}

void shape_fail(struct shape_reader *reader, enum status status, const char *format, ...)
{
    char text[sizeof reader->error->text];
    va_list args;

    if (reader->status)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    reader->status = error_set(reader->error, status, "%s: %s", gguf_label(reader->gguf), text);
}

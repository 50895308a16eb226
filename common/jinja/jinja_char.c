// jinja_char.c: see jinja_char.h.
#include "common/jinja/jinja_char.h"

#include <string.h>

#include <utf8proc.h>

#include "common/base/checked.h"

size_t jinja_char_bytes(const char *bytes, size_t left)
{
    if (left && (unsigned char)*bytes < 0x80)
        return 1;
    utf8proc_int32_t code;
    const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)bytes, (utf8proc_ssize_t)MIN(left, 4u), &code);
    return n > 0 ? (size_t)n : MIN(left, 1u);
}

int32_t jinja_char_code(const char *bytes, size_t left)
{
    if (left && (unsigned char)*bytes < 0x80)
        return *bytes;
    utf8proc_int32_t code;
    return utf8proc_iterate((const utf8proc_uint8_t *)bytes, (utf8proc_ssize_t)MIN(left, 4u), &code) > 0 ? code : -1;
}

size_t jinja_char_count(const struct jinja_string *string)
{
    size_t count = 0;
    for (size_t i = 0; i < string->length; count++)
        i += jinja_char_bytes(string->bytes + i, string->length - i);
    return count;
}

size_t jinja_char_offset(const struct jinja_string *string, size_t index)
{
    size_t i = 0;
    while (index-- && i < string->length)
        i += jinja_char_bytes(string->bytes + i, string->length - i);
    return i;
}

// White space as Python's str.isspace() defines it.
bool jinja_is_space(int32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
           code == 0x3000;
}

bool jinja_is_letter(int32_t code)
{
    const utf8proc_category_t category = code < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(code);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool jinja_is_word(int32_t code)
{
    const utf8proc_category_t category = code < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(code);
    return code == '_' || jinja_is_letter(code) || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool jinja_string_is(const struct jinja_string *string, const char *text)
{
    return string->length == strlen(text) && !memcmp(string->bytes, text, string->length);
}

size_t jinja_find(const struct jinja_string *string, const struct jinja_string *needle, size_t from)
{
    if (from > string->length || needle->length > string->length - from)
        return SIZE_MAX;
    if (!needle->length)
        return from;
    const char *hit = memmem(string->bytes + from, string->length - from, needle->bytes, needle->length);
    return hit ? (size_t)(hit - string->bytes) : SIZE_MAX;
}

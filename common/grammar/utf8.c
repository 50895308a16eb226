// utf8.c: see utf8.h.
#include "common/grammar/utf8.h"

enum { CONTINUATION = 0x80, SURROGATE_FIRST = 0xd800, SURROGATE_LAST = 0xdfff };

// The last character of each length in bytes.
static const uint32_t last_of_length[] = {0, 0x7f, 0x7ff, 0xffff, GRAMMAR_CHAR_MAX};

static uint32_t length_of(uint32_t code)
{
    uint32_t length = 1;

    while (code > last_of_length[length])
        length++;
    return length;
}

uint32_t grammar_utf8_next(const char *text, size_t length, size_t *bytes)
{
    const unsigned char *in = (const unsigned char *)text;
    uint32_t count, code;

    *bytes = 1;
    if (!length)
        return GRAMMAR_BROKEN_CHAR;
    if (in[0] < 0x80)
        return in[0];
    count = in[0] < 0xc2 ? 0 : in[0] < 0xe0 ? 2 : in[0] < 0xf0 ? 3 : in[0] < 0xf5 ? 4 : 0;
    if (!count || length < count)
        return GRAMMAR_BROKEN_CHAR;
    code = in[0] & (0xffu >> (count + 1));
    for (uint32_t i = 1; i < count; i++) {
        if ((in[i] & 0xc0) != CONTINUATION)
            return GRAMMAR_BROKEN_CHAR;
        code = code << 6 | (in[i] & 0x3f);
    }
    if (code <= last_of_length[count - 1] || code > GRAMMAR_CHAR_MAX || (code >= SURROGATE_FIRST && code <= SURROGATE_LAST))
        return GRAMMAR_BROKEN_CHAR;
    *bytes = count;
    return code;
}

bool grammar_utf8_is_valid(const char *text, size_t length)
{
    for (size_t at = 0, bytes; at < length; at += bytes)
        if (grammar_utf8_next(text + at, length - at, &bytes) == GRAMMAR_BROKEN_CHAR)
            return false;
    return true;
}

uint32_t grammar_utf8_write(uint32_t code, unsigned char out[GRAMMAR_CHAR_BYTES])
{
    static const unsigned char leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    uint32_t length = length_of(code);

    for (uint32_t i = length; --i > 0; code >>= 6)
        out[i] = (unsigned char)(CONTINUATION | (code & 0x3f));
    out[0] = (unsigned char)(leads[length] | code);
    return length;
}

uint32_t grammar_utf8_spell(uint32_t first, uint32_t last, struct grammar_spelling *out)
{
    uint32_t length = length_of(first), end = last < last_of_length[length] ? last : last_of_length[length];
    unsigned char from[GRAMMAR_CHAR_BYTES], to[GRAMMAR_CHAR_BYTES];

    // If the bytes before the last i differ, those must be able to be anything: the range begins and ends with whole blocks of 64^i.
    for (uint32_t i = 1; i < length; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((first & ~mask) == (end & ~mask))
            break;
        if (first & mask)
            end = first | mask;
        else if ((end & mask) != mask)
            end = (end & ~mask) - 1;
    }
    out->count = (uint8_t)grammar_utf8_write(first, from);
    grammar_utf8_write(end, to);
    for (uint32_t i = 0; i < out->count; i++) {
        out->first[i] = from[i];
        out->last[i] = to[i];
    }
    return end + 1;
}

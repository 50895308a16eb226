// clean_text.c: makes a text valid UTF-8, and NFC if the model was trained on that.
//
// Broken UTF-8 is replaced as the Unicode standard recommends (3.9, "maximal subparts") and Python does: the longest start
// of a character becomes one U+FFFD, every other byte one.
//
// NFC is done by utf8proc except for the canonical ordering: utf8proc exchanges neighbours, which takes quadratic time in a run of combining
// marks. Here a run is sorted by counting.
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/checked.h"
#include "common/tokenizer/tokenizer.h"

size_t clean_text_utf8_length(const char *bytes, size_t length, size_t *broken, bool *open)
{
    const unsigned char *b = (const unsigned char *)bytes;
    *open = false;
    if (b[0] < 0x80)
        return 1;
    *broken = 1;
    if (b[0] < 0xc2 || b[0] > 0xf4)
        return 0;
    size_t want = b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    unsigned low = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80;  // no overlong forms,
    unsigned high = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf; // no surrogates, nothing above U+10FFFF
    for (size_t i = 1; i < want; i++, low = 0x80, high = 0xbf) {
        *broken = i;
        if (i == length)
            *open = true;
        if (i == length || b[i] < low || b[i] > high)
            return 0;
    }
    return want;
}

// The length of the ASCII that text begins with.
static size_t ascii_length(const char *text, size_t length)
{
    size_t i = 0;
    for (uint64_t word; i + 8 <= length; i += 8) {
        memcpy(&word, text + i, 8);
        if (word & 0x8080808080808080u)
            break;
    }
    while (i < length && !((unsigned char)text[i] & 0x80))
        i++;
    return i;
}

static bool is_valid(const char *text, size_t length)
{
    size_t broken;
    bool open;
    for (size_t i = ascii_length(text, length); i < length;) {
        size_t bytes = clean_text_utf8_length(text + i, length - i, &broken, &open);
        if (bytes == 0)
            return false;
        i += bytes;
    }
    return true;
}

// Writes valid UTF-8 to out (3 · length bytes suffice); returns its length.
static size_t replace_broken(const char *text, size_t length, char *out)
{
    size_t n = 0, broken;
    bool open;
    for (size_t i = 0; i < length;) {
        size_t bytes = clean_text_utf8_length(text + i, length - i, &broken, &open);
        if (bytes == 0) {
            memcpy(out + n, "\xef\xbf\xbd", 3);
            n += 3;
            i += broken;
            continue;
        }
        memcpy(out + n, text + i, bytes);
        n += bytes;
        i += bytes;
    }
    return n;
}

static unsigned combining_class(int32_t character) { return (unsigned)utf8proc_get_property(character)->combining_class & 0xff; }

// Sorts marks[0 .. count) stably into canonical order. scratch: room for count.
static void order_marks(int32_t *marks, size_t count, int32_t *scratch)
{
    size_t starts[257] = {0};
    for (size_t i = 0; i < count; i++)
        starts[combining_class(marks[i]) + 1]++;
    for (int class = 1; class <= 256; class ++)
        starts[class] += starts[class - 1];
    for (size_t i = 0; i < count; i++)
        scratch[starts[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch, count * sizeof *marks);
}

static void order_all(int32_t *characters, size_t count, int32_t *scratch)
{
    for (size_t i = 0; i < count;) {
        size_t run = i;
        while (run < count && combining_class(characters[run]) != 0)
            run++;
        if (run - i > 1)
            order_marks(characters + i, run - i, scratch);
        i = MAX(run, i + 1);
    }
}

// Decomposes valid UTF-8. out NULL: counts only.
static size_t decompose(const char *text, size_t length, int32_t *out, size_t room)
{
    size_t n = 0;
    for (size_t i = 0; i < length;) {
        int32_t character;
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(length - i), &character);
        int boundary = 0;
        utf8proc_ssize_t parts = utf8proc_decompose_char(character, out ? out + n : NULL, out ? (utf8proc_ssize_t)(room - n) : 0,
                                                         UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        assert_always(bytes > 0 && parts > 0);
        n += (size_t)parts;
        i += (size_t)bytes;
    }
    return n;
}

// *out is malloc'd. False: no memory.
static bool to_nfc(const char *text, size_t length, char **out, size_t *out_length)
{
    size_t count = decompose(text, length, NULL, 0);
    int32_t *characters = malloc(2 * count * sizeof *characters);
    char *bytes = malloc(4 * count);
    bool ok = characters && bytes;
    if (ok) {
        (void)decompose(text, length, characters, count);
        order_all(characters, count, characters + count);
        utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(characters, (utf8proc_ssize_t)count, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        *out_length = 0;
        for (utf8proc_ssize_t i = 0; i < composed; i++)
            *out_length += (size_t)utf8proc_encode_char(characters[i], (utf8proc_uint8_t *)bytes + *out_length);
        *out = bytes;
    } else {
        free(bytes);
    }
    free(characters);
    return ok;
}

enum status clean_text(const char *text, size_t length, bool nfc, const char **clean, size_t *clean_length, char **owned,
                       struct error *error)
{
    *clean = text;
    *clean_length = length;
    *owned = NULL;
    if (!is_valid(text, length)) {
        char *valid = length <= SIZE_MAX / 3 ? malloc(3 * length) : NULL;
        if (!valid)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for a text of %zu bytes", length);
        *clean_length = replace_broken(text, length, valid);
        *clean = *owned = valid;
    }
    if (!nfc || ascii_length(*clean, *clean_length) == *clean_length)
        return STATUS_OK;
    char *composed;
    size_t composed_length;
    bool ok = to_nfc(*clean, *clean_length, &composed, &composed_length);
    free(*owned);
    *owned = NULL;
    if (!ok)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory for a text of %zu bytes", length);
    *clean = *owned = composed;
    *clean_length = composed_length;
    return STATUS_OK;
}

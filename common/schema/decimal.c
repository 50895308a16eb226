// decimal.c: numbers of a schema as decimal digits, so that limits are exact: 0.1 is what the schema's author wrote.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/schema/internal.h"

enum { MAX_EXPONENT = 100000 };

// Reads a number of JSON such as "-12.5e3". *is_exact: all of its digits are there.
static struct jschema_decimal read_text(const char *text, bool *is_exact)
{
    struct jschema_decimal decimal = {.negative = *text == '-'};
    int32_t point = 0;
    bool is_behind = false;
    long exponent;

    *is_exact = true;
    for (; *text && *text != 'e' && *text != 'E'; text++) {
        if (*text == '.') {
            is_behind = true;
        } else if (*text >= '0' && *text <= '9') {
            if (*text != '0' || decimal.count) {
                if (decimal.count < sizeof decimal.digits)
                    decimal.digits[decimal.count++] = (uint8_t)(*text - '0');
                else if (*text != '0')
                    *is_exact = false;
                point += !is_behind;
            } else {
                point -= is_behind;
            }
        }
    }
    if (*text) {
        exponent = strtol(text + 1, NULL, 10);
        *is_exact &= exponent >= -MAX_EXPONENT && exponent <= MAX_EXPONENT;
        point += (int32_t)(exponent < -MAX_EXPONENT ? -MAX_EXPONENT : exponent > MAX_EXPONENT ? MAX_EXPONENT : exponent);
    }
    while (decimal.count && decimal.digits[decimal.count - 1] == 0)
        decimal.count--;
    decimal.point = decimal.count ? point : 0;
    if (!decimal.count)
        decimal.negative = false;
    return decimal;
}

struct jschema_decimal jschema_decimal_of(const json_t *number)
{
    const char *kept = json_text_kept(number);
    char text[JSON_REAL_BYTES];
    bool is_exact;

    if (json_is_integer(number))
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(number));
    else if (!kept) // the shortest text that is read as this number is what the author wrote, or as good
        json_text_real(json_real_value(number), text);
    return read_text(kept ? kept : text, &is_exact);
}

bool jschema_decimal_is_exact(const json_t *number)
{
    const char *kept = json_text_kept(number);
    bool is_exact = true;

    if (kept)
        (void)read_text(kept, &is_exact);
    return is_exact;
}

uint32_t jschema_decimal_digit(const struct jschema_decimal *decimal, int32_t place)
{
    int32_t index = decimal->point - 1 - place;

    return index >= 0 && index < decimal->count ? decimal->digits[index] : 0;
}

bool jschema_decimal_is_integer(const struct jschema_decimal *decimal) { return decimal->point >= decimal->count; }

static int compare_sizes(const struct jschema_decimal *a, const struct jschema_decimal *b)
{
    if (!a->count || !b->count)
        return (a->count > 0) - (b->count > 0);
    if (a->point != b->point)
        return a->point < b->point ? -1 : 1;
    for (int i = 0; i < a->count || i < b->count; i++) {
        int left = i < a->count ? a->digits[i] : 0, right = i < b->count ? b->digits[i] : 0;
        if (left != right)
            return left < right ? -1 : 1;
    }
    return 0;
}

int jschema_decimal_compare(const struct jschema_decimal *a, const struct jschema_decimal *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    return a->negative ? -compare_sizes(a, b) : compare_sizes(a, b);
}

void jschema_decimal_text(const struct jschema_decimal *decimal, char *text)
{
    int32_t places = decimal->point > 1 ? decimal->point : 1, behind = decimal->count - decimal->point;

    if (decimal->negative)
        *text++ = '-';
    if (places > JSCHEMA_MAX_DIGITS || behind > JSCHEMA_MAX_FRACTION) { // 1.25e-40
        *text++ = (char)('0' + decimal->digits[0]);
        if (decimal->count > 1)
            *text++ = '.';
        for (int i = 1; i < decimal->count; i++)
            *text++ = (char)('0' + decimal->digits[i]);
        sprintf(text, "e%d", decimal->point - 1);
        return;
    }
    for (int32_t place = places - 1; place >= 0; place--)
        *text++ = (char)('0' + jschema_decimal_digit(decimal, place));
    if (behind > 0)
        *text++ = '.';
    for (int32_t place = -1; place >= -behind; place--)
        *text++ = (char)('0' + jschema_decimal_digit(decimal, place));
    *text = '\0';
}

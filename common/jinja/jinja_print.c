// jinja_print.c: values as text, the way Python's str(), repr() and json.dumps() write them.
#include "common/jinja/jinja_char.h"
#include "common/jinja/jinja_run.h"
#include "common/json/json_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

// The shortest digits that read back as the same number, laid out as Python does.
static void format_float(double number, bool json, char out[JSON_REAL_BYTES])
{
    if (isnan(number) || isinf(number)) {
        snprintf(out, JSON_REAL_BYTES, "%s%s", number < 0 ? "-" : "",
                 isnan(number) ? (json ? "NaN" : "nan") : (json ? "Infinity" : "inf"));
        return;
    }
    json_text_real(number, out);
}

static bool append_scalar(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value, bool json)
{
    char text[JSON_REAL_BYTES];
    switch (value->kind) {
    case KIND_NONE: return jinja_append_text(run, builder, json ? "null" : "None");
    case KIND_BOOL: return jinja_append_text(run, builder, value->boolean ? (json ? "true" : "True") : (json ? "false" : "False"));
    case KIND_INTEGER: snprintf(text, sizeof text, "%lld", (long long)value->integer); break;
    case KIND_WRITTEN: return jinja_append(run, builder, value->string);
    case KIND_FLOAT: format_float(value->number, json, text); break;
    default: return jinja_fail(run, "%s cannot be printed%s", jinja_kind_name(value), json ? " as JSON" : "");
    }
    return jinja_append_text(run, builder, text);
}

// As an escape if JSON or repr() need one for this character; 0 bytes otherwise.
static size_t escape(int32_t code, unsigned char byte, char quote, bool json, bool ascii, char out[16])
{
    static const char named[] = "\nn\tt\rr\bb\ff";
    if (code == quote || code == '\\')
        return (size_t)sprintf(out, "\\%c", code);
    for (size_t i = 0; i < (json ? 10u : 6u); i += 2)
        if (code == named[i])
            return (size_t)sprintf(out, "\\%c", named[i + 1]);
    if (code >= 0 && code < 32)
        return (size_t)sprintf(out, json ? "\\u%04x" : "\\x%02x", (unsigned)code);
    if (json && (!ascii || code < 128))
        return 0;
    if (json && code < 0x10000)
        return (size_t)sprintf(out, "\\u%04x", (unsigned)code);
    if (json) // as UTF-16 has it
        return (size_t)sprintf(out, "\\u%04x\\u%04x", 0xd800u + ((unsigned)code - 0x10000u) / 1024,
                               0xdc00u + (unsigned)code % 1024);
    const int category = code < 0 ? UTF8PROC_CATEGORY_CN : (int)utf8proc_category(code);
    const bool printable = code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
    if (printable)
        return 0;
    const unsigned number = code < 0 ? byte : (unsigned)code;
    return (size_t)sprintf(out, number < 256 ? "\\x%02x" : number < 65536 ? "\\u%04x" : "\\U%08x", number);
}

static bool append_quoted(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string, bool json,
                          bool ascii)
{
    const bool apostrophe = memchr(string->bytes, '\'', string->length), double_quote = memchr(string->bytes, '"', string->length);
    const char quote = json || (apostrophe && !double_quote) ? '"' : '\'';
    const bool content = string->span_count != 0; // escapes move bytes, so a string of mixed origin is content as a whole
    size_t plain = 0;
    if (!jinja_work(run, 1 + string->length / 8) || !jinja_append_bytes(run, builder, &quote, 1, false))
        return false;
    for (size_t i = 0, bytes; i < string->length; i += bytes) {
        char escaped[16];
        bytes = jinja_char_bytes(string->bytes + i, string->length - i);
        const size_t n = escape(jinja_char_code(string->bytes + i, string->length - i), (unsigned char)string->bytes[i], quote,
                                json, ascii, escaped);
        if (!n)
            continue;
        if (!jinja_append_bytes(run, builder, string->bytes + plain, i - plain, content) ||
            !jinja_append_bytes(run, builder, escaped, n, content))
            return false;
        plain = i + bytes;
    }
    return jinja_append_bytes(run, builder, string->bytes + plain, string->length - plain, content) &&
           jinja_append_bytes(run, builder, &quote, 1, false);
}

struct printer {
    struct jinja_run *run;
    struct jinja_builder *builder;
    bool json;
    struct jinja_json_format format;
    int depth;
};

// What stands between items, or before the last bracket.
static bool append_break(const struct printer *p, bool comma)
{
    const int indent = p->format.indent;
    if (comma && !(p->format.between ? jinja_append(p->run, p->builder, p->format.between)
                                     : jinja_append_text(p->run, p->builder, indent < 0 ? ", " : ",")))
        return false;
    if (indent < 0)
        return true;
    char spaces[64];
    if (!jinja_append_text(p->run, p->builder, "\n"))
        return false;
    memset(spaces, ' ', 64);
    for (int left = indent * p->depth; left > 0; left -= 64)
        if (!jinja_append_bytes(p->run, p->builder, spaces, left < 64 ? (size_t)left : 64, false))
            return false;
    return true;
}

static bool print_nested(struct printer *p, const struct jinja_value *value);

// The order of the keys: that of the dict, or sorted. Keys that are not all strings keep their order.
static bool key_order(struct printer *p, const struct jinja_dict *dict, size_t **order)
{
    *order = jinja_run_alloc(p->run, dict->count, sizeof **order);
    if (!*order)
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        int compared = 0;
        while (at > 0 && p->format.sort) {
            if (!jinja_order(p->run, &dict->keys[(*order)[at - 1]], &dict->keys[i], &compared))
                return false;
            if (compared <= 0)
                break;
            (*order)[at] = (*order)[at - 1];
            at--;
        }
        (*order)[at] = i;
    }
    return true;
}

static bool print_dict(struct printer *p, const struct jinja_dict *dict)
{
    size_t *order;
    if (!key_order(p, dict, &order))
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        const struct jinja_value *key = &dict->keys[order[i]];
        if ((i || p->format.indent >= 0) && !append_break(p, i > 0))
            return false;
        const bool quote = p->json && key->kind != KIND_STRING; // {1: 2} is {"1": 2}
        if ((quote && !jinja_append_text(p->run, p->builder, "\"")) || !print_nested(p, key) ||
            (quote && !jinja_append_text(p->run, p->builder, "\"")) ||
            !(p->format.after_key ? jinja_append(p->run, p->builder, p->format.after_key)
                                  : jinja_append_text(p->run, p->builder, ": ")) ||
            !print_nested(p, &dict->values[order[i]]))
            return false;
    }
    return true;
}

static bool print_nested(struct printer *p, const struct jinja_value *value)
{
    const bool dict = value->kind == KIND_DICT, tuple = value->kind == KIND_TUPLE && !p->json;
    if (!jinja_work(p->run, 1))
        return false;
    if (value->kind == KIND_STRING)
        return append_quoted(p->run, p->builder, value->string, p->json, p->format.ascii);
    if (value->kind == KIND_UNDEFINED && !p->json)
        return jinja_append_text(p->run, p->builder, "Undefined");
    if (!dict && value->kind != KIND_LIST && value->kind != KIND_TUPLE)
        return append_scalar(p->run, p->builder, value, p->json);
    if (++p->depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(p->run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    const size_t count = dict ? value->dict->count : value->list->count;
    if (!jinja_append_text(p->run, p->builder, dict ? "{" : tuple ? "(" : "["))
        return false;
    if (dict && !print_dict(p, value->dict))
        return false;
    for (size_t i = 0; !dict && i < count; i++)
        if (((i || p->format.indent >= 0) && !append_break(p, i > 0)) || !print_nested(p, &value->list->items[i]))
            return false;
    p->depth--;
    if (p->format.indent >= 0 && count && !append_break(p, false))
        return false;
    return jinja_append_text(p->run, p->builder, dict ? "}" : tuple ? (count == 1 ? ",)" : ")") : "]");
}

bool jinja_append_value(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value)
{
    if (value->kind == KIND_STRING)
        return jinja_append(run, builder, value->string);
    if (value->kind == KIND_UNDEFINED)
        return true;
    struct printer printer = {run, builder, false, {.indent = -1}, 0};
    return print_nested(&printer, value);
}

bool jinja_append_json(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value,
                       const struct jinja_json_format *format)
{
    struct printer printer = {run, builder, true, *format, 0};
    return print_nested(&printer, value);
}

bool jinja_to_string(struct jinja_run *run, const struct jinja_value *value, const struct jinja_string **out)
{
    if (value->kind == KIND_STRING) {
        *out = value->string;
        return true;
    }
    struct jinja_builder builder = {0};
    struct jinja_value text;
    if (!jinja_append_value(run, &builder, value) || !jinja_build(run, &builder, &text))
        return false;
    *out = text.string;
    return true;
}

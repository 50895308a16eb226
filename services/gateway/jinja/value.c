// value.c: operations on values: truth, equality, order, iteration, and values as text, the way Python's str(), repr() and json.dumps()
// write them.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "common/base/checked.h"
#include "common/json/json_text.h"
#include "services/gateway/jinja/run.h"

// --- kinds --------------------------------------------------------------------------------------------------------------

const char *jinja_kind_name(const struct jinja_value *value)
{
    static const char *const names[] = {"nothing",   "undefined",   "none",   "a boolean", "an integer",  "a float",
                                        "a number",  "a string",    "a list", "a tuple",   "a generator", "a view",
                                        "a mapping", "a namespace", "loop",   "a macro",   "a function"};
    return names[value->kind];
}

bool jinja_is_sequence(const struct jinja_value *value) { return value->kind >= KIND_LIST && value->kind <= KIND_VIEW; }
bool jinja_is_number(const struct jinja_value *value) { return value->kind >= KIND_BOOL && value->kind <= KIND_WRITTEN; }
bool jinja_is_float(const struct jinja_value *value) { return value->kind == KIND_FLOAT || value->kind == KIND_WRITTEN; }
int64_t jinja_as_integer(const struct jinja_value *value) { return value->kind == KIND_BOOL ? value->boolean : value->integer; }
double jinja_as_double(const struct jinja_value *value)
{
    char text[1024]; // the beginning of a longer number tells its size

    if (value->kind != KIND_WRITTEN)
        return value->kind == KIND_FLOAT ? value->number : (double)jinja_as_integer(value);
    snprintf(text, sizeof text, "%.*s", (int)value->string->length, value->string->bytes);
    return strtod(text, NULL);
}

bool jinja_truth(const struct jinja_value *value)
{
    switch (value->kind) {
    case KIND_ABSENT:
    case KIND_UNDEFINED:
    case KIND_NONE: return false;
    case KIND_BOOL: return value->boolean;
    case KIND_INTEGER: return value->integer != 0;
    case KIND_FLOAT: return value->number != 0;
    case KIND_WRITTEN: return true;
    case KIND_STRING: return value->string->length != 0;
    case KIND_LIST:
    case KIND_TUPLE:
    case KIND_VIEW: return value->list->count != 0;
    case KIND_DICT: return value->dict->count != 0;
    default: return true;
    }
}

// --- mappings -----------------------------------------------------------------------------------------------------------

struct jinja_dict *jinja_dict_new(struct jinja_run *run, size_t capacity)
{
    struct jinja_dict *dict = jinja_run_alloc(run, 1, sizeof *dict);
    if (!dict || !capacity)
        return dict;
    dict->keys = jinja_run_alloc(run, capacity, sizeof *dict->keys);
    dict->values = dict->keys ? jinja_run_alloc(run, capacity, sizeof *dict->values) : NULL;
    dict->capacity = capacity;
    return dict->values ? dict : NULL;
}

static bool dict_find(struct jinja_run *run, const struct jinja_dict *dict, const struct jinja_value *key, size_t *index)
{
    bool equal = false;
    if (!jinja_work(run, dict->count / 4))
        return false;
    for (*index = 0; *index < dict->count; ++*index) {
        const struct jinja_value *other = &dict->keys[*index];
        if (key->kind == KIND_STRING && other->kind == KIND_STRING && key->string->length != other->string->length)
            continue;
        if (!jinja_equal(run, other, key, &equal))
            return false;
        if (equal)
            break;
    }
    return true;
}

bool jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, const struct jinja_value *key, struct jinja_value *out,
                    bool *found)
{
    size_t index;
    if (!dict_find(run, dict, key, &index))
        return false;
    *found = index < dict->count;
    *out = *found ? dict->values[index] : jinja_undefined();
    return true;
}

bool jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, const struct jinja_value *key, const struct jinja_value *value)
{
    size_t index;
    if (jinja_is_sequence(key) || key->kind >= KIND_DICT)
        return jinja_fail(run, "%s cannot be a key", jinja_kind_name(key));
    if (!dict_find(run, dict, key, &index))
        return false;
    if (index == dict->capacity) {
        struct jinja_dict *grown = jinja_dict_new(run, dict->capacity * 2 + 4);
        if (!grown)
            return false;
        if (dict->count) {
            memcpy(grown->keys, dict->keys, dict->count * sizeof *grown->keys);
            memcpy(grown->values, dict->values, dict->count * sizeof *grown->values);
        }
        grown->count = dict->count;
        *dict = *grown;
    }
    if (index == dict->count) {
        dict->count++;
        dict->keys[index] = *key;
    }
    dict->values[index] = *value;
    return true;
}

bool jinja_dict_items(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_list **out)
{
    *out = jinja_work(run, dict->count) ? jinja_list_new(run, dict->count) : NULL;
    for (size_t i = 0; *out && i < dict->count; i++) {
        struct jinja_list *pair = jinja_list_new(run, 2);
        if (!pair)
            return false;
        pair->items[0] = dict->keys[i];
        pair->items[1] = dict->values[i];
        (*out)->items[i] = jinja_listed(KIND_TUPLE, pair);
    }
    return *out != NULL;
}

// --- comparing ----------------------------------------------------------------------------------------------------------

static bool equal_at(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int depth, bool *equal)
{
    *equal = false;
    if (!jinja_work(run, 1))
        return false;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    if (jinja_is_number(x) && jinja_is_number(y)) {
        *equal = jinja_is_float(x) || jinja_is_float(y) ? jinja_as_double(x) == jinja_as_double(y)
                                                        : jinja_as_integer(x) == jinja_as_integer(y);
        return true;
    }
    if (x->kind != y->kind)
        return true;
    switch (x->kind) {
    case KIND_STRING:
        *equal = x->string->length == y->string->length && !memcmp(x->string->bytes, y->string->bytes, x->string->length);
        return jinja_work(run, *equal ? x->string->length / 64 : 0);
    case KIND_LIST:
    case KIND_TUPLE:
    case KIND_VIEW:
        *equal = x->list->count == y->list->count;
        for (size_t i = 0; *equal && i < x->list->count; i++)
            if (!equal_at(run, &x->list->items[i], &y->list->items[i], depth + 1, equal))
                return false;
        return true;
    case KIND_DICT:
        *equal = x->dict->count == y->dict->count;
        for (size_t i = 0; *equal && i < x->dict->count; i++) {
            size_t index;
            if (!dict_find(run, y->dict, &x->dict->keys[i], &index))
                return false;
            *equal = index < y->dict->count;
            if (*equal && !equal_at(run, &x->dict->values[i], &y->dict->values[index], depth + 1, equal))
                return false;
        }
        return true;
    case KIND_LAZY: *equal = x->list == y->list; return true;
    case KIND_NAMESPACE: *equal = x->dict == y->dict; return true;
    case KIND_LOOP: *equal = x->loop == y->loop; return true;
    case KIND_MACRO: *equal = x->macro == y->macro; return true;
    case KIND_FUNCTION: return true;
    default: *equal = true; return true; // undefined, none
    }
}

bool jinja_equal(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, bool *equal)
{
    return equal_at(run, x, y, 0, equal);
}

static bool order_at(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int depth, int *order)
{
    *order = 0;
    if (!jinja_work(run, 1))
        return false;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    if (jinja_is_number(x) && jinja_is_number(y)) {
        if (jinja_is_float(x) || jinja_is_float(y)) {
            const double a = jinja_as_double(x), b = jinja_as_double(y);
            *order = (a > b) - (a < b);
        } else {
            *order = (jinja_as_integer(x) > jinja_as_integer(y)) - (jinja_as_integer(x) < jinja_as_integer(y));
        }
        return true;
    }
    if (x->kind == KIND_STRING && y->kind == KIND_STRING) { // UTF-8 sorts as its code points do
        const size_t common = MIN(x->string->length, y->string->length);
        *order = memcmp(x->string->bytes, y->string->bytes, common);
        if (!*order)
            *order = (x->string->length > y->string->length) - (x->string->length < y->string->length);
        return jinja_work(run, common / 64);
    }
    if (x->kind == y->kind && (x->kind == KIND_LIST || x->kind == KIND_TUPLE)) {
        for (size_t i = 0; !*order && i < x->list->count && i < y->list->count; i++)
            if (!order_at(run, &x->list->items[i], &y->list->items[i], depth + 1, order))
                return false;
        if (!*order)
            *order = (x->list->count > y->list->count) - (x->list->count < y->list->count);
        return true;
    }
    return jinja_fail(run, "%s and %s have no order", jinja_kind_name(x), jinja_kind_name(y));
}

bool jinja_order(struct jinja_run *run, const struct jinja_value *x, const struct jinja_value *y, int *order)
{
    return order_at(run, x, y, 0, order);
}

// --- items --------------------------------------------------------------------------------------------------------------

bool jinja_iterate(struct jinja_run *run, const struct jinja_value *value, const struct jinja_list **out)
{
    if (jinja_is_sequence(value)) {
        *out = value->list;
        return jinja_work(run, value->list->count);
    }
    if (value->kind != KIND_UNDEFINED && value->kind != KIND_STRING && value->kind != KIND_DICT)
        return jinja_fail(run, "%s cannot be iterated", jinja_kind_name(value));
    const size_t count = value->kind == KIND_STRING ? jinja_char_count(value->string)
                         : value->kind == KIND_DICT ? value->dict->count
                                                    : 0;
    struct jinja_list *list = jinja_work(run, count) ? jinja_list_new(run, count) : NULL;
    if (!list)
        return false;
    if (value->kind == KIND_DICT && count)
        memcpy(list->items, value->dict->keys, count * sizeof *list->items);
    for (size_t i = 0, at = 0, bytes; value->kind == KIND_STRING && i < count; i++, at += bytes) {
        bytes = jinja_char_bytes(value->string->bytes + at, value->string->length - at);
        if (!jinja_substring(run, value->string, at, at + bytes, &list->items[i]))
            return false;
    }
    *out = list;
    return true;
}

bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *item, bool *found)
{
    const struct jinja_list *list;
    *found = false;
    if (container->kind == KIND_STRING) {
        if (item->kind != KIND_STRING)
            return jinja_fail(run, "'in' a string needs a string, not %s", jinja_kind_name(item));
        *found = jinja_find(container->string, item->string, 0) != SIZE_MAX;
        return jinja_work(run, 1 + container->string->length / 64);
    }
    if (container->kind == KIND_DICT) {
        struct jinja_value ignored;
        return jinja_dict_get(run, container->dict, item, &ignored, found);
    }
    if (!jinja_iterate(run, container, &list))
        return false;
    for (size_t i = 0; !*found && i < list->count; i++)
        if (!jinja_equal(run, &list->items[i], item, found))
            return false;
    return true;
}

// --- printing -----------------------------------------------------------------------------------------------------------

// Writes the shortest digits that read back as the same number, laid out as Python does.
static void format_float(double number, bool json, char out[JSON_REAL_BYTES])
{
    if (isnan(number) || isinf(number)) {
        snprintf(out, JSON_REAL_BYTES, "%s%s", number < 0 ? "-" : "",
                 isnan(number) ? (json ? "NaN" : "nan") : (json ? "Infinity" : "inf"));
        return;
    }
    json_text_real(number, out);
}

static bool print_scalar(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value, bool json)
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

// Writes an escape if JSON or repr() need one for this character. Returns its length, 0 if none is needed.
static size_t escape_of(int32_t code, unsigned char byte, char quote, bool json, bool ascii, char out[16])
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

static bool print_quoted(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string, bool json,
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
        const size_t n = escape_of(jinja_char_code(string->bytes + i, string->length - i), (unsigned char)string->bytes[i], quote,
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

// Writes the separator between items, or the line break before the last bracket.
static bool print_break(const struct printer *p, bool comma)
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

// Orders the keys: as in the dict, or sorted. Keys that are not all strings keep their order.
static bool print_key_order(struct printer *p, const struct jinja_dict *dict, size_t **order)
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
    if (!print_key_order(p, dict, &order))
        return false;
    for (size_t i = 0; i < dict->count; i++) {
        const struct jinja_value *key = &dict->keys[order[i]];
        if ((i || p->format.indent >= 0) && !print_break(p, i > 0))
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
        return print_quoted(p->run, p->builder, value->string, p->json, p->format.ascii);
    if (value->kind == KIND_UNDEFINED && !p->json)
        return jinja_append_text(p->run, p->builder, "Undefined");
    if (!dict && value->kind != KIND_LIST && value->kind != KIND_TUPLE)
        return print_scalar(p->run, p->builder, value, p->json);
    if (++p->depth > JINJA_MAX_VALUE_DEPTH)
        return jinja_fail(p->run, "values nest deeper than %d", JINJA_MAX_VALUE_DEPTH);
    const size_t count = dict ? value->dict->count : value->list->count;
    if (!jinja_append_text(p->run, p->builder, dict ? "{" : tuple ? "(" : "["))
        return false;
    if (dict && !print_dict(p, value->dict))
        return false;
    for (size_t i = 0; !dict && i < count; i++)
        if (((i || p->format.indent >= 0) && !print_break(p, i > 0)) || !print_nested(p, &value->list->items[i]))
            return false;
    p->depth--;
    if (p->format.indent >= 0 && count && !print_break(p, false))
        return false;
    return jinja_append_text(p->run, p->builder, dict ? "}" : tuple ? (count == 1 ? ",)" : ")") : "]");
}

bool jinja_append_value(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value)
{
    if (value->kind == KIND_STRING)
        return jinja_append(run, builder, value->string);
    if (value->kind == KIND_UNDEFINED)
        return true;
    struct printer printer = {.run = run, .builder = builder, .format = {.indent = -1}};
    return print_nested(&printer, value);
}

bool jinja_append_json(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value,
                       const struct jinja_json_format *format)
{
    struct printer printer = {.run = run, .builder = builder, .json = true, .format = *format};
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

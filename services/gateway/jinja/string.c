// string.c: strings of a run, each with the byte ranges that came from message content, and the memory that they lie in.
//
// A string is immutable and may share bytes with another. A part keeps the spans of that part, concatenation joins them, and a change of case
// keeps the origin of each character. Example: with content "hi " the value of '<b>' + content|trim is the 5 bytes "<b>hi" with one span
// [3, 5).
//
// Memory is zeroed and belongs to an arena, of the template or of a run. Reaching a limit of memory or work is an error of the template.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "common/base/checked.h"
#include "services/gateway/jinja/run.h"

// --- memory and limits --------------------------------------------------------------------------------------------------

void *jinja_alloc(struct arena *arena, size_t bytes)
{
    void *memory = arena_take(arena, MAX(bytes, (size_t)1));
    return memory ? memset(memory, 0, bytes) : NULL;
}

void *jinja_alloc_array(struct arena *arena, size_t count, size_t element_bytes)
{
    size_t bytes;
    return checked_mul_size(count, element_bytes, &bytes) ? jinja_alloc(arena, bytes) : NULL;
}

bool jinja_fail_at(struct error *error, uint32_t line, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)error_set(error, STATUS_INVALID_ARGUMENT, "chat template line %u: %s", line, text);
    return false;
}

// Reports the limit, or that there is no memory. Returns false.
static bool fail_no_memory(struct jinja_run *run)
{
    if (!run->arena.out_of_memory)
        return jinja_fail(run, "rendering needs more than %zu bytes", run->arena.cap);
    (void)error_set(run->error, STATUS_RESOURCE_EXHAUSTED, "no memory to render the chat template");
    return false;
}

void *jinja_run_alloc(struct jinja_run *run, size_t count, size_t element_bytes)
{
    void *memory = jinja_alloc_array(&run->arena, count, element_bytes);
    if (!memory)
        (void)fail_no_memory(run);
    return memory;
}

bool jinja_work(struct jinja_run *run, size_t units)
{
    run->work += units;
    return run->work <= JINJA_MAX_WORK || jinja_fail(run, "rendering takes more than %u units of work", JINJA_MAX_WORK);
}

struct jinja_list *jinja_list_new(struct jinja_run *run, size_t count)
{
    struct jinja_list *list = jinja_run_alloc(run, 1, sizeof *list);
    if (list && count && !(list->items = jinja_run_alloc(run, count, sizeof *list->items)))
        return NULL;
    if (list)
        list->count = count;
    return list;
}

// --- characters ---------------------------------------------------------------------------------------------------------

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

// --- building -----------------------------------------------------------------------------------------------------------

static bool builder_reserve(struct jinja_run *run, struct jinja_builder *builder, size_t more)
{
    if (more > JINJA_MAX_OUTPUT_BYTES - builder->length)
        return jinja_fail(run, "the text grows beyond %u bytes", JINJA_MAX_OUTPUT_BYTES);
    const size_t needed = builder->length + more;
    if (needed <= builder->capacity)
        return true;
    const size_t capacity = MAX(needed, builder->capacity * 2 + 64);
    char *grown = jinja_run_alloc(run, capacity, 1);
    if (!grown)
        return false;
    if (builder->length)
        memcpy(grown, builder->bytes, builder->length);
    builder->bytes = grown;
    builder->capacity = capacity;
    return true;
}

static bool builder_add_span(struct jinja_run *run, struct jinja_builder *builder, size_t begin, size_t end)
{
    if (begin == end)
        return true;
    if (builder->span_count && builder->spans[builder->span_count - 1].end == begin) {
        builder->spans[builder->span_count - 1].end = end;
        return true;
    }
    if (builder->span_count == builder->span_capacity) {
        const size_t capacity = builder->span_capacity * 2 + 4;
        struct jinja_span *grown = jinja_run_alloc(run, capacity, sizeof *grown);
        if (!grown)
            return false;
        if (builder->span_count)
            memcpy(grown, builder->spans, builder->span_count * sizeof *grown);
        builder->spans = grown;
        builder->span_capacity = capacity;
    }
    builder->spans[builder->span_count++] = (struct jinja_span){begin, end};
    return true;
}

bool jinja_append_bytes(struct jinja_run *run, struct jinja_builder *builder, const char *bytes, size_t length, bool content)
{
    if (!length)
        return true;
    if (!jinja_work(run, 1 + length / 64) || !builder_reserve(run, builder, length))
        return false;
    memcpy(builder->bytes + builder->length, bytes, length);
    builder->length += length;
    return !content || builder_add_span(run, builder, builder->length - length, builder->length);
}

bool jinja_append_text(struct jinja_run *run, struct jinja_builder *builder, const char *text)
{
    return jinja_append_bytes(run, builder, text, strlen(text), false);
}

bool jinja_append(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string)
{
    const size_t base = builder->length;
    if (!jinja_append_bytes(run, builder, string->bytes, string->length, false) || !jinja_work(run, string->span_count / 4))
        return false;
    for (size_t i = 0; i < string->span_count; i++)
        if (!builder_add_span(run, builder, base + string->spans[i].begin, base + string->spans[i].end))
            return false;
    return true;
}

bool jinja_build(struct jinja_run *run, const struct jinja_builder *builder, struct jinja_value *out)
{
    struct jinja_string *string = jinja_run_alloc(run, 1, sizeof *string);
    if (!string)
        return false;
    *string = (struct jinja_string){.bytes = builder->bytes ? builder->bytes : "",
                                    .length = builder->length,
                                    .spans = builder->spans,
                                    .span_count = builder->span_count};
    *out = (struct jinja_value){.kind = KIND_STRING, .string = string};
    return true;
}

bool jinja_string_value(struct jinja_run *run, const char *bytes, size_t length, bool content, struct jinja_value *out)
{
    struct jinja_string *string = jinja_run_alloc(run, 1, sizeof *string);
    struct jinja_span *span = content && length ? jinja_run_alloc(run, 1, sizeof *span) : NULL;
    if (!string || (content && length && !span))
        return false;
    if (span)
        *span = (struct jinja_span){0, length};
    *string = (struct jinja_string){.bytes = bytes, .length = length, .spans = span, .span_count = span != NULL};
    *out = (struct jinja_value){.kind = KIND_STRING, .string = string};
    return true;
}

bool jinja_substring(struct jinja_run *run, const struct jinja_string *string, size_t begin, size_t end, struct jinja_value *out)
{
    if (!jinja_work(run, 1 + string->span_count / 4))
        return false;
    size_t first = 0, last;
    while (first < string->span_count && string->spans[first].end <= begin)
        first++;
    for (last = first; last < string->span_count && string->spans[last].begin < end;)
        last++;
    struct jinja_string *part = jinja_run_alloc(run, 1, sizeof *part);
    struct jinja_span *spans = last > first ? jinja_run_alloc(run, last - first, sizeof *spans) : NULL;
    if (!part || (last > first && !spans))
        return false;
    for (size_t i = first; i < last; i++)
        spans[i - first] = (struct jinja_span){MAX(string->spans[i].begin, begin) - begin, MIN(string->spans[i].end, end) - begin};
    *part =
        (struct jinja_string){.bytes = string->bytes + begin, .length = end - begin, .spans = spans, .span_count = last - first};
    *out = (struct jinja_value){.kind = KIND_STRING, .string = part};
    return true;
}

// --- what methods and filters do ----------------------------------------------------------------------------------------

static bool stripped(const struct jinja_string *chars, const char *at, size_t bytes)
{
    if (!chars)
        return jinja_is_space(jinja_char_code(at, bytes));
    const struct jinja_string one = {.bytes = at, .length = bytes};
    return jinja_find(chars, &one, 0) != SIZE_MAX;
}

bool jinja_strip(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *chars, int sides,
                 struct jinja_value *out)
{
    size_t begin = 0, end = string->length;
    while ((sides & 1) && begin < end) {
        const size_t bytes = jinja_char_bytes(string->bytes + begin, end - begin);
        if (!jinja_work(run, chars ? 1 + chars->length / 64 : 0))
            return false;
        if (!stripped(chars, string->bytes + begin, bytes))
            break;
        begin += bytes;
    }
    while ((sides & 2) && begin < end) {
        size_t start = end - 1;
        while (start > begin && end - start < 4 && ((unsigned char)string->bytes[start] & 0xc0) == 0x80)
            start--;
        if (jinja_char_bytes(string->bytes + start, end - start) != end - start)
            start = end - 1; // not UTF-8
        if (!jinja_work(run, chars ? 1 + chars->length / 64 : 0))
            return false;
        if (!stripped(chars, string->bytes + start, end - start))
            break;
        end = start;
    }
    return jinja_work(run, string->length / 64) && jinja_substring(run, string, begin, end, out);
}

// Appends bytes [begin, end) of a string.
static bool append_part(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string, size_t begin,
                        size_t end)
{
    struct jinja_value part;
    return jinja_substring(run, string, begin, end, &part) && jinja_append(run, builder, part.string);
}

bool jinja_replace(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *old,
                   const struct jinja_string *with, int64_t limit, struct jinja_value *out)
{
    struct jinja_builder builder = {0};
    size_t at = 0;
    if (!jinja_work(run, string->length / 64))
        return false;
    if (!old->length) { // between all characters
        while (limit && at <= string->length) {
            limit -= limit > 0;
            const size_t bytes = at < string->length ? jinja_char_bytes(string->bytes + at, string->length - at) : 0;
            if (!jinja_append(run, &builder, with) || !append_part(run, &builder, string, at, at + bytes))
                return false;
            at += bytes ? bytes : 1;
        }
        return (at >= string->length || append_part(run, &builder, string, at, string->length)) && jinja_build(run, &builder, out);
    }
    for (size_t hit; limit && (hit = jinja_find(string, old, at)) != SIZE_MAX; at = hit + old->length) {
        limit -= limit > 0;
        if (!jinja_work(run, old->length / 64) || !append_part(run, &builder, string, at, hit) ||
            !jinja_append(run, &builder, with))
            return false;
    }
    return append_part(run, &builder, string, at, string->length) && jinja_build(run, &builder, out);
}

// Finds the next separator in [begin, end), from the left or from the right. False: there is none, or the work is too much.
static bool find_separator(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *separator,
                           size_t begin, size_t end, bool from_right, size_t *hit, size_t *hit_end)
{
    const struct jinja_string part = {.bytes = string->bytes, .length = end};
    if (separator && !from_right) {
        *hit = jinja_find(&part, separator, begin);
        *hit_end = *hit + separator->length;
        return *hit != SIZE_MAX;
    }
    if (separator) {
        for (size_t at = end; at >= begin + separator->length; at--) {
            if (string->bytes[at - 1] != separator->bytes[separator->length - 1])
                continue;
            if (!jinja_work(run, 1 + separator->length / 64))
                return false;
            if (!memcmp(string->bytes + at - separator->length, separator->bytes, separator->length)) {
                *hit = at - separator->length;
                *hit_end = at;
                return true;
            }
        }
        return false;
    }
    bool found = false;
    for (size_t at = begin, bytes; at < end; at += bytes) {
        bytes = jinja_char_bytes(string->bytes + at, end - at);
        const bool space = jinja_is_space(jinja_char_code(string->bytes + at, end - at));
        if (space && found && *hit_end == at) {
            *hit_end = at + bytes;
        } else if (space) {
            *hit = at;
            *hit_end = at + bytes;
            found = true;
        } else if (found && !from_right) {
            break;
        }
    }
    return found;
}

static bool split_push(struct jinja_run *run, struct jinja_list *list, size_t *capacity, const struct jinja_string *string,
                       size_t begin, size_t end)
{
    if (list->count == *capacity) {
        const size_t grown_to = *capacity * 2 + 4;
        struct jinja_value *grown = jinja_run_alloc(run, grown_to, sizeof *grown);
        if (!grown)
            return false;
        if (list->count)
            memcpy(grown, list->items, list->count * sizeof *grown);
        list->items = grown;
        *capacity = grown_to;
    }
    return jinja_substring(run, string, begin, end, &list->items[list->count++]);
}

bool jinja_split(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *separator, int64_t limit,
                 bool from_right, struct jinja_value *out)
{
    struct jinja_list *list = jinja_list_new(run, 0);
    size_t capacity = 0, begin = 0, end = string->length, hit = 0, hit_end = 0;
    struct jinja_value trimmed;
    if (separator && !separator->length)
        return jinja_fail(run, "empty separator");
    if (!list || !jinja_strip(run, string, NULL, 3, &trimmed))
        return false;
    if (!separator) { // white space at the ends separates nothing
        begin = (size_t)(trimmed.string->bytes - string->bytes);
        end = begin + trimmed.string->length;
    }
    from_right = from_right && limit >= 0; // without a limit both sides give the same, but for overlaps
    while (limit != 0 && find_separator(run, string, separator, begin, end, from_right, &hit, &hit_end)) {
        limit -= limit > 0;
        const bool good = from_right ? split_push(run, list, &capacity, string, hit_end, end)
                                     : split_push(run, list, &capacity, string, begin, hit);
        if (!good || !jinja_work(run, (from_right ? end - begin : hit_end - begin) / 16))
            return false;
        if (from_right)
            end = hit;
        else
            begin = hit_end;
    }
    if (!jinja_work(run, (end - begin) / 16))
        return false;
    const bool some = end > begin || separator;
    if (!separator && limit == 0 && from_right) // the rest keeps its blanks
        begin = 0;
    else if (!separator && limit == 0)
        end = string->length;
    if (some && !split_push(run, list, &capacity, string, begin, end))
        return false;
    for (size_t i = 0; from_right && i < list->count / 2; i++) {
        const struct jinja_value swap = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = swap;
    }
    *out = jinja_listed(KIND_LIST, list);
    return true;
}

// Works letter by letter. Of capitals that are longer than their letter it knows only that of sharp s; Python also knows ligatures.
static int32_t map_case(int32_t code, bool upper, bool title)
{
    return !upper ? utf8proc_tolower(code) : title ? utf8proc_totitle(code) : utf8proc_toupper(code);
}

bool jinja_change_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case to, struct jinja_value *out)
{
    struct jinja_builder builder = {0};
    bool start = true; // a word starts here
    size_t span = 0;
    if (!builder_reserve(run, &builder, string->length) || !jinja_work(run, string->length / 8))
        return false;
    for (size_t i = 0, bytes; i < string->length; i += bytes) {
        bytes = jinja_char_bytes(string->bytes + i, string->length - i);
        const int32_t code = jinja_char_code(string->bytes + i, string->length - i);
        const bool upper = to == CASE_UPPER || (to != CASE_LOWER && start);
        char mapped[8];
        size_t mapped_bytes = bytes;
        if (code == 0xdf && upper) { // sharp s has no capital of one letter
            memcpy(mapped, to == CASE_UPPER ? "SS" : "Ss", mapped_bytes = 2);
        } else if (code >= 0) {
            mapped_bytes = (size_t)utf8proc_encode_char(map_case(code, upper, to != CASE_UPPER), (utf8proc_uint8_t *)mapped);
        } else {
            memcpy(mapped, string->bytes + i, bytes);
        }
        const int category = code >= 0 ? (int)utf8proc_category(code) : 0;
        if (to == CASE_TITLE_METHOD)
            start = category != UTF8PROC_CATEGORY_LU && category != UTF8PROC_CATEGORY_LL && category != UTF8PROC_CATEGORY_LT;
        else if (to == CASE_TITLE_FILTER)
            start = jinja_is_space(code) || (code > 0 && code < 128 && strchr("-({[<", code));
        else
            start = false;
        while (span < string->span_count && string->spans[span].end <= i)
            span++;
        const bool content = span < string->span_count && string->spans[span].begin <= i;
        if (!jinja_append_bytes(run, &builder, mapped, mapped_bytes, content))
            return false;
    }
    return jinja_build(run, &builder, out);
}

static bool same_bytes(const struct jinja_string *x, const struct jinja_string *y)
{
    return x->length == y->length && !memcmp(x->bytes, y->bytes, x->length);
}

bool jinja_has_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case is, struct jinja_value *out)
{
    struct jinja_value same, other;
    if (!jinja_change_case(run, string, is, &same) ||
        !jinja_change_case(run, string, is == CASE_LOWER ? CASE_UPPER : CASE_LOWER, &other))
        return false;
    *out = jinja_bool(same_bytes(string, same.string) && !same_bytes(same.string, other.string));
    return true;
}

bool jinja_repeat(struct jinja_run *run, const struct jinja_string *string, int64_t times, struct jinja_value *out)
{
    struct jinja_builder builder = {0};
    for (int64_t i = 0; string->length && i < times; i++)
        if (!jinja_append(run, &builder, string))
            return false;
    return jinja_build(run, &builder, out);
}

bool jinja_pad(struct jinja_run *run, const struct jinja_string *string, int64_t width, const struct jinja_string *fill,
               enum jinja_pad_side side, struct jinja_value *out)
{
    const struct jinja_string space = {.bytes = " ", .length = 1};
    const int64_t missing = MAX(width, 0) - (int64_t)jinja_char_count(string);
    struct jinja_builder builder = {0};
    if (missing > JINJA_MAX_OUTPUT_BYTES)
        return jinja_fail(run, "the text grows beyond %u bytes", JINJA_MAX_OUTPUT_BYTES);
    const int64_t left = side == PAD_LEFT ? missing : side == PAD_RIGHT ? 0 : missing / 2 + (missing & width & 1); // as Python
    for (int64_t i = 0; i < left; i++)
        if (!jinja_append(run, &builder, fill ? fill : &space))
            return false;
    if (!jinja_append(run, &builder, string))
        return false;
    for (int64_t i = MAX(left, 0); i < missing; i++)
        if (!jinja_append(run, &builder, fill ? fill : &space))
            return false;
    return jinja_build(run, &builder, out);
}

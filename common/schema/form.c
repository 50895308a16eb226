// form.c: what the members of a variant ask together: each keyword's strictest value, or a list where there is no such thing; and which types of
// values a schema allows.
//
// Properties and items stay with the members, since additionalProperties and items concern what their own schema does not name.
#include <string.h>

#include "common/schema/internal.h"

// --- types --------------------------------------------------------------------------------------------------------------

static uint32_t type_of_name(struct jschema *schema, uint32_t entry, const char *name)
{
    static const struct {
        const char *name;
        uint32_t types;
    } names[] = {{"null", JSCHEMA_NULL},     {"boolean", JSCHEMA_BOOLEAN},  {"integer", JSCHEMA_INTEGER},
                 {"number", JSCHEMA_NUMBER}, {"string", JSCHEMA_STRING},    {"array", JSCHEMA_ARRAY},
                 {"object", JSCHEMA_OBJECT}, {"fraction", JSCHEMA_FRACTION}};

    for (uint32_t i = 0; name && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i].name) == 0 && (names[i].types != JSCHEMA_FRACTION || schema->entries[entry].is_made))
            return names[i].types;
    jschema_fail(schema, entry, "type", STATUS_INVALID_ARGUMENT,
                 "must be null, boolean, object, array, number, integer or string, or a list of these");
    return 0;
}

static uint32_t types_of_value(const json_t *value)
{
    struct jschema_decimal decimal;

    if (json_text_is_number(value)) {
        decimal = jschema_decimal_of(value);
        return jschema_decimal_is_integer(&decimal) ? JSCHEMA_INTEGER : JSCHEMA_FRACTION;
    }
    switch (json_typeof(value)) {
    case JSON_NULL: return JSCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return JSCHEMA_BOOLEAN;
    case JSON_STRING: return JSCHEMA_STRING;
    case JSON_ARRAY: return JSCHEMA_ARRAY;
    default: return JSCHEMA_OBJECT;
    }
}

uint32_t jschema_types(struct jschema *schema, uint32_t entry)
{
    const json_t *type = jschema_get(schema, entry, "type"), *values = jschema_get(schema, entry, "enum");
    const json_t *value = jschema_get(schema, entry, "const");
    uint32_t types = type ? 0 : JSCHEMA_ANY, listed = 0;
    json_t *item;
    size_t i;

    if (json_is_string(type))
        types = type_of_name(schema, entry, json_string_value(type));
    else if (json_is_array(type))
        json_array_foreach (type, i, item)
            types |= type_of_name(schema, entry, json_string_value(item));
    else if (type)
        type_of_name(schema, entry, NULL);
    if (values && !json_is_array(values))
        jschema_fail(schema, entry, "enum", STATUS_INVALID_ARGUMENT, "must be a list of values");
    json_array_foreach (values, i, item)
        listed |= types_of_value(item);
    return types & (values ? listed : JSCHEMA_ANY) & (value ? types_of_value(value) : JSCHEMA_ANY);
}

// --- forms --------------------------------------------------------------------------------------------------------------

bool jschema_is_same(const json_t *a, const json_t *b)
{
    if (json_text_is_number(a) && json_text_is_number(b)) {
        struct jschema_decimal left = jschema_decimal_of(a), right = jschema_decimal_of(b);
        return jschema_decimal_compare(&left, &right) == 0;
    }
    return json_equal((json_t *)a, (json_t *)b);
}

static bool is_complex(const json_t *value) { return json_is_array(value) || json_text_is_object(value); }

// Keeps of the values those that are in the list, too.
static void merge_values(struct jschema *schema, struct jschema_form *form, const json_t *const *values, size_t count)
{
    const json_t **kept = jschema_take(schema, count, sizeof *kept);
    uint32_t kept_count = 0;

    if (!kept || !jschema_work(schema, (uint32_t)(form->has_values ? count * form->value_count / 16 : count)))
        return;
    for (size_t i = 0; i < count; i++) {
        bool is_there = !form->has_values;
        for (uint32_t k = 0; k < form->value_count && !is_there; k++)
            is_there = jschema_is_same(values[i], form->values[k]);
        if (is_there)
            kept[kept_count++] = values[i];
    }
    form->values = kept;
    form->value_count = kept_count;
    form->has_values = true;
}

static void read_enum(struct jschema *schema, struct jschema_form *form, const json_t *values)
{
    size_t count = json_array_size(values);
    const json_t **list = jschema_take(schema, count, sizeof *list);

    for (size_t i = 0; list && i < count; i++) {
        list[i] = json_array_get(values, i);
        if (is_complex(list[i]))
            return; // has been rewritten
    }
    if (list)
        merge_values(schema, form, list, count);
}

static void read_bound(struct jschema *schema, struct jschema_form *form, uint32_t entry, const char *keyword, bool is_exclusive)
{
    const json_t *value = jschema_get(schema, entry, keyword);
    bool is_min = strcmp(keyword, "minimum") == 0 || strcmp(keyword, "exclusiveMinimum") == 0;
    struct jschema_bound *old = is_min ? &form->min : &form->max;
    struct jschema_bound bound = {.is_set = true, .is_exclusive = is_exclusive, .entry = entry, .keyword = keyword};

    if (!value || (is_exclusive && json_is_boolean(value)))
        return;
    if (!json_text_is_number(value)) {
        jschema_fail(schema, entry, keyword, STATUS_INVALID_ARGUMENT, "must be a number");
        return;
    }
    if (!is_exclusive) // draft 4
        bound.is_exclusive = json_is_true(jschema_get(schema, entry, is_min ? "exclusiveMinimum" : "exclusiveMaximum"));
    bound.value = jschema_decimal_of(value);
    int order = old->is_set ? jschema_decimal_compare(&bound.value, &old->value) : 0;
    if (!old->is_set || (is_min ? order > 0 : order < 0) || (order == 0 && bound.is_exclusive))
        *old = bound;
}

static void add_term(struct jschema *schema, struct jschema_form *form, struct jschema_term term)
{
    if (!jschema_work(schema, 1 + form->term_count / 16))
        return;
    for (uint32_t i = 0; i < form->term_count; i++)
        if (form->terms[i].is_negative == term.is_negative && strcmp(form->terms[i].keyword, term.keyword) == 0 &&
            json_equal((json_t *)form->terms[i].value, (json_t *)term.value))
            return;
    if (jschema_grow(schema, &form->terms, form->term_count, &form->term_capacity, sizeof term))
        form->terms[form->term_count++] = term;
}

static void read_terms(struct jschema *schema, struct jschema_form *form, uint32_t entry)
{
    static const char *const keywords[] = {"multipleOf", "pattern", "format"};
    const json_t *negated = schema->entries[entry].is_made ? jschema_get(schema, entry, "$not") : NULL;

    for (int i = 0; i < 3; i++) {
        const json_t *value = jschema_get(schema, entry, keywords[i]), *other = json_object_get(negated, keywords[i]);
        if (value && i > 0 && !json_is_string(value))
            jschema_fail(schema, entry, keywords[i], STATUS_INVALID_ARGUMENT, "must be a string");
        else if (value)
            add_term(schema, form, (struct jschema_term){.value = value, .entry = entry, .keyword = keywords[i]});
        if (other)
            add_term(schema, form,
                     (struct jschema_term){.value = other, .entry = entry, .keyword = keywords[i], .is_negative = true});
    }
    const json_t *values = json_object_get(negated, "enum");
    size_t count = json_array_size(values), at = form->not_value_count;
    if (count == 0)
        return;
    const json_t **list = jschema_take(schema, at + count, sizeof *list);
    if (!list || !jschema_work(schema, (uint32_t)count))
        return;
    if (at)
        memcpy(list, form->not_values, at * sizeof *list);
    for (size_t i = 0; i < count; i++)
        list[at + i] = json_array_get(values, i);
    form->not_values = list;
    form->not_value_count = (uint32_t)(at + count);
}

static void read_counts(struct jschema *schema, struct jschema_form *form, uint32_t entry)
{
    const struct {
        const char *min, *max;
        uint64_t *low, *high;
    } pairs[] = {{"minLength", "maxLength", &form->min_length, &form->max_length},
                 {"minItems", "maxItems", &form->min_items, &form->max_items},
                 {"minProperties", "maxProperties", &form->min_properties, &form->max_properties}};

    for (int i = 0; i < 3; i++) {
        uint64_t low = jschema_count(schema, entry, pairs[i].min, 0), high = jschema_count(schema, entry, pairs[i].max, UINT64_MAX);
        *pairs[i].low = low > *pairs[i].low ? low : *pairs[i].low;
        *pairs[i].high = high < *pairs[i].high ? high : *pairs[i].high;
    }
}

bool jschema_requires(const struct jschema_form *form, const char *key)
{
    for (uint32_t i = 0; i < form->required_count; i++)
        if (strcmp(form->required[i], key) == 0)
            return true;
    return false;
}

static void read_required(struct jschema *schema, struct jschema_form *form, uint32_t entry)
{
    const json_t *required = jschema_get(schema, entry, "required");
    json_t *key;
    size_t i;

    if (!required || json_is_boolean(required)) // draft 3 has it inside properties
        return;
    if (!json_is_array(required)) {
        jschema_fail(schema, entry, "required", STATUS_INVALID_ARGUMENT, "must be a list of strings");
        return;
    }
    json_array_foreach (required, i, key) {
        if (!json_is_string(key)) {
            jschema_fail(schema, entry, "required", STATUS_INVALID_ARGUMENT, "must be a list of strings");
            return;
        }
        if (!jschema_work(schema, 1 + form->required_count / 16))
            return;
        if (!jschema_requires(form, json_string_value(key)) &&
            jschema_grow(schema, &form->required, form->required_count, &form->required_capacity, sizeof *form->required))
            form->required[form->required_count++] = json_string_value(key);
    }
}

bool jschema_has_term(const struct jschema_form *form, const char *keyword)
{
    for (uint32_t i = 0; i < form->term_count; i++)
        if (strcmp(form->terms[i].keyword, keyword) == 0)
            return true;
    return false;
}

struct jschema_form jschema_merge(struct jschema *schema, struct jschema_set variant)
{
    static const char *const bounds[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
    struct jschema_form form = {
        .types = JSCHEMA_ANY, .leaves = variant, .max_length = UINT64_MAX, .max_items = UINT64_MAX, .max_properties = UINT64_MAX};

    for (uint32_t i = 0; i < variant.count && jschema_work(schema, 1); i++) {
        uint32_t entry = variant.ids[i];
        const json_t *value;
        form.types &= jschema_types(schema, entry);
        if ((value = jschema_get(schema, entry, "enum")))
            read_enum(schema, &form, value);
        if ((value = jschema_get(schema, entry, "const")) && !is_complex(value))
            merge_values(schema, &form, &value, 1);
        for (int k = 0; k < 4; k++)
            read_bound(schema, &form, entry, bounds[k], k >= 2);
        read_terms(schema, &form, entry);
        read_counts(schema, &form, entry);
        read_required(schema, &form, entry);
        if (jschema_get(schema, entry, "contains")) {
            if (form.contains && form.types & JSCHEMA_ARRAY)
                jschema_fail(schema, entry, "contains", STATUS_UNIMPLEMENTED, "only one contains is supported in a place");
            form.contains = entry;
        }
        if (json_is_true(jschema_get(schema, entry, "uniqueItems")))
            form.unique = entry;
    }
    return form;
}

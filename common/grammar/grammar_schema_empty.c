// grammar_schema_empty.c: shows, where that is easy, that no value is valid under a set of schemas: by types, by values and bounds, by regular
// languages of strings and numbers, and by required properties and items for which the same holds.
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

enum { MAX_NESTING = 4, MAX_ITEMS = 16, COST = 32 };

static bool has_scalar(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t simple = form->types & (JSCHEMA_NULL | JSCHEMA_BOOLEAN);

    if (simple && !form->has_values)
        return true;
    for (uint32_t i = 0; i < form->value_count; i++)
        if ((json_is_null(form->values[i]) && simple & JSCHEMA_NULL) ||
            (json_is_boolean(form->values[i]) && simple & JSCHEMA_BOOLEAN))
            return true;
    if (form->types & JSCHEMA_STRING) {
        // Most strings are not narrow; what they match need not be made to know that.
        if (!form->has_values && form->term_count == 0 && form->min_length <= form->max_length)
            return true;
        if (!jschema_is_nothing(schema, jschema_string_content(schema, form)))
            return true;
    }
    if (form->types & JSCHEMA_NUMBER) {
        if (!form->has_values && form->term_count == 0 && !form->min.is_set && !form->max.is_set)
            return true;
        if (!form->has_values && form->term_count == 0 && form->types & JSCHEMA_FRACTION && form->min.is_set && form->max.is_set &&
            jschema_decimal_compare(&form->min.value, &form->max.value) < 0)
            return true;
        if (!jschema_is_nothing(schema, jschema_number(schema, form)))
            return true;
    }
    return false;
}

static bool has_array(struct jschema *schema, const struct jschema_form *form, uint32_t depth)
{
    if (!(form->types & JSCHEMA_ARRAY) || form->min_items > form->max_items)
        return false;
    for (uint64_t i = 0; i < form->min_items && i < MAX_ITEMS && depth < MAX_NESTING; i++)
        if (schema->is_empty(schema, jschema_item(schema, form, i), depth + 1))
            return false;
    return true;
}

static bool has_object(struct jschema *schema, const struct jschema_form *form, uint32_t depth)
{
    struct jschema_keys keys;

    if (!(form->types & JSCHEMA_OBJECT) || form->min_properties > form->max_properties ||
        form->required_count > form->max_properties)
        return false;
    if (depth == MAX_NESTING || form->required_count == 0)
        return true;
    keys = jschema_keys_of(schema, form);
    for (uint32_t i = 0; i < form->required_count && !jschema_failed(schema); i++)
        if (schema->is_empty(schema, jschema_property(schema, &keys, form->required[i]), depth + 1))
            return false;
    return true;
}

bool jschema_is_empty(struct jschema *schema, struct jschema_set set, uint32_t depth)
{
    struct jschema_variants variants = {0};

    if (jschema_work(schema, COST))
        variants = jschema_flatten(schema, set);
    for (uint32_t i = 0; i < variants.count && !jschema_failed(schema); i++) {
        struct jschema_form form = jschema_merge(schema, variants.sets[i]);
        if (form.has_values)
            form.types &= ~(uint32_t)(JSCHEMA_ARRAY | JSCHEMA_OBJECT);
        if (has_array(schema, &form, depth) || has_object(schema, &form, depth) || has_scalar(schema, &form))
            return false;
    }
    return true;
}

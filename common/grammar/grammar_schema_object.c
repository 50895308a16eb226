// grammar_schema_object.c: objects: the declared properties in their order, each of which may be left out unless it is required, then others.
//
// With r the first required property, what comes before it brings its comma behind, and what follows before:
//
//     (a ,)? (b ,)? r (, c)? , s (, x)*
//
// Without a required property, or where properties are counted, a rule for each property and number of properties so far says what may follow:
//
//     tail(i, n) = (, p_i tail(i + 1, n + 1)) | tail(i + 1, n)        the comma unless n = 0
//
// which is linear: n is only told apart as far as it matters (0 or not, if nothing is counted). Schemas that must not hold may demand that there is
// some property (grammar_schema_not.c): then tails are told apart by the demands that have been met, too.
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

enum { MAX_GRID = 1 << 12, MAX_DEMANDS = 4, MAX_FREE = 10, COST = 80 };

// "There is a property such that ..." (grammar_schema_not.c). A set of demands has a bit for each.
struct demand {
    uint32_t names; // content of its key
    uint32_t value; // the entry that its value is valid under; JSCHEMA_TRUE: any
};

struct way { // of writing a property, which meets some demands
    uint32_t pair, met;
};

struct property {
    struct way *ways;
    uint32_t way_count;
    bool is_required; // ways[0]: with any value that is valid
};

struct object {
    struct jschema *schema;
    const struct jschema_form *form;
    struct property *properties;
    uint32_t count, required_count, comma, others; // others: pairs with keys that are not declared; nothing: none
    uint64_t min, max;
    uint32_t columns; // of tails; the last number of properties stands for all greater ones, unless they are limited
    bool is_limited;  // max counts
    uint32_t *tails;  // [count + 1][columns][1 << demand_count]
    struct demand demands[MAX_DEMANDS];
    uint32_t demand_count, narrow;      // narrow: the demands that do not take any value
    uint32_t meeting[1 << MAX_DEMANDS]; // by set of demands: other pairs that meet all of them; nothing: none do
};

static uint32_t pair_of(struct jschema *schema, uint32_t key, uint32_t value)
{
    return JSCHEMA_SEQUENCE(schema, key, grammar_text(schema->builder, ":"), jschema_space(schema, ':'), value);
}

// --- demands ---------------------------------------------------------------------------------------------------------------

static void read_demands(struct object *object)
{
    struct jschema *schema = object->schema;

    for (uint32_t i = 0; i < object->form->leaves.count && !jschema_failed(schema); i++) {
        const uint32_t entry = object->form->leaves.ids[i];
        const json_t *some = schema->entries[entry].is_made ? jschema_get(schema, entry, "$some") : NULL;
        if (!some)
            continue;
        if (object->demand_count == MAX_DEMANDS) {
            jschema_fail(schema, entry, NULL, STATUS_UNIMPLEMENTED,
                         "more than %d alternatives that must not hold ask for other properties", MAX_DEMANDS);
            return;
        }
        const uint32_t names = jschema_add_entry(schema, json_object_get(some, "propertyNames"), entry, "$some");
        const uint32_t value = jschema_add_entry(schema, json_object_get(some, "additionalProperties"), entry, "$some");
        object->narrow |= (uint32_t)(value != JSCHEMA_TRUE) << object->demand_count;
        object->demands[object->demand_count++] = (struct demand){jschema_names(schema, (struct jschema_set){1, &names}), value};
    }
}

// The values of a set that the demands want as well.
static uint32_t value_meeting(const struct object *object, struct jschema_set set, uint32_t demands)
{
    struct jschema *schema = object->schema;
    uint32_t *ids = jschema_take(schema, set.count + MAX_DEMANDS, sizeof *ids), count = set.count;

    if (!ids)
        return schema->nothing;
    if (count)
        memcpy(ids, set.ids, count * sizeof *ids);
    for (uint32_t d = 0; d < object->demand_count; d++)
        if (demands >> d & 1 && object->demands[d].value != JSCHEMA_TRUE)
            ids[count++] = object->demands[d].value;
    return schema->compile(schema, (struct jschema_set){count, ids});
}

// --- properties ------------------------------------------------------------------------------------------------------------

// The demands that a key meets, with some value.
static uint32_t met_by_key(const struct object *object, const char *key)
{
    struct jschema *schema = object->schema;
    uint32_t met = 0;

    for (uint32_t d = 0; d < object->demand_count; d++)
        if (!jschema_is_nothing(schema, jschema_both(schema, grammar_text(schema->builder, key), object->demands[d].names)))
            met |= 1u << d;
    return met;
}

// Finds how a property can be written: without a care for demands of its value, then so that it meets some.
static bool read_ways(struct object *object, const struct jschema_keys *keys, const char *key, struct property *property)
{
    struct jschema *schema = object->schema;
    const struct jschema_set set = jschema_property(schema, keys, key);
    const uint32_t met = met_by_key(object, key), narrow = met & object->narrow;
    json_t *string = json_string(key);
    size_t bytes;
    const char *text = string ? jschema_scalar_text(schema, string, &bytes) : NULL;

    json_decref(string);
    property->ways = jschema_take(schema, 1u << MAX_DEMANDS, sizeof *property->ways);
    for (uint32_t some = 0; text && property->ways && some <= narrow; some++) {
        const uint32_t value = some & ~narrow ? schema->nothing : value_meeting(object, set, some);
        if (value != schema->nothing)
            property->ways[property->way_count++] =
                (struct way){pair_of(schema, grammar_bytes(schema->builder, text, bytes), value), (met & ~object->narrow) | some};
    }
    return text && property->ways;
}

// Reads the declared properties. Returns false if a required one cannot be there.
static bool read_properties(struct object *object, const struct jschema_keys *keys)
{
    struct jschema *schema = object->schema;

    object->properties = jschema_take(schema, keys->declared_count, sizeof *object->properties);
    for (uint32_t i = 0; object->properties && i < keys->declared_count && jschema_work(schema, COST); i++) {
        struct property *property = &object->properties[object->count];
        property->is_required = jschema_requires(object->form, keys->declared[i]);
        if (!read_ways(object, keys, keys->declared[i], property) || (property->way_count == 0 && property->is_required))
            return false;
        object->required_count += property->is_required;
        object->count += property->way_count > 0;
    }
    return !jschema_failed(schema);
}

static void read_others(struct object *object, const struct jschema_keys *keys)
{
    struct jschema *schema = object->schema;

    for (uint32_t demands = 0; demands < 1u << object->demand_count && !jschema_failed(schema); demands++) {
        uint32_t among = schema->nothing, found = schema->nothing;
        for (uint32_t d = 0; d < object->demand_count; d++)
            if (demands >> d & 1)
                among = among == schema->nothing ? object->demands[d].names : jschema_both(schema, among, object->demands[d].names);
        for (uint32_t matched = 0; matched < 1u << keys->pattern_count && !jschema_failed(schema); matched++) {
            const uint32_t value = demands && among == schema->nothing
                                       ? schema->nothing
                                       : value_meeting(object, jschema_additional(schema, keys, matched), demands);
            const uint32_t texts = value == schema->nothing ? value : jschema_additional_keys(schema, keys, matched, among);
            if (texts != schema->nothing)
                found = JSCHEMA_EITHER(schema, found, pair_of(schema, texts, value));
        }
        object->meeting[demands] = object->demand_count && found != schema->nothing ? jschema_rule(schema, "other", found) : found;
    }
    object->others = object->meeting[0];
}

// --- the two forms -----------------------------------------------------------------------------------------------------------

static uint32_t write_simple(const struct object *object)
{
    struct jschema *schema = object->schema;
    uint32_t *parts = jschema_take(schema, object->count + 1, sizeof *parts), pair;
    bool is_behind = false;

    if (!parts)
        return schema->nothing;
    for (uint32_t i = 0; i < object->count; i++) {
        const struct property *property = &object->properties[i];
        pair = property->ways[0].pair;
        if (is_behind)
            pair = JSCHEMA_SEQUENCE(schema, object->comma, pair);
        else
            pair = property->is_required ? pair : JSCHEMA_SEQUENCE(schema, pair, object->comma);
        parts[i] = property->is_required ? pair : jschema_optional(schema, pair);
        is_behind |= property->is_required;
    }
    parts[object->count] = grammar_empty(schema->builder);
    if (object->others != schema->nothing)
        parts[object->count] = jschema_times(schema, JSCHEMA_SEQUENCE(schema, object->comma, object->others), 0, UINT64_MAX);
    return grammar_sequence(schema->builder, parts, object->count + 1);
}

// So many other pairs that meet the demands together. Nothing comes behind the last, so that it counts even if its key came before; where several
// are needed those before it meet demands that any value does.
static uint32_t write_meeting(const struct object *object, uint32_t demands, uint32_t pairs, bool is_first)
{
    struct jschema *schema = object->schema;
    uint32_t node = schema->nothing;

    for (uint32_t some = demands; some; some = (some - 1) & demands) {
        uint32_t pair = object->meeting[some];
        if (pair == schema->nothing || (pairs == 1 ? some != demands : (some & object->narrow) || some == demands))
            continue;
        if (!is_first)
            pair = JSCHEMA_SEQUENCE(schema, object->comma, pair);
        if (pairs > 1)
            pair = JSCHEMA_SEQUENCE(schema, pair, write_meeting(object, demands & ~some, pairs - 1, false));
        node = JSCHEMA_EITHER(schema, node, pair);
    }
    return node;
}

// min to max other pairs, then `pairs` more that meet the demands. is_first: nothing comes before.
static uint32_t write_other_pairs(const struct object *object, uint64_t min, uint64_t max, uint32_t demands, uint32_t pairs,
                                  bool is_first)
{
    struct jschema *schema = object->schema;
    const uint32_t behind = pairs ? write_meeting(object, demands, pairs, false) : grammar_empty(schema->builder);
    const uint32_t next = object->others == schema->nothing ? object->others
                                                            : JSCHEMA_SEQUENCE(schema, object->comma, object->others);
    uint32_t first, alone;

    if (!is_first)
        return JSCHEMA_SEQUENCE(schema, jschema_times(schema, next, min, max), behind);
    alone = pairs ? write_meeting(object, demands, pairs, true) : grammar_empty(schema->builder);
    if (max == 0 || object->others == schema->nothing)
        return min == 0 ? alone : schema->nothing;
    first = JSCHEMA_SEQUENCE(schema, object->others,
                             jschema_times(schema, next, min ? min - 1 : 0, max == UINT64_MAX ? max : max - 1), behind);
    return min == 0 ? JSCHEMA_EITHER(schema, alone, first) : first;
}

// Returns the text that may follow all declared properties, n of which were there, if these demands are left.
static uint32_t write_others(const struct object *object, uint32_t n, uint32_t demands)
{
    struct jschema *schema = object->schema;
    uint32_t node = schema->nothing;

    for (uint32_t pairs = demands ? 1 : 0; pairs <= (uint32_t)__builtin_popcount(demands); pairs++) {
        const uint64_t count = (uint64_t)n + pairs, min = object->min > count ? object->min - count : 0;
        const uint64_t max = object->is_limited ? object->max - count : UINT64_MAX;
        if (object->is_limited && count > object->max)
            break;
        node = JSCHEMA_EITHER(schema, node, write_other_pairs(object, min, max, demands, pairs, n == 0));
    }
    return node;
}

static uint32_t *tail(struct object *object, uint32_t i, uint32_t n, uint32_t met)
{
    return &object->tails[((i * object->columns + n) << object->demand_count) + met];
}

static void make_tail(struct object *object, uint32_t i, uint32_t n, uint32_t met)
{
    struct jschema *schema = object->schema;
    const struct property *property = &object->properties[i];
    uint32_t more = n + 1 < object->columns ? n + 1 : n, node = schema->nothing;

    if (i == object->count) {
        node = write_others(object, n, ((1u << object->demand_count) - 1) & ~met);
    } else {
        for (uint32_t w = 0; w < property->way_count && !(object->is_limited && n >= object->max); w++)
            node =
                JSCHEMA_EITHER(schema, node,
                               JSCHEMA_SEQUENCE(schema, n ? object->comma : grammar_empty(schema->builder), property->ways[w].pair,
                                                *tail(object, i + 1, more, met | property->ways[w].met)));
        if (!property->is_required)
            node = JSCHEMA_EITHER(schema, node, *tail(object, i + 1, n, met));
    }
    *tail(object, i, n, met) = node <= 1 ? node : jschema_rule(schema, "properties", node);
}

static uint32_t write_counted(struct object *object)
{
    struct jschema *schema = object->schema;
    uint64_t columns = (object->is_limited ? object->max : object->min > 1 ? object->min : 1) + 1;

    if (columns > object->count + 2u && !object->is_limited)
        columns = object->count + 2u;
    if (columns > MAX_GRID || (object->count + 1) * columns << object->demand_count > MAX_GRID)
        return jschema_fail(
            schema, object->form->leaves.ids[0], NULL, STATUS_UNIMPLEMENTED,
            "minProperties, maxProperties and alternatives that must not hold are supported only beside few properties");
    object->columns = (uint32_t)columns;
    object->tails = jschema_take(schema, (object->count + 1) * columns << object->demand_count, sizeof *object->tails);
    if (!object->tails)
        return schema->nothing;
    for (uint32_t i = 0; i < object->count; i++) // they come in several tails
        for (uint32_t w = 0; w < object->properties[i].way_count; w++)
            object->properties[i].ways[w].pair = jschema_rule(schema, "property", object->properties[i].ways[w].pair);
    for (uint32_t i = object->count + 1; i-- > 0;)
        for (uint32_t n = 0; n < object->columns && n <= i + 0u; n++)
            for (uint32_t met = 0; met < 1u << object->demand_count; met++)
                make_tail(object, i, n, met);
    return *tail(object, 0, 0, 0);
}

// --- in any order ----------------------------------------------------------------------------------------------------------

// A rule for each set of properties that have been written says what may follow.
struct free_order {
    struct object *object;
    uint32_t required; // the set of those
    uint32_t tails[1 << MAX_FREE];
};

// Makes the text behind the properties of a set; larger sets have been made before. is_first: nothing has been written.
static uint32_t behind_keys(const struct free_order *order, uint32_t set, bool is_first)
{
    const struct object *object = order->object;
    struct jschema *schema = object->schema;
    const uint32_t size = (uint32_t)__builtin_popcount(set);
    uint32_t node = schema->nothing, others = object->others;

    for (uint32_t i = 0; i < object->count && size < object->max; i++)
        if (!(set >> i & 1))
            node = JSCHEMA_EITHER(schema, node,
                                  JSCHEMA_SEQUENCE(schema, object->properties[i].ways[0].pair, order->tails[set | 1u << i]));
    if (!is_first)
        node = JSCHEMA_SEQUENCE(schema, object->comma, node);
    else if (others != schema->nothing)
        node = JSCHEMA_EITHER(schema, node, JSCHEMA_SEQUENCE(schema, others, order->tails[0]));
    if ((set & order->required) == order->required && size >= object->min)
        node = jschema_optional(schema, node);
    if (!is_first && others != schema->nothing)
        node =
            JSCHEMA_SEQUENCE(schema, jschema_times(schema, JSCHEMA_SEQUENCE(schema, object->comma, others), 0, UINT64_MAX), node);
    return node;
}

static bool may_be_free(const struct object *object)
{
    const bool is_counted = object->min > object->required_count || object->is_limited;

    return object->schema->options->in_any_order && object->demand_count == 0 && object->count > 0 && object->count <= MAX_FREE &&
           !(is_counted && object->others != object->schema->nothing);
}

static uint32_t write_free(struct object *object)
{
    struct jschema *schema = object->schema;
    struct free_order *order = jschema_take(schema, 1, sizeof *order);

    if (!order)
        return schema->nothing;
    order->object = object;
    for (uint32_t i = 0; i < object->count; i++) {
        order->required |= (uint32_t)object->properties[i].is_required << i;
        object->properties[i].ways[0].pair = jschema_shared(schema, "property", object->properties[i].ways[0].pair);
    }
    if (object->others != schema->nothing)
        object->others = jschema_shared(schema, "other", object->others);
    for (uint32_t set = 1u << object->count; set-- > 0;)
        order->tails[set] = jschema_shared(schema, "keys", behind_keys(order, set, false));
    return behind_keys(order, 0, true);
}

// Whether no more than one demand is about the values of keys that are not declared: two could be met by the same key, written twice.
static bool may_be_met(struct object *object)
{
    uint32_t count = 0;

    for (uint32_t d = 0; d < object->demand_count; d++)
        count += object->narrow >> d & 1 && object->meeting[1u << d] != object->schema->nothing;
    if (count > 1)
        jschema_fail(object->schema, object->form->leaves.ids[0], NULL, STATUS_UNIMPLEMENTED,
                     "several alternatives that must not hold ask for values of other properties: use anyOf, or a required "
                     "property with a const in each");
    return count <= 1;
}

static bool has_object_keyword(struct jschema *schema, const struct jschema_form *form)
{
    static const char *const keywords[] = {"properties", "additionalProperties", "patternProperties", "propertyNames", "$some"};

    for (uint32_t i = 0; i < form->leaves.count; i++)
        for (int k = 0; k < 5; k++)
            if (jschema_get(schema, form->leaves.ids[i], keywords[k]))
                return true;
    return form->required_count > 0 || form->min_properties > 0 || form->max_properties != UINT64_MAX;
}

static uint32_t write_body(struct object *object, const struct jschema_keys *keys)
{
    struct jschema *schema = object->schema;

    read_others(object, keys);
    if (jschema_failed(schema) || !may_be_met(object))
        return schema->nothing;
    // A key that is not declared could come twice, which makes one property: only the first is sure to count.
    if (object->others != schema->nothing && object->min > object->required_count + 1u)
        return jschema_fail(schema, object->form->leaves.ids[0], "minProperties", STATUS_UNIMPLEMENTED,
                            "a grammar cannot tell whether keys are equal: use required, or additionalProperties: false");
    object->is_limited = object->max != UINT64_MAX && (object->others != schema->nothing || object->max < object->count);
    if (may_be_free(object) && jschema_has_sets(schema, object->count))
        return write_free(object);
    return object->required_count > 0 && object->demand_count == 0 && object->min <= object->required_count && !object->is_limited
               ? write_simple(object)
               : write_counted(object);
}

uint32_t jschema_object(struct jschema *schema, const struct jschema_form *form)
{
    struct grammar_builder *builder = schema->builder;
    struct object object = {.schema = schema, .form = form, .min = form->min_properties, .max = form->max_properties};
    struct jschema_keys keys;
    uint32_t body;

    if (!has_object_keyword(schema, form))
        return jschema_any_object(schema);
    keys = jschema_keys_of(schema, form);
    read_demands(&object);
    if (jschema_failed(schema) || !read_properties(&object, &keys))
        return schema->nothing;
    if (object.required_count > object.max)
        return schema->nothing;
    object.comma = JSCHEMA_SEQUENCE(schema, grammar_text(builder, ","), jschema_space(schema, ','));
    body = write_body(&object, &keys);
    if (body == schema->nothing && keys.is_closed && !schema->options->is_strict) { // closing alone must not leave nothing
        keys.is_closed = false;
        body = write_body(&object, &keys);
    }
    return JSCHEMA_SEQUENCE(schema, grammar_text(builder, "{"), jschema_space(schema, '{'), body, jschema_space(schema, '}'),
                            grammar_text(builder, "}"));
}

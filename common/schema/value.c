// value.c: the nodes of sets of schemas, each made once: a set's node is one of its variants', and a variant's has its arrays and objects.
//
// Objects and arrays are rules, which call themselves when a variant comes up again while it is being made. That ends the recursion, since
// there are only so many sets.
#include <math.h>
#include <string.h>

#include "common/schema/internal.h"

// --- arrays -------------------------------------------------------------------------------------------------------------

// Items by position, by number, by what one of them must be (contains), and by which there were (uniqueItems).

enum { MAX_ARRAY_GRID = 1 << 10, MAX_UNIQUE = 10, MAX_INTEGER = 1 << 30 };

struct array {
    struct jschema *schema;
    const struct jschema_form *form;
    uint32_t prefix_count, comma;
    uint64_t min, max;
    uint32_t *prefix; // [prefix_count] nodes
    uint32_t rest;    // the node of the items behind them
};

// Writes the items behind the prefix; at least one has been written.
static uint32_t array_behind_prefix(const struct array *array)
{
    struct jschema *schema = array->schema;
    uint64_t min = array->min > array->prefix_count ? array->min - array->prefix_count : 0;
    uint64_t max = array->max == UINT64_MAX ? array->max : array->max > array->prefix_count ? array->max - array->prefix_count : 0;

    return jschema_times(schema, JSCHEMA_SEQUENCE(schema, array->comma, array->rest), min, max);
}

static uint32_t array_items(const struct array *array)
{
    struct jschema *schema = array->schema;
    uint64_t more = array->max == UINT64_MAX ? array->max : array->max - 1;
    uint32_t node;

    if (array->max == 0)
        return grammar_empty(schema->builder);
    if (array->prefix_count == 0) {
        node = jschema_times(schema, JSCHEMA_SEQUENCE(schema, array->comma, array->rest), array->min ? array->min - 1 : 0, more);
        node = JSCHEMA_SEQUENCE(schema, array->rest, node);
        return array->min ? node : jschema_optional(schema, node);
    }
    node = array_behind_prefix(array);
    for (uint32_t i = array->prefix_count; i-- > 0;) {
        if (i >= array->max)
            continue; // node is the empty string
        node = i ? JSCHEMA_SEQUENCE(schema, array->comma, array->prefix[i], node)
                 : JSCHEMA_SEQUENCE(schema, array->prefix[i], node);
        if (i >= array->min)
            node = jschema_optional(schema, node);
    }
    return node;
}

// --- arrays: contains ---------------------------------------------------------------------------------------------------

// Rules by how many items came before and how many of them were what is asked for: tail(index, found) is what may follow.
struct grid {
    const struct array *array;
    uint32_t rows, columns; // the last index and the last number found stand for all greater ones, too
    uint64_t min_found, max_found;
    uint32_t *tails; // [rows][columns] nodes, once made
    bool *is_made;
    uint32_t *hits, *misses; // [rows] the items that are, and the others (or all, where too many cannot be found)
};

static bool grid_may_stop(const struct grid *grid, uint32_t index, uint32_t found)
{
    return index >= grid->array->min && found >= grid->min_found;
}

static uint32_t grid_tail(struct grid *grid, uint32_t index, uint32_t found)
{
    struct jschema *schema = grid->array->schema;
    bool is_last_row = index + 1 == grid->rows, has_end = grid->array->max != UINT64_MAX;
    uint32_t place = index * grid->columns + found, next = is_last_row ? index : index + 1;
    uint32_t comma = index ? grid->array->comma : grammar_empty(schema->builder);
    uint32_t after = found + 1 < grid->columns ? found + 1 : found, node, loops = 0, options[3] = {0};

    if (grid->is_made[place] || jschema_failed(schema))
        return grid->tails[place];
    if (grid_may_stop(grid, index, found))
        options[0] = grammar_empty(schema->builder);
    if (!(is_last_row && has_end)) {
        bool full = found >= grid->max_found;
        if (!full && next * grid->columns + after != place)
            options[1] = JSCHEMA_SEQUENCE(schema, comma, grid->hits[index], grid_tail(grid, next, after));
        else if (!full)
            loops = JSCHEMA_SEQUENCE(schema, comma, grid->hits[index]);
        if (next != index)
            options[2] = JSCHEMA_SEQUENCE(schema, comma, grid->misses[index], grid_tail(grid, next, found));
        else
            loops = JSCHEMA_EITHER(schema, loops, JSCHEMA_SEQUENCE(schema, comma, grid->misses[index]));
    }
    node = grammar_either(schema->builder, options, 3);
    if (loops)
        node = JSCHEMA_SEQUENCE(schema, grammar_repeat(schema->builder, loops, 0, GRAMMAR_NO_LIMIT), node);
    grid->tails[place] = jschema_rule(schema, "items", node);
    grid->is_made[place] = true;
    return grid->tails[place];
}

static uint32_t array_items_with_contains(const struct array *array)
{
    struct jschema *schema = array->schema;
    uint32_t entry = array->form->contains, wanted, unwanted = JSCHEMA_TRUE;
    const json_t *contains = jschema_get(schema, entry, "contains");
    uint64_t last = array->min > array->prefix_count ? array->min : array->prefix_count;
    uint64_t rows = 1 + (array->max != UINT64_MAX ? array->max : last > 0 ? last : 1); // the first item has no comma before it
    struct grid grid = {.array = array,
                        .min_found = jschema_count(schema, entry, "minContains", 1),
                        .max_found = jschema_count(schema, entry, "maxContains", UINT64_MAX)};
    uint64_t columns = (grid.max_found != UINT64_MAX ? grid.max_found : grid.min_found) + 1;

    if (!json_text_is_object(contains) && !json_is_boolean(contains))
        return jschema_fail(schema, entry, "contains", STATUS_INVALID_ARGUMENT, "must be a schema: an object, true or false");
    if (grid.min_found == 0 && grid.max_found == UINT64_MAX)
        return array_items(array);
    if (rows > MAX_ARRAY_GRID || columns > MAX_ARRAY_GRID || rows * columns > MAX_ARRAY_GRID)
        return jschema_fail(schema, entry, "contains", STATUS_UNIMPLEMENTED, "is supported only beside small numbers of items");
    wanted = jschema_entry_of(schema, contains);
    if (grid.max_found != UINT64_MAX)
        unwanted = jschema_make(schema, json_pack("{s:O}", "not", contains), entry, "contains");
    grid.rows = (uint32_t)rows;
    grid.columns = (uint32_t)columns;
    grid.tails = jschema_take(schema, rows * columns, sizeof *grid.tails);
    grid.is_made = jschema_take(schema, rows * columns, sizeof *grid.is_made);
    grid.hits = jschema_take(schema, rows, sizeof *grid.hits);
    grid.misses = jschema_take(schema, rows, sizeof *grid.misses);
    if (!grid.tails || !grid.is_made || !grid.hits || !grid.misses)
        return schema->nothing;
    for (uint32_t i = 0; i < rows && !jschema_failed(schema); i++) {
        grid.hits[i] = jschema_compile(schema, jschema_item(schema, array->form, i, wanted));
        grid.misses[i] = jschema_compile(schema, jschema_item(schema, array->form, i, unwanted));
    }
    return grid_tail(&grid, 0, 0);
}

// --- arrays: items that differ ------------------------------------------------------------------------------------------

// Items that differ, where there are few values: a rule for each set of them that has been written says what may follow. Its size is the next
// item's position.
struct choice_of_items {
    const struct array *array;
    const json_t *values[MAX_UNIQUE];
    uint32_t count;
    uint32_t *nodes;         // [position][count] of a value at a position; nothing: it may not be there
    bool counts[MAX_UNIQUE]; // whether a value is one that `contains` counts
    uint64_t min_found, max_found;
    uint32_t tails[1 << MAX_UNIQUE]; // by set, once made
    bool is_made[1 << MAX_UNIQUE];
};

static bool unique_add_value(struct choice_of_items *choice, const json_t *value)
{
    for (uint32_t i = 0; i < choice->count; i++)
        if (jschema_is_same(choice->values[i], value))
            return true;
    if (choice->count == MAX_UNIQUE)
        return false;
    choice->values[choice->count++] = value;
    return true;
}

// Adds the integers of a range. Returns false if they are too many.
static bool unique_add_range(struct jschema *schema, struct choice_of_items *choice, const struct jschema_form *form)
{
    const json_t *low = form->min.is_set ? jschema_get(schema, form->min.entry, form->min.keyword) : NULL;
    const json_t *high = form->max.is_set ? jschema_get(schema, form->max.entry, form->max.keyword) : NULL;
    const double first = low ? ceil(json_number_value(low)) : 0, last = high ? floor(json_number_value(high)) : 0;

    if (!low || !high || fabs(first) > MAX_INTEGER || last - first >= MAX_UNIQUE)
        return false;
    for (json_int_t value = (json_int_t)first; (double)value <= last; value++) {
        json_t *made = json_integer(value);
        if (json_array_append_new(schema->made, made) != 0 || !unique_add_value(choice, made))
            return false;
    }
    return true;
}

// Adds what a variant may be, or more. Returns false if that is too much, or not scalars.
static bool unique_add_values_of(struct jschema *schema, struct choice_of_items *choice, const struct jschema_form *form)
{
    const uint32_t types = form->types;

    for (uint32_t i = 0; i < form->value_count; i++)
        if (!unique_add_value(choice, form->values[i]))
            return false;
    if (form->has_values)
        return true;
    if (types & ~(uint32_t)(JSCHEMA_NULL | JSCHEMA_BOOLEAN | JSCHEMA_INTEGER))
        return false;
    return (!(types & JSCHEMA_NULL) || unique_add_value(choice, json_null())) &&
           (!(types & JSCHEMA_BOOLEAN) || (unique_add_value(choice, json_true()) && unique_add_value(choice, json_false()))) &&
           (!(types & JSCHEMA_INTEGER) || unique_add_range(schema, choice, form));
}

// Returns the node of one value at a position; `extra` as for jschema_item().
static uint32_t unique_value_at(struct choice_of_items *choice, uint64_t position, uint32_t only, uint32_t extra)
{
    struct jschema *schema = choice->array->schema;
    const struct jschema_set item = jschema_item(schema, choice->array->form, position, extra);
    uint32_t *ids = jschema_take(schema, item.count + 1u, sizeof *ids);

    if (!ids)
        return schema->nothing;
    if (item.count)
        memcpy(ids, item.ids, item.count * sizeof *ids);
    ids[item.count] = only;
    return jschema_compile(schema, (struct jschema_set){item.count + 1, ids});
}

// Finds what each value is at each position, and whether `contains` counts it.
static void unique_read_positions(struct choice_of_items *choice)
{
    const struct array *array = choice->array;
    struct jschema *schema = array->schema;
    uint32_t wanted = JSCHEMA_NONE;

    choice->nodes = jschema_take(schema, (array->prefix_count + 1u) * (choice->count + 1u), sizeof *choice->nodes);
    if (array->form->contains)
        wanted = jschema_entry_of(schema, jschema_get(schema, array->form->contains, "contains"));
    for (uint32_t v = 0; choice->nodes && v < choice->count && !jschema_failed(schema); v++) {
        const uint32_t only =
            jschema_make(schema, json_pack("{s:O}", "const", choice->values[v]), array->form->unique, "uniqueItems");
        for (uint32_t p = 0; only && p <= array->prefix_count; p++) {
            const uint32_t node = unique_value_at(choice, p, only, JSCHEMA_TRUE);
            choice->nodes[p * choice->count + v] = jschema_shared(schema, "item", node);
            if (wanted != JSCHEMA_NONE && !choice->counts[v])
                choice->counts[v] = unique_value_at(choice, p, only, wanted) != schema->nothing;
        }
    }
}

// Returns false if the items may have more than few values.
static bool unique_read_values(struct choice_of_items *choice)
{
    const struct array *array = choice->array;
    struct jschema *schema = array->schema;

    for (uint32_t p = 0; p <= array->prefix_count && p < array->max; p++) {
        struct jschema_variants variants = jschema_flatten(schema, jschema_item(schema, array->form, p, JSCHEMA_TRUE));
        for (uint32_t i = 0; i < variants.count && !jschema_failed(schema); i++) {
            struct jschema_form form = jschema_merge(schema, variants.sets[i]);
            if (!unique_add_values_of(schema, choice, &form))
                return false;
        }
    }
    return !jschema_failed(schema);
}

static uint32_t unique_behind_set(struct choice_of_items *choice, uint32_t set)
{
    const struct array *array = choice->array;
    struct jschema *schema = array->schema;
    uint32_t options[MAX_UNIQUE] = {0}, size = 0, node;
    uint64_t found = 0;

    if (choice->is_made[set] || jschema_failed(schema))
        return choice->tails[set];
    for (uint32_t v = 0; v < choice->count; v++) {
        size += set >> v & 1;
        found += (set >> v & 1) && choice->counts[v];
    }
    for (uint32_t v = 0; v < choice->count && size < array->max; v++) {
        const uint32_t position = size < array->prefix_count ? size : array->prefix_count;
        if (!(set >> v & 1) && found + choice->counts[v] <= choice->max_found)
            options[v] =
                JSCHEMA_SEQUENCE(schema, choice->nodes[position * choice->count + v], unique_behind_set(choice, set | 1u << v));
    }
    node = grammar_either(schema->builder, options, choice->count);
    if (size > 0)
        node = JSCHEMA_SEQUENCE(schema, array->comma, node);
    if (size >= array->min && found >= choice->min_found)
        node = jschema_optional(schema, node);
    choice->tails[set] = jschema_shared(schema, "items", node);
    choice->is_made[set] = true;
    return choice->tails[set];
}

// Writes items that differ. Returns false if they may have more than few values, which is an error only where the options are strict.
static bool unique_write(const struct array *array, uint32_t *items)
{
    struct jschema *schema = array->schema;
    const uint32_t entry = array->form->contains;
    struct choice_of_items *choice = jschema_take(schema, 1, sizeof *choice);

    if (!choice)
        return false;
    choice->array = array;
    choice->min_found = entry ? jschema_count(schema, entry, "minContains", 1) : 0;
    choice->max_found = entry ? jschema_count(schema, entry, "maxContains", UINT64_MAX) : UINT64_MAX;
    if (unique_read_values(choice) && jschema_has_sets(schema, choice->count)) {
        unique_read_positions(choice);
        *items = unique_behind_set(choice, 0);
        return true;
    }
    if (schema->options->is_strict)
        jschema_fail(
            schema, array->form->unique, "uniqueItems", STATUS_UNIMPLEMENTED,
            "a grammar cannot tell whether items are equal unless they have at most %d values, in few arrays: leave it or 'strict' out",
            MAX_UNIQUE);
    return false;
}

// --- arrays: all together -----------------------------------------------------------------------------------------------

static bool has_array_keyword(struct jschema *schema, const struct jschema_form *form)
{
    for (uint32_t i = 0; i < form->leaves.count; i++)
        if (jschema_get(schema, form->leaves.ids[i], "items") || jschema_get(schema, form->leaves.ids[i], "prefixItems"))
            return true;
    return form->min_items > 0 || form->max_items != UINT64_MAX || form->contains;
}

// Looks at the schemas of the items; where nothing is valid the array ends before.
static void array_read_items(struct array *array)
{
    struct jschema *schema = array->schema;

    array->prefix_count = jschema_prefix_count(schema, array->form);
    array->prefix = jschema_take(schema, array->prefix_count, sizeof *array->prefix);
    for (uint32_t i = 0; array->prefix && i < array->prefix_count && i < array->max && !jschema_failed(schema); i++) {
        array->prefix[i] = jschema_compile(schema, jschema_item(schema, array->form, i, JSCHEMA_TRUE));
        if (array->prefix[i] == schema->nothing)
            array->max = i;
    }
    if (array->max > array->prefix_count)
        array->rest = jschema_compile(schema, jschema_item(schema, array->form, array->prefix_count, JSCHEMA_TRUE));
    if (array->rest == schema->nothing && array->max > array->prefix_count)
        array->max = array->prefix_count;
}

static uint32_t write_array(struct jschema *schema, const struct jschema_form *form)
{
    struct grammar_builder *builder = schema->builder;
    struct array array = {.schema = schema, .form = form, .min = form->min_items, .max = form->max_items};
    uint32_t items;

    if (!has_array_keyword(schema, form) && !form->unique)
        return jschema_any_array(schema);
    if (array.min > JSCHEMA_MAX_REQUIRED_ITEMS)
        return jschema_fail(schema, form->leaves.ids[0], "minItems", STATUS_RESOURCE_EXHAUSTED, "must not be over %u",
                            JSCHEMA_MAX_REQUIRED_ITEMS);
    array_read_items(&array);
    if (jschema_failed(schema) || array.min > array.max)
        return schema->nothing;
    array.comma = JSCHEMA_SEQUENCE(schema, grammar_text(builder, ","), jschema_space(schema, ','));
    if (!form->unique || array.max <= 1 || !unique_write(&array, &items))
        items = form->contains ? array_items_with_contains(&array) : array_items(&array);
    return JSCHEMA_SEQUENCE(schema, grammar_text(builder, "["), jschema_space(schema, '{'), items, jschema_space(schema, '}'),
                            grammar_text(builder, "]"));
}

// --- objects ------------------------------------------------------------------------------------------------------------

// The declared properties come in their order, each of which may be left out unless it is required, then others.
//
// With r the first required property, what comes before it brings its comma behind, and what follows before:
//
//     (a ,)? (b ,)? r (, c)? , s (, x)*
//
// Without a required property, or where properties are counted, a rule for each property and number of properties so far says what may follow:
//
//     tail(i, n) = (, p_i tail(i + 1, n + 1)) | tail(i + 1, n)        the comma unless n = 0
//
// which is linear: n is only told apart as far as it matters (0 or not, if nothing is counted). Schemas that must not hold may demand that
// there is some property (not.c): then tails are told apart by the demands that have been met, too.

enum { MAX_OBJECT_GRID = 1 << 12, MAX_DEMANDS = 4, MAX_FREE = 10, COST = 80 };

// "There is a property such that ..." (not.c). A set of demands has a bit for each.
struct demand {
    uint32_t names; // content of its key
    uint32_t value; // the entry that its value is valid under; JSCHEMA_TRUE: any
};

struct way { // a way to write a property, which meets some demands
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
    uint32_t columns; // tails' columns; the last number of properties stands for all greater ones, unless they are limited
    bool is_limited;  // max counts
    uint32_t *tails;  // [count + 1][columns][1 << demand_count]
    struct demand demands[MAX_DEMANDS];
    uint32_t demand_count, narrow;      // narrow: the demands that do not take any value
    uint32_t meeting[1 << MAX_DEMANDS]; // by set of demands: other pairs that meet all of them; nothing: none do
};

static uint32_t object_pair(struct jschema *schema, uint32_t key, uint32_t value)
{
    return JSCHEMA_SEQUENCE(schema, key, grammar_text(schema->builder, ":"), jschema_space(schema, ':'), value);
}

// --- objects: demands ---------------------------------------------------------------------------------------------------

static void object_read_demands(struct object *object)
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

// Returns the values of a set that meet the demands as well.
static uint32_t object_value_meeting(const struct object *object, struct jschema_set set, uint32_t demands)
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
    return jschema_compile(schema, (struct jschema_set){count, ids});
}

// --- objects: properties ------------------------------------------------------------------------------------------------

// Returns the demands that a key meets, with some value.
static uint32_t object_met_by_key(const struct object *object, const char *key)
{
    struct jschema *schema = object->schema;
    uint32_t met = 0;

    for (uint32_t d = 0; d < object->demand_count; d++)
        if (!jschema_is_nothing(schema, jschema_both(schema, grammar_text(schema->builder, key), object->demands[d].names)))
            met |= 1u << d;
    return met;
}

// Finds how a property can be written: without a care for demands of its value, then so that it meets some.
static bool object_read_ways(struct object *object, const struct jschema_keys *keys, const char *key, struct property *property)
{
    struct jschema *schema = object->schema;
    const struct jschema_set set = jschema_property(schema, keys, key);
    const uint32_t met = object_met_by_key(object, key), narrow = met & object->narrow;
    json_t *string = json_string(key);
    size_t bytes;
    const char *text = string ? jschema_scalar_text(schema, string, &bytes) : NULL;

    json_decref(string);
    property->ways = jschema_take(schema, 1u << MAX_DEMANDS, sizeof *property->ways);
    for (uint32_t some = 0; text && property->ways && some <= narrow; some++) {
        const uint32_t value = some & ~narrow ? schema->nothing : object_value_meeting(object, set, some);
        if (value != schema->nothing)
            property->ways[property->way_count++] = (struct way){
                object_pair(schema, grammar_bytes(schema->builder, text, bytes), value), (met & ~object->narrow) | some};
    }
    return text && property->ways;
}

// Reads the declared properties. Returns false if a required one cannot be there.
static bool object_read_properties(struct object *object, const struct jschema_keys *keys)
{
    struct jschema *schema = object->schema;

    object->properties = jschema_take(schema, keys->declared_count, sizeof *object->properties);
    for (uint32_t i = 0; object->properties && i < keys->declared_count && jschema_work(schema, COST); i++) {
        struct property *property = &object->properties[object->count];
        property->is_required = jschema_requires(object->form, keys->declared[i]);
        if (!object_read_ways(object, keys, keys->declared[i], property) || (property->way_count == 0 && property->is_required))
            return false;
        object->required_count += property->is_required;
        object->count += property->way_count > 0;
    }
    return !jschema_failed(schema);
}

static void object_read_others(struct object *object, const struct jschema_keys *keys)
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
                                       : object_value_meeting(object, jschema_additional(schema, keys, matched), demands);
            const uint32_t texts = value == schema->nothing ? value : jschema_additional_keys(schema, keys, matched, among);
            if (texts != schema->nothing)
                found = JSCHEMA_EITHER(schema, found, object_pair(schema, texts, value));
        }
        object->meeting[demands] = object->demand_count && found != schema->nothing ? jschema_rule(schema, "other", found) : found;
    }
    object->others = object->meeting[0];
}

// --- objects: keys in order ---------------------------------------------------------------------------------------------

static uint32_t object_write_simple(const struct object *object)
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

// Writes so many other pairs that meet the demands together. Nothing comes behind the last, so that it counts even if its key came before;
// where several are needed those before it meet demands that any value does.
static uint32_t object_write_meeting(const struct object *object, uint32_t demands, uint32_t pairs, bool is_first)
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
            pair = JSCHEMA_SEQUENCE(schema, pair, object_write_meeting(object, demands & ~some, pairs - 1, false));
        node = JSCHEMA_EITHER(schema, node, pair);
    }
    return node;
}

// Writes min to max other pairs, then `pairs` more that meet the demands. is_first: nothing comes before.
static uint32_t object_write_other_pairs(const struct object *object, uint64_t min, uint64_t max, uint32_t demands, uint32_t pairs,
                                         bool is_first)
{
    struct jschema *schema = object->schema;
    const uint32_t behind = pairs ? object_write_meeting(object, demands, pairs, false) : grammar_empty(schema->builder);
    const uint32_t next = object->others == schema->nothing ? object->others
                                                            : JSCHEMA_SEQUENCE(schema, object->comma, object->others);
    uint32_t first, alone;

    if (!is_first)
        return JSCHEMA_SEQUENCE(schema, jschema_times(schema, next, min, max), behind);
    alone = pairs ? object_write_meeting(object, demands, pairs, true) : grammar_empty(schema->builder);
    if (max == 0 || object->others == schema->nothing)
        return min == 0 ? alone : schema->nothing;
    first = JSCHEMA_SEQUENCE(schema, object->others,
                             jschema_times(schema, next, min ? min - 1 : 0, max == UINT64_MAX ? max : max - 1), behind);
    return min == 0 ? JSCHEMA_EITHER(schema, alone, first) : first;
}

// Returns the text that may follow all declared properties, n of which were there, if these demands are left.
static uint32_t object_write_others(const struct object *object, uint32_t n, uint32_t demands)
{
    struct jschema *schema = object->schema;
    uint32_t node = schema->nothing;

    for (uint32_t pairs = demands ? 1 : 0; pairs <= (uint32_t)__builtin_popcount(demands); pairs++) {
        const uint64_t count = (uint64_t)n + pairs, min = object->min > count ? object->min - count : 0;
        const uint64_t max = object->is_limited ? object->max - count : UINT64_MAX;
        if (object->is_limited && count > object->max)
            break;
        node = JSCHEMA_EITHER(schema, node, object_write_other_pairs(object, min, max, demands, pairs, n == 0));
    }
    return node;
}

static uint32_t *object_tail(struct object *object, uint32_t i, uint32_t n, uint32_t met)
{
    return &object->tails[((i * object->columns + n) << object->demand_count) + met];
}

static void object_make_tail(struct object *object, uint32_t i, uint32_t n, uint32_t met)
{
    struct jschema *schema = object->schema;
    const struct property *property = &object->properties[i];
    uint32_t more = n + 1 < object->columns ? n + 1 : n, node = schema->nothing;

    if (i == object->count) {
        node = object_write_others(object, n, ((1u << object->demand_count) - 1) & ~met);
    } else {
        for (uint32_t w = 0; w < property->way_count && !(object->is_limited && n >= object->max); w++)
            node =
                JSCHEMA_EITHER(schema, node,
                               JSCHEMA_SEQUENCE(schema, n ? object->comma : grammar_empty(schema->builder), property->ways[w].pair,
                                                *object_tail(object, i + 1, more, met | property->ways[w].met)));
        if (!property->is_required)
            node = JSCHEMA_EITHER(schema, node, *object_tail(object, i + 1, n, met));
    }
    *object_tail(object, i, n, met) = node <= GRAMMAR_NODE_EMPTY ? node : jschema_rule(schema, "properties", node);
}

static uint32_t object_write_counted(struct object *object)
{
    struct jschema *schema = object->schema;
    uint64_t columns = (object->is_limited ? object->max : object->min > 1 ? object->min : 1) + 1;

    if (columns > object->count + 2u && !object->is_limited)
        columns = object->count + 2u;
    if (columns > MAX_OBJECT_GRID || (object->count + 1) * columns << object->demand_count > MAX_OBJECT_GRID)
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
                object_make_tail(object, i, n, met);
    return *object_tail(object, 0, 0, 0);
}

// --- objects: keys in any order -----------------------------------------------------------------------------------------

// A rule for each set of properties that have been written says what may follow.
struct free_order {
    struct object *object;
    uint32_t required; // the set of those
    uint32_t tails[1 << MAX_FREE];
};

// Makes the text behind the properties of a set; larger sets have been made before. is_first: nothing has been written.
static uint32_t object_behind_keys(const struct free_order *order, uint32_t set, bool is_first)
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

static bool object_may_be_free(const struct object *object)
{
    const bool is_counted = object->min > object->required_count || object->is_limited;

    return object->schema->options->in_any_order && object->demand_count == 0 && object->count > 0 && object->count <= MAX_FREE &&
           !(is_counted && object->others != object->schema->nothing);
}

static uint32_t object_write_free(struct object *object)
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
        order->tails[set] = jschema_shared(schema, "keys", object_behind_keys(order, set, false));
    return object_behind_keys(order, 0, true);
}

// Returns whether at most one demand is about the values of keys that are not declared: two could be met by the same key, written twice.
static bool object_may_be_met(struct object *object)
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

static uint32_t object_write_body(struct object *object, const struct jschema_keys *keys)
{
    struct jschema *schema = object->schema;

    object_read_others(object, keys);
    if (jschema_failed(schema) || !object_may_be_met(object))
        return schema->nothing;
    // A key that is not declared could come twice, which makes one property: only the first is sure to count.
    if (object->others != schema->nothing && object->min > object->required_count + 1u)
        return jschema_fail(schema, object->form->leaves.ids[0], "minProperties", STATUS_UNIMPLEMENTED,
                            "a grammar cannot tell whether keys are equal: use required, or additionalProperties: false");
    object->is_limited = object->max != UINT64_MAX && (object->others != schema->nothing || object->max < object->count);
    if (object_may_be_free(object) && jschema_has_sets(schema, object->count))
        return object_write_free(object);
    return object->required_count > 0 && object->demand_count == 0 && object->min <= object->required_count && !object->is_limited
               ? object_write_simple(object)
               : object_write_counted(object);
}

static uint32_t write_object(struct jschema *schema, const struct jschema_form *form)
{
    struct grammar_builder *builder = schema->builder;
    struct object object = {.schema = schema, .form = form, .min = form->min_properties, .max = form->max_properties};
    struct jschema_keys keys;
    uint32_t body;

    if (!has_object_keyword(schema, form))
        return jschema_any_object(schema);
    keys = jschema_keys_of(schema, form);
    object_read_demands(&object);
    if (jschema_failed(schema) || !object_read_properties(&object, &keys))
        return schema->nothing;
    if (object.required_count > object.max)
        return schema->nothing;
    object.comma = JSCHEMA_SEQUENCE(schema, grammar_text(builder, ","), jschema_space(schema, ','));
    body = object_write_body(&object, &keys);
    if (body == schema->nothing && keys.is_closed && !schema->options->is_strict) { // closing alone must not leave nothing
        keys.is_closed = false;
        body = object_write_body(&object, &keys);
    }
    return JSCHEMA_SEQUENCE(schema, grammar_text(builder, "{"), jschema_space(schema, '{'), body, jschema_space(schema, '}'),
                            grammar_text(builder, "}"));
}

// --- sets and variants --------------------------------------------------------------------------------------------------

enum { MEMO_BUCKETS = 1 << 10 };
enum progress { MAKING, MADE };

struct jschema_memo {
    struct made {
        struct made *next;
        struct jschema_set set;
        bool is_variant;
        enum progress progress;
        uint32_t node, rule; // rule: of a variant that was called while it was being made
        bool has_rule;
    } * buckets[MEMO_BUCKETS];
};

static struct made *memo_find(struct jschema *schema, struct jschema_set set, bool is_variant)
{
    uint32_t hash = set.count * 2 + is_variant;
    struct made **bucket, *made;

    if (!schema->memo && !(schema->memo = jschema_take(schema, 1, sizeof *schema->memo)))
        return NULL;
    for (uint32_t i = 0; i < set.count; i++)
        hash = (hash ^ set.ids[i]) * 0x9e3779b1u;
    bucket = &schema->memo->buckets[(hash >> 16) % MEMO_BUCKETS];
    for (made = *bucket; made; made = made->next)
        if (made->is_variant == is_variant && made->set.count == set.count &&
            (set.count == 0 || memcmp(made->set.ids, set.ids, set.count * sizeof *set.ids) == 0))
            return made;
    made = jschema_take(schema, 1, sizeof *made);
    if (!made)
        return NULL;
    *made = (struct made){.next = *bucket, .set = set, .is_variant = is_variant};
    *bucket = made;
    return NULL;
}

static uint32_t write_literal(struct jschema *schema, const struct jschema_form *form, uint32_t type, const json_t *value,
                              const char *text)
{
    bool is_there = !form->has_values && form->types & type;

    for (uint32_t i = 0; i < form->value_count; i++)
        is_there |= form->types & type && json_equal((json_t *)form->values[i], (json_t *)value);
    for (uint32_t i = 0; i < form->not_value_count; i++)
        is_there &= !json_equal((json_t *)form->not_values[i], (json_t *)value);
    return is_there ? grammar_text(schema->builder, text) : schema->nothing;
}

// Writes the values of each type.
static uint32_t write_form(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t nodes[7], count = 0;

    if (form->leaves.count == 0)
        return jschema_any_value(schema);
    nodes[count++] = write_literal(schema, form, JSCHEMA_NULL, json_null(), "null");
    nodes[count++] = write_literal(schema, form, JSCHEMA_BOOLEAN, json_true(), "true");
    nodes[count++] = write_literal(schema, form, JSCHEMA_BOOLEAN, json_false(), "false");
    nodes[count++] = jschema_number(schema, form);
    nodes[count++] = jschema_string(schema, form);
    nodes[count++] = form->types & JSCHEMA_ARRAY && !form->has_values ? write_array(schema, form) : schema->nothing;
    nodes[count++] = form->types & JSCHEMA_OBJECT && !form->has_values ? write_object(schema, form) : schema->nothing;
    return grammar_either(schema->builder, nodes, count);
}

static const char *variant_name(const struct jschema *schema, struct jschema_set set)
{
    const struct jschema_entry *entry = set.count ? &schema->entries[set.ids[0]] : NULL;

    return entry && entry->step && entry->step[0] ? entry->step : "schema";
}

static uint32_t compile_variant(struct jschema *schema, struct jschema_set variant)
{
    struct made *made = memo_find(schema, variant, true);

    if (made && made->progress == MAKING) {
        if (!made->has_rule)
            made->rule = grammar_rule(schema->builder, variant_name(schema, variant));
        made->has_rule = true;
        return grammar_call(schema->builder, made->rule);
    }
    if (made)
        return made->node;
    made = memo_find(schema, variant, true);
    struct jschema_form form = jschema_merge(schema, variant);
    if (!made || jschema_failed(schema))
        return schema->nothing;
    uint32_t node = write_form(schema, &form);
    if (jschema_failed(schema)) {
        jschema_blame(schema, variant.count ? variant.ids[0] : (uint32_t)JSCHEMA_ROOT, NULL);
        return schema->nothing;
    }
    if (made->has_rule) {
        grammar_rule_set(schema->builder, made->rule, node);
        node = node == schema->nothing ? node : grammar_call(schema->builder, made->rule);
    } else if (form.types & (JSCHEMA_ARRAY | JSCHEMA_OBJECT) && form.leaves.count) {
        node = jschema_rule(schema, variant_name(schema, variant), node);
    }
    made->node = node;
    made->progress = MADE;
    return node;
}

uint32_t jschema_compile(struct jschema *schema, struct jschema_set set)
{
    struct made *made = jschema_failed(schema) ? NULL : memo_find(schema, set, false);
    struct jschema_variants variants;
    uint32_t *nodes, node;

    if (jschema_failed(schema))
        return schema->nothing;
    if (made && made->progress == MADE)
        return made->node;
    if (schema->depth == JSCHEMA_MAX_DEPTH)
        return jschema_fail(schema, set.count ? set.ids[0] : JSCHEMA_ROOT, NULL, STATUS_RESOURCE_EXHAUSTED,
                            "schemas lead to each other over more than %u levels", JSCHEMA_MAX_DEPTH);
    schema->depth++;
    variants = jschema_flatten(schema, set);
    nodes = jschema_take(schema, variants.count, sizeof *nodes);
    for (uint32_t i = 0; nodes && i < variants.count; i++)
        if (variants.sets[i].count == 0) { // anything is valid: the others say nothing new
            variants.sets[0] = variants.sets[i];
            variants.count = 1;
        }
    for (uint32_t i = 0; nodes && i < variants.count && !jschema_failed(schema); i++)
        nodes[i] = compile_variant(schema, variants.sets[i]);
    schema->depth--;
    if (!nodes || jschema_failed(schema))
        return schema->nothing;
    node = grammar_either(schema->builder, nodes, variants.count);
    made = memo_find(schema, set, false);
    if (made) {
        made->node = node;
        made->progress = MADE;
    }
    return node;
}

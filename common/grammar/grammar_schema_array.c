// grammar_schema_array.c: arrays: items by position, by number, by what one of them must be (contains), and by which there were (uniqueItems).
#include <math.h>
#include <string.h>

#include "common/grammar/grammar_schema_internal.h"

enum { MAX_GRID = 1 << 10, MAX_UNIQUE = 10, MAX_INTEGER = 1 << 30 };

// The list of a leaf's first items; NULL: none. `items` was that list before 2020.
static const json_t *prefix_of(const struct jschema *schema, uint32_t entry)
{
    const json_t *prefix = jschema_get(schema, entry, "prefixItems"), *items = jschema_get(schema, entry, "items");

    return prefix ? prefix : json_is_array(items) ? items : NULL;
}

uint32_t jschema_prefix_count(struct jschema *schema, const struct jschema_form *form)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < form->leaves.count; i++) {
        const json_t *prefix = prefix_of(schema, form->leaves.ids[i]);
        if (prefix && (!json_is_array(prefix) || !jschema_work(schema, (uint32_t)json_array_size(prefix))))
            jschema_fail(schema, form->leaves.ids[i], "prefixItems", STATUS_INVALID_ARGUMENT, "must be a list of schemas");
        count = json_array_size(prefix) > count ? (uint32_t)json_array_size(prefix) : count;
    }
    return count;
}

// The schema that a leaf has for an item; NULL: none.
static const json_t *item_of(const struct jschema *schema, uint32_t entry, uint64_t index)
{
    const json_t *prefix = prefix_of(schema, entry), *items = jschema_get(schema, entry, "items");

    if (index < json_array_size(prefix))
        return json_array_get(prefix, (size_t)index);
    return json_is_array(items) ? jschema_get(schema, entry, "additionalItems") : items;
}

// One more schema than the leaves have: `extra`, unless it is JSCHEMA_TRUE.
static struct jschema_set item_with(struct jschema *schema, const struct jschema_form *form, uint64_t index, uint32_t extra)
{
    uint32_t *ids = jschema_take(schema, form->leaves.count + 1, sizeof *ids), count = 0;

    for (uint32_t i = 0; ids && i < form->leaves.count; i++) {
        const json_t *item = item_of(schema, form->leaves.ids[i], index);
        if (!item)
            continue;
        if (!json_text_is_object(item) && !json_is_boolean(item))
            jschema_fail(schema, form->leaves.ids[i], "items", STATUS_INVALID_ARGUMENT,
                         "must be a schema: an object, true or false");
        else
            ids[count++] = jschema_entry_of(schema, item);
    }
    if (ids && extra != JSCHEMA_TRUE)
        ids[count++] = extra;
    return (struct jschema_set){ids ? count : 0, ids};
}

struct jschema_set jschema_item(struct jschema *schema, const struct jschema_form *form, uint64_t index)
{
    return item_with(schema, form, index, JSCHEMA_TRUE);
}

struct array {
    struct jschema *schema;
    const struct jschema_form *form;
    uint32_t prefix_count, comma;
    uint64_t min, max;
    uint32_t *prefix; // [prefix_count] nodes
    uint32_t rest;    // the node of the items behind them
};

// The items behind the first; at least one has been written.
static uint32_t behind_prefix(const struct array *array)
{
    struct jschema *schema = array->schema;
    uint64_t min = array->min > array->prefix_count ? array->min - array->prefix_count : 0;
    uint64_t max = array->max == UINT64_MAX ? array->max : array->max > array->prefix_count ? array->max - array->prefix_count : 0;

    return jschema_times(schema, JSCHEMA_SEQUENCE(schema, array->comma, array->rest), min, max);
}

static uint32_t items_of(const struct array *array)
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
    node = behind_prefix(array);
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

// --- contains --------------------------------------------------------------------------------------------------------------

// Rules by how many items came before and how many of them were what is asked for: tail(index, found) is what may follow.
struct grid {
    const struct array *array;
    uint32_t rows, columns; // the last index and the last number found stand for all greater ones, too
    uint64_t min_found, max_found;
    uint32_t *tails; // [rows][columns] nodes, once made
    bool *is_made;
    uint32_t *hits, *misses; // [rows] the items that are, and the others (or all, where too many cannot be found)
};

static bool may_stop(const struct grid *grid, uint32_t index, uint32_t found)
{
    return index >= grid->array->min && found >= grid->min_found;
}

static uint32_t tail(struct grid *grid, uint32_t index, uint32_t found)
{
    struct jschema *schema = grid->array->schema;
    bool is_last_row = index + 1 == grid->rows, has_end = grid->array->max != UINT64_MAX;
    uint32_t place = index * grid->columns + found, next = is_last_row ? index : index + 1;
    uint32_t comma = index ? grid->array->comma : grammar_empty(schema->builder);
    uint32_t after = found + 1 < grid->columns ? found + 1 : found, node, loops = 0, options[3] = {0};

    if (grid->is_made[place] || jschema_failed(schema))
        return grid->tails[place];
    if (may_stop(grid, index, found))
        options[0] = grammar_empty(schema->builder);
    if (!(is_last_row && has_end)) {
        bool full = found >= grid->max_found;
        if (!full && next * grid->columns + after != place)
            options[1] = JSCHEMA_SEQUENCE(schema, comma, grid->hits[index], tail(grid, next, after));
        else if (!full)
            loops = JSCHEMA_SEQUENCE(schema, comma, grid->hits[index]);
        if (next != index)
            options[2] = JSCHEMA_SEQUENCE(schema, comma, grid->misses[index], tail(grid, next, found));
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

static uint32_t items_with_contains(const struct array *array)
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
        return items_of(array);
    if (rows > MAX_GRID || columns > MAX_GRID || rows * columns > MAX_GRID)
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
        grid.hits[i] = schema->compile(schema, item_with(schema, array->form, i, wanted));
        grid.misses[i] = schema->compile(schema, item_with(schema, array->form, i, unwanted));
    }
    return tail(&grid, 0, 0);
}

// --- unique ----------------------------------------------------------------------------------------------------------------

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

static bool add_value(struct choice_of_items *choice, const json_t *value)
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
static bool add_range(struct jschema *schema, struct choice_of_items *choice, const struct jschema_form *form)
{
    const json_t *low = form->min.is_set ? jschema_get(schema, form->min.entry, form->min.keyword) : NULL;
    const json_t *high = form->max.is_set ? jschema_get(schema, form->max.entry, form->max.keyword) : NULL;
    const double first = low ? ceil(json_number_value(low)) : 0, last = high ? floor(json_number_value(high)) : 0;

    if (!low || !high || fabs(first) > MAX_INTEGER || last - first >= MAX_UNIQUE)
        return false;
    for (json_int_t value = (json_int_t)first; (double)value <= last; value++) {
        json_t *made = json_integer(value);
        if (json_array_append_new(schema->made, made) != 0 || !add_value(choice, made))
            return false;
    }
    return true;
}

// Adds what a variant may be, or more. Returns false if that is too much, or not scalars.
static bool add_values_of(struct jschema *schema, struct choice_of_items *choice, const struct jschema_form *form)
{
    const uint32_t types = form->types;

    for (uint32_t i = 0; i < form->value_count; i++)
        if (!add_value(choice, form->values[i]))
            return false;
    if (form->has_values)
        return true;
    if (types & ~(uint32_t)(JSCHEMA_NULL | JSCHEMA_BOOLEAN | JSCHEMA_INTEGER))
        return false;
    return (!(types & JSCHEMA_NULL) || add_value(choice, json_null())) &&
           (!(types & JSCHEMA_BOOLEAN) || (add_value(choice, json_true()) && add_value(choice, json_false()))) &&
           (!(types & JSCHEMA_INTEGER) || add_range(schema, choice, form));
}

// The node of one value at a position; `extra` as for item_with().
static uint32_t value_at(struct choice_of_items *choice, uint64_t position, uint32_t only, uint32_t extra)
{
    struct jschema *schema = choice->array->schema;
    const struct jschema_set item = item_with(schema, choice->array->form, position, extra);
    uint32_t *ids = jschema_take(schema, item.count + 1u, sizeof *ids);

    if (!ids)
        return schema->nothing;
    if (item.count)
        memcpy(ids, item.ids, item.count * sizeof *ids);
    ids[item.count] = only;
    return schema->compile(schema, (struct jschema_set){item.count + 1, ids});
}

// Finds what each value is at each position, and whether `contains` counts it.
static void read_positions(struct choice_of_items *choice)
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
            const uint32_t node = value_at(choice, p, only, JSCHEMA_TRUE);
            choice->nodes[p * choice->count + v] = jschema_shared(schema, "item", node);
            if (wanted != JSCHEMA_NONE && !choice->counts[v])
                choice->counts[v] = value_at(choice, p, only, wanted) != schema->nothing;
        }
    }
}

// Returns false if the items may have more than few values.
static bool read_values(struct choice_of_items *choice)
{
    const struct array *array = choice->array;
    struct jschema *schema = array->schema;

    for (uint32_t p = 0; p <= array->prefix_count && p < array->max; p++) {
        struct jschema_variants variants = jschema_flatten(schema, jschema_item(schema, array->form, p));
        for (uint32_t i = 0; i < variants.count && !jschema_failed(schema); i++) {
            struct jschema_form form = jschema_merge(schema, variants.sets[i]);
            if (!add_values_of(schema, choice, &form))
                return false;
        }
    }
    return !jschema_failed(schema);
}

static uint32_t behind_set(struct choice_of_items *choice, uint32_t set)
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
            options[v] = JSCHEMA_SEQUENCE(schema, choice->nodes[position * choice->count + v], behind_set(choice, set | 1u << v));
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
static bool write_unique(const struct array *array, uint32_t *items)
{
    struct jschema *schema = array->schema;
    const uint32_t entry = array->form->contains;
    struct choice_of_items *choice = jschema_take(schema, 1, sizeof *choice);

    if (!choice)
        return false;
    choice->array = array;
    choice->min_found = entry ? jschema_count(schema, entry, "minContains", 1) : 0;
    choice->max_found = entry ? jschema_count(schema, entry, "maxContains", UINT64_MAX) : UINT64_MAX;
    if (read_values(choice) && jschema_has_sets(schema, choice->count)) {
        read_positions(choice);
        *items = behind_set(choice, 0);
        return true;
    }
    if (schema->options->is_strict)
        jschema_fail(
            schema, array->form->unique, "uniqueItems", STATUS_UNIMPLEMENTED,
            "a grammar cannot tell whether items are equal unless they have at most %d values, in few arrays: leave it or 'strict' out",
            MAX_UNIQUE);
    return false;
}

// --- all together ------------------------------------------------------------------------------------------------------------

static bool has_array_keyword(struct jschema *schema, const struct jschema_form *form)
{
    for (uint32_t i = 0; i < form->leaves.count; i++)
        if (jschema_get(schema, form->leaves.ids[i], "items") || jschema_get(schema, form->leaves.ids[i], "prefixItems"))
            return true;
    return form->min_items > 0 || form->max_items != UINT64_MAX || form->contains;
}

// Looks at the schemas of the items; where nothing is valid the array ends before.
static void read_items(struct array *array)
{
    struct jschema *schema = array->schema;

    array->prefix_count = jschema_prefix_count(schema, array->form);
    array->prefix = jschema_take(schema, array->prefix_count, sizeof *array->prefix);
    for (uint32_t i = 0; array->prefix && i < array->prefix_count && i < array->max && !jschema_failed(schema); i++) {
        array->prefix[i] = schema->compile(schema, jschema_item(schema, array->form, i));
        if (array->prefix[i] == schema->nothing)
            array->max = i;
    }
    if (array->max > array->prefix_count)
        array->rest = schema->compile(schema, jschema_item(schema, array->form, array->prefix_count));
    if (array->rest == schema->nothing && array->max > array->prefix_count)
        array->max = array->prefix_count;
}

uint32_t jschema_array(struct jschema *schema, const struct jschema_form *form)
{
    struct grammar_builder *builder = schema->builder;
    struct array array = {.schema = schema, .form = form, .min = form->min_items, .max = form->max_items};
    uint32_t items;

    if (!has_array_keyword(schema, form) && !form->unique)
        return jschema_any_array(schema);
    if (array.min > JSCHEMA_MAX_REQUIRED_ITEMS)
        return jschema_fail(schema, form->leaves.ids[0], "minItems", STATUS_RESOURCE_EXHAUSTED, "must not be over %u",
                            JSCHEMA_MAX_REQUIRED_ITEMS);
    read_items(&array);
    if (jschema_failed(schema) || array.min > array.max)
        return schema->nothing;
    array.comma = JSCHEMA_SEQUENCE(schema, grammar_text(builder, ","), jschema_space(schema, ','));
    if (!form->unique || array.max <= 1 || !write_unique(&array, &items))
        items = form->contains ? items_with_contains(&array) : items_of(&array);
    return JSCHEMA_SEQUENCE(schema, grammar_text(builder, "["), jschema_space(schema, '{'), items, jschema_space(schema, '}'),
                            grammar_text(builder, "]"));
}

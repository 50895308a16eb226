// internal.h: what the files of this folder share: schemas, sets of them, and what a set of schemas asks of a value.
//
//     index (entries, $ref) ─▶ sets (a set of schemas ─▶ variants) ─▶ form (a variant's keywords, merged) ─▶ number, string, value (arrays, objects)
//
// A *set* is a list of schemas that must all hold. Keywords that apply others in place ($ref, allOf, anyOf, oneOf, not, if) are worked off by
// jschema_flatten(): a set becomes a list of *variants*, sets of schemas of which only the other keywords still count; a value is valid if it is
// valid under one of the variants. Merging is thereby a union of sets, and two places with the same sets share a rule. What JSON Schema says
// about alternatives that must not hold (oneOf, not, if) is rewritten into schemas that are *made*: see not.c.
//
// Failures stick to the builder: functions return 0 or an empty set then.
#ifndef FD_SCHEMA_INTERNAL_H
#define FD_SCHEMA_INTERNAL_H

#include <jansson.h>

#include "common/base/alloc.h"
#include "common/json/json_text.h"
#include "common/schema/schema.h"

enum {
    JSCHEMA_MAX_DEPTH = 128,            // schemas in each other; values and references while a grammar is made
    JSCHEMA_MAX_VALUES = 1 << 16,       // JSON values of a schema
    JSCHEMA_MAX_WORK = 1 << 18,         // schemas looked at, in all
    JSCHEMA_MAX_OPERATIONS = 1 << 11,   // on regular languages; each counts by its states, too
    JSCHEMA_MAX_BUILDER_WORK = 1 << 20, // their work together, as the builder counts it
    JSCHEMA_MAX_VARIANTS = 1 << 10,     // a set's
    JSCHEMA_MAX_OPTIONS = 1 << 12,      // alternatives in one anyOf or oneOf
    JSCHEMA_MAX_REQUIRED_ITEMS = 1 << 14,
    JSCHEMA_MAX_SETS = 1 << 12,   // sets of items that differ, or of keys in any order, that get a rule
    JSCHEMA_MAX_PATTERN_KEYS = 4, // patterns in the patternProperties of one object
    JSCHEMA_MAX_DIGITS = 64,      // a number's, before the point
    JSCHEMA_MAX_FRACTION = 32,    // and behind it
    JSCHEMA_MAX_DIVISOR = 512,    // multipleOf's, without its zeros at the end
    JSCHEMA_FORMATS = 16,
    JSCHEMA_ARENA_BYTES = 32 << 20,
};

// Types of values. Numbers are split, so that "integer" and what is none are sets of types.
enum {
    JSCHEMA_NULL = 1,
    JSCHEMA_BOOLEAN = 2,
    JSCHEMA_INTEGER = 4,
    JSCHEMA_FRACTION = 8, // a number that is no integer; its name is only known in schemas that are made
    JSCHEMA_NUMBER = JSCHEMA_INTEGER | JSCHEMA_FRACTION,
    JSCHEMA_STRING = 16,
    JSCHEMA_ARRAY = 32,
    JSCHEMA_OBJECT = 64,
    JSCHEMA_ANY = 127,
};

// A schema's place. Entries are numbered; equal schemas of one resource have one number, the first's (jschema_entry_of).
enum { JSCHEMA_NONE, JSCHEMA_TRUE, JSCHEMA_FALSE, JSCHEMA_ROOT }; // the entries that are always there; NONE is a failure
struct jschema_entry {
    const json_t *value;
    uint64_t hash;
    uint32_t parent, index; // its path: parent/step, or parent/step/index
    const char *step;       // may be a path of several steps; "": the parent's
    uint32_t resource;      // the entry that has the base of references
    uint32_t canonical;
    uint32_t seen;                    // flat: the run that has seen it
    struct jschema_rewrite *rewrites; // keywords that were made into others
    bool has_index, is_made;          // made: not the user's
};

struct jschema_rewrite {
    struct jschema_rewrite *next;
    const char *keyword;
    uint32_t entry;
};

// A list of schemas without repetition, in the order in which they were found.
struct jschema_set {
    uint32_t count;
    const uint32_t *ids;
};

struct jschema_named { // a resource ($id) or an anchor
    const char *name;
    uint32_t entry;
    uint32_t resource;
};

struct jschema_memo; // sets that have nodes; see value.c

struct jschema {
    struct grammar_builder *builder;
    const struct grammar_schema_options *options;
    struct arena arena;
    json_t *made; // an array, which owns schemas that are made
    struct jschema_entry *entries;
    uint32_t entry_count, entry_capacity;
    uint32_t *slots, *contents; // hash tables of entries, by address and by content; [slot_count]
    uint32_t slot_count;
    struct jschema_named *resources, *anchors;
    uint32_t resource_count, resource_capacity, anchor_count, anchor_capacity;
    uint32_t work, operations, depth, runs, sets; // sets: of items or keys, in all arrays and objects
    uint32_t rewriting;                           // keywords that are being rewritten, one for the sake of another

    struct jschema_memo *memo; // NULL: nothing has been compiled yet
    uint32_t nothing;          // the node of what has no text
    uint32_t any_value, any_string, any_character, any_object, any_array, any_number, any_integer, line; // nodes; 0: not made yet
    uint32_t format_contents[JSCHEMA_FORMATS], format_texts[JSCHEMA_FORMATS];
};

// --- index.c ------------------------------------------------------------------------------------------------------------
bool jschema_index(struct jschema *schema, const json_t *root); // makes all entries; false: failed
// Returns the canonical entry of a schema that is part of the document or made; 0 after a failure.
uint32_t jschema_entry_of(struct jschema *schema, const json_t *value);
// Adds what lies at a path below `parent`, if it is not there yet. Returns its canonical entry.
uint32_t jschema_add_entry(struct jschema *schema, const json_t *value, uint32_t parent, const char *step);
// Takes over a schema that is made on behalf of `parent`'s keyword `step`. Returns its entry.
uint32_t jschema_make(struct jschema *schema, json_t *value, uint32_t parent, const char *step);
bool jschema_failed(const struct jschema *schema);
// Puts the path of an entry's keyword (or of the entry: NULL) before the builder's own error, unless that has one.
void jschema_blame(struct jschema *schema, uint32_t entry, const char *keyword);
// Fails with the path of entry's keyword before the text. keyword NULL: the entry itself. Returns 0.
uint32_t jschema_fail(struct jschema *schema, uint32_t entry, const char *keyword, enum status status, const char *format, ...)
    PRINTF_LIKE(5, 6);
bool jschema_work(struct jschema *schema, uint32_t amount);            // counts; false: too much, or failed before
void *jschema_take(struct jschema *schema, size_t count, size_t size); // zeroed memory until the end; NULL: failed
// Makes room for one more in an array of the arena.
bool jschema_grow(struct jschema *schema, void *array, uint32_t count, uint32_t *capacity, size_t size);
// Returns the number that a keyword has, which must be a whole one of at least 0; `otherwise` without the keyword.
uint64_t jschema_count(struct jschema *schema, uint32_t entry, const char *keyword, uint64_t otherwise);
const json_t *jschema_get(const struct jschema *schema, uint32_t entry, const char *keyword); // NULL: it has none

uint32_t jschema_resolve(struct jschema *schema, uint32_t entry, const char *reference); // 0: failed

// --- not.c --------------------------------------------------------------------------------------------------------------
// Adds the negation of one keyword, which is none that is rewritten, to alternatives. Returns what stands in the way (it is static), or NULL.
const char *jschema_negate_keyword(struct jschema *schema, uint32_t entry, const char *keyword, const json_t *value, json_t *any);
// Returns a schema that only this array or object is valid under, for `const`. NULL: no memory.
json_t *jschema_only(const json_t *value);

// --- decimal.c ----------------------------------------------------------------------------------------------------------
struct jschema_decimal { // 0.d1d2d3... x 10^point
    bool negative;
    uint8_t count; // digits, the first and the last of which are not 0; 0: zero
    int32_t point;
    uint8_t digits[JSCHEMA_MAX_DIGITS];
};
struct jschema_decimal jschema_decimal_of(const json_t *number);
bool jschema_decimal_is_exact(const json_t *number); // false: it has more digits than jschema_decimal_of() returns
int jschema_decimal_compare(const struct jschema_decimal *a, const struct jschema_decimal *b);
bool jschema_decimal_is_integer(const struct jschema_decimal *decimal);
uint32_t jschema_decimal_digit(const struct jschema_decimal *decimal, int32_t place); // the digit at 10^place
enum { JSCHEMA_DECIMAL_BYTES = 128 };
void jschema_decimal_text(const struct jschema_decimal *decimal, char *text); // without an exponent, if that is not too long

// --- form.c -------------------------------------------------------------------------------------------------------------
struct jschema_bound {
    bool is_set, is_exclusive;
    struct jschema_decimal value;
    uint32_t entry;
    const char *keyword;
};
struct jschema_term { // a keyword that is kept as it is: multipleOf, pattern, format
    const json_t *value;
    uint32_t entry;
    const char *keyword;
    bool is_negative;
};
struct jschema_form {
    uint32_t types;
    struct jschema_set leaves;
    bool has_values; // enum or const: one of these, which are no arrays or objects
    const json_t **values, **not_values;
    uint32_t value_count, not_value_count;
    struct jschema_bound min, max;
    struct jschema_term *terms;
    uint32_t term_count, term_capacity;
    uint64_t min_length, max_length, min_items, max_items, min_properties, max_properties; // max UINT64_MAX: none
    const char **required;
    uint32_t required_count, required_capacity;
    uint32_t contains, unique; // the entry that has the keyword, 0: none
};
uint32_t jschema_types(struct jschema *schema, uint32_t entry); // by type, const and enum
struct jschema_form jschema_merge(struct jschema *schema, struct jschema_set variant);
bool jschema_is_same(const json_t *a, const json_t *b); // whether a scalar is the same value: 1 and 1.0 are
bool jschema_has_term(const struct jschema_form *form, const char *keyword);
bool jschema_requires(const struct jschema_form *form, const char *key);

// --- text.c -------------------------------------------------------------------------------------------------------------
#define JSCHEMA_SEQUENCE(schema, ...) \
    grammar_sequence((schema)->builder, (const uint32_t[]){__VA_ARGS__}, sizeof(const uint32_t[]){__VA_ARGS__} / sizeof(uint32_t))
#define JSCHEMA_EITHER(schema, ...) \
    grammar_either((schema)->builder, (const uint32_t[]){__VA_ARGS__}, sizeof(const uint32_t[]){__VA_ARGS__} / sizeof(uint32_t))
uint32_t jschema_optional(struct jschema *schema, uint32_t node);
uint32_t jschema_class(struct jschema *schema, const char *bytes);                // one of these characters; "a-z" is a range
uint32_t jschema_rule(struct jschema *schema, const char *name, uint32_t node);   // a rule of its own, called
uint32_t jschema_shared(struct jschema *schema, const char *name, uint32_t node); // the same, for what is called in many places
uint32_t jschema_times(struct jschema *schema, uint32_t node, uint64_t min, uint64_t max); // with few states even for large counts
uint32_t jschema_space(struct jschema *schema, char beside); // white space behind ':' and ',', behind '{' (or '['), before '}'
uint32_t jschema_any_value(struct jschema *schema);
uint32_t jschema_any_object(struct jschema *schema);
uint32_t jschema_any_array(struct jschema *schema);
uint32_t jschema_any_string(struct jschema *schema);
uint32_t jschema_any_character(struct jschema *schema);
uint32_t jschema_any_number(struct jschema *schema, bool integers);
// Content is what a string says, before it is written as JSON.
uint32_t jschema_any_content(struct jschema *schema);
uint32_t jschema_quoted(struct jschema *schema, uint32_t content); // its texts
// Writes the text of a scalar. Returns NULL if there is no memory.
const char *jschema_scalar_text(struct jschema *schema, const json_t *value, size_t *bytes);
bool jschema_has_sets(struct jschema *schema, uint32_t members); // takes all sets of so many, if there are enough left
bool jschema_charge(struct jschema *schema, uint32_t states);    // counts an operation on so many states; false: too many
// Apply the operations of grammar/build.h, and count them.
uint32_t jschema_both(struct jschema *schema, uint32_t a, uint32_t b);
uint32_t jschema_without(struct jschema *schema, uint32_t a, uint32_t b);
bool jschema_is_nothing(struct jschema *schema, uint32_t node); // node: a regular one

// --- number.c -----------------------------------------------------------------------------------------------------------
uint32_t jschema_number(struct jschema *schema, const struct jschema_form *form);

// --- string.c -----------------------------------------------------------------------------------------------------------
struct jschema_key_pattern {
    const char *text;
    uint32_t content;
};
struct jschema_keys {
    const struct jschema_form *form;
    const char **declared; // by properties, in the order of the text, then by required alone
    uint32_t declared_count;
    struct jschema_key_pattern patterns[JSCHEMA_MAX_PATTERN_KEYS]; // from patternProperties
    uint32_t pattern_count;
    uint32_t names;           // the content of keys that propertyNames allows; any: all
    bool any_name, is_closed; // closed: keys that nothing names, not even `required`, are not allowed
};
uint32_t jschema_string(struct jschema *schema, const struct jschema_form *form);
uint32_t jschema_string_content(struct jschema *schema, const struct jschema_form *form);
uint32_t jschema_pattern(struct jschema *schema, const json_t *pattern, uint32_t entry, const char *keyword);

enum jschema_format { JSCHEMA_FORMAT_UNKNOWN, JSCHEMA_FORMAT_REFUSED, JSCHEMA_FORMAT_KNOWN };
enum jschema_format jschema_format_kind(const char *name);
// Returns the texts of those keys, which unless `among` is `nothing` are also in that content; `nothing`: there are none.
uint32_t jschema_additional_keys(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched, uint32_t among);

// --- sets.c -------------------------------------------------------------------------------------------------------------
struct jschema_variants {
    uint32_t count;
    struct jschema_set *sets;
};
struct jschema_variants jschema_flatten(struct jschema *schema, struct jschema_set set);
// Returns what holds for an item, and `extra`, unless that is JSCHEMA_TRUE.
struct jschema_set jschema_item(struct jschema *schema, const struct jschema_form *form, uint64_t index, uint32_t extra);
uint32_t jschema_prefix_count(struct jschema *schema, const struct jschema_form *form);
struct jschema_keys jschema_keys_of(struct jschema *schema, const struct jschema_form *form);
// Returns what holds for the value of a key; false among it: the key is not allowed.
struct jschema_set jschema_property(struct jschema *schema, const struct jschema_keys *keys, const char *key);
// Returns what holds for the values of keys that are not declared and that match exactly the patterns of `matched`, a bit each.
struct jschema_set jschema_additional(struct jschema *schema, const struct jschema_keys *keys, uint32_t matched);
// Returns the content of strings that are valid under a set.
uint32_t jschema_names(struct jschema *schema, struct jschema_set set);

// --- value.c ------------------------------------------------------------------------------------------------------------
uint32_t jschema_compile(struct jschema *schema, struct jschema_set set); // returns the node of a set; `nothing`: no value is valid

#endif

// schema.h: the JSON texts that are valid under a JSON Schema (draft 2020-12), as a grammar.
//
// Exact: every text is valid, and every valid value has a text, within limits of digits. A value need not have all its texts: properties
// come in the schema's order, then additional ones; integers have no fraction; strings of an enum, pattern or format are spelled without
// needless escapes. Between JSON's tokens there is at most the white space that the options allow.
//
// A keyword that cannot be said exactly fails with UNIMPLEMENTED and its path ("#/properties/a/uniqueItems: ..."); annotations are ignored.
// A schema without any instance fails with INVALID_ARGUMENT, one that is too large or too deep with RESOURCE_EXHAUSTED. Schemas may be
// hostile: depth, alternatives and $ref are bounded. docs/structured-output.md has the keywords. Safe from any thread.
#ifndef FD_SCHEMA_SCHEMA_H
#define FD_SCHEMA_SCHEMA_H

#include <jansson.h>

#include "common/grammar/build.h"

enum grammar_space {
    GRAMMAR_SPACE_NONE,  // {"a":1,"b":2}
    GRAMMAR_SPACE_ONE,   // {"a": 1, "b": 2}: at most one space after ':' and ',' (the default of models)
    GRAMMAR_SPACE_LINES, // one line feed and at most 2 x 32 spaces of indentation, too
};

struct grammar_schema_options {
    enum grammar_space space;
    bool closed_by_default; // objects that name properties and say nothing of others take none
    // OpenAI's: where closed, those with an empty `properties` are, too; and what cannot be guaranteed (uniqueItems of free texts) is
    // refused, not ignored.
    bool is_strict;
    bool in_any_order; // keys of objects that declare few
};

// Adds the texts of a schema; `schema` is true, false or an object, and is only borrowed for the call. Returns its node.
uint32_t grammar_add_schema(struct grammar_builder *builder, const json_t *schema, const struct grammar_schema_options *options);

// A schema of which only parts are added, one by one, such as the properties of an object: their references are to the whole. What all parts cost
// together is bounded as one schema is. `schema` is borrowed until the close. One thread at a time.
struct grammar_schema_parts;

// Returns NULL if the builder fails.
struct grammar_schema_parts *grammar_schema_parts_open(struct grammar_builder *builder, const json_t *schema,
                                                       const struct grammar_schema_options *options);
// Adds the texts of a part, which is a schema within the whole one, at a place where keywords have schemas. Returns its node.
uint32_t grammar_schema_parts_add(struct grammar_schema_parts *parts, const json_t *part);
// Returns the schema that a part's $ref leads to, through others if need be; a part without one is returned itself. Fails the builder, and
// returns the last part, where a reference leads nowhere or round in a circle.
const json_t *grammar_schema_parts_referred(struct grammar_schema_parts *parts, const json_t *part);
void grammar_schema_parts_close(struct grammar_schema_parts *parts); // NULL is allowed

// Returns what a reference such as "#/definitions/a~1b" leads to in a schema, in one step and without a builder. NULL: nothing is there, or it is
// not a pointer into this schema, or a long one.
const json_t *grammar_schema_at(const json_t *schema, const char *reference);

// Adds any JSON object (response_format json_object).
uint32_t grammar_add_json_object(struct grammar_builder *builder, const struct grammar_schema_options *options);

#endif

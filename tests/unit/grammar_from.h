// grammar_from.h: whole grammars of one text, for tests. The caller frees *out.
#ifndef FD_TESTS_UNIT_GRAMMAR_FROM_H
#define FD_TESTS_UNIT_GRAMMAR_FROM_H

#include "common/grammar/build.h"
#include "common/schema/schema.h"

// Compiles, and closes the builder, whatever happens.
static inline enum status grammar_of_root(struct grammar_builder *builder, uint32_t root, struct grammar **out, struct error *error)
{
    enum status status = grammar_compile(builder, root, out, error);

    grammar_builder_close(builder);
    return status;
}

static inline enum status grammar_from_regex(const char *regex, size_t length, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    return grammar_of_root(builder, grammar_add_regex(builder, regex, length, true), out, error);
}

static inline enum status grammar_from_gbnf(const char *text, size_t length, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    return grammar_of_root(builder, grammar_add_gbnf(builder, text, length), out, error);
}

static inline enum status grammar_from_schema(const json_t *schema, const struct grammar_schema_options *options,
                                              struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    return grammar_of_root(builder, grammar_add_schema(builder, schema, options), out, error);
}

#endif

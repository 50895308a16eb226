// grammar_text.c: see grammar_text.h: texts as whole grammars.
#include "common/grammar/grammar_text.h"

#include <stdlib.h>

// Compiles what was added to a builder, and closes it.
static enum status finish(struct grammar_builder *builder, uint32_t root, struct grammar **out, struct error *error)
{
    enum status status = grammar_compile(builder, root, out, error);

    grammar_builder_close(builder);
    return status;
}

static struct grammar_builder *begin(struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();

    *out = NULL;
    if (!builder)
        error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    return builder;
}

enum status grammar_from_regex(const char *regex, size_t length, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = begin(out, error);

    return builder ? finish(builder, grammar_add_regex(builder, regex, length, true), out, error) : STATUS_RESOURCE_EXHAUSTED;
}

enum status grammar_from_gbnf(const char *text, size_t length, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = begin(out, error);

    return builder ? finish(builder, grammar_add_gbnf(builder, text, length), out, error) : STATUS_RESOURCE_EXHAUSTED;
}

enum status grammar_from_choices(const char *const *choices, uint32_t count, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = begin(out, error);
    uint32_t *nodes = builder ? malloc(((size_t)count + 1) * sizeof *nodes) : NULL;
    uint32_t root;

    if (!builder)
        return STATUS_RESOURCE_EXHAUSTED;
    if (nodes) {
        for (uint32_t i = 0; i < count; i++)
            nodes[i] = grammar_text(builder, choices[i]);
        root = grammar_either(builder, nodes, count);
    } else
        root = grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    free(nodes);
    return finish(builder, root, out, error);
}

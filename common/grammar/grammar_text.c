// grammar_text.c: see grammar_text.h: lists of choices. Regular expressions are read in grammar_regex.c, and GBNF in grammar_gbnf.c.
#include "common/grammar/grammar_text.h"

#include <stdlib.h>

enum status grammar_from_choices(const char *const *choices, uint32_t count, struct grammar **out, struct error *error)
{
    struct grammar_builder *builder = grammar_builder_open();
    uint32_t *nodes = builder ? malloc(((size_t)count + 1) * sizeof *nodes) : NULL, root = 0;

    if (nodes) {
        for (uint32_t i = 0; i < count; i++)
            nodes[i] = grammar_text(builder, choices[i]);
        root = grammar_either(builder, nodes, count);
    } else if (builder)
        grammar_builder_fail(builder, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    free(nodes);
    return grammar_builder_finish(builder, root, out, error);
}

// grammar_escape.h: texts as they stand inside a JSON string.
#ifndef FD_GRAMMAR_GRAMMAR_ESCAPE_H
#define FD_GRAMMAR_GRAMMAR_ESCAPE_H

#include "common/grammar/grammar_build.h"

// Adds the texts of a regular node as JSON writes them between quotes: '"', '\' and control characters escaped (\n and its kin, \u00xx for the
// rest), all else as it is. A failure as for grammar_both().
uint32_t grammar_json_escaped(struct grammar_builder *builder, uint32_t node);

#endif

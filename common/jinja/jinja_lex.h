// jinja_lex.h: a template as a list of tokens.
#ifndef FD_JINJA_LEX_H
#define FD_JINJA_LEX_H

#include "common/jinja/jinja_arena.h"
#include "common/jinja/jinja_types.h"

enum jinja_token_kind {
    TOKEN_END,
    TOKEN_TEXT,
    TOKEN_PRINT_BEGIN, // {{
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN, // {%
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_OPERATOR, // op: one or two characters, the second << 8
};

struct jinja_token {
    uint8_t kind;
    uint16_t op;
    uint32_t line;
    const char *bytes; // text, name, decoded string; not terminated
    size_t length;
    union {
        int64_t integer;
        double number;
    };
};

// Splits a source into tokens, the last being TOKEN_END. They point into source, or into the arena.
bool jinja_lex(struct arena *arena, const char *source, size_t length, struct jinja_token **tokens, struct error *error);

#endif

// lex.c: splits a template into tokens.
//
// White space is treated as the reference renderer is set up: a newline after a block or comment is dropped (trim_blocks), and so are blanks
// between the start of a line and a block or comment (lstrip_blocks). `-` drops all white space on its side, `+` keeps it. One newline at the
// end of the source is dropped. All newlines become \n. Inside of brackets `}}` does not end the expression, so that {{ {'a': {}} }} works.
#include "services/gateway/jinja/tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

struct lexer {
    struct arena *arena;
    const char *at, *end;
    uint32_t line;
    struct jinja_token *tokens;
    size_t count, capacity;
    char brackets[JINJA_MAX_NESTING];
    uint32_t bracket_count;
    bool at_line_start; // the last token ended with a newline
    struct error *error;
};

static struct jinja_token *lexer_push(struct lexer *lexer, int kind)
{
    if (lexer->count == lexer->capacity) {
        size_t capacity = lexer->capacity ? lexer->capacity * 2 : 256;
        struct jinja_token *grown = jinja_alloc_array(lexer->arena, capacity, sizeof *grown);
        if (!grown) {
            (void)jinja_fail_at(lexer->error, lexer->line, "too long a template");
            return NULL;
        }
        if (lexer->count)
            memcpy(grown, lexer->tokens, lexer->count * sizeof *grown);
        lexer->tokens = grown;
        lexer->capacity = capacity;
    }
    struct jinja_token *token = &lexer->tokens[lexer->count++];
    *token = (struct jinja_token){.kind = (uint8_t)kind, .line = lexer->line};
    return token;
}

static void lexer_advance(struct lexer *lexer, const char *to)
{
    for (; lexer->at < to; lexer->at++)
        lexer->line += *lexer->at == '\n';
}

static const char *lexer_skip_space(const struct lexer *lexer, const char *at)
{
    while (at < lexer->end) {
        if (!jinja_is_space(jinja_char_code(at, (size_t)(lexer->end - at))))
            break;
        at += jinja_char_bytes(at, (size_t)(lexer->end - at));
    }
    return at;
}

// Returns the end of the text before a tag, with white space control applied.
static const char *lexer_text_end(const struct lexer *lexer, const char *begin, const char *tag)
{
    const char sign = tag + 2 < lexer->end ? tag[2] : 0;
    const char *kept = begin, *line = begin;
    bool blank = true;
    for (const char *at = begin; at < tag; at += jinja_char_bytes(at, (size_t)(tag - at))) {
        if (!jinja_is_space(jinja_char_code(at, (size_t)(tag - at)))) {
            kept = at + jinja_char_bytes(at, (size_t)(tag - at));
            blank = false;
        }
        if (*at == '\n') {
            line = at + 1;
            blank = true;
        }
    }
    if (sign == '-')
        return kept;
    if (sign == '+' || tag[1] == '{' || !blank)
        return tag;
    return line > begin || lexer->at_line_start ? line : tag;
}

static bool lex_string(struct lexer *lexer)
{
    const char quote = *lexer->at;
    const uint32_t line = lexer->line;
    const char *from = lexer->at + 1, *close = from;
    while (close < lexer->end && *close != quote)
        close += *close == '\\' && close + 1 < lexer->end ? 2 : 1;
    if (close >= lexer->end)
        return jinja_fail_at(lexer->error, line, "a string is not closed");
    char *out = jinja_alloc(lexer->arena, (size_t)(close - from) * 2 + 4), *to = out; // \xff becomes 2 bytes of 4
    if (!out)
        return jinja_fail_at(lexer->error, line, "too long a template");
    while (from < close) {
        if (*from != '\\') {
            *to++ = *from++;
            continue;
        }
        static const char plain[] = "n\nt\tr\rb\bf\fa\av\v\\\\''\"\"";
        const char letter = from[1];
        size_t p = 0;
        while (plain[p] && plain[p] != letter)
            p += 2;
        const int digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
        from += 2;
        if (letter == '\n') // a backslash at the end of a line joins lines
            continue;
        if (plain[p]) {
            *to++ = plain[p + 1];
        } else if (digits || (letter >= '0' && letter <= '7')) {
            uint32_t code = 0;
            int n = 0;
            if (!digits)
                from--;
            for (; n < (digits ? digits : 3) && from < close; n++, from++) {
                const char *hex = strchr("0123456789abcdef", *from | (*from >= 'A' ? 32 : 0));
                const uint32_t value = hex && *hex ? (uint32_t)(hex - "0123456789abcdef") : 16;
                if (value >= (digits ? 16u : 8u))
                    break;
                code = code * (digits ? 16 : 8) + value;
            }
            if ((digits && n < digits) || !utf8proc_codepoint_valid((int32_t)code))
                return jinja_fail_at(lexer->error, line, "bad escape \\%c in a string", letter);
            to += utf8proc_encode_char((int32_t)code, (utf8proc_uint8_t *)to);
        } else if (letter == 'N') {
            return jinja_fail_at(lexer->error, line, "escape \\N{name} in a string is not supported");
        } else { // an unknown escape stays as it is
            *to++ = '\\';
            *to++ = letter;
        }
    }
    struct jinja_token *token = lexer_push(lexer, TOKEN_STRING);
    if (!token)
        return false;
    token->bytes = out;
    token->length = (size_t)(to - out);
    lexer_advance(lexer, close + 1);
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// 0x1f, 0o17, 0b11
static bool lex_other_base(struct lexer *lexer, int base)
{
    char digits[80];
    size_t n = 0;
    const char *at = lexer->at + 2;
    for (; at < lexer->end && is_word(*at) && n < sizeof digits - 1; at++)
        if (*at != '_')
            digits[n++] = *at;
    digits[n] = 0;
    char *end = digits;
    errno = 0;
    const int64_t value = n ? strtoll(digits, &end, base) : 0;
    if (!n || *end || errno || (at < lexer->end && is_word(*at)))
        return jinja_fail_at(lexer->error, lexer->line, "bad number '%.2s%s'", lexer->at, digits);
    struct jinja_token *token = lexer_push(lexer, TOKEN_INTEGER);
    if (!token)
        return false;
    token->integer = value;
    lexer->at = at;
    return true;
}

static bool lex_number(struct lexer *lexer)
{
    const char base = lexer->at[0] == '0' && lexer->at + 1 < lexer->end ? (char)(lexer->at[1] | 32) : 0;
    if (base == 'x' || base == 'o' || base == 'b')
        return lex_other_base(lexer, base == 'x' ? 16 : base == 'o' ? 8 : 2);
    const char *at = lexer->at;
    const bool after_dot = lexer->count && lexer->tokens[lexer->count - 1].kind == TOKEN_OPERATOR &&
                           lexer->tokens[lexer->count - 1].op == '.';
    bool is_float = false;
    char digits[64];
    const size_t most = sizeof digits - 2; // the last round may write two: an exponent and its sign
    size_t n = 0;
    for (; at < lexer->end && n < most; at++) {
        const bool more = at + 1 < lexer->end;
        if (is_digit(*at)) {
            digits[n++] = *at;
        } else if (*at == '_' && more && is_digit(at[1])) {
            continue;
        } else if (*at == '.' && !is_float && !after_dot && more && is_digit(at[1])) {
            is_float = true;
            digits[n++] = '.';
        } else if ((*at == 'e' || *at == 'E') && !after_dot && more &&
                   (is_digit(at[1]) || ((at[1] == '-' || at[1] == '+') && at + 2 < lexer->end && is_digit(at[2])))) {
            is_float = true;
            digits[n++] = 'e';
            digits[n++] = at[1];
            for (at += 2; at < lexer->end && is_digit(*at) && n < most; at++)
                digits[n++] = *at;
            break;
        } else {
            break;
        }
    }
    digits[n] = 0;
    if (n >= most || (at < lexer->end && is_word(*at)))
        return jinja_fail_at(lexer->error, lexer->line, "bad number '%s'", digits);
    struct jinja_token *token = lexer_push(lexer, is_float ? TOKEN_FLOAT : TOKEN_INTEGER);
    if (!token)
        return false;
    errno = 0;
    if (is_float)
        token->number = strtod(digits, NULL);
    else
        token->integer = strtoll(digits, NULL, 10);
    if (errno && !is_float)
        return jinja_fail_at(lexer->error, lexer->line, "number %s is out of range", digits);
    lexer->at = at;
    return true;
}

static bool lex_operator(struct lexer *lexer)
{
    static const char pairs[][3] = {"==", "!=", "<=", ">=", "//", "**"};
    const char c = *lexer->at, next = lexer->at + 1 < lexer->end ? lexer->at[1] : 0;
    uint16_t op = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (c == pairs[i][0] && next == pairs[i][1])
            op = OP2(c, next);
    if (!op && c && strchr("+-*/%~<>=.,:|()[]{}", c))
        op = (uint8_t)c;
    if (!op)
        return jinja_fail_at(lexer->error, lexer->line, c > 32 && c < 127 ? "unexpected character '%c'" : "unexpected byte 0x%02x",
                             (unsigned char)c);
    if (strchr("([{", c)) {
        if (lexer->bracket_count == JINJA_MAX_NESTING)
            return jinja_fail_at(lexer->error, lexer->line, "brackets nest deeper than %d", JINJA_MAX_NESTING);
        lexer->brackets[lexer->bracket_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!lexer->bracket_count || lexer->brackets[lexer->bracket_count - 1] != c)
            return jinja_fail_at(lexer->error, lexer->line, "unexpected '%c'", c);
        lexer->bracket_count--;
    }
    struct jinja_token *token = lexer_push(lexer, TOKEN_OPERATOR);
    if (!token)
        return false;
    token->op = op;
    lexer->at += op > 255 ? 2 : 1;
    return true;
}

// Returns whether a tag ends at lexer->at. *after is where text continues.
static bool lexer_tag_end(const struct lexer *lexer, const char *close, const char **after)
{
    const char *at = lexer->at;
    const size_t left = (size_t)(lexer->end - at);
    const bool block = close[0] != '}';
    if (left >= 3 && *at == '-' && !memcmp(at + 1, close, 2)) {
        *after = lexer_skip_space(lexer, at + 3);
        return true;
    }
    if (left >= 3 && block && *at == '+' && !memcmp(at + 1, close, 2)) {
        *after = at + 3;
        return true;
    }
    if (left < 2 || memcmp(at, close, 2) != 0)
        return false;
    *after = at + 2;
    if (block && *after < lexer->end && **after == '\n')
        (*after)++;
    return true;
}

static bool lex_comment(struct lexer *lexer)
{
    const uint32_t line = lexer->line;
    const char *after;
    lexer_advance(lexer, lexer->at + 2);
    while (lexer->at < lexer->end) {
        if (lexer_tag_end(lexer, "#}", &after)) {
            lexer_advance(lexer, after);
            return true;
        }
        lexer_advance(lexer, lexer->at + 1);
    }
    return jinja_fail_at(lexer->error, line, "a comment is not closed");
}

// Returns whether `{% word %}` begins at `at`, with any signs. *after is behind it, before white space is trimmed. closing: it ends as other tags
// do (and endraw alone may have a `+`); otherwise no newline is dropped behind it.
static bool lexer_is_word_tag(const struct lexer *lexer, const char *at, const char *word, bool closing, const char **after)
{
    const size_t bytes = strlen(word);
    if (lexer->end - at < 2 || at[0] != '{' || at[1] != '%')
        return false;
    at += 2;
    at += at < lexer->end && (*at == '-' || *at == '+');
    at = lexer_skip_space(lexer, at);
    if ((size_t)(lexer->end - at) < bytes || memcmp(at, word, bytes) != 0)
        return false;
    const struct lexer behind = {.at = lexer_skip_space(lexer, at + bytes), .end = lexer->end};
    if (!lexer_tag_end(&behind, "%}", after))
        return false;
    if (closing || *behind.at == '-')
        return true;
    *after = behind.at + 2; // as the reference does
    return *behind.at != '+';
}

static bool lexer_push_text(struct lexer *lexer, const char *from, const char *to)
{
    struct jinja_token *token = to > from ? lexer_push(lexer, TOKEN_TEXT) : NULL;
    if (token) {
        token->bytes = from;
        token->length = (size_t)(to - from);
    }
    return to <= from || token;
}

// Reads from behind {% raw %} to behind {% endraw %}: all between is text.
static bool lex_raw(struct lexer *lexer, const char *begin)
{
    const uint32_t line = lexer->line;
    const char *after;
    lexer_advance(lexer, begin);
    lexer->at_line_start = begin[-1] == '\n';
    for (const char *at = begin; at < lexer->end; at++)
        if (lexer_is_word_tag(lexer, at, "endraw", true, &after)) {
            if (!lexer_push_text(lexer, begin, lexer_text_end(lexer, begin, at)))
                return false;
            lexer_advance(lexer, after);
            return true;
        }
    return jinja_fail_at(lexer->error, line, "the 'raw' of line %u is not closed", line);
}

// Reads a tag from {{ or {% to its end.
static bool lex_tag(struct lexer *lexer)
{
    const bool print = lexer->at[1] == '{';
    const uint32_t line = lexer->line;
    const char *after;
    if (!lexer_push(lexer, print ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN))
        return false;
    lexer->at += 2;
    if (lexer->at < lexer->end && (*lexer->at == '-' || *lexer->at == '+'))
        lexer->at++;
    for (;;) {
        if (lexer->at >= lexer->end)
            return jinja_fail_at(lexer->error, line, "%s is not closed", print ? "{{" : "{%");
        if (!lexer->bracket_count && lexer_tag_end(lexer, print ? "}}" : "%}", &after)) {
            if (!lexer_push(lexer, print ? TOKEN_PRINT_END : TOKEN_BLOCK_END))
                return false;
            lexer_advance(lexer, after);
            return true;
        }
        const char *next = lexer_skip_space(lexer, lexer->at);
        const char c = *lexer->at;
        bool good = true;
        if (next > lexer->at) {
            lexer_advance(lexer, next);
        } else if (c == '\'' || c == '"') {
            good = lex_string(lexer);
        } else if (is_digit(c)) {
            good = lex_number(lexer);
        } else if (is_word(c)) {
            struct jinja_token *token = lexer_push(lexer, TOKEN_NAME);
            good = token != NULL;
            const char *from = lexer->at;
            while (lexer->at < lexer->end && is_word(*lexer->at))
                lexer->at++;
            if (good) {
                token->bytes = from;
                token->length = (size_t)(lexer->at - from);
            }
        } else {
            good = lex_operator(lexer);
        }
        if (!good)
            return false;
    }
}

// Copies the source with \n for \r\n and \r, and without one newline at its end.
static bool lexer_normalize(struct lexer *lexer, const char *source, size_t length)
{
    char *copy = jinja_alloc(lexer->arena, length + 1), *to = copy;
    if (!copy)
        return jinja_fail_at(lexer->error, 1, "too long a template");
    for (size_t i = 0; i < length; i++) {
        if (source[i] == '\r') {
            *to++ = '\n';
            i += i + 1 < length && source[i + 1] == '\n';
        } else {
            *to++ = source[i];
        }
    }
    if (to > copy && to[-1] == '\n')
        to--;
    lexer->at = copy;
    lexer->end = to;
    for (const char *at = copy; at < to; at += jinja_char_bytes(at, (size_t)(to - at)))
        if ((unsigned char)*at >= 0x80 && jinja_char_bytes(at, (size_t)(to - at)) == 1)
            return jinja_fail_at(lexer->error, 1, "the text is not UTF-8 at byte %zu", (size_t)(at - copy));
    return true;
}

bool jinja_lex(struct arena *arena, const char *source, size_t length, struct jinja_token **tokens, struct error *error)
{
    struct lexer lexer = {.arena = arena, .line = 1, .at_line_start = true, .error = error};
    if (!lexer_normalize(&lexer, source, length))
        return false;
    while (lexer.at < lexer.end) {
        const char *tag = lexer.at;
        while (tag < lexer.end && !(tag[0] == '{' && tag + 1 < lexer.end && strchr("{%#", tag[1]) && tag[1]))
            tag++;
        const char *to = tag < lexer.end ? lexer_text_end(&lexer, lexer.at, tag) : tag, *raw;
        if (!lexer_push_text(&lexer, lexer.at, to))
            return false;
        lexer_advance(&lexer, tag);
        if (tag == lexer.end)
            break;
        if (tag[1] == '#' ? !lex_comment(&lexer)
                          : !(lexer_is_word_tag(&lexer, tag, "raw", false, &raw) ? lex_raw(&lexer, raw) : lex_tag(&lexer)))
            return false;
        lexer.at_line_start = lexer.at[-1] == '\n';
    }
    if (!lexer_push(&lexer, TOKEN_END))
        return false;
    *tokens = lexer.tokens;
    return true;
}

// pretokenize.c: cuts a text into the words that byte-level BPE works on, by the published regular expressions.
//
// They run on PCRE2, with its JIT compiler if there is one. Its Unicode tables decide what is a letter or a number (14.0 in PCRE2 10.42: a
// letter that was added later counts as a symbol). White space is written out as a class (WS), because PCRE2's \s has one character more
// (U+180E) than the engines that the expressions were published for. "smollm" splits off every \p{N} and then applies GPT-2's expression to
// what is between; here both are one expression, in which a digit ends a piece as the end of text does for \s+(?!\S).
//
// Every expression takes at least one character wherever it starts, and none backtracks into a group, so the work is linear in the text. The
// limits of PCRE2 can be high: they are for runaway matches, not long ones. If JIT code runs out of stack all the same, the interpreter, which
// keeps its state on the heap, tries again.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/pretokenize.h"

#define WS "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SHORT_FORMS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]+"
#define GPT2 SHORT_FORMS "| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES
#define SMOLLM "\\p{N}|" SHORT_FORMS "| ?\\p{L}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "\\p{N}])|[" WS "]+"
#define LLAMA3_WITH_NUMBERS(numbers) \
    "(?i:" SHORT_FORMS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" SPACES
// A word's capitals come first; marks and letters without case (LOOSE) may be on either side. `after` follows a word.
#define LOOSE "\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(after, numbers)                                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" LOOSE "]*[\\p{Ll}" LOOSE "]+" after "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" LOOSE \
    "]+[\\p{Ll}" LOOSE "]*" after "|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|" SPACES
#define GPT4O CASED("(?i:" SHORT_FORMS ")?", "\\p{N}{1,3}")

static const struct rule {
    const char *name, *expression;
    bool normalize, ignore_merges;
} rules[] = {
    {"gpt-2", GPT2, false, false},
    {"smollm", SMOLLM, false, false},
    {"starcoder", SMOLLM, false, false},
    {"refact", SMOLLM, false, false}, // Granite
    {"llama-bpe", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, true},
    {"llama3", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, true}, // older names of the same
    {"llama-v3", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, true},
    {"dbrx", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, false},
    {"smaug-bpe", LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, false}, // SmolLM3
    {"gpt-4o", GPT4O, false, false},
    {"gpt-oss", GPT4O, false, true},
    {"tekken", CASED("", "\\p{N}"), false, true},
    {"qwen2", LLAMA3_WITH_NUMBERS("\\p{N}"), true, false},
    {"deepseek-r1-qwen", LLAMA3_WITH_NUMBERS("\\p{N}"), false, false},
};

enum { MATCH_LIMIT = 2000000000, HEAP_LIMIT_KB = 1 << 20 };

struct pretokenizer {
    pcre2_code *code;
    pcre2_match_context *limits; // read only while matching
};

static const struct rule *find_rule(const char *name, struct error *error)
{
    if (!name || strcmp(name, "default") == 0) {
        log_warn("TOKENIZER-PRE", "pre=default taken=gpt-2 reason=\"the model does not name its pre-tokenizer\"");
        return &rules[0];
    }
    for (size_t i = 0; i < ARRAY_COUNT(rules); i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    char shown[64], names[256];
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_COUNT(rules) && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", rules[i].name);
    (void)error_set(error, STATUS_UNIMPLEMENTED, "tokenizer: pre-tokenizer %s is not supported; supported: %s",
                    log_quote(shown, sizeof shown, name), names);
    return NULL;
}

enum status pretokenizer_open(const char *name, struct pretokenizer **out, bool *normalize, bool *ignore_merges,
                              struct error *error)
{
    const struct rule *rule = find_rule(name, error);
    if (!rule)
        return STATUS_UNIMPLEMENTED;
    struct pretokenizer *pre = calloc(1, sizeof *pre);
    if (!pre)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory");
    int code;
    PCRE2_SIZE offset;
    pre->code = pcre2_compile((PCRE2_SPTR)rule->expression, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    pre->limits = pcre2_match_context_create(NULL);
    if (!pre->code || !pre->limits) {
        pretokenizer_close(pre);
        return error_set(error, STATUS_INTERNAL, "tokenizer: PCRE2 does not compile the expression of %s: error %d at %zu",
                         rule->name, code, offset);
    }
    pcre2_set_match_limit(pre->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(pre->limits, HEAP_LIMIT_KB);
    if (pcre2_jit_compile(pre->code, PCRE2_JIT_COMPLETE) != 0)
        log_info("TOKENIZER-JIT", "pre=%s jit=no reason=\"PCRE2 cannot compile to machine code here\"", rule->name);
    *normalize = rule->normalize;
    *ignore_merges = rule->ignore_merges;
    *out = pre;
    return STATUS_OK;
}

void pretokenizer_close(struct pretokenizer *pre)
{
    if (!pre)
        return;
    pcre2_match_context_free(pre->limits);
    pcre2_code_free(pre->code);
    free(pre);
}

// Returns where the word that begins at `at` ends. 0: PCRE2 failed with *code.
static size_t next_word(const struct pretokenizer *pre, pcre2_match_data *match, const char *text, size_t length, size_t at,
                        int *code)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    *code = pcre2_match(pre->code, subject, length, at, options, match, pre->limits);
    if (*code == PCRE2_ERROR_JIT_STACKLIMIT || *code == PCRE2_ERROR_MATCHLIMIT)
        *code = pcre2_match(pre->code, subject, length, at, options | PCRE2_NO_JIT, match, pre->limits);
    if (*code < 0)
        return 0;
    return pcre2_get_ovector_pointer(match)[1];
}

enum status pretokenizer_encode(const struct pretokenizer *pre, struct encoder *encoder, const char *text, size_t length)
{
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match)
        return error_set(encoder->error, STATUS_RESOURCE_EXHAUSTED, "tokenizer: no memory");
    enum status status = STATUS_OK;
    for (size_t at = 0; status == STATUS_OK && at < length;) {
        int code;
        size_t end = next_word(pre, match, text, length, at, &code);
        if (end <= at) {
            status = error_set(encoder->error, STATUS_INTERNAL, "tokenizer: PCRE2 error %d at byte %zu of %zu", code, at, length);
            break;
        }
        status = bpe_encode_word(encoder, text + at, end - at);
        at = end;
    }
    pcre2_match_data_free(match);
    return status;
}

// hf_pre.c: recognizes what a byte-level tokenizer.json does to a text before it merges, by the exact text of its regular expression,
// and names it as common/tokenizer does.
//
// A name there stands for three things: the expression, whether text is normalized (NFC) first, and whether a word that is a token is
// left unmerged (ignore_merges). All three must agree.
#include <string.h>

#include "common/base/checked.h"
#include "common/model/hf_state.h"

#define TOKENIZER "tokenizer.json"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_WITH_NUMBERS(numbers)                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|"          \
    "\\s+"
#define LOOSE "\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(after, numbers)                                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" LOOSE "]*[\\p{Ll}" LOOSE "]+" after "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}" LOOSE \
    "]+[\\p{Ll}" LOOSE "]*" after "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT4O CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\p{N}{1,3}")

enum { MAX_STEPS = 4, SHOWN_REGEX_BYTES = 241 };

static const struct known {
    const char *regex;
    bool digits; // each digit is split off before the expression is applied
    bool normalizes, ignores_merges;
    const char *pre;
} known[] = {
    {GPT2, false, false, false, "gpt-2"},
    {GPT2, true, false, false, "smollm"},
    {LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, false, true, "llama-bpe"},
    {LLAMA3_WITH_NUMBERS("\\p{N}{1,3}"), false, false, false, "dbrx"},
    {LLAMA3_WITH_NUMBERS("\\p{N}"), false, true, false, "qwen2"},
    {LLAMA3_WITH_NUMBERS("\\p{N}"), false, false, false, "deepseek-r1-qwen"},
    {GPT4O, false, false, false, "gpt-4o"},
    {GPT4O, false, false, true, "gpt-oss"},
    {CASED("", "\\p{N}"), false, false, true, "tekken"},
};

struct steps {
    const json_t *step[MAX_STEPS];
    size_t count; // may be more than there is room for
};

static const char *type_of(const json_t *step)
{
    const char *type = json_string_value(hf_json_get(step, "type"));
    return type ? type : "";
}

static bool is_true(const json_t *object, const char *key, bool fallback)
{
    const json_t *value = hf_json_get(object, key);
    return value ? json_is_true(value) : fallback;
}

// What a step consists of, a Sequence being those inside of it. list: the key of its list.
static void add_steps(const json_t *step, const char *list, struct steps *steps)
{
    if (!step || json_is_null(step))
        return;
    if (strcmp(type_of(step), "Sequence") != 0) {
        if (steps->count < MAX_STEPS)
            steps->step[steps->count] = step;
        steps->count++;
        return;
    }
    const json_t *inner = hf_json_get(step, list);
    for (size_t i = 0; i < json_array_size(inner); i++)
        add_steps(json_array_get(inner, i), list, steps);
}

static void refuse_step(struct hf *hf, const char *what, const json_t *step)
{
    char shown[64];

    hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "%s of type %s is not supported", what,
            hf_json_shown(shown, sizeof shown, hf_json_get(step, "type")));
}

static bool normalizes(struct hf *hf, const json_t *root)
{
    struct steps steps = {.count = 0};

    add_steps(hf_json_get(root, "normalizer"), "normalizers", &steps);
    if (steps.count > 1 || (steps.count == 1 && strcmp(type_of(steps.step[0]), "NFC") != 0))
        refuse_step(hf, "a normalizer", steps.step[0]);
    return steps.count == 1;
}

// The expression of a step that splits by one; NULL: a failure.
static const char *split_regex(struct hf *hf, const json_t *step)
{
    const char *regex = json_string_value(hf_json_get(hf_json_get(step, "pattern"), "Regex"));
    const char *behavior = json_string_value(hf_json_get(step, "behavior"));

    if (regex && behavior && strcmp(behavior, "Isolated") == 0 && !is_true(step, "invert", false))
        return regex;
    hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER,
            "a pre-tokenizer of type Split must have a Regex, behavior Isolated and not be inverted");
    return NULL;
}

// Reads the steps into the expression and whether digits are split off first. NULL: a failure.
static const char *read_steps(struct hf *hf, const json_t *root, bool *digits)
{
    struct steps steps = {.count = 0};
    const json_t *first, *last;

    add_steps(hf_json_get(root, "pre_tokenizer"), "pretokenizers", &steps);
    first = steps.step[0];
    last = steps.count && steps.count <= 2 ? steps.step[steps.count - 1] : NULL;
    if (!last || strcmp(type_of(last), "ByteLevel") != 0) {
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER,
                "a pre-tokenizer of %zu steps, the last of type '%.32s': supported are ByteLevel alone, or "
                "after one step of type Split or Digits",
                steps.count, last ? type_of(last) : "");
        return NULL;
    }
    if (is_true(last, "add_prefix_space", true)) {
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "key 'add_prefix_space' of ByteLevel is true: only false is supported");
        return NULL;
    }
    bool own = is_true(last, "use_regex", true);
    *digits = steps.count == 2 && strcmp(type_of(first), "Digits") == 0 && is_true(first, "individual_digits", false);
    if (own && (steps.count == 1 || *digits))
        return GPT2;
    if (!own && steps.count == 2 && strcmp(type_of(first), "Split") == 0)
        return split_regex(hf, first);
    refuse_step(hf, "a pre-tokenizer that begins with a step", first);
    return NULL;
}

const char *hf_name_pre_tokenizer(struct hf *hf, const json_t *root)
{
    char shown[SHOWN_REGEX_BYTES];
    bool digits = false, nfc = normalizes(hf, root), ignores = is_true(hf_json_get(root, "model"), "ignore_merges", false),
         seen = false;
    const char *regex = read_steps(hf, root, &digits);

    if (hf->status)
        return NULL;
    for (size_t i = 0; i < ARRAY_COUNT(known); i++) {
        if (known[i].digits != digits || strcmp(known[i].regex, regex) != 0)
            continue;
        if (known[i].normalizes == nfc && known[i].ignores_merges == ignores)
            return known[i].pre;
        seen = true;
    }
    gguf_printable(shown, sizeof shown, (struct gguf_string){regex, strlen(regex)});
    if (seen)
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "its pre-tokenizer is not known with %s and ignore_merges %s: %s",
                nfc ? "NFC" : "no normalizer", ignores ? "true" : "false", shown);
    else
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "its pre-tokenizer's regular expression is not known: %s", shown);
    return NULL;
}

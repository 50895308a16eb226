// tokenizer.c: tokenizer.json as the keys tokenizer.ggml.…
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/model/hf/internal.h"

// --- what is done to a text before it merges ------------------------------------------------------------------------

// Recognizes what a byte-level tokenizer.json does to a text before it merges, by the exact text of its regular expression, and names it as
// common/tokenizer does.
//
// A name there stands for three things: the expression, whether text is normalized (NFC) first, and whether a word that is a token is
// left unmerged (ignore_merges). All three must agree.

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

// Adds a step, or those inside of it if it is a Sequence. list: the key of its list.
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

// Returns the expression of a step that splits by one; NULL: a failure.
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

// Names the pre-tokenizer of a byte-level tokenizer.json for common/tokenizer; NULL: a failure.
static const char *hf_name_pre_tokenizer(struct hf *hf, const json_t *root)
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

// --- tokens and merges ----------------------------------------------------------------------------------------------

// Two kinds of BPE are known. Byte-level: tokens and merges are the same in GGUF. SentencePiece-style, where a space is U+2581 and a
// character without a token becomes bytes <0xNN>: common/tokenizer merges these by the score of what they make, and every cut of a token
// counts as a merge. tokenizer.json has a list of merges instead, made of just these cuts in the order of the scores, so minus the
// place of the first merge that makes a token is its score. A token of several characters that no merge makes cannot come of a text: it
// is typed as unused.
//
// config.json's vocab_size may be larger than the vocabulary, for rows that pad the embedding: these are tokens [PADn] without a use.

#define SPACE_MARK "\xe2\x96\x81"

enum { LSTRIP = 1, RSTRIP = 2, SINGLE_WORD = 4, NORMALIZED = 8, PREFIXED = 16, ADDED = 32 }; // fastdecode.token_flags
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };       // GGUF's numbers
enum { MAX_MERGES = 1 << 23, SHOWN_BYTES = 64, PAD_BYTES = 16 };

struct entry {
    const char *text; // in the JSON; NULL: none has this id
    size_t length;
    uint32_t type;
    uint32_t flags;
    uint32_t rank; // 1 + the first merge that makes it; 0: none does
};

struct reader {
    struct hf *hf;
    const json_t *root, *model, *vocab, *merges, *added;
    struct entry *entries; // [hf->vocab]
    bool by_bytes;         // byte-level
    bool space_prefix, at_start_only, unless_space;
    bool spaces_last; // the pre-tokenizer, not the normalizer, puts U+2581 in place of spaces
};

static const char *shown_text(char *buffer, size_t bytes, const char *text)
{
    return gguf_printable(buffer, bytes, (struct gguf_string){text, strlen(text)});
}

static bool type_is(const json_t *step, const char *type)
{
    const char *told = json_string_value(hf_json_get(step, "type"));
    return told && strcmp(told, type) == 0;
}

// --- the vocabulary -------------------------------------------------------------------------------------------------

static void read_vocab(struct reader *reader)
{
    struct hf *hf = reader->hf;
    char shown[SHOWN_BYTES], other[SHOWN_BYTES];
    const char *text;
    json_t *value;

    json_object_foreach ((json_t *)(uintptr_t)reader->vocab, text, value) {
        uint64_t id;
        if (!hf_json_whole(value, &id)) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "token '%s' has the id %s, expected a whole number",
                    shown_text(shown, sizeof shown, text), hf_json_shown(other, sizeof other, value));
            return;
        }
        if (id >= hf->vocab && hf_find_added(reader->root, text))
            continue; // a token for another kind of input, which has no row in the embedding
        if (id >= hf->vocab) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "token '%s' has the id %llu, config.json's vocab_size is %u",
                    shown_text(shown, sizeof shown, text), (unsigned long long)id, hf->vocab);
            return;
        }
        if (reader->entries[id].text) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "tokens '%s' and '%s' have the same id, %llu",
                    shown_text(other, sizeof other, reader->entries[id].text), shown_text(shown, sizeof shown, text),
                    (unsigned long long)id);
            return;
        }
        reader->entries[id] = (struct entry){.text = text, .length = strlen(text), .type = NORMAL};
    }
}

static size_t character_bytes(const char *text)
{
    size_t bytes = 1;

    while (((unsigned char)text[bytes] & 0xc0) == 0x80)
        bytes++;
    return bytes;
}

// Returns whether the piece can come of a text: a character, or what a merge makes.
static bool is_made(const struct entry *entry)
{
    return entry->rank || entry->length == 0 || character_bytes(entry->text) == entry->length;
}

// Returns how a token of this list is looked for.
static uint32_t added_flags(const struct reader *reader, const json_t *token)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } keys[] = {{"lstrip", LSTRIP}, {"rstrip", RSTRIP}, {"single_word", SINGLE_WORD}, {"normalized", NORMALIZED}};
    uint32_t flags = ADDED;

    for (size_t i = 0; i < ARRAY_COUNT(keys); i++)
        if (json_is_true(hf_json_get(token, keys[i].key)))
            flags |= keys[i].flag;
    if (flags & NORMALIZED && reader->space_prefix && !reader->unless_space)
        flags |= PREFIXED;
    return flags;
}

// Special tokens are found in text that may have them, others of this list in any, whether merges make them too or not.
static void read_added(struct reader *reader)
{
    struct hf *hf = reader->hf;
    char shown[SHOWN_BYTES];

    for (size_t i = 0; i < json_array_size(reader->added) && !hf->status; i++) {
        const json_t *token = json_array_get(reader->added, i), *content = hf_json_get(token, "content");
        const char *text = json_string_value(content);
        uint64_t id;
        if (!text || !hf_json_whole(hf_json_get(token, "id"), &id)) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "key 'added_tokens': element %zu has no content or no id", i);
            return;
        }
        if (id >= hf->vocab)
            continue;
        struct entry *entry = &reader->entries[id];
        if (entry->text && (entry->length != json_string_length(content) || memcmp(entry->text, text, entry->length) != 0)) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "key 'added_tokens': '%s' has the id %llu of another token",
                    shown_text(shown, sizeof shown, text), (unsigned long long)id);
            return;
        }
        bool made = entry->text && (reader->by_bytes || is_made(entry));
        entry->text = text;
        entry->length = json_string_length(content);
        entry->flags = added_flags(reader, token);
        if (json_is_true(hf_json_get(token, "special")))
            entry->type = CONTROL;
        else if (!made)
            entry->type = USER_DEFINED;
    }
}

static void read_unknown(struct reader *reader)
{
    const char *text = json_string_value(hf_json_get(reader->model, "unk_token"));
    uint32_t id;

    if (text && !reader->hf->status && hf_find_token(reader->hf, reader->root, text, &id)) {
        if (!reader->by_bytes)
            reader->entries[id].type = UNKNOWN;
        assembly_u32(&reader->hf->assembly, "tokenizer.ggml.unknown_token_id", id);
    }
}

// --- merges ---------------------------------------------------------------------------------------------------------

struct merge {
    const char *left, *right;
    size_t left_length, right_length;
};

// A merge is "left right" or [left, right].
static bool read_merge(const json_t *value, struct merge *merge)
{
    const char *text = json_string_value(value), *space = text ? strchr(text, ' ') : NULL;

    if (space)
        *merge = (struct merge){
            .left = text, .right = space + 1, .left_length = (size_t)(space - text), .right_length = strlen(space + 1)};
    else if (json_array_size(value) == 2 && json_is_string(json_array_get(value, 0)) && json_is_string(json_array_get(value, 1)))
        *merge = (struct merge){.left = json_string_value(json_array_get(value, 0)),
                                .right = json_string_value(json_array_get(value, 1)),
                                .left_length = json_string_length(json_array_get(value, 0)),
                                .right_length = json_string_length(json_array_get(value, 1))};
    else
        return false;
    return merge->left_length > 0 && merge->right_length > 0 && !memchr(merge->left, ' ', merge->left_length) &&
           !memchr(merge->right, ' ', merge->right_length);
}

// Byte-level: as they are. Else the rank of what each makes.
static void read_merges(struct reader *reader)
{
    struct hf *hf = reader->hf;
    size_t count = json_array_size(reader->merges);
    char joined[1024];

    if (hf->status)
        return;
    if (count > MAX_MERGES) {
        hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "%zu merges, supported: up to %d", count, MAX_MERGES);
        return;
    }
    if (reader->by_bytes)
        assembly_array(&hf->assembly, "tokenizer.ggml.merges", GGUF_STRING, count);
    for (size_t i = 0; i < count; i++) {
        struct merge merge;
        uint64_t id;
        if (!read_merge(json_array_get(reader->merges, i), &merge) || merge.left_length + merge.right_length >= sizeof joined) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "merge %zu is not \"left right\" or [\"left\", \"right\"]", i);
            return;
        }
        if (reader->by_bytes) {
            buffer_number(&hf->assembly.keys, merge.left_length + 1 + merge.right_length, 8);
            buffer_append(&hf->assembly.keys, merge.left, merge.left_length);
            buffer_append(&hf->assembly.keys, " ", 1);
            buffer_append(&hf->assembly.keys, merge.right, merge.right_length);
            continue;
        }
        memcpy(joined, merge.left, merge.left_length);
        memcpy(joined + merge.left_length, merge.right, merge.right_length);
        joined[merge.left_length + merge.right_length] = '\0';
        if (!hf_json_whole(json_object_get(reader->vocab, joined), &id)) {
            hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "merge %zu: its result is no token", i);
            return;
        }
        if (id < hf->vocab && !reader->entries[id].rank)
            reader->entries[id].rank = (uint32_t)i + 1;
    }
}

// --- SentencePiece-style --------------------------------------------------------------------------------------------

// Reads a normalizer that puts U+2581 in place of spaces, and perhaps another in front.
static bool read_normalizer(struct reader *reader, const json_t *step)
{
    if (type_is(step, "Sequence")) {
        const json_t *list = hf_json_get(step, "normalizers");
        bool all = json_array_size(list) > 0;
        for (size_t i = 0; i < json_array_size(list) && all; i++)
            all = !type_is(json_array_get(list, i), "Sequence") && read_normalizer(reader, json_array_get(list, i));
        return all;
    }
    if (type_is(step, "Prepend")) {
        const char *text = json_string_value(hf_json_get(step, "prepend"));
        reader->space_prefix = true;
        return text && strcmp(text, SPACE_MARK) == 0;
    }
    const char *from = json_string_value(hf_json_get(hf_json_get(step, "pattern"), "String"));
    const char *to = json_string_value(hf_json_get(step, "content"));
    return type_is(step, "Replace") && from && to && strcmp(from, " ") == 0 && strcmp(to, SPACE_MARK) == 0;
}

// Metaspace does what that normalizer does. A Split at spaces does nothing once there are none.
static bool read_metaspace(struct reader *reader, const json_t *step, bool replaced)
{
    const char *mark = json_string_value(hf_json_get(step, "replacement")),
               *scheme = json_string_value(hf_json_get(step, "prepend_scheme"));
    const char *split = json_string_value(hf_json_get(hf_json_get(step, "pattern"), "String"));

    if (!step || type_is(step, "Split"))
        return replaced && (!step || (split && strcmp(split, " ") == 0));
    reader->unless_space = !reader->space_prefix;
    reader->at_start_only = !reader->space_prefix && scheme && strcmp(scheme, "first") == 0;
    reader->space_prefix |= scheme ? strcmp(scheme, "never") != 0 : !json_is_false(hf_json_get(step, "add_prefix_space"));
    return type_is(step, "Metaspace") && mark && strcmp(mark, SPACE_MARK) == 0 && json_is_false(hf_json_get(step, "split"));
}

static void check_spaces(struct reader *reader)
{
    struct hf *hf = reader->hf;
    const json_t *normalizer = hf_json_get(reader->root, "normalizer");
    bool replaced = normalizer != NULL && read_normalizer(reader, normalizer);
    char shown[SHOWN_BYTES];

    reader->spaces_last = !replaced;
    if (normalizer && !replaced)
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER,
                "its normalizer, of type %s, is not supported: expected one that puts U+2581 in place of spaces",
                hf_json_shown(shown, sizeof shown, hf_json_get(normalizer, "type")));
    else if (!read_metaspace(reader, hf_json_get(reader->root, "pre_tokenizer"), replaced))
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER,
                "its pre-tokenizer is not supported: expected ByteLevel, or Metaspace that does not split");
    else if (!json_is_true(hf_json_get(reader->model, "byte_fallback")))
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER,
                "key 'byte_fallback' is not true: only true is supported for BPE of characters");
    else if (json_is_true(hf_json_get(reader->model, "ignore_merges")))
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "key 'ignore_merges' is true: only false is supported for BPE of characters");
}

static bool is_byte_token(const struct entry *entry)
{
    static const char digits[] = "0123456789ABCDEFabcdef";

    return entry->length == 6 && memcmp(entry->text, "<0x", 3) == 0 && entry->text[5] == '>' && strchr(digits, entry->text[3]) &&
           strchr(digits, entry->text[4]);
}

static void type_pieces(struct reader *reader)
{
    for (uint32_t id = 0; id < reader->hf->vocab; id++) {
        struct entry *entry = &reader->entries[id];
        if (!entry->text || entry->type != NORMAL)
            continue;
        if (is_byte_token(entry))
            entry->type = BYTE;
        else if (!is_made(entry))
            entry->type = UNUSED;
    }
}

// --- the keys -------------------------------------------------------------------------------------------------------

static void put_tokens(struct reader *reader)
{
    struct hf *hf = reader->hf;
    struct gguf_buffer *keys = &hf->assembly.keys;
    char pad[PAD_BYTES];

    assembly_array(&hf->assembly, "tokenizer.ggml.tokens", GGUF_STRING, hf->vocab);
    for (uint32_t id = 0; id < hf->vocab; id++) {
        const struct entry *entry = &reader->entries[id];
        if (!entry->text)
            snprintf(pad, sizeof pad, "[PAD%u]", id);
        buffer_string(keys, entry->text ? entry->text : pad, entry->text ? entry->length : strlen(pad));
    }
    assembly_array(&hf->assembly, "tokenizer.ggml.token_type", GGUF_I32, hf->vocab);
    for (uint32_t id = 0; id < hf->vocab; id++)
        buffer_number(keys, reader->entries[id].text ? reader->entries[id].type : UNUSED, 4);
    assembly_array(&hf->assembly, "fastdecode.token_flags", GGUF_U8, hf->vocab);
    for (uint32_t id = 0; id < hf->vocab; id++)
        buffer_number(keys, reader->entries[id].flags, 1);
    if (reader->by_bytes)
        return;
    assembly_array(&hf->assembly, "tokenizer.ggml.scores", GGUF_F32, hf->vocab);
    for (uint32_t id = 0; id < hf->vocab; id++) {
        float score = -(float)reader->entries[id].rank; // whole numbers up to 2^23 are exact
        uint32_t bits;
        memcpy(&bits, &score, sizeof bits);
        buffer_number(keys, bits, 4);
    }
}

static bool is_byte_level(const json_t *step)
{
    const json_t *list = hf_json_get(step, "pretokenizers");
    bool found = type_is(step, "ByteLevel");

    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = is_byte_level(json_array_get(list, i));
    return found;
}

static void check_model(struct reader *reader)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    struct hf *hf = reader->hf;
    const json_t *type = hf_json_get(reader->model, "type"), *dropout = hf_json_get(reader->model, "dropout");
    char shown[SHOWN_BYTES];

    if (!json_is_object(reader->model))
        hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "key 'model' is missing: expected an object");
    else if (type && !type_is(reader->model, "BPE"))
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "a model of type %s is not supported: only BPE is",
                hf_json_shown(shown, sizeof shown, type));
    else if (!json_is_object(reader->vocab) || !json_is_array(reader->merges))
        hf_fail(hf, STATUS_INVALID_ARGUMENT, TOKENIZER, "key '%s' of its model is missing",
                json_is_object(reader->vocab) ? "merges" : "vocab");
    else if (dropout && json_number_value(dropout) != 0)
        hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "key 'dropout' is %s: only null is supported",
                hf_json_shown(shown, sizeof shown, dropout));
    for (size_t i = 0; i < ARRAY_COUNT(empty); i++)
        if (hf_json_get(reader->model, empty[i]) && json_string_length(hf_json_get(reader->model, empty[i])) > 0)
            hf_fail(hf, STATUS_UNIMPLEMENTED, TOKENIZER, "key '%s' is not empty, which is not supported", empty[i]);
}

static void translate_tokens(struct reader *reader)
{
    struct hf *hf = reader->hf;
    struct assembly *out = &hf->assembly;
    const char *pre = "default";

    check_model(reader);
    reader->by_bytes = is_byte_level(hf_json_get(reader->root, "pre_tokenizer"));
    if (reader->by_bytes)
        pre = hf_name_pre_tokenizer(hf, reader->root);
    else if (!hf->status)
        check_spaces(reader);
    if (hf->status)
        return;
    reader->entries = calloc(hf->vocab, sizeof *reader->entries);
    if (!reader->entries) {
        hf_fail(hf, STATUS_RESOURCE_EXHAUSTED, TOKENIZER, "no memory for %u tokens", hf->vocab);
        return;
    }
    assembly_string(out, "tokenizer.ggml.model", reader->by_bytes ? "gpt2" : "llama", reader->by_bytes ? 4 : 5);
    assembly_string(out, "tokenizer.ggml.pre", pre, strlen(pre));
    if (!reader->by_bytes)
        assembly_bool(out, "tokenizer.ggml.add_space_prefix", reader->space_prefix);
    if (reader->space_prefix && reader->at_start_only)
        assembly_bool(out, "fastdecode.prefix_at_start_only", true);
    if (reader->space_prefix && reader->unless_space)
        assembly_bool(out, "fastdecode.prefix_unless_space", true);
    if (reader->spaces_last)
        assembly_bool(out, "fastdecode.spaces_last", true);
    read_vocab(reader);
    read_merges(reader);
    read_added(reader);
    read_unknown(reader);
    if (!reader->by_bytes)
        type_pieces(reader);
    if (!hf->status)
        put_tokens(reader);
    free(reader->entries);
}

void hf_translate_tokenizer(struct hf *hf)
{
    json_t *root = hf_file_json(hf, TOKENIZER);
    const json_t *model = hf_json_get(root, "model");
    struct reader reader = {.hf = hf,
                            .root = root,
                            .model = model,
                            .vocab = hf_json_get(model, "vocab"),
                            .merges = hf_json_get(model, "merges"),
                            .added = hf_json_get(root, "added_tokens")};

    if (!root)
        hf_fail(hf, STATUS_INVALID_ARGUMENT, NULL, "it has no " TOKENIZER " (transformers' AutoTokenizer writes one)");
    if (!hf->status)
        translate_tokens(&reader);
    if (!hf->status)
        hf_translate_special(hf, root);
    json_decref(root);
}

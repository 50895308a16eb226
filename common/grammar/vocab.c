// vocab.c: a vocabulary as a trie of bytes, with what masks want to know of its tokens (vocab_state.h).
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/text.h"
#include "common/grammar/vocab_state.h"

enum { MAX_BYTES = 1 << 30, MAX_TOKENS = 1 << 24 };

// --- the trie -----------------------------------------------------------------------------------------------------------

static int trie_compare_entries(const void *left, const void *right)
{
    const struct grammar_trie_entry *a = left, *b = right;
    int order = memcmp(a->bytes, b->bytes, MIN(a->length, b->length));

    if (order)
        return order;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return (a->token > b->token) - (a->token < b->token);
}

static uint32_t trie_common_bytes(const struct grammar_trie_entry *a, const struct grammar_trie_entry *b)
{
    uint32_t count = 0;

    while (count < a->length && count < b->length && a->bytes[count] == b->bytes[count])
        count++;
    return count;
}

// Fills the nodes. path: the node of each depth.
static void trie_fill(const struct grammar_trie_entry *entries, uint32_t count, struct grammar_trie *out, uint32_t *path)
{
    uint32_t depth = 0, nodes = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct grammar_trie_entry *entry = &entries[i];
        uint32_t common = i ? trie_common_bytes(entry, &entries[i - 1]) : 0;
        for (; depth > common; depth--)
            out->nodes[path[depth - 1]].end = nodes;
        for (; depth < entry->length; depth++) {
            path[depth] = nodes;
            out->nodes[nodes++] = (struct grammar_trie_node){
                .token = out->token_count, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)entry->bytes[depth]};
        }
        out->numbers[out->token_count] = (uint16_t)entry->number;
        out->tokens[out->token_count++] = entry->token;
    }
    for (; depth; depth--)
        out->nodes[path[depth - 1]].end = nodes;
    out->nodes[nodes] = (struct grammar_trie_node){.token = out->token_count};
}

static void trie_close(struct grammar_trie *trie)
{
    free(trie->nodes);
    free(trie->tokens);
    free(trie->numbers);
    *trie = (struct grammar_trie){0};
}

// Builds the trie of strings of 1 to 65535 bytes, which it sorts. Returns false without memory; there is nothing to close then.
static bool trie_open(struct grammar_trie_entry *entries, uint32_t count, struct grammar_trie *out)
{
    size_t nodes = 0, longest = 0;
    uint32_t *path;

    *out = (struct grammar_trie){0};
    qsort(entries, count, sizeof *entries, trie_compare_entries);
    for (uint32_t i = 0; i < count; i++) {
        nodes += entries[i].length - (i ? trie_common_bytes(&entries[i], &entries[i - 1]) : 0);
        longest = MAX(longest, entries[i].length);
    }
    if (nodes >= UINT32_MAX || longest > UINT16_MAX)
        return false;
    path = malloc((longest + 1) * sizeof *path);
    out->nodes = malloc((nodes + 1) * sizeof *out->nodes);
    out->tokens = malloc(((size_t)count + 1) * sizeof *out->tokens);
    out->numbers = malloc(((size_t)count + 1) * sizeof *out->numbers);
    if (path && out->nodes && out->tokens && out->numbers) {
        out->node_count = (uint32_t)nodes;
        trie_fill(entries, count, out, path);
    } else
        trie_close(out);
    free(path);
    return out->nodes != NULL;
}

// --- the vocabulary -----------------------------------------------------------------------------------------------------

static bool copy_bytes(struct grammar_vocab *vocab, grammar_token_fn *bytes_of, void *arg)
{
    char *scratch = malloc(GRAMMAR_TOKEN_BYTES);
    struct text text = {0};

    for (uint32_t t = 0; scratch && t < vocab->token_count && !text.failed && text.bytes <= MAX_BYTES; t++) {
        const char *bytes = scratch;
        size_t length = bytes_of(arg, t, scratch, &bytes);
        if (length <= GRAMMAR_TOKEN_BYTES) // no grammar allows longer ones
            text_append(&text, bytes, length);
        vocab->starts[t + 1] = (uint32_t)text.bytes;
    }
    vocab->bytes = text.data;
    free(scratch);
    return scratch && !text.failed && text.bytes <= MAX_BYTES;
}

// Returns how many plain characters a token begins with, and sets *bytes to what they take.
static uint32_t count_plain(const char *text, size_t length, size_t *bytes)
{
    uint32_t count = 0;

    for (*bytes = 0; *bytes < length; count++) {
        size_t taken;
        if (!grammar_char_is_plain(grammar_utf8_next(text + *bytes, length - *bytes, &taken)))
            break;
        *bytes += taken;
    }
    return count;
}

// Writes which groups the bytes of a token from each place on are of. In the middle of a character nothing is looked at together.
static void find_groups(const char *text, uint32_t length, uint64_t *groups)
{
    const uint64_t broken = (uint64_t)1 << GRAMMAR_GROUP_BROKEN;
    uint64_t behind = 0;

    memset(groups, 0, (length + 1) * sizeof *groups);
    for (size_t at = 0, taken; at < length; at += taken) {
        uint32_t code = grammar_utf8_next(text + at, length - at, &taken);
        groups[at] = code < 0x80                   ? (uint64_t)1 << grammar_group_of((uint8_t)code)
                     : grammar_char_is_plain(code) ? (uint64_t)1 << GRAMMAR_GROUP_LONG
                                                   : broken;
    }
    for (uint32_t at = length; at-- > 0;) {
        behind |= groups[at];
        groups[at] = groups[at] ? behind : broken;
    }
}

static bool build_groups(struct grammar_vocab *vocab)
{
    const struct grammar_trie *trie = &vocab->all;
    uint32_t *path = malloc((GRAMMAR_TOKEN_BYTES + 1) * sizeof *path);
    uint64_t *groups = malloc((GRAMMAR_TOKEN_BYTES + 1) * sizeof *groups);

    vocab->groups = calloc((size_t)trie->node_count + 1, sizeof *vocab->groups);
    for (uint32_t n = 0; path && groups && vocab->groups && n < trie->node_count; n++) {
        uint32_t depth = trie->nodes[n].depth;
        path[depth] = n;
        if (trie->nodes[n].token == trie->nodes[n + 1].token)
            continue;
        find_groups(vocab->bytes + vocab->starts[trie->tokens[trie->nodes[n].token]], depth, groups);
        for (uint32_t d = 1; d <= depth; d++)
            vocab->groups[path[d]] |= groups[d];
    }
    free(path);
    free(groups);
    return path && groups && vocab->groups;
}

static bool build_all(struct grammar_vocab *vocab, struct grammar_trie_entry *entries)
{
    uint32_t count = 0;

    for (uint32_t t = 0; t < vocab->token_count; t++) {
        uint32_t length = vocab->starts[t + 1] - vocab->starts[t];
        if (length)
            entries[count++] = (struct grammar_trie_entry){.bytes = vocab->bytes + vocab->starts[t], .length = length, .token = t};
    }
    return trie_open(entries, count, &vocab->all) && build_groups(vocab);
}

// Sorts the plain tokens by their characters and builds the trie of the others' ends. chars: [token_count] of scratch.
static bool build_plain(struct grammar_vocab *vocab, struct grammar_trie_entry *entries, uint32_t *chars)
{
    uint32_t count = 0, sum = 0;

    for (uint32_t t = 0; t < vocab->token_count; t++) {
        const char *text = vocab->bytes + vocab->starts[t];
        size_t length = vocab->starts[t + 1] - vocab->starts[t], bytes;
        chars[t] = count_plain(text, length, &bytes);
        vocab->most_chars = MAX(vocab->most_chars, chars[t]);
        if (bytes == length)
            continue;
        entries[count++] = (struct grammar_trie_entry){
            .bytes = text + bytes, .length = (uint32_t)(length - bytes), .token = t, .number = chars[t]};
        chars[t] = 0; // not plain
    }
    vocab->plain_starts = calloc((size_t)vocab->most_chars + 2, sizeof *vocab->plain_starts);
    vocab->has_ends = calloc((size_t)vocab->most_chars + 1, sizeof *vocab->has_ends);
    if (!vocab->plain_starts || !vocab->has_ends)
        return false;
    for (uint32_t i = 0; i < count; i++)
        vocab->has_ends[entries[i].number] = true;
    for (uint32_t t = 0; t < vocab->token_count; t++)
        vocab->plain_starts[chars[t]] += chars[t] > 0;
    for (uint32_t n = 0; n <= vocab->most_chars + 1; n++) {
        uint32_t its = vocab->plain_starts[n];
        vocab->plain_starts[n] = sum;
        sum += its;
    }
    for (uint32_t t = 0; t < vocab->token_count; t++)
        if (chars[t]) {
            vocab->plain_tokens[vocab->plain_starts[chars[t]]++] = t;
            vocab->plain_words[t / 32] |= 1u << t % 32;
        }
    for (uint32_t n = vocab->most_chars + 1; n > 0; n--) // each begins where the one before ended
        vocab->plain_starts[n] = vocab->plain_starts[n - 1];
    vocab->plain_starts[0] = 0;
    return trie_open(entries, count, &vocab->ends);
}

static bool vocab_build(struct grammar_vocab *vocab, grammar_token_fn *bytes_of, void *arg)
{
    const size_t tokens = (size_t)vocab->token_count + 1;
    struct grammar_trie_entry *entries = malloc(tokens * sizeof *entries);
    uint32_t *chars = malloc(tokens * sizeof *chars);
    bool built = false;

    vocab->starts = calloc(tokens, sizeof *vocab->starts);
    vocab->plain_words = calloc((tokens + 31) / 32, sizeof *vocab->plain_words);
    vocab->plain_tokens = malloc(tokens * sizeof *vocab->plain_tokens);
    if (entries && chars && vocab->starts && vocab->plain_words && vocab->plain_tokens)
        built = copy_bytes(vocab, bytes_of, arg) && build_all(vocab, entries) && build_plain(vocab, entries, chars);
    free(entries);
    free(chars);
    return built;
}

enum status grammar_vocab_open(uint32_t token_count, grammar_token_fn *bytes_of, void *arg, struct grammar_vocab **out,
                               struct error *error)
{
    struct grammar_vocab *vocab = token_count <= MAX_TOKENS ? calloc(1, sizeof *vocab) : NULL;

    *out = NULL;
    if (vocab)
        vocab->token_count = token_count;
    if (!vocab || !vocab_build(vocab, bytes_of, arg)) {
        grammar_vocab_close(vocab);
        return error_set(error, STATUS_UNAVAILABLE, "out of memory for a vocabulary of %u tokens", token_count);
    }
    *out = vocab;
    return STATUS_OK;
}

void grammar_vocab_close(struct grammar_vocab *vocab)
{
    if (!vocab)
        return;
    trie_close(&vocab->all);
    trie_close(&vocab->ends);
    free(vocab->starts);
    free(vocab->bytes);
    free(vocab->plain_words);
    free(vocab->plain_tokens);
    free(vocab->plain_starts);
    free(vocab->has_ends);
    free(vocab->groups);
    free(vocab);
}

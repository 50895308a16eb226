// vocab_state.h: the tables of a vocabulary.
//
// A plain character is one that may stand anywhere inside a JSON string as it is: no '"', '\' or control character (nor DEL, U+2028 and
// U+2029, which other grammars like to leave out). Most tokens are plain through and through, and most of a text is inside strings: a
// configuration for which all plain characters are the same (cursor.c finds out) needs not look at those tokens one by one. Of any other
// token only what follows its plain characters matters to it, and there are few such ends.
#ifndef FD_GRAMMAR_VOCAB_STATE_H
#define FD_GRAMMAR_VOCAB_STATE_H

#include "common/grammar/grammar.h"
#include "common/grammar/utf8.h"

// Strings as a tree of bytes, in depth-first order, so that it is walked from the first node to the last.

// A string that belongs to a token, with a number that the caller gives it.
struct grammar_trie_entry {
    const char *bytes;
    uint32_t length, token, number;
};

// A node is a byte of at least one string, after the bytes of the nodes above it.
struct grammar_trie_node {
    uint32_t end;   // the node after its subtree
    uint32_t token; // the first of the tokens whose strings end here; they end where the next node's begin
    uint16_t depth; // 1: the first byte
    uint8_t byte;
};

struct grammar_trie {
    uint32_t node_count, token_count;
    struct grammar_trie_node *nodes; // [node_count + 1]
    uint32_t *tokens;                // [token_count]
    uint16_t *numbers;               // [token_count]; ascending at one node
};

// Groups of characters that grammars like to treat alike. What a token has of each, after a node of the trie, is a bit: where a
// configuration leads to itself for all of them, so does each token of the node's subtree.
enum {
    GRAMMAR_GROUP_LONG = 60,   // plain characters of several bytes
    GRAMMAR_GROUP_BROKEN = 61, // parts of characters, and whatever else is never looked at together
    GRAMMAR_GROUPS_KNOWN = 63, // no group: the bit is set once a configuration's are known
};

// Returns the group of an ASCII character.
static inline uint32_t grammar_group_of(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return 0;
    if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z')
        return 1 + (byte >= 'a') * 2 + ((byte | 0x20) > 'f'); // hexadecimal digits apart
    if (byte < 0x20 || byte == 0x7f)
        return byte == '\t' ? 5 : byte == '\n' ? 6 : byte == '\r' ? 7 : 8;
    return byte < '0' ? 9 + byte - ' ' : byte < 'A' ? 25 + byte - ':' : byte < 'a' ? 32 + byte - '[' : 38 + byte - '{';
}

struct grammar_vocab {
    uint32_t token_count;
    uint32_t *starts; // [token_count + 1] where each token's bytes begin
    char *bytes;
    struct grammar_trie all;
    uint64_t *groups;         // [all.node_count] of the tokens of the node's subtree, behind the node
    uint32_t *plain_words;    // [(token_count + 31) / 32] the tokens that are plain
    uint32_t *plain_tokens;   // those, by the number of their characters
    uint32_t *plain_starts;   // [most_chars + 2] where those of so many characters begin
    bool *has_ends;           // [most_chars + 1] there are tokens of an end behind so many plain characters
    uint32_t most_chars;      // the longest plain token or plain start of another
    struct grammar_trie ends; // the other tokens' ends behind their plain characters, whose number entries have
};

static inline bool grammar_char_is_plain(uint32_t code)
{
    return code >= 0x20 && code != '"' && code != '\\' && code != 0x7f && code != 0x2028 && code != 0x2029 &&
           code <= GRAMMAR_CHAR_MAX;
}

#endif

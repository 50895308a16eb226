// apikey.h: API keys: how they are made, and the hash by which a file of keys names them.
//
// The hash is BLAKE2b-256 of the key. A key that apikey_make() draws has 256 random bits, so nobody finds it from its hash, and the hash
// needs neither salt nor cost.
#ifndef FD_API_APIKEY_H
#define FD_API_APIKEY_H

#include <stdbool.h>
#include <stddef.h>

enum {
    APIKEY_BYTES_MAX = 512,
    APIKEY_HASH_BYTES = 32,
    APIKEY_HASH_TEXT_BYTES = 8 + 2 * APIKEY_HASH_BYTES + 1, // "blake2b:", the digits and the end
    APIKEY_TEXT_BYTES = 64,                                 // of a key that is made
    APIKEY_NAME_BYTES = 64,                                 // of an owner's name, its end included
    APIKEY_MODELS_BYTES = 256,                              // of a list of models
};
#define APIKEY_HASH_PREFIX "blake2b:"

// Returns whether it can be an owner's name: letters, digits and ._-@, at least one of them.
bool apikey_is_name(const char *text);

void apikey_hash(const char *key, size_t bytes, unsigned char hash[APIKEY_HASH_BYTES]);
void apikey_hash_text(const char *key, char out[APIKEY_HASH_TEXT_BYTES]);

// Draws a new key: "fd-" and 43 letters, digits, - and _. Blocks until the system has random bytes.
void apikey_make(char out[APIKEY_TEXT_BYTES]);

#endif

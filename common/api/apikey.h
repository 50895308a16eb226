// apikey.h: API keys: how they are made, the hash by which a file of keys names them, and the lines of such a file, as gateways read it and
// `fastdecode key` writes it. services/gateway/http/keys.h has an example.
//
// The hash is BLAKE2b-256 of the key. A key that apikey_make() draws has 256 random bits, so nobody finds it from its hash, and the hash
// needs neither salt nor cost.
#ifndef FD_API_APIKEY_H
#define FD_API_APIKEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

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

// --- a file of keys ---------------------------------------------------------------------------------------------------

enum {
    APIKEY_TENANT_BYTES = 40, // "key-" and 32 digits
    APIKEY_FILE_KEYS_MAX = 4096,
};

// The limits of an owner. 0: none.
struct apikey_limits {
    uint64_t requests, tokens;        // in any 60 seconds; tokens: of prompts and answers
    uint32_t open;                    // requests at a time
    bool batch;                       // its requests are of latency class batch
    char models[APIKEY_MODELS_BYTES]; // names, with commas between them; "": all
};

// A key: a plain one, or one of an owner with a name.
struct apikey_line {
    uint32_t number;              // of the line, from 1
    char name[APIKEY_NAME_BYTES]; // "": plain
    unsigned char hash[APIKEY_HASH_BYTES];
    char tenant[APIKEY_TENANT_BYTES]; // of its owner: the name's, or the plain key's own
    struct apikey_limits limits;
};

// Keys differ, and those of one owner have the same limits. Zeroed: without keys.
struct apikey_file {
    struct apikey_line *lines; // [count]; owned
    uint32_t count;
    uint32_t number; // of the latest line, those without a key included
};

// Reads to the end of the file. Errors name path and line; apikey_file_close() all the same.
enum status apikey_file_read(FILE *file, const char *path, struct apikey_file *out, struct error *error) MUST_CHECK;
// Adds the next line, which it cuts into pieces. A line without a key, and a key that its owner has already, change nothing.
enum status apikey_file_add(struct apikey_file *file, const char *path, char *text, struct error *error) MUST_CHECK;
void apikey_file_close(struct apikey_file *file);

#endif

// apikey_file.h: the lines of a file of API keys, as gateways read it and `fastdecode key` writes it. services/gateway/http/keys.h has an example.
#ifndef FD_API_APIKEY_FILE_H
#define FD_API_APIKEY_FILE_H

#include <stdint.h>
#include <stdio.h>

#include "common/api/apikey.h"
#include "common/base/status.h"

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

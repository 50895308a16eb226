// apikey.c: makes API keys and hashes them.
#include "common/api/apikey.h"

#include <sodium.h>
#include <string.h>

bool apikey_is_name(const char *text)
{
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@");
    return length > 0 && length < APIKEY_NAME_BYTES && text[length] == '\0';
}

void apikey_hash(const char *key, size_t bytes, unsigned char hash[APIKEY_HASH_BYTES])
{
    crypto_generichash(hash, APIKEY_HASH_BYTES, (const unsigned char *)key, bytes, NULL, 0);
}

void apikey_hash_text(const char *key, char out[APIKEY_HASH_TEXT_BYTES])
{
    unsigned char hash[APIKEY_HASH_BYTES];

    apikey_hash(key, strlen(key), hash);
    memcpy(out, APIKEY_HASH_PREFIX, strlen(APIKEY_HASH_PREFIX));
    sodium_bin2hex(out + strlen(APIKEY_HASH_PREFIX), APIKEY_HASH_TEXT_BYTES - strlen(APIKEY_HASH_PREFIX), hash, sizeof hash);
}

void apikey_make(char out[APIKEY_TEXT_BYTES])
{
    unsigned char random[APIKEY_HASH_BYTES];

    randombytes_buf(random, sizeof random);
    memcpy(out, "fd-", 3);
    sodium_bin2base64(out + 3, APIKEY_TEXT_BYTES - 3, random, sizeof random, sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_memzero(random, sizeof random);
}

// client_key.c: the key of a request, in the header that its client sends it in.
//
// Most clients send "Authorization: Bearer KEY", Anthropic's "x-api-key: KEY".
#include <stdio.h>

#include "services/gateway/serve/gateway_internal.h"

enum { HEADER_BYTES = APIKEY_BYTES_MAX + 16 };

// Returns the former, whichever was sent; "" without any.
static const char *given_key(struct exchange *exchange, char buffer[HEADER_BYTES])
{
    const char *given = exchange_header(exchange, "Authorization"), *plain = exchange_header(exchange, "x-api-key");

    if (*given || !*plain)
        return given;
    snprintf(buffer, HEADER_BYTES, "Bearer %s", plain); // one that is cut off is longer than any key
    return buffer;
}

struct key *client_key(struct gateway *gateway, struct exchange *exchange)
{
    char buffer[HEADER_BYTES];

    return gateway->keys ? keys_find(gateway->keys, given_key(exchange, buffer)) : NULL;
}

bool client_gives_key(struct exchange *exchange)
{
    char buffer[HEADER_BYTES];

    return *given_key(exchange, buffer) != '\0';
}

bool client_is_admin(struct gateway *gateway, struct exchange *exchange)
{
    const char *file = gateway->config.admin_key_file;
    char buffer[HEADER_BYTES];

    if (gateway->admin_keys)
        return keys_find(gateway->admin_keys, given_key(exchange, buffer)) != NULL;
    return file || exchange_is_from_this_host(exchange); // it says "open"
}

const char *client_tenant(struct gateway *gateway, struct exchange *exchange)
{
    const struct key *key = client_key(gateway, exchange);

    return key ? key->tenant : "";
}

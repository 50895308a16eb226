// dialect_ask.h: a request of another form of the API, for tests. Included once a test program, after cmocka.h.
#ifndef FD_TESTS_DIALECT_ASK_H
#define FD_TESTS_DIALECT_ASK_H

#include <jansson.h>

#include "services/gateway/api/dialects/dialect.h"

// The caller frees .body.
static inline struct dialect_ask ask_of(const char *body, struct response_store *store)
{
    json_t *root = json_loads(body, 0, NULL);

    if (!root)
        fail_msg("the test's body is not JSON: %s", body);
    return (struct dialect_ask){.body = root, .tenant = "t", .request_id = "r", .store = store, .kind = API_CHAT};
}

#endif

// responses_ask.h: requests of OpenAI's responses, translated, and what they leave for the answer.
#ifndef FD_GATEWAY_API_DIALECTS_RESPONSES_ASK_H
#define FD_GATEWAY_API_DIALECTS_RESPONSES_ASK_H

#include "services/gateway/api/dialects/dialect.h"
#include "services/gateway/http/key.h"
#include "services/gateway/http/json_write.h"

// What an answer needs of its request.
struct dialect_responses_own {
    struct text echo; // fields that the answer repeats: ,"instructions":null,...
    struct response_store *store;
    char tenant[KEY_TENANT_BYTES], id[DIALECT_ID_BYTES];
    bool kept; // the store has an entry that waits for the answer
};

// Kind API_TOKENIZE has the same input, to be counted.
bool dialect_responses_translate(struct dialect_ask *ask, struct api_error *error);
void dialect_responses_free_own(void *own);

#endif

// messages_ask.h: requests of Anthropic's messages, translated.
#ifndef FD_GATEWAY_API_DIALECTS_MESSAGES_ASK_H
#define FD_GATEWAY_API_DIALECTS_MESSAGES_ASK_H

#include "services/gateway/api/dialects/dialect.h"

// messages_ask.c. Of kind API_TOKENIZE, too: the same messages, to be counted.
bool dialect_messages_translate(struct dialect_ask *ask, struct api_error *error);

#endif

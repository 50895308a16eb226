// dialect_messages.h: what the two files of Anthropic's messages share.
#ifndef FD_GATEWAY_DIALECT_MESSAGES_H
#define FD_GATEWAY_DIALECT_MESSAGES_H

#include "services/gateway/dialect.h"

// dialect_messages_ask.c. Of kind API_TOKENIZE, too: the same messages, to be counted.
bool dialect_messages_translate(struct dialect_ask *ask, struct api_error *error);

#endif

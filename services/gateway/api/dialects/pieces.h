// pieces.h: reading the JSON of other forms of the API, and writing the chat request that it becomes.
//
// Functions that fail set *error, or leave its status 0: out of memory, which dialect_translate() says.
#ifndef FD_GATEWAY_API_DIALECTS_PIECES_H
#define FD_GATEWAY_API_DIALECTS_PIECES_H

#include <jansson.h>

#include "services/gateway/api/schema/schema.h"
#include "services/gateway/http/api_error.h"

bool dialect_unsupported(struct api_error *error, const char *name, const char *why);

// Returns a member, or NULL if there is none or it is null.
const json_t *dialect_member(const json_t *object, const char *key);
// Sets a member to a value that another object has, too. value NULL: does nothing.
bool dialect_set(json_t *object, const char *key, const json_t *value) __attribute__((warn_unused_result));
// Sets it to a new value, whose reference is taken over; NULL fails.
bool dialect_set_new(json_t *object, const char *key, json_t *value) __attribute__((warn_unused_result));
bool dialect_add_new(json_t *array, json_t *value) __attribute__((warn_unused_result));
// Copies members that mean the same in a chat. names: up to NULL.
bool dialect_copy(json_t *to, const json_t *from, const char *const *names) __attribute__((warn_unused_result));

// Fields of sampling beside OpenAI's, which a dialect passes on as they are; up to NULL.
extern const char *const dialect_sampling_fields[];

// Notes the members of a body that are in none of the lists, each up to NULL or NULL itself, and have a value.
void dialect_note_ignored(struct api_ignored *out, const json_t *body, const char *const *known, const char *const *more,
                          const char *const *others);

// {"role": role, "content": content}, appended to the messages. content is taken over; NULL fails. *message: borrowed.
bool dialect_add_message(json_t *messages, const char *role, json_t *content, json_t **message) __attribute__((warn_unused_result));
// Adds a call to the last message if that is the assistant's, else to a new one. call is taken over; NULL fails.
bool dialect_append_call(json_t *messages, json_t *call, json_t **message) __attribute__((warn_unused_result));
// Likewise, a call of a function. arguments: a string of JSON.
bool dialect_add_call(json_t *messages, const json_t *id, const json_t *name, const json_t *arguments, json_t **message)
    __attribute__((warn_unused_result));
// {"type": "function", "function": {"name", "description", "parameters", "strict"}} of members of another object.
json_t *dialect_function(const json_t *tool, const char *parameters_key);
// Appends the arguments of a call as an object. A model may write what no chat request may have as such: that is {"arguments": text}.
void dialect_append_arguments(const char *data, size_t bytes, struct text *out);
// {"type": "text", "text": text}
json_t *dialect_text_part(const json_t *text);

#endif

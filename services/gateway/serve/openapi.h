// openapi.h: the document that says what the server answers, /openapi.json.
//
// services/gateway/serve/openapi/openapi.json has paths, answers and whatever is no plain number or text; the fields of chats, completions and
// tokens come from the schema's own tables, so that the document cannot differ from what is read.
#ifndef FD_GATEWAY_SERVE_OPENAPI_H
#define FD_GATEWAY_SERVE_OPENAPI_H

#include <stddef.h>

#include "services/gateway/http/json_write.h"

// The file, embedded.
extern const unsigned char openapi_file[];
extern const size_t openapi_file_bytes;

// Appends the document. model: the name of the one that is served. Lack of memory sets out->failed.
void openapi_render(const char *version, const char *model, struct text *out);

#endif

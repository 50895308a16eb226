// api_request.h: what requests to an OpenAI server have in common, whatever is asked (batch_ask.c, load_client.c).
#ifndef FD_FASTDECODE_LOAD_API_REQUEST_H
#define FD_FASTDECODE_LOAD_API_REQUEST_H

#include <curl/curl.h>
#include <stddef.h>

// Returns how much of a URL is the server's: users of OpenAI's clients end it in "/v1".
int api_server_length(const char *url);

// Returns the headers of a request with a body in JSON; api_key: NULL: none. The caller frees them. NULL: no memory.
struct curl_slist *api_headers_make(const char *api_key);

// Returns a handle that sends these headers, which are borrowed, and gives the answer's bytes to on_body. The caller cleans it up. NULL: no
// memory.
CURL *api_handle_open(struct curl_slist *headers, size_t (*on_body)(char *data, size_t size, size_t count, void *user), void *user);

#endif

// api_request.c: see api_request.h.
#include "services/fastdecode/load/api_request.h"

#include <stdio.h>
#include <string.h>

enum { CONNECT_S = 10 };

int api_server_length(const char *url)
{
    size_t length = strlen(url);

    while (length > 0 && url[length - 1] == '/')
        length--;
    return (int)(length > 3 && memcmp(url + length - 3, "/v1", 3) == 0 ? length - 3 : length);
}

struct curl_slist *api_headers_make(const char *api_key)
{
    char line[1024];
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");

    headers = curl_slist_append(headers, "Expect:"); // no question before a body
    if (api_key) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", api_key);
        headers = curl_slist_append(headers, line);
    }
    return headers;
}

CURL *api_handle_open(struct curl_slist *headers, size_t (*on_body)(char *data, size_t size, size_t count, void *user), void *user)
{
    CURL *handle = curl_easy_init();

    if (!handle)
        return NULL;
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, user);
    return handle;
}

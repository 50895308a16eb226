// http_probe.c: see http_probe.h.
#include "services/fastdecode/load/http_probe.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

static size_t discard(char *data, size_t size, size_t count, void *user)
{
    (void)data, (void)user;
    return size * count;
}

bool http_probe_ready(const char *host, uint16_t port, bool tls)
{
    char url[160];
    long code = 0;
    CURL *curl = curl_easy_init();

    if (!curl)
        return false;
    if (!strcmp(host, "0.0.0.0") || !strcmp(host, "::"))
        host = "127.0.0.1";
    snprintf(url, sizeof url, strchr(host, ':') ? "%s://[%s]:%u/ready" : "%s://%s:%u/ready", tls ? "https" : "http", host, port);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");       // it is this machine
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L); // nothing is told or believed but that it answers
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 1000L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, discard);
    if (curl_easy_perform(curl) == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(curl);
    return code == 200;
}

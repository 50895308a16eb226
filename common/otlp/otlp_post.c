// otlp_post.c: see otlp_post.h. A multi handle with one transfer: libcurl's way to wait for a transfer, a time and another thread at once.
#include "common/otlp/otlp_post.h"

#include <curl/curl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/options.h"
#include "common/otlp/otlp_encode.h"

enum { SEND_MS = 10000, CONNECT_MS = 3000, ANSWER_BYTES_MAX = 64 << 10, POLL_MS_MAX = 1000, RETRY_AFTER_MOST_S = 60 };

struct otlp_post {
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    _Atomic uint64_t end_us; // relaxed: a number that is looked at each time the thread wakes
    unsigned char *answer;   // [ANSWER_BYTES_MAX]
    size_t answer_bytes;
    bool too_long;
};

// What does not fit is not an answer of this protocol; the transfer is cut off.
static size_t take_answer(char *data, size_t size, size_t count, void *user)
{
    struct otlp_post *post = user;
    const size_t bytes = size * count;

    if (bytes > ANSWER_BYTES_MAX - post->answer_bytes) {
        post->too_long = true;
        return 0;
    }
    memcpy(post->answer + post->answer_bytes, data, bytes);
    post->answer_bytes += bytes;
    return bytes;
}

enum status otlp_post_open(const char *url, struct otlp_post **out)
{
    struct otlp_post *post = *out = calloc(1, sizeof *post);

    if (!post)
        return STATUS_RESOURCE_EXHAUSTED;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    post->multi = curl_multi_init();
    post->easy = curl_easy_init();
    post->answer = malloc(ANSWER_BYTES_MAX);
    post->headers = curl_slist_append(NULL, "Content-Type: application/x-protobuf");
    struct curl_slist *more = post->headers ? curl_slist_append(post->headers, "Expect:") : NULL; // no round trip before the body
    if (!post->multi || !post->easy || !post->answer || !more) {
        otlp_post_close(post);
        *out = NULL;
        return STATUS_RESOURCE_EXHAUSTED;
    }
    curl_easy_setopt(post->easy, CURLOPT_URL, url);
    curl_easy_setopt(post->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(post->easy, CURLOPT_HTTPHEADER, post->headers);
    curl_easy_setopt(post->easy, CURLOPT_USERAGENT, "OTel-OTLP-Exporter-FastDecode/" FASTDECODE_VERSION);
    curl_easy_setopt(post->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(post->easy, CURLOPT_QUICK_EXIT, 1L); // a name that is being looked up holds up no end
    curl_easy_setopt(post->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(post->easy, CURLOPT_TIMEOUT_MS, (long)SEND_MS);
    curl_easy_setopt(post->easy, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(post->easy, CURLOPT_WRITEDATA, post);
    return STATUS_OK;
}

void otlp_post_close(struct otlp_post *post)
{
    if (!post)
        return;
    curl_easy_cleanup(post->easy);
    curl_multi_cleanup(post->multi);
    curl_slist_free_all(post->headers);
    free(post->answer);
    free(post);
}

uint64_t otlp_post_end_us(const struct otlp_post *post) { return atomic_load_explicit(&post->end_us, memory_order_relaxed); }

void otlp_post_end_by(struct otlp_post *post, uint64_t end_us)
{
    atomic_store_explicit(&post->end_us, end_us, memory_order_relaxed);
    curl_multi_wakeup(post->multi);
}

static bool is_over(const struct otlp_post *post)
{
    const uint64_t end_us = otlp_post_end_us(post);
    return end_us && clock_now_us() >= end_us;
}

// Waits for the transfer, a wake-up, or the least of a second and the times given (0: none).
static void poll_until(struct otlp_post *post, uint64_t until_us)
{
    const uint64_t now_us = clock_now_us(), end_us = otlp_post_end_us(post);
    uint64_t left_ms = POLL_MS_MAX;

    if (until_us)
        left_ms = MIN(left_ms, until_us > now_us ? (until_us - now_us + 999) / 1000 : 0);
    if (end_us)
        left_ms = MIN(left_ms, end_us > now_us ? (end_us - now_us + 999) / 1000 : 0);
    curl_multi_poll(post->multi, NULL, 0, (int)left_ms, NULL);
}

void otlp_post_wait(struct otlp_post *post, uint64_t until_us)
{
    const uint64_t end_us = otlp_post_end_us(post);

    while (clock_now_us() < until_us && otlp_post_end_us(post) == end_us && !is_over(post))
        poll_until(post, until_us);
}

static void judge(struct otlp_post *post, CURLcode code, struct otlp_answer *answer)
{
    curl_off_t retry_after_s = 0;
    long status = 0;

    curl_easy_getinfo(post->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 0 || (code != CURLE_OK && !post->too_long)) {
        snprintf(answer->why, sizeof answer->why, "%s", curl_easy_strerror(code));
        return;
    }
    if (status / 100 == 2) {
        answer->outcome = OTLP_TAKEN;
        answer->rejected = post->too_long ? 0 : otlp_decode_rejected(post->answer, post->answer_bytes);
        return;
    }
    answer->outcome = status == 429 || (status >= 502 && status <= 504) ? OTLP_AGAIN : OTLP_REFUSED;
    snprintf(answer->why, sizeof answer->why, "HTTP status %ld", status);
    curl_easy_getinfo(post->easy, CURLINFO_RETRY_AFTER, &retry_after_s);
    answer->retry_after_us = (uint64_t)MIN(MAX(retry_after_s, 0), RETRY_AFTER_MOST_S) * 1000000;
}

void otlp_post_send(struct otlp_post *post, const void *body, size_t bytes, struct otlp_answer *answer)
{
    CURLMsg *message = NULL;
    int running = 1, left;

    *answer = (struct otlp_answer){.outcome = OTLP_AGAIN, .why = "the exporter ends"};
    post->answer_bytes = 0;
    post->too_long = false;
    curl_easy_setopt(post->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(post->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)bytes);
    curl_easy_setopt(post->easy, CURLOPT_POSTFIELDS, body);
    curl_multi_add_handle(post->multi, post->easy);
    while (running && !is_over(post) && curl_multi_perform(post->multi, &running) == CURLM_OK)
        if (running)
            poll_until(post, 0);
    while ((message = curl_multi_info_read(post->multi, &left)))
        if (message->msg == CURLMSG_DONE)
            judge(post, message->data.result, answer);
    curl_multi_remove_handle(post->multi, post->easy);
}

// batch_ask.c: see batch_ask.h: libcurl's multi interface over a table of slots.
#include "services/fastdecode/load/batch_ask.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "services/fastdecode/load/api_request.h"

enum {
    PAUSE_FIRST_MS = 500,
    PAUSE_MOST_MS = 30000,
    RETRY_AFTER_MOST_S = 600,
    SERVER_ERRORS_MAX = 3, // times that a request may fail in the server before that is its answer
    ANSWER_BYTES_MAX = 64 << 20,
};

enum slot_state { SLOT_FREE, SLOT_ASKED, SLOT_PAUSED };

struct slot {
    struct batch_asker *asker;
    enum slot_state state;
    CURL *easy;
    uint64_t number;
    struct batch_line line;
    char *answer; // [capacity]
    size_t bytes, capacity;
    bool too_large;
    char request_id[128];
    uint32_t retry_after_s;
    uint32_t pauses, server_errors;
    uint64_t again_us;
};

struct batch_asker {
    struct batch_asker_config config;
    CURLM *multi;
    struct curl_slist *headers;
    struct slot *slots; // [concurrency]
    uint32_t in_flight;
    uint64_t answered_us;
    uint64_t jitter;
    bool refused; // whatever is asked
    char trouble[256];
};

// --- what a transfer brings ----------------------------------------------------------------------------------------
static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    struct slot *slot = user;
    size_t bytes = size * count;

    if (slot->bytes + bytes > ANSWER_BYTES_MAX) {
        slot->too_large = true;
        return 0;
    }
    if (slot->bytes + bytes > slot->capacity) {
        size_t wanted = MAX(slot->capacity * 2, slot->bytes + bytes);
        char *grown = realloc(slot->answer, wanted);
        if (!grown)
            return 0;
        slot->answer = grown;
        slot->capacity = wanted;
    }
    memcpy(slot->answer + slot->bytes, data, bytes);
    slot->bytes += bytes;
    return bytes;
}

// The value of a header line if it has this name, without blanks around it; NULL: another one.
static const char *header_value(const char *line, size_t bytes, const char *name, char *out, size_t out_bytes)
{
    size_t length = strlen(name);

    if (bytes <= length || strncasecmp(line, name, length) != 0 || line[length] != ':')
        return NULL;
    for (line += length + 1, bytes -= length + 1; bytes > 0 && *line == ' '; line++)
        bytes--;
    while (bytes > 0 && memchr(" \t\r\n", line[bytes - 1], 4))
        bytes--;
    snprintf(out, out_bytes, "%.*s", (int)bytes, line);
    return out;
}

static size_t on_header(char *data, size_t size, size_t count, void *user)
{
    struct slot *slot = user;
    char value[128];

    header_value(data, size * count, "X-Request-Id", slot->request_id, sizeof slot->request_id);
    if (header_value(data, size * count, "Retry-After", value, sizeof value))
        slot->retry_after_s = (uint32_t)MIN(strtoul(value, NULL, 10), (unsigned long)RETRY_AFTER_MOST_S);
    return size * count;
}

// --- life of a slot ------------------------------------------------------------------------------------------------
static void start(struct slot *slot)
{
    slot->state = SLOT_ASKED;
    slot->bytes = 0;
    slot->too_large = false;
    slot->request_id[0] = '\0';
    slot->retry_after_s = 0;
    curl_multi_add_handle(slot->asker->multi, slot->easy);
}

static void finish(struct slot *slot, int status, const struct batch_error *error)
{
    struct batch_asker *asker = slot->asker;
    struct batch_answer answer = {.number = slot->number,
                                  .custom_id = slot->line.custom_id,
                                  .status = status,
                                  .request_id = slot->request_id,
                                  .body = slot->answer ? slot->answer : "",
                                  .body_bytes = slot->bytes,
                                  .error = error};

    asker->answered_us = clock_now_us();
    asker->trouble[0] = '\0';
    asker->config.answered(asker->config.arg, &answer);
    batch_line_free(&slot->line);
    free(slot->answer);
    slot->answer = NULL;
    slot->capacity = slot->bytes = 0;
    slot->state = SLOT_FREE;
    asker->in_flight--;
}

// Jitter of a half, so that requests that failed together do not come back together.
static void pause_slot(struct slot *slot)
{
    struct batch_asker *asker = slot->asker;
    uint64_t pause_ms = MIN((uint64_t)PAUSE_FIRST_MS << MIN(slot->pauses, 10u), (uint64_t)PAUSE_MOST_MS);

    if (slot->retry_after_s)
        pause_ms = slot->retry_after_s * 1000ull;
    asker->jitter = asker->jitter * 6364136223846793005u + 1442695040888963407u;
    pause_ms += pause_ms * (asker->jitter >> 40) / (2ull << 24);
    slot->pauses++;
    slot->state = SLOT_PAUSED;
    slot->again_us = clock_now_us() + pause_ms * 1000;
}

// Whether the answer is about the key or the URL rather than about the request: that of all others would be the same.
static bool refuses_all(const struct slot *slot, long status)
{
    static const char unknown_path[] = "\"code\":\"not_found\"";

    return status == 401 || status == 403 ||
           (status == 404 && slot->answer && memmem(slot->answer, slot->bytes, unknown_path, sizeof unknown_path - 1));
}

static void conclude(struct slot *slot, CURLcode result)
{
    struct batch_asker *asker = slot->asker;
    struct batch_error error = {.code = "answer_too_large"};
    long status = 0;

    curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(asker->multi, slot->easy);
    if (slot->too_large) {
        snprintf(error.message, sizeof error.message, "the answer is larger than %d MiB", ANSWER_BYTES_MAX >> 20);
        finish(slot, 0, &error);
    } else if (result != CURLE_OK) {
        snprintf(asker->trouble, sizeof asker->trouble, "%s", curl_easy_strerror(result));
        pause_slot(slot);
    } else if (status == 408 || status == 429 || (status >= 502 && status <= 504) || refuses_all(slot, status)) {
        asker->refused |= refuses_all(slot, status);
        snprintf(asker->trouble, sizeof asker->trouble, "status %ld: %.*s", status, (int)MIN(slot->bytes, (size_t)200),
                 slot->answer ? slot->answer : "");
        pause_slot(slot);
    } else if (status >= 500 && ++slot->server_errors < SERVER_ERRORS_MAX) {
        snprintf(asker->trouble, sizeof asker->trouble, "status %ld", status);
        pause_slot(slot);
    } else {
        finish(slot, (int)status, NULL);
    }
}

// --- the asker -----------------------------------------------------------------------------------------------------
static bool open_slot(struct batch_asker *asker, struct slot *slot)
{
    slot->asker = asker;
    slot->easy = api_handle_open(asker->headers, on_body, slot);
    if (!slot->easy)
        return false;
    curl_easy_setopt(slot->easy, CURLOPT_PRIVATE, slot);
    curl_easy_setopt(slot->easy, CURLOPT_TCP_KEEPALIVE, 1L); // an answer may take long, but not from a host that is gone
    curl_easy_setopt(slot->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(slot->easy, CURLOPT_HEADERDATA, slot);
    return true;
}

enum status batch_asker_open(const struct batch_asker_config *config, struct batch_asker **out, struct error *error)
{
    struct batch_asker *asker = calloc(1, sizeof *asker);
    uint32_t i;
    bool ok;

    *out = NULL;
    if (!asker)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    asker->config = *config;
    asker->jitter = clock_now_ns();
    asker->multi = curl_multi_init();
    asker->slots = calloc(config->concurrency, sizeof *asker->slots);
    asker->headers = api_headers_make(config->api_key);
    ok = asker->multi && asker->slots && asker->headers;
    for (i = 0; ok && i < config->concurrency; i++)
        ok = open_slot(asker, &asker->slots[i]);
    if (!ok) {
        batch_asker_close(asker);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for %u requests at a time", config->concurrency);
    }
    curl_multi_setopt(asker->multi, CURLMOPT_MAXCONNECTS, (long)config->concurrency);
    *out = asker;
    return STATUS_OK;
}

void batch_asker_close(struct batch_asker *asker)
{
    uint32_t i;

    if (!asker)
        return;
    for (i = 0; asker->slots && i < asker->config.concurrency; i++) {
        struct slot *slot = &asker->slots[i];
        if (slot->state == SLOT_ASKED)
            curl_multi_remove_handle(asker->multi, slot->easy);
        curl_easy_cleanup(slot->easy);
        batch_line_free(&slot->line);
        free(slot->answer);
    }
    curl_multi_cleanup(asker->multi);
    curl_slist_free_all(asker->headers);
    free(asker->slots);
    free(asker);
}

bool batch_asker_has_room(const struct batch_asker *asker) { return asker->in_flight < asker->config.concurrency; }
uint32_t batch_asker_in_flight(const struct batch_asker *asker) { return asker->in_flight; }
uint64_t batch_asker_answered_us(const struct batch_asker *asker) { return asker->answered_us; }
const char *batch_asker_trouble(const struct batch_asker *asker) { return asker->trouble; }
bool batch_asker_is_refused(const struct batch_asker *asker) { return asker->refused; }

void batch_asker_add(struct batch_asker *asker, uint64_t number, struct batch_line *line)
{
    struct slot *slot = asker->slots;
    char url[1280];

    assert_always(batch_asker_has_room(asker));
    while (slot->state != SLOT_FREE)
        slot++;
    slot->number = number;
    slot->line = *line;
    slot->pauses = slot->server_errors = 0;
    *line = (struct batch_line){0};
    snprintf(url, sizeof url, "%.*s%s", api_server_length(asker->config.url), asker->config.url,
             batch_endpoint_path(slot->line.endpoint));
    curl_easy_setopt(slot->easy, CURLOPT_URL, url);
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDS, slot->line.body);
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)slot->line.body_bytes);
    asker->in_flight++;
    start(slot);
}

void batch_asker_run(struct batch_asker *asker, int wait_ms)
{
    uint64_t now_us = clock_now_us();
    CURLMsg *message;
    int running, left;
    uint32_t i;

    for (i = 0; i < asker->config.concurrency; i++)
        if (asker->slots[i].state == SLOT_PAUSED && asker->slots[i].again_us <= now_us)
            start(&asker->slots[i]);
    curl_multi_perform(asker->multi, &running);
    curl_multi_poll(asker->multi, NULL, 0, wait_ms, NULL);
    curl_multi_perform(asker->multi, &running);
    while ((message = curl_multi_info_read(asker->multi, &left)) != NULL) {
        struct slot *slot;
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&slot);
        conclude(slot, message->data.result);
    }
}

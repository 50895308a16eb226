// client.c: see client.h.
#include "services/fastdecode/client/client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "services/fastdecode/client/stream_events.h"

// --- a request to a server of the API --------------------------------------------------------------------------------

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

CURL *api_handle_open(struct curl_slist *headers, size_t (*take_body)(char *data, size_t size, size_t count, void *user),
                      void *user)
{
    CURL *handle = curl_easy_init();

    if (!handle)
        return NULL;
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, user);
    return handle;
}

// --- prompts of so many tokens ---------------------------------------------------------------------------------------

enum { WORD_BYTES_MAX = 8, WORDS_MAX = 1 << 24 };

static const char *const words_list[64] = {
    "time",  "people", "water", "house", "school", "city",  "story", "night", "light", "river", "paper", "music", "money",
    "table", "white",  "black", "green", "small",  "great", "young", "early", "under", "after", "again", "never", "often",
    "place", "world",  "woman", "point", "group",  "right", "book",  "word",  "side",  "hand",  "home",  "food",  "land",
    "line",  "name",   "road",  "room",  "face",   "door",  "body",  "idea",  "game",  "team",  "tree",  "fire",  "wind",
    "long",  "high",   "open",  "free",  "dark",   "cold",  "warm",  "slow",  "fast",  "deep",  "wide",  "near",
};

void prompt_fit_learn(struct prompt_fit *fit, uint32_t words, uint32_t tokens, uint32_t more_words, uint32_t more_tokens)
{
    if (more_words <= words || more_tokens <= tokens)
        return;
    fit->a_word = (double)(more_tokens - tokens) / (more_words - words);
    fit->fixed = MAX(tokens - fit->a_word * words, 0);
}

uint32_t prompt_fit_words(const struct prompt_fit *fit, uint32_t tokens)
{
    return (uint32_t)MIN(MAX(round((tokens - fit->fixed) / fit->a_word), 1), WORDS_MAX);
}

void prompt_words_append(struct text *out, uint32_t words, uint64_t serial)
{
    uint64_t state = serial, bits = 0;

    if (!text_reserve(out, (size_t)words * WORD_BYTES_MAX))
        return;
    for (uint32_t i = 0; i < words; i++) {
        if (i % 10 == 0) // ten times six bits
            bits = random_next(&state);
        if (i > 0)
            text_append(out, " ", 1);
        text_string(out, words_list[bits & 63]);
        bits >>= 6;
    }
}

// --- slots -----------------------------------------------------------------------------------------------------------
enum { GET_S = 30, EVENTS_MAX = 256, GET_BYTES_MAX = 4 << 20, BODY_BYTES_MAX = 2000 };

struct slot {
    struct load_client *client;
    CURL *easy; // made when the slot is first used
    struct load_stream stream;
    struct stream_reader reader;
    char body[BODY_BYTES_MAX]; // the begin of an answer that is no stream
    size_t body_bytes;
    bool open, is_ended;
    char error[STREAM_ERROR_BYTES];
};

struct load_client {
    struct load_client_config config;
    struct load_callbacks callbacks;
    CURLM *multi;
    int epoll;
    struct curl_slist *headers;
    struct slot *slots; // [streams_max]
    uint32_t *vacant;   // [streams_max - open_count], a stack of indices
    uint32_t open_count;
    uint64_t timer_us; // when libcurl wants to be called; UINT64_MAX: not
    char *model;       // in JSON, with quotes; NULL: none
    char url[1280];
    struct text request;
};

// --- what a transfer brings -----------------------------------------------------------------------------------------

static void on_event(void *arg, const struct stream_event *event)
{
    struct slot *slot = arg;
    struct load_stream *stream = &slot->stream;

    if (event->has_usage) {
        stream->prompt_tokens = event->prompt_tokens;
        stream->answer_tokens = event->answer_tokens;
    }
    if (event->error[0])
        snprintf(slot->error, sizeof slot->error, "%s", event->error);
    slot->is_ended |= event->is_end;
    if (!event->has_token)
        return;
    uint64_t now_us = clock_now_us(), gap_us = stream->last_us ? now_us - stream->last_us : 0;
    stream->first_us = stream->first_us ? stream->first_us : now_us;
    stream->last_us = now_us;
    stream->event_count++;
    if (slot->client->callbacks.token)
        slot->client->callbacks.token(slot->client->callbacks.arg, stream, gap_us);
}

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    struct slot *slot = user;
    size_t bytes = size * count, part = MIN(bytes, sizeof slot->body - 1 - slot->body_bytes);

    memcpy(slot->body + slot->body_bytes, data, part);
    slot->body_bytes += part;
    stream_reader_take(&slot->reader, data, bytes, on_event, slot);
    return slot->reader.failed ? 0 : bytes;
}

// Says why a stream has no good end; leaves the text empty if it has one.
static void explain(struct slot *slot, CURLcode result, long status)
{
    struct stream_event event;

    if (slot->error[0])
        return;
    if (slot->reader.failed)
        snprintf(slot->error, sizeof slot->error, "an event of more than %d MiB", STREAM_LINE_BYTES_MAX >> 20);
    else if (result != CURLE_OK)
        snprintf(slot->error, sizeof slot->error, "%s", curl_easy_strerror(result));
    else if (status != 200 && stream_event_parse(slot->body, slot->body_bytes, &event) && event.error[0])
        snprintf(slot->error, sizeof slot->error, "%s", event.error);
    else if (status != 200)
        snprintf(slot->error, sizeof slot->error, "status %ld: %.100s", status, slot->body);
    else if (!slot->is_ended)
        snprintf(slot->error, sizeof slot->error, "the stream ended without [DONE]");
}

static void release(struct slot *slot)
{
    struct load_client *client = slot->client;

    curl_multi_remove_handle(client->multi, slot->easy);
    slot->open = false;
    client->open_count--;
    client->vacant[client->config.streams_max - client->open_count - 1] = (uint32_t)(slot - client->slots);
}

static void conclude(struct slot *slot, CURLcode result)
{
    long status = 0;

    curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &status);
    slot->body[slot->body_bytes] = '\0';
    slot->stream.status = (int)status;
    explain(slot, result, status);
    slot->stream.error = slot->error;
    slot->stream.ok = !slot->error[0];
    release(slot);
    if (slot->client->callbacks.ended)
        slot->client->callbacks.ended(slot->client->callbacks.arg, &slot->stream);
}

// --- sockets and timers ---------------------------------------------------------------------------------------------

static int on_socket(CURL *easy, curl_socket_t socket, int what, void *user, void *known)
{
    struct load_client *client = user;
    struct epoll_event event = {.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u),
                                .data.fd = socket};
    (void)easy;

    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(client->epoll, EPOLL_CTL_DEL, socket, NULL);
        return 0;
    }
    if (epoll_ctl(client->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event) != 0)
        return -1;
    curl_multi_assign(client->multi, socket, client);
    return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *user)
{
    struct load_client *client = user;
    (void)multi;

    client->timer_us = timeout_ms < 0 ? UINT64_MAX : clock_now_us() + (uint64_t)timeout_ms * 1000;
    return 0;
}

static void take_ended(struct load_client *client)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(client->multi, &left)) != NULL) {
        struct slot *slot;
        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&slot);
        conclude(slot, message->data.result);
    }
}

void load_client_run(struct load_client *client, uint64_t until_us)
{
    struct epoll_event events[EVENTS_MAX];
    int running, count;

    do {
        uint64_t now_us = clock_now_us(), next_us = MIN(until_us, client->timer_us);
        int wait_ms = next_us > now_us ? (int)MIN((next_us - now_us + 999) / 1000, 1000u) : 0;
        count = epoll_wait(client->epoll, events, EVENTS_MAX, wait_ms);
        for (int i = 0; i < count; i++)
            curl_multi_socket_action(client->multi, events[i].data.fd,
                                     (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                                         (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                                         (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0),
                                     &running);
        if (clock_now_us() >= client->timer_us) {
            client->timer_us = UINT64_MAX;
            curl_multi_socket_action(client->multi, CURL_SOCKET_TIMEOUT, 0, &running);
        }
        take_ended(client);
    } while (count >= 0 && clock_now_us() < until_us);
}

// --- streams --------------------------------------------------------------------------------------------------------

static bool prepare(struct load_client *client, struct slot *slot)
{
    if (slot->easy)
        return true;
    slot->client = client;
    slot->easy = api_handle_open(client->headers, on_body, slot);
    if (!slot->easy)
        return false;
    curl_easy_setopt(slot->easy, CURLOPT_PRIVATE, slot);
    curl_easy_setopt(slot->easy, CURLOPT_URL, client->url);
    curl_easy_setopt(slot->easy, CURLOPT_TIMEOUT_MS, (long)(client->config.timeout_s * 1e3));
    return true;
}

static void write_request(struct load_client *client, const char *prompt, size_t prompt_bytes, uint32_t answer_tokens)
{
    struct text *out = &client->request;

    text_clear(out);
    text_string(out, "{");
    if (client->model) {
        text_string(out, "\"model\":");
        text_string(out, client->model);
        text_string(out, ",");
    }
    text_format(out, "\"max_tokens\":%u,\"temperature\":0,\"stream\":true", answer_tokens);
    if (client->config.usage)
        text_string(out, ",\"stream_options\":{\"include_usage\":true}");
    if (client->config.ignore_eos)
        text_string(out, ",\"ignore_eos\":true");
    text_string(out, ",\"prompt\":\"");
    text_append(out, prompt, prompt_bytes);
    text_string(out, "\"}");
}

enum status load_client_start(struct load_client *client, uint32_t index, uint64_t due_us, const char *prompt, size_t prompt_bytes,
                              uint32_t answer_tokens, struct error *error)
{
    struct slot *slot;

    if (client->open_count == client->config.streams_max)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%u streams are open", client->open_count);
    slot = &client->slots[client->vacant[client->config.streams_max - client->open_count - 1]];
    write_request(client, prompt, prompt_bytes, answer_tokens);
    if (!prepare(client, slot) || client->request.failed)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for another stream");
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)client->request.bytes);
    if (curl_easy_setopt(slot->easy, CURLOPT_COPYPOSTFIELDS, client->request.data) != CURLE_OK)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for another stream");
    slot->stream = (struct load_stream){.index = index, .due_us = due_us, .error = ""};
    slot->body_bytes = 0;
    slot->is_ended = false;
    slot->error[0] = '\0';
    stream_reader_clear(&slot->reader);
    slot->open = true;
    client->open_count++;
    if (curl_multi_add_handle(client->multi, slot->easy) != CURLM_OK) {
        release(slot);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for another stream");
    }
    return STATUS_OK;
}

uint32_t load_client_open_count(const struct load_client *client) { return client->open_count; }

void load_client_cancel(struct load_client *client)
{
    for (uint32_t i = 0; i < client->config.streams_max && client->open_count > 0; i++)
        if (client->slots[i].open)
            release(&client->slots[i]);
}

void load_client_listen(struct load_client *client, const struct load_callbacks *callbacks) { client->callbacks = *callbacks; }

void load_client_set(struct load_client *client, const char *model, bool ignore_eos, bool usage)
{
    json_t *name = model ? json_string(model) : NULL;

    free(client->model);
    client->model = name ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    json_decref(name);
    client->config.model = model;
    client->config.ignore_eos = ignore_eos;
    client->config.usage = usage;
}

// --- the client -----------------------------------------------------------------------------------------------------

enum status load_client_open(const struct load_client_config *config, struct load_client **out, struct error *error)
{
    struct load_client *client = calloc(1, sizeof *client);

    *out = NULL;
    if (!client)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    client->config = *config;
    client->timer_us = UINT64_MAX;
    client->multi = curl_multi_init();
    client->epoll = epoll_create1(EPOLL_CLOEXEC);
    client->slots = calloc(config->streams_max, sizeof *client->slots);
    client->vacant = calloc(config->streams_max, sizeof *client->vacant);
    client->headers = api_headers_make(config->api_key);
    snprintf(client->url, sizeof client->url, "%.*s/v1/completions", api_server_length(config->url), config->url);
    if (!client->multi || client->epoll < 0 || !client->slots || !client->vacant || !client->headers) {
        load_client_close(client);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for %u streams", config->streams_max);
    }
    for (uint32_t i = 0; i < config->streams_max; i++)
        client->vacant[i] = config->streams_max - 1 - i;
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client);
    curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, (long)config->streams_max);
    load_client_set(client, config->model, config->ignore_eos, config->usage);
    *out = client;
    return STATUS_OK;
}

void load_client_close(struct load_client *client)
{
    if (!client)
        return;
    if (client->slots)
        load_client_cancel(client);
    for (uint32_t i = 0; client->slots && i < client->config.streams_max; i++) {
        curl_easy_cleanup(client->slots[i].easy);
        stream_reader_free(&client->slots[i].reader);
    }
    curl_multi_cleanup(client->multi);
    curl_slist_free_all(client->headers);
    if (client->epoll >= 0)
        close(client->epoll);
    text_free(&client->request);
    free(client->model);
    free(client->slots);
    free(client->vacant);
    free(client);
}

// --- one path -------------------------------------------------------------------------------------------------------

static size_t on_page(char *data, size_t size, size_t count, void *user)
{
    struct text *page = user;
    size_t bytes = size * count;

    if (page->bytes + bytes > GET_BYTES_MAX)
        return 0;
    text_append(page, data, bytes);
    return page->failed ? 0 : bytes;
}

enum status load_client_get(const struct load_client_config *config, const char *path, long *status, char **body,
                            struct error *error)
{
    struct text page = {0};
    char url[1280];
    struct curl_slist *headers = api_headers_make(config->api_key);
    CURL *curl = api_handle_open(headers, on_page, &page);
    CURLcode result = CURLE_OUT_OF_MEMORY;

    *status = 0;
    *body = NULL;
    snprintf(url, sizeof url, "%.*s%s", api_server_length(config->url), config->url, path);
    if (curl) {
        curl_easy_setopt(curl, CURLOPT_URL, url);
        curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)GET_S);
        result = curl_easy_perform(curl);
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, status);
    }
    text_append(&page, "", 1);
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
    if (result != CURLE_OK || page.failed) {
        text_free(&page);
        return error_set(error, STATUS_UNAVAILABLE, "no answer from %s: %s", url, curl_easy_strerror(result));
    }
    *body = page.data;
    return STATUS_OK;
}

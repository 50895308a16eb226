// otlp.c: see otlp.h: ended spans wait in a queue for the exporter's thread, which encodes a batch of them and posts it to the collector, again
// and again if it does not take it.
#include "common/trace/otlp.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/random.h"
#include "common/trace/otlp_internal.h"
#include "otlp_trace.pb-c.h"

// --- the queue of ended spans ---------------------------------------------------------------------------------------

enum status otlp_queue_open(struct otlp_queue *queue, uint32_t capacity)
{
    assert_always(capacity > 1 && (capacity & (capacity - 1)) == 0);
    *queue = (struct otlp_queue){.slots = calloc(capacity, sizeof *queue->slots), .mask = capacity - 1};
    if (!queue->slots)
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < capacity; i++)
        atomic_init(&queue->slots[i].turn, i);
    return STATUS_OK;
}

void otlp_queue_close(struct otlp_queue *queue)
{
    free(queue->slots);
    queue->slots = NULL;
}

bool otlp_queue_put(struct otlp_queue *queue, const struct otlp_span *span)
{
    uint64_t at = atomic_load_explicit(&queue->head, memory_order_relaxed);
    struct otlp_slot *slot;

    for (;;) {
        slot = &queue->slots[at & queue->mask];
        const uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);
        if (turn == at &&
            atomic_compare_exchange_weak_explicit(&queue->head, &at, at + 1, memory_order_relaxed, memory_order_relaxed))
            break;
        if (turn < at) // what was written a round ago has not been read
            return false;
        if (turn > at)
            at = atomic_load_explicit(&queue->head, memory_order_relaxed);
    }
    slot->span = *span;
    atomic_store_explicit(&slot->turn, at + 1, memory_order_release);
    return true;
}

uint32_t otlp_queue_take(struct otlp_queue *queue, struct otlp_span *out, uint32_t most)
{
    uint32_t count = 0;

    for (; count < most; count++, queue->tail++) {
        struct otlp_slot *slot = &queue->slots[queue->tail & queue->mask];
        if (atomic_load_explicit(&slot->turn, memory_order_acquire) != queue->tail + 1)
            break;
        out[count] = slot->span;
        atomic_store_explicit(&slot->turn, queue->tail + queue->mask + 1, memory_order_release);
    }
    return count;
}

// --- a batch as an ExportRequest ------------------------------------------------------------------------------------

enum { RESOURCE_ATTRIBUTES = 4, NAME_BYTES = 256 };

// A key and its value; a list has values of its own.
struct pair {
    Fastdecode__Otlp__KeyValue key;
    Fastdecode__Otlp__Value value;
    Fastdecode__Otlp__Values list;
    Fastdecode__Otlp__Value items[OTLP_LIST_MAX], *item_pointers[OTLP_LIST_MAX];
};

struct span_message {
    Fastdecode__Otlp__Span span;
    Fastdecode__Otlp__Status status;
    struct pair attributes[OTLP_ATTRIBUTES_MAX];
    Fastdecode__Otlp__KeyValue *attribute_pointers[OTLP_ATTRIBUTES_MAX];
    Fastdecode__Otlp__Event events[OTLP_EVENTS_MAX], *event_pointers[OTLP_EVENTS_MAX];
    struct pair event_attributes[OTLP_EVENTS_MAX];
    Fastdecode__Otlp__KeyValue *event_attribute_pointers[OTLP_EVENTS_MAX];
};

struct otlp_encoder {
    char service[NAME_BYTES], instance[NAME_BYTES], host[NAME_BYTES];
    Fastdecode__Otlp__ExportRequest request;
    Fastdecode__Otlp__ResourceSpans resource_spans, *resource_pointer;
    Fastdecode__Otlp__Resource resource;
    Fastdecode__Otlp__ScopeSpans scope_spans, *scope_pointer;
    Fastdecode__Otlp__Scope scope;
    struct pair attributes[RESOURCE_ATTRIBUTES];
    Fastdecode__Otlp__KeyValue *attribute_pointers[RESOURCE_ATTRIBUTES];
    struct span_message messages[OTLP_BATCH_SPANS];
    Fastdecode__Otlp__Span *pointers[OTLP_BATCH_SPANS];
};

static void set_text(Fastdecode__Otlp__Value *value, const char *text)
{
    fastdecode__otlp__value__init(value);
    value->value_case = FASTDECODE__OTLP__VALUE__VALUE_STRING_VALUE;
    value->string_value = (char *)(uintptr_t)text;
}

static void set_number(Fastdecode__Otlp__Value *value, int64_t number)
{
    fastdecode__otlp__value__init(value);
    value->value_case = FASTDECODE__OTLP__VALUE__VALUE_INT_VALUE;
    value->int_value = number;
}

static void set_list(struct pair *pair, const char *text, uint32_t count)
{
    fastdecode__otlp__value__init(&pair->value);
    fastdecode__otlp__values__init(&pair->list);
    pair->value.value_case = FASTDECODE__OTLP__VALUE__VALUE_ARRAY_VALUE;
    pair->value.array_value = &pair->list;
    pair->list.n_values = count;
    pair->list.values = pair->item_pointers;
    for (uint32_t i = 0; i < count; i++, text += strlen(text) + 1) {
        set_text(&pair->items[i], text);
        pair->item_pointers[i] = &pair->items[i];
    }
}

static Fastdecode__Otlp__KeyValue *set_key(struct pair *pair, const char *key)
{
    fastdecode__otlp__key_value__init(&pair->key);
    pair->key.key = (char *)(uintptr_t)key;
    pair->key.value = &pair->value;
    return &pair->key;
}

static Fastdecode__Otlp__KeyValue *set_attribute(struct pair *pair, const struct otlp_span *span,
                                                 const struct otlp_attribute *attribute)
{
    const char *text = attribute->copied ? span->texts + attribute->text_index : attribute->fixed;

    switch (attribute->type) {
    case OTLP_NUMBER: set_number(&pair->value, attribute->number); break;
    case OTLP_TEXT: set_text(&pair->value, text); break;
    case OTLP_LIST: set_list(pair, text, attribute->item_count); break;
    }
    return set_key(pair, attribute->key);
}

static void set_events(struct span_message *message, const struct otlp_span *span, int64_t wall_offset_ns)
{
    for (uint32_t i = 0; i < span->event_count; i++) {
        Fastdecode__Otlp__Event *event = message->event_pointers[i] = &message->events[i];
        fastdecode__otlp__event__init(event);
        event->name = (char *)(uintptr_t)span->events[i].name;
        event->time_unix_nano = span->events[i].at_ns + (uint64_t)wall_offset_ns;
        if (!span->events[i].key)
            continue;
        set_number(&message->event_attributes[i].value, span->events[i].number);
        message->event_attribute_pointers[i] = set_key(&message->event_attributes[i], span->events[i].key);
        event->n_attributes = 1;
        event->attributes = &message->event_attribute_pointers[i];
    }
    message->span.n_events = span->event_count;
    message->span.events = message->event_pointers;
    message->span.dropped_events_count = span->events_dropped;
}

static ProtobufCBinaryData bytes_of(const unsigned char *bytes, size_t length)
{
    return (ProtobufCBinaryData){.len = length, .data = (uint8_t *)(uintptr_t)bytes};
}

static void set_span(struct span_message *message, const struct otlp_span *span, int64_t wall_offset_ns)
{
    static const unsigned char none[OTLP_SPAN_ID_BYTES];
    Fastdecode__Otlp__Span *out = &message->span;

    fastdecode__otlp__span__init(out);
    out->trace_id = bytes_of(span->context.trace_id, sizeof span->context.trace_id);
    out->span_id = bytes_of(span->context.span_id, sizeof span->context.span_id);
    if (memcmp(span->parent_id, none, sizeof none) != 0)
        out->parent_span_id = bytes_of(span->parent_id, sizeof span->parent_id);
    out->trace_state = (char *)(uintptr_t)span->state;
    out->name = (char *)(uintptr_t)span->name;
    out->kind = span->kind;
    out->start_time_unix_nano = span->began_ns + (uint64_t)wall_offset_ns;
    out->end_time_unix_nano = span->ended_ns + (uint64_t)wall_offset_ns;
    out->flags = span->context.sampled;
    for (uint32_t i = 0; i < span->attribute_count; i++)
        message->attribute_pointers[i] = set_attribute(&message->attributes[i], span, &span->attributes[i]);
    out->n_attributes = span->attribute_count;
    out->attributes = message->attribute_pointers;
    set_events(message, span, wall_offset_ns);
    if (span->failed) {
        fastdecode__otlp__status__init(&message->status);
        message->status.code = 2;
        out->status = &message->status;
    }
}

enum status otlp_encoder_open(const char *service, const char *instance, struct otlp_encoder **out)
{
    struct otlp_encoder *encoder = *out = calloc(1, sizeof *encoder);
    char host[NAME_BYTES] = "";

    if (!encoder)
        return STATUS_RESOURCE_EXHAUSTED;
    (void)!gethostname(host, sizeof host - 1);
    otlp_plain_text(encoder->host, sizeof encoder->host, host);
    otlp_plain_text(encoder->service, sizeof encoder->service, service);
    if (instance)
        otlp_plain_text(encoder->instance, sizeof encoder->instance, instance);
    else
        snprintf(encoder->instance, sizeof encoder->instance, "%.200s:%d", encoder->host, (int)getpid());
    const char *const attributes[RESOURCE_ATTRIBUTES][2] = {{"service.name", encoder->service},
                                                            {"service.version", FASTDECODE_VERSION},
                                                            {"service.instance.id", encoder->instance},
                                                            {"host.name", encoder->host}};
    fastdecode__otlp__export_request__init(&encoder->request);
    fastdecode__otlp__resource_spans__init(&encoder->resource_spans);
    fastdecode__otlp__resource__init(&encoder->resource);
    fastdecode__otlp__scope_spans__init(&encoder->scope_spans);
    fastdecode__otlp__scope__init(&encoder->scope);
    for (uint32_t i = 0; i < RESOURCE_ATTRIBUTES; i++) {
        set_text(&encoder->attributes[i].value, attributes[i][1]);
        encoder->attribute_pointers[i] = set_key(&encoder->attributes[i], attributes[i][0]);
    }
    encoder->resource.n_attributes = RESOURCE_ATTRIBUTES;
    encoder->resource.attributes = encoder->attribute_pointers;
    encoder->scope.name = (char *)"fastdecode";
    encoder->scope.version = (char *)FASTDECODE_VERSION;
    encoder->scope_spans.scope = &encoder->scope;
    encoder->scope_spans.spans = encoder->pointers;
    encoder->scope_pointer = &encoder->scope_spans;
    encoder->resource_spans.resource = &encoder->resource;
    encoder->resource_spans.n_scope_spans = 1;
    encoder->resource_spans.scope_spans = &encoder->scope_pointer;
    encoder->resource_pointer = &encoder->resource_spans;
    encoder->request.n_resource_spans = 1;
    encoder->request.resource_spans = &encoder->resource_pointer;
    return STATUS_OK;
}

void otlp_encoder_close(struct otlp_encoder *encoder) { free(encoder); }

void otlp_encode(struct otlp_encoder *encoder, const struct otlp_span *spans, uint32_t count, int64_t wall_offset_ns,
                 struct text *out)
{
    assert_always(count <= OTLP_BATCH_SPANS);
    text_clear(out);
    for (uint32_t i = 0; i < count; i++) {
        set_span(&encoder->messages[i], &spans[i], wall_offset_ns);
        encoder->pointers[i] = &encoder->messages[i].span;
    }
    encoder->scope_spans.n_spans = count;
    const size_t bytes = fastdecode__otlp__export_request__get_packed_size(&encoder->request);
    if (text_reserve(out, bytes))
        out->bytes = fastdecode__otlp__export_request__pack(&encoder->request, (uint8_t *)out->data);
}

uint64_t otlp_decode_rejected(const unsigned char *bytes, size_t length)
{
    Fastdecode__Otlp__ExportResponse *response = fastdecode__otlp__export_response__unpack(NULL, length, bytes);
    const int64_t rejected = response && response->partial_success ? response->partial_success->rejected_spans : 0;

    if (response)
        fastdecode__otlp__export_response__free_unpacked(response, NULL);
    return rejected > 0 ? (uint64_t)rejected : 0;
}

// --- one HTTP POST after another, by libcurl, on the exporter's thread ----------------------------------------------

enum otlp_outcome {
    OTLP_TAKEN,
    OTLP_REFUSED, // for good
    OTLP_AGAIN,   // nobody answers, or what answers says that it is busy
};

struct otlp_answer {
    enum otlp_outcome outcome;
    uint64_t retry_after_us; // 0: not said
    uint64_t rejected;       // of OTLP_TAKEN: how many spans of them were not
    char why[160];           // unless OTLP_TAKEN
};

// A multi handle with one transfer: libcurl's way to wait for a transfer, a time and another thread at once.

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

// An answer that does not fit is none of this protocol: the transfer is cut off.
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

static void post_close(struct otlp_post *post)
{
    if (!post)
        return;
    curl_easy_cleanup(post->easy);
    curl_multi_cleanup(post->multi);
    curl_slist_free_all(post->headers);
    free(post->answer);
    free(post);
}

// url: with its path. RESOURCE_EXHAUSTED: no memory, *out is NULL.
static enum status post_open(const char *url, struct otlp_post **out)
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
        post_close(post);
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

static uint64_t post_end_us(const struct otlp_post *post) { return atomic_load_explicit(&post->end_us, memory_order_relaxed); }

// Sets when the exporter must end, and wakes it. Any thread. end_us: 0 until then.
static void post_end_by(struct otlp_post *post, uint64_t end_us)
{
    atomic_store_explicit(&post->end_us, end_us, memory_order_relaxed);
    curl_multi_wakeup(post->multi);
}

static bool is_over(const struct otlp_post *post)
{
    const uint64_t end_us = post_end_us(post);
    return end_us && clock_now_us() >= end_us;
}

// Waits for the transfer, a wake-up, or the least of a second and the times given (0: none).
static void poll_until(struct otlp_post *post, uint64_t until_us)
{
    const uint64_t now_us = clock_now_us(), end_us = post_end_us(post);
    uint64_t left_ms = POLL_MS_MAX;

    if (until_us)
        left_ms = MIN(left_ms, until_us > now_us ? (until_us - now_us + 999) / 1000 : 0);
    if (end_us)
        left_ms = MIN(left_ms, end_us > now_us ? (end_us - now_us + 999) / 1000 : 0);
    curl_multi_poll(post->multi, NULL, 0, (int)left_ms, NULL);
}

// Waits until then (clock_now_us()), or until post_end_by() is called.
static void post_wait(struct otlp_post *post, uint64_t until_us)
{
    const uint64_t end_us = post_end_us(post);

    while (clock_now_us() < until_us && post_end_us(post) == end_us && !is_over(post))
        poll_until(post, until_us);
}

static void judge_post(struct otlp_post *post, CURLcode code, struct otlp_answer *answer)
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

// Sends a body and waits for the answer; both in at most ten seconds, and not beyond the time that post_end_by() sets.
static void post_send(struct otlp_post *post, const void *body, size_t bytes, struct otlp_answer *answer)
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
            judge_post(post, message->data.result, answer);
    curl_multi_remove_handle(post->multi, post->easy);
}

// --- the exporter ---------------------------------------------------------------------------------------------------

enum {
    QUEUE_SPANS = 2048,
    LOOK_US = 200000, // how long a span may lie in the queue
    AGAIN_MS = 500,
    AGAIN_MOST_US = 30000000,
    TRIES = 6,
    FLUSH_US = 2000000,
    COMPLAIN_EVERY_US = 60000000,
    URL_BYTES = 1024,
};

struct otlp {
    struct otlp_queue queue;
    struct otlp_post *post;
    struct otlp_encoder *encoder;
    pthread_t thread;
    uint64_t again_us;
    _Atomic uint64_t exported, dropped; // relaxed: counts
    _Atomic uint64_t id_states[3];      // relaxed: each draw takes a number that no other gets
    struct otlp_span *batch;            // [OTLP_BATCH_SPANS] the exporter's, as what follows
    struct text body;
    uint64_t complained_us, complained_of; // when the log last said so, and how many were dropped by then
    char why[160];                         // the latest reason; "": the queue was full
};

// --- settings -------------------------------------------------------------------------------------------------------

enum status otlp_check_endpoint(const char *endpoint, struct error *error)
{
    const char *scheme_end = endpoint ? strstr(endpoint, "://") : NULL, *host = scheme_end ? scheme_end + 3 : NULL;

    if (!endpoint || !strcmp(endpoint, "none"))
        return STATUS_OK;
    if (!host || (strncmp(endpoint, "http://", 7) != 0 && strncmp(endpoint, "https://", 8) != 0) || *host == '\0' || *host == '/')
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "--" OTLP_OPTION " is \"%.100s\", want http://HOST:PORT or https://HOST:PORT", endpoint);
    for (const char *at = endpoint; *at; at++)
        if (*at <= ' ' || *at >= 0x7f || strchr("?#@\"\\", *at))
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "--" OTLP_OPTION ": a URL without spaces, user, query and fragment is wanted");
    if (strlen(endpoint) + sizeof "/v1/traces" > URL_BYTES)
        return error_set(error, STATUS_INVALID_ARGUMENT, "--" OTLP_OPTION ": the URL is too long");
    return STATUS_OK;
}

// The path of a signal is relative to the endpoint (opentelemetry.io/docs/specs/otel/protocol/exporter).
static void make_url(const char *endpoint, char url[URL_BYTES])
{
    size_t length = strlen(endpoint);

    while (length && endpoint[length - 1] == '/')
        length--;
    snprintf(url, URL_BYTES, "%.*s/v1/traces", (int)length, endpoint);
}

// --- ids ------------------------------------------------------------------------------------------------------------

static void draw_id(_Atomic uint64_t *state, unsigned char *out)
{
    uint64_t value, at;

    do { // one number a step of splitmix64's state, so that no two threads get the same
        at = atomic_fetch_add_explicit(state, UINT64_C(0x9e3779b97f4a7c15), memory_order_relaxed);
        value = random_next(&at);
    } while (value == 0);
    memcpy(out, &value, sizeof value);
}

void otlp_new_trace_id(struct otlp *otlp, unsigned char out[OTLP_TRACE_ID_BYTES])
{
    draw_id(&otlp->id_states[0], out);
    draw_id(&otlp->id_states[1], out + 8);
}

void otlp_new_span_id(struct otlp *otlp, unsigned char out[OTLP_SPAN_ID_BYTES]) { draw_id(&otlp->id_states[2], out); }

static void seed_ids(struct otlp *otlp)
{
    uint64_t seeds[3];

    if (getrandom(seeds, sizeof seeds, GRND_NONBLOCK) != (ssize_t)sizeof seeds)
        for (int i = 0; i < 3; i++)
            seeds[i] = clock_wall_us() ^ clock_now_ns() << (20 + i) ^ (uintptr_t)otlp;
    for (int i = 0; i < 3; i++)
        atomic_init(&otlp->id_states[i], seeds[i]);
}

// --- putting and counting -------------------------------------------------------------------------------------------

void otlp_put(struct otlp *otlp, const struct otlp_span *span)
{
    if (!otlp_queue_put(&otlp->queue, span))
        atomic_fetch_add_explicit(&otlp->dropped, 1, memory_order_relaxed);
}

struct otlp_counts otlp_counts(const struct otlp *otlp)
{
    if (!otlp)
        return (struct otlp_counts){0};
    return (struct otlp_counts){.exported = atomic_load_explicit(&otlp->exported, memory_order_relaxed),
                                .dropped = atomic_load_explicit(&otlp->dropped, memory_order_relaxed)};
}

// --- the exporter's thread ------------------------------------------------------------------------------------------

// Says how many were dropped since the line before.
static void complain_of_drops(struct otlp *otlp)
{
    const uint64_t dropped = otlp_counts(otlp).dropped, now_us = clock_now_us();

    if (dropped == otlp->complained_of || (otlp->complained_us && now_us - otlp->complained_us < COMPLAIN_EVERY_US))
        return;
    log_warn("SPANS-DROPPED", "count=%llu why=\"%s\"", (unsigned long long)(dropped - otlp->complained_of),
             otlp->why[0] ? otlp->why : "too many at once");
    otlp->complained_us = now_us;
    otlp->complained_of = dropped;
}

// Returns what to add to clock_now_ns() for nanoseconds since 1970: of a few readings the one with the least time in between.
static int64_t wall_offset_ns(void)
{
    uint64_t shortest_ns = UINT64_MAX;
    int64_t offset_ns = 0;

    for (int i = 0; i < 5; i++) {
        struct timespec wall;
        const uint64_t before_ns = clock_now_ns();
        clock_gettime(CLOCK_REALTIME, &wall);
        const uint64_t after_ns = clock_now_ns();
        if (after_ns - before_ns >= shortest_ns)
            continue;
        shortest_ns = after_ns - before_ns;
        offset_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)(before_ns + shortest_ns / 2);
    }
    return offset_ns;
}

// Between half and all of the pause that the number of tries calls for, so that services do not come back together.
static uint64_t pause_us(struct otlp *otlp, uint32_t tries)
{
    const uint64_t most_us = MIN(otlp->again_us << tries, (uint64_t)AGAIN_MOST_US);
    uint64_t chance;

    draw_id(&otlp->id_states[2], (unsigned char *)&chance);
    return most_us / 2 + chance % (most_us / 2 + 1);
}

// Sends a batch until it is taken, refused, or given up.
static void deliver_batch(struct otlp *otlp, uint32_t count)
{
    struct otlp_answer answer = {.outcome = OTLP_REFUSED, .why = "no memory"};

    otlp_encode(otlp->encoder, otlp->batch, count, wall_offset_ns(), &otlp->body);
    for (uint32_t tries = 0; !otlp->body.failed && tries < TRIES; tries++) {
        post_send(otlp->post, otlp->body.data, otlp->body.bytes, &answer);
        const uint64_t wait_us = answer.retry_after_us ? answer.retry_after_us : pause_us(otlp, tries);
        const uint64_t again_us = clock_now_us() + wait_us, end_us = post_end_us(otlp->post);
        if (answer.outcome != OTLP_AGAIN || tries + 1 == TRIES || (end_us && again_us >= end_us))
            break;
        post_wait(otlp->post, again_us);
    }
    if (otlp->body.failed)
        text_free(&otlp->body);
    const uint64_t lost = answer.outcome == OTLP_TAKEN ? MIN(answer.rejected, (uint64_t)count) : count;
    atomic_fetch_add_explicit(&otlp->exported, count - lost, memory_order_relaxed);
    if (lost)
        snprintf(otlp->why, sizeof otlp->why, "%s", answer.outcome == OTLP_TAKEN ? "rejected by the collector" : answer.why);
    atomic_fetch_add_explicit(&otlp->dropped, lost, memory_order_relaxed);
}

static void *exporter_main(void *arg)
{
    struct otlp *otlp = arg;

    for (;;) {
        const uint64_t end_us = post_end_us(otlp->post); // before the look: what was put before the end is seen
        const uint32_t count = otlp_queue_take(&otlp->queue, otlp->batch, OTLP_BATCH_SPANS);
        if (count && end_us && clock_now_us() >= end_us)
            atomic_fetch_add_explicit(&otlp->dropped, count, memory_order_relaxed);
        else if (count)
            deliver_batch(otlp, count);
        complain_of_drops(otlp);
        if (!count && end_us)
            return NULL;
        if (!count)
            post_wait(otlp->post, clock_now_us() + LOOK_US);
    }
}

// --- open and close -------------------------------------------------------------------------------------------------

static void free_all(struct otlp *otlp)
{
    post_close(otlp->post);
    otlp_encoder_close(otlp->encoder);
    otlp_queue_close(&otlp->queue);
    text_free(&otlp->body);
    free(otlp->batch);
    free(otlp);
}

enum status otlp_open(const struct otlp_config *config, struct otlp **out, struct error *error)
{
    char url[URL_BYTES];

    *out = NULL;
    if (!config->endpoint || !strcmp(config->endpoint, "none"))
        return STATUS_OK;
    if (otlp_check_endpoint(config->endpoint, error))
        return error->status;
    make_url(config->endpoint, url);
    struct otlp *otlp = calloc(1, sizeof *otlp);
    if (!otlp)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for traces");
    seed_ids(otlp);
    otlp->again_us = (config->again_ms ? config->again_ms : AGAIN_MS) * UINT64_C(1000);
    otlp->batch = calloc(OTLP_BATCH_SPANS, sizeof *otlp->batch);
    if (!otlp->batch || otlp_queue_open(&otlp->queue, config->queue_spans ? config->queue_spans : QUEUE_SPANS) ||
        otlp_encoder_open(config->service, config->instance, &otlp->encoder) || post_open(url, &otlp->post) ||
        pthread_create(&otlp->thread, NULL, exporter_main, otlp)) {
        free_all(otlp);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory or thread for traces");
    }
    log_info("TRACES", "url=%s service=%s", url, config->service);
    *out = otlp;
    return STATUS_OK;
}

void otlp_close(struct otlp *otlp)
{
    if (!otlp)
        return;
    post_end_by(otlp->post, clock_now_us() + FLUSH_US);
    pthread_join(otlp->thread, NULL);
    const struct otlp_counts counts = otlp_counts(otlp);
    log_info("TRACES-END", "exported=%llu dropped=%llu", (unsigned long long)counts.exported, (unsigned long long)counts.dropped);
    free_all(otlp);
}

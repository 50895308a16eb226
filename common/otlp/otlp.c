// otlp.c: see otlp.h: the exporter's thread, and what it does when the collector does not take what it is sent.
#include "common/otlp/otlp.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/otlp/otlp_encode.h"
#include "common/otlp/otlp_post.h"
#include "common/otlp/otlp_queue.h"

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

// --- settings

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

// --- ids

static void draw(_Atomic uint64_t *state, unsigned char *out)
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
    draw(&otlp->id_states[0], out);
    draw(&otlp->id_states[1], out + 8);
}

void otlp_new_span_id(struct otlp *otlp, unsigned char out[OTLP_SPAN_ID_BYTES]) { draw(&otlp->id_states[2], out); }

static void seed_ids(struct otlp *otlp)
{
    uint64_t seeds[3];

    if (getrandom(seeds, sizeof seeds, GRND_NONBLOCK) != (ssize_t)sizeof seeds)
        for (int i = 0; i < 3; i++)
            seeds[i] = clock_wall_us() ^ clock_now_ns() << (20 + i) ^ (uintptr_t)otlp;
    for (int i = 0; i < 3; i++)
        atomic_init(&otlp->id_states[i], seeds[i]);
}

// --- putting and counting

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

// --- the exporter's thread

// Says how many were dropped since the line before.
static void complain(struct otlp *otlp)
{
    const uint64_t dropped = otlp_counts(otlp).dropped, now_us = clock_now_us();

    if (dropped == otlp->complained_of || (otlp->complained_us && now_us - otlp->complained_us < COMPLAIN_EVERY_US))
        return;
    log_warn("SPANS-DROPPED", "count=%llu why=\"%s\"", (unsigned long long)(dropped - otlp->complained_of),
             otlp->why[0] ? otlp->why : "too many at once");
    otlp->complained_us = now_us;
    otlp->complained_of = dropped;
}

// What to add to clock_now_ns() for nanoseconds since 1970: of a few readings the one with the least time in between.
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

    draw(&otlp->id_states[2], (unsigned char *)&chance);
    return most_us / 2 + chance % (most_us / 2 + 1);
}

// Sends a batch until it is taken, refused, or given up.
static void deliver(struct otlp *otlp, uint32_t count)
{
    struct otlp_answer answer = {.outcome = OTLP_REFUSED, .why = "no memory"};

    otlp_encode(otlp->encoder, otlp->batch, count, wall_offset_ns(), &otlp->body);
    for (uint32_t tries = 0; !otlp->body.failed && tries < TRIES; tries++) {
        otlp_post_send(otlp->post, otlp->body.data, otlp->body.bytes, &answer);
        const uint64_t wait_us = answer.retry_after_us ? answer.retry_after_us : pause_us(otlp, tries);
        const uint64_t again_us = clock_now_us() + wait_us, end_us = otlp_post_end_us(otlp->post);
        if (answer.outcome != OTLP_AGAIN || tries + 1 == TRIES || (end_us && again_us >= end_us))
            break;
        otlp_post_wait(otlp->post, again_us);
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
        const uint64_t end_us = otlp_post_end_us(otlp->post); // before the look: what was put before the end is seen
        const uint32_t count = otlp_queue_take(&otlp->queue, otlp->batch, OTLP_BATCH_SPANS);
        if (count && end_us && clock_now_us() >= end_us)
            atomic_fetch_add_explicit(&otlp->dropped, count, memory_order_relaxed);
        else if (count)
            deliver(otlp, count);
        complain(otlp);
        if (!count && end_us)
            return NULL;
        if (!count)
            otlp_post_wait(otlp->post, clock_now_us() + LOOK_US);
    }
}

// --- open and close

static void free_all(struct otlp *otlp)
{
    otlp_post_close(otlp->post);
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
        otlp_encoder_open(config->service, config->instance, &otlp->encoder) || otlp_post_open(url, &otlp->post) ||
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
    otlp_post_end_by(otlp->post, clock_now_us() + FLUSH_US);
    pthread_join(otlp->thread, NULL);
    const struct otlp_counts counts = otlp_counts(otlp);
    log_info("TRACES-END", "exported=%llu dropped=%llu", (unsigned long long)counts.exported, (unsigned long long)counts.dropped);
    free_all(otlp);
}

// probe.c: see server.h.
#include "services/fastdecode/capacity/server.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/sim/figures.h"
#include "services/fastdecode/client/stream_events.h"

enum { TICK_US = 100000 };

enum { NOT_SENT, WAITS, BEGUN, GONE };

struct run {
    struct capacity_server *server;
    const struct load_request *requests; // [count]
    uint32_t count, sent, ended;
    const struct capacity_targets *targets;
    const struct capacity_undisturbed *undisturbed;
    struct capacity_probe *out;
    uint64_t begin_us, last_us; // of the load; of its last token
    uint8_t *states;            // [count]
    double *ttft_s, *delay_s;   // [count], of those that have begun
    uint32_t begun, ttft_over, delay_over;
    struct histogram gaps;
    uint64_t gap_over, gaps_planned;
    char error[STREAM_ERROR_BYTES]; // the first one
};

// --- what comes -----------------------------------------------------------------------------------------------------

static double delay_of(const struct run *run, uint32_t index, double ttft_s)
{
    return capacity_delay_s(run->undisturbed, run->requests[index].length.prompt_tokens, ttft_s);
}

static void on_token(void *arg, const struct load_stream *stream, uint64_t gap_us)
{
    struct run *run = arg;

    run->last_us = stream->last_us;
    if (stream->event_count > 1) {
        histogram_add(&run->gaps, (double)gap_us);
        run->gap_over += run->targets->tbt_p99_s > 0 && (double)gap_us / 1e6 > run->targets->tbt_p99_s;
        return;
    }
    double ttft_s = (double)(stream->first_us - stream->due_us) / 1e6, delay_s = delay_of(run, stream->index, ttft_s);
    run->states[stream->index] = BEGUN;
    run->ttft_s[run->begun] = ttft_s;
    run->delay_s[run->begun++] = delay_s;
    run->ttft_over += run->targets->ttft_p99_s > 0 && ttft_s > run->targets->ttft_p99_s;
    run->delay_over += run->targets->delay_p50_s > 0 && delay_s > run->targets->delay_p50_s;
}

static void on_ended(void *arg, const struct load_stream *stream)
{
    struct run *run = arg;
    struct capacity_probe *out = run->out;

    run->ended++;
    run->states[stream->index] = GONE;
    out->prompt_tokens += stream->prompt_tokens ? stream->prompt_tokens : run->requests[stream->index].length.prompt_tokens;
    out->answer_tokens += stream->answer_tokens ? stream->answer_tokens : stream->event_count;
    if (stream->ok)
        out->finished++;
    else if (stream->status == 429 || stream->status == 503)
        out->refused++;
    else
        out->failed++;
    if (!stream->ok && !run->error[0])
        snprintf(run->error, sizeof run->error, "%s", stream->error);
}

// --- whether it can still meet the targets --------------------------------------------------------------------------

// The target that is exceeded for certain, whatever comes.
static enum capacity_bound exceeded(const struct run *run)
{
    const struct capacity_targets *t = run->targets;
    uint64_t now_us = clock_now_us();
    uint32_t ttft_over = run->ttft_over, delay_over = run->delay_over;

    if ((double)run->out->refused + run->out->failed > t->error_share * run->count)
        return CAPACITY_ERRORS;
    if (run->gap_over > 0.01 * (double)run->gaps_planned + 1)
        return CAPACITY_TBT;
    for (uint32_t i = 0; i < run->sent; i++) {
        if (run->states[i] != WAITS)
            continue;
        double waited_s = ((double)now_us - (double)(run->begin_us + run->requests[i].due_us)) / 1e6;
        ttft_over += t->ttft_p99_s > 0 && waited_s > t->ttft_p99_s;
        delay_over += t->delay_p50_s > 0 && delay_of(run, i, waited_s) > t->delay_p50_s;
    }
    if (delay_over > run->count / 2)
        return CAPACITY_DELAY;
    return ttft_over > run->count - (uint32_t)ceil(0.99 * run->count) ? CAPACITY_TTFT : CAPACITY_MET;
}

static void show(const struct run *run, double seconds)
{
    double now_s = (double)(clock_now_us() - run->begin_us) / 1e6;

    capacity_progress_show(run->server->progress,
                           "%.4g requests/s: %.0f of %.0f s, %u of %u ended, %u open, p99 between tokens %.1f ms",
                           run->out->requests_per_second, MIN(now_s, seconds), seconds, run->ended, run->count,
                           load_client_open_count(run->server->client), histogram_percentile_us(&run->gaps, 0.99) / 1e3);
}

// --- the load -------------------------------------------------------------------------------------------------------

// Sends what is due. RESOURCE_EXHAUSTED: no more streams can be open.
static enum status send_due(struct run *run, struct error *error)
{
    enum status status = STATUS_OK;

    while (run->sent < run->count && run->begin_us + run->requests[run->sent].due_us <= clock_now_us() && !status) {
        const struct load_request *request = &run->requests[run->sent];
        uint64_t due_us = run->begin_us + request->due_us;
        status = capacity_server_ask(run->server, run->sent, due_us,
                                     prompt_fit_words(&run->server->fit, request->length.prompt_tokens),
                                     request->length.answer_tokens, error);
        if (status)
            break;
        run->states[run->sent++] = WAITS;
        run->out->late_s = MAX(run->out->late_s, (double)(clock_now_us() - due_us) / 1e6);
        run->out->streams_max = MAX(run->out->streams_max, load_client_open_count(run->server->client));
    }
    return status;
}

// From the first request to the last token. CANCELLED: interrupted.
static enum status load(struct run *run, double seconds, struct error *error)
{
    enum capacity_bound bound = CAPACITY_MET;
    uint64_t looked_us = 0;

    while (bound == CAPACITY_MET && run->ended < run->count) {
        uint64_t now_us = clock_now_us(), until_us = now_us + TICK_US;
        if (*run->server->interrupted)
            return error_set(error, STATUS_CANCELLED, "interrupted");
        if (send_due(run, error) != STATUS_OK)
            bound = CAPACITY_STREAMS;
        if (run->sent < run->count)
            until_us = MIN(until_us, run->begin_us + run->requests[run->sent].due_us);
        load_client_run(run->server->client, until_us);
        if (bound == CAPACITY_MET && now_us - looked_us >= TICK_US) {
            looked_us = now_us;
            bound = exceeded(run);
            show(run, seconds);
        }
    }
    run->out->cut_short = bound != CAPACITY_MET && run->ended < run->count;
    run->out->bound = bound;
    return STATUS_OK;
}

static void conclude(struct run *run)
{
    struct capacity_probe *out = run->out;
    uint64_t now_us = clock_now_us();

    out->seconds = (double)((out->cut_short || !run->last_us ? now_us : run->last_us) - run->begin_us) / 1e6;
    for (uint32_t i = 0; i < run->sent; i++) // these would have taken longer
        if (run->states[i] == WAITS) {
            double waited_s = (double)(now_us - run->begin_us - run->requests[i].due_us) / 1e6;
            run->ttft_s[run->begun] = waited_s;
            run->delay_s[run->begun++] = delay_of(run, i, waited_s);
        }
    out->ttft = capacity_times_of(run->ttft_s, run->begun);
    out->delay = capacity_times_of(run->delay_s, run->begun);
    out->tbt = histogram_times(&run->gaps);
    if (out->bound == CAPACITY_MET)
        out->bound = capacity_judge(run->targets, out);
}

enum status capacity_probe_server(void *arg, const struct load_request *requests, uint32_t count, double seconds,
                                  const struct capacity_result *so_far, struct capacity_probe *out, struct error *error)
{
    struct capacity_server *server = arg;
    struct run *run = calloc(1, sizeof *run);
    enum status status = STATUS_OK;

    if (!run || !(run->states = calloc(count, 1)) || !(run->ttft_s = calloc(count, sizeof *run->ttft_s)) ||
        !(run->delay_s = calloc(count, sizeof *run->delay_s)))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for %u requests", count);
    if (!status && so_far->probe_count > 0 && so_far->probes[so_far->probe_count - 1].cut_short)
        status = capacity_server_settle(server, error);
    if (!status) {
        run->server = server;
        run->requests = requests;
        run->count = count;
        run->targets = &so_far->targets;
        run->undisturbed = &so_far->undisturbed;
        run->out = out;
        run->begin_us = clock_now_us();
        for (uint32_t i = 0; i < count; i++)
            run->gaps_planned += requests[i].length.answer_tokens - 1;
        load_client_listen(server->client, &(struct load_callbacks){.token = on_token, .ended = on_ended, .arg = run});
        status = load(run, seconds, error);
        load_client_cancel(server->client);
        load_client_listen(server->client, &(struct load_callbacks){0});
        if (!status) {
            conclude(run);
            capacity_progress_tried(server->progress, out);
            if (run->error[0])
                capacity_progress_warn(server->progress, "%u requests failed, the first one: %s", out->refused + out->failed,
                                       run->error);
        }
    }
    if (run) {
        free(run->states);
        free(run->ttft_s);
        free(run->delay_s);
    }
    free(run);
    return status;
}

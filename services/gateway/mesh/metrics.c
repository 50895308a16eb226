// metrics.c: see metrics.h: counters and their text; and texts of the scheduler's, scraped. One mutex: an observation is a few additions, some
// thousands of them a second.
#include "services/gateway/mesh/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { BUCKET_COUNT = 18, STATUS_SLOTS = 600, FAMILY_MAX = 64 };

// Upper bounds in seconds: 1 ms to 5 min, one set for all, so that they can be compared.
static const double bounds[BUCKET_COUNT] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                            1,     2.5,    5,     10,   20,    40,   80,  160,  300};

struct histogram {
    uint64_t counts[BUCKET_COUNT + 1]; // not cumulative; the last: beyond all bounds
    double sum;
};

struct metrics {
    pthread_mutex_t mutex;
    struct histogram histograms[METRICS_HISTOGRAM_COUNT];
    uint64_t counters[METRICS_COUNTER_COUNT];
    uint64_t answers[STATUS_SLOTS];
};

static const struct {
    const char *name, *help;
} histogram_names[METRICS_HISTOGRAM_COUNT] =
    {
        {"fastdecode_time_to_first_token_seconds", "Arrival of a request to its first token."},
        {"fastdecode_time_between_tokens_seconds", "Time between tokens of one sequence."},
        {"fastdecode_request_seconds", "Arrival of a request to the end of its answer."},
        {"fastdecode_gateway_queue_seconds", "Arrival of a request to its hand-over to the scheduler."},
},
  counter_names[METRICS_COUNTER_COUNT] = {
      {"fastdecode_gateway_prompt_tokens_total", "Prompt tokens of answered requests."},
      {"fastdecode_gateway_generated_tokens_total", "Tokens generated for clients of this gateway."},
      {"fastdecode_gateway_client_left_total", "Requests whose client left before the answer was complete."},
      {"fastdecode_gateway_resubmitted_total", "Sequences that were submitted again because the mesh had lost them."},
};

enum status metrics_open(struct metrics **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return STATUS_RESOURCE_EXHAUSTED;
    pthread_mutex_init(&(*out)->mutex, NULL);
    return STATUS_OK;
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics)
        return;
    pthread_mutex_destroy(&metrics->mutex);
    free(metrics);
}

void metrics_observe(struct metrics *metrics, enum metrics_histogram which, double seconds)
{
    uint32_t bucket = 0;

    while (bucket < BUCKET_COUNT && seconds > bounds[bucket])
        bucket++;
    pthread_mutex_lock(&metrics->mutex);
    metrics->histograms[which].counts[bucket]++;
    metrics->histograms[which].sum += seconds;
    pthread_mutex_unlock(&metrics->mutex);
}

void metrics_count(struct metrics *metrics, enum metrics_counter which, uint64_t add)
{
    pthread_mutex_lock(&metrics->mutex);
    metrics->counters[which] += add;
    pthread_mutex_unlock(&metrics->mutex);
}

void metrics_answer(struct metrics *metrics, int status)
{
    if (status < 0 || status >= STATUS_SLOTS)
        return;
    pthread_mutex_lock(&metrics->mutex);
    metrics->answers[status]++;
    pthread_mutex_unlock(&metrics->mutex);
}

// --- text ---------------------------------------------------------------------------------------------------------

// The families that were written; those of the scheduler's text with the same names are left out.
struct families {
    const char *names[FAMILY_MAX];
    uint32_t count;
};

static void family(struct text *out, struct families *families, const char *name, const char *type, const char *help)
{
    assert_always(families->count < FAMILY_MAX);
    families->names[families->count++] = name;
    text_format(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void render_histogram(struct text *out, const char *name, const struct histogram *histogram)
{
    uint64_t total = 0;
    uint32_t i;

    for (i = 0; i < BUCKET_COUNT; i++) {
        total += histogram->counts[i];
        text_format(out, "%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)total);
    }
    total += histogram->counts[BUCKET_COUNT];
    text_format(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)total, name,
                histogram->sum, name, (unsigned long long)total);
}

static void gauge(struct text *out, struct families *families, const char *name, const char *help, uint64_t value)
{
    family(out, families, name, "gauge", help);
    text_format(out, "%s %llu\n", name, (unsigned long long)value);
}

// In quotes. The format knows three escapes and takes UTF-8 otherwise.
static void label_value(struct text *out, const char *value)
{
    size_t left = strlen(value);

    text_append(out, "\"", 1);
    while (left > 0) {
        size_t length = text_utf8_length(value, left);
        if (length == 0)
            text_string(out, "\xEF\xBF\xBD");
        else if (*value == '\n')
            text_append(out, "\\n", 2);
        else if (*value == '"' || *value == '\\')
            text_append(out, (const char[]){'\\', *value}, 2);
        else
            text_append(out, value, length);
        length = MAX(length, 1u);
        value += length;
        left -= length;
    }
    text_append(out, "\"", 1);
}

// A gauge with the label model_name, whose value may hold anything.
static void model_gauge(struct text *out, struct families *families, const char *name, const char *help, const char *model,
                        double value)
{
    family(out, families, name, "gauge", help);
    text_format(out, "%s{model_name=", name);
    label_value(out, model);
    text_format(out, "} %.9g\n", value);
}

static bool is_own(const struct families *families, const char *name, size_t bytes)
{
    static const char *const suffixes[] = {"", "_bucket", "_sum", "_count"};
    uint32_t i;
    size_t j;

    for (i = 0; i < families->count; i++) {
        size_t length = strlen(families->names[i]);
        if (bytes < length || memcmp(families->names[i], name, length) != 0)
            continue;
        for (j = 0; j < ARRAY_COUNT(suffixes); j++)
            if (bytes - length == strlen(suffixes[j]) && memcmp(name + length, suffixes[j], bytes - length) == 0)
                return true;
    }
    return false;
}

// The length of a metric's or a label's name at the beginning of text.
static size_t name_length(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789";

    return *text >= '0' && *text <= '9' ? 0 : strspn(text, letters);
}

// The byte after {name="value",...}, or NULL if this is none.
static const char *skip_labels(const char *at)
{
    do {
        size_t length = name_length(++at);
        at += length;
        if (length == 0 || at[0] != '=' || at[1] != '"')
            return NULL;
        for (at += 2; *at && *at != '"' && *at != '\n'; at++)
            if (*at == '\\' && (*++at == '\0' || !strchr("n\"\\", *at)))
                return NULL;
        if (*at++ != '"')
            return NULL;
    } while (*at == ',');
    return *at == '}' ? at + 1 : NULL;
}

// Whether a line that ends with a line feed is a comment or a sample. The scheduler's text holds names that others chose, and one malformed
// line would make the whole page unreadable.
static bool is_well_formed(const char *line)
{
    size_t length;
    char *end;

    if (strncmp(line, "# HELP ", 7) == 0 || strncmp(line, "# TYPE ", 7) == 0)
        return (length = name_length(line + 7)) > 0 && line[7 + length] == ' ';
    line += length = name_length(line);
    if (length == 0)
        return false;
    if (*line == '{' && !(line = skip_labels(line)))
        return false;
    if (line[0] != ' ' || strchr(" \t\n", line[1]))
        return false;
    (void)strtod(line + 1, &end);
    return *end == '\n';
}

// Appends the well-formed lines of the scheduler's text whose family is not ours.
static void append_mesh(struct text *out, const struct families *families, const char *mesh_text)
{
    const char *line = mesh_text, *end;

    for (; (end = strchr(line, '\n')); line = end + 1) { // a last line without its end was cut off
        const char *name = *line == '#' ? line + 7 : line;
        if (is_well_formed(line) && !is_own(families, name, name_length(name)))
            text_append(out, line, (size_t)(end - line) + 1);
    }
}

static void render_batches(struct text *out, struct families *families, const struct metrics_gauges *gauges)
{
    static const char results[] = "fastdecode_gateway_batch_results_total";

    gauge(out, families, "fastdecode_gateway_batches_running", "Batches at work.", gauges->batches_running);
    gauge(out, families, "fastdecode_gateway_batch_requests", "Requests of batches that are being answered.",
          gauges->batch_requests);
    family(out, families, results, "counter", "Lines of batches with a result, since the start.");
    text_format(out, "%s{result=\"completed\"} %llu\n%s{result=\"failed\"} %llu\n", results,
                (unsigned long long)gauges->batch_completed, results, (unsigned long long)gauges->batch_failed);
}

static void counter(struct text *out, struct families *families, const char *name, const char *help, uint64_t value)
{
    family(out, families, name, "counter", help);
    text_format(out, "%s %llu\n", name, (unsigned long long)value);
}

// Renders counts of spans, if there is a collector.
static void render_traces(struct text *out, struct families *families, const struct metrics_gauges *gauges)
{
    counter(out, families, "fastdecode_gateway_trace_spans_exported_total", "Spans that the collector has taken.",
            gauges->spans_exported);
    counter(out, families, "fastdecode_gateway_trace_spans_dropped_total", "Spans that were lost on their way to the collector.",
            gauges->spans_dropped);
}

// Renders when certificates end.
static void render_certificates(struct text *out, struct families *families, const struct metrics_gauges *gauges)
{
    static const char name[] = "fastdecode_gateway_certificate_expiry_timestamp_seconds";
    const struct {
        const char *of;
        uint64_t expires_s;
    } certificates[] = {{"mesh", gauges->mesh_expires_s}, {"ca", gauges->ca_expires_s}, {"https", gauges->https_expires_s}};

    family(out, families, name, "gauge",
           "When a certificate of this gateway ends (mesh: of --tls; ca: its CA; https), since 1970.");
    for (size_t i = 0; i < ARRAY_COUNT(certificates); i++)
        if (certificates[i].expires_s)
            text_format(out, "%s{certificate=\"%s\"} %llu\n", name, certificates[i].of,
                        (unsigned long long)certificates[i].expires_s);
}

void metrics_render(struct metrics *metrics, const struct metrics_gauges *gauges, const char *mesh_text, struct text *out)
{
    static const char answers[] = "fastdecode_http_responses_total";
    struct families families = {0};
    uint32_t i;

    gauge(out, &families, "fastdecode_gateway_requests_running", "Interactive requests of this gateway that have had a token.",
          gauges->requests_running);
    gauge(out, &families, "fastdecode_gateway_requests_waiting",
          "Interactive requests of this gateway that wait for their first token.", gauges->requests_waiting);
    gauge(out, &families, "fastdecode_gateway_batch_class_running",
          "Requests of latency class batch of this gateway that have had a token.", gauges->batch_class_running);
    gauge(out, &families, "fastdecode_gateway_batch_class_waiting",
          "Requests of latency class batch of this gateway that wait for their first token.", gauges->batch_class_waiting);
    gauge(out, &families, "fastdecode_gateway_http_active", "HTTP requests being answered.", gauges->connections_active);
    gauge(out, &families, "fastdecode_gateway_mesh_up", "1 while the scheduler is connected.", gauges->mesh_up);
    gauge(out, &families, "fastdecode_gateway_mesh_ready", "1 while the mesh can serve.", gauges->mesh_ready);
    model_gauge(out, &families, "vllm:num_requests_running", "Interactive requests of this gateway that run.", gauges->model_name,
                gauges->requests_running);
    model_gauge(out, &families, "vllm:num_requests_waiting", "Interactive requests of this gateway that wait.", gauges->model_name,
                gauges->requests_waiting);
    model_gauge(out, &families, "vllm:kv_cache_usage_perc", "Share of the mesh's KV pages in use, 0 to 1.", gauges->model_name,
                gauges->kv_pages_total ? (double)gauges->kv_pages_used / (double)gauges->kv_pages_total : 0);
    if (gauges->has_batches)
        render_batches(out, &families, gauges);
    if (gauges->has_traces)
        render_traces(out, &families, gauges);
    if (gauges->mesh_expires_s || gauges->https_expires_s)
        render_certificates(out, &families, gauges);
    pthread_mutex_lock(&metrics->mutex);
    for (i = 0; i < METRICS_HISTOGRAM_COUNT; i++) {
        family(out, &families, histogram_names[i].name, "histogram", histogram_names[i].help);
        render_histogram(out, histogram_names[i].name, &metrics->histograms[i]);
    }
    for (i = 0; i < METRICS_COUNTER_COUNT; i++) {
        family(out, &families, counter_names[i].name, "counter", counter_names[i].help);
        text_format(out, "%s %llu\n", counter_names[i].name, (unsigned long long)metrics->counters[i]);
    }
    family(out, &families, answers, "counter", "Answers sent, by HTTP status.");
    for (i = 0; i < STATUS_SLOTS; i++)
        if (metrics->answers[i])
            text_format(out, "%s{code=\"%u\"} %llu\n", answers, i, (unsigned long long)metrics->answers[i]);
    pthread_mutex_unlock(&metrics->mutex);
    if (mesh_text)
        append_mesh(out, &families, mesh_text);
}

// --- texts of the scheduler's, kept a while: everything runs on the loop thread --------------------------------------

enum { ANSWER_US = 500000 };

struct waiter {
    struct waiter *next;
    scrape_done_fn *done;
    void *arg;
};

struct scrape {
    struct mesh *mesh;
    scrape_ask_fn *ask;
    uint64_t kept_us;
    struct waiter *waiters; // not NULL: the scheduler has been asked
    char *text;             // its last answer; NULL: none
    uint64_t answered_us;   // when; 0: never
};

struct scrape *scrape_open(struct mesh *mesh, scrape_ask_fn *ask, uint64_t kept_us)
{
    struct scrape *scrape = calloc(1, sizeof *scrape);

    if (scrape)
        *scrape = (struct scrape){.mesh = mesh, .ask = ask, .kept_us = kept_us};
    return scrape;
}

void scrape_close(struct scrape *scrape)
{
    if (!scrape)
        return;
    while (scrape->waiters) {
        struct waiter *waiter = scrape->waiters;
        scrape->waiters = waiter->next;
        free(waiter);
    }
    free(scrape->text);
    free(scrape);
}

static void on_answer(void *arg, const char *text)
{
    struct scrape *scrape = arg;
    struct waiter *waiter = scrape->waiters;

    free(scrape->text);
    scrape->text = text ? strdup(text) : NULL;
    scrape->answered_us = clock_now_us();
    scrape->waiters = NULL;
    while (waiter) {
        struct waiter *next = waiter->next;
        waiter->done(waiter->arg, scrape->text);
        free(waiter);
        waiter = next;
    }
}

bool scrape_get(struct scrape *scrape, scrape_done_fn *done, void *arg)
{
    struct waiter *waiter;
    bool asked = scrape->waiters != NULL;

    if (!asked && scrape->answered_us && clock_now_us() - scrape->answered_us < scrape->kept_us) {
        done(arg, scrape->text);
        return true;
    }
    waiter = malloc(sizeof *waiter);
    if (!waiter)
        return false;
    *waiter = (struct waiter){scrape->waiters, done, arg};
    scrape->waiters = waiter;
    if (!asked)
        scrape->ask(scrape->mesh, ANSWER_US, on_answer, scrape);
    return true;
}

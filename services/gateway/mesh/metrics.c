// metrics.c: see metrics.h: counters and their text; and texts of the scheduler's, scraped. One mutex: an observation is a few additions, some
// thousands of them a second.
#include "services/gateway/mesh/metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

enum { BUCKET_COUNT = 18, ANSWERS_MAX = 128 };

// Upper bounds in seconds: 1 ms to 5 min, one set for all, so that they can be compared.
static const double bounds[BUCKET_COUNT] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                            1,     2.5,    5,     10,   20,    40,   80,  160,  300};

struct histogram {
    uint64_t counts[BUCKET_COUNT + 1]; // not cumulative; the last: beyond all bounds
    double sum;
};

// Answers of one status for one reason ("": none). An entry that is not used yet has status 0.
struct answer_count {
    int status;
    const char *reason;
    uint64_t count;
};

struct metrics {
    pthread_mutex_t mutex;
    struct histogram histograms[METRICS_HISTOGRAM_COUNT];
    uint64_t counters[METRICS_COUNTER_COUNT];
    struct answer_count answers[ANSWERS_MAX];
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

void metrics_answer(struct metrics *metrics, int status, const char *reason)
{
    struct answer_count *entry = metrics->answers, *last = &metrics->answers[ANSWERS_MAX - 1];

    if (status < 100 || status > 599)
        return;
    reason = reason ? reason : "";
    pthread_mutex_lock(&metrics->mutex);
    while (entry < last && entry->status && (entry->status != status || strcmp(entry->reason, reason) != 0))
        entry++;
    if (!entry->status)
        *entry = (struct answer_count){.status = status, .reason = reason};
    entry->count++;
    pthread_mutex_unlock(&metrics->mutex);
}

// --- text ---------------------------------------------------------------------------------------------------------

void metrics_page_family(struct metrics_page *page, const char *name, const char *type, const char *help)
{
    assert_always(page->family_count < METRICS_FAMILIES_MAX);
    page->families[page->family_count++] = name;
    text_format(&page->text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void metrics_page_number(struct metrics_page *page, const char *name, const char *type, const char *help, uint64_t value)
{
    metrics_page_family(page, name, type, help);
    text_format(&page->text, "%s %llu\n", name, (unsigned long long)value);
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

void metrics_page_model(struct metrics_page *page, const char *name, const char *help, const char *model, double value)
{
    metrics_page_family(page, name, "gauge", help);
    text_format(&page->text, "%s{model_name=", name);
    label_value(&page->text, model);
    text_format(&page->text, "} %.9g\n", value);
}

static bool is_own(const struct metrics_page *page, const char *name, size_t bytes)
{
    static const char *const suffixes[] = {"", "_bucket", "_sum", "_count"};
    uint32_t i;
    size_t j;

    for (i = 0; i < page->family_count; i++) {
        size_t length = strlen(page->families[i]);
        if (bytes < length || memcmp(page->families[i], name, length) != 0)
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

void metrics_page_mesh(struct metrics_page *page, const char *mesh_text)
{
    const char *line = mesh_text, *end;

    for (; (end = strchr(line, '\n')); line = end + 1) { // a last line without its end was cut off
        const char *name = *line == '#' ? line + 7 : line;
        if (is_well_formed(line) && !is_own(page, name, name_length(name)))
            text_append(&page->text, line, (size_t)(end - line) + 1);
    }
}

void metrics_page_counts(struct metrics_page *page, struct metrics *metrics)
{
    static const char answers[] = "fastdecode_http_responses_total";
    uint32_t i;

    pthread_mutex_lock(&metrics->mutex);
    for (i = 0; i < METRICS_HISTOGRAM_COUNT; i++) {
        metrics_page_family(page, histogram_names[i].name, "histogram", histogram_names[i].help);
        render_histogram(&page->text, histogram_names[i].name, &metrics->histograms[i]);
    }
    for (i = 0; i < METRICS_COUNTER_COUNT; i++)
        metrics_page_number(page, counter_names[i].name, "counter", counter_names[i].help, metrics->counters[i]);
    metrics_page_family(page, answers, "counter",
                        "Answers sent but those of /ready, by HTTP status and, of refused requests, the reason.");
    for (i = 0; i < ANSWERS_MAX && metrics->answers[i].status; i++) {
        const struct answer_count *entry = &metrics->answers[i];
        const bool refused = entry->reason[0] != '\0';
        text_format(&page->text, "%s{code=\"%d\"%s%s%s} %llu\n", answers, entry->status, refused ? ",reason=\"" : "", entry->reason,
                    refused ? "\"" : "", (unsigned long long)entry->count);
    }
    pthread_mutex_unlock(&metrics->mutex);
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
    *waiter = (struct waiter){.next = scrape->waiters, .done = done, .arg = arg};
    scrape->waiters = waiter;
    if (!asked)
        scrape->ask(scrape->mesh, ANSWER_US, on_answer, scrape);
    return true;
}

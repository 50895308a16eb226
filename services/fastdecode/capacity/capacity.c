// capacity.c: see capacity.h.
#include "services/fastdecode/capacity/capacity.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/measure.h"
#include "common/base/random.h"

// --- targets --------------------------------------------------------------------------------------------------------

struct sim_times capacity_times_of(double *values, uint32_t count)
{
    struct sim_times times = {.count = count};

    if (count == 0)
        return times;
    times.p50_s = median_of(values, count); // sorts
    times.p99_s = values[(uint32_t)ceil(0.99 * count) - 1];
    times.max_s = values[count - 1];
    for (uint32_t i = 0; i < count; i++)
        times.mean_s += values[i] / count;
    return times;
}

struct capacity_targets capacity_targets_of(const char *tbt_slo, double tbt_p99_s, double ttft_p99_s, double delay_p50_s,
                                            double error_share, double step_s, double load_s)
{
    double steps = !tbt_slo || !strcmp(tbt_slo, "strict") ? CAPACITY_STRICT_STEPS
                   : !strcmp(tbt_slo, "relaxed")          ? CAPACITY_RELAXED_STEPS
                                                          : 0;

    return (struct capacity_targets){
        .tbt_p99_s = tbt_p99_s > 0 ? tbt_p99_s : steps * step_s,
        .ttft_p99_s = ttft_p99_s,
        .delay_p50_s = delay_p50_s >= 0 ? delay_p50_s : MIN(CAPACITY_DELAY_MAX_S, CAPACITY_DELAY_SHARE * load_s),
        .error_share = error_share,
    };
}

double capacity_lone_ttft_s(const struct capacity_undisturbed *u, double prompt_tokens)
{
    uint32_t i = 1;

    if (u->count == 0)
        return 0;
    if (u->count == 1 || prompt_tokens <= u->prompt_tokens[0])
        return u->ttft_s[0];
    while (i + 1 < u->count && u->prompt_tokens[i] < prompt_tokens)
        i++;
    double span = u->prompt_tokens[i] - u->prompt_tokens[i - 1];
    double share = span > 0 ? (prompt_tokens - u->prompt_tokens[i - 1]) / span : 1;
    return MAX(u->ttft_s[i - 1] + share * (u->ttft_s[i] - u->ttft_s[i - 1]), u->ttft_s[0]);
}

double capacity_delay_s(const struct capacity_undisturbed *u, double prompt_tokens, double ttft_s)
{
    return MAX(ttft_s - capacity_lone_ttft_s(u, prompt_tokens), 0);
}

enum capacity_bound capacity_judge(const struct capacity_targets *t, const struct capacity_probe *p)
{
    if ((double)p->refused + p->failed > t->error_share * p->requests)
        return CAPACITY_ERRORS;
    if (t->tbt_p99_s > 0 && p->tbt.p99_s > t->tbt_p99_s)
        return CAPACITY_TBT;
    if (t->delay_p50_s > 0 && p->delay.p50_s > t->delay_p50_s)
        return CAPACITY_DELAY;
    if (t->ttft_p99_s > 0 && p->ttft.p99_s > t->ttft_p99_s)
        return CAPACITY_TTFT;
    return CAPACITY_MET;
}

const char *capacity_bound_name(enum capacity_bound bound)
{
    static const char *const names[CAPACITY_BOUNDS] = {NULL, "errors", "streams", "tbt_p99", "delay_p50", "ttft_p99"};

    return bound < CAPACITY_BOUNDS ? names[bound] : NULL;
}

// --- the search -----------------------------------------------------------------------------------------------------

void rate_search_begin(struct rate_search *s, double guess, double least, double most, double precision, bool confirm)
{
    assert_always(least > 0 && most >= least && precision > 0 && precision < 1);
    *s = (struct rate_search){.least = least, .most = most, .precision = precision, .confirm = confirm, .stride = 2};
    s->rate = MIN(MAX(guess, least), most);
}

// Chooses what to try with both ends known. 0: nothing more.
static double rate_between(const struct rate_search *s)
{
    if (s->missed > s->met * (1 + s->precision))
        return sqrt(s->met * s->missed);
    if (!s->confirm || s->reversals >= RATE_REVERSALS_MAX)
        return 0;
    return !s->met_twice ? s->met : !s->missed_twice ? s->missed : 0;
}

double rate_search_next(struct rate_search *s)
{
    if (s->trials == 0)
        return s->rate;
    if (s->trials >= RATE_TRIALS_MAX)
        s->rate = 0;
    else if (s->met > 0 && s->missed > 0)
        s->rate = rate_between(s);
    else if (s->met > 0)
        s->rate = s->met < s->most ? MIN(s->stride * s->met, s->most) : 0;
    else
        s->rate = s->missed > s->least ? MAX(s->missed / s->stride, s->least) : 0;
    return s->rate;
}

// An end did not hold: the limit cannot be far.
static void look_nearby(struct rate_search *s)
{
    s->stride = (1 + s->precision) * (1 + s->precision);
    s->reversals++;
}

void rate_search_take(struct rate_search *s, bool met)
{
    const double rate = s->rate;

    assert_always(rate > 0);
    s->trials++;
    if (met && rate == s->met) {
        s->met_twice = true;
    } else if (!met && rate == s->missed) {
        s->missed_twice = true;
    } else {
        s->stride = MIN(s->stride * s->stride, 2);
        if (rate == s->met || rate == s->missed)
            look_nearby(s);
        if (met && rate == s->missed) // it was missed by chance: what is above is not known
            s->missed = 0;
        if (!met && rate == s->met) // it was met by chance
            s->met = 0;
        *(met ? &s->met : &s->missed) = rate;
        *(met ? &s->met_twice : &s->missed_twice) = false;
    }
}

// --- the load -------------------------------------------------------------------------------------------------------

enum { LINE_BYTES = 128 };

// Percentiles of the number of tokens in the datasets of Sarathi-Serve's evaluation: Agrawal et al., "Taming Throughput-Latency Tradeoff in
// LLM Inference with Sarathi-Serve", arXiv 2403.02310, the table of workloads (openchat_sharegpt4, arxiv_summarization).
static const struct {
    const char *name;
    struct length_fit prompt, answer;
} shapes[] = {
    {"sharegpt", {1730, 5696}, {415, 834}},
    {"arxiv", {7059, 12985}, {208, 371}},
};

// --- chance ---------------------------------------------------------------------------------------------------------

static double random_uniform(uint64_t *state) // in (0, 1)
{
    return ((double)(random_next(state) >> 11) + 0.5) * 0x1p-53;
}

static void shuffle_pairs(uint32_t *values, uint32_t count, uint64_t *state)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = (uint32_t)(random_next(state) % i), kept = values[i - 1];
        values[i - 1] = values[j];
        values[j] = kept;
    }
}

// Returns the standard normal distribution's quantile, by bisection of its distribution function: exact, and slow enough to be used at a start.
static double normal_quantile(double share)
{
    double low = -9, high = 9;

    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (erfc(-middle * M_SQRT1_2) / 2 < share)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

// --- lengths --------------------------------------------------------------------------------------------------------

static double fit_quantile(const struct length_fit *fit, double share)
{
    static const double normal_p90 = 1.2815515655446004;

    return fit->p50 * exp(log(fit->p90 / fit->p50) / normal_p90 * normal_quantile(share));
}

static uint32_t whole_tokens(double tokens) { return (uint32_t)MIN(MAX(round(tokens), 1), TRACE_TOKENS_MAX); }

// Scales a pair and makes it fit the context. Returns whether the context has shortened it.
static bool limit_pair(const struct length_trace *trace, double prompt, double answer, struct length_pair *out)
{
    double scale = trace->scale > 0 ? trace->scale : 1;
    struct length_pair wanted = {whole_tokens(prompt * scale), whole_tokens(answer * scale)};

    *out = wanted;
    if (trace->context_tokens >= 2) {
        out->answer_tokens = MIN(wanted.answer_tokens, trace->context_tokens / 2);
        out->prompt_tokens = MIN(wanted.prompt_tokens, trace->context_tokens - out->answer_tokens);
    }
    return out->prompt_tokens < wanted.prompt_tokens || out->answer_tokens < wanted.answer_tokens;
}

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t length_trace_prompt_at(const struct length_trace *trace, double share)
{
    const struct length_pair *pair = trace->pairs ? &trace->pairs[MIN((uint32_t)(share * trace->count), trace->count - 1)] : NULL;
    struct length_pair limited;

    if (pair)
        limit_pair(trace, pair->prompt_tokens, pair->answer_tokens, &limited);
    else
        limit_pair(trace, fit_quantile(&trace->prompt, share), trace->answer.p50, &limited);
    return limited.prompt_tokens;
}

uint32_t length_trace_answer_at(const struct length_trace *trace, double share)
{
    struct length_pair pair;
    uint32_t *answers = trace->pairs ? malloc(trace->count * sizeof *answers) : NULL;
    double answer = trace->pairs ? trace->pairs[trace->count / 2].answer_tokens : fit_quantile(&trace->answer, share);

    for (uint32_t i = 0; answers && i < trace->count; i++)
        answers[i] = trace->pairs[i].answer_tokens;
    if (answers) {
        qsort(answers, trace->count, sizeof *answers, ascending);
        answer = answers[MIN((uint32_t)(share * trace->count), trace->count - 1)];
    }
    free(answers);
    limit_pair(trace, 1, answer, &pair);
    return pair.answer_tokens;
}

bool length_trace_named(const char *name, struct length_trace *out)
{
    *out = (struct length_trace){.scale = 1};
    for (size_t i = 0; i < ARRAY_COUNT(shapes); i++) {
        if (strcmp(shapes[i].name, name))
            continue;
        out->prompt = shapes[i].prompt;
        out->answer = shapes[i].answer;
        return true;
    }
    return false;
}

// --- files ----------------------------------------------------------------------------------------------------------

static enum status add_pair(struct length_trace *trace, uint32_t *capacity, const struct length_pair *pair, struct error *error)
{
    if (trace->count == *capacity) {
        uint32_t wanted = *capacity ? MIN(2 * *capacity, (uint32_t)TRACE_PAIRS_MAX) : 1024;
        struct length_pair *more = trace->count < TRACE_PAIRS_MAX ? realloc(trace->pairs, wanted * sizeof *more) : NULL;
        if (!more)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "more than %u pairs: too many, or no memory", trace->count);
        trace->pairs = more;
        *capacity = wanted;
    }
    trace->pairs[trace->count++] = *pair;
    return STATUS_OK;
}

// line: terminated.
static enum status parse_line(const char *line, struct length_pair *out, struct error *error)
{
    static const char *const names[] = {"prompt_tokens", "answer_tokens"};
    uint32_t *const targets[] = {&out->prompt_tokens, &out->answer_tokens};
    const char *at = line;

    for (int i = 0; i < 2; i++) {
        char *end;
        errno = 0;
        double value = strtod(at, &end);
        if (end == at || errno || !(value >= 1 && value <= TRACE_TOKENS_MAX) || value != floor(value))
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s is '%.*s', want a whole number from 1 to %d", names[i],
                             (int)strcspn(at, ","), at, TRACE_TOKENS_MAX);
        *targets[i] = (uint32_t)value;
        at = end + strspn(end, " \t\r");
        if (*at != (i == 0 ? ',' : '\0'))
            return error_set(error, STATUS_INVALID_ARGUMENT, "want prompt_tokens,answer_tokens");
        at++;
    }
    return STATUS_OK;
}

static int by_prompt(const void *a, const void *b)
{
    const struct length_pair *x = a, *y = b;
    return x->prompt_tokens != y->prompt_tokens ? (x->prompt_tokens > y->prompt_tokens) - (x->prompt_tokens < y->prompt_tokens)
                                                : (x->answer_tokens > y->answer_tokens) - (x->answer_tokens < y->answer_tokens);
}

// Takes the line [text, stop), without blanks before it. first: it may be a heading.
static enum status take_line(struct length_trace *trace, uint32_t *capacity, const char *text, const char *stop, bool first,
                             struct error *error)
{
    size_t bytes = (size_t)(stop - text);
    char line[LINE_BYTES];
    struct length_pair pair;
    enum status status;

    if (bytes == 0 || *text == '#' || (first && isalpha((unsigned char)*text)))
        return STATUS_OK;
    if (bytes >= sizeof line || memchr(text, 0, bytes))
        return error_set(error, STATUS_INVALID_ARGUMENT, "not a line of numbers");
    memcpy(line, text, bytes);
    line[bytes] = '\0';
    status = parse_line(line, &pair, error);
    return status ? status : add_pair(trace, capacity, &pair, error);
}

enum status length_trace_parse(const char *text, size_t bytes, const char *name, struct length_trace *out, struct error *error)
{
    const char *end = text + bytes;
    uint32_t capacity = 0;
    unsigned long long number = 0;
    enum status status = STATUS_OK;

    *out = (struct length_trace){.scale = 1};
    while (text < end && !status) {
        const char *newline = memchr(text, '\n', (size_t)(end - text)), *stop = newline ? newline : end;
        number++;
        while (text < stop && isspace((unsigned char)*text))
            text++;
        status = take_line(out, &capacity, text, stop, number == 1, error);
        text = newline ? newline + 1 : end;
    }
    if (!status && out->count == 0)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "no lengths");
    if (status) {
        error_prefix(error, "%.200s:%llu", name, number);
        length_trace_free(out);
        return status;
    }
    qsort(out->pairs, out->count, sizeof *out->pairs, by_prompt);
    return STATUS_OK;
}

enum status length_trace_read(const char *name_or_path, struct length_trace *out, struct error *error)
{
    FILE *file;
    char *text = NULL;
    long size = -1;
    enum status status;

    if (length_trace_named(name_or_path, out))
        return STATUS_OK;
    file = fopen(name_or_path, "re");
    if (!file)
        return error_set(error, STATUS_NOT_FOUND, "%s: %s (want %s or a CSV file)", name_or_path, strerror(errno),
                         TRACE_SHAPE_NAMES);
    if (!fseek(file, 0, SEEK_END))
        size = ftell(file);
    if (size < 0 || size > 1 << 30 || fseek(file, 0, SEEK_SET))
        status = error_set(error, STATUS_INVALID_ARGUMENT, "%s: not a file of at most 1 GiB", name_or_path);
    else if (!(text = malloc((size_t)size + 1)))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %ld bytes", name_or_path, size);
    else if (fread(text, 1, (size_t)size, file) != (size_t)size)
        status = error_set(error, STATUS_NOT_FOUND, "%s: could not be read whole", name_or_path);
    else
        status = length_trace_parse(text, (size_t)size, name_or_path, out, error);
    free(text);
    fclose(file);
    return status;
}

void length_trace_free(struct length_trace *trace)
{
    free(trace->pairs);
    trace->pairs = NULL;
    trace->count = 0;
}

// --- requests -------------------------------------------------------------------------------------------------------

static int by_due(const void *a, const void *b)
{
    const struct load_request *x = a, *y = b;
    return (x->due_us > y->due_us) - (x->due_us < y->due_us);
}

// orders: [2][count], a random order of the strata of each length.
static void fill_quantiles(const struct length_trace *trace, uint32_t count, const uint32_t *orders, struct load_request *requests,
                           uint32_t *limited)
{
    for (uint32_t i = 0; i < count; i++) {
        double share = (orders[i] + 0.5) / count, other = (orders[count + i] + 0.5) / count;
        const struct length_pair *pair = trace->pairs ? &trace->pairs[(uint32_t)(share * trace->count)] : NULL;
        double prompt = pair ? pair->prompt_tokens : fit_quantile(&trace->prompt, share);
        double answer = pair ? pair->answer_tokens : fit_quantile(&trace->answer, other);
        *limited += limit_pair(trace, prompt, answer, &requests[i].length);
    }
}

enum status length_trace_draw(const struct length_trace *trace, uint32_t count, double seconds, uint64_t seed,
                              struct load_request **out, uint32_t *limited, struct error *error)
{
    uint64_t state = seed;
    uint32_t *orders;

    assert_always(count >= 1 && count <= TRACE_REQUESTS_MAX);
    *limited = 0;
    *out = calloc(count, sizeof **out);
    orders = calloc(2 * (size_t)count, sizeof *orders);
    if (!*out || !orders) {
        free(*out);
        free(orders);
        *out = NULL;
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for %u requests", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        orders[i] = orders[count + i] = i;
        (*out)[i].due_us = (uint64_t)(random_uniform(&state) * seconds * 1e6);
    }
    qsort(*out, count, sizeof **out, by_due);
    shuffle_pairs(orders, count, &state);
    shuffle_pairs(orders + count, count, &state);
    fill_quantiles(trace, count, orders, *out, limited);
    free(orders);
    return STATUS_OK;
}

// workload.c: see workload.h.
#include "common/sim/workload.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"

enum { COLUMNS_MIN = 3, COLUMNS_MAX = 4, LINE_BYTES = 256 };

static int by_arrival(const void *a, const void *b)
{
    const struct sim_request *x = a, *y = b;
    return (x->arrival_us > y->arrival_us) - (x->arrival_us < y->arrival_us);
}

static void note_context(struct workload *w, const struct sim_request *r)
{
    w->context_tokens = MAX(w->context_tokens, r->prompt_tokens + r->max_new_tokens);
}

static enum status add(struct workload *w, uint64_t *capacity, const struct sim_request *request, struct error *error)
{
    if (w->count == *capacity) {
        uint64_t wanted = *capacity ? 2 * *capacity : 1024;
        struct sim_request *more = w->count < WORKLOAD_REQUESTS_MAX ? realloc(w->requests, wanted * sizeof *more) : NULL;
        if (!more)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "more than %llu requests: too many, or no memory",
                             (unsigned long long)w->count);
        w->requests = more;
        *capacity = wanted;
    }
    w->requests[w->count++] = *request;
    note_context(w, request);
    return STATUS_OK;
}

// line: terminated.
static enum status parse_line(const char *line, struct sim_request *out, struct error *error)
{
    static const char *const names[COLUMNS_MAX] = {"arrival_s", "prompt_tokens", "generated_tokens", "max_tokens"};
    double values[COLUMNS_MAX];
    uint32_t count = 0;
    const char *at = line;

    for (;;) {
        char *end;
        errno = 0;
        values[count] = strtod(at, &end);
        double max = count == 0 ? WORKLOAD_SECONDS_MAX : WORKLOAD_TOKENS_MAX, min = count == 0 ? 0 : 1;
        if (end == at || errno || !(values[count] >= min && values[count] <= max) ||
            (count > 0 && values[count] != floor(values[count])))
            return error_set(error, STATUS_INVALID_ARGUMENT, "%s is '%.*s', want a %s from %.0f to %.0f", names[count],
                             (int)strcspn(at, ","), at, count == 0 ? "number" : "whole number", min, max);
        count++;
        at = end + strspn(end, " \t\r");
        if (*at == '\0')
            break;
        if (*at++ != ',' || count == COLUMNS_MAX)
            return error_set(error, STATUS_INVALID_ARGUMENT, "want arrival_s,prompt_tokens,generated_tokens[,max_tokens]");
    }
    if (count < COLUMNS_MIN)
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s is missing", names[count]);
    if (count == COLUMNS_MIN)
        values[3] = values[2];
    if (values[3] < values[2])
        return error_set(error, STATUS_INVALID_ARGUMENT, "max_tokens is %.0f, less than the %.0f that are generated", values[3],
                         values[2]);
    *out = (struct sim_request){.arrival_us = (uint64_t)(values[0] * 1e6),
                                .prompt_tokens = (uint32_t)values[1],
                                .generated_tokens = (uint32_t)values[2],
                                .max_new_tokens = (uint32_t)values[3]};
    return STATUS_OK;
}

enum status workload_parse(const char *text, size_t length, const char *name, struct workload *out, struct error *error)
{
    uint64_t capacity = 0, number = 0;
    const char *end = text + length;
    enum status status = STATUS_OK;

    *out = (struct workload){0};
    while (text < end && !status) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline ? newline : end;
        char line[LINE_BYTES];
        struct sim_request request;
        number++;
        while (text < stop && isspace((unsigned char)*text))
            text++;
        size_t bytes = (size_t)(stop - text);
        bool skip = bytes == 0 || *text == '#' || (number == 1 && isalpha((unsigned char)*text));
        if (!skip && (bytes >= sizeof line || memchr(text, 0, bytes))) {
            status = error_set(error, STATUS_INVALID_ARGUMENT, "not a line of numbers");
        } else if (!skip) {
            memcpy(line, text, bytes);
            line[bytes] = '\0';
            status = parse_line(line, &request, error);
            if (!status)
                status = add(out, &capacity, &request, error);
        }
        text = newline ? newline + 1 : end;
    }
    if (!status && out->count == 0)
        status = error_set(error, STATUS_INVALID_ARGUMENT, "no requests");
    if (status) {
        char where[LINE_BYTES];
        snprintf(where, sizeof where, "%s:%llu", name, (unsigned long long)number);
        error_prefix(error, where);
        workload_free(out);
        return status;
    }
    qsort(out->requests, out->count, sizeof *out->requests, by_arrival);
    return STATUS_OK;
}

enum status workload_read(const char *path, struct workload *out, struct error *error)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    enum status status = STATUS_OK;
    long size = -1;

    *out = (struct workload){0};
    if (file && !fseek(file, 0, SEEK_END))
        size = ftell(file);
    if (size < 0 || size > INT32_MAX || fseek(file, 0, SEEK_SET))
        status = error_set(error, STATUS_NOT_FOUND, "%s: %s", path, size > INT32_MAX ? "larger than 2 GiB" : strerror(errno));
    else if (!(text = malloc((size_t)size + 1)))
        status = error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %ld bytes", path, size);
    else if (fread(text, 1, (size_t)size, file) != (size_t)size)
        status = error_set(error, STATUS_NOT_FOUND, "%s: could not be read whole", path);
    else
        status = workload_parse(text, (size_t)size, path, out, error);
    free(text);
    if (file)
        fclose(file);
    return status;
}

// In (0, 1]. An LCG's upper bits do for arrivals.
static double next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*seed >> 11) + 1) * 0x1p-53;
}

enum status workload_make(uint64_t count, double rate, uint32_t prompt, uint32_t generated, uint32_t max_tokens, uint64_t seed,
                          struct workload *out, struct error *error)
{
    double now_s = 0;

    *out = (struct workload){.count = count};
    if (count == 0 || count > WORKLOAD_REQUESTS_MAX || !(out->requests = calloc(count, sizeof *out->requests)))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%llu requests: want 1 to %d, and memory for them",
                         (unsigned long long)count, WORKLOAD_REQUESTS_MAX);
    for (uint64_t i = 0; i < count; i++) {
        double random = next_random(&seed);
        if (rate > 0)
            now_s -= log(random) / rate;
        out->requests[i] = (struct sim_request){.arrival_us = (uint64_t)(now_s * 1e6),
                                                .prompt_tokens = prompt,
                                                .generated_tokens = generated,
                                                .max_new_tokens = MAX(max_tokens, generated)};
        note_context(out, &out->requests[i]);
    }
    return STATUS_OK;
}

void workload_set_batch(struct workload *w, double share, uint64_t seed)
{
    for (uint64_t i = 0; i < w->count; i++)
        w->requests[i].class = next_random(&seed) <= share ? SCHED_CLASS_BATCH : SCHED_CLASS_INTERACTIVE;
}

void workload_free(struct workload *w)
{
    free(w->requests);
    *w = (struct workload){0};
}

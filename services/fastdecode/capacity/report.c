// report.c: see report.h. Times are in seconds in JSON, and in the unit that is read best in the text.
#include "services/fastdecode/capacity/report.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"

static void capacity_report_line(const struct capacity_probe *p, char *out, size_t bytes);

// --- progress --------------------------------------------------------------------------------------------------------

enum { SHOW_US = 200000 };

static void clear_line(const struct capacity_progress *p)
{
    if (p->terminal)
        fprintf(stderr, "\r\033[K");
}

void capacity_progress_begin(struct capacity_progress *p, bool quiet)
{
    *p = (struct capacity_progress){.quiet = quiet, .terminal = !quiet && isatty(STDERR_FILENO)};
}

void capacity_progress_show(struct capacity_progress *p, const char *format, ...)
{
    uint64_t now_us = clock_now_us();
    va_list arguments;

    if (!p->terminal || now_us - p->shown_us < SHOW_US)
        return;
    p->shown_us = now_us;
    clear_line(p);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

void capacity_progress_tried(struct capacity_progress *p, const struct capacity_probe *probe)
{
    char line[256];

    if (p->quiet)
        return;
    clear_line(p);
    if (p->lines++ == 0)
        fprintf(stderr, "%s\n", CAPACITY_REPORT_HEADING);
    capacity_report_line(probe, line, sizeof line);
    fprintf(stderr, "%s\n", line);
}

void capacity_progress_warn(struct capacity_progress *p, const char *format, ...)
{
    va_list arguments;

    clear_line(p);
    fprintf(stderr, "fastdecode capacity: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void capacity_progress_end(struct capacity_progress *p) { clear_line(p); }

static const double LATE_S = 0.1; // what no client should be late by

// --- JSON -----------------------------------------------------------------------------------------------------------

void report_json_print(json_t *object)
{
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(object);
}

json_t *report_times_json(const struct sim_times *t)
{
    return json_pack("{s:f,s:f,s:f,s:f}", "mean", t->mean_s, "p50", t->p50_s, "p99", t->p99_s, "max", t->max_s);
}

// A limit; null: there is none.
static json_t *limit_json(double limit) { return limit > 0 ? json_real(limit) : json_null(); }

static json_t *bound_json(enum capacity_bound bound)
{
    const char *name = capacity_bound_name(bound);
    return name ? json_string(name) : json_null();
}

static double a_second(uint64_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

static json_t *probe_json(const struct capacity_probe *p)
{
    return json_pack("{s:f,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:o,s:o,s:o,s:b,s:b,s:o}", "requests_per_second",
                     p->requests_per_second, "requests", (int)p->requests, "finished", (int)p->finished, "refused", (int)p->refused,
                     "failed", (int)p->failed, "streams_max", (int)p->streams_max, "shortened", (int)p->shortened, "late_s",
                     p->late_s, "seconds", p->seconds, "tokens_per_second", a_second(p->answer_tokens, p->seconds),
                     "prompt_tokens_per_second", a_second(p->prompt_tokens, p->seconds), "ttft_s", report_times_json(&p->ttft),
                     "tbt_s", report_times_json(&p->tbt), "delay_s", report_times_json(&p->delay), "met", p->bound == CAPACITY_MET,
                     "cut_short", p->cut_short, "bound", bound_json(p->bound));
}

static json_t *undisturbed_json(const struct capacity_undisturbed *u)
{
    json_t *lone = json_array();

    for (uint32_t i = 0; i < u->count; i++)
        json_array_append_new(lone, json_pack("{s:f,s:f}", "prompt_tokens", u->prompt_tokens[i], "ttft_s", u->ttft_s[i]));
    return json_pack("{s:f,s:o}", "step_s", u->step_s, "lone", lone);
}

void capacity_report_json(const struct capacity_settings *s, const struct capacity_result *r, json_t *about)
{
    const struct capacity_probe none = {0}, *best = capacity_result_best(r);
    json_t *probes = json_array(), *object;

    for (uint32_t i = 0; i < r->probe_count; i++)
        json_array_append_new(probes, probe_json(&r->probes[i]));
    best = best ? best : &none;
    object = json_pack("{s:f,s:f,s:f,s:o,s:b,s:s,s:f,s:f,s:I,s:o,s:{s:o,s:o,s:o,s:f},s:o}", "requests_per_second",
                       best->requests_per_second, "tokens_per_second", a_second(best->answer_tokens, best->seconds),
                       "prompt_tokens_per_second", a_second(best->prompt_tokens, best->seconds), "bound",
                       bound_json(capacity_result_bound(r)), "complete", r->complete, "trace", s->trace_name, "scale", s->scale,
                       "seconds_per_rate", s->seconds_per_rate, "seed", (json_int_t)s->seed, "undisturbed",
                       undisturbed_json(&r->undisturbed), "targets", "tbt_p99_s", limit_json(r->targets.tbt_p99_s), "ttft_p99_s",
                       limit_json(r->targets.ttft_p99_s), "delay_p50_s", limit_json(r->targets.delay_p50_s), "error_share",
                       r->targets.error_share, "probes", probes);
    json_object_update(object, about);
    json_decref(about);
    report_json_print(object);
}

// --- text -----------------------------------------------------------------------------------------------------------

static const char *duration(double seconds, char out[16])
{
    if (seconds < 1)
        snprintf(out, 16, "%.3g ms", 1e3 * seconds);
    else
        snprintf(out, 16, "%.3g s", seconds);
    return out;
}

static const char *verdict(const struct capacity_probe *p)
{
    static const char *const says[CAPACITY_BOUNDS] = {
        "met",
        "missed: requests were refused or failed",
        "missed: too many open streams",
        "missed: time between tokens",
        "missed: scheduling delay",
        "missed: time to the first token",
    };
    return says[p->bound];
}

// A line of the table of probes, without its end: what the trial showed.
static void capacity_report_line(const struct capacity_probe *p, char *out, size_t bytes)
{
    char texts[5][16];

    snprintf(out, bytes, "%11.4g %10u %10.0f %17s %9s %11s %20s %9s   %s%s", p->requests_per_second, p->requests,
             a_second(p->answer_tokens, p->seconds), duration(p->ttft.p50_s, texts[0]), duration(p->ttft.p99_s, texts[1]),
             duration(p->delay.p50_s, texts[2]), duration(p->tbt.p50_s, texts[3]), duration(p->tbt.p99_s, texts[4]), verdict(p),
             p->cut_short ? " (cut short)" : "");
}

static void print_targets(const struct capacity_result *r)
{
    const struct capacity_targets *t = &r->targets;
    char text[16];

    printf("targets      ");
    if (t->tbt_p99_s > 0)
        printf("p99 between tokens %s, %.3g undisturbed steps; ", duration(t->tbt_p99_s, text),
               r->undisturbed.step_s > 0 ? t->tbt_p99_s / r->undisturbed.step_s : 0);
    if (t->ttft_p99_s > 0)
        printf("p99 to the first token %s; ", duration(t->ttft_p99_s, text));
    if (t->delay_p50_s > 0)
        printf("median scheduling delay %s; ", duration(t->delay_p50_s, text));
    printf("errors %.3g %%\n", 100 * t->error_share);
}

void capacity_report_text(const struct capacity_settings *s, const struct capacity_result *r)
{
    const struct capacity_probe *best = capacity_result_best(r);
    enum capacity_bound bound = capacity_result_bound(r);
    uint32_t shortened = 0, requests = 0;
    double late_s = 0;
    char text[16], line[256];

    printf("trace        %s, lengths times %g\n", s->trace_name, s->scale);
    printf("undisturbed  %s a step; first token", duration(r->undisturbed.step_s, text));
    for (uint32_t i = 0; i < r->undisturbed.count; i++)
        printf("%s %s after %.0f tokens", i ? "," : "", duration(r->undisturbed.ttft_s[i], text), r->undisturbed.prompt_tokens[i]);
    printf("\n");
    print_targets(r);
    printf("\n%s\n", CAPACITY_REPORT_HEADING);
    for (uint32_t i = 0; i < r->probe_count; i++) {
        capacity_report_line(&r->probes[i], line, sizeof line);
        printf("%s\n", line);
        shortened += r->probes[i].shortened;
        requests += r->probes[i].requests;
        late_s = MAX(late_s, r->probes[i].late_s);
    }
    if (shortened > 0)
        printf("\n%u of %u requests were shortened to fit the context: this is not quite the load of the trace\n", shortened,
               requests);
    if (late_s > LATE_S)
        printf(
            "\nrequests were sent up to %s late: this client has too little time of its processors, and the server looks slower for "
            "it\n",
            duration(late_s, text));
    if (best)
        printf("\ncapacity     %.4g requests a second: %.0f prompt and %.0f answer tokens a second", best->requests_per_second,
               a_second(best->prompt_tokens, best->seconds), a_second(best->answer_tokens, best->seconds));
    else
        printf("\ncapacity     no rate that was tried meets the targets");
    if (bound != CAPACITY_MET)
        printf("; %.4g has %s", r->search.missed, verdict(&(struct capacity_probe){.bound = bound}));
    printf("%s\n", r->complete ? "" : "\nthe search did not come to its end");
}

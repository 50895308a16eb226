// metrics.c: the totals of the mesh, as Prometheus text. A gateway asks at most once a second.
#include "common/base/checked.h"
#include "common/base/text.h"
#include "services/scheduler/scheduler.h"

static void one(struct text *text, const char *name, const char *type, const char *help, double value)
{
    text_format(text, "# HELP fastdecode_%s %s\n# TYPE fastdecode_%s %s\nfastdecode_%s %.17g\n", name, help, name, type, name,
                value);
}

// Only mini-batches that have a limit.
static void add_load_limit(struct text *text, const struct scheduler *scheduler)
{
    text_format(text, "# HELP fastdecode_load_limit_tokens context tokens that a mini-batch may read in a step\n"
                      "# TYPE fastdecode_load_limit_tokens gauge\n");
    for (uint32_t m = 0; m < scheduler->core.config.mini_batches; m++) {
        uint64_t limit = sched_load_limit(scheduler->core.sched, m);
        if (limit != UINT64_MAX)
            text_format(text, "fastdecode_load_limit_tokens{mini_batch=\"%u\"} %llu\n", m, (unsigned long long)limit);
    }
}

// Numbers that heartbeats bring of a worker, or of all stages of the s-part together.
struct heard {
    struct member_counts counts;
    uint64_t pages_peak;
};

static struct heard heard_of_s_part(const struct s_part *s_part)
{
    struct heard heard = {0};
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++) {
        const struct stage *stage = &s_part->stages[i];
        const struct member_counts counts = member_counts_of(stage->member);
        counts_add(&heard.counts, &stage->earlier);
        counts_add(&heard.counts, &counts);
        if (stage->member->registered) // a page is one in each of the stages' pools
            heard.pages_peak = MAX(heard.pages_peak, stage->member->last.pages_peak);
    }
    return heard;
}

static struct heard heard_of_place(const struct scheduler *scheduler, const struct place *place)
{
    if (place->kind == SCHED_LOCAL_POOL)
        return heard_of_s_part(&scheduler->s_part);
    return (struct heard){.counts = member_counts_of(place->member), .pages_peak = place->member->last.pages_peak};
}

static void add_places(struct text *text, const struct scheduler *scheduler)
{
    static const char *const kinds[][3] = {
        {"kv_pages_used", "gauge", "pages in use, without those that only the prefix cache keeps"},
        {"kv_pages_cached", "gauge", "pages that only the prefix cache keeps; they are freed when needed"},
        {"kv_pages", "gauge", "pages there are"},
        {"place_up", "gauge", "1 while it takes part"},
        {"place_lost_total", "counter", "times it went down without having been drained; local: times the s-part did"},
        {"place_shares_cores", "gauge", "1 for a worker that shares cores with the s-part"},
        {"place_sequences", "gauge", "sequences that hold pages there"},
        {"place_load_tokens", "gauge", "context tokens that steps of all mini-batches read there"},
        {"place_token_seconds", "gauge", "measured time of one context token, all layers"},
        {"place_busy_seconds_total", "counter", "time in attention (local: in segments, all stages together)"},
        {"kv_read_bytes_total", "counter", "bytes of K and V that attention has read"},
        {"kv_pages_peak", "gauge", "the most pages that were in use at once, as the place counts them"},
    };
    for (size_t g = 0; g < ARRAY_COUNT(kinds); g++) {
        const char *name = kinds[g][0];
        text_format(text, "# HELP fastdecode_%s %s\n# TYPE fastdecode_%s %s\n", name, kinds[g][2], name, kinds[g][1]);
        for (uint32_t i = 0; i < scheduler->places.count; i++) {
            const struct place *place = &scheduler->places.of[i];
            const struct member *member = place->member;
            const struct heard heard = heard_of_place(scheduler, place);
            struct sched_place_info info;
            sched_get_place(scheduler->core.sched, i, &info);
            uint64_t load = 0;
            for (uint32_t m = 0; m < scheduler->core.config.mini_batches; m++)
                load += info.load[m];
            const double values[] = {info.up ? info.pages_used - info.pages_idle : 0,
                                     info.up ? info.pages_idle : 0,
                                     info.up ? info.pages_total : 0,
                                     info.up,
                                     (double)member->lost,
                                     info.up && info.shares_cores,
                                     info.sequences,
                                     (double)load,
                                     info.token_us / 1e6,
                                     (double)heard.counts.busy_us / 1e6,
                                     (double)heard.counts.kv_bytes_read,
                                     (double)heard.pages_peak};
            text_format(text, "fastdecode_%s{place=\"%s\"} %.17g\n", name, place->kind == SCHED_LOCAL_POOL ? "local" : member->name,
                        values[g]);
        }
    }
}

// Adds what the core counts.
static void add_core(struct text *text, const struct sched_stats *s)
{
    one(text, "requests_running", "gauge", "interactive sequences that run", s->running_of[SCHED_CLASS_INTERACTIVE]);
    one(text, "requests_waiting", "gauge", "interactive sequences that wait", s->waiting_of[SCHED_CLASS_INTERACTIVE]);
    one(text, "batch_requests_running", "gauge", "sequences of latency class batch that run", s->running_of[SCHED_CLASS_BATCH]);
    one(text, "batch_requests_waiting", "gauge", "sequences of latency class batch that wait", s->waiting_of[SCHED_CLASS_BATCH]);
    one(text, "waiting_tokens", "gauge", "tokens of interactive sequences that wait, which will be context once they run",
        (double)s->waiting_tokens[SCHED_CLASS_INTERACTIVE]);
    one(text, "batch_waiting_tokens", "gauge", "the same of latency class batch", (double)s->waiting_tokens[SCHED_CLASS_BATCH]);
    one(text, "batch_rows_total", "counter", "rows computed for latency class batch", (double)s->rows_of[SCHED_CLASS_BATCH]);
    one(text, "sequences_split", "gauge", "sequences whose KV is at several places, because none can hold it whole", s->split);
    one(text, "extents", "gauge", "frozen parts of these sequences, each at another place", s->extents);
    one(text, "extents_total", "counter", "parts that were frozen so far", (double)s->frozen);
    one(text, "sequences_retiring", "gauge", "finished sequences whose pages are not free yet", s->retiring);
    one(text, "steps_in_flight", "gauge", "steps that the s-part has", s->steps_in_flight);
    one(text, "mini_batches", "gauge", "mini-batches in use", s->mini_batches);
    one(text, "prefill_tokens_total", "counter", "rows computed for prompts and for rebuilt sequences", (double)s->prefill_rows);
    one(text, "prefix_cached_tokens_total", "counter", "tokens of prompts whose KV was there already", (double)s->shared_tokens);
    one(text, "prefix_shared_pages", "gauge", "KV pages saved now by sharing", s->shared_pages);
    one(text, "prefix_kept_sequences", "gauge", "finished sequences whose KV pages are kept", s->kept);
    one(text, "prefix_evicted_total", "counter", "finished sequences whose kept KV pages were freed for others",
        (double)s->evicted);
    one(text, "decode_tokens_total", "counter", "rows computed for decoding", (double)s->decode_rows);
    one(text, "step_base_seconds", "gauge", "learned: fixed time of a step", s->step_base_us * 1e-6);
    one(text, "step_row_seconds", "gauge", "learned: time that each row adds to a step", s->row_us * 1e-6);
    one(text, "step_predictions_total", "counter", "steps whose time was predicted and measured", (double)s->predicted_steps);
    one(text, "step_prediction_error_ratio", "gauge", "mean of |predicted - measured| / measured over about the last fifty steps",
        s->prediction_error_ratio);
    one(text, "step_predicted_seconds_total", "counter", "predicted time of these steps", s->predicted_us * 1e-6);
    one(text, "step_measured_seconds_total", "counter", "measured time of these steps", s->measured_us * 1e-6);
    one(text, "wasted_rows_total", "counter", "rows whose result was not used", (double)s->wasted_rows);
    one(text, "draft_tokens_total", "counter", "rows computed for guessed tokens", (double)s->drafted);
    one(text, "draft_tokens_right_total", "counter", "guessed tokens that turned out right", (double)s->drafts_right);
    one(text, "steps_total", "counter", "steps given to the s-part", (double)s->steps);
    one(text, "steps_failed_total", "counter", "steps that the s-part did not answer", (double)s->steps_failed);
    one(text, "sequences_rebuilt_total", "counter", "sequences rebuilt because their KV was lost", (double)s->rebuilt);
    one(text, "sequences_reclaimed_total", "counter", "rebuilt sequences that found their KV again when its place came back",
        (double)s->reclaimed);
    one(text, "sequences_preempted_total", "counter", "interactive sequences paused because pages ran out",
        (double)(s->preempted - s->gave_way));
    one(text, "batch_sequences_preempted_total", "counter", "sequences of latency class batch paused because pages ran out",
        (double)s->gave_way);
    one(text, "sequences_moved_total", "counter", "sequences handed over to another place", (double)s->moved);
    one(text, "rebuilt_tokens_total", "counter", "known tokens of rebuilt sequences", (double)s->rebuilt_tokens);
}

static uint32_t stage_count(const struct scheduler *scheduler)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    return scheduler->s_part.member.up ? stages_list(&scheduler->s_part, stages) : 0;
}

// Adds what this service counts.
static void add_service(struct text *text, const struct scheduler *scheduler)
{
    const struct heard heard = heard_of_s_part(&scheduler->s_part);

    one(text, "generated_tokens_total", "counter", "tokens sampled and kept", (double)scheduler->sequences.generated_tokens);
    one(text, "prompt_tokens_total", "counter", "tokens of prompts taken", (double)scheduler->sequences.prompt_tokens);
    one(text, "sequences_finished_total", "counter", "sequences that ended", (double)scheduler->sequences.finished);
    one(text, "sequences_cancelled_total", "counter", "sequences whose client left", (double)scheduler->sequences.cancelled);
    one(text, "spart_up", "gauge", "1 while the s-part takes steps", scheduler->s_part.member.up);
    one(text, "stages", "gauge", "s-parts that take steps: several are a pipeline", stage_count(scheduler));
    one(text, "spart_busy_seconds_total", "counter", "time in segments and sampling",
        (double)scheduler->flights.s_part_busy_us / 1e6);
    one(text, "spart_waiting_seconds_total", "counter", "time in which a step waited for attention",
        (double)scheduler->flights.s_part_wait_us / 1e6);
    one(text, "weights_read_bytes_total", "counter", "weights read from disk, or copied to a GPU, for steps",
        (double)heard.counts.streamed_bytes);
    one(text, "weights_read_segments_total", "counter", "pieces that those were", (double)heard.counts.streamed_segments);
    one(text, "scheduler_seconds_total", "counter", "processor time of planning and sending steps and passing tokens on",
        (double)scheduler->core.busy_ns / 1e9);
}

// Members and gateways that were refused. Whoever is refused asks again, so a count that is 0 need not be there.
static void add_refusals(struct text *text, const struct refusals *refusals)
{
    text_format(text, "# HELP fastdecode_refused_total times that a service of this kind was refused, by reason\n"
                      "# TYPE fastdecode_refused_total counter\n");
    for (enum refused_kind kind = 0; kind < REFUSED_KINDS; kind++)
        for (enum refusal_reason reason = 0; reason < REFUSAL_REASONS; reason++)
            if (refusals->counts[kind][reason])
                text_format(text, "fastdecode_refused_total{kind=\"%s\",reason=\"%s\"} %llu\n", refused_kind_name(kind),
                            refusal_reason_name(reason), (unsigned long long)refusals->counts[kind][reason]);
}

// Adds a counter of each service: this one's, and what the members have at an offset of struct member_counts. Gateways say their own.
static void add_by_service(struct text *text, const struct scheduler *scheduler, const char *name, const char *help, uint64_t own,
                           size_t offset)
{
    static const char sample[] = "fastdecode_%s{service=\"%s\"} %llu\n";
    const struct member_counts s_part = heard_of_s_part(&scheduler->s_part).counts;

    text_format(text, "# HELP fastdecode_%s %s\n# TYPE fastdecode_%s counter\n", name, help, name);
    text_format(text, sample, name, "scheduler", (unsigned long long)own);
    text_format(text, sample, name, "s-part", (unsigned long long)*(const uint64_t *)((const char *)&s_part + offset));
    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        const struct member *member = scheduler->places.of[i].member;
        const struct member_counts counts = member_counts_of(member);
        if (scheduler->places.of[i].kind == SCHED_KV_WORKER)
            text_format(text, sample, name, member->name, (unsigned long long)*(const uint64_t *)((const char *)&counts + offset));
    }
}

static void add_traces(struct text *text, const struct scheduler *scheduler)
{
    const struct otlp_counts own = otlp_counts(scheduler->host.otlp);

    add_by_service(text, scheduler, "trace_spans_exported_total", "spans that the collector has taken", own.exported,
                   offsetof(struct member_counts, spans_exported));
    add_by_service(text, scheduler, "trace_spans_dropped_total", "spans that were lost on their way to the collector", own.dropped,
                   offsetof(struct member_counts, spans_dropped));
}

static void add_expiry(struct text *text, const char *service, const char *certificate, uint64_t expires_s)
{
    if (expires_s)
        text_format(text, "fastdecode_certificate_expiry_timestamp_seconds{service=\"%s\",certificate=\"%s\"} %llu\n", service,
                    certificate, (unsigned long long)expires_s);
}

static uint64_t earlier(uint64_t a_s, uint64_t b_s) { return a_s && b_s ? MIN(a_s, b_s) : MAX(a_s, b_s); }

// Adds when the certificates end of the services that are there; of several stages the first. Gateways add their own.
static void add_certificates(struct text *text, struct scheduler *scheduler)
{
    const struct rpc_tls_expiry own = rpc_tls_expiry(scheduler->host.security.tls);
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t stage_total = stages_list(&scheduler->s_part, stages);
    uint64_t certificate_s = 0, ca_s = 0;

    text_format(text,
                "# HELP fastdecode_certificate_expiry_timestamp_seconds when a certificate of --tls ends, or its CA, since 1970\n"
                "# TYPE fastdecode_certificate_expiry_timestamp_seconds gauge\n");
    add_expiry(text, "scheduler", "mesh", own.certificate_s);
    add_expiry(text, "scheduler", "ca", own.ca_s);
    for (uint32_t i = 0; i < stage_total; i++)
        if (stages[i]->member->registered) {
            certificate_s = earlier(certificate_s, stages[i]->member->last.certificate_expires_s);
            ca_s = earlier(ca_s, stages[i]->member->last.ca_expires_s);
        }
    add_expiry(text, "s-part", "mesh", certificate_s);
    add_expiry(text, "s-part", "ca", ca_s);
    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        const struct member *member = scheduler->places.of[i].member;
        if (scheduler->places.of[i].kind != SCHED_KV_WORKER || !member->registered)
            continue;
        add_expiry(text, member->name, "mesh", member->last.certificate_expires_s);
        add_expiry(text, member->name, "ca", member->last.ca_expires_s);
    }
}

// The stages of a pipeline, in order of their layers; nothing of an s-part that has all of them.
static void add_stages(struct text *text, const struct scheduler *scheduler)
{
    static const char *const names[][2] = {
        {"stage_rows_total", "rows computed by the stage"},
        {"stage_busy_seconds_total", "time in segments and sampling"},
        {"stage_waiting_seconds_total", "time in which a step waited for attention"},
    };
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(&scheduler->s_part, stages);

    for (size_t n = 0; n < ARRAY_COUNT(names) && count > 1; n++) {
        text_format(text, "# HELP fastdecode_%s %s\n# TYPE fastdecode_%s counter\n", names[n][0], names[n][1], names[n][0]);
        for (uint32_t i = 0; i < count; i++) {
            const double values[] = {(double)stages[i]->rows, (double)stages[i]->s_part_us / 1e6,
                                     (double)stages[i]->r_part_us / 1e6};
            text_format(text, "fastdecode_%s{stage=\"%u\"} %.17g\n", names[n][0], i, values[n]);
        }
    }
    if (count < 2)
        return;
    text_format(
        text,
        "# HELP fastdecode_bubble_seconds_total time in which the stage was idle while a step was in the pipeline, by the steps "
        "around it: pb1 both have prefill rows, pb2 one has, pb3 none; r: the next waited for KV workers\n"
        "# TYPE fastdecode_bubble_seconds_total counter\n");
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t kind = 0; kind < SCHED_BUBBLES; kind++)
            text_format(text, "fastdecode_bubble_seconds_total{stage=\"%u\",kind=\"%s\"} %.17g\n", i,
                        sched_bubble_name((enum sched_bubble)kind), (double)stages[i]->idle_us[kind] / 1e6);
}

void metrics_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    struct text text = {0}; // one of 256 places takes half a megabyte
    Fastdecode__MetricsReply reply = FASTDECODE__METRICS_REPLY__INIT;
    struct sched_stats stats = {0};

    if (!rpc_call_unpack(call, &fastdecode__metrics_request__descriptor))
        return;
    if (scheduler->core.sched)
        sched_get_stats(scheduler->core.sched, &stats);
    add_core(&text, &stats);
    add_service(&text, scheduler);
    add_refusals(&text, &scheduler->refusals);
    add_by_service(&text, scheduler, "log_lines_lost_total", "lines that could not be written to the log", log_lines_lost(),
                   offsetof(struct member_counts, log_lines_lost));
    if (scheduler->host.otlp)
        add_traces(&text, scheduler);
    if (scheduler->host.security.tls) {
        one(&text, "tls_refused_total", "counter",
            "connections of the scheduler that were refused for their certificate or over TLS",
            (double)rpc_tls_refused(scheduler->host.security.tls, NULL, 0));
        add_certificates(&text, scheduler);
    }
    if (scheduler->core.sched) {
        one(&text, "kv_page_tokens", "gauge", "context tokens that a page holds", scheduler->core.config.page_tokens);
        add_load_limit(&text, scheduler);
        add_places(&text, scheduler);
        add_stages(&text, scheduler);
    }
    text_append(&text, "", 1);
    if (text.failed) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "cannot allocate the metrics");
    } else {
        reply.text = text.data;
        rpc_call_reply(call, &reply.base);
    }
    text_free(&text);
}

// view.c: see view.h. What comes from the scheduler is written as numbers and escaped strings, so it is JSON whatever it says.
#include "services/gateway/mesh/view.h"

#include <math.h>
#include <stdio.h>

#include "common/base/checked.h"
#include "common/kv/kv_type.h"
#include "services/gateway/http/json_write.h"

static void name_of(struct text *out, const char *name)
{
    text_format(out, out->bytes && out->data[out->bytes - 1] != '{' ? ",\"%s\":" : "\"%s\":", name);
}

static void add_count(struct text *out, const char *name, uint64_t value)
{
    name_of(out, name);
    text_format(out, "%llu", (unsigned long long)value);
}

static void add_number(struct text *out, const char *name, double value)
{
    name_of(out, name);
    text_format(out, "%.9g", isfinite(value) ? value : 0.0);
}

static void add_bool(struct text *out, const char *name, bool value)
{
    name_of(out, name);
    text_string(out, value ? "true" : "false");
}

static void add_string(struct text *out, const char *name, const char *value)
{
    name_of(out, name);
    text_json_string(out, value ? value : "");
}

static void add_counts(struct text *out, const char *name, const uint64_t *values, size_t count)
{
    name_of(out, name);
    text_string(out, "[");
    for (size_t i = 0; i < count; i++)
        text_format(out, i ? ",%llu" : "%llu", (unsigned long long)values[i]);
    text_string(out, "]");
}

// A list of objects, each written by add().
#define ADD_LIST(out, name, items, count, add) \
    do {                                       \
        name_of(out, name);                    \
        text_string(out, "[");                 \
        for (size_t i = 0; i < (count); i++) { \
            text_string(out, i ? ",{" : "{");  \
            add(out, (items)[i]);              \
            text_string(out, "}");             \
        }                                      \
        text_string(out, "]");                 \
    } while (0)

static void add_place(struct text *out, const Fastdecode__PlaceView *place)
{
    add_count(out, "index", place->index);
    add_string(out, "name", place->name);
    add_string(out, "kind", place->kind == FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL ? "local_pool" : "kv_worker");
    add_bool(out, "up", place->up);
    add_bool(out, "draining", place->draining);
    add_bool(out, "shares_cores", place->shares_cores);
    add_count(out, "pages_used", place->pages_used);
    add_count(out, "pages_cached", place->pages_cached);
    add_count(out, "pages_total", place->pages_total);
    add_count(out, "sequences", place->sequences);
    add_counts(out, "load_tokens", place->load_tokens, place->n_load_tokens);
    add_number(out, "token_us", place->token_us);
    add_count(out, "attend_us", place->attend_us);
    add_count(out, "tokens_read", place->tokens_read);
    add_count(out, "times_lost", place->times_lost);
    add_count(out, "silent_ms", place->silent_ms);
}

static void add_stage(struct text *out, const Fastdecode__StageView *stage)
{
    add_string(out, "name", stage->name);
    add_bool(out, "up", stage->up);
    add_count(out, "first_layer", stage->first_layer);
    add_count(out, "layer_count", stage->layer_count);
    add_string(out, "numeric_level", stage->numeric_level);
    add_count(out, "busy_us", stage->busy_us);
    add_count(out, "waiting_us", stage->waiting_us);
    add_count(out, "silent_ms", stage->silent_ms);
}

static void add_place_time(struct text *out, const Fastdecode__PlaceTime *time)
{
    add_count(out, "index", time->worker);
    add_count(out, "r_part_us", time->r_part_us);
    add_count(out, "attend_us", time->attend_us);
    add_count(out, "tokens_read", time->tokens_read);
}

static void add_step(struct text *out, const Fastdecode__StepView *step)
{
    add_count(out, "step", step->step);
    add_count(out, "mini_batch", step->mini_batch);
    add_count(out, "sent_us", step->sent_us);
    add_count(out, "answered_us", step->answered_us);
    add_count(out, "decode_rows", step->decode_rows);
    add_count(out, "prompt_rows", step->prompt_rows);
    add_count(out, "total_us", step->total_us);
    add_count(out, "s_part_us", step->s_part_us);
    add_count(out, "r_part_us", step->r_part_us);
    ADD_LIST(out, "places", step->places, step->n_places, add_place_time);
}

static const char *event_name(Fastdecode__EventKind kind)
{
    static const char *const names[] = {"unknown", "started", "joined", "back", "drains", "drained", "left", "down"};
    return (size_t)kind < ARRAY_COUNT(names) ? names[kind] : names[0];
}

static void add_event(struct text *out, const Fastdecode__EventView *event)
{
    add_count(out, "number", event->number);
    add_count(out, "time_us", event->time_us);
    add_string(out, "kind", event_name(event->kind));
    add_string(out, "name", event->name);
    add_string(out, "why", event->why);
}

static void add_plan(struct text *out, const Fastdecode__PlanView *plan)
{
    add_count(out, "batch", plan->batch);
    add_count(out, "workers", plan->workers);
    add_count(out, "mini_batches", plan->mini_batches);
    add_count(out, "prompt_tokens", plan->prompt_tokens);
    add_count(out, "generated_tokens", plan->generated_tokens);
    add_number(out, "tokens_per_second", plan->tokens_per_second);
    add_number(out, "step_us", plan->step_us);
    add_number(out, "s_part_busy", plan->s_part_busy);
    add_number(out, "r_part_busy", plan->r_part_busy);
    add_number(out, "s_part_layer_us", plan->s_part_layer_us);
    add_number(out, "r_part_layer_us", plan->r_part_layer_us);
    add_string(out, "bound_by", plan->bound_by);
}

static void add_head(struct text *out, const Fastdecode__MeshView *view)
{
    char id[24];

    snprintf(id, sizeof id, "%llx", (unsigned long long)view->scheduler_incarnation);
    add_string(out, "scheduler_incarnation", id);
    add_count(out, "now_us", view->now_us);
    add_count(out, "wall_us", view->wall_us);
    add_count(out, "up_us", view->up_us);
    add_string(out, "model", view->model);
    add_count(out, "layers", view->layers);
    add_count(out, "page_tokens", view->page_tokens);
    add_string(out, "kv_type",
               view->kv_type && (int)view->kv_type < (int)KV_TYPE_END ? kv_type_name((enum kv_type)view->kv_type) : "");
    add_count(out, "mini_batches", view->mini_batches);
    add_counts(out, "load_limit_tokens", view->load_limit_tokens, view->n_load_limit_tokens);
    add_count(out, "running", view->running);
    add_count(out, "waiting", view->waiting);
    add_count(out, "running_batch", view->running_batch);
    add_count(out, "waiting_batch", view->waiting_batch);
    add_count(out, "max_queue", view->max_queue);
    add_count(out, "predicted_wait_ms", view->predicted_wait_ms);
    add_count(out, "steps_in_flight", view->steps_in_flight);
    add_count(out, "steps", view->steps);
    add_count(out, "steps_failed", view->steps_failed);
    add_count(out, "generated_tokens", view->generated_tokens);
    add_count(out, "prompt_rows", view->prompt_rows);
    add_count(out, "decode_rows", view->decode_rows);
    add_count(out, "wasted_rows", view->wasted_rows);
    add_count(out, "sequences_finished", view->sequences_finished);
    add_count(out, "sequences_rebuilt", view->sequences_rebuilt);
    add_count(out, "sequences_moved", view->sequences_moved);
    add_count(out, "sequences_preempted", view->sequences_preempted);
    add_count(out, "predicted_us", view->predicted_us);
    add_count(out, "measured_us", view->measured_us);
    add_number(out, "prediction_error_ratio", view->prediction_error_ratio);
}

char *mesh_view_json(const Fastdecode__MeshView *view)
{
    struct text out = {0};

    text_string(&out, "{");
    add_head(&out, view);
    name_of(&out, "plan");
    if (view->plan) {
        text_string(&out, "{");
        add_plan(&out, view->plan);
        text_string(&out, "}");
    } else {
        text_string(&out, "null");
    }
    ADD_LIST(&out, "stages", view->stages, view->n_stages, add_stage);
    ADD_LIST(&out, "places", view->places, view->n_places, add_place);
    ADD_LIST(&out, "recent_steps", view->recent_steps, view->n_recent_steps, add_step);
    ADD_LIST(&out, "events", view->events, view->n_events, add_event);
    text_append(&out, "}", 2); // terminated
    if (!out.failed)
        return out.data;
    text_free(&out);
    return NULL;
}

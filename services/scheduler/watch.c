// watch.c: the mesh's state for gateways: at once, when it changes, and once a second.
#include <stdio.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/mesh/messages.h"
#include "services/scheduler/scheduler.h"

enum { PUBLISH_EVERY_US = 1000000, CHANGE_EVERY_US = 50000 };

static uint32_t predicted_wait_ms(const struct scheduler *scheduler, enum sched_class class)
{
    return scheduler->core.sched ? (uint32_t)MIN(sched_predicted_wait_us(scheduler->core.sched, class) / 1000, 3600000u) : 0;
}

static bool is_batch_queue_full(const Fastdecode__MeshState *state) { return state->waiting_batch >= state->max_queue_batch; }

static const char *no_place_reason(struct scheduler *scheduler)
{
    const struct member *member = members_unreachable(scheduler);

    if (scheduler->settings.placement == SCHED_PLACE_LOCAL)
        return "the s-part has no local pool";
    // Anybody may ask for it, so it does not say where: the log does.
    snprintf(scheduler->watch.reason, sizeof scheduler->watch.reason, "%s%s",
             member ? "the s-part cannot reach KV worker " : "no KV worker is up", member ? member->name : "");
    if (!member)
        refusals_explain(&scheduler->refusals, false, clock_now_us(), scheduler->watch.reason, sizeof scheduler->watch.reason);
    return scheduler->watch.reason;
}

// Returns whether sequences may live at a place, by --placement.
static bool is_permitted(const struct scheduler *scheduler, uint32_t place)
{
    const enum sched_placement placement = scheduler->settings.placement;
    return placement == SCHED_PLACE_AUTO ||
           (scheduler->places.of[place].kind == SCHED_LOCAL_POOL) == (placement == SCHED_PLACE_LOCAL);
}

const char *watch_reason(struct scheduler *scheduler)
{
    if (!scheduler->s_part.member.up)
        return stages_reason(scheduler);
    for (uint32_t i = 0; scheduler->core.sched && i < scheduler->places.count; i++) {
        struct sched_place_info info;
        sched_get_place(scheduler->core.sched, i, &info);
        if (info.up && info.pages_total && is_permitted(scheduler, i))
            return "";
    }
    return no_place_reason(scheduler);
}

static void fill_state(struct scheduler *scheduler, Fastdecode__MeshState *state)
{
    struct sched_stats stats = {0};
    uint64_t pages_total = 0, pages_used = 0;
    uint32_t workers = 0;

    fastdecode__mesh_state__init(state);
    if (scheduler->core.sched)
        sched_get_stats(scheduler->core.sched, &stats);
    for (uint32_t i = 0; scheduler->core.sched && i < scheduler->places.count; i++) {
        struct sched_place_info info;
        sched_get_place(scheduler->core.sched, i, &info);
        if (!info.up)
            continue;
        workers += scheduler->places.of[i].kind != SCHED_LOCAL_POOL;
        pages_total += info.pages_total;
        pages_used += info.pages_used - info.pages_idle; // what only the cache keeps is as good as free
    }
    state->reason = (char *)watch_reason(scheduler);
    state->ready = !state->reason[0];
    state->running = stats.running;
    state->waiting = stats.waiting_of[SCHED_CLASS_INTERACTIVE]; // those of class batch have a queue of their own
    state->max_queue = scheduler->settings.max_queue;
    state->predicted_wait_ms = predicted_wait_ms(scheduler, SCHED_CLASS_INTERACTIVE);
    state->waiting_batch = stats.waiting_of[SCHED_CLASS_BATCH];
    state->max_queue_batch = scheduler->settings.batch_queue;
    state->predicted_wait_batch_ms = predicted_wait_ms(scheduler, SCHED_CLASS_BATCH);
    state->model = scheduler->model.known ? (Fastdecode__ModelInfo *)&scheduler->model.info : NULL;
    state->workers = workers;
    state->n_sampling_feature = features_list(stages_features(&scheduler->s_part), scheduler->watch.features);
    state->sampling_feature = scheduler->watch.features;
    state->kv_pages_total = pages_total;
    state->kv_pages_used = pages_used;
}

static void on_watcher_gone(void *user)
{
    struct rpc_call **slot = user;
    *slot = NULL;
}

void watch_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__MeshState state;

    if (!rpc_call_unpack(call, &fastdecode__watch_request__descriptor))
        return;
    for (uint32_t i = 0; i < WATCHERS_MAX; i++) {
        if (scheduler->watch.calls[i])
            continue;
        scheduler->watch.calls[i] = call;
        rpc_call_on_cancel(call, on_watcher_gone, &scheduler->watch.calls[i]);
        fill_state(scheduler, &state);
        (void)!rpc_call_send(call, &state.base); // one that is gone is reported by on_watcher_gone
        return;
    }
    rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "more than %d watchers", WATCHERS_MAX);
}

void watch_publish(struct scheduler *scheduler, uint64_t now_us)
{
    const Fastdecode__MeshState *last = &scheduler->watch.last;
    Fastdecode__MeshState state;

    if (now_us - scheduler->watch.published_us < CHANGE_EVERY_US)
        return;
    fill_state(scheduler, &state);
    bool changed = state.ready != last->ready || state.running != last->running || state.waiting != last->waiting ||
                   is_batch_queue_full(&state) != is_batch_queue_full(last) || state.workers != last->workers ||
                   (state.model != NULL) != (last->model != NULL);
    if (!changed && now_us - scheduler->watch.published_us < PUBLISH_EVERY_US)
        return;
    scheduler->watch.published_us = now_us;
    scheduler->watch.last = state;
    for (uint32_t i = 0; i < WATCHERS_MAX; i++)
        if (scheduler->watch.calls[i])
            (void)!rpc_call_send(scheduler->watch.calls[i], &state.base); // see watch_handler
}

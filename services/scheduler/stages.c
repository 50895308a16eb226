// stages.c: the s-part as one process, or as a pipeline of several that have a range of the layers each.
//
//     a stage registers ──▶ its range is checked against the others' ──▶ all layers are there, all stages reached ──▶ they join (members.c)
//
// Layers are those of the process that has registered them for as long as that lives. Another one waits for its end, except one of the same
// name and address, which is that s-part started again.
//
// Steps go to the first stage, whose member is that of the local pool. The pool of a pipeline is the stages' pools: a page is one in each of
// them. Its pages are not handed over, and not given back after a start: they are computed anew.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/messages.h"
#include "services/scheduler/scheduler.h"

enum { CALL_TIMEOUT_MS = 10000 };

static struct stage *stage_of(const struct member *member)
{
    struct s_part *s_part = &member->scheduler->s_part;

    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++)
        if (s_part->stages[i].member == member)
            return &s_part->stages[i];
    return NULL;
}

static uint32_t end_of(const struct stage *stage) { return stage->first_layer + stage->layer_count; }

// An s-part that names no number has all layers.
static uint32_t layers_of(const Fastdecode__RegisterRequest *request)
{
    return request->layer_count ? request->layer_count : request->model->kv->layers;
}

void stages_init(struct s_part *s_part, struct scheduler *scheduler, struct place *pool)
{
    s_part->member = (struct member){.scheduler = scheduler, .place = pool};
    s_part->stages[0].member = &s_part->member;
    for (uint32_t i = 1; i < SCHED_STAGES_MAX; i++) {
        s_part->stages[i].later = (struct member){.scheduler = scheduler, .place = pool};
        s_part->stages[i].member = &s_part->stages[i].later;
    }
}

uint32_t stages_list(const struct s_part *s_part, const struct stage **out)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++) {
        const struct stage *stage = &s_part->stages[i];
        uint32_t at = count;
        if (!stage->member->registered)
            continue;
        for (; at > 0 && out[at - 1]->first_layer > stage->first_layer; at--)
            out[at] = out[at - 1];
        out[at] = stage;
        count++;
    }
    return count;
}

bool stages_any(const struct s_part *s_part)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    return stages_list(s_part, stages) > 0;
}

void stages_forget(struct s_part *s_part)
{
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++)
        s_part->stages[i].layer_count = 0;
}

uint32_t stages_features(const struct s_part *s_part)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(s_part, stages);
    uint32_t all = count ? FEATURES_OURS : 0;

    for (uint32_t i = 0; i < count; i++)
        all &= stages[i]->offer.features;
    return all;
}

bool stages_are_several(const struct s_part *s_part, uint32_t layers)
{
    bool part = false;
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++)
        part |= s_part->stages[i].member->registered && s_part->stages[i].layer_count != layers;
    return part;
}

// --- which layers are there

// Names the first gap; false: there is none.
static bool find_gap(const struct scheduler *scheduler, uint32_t *first, uint32_t *end)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(&scheduler->s_part, stages);

    *first = 0;
    for (uint32_t i = 0; i < count && stages[i]->first_layer <= *first; i++)
        *first = end_of(stages[i]);
    *end = scheduler->model.kv.layers;
    for (uint32_t i = 0; i < count; i++)
        if (stages[i]->first_layer >= *first)
            *end = MIN(*end, stages[i]->first_layer);
    return *first < scheduler->model.kv.layers;
}

bool stages_are_complete(const struct scheduler *scheduler)
{
    uint32_t first, end;
    return !find_gap(scheduler, &first, &end);
}

const char *stages_reason(struct scheduler *scheduler)
{
    struct s_part *s_part = &scheduler->s_part;
    uint32_t first, end;

    if (!scheduler->model.known || !stages_are_several(s_part, scheduler->model.kv.layers))
        snprintf(s_part->reason, sizeof s_part->reason, "no s-part is up");
    else if (find_gap(scheduler, &first, &end))
        snprintf(s_part->reason, sizeof s_part->reason, "layers %u:%u are on no s-part", first, end);
    else
        return "the s-parts are being put together";
    refusals_explain(&scheduler->refusals, true, clock_now_us(), s_part->reason, sizeof s_part->reason);
    return s_part->reason;
}

// The class of a numeric level: on CPUs the instruction sets give the same bytes ("int8/vnni" is int8), but for the reference kernels.
static size_t class_length(const char *level)
{
    static const char *const alike[] = {"/avx2", "/avx512", "/vnni"};
    const size_t length = strlen(level);

    for (size_t i = 0; i < ARRAY_COUNT(alike); i++)
        if (length > strlen(alike[i]) && !strcmp(level + length - strlen(alike[i]), alike[i]))
            return length - strlen(alike[i]);
    return length;
}

static bool same_class(const char *a, const char *b)
{
    const size_t length = class_length(a);
    return length == class_length(b) && !strncmp(a, b, length);
}

// Whether it is that s-part: it registers anew, or was started again. One that is older is told so later.
static bool is_the_same(const struct member *member, const Fastdecode__RegisterRequest *request)
{
    return !strcmp(member->name, request->name) &&
           (!strcmp(member->control_address, request->control_address) || request->incarnation <= member->incarnation);
}

enum status stages_check(const struct scheduler *scheduler, const Fastdecode__RegisterRequest *request, struct error *error)
{
    const uint32_t layers = request->model->kv->layers, first = request->first_layer;
    const uint32_t count = layers_of(request);

    if (first >= layers || count > layers - first)
        return error_set(error, STATUS_INVALID_ARGUMENT, "registration of the s-part: layers %u:%u of %u", first, first + count,
                         layers);
    if (strlen(request->numeric_level) >= sizeof scheduler->s_part.stages[0].offer.level)
        return error_set(error, STATUS_INVALID_ARGUMENT, "registration of the s-part: numeric_level is too long");
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++) {
        const struct stage *other = &scheduler->s_part.stages[i];
        const bool same_layers = other->first_layer == first && other->layer_count == count;
        if (!other->member->registered || (same_layers && is_the_same(other->member, request)))
            continue;
        if (same_layers)
            return error_set(error, STATUS_FAILED_PRECONDITION,
                             "layers %u:%u are on %s (%s), which is alive: this one takes its place when that one is gone", first,
                             first + count, other->member->name, other->member->control_address);
        if (first < end_of(other) && other->first_layer < first + count)
            return error_set(error, STATUS_FAILED_PRECONDITION,
                             "layers %u:%u overlap with %u:%u of %s: each layer is on one s-part (--layers)", first, first + count,
                             other->first_layer, end_of(other), other->member->name);
        if (!same_class(other->offer.level, request->numeric_level))
            return error_set(error, STATUS_FAILED_PRECONDITION,
                             "it computes in %s, and %s with layers %u:%u in %s: the s-parts of a pipeline need the same --compute "
                             "and --device",
                             request->numeric_level, other->member->name, other->first_layer, end_of(other), other->offer.level);
    }
    return STATUS_OK;
}

struct member *stages_member(struct scheduler *scheduler, const Fastdecode__RegisterRequest *request)
{
    struct s_part *s_part = &scheduler->s_part;
    struct stage *unused = NULL;

    if (request->first_layer == 0)
        return &s_part->member;
    for (uint32_t i = 1; i < SCHED_STAGES_MAX; i++) {
        struct stage *stage = &s_part->stages[i];
        if (stage->layer_count && stage->first_layer == request->first_layer)
            return stage->member;
        if (!unused && !stage->member->registered)
            unused = stage;
    }
    return unused ? unused->member : NULL;
}

// --- what a stage says of itself

// Takes measured points. False: they are not what they should be, and none is taken.
static bool take_points(const double *rows, size_t row_count, const double *us, size_t us_count, double times,
                        struct sched_time *out, uint32_t *count)
{
    bool good = row_count == us_count && row_count <= CALIBRATION_MAX;

    for (size_t i = 0; good && i < row_count; i++) {
        good = rows[i] >= 1 && rows[i] <= STEP_ROWS_MOST && us[i] > 0 && us[i] < 1e9;
        out[i] = (struct sched_time){rows[i], us[i] * times};
    }
    *count = good ? (uint32_t)row_count : 0;
    return good;
}

// Stages of an earlier split, which are gone.
static void forget_others(struct s_part *s_part, const struct stage *stage, const Fastdecode__RegisterRequest *request)
{
    const uint32_t first = request->first_layer, end = first + layers_of(request);

    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++) {
        struct stage *other = &s_part->stages[i];
        if (other != stage && !other->member->registered && other->first_layer < end && first < end_of(other))
            other->layer_count = 0;
    }
}

// Members measure a layer; the core counts all layers.
void stages_take(struct member *member, const Fastdecode__RegisterRequest *request)
{
    const Fastdecode__Calibration *c = request->calibration;
    struct scheduler *scheduler = member->scheduler;
    struct stage *stage = stage_of(member);

    if (member->incarnation != request->incarnation) {
        scheduler->s_part.forget.count = scheduler->s_part.forget.asked = 0; // it knows none of them
        const struct member_counts counts = member_counts_of(member);
        counts_add(&stage->earlier, &counts);
    }
    forget_others(&scheduler->s_part, stage, request);
    stage->first_layer = request->first_layer;
    stage->layer_count = layers_of(request);
    stage->offer.max_rows = request->max_rows;
    stage->offer.mini_batches = request->mini_batches;
    stage->offer.pages_total = request->pages_total;
    stage->offer.on_device = request->on_device;
    stage->offer.rows_alike = request->rows_alike;
    stage->offer.takes_aside = request->takes_aside;
    stage->offer.takes_extents = request->takes_extents;
    stage->offer.pool_takes_extents = request->pool_takes_extents;
    stage->offer.features = features_read(request->sampling_feature, request->n_sampling_feature);
    stage->offer.times.layer_count = stage->offer.times.head_count = 0;
    stage->offer.times.stream_us = c && c->stream_us > 0 && c->stream_us < STREAM_US_MAX ? c->stream_us : 0;
    stage->offer.has_kv = messages_to_kv_costs(request->kv_costs, &stage->offer.kv);
    snprintf(stage->offer.level, sizeof stage->offer.level, "%s", request->numeric_level);
    if (c && (!take_points(c->layer_rows, c->n_layer_rows, c->layer_us, c->n_layer_us, stage->layer_count,
                           stage->offer.times.layers, &stage->offer.times.layer_count) ||
              !take_points(c->head_rows, c->n_head_rows, c->head_us, c->n_head_us, 1, stage->offer.times.heads,
                           &stage->offer.times.head_count)))
        log_warn("CALIBRATION-REFUSED", "name=%s", request->name);
}

bool stages_has_said_so(const struct member *member, const Fastdecode__RegisterRequest *request)
{
    const struct stage *stage = stage_of(member);
    return stage->offer.pages_total == request->pages_total && stage->first_layer == request->first_layer &&
           stage->layer_count == layers_of(request);
}

// The time of all stages together at the points of the first: a stage that was measured at fewer has its last one's for more rows.
static void add_up_times(const struct stage *const *stages, uint32_t count, struct s_part_times *out)
{
    *out = stages[0]->offer.times;
    for (uint32_t i = 1; i < count; i++) {
        const struct s_part_times *times = &stages[i]->offer.times;
        out->stream_us = MAX(out->stream_us, times->stream_us);
        out->layer_count = times->layer_count ? out->layer_count : 0;
        for (uint32_t p = 0; p < out->layer_count; p++) {
            const struct sched_time *at = &times->layers[MIN(p, times->layer_count - 1)];
            out->layers[p].us += at->us * MAX(1.0, out->layers[p].rows / at->rows);
        }
    }
    memcpy(out->heads, stages[count - 1]->offer.times.heads, sizeof out->heads);
    out->head_count = stages[count - 1]->offer.times.head_count;
}

static void tell_core(struct s_part *s_part, const struct stage *const *stages, uint32_t count)
{
    struct sched_event event = {.kind = SCHED_S_PART_UP,
                                .s_part_up = {.max_rows = UINT32_MAX,
                                              .on_device = true,
                                              .rows_alike = true,
                                              .takes_aside = true,
                                              .takes_extents = true,
                                              .pool_takes_extents = true}};
    struct sched_s_part_up *up = &event.s_part_up;

    add_up_times(stages, count, &s_part->times);
    for (uint32_t i = 0; i < count; i++) {
        up->max_rows = MIN(up->max_rows, stages[i]->offer.max_rows);
        up->on_device = up->on_device && stages[i]->offer.on_device;
        up->rows_alike = up->rows_alike && stages[i]->offer.rows_alike;
        up->takes_aside = up->takes_aside && stages[i]->offer.takes_aside;
        up->takes_extents = up->takes_extents && stages[i]->offer.takes_extents;
        up->pool_takes_extents = up->pool_takes_extents && stages[i]->offer.pool_takes_extents;
        s_part->ups[i] =
            (struct sched_stage_up){.layers = stages[i]->offer.times.layers, .layer_count = stages[i]->offer.times.layer_count};
    }
    up->layers = s_part->times.layers;
    up->heads = s_part->times.heads;
    up->layer_count = s_part->times.layer_count;
    up->head_count = s_part->times.head_count;
    up->stream_us = s_part->times.stream_us;
    if (count == s_part->member.scheduler->core.config.stages) {
        up->stages = s_part->ups;
        up->stage_count = count;
    }
    events_add(&s_part->member.scheduler->events, &event);
}

void stages_tell_core(struct scheduler *scheduler)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(&scheduler->s_part, stages);

    tell_core(&scheduler->s_part, stages, count);
}

void stages_take_pool(struct scheduler *scheduler)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(&scheduler->s_part, stages);
    struct place *pool = scheduler->s_part.member.place;
    double token_us = 0;
    bool known = true;

    pool->pages_total = stages[0]->offer.pages_total;
    pool->pair_us = 0;
    for (uint32_t i = 0; i < count; i++) {
        pool->pages_total = MIN(pool->pages_total, stages[i]->offer.pages_total);
        pool->pair_us += stages[i]->offer.kv.pair_us * stages[i]->layer_count;
        token_us += stages[i]->offer.kv.token_us * stages[i]->layer_count;
        known = known && stages[i]->offer.has_kv;
    }
    if (known)
        pool->bytes_per_second = (double)scheduler->core.config.kv_bytes_per_token / token_us * 1e6;
    else
        pool->pair_us = 0;
    pool->hands_over = false;
    pool->drain.done = false;
}

bool stages_configure_core(struct scheduler *scheduler)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(&scheduler->s_part, stages), wanted = scheduler->settings.mini_batches;
    uint32_t first, end;

    if (!scheduler->model.known || find_gap(scheduler, &first, &end))
        return false;
    uint32_t rows = stages[0]->offer.max_rows, batches = stages[0]->offer.mini_batches;
    for (uint32_t i = 1; i < count; i++) {
        rows = MIN(rows, stages[i]->offer.max_rows);
        batches = MIN(batches, stages[i]->offer.mini_batches);
    }
    scheduler->core.config.max_batch_rows = rows;
    scheduler->core.config.stages = count;
    scheduler->core.config.mini_batches = wanted ? wanted : MIN(MAX(batches, 1u), sched_mini_batches_most(count, true));
    return true;
}

// --- calls to all stages

// A call that every stage gets. Its end is that of the last.
struct group {
    struct scheduler *scheduler;
    uint64_t term;
    uint32_t pending;
    enum status status;
    void (*on_end)(void *user, enum status status, const char *text);
    void *user;
};

static void group_ended(struct group *group)
{
    if (--group->pending)
        return;
    if (group->on_end && group->term == group->scheduler->s_part.join.term) // else the stages have forgotten what it was about
        group->on_end(group->user, group->status, "one of the stages");
    free(group);
}

static void on_group_end(void *user, enum status status, const char *text)
{
    struct group *group = user;

    (void)text;
    if (status != STATUS_OK && group->status != STATUS_NOT_FOUND) // NOT_FOUND stands, whatever another stage says
        group->status = status;
    group_ended(group);
}

bool stages_call(struct scheduler *scheduler, const char *method, const ProtobufCMessage *request,
                 void (*on_end)(void *user, enum status status, const char *text), void *user, struct rpc_handle *call)
{
    const struct rpc_options options = {.timeout_ms = CALL_TIMEOUT_MS};
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(&scheduler->s_part, stages);
    struct error error;

    if (count == 1) {
        const struct rpc_callbacks callbacks = {.on_end = on_end};
        struct rpc_channel *channel = stages[0]->member->channel;
        return channel &&
               !rpc_call_start(channel, &fastdecode__spart__descriptor, method, request, &options, &callbacks, user, call, &error);
    }
    const struct rpc_callbacks callbacks = {.on_end = on_group_end};
    struct group *group = count ? malloc(sizeof *group) : NULL;
    if (!group)
        return false;
    *group = (struct group){.scheduler = scheduler,
                            .term = scheduler->s_part.join.term,
                            .pending = 1,
                            .status = STATUS_OK,
                            .on_end = on_end,
                            .user = user};
    for (uint32_t i = 0; i < count; i++) {
        struct rpc_channel *channel = stages[i]->member->channel;
        if (channel &&
            !rpc_call_start(channel, &fastdecode__spart__descriptor, method, request, &options, &callbacks, group, NULL, &error))
            group->pending++;
        else
            group->status = STATUS_UNAVAILABLE;
    }
    group_ended(group);
    return true;
}

void stages_tell(const struct scheduler *scheduler, struct stages_message *out)
{
    out->count = 0;
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++) {
        const struct stage *stage = &scheduler->s_part.stages[i];
        if (!stage->layer_count || stage->layer_count == scheduler->model.kv.layers)
            continue;
        Fastdecode__Stage *told = &out->stages[out->count];
        fastdecode__stage__init(told);
        told->first_layer = stage->first_layer;
        told->layer_count = stage->layer_count;
        told->incarnation = stage->member->incarnation;
        out->pointers[out->count++] = told;
    }
}

uint32_t stages_count_step(struct s_part *s_part, const Fastdecode__StepReply *reply, uint32_t rows, uint32_t *stage_us)
{
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = reply->n_stages < 2 ? 0 : stages_list(s_part, stages);

    s_part->join.wait_us = 0;
    if (count < 2 || reply->n_stages != count)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        const Fastdecode__StageTime *time = reply->stages[i];
        struct stage *stage = (struct stage *)stages[i];
        stage->rows += rows;
        stage->s_part_us += time->s_part_us;
        stage->r_part_us += time->r_part_us;
        stage->idle_us[SCHED_BUBBLE_PB1] += time->idle_both_us;
        stage->idle_us[SCHED_BUBBLE_PB2] += time->idle_one_us;
        stage->idle_us[SCHED_BUBBLE_PB3] += time->idle_none_us;
        stage->idle_us[SCHED_BUBBLE_R] += time->idle_attend_us;
        stage_us[i] = time->s_part_us;
    }
    return count;
}

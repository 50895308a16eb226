// registration.c: what members say of themselves when they register: checked, compared with the model that the mesh serves, taken over.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/kv/kv_shape.h"
#include "common/mesh/member.h"
#include "common/mesh/messages.h"
#include "services/scheduler/scheduler.h"

static const char NAME_LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"; // it is a label in metrics
static const double BYTES_PER_SECOND_GUESS = 1e10;

// --- the model

static uint64_t page_bytes(const Fastdecode__KvShape *kv)
{
    const struct kv_shape shape = messages_to_kv_shape(kv, 1);
    return kv_page_bytes(&shape);
}

static bool out_of_range(uint32_t value, uint32_t most) { return value == 0 || value > most; }

static enum status check_model(const Fastdecode__RegisterRequest *request, struct error *error)
{
    const Fastdecode__ModelInfo *model = request->model;

    if (!model || !model->kv || !model->vocab || out_of_range(model->context_tokens, 1 << 28) ||
        model->n_end_token > END_TOKENS_MAX || out_of_range(request->max_rows, STEP_ROWS_MOST))
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "registration of the s-part: model, vocab, context_tokens, end_token or max_rows "
                         "is missing or out of range");
    if (out_of_range(model->kv->layers, 1 << 12) || out_of_range(model->kv->heads, 1 << 12) ||
        out_of_range(model->kv->kv_heads, 1 << 12) || out_of_range(model->kv->head_dim, 1 << 12) ||
        out_of_range(model->kv->page_tokens, 1 << 10) || page_bytes(model->kv) == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "registration of the s-part: KV shape of %u layers, %u heads, %u KV heads of %u, %u "
                         "tokens a page, type %s: one is out of range",
                         model->kv->layers, model->kv->heads, model->kv->kv_heads, model->kv->head_dim, model->kv->page_tokens,
                         kv_type_name((enum kv_type)model->kv->type));
    return STATUS_OK;
}

// Whether the s-part's model, and what it makes of it, is the mesh's.
static enum status check_same_model(const struct scheduler *scheduler, const Fastdecode__RegisterRequest *request,
                                    struct error *error)
{
    const Fastdecode__ModelInfo *model = request->model;
    const Fastdecode__KvShape *ours = &scheduler->model.kv, *theirs = model->kv;
    static const char end[] = "start it again with the mesh's, or all s-parts and the scheduler to change it";

    if (scheduler->model.info.fingerprint != model->fingerprint)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "the mesh serves another model, %.64s, and this s-part has %.64s (the files differ): %s",
                         scheduler->model.name, model->name, end);
    if (ours->type != theirs->type)
        return error_set(error, STATUS_FAILED_PRECONDITION, "this s-part has --kv-type %s, and the mesh %s: %s",
                         kv_type_name((enum kv_type)theirs->type), kv_type_name((enum kv_type)ours->type), end);
    if (scheduler->model.info.context_tokens != model->context_tokens || ours->context_tokens != theirs->context_tokens)
        return error_set(error, STATUS_FAILED_PRECONDITION, "this s-part has --context %u, and the mesh %u: %s",
                         model->context_tokens, scheduler->model.info.context_tokens, end);
    if (ours->sparse_percent != theirs->sparse_percent)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "this s-part has --" KV_SPARSE_OPTION " %u%%, and the mesh %u%% (0%%: off): %s", theirs->sparse_percent,
                         ours->sparse_percent, end);
    if (!messages_same_kv_shape(ours, theirs))
        return error_set(
            error, STATUS_FAILED_PRECONDITION,
            "the mesh serves another model: its KV has %u layers, %u heads, %u KV heads of %u, this s-part's %u, %u, %u of "
            "%u, or windows differ: %s",
            ours->layers, ours->heads, ours->kv_heads, ours->head_dim, theirs->layers, theirs->heads, theirs->kv_heads,
            theirs->head_dim, end);
    return STATUS_OK;
}

// Whether this s-part can serve under these settings, beside what the mesh has served so far.
static enum status check_settings(const struct scheduler *scheduler, const Fastdecode__RegisterRequest *request,
                                  struct error *error)
{
    uint32_t wanted = scheduler->core.sched ? scheduler->core.config.mini_batches : scheduler->settings.mini_batches;

    if ((scheduler->model.known && check_same_model(scheduler, request, error)) || stages_check(scheduler, request, error))
        return error->status;
    if (request->mini_batches && request->mini_batches < wanted)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "the s-part was started with --mini-batches %u, the scheduler uses %u: start one of them again",
                         request->mini_batches, wanted);
    const uint32_t lacking = token_logs_features(scheduler->sequences.logs) &
                             ~features_read(request->sampling_feature, request->n_sampling_feature);
    if (lacking)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "requests under way use %s, which this s-part is too old for: start a newer one, or end them",
                         features_name(lacking));
    if (request->one_kind_of_place && request->pages_total && scheduler->settings.placement == SCHED_PLACE_AUTO)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "the s-part is --batch-invariant on a GPU: KV must stay in places of one kind, and --placement auto takes "
                         "both: start the scheduler with --placement local or workers, or the s-part with --local-pool 0");
    return STATUS_OK;
}

// The model of stages that are gone, before all layers were there, binds nobody. Workers say anew whether what they hold is of the next one.
static void forget_model(struct scheduler *scheduler)
{
    log_info("MODEL-FORGOTTEN", "name=\"%s\" what=\"no s-part of it is left, and it was never served\"", scheduler->model.name);
    scheduler->model.known = false;
    stages_forget(&scheduler->s_part);
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        if (scheduler->places.of[i].member->registered)
            members_down(scheduler->places.of[i].member, "the mesh has another model now");
}

static enum status open_core(struct scheduler *scheduler, struct error *error)
{
    if (scheduler_open_core(scheduler, error))
        return error->status;
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        members_clean_then_up(scheduler->places.of[i].member); // workers that came before the core was there
    return STATUS_OK;
}

// Whether it is an s-part that has fewer than all layers. A worker may name a model too, which nobody has checked.
static bool is_part(const Fastdecode__RegisterRequest *request)
{
    return request->kind == FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART && request->layer_count &&
           request->layer_count < request->model->kv->layers; // check_model() has seen both
}

static enum status take_model(struct scheduler *scheduler, const Fastdecode__RegisterRequest *request, struct error *error)
{
    const Fastdecode__ModelInfo *model = request->model;
    uint32_t mini_batches = scheduler->settings.mini_batches;

    if (check_model(request, error))
        return error->status;
    if (scheduler->model.known && !scheduler->core.sched && !stages_any(&scheduler->s_part))
        forget_model(scheduler);
    if (check_settings(scheduler, request, error))
        return error->status;
    if (scheduler->model.known)
        return STATUS_OK;
    scheduler->model.kv_shape = messages_to_kv_shape(model->kv, 1);
    messages_from_kv_shape(&scheduler->model.kv_shape, &scheduler->model.kv);
    scheduler->model.info = *model;
    scheduler->model.info.base.n_unknown_fields = 0; // they are freed with the call
    scheduler->model.info.base.unknown_fields = NULL;
    snprintf(scheduler->model.name, sizeof scheduler->model.name, "%s", model->name);
    scheduler->model.info.name = scheduler->model.name;
    scheduler->model.end_token_count = (uint32_t)model->n_end_token;
    for (size_t i = 0; i < model->n_end_token; i++)
        scheduler->model.end_tokens[i] = model->end_token[i];
    scheduler->model.info.end_token = scheduler->model.end_tokens;
    scheduler->model.info.kv = &scheduler->model.kv;
    scheduler->model.page_bytes = page_bytes(&scheduler->model.kv);
    scheduler->model.known = true;
    if (is_part(request))
        return STATUS_OK; // the core is opened when all layers are there
    scheduler->core.config.max_batch_rows = request->max_rows;
    scheduler->core.config.mini_batches = mini_batches ? mini_batches
                                                       : MIN(MAX(request->mini_batches, 1u), sched_mini_batches_most(1, true));
    if (open_core(scheduler, error)) {
        scheduler->model.known = false;
        return error->status;
    }
    return STATUS_OK;
}

// --- what was measured

static void take_place(struct scheduler *scheduler, struct place *place, const Fastdecode__RegisterRequest *request)
{
    struct kv_costs kv;
    const bool takes_pages = request->pool_kv && scheduler->model.known && request->tensor_address[0] &&
                             messages_same_kv_shape(request->pool_kv, &scheduler->model.kv);
    double layers = scheduler->model.kv.layers;

    place->pages_total = request->pages_total;
    place->bytes_per_second = request->kv_bytes_per_second > 0 && request->kv_bytes_per_second < 1e15 ? request->kv_bytes_per_second
                                                                                                      : BYTES_PER_SECOND_GUESS;
    place->pair_us = 0;
    place->has_costs = messages_to_kv_costs(request->kv_costs, &kv) && scheduler->model.known;
    if (place->has_costs) {
        place->costs = kv;
        place->pair_us = kv.pair_us * layers;
        place->bytes_per_second = (double)scheduler->core.config.kv_bytes_per_token / (kv.token_us * layers) * 1e6;
    }
    place->shares_cores = request->shares_cores;
    place->hands_over = place->kind == SCHED_KV_WORKER || takes_pages;
    place->drain.done = false;
}

// --- the place of a worker
//
// A worker keeps its place by its name, over restarts. Containers that are made anew have new names, and those of the old ones never come
// back: such a place is given to the next new name, once its worker has been gone for NAMES_KEPT_US. Until then metrics and the view still
// show what became of it. Before that a place that nobody has had is taken, and if there is none the one whose worker has been gone longest.

uint32_t names_choose(const struct names_place *places, uint32_t count, uint32_t most, uint64_t now_us)
{
    uint32_t oldest = NAMES_NO_PLACE;

    for (uint32_t i = 0; i < count; i++)
        if (places[i].is_free && (oldest == NAMES_NO_PLACE || places[i].heard_us < places[oldest].heard_us))
            oldest = i;
    const bool is_long_gone = oldest != NAMES_NO_PLACE && now_us - places[oldest].heard_us > NAMES_KEPT_US;
    return is_long_gone || count == most ? oldest : count;
}

// The place may become another's: its worker is gone, and nothing that the core or a call under way knows of is there.
static bool is_forgettable(const struct scheduler *scheduler, const struct place *place, uint64_t now_us)
{
    const struct member *member = place->member;
    struct sched_place_info info = {0};

    if (member->registered || member->up || member->cleaning || place->drain.call ||
        now_us - member->heard_us <= scheduler->settings.worker_timeout_ms * UINT64_C(1000))
        return false;
    if (scheduler->core.sched)
        sched_get_place(scheduler->core.sched, place->index, &info);
    return !info.up && info.sequences == 0 && info.pages_used == 0 && !flights_use_place(&scheduler->flights, place->index);
}

// The counts go on where those of the place's former worker ended: answers to calls of its time must not match.
static struct member *new_worker(struct scheduler *scheduler, struct place *place, uint32_t index)
{
    const uint32_t stay = place->worker.stay, clean_id = place->worker.clean_id;

    *place = (struct place){.kind = SCHED_KV_WORKER, .index = index, .member = &place->worker};
    place->worker.stay = stay;
    place->worker.clean_id = clean_id + 1;
    place->worker.scheduler = scheduler;
    place->worker.place = place;
    return &place->worker;
}

struct member *registration_find_worker(struct scheduler *scheduler, const char *name)
{
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        if (scheduler->places.of[i].kind == SCHED_KV_WORKER && !strcmp(scheduler->places.of[i].worker.name, name))
            return &scheduler->places.of[i].worker;
    return NULL;
}

static struct member *find_or_add_worker(struct scheduler *scheduler, const char *name)
{
    struct member *known = registration_find_worker(scheduler, name);
    const uint32_t count = scheduler->places.count;
    const uint64_t now_us = clock_now_us();
    struct names_place places[SCHED_PLACES_MAX];

    if (known)
        return known;
    for (uint32_t i = 0; i < count; i++) {
        const struct place *place = &scheduler->places.of[i];
        places[i] = (struct names_place){.is_free = place->kind == SCHED_KV_WORKER && is_forgettable(scheduler, place, now_us),
                                         .heard_us = place->member->heard_us};
    }
    const uint32_t index = names_choose(places, count, SCHED_PLACES_MAX, now_us);
    if (index == NAMES_NO_PLACE)
        return NULL;
    struct place *place = &scheduler->places.of[index];
    if (index == count) {
        scheduler->places.count++;
    } else {
        log_info("PLACE-REUSED", "place=%u was=%s is=%s", index, place->worker.name, name);
        members_disconnect(&place->worker);
    }
    return new_worker(scheduler, place, index);
}

// --- registering

// Others connect to these, and tensors and prompts go there: over plain tcp only where the scheduler itself may be reached by it.
static enum status check_addresses(const struct scheduler *scheduler, const Fastdecode__RegisterRequest *request,
                                   struct error *error)
{
    enum status status = rpc_security_allows_dialing(&scheduler->host.security, request->control_address, error);

    if (!status && request->tensor_address[0])
        status = rpc_security_allows_dialing(&scheduler->host.security, request->tensor_address, error);
    return status;
}

static enum status check_request(const struct scheduler *scheduler, const Fastdecode__RegisterRequest *request, bool s_part,
                                 struct error *error)
{
    if ((!s_part && request->kind != FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER) || !request->name[0] ||
        strlen(request->name) >= NAME_BYTES || !request->control_address[0] || strlen(request->control_address) >= ADDRESS_BYTES ||
        strlen(request->tensor_address) >= ADDRESS_BYTES || request->incarnation == 0)
        return error_set(error, STATUS_INVALID_ARGUMENT, "registration: kind, name, address or incarnation is missing or too long");
    if (request->name[strspn(request->name, NAME_LETTERS)])
        return error_set(error, STATUS_INVALID_ARGUMENT, "registration: a name has letters, digits, '.', '_' and '-' only");
    return check_addresses(scheduler, request, error);
}

// A process is not blamed for the one before it.
static void forget_losses(struct place *place)
{
    place->losses.count = 0;
    place->losses.barred_until_us = 0;
    place->reach.known = false;
    place->reach.wait_us = 0;
    place->reach.failures = (struct repeat){0};
}

// A member that starts, comes back, or is told what the model is.
static enum status take_member(struct member *member, const Fastdecode__RegisterRequest *request, struct error *error)
{
    struct scheduler *scheduler = member->scheduler;
    struct place *place = member->place;
    bool other = member->incarnation != request->incarnation || strcmp(member->control_address, request->control_address);

    snprintf(member->name, sizeof member->name, "%s", request->name);
    members_down(member, "it registers anew");
    if (other)
        members_disconnect(member);
    member->cleaning = false;
    member->clean_id++; // a call that cleans it for an earlier registration says nothing
    if (claims_take(&scheduler->claims, place->index, request, error))
        return error->status;
    if (place->kind == SCHED_LOCAL_POOL)
        stages_take(member, request);
    if (place->kind != SCHED_LOCAL_POOL || !is_part(request)) // the pool of a pipeline is that of all stages
        take_place(scheduler, place, request);
    if (other)
        forget_losses(place);
    snprintf(member->control_address, sizeof member->control_address, "%s", request->control_address);
    snprintf(member->tensor_address, sizeof member->tensor_address, "%s", request->tensor_address);
    member->incarnation = request->incarnation;
    member->steps_begun = request->steps_begun;
    member->heard_us = clock_now_us();
    member->last = (Fastdecode__HeartbeatRequest){0};
    member->registered = place->kind == SCHED_LOCAL_POOL || request->pages_total > 0;
    if (!member->registered || !members_connect(member, error))
        return STATUS_OK;
    member->registered = false; // it is refused, and comes again
    return error->status;
}

// It asks twice because the first answer was late.
static bool has_said_so(const struct member *member, const Fastdecode__RegisterRequest *request)
{
    const bool same_pages = member->place->kind == SCHED_LOCAL_POOL ? stages_has_said_so(member, request)
                                                                    : member->place->pages_total == request->pages_total;
    return member->up && member->incarnation == request->incarnation && same_pages &&
           !strcmp(member->control_address, request->control_address);
}

// A worker that has opened its pages for another model has none for this one: it is told the shape, as one that has none yet, drops what it
// holds, and comes back.
static void forget_other_pages(struct scheduler *scheduler, Fastdecode__RegisterRequest *request)
{
    if (!request->kv || !scheduler->model.known || messages_same_kv_shape(request->kv, &scheduler->model.kv))
        return;
    if (repeat_is_due(&scheduler->model.others, clock_now_us(), request->name))
        log_warn("WORKER-OF-OTHER-MODEL", "name=%s what=\"it is told the shape of this model's KV\" times=%u", request->name,
                 scheduler->model.others.count);
    request->pages_total = 0;
    request->n_held = 0;
}

// Returns the number that a member is to come after, whose own is older than that of the one known by its name or layers (NULL: nobody is),
// or too far ahead of the clock; 0 if its own will do. A member that was refused comes with the number after the newest, however far ahead
// that is. One that was registered with its number cannot change it, and takes the place of a newer one that is gone.
static uint64_t refused_for(const struct member *known, const Fastdecode__RegisterRequest *request)
{
    const uint64_t newest = known ? known->incarnation : 0, incarnation = request->incarnation;

    if (incarnation < newest)
        return request->was_registered && members_is_gone(known) ? 0 : newest;
    const bool was_told = newest && incarnation - newest <= 1;
    return !was_told && member_is_ahead(incarnation) ? MAX(newest, member_incarnation()) : 0;
}

void registration_refused(struct scheduler *scheduler, const char *name, bool s_part, enum refusal_reason reason, const char *why)
{
    const struct refusal *told = refusals_note(&scheduler->refusals, name, s_part, reason, why);

    if (told)
        view_note(&scheduler->view, FASTDECODE__EVENT_KIND__EVENT_KIND_REFUSED, told->name, told->why);
}

static void refuse(struct scheduler *scheduler, struct rpc_call *call, const Fastdecode__RegisterRequest *request,
                   enum refusal_reason reason, const struct error *error)
{
    const bool s_part = request->kind == FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;

    registration_refused(scheduler, request->name, s_part, reason, error->text);
    rpc_call_fail(call, error->status, "%s", error->text);
}

void registration_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__RegisterRequest *request = rpc_call_unpack(call, &fastdecode__register_request__descriptor);
    Fastdecode__RegisterReply reply = FASTDECODE__REGISTER_REPLY__INIT;
    struct stages_message stages;
    struct member *member;
    struct error error;

    if (!request)
        return;
    const bool s_part = request->kind == FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    if (check_request(scheduler, request, s_part, &error)) {
        refuse(scheduler, call, request, REFUSED_REQUEST, &error);
        return;
    }
    if (!member_caller_is(call, s_part ? "s-part" : "kv-worker", request->incarnation, request->incarnation))
        return;
    if (s_part && take_model(scheduler, request, &error)) {
        refuse(scheduler, call, request, REFUSED_MODEL, &error);
        return;
    }
    if (!s_part)
        forget_other_pages(scheduler, request);
    member = s_part ? stages_member(scheduler, request) : registration_find_worker(scheduler, request->name);
    reply.newest_incarnation = refused_for(member, request);
    if (reply.newest_incarnation) {
        if (request->was_registered) // else it takes the next number at once
            registration_refused(scheduler, request->name, s_part, REFUSED_OLDER,
                                 "a member of that name or with those layers that started later is there");
        rpc_call_reply(call, &reply.base);
        return;
    }
    if (!s_part)
        member = find_or_add_worker(scheduler, request->name);
    if (!member) {
        error_set(&error, STATUS_FAILED_PRECONDITION, "there are too many %s", s_part ? "stages of the s-part" : "workers");
        refuse(scheduler, call, request, REFUSED_FULL, &error);
        return;
    }
    if (is_part(request))
        request->n_held = 0; // a pool of a pipeline begins empty
    log_info("REGISTER", "name=%s incarnation=%llx pages=%llu held=%zu", request->name, (unsigned long long)request->incarnation,
             (unsigned long long)request->pages_total, request->n_held);
    if (has_said_so(member, request)) {
        member->heard_us = clock_now_us();
    } else if (take_member(member, request, &error) ||
               (!scheduler->core.sched && stages_configure_core(scheduler) && open_core(scheduler, &error))) {
        refuse(scheduler, call, request, REFUSED_FULL, &error);
        return;
    }
    refusals_forget(&scheduler->refusals, request->name, s_part);
    reply.scheduler_incarnation = scheduler->host.incarnation;
    reply.s_part_incarnation = scheduler->s_part.member.incarnation;
    reply.kv = scheduler->core.sched ? &scheduler->model.kv : NULL; // before, it may be replaced
    reply.over_before_step = flights_oldest_step(&scheduler->flights);
    stages_tell(scheduler, &stages);
    reply.n_stages = stages.count;
    reply.stages = stages.pointers;
    rpc_call_reply(call, &reply.base);
}

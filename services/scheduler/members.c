/* members.c: the s-part and the KV workers: who is there, who is dead, who holds what.
 *
 * A member is a place by its name, which it keeps over restarts. It is up when it has registered, the connection to it
 * stands, and what it holds that nobody needs has been freed; only then the core hears of it. It is down when the connection
 * breaks or it was silent for worker_timeout_ms; what it held is then rebuilt elsewhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/kv/kv_store.h"
#include "common/member/member.h"
#include "services/scheduler/scheduler.h"

enum { LINK_US_GUESS = 200, WINDOW = 4096, ROWS_MAX = 65536, STALL_LOGGED_US = 500000 };
static const char NAME_LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"; // it is a label in metrics
static const uint64_t BYTES_PER_SECOND_GUESS = 10000000000u;

static bool in_flight_there(const struct scheduler *scheduler, uint32_t place)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        const struct flight *flight = &scheduler->flights[i];
        for (uint32_t r = 0; flight->used && r < flight->run_count; r++)
            if (flight->runs[r].place == place)
                return true;
    }
    return false;
}

/* --- up and down -------------------------------------------------------------------------------------------------------- */

static void tell_up(struct member *member)
{
    struct scheduler *scheduler = member->scheduler;
    struct sched_event event = {.kind = SCHED_S_PART_UP,
                                .s_part_up = {.max_rows = member->max_rows,
                                              .on_device = member->on_device,
                                              .rows_alike = member->rows_alike,
                                              .layers = member->layers,
                                              .heads = member->heads,
                                              .layer_count = member->layer_count,
                                              .head_count = member->head_count}};

    member->cleaning = false;
    if (!scheduler->core || !member->registered || member->up || !member->channel || !rpc_channel_is_up(member->channel))
        return; /* without a core: it is told once the s-part has said what the model is */
    member->up = true;
    log_info("PLACE-UP", "name=%s place=%u pages=%llu", member->name, member->place, (unsigned long long)member->pages_total);
    if (member->place == 0)
        scheduler_event(scheduler, &event);
    if (member->pages_total == 0)
        return;
    event = (struct sched_event){
        .kind = SCHED_PLACE_UP,
        .place_up =
            {
                .place = member->place,
                .pages_total = (uint32_t)MIN(member->pages_total, UINT32_MAX),
                .bytes_per_second = (uint64_t)member->bytes_per_second,
                .link_us = member->place ? LINK_US_GUESS : 0,
                .prefill_pair_us = member->pair_us,
                .kind = member->place == 0 ? SCHED_LOCAL_POOL : SCHED_KV_WORKER,
                .shares_cores = member->shares_cores,
                .accepts_moves = member->hands_over,
            },
    };
    scheduler_event(scheduler, &event);
}

static void tell_down(struct member *member, const char *why)
{
    struct scheduler *scheduler = member->scheduler;
    struct sched_event event = {.kind = SCHED_PLACE_DOWN, .place = member->place};

    member->registered = false;
    if (!member->up)
        return;
    member->up = false;
    member->lost += !member->drained;
    log_warn("PLACE-DOWN", "name=%s place=%u why=\"%s\"", member->name, member->place, why);
    if (member->place == 0) {
        event.kind = SCHED_S_PART_DOWN;
        scheduler_void_flights(scheduler);
    } else {
        place_exclude(scheduler, member);
    }
    scheduler_event(scheduler, &event);
}

static void close_channel(void *arg) { rpc_channel_close(arg); }

/* The channel may be the one whose callback runs: closed by the loop, a moment later. */
static void drop_channel(struct member *member)
{
    if (member->channel)
        rpc_loop_post(member->scheduler->loop, close_channel, member->channel);
    member->channel = NULL;
}

/* What the member holds and nobody needs: everything that is not waiting to be claimed. */
static void clean_then_up(struct member *member)
{
    if (clock_now_us() < member->barred_until_us)
        return;
    if (member->registered && member->channel && rpc_channel_is_up(member->channel) && !member->up && !member->cleaning) {
        struct scheduler *scheduler = member->scheduler;
        uint64_t *stale = malloc((scheduler->held_count + 1u) * sizeof *stale);
        uint32_t count = 0, kept = 0;
        bool claimable = clock_now_us() - scheduler->started_us < CLAIM_US;
        assert_always(stale);
        for (uint32_t i = 0; i < scheduler->held_count; i++) {
            struct held *held = &scheduler->held[i];
            struct token_log *log = token_logs_find(scheduler->logs, held->sequence);
            bool settling = false;
            for (uint32_t s = 0; s < scheduler->settling_count; s++)
                settling |= scheduler->settling[s] == held->sequence;
            if (held->place == member->place && (!claimable || (log && !settling)))
                stale[count++] = held->sequence;
            else
                scheduler->held[kept++] = *held;
        }
        scheduler->held_count = kept;
        member->cleaning = true;
        place_clean(member, stale, count, tell_up);
        free(stale);
    }
}

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct member *member = user;
    if (peer->incarnation != member->incarnation) {
        log_warn("MEMBER-OTHER", "name=%s", member->name); /* it registers by itself */
        return;
    }
    clean_then_up(member);
}

static void on_down(void *user, const char *why) { tell_down(user, why); }

/* --- registration --------------------------------------------------------------------------------------------------------- */

/* Its place may become another's: it is down, and nothing that the core or a call under way knows of is there. */
static bool is_forgettable(const struct scheduler *scheduler, const struct member *member, uint64_t now_us)
{
    struct sched_place_info info = {0};
    bool silent = now_us - member->heard_us > scheduler->settings.worker_timeout_ms * 1000ull;

    if (member->registered || member->up || member->cleaning || member->draining || !silent)
        return false;
    if (scheduler->core)
        sched_get_place(scheduler->core, member->place, &info);
    return !info.up && info.sequences == 0 && info.pages_used == 0 && !in_flight_there(scheduler, member->place);
}

/* The member of that name, or a new one. Where all places have a name, the one that has been silent longest loses its own. NULL: every
 * place is in use. */
static struct member *find_or_add(struct scheduler *scheduler, bool s_part, const char *name)
{
    struct member *oldest = NULL;
    uint64_t now_us = clock_now_us();

    if (s_part)
        return &scheduler->members[0];
    for (uint32_t i = 1; i < scheduler->member_count; i++)
        if (!strcmp(scheduler->members[i].name, name))
            return &scheduler->members[i];
    if (scheduler->member_count < SCHED_PLACES_MAX)
        return &scheduler->members[scheduler->member_count++];
    for (uint32_t i = 1; i < SCHED_PLACES_MAX; i++) {
        struct member *member = &scheduler->members[i];
        if ((!oldest || member->heard_us < oldest->heard_us) && is_forgettable(scheduler, member, now_us))
            oldest = member;
    }
    if (!oldest)
        return NULL;
    log_info("PLACE-REUSED", "place=%u was=%s is=%s", oldest->place, oldest->name, name);
    drop_channel(oldest);
    *oldest = (struct member){0};
    return oldest;
}

static uint64_t page_bytes(const Fastdecode__KvShape *kv)
{
    const struct kv_shape shape = {.layers = kv->layers,
                                   .heads = kv->heads,
                                   .kv_heads = kv->kv_heads,
                                   .head_dim = kv->head_dim,
                                   .page_tokens = kv->page_tokens,
                                   .type = (enum kv_type)kv->type,
                                   .max_sequences = 1,
                                   .max_context = kv->context_tokens};
    return kv_page_bytes(&shape);
}

static bool same_shape(const Fastdecode__KvShape *a, const Fastdecode__KvShape *b)
{
    return a->layers == b->layers && a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->page_tokens == b->page_tokens && a->type == b->type && a->context_tokens == b->context_tokens;
}

static bool out_of_range(uint32_t value, uint32_t most) { return value == 0 || value > most; }

static enum status take_model(struct scheduler *scheduler, const Fastdecode__RegisterRequest *request, struct error *error)
{
    const Fastdecode__ModelInfo *model = request->model;

    if (!model || !model->kv || !model->vocab || !model->context_tokens || model->context_tokens > 1 << 28 ||
        model->n_end_token > ARRAY_COUNT(scheduler->end_tokens) || request->max_rows == 0 || request->max_rows > ROWS_MAX)
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
    uint32_t wanted = scheduler->model_known ? scheduler->core_config.mini_batches : scheduler->settings.mini_batches;
    if (request->mini_batches && request->mini_batches < wanted)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "the s-part was started with --mini-batches %u, the scheduler uses %u: start one of them again",
                         request->mini_batches, wanted);
    if (request->one_kind_of_place && request->pages_total && scheduler->settings.placement == SCHED_PLACE_AUTO)
        return error_set(error, STATUS_FAILED_PRECONDITION,
                         "the s-part is --batch-invariant on a GPU: KV must stay in places of one kind, and --placement auto takes "
                         "both: start the scheduler with --placement local or workers, or the s-part with --local-pool 0");
    if (scheduler->model_known) {
        if (scheduler->model.fingerprint != model->fingerprint || scheduler->model.context_tokens != model->context_tokens ||
            !same_shape(&scheduler->kv, model->kv))
            return error_set(error, STATUS_FAILED_PRECONDITION,
                             "the mesh serves another model; start the scheduler again to change it");
        return STATUS_OK;
    }
    scheduler->kv = *model->kv;
    scheduler->model = *model;
    snprintf(scheduler->model_name, sizeof scheduler->model_name, "%s", model->name);
    scheduler->model.name = scheduler->model_name;
    scheduler->end_token_count = (uint32_t)model->n_end_token;
    for (size_t i = 0; i < model->n_end_token; i++)
        scheduler->end_tokens[i] = model->end_token[i];
    scheduler->model.end_token = scheduler->end_tokens;
    scheduler->model.kv = &scheduler->kv;
    scheduler->page_bytes = page_bytes(&scheduler->kv);
    scheduler->core_config.max_batch_rows = request->max_rows;
    scheduler->core_config.mini_batches = wanted ? wanted : MIN(MAX(request->mini_batches, 1u), CHOSEN_BATCHES);
    scheduler->model_known = scheduler_open_core(scheduler, error) == STATUS_OK;
    return scheduler->model_known ? STATUS_OK : error->status;
}

static void take_held(struct scheduler *scheduler, uint32_t place, const Fastdecode__RegisterRequest *request)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < scheduler->held_count; i++)
        if (scheduler->held[i].place != place)
            scheduler->held[kept++] = scheduler->held[i];
    scheduler->held_count = kept;
    if (kept + request->n_held > scheduler->held_capacity) {
        uint32_t capacity = kept + (uint32_t)request->n_held + 1024;
        struct held *grown = realloc(scheduler->held, capacity * sizeof *grown);
        assert_always(grown);
        scheduler->held = grown;
        scheduler->held_capacity = capacity;
    }
    for (size_t i = 0; i < request->n_held; i++)
        scheduler->held[scheduler->held_count++] =
            (struct held){request->held[i]->sequence, place, request->held[i]->positions, request->held[i]->certain};
}

void members_unclaim(struct scheduler *scheduler, uint32_t place)
{
    for (uint32_t i = scheduler->held_count; i-- > 0 && scheduler->members[place].up;) {
        struct held held = scheduler->held[i];
        if (held.place != place)
            continue;
        log_info("UNCLAIMED", "sequence=%llx place=%u", (unsigned long long)held.sequence, held.place);
        scheduler->held[i] = scheduler->held[--scheduler->held_count];
        place_free_unclaimed(scheduler, place, held.sequence, false);
    }
}

/* Those whose tokens are the sequence's for certain: a place that was cut off while the last ones were guessed cannot know which of
 * them came true. A prompt is not guessed. */
static uint32_t sure_positions(const struct held *held, const struct token_log *log)
{
    return MIN(held->positions, MAX(held->certain, log->prompt_count));
}

bool members_claim(struct scheduler *scheduler, const struct token_log *log, struct held *out)
{
    bool found = false;
    for (uint32_t i = scheduler->held_count; i-- > 0;) {
        struct held held = scheduler->held[i];
        if (held.sequence != log->id || !scheduler->members[held.place].up)
            continue;
        scheduler->held[i] = scheduler->held[--scheduler->held_count];
        held.positions = sure_positions(&held, log);
        if (!found) {
            *out = held;
        } else { /* it was being handed over: one copy is enough. At once, for later it may be there again, and in use */
            const struct held *other = held.positions > out->positions ? out : &held;
            place_free_unclaimed(scheduler, other->place, log->id, true);
            *out = held.positions > out->positions ? held : *out;
        }
        found = true;
    }
    return found && out->positions > 0;
}

/* False: not what it should be, none of it is taken. */
static bool take_points(const double *rows, size_t row_count, const double *us, size_t us_count, double times,
                        struct sched_time *out, uint32_t *count)
{
    *count = 0;
    bool good = row_count == us_count && row_count <= CALIBRATION_MAX;
    for (size_t i = 0; good && i < row_count; i++) {
        good = rows[i] >= 1 && rows[i] <= ROWS_MAX && us[i] > 0 && us[i] < 1e9;
        out[i] = (struct sched_time){rows[i], us[i] * times};
    }
    *count = good ? (uint32_t)row_count : 0;
    return good;
}

/* What it measured at start, as the core has it: of all layers. */
static void take_calibration(struct scheduler *scheduler, struct member *member, const Fastdecode__RegisterRequest *request)
{
    const Fastdecode__Calibration *c = request->calibration;
    const Fastdecode__KvCosts *kv = request->kv_costs;
    double layers = scheduler->kv.layers;

    member->layer_count = member->head_count = 0;
    member->pair_us = 0;
    if (c &&
        (!take_points(c->layer_rows, c->n_layer_rows, c->layer_us, c->n_layer_us, layers, member->layers, &member->layer_count) ||
         !take_points(c->head_rows, c->n_head_rows, c->head_us, c->n_head_us, 1, member->heads, &member->head_count)))
        log_warn("CALIBRATION-REFUSED", "name=%s", member->name);
    if (!kv || !scheduler->model_known || !(kv->token_us > 1e-9 && kv->token_us < 1e6 && kv->pair_us >= 0 && kv->pair_us < 1e6))
        return;
    member->pair_us = kv->pair_us * layers;
    member->bytes_per_second = (double)scheduler->core_config.kv_bytes_per_token / (kv->token_us * layers) * 1e6;
}

/* A member that starts, comes back, or is told what the model is. */
static void take_member(struct scheduler *scheduler, struct member *member, const Fastdecode__RegisterRequest *request)
{
    bool other = member->incarnation != request->incarnation || strcmp(member->control_address, request->control_address);

    tell_down(member, "it registers anew");
    if (other)
        drop_channel(member);
    member->scheduler = scheduler;
    member->place = (uint32_t)(member - scheduler->members);
    snprintf(member->name, sizeof member->name, "%s", request->name);
    snprintf(member->control_address, sizeof member->control_address, "%s", request->control_address);
    snprintf(member->tensor_address, sizeof member->tensor_address, "%s", request->tensor_address);
    member->incarnation = request->incarnation;
    member->pages_total = request->pages_total;
    member->bytes_per_second = request->kv_bytes_per_second > 0 && request->kv_bytes_per_second < 1e15
                                   ? request->kv_bytes_per_second
                                   : (double)BYTES_PER_SECOND_GUESS;
    take_calibration(scheduler, member, request);
    member->shares_cores = request->shares_cores;
    member->on_device = request->on_device;
    member->rows_alike = request->rows_alike;
    member->hands_over = member->place != 0 || (request->pool_kv && scheduler->model_known && request->tensor_address[0] &&
                                                same_shape(request->pool_kv, &scheduler->kv));
    member->max_rows = request->max_rows;
    member->heard_us = clock_now_us();
    member->registered = member->place == 0 || request->pages_total > 0;
    member->cleaning = member->drained = false;
    member->last = (Fastdecode__HeartbeatRequest){0};
    if (other)
        member->losses = 0, member->barred_until_us = 0;
    take_held(scheduler, member->place, request);
    if (member->registered && !member->channel) {
        struct error error;
        const struct rpc_channel_config config = {
            .address = member->control_address,
            .hello = {.service = "scheduler", .incarnation = scheduler->incarnation},
            .window = WINDOW,
            .on_up = on_up,
            .on_down = on_down,
            .user = member,
        };
        if (rpc_channel_open(scheduler->loop, &config, &member->channel, &error))
            log_warn("MEMBER-UNREACHABLE", "name=%s error=\"%s\"", member->name, error.text);
    } else {
        clean_then_up(member);
    }
}

void register_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__RegisterRequest *request = rpc_call_unpack(call, &fastdecode__register_request__descriptor);
    Fastdecode__RegisterReply reply = FASTDECODE__REGISTER_REPLY__INIT;
    struct member *member;
    struct error error;
    bool s_part;

    if (!request)
        return;
    s_part = request->kind == FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    if ((!s_part && request->kind != FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER) || !request->name[0] ||
        strlen(request->name) >= NAME_BYTES || !request->control_address[0] || strlen(request->control_address) >= ADDRESS_BYTES ||
        strlen(request->tensor_address) >= ADDRESS_BYTES || request->incarnation == 0) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "registration: kind, name, address or incarnation is missing or too long");
        return;
    }
    if (request->name[strspn(request->name, NAME_LETTERS)]) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "registration: a name has letters, digits, '.', '_' and '-' only");
        return;
    }
    if (!member_caller_is(call, s_part ? "s-part" : "kv-worker", request->incarnation, 0))
        return;
    if (s_part && take_model(scheduler, request, &error)) {
        rpc_call_fail(call, error.status, "%s", error.text);
        return;
    }
    if (!s_part && request->kv && scheduler->model_known && !same_shape(request->kv, &scheduler->kv)) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "the worker was started for another model or KV type: start it again");
        return;
    }
    member = find_or_add(scheduler, s_part, request->name);
    if (!member) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "there are too many workers");
        return;
    }
    if (request->incarnation < member->incarnation) {
        reply.newest_incarnation = member->incarnation;
        rpc_call_reply(call, &reply.base);
        return;
    }
    for (uint32_t i = 1; s_part && i < scheduler->member_count; i++)
        clean_then_up(&scheduler->members[i]); /* workers that came before the core was there */
    log_info("REGISTER", "name=%s incarnation=%llx pages=%llu held=%zu", request->name, (unsigned long long)request->incarnation,
             (unsigned long long)request->pages_total, request->n_held);
    if (member->up && member->incarnation == request->incarnation && member->pages_total == request->pages_total &&
        !strcmp(member->control_address, request->control_address))
        member->heard_us = clock_now_us(); /* it asked twice because the first answer was late: nothing has changed */
    else
        take_member(scheduler, member, request);
    reply.scheduler_incarnation = scheduler->incarnation;
    reply.s_part_incarnation = scheduler->members[0].incarnation;
    reply.kv = scheduler->model_known ? &scheduler->kv : NULL;
    rpc_call_reply(call, &reply.base);
}

static struct member *find_incarnation(struct scheduler *scheduler, const char *name, uint64_t incarnation)
{
    for (uint32_t i = 0; i < scheduler->member_count; i++)
        if (!strcmp(scheduler->members[i].name, name) && scheduler->members[i].incarnation == incarnation)
            return &scheduler->members[i];
    return NULL;
}

void heartbeat_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__HeartbeatRequest *request = rpc_call_unpack(call, &fastdecode__heartbeat_request__descriptor);
    Fastdecode__HeartbeatReply reply = FASTDECODE__HEARTBEAT_REPLY__INIT;

    if (!request || !member_caller_is(call, NULL, request->incarnation, request->incarnation))
        return;
    struct member *member = find_incarnation(scheduler, request->name, request->incarnation);
    bool wants_shape = member && member->place && !member->registered && member->pages_total == 0 && scheduler->model_known;
    if (!member || (!member->registered && (member->pages_total || member->place == 0)) || wants_shape) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "register again");
        return;
    }
    member->heard_us = clock_now_us();
    if (member->last.compute_turns != request->compute_turns)
        member->turned_us = member->heard_us;
    member->last = *request;
    member->last.name = NULL; /* it lies in the call */
    reply.scheduler_incarnation = scheduler->incarnation;
    reply.s_part_incarnation = scheduler->members[0].incarnation;
    rpc_call_reply(call, &reply.base);
}

static void on_drain_cancelled(void *user)
{
    struct member *member = user;
    member->draining = NULL;
}

void drain_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__DrainRequest *request = rpc_call_unpack(call, &fastdecode__drain_request__descriptor);
    Fastdecode__DrainReply reply = FASTDECODE__DRAIN_REPLY__INIT;

    if (!request || !member_caller_is(call, NULL, request->incarnation, request->incarnation))
        return;
    struct member *member = find_incarnation(scheduler, request->name, request->incarnation);
    if (!member || !member->up || member->place == 0 || member->draining) {
        rpc_call_reply(call, &reply.base);
        return;
    }
    const struct sched_event event = {.kind = SCHED_PLACE_DRAIN, .place = member->place};
    log_info("PLACE-DRAINS", "name=%s", member->name);
    member->draining = call;
    rpc_call_on_cancel(call, on_drain_cancelled, member);
    scheduler_event(scheduler, &event);
}

/* Moves every deadline by the time for which this process did not run (throttled, stopped, its machine moved elsewhere): heartbeats
 * of that time may lie unread in the sockets, so it proves no silence. */
static void forgive_own_stall(struct scheduler *scheduler, uint64_t now_us)
{
    uint64_t gap_us = scheduler->checked_us ? now_us - scheduler->checked_us : 0;
    uint64_t stalled_us = gap_us > 2 * CHECK_EVERY_US ? gap_us - CHECK_EVERY_US : 0;

    scheduler->checked_us = now_us;
    if (!stalled_us)
        return;
    if (stalled_us > STALL_LOGGED_US)
        log_warn("SCHEDULER-STALLED", "ms=%llu", (unsigned long long)stalled_us / 1000);
    scheduler->started_us = MIN(scheduler->started_us + stalled_us, now_us);
    for (uint32_t i = 0; i < scheduler->member_count; i++) {
        scheduler->members[i].heard_us = MIN(scheduler->members[i].heard_us + stalled_us, now_us);
        scheduler->members[i].turned_us = MIN(scheduler->members[i].turned_us + stalled_us, now_us);
    }
}

/* A worker that beats while its tensor thread does not turn. What a step has for it may take long, and the s-part says when it is too
 * long: all that is decided here is what no step waits for. */
static bool tensors_hang(const struct scheduler *scheduler, const struct member *member)
{
    return member->up && member->last.compute_turns &&
           member->heard_us - member->turned_us > scheduler->settings.worker_timeout_ms * 1000ull;
}

static bool others_up(const struct scheduler *scheduler, const struct member *member)
{
    for (uint32_t i = 0; i < scheduler->member_count; i++)
        if (&scheduler->members[i] != member && scheduler->members[i].up && scheduler->members[i].pages_total)
            return true;
    return false;
}

void members_answered(struct scheduler *scheduler, uint32_t place, bool lost)
{
    struct member *member = &scheduler->members[place];

    if (place == 0)
        return;
    member->losses = lost ? member->losses + 1 : 0;
    if (!member->up || !lost)
        return;
    if (tensors_hang(scheduler, member)) {
        tell_down(member, "its tensor thread hangs");
    } else if (member->losses >= LOSSES_MAX && others_up(scheduler, member)) {
        tell_down(member, "it loses its rows again and again");
        member->barred_until_us = clock_now_us() + LOSSES_BAR_US;
        member->losses = 0;
    }
}

/* The silent are dead, and those whose tensors hang; what nobody has claimed is freed. */
void members_check(struct scheduler *scheduler, uint64_t now_us)
{
    forgive_own_stall(scheduler, now_us);
    for (uint32_t i = 0; i < scheduler->member_count; i++) {
        struct member *member = &scheduler->members[i];
        if (member->place && tensors_hang(scheduler, member) && !in_flight_there(scheduler, member->place))
            tell_down(member, "its tensor thread hangs");
        clean_then_up(member); /* one that was barred */
        if (!member->registered || now_us - member->heard_us < scheduler->settings.worker_timeout_ms * 1000ull)
            continue;
        tell_down(member, "it was silent");
        drop_channel(member);
    }
    if (scheduler->held_count && now_us - scheduler->started_us > CLAIM_US)
        for (uint32_t place = 0; place < scheduler->member_count; place++)
            members_unclaim(scheduler, place);
}

void members_close(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->member_count; i++) {
        rpc_channel_close(scheduler->members[i].channel);
        scheduler->members[i].channel = NULL;
    }
}

// members.c: the s-part and the KV workers: who is there, who is dead, who leaves.
//
//     registered ──connected, reached──▶ cleaning ──▶ up ──▶ down: the connection broke, it was silent, its tensor thread hangs, or the s-part
//         ▲                                                     │                                                 does not reach its tensors
//         └─────────────────── it registers anew ◀──────────────┘
//
// A member is up when it has registered, the connection to it stands, the s-part reaches its tensors, and what it holds that nobody needs
// has been freed; only then the core hears of it. All that it held when it goes down is rebuilt elsewhere.
//
// Stages of a pipeline (stages.c) come up together:
//
//     all layers are there, all stages reached ──Join──▶ every stage has given up and forgotten what was of the term before
//         ──▶ up: S_PART_UP, PLACE_UP of the local pool
//     a stage is gone, or refuses a step since it does not know the term ──▶ S_PART_DOWN: its steps are void and the local pool is empty,
//         until all have joined again
#include <stdlib.h>
#include <string.h>

#include "attend.pb-c.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "services/scheduler/scheduler.h"

// REACH_LIMIT_US: longer than the call that asks takes, whose end may not be heard of.
enum {
    LINK_US_GUESS = 200,
    WINDOW = 4096,
    STALL_LOGGED_US = 500000,
    REACH_LIMIT_US = 15000000,
    JOIN_TIMEOUT_MS = 15000,
    JOIN_AGAIN_US = 200000,
    JOIN_AGAIN_MOST_US = 1000000,
};

static uint64_t timeout_us(const struct scheduler *scheduler) { return scheduler->settings.worker_timeout_ms * UINT64_C(1000); }

static bool is_s_part(const struct member *member) { return member->place->kind == SCHED_LOCAL_POOL; }

// Counts through all members: those of the places, then the later stages of the s-part.
static uint32_t member_count(const struct scheduler *scheduler) { return scheduler->places.count + SCHED_STAGES_MAX - 1; }

static struct member *member_at(struct scheduler *scheduler, uint32_t index)
{
    return index < scheduler->places.count ? scheduler->places.of[index].member
                                           : scheduler->s_part.stages[index - scheduler->places.count + 1].member;
}

// --- the term of a pipeline

// Ends it: none of the stages is up.
static void end_term(struct scheduler *scheduler)
{
    struct s_part *s_part = &scheduler->s_part;

    s_part->join.term++; // answers to calls of the term before say nothing any more
    s_part->join.under_way = false;
    s_part->join.wait_us = s_part->join.wait_us ? MIN(2 * s_part->join.wait_us, (uint64_t)JOIN_AGAIN_MOST_US) : JOIN_AGAIN_US;
    s_part->join.from_us = clock_now_us() + s_part->join.wait_us;
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++) {
        struct stage *stage = &s_part->stages[i];
        stage->joined = stage->member->up = false;
        if (stage->asked && stage->member->channel)
            rpc_cancel(stage->member->channel, stage->join_call);
    }
}

// --- up and down

static void tell_core_of_place(const struct place *place)
{
    const struct sched_event event = {.kind = SCHED_PLACE_UP,
                                      .place_up = {
                                          .place = place->index,
                                          .pages_total = (uint32_t)MIN(place->pages_total, UINT32_MAX),
                                          .bytes_per_second = (uint64_t)place->bytes_per_second,
                                          .link_us = place->kind == SCHED_LOCAL_POOL ? 0 : LINK_US_GUESS,
                                          .prefill_pair_us = place->pair_us,
                                          .kind = place->kind,
                                          .shares_cores = place->shares_cores,
                                          .accepts_moves = place->hands_over,
                                      }};
    events_add(&place->member->scheduler->events, &event);
}

static bool is_connected(const struct member *member)
{
    return member->registered && member->channel && rpc_channel_is_up(member->channel);
}

// Another s-part need not reach what the one before it did.
static void forget_reached(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        scheduler->places.of[i].reach.known = false;
        scheduler->places.of[i].reach.again_us = 0;
    }
}

static void go_up(struct member *member)
{
    struct place *place = member->place;

    if (!member->scheduler->core.sched || member->up || !is_connected(member))
        return;                               // without a core: it is told once the s-part has said what the model is
    events_flush(&member->scheduler->events); // what sequences wait for is known now, and nothing changes before the events below
    member->up = true;
    member->stay++;
    view_note(&member->scheduler->view,
              member->stay > 1 ? FASTDECODE__EVENT_KIND__EVENT_KIND_BACK : FASTDECODE__EVENT_KIND__EVENT_KIND_JOINED, member->name,
              "");
    log_info("PLACE-UP", "name=%s place=%u pages=%llu", member->name, place->index, (unsigned long long)place->pages_total);
    if (is_s_part(member)) {
        if (!member->scheduler->claims.from_us)
            member->scheduler->claims.from_us = clock_now_us();
        forget_reached(member->scheduler);
        stages_tell_core(member->scheduler);
    }
    if (place->pages_total)
        tell_core_of_place(place);
    claims_reclaim(member->scheduler, place->index);
}

// Voids what the member is computing and what it holds.
static void go_down(struct member *member, const char *why)
{
    struct scheduler *scheduler = member->scheduler;
    struct place *place = member->place;
    struct sched_event event = {.kind = SCHED_PLACE_DOWN, .place = place->index};

    if (!member->up) {
        if (is_s_part(member) && scheduler->s_part.join.under_way)
            end_term(scheduler);
        return;
    }
    member->up = false;
    place->member->lost += !place->drain.done; // a pipeline's stages count together
    view_note(&scheduler->view,
              place->drain.done ? FASTDECODE__EVENT_KIND__EVENT_KIND_LEFT : FASTDECODE__EVENT_KIND__EVENT_KIND_DOWN, member->name,
              place->drain.done ? "" : why);
    log_at(place->drain.done ? LOG_INFO : LOG_WARN, "PLACE-DOWN", "name=%s place=%u why=\"%s\"", member->name, place->index,
           place->drain.done ? "it was drained, and has left" : why);
    if (is_s_part(member))
        end_term(scheduler); // before anything that may call all stages
    places_down(place);
    if (is_s_part(member)) {
        event.kind = SCHED_S_PART_DOWN;
        flights_void(&scheduler->flights, scheduler->s_part.member.channel);
    } else {
        places_exclude(scheduler, place);
    }
    events_add(&scheduler->events, &event);
    if (place->drain.done) // it ended as it was asked to: nobody is to be looked for at its address
        members_disconnect(member);
}

void members_down(struct member *member, const char *why)
{
    member->registered = false;
    go_down(member, why);
}

void members_part_stages(struct scheduler *scheduler, const char *why) { go_down(&scheduler->s_part.member, why); }

bool members_is_gone(const struct member *member)
{
    return !member->registered && clock_now_us() - member->heard_us > timeout_us(member->scheduler);
}

// --- joining: every stage gives up and forgets what was of the term before

static void on_join_end(void *user, enum status status, const char *text)
{
    struct stage *stage = user;
    struct scheduler *scheduler = stage->member->scheduler;
    struct s_part *s_part = &scheduler->s_part;
    const struct stage *stages[SCHED_STAGES_MAX];
    bool all = true;

    stage->asked = false;
    if (!s_part->join.under_way)
        return; // end_term() has ended it
    if (status) {
        if (repeat_is_due(&s_part->join.failures, clock_now_us(), text))
            log_warn("STAGE-NOT-JOINED", "name=%s status=%s why=\"%s\" times=%u", stage->member->name, status_name(status), text,
                     s_part->join.failures.count);
        if (status == STATUS_FAILED_PRECONDITION)
            s_part->join.term *= 2; // it knows a later term, however much later
        end_term(scheduler);
        return;
    }
    stage->joined = true;
    const uint32_t count = stages_list(s_part, stages);
    for (uint32_t i = 0; i < count; i++)
        all = all && stages[i]->joined;
    if (!all)
        return;
    s_part->join.under_way = false;
    s_part->join.failures = (struct repeat){0};
    stages_take_pool(scheduler);
    for (uint32_t i = 0; i < count; i++) {
        struct member *member = stages[i]->member;
        log_info("STAGE-UP", "stage=%u name=%s layers=%u:%u", i, member->name, stages[i]->first_layer,
                 stages[i]->first_layer + stages[i]->layer_count);
        if (member == &s_part->member)
            continue;
        member->up = true;
        member->stay++;
    }
    go_up(&s_part->member);
}

static enum status send_join(struct stage *stage, uint32_t index, const struct stage *previous, const struct stage *next)
{
    static const struct rpc_callbacks callbacks = {.on_end = on_join_end};
    const struct rpc_options options = {.timeout_ms = JOIN_TIMEOUT_MS};
    struct scheduler *scheduler = stage->member->scheduler;
    Fastdecode__JoinRequest request = FASTDECODE__JOIN_REQUEST__INIT;
    struct error error;

    request.scheduler_incarnation = scheduler->host.incarnation;
    request.term = scheduler->s_part.join.term;
    request.stage = index;
    request.previous_incarnation = previous ? previous->member->incarnation : 0;
    if (next) {
        request.next_address = next->member->tensor_address;
        request.next_incarnation = next->member->incarnation;
    }
    const enum status status = rpc_call_start(stage->member->channel, &fastdecode__spart__descriptor, "Join", &request.base,
                                              &options, &callbacks, stage, &stage->join_call, &error);
    stage->asked = !status;
    return status;
}

// Puts the stages together if all layers are there; the s-part is up once they have answered. Does nothing if they are together, or are
// being put together.
static void join_stages(struct scheduler *scheduler)
{
    struct s_part *s_part = &scheduler->s_part;
    const struct stage *stages[SCHED_STAGES_MAX];
    const uint32_t count = stages_list(s_part, stages);

    if (s_part->member.up || s_part->join.under_way || clock_now_us() < s_part->join.from_us || !scheduler->core.sched ||
        !stages_are_complete(scheduler))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (stages[i]->asked || !stages[i]->member->channel || !rpc_channel_is_up(stages[i]->member->channel))
            return;
    s_part->join.term++;
    s_part->join.under_way = true;
    s_part->forget.count = s_part->forget.asked = 0; // they will know none of them
    for (uint32_t i = 0; i < count; i++) {
        ((struct stage *)stages[i])->joined = false;
        if (send_join((struct stage *)stages[i], i, i ? stages[i - 1] : NULL, i + 1 < count ? stages[i + 1] : NULL)) {
            end_term(scheduler);
            return;
        }
    }
}

// --- whether the s-part reaches a worker's tensors: it is asked before a worker comes up, and where a step loses all rows

static void say_unreachable(struct member *member)
{
    struct place *place = member->place;

    if (repeat_is_due(&place->reach.failures, clock_now_us(), ""))
        log_warn(
            "PLACE-UNREACHABLE",
            "name=%s address=%s what=\"the s-part cannot connect to the worker's tensor socket, so no KV is put there: check the network "
            "policy or firewall between them, and the worker's --advertise-tensors; it is tried again and again\" times=%u",
            member->name, member->tensor_address, place->reach.failures.count);
}

static void take_reached(struct place *place)
{
    struct member *member = place->member;

    if (place->reach.wait_us)
        log_info("PLACE-REACHED", "name=%s address=%s", member->name, member->tensor_address);
    place->reach.known = true;
    place->reach.wait_us = 0;
    place->reach.again_us = member->up ? clock_now_us() + REACH_FIRST_US : 0; // up: rows are lost for another reason
    place->reach.failures = (struct repeat){0};
    members_clean_then_up(member);
}

static void on_reach_end(void *user, enum status status, const char *text)
{
    struct place *place = user;
    struct member *member = place->member;

    (void)text;
    if (place->reach.known || place->reach.asked_id != member->clean_id || !member->registered) { // the question is void
        place->reach.again_us = 0;
        members_clean_then_up(member);
    } else if (status == STATUS_UNAVAILABLE) { // it is connecting
        place->reach.again_us = clock_now_us() + CHECK_EVERY_US;
    } else if (status != STATUS_NOT_FOUND) { // yes; or it does not say, as one of an older release
        take_reached(place);
    } else {
        place->reach.wait_us = place->reach.wait_us ? MIN(2 * place->reach.wait_us, (uint64_t)REACH_MOST_US) : REACH_FIRST_US;
        place->reach.again_us = clock_now_us() + place->reach.wait_us;
        if (member->up)
            members_down(member, "the s-part does not reach its tensors"); // its process may be gone: then this says all
        else
            say_unreachable(member);
    }
}

// Asks if it is not known, and returns whether the place may be used meanwhile as far as is known.
static bool check_reached(struct member *member)
{
    struct scheduler *scheduler = member->scheduler;
    struct place *place = member->place;
    Fastdecode__ReachRequest request = FASTDECODE__REACH_REQUEST__INIT;
    Fastdecode__Place asked = FASTDECODE__PLACE__INIT;
    const uint64_t now_us = clock_now_us();

    if (place->kind != SCHED_KV_WORKER || place->reach.known || !scheduler->s_part.member.up || !member->tensor_address[0])
        return true;
    if (now_us < place->reach.again_us)
        return false;
    asked.worker = place->index;
    asked.incarnation = member->incarnation;
    asked.tensor_address = member->tensor_address;
    asked.kind = FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER;
    request.place = &asked;
    place->reach.asked_id = member->clean_id;
    place->reach.again_us = now_us + REACH_LIMIT_US;
    if (!stages_call(scheduler, "Reach", &request.base, on_reach_end, place, NULL))
        place->reach.again_us = now_us + CHECK_EVERY_US;
    return false;
}

const struct member *members_unreachable(const struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        if (scheduler->places.of[i].reach.wait_us && !members_is_gone(scheduler->places.of[i].member))
            return scheduler->places.of[i].member;
    return NULL;
}

// --- cleaning: what a member holds and nobody needs is freed before it is up
//
// A worker is told at the same time which steps are over, so that nothing of them comes after that. What has come since it listed what it holds is
// not in the list: then it registers once more.

struct pending_clean {
    struct member *member;
    uint32_t clean_id;
    bool has_more; // than was in the list
};

static void end_cleaning(struct member *member, bool ok)
{
    claims_end_stale(&member->scheduler->claims, member->place->index, ok);
    member->cleaning = false;
    if (ok)
        go_up(member); // else members_check() cleans it again
}

static void on_clean_reply(void *user, struct rpc_message *message)
{
    struct pending_clean *clean = user;
    const Fastdecode__FreeReply *reply = rpc_message_unpack(message, &fastdecode__free_reply__descriptor);

    clean->has_more = reply && reply->steps_begun != clean->member->steps_begun;
}

static void on_clean_end(void *user, enum status status, const char *text)
{
    struct pending_clean *clean = user;
    struct repeat *failures = &clean->member->place->failed_cleans;

    if (!status)
        *failures = (struct repeat){0};
    else if (repeat_is_due(failures, clock_now_us(), text))
        log_warn("CLEAN-FAILED", "name=%s status=%s why=\"%s\" times=%u", clean->member->name, status_name(status), text,
                 failures->count);
    if (clean->member->clean_id == clean->clean_id) { // else it has registered anew, and is cleaned anew
        if (!status && clean->has_more)
            clean->member->registered = false; // its next heartbeat is answered that it is to register
        end_cleaning(clean->member, status == STATUS_OK && !clean->has_more);
    }
    free(clean);
}

static bool clean_member(struct member *member, const uint64_t *sequences, uint32_t count)
{
    struct pending_clean *clean = malloc(sizeof *clean);

    if (!clean)
        return false;
    *clean = (struct pending_clean){.member = member, .clean_id = member->clean_id};
    if (places_ask_free(member->place, sequences, count, false, on_clean_reply, on_clean_end, clean, NULL))
        return true;
    free(clean);
    return false;
}

void members_clean_then_up(struct member *member)
{
    struct scheduler *scheduler = member->scheduler;
    uint32_t count;
    uint64_t *stale;

    if (is_s_part(member) && stages_are_several(&scheduler->s_part, scheduler->model.kv.layers)) {
        join_stages(scheduler);
        return;
    }
    if (!is_connected(member) || member->up || member->cleaning || clock_now_us() < member->place->losses.barred_until_us ||
        !check_reached(member) || claims_mark_stale(scheduler, member->place->index, &stale, &count))
        return;
    member->cleaning = true;
    member->clean_id++;
    if (count == 0 && is_s_part(member))
        end_cleaning(member, true);
    else if (!clean_member(member, stale, count))
        end_cleaning(member, false);
    free(stale);
}

// --- connections

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct member *member = user;

    if (peer->incarnation == member->incarnation)
        members_clean_then_up(member);
    else
        log_warn("MEMBER-OTHER", "name=%s", member->name); // it registers by itself
}

static void on_down(void *user, const char *why) { members_down(user, why); }

enum status members_connect(struct member *member, struct error *error)
{
    const struct rpc_channel_config config = {
        .address = member->control_address,
        .peer = "a service that has registered (its --advertise)",
        .hello = {.service = "scheduler", .incarnation = member->scheduler->host.incarnation},
        .peer_roles = member->place->kind == SCHED_KV_WORKER ? RPC_IS_KV_WORKER : RPC_IS_S_PART,
        .window = WINDOW,
        .on_up = on_up,
        .on_down = on_down,
        .user = member,
    };

    if (!member->channel)
        return rpc_channel_open(member->scheduler->host.loop, &config, &member->channel, error);
    members_clean_then_up(member);
    return STATUS_OK;
}

static void close_channel(void *arg) { rpc_channel_close(arg); }

// The channel may be the one whose callback runs, so the loop closes it a moment later.
void members_disconnect(struct member *member)
{
    if (member->channel)
        rpc_loop_post(member->scheduler->host.loop, close_channel, member->channel);
    member->channel = NULL;
}

void members_close(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < member_count(scheduler); i++) {
        struct member *member = member_at(scheduler, i);
        rpc_channel_close(member->channel);
        member->channel = NULL;
    }
}

// --- heartbeats

static struct member *find_incarnation(struct scheduler *scheduler, const char *name, uint64_t incarnation)
{
    for (uint32_t i = 0; i < member_count(scheduler); i++) {
        struct member *member = member_at(scheduler, i);
        if (!strcmp(member->name, name) && member->incarnation == incarnation)
            return member;
    }
    return NULL;
}

void members_heartbeat_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__HeartbeatRequest *request = rpc_call_unpack(call, &fastdecode__heartbeat_request__descriptor);
    Fastdecode__HeartbeatReply reply = FASTDECODE__HEARTBEAT_REPLY__INIT;
    struct stages_message stages;

    if (!request || !member_caller_is(call, NULL, request->incarnation, request->incarnation))
        return;
    struct member *member = find_incarnation(scheduler, request->name, request->incarnation);
    // A worker without pages waits for the shape of the model's KV: it asks by registering again, once the model is certain.
    bool waits_for_shape = member && !is_s_part(member) && !member->place->pages_total;
    if (!member || (!member->registered && (!waits_for_shape || scheduler->core.sched))) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "register again");
        return;
    }
    member->heard_us = clock_now_us();
    if (member->last.compute_turns != request->compute_turns)
        member->turned_us = member->heard_us;
    member->last = *request;
    member->last.name = NULL; // it lies in the call
    reply.scheduler_incarnation = scheduler->host.incarnation;
    reply.s_part_incarnation = scheduler->s_part.member.incarnation;
    stages_tell(scheduler, &stages);
    reply.n_stages = stages.count;
    reply.stages = stages.pointers;
    rpc_call_reply(call, &reply.base);
}

// Moves every deadline by the time for which this process did not run: heartbeats of that time may lie unread in the sockets, so it
// proves no silence.
static void forgive_own_stall(struct scheduler *scheduler, uint64_t now_us)
{
    uint64_t stalled_us = clock_stall_us(&scheduler->host.checked_us, now_us, CHECK_EVERY_US);

    if (!stalled_us)
        return;
    if (stalled_us > STALL_LOGGED_US)
        log_warn("SCHEDULER-STALLED", "ms=%llu", (unsigned long long)stalled_us / 1000);
    scheduler->claims.from_us = scheduler->claims.from_us ? MIN(scheduler->claims.from_us + stalled_us, now_us) : 0;
    for (uint32_t i = 0; i < member_count(scheduler); i++) {
        struct member *member = member_at(scheduler, i);
        member->heard_us = MIN(member->heard_us + stalled_us, now_us);
        member->turned_us = MIN(member->turned_us + stalled_us, now_us);
    }
}

// Whether a worker beats while its tensor thread does not turn. That may be at work for a step: then the s-part says when it takes too
// long.
static bool tensors_hang(const struct member *member)
{
    return member->up && member->last.compute_turns && member->heard_us - member->turned_us > timeout_us(member->scheduler);
}

static bool others_up(const struct scheduler *scheduler, const struct place *place)
{
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        if (&scheduler->places.of[i] != place && scheduler->places.of[i].member->up && scheduler->places.of[i].pages_total)
            return true;
    return false;
}

void members_answered(struct scheduler *scheduler, uint32_t place_index, bool lost)
{
    struct place *place = &scheduler->places.of[place_index];
    struct member *member = place->member;
    uint64_t now_us = clock_now_us();

    if (place->kind != SCHED_KV_WORKER)
        return;
    if (!lost) {
        place->losses.count = 0;
        place->reach.again_us = place->reach.known ? 0 : place->reach.again_us;
    }
    if (!lost || !member->up)
        return;
    if (now_us >= place->losses.last_us + LOSS_EVERY_US) {
        place->losses.count++;
        place->losses.last_us = now_us;
    }
    if (tensors_hang(member)) {
        members_down(member, "its tensor thread hangs");
    } else if (place->losses.count >= LOSSES_MAX && others_up(scheduler, place)) {
        members_down(member, "it loses its rows again and again");
        place->losses.barred_until_us = now_us + LOSSES_BAR_US;
        place->losses.count = 0;
    } else {
        place->reach.known = false;
        (void)check_reached(member);
    }
}

void members_check(struct scheduler *scheduler, uint64_t now_us)
{
    forgive_own_stall(scheduler, now_us);
    for (uint32_t i = 0; i < member_count(scheduler); i++) {
        struct member *member = member_at(scheduler, i);
        if (!is_s_part(member) && tensors_hang(member) && !flights_use_place(&scheduler->flights, i))
            members_down(member, "its tensor thread hangs");
        if (member->up)
            (void)check_reached(member);
        members_clean_then_up(member); // one that was barred, is not reached, or could not be cleaned
        if (now_us - member->heard_us < timeout_us(scheduler))
            continue;
        if (member->registered)
            members_down(member, "it was silent");
        members_disconnect(member); // one that comes back registers again
    }
    if (scheduler->claims.held_count && !claims_may_come(&scheduler->claims, now_us))
        for (uint32_t i = 0; i < scheduler->places.count; i++)
            claims_drop(scheduler, i);
}

// --- leaving

static void on_drain_cancelled(void *user)
{
    struct place *place = user;
    place->drain.call = NULL;
}

void members_drain_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__DrainRequest *request = rpc_call_unpack(call, &fastdecode__drain_request__descriptor);
    Fastdecode__DrainReply reply = FASTDECODE__DRAIN_REPLY__INIT;

    if (!request || !member_caller_is(call, NULL, request->incarnation, request->incarnation))
        return;
    struct member *member = find_incarnation(scheduler, request->name, request->incarnation);
    if (!member || !member->up || is_s_part(member) || member->place->drain.call) {
        rpc_call_reply(call, &reply.base);
        return;
    }
    const struct sched_event event = {.kind = SCHED_PLACE_DRAIN, .place = member->place->index};
    log_info("PLACE-DRAINS", "name=%s", member->name);
    view_note(&scheduler->view, FASTDECODE__EVENT_KIND__EVENT_KIND_DRAINS, member->name, "");
    member->place->drain.call = call;
    rpc_call_on_cancel(call, on_drain_cancelled, member->place);
    events_add(&scheduler->events, &event);
}

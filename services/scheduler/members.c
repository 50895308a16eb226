// members.c: the s-part and the KV workers: who is there, who is dead, who leaves.
//
//     registered ──connected, reached──▶ cleaning ──▶ up ──▶ down: the connection broke, it was silent, its tensor thread hangs, or the s-part
//         ▲                                                     │                                                 does not reach its tensors
//         └─────────────────── it registers anew ◀──────────────┘
//
// A worker keeps its place by its name, over restarts. A member is up when it has registered, the connection to it stands, the s-part reaches
// its tensors, and what it holds that nobody needs has been freed; only then the core hears of it. What it held when it goes down is rebuilt
// elsewhere.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "services/scheduler/names.h"
#include "services/scheduler/scheduler.h"

// REACH_LIMIT_US: longer than the call that asks takes, whose end may not be heard of.
enum { LINK_US_GUESS = 200, WINDOW = 4096, STALL_LOGGED_US = 500000, REACH_LIMIT_US = 15000000 };

static uint64_t timeout_us(const struct scheduler *scheduler) { return scheduler->settings.worker_timeout_ms * UINT64_C(1000); }

static bool is_s_part(const struct member *member) { return member->place->kind == SCHED_LOCAL_POOL; }

// Counts through all members: those of the places, then the later stages of the s-part.
static uint32_t member_count(const struct scheduler *scheduler) { return scheduler->place_count + SCHED_STAGES_MAX - 1; }

static struct member *member_at(struct scheduler *scheduler, uint32_t index)
{
    return index < scheduler->place_count ? scheduler->places[index].member
                                          : scheduler->s_part.stages[index - scheduler->place_count + 1].member;
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
                                          .takes_extents = stages_take_extents(&place->member->scheduler->s_part, place->kind),
                                      }};
    scheduler_event(place->member->scheduler, &event);
}

static bool is_connected(const struct member *member)
{
    return member->registered && member->channel && rpc_channel_is_up(member->channel);
}

// Another s-part need not reach what the one before it did.
static void forget_reached(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->place_count; i++) {
        scheduler->places[i].reached = false;
        scheduler->places[i].reach_again_us = 0;
    }
}

static void go_up(struct member *member)
{
    struct place *place = member->place;

    if (!member->scheduler->core || member->up || !is_connected(member))
        return;                                 // without a core: it is told once the s-part has said what the model is
    member->scheduler->tick(member->scheduler); // what sequences wait for is known now, and nothing changes before the events below
    member->up = true;
    member->stay++;
    view_note(member->scheduler,
              member->stay > 1 ? FASTDECODE__EVENT_KIND__EVENT_KIND_BACK : FASTDECODE__EVENT_KIND__EVENT_KIND_JOINED, member->name,
              "");
    log_info("PLACE-UP", "name=%s place=%u pages=%llu", member->name, place->index, (unsigned long long)place->pages_total);
    if (is_s_part(member)) {
        if (!member->scheduler->claims_from_us)
            member->scheduler->claims_from_us = clock_now_us();
        forget_reached(member->scheduler);
        stages_tell_core(member->scheduler);
    }
    if (place->pages_total)
        tell_core_of_place(place);
    claims_reclaim(member->scheduler, place->index);
}

// What the member is computing and what it holds is void.
static void go_down(struct member *member, const char *why)
{
    struct scheduler *scheduler = member->scheduler;
    struct place *place = member->place;
    struct sched_event event = {.kind = SCHED_PLACE_DOWN, .place = place->index};

    if (!member->up) {
        if (is_s_part(member) && scheduler->s_part.joining)
            stages_void(scheduler);
        return;
    }
    member->up = false;
    place->member->lost += !place->drained; // a pipeline's stages count together
    view_note(scheduler, place->drained ? FASTDECODE__EVENT_KIND__EVENT_KIND_LEFT : FASTDECODE__EVENT_KIND__EVENT_KIND_DOWN,
              member->name, place->drained ? "" : why);
    log_warn("PLACE-DOWN", "name=%s place=%u why=\"%s\"", member->name, place->index, why);
    if (is_s_part(member))
        stages_void(scheduler); // before anything that may call all stages
    places_down(place);
    if (is_s_part(member)) {
        event.kind = SCHED_S_PART_DOWN;
        flights_void(scheduler);
    } else {
        places_exclude(scheduler, place);
    }
    scheduler_event(scheduler, &event);
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

// --- whether the s-part reaches a worker's tensors: it is asked before a worker comes up, and where a step loses all rows

static void say_unreachable(struct member *member)
{
    struct place *place = member->place;

    if (repeat_is_due(&place->unreachable, clock_now_us(), ""))
        log_warn(
            "PLACE-UNREACHABLE",
            "name=%s address=%s what=\"the s-part cannot connect to the worker's tensor socket, so no KV is put there: check the network "
            "policy or firewall between them, and the worker's --advertise-tensors; it is tried again and again\" times=%u",
            member->name, member->tensor_address, place->unreachable.count);
}

static void take_reached(struct place *place)
{
    struct member *member = place->member;

    if (place->reach_wait_us)
        log_info("PLACE-REACHED", "name=%s address=%s", member->name, member->tensor_address);
    place->reached = true;
    place->reach_wait_us = 0;
    place->reach_again_us = member->up ? clock_now_us() + REACH_FIRST_US : 0; // up: rows are lost for another reason
    place->unreachable = (struct repeat){0};
    members_clean_then_up(member);
}

static void on_reach_end(void *user, enum status status, const char *text)
{
    struct place *place = user;
    struct member *member = place->member;

    (void)text;
    if (place->reached || place->reach_id != member->clean_id || !member->registered) { // the question is void
        place->reach_again_us = 0;
        members_clean_then_up(member);
    } else if (status == STATUS_UNAVAILABLE) { // it is connecting
        place->reach_again_us = clock_now_us() + CHECK_EVERY_US;
    } else if (status != STATUS_NOT_FOUND) { // yes; or it does not say, as one of an older release
        take_reached(place);
    } else {
        place->reach_wait_us = place->reach_wait_us ? MIN(2 * place->reach_wait_us, (uint64_t)REACH_MOST_US) : REACH_FIRST_US;
        place->reach_again_us = clock_now_us() + place->reach_wait_us;
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

    if (place->kind != SCHED_KV_WORKER || place->reached || !scheduler->s_part.member.up || !member->tensor_address[0])
        return true;
    if (now_us < place->reach_again_us)
        return false;
    asked.worker = place->index;
    asked.incarnation = member->incarnation;
    asked.tensor_address = member->tensor_address;
    asked.kind = FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER;
    request.place = &asked;
    place->reach_id = member->clean_id;
    place->reach_again_us = now_us + REACH_LIMIT_US;
    if (!stages_call(scheduler, "Reach", &request.base, on_reach_end, place, NULL))
        place->reach_again_us = now_us + CHECK_EVERY_US;
    return false;
}

const struct member *members_unreachable(const struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->place_count; i++)
        if (scheduler->places[i].reach_wait_us && !members_is_gone(scheduler->places[i].member))
            return scheduler->places[i].member;
    return NULL;
}

static void on_cleaned(struct member *member, bool ok)
{
    claims_end_stale(member->scheduler, member->place->index, ok);
    member->cleaning = false;
    if (ok)
        go_up(member); // else members_check() cleans it again
}

void members_clean_then_up(struct member *member)
{
    struct scheduler *scheduler = member->scheduler;
    uint32_t count;
    uint64_t *stale;

    if (is_s_part(member) && stages_are_several(&scheduler->s_part, scheduler->kv.layers)) {
        stages_join(scheduler, go_up);
        return;
    }
    if (!is_connected(member) || member->up || member->cleaning || clock_now_us() < member->place->barred_until_us ||
        !check_reached(member) || claims_mark_stale(scheduler, member->place->index, &stale, &count))
        return;
    member->cleaning = true;
    member->clean_id++;
    if (count == 0)
        on_cleaned(member, true);
    else if (!places_clean(member, stale, count, on_cleaned))
        on_cleaned(member, false);
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

void members_connect(struct member *member)
{
    const struct rpc_channel_config config = {
        .address = member->control_address,
        .peer = "a service that has registered (its --advertise)",
        .hello = {.service = "scheduler", .incarnation = member->scheduler->incarnation},
        .peer_roles = member->place->kind == SCHED_KV_WORKER ? RPC_IS_KV_WORKER : RPC_IS_S_PART,
        .window = WINDOW,
        .on_up = on_up,
        .on_down = on_down,
        .user = member,
    };
    struct error error;

    if (member->channel)
        members_clean_then_up(member);
    else if (rpc_channel_open(member->scheduler->loop, &config, &member->channel, &error))
        log_warn("MEMBER-UNREACHABLE", "name=%s error=\"%s\"", member->name, error.text);
}

static void close_channel(void *arg) { rpc_channel_close(arg); }

// The channel may be the one whose callback runs, so the loop closes it a moment later.
void members_disconnect(struct member *member)
{
    if (member->channel)
        rpc_loop_post(member->scheduler->loop, close_channel, member->channel);
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

// --- names

// The place may become another's: its worker is gone, and nothing that the core or a call under way knows of is there.
static bool is_forgettable(const struct scheduler *scheduler, const struct place *place, uint64_t now_us)
{
    const struct member *member = place->member;
    struct sched_place_info info = {0};

    if (member->registered || member->up || member->cleaning || place->draining ||
        now_us - member->heard_us <= timeout_us(scheduler))
        return false;
    if (scheduler->core)
        sched_get_place(scheduler->core, place->index, &info);
    return !info.up && info.sequences == 0 && info.pages_used == 0 && !flights_use_place(scheduler, place->index);
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

struct member *members_find(struct scheduler *scheduler, const char *name)
{
    for (uint32_t i = 0; i < scheduler->place_count; i++)
        if (scheduler->places[i].kind == SCHED_KV_WORKER && !strcmp(scheduler->places[i].worker.name, name))
            return &scheduler->places[i].worker;
    return NULL;
}

struct member *members_find_or_add(struct scheduler *scheduler, const char *name)
{
    struct member *known = members_find(scheduler, name);
    const uint32_t count = scheduler->place_count;
    const uint64_t now_us = clock_now_us();
    struct names_place places[SCHED_PLACES_MAX];

    if (known)
        return known;
    for (uint32_t i = 0; i < count; i++) {
        const struct place *place = &scheduler->places[i];
        places[i] = (struct names_place){.is_free = place->kind == SCHED_KV_WORKER && is_forgettable(scheduler, place, now_us),
                                         .heard_us = place->member->heard_us};
    }
    const uint32_t index = names_choose(places, count, SCHED_PLACES_MAX, now_us);
    if (index == NAMES_NO_PLACE)
        return NULL;
    struct place *place = &scheduler->places[index];
    if (index == count) {
        scheduler->place_count++;
    } else {
        log_info("PLACE-REUSED", "place=%u was=%s is=%s", index, place->worker.name, name);
        members_disconnect(&place->worker);
    }
    return new_worker(scheduler, place, index);
}

static struct member *find_incarnation(struct scheduler *scheduler, const char *name, uint64_t incarnation)
{
    for (uint32_t i = 0; i < member_count(scheduler); i++) {
        struct member *member = member_at(scheduler, i);
        if (!strcmp(member->name, name) && member->incarnation == incarnation)
            return member;
    }
    return NULL;
}

// --- heartbeats

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
    if (!member || (!member->registered && (!waits_for_shape || scheduler->core))) {
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "register again");
        return;
    }
    member->heard_us = clock_now_us();
    if (member->last.compute_turns != request->compute_turns)
        member->turned_us = member->heard_us;
    member->last = *request;
    member->last.name = NULL; // it lies in the call
    reply.scheduler_incarnation = scheduler->incarnation;
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
    uint64_t stalled_us = clock_stall_us(&scheduler->checked_us, now_us, CHECK_EVERY_US);

    if (!stalled_us)
        return;
    if (stalled_us > STALL_LOGGED_US)
        log_warn("SCHEDULER-STALLED", "ms=%llu", (unsigned long long)stalled_us / 1000);
    scheduler->claims_from_us = scheduler->claims_from_us ? MIN(scheduler->claims_from_us + stalled_us, now_us) : 0;
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
    for (uint32_t i = 0; i < scheduler->place_count; i++)
        if (&scheduler->places[i] != place && scheduler->places[i].member->up && scheduler->places[i].pages_total)
            return true;
    return false;
}

void members_answered(struct scheduler *scheduler, uint32_t place_index, bool lost)
{
    struct place *place = &scheduler->places[place_index];
    struct member *member = place->member;
    uint64_t now_us = clock_now_us();

    if (place->kind != SCHED_KV_WORKER)
        return;
    if (!lost) {
        place->losses = 0;
        place->reach_again_us = place->reached ? 0 : place->reach_again_us;
    }
    if (!lost || !member->up)
        return;
    if (now_us >= place->lost_us + LOSS_EVERY_US) {
        place->losses++;
        place->lost_us = now_us;
    }
    if (tensors_hang(member)) {
        members_down(member, "its tensor thread hangs");
    } else if (place->losses >= LOSSES_MAX && others_up(scheduler, place)) {
        members_down(member, "it loses its rows again and again");
        place->barred_until_us = now_us + LOSSES_BAR_US;
        place->losses = 0;
    } else {
        place->reached = false;
        (void)check_reached(member);
    }
}

void members_check(struct scheduler *scheduler, uint64_t now_us)
{
    forgive_own_stall(scheduler, now_us);
    for (uint32_t i = 0; i < member_count(scheduler); i++) {
        struct member *member = member_at(scheduler, i);
        if (!is_s_part(member) && tensors_hang(member) && !flights_use_place(scheduler, i))
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
    if (scheduler->held_count && !scheduler_waits_for_claims(scheduler, now_us))
        for (uint32_t i = 0; i < scheduler->place_count; i++)
            claims_drop(scheduler, i);
}

// --- leaving

static void on_drain_cancelled(void *user)
{
    struct place *place = user;
    place->draining = NULL;
}

void members_drain_handler(struct rpc_call *call, void *user)
{
    struct scheduler *scheduler = user;
    Fastdecode__DrainRequest *request = rpc_call_unpack(call, &fastdecode__drain_request__descriptor);
    Fastdecode__DrainReply reply = FASTDECODE__DRAIN_REPLY__INIT;

    if (!request || !member_caller_is(call, NULL, request->incarnation, request->incarnation))
        return;
    struct member *member = find_incarnation(scheduler, request->name, request->incarnation);
    if (!member || !member->up || is_s_part(member) || member->place->draining) {
        rpc_call_reply(call, &reply.base);
        return;
    }
    const struct sched_event event = {.kind = SCHED_PLACE_DRAIN, .place = member->place->index};
    log_info("PLACE-DRAINS", "name=%s", member->name);
    view_note(scheduler, FASTDECODE__EVENT_KIND__EVENT_KIND_DRAINS, member->name, "");
    member->place->draining = call;
    rpc_call_on_cancel(call, on_drain_cancelled, member->place);
    scheduler_event(scheduler, &event);
}

// member.c: registers with the scheduler, sends heartbeats and drains.
#include "common/mesh/member.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/address.h"

enum { HEARTBEAT_US = 500000, CALL_TIMEOUT_MS = 2000, AGAIN_US = 200000, AGAIN_MOST_US = 1000000, DRAIN_TIMEOUT_MS = 60000 };
enum { UNANSWERED_MAX = 3 }; // turns of the timer in a row in which a call's deadline passed and no answer came
static const uint64_t CLOCKS_APART_MS = 86400000; // a day

struct member {
    struct rpc_loop *loop;
    struct rpc_channel *channel;
    struct member_config config;
    char name[MEMBER_NAME_BYTES];
    uint64_t timer, again_us;       // again_us: from a registration that was refused to the next one
    struct repeat refusals, losses; // of the scheduler to register it; of the connection, before it has been registered again
    struct repeat unknown;          // beats of one that is not registered, as it has no pages
    bool missed;                    // a call's deadline has passed since the timer's latest turn
    uint32_t unanswered;            // turns of the timer with such a deadline, since the scheduler last answered
    uint64_t answered_us;           // when it last did
    bool said_silent;               // the log says that it is silent, and not yet that it is back
    atomic_bool registered;         // read by any thread. relaxed: it orders nothing else
    bool was_registered;            // at least once since the start; from then on a later member of the same name takes precedence
    bool must_end;                  // its incarnation is too far ahead and cannot be changed any more
    void (*on_drained)(void *user);
    void *drain_user;
};

uint64_t member_incarnation(void) { return clock_wall_us() / 1000 << 20; }

bool member_is_ahead(uint64_t incarnation) { return incarnation >> 20 > clock_wall_us() / 1000 + CLOCKS_APART_MS; }

bool member_caller_is(struct rpc_call *call, const char *service, uint64_t incarnation, uint64_t newest)
{
    const struct rpc_peer *peer = rpc_call_peer(call);
    char quoted[80];

    if (service && strcmp(peer->service, service))
        rpc_call_fail(call, STATUS_PERMISSION_DENIED, "only the %s may call this; the peer said hello as %s", service,
                      log_quote(quoted, sizeof quoted, peer->service));
    else if (incarnation != peer->incarnation)
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "incarnation %llx in the message, %llx in the hello of the %s",
                      (unsigned long long)incarnation, (unsigned long long)peer->incarnation, service ? service : "caller");
    else if (incarnation > newest && member_is_ahead(incarnation))
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT, "incarnation %llx is more than a day in the future of this host's clock",
                      (unsigned long long)incarnation);
    else if (incarnation < newest)
        rpc_call_fail(call, STATUS_FAILED_PRECONDITION, "a %s that started later is known here", service ? service : "peer");
    else
        return true;
    return false;
}

static void set_registered(struct member *member, bool registered)
{
    atomic_store_explicit(&member->registered, registered, memory_order_relaxed);
}

bool member_is_registered(const struct member *member) { return atomic_load_explicit(&member->registered, memory_order_relaxed); }

static void on_timer(void *arg);

static void arm(struct member *member, uint64_t delay_us)
{
    rpc_loop_cancel_timer(member->loop, member->timer);
    member->timer = rpc_loop_timer(member->loop, delay_us, on_timer, member);
}

static void note_answer(struct member *member, enum status status)
{
    if (status == STATUS_DEADLINE_EXCEEDED)
        member->missed = true;
    if (status == STATUS_DEADLINE_EXCEEDED || status == STATUS_UNAVAILABLE || status == STATUS_CANCELLED)
        return;
    if (member->said_silent)
        log_info("SCHEDULER-BACK", "scheduler=%s silent_seconds=%.1f", member->config.scheduler,
                 (double)(clock_now_us() - member->answered_us) * 1e-6);
    member->missed = member->said_silent = false;
    member->unanswered = 0;
    member->answered_us = clock_now_us();
}

// Whether the scheduler is connected and silent: its host is gone, or it is stopped, and another one may be there. Counts turns, not deadlines:
// those of the time in which this process did not run all pass in one.
static bool is_silent(struct member *member)
{
    member->unanswered += member->missed;
    member->missed = false;
    const bool silent = member->unanswered >= UNANSWERED_MAX;
    if (silent && !member->said_silent)
        log_warn(
            "SCHEDULER-SILENT",
            "scheduler=%s seconds=%.1f what=\"the connection stands and nothing is answered: look at the network between the two "
            "hosts, and whether the scheduler's process is stopped; a new connection is tried again and again\"",
            member->config.scheduler, (double)(clock_now_us() - member->answered_us) * 1e-6);
    member->said_silent = member->said_silent || silent;
    return silent;
}

static void on_heartbeat_end(void *user, enum status status, const char *text)
{
    struct member *member = user;
    note_answer(member, status);
    if (status == STATUS_FAILED_PRECONDITION && member_is_registered(member)) {
        if (repeat_is_due(&member->unknown, clock_now_us(), text))
            log_info("MEMBER-UNKNOWN", "scheduler=%s why=\"%s\" times=%u", member->config.scheduler, text, member->unknown.count);
        set_registered(member, false);
        member->config.on_connect(member->config.user);
    }
}

static void tell_s_part(struct member *member, uint64_t incarnation, Fastdecode__Stage *const *stages, size_t count)
{
    if (member->config.on_s_part)
        member->config.on_s_part(member->config.user, incarnation);
    if (member->config.on_stages)
        member->config.on_stages(member->config.user, stages, count);
}

static void on_heartbeat_reply(void *user, struct rpc_message *message)
{
    const Fastdecode__HeartbeatReply *reply = rpc_message_unpack(message, &fastdecode__heartbeat_reply__descriptor);
    if (reply)
        tell_s_part(user, reply->s_part_incarnation, reply->stages, reply->n_stages);
}

static void on_timer(void *arg)
{
    struct member *member = arg;
    Fastdecode__HeartbeatRequest heartbeat = FASTDECODE__HEARTBEAT_REQUEST__INIT;
    const struct rpc_options options = {.timeout_ms = CALL_TIMEOUT_MS};
    const struct rpc_callbacks callbacks = {.on_message = on_heartbeat_reply, .on_end = on_heartbeat_end};
    struct error error;

    member->timer = 0;
    if (!rpc_channel_is_up(member->channel))
        return;                                     // on_up will start over
    if (is_silent(member) && !member->on_drained) { // a drain has a deadline of its own, and ends with the connection
        rpc_channel_reconnect(member->channel, "it has not answered for seconds");
        return;
    }
    arm(member, member_is_registered(member) ? HEARTBEAT_US : member->again_us);
    if (!member_is_registered(member)) {
        member->config.on_connect(member->config.user);
        return;
    }
    heartbeat.name = member->name;
    heartbeat.incarnation = member->config.hello.incarnation;
    member->config.fill_heartbeat(member->config.user, &heartbeat);
    if (rpc_call_start(member->channel, &fastdecode__cluster__descriptor, "Heartbeat", &heartbeat.base, &options, &callbacks,
                       member, NULL, &error))
        log_debug("HEARTBEAT-NOT-SENT", "why=\"%s\"", error.text);
}

static void on_up(void *user, const struct rpc_peer *peer)
{
    struct member *member = user;
    (void)peer;
    log_info("SCHEDULER-UP", "address=%s", member->config.scheduler);
    member->missed = false;
    member->unanswered = 0;
    member->answered_us = member->said_silent ? member->answered_us : clock_now_us(); // it has just shaken hands
    set_registered(member, false);
    member->again_us = AGAIN_US;
    arm(member, AGAIN_US);
    member->config.on_connect(member->config.user);
}

static void on_down(void *user, const char *why)
{
    struct member *member = user;
    if (repeat_is_due(&member->losses, clock_now_us(), why))
        log_warn("SCHEDULER-DOWN", "why=\"%s\" times=%u", why, member->losses.count);
    set_registered(member, false);
}

enum status member_check_name(const char *name, struct error *error)
{
    if (name[0] && strlen(name) < MEMBER_NAME_BYTES)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID_ARGUMENT, "--name is %zu bytes long, want 1 to %d", strlen(name), MEMBER_NAME_BYTES - 1);
}

enum status member_advertise(const struct member_address *address, char *out, size_t out_bytes, struct error *error)
{
    const char *at = address->given ? address->given : address->listening;

    if (!rpc_address_is_everywhere(at)) {
        snprintf(out, out_bytes, "%s", at);
        return STATUS_OK;
    }
    if (!address->given && rpc_own_address(at, address->scheduler, out, out_bytes))
        return STATUS_OK;
    return error_set(error, address->given ? STATUS_INVALID_ARGUMENT : STATUS_UNAVAILABLE,
                     "others cannot connect to %s%s: set their address with --%s", at,
                     address->given ? "" : ", and no network interface is up", address->option);
}

enum status member_open(struct rpc_loop *loop, const struct member_config *config, struct member **out, struct error *error)
{
    struct member *member = calloc(1, sizeof *member);
    enum status status;

    if (!member)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for membership");
    member->loop = loop;
    member->config = *config;
    member->again_us = AGAIN_US;
    snprintf(member->name, sizeof member->name, "%s", config->name);
    const struct rpc_channel_config channel = {
        .address = config->scheduler,
        .peer = "the scheduler (--scheduler)",
        .hello = config->hello,
        .peer_roles = RPC_IS_SCHEDULER,
        .on_up = on_up,
        .on_down = on_down,
        .user = member,
    };
    status = rpc_channel_open(loop, &channel, &member->channel, error);
    if (status) {
        free(member);
        return status;
    }
    *out = member;
    return STATUS_OK;
}

void member_close(struct member *member)
{
    if (!member)
        return;
    rpc_loop_cancel_timer(member->loop, member->timer);
    rpc_channel_close(member->channel);
    free(member);
}

// The next attempt waits longer. The scheduler's log and this one would be full of attempts otherwise.
static void note_refusal(struct member *member, const char *status, const char *why)
{
    member->again_us = MIN(2 * member->again_us, (uint64_t)AGAIN_MOST_US);
    if (repeat_is_due(&member->refusals, clock_now_us(), why))
        log_warn("REGISTER-REFUSED", "scheduler=%s status=%s why=\"%s\" times=%u", member->config.scheduler, status, why,
                 member->refusals.count);
}

// The scheduler names a newer member of that name or, of an s-part, with those layers. If this one has been registered before, the other
// one is later, and this one waits until it is gone. If it has not, it is the later one itself; its clock is behind, or it has waited for the
// other one's end. If it names an older one, this one's number is of a clock that was days ahead: peers know it by that number once it has
// been registered, so only another start gives it a right one.
static void take_refusal(struct member *member, uint64_t newest)
{
    const bool ahead = newest < member->config.hello.incarnation;

    if (ahead && member->was_registered) {
        member->must_end = true;
        return;
    }
    if (member->was_registered || newest == UINT64_MAX) {
        note_refusal(member, status_name(STATUS_FAILED_PRECONDITION),
                     "a member of that name that started later is there: this one takes its place when that one is gone");
        return;
    }
    log_warn(ahead ? "CLOCK-AHEAD" : "CLOCK-BEHIND",
             "scheduler=%s own=%llx newest=%llx what=\"taking the number after the newest%s\"", member->config.scheduler,
             (unsigned long long)member->config.hello.incarnation, (unsigned long long)newest,
             ahead ? "" : "; right too if this process has waited for another one's end");
    member->config.hello.incarnation = newest + 1;
    member->config.on_incarnation(member->config.user, newest + 1);
    rpc_channel_set_incarnation(member->channel, newest + 1);
}

enum status member_check(const struct member *member, struct error *error)
{
    if (!member->must_end)
        return STATUS_OK;
    return error_set(
        error, STATUS_UNAVAILABLE,
        "the clock was more than a day ahead when this process started, and the scheduler at %s refuses the number that "
        "it took from it: start it again",
        member->config.scheduler);
}

static void on_register_reply(void *user, struct rpc_message *message)
{
    struct member *member = user;
    const Fastdecode__RegisterReply *reply = rpc_message_unpack(message, &fastdecode__register_reply__descriptor);

    if (!reply)
        return;
    if (reply->newest_incarnation) {
        take_refusal(member, reply->newest_incarnation);
        return;
    }
    set_registered(member, true);
    member->was_registered = true;
    member->again_us = AGAIN_US;
    member->refusals = member->losses = (struct repeat){0};
    tell_s_part(member, reply->s_part_incarnation, reply->stages, reply->n_stages);
    member->config.on_registered(member->config.user, reply);
}

static void on_register_end(void *user, enum status status, const char *text)
{
    struct member *member = user;
    note_answer(member, status);
    if (status && status != STATUS_CANCELLED)
        note_refusal(member, status_name(status), text);
}

void member_register(struct member *member, Fastdecode__RegisterRequest *request)
{
    const struct rpc_options options = {.timeout_ms = CALL_TIMEOUT_MS};
    const struct rpc_callbacks callbacks = {.on_message = on_register_reply, .on_end = on_register_end};
    struct error error;

    request->name = member->name;
    request->incarnation = member->config.hello.incarnation;
    request->was_registered = member->was_registered;
    if (rpc_call_start(member->channel, &fastdecode__cluster__descriptor, "RegisterMember", &request->base, &options, &callbacks,
                       member, NULL, &error))
        log_debug("REGISTER-NOT-SENT", "why=\"%s\"", error.text);
}

static void on_drain_end(void *user, enum status status, const char *text)
{
    struct member *member = user;
    log_info("DRAINED", "status=%s why=\"%s\"", status_name(status), text);
    member->on_drained(member->drain_user);
}

void member_drain(struct member *member, void (*on_done)(void *user), void *user)
{
    Fastdecode__DrainRequest request = FASTDECODE__DRAIN_REQUEST__INIT;
    const struct rpc_options options = {.timeout_ms = DRAIN_TIMEOUT_MS};
    const struct rpc_callbacks callbacks = {.on_end = on_drain_end};
    struct error error;

    member->on_drained = on_done;
    member->drain_user = user;
    request.name = member->name;
    request.incarnation = member->config.hello.incarnation;
    if (!member_is_registered(member) || rpc_call_start(member->channel, &fastdecode__cluster__descriptor, "Drain", &request.base,
                                                        &options, &callbacks, member, NULL, &error))
        on_done(user);
}

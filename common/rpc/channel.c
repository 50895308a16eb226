// channel.c: the client's side of one connection.
//
// A connection that goes down loses what was queued. A timer dials again after a backoff that doubles from 50 ms to 2 s, with jitter.
// A peer that accepts the connection but does not answer the hello within GREETING_US is dropped and dialed again. An address where nobody
// accepts one is said in the log: nothing else would tell a person that it is a wrong one. So is one where somebody does, and TLS fails.
//
// A host that is gone and a process that is stopped close nothing. A peer that has said nothing for a quarter of its silence_ms is asked whether
// it is alive (Health.Check); after three questions in a row without a word the connection is given up. Time in which this process does not run
// counts as one question at most.
//
//     CLOSED ──open──▶ DIALING ──pipe added: hello sent──▶ GREETING ──hello received, offer settled──▶ UP
//        ▲                                                                                            │ pipe gone, refused, silent
//        └──────────────────────────── timer ◀── DOWN: calls end UNAVAILABLE ◀────────────────────────┘
//
// Calls are kept in slots. A call id is slot and generation, so a late answer finds no call.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/address.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/handshake.h"
#include "envelope.pb-c.h"

enum { BACKOFF_FIRST_MS = 50, BACKOFF_MOST_MS = 2000, GREETING_US = 5000000, UNREACHABLE_US = 1000000 };
enum { QUESTIONS_MAX = 3 }; // in a row, to a peer that says nothing

enum channel_state { CHANNEL_CLOSED, CHANNEL_DIALING, CHANNEL_GREETING, CHANNEL_UP };

struct slot {
    bool used;
    uint32_t generation, next_free;
    struct rpc_callbacks callbacks;
    void *user;
    uint64_t timer;
    struct rpc_channel *channel;
};

struct rpc_channel {
    struct endpoint endpoint; // first: callbacks cast back
    struct rpc_loop *loop;
    struct rpc_channel_config config;
    char address[256];
    char service[32];
    enum channel_state state;
    uint32_t pipe, backoff_ms, unacked;
    uint64_t timer;        // to reconnect, or the handshake's deadline, or to say that nobody accepts it; UP: to look for silence
    uint64_t down_from_us; // when it was opened or last came down
    struct repeat unreachable, refused;
    uint64_t max_message_bytes, peer_max_bytes;
    struct rpc_peer peer; // valid once its hello has arrived
    bool greeted;
    bool heard;         // something came since the latest look
    uint32_t questions; // since something came
    uint32_t question;  // generation of the latest one: its call has the slot behind the last
    struct handshake handshake;
    struct slot *slots; // [window]
    uint32_t window, first_free, in_flight, silence_ms;
    uint32_t depth; // callbacks under way; the channel is freed when the last returns
    bool closing;
};

static void go_down(struct rpc_channel *channel, const char *why, bool again);

// One deadline per call and one for the channel, reserved so that neither starting a call nor reconnecting can lack memory for a timer.
static uint32_t timers_of(const struct rpc_channel *channel) { return channel->window + 1; }

static void free_channel(struct rpc_channel *channel)
{
    loop_release_timers(channel->loop, timers_of(channel));
    free(channel->slots);
    free(channel);
}

// Brackets everything that may run a callback, since a callback may close the channel.
static void enter(struct rpc_channel *channel) { channel->depth++; }

static void leave(struct rpc_channel *channel)
{
    if (--channel->depth == 0 && channel->closing)
        free_channel(channel);
}

// --- sending ---

// Takes the frame. NULL: there was no memory for it; the two sides would disagree after a lost message, so the connection is closed and
// GONE follows.
static void send_raw(struct rpc_channel *channel, struct frame *frame)
{
    if (frame)
        endpoint_send(&channel->endpoint, channel->pipe, frame);
    else
        endpoint_close_pipe(&channel->endpoint, channel->pipe);
}

static void send_plain(struct rpc_channel *channel, enum envelope_kind kind, uint64_t call_id, uint32_t status)
{
    const struct envelope head = {.kind = kind, .call_id = call_id, .status = status};
    if (channel->state == CHANNEL_UP)
        send_raw(channel, message_pack(loop_messages(channel->loop), &head, NULL));
}

// --- calls ---

static uint64_t call_id_of(uint32_t slot, uint32_t generation) { return (uint64_t)generation << 32 | slot; }

static void end_call(struct rpc_channel *channel, uint32_t index, enum status status, const char *text)
{
    struct slot *slot = &channel->slots[index];
    struct rpc_callbacks callbacks = slot->callbacks;
    void *user = slot->user;

    rpc_loop_cancel_timer(channel->loop, slot->timer);
    slot->used = false;
    slot->generation++;
    slot->timer = 0;
    slot->next_free = channel->first_free;
    channel->first_free = index;
    channel->in_flight--;
    if (callbacks.on_end)
        callbacks.on_end(user, status, text); // last: it may start another call
}

static void end_all_calls(struct rpc_channel *channel, enum status status, const char *text)
{
    for (uint32_t i = 0; i < channel->window && channel->in_flight; i++)
        if (channel->slots[i].used)
            end_call(channel, i, status, text);
}

static void on_deadline(void *arg)
{
    struct slot *slot = arg;
    struct rpc_channel *channel = slot->channel;
    uint32_t index = (uint32_t)(slot - channel->slots);

    slot->timer = 0;
    enter(channel);
    send_plain(channel, ENVELOPE_CANCEL, call_id_of(index, slot->generation), 0);
    end_call(channel, index, STATUS_DEADLINE_EXCEEDED, "no answer in time");
    leave(channel);
}

static enum status start(struct rpc_channel *channel, struct frame *frame, uint32_t timeout_ms,
                         const struct rpc_callbacks *callbacks, void *user, struct rpc_handle *handle)
{
    uint32_t index = channel->first_free;
    struct slot *slot;

    if (!frame)
        return STATUS_RESOURCE_EXHAUSTED;
    if (channel->state != CHANNEL_UP || index == UINT32_MAX || frame->length > channel->peer_max_bytes) {
        frame_free(frame);
        return channel->state != CHANNEL_UP ? STATUS_UNAVAILABLE : STATUS_RESOURCE_EXHAUSTED;
    }
    slot = &channel->slots[index];
    envelope_set_call_id(frame_bytes(frame), call_id_of(index, slot->generation));
    send_raw(channel, frame);
    channel->first_free = slot->next_free;
    channel->in_flight++;
    slot->used = true;
    slot->callbacks = *callbacks;
    slot->user = user;
    slot->timer = timeout_ms ? loop_reserved_timer(channel->loop, timeout_ms * 1000ull, on_deadline, slot) : 0;
    if (handle)
        *handle = (struct rpc_handle){index, slot->generation};
    return STATUS_OK;
}

static uint32_t fnv1a(uint32_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

uint32_t rpc_method_id(const ProtobufCServiceDescriptor *service, const char *method)
{
    assert_always(protobuf_c_service_descriptor_get_method_by_name(service, method));
    return fnv1a(fnv1a(fnv1a(2166136261u, service->short_name), "/"), method);
}

static void set_ids(struct envelope *head, const struct rpc_options *options)
{
    if (options && options->request_id)
        snprintf(head->request_id, sizeof head->request_id, "%s", options->request_id);
    if (options && options->trace_id)
        snprintf(head->trace_id, sizeof head->trace_id, "%s", options->trace_id);
    if (options && options->trace_state) {
        head->trace_state = options->trace_state;
        head->trace_state_length = strlen(options->trace_state);
    }
    head->timeout_ms = options ? options->timeout_ms : 0;
}

enum status rpc_call_start(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
                           const ProtobufCMessage *request, const struct rpc_options *options,
                           const struct rpc_callbacks *callbacks, void *user, struct rpc_handle *handle, struct error *error)
{
    struct envelope head = {.kind = ENVELOPE_REQUEST, .method = rpc_method_id(service, method)};
    enum status status;

    loop_assert_owner(channel->loop);
    if (channel->state != CHANNEL_UP)
        return error_set(error, STATUS_UNAVAILABLE, "%s: not connected", channel->address);
    set_ids(&head, options);
    size_t payload_at, bytes = envelope_size(&head, protobuf_c_message_get_packed_size(request), &payload_at);
    if (bytes > channel->peer_max_bytes)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "%s: the request has %zu bytes, the peer accepts at most %llu",
                         channel->address, bytes, (unsigned long long)channel->peer_max_bytes);
    status = start(channel, message_pack(loop_messages(channel->loop), &head, request), head.timeout_ms, callbacks, user, handle);
    if (status)
        return error_set(error, status, "%s: %u calls in flight, the limit is %u", channel->address, channel->in_flight,
                         channel->window);
    return STATUS_OK;
}

struct rpc_buffer *rpc_request_buffer(struct rpc_channel *channel, uint32_t method_id, uint32_t timeout_ms, size_t payload_bytes,
                                      unsigned char **payload)
{
    const struct envelope head = {.kind = ENVELOPE_REQUEST, .method = method_id, .timeout_ms = timeout_ms};
    return message_buffer_open(loop_messages(channel->loop), &head, payload_bytes, channel->config.lent, payload);
}

enum status rpc_call_start_buffer(struct rpc_channel *channel, struct rpc_buffer *buffer, const struct rpc_callbacks *callbacks,
                                  void *user, struct rpc_handle *handle)
{
    uint32_t timeout_ms = buffer->timeout_ms;
    loop_assert_owner(channel->loop);
    buffer->frame->at_once = true;
    return start(channel, message_buffer_take(buffer), timeout_ms, callbacks, user, handle);
}

void rpc_cancel(struct rpc_channel *channel, struct rpc_handle handle)
{
    loop_assert_owner(channel->loop);
    if (handle.slot >= channel->window || !channel->slots[handle.slot].used ||
        channel->slots[handle.slot].generation != handle.generation)
        return;
    send_plain(channel, ENVELOPE_CANCEL, call_id_of(handle.slot, handle.generation), 0);
    enter(channel);
    end_call(channel, handle.slot, STATUS_CANCELLED, "cancelled");
    leave(channel);
}

// --- silence ---

// Needs no slot, so that it takes none from calls. A full window is question enough.
static void ask_whether_alive(struct rpc_channel *channel)
{
    const Fastdecode__HealthRequest request = FASTDECODE__HEALTH_REQUEST__INIT;
    const struct envelope head = {.kind = ENVELOPE_REQUEST,
                                  .call_id = call_id_of(channel->window, ++channel->question),
                                  .method = rpc_method_id(&fastdecode__health__descriptor, "Check"),
                                  .timeout_ms = channel->silence_ms};

    channel->questions++;
    if (channel->in_flight < channel->window)
        send_raw(channel, message_pack(loop_messages(channel->loop), &head, &request.base));
}

static void look_for_silence(void *arg);

static void look_later(struct rpc_channel *channel)
{
    channel->timer =
        loop_reserved_timer(channel->loop, channel->silence_ms * 1000ull / (QUESTIONS_MAX + 1), look_for_silence, channel);
}

static void look_for_silence(void *arg)
{
    struct rpc_channel *channel = arg;
    char why[80];

    look_later(channel);
    enter(channel);
    if (channel->heard) {
        channel->heard = false;
        channel->questions = 0;
    } else if (channel->questions < QUESTIONS_MAX) {
        ask_whether_alive(channel);
    } else {
        snprintf(why, sizeof why, "the peer has not even said that it is alive for %.1f s", channel->silence_ms * 1e-3);
        go_down(channel, why, true);
    }
    leave(channel);
}

// --- receiving ---

static void come_up(struct rpc_channel *channel)
{
    rpc_loop_cancel_timer(channel->loop, channel->timer);
    channel->heard = true;
    channel->questions = 0;
    look_later(channel);
    channel->state = CHANNEL_UP;
    channel->backoff_ms = BACKOFF_FIRST_MS;
    channel->unreachable = channel->refused = (struct repeat){0};
    if (channel->config.on_up)
        channel->config.on_up(channel->config.user, &channel->peer);
}

// The offer was taken, or turned out to lead nowhere.
static void on_settled(struct endpoint *endpoint)
{
    struct rpc_channel *channel = (struct rpc_channel *)endpoint;
    enter(channel);
    come_up(channel);
    leave(channel);
}

static void on_hello(struct rpc_channel *channel, struct rpc_message *message)
{
    struct greeting greeting;

    if (channel->state != CHANNEL_GREETING || channel->greeted || !handshake_parse_hello(message, &greeting) ||
        greeting.protocol != RPC_PROTOCOL) {
        go_down(channel, "the peer speaks another protocol", true);
        return;
    }
    if (loop_secret(channel->loop)->is_set &&
        !handshake_server_is_proven(loop_secret(channel->loop), message, &channel->handshake)) {
        go_down(channel, "the peer does not prove that it knows the mesh secret (--" RPC_SECRET_OPTION ")", true);
        return;
    }
    const enum rpc_role role = endpoint_role(&channel->endpoint, channel->pipe);
    if (role != RPC_ROLE_NONE && strcmp(greeting.peer.service, rpc_role_name(role)) != 0) {
        go_down(channel, "the peer says hello as another service than its certificate is for", true);
        return;
    }
    channel->greeted = true;
    channel->peer = greeting.peer;
    channel->peer_max_bytes = greeting.max_message_bytes;
    endpoint_greeted(&channel->endpoint, channel->pipe);
    if (!endpoint_take_offer(&channel->endpoint, channel->pipe, &greeting.offer))
        come_up(channel);
}

static void on_challenge(struct rpc_channel *channel, struct rpc_message *message)
{
    struct frame *proof;

    if (channel->state == CHANNEL_GREETING && !channel->greeted &&
        handshake_answer(channel->loop, message, &channel->handshake, &proof))
        send_raw(channel, proof);
    else
        go_down(channel, "the peer sent a challenge that was not expected", true);
}

// STREAM or REPLY.
static void on_answer(struct rpc_channel *channel, struct rpc_message *message)
{
    const struct envelope *envelope = &message->envelope;
    uint32_t index = (uint32_t)envelope->call_id, generation = (uint32_t)(envelope->call_id >> 32);
    bool last = envelope->kind == ENVELOPE_REPLY;
    struct slot *slot;

    if (++channel->unacked == RPC_ACK_EVERY) {
        channel->unacked = 0;
        send_plain(channel, ENVELOPE_ACK, 0, RPC_ACK_EVERY);
    }
    if (index >= channel->window || !channel->slots[index].used || channel->slots[index].generation != generation)
        return; // cancelled or timed out before
    slot = &channel->slots[index];
    if (!slot->callbacks.streams && (!last || (envelope->status == 0 && envelope->method == 0))) {
        go_down(channel, last ? "the peer ended a unary call without an answer" : "the peer answered a unary call with a stream",
                true);
        return;
    }
    // with status OK an empty payload still is a unary call's message; a stream ends without one
    if (slot->callbacks.on_message && envelope->status == 0 && (!last || envelope->method != 0))
        slot->callbacks.on_message(slot->user, message);
    if (last && slot->used && slot->generation == generation)
        end_call(channel, index, envelope->status <= STATUS_UNAUTHENTICATED ? (enum status)envelope->status : STATUS_UNKNOWN,
                 envelope->error);
}

static void on_message(struct endpoint *endpoint, uint32_t pipe, struct frame *frame)
{
    struct rpc_channel *channel = (struct rpc_channel *)endpoint;
    struct rpc_message *message = message_open(loop_messages(channel->loop), frame);
    char quoted[320];

    (void)pipe;
    channel->heard = true;
    enter(channel);
    if (!message) {
        go_down(channel, "the peer sent a malformed envelope", true);
        leave(channel);
        return;
    }
    message->borrowed = true;
    switch (message->envelope.kind) {
    case ENVELOPE_HELLO: on_hello(channel, message); break;
    case ENVELOPE_CHALLENGE: on_challenge(channel, message); break;
    case ENVELOPE_STREAM:
    case ENVELOPE_REPLY:
        if (channel->state == CHANNEL_UP)
            on_answer(channel, message);
        else
            go_down(channel, "the peer sent an answer before the handshake", true);
        break;
    case ENVELOPE_REFUSED:
        if (repeat_is_due(&channel->refused, clock_now_us(), message->envelope.error))
            log_warn("RPC-REFUSED", "address=%s why=%s times=%u", channel->address,
                     log_quote(quoted, sizeof quoted, message->envelope.error), channel->refused.count);
        go_down(channel, message->envelope.error[0] ? message->envelope.error : "the peer refused the handshake without a reason",
                true);
        break;
    default: go_down(channel, "the peer sent a message of a kind that only clients send", true);
    }
    message->borrowed = false;
    if (!message->kept)
        rpc_message_free(message);
    leave(channel);
}

static void on_silence(void *arg)
{
    struct rpc_channel *channel = arg;
    channel->timer = 0;
    channel->backoff_ms = BACKOFF_FIRST_MS; // it was long enough: whoever wakes up, or comes in its stead, finds us waiting
    enter(channel);
    go_down(channel, "the peer does not answer the handshake", true);
    leave(channel);
}

static void on_pipe(struct endpoint *endpoint, uint32_t pipe, int event)
{
    struct rpc_channel *channel = (struct rpc_channel *)endpoint;

    if (event == PIPE_ADDED && channel->state == CHANNEL_DIALING) {
        rpc_loop_cancel_timer(channel->loop, channel->timer);
        channel->pipe = pipe;
        channel->state = CHANNEL_GREETING;
        channel->timer = loop_reserved_timer(channel->loop, GREETING_US, on_silence, channel);
        send_raw(channel,
                 handshake_client_hello(channel->loop, &channel->config.hello, channel->max_message_bytes, &channel->handshake));
    } else if (event == PIPE_GONE) {
        enter(channel);
        go_down(channel,
                channel->endpoint.met_tls ? "the peer speaks TLS: want its address with tls+tcp:// instead of tcp://, and --tls"
                                          : "the connection closed",
                true);
        leave(channel);
    }
}

// --- connecting ---

static void connect_again(void *arg);

static void say_unreachable(struct rpc_channel *channel)
{
    const uint64_t now_us = clock_now_us();
    const char *what = endpoint_is_accepted(&channel->endpoint, channel->address)
                           ? "somebody accepts connections there, but there is no TLS handshake with it: see TLS-REFUSED"
                           : "nobody accepts a connection there: check the address, and that the service runs";

    if (!channel->config.peer || channel->closing || now_us - channel->down_from_us < UNREACHABLE_US ||
        !repeat_is_due(&channel->unreachable, now_us, what))
        return;
    log_warn("PEER-UNREACHABLE", "address=%s peer=\"%s\" seconds=%.0f what=\"%s; it is tried again and again\"", channel->address,
             channel->config.peer, (double)(now_us - channel->down_from_us) * 1e-6, what);
}

// The host does not answer at all; or it has accepted, and a handshake that does not end well is said when it ends.
static void on_slow_dial(void *arg)
{
    struct rpc_channel *channel = arg;
    if (!endpoint_is_accepted(&channel->endpoint, channel->address))
        say_unreachable(channel);
    channel->timer = loop_reserved_timer(channel->loop, UNREACHABLE_US, on_slow_dial, channel);
}

// Returns what was wrong, or NULL.
static const char *dial(struct rpc_channel *channel)
{
    channel->endpoint.lent = channel->config.lent;
    channel->endpoint.peer_roles = channel->config.peer_roles;
    endpoint_open(&channel->endpoint, channel->loop, channel->max_message_bytes);
    channel->state = CHANNEL_DIALING;
    channel->unacked = 0;
    channel->greeted = false;
    const char *wrong = endpoint_dial(&channel->endpoint, channel->address);
    if (wrong)
        endpoint_close(&channel->endpoint);
    else if (channel->config.peer)
        channel->timer = loop_reserved_timer(channel->loop, UNREACHABLE_US, on_slow_dial, channel);
    return wrong;
}

static void schedule(struct rpc_channel *channel)
{
    uint32_t wait_ms = channel->backoff_ms / 2 + loop_random(channel->loop) % (channel->backoff_ms / 2 + 1);
    channel->timer = loop_reserved_timer(channel->loop, wait_ms * 1000ull, connect_again, channel);
    channel->backoff_ms = MIN(channel->backoff_ms * 2, (uint32_t)BACKOFF_MOST_MS);
}

static void connect_again(void *arg)
{
    struct rpc_channel *channel = arg;
    channel->timer = 0;
    if (dial(channel)) {
        channel->state = CHANNEL_CLOSED;
        say_unreachable(channel);
        schedule(channel);
    }
}

static void go_down(struct rpc_channel *channel, const char *why, bool again)
{
    bool told = channel->state >= CHANNEL_GREETING;
    char reason[256];

    if (channel->state == CHANNEL_UP)
        channel->down_from_us = clock_now_us();
    else if (channel->state == CHANNEL_DIALING)
        say_unreachable(channel);
    snprintf(reason, sizeof reason, "%s: %s", channel->address, why); // copied: `why` may point into a message that is freed
    channel->state = CHANNEL_CLOSED;
    endpoint_close(&channel->endpoint);
    rpc_loop_cancel_timer(channel->loop, channel->timer);
    channel->timer = 0;
    if (again && !channel->closing)
        schedule(channel);
    end_all_calls(channel, channel->closing ? STATUS_CANCELLED : STATUS_UNAVAILABLE, reason);
    if (told && !channel->closing && channel->config.on_down)
        channel->config.on_down(channel->config.user, reason);
}

enum status rpc_channel_open(struct rpc_loop *loop, const struct rpc_channel_config *config, struct rpc_channel **out,
                             struct error *error)
{
    struct rpc_channel *channel;

    loop_assert_owner(loop);
    if (strlen(config->address) >= sizeof channel->address)
        return error_set(error, STATUS_INVALID_ARGUMENT, "an address has %zu bytes, the limit is %zu", strlen(config->address),
                         sizeof channel->address - 1);
    if (rpc_security_allows_dialing(loop_security(loop), config->address, error))
        return error->status;
    if (rpc_address_is_tls(config->address) && !config->peer_roles)
        return error_set(error, STATUS_INVALID_ARGUMENT, "cannot connect to '%s': nothing says which service is expected there",
                         config->address);
    if (!(channel = calloc(1, sizeof *channel)))
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a channel");
    channel->loop = loop;
    channel->config = *config;
    snprintf(channel->address, sizeof channel->address, "%s", config->address);
    snprintf(channel->service, sizeof channel->service, "%s", config->hello.service);
    channel->config.hello.service = channel->service;
    channel->endpoint.on_message = on_message;
    channel->endpoint.on_pipe = on_pipe;
    channel->endpoint.on_settled = on_settled;
    channel->backoff_ms = BACKOFF_FIRST_MS;
    channel->down_from_us = clock_now_us();
    channel->max_message_bytes = config->max_message_bytes ? config->max_message_bytes : RPC_MESSAGE_BYTES_DEFAULT;
    channel->silence_ms = config->silence_ms ? config->silence_ms : RPC_SILENCE_MS_DEFAULT;
    channel->window = config->window ? MIN(config->window, (uint32_t)RPC_WINDOW_MAX) : RPC_WINDOW_DEFAULT;
    channel->slots = calloc(channel->window, sizeof *channel->slots);
    if (!channel->slots || !loop_reserve_timers(loop, timers_of(channel))) {
        free(channel->slots);
        free(channel);
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "no memory for a channel");
    }
    for (uint32_t i = 0; i < channel->window; i++) {
        channel->slots[i].channel = channel;
        channel->slots[i].generation = 1;
        channel->slots[i].next_free = i + 1 < channel->window ? i + 1 : UINT32_MAX;
    }
    const char *wrong = dial(channel);
    if (wrong) {
        free_channel(channel);
        return error_set(error, STATUS_INVALID_ARGUMENT, "cannot connect to '%s': %s", config->address, wrong);
    }
    *out = channel;
    return STATUS_OK;
}

void rpc_channel_reconnect(struct rpc_channel *channel, const char *why)
{
    loop_assert_owner(channel->loop);
    enter(channel);
    go_down(channel, why, true);
    leave(channel);
}

void rpc_channel_set_incarnation(struct rpc_channel *channel, uint64_t incarnation)
{
    loop_assert_owner(channel->loop);
    channel->config.hello.incarnation = incarnation;
    rpc_channel_reconnect(channel, "reconnecting as another incarnation");
}

void rpc_channel_close(struct rpc_channel *channel)
{
    if (!channel || channel->closing)
        return;
    loop_assert_owner(channel->loop);
    channel->closing = true;
    enter(channel);
    go_down(channel, "closed here", false);
    leave(channel);
}

bool rpc_channel_is_up(const struct rpc_channel *channel) { return channel->state == CHANNEL_UP; }

const char *rpc_channel_address(const struct rpc_channel *channel) { return channel->address; }

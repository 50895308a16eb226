// played_peers.h: everyone that a service talks to, played by the fuzzer, below the RPC runtime and without a socket: this file takes the place
// of common/rpc/endpoint.c. Peers connect to the service's servers, say hello as whoever they want to be, call methods and cancel; where the
// service connects itself they answer, fail, send streams, or go. Time is the fuzzer's, too.
//
// What the service does is recorded, never answered at once, as no transport would.
#ifndef FD_TESTS_PLAYED_PEERS_H
#define FD_TESTS_PLAYED_PEERS_H

#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/rpc/address.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/handshake.h"
#include "common/rpc/message.h"
#include "tests/fuzz/message_shape.h"

enum { PEER_ENDPOINTS_MAX = 64, PEER_PIPES_MAX = 64, PEER_CALLS_MAX = 64, PEER_METHODS_MAX = 64, PEER_BYTES_MAX = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

struct peer_pipe {
    struct endpoint *endpoint; // NULL: unused
    uint32_t id;
    bool dialed;  // by the service
    bool closing; // by the service: GONE is due
    bool said_hello;
    uint32_t role;    // of who has connected
    uint32_t unacked; // messages that the service has sent
    uint64_t next_call;
};

// A call of the service's, not answered yet.
struct peer_call {
    struct peer_pipe *pipe; // NULL: unused
    uint64_t id;
    uint32_t method;
    ProtobufCMessage *request; // in the input's memory; NULL: it is too large
};

// A peer that may connect.
struct peer_role {
    const char *service, *name, *address;
    uint32_t number; // its incarnation is peers_base plus this
};

struct peer_method {
    uint32_t id;
    const char *name;
    const ProtobufCServiceDescriptor *service;
    const ProtobufCMessageDescriptor *input, *output;
};

static struct {
    struct {
        struct endpoint *endpoint;
        bool listens, dials;
    } endpoints[PEER_ENDPOINTS_MAX];
    struct peer_pipe pipes[PEER_PIPES_MAX];
    struct peer_call calls[PEER_CALLS_MAX];
    uint64_t now_ns;
} peers;

static uint64_t peers_base; // of incarnations: of now

// The service that is tested.
struct peer_service {
    const struct peer_role *roles;
    uint32_t role_count;
    uint32_t method_count; // that it serves: the first ones of peer_methods
    struct rpc_server *(*server_of)(const struct peer_method *method);
    // A good message, which is then changed. NULL: there is none.
    ProtobufCMessage *(*good_request)(struct shape_input *input, const struct peer_role *role, const struct peer_method *method);
    ProtobufCMessage *(*good_reply)(struct shape_input *input, const struct peer_method *method, const ProtobufCMessage *request);
    // Messages that are written in place: write one, and return its bytes. 0: this method's are not. `message`: as changed.
    size_t (*write)(struct shape_input *input, ProtobufCMessage *message, unsigned char out[PEER_BYTES_MAX]); // or NULL
    // Fills in which peer answers where the service connects by itself; before the call it is a usual s-part.
    void (*find_peer)(const struct endpoint *endpoint, struct rpc_hello *hello);
};

// Those of the protocol; set up once.
static struct {
    struct peer_method of[PEER_METHODS_MAX];
    uint32_t count;
} peer_methods;

// --- time ---

// The service's clocks stand still between the fuzzer's moves; wall time is the real one.
int clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock == CLOCK_REALTIME)
        return (int)syscall(SYS_clock_gettime, clock, out);
    peers.now_ns += 1000;
    *out = (struct timespec){(time_t)(peers.now_ns / 1000000000u), (long)(peers.now_ns % 1000000000u)};
    return 0;
}

// --- the endpoint ---

static inline struct peer_pipe *peer_pipe_of(const struct endpoint *endpoint, uint32_t id)
{
    for (uint32_t i = 0; i < PEER_PIPES_MAX; i++)
        if (peers.pipes[i].endpoint == endpoint && peers.pipes[i].id == id)
            return &peers.pipes[i];
    return NULL;
}

static inline void peer_pipe_end(struct peer_pipe *pipe)
{
    for (uint32_t i = 0; i < PEER_CALLS_MAX; i++)
        if (peers.calls[i].pipe == pipe)
            peers.calls[i].pipe = NULL;
    *pipe = (struct peer_pipe){0};
}

void endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, uint64_t max_message_bytes)
{
    uint32_t i = 0;

    endpoint->loop = loop;
    endpoint->max_message_bytes = max_message_bytes;
    endpoint->opened = true;
    while (i < PEER_ENDPOINTS_MAX && peers.endpoints[i].endpoint)
        i++;
    assert_always(i < PEER_ENDPOINTS_MAX); // the service opens ever more connections
    peers.endpoints[i].endpoint = endpoint;
    peers.endpoints[i].listens = peers.endpoints[i].dials = false;
}

static inline uint32_t peer_index_of(const struct endpoint *endpoint)
{
    uint32_t i = 0;
    while (i < PEER_ENDPOINTS_MAX && peers.endpoints[i].endpoint != endpoint)
        i++;
    return i;
}

const char *endpoint_listen(struct endpoint *endpoint, const char *address, int *port)
{
    (void)address;
    *port = 0;
    peers.endpoints[peer_index_of(endpoint)].listens = true;
    return NULL;
}

const char *endpoint_dial(struct endpoint *endpoint, const char *address)
{
    if (!rpc_address_is_known(address))
        return "no transport is known for it";
    peers.endpoints[peer_index_of(endpoint)].dials = true;
    return NULL;
}

bool endpoint_is_accepted(const struct endpoint *endpoint, const char *address)
{
    (void)endpoint, (void)address;
    return false;
}

void endpoint_close(struct endpoint *endpoint)
{
    const uint32_t index = peer_index_of(endpoint);

    for (uint32_t i = 0; i < PEER_PIPES_MAX; i++)
        if (peers.pipes[i].endpoint == endpoint)
            peer_pipe_end(&peers.pipes[i]);
    if (index < PEER_ENDPOINTS_MAX)
        peers.endpoints[index].endpoint = NULL;
    endpoint->opened = false;
}

void endpoint_close_pipe(struct endpoint *endpoint, uint32_t id)
{
    struct peer_pipe *pipe = peer_pipe_of(endpoint, id);
    if (pipe)
        pipe->closing = true;
}

enum rpc_role endpoint_role(struct endpoint *endpoint, uint32_t pipe)
{
    (void)endpoint, (void)pipe;
    return RPC_ROLE_NONE;
}

const char *endpoint_peer(const struct endpoint *endpoint, uint32_t pipe)
{
    (void)endpoint, (void)pipe;
    return "played";
}

bool endpoint_log_refused(struct endpoint *endpoint, uint32_t pipe, const char *why)
{
    (void)endpoint, (void)pipe, (void)why;
    return true;
}

void endpoint_greeted(struct endpoint *endpoint, uint32_t pipe) { (void)endpoint, (void)pipe; }

bool endpoint_make_offer(struct endpoint *endpoint, uint32_t pipe, struct transport_offer *out)
{
    (void)endpoint, (void)pipe, (void)out;
    return false;
}

bool endpoint_take_offer(struct endpoint *endpoint, uint32_t pipe, const struct transport_offer *offer)
{
    (void)endpoint, (void)pipe, (void)offer;
    return false;
}

static inline const struct peer_method *peer_method_of(uint32_t id)
{
    for (uint32_t i = 0; i < peer_methods.count; i++)
        if (peer_methods.of[i].id == id)
            return &peer_methods.of[i];
    return NULL;
}

static void *peer_alloc(void *user, size_t size)
{
    (void)user;
    return shape_take(size ? size : 1);
}
static void peer_release(void *user, void *pointer) { (void)user, (void)pointer; }

static inline void peer_note_call(struct peer_pipe *pipe, const struct envelope *envelope)
{
    static ProtobufCAllocator allocator = {peer_alloc, peer_release, NULL};
    const struct peer_method *method = peer_method_of(envelope->method);
    uint32_t i = 0;

    assert_always(method); // a service calls only what there is
    while (i < PEER_CALLS_MAX && peers.calls[i].pipe)
        i++;
    if (i == PEER_CALLS_MAX)
        return; // it is never answered
    peers.calls[i] = (struct peer_call){.pipe = pipe, .id = envelope->call_id, .method = envelope->method};
    peers.calls[i].request = protobuf_c_message_unpack(method->input, &allocator, envelope->payload_length, envelope->payload);
}

void endpoint_send(struct endpoint *endpoint, uint32_t id, struct frame *frame)
{
    struct peer_pipe *pipe = peer_pipe_of(endpoint, id);
    struct envelope envelope;

    if (!pipe || pipe->closing) {
        frame_free(frame);
        return;
    }
    assert_always(envelope_parse(frame_bytes(frame), frame->length, &envelope)); // a service writes what can be read
    if (envelope.kind == ENVELOPE_HELLO)
        pipe->said_hello = true;
    else if (envelope.kind == ENVELOPE_REQUEST)
        peer_note_call(pipe, &envelope);
    else if (envelope.kind == ENVELOPE_STREAM || envelope.kind == ENVELOPE_REPLY)
        pipe->unacked += !pipe->dialed;
    else if (envelope.kind == ENVELOPE_CANCEL)
        for (uint32_t i = 0; i < PEER_CALLS_MAX; i++)
            if (peers.calls[i].pipe == pipe && peers.calls[i].id == envelope.call_id)
                peers.calls[i].pipe = NULL;
    frame_free(frame);
}

// --- what peers do: never inside a call of the service's ---

static inline struct peer_pipe *peer_connect(struct endpoint *endpoint, bool dialed)
{
    struct peer_pipe *pipe = peer_pipe_of(NULL, 0);

    if (!pipe)
        return NULL;
    const uint32_t id = ++endpoint->next_pipe;
    *pipe = (struct peer_pipe){.endpoint = endpoint, .id = id, .dialed = dialed, .next_call = 1};
    endpoint->on_pipe(endpoint, id, PIPE_ADDED);
    return peer_pipe_of(endpoint, id);
}

static inline void peer_say(const struct peer_pipe *pipe, struct frame *frame)
{
    assert_always(frame);
    pipe->endpoint->on_message(pipe->endpoint, pipe->id, frame);
}

// Connects to a server and says hello. NULL: it is not wanted.
static inline struct peer_pipe *peer_join(struct endpoint *server, const struct rpc_hello *hello)
{
    struct peer_pipe *pipe = peer_connect(server, false);
    struct handshake handshake;

    if (!pipe)
        return NULL;
    const uint32_t id = pipe->id;
    peer_say(pipe, handshake_client_hello(server->loop, hello, RPC_MESSAGE_BYTES_DEFAULT, &handshake));
    return peer_pipe_of(server, id);
}

// Accepts the connection that the service wants here. False: it wants none.
static inline bool peer_accept(struct endpoint *endpoint, const struct rpc_hello *hello)
{
    const uint32_t index = peer_index_of(endpoint);
    const struct handshake none = {0};

    if (index == PEER_ENDPOINTS_MAX || !peers.endpoints[index].dials)
        return false;
    peers.endpoints[index].dials = false;
    struct peer_pipe *pipe = peer_connect(endpoint, true);
    if (!pipe || !pipe->said_hello)
        return false;
    peer_say(pipe, handshake_server_hello(endpoint->loop, hello, RPC_MESSAGE_BYTES_DEFAULT, NULL, &none));
    return true;
}

static inline void peer_leave(struct peer_pipe *pipe)
{
    struct endpoint *endpoint = pipe->endpoint;
    const uint32_t id = pipe->id;

    peer_pipe_end(pipe);
    endpoint->on_pipe(endpoint, id, PIPE_GONE);
}

static inline struct frame *peer_frame(struct rpc_loop *loop, const struct envelope *head, const unsigned char *payload,
                                       size_t bytes)
{
    unsigned char *at;
    struct rpc_buffer *buffer = message_buffer_open(loop_messages(loop), head, bytes, false, &at);

    assert_always(buffer);
    if (bytes)
        memcpy(at, payload, bytes);
    return message_buffer_take(buffer);
}

// Writes a message; sometimes with a byte changed, or cut off. Returns its bytes; SIZE_MAX: it is too large.
static inline size_t peer_pack(const struct peer_service *service, struct shape_input *input, ProtobufCMessage *message,
                               unsigned char out[PEER_BYTES_MAX])
{
    size_t bytes = service->write ? service->write(input, message, out) : 0;
    const uint32_t damage = shape_byte(input);

    if (!bytes && protobuf_c_message_get_packed_size(message) > PEER_BYTES_MAX)
        return SIZE_MAX;
    if (!bytes)
        bytes = protobuf_c_message_pack(message, out);
    if (damage == 255 && bytes)
        out[(shape_byte(input) | (size_t)shape_byte(input) << 8) % bytes] = shape_byte(input);
    if (damage == 254 && bytes)
        bytes -= shape_byte(input) % bytes;
    return bytes;
}

static inline void peer_request(struct peer_pipe *pipe, uint32_t method, uint32_t timeout_ms, const unsigned char *payload,
                                size_t bytes)
{
    const struct envelope head = {
        .kind = ENVELOPE_REQUEST, .call_id = pipe->next_call++, .method = method, .timeout_ms = timeout_ms};
    peer_say(pipe, peer_frame(pipe->endpoint->loop, &head, payload, bytes));
}

static inline void peer_cancel(struct peer_pipe *pipe, uint64_t call)
{
    const struct envelope head = {.kind = ENVELOPE_CANCEL, .call_id = call};
    peer_say(pipe, peer_frame(pipe->endpoint->loop, &head, NULL, 0));
}

// Answers a call of the service's: status 0: with the payload; `streamed`: more may follow.
static inline void peer_answer(struct peer_call *call, uint32_t status, bool streamed, const unsigned char *payload, size_t bytes)
{
    const struct peer_pipe *pipe = call->pipe;
    const struct envelope head = {.kind = streamed ? ENVELOPE_STREAM : ENVELOPE_REPLY,
                                  .call_id = call->id,
                                  .status = status,
                                  .method = status ? 0 : call->method,
                                  .error = "said so"};
    if (!streamed)
        call->pipe = NULL;
    peer_say(pipe, peer_frame(pipe->endpoint->loop, &head, payload, status ? 0 : bytes));
}

// Ends what the service wants to be ended, and acknowledges what it has sent.
static inline void peers_turn(void)
{
    for (uint32_t i = 0; i < PEER_PIPES_MAX; i++) {
        struct peer_pipe *pipe = &peers.pipes[i];
        if (pipe->endpoint && pipe->closing) {
            peer_leave(pipe);
        } else if (pipe->endpoint && pipe->unacked >= RPC_ACK_EVERY) {
            const struct envelope head = {.kind = ENVELOPE_ACK, .status = RPC_ACK_EVERY};
            pipe->unacked -= RPC_ACK_EVERY;
            peer_say(pipe, peer_frame(pipe->endpoint->loop, &head, NULL, 0));
        }
    }
}

// --- moves ---

static inline struct peer_pipe *peer_of_role(struct endpoint *server, const struct peer_service *service, uint32_t who)
{
    const struct rpc_hello hello = {.service = service->roles[who].service, .incarnation = peers_base + service->roles[who].number};

    for (uint32_t i = 0; i < PEER_PIPES_MAX; i++)
        if (peers.pipes[i].endpoint == server && !peers.pipes[i].dialed && peers.pipes[i].role == who)
            return &peers.pipes[i];
    struct peer_pipe *pipe = peer_join(server, &hello);
    if (pipe)
        pipe->role = who;
    return pipe;
}

static inline void peer_calls(const struct peer_service *service, struct shape_input *input)
{
    static unsigned char payload[PEER_BYTES_MAX];
    const uint32_t who = shape_below(input, service->role_count), which = shape_byte(input);
    const struct peer_method *method = &peer_methods.of[which % service->method_count];
    struct endpoint *server = (struct endpoint *)service->server_of(method); // its first part
    struct peer_pipe *pipe = peer_of_role(server, service, who);
    ProtobufCMessage *message = pipe && shape_has_room() ? service->good_request(input, &service->roles[who], method) : NULL;

    if (!message)
        return;
    shape_change(input, message);
    const size_t bytes = peer_pack(service, input, message, payload);
    if (bytes != SIZE_MAX)
        peer_request(pipe, method->id, which & 128 ? 1000 : 0, payload, bytes);
}

static inline void peer_answers(const struct peer_service *service, struct shape_input *input)
{
    static unsigned char payload[PEER_BYTES_MAX];
    const uint32_t from = shape_below(input, PEER_CALLS_MAX), how = shape_byte(input);
    struct peer_call *call = NULL;

    for (uint32_t i = 0; !call && i < PEER_CALLS_MAX; i++)
        if (peers.calls[(from + i) % PEER_CALLS_MAX].pipe)
            call = &peers.calls[(from + i) % PEER_CALLS_MAX];
    ProtobufCMessage *message = call && shape_has_room() ? service->good_reply(input, peer_method_of(call->method), call->request)
                                                         : NULL;
    if (!message)
        return;
    shape_change(input, message);
    const size_t bytes = peer_pack(service, input, message, payload);
    if (bytes != SIZE_MAX)
        peer_answer(call, how < 208 ? 0 : how % 20, how > 250, payload, bytes);
}

// Whoever the service connects to is there, or another one.
static inline void peers_accept(const struct peer_service *service, struct shape_input *input)
{
    const bool other = shape_below(input, 8) == 0;

    for (uint32_t i = 0; i < PEER_ENDPOINTS_MAX; i++) {
        struct endpoint *endpoint = peers.endpoints[i].endpoint;
        struct rpc_hello hello = {.service = "s-part", .incarnation = peers_base + 1};
        if (!endpoint || !peers.endpoints[i].dials)
            continue;
        service->find_peer(endpoint, &hello);
        hello.incarnation += other;
        (void)peer_accept(endpoint, &hello);
    }
}

// One move of a peer, or of time. The caller's own moves are 16 and higher.
static inline void peers_move(const struct peer_service *service, struct shape_input *input, uint32_t what)
{
    static const uint32_t waits_ms[] = {1, 60, 400, 1100, 2500, 16000, 70000, 3700000};
    struct peer_pipe *pipe = what == 13 || what == 14 ? &peers.pipes[shape_below(input, PEER_PIPES_MAX)] : NULL;

    if (what < 7)
        peer_calls(service, input);
    else if (what < 12)
        peer_answers(service, input);
    else if (what == 12)
        peers_accept(service, input);
    else if (what == 13 && pipe->endpoint)
        peer_leave(pipe);
    else if (what == 14 && pipe->endpoint && !pipe->dialed)
        peer_cancel(pipe, pipe->next_call - 1 - MIN(pipe->next_call - 1, (uint64_t)shape_below(input, 4)));
    else if (what == 15)
        peers.now_ns += waits_ms[shape_below(input, ARRAY_COUNT(waits_ms))] * 1000000ull;
}

// Once an input, before the service opens.
static inline void peers_begin(void)
{
    memset(&peers, 0, sizeof peers);
    peers.now_ns = 1000000000000;
    shape_used = 0;
}

static inline void peers_know(const ProtobufCServiceDescriptor *service)
{
    for (unsigned i = 0; i < service->n_methods; i++) {
        assert_always(peer_methods.count < PEER_METHODS_MAX);
        peer_methods.of[peer_methods.count++] = (struct peer_method){.id = rpc_method_id(service, service->methods[i].name),
                                                                     .name = service->methods[i].name,
                                                                     .service = service,
                                                                     .input = service->methods[i].input,
                                                                     .output = service->methods[i].output};
    }
}

#endif

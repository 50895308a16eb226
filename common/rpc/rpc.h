// rpc.h: gRPC-style calls over nng: unary calls and server streams, declared by the `service` blocks of proto/.
//
// One thread owns a loop and every server, channel and call on it. All functions here are called on that thread (asserted), and all
// callbacks run on it, inside rpc_loop_run() and never under a lock. Any thread may call rpc_loop_post() and rpc_loop_wake().
// Only rpc_loop_run() blocks.
//
//     nng's threads ──▶ queue of the loop ──▶ rpc_loop_run(): handlers, answers, timers
//     sockets within this host (transport_local.c) ──┘
//
// A channel is one connection to one address. It comes up when both sides have said hello and agree; when it goes down
// all its calls end with UNAVAILABLE at once, and it reconnects with backoff and jitter. It goes down when the connection ends, and when
// the peer has said nothing for a while, though it was asked whether it is alive: nobody ends the connection of a host that is gone. The
// runtime never repeats a call: the caller may, since every method tolerates it.
//
// Flow control: a client has at most `window` calls in flight. A server has at most RPC_UNACKED_MAX unacknowledged messages under way
// to one client; further ones wait in a queue. A client that lets RPC_QUEUE_MAX messages or RPC_QUEUE_BYTES pile up there loses its
// connection, and so does one that owes acknowledgements and says nothing for a minute. Either side also loses its connection if it
// leaves more than RPC_UNSENT_BYTES unread. The window does not prevent this: a call that ends at its deadline leaves the window, but its
// request stays queued.
//
// Everything received is checked. A malformed envelope, a breach of the protocol, or more than 64 KiB before the end of the handshake
// costs the sender its connection. A payload that does not unpack is answered INVALID_ARGUMENT.
#ifndef FD_RPC_RPC_H
#define FD_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "common/base/status.h"
#include "common/rpc/roles.h"
#include "common/rpc/security.h"

enum {
    RPC_PROTOCOL = 2, // 2: attention of more than 4,096 positions is folded span by span, so its bits are others than in 1
    RPC_UNACKED_MAX = 48,
    RPC_ACK_EVERY = 16,
    RPC_QUEUE_MAX = 1 << 16,
    RPC_QUEUE_BYTES = 128 << 20,  // waiting for one client; a single message may be larger
    RPC_UNSENT_BYTES = 256 << 20, // the most bytes queued for a peer; a single message may be larger
    RPC_CALLS_MAX = 1 << 16,      // the most calls of one server, including those whose clients are gone
    RPC_WINDOW_DEFAULT = 64,
    RPC_WINDOW_MAX = 1 << 14,
    RPC_MESSAGE_BYTES_DEFAULT = 64 << 20,
    RPC_SILENCE_MS_DEFAULT = 60000, // a peer whose thread computes may not look up for long
    RPC_ID_BYTES = 64,              // longer request and trace ids are cut
};

// --- the loop ---

struct rpc_loop;

enum status rpc_loop_open(struct rpc_loop **out) MUST_CHECK;
// All servers and channels on it must have been closed and kept messages freed. Posted functions that have not run are dropped.
void rpc_loop_close(struct rpc_loop *loop);

// Call it before opening servers and channels on the loop. They then prove to their peers that they know the secret and show the certificate, and
// refuse peers that do not; either may be missing. The struct is copied; its certificate is borrowed until the loop is closed.
void rpc_loop_set_security(struct rpc_loop *loop, const struct rpc_security *security);

// Handles what has arrived, and waits up to timeout_us if nothing has (0: does not wait; UINT64_MAX: without limit). The first spin_us
// of the wait are a busy loop on hosts with at least four CPUs; with fewer, spinning starves nng's threads (ten times slower on two).
// The first caller becomes the owner. Returns the number of things handled.
uint32_t rpc_loop_run(struct rpc_loop *loop, uint64_t timeout_us, uint64_t spin_us);

// Runs fn(arg) on the loop's thread. Any thread may call it.
void rpc_loop_post(struct rpc_loop *loop, void (*fn)(void *arg), void *arg);
// Makes rpc_loop_run() return soon. Any thread or signal handler may call it.
void rpc_loop_wake(struct rpc_loop *loop);

// Calls fn(arg) once, after delay_us. Returns an id for rpc_loop_cancel_timer(), or 0 if memory is short; the first few dozen
// timers need no memory.
uint64_t rpc_loop_timer(struct rpc_loop *loop, uint64_t delay_us, void (*fn)(void *arg), void *arg);
// Ignores a timer that has run or was cancelled.
void rpc_loop_cancel_timer(struct rpc_loop *loop, uint64_t timer);

// --- peers ---

// Each side's first words. Strings are copied.
struct rpc_hello {
    const char *service; // "s-part"
    uint64_t incarnation;
    uint64_t fingerprint; // identifies the shapes, which must be equal on both sides; 0: matches any
};

#define RPC_PROBE_NAME "health" // what `fastdecode health` says hello as

struct rpc_peer {
    char service[32], version[32];
    uint64_t incarnation, fingerprint;
};

// --- messages ---

struct rpc_message; // one that was received
struct rpc_buffer;  // one to be sent, written in place

// Returns the payload in place; it starts at a multiple of 4 bytes if the sender used this runtime.
const unsigned char *rpc_message_payload(const struct rpc_message *message, size_t *length);
// Unpacks the payload into the message's arena; valid as long as the message. NULL: malformed, or too large once unpacked.
void *rpc_message_unpack(struct rpc_message *message, const ProtobufCMessageDescriptor *descriptor);
// The same for a message that lies within the payload.
void *rpc_message_unpack_part(struct rpc_message *message, const unsigned char *bytes, size_t length,
                              const ProtobufCMessageDescriptor *descriptor);
// A message is freed when its callback returns or its call ends, unless it is kept: then rpc_message_free() frees it, on the loop's
// thread, before the loop closes. Returns message.
struct rpc_message *rpc_message_keep(struct rpc_message *message);
void rpc_message_free(struct rpc_message *message);

// Lends memory for messages, sent (rpc_request_buffer) or received, on channels with `lent`. Meant for pinned memory, which a
// device can read by itself. Messages that do not fit use ordinary memory. 4,096-byte aligned. Call it once, before opening the
// first such channel. RESOURCE_EXHAUSTED: no memory for the bookkeeping.
enum status rpc_lend_memory(void *memory, size_t bytes) MUST_CHECK;
// Call it once all loops are closed, even if nothing was lent. False: a message is still in it (a defect), so it must not be freed.
bool rpc_take_memory_back(void) MUST_CHECK;

// Frees a buffer that will not be sent.
void rpc_buffer_free(struct rpc_buffer *buffer);

// --- servers ---

struct rpc_server;
struct rpc_call; // one being served; exactly one rpc_call_reply*(), rpc_call_end() or rpc_call_fail() ends it

typedef void rpc_handler(struct rpc_call *call, void *user);

struct rpc_method {
    const ProtobufCServiceDescriptor *service;
    const char *method; // must be one of the service's (asserted)
    rpc_handler *handler;
    void *user;
};

// Why a handshake is refused.
enum rpc_refusal { RPC_REFUSED_VERSION, RPC_REFUSED_CERTIFICATE, RPC_REFUSED_SECRET, RPC_REFUSED_MODEL, RPC_REFUSALS };

struct rpc_server_config {
    const char *const *addresses; // "tls+tcp://0.0.0.0:7400", "tcp://127.0.0.1:0", "ipc:///path", "inproc://name"
    uint32_t address_count;
    struct rpc_hello hello;
    const struct rpc_method *methods; // copied
    uint32_t method_count;
    uint32_t window;            // calls in flight per client; exceeding it costs the connection. 0: RPC_WINDOW_MAX
    uint64_t max_message_bytes; // 0: RPC_MESSAGE_BYTES_DEFAULT
    uint32_t silence_ms;        // for how long a client may owe acknowledgements and say nothing; 0: RPC_SILENCE_MS_DEFAULT
    bool (*ready)(void *user, char *reason, size_t reason_bytes); // for Health.Check; NULL: always
    // A peer's hello or proof was refused; it is told why. It may be anybody. NULL: only the log says so.
    void (*on_refused)(void *user, const struct rpc_peer *peer, enum rpc_refusal reason, const char *why);
    void *user;
};

// Listens, and adds the Health service. UNAVAILABLE: the error names an address that cannot be listened on. INVALID_ARGUMENT: the
// error names an address that other machines can reach and that is not protected as security.h wants it. Over TLS a peer says hello as the
// service that its certificate is for, and calls what roles.h lets it call; otherwise PERMISSION_DENIED.
enum status rpc_server_open(struct rpc_loop *loop, const struct rpc_server_config *config, struct rpc_server **out,
                            struct error *error) MUST_CHECK;
// Tells this number to clients that connect from now on.
void rpc_server_set_incarnation(struct rpc_server *server, uint64_t incarnation);
// Drops calls that have not ended; handlers must not touch them afterwards.
void rpc_server_close(struct rpc_server *server);
// Returns the address as bound, with the real port.
const char *rpc_server_address(const struct rpc_server *server, uint32_t index);

struct rpc_message *rpc_call_message(struct rpc_call *call);
// Unpacks the request. NULL: it was malformed, and the call has been ended with INVALID_ARGUMENT.
void *rpc_call_unpack(struct rpc_call *call, const ProtobufCMessageDescriptor *descriptor);
const char *rpc_call_request_id(const struct rpc_call *call); // "" if there is none
const char *rpc_call_trace_id(const struct rpc_call *call);
// NULL: none. Whatever bytes the caller sent; valid as long as the message, not terminated.
const char *rpc_call_trace_state(const struct rpc_call *call, size_t *length);
uint32_t rpc_call_timeout_ms(const struct rpc_call *call); // 0: none
bool rpc_call_is_cancelled(const struct rpc_call *call);   // or its client is gone; for a call without on_cancel, still to be ended
const struct rpc_peer *rpc_call_peer(const struct rpc_call *call);

// Runs fn(user) once if the client cancels or disconnects before the call ends. The call is over then: fn must not end it, and nobody may
// touch it after fn returns. fn may end other calls. Without fn the call stays until the handler ends it, and nothing is sent then.
void rpc_call_on_cancel(struct rpc_call *call, void (*fn)(void *user), void *user);

// A pointer that the handler's owner keeps with the call.
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);

// From now on, if the call fails with INVALID_ARGUMENT, its client loses the connection, and only the log says why.
void rpc_call_set_strict(struct rpc_call *call);

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply);
void rpc_call_fail(struct rpc_call *call, enum status status, const char *format, ...) PRINTF_LIKE(3, 4);
// Sends one message of a stream. RESOURCE_EXHAUSTED: the client does not read; its connection is being closed. UNAVAILABLE: the
// client is gone. OUT_OF_RANGE: the message is larger than the client accepts; nothing was sent.
enum status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);
// Ends a stream with OK.
void rpc_call_end(struct rpc_call *call);

// Begins a reply whose payload, payload_bytes long, the caller writes in place. NULL: no memory.
struct rpc_buffer *rpc_reply_buffer(struct rpc_call *call, size_t payload_bytes, unsigned char **payload);
void rpc_call_reply_buffer(struct rpc_call *call, struct rpc_buffer *buffer);

// --- channels ---

struct rpc_channel;

struct rpc_channel_config {
    const char *address;
    // The service that should answer there, for the line PEER-UNREACHABLE of the log, written after a second without a connection and seldom after:
    // "the scheduler (--scheduler)". A static string. NULL: no line.
    const char *peer;
    struct rpc_hello hello;
    uint32_t peer_roles;        // set of roles (RPC_IS_...) that the server may have; required for tls+tcp
    uint32_t window;            // calls in flight; 0: RPC_WINDOW_DEFAULT
    uint64_t max_message_bytes; // 0: RPC_MESSAGE_BYTES_DEFAULT
    uint32_t silence_ms;        // for how long the peer may say nothing though asked; 0: RPC_SILENCE_MS_DEFAULT
    bool lent;                  // see rpc_lend_memory
    void (*on_up)(void *user, const struct rpc_peer *peer);
    // Called after all calls have ended, also when the peer refused the handshake; `why` has the reason.
    void (*on_down)(void *user, const char *why);
    void *user;
};

struct rpc_options {
    uint32_t timeout_ms;               // 0: none
    const char *request_id, *trace_id; // NULL: none. trace_id: a W3C traceparent
    const char *trace_state;           // NULL: none. A W3C tracestate; not cut
};

struct rpc_callbacks {
    void (*on_message)(void *user, struct rpc_message *message);       // NULL: replies are ignored
    void (*on_end)(void *user, enum status status, const char *error); // exactly once; may be NULL
    bool streams; // any number of messages may come; otherwise a peer must send exactly one before OK, or is disconnected
};

struct rpc_handle {
    uint32_t slot, generation;
};

// Starts connecting. INVALID_ARGUMENT: an address that is not understood, or one beyond this machine over plain tcp (security.h).
enum status rpc_channel_open(struct rpc_loop *loop, const struct rpc_channel_config *config, struct rpc_channel **out,
                             struct error *error) MUST_CHECK;
// Gives the connection up, for the reason `why`, and dials again. Calls in flight end with UNAVAILABLE first.
void rpc_channel_reconnect(struct rpc_channel *channel, const char *why);
// Reconnects and says hello with this number. Calls in flight end with UNAVAILABLE first.
void rpc_channel_set_incarnation(struct rpc_channel *channel, uint64_t incarnation);
// Calls in flight end with CANCELLED first. NULL is allowed. May be called in a callback of the channel.
void rpc_channel_close(struct rpc_channel *channel);
bool rpc_channel_is_up(const struct rpc_channel *channel);
const char *rpc_channel_address(const struct rpc_channel *channel);

// Starts a call; handle may be NULL. A unary call delivers one message, then OK. UNAVAILABLE: the channel is not up. RESOURCE_EXHAUSTED:
// the window is full, or the request is larger than the peer accepts. No callback runs if it fails.
enum status rpc_call_start(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
                           const ProtobufCMessage *request, const struct rpc_options *options,
                           const struct rpc_callbacks *callbacks, void *user, struct rpc_handle *handle,
                           struct error *error) MUST_CHECK;

// The same with a payload that the caller writes in place; timeout_ms 0: none. The buffer is consumed, whatever the status.
struct rpc_buffer *rpc_request_buffer(struct rpc_channel *channel, uint32_t method_id, uint32_t timeout_ms, size_t payload_bytes,
                                      unsigned char **payload);
enum status rpc_call_start_buffer(struct rpc_channel *channel, struct rpc_buffer *buffer, const struct rpc_callbacks *callbacks,
                                  void *user, struct rpc_handle *handle) MUST_CHECK;
// Returns the id that a hot path looks up once. The service must have the method (asserted).
uint32_t rpc_method_id(const ProtobufCServiceDescriptor *service, const char *method);

// Calls on_end with CANCELLED before it returns. Ignores a call that has ended.
void rpc_cancel(struct rpc_channel *channel, struct rpc_handle handle);

// --- probes: ask a service whether it is ready, or alive, as containers do ---
//
// That something accepts a connection says nothing: so does the kernel, for a process that is stopped.

// Prints the answer to stdout. Blocks for at most timeout_ms. OK: it is ready. UNAVAILABLE: it is not, with an empty *error as the answer
// says why, or it is not there. Any other status: nobody was asked, as the address cannot be used or there is no memory.
enum status rpc_probe(const char *address, uint32_t timeout_ms, const struct rpc_security *security,
                      struct error *error) MUST_CHECK;

// The same for the service that listens at `listen` on this host, with its own settings. listen: NULL: it has no such address. alive: OK if it
// answers at all; it is waited for longer, since its thread may compute.
enum status rpc_probe_self(const char *listen, const struct rpc_security_settings *settings, bool alive,
                           struct error *error) MUST_CHECK;

#endif

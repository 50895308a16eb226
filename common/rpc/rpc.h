/* rpc.h: gRPC-style calls over nng: unary calls and server streams, declared by the `service` blocks of proto/.
 *
 * One thread owns a loop, and with it every server, channel and call on it: all functions here are called on that
 * thread (asserted), all callbacks run on it, inside rpc_loop_run(), never under a lock. The exceptions are
 * rpc_loop_post() and rpc_loop_wake(), which any thread may call. Nothing blocks but rpc_loop_run() itself.
 *
 *     nng threads ──▶ queue of the loop ──▶ rpc_loop_run(): handlers, answers, timers
 *     sockets within this host (transport_local.c) ──────────┘
 *
 * A channel is one connection to one address. It comes up when both sides have said hello and agree; when it goes down
 * all its calls end with UNAVAILABLE at once, and it connects again by itself with backoff and jitter. Calls are never
 * repeated by the runtime: that is the caller's choice, and every method can stand it.
 *
 * Flow: a client has at most `window` calls in flight; a server has at most RPC_UNACKED_MAX messages to one client under
 * way that the client has not acknowledged, the others wait in a queue; a client that lets RPC_QUEUE_MAX messages or
 * RPC_QUEUE_BYTES pile up loses its connection. So does either side, if what it does not read comes to RPC_UNSENT_BYTES: calls that
 * ended at their deadline leave the window, not the queue.
 *
 * Everything received is checked. A message that is not an envelope, or breaks the protocol, costs its sender the connection, and
 * so does one of more than 64 KiB before the handshake; a payload that does not unpack is answered INVALID_ARGUMENT.
 */
#ifndef FD_RPC_RPC_H
#define FD_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "common/base/status.h"
#include "common/rpc/secret.h"

enum {
    RPC_PROTOCOL = 1,
    RPC_UNACKED_MAX = 48,
    RPC_ACK_EVERY = 16,
    RPC_QUEUE_MAX = 1 << 16,
    RPC_QUEUE_BYTES = 128 << 20,  /* of what waits for one client, beside a single larger message */
    RPC_UNSENT_BYTES = 256 << 20, /* of what a peer does not take, beside a single larger message */
    RPC_CALLS_MAX = 1 << 16,      /* of a server, those of clients that are gone included */
    RPC_WINDOW_DEFAULT = 64,
    RPC_WINDOW_MAX = 1 << 14,
    RPC_MESSAGE_BYTES_DEFAULT = 64 << 20,
    RPC_ID_BYTES = 64, /* request and trace ids are cut to one less */
};

/* --- the loop ----------------------------------------------------------------------------------------------------- */

struct rpc_loop;

enum status rpc_loop_open(struct rpc_loop **out) MUST_CHECK;
/* All servers and channels on it must be closed, kept messages freed before. What was posted and has not run will not. */
void rpc_loop_close(struct rpc_loop *loop);

// Before the first server and channel of the loop: from then on all of them prove to their peers that they know the secret, and
// talk to none that does not. It is copied. One that is not set changes nothing.
void rpc_loop_set_secret(struct rpc_loop *loop, const struct rpc_secret *secret);

/* Handles what has arrived; waits for it up to timeout_us (0: not at all; UINT64_MAX: for ever), of that spin_us busily
 * (where there are at least four CPUs: with fewer, spinning keeps nng's threads from bringing what is waited for; measured on
 * two: ten times slower). The first caller becomes the owner. Returns the number of things handled. */
uint32_t rpc_loop_run(struct rpc_loop *loop, uint64_t timeout_us, uint64_t spin_us);

/* Any thread: fn(arg) will run on the loop's thread. */
void rpc_loop_post(struct rpc_loop *loop, void (*fn)(void *arg), void *arg);
/* Any thread, signal handlers too: rpc_loop_run() returns soon. */
void rpc_loop_wake(struct rpc_loop *loop);

// fn(arg) once, after delay_us. Returns an id for rpc_loop_cancel_timer(). 0: no memory for another timer; a few dozen need none.
uint64_t rpc_loop_timer(struct rpc_loop *loop, uint64_t delay_us, void (*fn)(void *arg), void *arg);
/* A timer that ran or was cancelled is ignored. */
void rpc_loop_cancel_timer(struct rpc_loop *loop, uint64_t timer);

/* --- who talks ---------------------------------------------------------------------------------------------------- */

/* What each side says first. Strings are copied. */
struct rpc_hello {
    const char *service; /* "s-part" */
    uint64_t incarnation;
    uint64_t fingerprint; /* of what both sides must agree on (shapes); 0: anything goes */
};

struct rpc_peer {
    char service[32], version[32];
    uint64_t incarnation, fingerprint;
};

/* --- messages ----------------------------------------------------------------------------------------------------- */

struct rpc_message; /* one that was received */
struct rpc_buffer;  /* one to be sent, written in place */

/* The payload where it lies; it starts at a multiple of 4 bytes if the sender used this runtime. */
const unsigned char *rpc_message_payload(const struct rpc_message *message, size_t *length);
/* The payload unpacked into the message's arena; NULL if it is malformed or too large unpacked. Valid as long as the message. */
void *rpc_message_unpack(struct rpc_message *message, const ProtobufCMessageDescriptor *descriptor);
/* A callback's message ends with the callback, a call's with the call, unless it is kept; then rpc_message_free() ends it,
 * on the loop's thread, before the loop closes. Returns message. */
struct rpc_message *rpc_message_keep(struct rpc_message *message);
void rpc_message_free(struct rpc_message *message);

/* Lends memory for the messages of channels with `lent` to lie in, sent (rpc_request_buffer) or received, for a reader that prefers its
 * own kind: a device reads pinned memory itself. While there is room they do, the others lie as without. 4,096-byte aligned. Once, before
 * the first such channel. RESOURCE_EXHAUSTED: no memory to keep account of it. */
enum status rpc_lend_memory(void *memory, size_t bytes) MUST_CHECK;
/* When loops are closed; also where none was lent. False: a message is left in it (a defect), so it must stay. */
bool rpc_take_memory_back(void) MUST_CHECK;

/* Gives back a buffer that will not be sent. */
void rpc_buffer_free(struct rpc_buffer *buffer);

/* --- servers ------------------------------------------------------------------------------------------------------ */

struct rpc_server;
struct rpc_call; /* one being served; exactly one rpc_call_reply*() or rpc_call_fail() ends it */

typedef void rpc_handler(struct rpc_call *call, void *user);

struct rpc_method {
    const ProtobufCServiceDescriptor *service;
    const char *method; /* must be one of the service's (asserted) */
    rpc_handler *handler;
    void *user;
};

struct rpc_server_config {
    const char *const *addresses; /* "tcp://127.0.0.1:0", "ipc:///path", "inproc://name" */
    uint32_t address_count;
    struct rpc_hello hello;
    const struct rpc_method *methods; /* copied */
    uint32_t method_count;
    uint32_t window;            /* calls of one client in flight: more cost it the connection; 0: RPC_WINDOW_MAX */
    uint64_t max_message_bytes; /* 0: RPC_MESSAGE_BYTES_DEFAULT */
    bool (*ready)(void *user, char *reason, size_t reason_bytes); /* for Health.Check; NULL: always */
    void *user;
};

/* Listens. The Health service is added. UNAVAILABLE names an address that cannot be listened on; INVALID_ARGUMENT one that others
 * than this machine reach, where the loop has no secret. */
enum status rpc_server_open(struct rpc_loop *loop, const struct rpc_server_config *config, struct rpc_server **out,
                            struct error *error) MUST_CHECK;
// What clients that come from now on are told.
void rpc_server_set_incarnation(struct rpc_server *server, uint64_t incarnation);
/* Calls that are not ended yet are dropped; their handlers' owners must not touch them afterwards. */
void rpc_server_close(struct rpc_server *server);
/* The address as bound: with the real port. */
const char *rpc_server_address(const struct rpc_server *server, uint32_t index);

struct rpc_message *rpc_call_message(struct rpc_call *call);
/* Unpacks the request; NULL: it is malformed, and the call has been ended with INVALID_ARGUMENT. */
void *rpc_call_unpack(struct rpc_call *call, const ProtobufCMessageDescriptor *descriptor);
const char *rpc_call_request_id(const struct rpc_call *call); /* "" if there is none */
const char *rpc_call_trace_id(const struct rpc_call *call);
uint32_t rpc_call_timeout_ms(const struct rpc_call *call); /* 0: none */
const struct rpc_peer *rpc_call_peer(const struct rpc_call *call);

/* fn(user) runs once if the client cancels or goes away before the call is ended; the call is over then: fn must not end it,
 * and nobody may touch it after fn returns. Other calls may be ended in fn. Without it, such a call lives on until it is ended, to no effect. */
void rpc_call_on_cancel(struct rpc_call *call, void (*fn)(void *user), void *user);

/* A pointer that the handler's owner keeps with the call. */
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *reply);
void rpc_call_fail(struct rpc_call *call, enum status status, const char *format, ...) PRINTF_LIKE(3, 4);
/* One message of a stream. RESOURCE_EXHAUSTED: the client does not read; its connection is being closed. UNAVAILABLE: the
 * client is gone. OUT_OF_RANGE: larger than what the client takes; nothing was sent. */
enum status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);
/* A stream ends well, without a message of its own. */
void rpc_call_end(struct rpc_call *call);

/* A reply whose payload is written in place; payload is payload_bytes long. NULL: no memory. */
struct rpc_buffer *rpc_reply_buffer(struct rpc_call *call, size_t payload_bytes, unsigned char **payload);
void rpc_call_reply_buffer(struct rpc_call *call, struct rpc_buffer *buffer);

/* --- channels ----------------------------------------------------------------------------------------------------- */

struct rpc_channel;

struct rpc_channel_config {
    const char *address;
    struct rpc_hello hello;
    uint32_t window;            /* calls in flight; 0: RPC_WINDOW_DEFAULT */
    uint64_t max_message_bytes; /* 0: RPC_MESSAGE_BYTES_DEFAULT */
    bool lent;                  /* see rpc_lend_memory */
    void (*on_up)(void *user, const struct rpc_peer *peer);
    /* Also when the peer refused the handshake: `why` says so. Calls have been ended before. */
    void (*on_down)(void *user, const char *why);
    void *user;
};

struct rpc_options {
    uint32_t timeout_ms;               /* 0: none */
    const char *request_id, *trace_id; /* NULL: none */
};

struct rpc_callbacks {
    void (*on_message)(void *user, struct rpc_message *message);       /* NULL: replies are not looked at */
    void (*on_end)(void *user, enum status status, const char *error); /* exactly once; NULL: nobody asks */
    bool streams; /* any number of messages may come; otherwise a peer that does not send exactly one before OK is cut off */
};

struct rpc_handle {
    uint32_t slot, generation;
};

/* Starts connecting. INVALID_ARGUMENT: an address that nng does not understand. */
enum status rpc_channel_open(struct rpc_loop *loop, const struct rpc_channel_config *config, struct rpc_channel **out,
                             struct error *error) MUST_CHECK;
// Connects again, to say hello with this number. Calls in flight end with UNAVAILABLE first.
void rpc_channel_set_incarnation(struct rpc_channel *channel, uint64_t incarnation);
/* Calls in flight end with CANCELLED first. NULL is allowed. May be called in a callback of the channel. */
void rpc_channel_close(struct rpc_channel *channel);
bool rpc_channel_is_up(const struct rpc_channel *channel);
const char *rpc_channel_address(const struct rpc_channel *channel);

/* Starts a call. UNAVAILABLE: the channel is not up; RESOURCE_EXHAUSTED: the window is full, or the request larger than
 * what the peer takes; then no callback comes.
 * handle may be NULL. A unary call gives one message, then OK. */
enum status rpc_call_start(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
                           const ProtobufCMessage *request, const struct rpc_options *options,
                           const struct rpc_callbacks *callbacks, void *user, struct rpc_handle *handle,
                           struct error *error) MUST_CHECK;

/* The same with a payload written in place; timeout_ms 0: none. The buffer is used up, whatever the status. */
struct rpc_buffer *rpc_request_buffer(struct rpc_channel *channel, uint32_t method_id, uint32_t timeout_ms, size_t payload_bytes,
                                      unsigned char **payload);
enum status rpc_call_start_buffer(struct rpc_channel *channel, struct rpc_buffer *buffer, const struct rpc_callbacks *callbacks,
                                  void *user, struct rpc_handle *handle) MUST_CHECK;
/* What a hot path looks up once. Asserted: the service has the method. */
uint32_t rpc_method_id(const ProtobufCServiceDescriptor *service, const char *method);

/* on_end comes with CANCELLED, before this returns. A call that has ended is ignored. */
void rpc_cancel(struct rpc_channel *channel, struct rpc_handle handle);

#endif

// message.h: the envelope around every message, received messages with the memory they unpack into, messages to be sent, and the pool that
// both come from. Not included from outside the RPC runtime.
#ifndef FD_RPC_MESSAGE_H
#define FD_RPC_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/alloc.h"
#include "common/base/status.h"
#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"

// --- envelopes: parsed by hand, so that a payload is never copied ---

// The numbers of proto/envelope.proto.
enum envelope_kind {
    ENVELOPE_HELLO = 1,
    ENVELOPE_REQUEST = 2,
    ENVELOPE_CANCEL = 3,
    ENVELOPE_STREAM = 4,
    ENVELOPE_REPLY = 5,
    ENVELOPE_ACK = 6,
    ENVELOPE_REFUSED = 7,
    ENVELOPE_CHALLENGE = 8,
    ENVELOPE_PROOF = 9,
};

struct envelope {
    uint32_t kind, method, status, timeout_ms;
    uint64_t call_id;
    char request_id[RPC_ID_BYTES], trace_id[RPC_ID_BYTES];
    char error[256];
    const char *trace_state; // in the message, not terminated
    size_t trace_state_length;
    const unsigned char *payload; // in the message
    size_t payload_length;
};

// Returns false if the bytes are malformed, the kind is unknown, or a known field has another type or is out of range. Skips unknown fields;
// cuts text to fit.
bool envelope_parse(const unsigned char *bytes, size_t length, struct envelope *out);

// Returns the size of an envelope with this head and payload length. *payload_at: where the payload goes, a multiple of 4.
size_t envelope_size(const struct envelope *head, size_t payload_length, size_t *payload_at);

// Writes the head into envelope_size() bytes; the caller fills the payload. The call id is always at bytes 3 to 10, so it can be set
// last.
void envelope_write(const struct envelope *head, size_t payload_length, unsigned char *bytes);
void envelope_set_call_id(unsigned char *bytes, uint64_t call_id);

// --- messages ---

// One a loop, of its thread. Zeroed, it can be opened.
struct message_pool {
    struct rpc_message *messages;
    struct rpc_buffer *buffers;
    uint32_t message_count;
};

struct rpc_message {
    struct message_pool *pool;
    struct rpc_message *next; // of the pool
    struct frame *frame;
    struct envelope envelope;
    struct arena arena;
    bool kept, borrowed; // borrowed: a callback has it now
};

struct rpc_buffer {
    struct message_pool *pool;
    struct rpc_buffer *next;
    struct frame *frame;
    uint32_t timeout_ms;
};

// False: no memory; it can be closed all the same.
bool message_pool_open(struct message_pool *pool);
void message_pool_close(struct message_pool *pool);

// Takes the frame. NULL: its envelope is malformed, or there is no memory.
struct rpc_message *message_open(struct message_pool *pool, struct frame *frame);

// A buffer whose envelope has been written; NULL: no memory.
struct rpc_buffer *message_buffer_open(struct message_pool *pool, const struct envelope *head, size_t payload_bytes, bool lent,
                                       unsigned char **payload);
// Takes the frame out and gives the buffer back.
struct frame *message_buffer_take(struct rpc_buffer *buffer);
// payload NULL: an empty one. NULL: no memory.
struct frame *message_pack(struct message_pool *pool, const struct envelope *head, const ProtobufCMessage *payload);

#endif

// message.h: received messages with the memory they unpack into, messages to be sent, and the pool that both come from. Not included
// from outside the RPC runtime.
#ifndef FD_RPC_MESSAGE_H
#define FD_RPC_MESSAGE_H

#include "common/base/arena.h"
#include "common/rpc/envelope.h"
#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"

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

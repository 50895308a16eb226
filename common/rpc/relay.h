// relay.h: what transports with threads of their own share: a link's events go through the loop's queue to its owner. Not included from
// outside the RPC runtime.
//
//     the link's thread (or a callback of nng) ── relay_link, relay_message, relay_gone ──▶ queue of the loop ──▶ owner: transport_events
//     owner ── the transport's send ──▶ queue of the link ──▶ the link's thread
//
// A link is made on any thread, handed to the owner in the queue, and belongs to it from then on.
#ifndef FD_RPC_RELAY_H
#define FD_RPC_RELAY_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/rpc/transport.h"

// The first part of a transport's port.
struct relay_port {
    struct loop_source source; // first: callbacks cast back
    struct transport_config config;
    struct relay_link *dialing; // until the owner has it as a link; NULL: none, or the transport dials without one
    // Room for the failure of the dial. relaxed: the dialing thread is joined (TLS), or its aio is stopped (nng), before the owner asks
    atomic_bool has_reserved;
};

// The first part of a transport's link.
struct relay_link {
    struct transport_link base; // first: the endpoint casts to it
    struct relay_port *port;
    struct rpc_loop *loop;
    atomic_bool gone; // its end was put into the loop's queue, once. relaxed: the queue's lock orders the rest
    bool reserved;    // room for that end was reserved
    bool stalled;     // under the loop's lock
    // Largest message accepted. relaxed: the peer sends larger ones only after it has received what is sent after the store
    atomic_ullong max_message_bytes;
    struct frame_reader reader; // of whoever receives
    pthread_mutex_t lock;       // of both below
    struct frame_queue unsent;
    bool is_idle; // nobody sends what is queued, or will look there again
};

// --- ports: on the owner's thread ---

void relay_port_open(struct relay_port *port, const struct transport_config *config);
// Whoever puts events has ended. What waits in the queue is dropped.
void relay_port_close(struct relay_port *port);
// Keeps room for relay_dial_failed(). False: no memory.
bool relay_port_will_dial(struct relay_port *port) MUST_CHECK;

// --- on any thread ---

// The link is zeroed. False: no memory; relay_link_close() all the same.
bool relay_link_open(struct relay_link *link, const struct transport *transport, struct relay_port *port) MUST_CHECK;
// Nobody else uses it any more.
void relay_link_close(struct relay_link *link);
// Hands the link to the owner. False: no memory.
bool relay_link(struct relay_link *link) MUST_CHECK;
// The dial will bring no link.
void relay_dial_failed(struct relay_port *port);
// Takes the frame. False: no memory, and the link is gone: after a lost message both sides would disagree.
bool relay_message(struct relay_link *link, struct frame *frame);
// The link is over. Once, however often it is said.
void relay_gone(struct relay_link *link);
// Takes bytes that were received into the reader's frame; messages go to the owner. False: see frame_reader_take().
bool relay_received(struct relay_link *link, size_t count, void (*deliver)(void *arg, struct frame *frame));

// --- on the owner's thread ---

// Queues a frame, which it takes. Returns whether nobody was sending: the caller must begin then, or wake who does. A full queue shuts the link: the
// peer does not read.
bool relay_put(struct relay_link *link, struct frame *frame) MUST_CHECK;
// An entry of struct transport: messages may be as long from now on.
void relay_allow(struct transport_link *base, uint64_t max_bytes);

#endif

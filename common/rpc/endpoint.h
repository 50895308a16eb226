// endpoint.h: what listens or dials, with its connections ("pipes"). Not included from outside the RPC runtime.
//
// A pipe is a link of a transport that has addresses and, where both ends are on one host, a second one beside it that carries the
// messages from the end of the handshake on. The first one makes the pipe and is its life: when it ends, the pipe has ended.
#ifndef FD_RPC_ENDPOINT_H
#define FD_RPC_ENDPOINT_H

#include "common/rpc/transport.h"

enum { ENDPOINT_TRANSPORTS = 2 }; // that make connections, by address
enum { PIPE_ADDED = 1, PIPE_GONE = 2 };

struct endpoint_pipe;

struct endpoint {
    struct rpc_loop *loop;
    bool opened;
    bool lent;           // what it receives lies in memory that was lent; set before endpoint_open(), as is
    uint32_t peer_roles; // what a peer that is dialed may be, see transport.h
    bool met_tls;        // of the pipe that is gone, see transport.h
    bool *closed;        // set by endpoint_close(), after which nothing of the endpoint may be there any more; NULL: nobody asks
    uint32_t next_pipe;  // ids are not used twice, over openings too
    uint64_t max_message_bytes;
    struct endpoint_pipe *pipes;
    struct transport_port *ports[ENDPOINT_TRANSPORTS]; // NULL: no address of this transport yet
    struct transport_port *beside_port;                // NULL: nothing has been offered or taken yet
    void (*on_message)(struct endpoint *endpoint, uint32_t pipe, struct frame *frame); // takes it
    void (*on_pipe)(struct endpoint *endpoint, uint32_t pipe, int event);              // GONE of pipe 0: dialing failed
    void (*on_settled)(struct endpoint *endpoint);                                     // see endpoint_take_offer
};

// All on the owner's thread; none blocks for longer than a callback of a transport takes. The callbacks set before are kept.
void endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, uint64_t max_message_bytes);
// Return what was wrong; NULL: nothing. *port: the bound one of tcp, else 0. One dial an opening.
const char *endpoint_listen(struct endpoint *endpoint, const char *address, int *port);
const char *endpoint_dial(struct endpoint *endpoint, const char *address);
// Whether it is known that somebody accepts connections at the address that is dialed; until endpoint_close().
bool endpoint_is_accepted(const struct endpoint *endpoint, const char *address);
// No callback comes any more; what was queued is dropped.
void endpoint_close(struct endpoint *endpoint);
// GONE follows.
void endpoint_close_pipe(struct endpoint *endpoint, uint32_t pipe);
// The role that its certificate names; RPC_ROLE_NONE: it has none, or is gone.
enum rpc_role endpoint_role(struct endpoint *endpoint, uint32_t pipe);
// Returns the place of its other end, for the log: "10.0.0.3:4711"; "": not known, or it is gone. Valid until the pipe ends.
const char *endpoint_peer(const struct endpoint *endpoint, uint32_t pipe);
// Logs that this pipe's peer is refused (TLS-REFUSED), with its address and not for each of a flood. False: it has no certificate, and nothing
// was logged.
bool endpoint_log_refused(struct endpoint *endpoint, uint32_t pipe, const char *why);
// Its hello was good: what it sends from here on may be as long as max_message_bytes.
void endpoint_greeted(struct endpoint *endpoint, uint32_t pipe);
// Makes an offer for this pipe. False: there is none. It is good once.
bool endpoint_make_offer(struct endpoint *endpoint, uint32_t pipe, struct transport_offer *out);
// Tries to take the offer. True: on_settled follows, and nothing may be sent before; then, or if this is false, messages go where they
// can: beside the connection, or over it.
bool endpoint_take_offer(struct endpoint *endpoint, uint32_t pipe, const struct transport_offer *offer);
// Takes the message. A pipe that is gone, or that does not take what it is sent: GONE is on its way.
void endpoint_send(struct endpoint *endpoint, uint32_t pipe, struct frame *frame);

#endif

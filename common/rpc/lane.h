/* lane.h: a lane is a plain socket beside a connection within one host: the owner of the loop reads and writes it itself.
 *
 * nng brings a message through its poller, one of its task threads and the loop's queue to the owner: three wake-ups, 60 to
 * 100 µs of CPU time, and on few cores each of them takes the core from a thread that computes. A lane is one wake-up. nng
 * makes the connection, carries the handshake and is what tells that the peer is gone; where there is no lane (another host,
 * another network namespace, tls) it carries everything.
 *
 *     server: HELLO with the name of a socket in the abstract namespace, a token and an answer, random numbers of this connection
 *     client: connects there and says the token
 *     server: has a lane to whom the token was given, and says the answer
 *     client: from here on sends on the lane, and the server when it has heard it there
 *
 * A client says nothing between its hello and this, so no order is lost at the change. Who has no answer in time goes on without a
 * lane: nobody may be there, or somebody else (such names are of a network namespace, a socket's path is of a file system; and
 * anybody on the host may connect). All on the owner's thread.
 */
#ifndef FD_RPC_LANE_H
#define FD_RPC_LANE_H

#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"

enum { LANE_NAME_BYTES = 24 };

struct lane_offer {
    char name[LANE_NAME_BYTES]; /* "": none */
    uint64_t token, answer;
};

struct lane; /* one end of it */
struct lane_callbacks {
    void (*on_message)(void *user, struct frame *frame); /* takes the frame; may close the lane */
    void (*on_gone)(void *user);                         /* once: closed or broken; the user closes it, at once or later */
};

/* reader: how it reads, fresh. fd is connected; it is the lane's from here on, whatever is returned. NULL: no memory. */
struct lane *lane_open(struct rpc_loop *loop, int fd, const struct frame_reader *reader, const struct lane_callbacks *callbacks,
                       void *user);
/* What waits to be sent is tried once more; on_message comes no more. NULL is allowed. */
void lane_close(struct lane *lane);
/* Takes the frame. It goes at once if it says so or if it is large; small ones wait for others until rpc_loop_run() begins or
 * ends. What the peer does not take waits here. */
void lane_send(struct lane *lane, struct frame *frame);
/* The peer is gone: what it sent before is delivered. The lane may be closed by it, but is not freed before this returns. */
void lane_drain(struct lane *lane);
bool lane_was_heard(const struct lane *lane);
/* For loop.c: sends what waits for company. */
void lane_flush_all(struct lane **waiting);

/* --- how they come about --------------------------------------------------------------------------------------------- */

struct lane_port; /* where a server's clients connect */

/* on_lane(user, token, fd): somebody has said this token; the callee takes fd, or returns false. NULL: there can be none. */
struct lane_port *lane_port_open(struct rpc_loop *loop, bool (*on_lane)(void *user, uint64_t token, int fd), void *user);
void lane_port_close(struct lane_port *port);
/* Numbers nobody can guess; false: nothing can be offered now. */
bool lane_port_offer(struct lane_port *port, struct lane_offer *out);
/* Says the token's answer on fd. False: nobody would hear it. */
bool lane_answer(int fd, uint64_t answer);

struct lane_dial; /* a client that has said the token and waits for the answer */

/* on_settled(user, fd), once, unless it is closed before: fd is the callee's and the lane's; -1: there is none. It is over then.
 * NULL: the offer cannot be taken. */
struct lane_dial *lane_dial_open(struct rpc_loop *loop, const struct lane_offer *offer, void (*on_settled)(void *user, int fd),
                                 void *user);
void lane_dial_close(struct lane_dial *dial); /* NULL is allowed */

#endif

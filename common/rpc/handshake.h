// handshake.h: the messages a connection begins with, and the proofs in them. proto/envelope.proto has the protocol.
// Not included from outside the RPC runtime.
#ifndef FD_RPC_HANDSHAKE_H
#define FD_RPC_HANDSHAKE_H

#include "common/rpc/loop.h"
#include "common/rpc/transport.h"

enum { HANDSHAKE_NONCE_BYTES = 32, HANDSHAKE_PROOF_BYTES = 32, HANDSHAKE_DIGEST_BYTES = 32 };

// The subject of one connection's proofs. Either end has one; it is over with the handshake.
struct handshake {
    bool challenged;                              // the server has sent (the client has received) CHALLENGE
    unsigned char digest[HANDSHAKE_DIGEST_BYTES]; // of the client's PeerHello
    unsigned char challenge[HANDSHAKE_NONCE_BYTES];
};

// The other side's HELLO.
struct greeting {
    struct rpc_peer peer;
    uint32_t protocol;
    uint64_t max_message_bytes;
    struct transport_offer offer;
    bool has_nonce; // the client knows a mesh secret
};

// All that return a frame: NULL if there is no memory.

// The client's HELLO; begins its side of the handshake.
struct frame *handshake_client_hello(struct rpc_loop *loop, const struct rpc_hello *hello, uint64_t max_message_bytes,
                                     struct handshake *handshake);
// The server's HELLO, with its proof if the client has given one. offer: NULL: nothing is offered.
struct frame *handshake_server_hello(struct rpc_loop *loop, const struct rpc_hello *hello, uint64_t max_message_bytes,
                                     const struct transport_offer *offer, const struct handshake *handshake);
// The server's CHALLENGE, in answer to the HELLO that `message` is.
struct frame *handshake_challenge(struct rpc_loop *loop, const struct rpc_message *message, struct handshake *handshake);
// The client's PROOF, in answer to a CHALLENGE. False: a malformed one, a second one, or this side has no secret.
bool handshake_answer(struct rpc_loop *loop, struct rpc_message *message, struct handshake *handshake, struct frame **out);

// False: malformed.
bool handshake_parse_hello(struct rpc_message *message, struct greeting *out);
// True: the message (PROOF; the server's HELLO) proves that its sender knows the secret.
bool handshake_client_is_proven(const struct rpc_secret *secret, struct rpc_message *message, const struct handshake *handshake);
bool handshake_server_is_proven(const struct rpc_secret *secret, const struct rpc_message *message,
                                const struct handshake *handshake);

#endif

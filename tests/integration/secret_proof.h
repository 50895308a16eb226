// secret_proof.h: the handshake with a mesh secret, as proto/envelope.proto describes it, without any code of the runtime: so that
// tests can record, replay, reflect and falsify it.
#ifndef FD_TESTS_SECRET_PROOF_H
#define FD_TESTS_SECRET_PROOF_H

#include <sodium.h>

#include "common/rpc/security.h"
#include "envelope.pb-c.h"
#include "tests/integration/frame_socket.h"

enum { PROOF_BYTES = 32, PROOF_COVERED_MAX = 4096 };

// HMAC-SHA512-256 of label, digest of the client's hello, challenge, and what the server said (NULL for the client's proof).
static inline void proof_compute(const struct rpc_secret *secret, const char *label, const ProtobufCBinaryData *client_hello,
                                 const ProtobufCBinaryData *challenge, const ProtobufCBinaryData *said, unsigned char *proof)
{
    unsigned char covered[PROOF_COVERED_MAX];
    size_t length = strlen(label);

    memcpy(covered, label, length);
    crypto_generichash(covered + length, PROOF_BYTES, client_hello->data, client_hello->len, NULL, 0);
    length += PROOF_BYTES;
    memcpy(covered + length, challenge->data, challenge->len);
    length += challenge->len;
    if (said) {
        assert_always(length + said->len <= sizeof covered);
        memcpy(covered + length, said->data, said->len);
        length += said->len;
    }
    crypto_auth_hmacsha512256(proof, covered, length, secret->key);
}

static inline bool proof_send(struct frame_socket *socket, uint32_t kind, const unsigned char *payload, size_t length)
{
    Fastdecode__Envelope envelope = FASTDECODE__ENVELOPE__INIT;
    unsigned char body[PROOF_COVERED_MAX];

    envelope.kind = (Fastdecode__EnvelopeKind)kind;
    envelope.payload = (ProtobufCBinaryData){length, (unsigned char *)payload};
    assert_always(fastdecode__envelope__get_packed_size(&envelope) <= sizeof body);
    return frame_send(socket, body, fastdecode__envelope__pack(&envelope, body));
}

// The next envelope; NULL: closed.
static inline Fastdecode__Envelope *proof_receive(struct frame_socket *socket)
{
    unsigned char body[FRAME_BODY_MAX];
    long length = frame_receive(socket, body);
    return length < 0 ? NULL : fastdecode__envelope__unpack(NULL, (size_t)length, body);
}

// A client's half, recorded.
struct proof_client {
    unsigned char hello[128], proof[2 + PROOF_BYTES]; // packed PeerHello, PeerProof
    size_t hello_bytes;
};

static inline void proof_make_hello(const struct rpc_secret *secret, struct proof_client *client)
{
    Fastdecode__PeerHello hello = FASTDECODE__PEER_HELLO__INIT;
    unsigned char nonce[PROOF_BYTES];

    hello.protocol = RPC_PROTOCOL;
    hello.service = (char *)"tester";
    hello.max_message_bytes = 1 << 16;
    if (secret) {
        randombytes_buf(nonce, sizeof nonce);
        hello.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    }
    client->hello_bytes = fastdecode__peer_hello__pack(&hello, client->hello);
}

// The packed PeerProof that answers a challenge.
static inline void proof_make_answer(const struct rpc_secret *secret, const ProtobufCBinaryData *challenge,
                                     struct proof_client *client)
{
    const ProtobufCBinaryData hello = {client->hello_bytes, client->hello};

    client->proof[0] = 0x0a;
    client->proof[1] = PROOF_BYTES;
    proof_compute(secret, "fastdecode mesh 1 client", &hello, challenge, NULL, client->proof + 2);
}

// Sends HELLO and, if challenged, PROOF. Returns the kind of what the server ends with; 0: it closed.
static inline uint32_t proof_handshake(struct frame_socket *socket, const struct rpc_secret *secret, struct proof_client *client)
{
    Fastdecode__Envelope *answer = NULL;
    uint32_t kind = 0;

    proof_make_hello(secret, client);
    if (proof_send(socket, FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_HELLO, client->hello, client->hello_bytes))
        answer = proof_receive(socket);
    if (answer && secret && answer->kind == FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_CHALLENGE) {
        Fastdecode__PeerChallenge *challenge = fastdecode__peer_challenge__unpack(NULL, answer->payload.len, answer->payload.data);
        proof_make_answer(secret, &challenge->nonce, client);
        fastdecode__peer_challenge__free_unpacked(challenge, NULL);
        fastdecode__envelope__free_unpacked(answer, NULL);
        answer = proof_send(socket, FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_PROOF, client->proof, sizeof client->proof)
                     ? proof_receive(socket)
                     : NULL;
    }
    if (answer) {
        kind = answer->kind;
        fastdecode__envelope__free_unpacked(answer, NULL);
    }
    return kind;
}

#endif

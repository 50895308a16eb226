// handshake.c: writes, reads and proves the messages that a connection begins with.
//
// The server's proof is the last field of its PeerHello, so "what precedes it" is a prefix of the payload: the sender packs
// the message without the field and appends it, the receiver walks the fields to find where it begins.
#include "common/rpc/handshake.h"

#include <sodium.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/options.h"
#include "common/rpc/wire.h"
#include "envelope.pb-c.h"

enum { PEER_BYTES_LEAST = 4096 }; // every peer takes an error: one that says less is sent that much
enum { FIELD_PROOF = 11, PROOF_FIELD_BYTES = 2 + HANDSHAKE_PROOF_BYTES };

_Static_assert((int)HANDSHAKE_PROOF_BYTES == (int)crypto_auth_hmacsha512256_BYTES, "proto/envelope.proto");
_Static_assert((int)RPC_SECRET_KEY_BYTES == (int)crypto_auth_hmacsha512256_KEYBYTES, "proto/envelope.proto");

static const char client_label[] = "fastdecode mesh 1 client", server_label[] = "fastdecode mesh 1 server";

// said: what the server's proof covers beside the handshake; NULL for the client's.
static void prove(const struct rpc_secret *secret, const char *label, const struct handshake *handshake, const unsigned char *said,
                  size_t said_bytes, unsigned char proof[HANDSHAKE_PROOF_BYTES])
{
    crypto_auth_hmacsha512256_state state;

    crypto_auth_hmacsha512256_init(&state, secret->key, sizeof secret->key);
    crypto_auth_hmacsha512256_update(&state, (const unsigned char *)label, strlen(label));
    crypto_auth_hmacsha512256_update(&state, handshake->digest, sizeof handshake->digest);
    crypto_auth_hmacsha512256_update(&state, handshake->challenge, sizeof handshake->challenge);
    if (said)
        crypto_auth_hmacsha512256_update(&state, said, said_bytes);
    crypto_auth_hmacsha512256_final(&state, proof);
    sodium_memzero(&state, sizeof state);
}

static void digest_hello(struct handshake *handshake, const unsigned char *payload, size_t length)
{
    crypto_generichash(handshake->digest, sizeof handshake->digest, payload, length, NULL, 0);
}

static void fill_hello(Fastdecode__PeerHello *message, const struct rpc_hello *hello, uint64_t max_message_bytes)
{
    fastdecode__peer_hello__init(message);
    message->protocol = RPC_PROTOCOL;
    message->service = (char *)hello->service;
    message->version = (char *)FASTDECODE_VERSION;
    message->incarnation = hello->incarnation;
    message->fingerprint = hello->fingerprint;
    message->max_message_bytes = max_message_bytes;
}

struct frame *handshake_client_hello(struct rpc_loop *loop, const struct rpc_hello *hello, uint64_t max_message_bytes,
                                     struct handshake *handshake)
{
    const struct envelope head = {.kind = ENVELOPE_HELLO};
    Fastdecode__PeerHello message;
    unsigned char nonce[HANDSHAKE_NONCE_BYTES], *payload;

    fill_hello(&message, hello, max_message_bytes);
    *handshake = (struct handshake){0};
    if (loop_secret(loop)->is_set) {
        randombytes_buf(nonce, sizeof nonce);
        message.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    }
    size_t length = protobuf_c_message_get_packed_size(&message.base);
    struct rpc_buffer *buffer = message_buffer_open(loop_messages(loop), &head, length, false, &payload);
    if (!buffer)
        return NULL;
    protobuf_c_message_pack(&message.base, payload);
    digest_hello(handshake, payload, length);
    return message_buffer_take(buffer);
}

struct frame *handshake_server_hello(struct rpc_loop *loop, const struct rpc_hello *hello, uint64_t max_message_bytes,
                                     const struct transport_offer *offer, const struct handshake *handshake)
{
    const struct envelope head = {.kind = ENVELOPE_HELLO};
    Fastdecode__PeerHello message;
    unsigned char *payload;

    fill_hello(&message, hello, max_message_bytes);
    if (offer) {
        message.local_socket = (char *)offer->name;
        message.local_token = offer->token;
        message.local_answer = offer->answer;
    }
    size_t length = protobuf_c_message_get_packed_size(&message.base);
    struct rpc_buffer *buffer =
        message_buffer_open(loop_messages(loop), &head, length + (handshake->challenged ? PROOF_FIELD_BYTES : 0), false, &payload);
    if (!buffer)
        return NULL;
    protobuf_c_message_pack(&message.base, payload);
    if (handshake->challenged) {
        unsigned char proof[HANDSHAKE_PROOF_BYTES];
        struct wire_writer writer = {.bytes = payload + length, .length = PROOF_FIELD_BYTES};
        prove(loop_secret(loop), server_label, handshake, payload, length, proof);
        wire_put_bytes(&writer, FIELD_PROOF, proof, sizeof proof);
    }
    return message_buffer_take(buffer);
}

struct frame *handshake_challenge(struct rpc_loop *loop, const struct rpc_message *message, struct handshake *handshake)
{
    const struct envelope head = {.kind = ENVELOPE_CHALLENGE};
    Fastdecode__PeerChallenge challenge = FASTDECODE__PEER_CHALLENGE__INIT;

    digest_hello(handshake, message->envelope.payload, message->envelope.payload_length);
    randombytes_buf(handshake->challenge, sizeof handshake->challenge);
    handshake->challenged = true;
    challenge.nonce = (ProtobufCBinaryData){sizeof handshake->challenge, handshake->challenge};
    return message_pack(loop_messages(loop), &head, &challenge.base);
}

bool handshake_answer(struct rpc_loop *loop, struct rpc_message *message, struct handshake *handshake, struct frame **out)
{
    const struct envelope head = {.kind = ENVELOPE_PROOF};
    const struct rpc_secret *secret = loop_secret(loop);
    const Fastdecode__PeerChallenge *challenge = rpc_message_unpack(message, &fastdecode__peer_challenge__descriptor);
    Fastdecode__PeerProof answer = FASTDECODE__PEER_PROOF__INIT;
    unsigned char proof[HANDSHAKE_PROOF_BYTES];

    if (!challenge || !secret->is_set || handshake->challenged || challenge->nonce.len != sizeof handshake->challenge)
        return false;
    memcpy(handshake->challenge, challenge->nonce.data, sizeof handshake->challenge);
    handshake->challenged = true;
    prove(secret, client_label, handshake, NULL, 0, proof);
    answer.proof = (ProtobufCBinaryData){sizeof proof, proof};
    *out = message_pack(loop_messages(loop), &head, &answer.base);
    return true;
}

bool handshake_client_is_proven(const struct rpc_secret *secret, struct rpc_message *message, const struct handshake *handshake)
{
    const Fastdecode__PeerProof *said = rpc_message_unpack(message, &fastdecode__peer_proof__descriptor);
    unsigned char proof[HANDSHAKE_PROOF_BYTES];

    if (!said || !handshake->challenged || said->proof.len != sizeof proof)
        return false;
    prove(secret, client_label, handshake, NULL, 0, proof);
    return !sodium_memcmp(proof, said->proof.data, sizeof proof);
}

bool handshake_server_is_proven(const struct rpc_secret *secret, const struct rpc_message *message,
                                const struct handshake *handshake)
{
    const unsigned char *payload = message->envelope.payload, *end = payload + message->envelope.payload_length, *before = payload;
    unsigned char proof[HANDSHAKE_PROOF_BYTES];
    struct wire_reader reader;
    struct wire_field field = {0};
    bool bad;

    if (!handshake->challenged)
        return false;
    wire_reader_init(&reader, payload, message->envelope.payload_length);
    for (; wire_next(&reader, &field, &bad) && field.number != FIELD_PROOF; before = reader.at) {}
    if (field.number != FIELD_PROOF || field.type != WIRE_BYTES || field.length != sizeof proof || reader.at != end)
        return false;
    prove(secret, server_label, handshake, payload, (size_t)(before - payload), proof);
    return !sodium_memcmp(proof, field.bytes, sizeof proof);
}

static void copy_text(char *to, size_t to_bytes, const char *from)
{
    size_t at = 0;
    for (; from && from[at] && at + 1 < to_bytes; at++)
        to[at] = (unsigned char)from[at] < 0x20 || from[at] == 0x7f ? '?' : from[at];
    to[at] = '\0';
}

bool handshake_parse_hello(struct rpc_message *message, struct greeting *out)
{
    const Fastdecode__PeerHello *hello = rpc_message_unpack(message, &fastdecode__peer_hello__descriptor);

    if (!hello)
        return false;
    copy_text(out->peer.service, sizeof out->peer.service, hello->service);
    copy_text(out->peer.version, sizeof out->peer.version, hello->version);
    out->peer.incarnation = hello->incarnation;
    out->peer.fingerprint = hello->fingerprint;
    out->protocol = hello->protocol;
    out->has_nonce = hello->nonce.len == HANDSHAKE_NONCE_BYTES;
    out->offer = (struct transport_offer){.token = hello->local_token, .answer = hello->local_answer};
    if (strlen(hello->local_socket) < sizeof out->offer.name)
        memcpy(out->offer.name, hello->local_socket, strlen(hello->local_socket));
    out->max_message_bytes = hello->max_message_bytes ? hello->max_message_bytes : RPC_MESSAGE_BYTES_DEFAULT;
    out->max_message_bytes = MAX(out->max_message_bytes, (uint64_t)PEER_BYTES_LEAST);
    return true;
}

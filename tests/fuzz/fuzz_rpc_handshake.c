// fuzz_rpc_handshake.c: a handshake one of whose messages was changed on its way: hello, challenge, proof, or the server's hello. Whatever
// the bytes, what is taken from them is within its limits, and a proof holds only for what its sender has said.
//
//     input: which message, how it is changed, where (two bytes), bytes
#include <sodium.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/rpc/handshake.h"

enum { CLIENT_HELLO, CHALLENGE, PROOF, SERVER_HELLO, MESSAGES };
enum { REPLACED, OVERWRITTEN, INSERTED, CUT_OFF, WAYS };
enum { HEAD_BYTES = 4, PAYLOAD_BYTES_MAX = 64 << 10, PROOF_FIELD_BYTES = 2 + HANDSHAKE_PROOF_BYTES };

struct change {
    uint32_t message, way, at;
    const uint8_t *bytes;
    size_t length;
};

static struct rpc_loop *loop;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

// The same input takes the same way: what should be random is not.
static const char *random_name(void) { return "fixed"; }
static uint32_t random_word(void) { return 0x5eed; }
static void random_bytes(void *const out, const size_t length) { memset(out, 0xA5, length); }

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static struct randombytes_implementation fixed = {
        .implementation_name = random_name, .random = random_word, .buf = random_bytes};
    const struct rpc_security security = {.secret = {.is_set = true, .key = "a key that nobody else has, mesh"}};

    (void)argc, (void)argv;
    assert_always(!randombytes_set_implementation(&fixed) && sodium_init() >= 0);
    assert_always(rpc_loop_open(&loop) == STATUS_OK);
    rpc_loop_set_security(loop, &security);
    return 0;
}

// Takes the frame that one end has sent; returns what the other end receives.
static struct rpc_message *receive(struct frame *frame, uint32_t which, const struct change *change)
{
    struct rpc_message *sent = message_open(loop_messages(loop), frame);
    assert_always(sent);
    if (change->message != which)
        return sent;

    const struct envelope *envelope = &sent->envelope;
    const size_t at = change->at % (envelope->payload_length + 1), left = envelope->payload_length - at;
    const size_t before = change->way == REPLACED ? 0 : at;
    const size_t after = change->way == INSERTED ? left : change->way == OVERWRITTEN ? left - MIN(left, change->length) : 0;
    const size_t length = change->way == CUT_OFF ? 0 : change->length;
    const struct envelope head = {.kind = envelope->kind};
    unsigned char *payload;
    struct rpc_buffer *buffer = message_buffer_open(loop_messages(loop), &head, before + length + after, false, &payload);
    assert_always(buffer);
    if (before)
        memcpy(payload, envelope->payload, before);
    if (length)
        memcpy(payload + before, change->bytes, length);
    if (after)
        memcpy(payload + before + length, envelope->payload + envelope->payload_length - after, after);
    rpc_message_free(sent);
    struct rpc_message *received = message_open(loop_messages(loop), message_buffer_take(buffer));
    assert_always(received);
    return received;
}

static bool is_text(const char *text, size_t capacity)
{
    size_t length = strnlen(text, capacity);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return length < capacity;
}

static bool check_hello(struct rpc_message *message)
{
    struct greeting greeting = {0};
    if (!handshake_parse_hello(message, &greeting))
        return false;
    assert_always(is_text(greeting.peer.service, sizeof greeting.peer.service));
    assert_always(is_text(greeting.peer.version, sizeof greeting.peer.version));
    assert_always(memchr(greeting.offer.name, 0, sizeof greeting.offer.name));
    assert_always(greeting.max_message_bytes >= 4096);
    return true;
}

// The client's side after its hello was received: true if it proves itself.
static bool client_proves(struct rpc_message *challenge, struct handshake *client, const struct handshake *server,
                          const struct change *change)
{
    struct frame *answer;
    if (!handshake_answer(loop, challenge, client, &answer))
        return false;
    assert_always(client->challenged && answer);
    struct rpc_message *proof = receive(answer, PROOF, change);
    bool proven = handshake_client_is_proven(loop_secret(loop), proof, server);
    rpc_message_free(proof);
    return proven;
}

// The server's hello on its way to the client. Its proof covers all that precedes it.
static void welcome(const struct change *change, const struct handshake *client, const struct handshake *server)
{
    const struct rpc_hello hello = {.service = "scheduler", .incarnation = 78};
    const struct transport_offer offer = {.name = "socket", .token = 5, .answer = 6};
    struct frame *frame = handshake_server_hello(loop, &hello, 1 << 20, &offer, server);
    unsigned char said[512];
    struct envelope envelope;

    assert_always(envelope_parse(frame_bytes(frame), frame->length, &envelope) && envelope.payload_length <= sizeof said);
    memcpy(said, envelope.payload, envelope.payload_length);
    const size_t covered = envelope.payload_length - PROOF_FIELD_BYTES, length = envelope.payload_length;
    struct rpc_message *reply = receive(frame, SERVER_HELLO, change);
    envelope = reply->envelope;
    const bool proven = handshake_server_is_proven(loop_secret(loop), reply, client);
    assert_always(proven || change->message == SERVER_HELLO);
    if (proven) {
        assert_always(envelope.payload_length >= length && !memcmp(envelope.payload, said, covered));
        assert_always(!memcmp(envelope.payload + envelope.payload_length - HANDSHAKE_PROOF_BYTES,
                              said + length - HANDSHAKE_PROOF_BYTES, HANDSHAKE_PROOF_BYTES));
    }
    (void)check_hello(reply);
    rpc_message_free(reply);
}

static void shake(const struct change *change)
{
    const struct rpc_hello says = {.service = "kv-worker", .incarnation = 77, .fingerprint = 1};
    struct handshake client, server = {0};
    struct rpc_message *hello = receive(handshake_client_hello(loop, &says, 1 << 20, &client), CLIENT_HELLO, change);

    if (check_hello(hello)) {
        struct rpc_message *challenge = receive(handshake_challenge(loop, hello, &server), CHALLENGE, change);
        const bool proven = client_proves(challenge, &client, &server, change);
        assert_always(proven || change->message < SERVER_HELLO);
        if (proven) {
            assert_always(!memcmp(client.digest, server.digest, sizeof client.digest));
            assert_always(!memcmp(client.challenge, server.challenge, sizeof client.challenge));
            welcome(change, &client, &server);
        }
        rpc_message_free(challenge);
    }
    rpc_message_free(hello);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES || size > PAYLOAD_BYTES_MAX)
        return 0;
    const struct change change = {.message = data[0] % (MESSAGES + 1), // MESSAGES: none
                                  .way = data[1] % WAYS,
                                  .at = (uint32_t)data[2] << 8 | data[3],
                                  .bytes = data + HEAD_BYTES,
                                  .length = size - HEAD_BYTES};
    shake(&change);
    return 0;
}

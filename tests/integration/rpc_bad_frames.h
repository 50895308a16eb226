// rpc_bad_frames.h: malformed messages for any server of the mesh: what is sent, and what must come of it.
//
// bad_frames_run(address) sends each one over a connection of its own. Afterwards a connection that was open all the time
// and a new one must both get an answer from Health.Check. Returns how many went wrong, each named on stderr.
#ifndef FD_TESTS_RPC_BAD_FRAMES_H
#define FD_TESTS_RPC_BAD_FRAMES_H

#include "common/base/checked.h"
#include "common/rpc/rpc.h"
#include "envelope.pb-c.h"
#include "tests/integration/frame_socket.h"
#include "tests/integration/secret_proof.h"

enum frame_outcome {
    FRAME_CLOSED,  // the sender loses its connection
    FRAME_REFUSED, // the handshake is refused, with a reason
    FRAME_STATUS,  // the call ends with a status; the connection goes on
    FRAME_IGNORED, // nothing comes of it; the connection goes on
};

enum frame_level {
    LEVEL_SOCKET,   // instead of a frame
    LEVEL_ENVELOPE, // a body, before HELLO
    LEVEL_GREETED,  // a body, after HELLO
};

struct bad_frame {
    const char *name;
    enum frame_level level;
    enum frame_outcome outcome;
    uint32_t status;
    const char *bytes;
    size_t length;
};

#define B(text) (text), sizeof(text) - 1
#define CALL "\x11\x01\0\0\0\0\0\0\0" // call_id = 1
#define CHECK "\x1d%%%%"              // method = Health/Check: filled in

static const struct bad_frame bad_frames[] = {
    {"an HTTP request", LEVEL_SOCKET, FRAME_CLOSED, 0, B("GET / HTTP/1.1\r\nHost: x\r\n\r\n")},
    {"one letter of a stranger", LEVEL_SOCKET, FRAME_CLOSED, 0, B("S")},
    {"zeros", LEVEL_SOCKET, FRAME_CLOSED, 0, B("\0\0\0\0\0\0\0\0\0\0\0\0")},
    {"another version of the framing", LEVEL_SOCKET, FRAME_CLOSED, 0, B("FDR2\2\0\0\0\x08\x01")},
    {"a TLS hello", LEVEL_SOCKET, FRAME_CLOSED, 0, B("\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03")},
    {"a message of 2 GB", LEVEL_SOCKET, FRAME_CLOSED, 0, B("FDR1\0\0\xff\x7f")},
    {"a message of 2^32-1 bytes", LEVEL_SOCKET, FRAME_CLOSED, 0, B("FDR1\xff\xff\xff\xff")},
    {"a message of no bytes", LEVEL_SOCKET, FRAME_CLOSED, 0, B("FDR1\0\0\0\0")},
    {"a stranger after a hello", LEVEL_SOCKET, FRAME_CLOSED, 0, B("FDR1\2\0\0\0\x08\x02GET /")},
    {"an empty body", LEVEL_ENVELOPE, FRAME_CLOSED, 0, "", 0},
    {"text", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("hello, world")},
    {"bytes of 0xff", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")},
    {"a cut tag", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x80")},
    {"a tag of 11 bytes", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x88\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00\x01")},
    {"field number 0", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x00\x00")},
    {"a field number of 2^29", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x80\x80\x80\x80\x10\x00")},
    {"a group", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x0b\x0c")},
    {"wire type 7", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x0f\x00")},
    {"kind 0", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x00")},
    {"kind 99", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x63")},
    {"kind 2^32 + 1", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x81\x80\x80\x80\x10")},
    {"kind as fixed32", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x0d\x01\0\0\0")},
    {"no kind", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B(CALL)},
    {"a hello without a payload's end", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x7a\x0a\x08")},
    {"a hello whose payload has 2^63 bytes", LEVEL_ENVELOPE, FRAME_CLOSED, 0,
     B("\x08\x01\x7a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")},
    {"a hello that is no PeerHello", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x7a\x03\xff\xff\xff")},
    {"a hello whose service is a number", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x01\x7a\x05\x08\x01\x10\x01\x10")},
    {"a hello of protocol 0", LEVEL_ENVELOPE, FRAME_REFUSED, 0, B("\x08\x01")},
    {"a hello of protocol 4294967295", LEVEL_ENVELOPE, FRAME_REFUSED, 0, B("\x08\x01\x7a\x06\x08\xff\xff\xff\xff\x0f")},
    {"a request before the handshake", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x02" CALL CHECK)},
    {"a cancel before the handshake", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x03" CALL)},
    {"an acknowledgement before the handshake", LEVEL_ENVELOPE, FRAME_CLOSED, 0, B("\x08\x06\x20\x01")},
    {"a second hello", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x01\x7a\x02\x08\x02")},
    {"a stream's message from a client", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x04" CALL)},
    {"a reply from a client", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x05" CALL)},
    {"a refusal from a client", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x07")},
    {"an acknowledgement of what was not sent", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x06\x20\x07")},
    {"an acknowledgement of 2^32 - 1", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x06\x20\xff\xff\xff\xff\x0f")},
    {"an acknowledgement of 2^64 - 1", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x06\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")},
    {"a call id as varint", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x02\x10\x01")},
    {"a cut call id", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x02\x11\x01\0\0")},
    {"a cut method", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x02" CALL "\x1d\x01")},
    {"a payload beyond the end", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x02" CALL CHECK "\x7a\x7f\x01")},
    {"a tail that is no field", LEVEL_GREETED, FRAME_CLOSED, 0, B("\x08\x02" CALL CHECK "\x7a\x00\x80")},
    {"no method", LEVEL_GREETED, FRAME_STATUS, STATUS_UNIMPLEMENTED, B("\x08\x02" CALL)},
    {"an unknown method", LEVEL_GREETED, FRAME_STATUS, STATUS_UNIMPLEMENTED, B("\x08\x02" CALL "\x1d\xde\xad\xbe\xef")},
    {"a payload that is no HealthRequest", LEVEL_GREETED, FRAME_STATUS, STATUS_INVALID_ARGUMENT,
     B("\x08\x02" CALL CHECK "\x7a\x03\xff\xff\xff")},
    {"a payload with a group", LEVEL_GREETED, FRAME_STATUS, STATUS_INVALID_ARGUMENT, B("\x08\x02" CALL CHECK "\x7a\x02\x0b\x0c")},
    {"unknown fields", LEVEL_GREETED, FRAME_STATUS, STATUS_OK, B("\x08\x02" CALL CHECK "\xa0\x06\x01\xaa\x06\x03xyz")},
    {"a request id with control bytes", LEVEL_GREETED, FRAME_STATUS, STATUS_OK, B("\x08\x02" CALL CHECK "\x3a\x04\n\r\0\x1b")},
    {"a request id of 200 bytes", LEVEL_GREETED, FRAME_STATUS, STATUS_OK,
     B("\x08\x02" CALL CHECK "\x3a\xc8\x01"
       "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
       "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789")},
    {"a cancel of no call", LEVEL_GREETED, FRAME_IGNORED, 0, B("\x08\x03" CALL)},
    {"an acknowledgement of nothing", LEVEL_GREETED, FRAME_IGNORED, 0, B("\x08\x06")},
};

// The secret of the mesh whose servers are tried; NULL: it has none.
static const struct rpc_secret *bad_frame_secret;

static inline bool bad_frame_hello(struct frame_socket *client)
{
    struct proof_client proof;
    return proof_handshake(client, bad_frame_secret, &proof) == FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_HELLO;
}

// The next envelope that comes; NULL: closed.
static inline Fastdecode__Envelope *bad_frame_answer(struct frame_socket *client)
{
    unsigned char body[FRAME_BODY_MAX];
    long length = frame_receive(client, body);
    return length < 0 ? NULL : fastdecode__envelope__unpack(NULL, (size_t)length, body);
}

// Health.Check over a greeted connection.
static inline bool bad_frame_healthy(struct frame_socket *client, uint64_t call_id)
{
    Fastdecode__Envelope request = FASTDECODE__ENVELOPE__INIT, *reply;
    unsigned char body[128];
    bool healthy;

    request.kind = FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REQUEST;
    request.call_id = call_id;
    request.method = rpc_method_id(&fastdecode__health__descriptor, "Check");
    if (!frame_send(client, body, fastdecode__envelope__pack(&request, body)) || !(reply = bad_frame_answer(client)))
        return false;
    healthy = reply->call_id == call_id && reply->status == 0 && reply->payload.len > 0;
    fastdecode__envelope__free_unpacked(reply, NULL);
    return healthy;
}

static inline bool bad_frame_send(struct frame_socket *client, const struct bad_frame *frame)
{
    unsigned char bytes[FRAME_BODY_MAX];
    uint32_t check = rpc_method_id(&fastdecode__health__descriptor, "Check");

    memcpy(bytes, frame->bytes, frame->length);
    for (size_t i = 0; frame->length >= 5 && i <= frame->length - 5; i++)
        if (!memcmp(bytes + i, CHECK, 5))
            memcpy(bytes + i + 1, &check, 4);
    if (frame->level == LEVEL_SOCKET)
        return frame_write(client, bytes, frame->length);
    if (frame->level == LEVEL_GREETED && !bad_frame_hello(client))
        return false;
    return frame_send(client, bytes, frame->length);
}

static inline const char *bad_frame_check(const char *address, const struct bad_frame *frame)
{
    struct frame_socket client = frame_connect(address);
    const char *wrong = bad_frame_send(&client, frame) ? NULL : "could not be sent";
    unsigned char byte;

    if (!wrong && frame->outcome == FRAME_CLOSED) {
        struct pollfd ready = {.fd = client.fd, .events = POLLIN};
        while (pace_poll(&ready, 1) && recv(client.fd, &byte, 1, 0) == 1) // its hello
            ;
        wrong = poll(&ready, 1, 0) == 1 ? NULL : "the connection was not closed";
    } else if (!wrong && frame->outcome == FRAME_IGNORED) {
        wrong = bad_frame_healthy(&client, 2) ? NULL : "the connection did not go on";
    } else if (!wrong) {
        Fastdecode__Envelope *answer = bad_frame_answer(&client);
        if (!answer)
            wrong = "no answer";
        else if (frame->outcome == FRAME_REFUSED)
            wrong = answer->kind == FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REFUSED && answer->error[0] ? NULL
                                                                                                         : "it was not refused";
        else if (answer->kind != FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_REPLY || answer->status != frame->status ||
                 (frame->status && !answer->error[0]))
            wrong = "another status";
        else if (!bad_frame_healthy(&client, 2))
            wrong = "the connection did not go on";
        if (answer)
            fastdecode__envelope__free_unpacked(answer, NULL);
    }
    close(client.fd);
    return wrong;
}

static inline uint32_t bad_frames_run(const char *address)
{
    struct frame_socket before = frame_connect(address), after;
    uint32_t failed = !bad_frame_hello(&before);

    for (size_t i = 0; i < ARRAY_COUNT(bad_frames); i++) {
        const char *wrong = bad_frame_check(address, &bad_frames[i]);
        if (wrong)
            fprintf(stderr, "%s: %s: %s\n", address, bad_frames[i].name, wrong);
        failed += wrong != NULL;
    }
    after = frame_connect(address);
    if (!bad_frame_healthy(&before, 9) || !bad_frame_hello(&after) || !bad_frame_healthy(&after, 9)) {
        fprintf(stderr, "%s: others were disturbed\n", address);
        failed++;
    }
    close(before.fd);
    close(after.fd);
    return failed;
}

#undef B
#undef CALL
#undef CHECK

#endif

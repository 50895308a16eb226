// test_rpc_secret.c: with a mesh secret, only those who know it get beyond the handshake, in either direction.
#include <sys/wait.h>

#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/base/log.h"
#include "generate.pb-c.h"
#include "tests/cmocka.h"
#include "tests/integration/rpc_harness.h"
#include "tests/integration/secret_proof.h"

#define KIND(name) FASTDECODE__ENVELOPE_KIND__ENVELOPE_KIND_##name

static struct rpc_secret known, other;

static const struct rpc_method methods[] = {
    {&fastdecode__generator__descriptor, "Generate", harness_reach, NULL},
    {&fastdecode__cluster__descriptor, "RegisterMember", harness_reach, NULL},
};

static void start(struct harness_server *server, const struct rpc_secret *secret, const char *address)
{
    *server = (struct harness_server){.config = {.methods = methods, .method_count = 2}};
    if (secret)
        server->secret = *secret;
    atomic_store(&harness_reached, 0);
    harness_start(server, address);
}

static void open_client(struct harness_client *client, const struct rpc_secret *secret, const char *address)
{
    *client = (struct harness_client){0};
    if (secret)
        client->secret = *secret;
    harness_open(client, address);
}

static void register_with(struct harness_client *client, struct harness_result *result)
{
    Fastdecode__RegisterRequest request = FASTDECODE__REGISTER_REQUEST__INIT;
    struct error error;
    *result = (struct harness_result){0};
    assert_int_equal(rpc_call_start(client->channel, &fastdecode__cluster__descriptor, "RegisterMember", &request.base, NULL,
                                    &harness_callbacks, result, NULL, &error),
                     STATUS_OK);
}

static void peers_that_know_it_talk(void **state)
{
    static const char *const addresses[] = {"tcp://127.0.0.1:0", "inproc://secret", "ipc:///tmp/fd-test-secret-%d"};
    for (size_t i = 0; i < ARRAY_COUNT(addresses); i++) {
        struct harness_server server;
        struct harness_client client;
        struct harness_result result;
        char address[64];
        snprintf(address, sizeof address, addresses[i], (int)getpid());
        start(&server, &known, address);
        open_client(&client, &known, server.address);
        HARNESS_UNTIL(&client, client.ups == 1);
        register_with(&client, &result);
        HARNESS_UNTIL(&client, result.ends == 1);
        assert_int_equal(result.status, STATUS_ABORTED);
        assert_int_equal(atomic_load(&harness_reached), 1);
        harness_close(&client);
        harness_stop(&server);
    }
}

// One of both has no secret, or another one: each pair fails with a reason that names the option.
static void peers_that_do_not_share_it_do_not_talk(void **state)
{
    const struct {
        const struct rpc_secret *server, *client;
        const char *why;
    } cases[] = {
        {&known, NULL, "client has none: start it with --mesh-secret-file"},
        {&known, &other, "have different mesh secrets (--mesh-secret-file)"},
        {NULL, &known, "does not prove that it knows the mesh secret (--mesh-secret-file)"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
        struct harness_server server;
        struct harness_client client;
        start(&server, cases[i].server, "tcp://127.0.0.1:0");
        open_client(&client, cases[i].client, server.address);
        HARNESS_UNTIL(&client, client.downs >= 1);
        assert_int_equal(client.ups, 0);
        assert_non_null(strstr(client.why, cases[i].why));
        harness_close(&client);
        harness_stop(&server);
    }
}

static uint32_t next_kind(struct frame_socket *socket)
{
    Fastdecode__Envelope *answer = proof_receive(socket);
    uint32_t kind = answer ? answer->kind : 0;
    if (answer)
        fastdecode__envelope__free_unpacked(answer, NULL);
    return kind;
}

static void send_request(struct frame_socket *socket, const ProtobufCServiceDescriptor *service, const char *method)
{
    Fastdecode__Envelope request = FASTDECODE__ENVELOPE__INIT;
    unsigned char body[128];

    request.kind = KIND(REQUEST);
    request.call_id = 1;
    request.method = rpc_method_id(service, method);
    frame_send(socket, body, fastdecode__envelope__pack(&request, body)); // it may be closed already
}

// A stranger who sends his calls behind whatever part of the handshake he can say.
static void a_stranger_reaches_no_method(void **state)
{
    struct harness_server server;
    start(&server, &known, "tcp://127.0.0.1:0");
    for (uint32_t way = 0; way < 4; way++) {
        struct frame_socket stranger = frame_connect(server.address);
        struct proof_client client;
        if (way == 1) { // no nonce
            assert_int_equal(proof_handshake(&stranger, NULL, &client), KIND(REFUSED));
        } else if (way == 2) { // a nonce and no proof
            proof_make_hello(&other, &client);
            assert_true(proof_send(&stranger, KIND(HELLO), client.hello, client.hello_bytes));
            assert_int_equal(next_kind(&stranger), KIND(CHALLENGE));
        } else if (way == 3) {
            assert_int_equal(proof_handshake(&stranger, &other, &client), KIND(REFUSED));
        }
        send_request(&stranger, &fastdecode__cluster__descriptor, "RegisterMember");
        send_request(&stranger, &fastdecode__generator__descriptor, "Generate");
        assert_int_equal(next_kind(&stranger), 0);
        close(stranger.fd);
    }
    harness_stop(&server);
    assert_int_equal(atomic_load(&harness_reached), 0);
}

// PROOF without CHALLENGE, twice, or after the handshake; HELLO again while challenged.
static void each_message_of_the_handshake_comes_once(void **state)
{
    struct harness_server server;
    start(&server, &known, "tcp://127.0.0.1:0");
    for (uint32_t way = 0; way < 3; way++) {
        struct frame_socket socket = frame_connect(server.address);
        struct proof_client client = {.proof = {0x0a, PROOF_BYTES}};
        proof_make_hello(&known, &client);
        if (way == 0) {
            assert_true(proof_send(&socket, KIND(PROOF), client.proof, sizeof client.proof));
        } else if (way == 1) {
            assert_int_equal(proof_handshake(&socket, &known, &client), KIND(HELLO));
            assert_true(proof_send(&socket, KIND(PROOF), client.proof, sizeof client.proof));
        } else {
            assert_true(proof_send(&socket, KIND(HELLO), client.hello, client.hello_bytes));
            assert_int_equal(next_kind(&socket), KIND(CHALLENGE));
            assert_true(proof_send(&socket, KIND(HELLO), client.hello, client.hello_bytes));
        }
        assert_int_equal(next_kind(&socket), 0);
        close(socket.fd);
    }
    harness_stop(&server);
}

static void a_recorded_handshake_is_worth_nothing(void **state)
{
    struct harness_server server;
    struct proof_client recorded;
    start(&server, &known, "tcp://127.0.0.1:0");
    struct frame_socket peer = frame_connect(server.address), thief = frame_connect(server.address);
    assert_int_equal(proof_handshake(&peer, &known, &recorded), KIND(HELLO));
    assert_true(proof_send(&thief, KIND(HELLO), recorded.hello, recorded.hello_bytes));
    assert_int_equal(next_kind(&thief), KIND(CHALLENGE));
    assert_true(proof_send(&thief, KIND(PROOF), recorded.proof, sizeof recorded.proof));
    assert_int_equal(next_kind(&thief), KIND(REFUSED));
    send_request(&thief, &fastdecode__generator__descriptor, "Generate");
    assert_int_equal(next_kind(&thief), 0);
    close(peer.fd);
    close(thief.fd);
    harness_stop(&server);
    assert_int_equal(atomic_load(&harness_reached), 0);
}

// --- false servers ---

enum false_server { HONEST, SAYS_NOTHING, REFLECTS, ALTERS, UNCHALLENGED, APPENDS };

// Serves one handshake by hand. The client's proof is checked where the server knows the secret.
static void serve_by_hand(struct frame_socket *socket, enum false_server way)
{
    unsigned char nonce[PROOF_BYTES], packed_challenge[64], packed[256];
    Fastdecode__PeerChallenge challenge = FASTDECODE__PEER_CHALLENGE__INIT;
    Fastdecode__PeerHello hello = FASTDECODE__PEER_HELLO__INIT;
    Fastdecode__Envelope *client_hello = proof_receive(socket), *client_proof = NULL;

    assert_non_null(client_hello);
    randombytes_buf(nonce, sizeof nonce);
    challenge.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    if (way != UNCHALLENGED) {
        assert_true(
            proof_send(socket, KIND(CHALLENGE), packed_challenge, fastdecode__peer_challenge__pack(&challenge, packed_challenge)));
        client_proof = proof_receive(socket);
        assert_non_null(client_proof);
        assert_int_equal(client_proof->kind, KIND(PROOF));
        assert_int_equal(client_proof->payload.len, 2 + PROOF_BYTES);
    }
    hello.protocol = RPC_PROTOCOL;
    hello.service = (char *)"scheduler";
    hello.incarnation = 5;
    size_t length = fastdecode__peer_hello__pack(&hello, packed);
    const ProtobufCBinaryData said = {length, packed};
    if (way != SAYS_NOTHING) {
        packed[length++] = 11 << 3 | 2;
        packed[length++] = PROOF_BYTES;
        if (way == REFLECTS)
            memcpy(packed + length, client_proof->payload.data + 2, PROOF_BYTES);
        else
            proof_compute(&known, "fastdecode mesh 1 server", &client_hello->payload, &challenge.nonce, &said, packed + length);
        length += PROOF_BYTES;
    }
    if (way == ALTERS) // the incarnation
        hello.incarnation = 6, fastdecode__peer_hello__pack(&hello, packed);
    if (way == APPENDS) { // another protobuf reader would take the later one
        packed[length++] = 2 << 3 | 2;
        packed[length++] = 1;
        packed[length++] = 'x';
    }
    assert_true(proof_send(socket, KIND(HELLO), packed, length));
    fastdecode__envelope__free_unpacked(client_hello, NULL);
    if (client_proof)
        fastdecode__envelope__free_unpacked(client_proof, NULL);
}

static bool readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) == 1;
}

static void a_client_trusts_no_server_without_a_proof(void **state)
{
    for (enum false_server way = HONEST; way <= APPENDS; way++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof at;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        struct harness_client client;
        char address[64];
        assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
        assert_int_equal(listen(listener, 8), 0);
        getsockname(listener, (struct sockaddr *)&at, &length);
        snprintf(address, sizeof address, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
        open_client(&client, &known, address);
        HARNESS_UNTIL(&client, readable(listener));
        struct frame_socket server = {accept(listener, NULL, NULL)};
        HARNESS_UNTIL(&client, readable(server.fd));
        // the client's loop must turn while the server waits for its proof
        pid_t child = fork();
        if (!child) {
            serve_by_hand(&server, way);
            _exit(0);
        }
        HARNESS_UNTIL(&client, client.ups || client.downs);
        assert_int_equal(client.ups, way == HONEST);
        if (way != HONEST)
            assert_non_null(strstr(client.why, "does not prove that it knows the mesh secret"));
        harness_close(&client);
        int status = 1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        close(server.fd);
        close(listener);
    }
}

static void others_than_this_machine_need_a_secret(void **state)
{
    static const char *const open_to_all[] = {"tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://*:0"};
    struct rpc_server *server;
    struct rpc_loop *loop;
    struct error error;
    for (size_t i = 0; i < ARRAY_COUNT(open_to_all); i++) {
        const struct rpc_server_config config = {.addresses = &open_to_all[i], .address_count = 1, .hello.service = "scheduler"};
        assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
        assert_int_equal(rpc_server_open(loop, &config, &server, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, open_to_all[i]));
        assert_non_null(strstr(error.text, "--insecure"));
        rpc_loop_set_security(loop, &(struct rpc_security){.is_insecure = true});
        assert_int_equal(rpc_server_open(loop, &config, &server, &error), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, open_to_all[i]));
        assert_non_null(strstr(error.text, "--mesh-secret-file"));
        rpc_loop_set_security(loop, &(struct rpc_security){.secret = known, .is_insecure = true});
        if (i == 0) {
            assert_int_equal(rpc_server_open(loop, &config, &server, &error), STATUS_OK);
            rpc_server_close(server);
        }
        rpc_loop_close(loop);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_that_know_it_talk),
        cmocka_unit_test(peers_that_do_not_share_it_do_not_talk),
        cmocka_unit_test(a_stranger_reaches_no_method),
        cmocka_unit_test(each_message_of_the_handshake_comes_once),
        cmocka_unit_test(a_recorded_handshake_is_worth_nothing),
        cmocka_unit_test(a_client_trusts_no_server_without_a_proof),
        cmocka_unit_test(others_than_this_machine_need_a_secret),
    };
    log_init("test", LOG_ERROR, false);
    assert_always(sodium_init() >= 0);
    known.is_set = other.is_set = true;
    memset(known.key, 7, sizeof known.key);
    memset(other.key, 8, sizeof other.key);
    return cmocka_run_group_tests_name("rpc secret", tests, NULL, NULL);
}

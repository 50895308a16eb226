// fuzz_rpc_gateway.c: a gateway's side of the mesh with a scheduler that says whatever it likes: states, events of streams, metrics and views.
// What it makes a page of is JSON all the same.
//
//     input: moves, a byte each, each followed by what it takes (played_peers.h, message_shape.h)
#include "services/gateway/mesh/mesh.c"

#include <jansson.h>

#include "common/mesh/member.h"
#include "envelope.pb-c.h"
#include "generate.pb-c.h"
#include "tests/fuzz/played_peers.h"
#include "view.pb-c.h"

enum { MOVES_MOST = 256, CALLS = 4, GENERATE = 16, CANCEL, VIEW, METRICS, EXPECT, MOVES };

static const struct peer_role roles[] = {{"health", "health", "", 1}, {"scheduler", "scheduler", "", 1}};

static struct mesh *mesh;
static struct mesh_call *calls[CALLS];
static uint32_t served;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    log_threshold = LOG_ERROR + 1;
    peers_base = member_incarnation();
    peers_know(&fastdecode__health__descriptor);
    served = peer_methods.count;
    peers_know(&fastdecode__generator__descriptor);
    peers_know(&fastdecode__viewer__descriptor);
    return 0;
}

static void on_changed(void *arg)
{
    struct mesh_state state;

    (void)arg;
    mesh_state(mesh, &state);
    assert_always(memchr(state.reason, 0, sizeof state.reason));
}

static void open_mesh(void)
{
    const struct mesh_config config = {.scheduler = "inproc://scheduler",
                                       .listen = "inproc://gateway",
                                       .max_calls = CALLS,
                                       .fingerprint = 77,
                                       .changed = on_changed};
    struct error error;

    memset(calls, 0, sizeof calls);
    assert_always(!mesh_open(&config, &mesh, &error) && !mesh_begin(mesh, &error));
}

static void take_event(void *arg, const Fastdecode__GenerateEvent *event)
{
    static float sum;

    (void)arg;
    for (size_t i = 0; i < event->n_tokens; i++)
        for (size_t k = 0; k < event->tokens[i]->n_top; k++)
            sum += event->tokens[i]->top[k]->logprob;
    for (size_t i = 0; i < event->n_prompt; i++)
        sum += event->prompt[i]->logprob;
    assert_always(strlen(event->error) <= PEER_BYTES_MAX && event->pooled.len <= PEER_BYTES_MAX);
}

static void take_end(void *arg, enum status status, const char *text)
{
    (void)status, (void)text;
    *(struct mesh_call **)arg = NULL;
}

static void generate(uint32_t slot)
{
    const struct mesh_listener listener = {take_event, take_end, &calls[slot]};
    const struct mesh_trace trace = {0};
    Fastdecode__GenerateRequest request = FASTDECODE__GENERATE_REQUEST__INIT;

    if (calls[slot])
        mesh_cancel(calls[slot]);
    calls[slot] = NULL;
    (void)!mesh_generate(mesh, &request, 1000000, &trace, &listener, &calls[slot]);
}

static void take_view(void *arg, const char *text)
{
    json_t *json = text ? json_loads(text, JSON_DECODE_INT_AS_REAL, NULL) : NULL;

    (void)arg;
    assert_always(!text || json_is_object(json));
    json_decref(json);
}

static void take_metrics(void *arg, const char *text)
{
    (void)arg;
    assert_always(!text || strlen(text) <= PEER_BYTES_MAX);
}

static ProtobufCMessage *good_request(struct shape_input *input, const struct peer_role *role, const struct peer_method *method)
{
    (void)input, (void)role;
    return shape_new(method->input);
}

static ProtobufCMessage *good_reply(struct shape_input *input, const struct peer_method *method, const ProtobufCMessage *request)
{
    ProtobufCMessage *message = shape_new(method->output);

    (void)request;
    if (message && method->output == &fastdecode__mesh_state__descriptor) {
        Fastdecode__MeshState *state = (Fastdecode__MeshState *)message;
        state->ready = true;
        state->model = (Fastdecode__ModelInfo *)shape_new(&fastdecode__model_info__descriptor);
        if (state->model)
            state->model->fingerprint = shape_below(input, 4) ? 77 : 78;
    } else if (message && method->output == &fastdecode__mesh_view__descriptor) {
        for (uint32_t i = shape_byte(input) % 16; i > 0; i--) // an empty one says little
            shape_change_at(input, message, 0);
    }
    return message;
}

static struct rpc_server *server_of(const struct peer_method *method)
{
    (void)method;
    return mesh->server;
}

static void find_peer(const struct endpoint *endpoint, struct rpc_hello *hello)
{
    (void)endpoint;
    hello->service = "scheduler";
}

static void own_move(struct shape_input *input, uint32_t what)
{
    const uint32_t slot = shape_below(input, CALLS);

    if (what == GENERATE) {
        generate(slot);
    } else if (what == CANCEL && calls[slot]) {
        struct mesh_call *call = calls[slot];
        calls[slot] = NULL;
        mesh_cancel(call);
    } else if (what == VIEW) {
        mesh_view(mesh, 500000, take_view, NULL);
    } else if (what == METRICS) {
        mesh_metrics(mesh, 500000, take_metrics, NULL);
    } else if (what == EXPECT) {
        mesh_expect(mesh);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct peer_service service = {.roles = roles,
                                         .role_count = ARRAY_COUNT(roles),
                                         .method_count = served,
                                         .server_of = server_of,
                                         .good_request = good_request,
                                         .good_reply = good_reply,
                                         .find_peer = find_peer};
    struct shape_input input = {data, data + size};

    peers_begin();
    open_mesh();
    shape_words = (struct shape_words){.numbers = {77, 78, 100, 2048},
                                       .number_count = 4,
                                       .texts = {"", "s-part", "\"\\\n\x01", "\xff\xfe\xc3", "f16/cuda"},
                                       .text_count = 5};
    for (uint32_t i = 0; i < MOVES_MOST && input.at < input.end; i++) {
        const uint32_t what = shape_below(&input, MOVES);
        if (what >= GENERATE)
            own_move(&input, what);
        else
            peers_move(&service, &input, what);
        for (uint32_t k = 0; k < 2; k++)
            rpc_loop_run(mesh->loop, 0, 0);
        peers_turn();
    }
    mesh_end(mesh);
    mesh_close(mesh);
    return 0;
}

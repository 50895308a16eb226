// fuzz_rpc_scheduler.c: the scheduler among s-parts, workers and gateways that say whatever they like, in any order: each of its methods is
// called as its main() registers it, and each of its calls is answered by a message of the right type with anything in it.
//
//     input: moves, a byte each, each followed by what it takes (played_peers.h, message_shape.h)
#include "services/scheduler/serve.c"

#include "attend.pb-c.h"
#include "envelope.pb-c.h"
#include "tests/fuzz/played_peers.h"

enum { MOVES_MOST = 256, SEQUENCES = 3 };

static const struct peer_role roles[] = {
    {"s-part", "s-part", "inproc://s1", 1},
    {"kv-worker", "w1", "inproc://w1", 1},
    {"gateway", "g", "", 1},
    {"s-part", "s-part-2", "inproc://s2", 2},
    {"kv-worker", "w2", "inproc://w2", 2},
    {"kv-worker", "w1", "inproc://w1", 3},
    {"tester", "t", "", 1},
};

static struct scheduler *scheduler;
static uint32_t served; // methods

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    log_threshold = LOG_ERROR + 1;
    peers_base = member_incarnation();
    peers_know(&fastdecode__cluster__descriptor);
    peers_know(&fastdecode__generator__descriptor);
    peers_know(&fastdecode__viewer__descriptor);
    peers_know(&fastdecode__health__descriptor);
    served = peer_methods.count;
    peers_know(&fastdecode__spart__descriptor);
    peers_know(&fastdecode__kv_control__descriptor);
    return 0;
}

static void open_scheduler(void)
{
    struct error error;

    scheduler = calloc(1, sizeof *scheduler);
    assert_always(scheduler);
    scheduler->settings = (struct scheduler_settings){.listen = "inproc://scheduler",
                                                      .max_queue = 4,
                                                      .batch_queue = 4,
                                                      .max_batch = 4,
                                                      .prefix_cache = true,
                                                      .draft_tokens = SCHED_DRAFT_TOKENS,
                                                      .worker_timeout_ms = 2000};
    scheduler->host.incarnation = peers_base;
    scheduler->sequences.next_id = peers_base + 1;
    scheduler->host.started_us = clock_now_us();
    scheduler_init(scheduler);
    scheduler->claims.settling_capacity = 4;
    scheduler->claims.settling = calloc(scheduler->claims.settling_capacity, sizeof *scheduler->claims.settling);
    assert_always(scheduler->claims.settling && !rpc_loop_open(&scheduler->host.loop) &&
                  !token_logs_open(scheduler_requests_max(&scheduler->settings) + 4, 0, &scheduler->sequences.logs) &&
                  !open_server(scheduler, &error));
}

// --- good messages, which are changed ---

static Fastdecode__KvShape *good_shape(void)
{
    Fastdecode__KvShape *kv = (Fastdecode__KvShape *)shape_new(&fastdecode__kv_shape__descriptor);

    kv->layers = 2;
    kv->heads = 4;
    kv->kv_heads = 2;
    kv->head_dim = 16;
    kv->page_tokens = 16;
    kv->type = FASTDECODE__KV_TYPE__KV_TYPE_F16;
    kv->context_tokens = 2048;
    return kv;
}

static void fill_s_part(struct shape_input *input, Fastdecode__RegisterRequest *request)
{
    static Fastdecode__SamplingFeature features[] = {FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_BANS,
                                                     FASTDECODE__SAMPLING_FEATURE__SAMPLING_FEATURE_POOLING};
    Fastdecode__ModelInfo *model = (Fastdecode__ModelInfo *)shape_new(&fastdecode__model_info__descriptor);
    const uint32_t part = shape_below(input, 4); // of a pipeline of two: 1, 2; without a pool: 3

    request->kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_S_PART;
    request->tensor_address = request->control_address;
    model->name = (char *)"model";
    model->vocab = 100;
    model->context_tokens = 2048;
    model->kv = good_shape();
    request->model = model;
    request->max_rows = 256;
    request->mini_batches = 2;
    request->pages_total = part == 3 ? 0 : 64;
    request->rows_alike = request->takes_extents = true;
    request->first_layer = part == 2;
    request->layer_count = part == 1 || part == 2;
    request->n_sampling_feature = ARRAY_COUNT(features);
    request->sampling_feature = features;
}

static void fill_worker(struct shape_input *input, Fastdecode__RegisterRequest *request)
{
    request->kind = FASTDECODE__SERVICE_KIND__SERVICE_KIND_KV_WORKER;
    request->tensor_address = request->control_address;
    request->pages_total = shape_below(input, 4) ? 64 : 0;
    request->kv = request->pages_total ? good_shape() : NULL;
    request->n_held = shape_below(input, 3);
    request->held = shape_take(3 * sizeof *request->held);
    for (uint32_t i = 0; i < request->n_held; i++) {
        request->held[i] = (Fastdecode__HeldSequence *)shape_new(&fastdecode__held_sequence__descriptor);
        request->held[i]->sequence = peers_base + 1 + shape_below(input, SEQUENCES);
        request->held[i]->positions = request->held[i]->certain = 1 + shape_byte(input);
    }
}

static void fill_generate(struct shape_input *input, Fastdecode__GenerateRequest *request)
{
    static uint32_t tokens[2048];

    for (uint32_t i = 0; i < ARRAY_COUNT(tokens); i++)
        tokens[i] = 1 + i % 5;
    request->n_prompt = 1 + shape_byte(input) * 6;
    request->prompt = tokens;
    request->sampling = (Fastdecode__Sampling *)shape_new(&fastdecode__sampling__descriptor);
    request->max_tokens = 1 + shape_below(input, 16);
    if (shape_below(input, 4) == 0) { // it was there before
        request->sequence = peers_base + 1 + shape_below(input, SEQUENCES);
        request->n_generated = shape_below(input, 4);
        request->generated = tokens;
    }
    if (shape_below(input, 8) == 0) {
        request->sampling->pooling = FASTDECODE__POOLING__POOLING_LAST;
        request->max_tokens = 0;
        request->n_generated = 0;
    }
}

static ProtobufCMessage *good_request(struct shape_input *input, const struct peer_role *role, const struct peer_method *method)
{
    ProtobufCMessage *message = shape_new(method->input);

    if (method->input == &fastdecode__register_request__descriptor) {
        Fastdecode__RegisterRequest *request = (Fastdecode__RegisterRequest *)message;
        request->name = (char *)role->name;
        request->incarnation = peers_base + role->number;
        request->control_address = (char *)role->address;
        (strcmp(role->service, "s-part") ? fill_worker : fill_s_part)(input, request);
    } else if (method->input == &fastdecode__heartbeat_request__descriptor) {
        ((Fastdecode__HeartbeatRequest *)message)->name = (char *)role->name;
        ((Fastdecode__HeartbeatRequest *)message)->incarnation = peers_base + role->number;
    } else if (method->input == &fastdecode__drain_request__descriptor) {
        ((Fastdecode__DrainRequest *)message)->name = (char *)role->name;
        ((Fastdecode__DrainRequest *)message)->incarnation = peers_base + role->number;
    } else if (method->input == &fastdecode__generate_request__descriptor) {
        fill_generate(input, (Fastdecode__GenerateRequest *)message);
    }
    return message;
}

static Fastdecode__RunResult *good_result(const Fastdecode__Run *run)
{
    Fastdecode__RunResult *result = (Fastdecode__RunResult *)shape_new(&fastdecode__run_result__descriptor);

    if (!result)
        return NULL;
    result->sequence = run->sequence;
    result->outcome = FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE;
    if (run->sample && (result->sampled = (Fastdecode__Token *)shape_new(&fastdecode__token__descriptor)))
        result->sampled->token = 1 + run->position % 5;
    return result;
}

static void fill_step_reply(const Fastdecode__StepRequest *request, Fastdecode__StepReply *reply)
{
    reply->step = request->step;
    reply->total_us = reply->s_part_us = 1000;
    reply->results = shape_take((request->n_runs + 1) * sizeof *reply->results);
    for (size_t i = 0; reply->results && i < request->n_runs; i++)
        if ((reply->results[reply->n_results] = good_result(request->runs[i])))
            reply->n_results++;
    reply->places = shape_take((request->n_places + 1) * sizeof *reply->places);
    for (size_t i = 0; reply->places && i < request->n_places; i++) {
        Fastdecode__PlaceTime *time = (Fastdecode__PlaceTime *)shape_new(&fastdecode__place_time__descriptor);
        if (!time)
            return;
        time->worker = request->places[i]->worker;
        time->r_part_us = 100;
        reply->places[reply->n_places++] = time;
    }
}

static ProtobufCMessage *good_reply(struct shape_input *input, const struct peer_method *method, const ProtobufCMessage *request)
{
    (void)input;
    ProtobufCMessage *message = shape_new(method->output);

    if (message && request && method->output == &fastdecode__step_reply__descriptor)
        fill_step_reply((const Fastdecode__StepRequest *)request, (Fastdecode__StepReply *)message);
    return message;
}

// --- the mesh ---

static struct rpc_server *server_of(const struct peer_method *method)
{
    (void)method;
    return scheduler->host.server;
}

// The member that the channel leads to is there.
static void find_peer(const struct endpoint *endpoint, struct rpc_hello *hello)
{
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        if ((struct endpoint *)scheduler->places.of[i].member->channel == endpoint)
            hello->incarnation = scheduler->places.of[i].member->incarnation;
    for (uint32_t i = 0; i < SCHED_STAGES_MAX; i++)
        if ((struct endpoint *)scheduler->s_part.stages[i].member->channel == endpoint)
            hello->incarnation = scheduler->s_part.stages[i].member->incarnation;
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
    open_scheduler();
    shape_words =
        (struct shape_words){.numbers = {peers_base, peers_base + 1, peers_base + 2, peers_base + 3, 100, 99, 256, 2048, 3},
                             .number_count = 9,
                             .texts = {"", "w1", "w2", "s-part", "s-part-2", "inproc://w1", "inproc://s1", "tcp://127.0.0.1:1",
                                       "f32/avx2", "model", "tcp://10.0.0.1:1"},
                             .text_count = 11};
    for (uint32_t i = 0; i < MOVES_MOST && input.at < input.end; i++) {
        peers_move(&service, &input, shape_below(&input, 16));
        for (uint32_t k = 0; k < 2; k++) {
            scheduler_turn(scheduler, 0);
            peers_turn();
        }
    }
    scheduler_close(scheduler);
    free(scheduler);
    return 0;
}

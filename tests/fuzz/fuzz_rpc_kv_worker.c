// fuzz_rpc_kv_worker.c: a KV worker among schedulers, s-parts and workers that say whatever they like, in any order: each method of both of its
// sockets is called as the service registers it, and its registrations, heartbeats and requests for pages are answered by anything. Both of its
// loops are one.
//
//     input: moves, a byte each, each followed by what it takes (played_peers.h, message_shape.h)
#include "services/kv-worker/serve.c"

#include "common/mesh/messages.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "envelope.pb-c.h"
#include "tests/fuzz/played_peers.h"

enum { MOVES_MOST = 256, SEQUENCES = 4, DRAIN = 16, MOVES };

static const struct peer_role roles[] = {
    {"s-part", "s-part", "", 1},       {"scheduler", "scheduler", "", 1}, {"kv-worker", "w2", "", 1},
    {"scheduler", "scheduler", "", 2}, {"s-part", "s-part", "", 2},       {"tester", "t", "", 1},
};

static struct worker *worker;
static struct thread_pool *pool;
static uint32_t served;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct error error;

    (void)argc, (void)argv;
    log_threshold = LOG_ERROR + 1;
    peers_base = member_incarnation();
    assert_always(!kernels_init(NULL, &error));
    assert_always(!thread_pool_open(1, &pool));
    peers_know(&fastdecode__kv_worker__descriptor);
    peers_know(&fastdecode__kv_control__descriptor);
    peers_know(&fastdecode__kv_handover__descriptor);
    peers_know(&fastdecode__health__descriptor);
    served = peer_methods.count;
    peers_know(&fastdecode__cluster__descriptor);
    return 0;
}

static void open_worker(void)
{
    struct error error;

    worker = calloc(1, sizeof *worker);
    assert_always(worker);
    worker->settings = (struct worker_settings){.name = "w1",
                                                .scheduler = "inproc://scheduler",
                                                .listen = "inproc://w1",
                                                .listen_tensors = "inproc://w1-t",
                                                .kv_memory = 1 << 18};
    worker->incarnation = peers_base;
    worker->pool = pool;
    assert_always(!rpc_loop_open(&worker->control.loop));
    worker->tensors.loop = worker->control.loop;
    assert_always(!open_tensors(worker, &error) && !control_open(worker, &error));
}

static void close_worker(void)
{
    handover_close_all(&worker->handover);
    while (rpc_loop_run(worker->control.loop, 0, 0)) {}
    control_close(worker);
    rpc_server_close(worker->tensors.server);
    while (rpc_loop_run(worker->control.loop, 0, 0)) {}
    if (worker->attend.store)
        attend_close(worker);
    rpc_loop_close(worker->control.loop);
    free(worker);
}

// --- good messages, which are changed ---

static void fill_registered(struct shape_input *input, Fastdecode__RegisterReply *reply)
{
    Fastdecode__KvShape *kv = (Fastdecode__KvShape *)shape_new(&fastdecode__kv_shape__descriptor);
    const uint32_t kind = shape_byte(input);

    reply->scheduler_incarnation = reply->s_part_incarnation = peers_base + 1;
    kv->layers = 2;
    kv->heads = 4;
    kv->kv_heads = 2;
    kv->head_dim = 16;
    kv->page_tokens = 16;
    kv->type = kind < 128 ? FASTDECODE__KV_TYPE__KV_TYPE_F16 : (Fastdecode__KvType)(1 + kind % 6);
    kv->context_tokens = 2048;
    kv->sparse_percent = kind % 16 == 15 ? 50 : 0;
    kv->window = kind % 16 == 14 ? 64 : 0;
    kv->n_windowed_layers = kv->window != 0;
    kv->windowed_layers = shape_take(sizeof *kv->windowed_layers);
    kv->windowed_layers[0] = 1;
    reply->kv = kv;
}

// Rows of one or two sequences, in a layer; more follows from what is changed.
static void fill_attend(struct shape_input *input, const struct peer_role *role, Fastdecode__AttendRequest *request)
{
    const uint32_t rows = shape_below(input, 6), reads = shape_below(input, 4) == 3, at = shape_byte(input),
                   how = shape_byte(input);

    request->incarnation = peers_base + role->number;
    request->step = 1 + shape_below(input, 4);
    request->layer = shape_below(input, 2);
    request->mini_batch = shape_below(input, 2);
    request->row_count = rows;
    request->n_row_sequence = request->n_row_position = rows;
    request->row_sequence = shape_take(8 * sizeof *request->row_sequence);
    request->row_position = shape_take(8 * sizeof *request->row_position);
    for (uint32_t i = 0; i < rows; i++) {
        request->row_sequence[i] = 1 + at % SEQUENCES + (i > 2);
        request->row_position[i] = at / SEQUENCES + i;
    }
    if (at == 255 && rows) { // an extent that begins here
        request->n_row_first = rows;
        request->row_first = shape_take(8 * sizeof *request->row_first);
        for (uint32_t i = 0; i < rows; i++) {
            request->row_first[i] = 512;
            request->row_position[i] = 512 + i % 3;
        }
    }
    if (how % 4 == 1) { // sparse ones
        request->row_sparse = (ProtobufCBinaryData){rows, shape_take(rows)};
        memset(request->row_sparse.data, 1, rows);
    }
    if (how % 4 == 2 && rows && request->row_position[0]) { // of a sequence that begins as another
        request->n_share_sequence = request->n_share_from = request->n_share_positions = 1;
        request->share_sequence = &request->row_sequence[0];
        request->share_positions = &request->row_position[0];
        request->share_from = shape_take(sizeof *request->share_from);
        request->share_from[0] = 1 + how / 4 % SEQUENCES;
    }
    request->read_count = reads;
    request->n_read_sequence = request->n_read_first = request->n_read_end = reads;
    request->read_sequence = shape_take(sizeof *request->read_sequence);
    request->read_first = shape_take(sizeof *request->read_first);
    request->read_end = shape_take(sizeof *request->read_end);
    request->read_sequence[0] = 1 + at % SEQUENCES;
    request->read_end[0] = 512;
}

static void fill_fetch(struct shape_input *input, Fastdecode__FetchRequest *request)
{
    request->sequence = 1 + shape_below(input, SEQUENCES);
    request->tensor_address = (char *)"inproc://w2-t";
    request->positions = 1 + shape_below(input, 64);
}

static ProtobufCMessage *good_request(struct shape_input *input, const struct peer_role *role, const struct peer_method *method)
{
    ProtobufCMessage *message = shape_new(method->input);

    if (!message)
        return NULL;
    if (method->input == &fastdecode__attend_request__descriptor) {
        fill_attend(input, role, (Fastdecode__AttendRequest *)message);
    } else if (method->input == &fastdecode__free_request__descriptor) {
        Fastdecode__FreeRequest *request = (Fastdecode__FreeRequest *)message;
        request->scheduler_incarnation = peers_base + role->number;
        request->n_sequence = 1;
        request->sequence = shape_take(sizeof *request->sequence);
        request->sequence[0] = 1 + shape_below(input, SEQUENCES);
    } else if (method->input == &fastdecode__fetch_request__descriptor) {
        ((Fastdecode__FetchRequest *)message)->scheduler_incarnation = peers_base + role->number;
        fill_fetch(input, (Fastdecode__FetchRequest *)message);
    } else if (method->input == &fastdecode__read_page_request__descriptor) {
        ((Fastdecode__ReadPageRequest *)message)->sequence = 1 + shape_below(input, SEQUENCES);
    }
    return message;
}

static ProtobufCMessage *good_reply(struct shape_input *input, const struct peer_method *method, const ProtobufCMessage *request)
{
    ProtobufCMessage *message = shape_new(method->output);

    (void)request;
    if (!message)
        return NULL;
    if (method->output == &fastdecode__register_reply__descriptor) {
        fill_registered(input, (Fastdecode__RegisterReply *)message);
    } else if (method->output == &fastdecode__heartbeat_reply__descriptor) {
        ((Fastdecode__HeartbeatReply *)message)->s_part_incarnation = peers_base + 1;
    } else if (method->output == &fastdecode__read_page_reply__descriptor) {
        Fastdecode__ReadPageReply *reply = (Fastdecode__ReadPageReply *)message;
        reply->positions = 1 + shape_below(input, 16);
        reply->page.len = worker->attend.store ? kv_page_bytes(&worker->attend.shape) : 100;
        reply->page.data = reply->page.len < PEER_BYTES_MAX / 2 ? shape_take(reply->page.len) : NULL;
        reply->page.len = reply->page.data ? reply->page.len : 0;
    }
    return message;
}

// --- Attend, whose tensors are written where they are aligned ---

static void put_list(unsigned char *out, const void *values, size_t value_bytes, size_t count, size_t have)
{
    if (out && values)
        memcpy(out, values, value_bytes * MIN(count, have));
}

static size_t write_attend(struct shape_input *input, ProtobufCMessage *message, unsigned char out[PEER_BYTES_MAX])
{
    const Fastdecode__AttendRequest *r = (const Fastdecode__AttendRequest *)message;
    struct attend_request_parts parts;

    if (message->descriptor != &fastdecode__attend_request__descriptor || !worker->attend.store || r->row_count > 64 ||
        r->read_count > 16 || r->n_share_sequence > 16 || r->n_trace_sequence > 16 || worker->attend.q_width > 512 ||
        shape_byte(input) == 255)
        return 0; // as protobuf-c does
    const struct attend_request_form form = {.incarnation = r->incarnation,
                                             .step = r->step,
                                             .mini_batch = r->mini_batch,
                                             .layer = r->layer,
                                             .row_count = r->row_count,
                                             .share_count = (uint32_t)r->n_share_sequence,
                                             .has_sparse = r->row_sparse.len > 0,
                                             .has_first = r->n_row_first > 0,
                                             .read_count = r->read_count,
                                             .q_width = worker->attend.q_width,
                                             .kv_width = worker->attend.kv_width,
                                             .sink_count = r->sinks.len ? worker->attend.shape.heads : 0,
                                             .trace_count = (uint32_t)r->n_trace_sequence};
    const size_t size = attend_request_size(&form);
    if (size > PEER_BYTES_MAX)
        return 0;
    memset(out, shape_byte(input), size); // the values, too
    attend_request_begin(out, size, &form, &parts);
    put_list(parts.row_sequence, r->row_sequence, 8, form.row_count, r->n_row_sequence);
    put_list(parts.row_position, r->row_position, 4, form.row_count, r->n_row_position);
    put_list(parts.row_first, r->row_first, 4, form.row_count, r->n_row_first);
    put_list(parts.row_sparse, r->row_sparse.data, 1, form.row_count, r->row_sparse.len);
    put_list(parts.share_sequence, r->share_sequence, 8, form.share_count, r->n_share_sequence);
    put_list(parts.share_from, r->share_from, 8, form.share_count, r->n_share_from);
    put_list(parts.share_positions, r->share_positions, 4, form.share_count, r->n_share_positions);
    put_list(parts.read_sequence, r->read_sequence, 8, form.read_count, r->n_read_sequence);
    put_list(parts.read_first, r->read_first, 4, form.read_count, r->n_read_first);
    put_list(parts.read_end, r->read_end, 4, form.read_count, r->n_read_end);
    put_list(parts.trace_sequence, r->trace_sequence, 8, form.trace_count, r->n_trace_sequence);
    return size;
}

// --- the mesh ---

static struct rpc_server *server_of(const struct peer_method *method)
{
    const bool tensors = method->service == &fastdecode__kv_worker__descriptor ||
                         method->service == &fastdecode__kv_handover__descriptor;
    return tensors ? worker->tensors.server : worker->control.server;
}

static void find_peer(const struct endpoint *endpoint, struct rpc_hello *hello)
{
    (void)endpoint;
    hello->service = "scheduler"; // workers that give pages are not looked at
}

static void turn(void)
{
    struct error error;

    atomic_fetch_add_explicit(&worker->counters.progress, 1, memory_order_relaxed);
    (void)!member_check(worker->control.member, &error);
    for (uint32_t i = 0; i < 3; i++) // what one thread posts to the other, and back
        rpc_loop_run(worker->control.loop, 0, 0);
    peers_turn();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct peer_service service = {.roles = roles,
                                         .role_count = ARRAY_COUNT(roles),
                                         .method_count = served,
                                         .server_of = server_of,
                                         .good_request = good_request,
                                         .good_reply = good_reply,
                                         .write = write_attend,
                                         .find_peer = find_peer};
    struct shape_input input = {data, data + size};

    peers_begin();
    open_worker();
    shape_words = (struct shape_words){.numbers = {peers_base, peers_base + 1, peers_base + 2, 1, 2, 3, 4, 16, 512, 2048, 1536},
                                       .number_count = 11,
                                       .texts = {"", "inproc://w2-t", "what", "warp://here", "tcp://127.0.0.1:1"},
                                       .text_count = 5};
    for (uint32_t i = 0; i < MOVES_MOST && input.at < input.end; i++) {
        const uint32_t what = shape_below(&input, MOVES);
        if (what == DRAIN && !worker->control.draining)
            control_drain(worker);
        else
            peers_move(&service, &input, what);
        turn();
    }
    close_worker();
    return 0;
}

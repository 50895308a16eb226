// fuzz_rpc_s_part.c: an s-part, or a stage of a pipeline, among schedulers, workers and other stages that say whatever they like, in any order:
// each of its methods is called as the service registers it, and what it asks of them is answered by anything. The backend is played: it computes
// nothing, reads and writes all that it is given, and is done when the fuzzer says so.
//
//     input: which layers, then moves, a byte each, each followed by what it takes (played_peers.h, message_shape.h)
#include "services/s-part/serve.c"

#include "common/kv/kv_shape.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "envelope.pb-c.h"
#include "kernels/dispatch/kernels.h"
#include "tests/fuzz/played_peers.h"

enum { MOVES_MOST = 256, SEQUENCES = 4, LAYERS = 2, HEADS = 2, HEAD_DIM = 16, HIDDEN = 8, VOCAB = 32, CONTEXT = 1600, ROWS = 40 };
enum { PAGE_BYTES = 96, BATCHES = 2, HOLD = 16, GO_ON, FAIL_BEGIN, MOVES };

// --- the backend ---

struct backend {
    bool held;           // nothing that was begun is done
    uint32_t fail_begin; // so many steps are not begun
    void *page;          // being copied
    bool page_is_written;
};

struct backend_batch {
    struct backend *backend;
    uint32_t rows, pages;
    bool local[ROWS];
    float partials[1 << 14];
};

static struct backend backend;
static volatile float sum; // of what is read

static enum status played_batch_open(struct backend *of, struct backend_batch **out, struct error *error)
{
    (void)error;
    *out = calloc(1, sizeof **out);
    assert_always(*out);
    (*out)->backend = of;
    return STATUS_OK;
}

static void played_batch_close(struct backend_batch *batch) { free(batch); }

static enum status played_begin(struct backend_batch *batch, const struct backend_row *rows, uint32_t row_count, uint32_t *bad_row,
                                struct error *error)
{
    assert_always(row_count && row_count <= ROWS);
    if (batch->backend->fail_begin) {
        *bad_row = --batch->backend->fail_begin % row_count;
        return error_set(error, STATUS_FAILED_PRECONDITION, "the positions before are not held");
    }
    batch->rows = row_count;
    for (uint32_t i = 0; i < row_count; i++) {
        assert_always(rows[i].token < VOCAB && rows[i].position < CONTEXT);
        batch->local[i] = rows[i].local;
    }
    return STATUS_OK;
}

static void read_floats(const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sum += from[i];
}

static void write_floats(float *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = 0.5f;
}

static void played_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    for (uint32_t i = 0; i < batch->rows; i++) {
        if (batch->local[i])
            continue;
        if (s > 0)
            read_floats(links->o[i], HEADS * HEAD_DIM);
        if (!links->q[i])
            continue;
        write_floats(links->q[i], HEADS * HEAD_DIM);
        write_floats(links->k[i], HEADS * HEAD_DIM);
        write_floats(links->v[i], HEADS * HEAD_DIM);
    }
}

static void played_attend(struct backend_batch *batch, uint32_t layer) { (void)batch, (void)layer; }
static void played_put_x(struct backend_batch *batch, const float *x) { read_floats(x, batch->rows * (size_t)HIDDEN); }
static void played_get_x(struct backend_batch *batch, float *x) { write_floats(x, batch->rows * (size_t)HIDDEN); }
static void played_reads(struct backend_batch *batch, const struct backend_read *reads, uint32_t count)
{
    (void)batch;
    for (uint32_t i = 0; i < count; i++)
        assert_always(reads[i].row < ROWS && reads[i].first < reads[i].end);
}
static float *played_partials(struct backend_batch *batch) { return batch->partials; }

static void played_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_always(row_index[i] < batch->rows);
        *samples[i].result = (struct sampler_result){.token = 5};
    }
}

static bool played_done(struct backend_batch *batch) { return !batch->backend->held; }
static void played_info(const struct backend *of, struct backend_info *info) { (void)of, *info = (struct backend_info){0}; }
static void played_release(struct backend *of, uint64_t sequence) { (void)of, (void)sequence; }
static enum status played_share(struct backend *of, uint64_t from, uint32_t positions, uint64_t to, struct error *error)
{
    (void)of, (void)to;
    return from % 2 ? STATUS_OK : error_set(error, STATUS_NOT_FOUND, "%u positions are not held", positions);
}
static uint32_t played_held(const struct backend *of, struct kv_held *held, uint32_t capacity)
{
    (void)of;
    if (capacity)
        held[0] = (struct kv_held){.sequence = 1, .positions = 20, .certain = 20};
    return 1;
}
static uint64_t played_page_bytes(const struct backend *of) { return of ? PAGE_BYTES : 0; }
static enum status played_export(struct backend *of, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                                 struct error *error)
{
    assert_always(!of->page);
    if (sequence % 2 == 0)
        return error_set(error, STATUS_NOT_FOUND, "page %u is not held", page_index);
    *positions = 16;
    of->page = page;
    of->page_is_written = true;
    return STATUS_OK;
}
static enum status played_import(struct backend *of, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                                 struct error *error)
{
    assert_always(!of->page);
    if (positions > 16)
        return error_set(error, STATUS_INVALID_ARGUMENT, "page %u of %llx", page_index, (unsigned long long)sequence);
    of->page = (void *)(uintptr_t)page;
    of->page_is_written = false;
    return STATUS_OK;
}
static bool played_copied(struct backend *of)
{
    unsigned char bytes[PAGE_BYTES] = {0};
    if (of->held)
        return false;
    if (of->page && of->page_is_written)
        memcpy(of->page, bytes, sizeof bytes);
    else if (of->page)
        sum += memcmp(of->page, bytes, sizeof bytes) ? 1 : 0;
    of->page = NULL;
    return true;
}
static void played_stop_copy(struct backend *of) { of->page = NULL; }

static const struct backend_ops played = {.name = "played",
                                          .batch_open = played_batch_open,
                                          .batch_close = played_batch_close,
                                          .begin = played_begin,
                                          .segment = played_segment,
                                          .attend = played_attend,
                                          .put_x = played_put_x,
                                          .get_x = played_get_x,
                                          .pool_reads = played_reads,
                                          .pool_partials = played_partials,
                                          .head = played_head,
                                          .done = played_done,
                                          .info = played_info,
                                          .pool_release = played_release,
                                          .pool_share = played_share,
                                          .pool_held = played_held,
                                          .pool_page_bytes = played_page_bytes,
                                          .pool_export = played_export,
                                          .pool_import = played_import,
                                          .pool_copied = played_copied,
                                          .pool_stop_copy = played_stop_copy};

// --- the service ---

static const struct peer_role roles[] = {
    {"scheduler", "scheduler", "", 1}, {"s-part", "before", "", 1}, {"kv-worker", "w1", "", 1},
    {"scheduler", "scheduler", "", 2}, {"s-part", "before", "", 2}, {"tester", "t", "", 1},
};

static struct s_part *s_part;
static struct thread_pool *pool;
static struct model model;
static struct attend_reply_form asked[BATCHES]; // what the latest first layer of each mini-batch asks for
static uint32_t next_position[1 + SEQUENCES], served;
static uint64_t next_step;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct error error;

    (void)argc, (void)argv;
    log_threshold = LOG_ERROR + 1;
    peers_base = member_incarnation();
    assert_always(!kernels_init(NULL, &error));
    assert_always(!thread_pool_open(1, &pool));
    peers_know(&fastdecode__spart__descriptor);
    peers_know(&fastdecode__kv_handover__descriptor);
    peers_know(&fastdecode__health__descriptor);
    peers_know(&fastdecode__kv_control__descriptor);
    served = peer_methods.count;
    peers_know(&fastdecode__cluster__descriptor);
    peers_know(&fastdecode__kv_worker__descriptor);
    return 0;
}

// part 1: the first stage of two; 2: the last; else all layers.
static void open_s_part(uint32_t part)
{
    struct error error;

    backend = (struct backend){0};
    memset(asked, 0, sizeof asked);
    memset(next_position, 0, sizeof next_position);
    next_step = 1;
    s_part = calloc(1, sizeof *s_part);
    assert_always(s_part);
    struct engine *engine = &s_part->engine;
    s_part->settings = (struct s_part_settings){.name = "s-part",
                                                .scheduler = "inproc://scheduler",
                                                .listen = "inproc://s-part",
                                                .kv_type = KV_F16,
                                                .context = CONTEXT,
                                                .max_rows = ROWS,
                                                .mini_batches = BATCHES,
                                                .first_layer = part == 2,
                                                .layer_count = part == 1 || part == 2 ? 1 : LAYERS};
    model = (struct model){.shape = {.layers = LAYERS,
                                     .heads = HEADS,
                                     .kv_heads = HEADS,
                                     .head_dim = HEAD_DIM,
                                     .hidden = HIDDEN,
                                     .vocab = VOCAB,
                                     .context_length = CONTEXT}};
    model.name.data = "model";
    model.name.length = 5;
    s_part->loaded.model = &model;
    s_part->pool = pool;
    s_part->incarnation = engine->incarnation = peers_base;
    engine->ops = &played;
    engine->backend = &backend;
    engine->model.shape = model.shape;
    engine->model.context_tokens = CONTEXT;
    engine->batches.max_rows = ROWS;
    engine->batches.count = BATCHES;
    engine->model.kv = load_kv_shape(s_part);
    engine->model.range = (struct layer_range){
        .first = s_part->settings.first_layer, .count = s_part->settings.layer_count, .is_first = part != 2, .is_last = part != 1};
    assert_always(!rpc_loop_open(&engine->loop));
    s_part->control.loop = engine->loop;
    assert_always(!engine_open(engine, &error) && !open_server(s_part, &error) && !membership_open(s_part, &error));
}

static void close_s_part(void)
{
    struct engine *engine = &s_part->engine;

    backend.held = false;
    handover_close_all(&engine->pool.handover);
    while (rpc_loop_run(engine->loop, 0, 0)) {}
    engine_stage_close(engine);
    link_close_all(engine);
    rpc_server_close(s_part->server.rpc);
    engine_close(engine);
    member_close(s_part->control.member);
    while (rpc_loop_run(engine->loop, 0, 0)) {}
    rpc_loop_close(engine->loop);
    free(s_part);
}

// --- good messages, which are changed ---

static Fastdecode__Place *good_place(uint32_t worker)
{
    Fastdecode__Place *place = (Fastdecode__Place *)shape_new(&fastdecode__place__descriptor);

    place->worker = worker;
    place->incarnation = peers_base + worker;
    place->kind = worker ? FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER : FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL;
    place->tensor_address = (char *)(worker == 0 ? "" : worker == 1 ? "inproc://w1-t" : "inproc://w2-t");
    return place;
}

static Fastdecode__SequenceOpen *good_open(uint64_t sequence, uint32_t *tokens, uint32_t count)
{
    Fastdecode__SequenceOpen *open = (Fastdecode__SequenceOpen *)shape_new(&fastdecode__sequence_open__descriptor);

    open->sequence = sequence;
    open->sampling = (Fastdecode__Sampling *)shape_new(&fastdecode__sampling__descriptor);
    open->prompt_tokens = count;
    open->n_tokens = count;
    open->tokens = tokens;
    return open;
}

static void fill_run(struct shape_input *input, Fastdecode__StepRequest *request, Fastdecode__Run *run, uint64_t sequence)
{
    static uint32_t tokens[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    const uint32_t how = shape_byte(input), count = 1 + how % 8;

    run->sequence = sequence;
    run->place = how / 8 % 3;
    run->position = next_position[sequence];
    run->sample = true;
    if (!run->position || how >= 128) {
        run->n_tokens = count;
        run->tokens = tokens;
    }
    if (!run->position)
        request->open[request->n_open++] = good_open(sequence, tokens, count);
    if (run->n_tokens > 2 && how >= 192)
        run->drafts = 1;
    if (how % 64 == 63) { // an extent before it, elsewhere
        run->n_extents = 2;
        run->extents = shape_take(2 * sizeof *run->extents);
        for (uint32_t e = 0; e < 2; e++)
            run->extents[e] = (Fastdecode__Extent *)shape_new(&fastdecode__extent__descriptor);
        run->extents[0]->place = (run->place + 1) % 3;
        run->extents[1]->place = run->place;
        run->extents[1]->first_position = 512;
        run->position = MAX(run->position, 512u);
    }
    next_position[sequence] = run->position + (run->n_tokens ? (uint32_t)run->n_tokens : 1);
}

static void fill_step(struct shape_input *input, const struct peer_role *role, Fastdecode__StepRequest *request)
{
    const uint32_t runs = shape_below(input, 4), from = shape_below(input, SEQUENCES);

    request->scheduler_incarnation = peers_base + role->number;
    request->step = next_step++;
    request->mini_batch = shape_below(input, BATCHES);
    request->n_places = 3;
    request->places = shape_take(3 * sizeof *request->places);
    for (uint32_t i = 0; i < 3; i++)
        request->places[i] = good_place(i);
    request->open = shape_take(4 * sizeof *request->open);
    request->runs = shape_take(4 * sizeof *request->runs);
    for (uint32_t i = 0; i < runs; i++) {
        request->runs[i] = (Fastdecode__Run *)shape_new(&fastdecode__run__descriptor);
        fill_run(input, request, request->runs[request->n_runs++], 1 + (from + i) % SEQUENCES);
    }
}

static void fill_forward(struct shape_input *input, const struct peer_role *role, Fastdecode__ForwardRequest *request)
{
    static const struct peer_role scheduler = {.number = 1};

    request->incarnation = peers_base + role->number;
    request->term = s_part->engine.stage.term;
    request->step = (Fastdecode__StepRequest *)shape_new(&fastdecode__step_request__descriptor);
    fill_step(input, &scheduler, request->step);
    for (size_t i = 0; i < request->step->n_runs; i++)
        request->row_count += request->step->runs[i]->n_tokens ? (uint32_t)request->step->runs[i]->n_tokens : 1;
}

static void fill_join(const struct peer_role *role, Fastdecode__JoinRequest *request)
{
    const struct engine *engine = &s_part->engine;

    request->scheduler_incarnation = peers_base + role->number;
    request->term = engine->stage.newest_term + 1;
    request->stage = !engine->model.range.is_first;
    request->previous_incarnation = engine->model.range.is_first ? 0 : peers_base + 1;
    request->next_address = (char *)(engine->model.range.is_last ? "" : "inproc://next");
    request->next_incarnation = engine->model.range.is_last ? 0 : peers_base + 1;
}

static ProtobufCMessage *good_request(struct shape_input *input, const struct peer_role *role, const struct peer_method *method)
{
    ProtobufCMessage *message = shape_new(method->input);

    if (!message)
        return NULL;
    if (method->input == &fastdecode__step_request__descriptor) {
        fill_step(input, role, (Fastdecode__StepRequest *)message);
    } else if (method->input == &fastdecode__forward_request__descriptor) {
        fill_forward(input, role, (Fastdecode__ForwardRequest *)message);
    } else if (method->input == &fastdecode__join_request__descriptor) {
        fill_join(role, (Fastdecode__JoinRequest *)message);
    } else if (method->input == &fastdecode__release_request__descriptor) {
        Fastdecode__ReleaseRequest *request = (Fastdecode__ReleaseRequest *)message;
        request->n_sequence = 1;
        request->sequence = shape_take(sizeof *request->sequence);
        request->sequence[0] = 1 + shape_below(input, SEQUENCES);
        next_position[request->sequence[0]] = 0;
    } else if (method->input == &fastdecode__exclude_request__descriptor) {
        ((Fastdecode__ExcludeRequest *)message)->worker = 1;
        ((Fastdecode__ExcludeRequest *)message)->incarnation = peers_base + 1;
    } else if (method->input == &fastdecode__reach_request__descriptor) {
        ((Fastdecode__ReachRequest *)message)->place = good_place(shape_below(input, 3));
    } else if (method->input == &fastdecode__fetch_request__descriptor) {
        Fastdecode__FetchRequest *request = (Fastdecode__FetchRequest *)message;
        request->scheduler_incarnation = peers_base + role->number;
        request->sequence = 1 + shape_below(input, SEQUENCES);
        request->tensor_address = (char *)"inproc://w2-t";
        request->positions = 1 + shape_below(input, 64);
    } else if (method->input == &fastdecode__read_page_request__descriptor) {
        ((Fastdecode__ReadPageRequest *)message)->sequence = 1 + shape_below(input, SEQUENCES);
    }
    return message;
}

static void fill_attended(const Fastdecode__AttendRequest *request, Fastdecode__AttendReply *reply)
{
    struct attend_reply_form *form = &asked[request->mini_batch % BATCHES];

    reply->step = request->step;
    reply->layer = request->layer;
    reply->attend_us = 10;
    form->row_count = request->row_count;
    form->read_count = request->read_count;
    if (request->layer == 0) {
        form->o_count = request->row_count;
        form->partial_count = 0;
        for (size_t i = 0; i < request->n_row_first; i++) {
            form->o_count -= request->row_first[i] != 0;
            form->partial_count += request->row_first[i] ? kv_partial_count(request->row_first[i], request->row_position[i] + 1)
                                                         : 0;
        }
        for (size_t i = 0; i < request->n_read_first; i++)
            form->partial_count += kv_partial_count(request->read_first[i], request->read_end[i]);
    }
    reply->partial_count = form->partial_count;
    reply->o.len = request->mini_batch % BATCHES; // which form it has
}

static void fill_stepped(const Fastdecode__StepRequest *request, Fastdecode__StepReply *reply)
{
    reply->step = request->step;
    reply->results = shape_take((request->n_runs + 1) * sizeof *reply->results);
    for (size_t i = 0; reply->results && i < request->n_runs; i++) {
        Fastdecode__RunResult *result = (Fastdecode__RunResult *)shape_new(&fastdecode__run_result__descriptor);
        if (!result)
            return;
        result->sequence = request->runs[i]->sequence;
        result->outcome = FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE;
        result->sampled = request->runs[i]->sample ? (Fastdecode__Token *)shape_new(&fastdecode__token__descriptor) : NULL;
        reply->results[reply->n_results++] = result;
    }
}

static ProtobufCMessage *good_reply(struct shape_input *input, const struct peer_method *method, const ProtobufCMessage *request)
{
    ProtobufCMessage *message = shape_new(method->output);

    if (!message || !request)
        return message;
    if (method->output == &fastdecode__attend_reply__descriptor) {
        fill_attended((const Fastdecode__AttendRequest *)request, (Fastdecode__AttendReply *)message);
    } else if (method->input == &fastdecode__forward_request__descriptor) {
        const Fastdecode__StepRequest *step = ((const Fastdecode__ForwardRequest *)request)->step;
        if (step)
            fill_stepped(step, (Fastdecode__StepReply *)message);
    } else if (method->output == &fastdecode__register_reply__descriptor) {
        ((Fastdecode__RegisterReply *)message)->scheduler_incarnation = peers_base + 1;
    } else if (method->output == &fastdecode__read_page_reply__descriptor) {
        Fastdecode__ReadPageReply *reply = (Fastdecode__ReadPageReply *)message;
        reply->positions = 1 + shape_below(input, 16);
        reply->page = (ProtobufCBinaryData){PAGE_BYTES, shape_take(PAGE_BYTES)};
        reply->page.len = reply->page.data ? PAGE_BYTES : 0;
    }
    return message;
}

// --- tensors, which are written where they are aligned ---

static size_t write_attended(const Fastdecode__AttendReply *reply, uint8_t fill, unsigned char out[PEER_BYTES_MAX])
{
    struct attend_reply_form form = asked[reply->o.len % BATCHES];
    struct attend_reply_parts parts;

    form.step = reply->step;
    form.layer = reply->layer;
    form.partial_count = reply->partial_count;
    form.q_width = s_part->engine.model.q_width;
    form.partial_floats = s_part->engine.model.partial_floats;
    form.lost_count = (uint32_t)reply->n_lost_row;
    form.lost = reply->lost_row;
    form.lost_read_count = (uint32_t)reply->n_lost_read;
    form.lost_reads = reply->lost_read;
    if (form.partial_count > 256)
        return 0;
    const size_t size = attend_reply_size(&form);
    if (size > PEER_BYTES_MAX)
        return 0;
    memset(out, fill, size);
    attend_reply_begin(out, size, &form, &parts);
    return size;
}

static size_t write_forward(const Fastdecode__ForwardRequest *request, uint8_t fill, unsigned char out[PEER_BYTES_MAX])
{
    struct forward_request_parts parts;
    const struct forward_request_form form = {.incarnation = request->incarnation,
                                              .term = request->term,
                                              .pipeline_us = request->pipeline_us,
                                              .row_count = request->row_count,
                                              .absent_count = (uint32_t)request->n_absent_run,
                                              .lost_count = (uint32_t)request->n_lost_run,
                                              .hidden = HIDDEN,
                                              .step_bytes = request->step ? fastdecode__step_request__get_packed_size(request->step)
                                                                          : 0};
    if (form.row_count > 2 * ROWS)
        return 0;
    const size_t size = forward_request_size(&form);
    if (size > PEER_BYTES_MAX)
        return 0;
    memset(out, fill, size);
    forward_request_begin(out, size, &form, &parts);
    if (form.step_bytes)
        fastdecode__step_request__pack(request->step, parts.step);
    if (form.absent_count)
        memcpy(parts.absent_run, request->absent_run, form.absent_count * 4ull);
    if (form.lost_count)
        memcpy(parts.lost_run, request->lost_run, form.lost_count * 4ull);
    return size;
}

static size_t write_tensors(struct shape_input *input, ProtobufCMessage *message, unsigned char out[PEER_BYTES_MAX])
{
    if (message->descriptor == &fastdecode__attend_reply__descriptor) {
        Fastdecode__AttendReply *reply = (Fastdecode__AttendReply *)message;
        const size_t size = write_attended(reply, shape_byte(input), out);
        reply->o.len = 0; // its form is none of the message's
        return size;
    }
    if (message->descriptor == &fastdecode__forward_request__descriptor)
        return write_forward((const Fastdecode__ForwardRequest *)message, shape_byte(input), out);
    return 0;
}

// --- the mesh ---

static struct rpc_server *server_of(const struct peer_method *method)
{
    (void)method;
    return s_part->server.rpc;
}

static void find_peer(const struct endpoint *endpoint, struct rpc_hello *hello)
{
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++)
        if ((struct endpoint *)s_part->engine.links.of[i].channel == endpoint)
            hello->incarnation = s_part->engine.links.of[i].incarnation;
}

static void play_turn(void)
{
    struct engine *engine = &s_part->engine;
    struct error error;

    (void)!member_check(s_part->control.member, &error);
    for (uint32_t i = 0; i < 8; i++) {
        const bool busy = engine_advance(engine);
        if (!rpc_loop_run(engine->loop, 0, 0) && !busy)
            break;
    }
    publish(engine);
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
                                         .write = write_tensors,
                                         .find_peer = find_peer};
    struct shape_input input = {data, data + size};

    peers_begin();
    open_s_part(shape_below(&input, 4));
    shape_words =
        (struct shape_words){.numbers = {peers_base, peers_base + 1, peers_base + 2, 1, 2, 3, 4, ROWS, ROWS + 1, VOCAB, VOCAB - 1,
                                         CONTEXT, CONTEXT - 1, 512},
                             .number_count = 14,
                             .texts = {"", "inproc://w1-t", "inproc://w2-t", "inproc://next", "what", "tcp://127.0.0.1:1"},
                             .text_count = 6};
    for (uint32_t i = 0; i < MOVES_MOST && input.at < input.end; i++) {
        const uint32_t what = shape_below(&input, MOVES);
        if (what == HOLD || what == GO_ON)
            backend.held = what == HOLD;
        else if (what == FAIL_BEGIN)
            backend.fail_begin = shape_below(&input, 4);
        else
            peers_move(&service, &input, what);
        play_turn();
    }
    close_s_part();
    return 0;
}

// test_extents.c: a sequence that lies at several places: an engine with the CPU backend and KV workers, all real and on one loop. However the
// sequence is cut, tokens and log-probabilities are, to the bit, those of one worker that holds all of it.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "kernels/dispatch/kernels.h"
#include "services/kv-worker/worker.h"
#include "services/s-part/engine/engine.h"
#include "tests/integration/await.h"
#include "tests/integration/played_peer.h"
#include "tests/unit/gguf_build.h"

enum { CONTEXT = 5632, ROWS = 512, WORKERS = 4, PLACES = 1 + WORKERS, PROMPT = 5000, GENERATED = 4, POOL_BYTES = 8 << 20 };

static struct worker workers[WORKERS];
static struct rpc_server *servers[WORKERS], *server;
static struct engine engine;
static struct thread_pool *pool;
static struct model *model;
static unsigned char *model_bytes;
static struct rpc_channel *scheduler;
static uint64_t scheduler_incarnation, step_number;
static char addresses[WORKERS][32];

// --- the mesh ---

// The part of a worker's answer that is wrong; NOTHING: it attends as usual.
static enum { NOTHING, COUNT, SIZE, LOST_READ, SPOILS } spoil;

static void spoiled_handler(struct rpc_call *call, void *user)
{
    const uint32_t lost[] = {1000};
    struct worker *worker = user;
    struct attend_request request;
    struct attend_reply_parts parts;
    struct error error;
    unsigned char *payload;
    size_t length;

    const unsigned char *bytes = rpc_message_payload(rpc_call_message(call), &length);
    if (spoil == NOTHING ||
        attend_request_parse(bytes, length, WORKER_ROWS_MAX, worker->attend.q_width, worker->attend.kv_width, &request, &error)) {
        attend_handler(call, user);
        return;
    }
    const struct attend_reply_form form = {.step = request.step,
                                           .layer = request.layer,
                                           .o_count = request.row_count,
                                           .partial_count = spoil == COUNT ? 3 : 1,
                                           .q_width = worker->attend.q_width,
                                           .partial_floats = worker->attend.partial_floats - (spoil == SIZE),
                                           .lost_read_count = spoil == LOST_READ,
                                           .lost_reads = lost};
    struct rpc_buffer *reply = rpc_reply_buffer(call, attend_reply_size(&form), &payload);
    attend_reply_begin(payload, attend_reply_size(&form), &form, &parts);
    memset(parts.partials, 0, form.partial_count * form.partial_floats * sizeof(float));
    rpc_call_reply_buffer(call, reply);
}

static void turn(void)
{
    (void)engine_advance(&engine);
    rpc_loop_run(engine.loop, 1000, 0);
}

static void open_worker(uint32_t i)
{
    const struct rpc_method method = {&fastdecode__kv_worker__descriptor, "Attend", spoiled_handler, &workers[i]};
    const struct kv_shape shape = {.layers = engine.model.shape.layers,
                                   .heads = engine.model.shape.heads,
                                   .kv_heads = engine.model.shape.kv_heads,
                                   .head_dim = engine.model.shape.head_dim,
                                   .page_tokens = 16,
                                   .type = KV_F16,
                                   .max_sequences = 8,
                                   .max_context = CONTEXT};
    struct error error;

    snprintf(addresses[i], sizeof addresses[i], "inproc://test-extents-%u", i);
    workers[i] = (struct worker){.settings = {.name = "w", .kv_memory = POOL_BYTES},
                                 .incarnation = member_incarnation() + i,
                                 .pool = pool,
                                 .control.loop = engine.loop,
                                 .tensors.loop = engine.loop};
    assert_int_equal(attend_open(&workers[i], &shape, &error), STATUS_OK);
    servers[i] = peer_serve(engine.loop, addresses[i], &method, 1, "kv-worker", workers[i].incarnation);
}

static void open_engine(void)
{
    struct tiny_llama tiny = TINY_LLAMA;
    struct gguf_build build = {0};
    struct error error;
    size_t count;

    tiny.context = CONTEXT;
    tiny.type = tiny.embedding_type = TENSOR_Q8_0;
    gguf_build_llama(&build, &tiny);
    model_bytes = gguf_build_finish(&build, &count);
    assert_int_equal(model_open_memory("tiny.gguf", model_bytes, count, &model, &error), STATUS_OK);
    assert_int_equal(thread_pool_open(1, &pool), STATUS_OK);
    const struct backend_config config = {.model = model,
                                          .pool = pool,
                                          .max_rows = ROWS,
                                          .max_batches = 1,
                                          .context_tokens = CONTEXT,
                                          .kv_type = KV_F16,
                                          .page_tokens = 16,
                                          .max_sequences = 8,
                                          .local_pool_bytes = POOL_BYTES};
    engine = (struct engine){.ops = &backend_cpu,
                             .model = {.shape = model->shape, .context_tokens = CONTEXT},
                             .batches = {.count = 1, .max_rows = ROWS},
                             .incarnation = member_incarnation()};
    if (backend_cpu.open(&config, &engine.backend, &error))
        fail_msg("%s", error.text);
    assert_int_equal(rpc_loop_open(&engine.loop), STATUS_OK);
    assert_int_equal(engine_open(&engine, &error), STATUS_OK);
}

static int open_mesh(void **state)
{
    static const char address[] = "inproc://test-extents";
    const struct rpc_method method = {&fastdecode__spart__descriptor, "Step", engine_step_handler, &engine};

    open_engine();
    for (uint32_t i = 0; i < WORKERS; i++)
        open_worker(i);
    scheduler_incarnation = member_incarnation();
    server = peer_serve(engine.loop, address, &method, 1, "s-part", member_incarnation());
    scheduler = peer_dial(engine.loop, address, "scheduler", scheduler_incarnation);
    AWAIT(turn(), rpc_channel_is_up(scheduler));
    return 0;
}

static int close_mesh(void **state)
{
    rpc_channel_close(scheduler);
    link_close_all(&engine);
    for (uint32_t i = 0; i < WORKERS; i++) {
        rpc_server_close(servers[i]);
        attend_close(&workers[i]);
    }
    rpc_server_close(server);
    engine_close(&engine);
    while (rpc_loop_run(engine.loop, 0, 0)) {}
    rpc_loop_close(engine.loop);
    backend_cpu.close(engine.backend);
    thread_pool_close(pool);
    model_close(model);
    free(model_bytes);
    return 0;
}

// --- steps ---

// The places of a sequence, each with its first position there; place 0 is the local pool, place i worker i - 1.
struct cut {
    uint32_t count, place[PLACES], first[PLACES];
};

struct told {
    enum status status; // of the call
    Fastdecode__RunOutcome outcome;
    uint32_t lost_extent, count;
    uint32_t token[8];
    float logprob[8];
};
static struct told told[2]; // of each run of the latest step
static bool ended;

static uint32_t prompt_token(uint32_t position) { return 3 + (position * 7 + position / 11) % 250; }

static void take_token(struct told *to, const Fastdecode__Token *token)
{
    to->token[to->count] = token->token;
    to->logprob[to->count++] = token->logprob;
}

static void on_step(void *user, struct rpc_message *message)
{
    const Fastdecode__StepReply *reply = rpc_message_unpack(message, &fastdecode__step_reply__descriptor);
    assert_non_null(reply);
    for (size_t i = 0; i < reply->n_results; i++) {
        const Fastdecode__RunResult *result = reply->results[i];
        told[i] = (struct told){.outcome = result->outcome, .lost_extent = result->lost_extent};
        if (result->sampled)
            take_token(&told[i], result->sampled);
        for (size_t m = 0; m < result->n_more; m++)
            take_token(&told[i], result->more[m]);
    }
}

static void on_end(void *user, enum status status, const char *text)
{
    told[0].status = status;
    ended = true;
}

struct run {
    uint64_t sequence;
    const struct cut *cut;
    uint32_t position, token_count, drafts;
    uint32_t *tokens;
    bool open, sample;
};

// Extents of the cut that begin at or before the run's first row; the last one is the tail.
static void fill_extents(Fastdecode__Run *out, const struct run *run, Fastdecode__Extent *extents, Fastdecode__Extent **pointers)
{
    uint32_t count = 0;
    for (; count < run->cut->count && run->cut->first[count] <= run->position; count++) {
        fastdecode__extent__init(&extents[count]);
        extents[count].place = run->cut->place[count];
        extents[count].first_position = run->cut->first[count];
        pointers[count] = &extents[count];
    }
    out->place = run->cut->place[count - 1];
    out->n_extents = count > 1 ? count : 0;
    out->extents = pointers;
}

static void step(const struct run *runs, uint32_t count)
{
    Fastdecode__Place places[PLACES], *place_pointers[PLACES];
    Fastdecode__Extent extents[2][PLACES], *extent_pointers[2][PLACES];
    Fastdecode__Run out[2], *run_pointers[2];
    Fastdecode__SequenceOpen opens[2], *open_pointers[2];
    Fastdecode__Sampling sampling = FASTDECODE__SAMPLING__INIT;
    Fastdecode__StepRequest request = FASTDECODE__STEP_REQUEST__INIT;
    static uint32_t log[PROMPT];

    sampling.top_p = 1, sampling.logprobs = true;
    for (uint32_t i = 0; i < PROMPT; i++)
        log[i] = prompt_token(i);
    for (uint32_t p = 0; p < PLACES; p++) {
        fastdecode__place__init(&places[p]);
        places[p].worker = p;
        places[p].kind = p ? FASTDECODE__PLACE_KIND__PLACE_KIND_KV_WORKER : FASTDECODE__PLACE_KIND__PLACE_KIND_LOCAL_POOL;
        places[p].incarnation = p ? workers[p - 1].incarnation : 0;
        places[p].tensor_address = p ? addresses[p - 1] : (char *)"";
        place_pointers[p] = &places[p];
    }
    for (uint32_t i = 0; i < count; i++) {
        fastdecode__run__init(&out[i]);
        out[i].sequence = runs[i].sequence;
        out[i].position = runs[i].position;
        out[i].n_tokens = runs[i].token_count;
        out[i].tokens = runs[i].tokens;
        out[i].drafts = runs[i].drafts;
        out[i].sample = runs[i].sample;
        fill_extents(&out[i], &runs[i], extents[i], extent_pointers[i]);
        run_pointers[i] = &out[i];
        if (!runs[i].open)
            continue;
        Fastdecode__SequenceOpen *open = &opens[request.n_open];
        fastdecode__sequence_open__init(open);
        open->sequence = runs[i].sequence;
        open->sampling = &sampling;
        open->prompt_tokens = PROMPT;
        open->n_tokens = PROMPT;
        open->tokens = log;
        open_pointers[request.n_open++] = open;
    }
    request.scheduler_incarnation = scheduler_incarnation;
    request.step = ++step_number;
    request.open = open_pointers;
    request.n_runs = count;
    request.runs = run_pointers;
    request.n_places = PLACES;
    request.places = place_pointers;
    ended = false;
    peer_call(scheduler, &fastdecode__spart__descriptor, "Step", &request.base,
              (struct rpc_callbacks){.on_message = on_step, .on_end = on_end}, NULL);
    AWAIT(turn(), ended);
}

static void expect_done(void)
{
    assert_int_equal(told[0].status, STATUS_OK);
    assert_int_equal(told[0].outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE);
}

static void release(uint64_t sequence)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        attend_free(&workers[i], sequence);
    backend_cpu.pool_release(engine.backend, sequence);
    sequence_table_remove(engine.sequences, sequence);
}

// Prefills the prompt in chunks.
static void prefill(uint64_t sequence, const struct cut *cut)
{
    static uint32_t tokens[ROWS];

    for (uint32_t position = 0, rows; position < PROMPT; position += rows) {
        rows = MIN((uint32_t)ROWS, PROMPT - position);
        for (uint32_t i = 0; i < rows; i++)
            tokens[i] = prompt_token(position + i);
        step(&(struct run){.sequence = sequence,
                           .cut = cut,
                           .position = position,
                           .token_count = rows,
                           .tokens = tokens,
                           .open = position == 0,
                           .sample = position + rows == PROMPT},
             1);
        expect_done();
    }
}

// Returns what the sequence gives: a token after the prompt, one a step, then three by a step with drafts, of which two are right.
static struct told generate(uint64_t sequence, const struct cut *cut, const struct told *guess)
{
    struct told all = {0};
    uint32_t tokens[3];

    prefill(sequence, cut);
    all = told[0];
    for (uint32_t i = 0; i < GENERATED; i++) {
        step(&(struct run){.sequence = sequence, .cut = cut, .position = PROMPT + i, .sample = true}, 1);
        expect_done();
        assert_int_equal(told[0].count, 1);
        all.token[all.count] = told[0].token[0];
        all.logprob[all.count++] = told[0].logprob[0];
        if (!guess || i + 1 < GENERATED - 1)
            continue;
        tokens[0] = all.token[all.count - 1], tokens[1] = guess->token[all.count], tokens[2] = tokens[1] + 1;
        step(&(struct run){.sequence = sequence,
                           .cut = cut,
                           .position = PROMPT + i + 1,
                           .tokens = tokens,
                           .token_count = 3,
                           .drafts = 2,
                           .sample = true},
             1);
        expect_done();
        assert_int_equal(told[0].token[0], guess->token[all.count]);
        assert_memory_equal(&told[0].logprob[0], &guess->logprob[all.count], sizeof(float));
        break;
    }
    return all;
}

static const struct cut whole = {1, {1}, {0}};

static void test_cuts(void **state)
{
    static const struct cut cuts[] = {
        {2, {1, 2}, {0, 4608}},
        {4, {2, 4, 1, 3}, {0, 512, 3072, 4096}},
        {3, {3, 0, 1}, {0, 1024, 4608}}, // a frozen extent in the local pool
        {3, {1, 2, 0}, {0, 2560, 3584}}, // the tail there
        {5, {0, 1, 2, 3, 4}, {0, 1536, 2048, 4096, 4608}},
    };
    struct told expected;

    expected = generate(10, &whole, NULL);
    release(10);
    for (uint32_t i = 0; i < ARRAY_COUNT(cuts); i++) {
        struct told got = generate(11 + i, &cuts[i], &expected);
        assert_in_range(got.count, GENERATED, expected.count);
        for (uint32_t k = 0; k < got.count; k++)
            if (got.token[k] != expected.token[k] || memcmp(&got.logprob[k], &expected.logprob[k], sizeof(float)))
                fail_msg("cut %u, token %u: %u (%a), at one place %u (%a)", i, k, got.token[k], (double)got.logprob[k],
                         expected.token[k], (double)expected.logprob[k]);
        release(11 + i);
    }
}

// Two sequences in a step, which read at each other's places. What is lost of one is named, and the other goes on.
static void test_lost(void **state)
{
    static const struct cut one = {3, {1, 2, 3}, {0, 1024, 4096}}, other = {2, {3, 1}, {0, 2048}}, none = {1, {4}, {0}};
    static const struct {
        uint32_t worker, lost_extent;
    } cases[] = {{1, 2}, {2, 3}};
    struct told expected;

    prefill(30, &other);
    expected = told[0];
    for (uint32_t i = 0; i < ARRAY_COUNT(cases); i++) {
        prefill(31 + i, &one);
        assert_memory_equal(&told[0].logprob[0], &expected.logprob[0], sizeof(float));
        attend_free(&workers[cases[i].worker], 31 + i);
        const struct run runs[] = {{.sequence = 30, .cut = &other, .position = PROMPT + i, .sample = true},
                                   {.sequence = 31 + i, .cut = &one, .position = PROMPT, .sample = true}};
        step(runs, 2);
        expect_done();
        assert_int_equal(told[1].outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
        assert_int_equal(told[1].lost_extent, cases[i].lost_extent);
        release(31 + i);
    }
    release(30);
    prefill(40, &none);
    assert_memory_equal(&told[0].logprob[0], &expected.logprob[0], sizeof(float));
    release(40);
}

static const struct link *link_of(uint32_t worker)
{
    for (uint32_t i = 0; i < ENGINE_LINKS_MAX; i++)
        if (engine.links.of[i].channel && engine.links.of[i].worker == worker)
            return &engine.links.of[i];
    return NULL;
}

// A reply whose partials are not those that were asked for: what was read there is lost, and the worker loses its connection. It gets
// another one, and the sequence goes on.
static void test_spoiled_replies(void **state)
{
    static const struct cut cut = {2, {1, 2}, {0, 4096}};

    prefill(50, &cut);
    for (spoil = COUNT; spoil < SPOILS; spoil++) {
        const struct run run = {.sequence = 50, .cut = &cut, .position = PROMPT, .sample = true};
        assert_non_null(link_of(1));
        step(&run, 1);
        assert_int_equal(told[0].status, STATUS_OK);
        assert_int_equal(told[0].outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
        assert_int_equal(told[0].lost_extent, 1);
        assert_null(link_of(1));
        const int was = (int)spoil;
        spoil = NOTHING;
        step(&run, 1);
        expect_done();
        spoil = was;
    }
    spoil = NOTHING;
    release(50);
}

// --- what a worker is asked ---

static enum status asked;
static bool answered;

static void on_asked(void *user, enum status status, const char *text) { asked = status, answered = true; }

struct question {
    uint32_t row_first, row_position, row_sparse; // one row
    uint32_t read_first[2], read_end[2];          // two reads
    uint64_t read_sequence[2];
};

static enum status ask(struct rpc_channel *channel, const struct question *question)
{
    const struct rpc_callbacks callbacks = {.on_end = on_asked};
    const struct attend_request_form form = {.incarnation = 1,
                                             .step = 1,
                                             .row_count = 1,
                                             .has_sparse = true,
                                             .has_first = true,
                                             .read_count = 2,
                                             .q_width = engine.model.q_width,
                                             .kv_width = engine.model.kv_width};
    const size_t size = attend_request_size(&form);
    struct attend_request_parts parts;
    unsigned char *payload;
    struct rpc_buffer *buffer = rpc_request_buffer(channel, engine.links.attend_method, 0, size, &payload);

    memset(payload, 0, size);
    attend_request_begin(payload, size, &form, &parts);
    wire_store_u64(parts.row_sequence, 7);
    wire_store_u32(parts.row_position, question->row_position);
    wire_store_u32(parts.row_first, question->row_first);
    parts.row_sparse[0] = (unsigned char)question->row_sparse;
    for (uint32_t i = 0; i < 2; i++) {
        wire_store_u64(parts.read_sequence + i * 8, question->read_sequence[i]);
        wire_store_u32(parts.read_first + i * 4, question->read_first[i]);
        wire_store_u32(parts.read_end + i * 4, question->read_end[i]);
    }
    answered = false;
    assert_int_equal(rpc_call_start_buffer(channel, buffer, &callbacks, NULL, NULL), STATUS_OK);
    AWAIT(turn(), answered);
    return asked;
}

static void test_bad_requests(void **state)
{
    static const struct question good = {512, 512, 0, {0, 512}, {1024, 4096}, {8, 9}};

    for (uint32_t layer = 0; layer < WORKER_LAYERS_MAX; layer++)
        atomic_store(&workers[0].attend.s_part_incarnation[layer], 0);
    struct rpc_channel *channel = peer_dial(engine.loop, addresses[0], "s-part", 1);
    AWAIT(turn(), rpc_channel_is_up(channel));
    for (uint32_t wrong = 1; wrong <= 13; wrong++) {
        struct question question = good;
        switch (wrong) {
        case 1: question.row_first = 256; break;
        case 2: question.row_first = 1024; break; // behind the row
        case 3: question.row_sparse = 1; break;
        case 4: question.read_first[0] = 16; break;
        case 5: question.read_end[0] = 1000; break;
        case 6: question.read_first[0] = 1024; break; // nothing
        case 7: question.read_end[0] = 0; break;
        case 8: question.read_end[1] = 512 * (CONTEXT / 512 + 1); break;
        case 9: question.read_end[1] = UINT32_MAX - 511; break;
        case 10: question.read_sequence[1] = 7; break; // not sorted
        case 11: question.read_sequence[1] = 8; break; // two extents of a sequence
        case 12: question.read_sequence[0] = 0; break;
        default: question.row_position = CONTEXT; break;
        }
        if (ask(channel, &question) != STATUS_INVALID_ARGUMENT)
            fail_msg("case %u: status %d", wrong, (int)asked);
        assert_int_equal(kv_store_pages_used(workers[0].attend.store), 0);
    }
    assert_int_equal(ask(channel, &good), STATUS_OK); // nothing is held that it reads: lost, no error
    assert_int_equal(kv_store_pages_used(workers[0].attend.store), 1);
    attend_free(&workers[0], 7);
    rpc_channel_close(channel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_spoiled_replies),
        cmocka_unit_test(test_bad_requests),
    };
    struct error error;
    log_init("test", LOG_ERROR, false);
    assert_always(kernels_init(NULL, &error) == STATUS_OK);
    return cmocka_run_group_tests(tests, open_mesh, close_mesh);
}

// test_engine.c: the s-part's engine with a backend that is played, asked by a scheduler that is played, on one loop. The backend computes
// nothing: each sample is token 5, and a step is held at its head for as long as a test wants.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "common/mesh/tensors.h"
#include "services/s-part/engine/engine.h"
#include "tests/integration/await.h"
#include "tests/integration/played_peer.h"
#include "tests/integration/step_rows.h"

enum { ROWS = 2048, VOCAB = 32, CONTEXT = 64, HEADS = 2, HEAD_DIM = 16, WORKERS = 2, SEGMENTS = 64 };

// --- the backend ---

struct backend {
    bool held; // heads are not done
    uint32_t released, heads;
    uint64_t last_released;
    uint32_t opened, turns[2], ends; // turns: of each mini-batch, by what weights are there
    uint64_t pieces;
    uint32_t segments, segment_of[SEGMENTS]; // mini-batches, in the order in which their segments ran
};
struct backend_batch {
    struct backend *backend;
    uint32_t index;
};

static enum status played_batch_open(struct backend *backend, struct backend_batch **out, struct error *error)
{
    *out = calloc(1, sizeof **out);
    (*out)->backend = backend;
    (*out)->index = backend->opened++;
    return STATUS_OK;
}

static void played_batch_close(struct backend_batch *batch) { free(batch); }

static enum status played_begin(struct backend_batch *batch, const struct backend_row *rows, uint32_t row_count, uint32_t *bad_row,
                                struct error *error)
{
    return STATUS_OK;
}

static void played_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links)
{
    struct backend *b = batch->backend;
    b->segment_of[b->segments++ % SEGMENTS] = batch->index;
}

static uint32_t played_turn(struct backend_batch *batch, uint32_t s) { return batch->backend->turns[batch->index]; }

static void played_end(struct backend_batch *batch) { batch->backend->ends++; }

static void played_attend(struct backend_batch *batch, uint32_t layer) { (void)batch, (void)layer; }

static void played_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        *samples[i].result = (struct sampler_result){.token = 5};
    batch->backend->heads++;
}

static bool played_done(struct backend_batch *batch) { return !batch->backend->held; }

static void played_info(const struct backend *b, struct backend_info *info)
{
    *info = (struct backend_info){.stream_step_us = 1, .stream_pieces = b->pieces};
}

static void played_release(struct backend *backend, uint64_t sequence)
{
    backend->released++;
    backend->last_released = sequence;
}

static const struct backend_ops played = {
    .name = "played",
    .batch_open = played_batch_open,
    .batch_close = played_batch_close,
    .begin = played_begin,
    .segment = played_segment,
    .turn = played_turn,
    .end = played_end,
    .info = played_info,
    .attend = played_attend,
    .head = played_head,
    .done = played_done,
    .pool_release = played_release,
};

// --- the mesh ---

struct worker_played {
    struct rpc_server *server;
    struct rpc_call *asked; // not answered yet
    uint32_t timeout_ms;    // of that
    uint64_t incarnation;
};

static struct backend backend;
static struct engine engine;
static struct rpc_server *server;
static struct rpc_channel *scheduler;
static uint64_t scheduler_incarnation;
static struct worker_played workers[WORKERS];
static uint32_t steps_done, releases_done, releases_failed;
static uint64_t step_number;
static Fastdecode__RunOutcome last_outcome;

static void turn(void)
{
    (void)engine_advance(&engine);
    rpc_loop_run(engine.loop, 1000, 0);
}

static void connect_scheduler(uint64_t incarnation)
{
    rpc_channel_close(scheduler);
    scheduler_incarnation = incarnation;
    scheduler = peer_dial(engine.loop, "inproc://test-engine", "scheduler", incarnation);
    AWAIT(turn(), rpc_channel_is_up(scheduler));
}

static int open_mesh(void **state)
{
    const struct rpc_method methods[] = {
        {&fastdecode__spart__descriptor, "Step", engine_step_handler, &engine},
        {&fastdecode__spart__descriptor, "Release", engine_release_handler, &engine},
        {&fastdecode__spart__descriptor, "Exclude", engine_exclude_handler, &engine},
        {&fastdecode__spart__descriptor, "Reach", engine_reach_handler, &engine},
    };
    struct error error;

    backend = (struct backend){0};
    memset(&engine, 0, sizeof engine);
    memset(workers, 0, sizeof workers);
    steps_done = releases_done = releases_failed = 0;
    engine.ops = &played;
    engine.backend = &backend;
    engine.model.shape = (struct model_shape){.layers = 2, .heads = HEADS, .kv_heads = HEADS, .head_dim = HEAD_DIM, .vocab = VOCAB};
    engine.model.context_tokens = CONTEXT;
    engine.batches.max_rows = ROWS;
    engine.batches.count = 2;
    engine.incarnation = member_incarnation();
    assert_int_equal(rpc_loop_open(&engine.loop), STATUS_OK);
    assert_int_equal(engine_open(&engine, &error), STATUS_OK);
    server = peer_serve(engine.loop, "inproc://test-engine", methods, ARRAY_COUNT(methods), "s-part", member_incarnation());
    connect_scheduler(member_incarnation());
    return 0;
}

static int close_mesh(void **state)
{
    rpc_channel_close(scheduler);
    scheduler = NULL;
    handover_close_all(&engine.pool.handover);
    link_close_all(&engine);
    for (uint32_t i = 0; i < WORKERS; i++)
        if (workers[i].server)
            rpc_server_close(workers[i].server);
    rpc_server_close(server);
    engine_close(&engine);
    while (rpc_loop_run(engine.loop, 0, 0)) {}
    rpc_loop_close(engine.loop);
    return 0;
}

static void take_attend(struct rpc_call *call, void *user)
{
    struct worker_played *worker = user;
    worker->asked = call;
    worker->timeout_ms = rpc_call_timeout_ms(call);
}

static void start_worker(struct worker_played *worker, const char *address)
{
    const struct rpc_method method = {&fastdecode__kv_worker__descriptor, "Attend", take_attend, worker};

    worker->incarnation = member_incarnation() + ++step_number;
    worker->server = peer_serve(engine.loop, address, &method, 1, "kv-worker", worker->incarnation);
}

static void on_step(void *user, struct rpc_message *message)
{
    const Fastdecode__StepReply *reply = rpc_message_unpack(message, &fastdecode__step_reply__descriptor);
    assert_non_null(reply);
    last_outcome = reply->results[0]->outcome;
}

static void on_step_end(void *user, enum status status, const char *text)
{
    if (status == STATUS_CANCELLED) // the scheduler that sent it is gone
        return;
    if (status)
        fail_msg("a step was refused: %s", text);
    steps_done++;
}

static void on_release_end(void *user, enum status status, const char *text)
{
    releases_done++;
    releases_failed += status != STATUS_OK;
}

// A step of `count` new sequences from `first` on, one token each. worker NULL: in the local pool.
static void send_step(uint32_t mini_batch, uint64_t first, uint32_t count, const struct worker_played *worker, const char *address)
{
    static Fastdecode__SequenceOpen opens[ROWS], *open_pointers[ROWS];
    static Fastdecode__Run runs[ROWS], *run_pointers[ROWS];
    Fastdecode__Sampling sampling;
    Fastdecode__Place place = FASTDECODE__PLACE__INIT, *places[] = {&place};
    Fastdecode__StepRequest request = FASTDECODE__STEP_REQUEST__INIT;

    step_rows_fill(first, count, &sampling, opens, open_pointers, runs, run_pointers);
    if (worker) {
        place.worker = 1 + (uint32_t)(worker - workers);
        place.incarnation = worker->incarnation;
        place.tensor_address = (char *)address;
    }
    request.scheduler_incarnation = scheduler_incarnation;
    request.step = ++step_number;
    request.mini_batch = mini_batch;
    request.n_open = request.n_runs = count;
    request.open = open_pointers;
    request.runs = run_pointers;
    request.n_places = 1;
    request.places = places;
    peer_call(scheduler, &fastdecode__spart__descriptor, "Step", &request.base,
              (struct rpc_callbacks){.on_message = on_step, .on_end = on_step_end}, NULL);
}

static void send_release(uint64_t first, uint32_t count, bool keep_pages)
{
    static uint64_t ids[ROWS];
    Fastdecode__ReleaseRequest request = FASTDECODE__RELEASE_REQUEST__INIT;

    for (uint32_t i = 0; i < count; i++)
        ids[i] = first + i;
    request.n_sequence = count;
    request.sequence = ids;
    request.keep_pages = keep_pages;
    peer_call(scheduler, &fastdecode__spart__descriptor, "Release", &request.base, (struct rpc_callbacks){.on_end = on_release_end},
              NULL);
}

// --- releases ---

// However many sequences a step has, all that are released while it runs are gone when it has ended, and only then is that said.
static void releases_wait_for_the_step(void **state)
{
    enum { SEQUENCES = 2000, PER_CALL = 100, CALLS = SEQUENCES / PER_CALL };

    backend.held = true;
    send_step(0, 1000, SEQUENCES, NULL, NULL);
    AWAIT(turn(), backend.heads == 1);
    for (uint32_t i = 0; i < CALLS; i++)
        send_release(1000 + i * PER_CALL, PER_CALL, false);
    send_release(1000, PER_CALL, true); // said twice, once more with less
    send_release(77, 1, false);         // one that no step uses: it goes at once, and its answer comes behind the others
    AWAIT(turn(), releases_done > 0);
    assert_int_equal(releases_done, 1);
    assert_int_equal(backend.released, 1);
    assert_int_equal(backend.last_released, 77);
    assert_int_equal(sequence_table_count(engine.sequences), SEQUENCES);
    backend.held = false;
    AWAIT(turn(), steps_done == 1 && releases_done == CALLS + 2);
    assert_int_equal(releases_failed, 0);
    assert_int_equal(sequence_table_count(engine.sequences), 0);
    assert_int_equal(backend.released, SEQUENCES + 1);
}

// A sequence that two mini-batches have goes when the second is over.
static void a_sequence_of_two_steps_goes_with_the_last(void **state)
{
    send_step(0, 1000, 1, NULL, NULL);
    AWAIT(turn(), steps_done == 1);
    backend.held = true;
    send_step(0, 2000, 2, NULL, NULL);
    AWAIT(turn(), backend.heads == 2);
    send_release(1000, 3, false);
    send_release(2000, 1, true);
    send_release(2000, 2, false);
    send_release(78, 1, false);
    AWAIT(turn(), releases_done == 2); // the first and the last
    assert_int_equal(sequence_table_count(engine.sequences), 2);
    backend.held = false;
    AWAIT(turn(), releases_done == 4);
    assert_int_equal(sequence_table_count(engine.sequences), 0);
    assert_int_equal(backend.released, 3 + 2 + 1);
}

// Only so many calls may wait for a long step: one more is refused, and nothing of it is done.
static void waiting_releases_are_limited(void **state)
{
    backend.held = true;
    send_step(0, 1000, 1, NULL, NULL);
    AWAIT(turn(), backend.heads == 1);
    engine.pool.call_count = ENGINE_RELEASE_CALLS_MAX; // as if so many waited
    send_release(79, 1, false);
    AWAIT(turn(), releases_done == 1);
    assert_int_equal(releases_failed, 1);
    assert_int_equal(backend.released, 0);
    engine.pool.call_count = 0;
    backend.held = false;
    AWAIT(turn(), steps_done == 1);
}

// The samplers of a scheduler's sequences that its successor does not open again go; a step that still runs keeps its own until it ends.
static void a_new_scheduler_inherits_no_samplers(void **state)
{
    send_step(0, 1000, 10, NULL, NULL);
    AWAIT(turn(), steps_done == 1);
    backend.held = true;
    send_step(1, 2000, 3, NULL, NULL);
    AWAIT(turn(), backend.heads == 2);
    connect_scheduler(scheduler_incarnation + (1 << 20));
    send_step(0, 1005, 1, NULL, NULL); // it goes on with one of them
    AWAIT(turn(), backend.heads == 3);
    atomic_store(&engine.scheduler_incarnation, scheduler_incarnation);
    engine_forget_older(&engine);
    assert_int_equal(sequence_table_count(engine.sequences), 3 + 1);
    backend.held = false;
    AWAIT(turn(), steps_done == 2);
    AWAIT(turn(), engine.batches.of[1].state == BATCH_IDLE);
    assert_int_equal(sequence_table_count(engine.sequences), 1);
    assert_non_null(sequence_table_find(engine.sequences, 1005));
    assert_int_equal(backend.released, 0); // pages: the scheduler says what it does not claim
}

// Nor does one that has the smaller number, because its clock was set back.
static void a_new_scheduler_whose_clock_is_behind_inherits_none(void **state)
{
    send_step(0, 1000, 10, NULL, NULL);
    AWAIT(turn(), steps_done == 1);
    atomic_store(&engine.scheduler_incarnation, scheduler_incarnation - (1 << 20));
    connect_scheduler(scheduler_incarnation - (1 << 20));
    send_step(0, 1005, 1, NULL, NULL);
    AWAIT(turn(), steps_done == 2);
    engine_forget_older(&engine);
    assert_int_equal(sequence_table_count(engine.sequences), 1);
    assert_non_null(sequence_table_find(engine.sequences, 1005));
}

// --- workers ---

// How long a worker may take for a layer follows from what attention was measured to take, is never less than a floor, and counts what
// the worker was asked before.
static void answers_are_waited_for_as_long_as_they_may_take(void **state)
{
    const char *address = "inproc://test-engine-w0";
    start_worker(&workers[0], address);
    engine.links.costs = (struct kv_costs){.call_us = 10, .row_us = 1, .token_us = 0.01, .prefill_row_us = 2, .pair_us = 0.02};
    send_step(0, 1000, 1, &workers[0], address);
    AWAIT(turn(), workers[0].asked);
    const uint32_t floor_ms = workers[0].timeout_ms; // ten microseconds: the floor is what counts
    workers[0].asked = NULL;
    engine.links.costs.row_us = 1e6;
    send_step(1, 2000, 10, &workers[0], address);
    AWAIT(turn(), workers[0].asked);
    const uint32_t slow_ms = workers[0].timeout_ms; // ten seconds are expected
    assert_in_range(floor_ms, 1000, 5000);
    assert_true(slow_ms > 10 * 10000);
    link_drop(&engine.links.of[0]);
    AWAIT(turn(), steps_done == 2);
    workers[0].asked = NULL;
    engine.links.costs = (struct kv_costs){0}; // not measured: more than the floor
    send_step(0, 3000, 1, &workers[0], address);
    AWAIT(turn(), workers[0].asked);
    assert_true(workers[0].timeout_ms > floor_ms);
}

// Behind what is under way for the other mini-batch, a row waits longer.
static void what_was_asked_before_counts(void **state)
{
    const char *address = "inproc://test-engine-w0";
    start_worker(&workers[0], address);
    engine.links.costs = (struct kv_costs){.call_us = 10, .row_us = 1e6, .token_us = 0.01, .prefill_row_us = 2, .pair_us = 0.02};
    send_step(0, 1000, 1, &workers[0], address);
    AWAIT(turn(), workers[0].asked);
    const uint32_t alone_ms = workers[0].timeout_ms;
    workers[0].asked = NULL;
    send_step(1, 2000, 1, &workers[0], address);
    AWAIT(turn(), workers[0].asked);
    assert_true(workers[0].timeout_ms > alone_ms + 50000);
    link_drop(&engine.links.of[0]);
    AWAIT(turn(), steps_done == 2);
    assert_int_equal(last_outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
    assert_int_equal(engine.links.of[0].expected_us, 0);
}

// A worker that was started again at its old address: what is out at the one before is lost, its connection is closed once, and the step
// that named the new one finds it.
static void a_worker_that_comes_again_replaces_its_link(void **state)
{
    const char *address = "inproc://test-engine-w0";
    start_worker(&workers[0], address);
    workers[1] = (struct worker_played){.incarnation = workers[0].incarnation + 1};
    send_step(0, 1000, 4, &workers[0], address);
    AWAIT(turn(), workers[0].asked);
    assert_int_equal(engine.batches.of[0].state, BATCH_WAITING);
    send_step(1, 2000, 4, &workers[1], address); // by another name, too: the address tells
    AWAIT(turn(), steps_done == 2);
    assert_int_equal(last_outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
    assert_int_equal(engine.links.of[0].incarnation, workers[1].incarnation);
    assert_true(engine.links.of[0].down); // the worker said that it is not the one
    assert_null(engine.links.of[1].channel);
}

// The step whose wait ends when its worker's link is replaced may have one queued behind it that replaces the link itself: the
// connection is closed once, and the new one is kept.
static void a_link_is_replaced_once(void **state)
{
    const char *address = "inproc://test-engine-nobody"; // so that the first step waits for its link
    workers[0].incarnation = member_incarnation();
    workers[1].incarnation = workers[0].incarnation + 1;
    send_step(0, 1000, 4, &workers[0], address);
    send_step(0, 2000, 4, &workers[1], address);
    send_step(1, 3000, 4, &workers[1], address);
    AWAIT(turn(), steps_done == 1);
    assert_int_equal(last_outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
    assert_non_null(engine.links.of[0].channel);
    assert_int_equal(engine.links.of[0].incarnation, workers[1].incarnation);
    assert_null(engine.links.of[1].channel);
    AWAIT(turn(), steps_done == 3);
}

// A step does not wait for the connection of a worker that has got the entry of its own worker's link.
static void a_step_does_not_wait_for_another_workers_link(void **state)
{
    Fastdecode__Place other = FASTDECODE__PLACE__INIT;
    workers[0].incarnation = member_incarnation();
    send_step(0, 1000, 4, &workers[0], "inproc://test-engine-nobody");
    AWAIT(turn(), engine.batches.of[0].state == BATCH_CONNECTING);
    link_drop(&engine.links.of[0]);
    other.worker = 2;
    other.incarnation = workers[0].incarnation + 1;
    other.tensor_address = (char *)"inproc://test-engine-nobody-else";
    assert_ptr_equal(link_get(&engine, &other), &engine.links.of[0]);
    (void)engine_advance(&engine);
    assert_int_not_equal(engine.batches.of[0].state, BATCH_CONNECTING);
    AWAIT(turn(), steps_done == 1);
    assert_int_equal(last_outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
    assert_null(engine.links.of[1].channel);
}

// --- an s-part that was stopped for a while ---

// A step whose scheduler has given it up is not begun: what it would write may have been freed since.
static void a_cancelled_step_is_skipped(void **state)
{
    backend.held = true;
    send_step(0, 1000, 1, NULL, NULL);
    send_step(0, 2000, 1, NULL, NULL);
    AWAIT(turn(), backend.heads == 1 && engine.batches.of[0].queue.count == 1);
    connect_scheduler(scheduler_incarnation + 1);
    AWAIT(turn(), rpc_call_is_cancelled(engine.batches.of[0].queue.of[engine.batches.of[0].queue.head].call));
    send_step(0, 3000, 1, NULL, NULL);
    AWAIT(turn(), engine.batches.of[0].queue.count == 2);
    backend.held = false;
    AWAIT(turn(), steps_done == 1);
    assert_int_equal(backend.heads, 2); // of the first and the last
    assert_null(sequence_table_find(engine.sequences, 2000));
}

// --- weights that do not stay in memory ---

// A mini-batch whose weights are still being read waits; of the others the one that lets go of weights soonest goes first.
static void weights_decide_whose_turn_it_is(void **state)
{
    enum { A_STEP = 3 }; // segments of two layers

    backend.turns[0] = backend.turns[1] = BACKEND_NOT_YET;
    send_step(0, 100, 2, NULL, NULL);
    send_step(1, 200, 2, NULL, NULL);
    AWAIT(turn(), engine.batches.of[0].state == BATCH_READY && engine.batches.of[1].state == BATCH_READY);
    assert_false(engine_advance(&engine)); // it may sleep until the weights are there
    assert_int_equal(backend.segments, 0);
    backend.turns[0] = 7, backend.turns[1] = 4;
    AWAIT(turn(), steps_done == 2);
    assert_int_equal(backend.segments, 2 * A_STEP);
    for (uint32_t i = 0; i < A_STEP; i++) {
        assert_int_equal(backend.segment_of[i], 1);
        assert_int_equal(backend.segment_of[A_STEP + i], 0);
    }
    assert_int_equal(backend.ends, 2);
}

// Whether the watchdog, asked every second, bites within so many of them.
static bool bites(uint64_t *now_us, uint32_t seconds, bool reads)
{
    uint64_t stuck_us;
    bool bitten = false;

    for (uint32_t i = 0; i < seconds && !bitten; i++, *now_us += 1000000) {
        backend.pieces += reads;
        engine_advance(&engine);
        bitten = watchdog_bites(&engine.watch.watchdog, *now_us, 10000000, &stuck_us);
    }
    return bitten;
}

// Steps wait for weights that do not come: the engine's loop turns, and nothing is computed.
static void a_disk_that_hangs_is_seen(void **state)
{
    uint64_t now_us = clock_now_us();

    backend.turns[0] = backend.turns[1] = BACKEND_NOT_YET;
    engine_advance(&engine);
    assert_false(bites(&now_us, 100, false)); // nobody waits
    send_step(0, 100, 2, NULL, NULL);
    send_step(1, 200, 2, NULL, NULL);
    AWAIT(turn(), engine.batches.of[0].state == BATCH_READY && engine.batches.of[1].state == BATCH_READY);
    now_us = clock_now_us();
    assert_false(bites(&now_us, 8, true)); // its time is this machine's, which has hardly passed
    assert_false(bites(&now_us, 1, false));
    assert_true(bites(&now_us, 20, false));
    backend.turns[0] = backend.turns[1] = 1; // they come, and the steps with them
    AWAIT(turn(), steps_done == 2);
    engine_advance(&engine);
    now_us = clock_now_us();
    assert_false(bites(&now_us, 100, false));
}

// Weights that come slowly, piece by piece, are waited for.
static void a_slow_disk_does_not_hang(void **state)
{
    uint64_t before_us;

    backend.turns[0] = BACKEND_NOT_YET;
    send_step(0, 100, 2, NULL, NULL);
    AWAIT(turn(), engine.batches.of[0].state == BATCH_READY);
    engine_advance(&engine);
    before_us = atomic_load(&engine.watch.watchdog.went_on_us);
    AWAIT(engine_advance(&engine), clock_now_us() > before_us + 1000);
    assert_int_equal(atomic_load(&engine.watch.watchdog.went_on_us), before_us);
    backend.pieces++;
    engine_advance(&engine);
    assert_true(atomic_load(&engine.watch.watchdog.went_on_us) > before_us);
    backend.turns[0] = 1;
    AWAIT(turn(), steps_done == 1);
}

static uint32_t answers;
static enum status said;

static void on_reach_end(void *user, enum status status, const char *text)
{
    answers++;
    said = status;
}

// Asks whether the engine reaches the worker.
static enum status ask_reach(const struct worker_played *worker, const char *address)
{
    Fastdecode__Place place = FASTDECODE__PLACE__INIT;
    Fastdecode__ReachRequest request = FASTDECODE__REACH_REQUEST__INIT;
    const uint32_t wanted = answers + 1;

    place.worker = 1 + (uint32_t)(worker - workers);
    place.incarnation = worker->incarnation;
    place.tensor_address = (char *)address;
    request.place = &place;
    peer_call(scheduler, &fastdecode__spart__descriptor, "Reach", &request.base, (struct rpc_callbacks){.on_end = on_reach_end},
              NULL);
    AWAIT(turn(), answers == wanted);
    return said;
}

// The engine says so when it is asked, and its log once, however many steps name the worker. It is reached as soon as it is there.
static void a_worker_that_is_not_reached_is_told_of(void **state)
{
    enum { STEPS = 50 };
    static const char address[] = "inproc://test-engine-late";
    struct worker_played *worker = &workers[0];

    worker->incarnation = 1;
    assert_int_equal(ask_reach(worker, address), STATUS_UNAVAILABLE);
    AWAIT(turn(), ask_reach(worker, address) == STATUS_NOT_FOUND);
    for (uint32_t i = 0; i < STEPS; i++) {
        send_step(0, 1000, 1, worker, address);
        AWAIT(turn(), steps_done == i + 1);
        assert_int_equal(last_outcome, FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
    }
    assert_true(engine.links.unreachable.count == 1 && engine.links.unreachable.unlogged == STEPS - 1);
    start_worker(worker, address);
    AWAIT(turn(), ask_reach(worker, address) == STATUS_OK);
    assert_int_equal(engine.links.unreachable.count, 0);
    send_step(0, 1000, 1, worker, address);
    AWAIT(turn(), worker->asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(releases_wait_for_the_step, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_sequence_of_two_steps_goes_with_the_last, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(waiting_releases_are_limited, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_new_scheduler_inherits_no_samplers, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_new_scheduler_whose_clock_is_behind_inherits_none, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(answers_are_waited_for_as_long_as_they_may_take, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(what_was_asked_before_counts, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_worker_that_comes_again_replaces_its_link, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_worker_that_is_not_reached_is_told_of, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_link_is_replaced_once, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_step_does_not_wait_for_another_workers_link, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_cancelled_step_is_skipped, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(weights_decide_whose_turn_it_is, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_disk_that_hangs_is_seen, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_slow_disk_does_not_hang, open_mesh, close_mesh),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

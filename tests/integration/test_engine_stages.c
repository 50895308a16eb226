// test_engine_stages.c: two engines as the stages of a pipeline, with backends that are played, asked by a scheduler that is played, on one
// loop. A backend's x is its row's position, plus one for each stage that it came through; the token sampled is x of the row.
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/member.h"
#include "common/rpc/wire.h"
#include "services/s-part/engine/engine.h"
#include "tests/integration/await.h"
#include "tests/integration/played_peer.h"
#include "tests/integration/step_rows.h"

enum { ROWS = 64, VOCAB = 32, CONTEXT = 64, HIDDEN = 4, LAYERS = 3, HELD = 16, STEPS = 16 };

// --- the backend ---

struct backend {
    bool held;            // the head, or the copy of x, is not done
    uint64_t refused;     // sequence that the pool has lost; 0: none
    uint32_t heads, rows; // rows: of the last begin
    uint64_t pool[HELD];  // sequences that it holds
    uint32_t pool_count;
    bool is_last;
};
struct backend_batch {
    struct backend *backend;
    uint32_t row_count;
    float x[ROWS][HIDDEN];
};

static enum status played_batch_open(struct backend *backend, struct backend_batch **out, struct error *error)
{
    *out = calloc(1, sizeof **out);
    (*out)->backend = backend;
    return STATUS_OK;
}

static void played_batch_close(struct backend_batch *batch) { free(batch); }

static enum status played_begin(struct backend_batch *batch, const struct backend_row *rows, uint32_t row_count, uint32_t *bad_row,
                                struct error *error)
{
    struct backend *b = batch->backend;

    for (uint32_t i = 0; i < row_count; i++) {
        *bad_row = i;
        if (b->refused && rows[i].sequence == b->refused)
            return error_set(error, STATUS_FAILED_PRECONDITION, "not held");
        batch->x[i][0] = (float)rows[i].position;
    }
    batch->row_count = b->rows = row_count;
    for (uint32_t i = 0; i < row_count; i++)
        if (b->pool_count < HELD)
            b->pool[b->pool_count++] = rows[i].sequence;
    return STATUS_OK;
}

static void played_put_x(struct backend_batch *batch, const float *x)
{
    for (uint32_t i = 0; i < batch->row_count; i++)
        batch->x[i][0] = x[i * HIDDEN] + 1;
}

static void played_get_x(struct backend_batch *batch, float *x)
{
    memset(x, 0, batch->row_count * HIDDEN * sizeof *x);
    for (uint32_t i = 0; i < batch->row_count; i++)
        x[i * HIDDEN] = batch->x[i][0];
}

static void played_segment(struct backend_batch *batch, uint32_t s, const struct backend_links *links) {}

static void played_attend(struct backend_batch *batch, uint32_t layer) { (void)batch, (void)layer; }

static void played_head(struct backend_batch *batch, const uint32_t *row_index, const struct backend_sample *samples,
                        uint32_t count)
{
    assert_true(batch->backend->is_last);
    for (uint32_t i = 0; i < count; i++)
        *samples[i].result = (struct sampler_result){.token = (uint32_t)batch->x[row_index[i]][0]};
    batch->backend->heads++;
}

static bool played_done(struct backend_batch *batch) { return !batch->backend->held; }

static void played_info(const struct backend *b, struct backend_info *info) { *info = (struct backend_info){0}; }

static void played_release(struct backend *b, uint64_t sequence)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < b->pool_count; i++)
        if (b->pool[i] != sequence)
            b->pool[kept++] = b->pool[i];
    b->pool_count = kept;
}

static uint32_t played_pool_held(const struct backend *b, struct kv_held *held, uint32_t capacity)
{
    for (uint32_t i = 0; i < MIN(b->pool_count, capacity); i++)
        held[i] = (struct kv_held){.sequence = b->pool[i]};
    return b->pool_count;
}

static const struct backend_ops played = {
    .name = "played",
    .batch_open = played_batch_open,
    .batch_close = played_batch_close,
    .begin = played_begin,
    .put_x = played_put_x,
    .get_x = played_get_x,
    .segment = played_segment,
    .info = played_info,
    .attend = played_attend,
    .head = played_head,
    .done = played_done,
    .pool_release = played_release,
    .pool_held = played_pool_held,
};

// --- the mesh ---

enum { STAGES = 2 };

static const char *const addresses[STAGES] = {"inproc://test-stage-0", "inproc://test-stage-1"};
static struct rpc_loop *loop;
static struct backend backends[STAGES];
static struct engine engines[STAGES];
static struct rpc_server *servers[STAGES];
static struct rpc_channel *channels[STAGES];
static uint64_t scheduler_incarnation, term;
static uint32_t joined, join_failures;
static enum status join_failure; // the latest

// The answers to the steps, in the order in which these were sent.
static struct answer {
    bool ended;
    enum status status;
    Fastdecode__RunOutcome outcome[4];
    uint32_t token[4], result_count, stages;
} answers[STEPS];
static uint32_t sent;
static struct rpc_handle handles[STEPS];

static void turn(void)
{
    for (uint32_t i = 0; i < STAGES; i++)
        if (servers[i])
            (void)engine_advance(&engines[i]);
    rpc_loop_run(loop, 1000, 0);
}

static void open_stage(uint32_t index)
{
    struct engine *engine = &engines[index];
    const struct rpc_method methods[] = {
        {&fastdecode__spart__descriptor, "Step", engine_step_handler, engine},
        {&fastdecode__spart__descriptor, "Forward", engine_forward_handler, engine},
        {&fastdecode__spart__descriptor, "Join", engine_join_handler, engine},
    };
    struct error error;

    backends[index] = (struct backend){.is_last = index == STAGES - 1};
    memset(engine, 0, sizeof *engine);
    engine->loop = loop;
    engine->ops = &played;
    engine->backend = &backends[index];
    engine->model.shape =
        (struct model_shape){.layers = LAYERS, .heads = 1, .kv_heads = 1, .head_dim = 16, .vocab = VOCAB, .hidden = HIDDEN};
    engine->model.range = index ? (struct layer_range){.first = 2, .count = 1, .is_last = true}
                                : (struct layer_range){.first = 0, .count = 2, .is_first = true};
    engine->model.context_tokens = CONTEXT;
    engine->batches.max_rows = ROWS;
    engine->batches.count = 2;
    engine->incarnation = member_incarnation() + index;
    assert_int_equal(engine_open(engine, &error), STATUS_OK);
    servers[index] = peer_serve(loop, addresses[index], methods, ARRAY_COUNT(methods), "s-part", engine->incarnation);
    channels[index] = peer_dial(loop, addresses[index], "scheduler", scheduler_incarnation);
    AWAIT(turn(), rpc_channel_is_up(channels[index]));
}

static void close_stage(uint32_t index)
{
    rpc_channel_close(channels[index]);
    channels[index] = NULL;
    if (!servers[index])
        return;
    handover_close_all(&engines[index].pool.handover);
    engine_stage_close(&engines[index]);
    rpc_server_close(servers[index]);
    servers[index] = NULL;
    engine_close(&engines[index]);
}

static void on_joined(void *user, enum status status, const char *text)
{
    joined += !status;
    join_failures += status != STATUS_OK;
    join_failure = status ? status : join_failure;
}

static void send_join(uint32_t index)
{
    Fastdecode__JoinRequest request = FASTDECODE__JOIN_REQUEST__INIT;

    request.scheduler_incarnation = scheduler_incarnation;
    request.term = term;
    request.stage = index;
    request.previous_incarnation = index ? engines[0].incarnation : 0;
    if (index == 0) {
        request.next_address = (char *)addresses[1];
        request.next_incarnation = engines[1].incarnation;
    }
    peer_call(channels[index], &fastdecode__spart__descriptor, "Join", &request.base, (struct rpc_callbacks){.on_end = on_joined},
              NULL);
}

static void join_all(void)
{
    const uint32_t before = joined;

    term++;
    for (uint32_t i = 0; i < STAGES; i++)
        send_join(i);
    AWAIT(turn(), joined == before + STAGES);
}

static int open_mesh(void **state)
{
    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    scheduler_incarnation = member_incarnation();
    memset(answers, 0, sizeof answers);
    joined = join_failures = sent = 0;
    for (uint32_t i = 0; i < STAGES; i++)
        open_stage(i);
    return 0;
}

static int close_mesh(void **state)
{
    for (uint32_t i = 0; i < STAGES; i++)
        close_stage(i);
    while (rpc_loop_run(loop, 0, 0)) {}
    rpc_loop_close(loop);
    return 0;
}

static void on_step(void *user, struct rpc_message *message)
{
    struct answer *answer = user;
    const Fastdecode__StepReply *reply = rpc_message_unpack(message, &fastdecode__step_reply__descriptor);

    assert_non_null(reply);
    answer->result_count = (uint32_t)reply->n_results;
    answer->stages = (uint32_t)reply->n_stages;
    for (size_t i = 0; i < reply->n_results && i < ARRAY_COUNT(answer->token); i++) {
        answer->outcome[i] = reply->results[i]->outcome;
        answer->token[i] = reply->results[i]->sampled ? reply->results[i]->sampled->token : UINT32_MAX;
    }
}

static void on_step_end(void *user, enum status status, const char *text)
{
    struct answer *answer = user;
    answer->ended = true;
    answer->status = status;
}

// A step with one row of each of `count` sequences from `first` on, at `position`; opened: they are new. Position above 0 and not opened: the
// token is the one sampled last.
static struct answer *send_step(uint32_t mini_batch, uint64_t first, uint32_t count, uint32_t position, bool opened)
{
    Fastdecode__SequenceOpen opens[4], *open_pointers[4];
    Fastdecode__Run runs[4], *run_pointers[4];
    Fastdecode__Sampling sampling;
    Fastdecode__Place place = FASTDECODE__PLACE__INIT, *places[] = {&place};
    Fastdecode__StepRequest request = FASTDECODE__STEP_REQUEST__INIT;
    struct answer *answer = &answers[sent];

    step_rows_fill(first, count, &sampling, opens, open_pointers, runs, run_pointers);
    for (uint32_t i = 0; i < count; i++) {
        runs[i].position = position + i;
        runs[i].n_tokens = opened;
    }
    request.scheduler_incarnation = scheduler_incarnation;
    request.step = 100 + sent;
    request.mini_batch = mini_batch;
    request.n_open = opened ? count : 0;
    request.n_runs = count;
    request.open = open_pointers;
    request.runs = run_pointers;
    request.n_places = 1;
    request.places = places;
    handles[sent++] = peer_call(channels[0], &fastdecode__spart__descriptor, "Step", &request.base,
                                (struct rpc_callbacks){.on_message = on_step, .on_end = on_step_end}, answer);
    return answer;
}

// --- tests ---

static void a_step_goes_through_both(void **state)
{
    join_all();
    const struct answer *answer = send_step(0, 7, 3, 4, true);
    AWAIT(turn(), answer->ended);
    assert_true(answer->status == STATUS_OK && answer->result_count == 3 && answer->stages == STAGES);
    for (uint32_t i = 0; i < 3; i++) // the position, and 1 of the second stage
        assert_true(answer->outcome[i] == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE && answer->token[i] == 5 + i);
    assert_true(backends[0].heads == 0 && backends[1].heads == 1);
}

// The next step of a mini-batch needs the tokens of the one before: it waits for them, and another mini-batch does not.
static void a_planned_step_waits_for_the_reply(void **state)
{
    join_all();
    backends[1].held = true;
    const struct answer *first = send_step(0, 7, 1, 4, true), *second = send_step(0, 7, 1, 5, false),
                        *other = send_step(1, 9, 1, 0, true);
    AWAIT(turn(), engines[1].batches.of[0].state == BATCH_SAMPLING && engines[1].batches.of[1].state == BATCH_SAMPLING);
    assert_true(engines[0].batches.of[0].state == BATCH_FORWARDED && engines[0].batches.of[0].queue.count == 1);
    assert_false(first->ended || second->ended || other->ended);
    backends[1].held = false;
    AWAIT(turn(), first->ended && second->ended && other->ended);
    assert_true(first->token[0] == 5 && second->token[0] == 6 && other->token[0] == 1);
    assert_int_equal(sequence_table_find(engines[0].sequences, 7)->last_token, 6); // learnt from the reply
}

static void what_a_later_stage_lacks_is_lost(void **state)
{
    join_all();
    backends[1].refused = 8;
    const struct answer *answer = send_step(0, 7, 3, 4, true);
    AWAIT(turn(), answer->ended);
    assert_int_equal(answer->status, STATUS_OK);
    assert_true(answer->outcome[0] == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE && answer->token[0] == 5);
    assert_int_equal(answer->outcome[1], FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
    assert_true(answer->outcome[2] == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE &&
                answer->token[2] == 7); // its own x, not the lost one's
    backends[0].refused = 9;
    backends[1].refused = 0;
    answer = send_step(0, 7, 3, 4, true);
    AWAIT(turn(), answer->ended);
    assert_true(answer->token[0] == 5 && answer->token[1] == 6);
    assert_int_equal(answer->outcome[2], FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_LOST);
    assert_int_equal(backends[1].rows, 2);
}

static void unknown_sequences_are_told(void **state)
{
    join_all();
    const struct answer *answer = send_step(0, 7, 1, 4, true);
    AWAIT(turn(), answer->ended);
    sequence_table_remove(engines[1].sequences, 7);
    answer = send_step(0, 7, 1, 5, false);
    AWAIT(turn(), answer->ended);
    assert_int_equal(answer->outcome[0], FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_UNKNOWN);
    answer = send_step(0, 7, 1, 5, true);
    AWAIT(turn(), answer->ended);
    assert_true(answer->outcome[0] == FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_DONE && answer->token[0] == 6);
}

static void a_hop_that_fails_fails_the_step(void **state)
{
    join_all();
    backends[1].held = true;
    const struct answer *first = send_step(0, 7, 1, 4, true), *behind = send_step(0, 7, 1, 5, false);
    AWAIT(turn(), engines[1].batches.of[0].state == BATCH_SAMPLING);
    close_stage(1);
    AWAIT(turn(), first->ended && behind->ended);
    assert_true(first->status == STATUS_UNAVAILABLE && behind->status == STATUS_UNAVAILABLE);
    open_stage(1); // another process
    join_all();
    const struct answer *again = send_step(0, 7, 1, 4, true);
    AWAIT(turn(), again->ended);
    assert_true(again->status == STATUS_OK && again->token[0] == 5);
}

static void cancellation_follows_the_chain(void **state)
{
    join_all();
    backends[1].held = true;
    (void)send_step(0, 7, 1, 4, true);
    AWAIT(turn(), engines[1].batches.of[0].state == BATCH_SAMPLING);
    rpc_cancel(channels[0], handles[0]);
    AWAIT(turn(), engines[0].batches.of[0].state == BATCH_IDLE && rpc_call_is_cancelled(engines[1].batches.of[0].step.call));
    backends[1].held = false;
    AWAIT(turn(), engines[1].batches.of[0].state == BATCH_IDLE);
    const struct answer *next = send_step(0, 8, 1, 0, true);
    AWAIT(turn(), next->ended);
    assert_true(next->status == STATUS_OK && next->token[0] == 1);
}

// A new term waits for the steps of the one before, and begins with nothing.
static void joining_forgets(void **state)
{
    join_all();
    const struct answer *answer = send_step(0, 7, 2, 4, true);
    AWAIT(turn(), answer->ended);
    assert_true(backends[0].pool_count == 2 && sequence_table_count(engines[0].sequences) == 2);
    backends[1].held = true;
    answer = send_step(0, 7, 1, 5, false);
    AWAIT(turn(), engines[1].batches.of[0].state == BATCH_SAMPLING);
    term++;
    send_join(0);
    send_join(1);
    AWAIT(turn(), answer->ended && joined == STAGES + 1); // the first has given the step up; the second computes it still
    assert_int_equal(answer->status, STATUS_UNAVAILABLE);
    assert_int_equal(backends[1].pool_count, 3);
    backends[1].held = false;
    AWAIT(turn(), joined == 2 * STAGES);
    for (uint32_t i = 0; i < STAGES; i++)
        assert_true(backends[i].pool_count == 0 && sequence_table_count(engines[i].sequences) == 0);
    answer = send_step(0, 7, 1, 5, false);
    AWAIT(turn(), answer->ended);
    assert_int_equal(answer->outcome[0], FASTDECODE__RUN_OUTCOME__RUN_OUTCOME_UNKNOWN);
}

static void who_has_no_place_is_refused(void **state)
{
    const struct answer *early = send_step(0, 7, 1, 4, true); // before the first Join
    AWAIT(turn(), early->ended);
    assert_int_equal(early->status, STATUS_FAILED_PRECONDITION);
    term++;
    engines[0].model.range.is_first = false; // it has other layers than the scheduler thinks
    send_join(0);
    AWAIT(turn(), join_failures == 1);
    engines[0].model.range.is_first = true;
    join_all();
    engines[0].stage.term--; // it missed a Join
    const struct answer *late = send_step(0, 7, 1, 4, true);
    AWAIT(turn(), late->ended);
    assert_int_equal(late->status, STATUS_FAILED_PRECONDITION);
}

// A Join of a term that is over, or under way, is refused before it touches anything: the scheduler that is obeyed did not mean it. A
// scheduler that has been started again counts its terms anew.
static void a_term_that_is_not_newer_is_refused(void **state)
{
    join_all();
    backends[1].held = true;
    const struct answer *under_way = send_step(0, 7, 1, 4, true);
    AWAIT(turn(), engines[1].batches.of[0].state == BATCH_SAMPLING);
    const uint64_t current = term;
    for (uint32_t back = 0; back < 2; back++) {
        term = current - back;
        for (uint32_t i = 0; i < STAGES; i++)
            send_join(i);
        AWAIT(turn(), join_failures == STAGES * (back + 1));
        assert_int_equal(join_failure, STATUS_FAILED_PRECONDITION);
    }
    term = current;
    backends[1].held = false;
    AWAIT(turn(), under_way->ended);
    const struct answer *next = send_step(0, 7, 1, 5, false);
    AWAIT(turn(), next->ended);
    assert_true(under_way->status == STATUS_OK && under_way->token[0] == 5 && next->status == STATUS_OK && next->token[0] == 6);

    scheduler_incarnation++;
    for (uint32_t i = 0; i < STAGES; i++)
        rpc_channel_set_incarnation(channels[i], scheduler_incarnation);
    AWAIT(turn(), rpc_channel_is_up(channels[0]) && rpc_channel_is_up(channels[1]));
    term = 0;
    join_all();
    next = send_step(0, 8, 1, 4, true);
    AWAIT(turn(), next->ended);
    assert_int_equal(next->status, STATUS_OK);
    term = current;
}

// The stage does not dial again and again: the scheduler asks anew.
static void another_process_at_the_next_address_fails_the_join(void **state)
{
    for (uint32_t round = 1; round <= 2; round++) {
        term++;
        engines[1].incarnation++; // the one that is meant
        send_join(0);
        engines[1].incarnation--;
        AWAIT(turn(), join_failures == round);
    }
    join_all();
    const struct answer *answer = send_step(0, 7, 1, 4, true);
    AWAIT(turn(), answer->ended);
    assert_true(answer->status == STATUS_OK && answer->token[0] == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_goes_through_both, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_planned_step_waits_for_the_reply, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(what_a_later_stage_lacks_is_lost, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(unknown_sequences_are_told, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_hop_that_fails_fails_the_step, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(cancellation_follows_the_chain, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(joining_forgets, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(who_has_no_place_is_refused, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(a_term_that_is_not_newer_is_refused, open_mesh, close_mesh),
        cmocka_unit_test_setup_teardown(another_process_at_the_next_address_fails_the_join, open_mesh, close_mesh),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

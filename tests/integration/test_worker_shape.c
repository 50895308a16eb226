/* test_worker_shape.c: what a KV worker does with the shape that the scheduler's answer to its registration names, and with the rows of a
 * step. The scheduler and the s-part are played here; both loops of the worker are one, so that everything runs on this thread. */
#include <malloc.h>
#include <string.h>

#include "attend.pb-c.h"
#include "cluster.pb-c.h"
#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/tensors.h"
#include "common/rpc/wire.h"
#include "kernels/dispatch/kernels.h"
#include "services/kv-worker/worker.h"
#include "tests/integration/await.h"
#include "tests/integration/played_peer.h"

static const struct kv_shape good = {
    .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .page_tokens = 16, .type = KV_F16, .max_context = 1024};
static struct worker worker;
static struct kv_shape answered;
static uint32_t registrations, beats;
static uint64_t pages_told, heartbeat_status;

#define UNTIL(condition) AWAIT(rpc_loop_run(worker.control.loop, 2000, 0), condition)

// Steps that the scheduler before says are over, while another takes the registration; 0: no other does.
static uint64_t freed_meanwhile;
static uint64_t told_over; // in answers to registrations

static void take_registration(struct rpc_call *call, void *user)
{
    const Fastdecode__RegisterRequest *request = rpc_call_unpack(call, &fastdecode__register_request__descriptor);
    Fastdecode__RegisterReply reply = FASTDECODE__REGISTER_REPLY__INIT;
    Fastdecode__KvShape shape = FASTDECODE__KV_SHAPE__INIT;

    assert_non_null(request);
    pages_told = request->pages_total;
    shape.layers = answered.layers;
    shape.heads = answered.heads;
    shape.kv_heads = answered.kv_heads;
    shape.head_dim = answered.head_dim;
    shape.page_tokens = answered.page_tokens;
    shape.type = (Fastdecode__KvType)answered.type;
    shape.context_tokens = answered.max_context;
    shape.sparse_percent = answered.sparse_percent;
    if (freed_meanwhile && !told_over)
        worker.attend.over_before_step = freed_meanwhile;
    reply.scheduler_incarnation = freed_meanwhile ? 2 : 1;
    reply.over_before_step = told_over;
    reply.kv = &shape;
    rpc_call_reply(call, &reply.base);
    registrations++;
}

static void take_heartbeat(struct rpc_call *call, void *user)
{
    Fastdecode__HeartbeatReply reply = FASTDECODE__HEARTBEAT_REPLY__INIT;

    beats++;
    if (heartbeat_status)
        rpc_call_fail(call, (enum status)heartbeat_status, "register again");
    else
        rpc_call_reply(call, &reply.base);
}

static struct rpc_server *scheduler;

// Opens a worker, and the scheduler that tells it `answered`, whatever it says.
static void open_member(uint64_t kv_memory)
{
    const char *address = "inproc://test-cluster";
    struct error error;

    registrations = beats = 0;
    pages_told = 0;
    heartbeat_status = STATUS_FAILED_PRECONDITION;
    worker =
        (struct worker){.settings = {.name = "w", .scheduler = address, .listen = "inproc://test-shaped", .kv_memory = kv_memory}};
    worker.incarnation = member_incarnation();
    assert_int_equal(rpc_loop_open(&worker.control.loop), STATUS_OK);
    worker.tensors.loop = worker.control.loop;
    assert_int_equal(thread_pool_open(1, &worker.pool), STATUS_OK);
    scheduler = open_cluster(worker.control.loop, address, take_registration, take_heartbeat);
    assert_int_equal(control_open(&worker, &error), STATUS_OK);
}

static void close_member(void)
{
    control_close(&worker);
    attend_close(&worker);
    rpc_server_close(scheduler);
    while (rpc_loop_run(worker.control.loop, 0, 0)) {}
    rpc_loop_close(worker.control.loop);
    thread_pool_close(worker.pool);
}

static void a_shape_that_cannot_be_is_refused(void **state)
{
    struct kv_shape bad[] = {good, good, good, good, good, good, good, good, {0}};

    bad[0].layers = UINT32_MAX;
    bad[1].kv_heads = 3;
    bad[2].head_dim = 24;
    bad[3].page_tokens = 0;
    bad[4].type = (enum kv_type)77;
    bad[5].max_context = UINT32_MAX;
    bad[6].heads = 0;
    bad[7].sparse_percent = 101;
    answered = bad[0];
    open_member(1 << 20);
    for (uint32_t i = 0; i < ARRAY_COUNT(bad); i++) {
        const uint32_t before = registrations;
        answered = bad[i];
        UNTIL((worker.control.open_from_us = 0, registrations > before));
        const uint32_t at = beats; /* it beats: it has taken the answer, and lives */
        UNTIL((worker.control.open_from_us = 0, beats > at));
        assert_null(worker.attend.store);
        assert_int_equal(pages_told, 0);
    }
    answered = good;
    UNTIL(pages_told > 0); /* and the next answer may be a good one */
    assert_non_null(worker.attend.store);
    assert_true(registrations > ARRAY_COUNT(bad));
    close_member();
}

/* Memory that is not there may be there later, and the next model's pages may be smaller: it waits, and says why it is not ready. */
static void pages_that_cannot_be_opened_are_tried_again(void **state)
{
    const uint64_t too_much = UINT64_C(1) << 50, less_than_a_page = 64;

    answered = good;
    for (uint32_t i = 0; i < 2; i++) {
        open_member(i ? less_than_a_page : too_much);
        UNTIL(worker.control.not_opened.text[0]);
        assert_int_equal(worker.control.not_opened.status, i ? STATUS_INVALID_ARGUMENT : STATUS_RESOURCE_EXHAUSTED);
        assert_null(worker.attend.store);
        assert_int_equal(pages_told, 0);
        worker.settings.kv_memory = 1 << 20;
        UNTIL(pages_told > 0);
        assert_non_null(worker.attend.store);
        assert_int_equal(worker.control.not_opened.text[0], 0);
        close_member();
    }
}

/* The mesh may come back with another model: its pages are opened anew for that one. */
static void pages_become_those_of_another_model(void **state)
{
    answered = good;
    open_member(1 << 20);
    UNTIL(pages_told > 0);
    answered.layers = 4;
    UNTIL(worker.attend.shape.layers == 4);
    const uint32_t before = registrations;
    UNTIL(registrations > before && pages_told == kv_store_pages_total(worker.attend.store));
    assert_int_equal(worker.attend.shape.layers, 4);
    close_member();
}

// --- without memory ---

static bool refuse_jobs; // calloc() of one struct of their size fails

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_calloc(size_t count, size_t size);

void *calloc(size_t count, size_t size)
{
    return refuse_jobs && count == 1 && size >= sizeof(struct error) && size < 4096 ? NULL : __libc_calloc(count, size);
}
#endif

static enum status freed;
static bool was_freed;

static void take_freed(void *user, enum status status, const char *text)
{
    freed = status;
    was_freed = true;
}

static enum status ask_free(struct rpc_channel *channel, uint64_t incarnation)
{
    Fastdecode__FreeRequest request = FASTDECODE__FREE_REQUEST__INIT;

    was_freed = false;
    request.scheduler_incarnation = incarnation;
    peer_call(channel, &fastdecode__kv_control__descriptor, "Free", &request.base, (struct rpc_callbacks){.on_end = take_freed},
              NULL);
    UNTIL(was_freed);
    return freed;
}

// A call that there is no memory for is refused, a list that cannot be made is made later, and the worker lives.
static void without_memory_for_a_job_a_call_is_refused(void **state)
{
    const uint64_t incarnation = member_incarnation();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    answered = good;
    open_member(1 << 20);
    UNTIL(pages_told > 0);
    struct rpc_channel *channel = peer_dial(worker.control.loop, "inproc://test-shaped", "scheduler", incarnation);
    UNTIL(rpc_channel_is_up(channel));
    assert_int_equal(ask_free(channel, incarnation), STATUS_OK);
    const uint32_t before = beats;
    refuse_jobs = true;
    assert_int_equal(ask_free(channel, incarnation), STATUS_RESOURCE_EXHAUSTED);
    UNTIL(beats > before); // each asks it to register again
    const uint32_t registered = registrations;
    refuse_jobs = false;
    UNTIL(registrations > registered);
    assert_int_equal(ask_free(channel, incarnation), STATUS_OK);
    rpc_channel_close(channel);
    close_member();
}

/* A step finds all that it needs: every mini-batch is open from the start, and together they take no more than was planned. */
static void steps_allocate_nothing(void **state)
{
    struct kv_shape shape = good;
    uint64_t pages;
    struct error error;

    shape.max_sequences = 64;
    worker = (struct worker){.settings = {.name = "w", .kv_memory = 1 << 20}};
    assert_int_equal(thread_pool_open(2, &worker.pool), STATUS_OK);
    const uint64_t planned = attend_memory_plan(&worker, &shape, &pages).fixed_bytes;
    const struct mallinfo2 before = mallinfo2();
    assert_int_equal(attend_open(&worker, &shape, &error), STATUS_OK);
    const struct mallinfo2 after = mallinfo2();
    const uint64_t taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    assert_in_range(taken, 0, planned);
    assert_int_equal(kv_store_pages_total(worker.attend.store), pages);
    for (uint32_t i = 0; i < WORKER_BATCHES_MAX; i++)
        assert_non_null(worker.attend.batches[i].kv);
    attend_close(&worker);
    thread_pool_close(worker.pool);
}

// --- a step under way ---

static uint32_t attended, lost, ended;
static float first_o;          // of the last reply
static uint64_t steps_before;  // the number of the step that takes position p is this + p + 1
static enum status wanted_end; // of calls

static void count_lost(void *user, uint32_t row, bool is_read)
{
    assert_false(is_read);
    lost++;
}

static void take_reply(void *user, struct rpc_message *message)
{
    const struct attend_reply_form form = {.row_count = 1, .o_count = 1, .q_width = worker.attend.q_width};
    struct attend_reply reply;
    struct error error;
    size_t length;
    const unsigned char *payload = rpc_message_payload(message, &length);

    assert_int_equal(attend_reply_parse(payload, length, &form, count_lost, NULL, &reply, &error), STATUS_OK);
    first_o = reply.o[0];
    attended++;
}

static void take_end(void *user, enum status status, const char *text)
{
    assert_int_equal(status, wanted_end);
    ended++;
}

// One row of one sequence, in one layer, whose v is 1: so is o, if there are no sinks.
static void attend_row(struct rpc_channel *channel, uint32_t position, uint32_t layer, bool sinks)
{
    const struct rpc_callbacks callbacks = {.on_message = take_reply, .on_end = take_end};
    const struct attend_request_form form = {.incarnation = 1,
                                             .step = steps_before + position + 1,
                                             .layer = layer,
                                             .row_count = 1,
                                             .q_width = worker.attend.q_width,
                                             .kv_width = worker.attend.kv_width,
                                             .sink_count = sinks ? worker.attend.shape.heads : 0};
    const size_t size = attend_request_size(&form);
    const uint32_t before = ended;
    struct attend_request_parts parts;
    unsigned char *payload;
    struct rpc_buffer *buffer =
        rpc_request_buffer(channel, rpc_method_id(&fastdecode__kv_worker__descriptor, "Attend"), 0, size, &payload);

    assert_non_null(buffer);
    memset(payload, 0, size);
    attend_request_begin(payload, size, &form, &parts);
    if (layer == 0) {
        wire_store_u64(parts.row_sequence, 7);
        wire_store_u32(parts.row_position, position);
    }
    for (uint32_t i = 0; i < worker.attend.kv_width; i++)
        parts.v[i] = 1;
    assert_int_equal(rpc_call_start_buffer(channel, buffer, &callbacks, NULL, NULL), STATUS_OK);
    UNTIL(ended > before);
}

struct caller {
    struct rpc_server *server;
    struct rpc_channel *channel;
};

// Opens a worker that knows the shape, and an s-part's connection to it.
static void open_caller(struct caller *caller)
{
    const struct rpc_method methods[] = {{&fastdecode__kv_worker__descriptor, "Attend", attend_handler, &worker}};
    struct kv_shape shape = good;
    struct error error;

    shape.max_sequences = 64;
    attended = lost = ended = 0;
    worker = (struct worker){.settings = {.name = "w", .kv_memory = 1 << 20}};
    assert_int_equal(rpc_loop_open(&worker.control.loop), STATUS_OK);
    assert_int_equal(thread_pool_open(1, &worker.pool), STATUS_OK);
    assert_int_equal(attend_open(&worker, &shape, &error), STATUS_OK);
    caller->server = peer_serve(worker.control.loop, "inproc://test-attended", methods, 1, "kv-worker", 0);
    caller->channel = peer_dial(worker.control.loop, "inproc://test-attended", "s-part", 1);
    UNTIL(rpc_channel_is_up(caller->channel));
}

static void close_caller(struct caller *caller)
{
    rpc_channel_close(caller->channel);
    rpc_server_close(caller->server);
    attend_close(&worker);
    while (rpc_loop_run(worker.control.loop, 0, 0)) {}
    rpc_loop_close(worker.control.loop);
    thread_pool_close(worker.pool);
}

// Token by token over two pages: each step reserves the page that its row begins, so that no row is lost.
static void a_row_that_begins_a_page_has_one(void **state)
{
    struct caller caller;

    open_caller(&caller);
    for (uint32_t position = 0; position < 2 * good.page_tokens; position++)
        for (uint32_t layer = 0; layer < good.layers; layer++)
            attend_row(caller.channel, position, layer, false);
    assert_int_equal(attended, 2 * good.page_tokens * good.layers);
    assert_int_equal(lost, 0);
    assert_int_equal(kv_store_pages_used(worker.attend.store), 2);
    close_caller(&caller);
}

// Sinks are those of one request, even of one whose rows are all lost.
static void sinks_do_not_stay(void **state)
{
    struct caller caller;

    open_caller(&caller);
    attend_row(caller.channel, 0, 0, true);
    assert_true(lost == 0 && first_o == 0.5f); // a score of 0 and a sink of 0
    attend_row(caller.channel, 0, 1, false);
    assert_true(lost == 0 && first_o == 1);
    attend_row(caller.channel, 5, 0, true);
    assert_true(lost == 1 && first_o == 0); // positions before it are missing
    attend_row(caller.channel, 0, 0, false);
    assert_true(lost == 1 && first_o == 1);
    close_caller(&caller);
}

static void free_sequence(struct rpc_channel *channel, uint64_t sequence, uint64_t over_before_step)
{
    Fastdecode__FreeRequest request = FASTDECODE__FREE_REQUEST__INIT;
    const uint32_t before = ended;

    request.scheduler_incarnation = 1;
    request.n_sequence = 1;
    request.sequence = &sequence;
    request.over_before_step = over_before_step;
    peer_call(channel, &fastdecode__kv_control__descriptor, "Free", &request.base, (struct rpc_callbacks){.on_end = take_end},
              NULL);
    UNTIL(ended > before);
}

// An s-part that was stopped for a while goes on with steps that the scheduler has given up: they bring nothing back that was freed. After
// another registration steps may be counted anew.
static void what_was_freed_does_not_come_back(void **state)
{
    struct caller caller;
    struct error error;

    open_caller(&caller);
    worker.settings.scheduler = "inproc://test-fencing";
    worker.settings.listen = "inproc://test-fenced";
    worker.tensors.loop = worker.control.loop;
    answered = good;
    heartbeat_status = registrations = 0;
    scheduler = open_cluster(worker.control.loop, worker.settings.scheduler, take_registration, take_heartbeat);
    assert_int_equal(control_open(&worker, &error), STATUS_OK);
    struct rpc_channel *freer = peer_dial(worker.control.loop, worker.settings.listen, "scheduler", 1);
    UNTIL(member_is_registered(worker.control.member) && rpc_channel_is_up(freer));
    steps_before = 40;
    attend_row(caller.channel, 0, 0, false);
    attend_row(caller.channel, 0, 1, false);
    assert_int_equal(kv_store_pages_used(worker.attend.store), 1);
    free_sequence(freer, 7, 43);
    wanted_end = STATUS_FAILED_PRECONDITION;
    attend_row(caller.channel, 0, 0, false); // of step 41
    attend_row(caller.channel, 1, 0, false); // of step 42
    assert_int_equal(kv_store_pages_used(worker.attend.store), 0);
    wanted_end = STATUS_OK;
    free_sequence(freer, 7, 0); // of a scheduler that does not say it
    steps_before = 42;
    attend_row(caller.channel, 0, 0, false);
    assert_int_equal(kv_store_pages_used(worker.attend.store), 1);
    const uint32_t before = registrations;
    heartbeat_status = STATUS_FAILED_PRECONDITION;
    UNTIL(registrations > before);
    heartbeat_status = STATUS_OK;
    steps_before = 0;
    wanted_end = STATUS_FAILED_PRECONDITION;
    attend_row(caller.channel, 0, 0, false); // of step 1: still over, for it is the same scheduler
    wanted_end = STATUS_OK;
    freed_meanwhile = 1000;
    heartbeat_status = STATUS_FAILED_PRECONDITION;
    UNTIL(registrations > before + 1);
    heartbeat_status = STATUS_OK;
    UNTIL(worker.control.scheduler_incarnation == 2);
    attend_row(caller.channel, 0, 0, false);
    attend_row(caller.channel, 0, 1, false);
    attend_row(caller.channel, 1, 0, false);
    told_over = 9; // it missed that while it was out of reach
    heartbeat_status = STATUS_FAILED_PRECONDITION;
    UNTIL(worker.attend.over_before_step == 9);
    heartbeat_status = STATUS_OK;
    wanted_end = STATUS_FAILED_PRECONDITION;
    attend_row(caller.channel, 1, 0, false);
    wanted_end = STATUS_OK;
    freed_meanwhile = told_over = 0;
    rpc_channel_close(freer);
    control_close(&worker);
    rpc_server_close(scheduler);
    close_caller(&caller);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_shape_that_cannot_be_is_refused),
                                       cmocka_unit_test(pages_that_cannot_be_opened_are_tried_again),
                                       cmocka_unit_test(pages_become_those_of_another_model),
                                       cmocka_unit_test(without_memory_for_a_job_a_call_is_refused),
                                       cmocka_unit_test(steps_allocate_nothing),
                                       cmocka_unit_test(a_row_that_begins_a_page_has_one),
                                       cmocka_unit_test(sinks_do_not_stay),
                                       cmocka_unit_test(what_was_freed_does_not_come_back)};
    struct error error;
    log_init("test", LOG_ERROR, false);
    assert_always(kernels_init(NULL, &error) == STATUS_OK);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

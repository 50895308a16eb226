/* test_handover.c: a KV worker that takes a sequence over, between a scheduler and another worker that are played here. Both
 * loops of the worker are one, so that everything runs on this thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/rpc/wire.h"
#include "kernels/dispatch/kernels.h"
#include "services/kv-worker/worker.h"
#include "tests/integration/await.h"
#include "tests/integration/played_peer.h"

enum { PAGE_TOKENS = 16 };

static struct worker worker;
static struct rpc_server *other;
static struct rpc_channel *scheduler;
static struct rpc_call *asked; /* ReadPage that is not answered yet */
static uint32_t asked_page;
static uint64_t incarnation; /* of the scheduler */

#define UNTIL(condition) AWAIT(rpc_loop_run(worker.control.loop, 2000, 0), condition)

static void read_page(struct rpc_call *call, void *user)
{
    const Fastdecode__ReadPageRequest *request = rpc_call_unpack(call, &fastdecode__read_page_request__descriptor);
    assert_non_null(request);
    asked = call;
    asked_page = request->page_index;
}

static void answer_page(void)
{
    Fastdecode__ReadPageReply reply = FASTDECODE__READ_PAGE_REPLY__INIT;
    struct rpc_call *call = asked;

    reply.positions = PAGE_TOKENS;
    reply.page.len = kv_page_bytes(&worker.attend.shape);
    reply.page.data = calloc(1, reply.page.len);
    asked = NULL;
    rpc_call_reply(call, &reply.base);
    free(reply.page.data);
}

static uint32_t pages_used(void) { return kv_store_pages_used(worker.attend.store); }

static void set_up(void)
{
    const struct kv_shape shape = {.layers = 2,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 16,
                                   .page_tokens = PAGE_TOKENS,
                                   .type = KV_F16,
                                   .max_sequences = 16,
                                   .max_context = 1024};
    const struct rpc_method methods[] = {{&fastdecode__kv_handover__descriptor, "ReadPage", read_page, NULL}};
    struct error error;

    worker = (struct worker){
        .settings = {.name = "w", .scheduler = "inproc://test-nobody", .listen = "inproc://test-worker", .kv_memory = 1 << 20}};
    worker.incarnation = member_incarnation();
    incarnation = member_incarnation();
    assert_int_equal(rpc_loop_open(&worker.control.loop), STATUS_OK);
    worker.tensors.loop = worker.control.loop;
    assert_int_equal(thread_pool_open(1, &worker.pool), STATUS_OK);
    assert_int_equal(attend_open(&worker, &shape, &error), STATUS_OK);
    assert_int_equal(control_open(&worker, &error), STATUS_OK);
    other = peer_serve(worker.control.loop, "inproc://test-other", methods, 1, "kv-worker", 0);
    scheduler = peer_dial(worker.control.loop, "inproc://test-worker", "scheduler", incarnation);
    UNTIL(rpc_channel_is_up(scheduler));
    asked = NULL;
}

static void tear_down(void)
{
    handover_close_all(&worker.handover);
    rpc_loop_run(worker.control.loop, 0, 0); /* what it posted */
    control_close(&worker);
    attend_close(&worker);
    rpc_channel_close(scheduler);
    rpc_server_close(other);
    while (rpc_loop_run(worker.control.loop, 0, 0)) {}
    rpc_loop_close(worker.control.loop); /* asserts that no connection is left */
    thread_pool_close(worker.pool);
}

struct outcome {
    bool ended;
    enum status status;
};

static void on_end(void *user, enum status status, const char *text) { *(struct outcome *)user = (struct outcome){true, status}; }

static struct rpc_handle fetch_from(struct outcome *outcome, uint32_t first, uint32_t positions)
{
    Fastdecode__FetchRequest request = FASTDECODE__FETCH_REQUEST__INIT;

    *outcome = (struct outcome){0};
    request.scheduler_incarnation = incarnation;
    request.sequence = 7;
    request.tensor_address = (char *)"inproc://test-other";
    request.positions = positions;
    request.first_position = first;
    return peer_call(scheduler, &fastdecode__kv_control__descriptor, "Fetch", &request.base,
                     (struct rpc_callbacks){.on_end = on_end}, outcome);
}

static struct rpc_handle fetch(struct outcome *outcome, uint32_t positions) { return fetch_from(outcome, 0, positions); }

static struct rpc_handle fetch_two_pages(struct outcome *outcome) { return fetch(outcome, 2 * PAGE_TOKENS); }

/* Everything that the scheduler said before has been done, at the worker's other thread too. */
static void round_trip(void)
{
    Fastdecode__HeldRequest request = FASTDECODE__HELD_REQUEST__INIT;
    struct outcome outcome = {0};

    peer_call(scheduler, &fastdecode__kv_control__descriptor, "Held", &request.base, (struct rpc_callbacks){.on_end = on_end},
              &outcome);
    UNTIL(outcome.ended);
}

static void a_sequence_is_taken_over(void **state)
{
    struct outcome outcome;
    set_up();
    fetch_two_pages(&outcome);
    for (uint32_t page = 0; page < 2; page++) {
        UNTIL(asked);
        assert_int_equal(asked_page, page);
        answer_page();
    }
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_OK);
    assert_int_equal(pages_used(), 2);
    tear_down();
}

/* The other worker's last page has positions beyond those of the sequence: rows of drafts that did not come true. */
static void no_more_is_taken_than_was_asked_for(void **state)
{
    struct kv_held held = {0};
    struct outcome outcome;
    set_up();
    fetch(&outcome, PAGE_TOKENS + 6);
    for (uint32_t page = 0; page < 2; page++) {
        UNTIL(asked);
        answer_page();
    }
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_OK);
    assert_true(kv_store_find(worker.attend.store, 7, &held));
    assert_int_equal(held.positions, PAGE_TOKENS + 6);
    tear_down();
}

/* A fetch of an extent asks for the extent's own pages only. An extent that begins within a page, or behind its end, is refused. */
static void an_extent_is_taken_over(void **state)
{
    enum { FIRST = 512 };
    struct kv_held held = {0};
    struct outcome outcome;
    set_up();
    fetch_from(&outcome, FIRST, FIRST + PAGE_TOKENS + 3);
    for (uint32_t page = FIRST / PAGE_TOKENS; page < FIRST / PAGE_TOKENS + 2; page++) {
        UNTIL(asked);
        assert_int_equal(asked_page, page);
        answer_page();
    }
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_OK);
    assert_true(kv_store_find(worker.attend.store, 7, &held));
    assert_int_equal(held.first, FIRST);
    assert_int_equal(held.positions, FIRST + PAGE_TOKENS + 3);
    assert_int_equal(pages_used(), 2);
    for (uint32_t first = FIRST + 8; first <= FIRST + 64; first += 56) {
        fetch_from(&outcome, first, FIRST + 40);
        UNTIL(outcome.ended);
        assert_int_equal(outcome.status, STATUS_INVALID_ARGUMENT);
    }
    tear_down();
}

/* The scheduler has given it up (its deadline has passed): it believes that nothing of it lies here. */
static void what_is_given_up_leaves_no_pages(void **state)
{
    struct outcome outcome;
    set_up();
    struct rpc_handle handle = fetch_two_pages(&outcome);
    UNTIL(asked);
    answer_page();
    UNTIL(asked);
    assert_true(pages_used() > 0);
    rpc_cancel(scheduler, handle);
    round_trip();
    assert_int_equal(pages_used(), 0);
    tear_down();
}

static void a_worker_ends_in_mid_handover(void **state)
{
    struct outcome outcome;
    set_up();
    fetch_two_pages(&outcome);
    UNTIL(asked);
    tear_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_is_taken_over),      cmocka_unit_test(no_more_is_taken_than_was_asked_for),
        cmocka_unit_test(an_extent_is_taken_over),       cmocka_unit_test(what_is_given_up_leaves_no_pages),
        cmocka_unit_test(a_worker_ends_in_mid_handover),
    };
    struct error error;
    log_init("test", LOG_ERROR, false);
    assert_always(kernels_init(NULL, &error) == STATUS_OK);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_handover_copies.c: handing over pages whose copies take time, as a device's do: one after the other, and given up half-way; and a
 * sequence that is to be taken over again before the first try has ended. The pages are played here, a byte each, and so is the other end; all
 * on this thread. */
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/mesh/handover.h"
#include "tests/integration/await.h"
#include "tests/integration/played_peer.h"

enum { PAGE_BYTES = 64, POSITIONS = 16, CONTEXT = 256, SEQUENCE = 7, BUSY = 9 };

static struct rpc_loop *loop;
static struct rpc_server *server;
static struct rpc_channel *channel; /* to the server, as whoever */
static struct handover handover;

/* the pages */
static unsigned char *copy_to;
static const unsigned char *copy_from;
static unsigned char copy_byte;
static bool under_way, may_end;
static uint32_t begun, stopped, imported, freed;
static char happened[64]; /* to sequences here: w: way is made for one, i: a page comes in at once, f: its pages are freed */

static void note(char what)
{
    size_t length = strlen(happened);
    assert_true(length + 1 < sizeof happened);
    happened[length] = what;
}

static uint64_t page_bytes(void *user) { return (void)user, PAGE_BYTES; }

static const struct kv_shape *shape_of(void *user)
{
    static const struct kv_shape shape = {.page_tokens = 16, .max_context = CONTEXT};
    return (void)user, &shape;
}

static void begin(void)
{
    assert_false(under_way); /* one at a time */
    under_way = true;
    may_end = false;
    begun++;
}

static enum status export_page(void *user, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error)
{
    if (page_index >= 4)
        return error_set(error, STATUS_NOT_FOUND, "no page %u", page_index);
    begin();
    copy_to = page;
    copy_byte = (unsigned char)(sequence * 16 + page_index);
    *positions = POSITIONS - page_index;
    return STATUS_OK;
}

static enum status import_page(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                               struct error *error)
{
    if (page_index * POSITIONS + positions > CONTEXT / 2)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "it is full");
    begin();
    copy_to = NULL;
    copy_from = page;
    copy_byte = (unsigned char)page_index;
    return STATUS_OK;
}

static enum status import_at_once(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                                  struct error *error)
{
    note('i');
    return STATUS_OK;
}

static bool copied(void *user)
{
    assert_true(under_way);
    if (!may_end)
        return false;
    under_way = false;
    if (copy_to) {
        memset(copy_to, copy_byte, PAGE_BYTES);
    } else {
        for (uint32_t i = 0; i < PAGE_BYTES; i++)
            assert_int_equal(copy_from[i], copy_byte); /* the message is still there */
        imported++;
    }
    return true;
}

static void stop_copy(void *user)
{
    assert_true(under_way);
    under_way = false;
    stopped++;
}

static enum status make_way(void *user, uint64_t sequence, struct error *error)
{
    note('w');
    return sequence == BUSY ? error_set(error, STATUS_UNAVAILABLE, "a step uses it") : STATUS_OK;
}

static void free_pages(void *user, uint64_t sequence)
{
    assert_int_not_equal(sequence, BUSY);
    note('f');
    freed++;
}

static const struct handover_pages pages = {.page_bytes = page_bytes,
                                            .shape = shape_of,
                                            .export_page = export_page,
                                            .import_page = import_page,
                                            .copied = copied,
                                            .stop_copy = stop_copy,
                                            .make_way = make_way,
                                            .free_pages = free_pages};
static const struct handover_pages pages_at_once = {.page_bytes = page_bytes,
                                                    .shape = shape_of,
                                                    .export_page = export_page,
                                                    .import_page = import_at_once,
                                                    .make_way = make_way,
                                                    .free_pages = free_pages};

static void fetch(struct rpc_call *call, void *user)
{
    handover_fetch(user, call, rpc_call_unpack(call, &fastdecode__fetch_request__descriptor));
}

static uint32_t asked;    /* pages, of the other end */
static bool keeps_silent; /* it does not answer the first */

/* Plays the place that is fetched from: it answers at once, with pages full of their number. */
static void give_page(struct rpc_call *call, void *user)
{
    const Fastdecode__ReadPageRequest *request = rpc_call_unpack(call, &fastdecode__read_page_request__descriptor);
    Fastdecode__ReadPageReply reply = FASTDECODE__READ_PAGE_REPLY__INIT;
    unsigned char page[PAGE_BYTES];

    memset(page, (int)request->page_index, sizeof page);
    reply.positions = POSITIONS;
    reply.page.len = sizeof page;
    reply.page.data = page;
    if (asked++ > 0 || !keeps_silent)
        rpc_call_reply(call, &reply.base);
}

static struct rpc_server *giver;

static int set_up(void **state)
{
    const struct rpc_method own[] = {{&fastdecode__kv_handover__descriptor, "ReadPage", handover_read_page, &handover},
                                     {&fastdecode__kv_control__descriptor, "Fetch", fetch, &handover}};
    const struct rpc_method other[] = {{&fastdecode__kv_handover__descriptor, "ReadPage", give_page, NULL}};

    begun = stopped = imported = freed = asked = 0;
    under_way = may_end = keeps_silent = false;
    memset(happened, 0, sizeof happened);
    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    handover = (struct handover){.pages = &pages, .control_loop = loop, .tensor_loop = loop, .hello = {.service = "kv-worker"}};
    server = peer_serve(loop, "inproc://test-copies", own, 2, "test", 0);
    giver = peer_serve(loop, "inproc://test-giver", other, 1, "test", 0);
    channel = peer_dial(loop, "inproc://test-copies", "kv-worker", 0);
    AWAIT(rpc_loop_run(loop, 2000, 0), rpc_channel_is_up(channel));
    return 0;
}

static int tear_down(void **state)
{
    handover_close_all(&handover);
    assert_false(under_way);
    assert_null(handover.copies);
    rpc_loop_run(loop, 0, 0); /* what it posted */
    rpc_server_close(server);
    rpc_channel_close(channel);
    rpc_server_close(giver);
    while (rpc_loop_run(loop, 0, 0)) {}
    rpc_loop_close(loop);
    return 0;
}

struct outcome {
    bool ended;
    enum status status;
    unsigned char byte;
    uint32_t positions;
};

static void on_page(void *user, struct rpc_message *message)
{
    struct outcome *outcome = user;
    const Fastdecode__ReadPageReply *reply = rpc_message_unpack(message, &fastdecode__read_page_reply__descriptor);
    assert_int_equal(reply->page.len, PAGE_BYTES);
    outcome->byte = reply->page.data[PAGE_BYTES - 1];
    outcome->positions = reply->positions;
}

static void on_end(void *user, enum status status, const char *text)
{
    struct outcome *outcome = user;
    outcome->ended = true;
    outcome->status = status;
}

static void read_page(uint64_t sequence, uint32_t index, struct outcome *outcome)
{
    Fastdecode__ReadPageRequest request = FASTDECODE__READ_PAGE_REQUEST__INIT;

    *outcome = (struct outcome){0};
    request.sequence = sequence;
    request.page_index = index;
    peer_call(channel, &fastdecode__kv_handover__descriptor, "ReadPage", &request.base,
              (struct rpc_callbacks){.on_message = on_page, .on_end = on_end}, outcome);
}

static struct rpc_handle fetch_pages(uint64_t sequence, uint32_t count, struct outcome *outcome)
{
    Fastdecode__FetchRequest request = FASTDECODE__FETCH_REQUEST__INIT;

    *outcome = (struct outcome){0};
    request.sequence = sequence;
    request.tensor_address = (char *)"inproc://test-giver";
    request.positions = count * POSITIONS;
    return peer_call(channel, &fastdecode__kv_control__descriptor, "Fetch", &request.base, (struct rpc_callbacks){.on_end = on_end},
                     outcome);
}

#define UNTIL(condition) AWAIT((rpc_loop_run(loop, 2000, 0), handover_advance(&handover)), condition)

static void rounds(void)
{
    for (uint32_t i = 0; i < 20; i++) {
        rpc_loop_run(loop, 1000, 0);
        handover_advance(&handover);
    }
}

static void pages_are_given_one_after_the_other(void **state)
{
    struct outcome outcomes[4];

    for (uint32_t i = 0; i < 3; i++)
        read_page(SEQUENCE + i, i, &outcomes[i]);
    read_page(SEQUENCE, 5, &outcomes[3]); /* is not there, and is said to be not when its turn comes */
    UNTIL(under_way);
    rounds();
    assert_int_equal(begun, 1);
    assert_false(outcomes[0].ended || outcomes[3].ended);
    for (uint32_t i = 0; i < 3; i++) {
        may_end = true;
        UNTIL(outcomes[i].ended);
        assert_int_equal(outcomes[i].status, STATUS_OK);
        assert_int_equal(outcomes[i].byte, (SEQUENCE + i) * 16 + i);
        assert_int_equal(outcomes[i].positions, POSITIONS - i);
    }
    UNTIL(outcomes[3].ended);
    assert_int_equal(outcomes[3].status, STATUS_NOT_FOUND);
}

static void pages_that_are_freed_are_not_given(void **state)
{
    struct outcome first, second, other;

    read_page(SEQUENCE, 0, &first);
    read_page(SEQUENCE, 1, &second);
    read_page(SEQUENCE + 1, 2, &other);
    UNTIL(under_way);
    rounds();
    handover_drop(&handover, SEQUENCE);
    assert_int_equal(stopped, 1);
    assert_int_equal(begun, 2); /* the other's */
    may_end = true;
    UNTIL(first.ended && second.ended && other.ended);
    assert_int_equal(first.status, STATUS_NOT_FOUND);
    assert_int_equal(second.status, STATUS_NOT_FOUND);
    assert_int_equal(other.status, STATUS_OK);
}

static void the_next_page_is_asked_for_when_one_is_in_its_place(void **state)
{
    struct outcome outcome, given;

    fetch_pages(SEQUENCE, 3, &outcome);
    for (uint32_t page = 0; page < 3; page++) {
        UNTIL(begun == page + 1);
        rounds();
        assert_int_equal(imported, page);
        if (page == 0)
            read_page(SEQUENCE + 1, 0, &given); /* meanwhile: between two of them */
        may_end = true;
        if (page == 0) {
            UNTIL(begun == 2);
            may_end = true;
            UNTIL(given.ended);
            begun--;
        }
    }
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_OK);
    assert_int_equal(imported, 3);
    assert_int_equal(freed, 0);
}

static void what_is_not_wanted_any_more_is_stopped_and_freed(void **state)
{
    struct outcome outcome, given;

    struct rpc_handle handle = fetch_pages(SEQUENCE, 3, &outcome);
    UNTIL(under_way);
    read_page(SEQUENCE + 1, 0, &given);
    rounds();
    rpc_cancel(channel, handle);
    UNTIL(freed == 1);
    assert_int_equal(stopped, 1);
    UNTIL(begun == 2); /* who waited behind it */
    may_end = true;
    UNTIL(given.ended);
    assert_int_equal(given.status, STATUS_OK);
    /* its pages are to be freed, for another reason */
    fetch_pages(SEQUENCE, 3, &outcome);
    UNTIL(under_way);
    handover_drop(&handover, SEQUENCE);
    assert_int_equal(stopped, 2);
    assert_int_equal(freed, 2);
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_CANCELLED);
}

static void refusals(void **state)
{
    struct outcome outcome;

    fetch_pages(BUSY, 1, &outcome);
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_UNAVAILABLE);
    assert_int_equal(freed, 0); /* a step uses them */
    fetch_pages(SEQUENCE, CONTEXT / POSITIONS + 1, &outcome);
    UNTIL(outcome.ended);
    assert_int_equal(outcome.status, STATUS_INVALID_ARGUMENT);
    assert_int_equal(freed, 0); /* nothing came of it */
    fetch_pages(SEQUENCE, CONTEXT / POSITIONS, &outcome);
    UNTIL((may_end = true, outcome.ended)); /* full, half-way */
    assert_int_equal(outcome.status, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(imported, CONTEXT / POSITIONS / 2);
    assert_int_equal(freed, 1);
}

/* The first of two fetches ends when the pages here are the second one's already: they are not freed with the first. */
static void the_first_ones_end_does_not_free_the_seconds_pages(void **state)
{
    struct outcome first, second;

    handover.pages = &pages_at_once;
    keeps_silent = true;
    struct rpc_handle handle = fetch_pages(SEQUENCE, 2, &first);
    UNTIL(asked);
    fetch_pages(SEQUENCE, 2, &second);
    rpc_cancel(channel, handle);
    assert_int_equal(first.status, STATUS_CANCELLED);
    UNTIL(second.ended);
    assert_int_equal(second.status, STATUS_OK);
    assert_string_equal(happened, "wfwii");
}

static void the_service_ends_in_mid_copy(void **state)
{
    static struct outcome outcome, given;

    fetch_pages(SEQUENCE, 3, &outcome);
    UNTIL(under_way);
    read_page(SEQUENCE + 1, 0, &given);
    rounds();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(pages_are_given_one_after_the_other),
        TEST(pages_that_are_freed_are_not_given),
        TEST(the_next_page_is_asked_for_when_one_is_in_its_place),
        TEST(what_is_not_wanted_any_more_is_stopped_and_freed),
        TEST(refusals),
        TEST(the_first_ones_end_does_not_free_the_seconds_pages),
        TEST(the_service_ends_in_mid_copy),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

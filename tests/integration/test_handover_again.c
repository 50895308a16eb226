/* test_handover_again.c: a sequence that is to be taken over again before the first try has ended. The pages are played here, and so is the
 * other end; all on this thread. */
#include <string.h>

#include "common/base/log.h"
#include "common/mesh/handover.h"
#include "tests/cmocka.h"
#include "tests/integration/await.h"

enum { PAGE_BYTES = 64, POSITIONS = 16, SEQUENCE = 7 };

static struct rpc_loop *loop;
static struct handover handover;
static uint32_t asked;    /* pages, of the other end, which answers all but the first */
static char happened[16]; /* to the sequence here: w: way is made for it, i: a page comes in, f: its pages are freed */

#define UNTIL(condition) AWAIT(rpc_loop_run(loop, 2000, 0), condition)

static void note(char what)
{
    size_t length = strlen(happened);
    assert_true(length + 1 < sizeof happened);
    happened[length] = what;
}

static uint64_t page_bytes(void *user) { return (void)user, PAGE_BYTES; }

static const struct kv_shape *shape_of(void *user)
{
    static const struct kv_shape shape = {.page_tokens = 16, .max_context = 256};
    return (void)user, &shape;
}

static enum status export_page(void *user, uint64_t sequence, uint32_t page_index, void *page, uint32_t *positions,
                               struct error *error)
{
    (void)user, (void)sequence, (void)page_index, (void)page, (void)positions;
    return error_set(error, STATUS_NOT_FOUND, "nothing is given here");
}

static enum status import_page(void *user, uint64_t sequence, uint32_t page_index, const void *page, uint32_t positions,
                               struct error *error)
{
    (void)user, (void)sequence, (void)page_index, (void)page, (void)positions, (void)error;
    note('i');
    return STATUS_OK;
}

static enum status make_way(void *user, uint64_t sequence, struct error *error)
{
    (void)user, (void)sequence, (void)error;
    note('w');
    return STATUS_OK;
}

static void free_pages(void *user, uint64_t sequence)
{
    (void)user, (void)sequence;
    note('f');
}

static void fetch_handler(struct rpc_call *call, void *user)
{
    handover_fetch(user, call, rpc_call_unpack(call, &fastdecode__fetch_request__descriptor));
}

static void give_page(struct rpc_call *call, void *user)
{
    unsigned char page[PAGE_BYTES] = {0};
    Fastdecode__ReadPageReply reply = FASTDECODE__READ_PAGE_REPLY__INIT;

    (void)user;
    reply.positions = POSITIONS;
    reply.page.len = sizeof page;
    reply.page.data = page;
    if (asked++ > 0)
        rpc_call_reply(call, &reply.base);
}

struct outcome {
    bool ended;
    enum status status;
};

static void on_end(void *user, enum status status, const char *text)
{
    (void)text;
    *(struct outcome *)user = (struct outcome){true, status};
}

static struct rpc_handle fetch(struct rpc_channel *channel, struct outcome *outcome)
{
    Fastdecode__FetchRequest request = FASTDECODE__FETCH_REQUEST__INIT;
    const struct rpc_callbacks callbacks = {.on_end = on_end};
    struct rpc_handle handle;
    struct error error;

    *outcome = (struct outcome){0};
    request.sequence = SEQUENCE;
    request.tensor_address = (char *)"inproc://test-again-giver";
    request.positions = 2 * POSITIONS;
    assert_int_equal(rpc_call_start(channel, &fastdecode__kv_control__descriptor, "Fetch", &request.base, NULL, &callbacks, outcome,
                                    &handle, &error),
                     STATUS_OK);
    return handle;
}

static struct rpc_server *open_server(const char *address, const struct rpc_method *method)
{
    const struct rpc_server_config config = {
        .addresses = &address, .address_count = 1, .methods = method, .method_count = 1, .hello = {.service = "test"}};
    struct rpc_server *server;
    struct error error;
    assert_int_equal(rpc_server_open(loop, &config, &server, &error), STATUS_OK);
    return server;
}

/* The first of two fetches ends when the pages here are the second one's already: they are not freed with the first. */
static void the_first_ones_end_does_not_free_the_seconds_pages(void **state)
{
    static const struct handover_pages pages = {.page_bytes = page_bytes,
                                                .shape = shape_of,
                                                .export_page = export_page,
                                                .import_page = import_page,
                                                .make_way = make_way,
                                                .free_pages = free_pages};
    const struct rpc_method own = {&fastdecode__kv_control__descriptor, "Fetch", fetch_handler, &handover},
                            other = {&fastdecode__kv_handover__descriptor, "ReadPage", give_page, NULL};
    const struct rpc_channel_config config = {.address = "inproc://test-again", .hello = {.service = "scheduler"}};
    struct outcome first, second;
    struct rpc_channel *channel;
    struct error error;

    assert_int_equal(rpc_loop_open(&loop), STATUS_OK);
    handover = (struct handover){.pages = &pages, .control_loop = loop, .tensor_loop = loop, .hello = {.service = "kv-worker"}};
    struct rpc_server *server = open_server("inproc://test-again", &own), *giver = open_server("inproc://test-again-giver", &other);
    assert_int_equal(rpc_channel_open(loop, &config, &channel, &error), STATUS_OK);
    UNTIL(rpc_channel_is_up(channel));

    struct rpc_handle handle = fetch(channel, &first);
    UNTIL(asked);
    fetch(channel, &second);
    rpc_cancel(channel, handle);
    assert_int_equal(first.status, STATUS_CANCELLED);
    UNTIL(second.ended);
    assert_int_equal(second.status, STATUS_OK);
    assert_string_equal(happened, "wfwii");

    handover_close_all(&handover);
    rpc_loop_run(loop, 0, 0); /* what it posted */
    rpc_server_close(server);
    rpc_channel_close(channel);
    rpc_server_close(giver);
    while (rpc_loop_run(loop, 0, 0)) {}
    rpc_loop_close(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_ones_end_does_not_free_the_seconds_pages),
    };
    log_init("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

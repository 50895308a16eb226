/* handover.c: a sequence's pages from the worker that holds them to this one, one after the other.
 *
 * The sequence may go on decoding at its old place meanwhile: what is complete there when the last page is read is what
 * counts; the scheduler asks for no more than it knows to be complete.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/wire/wire.h"
#include "services/kv-worker/worker.h"

enum { R_POSITIONS = 1, R_PADDING = 2, R_PAGE = 3, PAGE_TIMEOUT_MS = 5000 };

void read_page_handler(struct rpc_call *call, void *user)
{
    static const unsigned char zeros[4];
    struct worker *worker = user;
    Fastdecode__ReadPageRequest *request = rpc_call_unpack(call, &fastdecode__read_page_request__descriptor);
    unsigned char *payload, *page;
    uint32_t positions;

    if (!request)
        return;
    if (!worker->store) {
        rpc_call_fail(call, STATUS_UNAVAILABLE, "no model is known here yet");
        return;
    }
    /* positions is at most page_tokens (32): one byte as a varint, so the size is known before the page is */
    uint64_t page_bytes = kv_page_bytes(&worker->shape);
    size_t at = wire_size_varint(R_POSITIONS, 1), head = wire_size_bytes(R_PAGE, page_bytes) - page_bytes;
    size_t size = at + 2 + wire_padding_length(at, head) + head + page_bytes;
    struct rpc_buffer *buffer = rpc_reply_buffer(call, size, &payload);
    if (!buffer) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for a page");
        return;
    }
    struct wire_writer writer = {payload, payload + size};
    wire_put_varint(&writer, R_POSITIONS, 1);
    unsigned char *count_at = writer.at - 1;
    wire_put_bytes(&writer, R_PADDING, zeros, wire_padding_length(at, head));
    page = wire_put_bytes_in_place(&writer, R_PAGE, page_bytes);
    if (kv_store_export_page(worker->store, request->sequence, request->page_index, page, &positions)) {
        rpc_buffer_free(buffer);
        rpc_call_fail(call, STATUS_NOT_FOUND, "page %u of sequence %llx is not held", request->page_index,
                      (unsigned long long)request->sequence);
        return;
    }
    *count_at = (unsigned char)positions;
    rpc_call_reply_buffer(call, buffer);
}

static void close_fetch(struct fetch *fetch)
{
    struct fetch **at = &fetch->worker->fetches;

    fetch->ended = true;
    while (*at && *at != fetch)
        at = &(*at)->next;
    if (*at)
        *at = fetch->next;
    rpc_loop_cancel_timer(fetch->worker->tensor_loop, fetch->timer);
    rpc_channel_close(fetch->channel);
    fetch->channel = NULL;
}

static void free_pages(struct fetch *fetch)
{
    if (!fetch->worker->store)
        return;
    attend_free(fetch->worker, fetch->sequence);
    attend_publish(fetch->worker);
}

/* Never inside a callback of the channel: by timer, or posted. */
static void end_fetch(void *arg)
{
    struct fetch *fetch = arg;

    fetch->timer = 0; /* it was this one */
    close_fetch(fetch);
    if (fetch->status)
        free_pages(fetch);
    else if (fetch->worker->store)
        attend_publish(fetch->worker);
    rpc_loop_post(fetch->worker->control_loop, fetch_done, fetch);
}

/* Once: of what ends it, only the first counts. */
static void finish(struct fetch *fetch)
{
    if (fetch->ended)
        return;
    fetch->ended = true;
    rpc_loop_cancel_timer(fetch->worker->tensor_loop, fetch->timer);
    fetch->timer = rpc_loop_timer(fetch->worker->tensor_loop, 0, end_fetch, fetch);
}

static void give_up(struct fetch *fetch, enum status status, const char *why)
{
    if (fetch->ended)
        return;
    fetch->status = status;
    snprintf(fetch->why, sizeof fetch->why, "%.*s", (int)sizeof fetch->why - 1, why);
    finish(fetch);
}

void fetch_abort(void *arg)
{
    struct fetch *fetch = arg;
    bool ends = fetch->ended && !fetch->timer; /* fetch_done() is posted already */

    if (!ends) {
        fetch->status = STATUS_CANCELLED;
        rpc_loop_cancel_timer(fetch->worker->tensor_loop, fetch->timer); /* which one it was is no matter */
        end_fetch(fetch);
    } else {
        free_pages(fetch);
    }
    rpc_loop_post(fetch->worker->control_loop, fetch_done, fetch);
}

void fetch_drop(struct worker *worker, uint64_t sequence)
{
    for (struct fetch *fetch = worker->fetches, *next; fetch; fetch = next) {
        next = fetch->next;
        if (fetch->sequence != sequence)
            continue;
        fetch->status = STATUS_CANCELLED;
        snprintf(fetch->why, sizeof fetch->why, "its pages are to be freed");
        rpc_loop_cancel_timer(worker->tensor_loop, fetch->timer);
        end_fetch(fetch);
    }
}

void fetch_close_all(struct worker *worker)
{
    while (worker->fetches) {
        struct fetch *fetch = worker->fetches;
        fetch->status = STATUS_UNAVAILABLE;
        snprintf(fetch->why, sizeof fetch->why, "the worker ends");
        close_fetch(fetch);
        rpc_loop_post(worker->control_loop, fetch_done, fetch);
    }
}

static void read_next(struct fetch *fetch);

static void on_page(void *user, struct rpc_message *message)
{
    struct fetch *fetch = user;
    struct wire_reader reader;
    struct wire_field field;
    const unsigned char *page = NULL;
    size_t length, page_length = 0;
    uint32_t positions = 0;
    struct error error;
    bool bad;
    const unsigned char *payload = rpc_message_payload(message, &length);

    wire_reader_init(&reader, payload, length);
    while (wire_next(&reader, &field, &bad)) {
        if (field.number == R_POSITIONS && field.type == WIRE_VARINT)
            positions = (uint32_t)field.value;
        if (field.number == R_PAGE && field.type == WIRE_BYTES) {
            page = field.bytes;
            page_length = field.length;
        }
    }
    uint32_t left = fetch->positions - fetch->received;
    if (bad || page_length != kv_page_bytes(&fetch->worker->shape) || positions == 0) {
        fetch->status = error_set(&error, STATUS_DATA_LOSS, "the other worker sent no page");
    } else {
        positions = MIN(positions, left);
        fetch->status = kv_store_import_page(fetch->worker->store, fetch->sequence, fetch->next_page, page, positions, &error);
    }
    if (fetch->status) {
        snprintf(fetch->why, sizeof fetch->why, "%s", error.text);
        return;
    }
    fetch->received += positions;
    fetch->next_page++;
}

static void on_page_end(void *user, enum status status, const char *text)
{
    struct fetch *fetch = user;
    if (fetch->ended)
        return; /* its end closes the channel */
    if (fetch->status)
        finish(fetch); /* on_page said why */
    else if (status)
        give_up(fetch, status, text);
    else if (fetch->received < fetch->positions)
        read_next(fetch);
    else
        finish(fetch);
}

static void read_next(struct fetch *fetch)
{
    Fastdecode__ReadPageRequest request = FASTDECODE__READ_PAGE_REQUEST__INIT;
    const struct rpc_options options = {.timeout_ms = PAGE_TIMEOUT_MS};
    const struct rpc_callbacks callbacks = {.on_message = on_page, .on_end = on_page_end};
    struct error error;

    request.sequence = fetch->sequence;
    request.page_index = fetch->next_page;
    if (rpc_call_start(fetch->channel, &fastdecode__kv_handover__descriptor, "ReadPage", &request.base, &options, &callbacks, fetch,
                       NULL, &error))
        give_up(fetch, error.status, error.text);
}

static void on_up(void *user, const struct rpc_peer *peer)
{
    (void)peer;
    read_next(user);
}

static void on_timeout(void *arg)
{
    struct fetch *fetch = arg;
    fetch->timer = 0;
    if (!rpc_channel_is_up(fetch->channel))
        give_up(fetch, STATUS_UNAVAILABLE, "the other worker cannot be reached");
}

void fetch_begin(void *arg)
{
    struct fetch *fetch = arg;
    struct error error;
    const struct rpc_channel_config config = {
        .address = fetch->address,
        .hello = {.service = "kv-worker", .incarnation = fetch->worker->incarnation},
        .on_up = on_up,
        .user = fetch,
    };

    fetch_drop(fetch->worker, fetch->sequence); /* nobody waits for it any more */
    fetch->next = fetch->worker->fetches;
    fetch->worker->fetches = fetch;
    if (!fetch->worker->store) {
        give_up(fetch, STATUS_UNAVAILABLE, "no model is known here yet");
        return;
    }
    if (fetch->positions > fetch->worker->shape.max_context) {
        error_set(&error, STATUS_INVALID_ARGUMENT, "FetchRequest: %u positions, the context is %u", fetch->positions,
                  fetch->worker->shape.max_context);
        give_up(fetch, error.status, error.text);
        return;
    }
    attend_free(fetch->worker, fetch->sequence); /* what an earlier try left */
    if (rpc_channel_open(fetch->worker->tensor_loop, &config, &fetch->channel, &error))
        give_up(fetch, error.status, error.text);
    else
        fetch->timer = rpc_loop_timer(fetch->worker->tensor_loop, PAGE_TIMEOUT_MS * 1000ull, on_timeout, fetch);
}

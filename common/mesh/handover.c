// handover.c: gives and takes a sequence's pages, one after the other.
#include "common/mesh/handover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/checked.h"
#include "common/rpc/wire.h"

#define PAGE_BYTES_MAX (1ull << 30)
enum { R_POSITIONS = 1, R_PADDING = 2, R_PAGE = 3, PAGE_TIMEOUT_MS = 5000, ADDRESS_BYTES = 200 };

// A sequence that is being taken over.
struct handover_fetch {
    struct handover *handover;
    struct rpc_call *call; // on the control loop, as `users`; NULL: the scheduler no longer waits for it
    uint32_t users;        // posts on their way to the control loop: the last one frees the fetch

    // on the tensor loop
    struct handover_fetch *next; // in handover->fetches
    bool ended;                  // what still arrives is ignored
    bool over;                   // it is no longer in handover->fetches
    bool keeps;                  // it must not free the sequence's pages: they are not, or no longer, its own
    bool asked, copying;         // a page has been asked for; a page has come and is being copied to its place
    uint64_t sequence;
    uint32_t positions, first, next_page, received; // all positions count from the sequence's start
    char address[ADDRESS_BYTES];
    struct rpc_channel *channel;
    uint64_t timer;
    enum status status;
    char why[256];
};

// A page on its way from or to a message.
struct handover_copy {
    struct handover_copy *next;
    bool begun;
    uint64_t sequence;
    uint32_t page_index, positions;

    // given away
    struct rpc_call *call;
    struct rpc_buffer *buffer;
    unsigned char *count_at, *out; // in it

    // taken over; fetch NULL: given away
    struct handover_fetch *fetch;
    struct rpc_message *message;
    const unsigned char *in; // in it
};

static const char service_ends[] = "who takes the sequence over ends";

static void proceed(struct handover_fetch *fetch);

static bool known(const struct handover *handover) { return handover->pages->page_bytes(handover->user) != 0; }

static void publish(struct handover *handover)
{
    if (handover->pages->publish && known(handover))
        handover->pages->publish(handover->user);
}

static void set_status(struct handover_fetch *fetch, enum status status, const char *why)
{
    fetch->status = status;
    snprintf(fetch->why, sizeof fetch->why, "%s", why);
}

// --- copies, one after the other ---

static void free_copy(struct handover_copy *copy)
{
    rpc_buffer_free(copy->buffer);
    if (copy->message)
        rpc_message_free(copy->message);
    free(copy);
}

static void end_copy(struct handover_copy *copy, enum status status, const char *why)
{
    struct handover_fetch *fetch = copy->fetch;

    if (fetch) {
        fetch->copying = false;
        if (status) {
            set_status(fetch, status, why);
        } else {
            fetch->received += copy->positions;
            fetch->next_page++;
        }
        free_copy(copy);
        proceed(fetch);
        return;
    }
    if (status) {
        rpc_call_fail(copy->call, status, "%s", why);
    } else {
        *copy->count_at = (unsigned char)copy->positions;
        rpc_call_reply_buffer(copy->call, copy->buffer);
        copy->buffer = NULL;
    }
    free_copy(copy);
}

static enum status begin_copy(struct handover *handover, struct handover_copy *copy, struct error *error)
{
    const struct handover_pages *pages = handover->pages;

    copy->begun = true;
    if (copy->fetch)
        return pages->import_page(handover->user, copy->sequence, copy->page_index, copy->in, copy->positions, error);
    return pages->export_page(handover->user, copy->sequence, copy->page_index, copy->out, &copy->positions, error);
}

static void unlink_copy(struct handover *handover, struct handover_copy **at)
{
    struct handover_copy *copy = *at;

    *at = copy->next;
    if (handover->copies_end == &copy->next)
        handover->copies_end = at;
}

bool handover_advance(struct handover *handover)
{
    while (handover->copies) {
        struct handover_copy *copy = handover->copies;
        struct error error;
        enum status status = copy->begun ? STATUS_OK : begin_copy(handover, copy, &error);
        if (!status && handover->pages->copied && !handover->pages->copied(handover->user))
            return true;
        unlink_copy(handover, &handover->copies);
        end_copy(copy, status, status ? error.text : "");
    }
    return false;
}

// Adds a copy to the queue. It begins when those before it are done.
static void queue_copy(struct handover *handover, struct handover_copy *copy)
{
    if (!handover->copies)
        handover->copies_end = &handover->copies;
    *handover->copies_end = copy;
    handover->copies_end = &copy->next;
    if (handover->copies == copy)
        handover_advance(handover);
}

// Ends the copies of a fetch or, without one, those of pages of the sequence that are given away.
static void drop_copies(struct handover *handover, uint64_t sequence, const struct handover_fetch *of)
{
    for (struct handover_copy **at = &handover->copies; *at;) {
        struct handover_copy *copy = *at;
        if (of ? copy->fetch != of : copy->fetch || copy->sequence != sequence) {
            at = &copy->next;
            continue;
        }
        if (copy->begun)
            handover->pages->stop_copy(handover->user);
        unlink_copy(handover, at);
        if (copy->call)
            rpc_call_fail(copy->call, STATUS_NOT_FOUND, "page %u of sequence %llx is not held any more", copy->page_index,
                          (unsigned long long)copy->sequence);
        free_copy(copy);
    }
}

// --- giving ---

// A page is part of somebody's conversation: only services that hold pages may read one.
static bool peer_keeps_pages(struct rpc_call *call)
{
    const char *service = rpc_call_peer(call)->service;

    if (!strcmp(service, "kv-worker") || !strcmp(service, "s-part"))
        return true;
    rpc_call_fail(call, STATUS_PERMISSION_DENIED, "only a kv-worker or the s-part may read pages");
    return false;
}

// Writes a ReadPageReply; returns where the page goes. positions is at most page_tokens (32): one byte as a varint, behind a tag of one, so the
// size is known before the page is.
enum { COUNT_AT = 1 };
static unsigned char *write_page(struct wire_writer *writer, uint64_t page_bytes)
{
    wire_put_varint(writer, R_POSITIONS, 1);
    return wire_put_padded(writer, R_PADDING, R_PAGE, page_bytes);
}

void handover_read_page(struct rpc_call *call, void *user)
{
    struct handover *handover = user;
    Fastdecode__ReadPageRequest *request = rpc_call_unpack(call, &fastdecode__read_page_request__descriptor);
    struct wire_writer writer = {0};
    struct handover_copy *copy;

    if (!request || !peer_keeps_pages(call))
        return;
    uint64_t page_bytes = handover->pages->page_bytes(handover->user);
    if (!page_bytes) {
        rpc_call_fail(call, STATUS_UNAVAILABLE, "no model is known here yet, or there are no pages to hand over");
        return;
    }
    (void)write_page(&writer, page_bytes);
    struct rpc_buffer *buffer = rpc_reply_buffer(call, writer.at, &writer.bytes);
    if (!buffer || !(copy = calloc(1, sizeof *copy))) {
        rpc_buffer_free(buffer);
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for a page");
        return;
    }
    writer.length = writer.at;
    writer.at = 0;
    *copy = (struct handover_copy){.sequence = request->sequence,
                                   .page_index = request->page_index,
                                   .call = call,
                                   .buffer = buffer,
                                   .count_at = writer.bytes + COUNT_AT,
                                   .out = write_page(&writer, page_bytes)};
    queue_copy(handover, copy);
}

// --- taking: the end ---

// Frees what the fetch has brought, once: later pages of the sequence belong to another fetch.
static void free_pages(struct handover_fetch *fetch)
{
    struct handover *handover = fetch->handover;

    if (!known(handover) || fetch->keeps)
        return;
    fetch->keeps = true;
    handover->pages->free_pages(handover->user, fetch->sequence);
    publish(handover);
}

// On the control loop.
static void fetch_done(void *arg)
{
    struct handover_fetch *fetch = arg;
    Fastdecode__FetchReply reply = FASTDECODE__FETCH_REPLY__INIT;

    if (fetch->call && fetch->status) {
        rpc_call_fail(fetch->call, fetch->status, "%s", fetch->why);
    } else if (fetch->call) {
        reply.positions = fetch->received;
        rpc_call_reply(fetch->call, &reply.base);
    }
    fetch->call = NULL;
    if (--fetch->users == 0)
        free(fetch);
}

// Ends a fetch with its status. Unless that is OK, what it has brought is freed. Not inside a callback of the channel.
static void end_fetch(struct handover_fetch *fetch)
{
    struct handover *handover = fetch->handover;
    struct handover_fetch **at = &handover->fetches;

    fetch->ended = fetch->over = true;
    while (*at && *at != fetch)
        at = &(*at)->next;
    if (*at)
        *at = fetch->next;
    drop_copies(handover, 0, fetch);
    rpc_loop_cancel_timer(handover->tensor_loop, fetch->timer);
    rpc_channel_close(fetch->channel);
    if (fetch->status)
        free_pages(fetch);
    else
        publish(handover);
    rpc_loop_post(handover->control_loop, fetch_done, fetch);
}

// Ends a fetch at once, even if it was to end for another reason in a moment.
static void stop_fetch(struct handover_fetch *fetch, enum status status, const char *why)
{
    set_status(fetch, status, why);
    end_fetch(fetch);
}

static void on_finished(void *arg)
{
    struct handover_fetch *fetch = arg;
    fetch->timer = 0; // it has run
    end_fetch(fetch);
}

// Ends a fetch from a callback of its channel: by a timer, because the channel is closed. Only the first reason counts.
static void finish(struct handover_fetch *fetch)
{
    if (fetch->ended)
        return;
    fetch->ended = true;
    rpc_loop_cancel_timer(fetch->handover->tensor_loop, fetch->timer);
    fetch->timer = rpc_loop_timer(fetch->handover->tensor_loop, 0, on_finished, fetch);
}

static void give_up(struct handover_fetch *fetch, enum status status, const char *why)
{
    if (fetch->ended)
        return;
    set_status(fetch, status, why);
    finish(fetch);
}

// On the tensor loop. Ends a fetch that nobody waits for any more, or frees what it has brought.
static void fetch_abort(void *arg)
{
    struct handover_fetch *fetch = arg;

    if (fetch->over)
        free_pages(fetch);
    else
        stop_fetch(fetch, STATUS_CANCELLED, "");
    rpc_loop_post(fetch->handover->control_loop, fetch_done, fetch);
}

static void drop_fetch(struct handover *handover, uint64_t sequence)
{
    for (struct handover_fetch *fetch = handover->fetches, *next; fetch; fetch = next) {
        next = fetch->next;
        if (fetch->sequence == sequence)
            stop_fetch(fetch, STATUS_CANCELLED, "its pages are to be freed");
    }
}

void handover_drop(struct handover *handover, uint64_t sequence)
{
    drop_fetch(handover, sequence);
    drop_copies(handover, sequence, NULL);
    handover_advance(handover); // begins what waited behind them
}

static void end_all(struct handover *handover, enum status status, const char *why)
{
    while (handover->fetches)
        stop_fetch(handover->fetches, status, why);
    while (handover->copies)
        drop_copies(handover, handover->copies->sequence, NULL);
}

void handover_drop_all(struct handover *handover) { end_all(handover, STATUS_CANCELLED, "the model is another one now"); }

void handover_close_all(struct handover *handover)
{
    handover->closed = true;
    end_all(handover, STATUS_UNAVAILABLE, service_ends);
}

// --- taking: page after page ---

static void on_page(void *user, struct rpc_message *message)
{
    struct handover_fetch *fetch = user;
    struct handover *handover = fetch->handover;
    struct handover_copy *copy;
    struct wire_reader reader;
    struct wire_field field;
    size_t length, page_length = 0;
    uint32_t positions = 0;
    bool bad;
    const unsigned char *payload = rpc_message_payload(message, &length), *page = NULL;

    if (fetch->ended)
        return;
    wire_reader_init(&reader, payload, length);
    while (wire_next(&reader, &field, &bad)) {
        if (field.number == R_POSITIONS && field.type == WIRE_VARINT)
            positions = (uint32_t)MIN(field.value, (uint64_t)UINT32_MAX);
        if (field.number == R_PAGE && field.type == WIRE_BYTES) {
            page = field.bytes;
            page_length = field.length;
        }
    }
    copy = calloc(1, sizeof *copy);
    if (!copy || bad || !page_length || page_length != handover->pages->page_bytes(handover->user) || positions == 0) {
        if (copy)
            set_status(fetch, STATUS_DATA_LOSS, "who gives the sequence sent no page");
        else
            set_status(fetch, STATUS_RESOURCE_EXHAUSTED, "no memory for a page");
        free(copy);
        return;
    }
    fetch->copying = true;
    *copy = (struct handover_copy){.sequence = fetch->sequence,
                                   .page_index = fetch->next_page,
                                   .positions = MIN(positions, fetch->positions - fetch->received),
                                   .fetch = fetch,
                                   .message = rpc_message_keep(message),
                                   .in = page};
    queue_copy(handover, copy);
}

static void on_page_end(void *user, enum status status, const char *text)
{
    struct handover_fetch *fetch = user;

    if (fetch->ended)
        return; // end_fetch() closes the channel
    fetch->asked = false;
    if (status && !fetch->status && !fetch->copying)
        give_up(fetch, status, text);
    proceed(fetch);
}

static void read_next(struct handover_fetch *fetch)
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
    else
        fetch->asked = true;
}

// Asks for the next page once the call and the copy of the one before have ended.
static void proceed(struct handover_fetch *fetch)
{
    if (fetch->ended || fetch->asked || fetch->copying)
        return;
    if (fetch->status || fetch->received >= fetch->positions)
        finish(fetch);
    else
        read_next(fetch);
}

static void on_up(void *user, const struct rpc_peer *peer)
{
    (void)peer;
    proceed(user);
}

static void on_timeout(void *arg)
{
    struct handover_fetch *fetch = arg;
    fetch->timer = 0;
    if (!rpc_channel_is_up(fetch->channel))
        give_up(fetch, STATUS_UNAVAILABLE, "the holder of the sequence cannot be reached");
}

// On the tensor loop.
static void fetch_begin(void *arg)
{
    struct handover_fetch *fetch = arg;
    struct handover *handover = fetch->handover;
    struct error error;
    const struct rpc_channel_config config = {
        .address = fetch->address,
        .hello = handover->hello,
        .peer_roles = RPC_IS_KV_WORKER | RPC_IS_S_PART,
        .max_message_bytes = PAGE_BYTES_MAX,
        .on_up = on_up,
        .user = fetch,
    };

    if (handover->closed) { // closed while this was posted
        stop_fetch(fetch, STATUS_UNAVAILABLE, service_ends);
        return;
    }
    fetch->timer = rpc_loop_timer(handover->tensor_loop, PAGE_TIMEOUT_MS * 1000ull, on_timeout, fetch);
    if (!fetch->timer) { // set first, so that finish() reuses its slot in most cases
        stop_fetch(fetch, STATUS_RESOURCE_EXHAUSTED, "no memory");
        return;
    }
    drop_fetch(handover, fetch->sequence); // an earlier try, which nobody waits for any more
    fetch->next = handover->fetches;
    handover->fetches = fetch;
    if (!known(handover)) {
        give_up(fetch, STATUS_UNAVAILABLE, "no model is known here yet, or pages cannot be taken");
        return;
    }
    const struct kv_shape *shape = handover->pages->shape(handover->user);
    if (fetch->positions > shape->max_context) {
        error_set(&error, STATUS_INVALID_ARGUMENT, "FetchRequest: %u positions, the context is %u", fetch->positions,
                  shape->max_context);
        give_up(fetch, error.status, error.text);
        return;
    }
    if (fetch->first % shape->page_tokens) {
        give_up(fetch, STATUS_INVALID_ARGUMENT, "FetchRequest: no page begins at the extent's first position");
        return;
    }
    fetch->next_page = fetch->first ? fetch->first / shape->page_tokens : kv_first_page(shape, fetch->positions);
    fetch->received = fetch->next_page * shape->page_tokens;
    drop_copies(handover, fetch->sequence, NULL);
    fetch->keeps = handover->pages->make_way(handover->user, fetch->sequence, &error) != STATUS_OK;
    if (fetch->keeps || rpc_channel_open(handover->tensor_loop, &config, &fetch->channel, &error))
        give_up(fetch, error.status, error.text);
}

// The scheduler may place the sequence anywhere now, and believes that nothing of it is here: what has come must go.
static void on_fetch_cancelled(void *user)
{
    struct handover_fetch *fetch = user;

    fetch->call = NULL;
    fetch->users++;
    rpc_loop_post(fetch->handover->tensor_loop, fetch_abort, fetch);
}

void handover_fetch(struct handover *handover, struct rpc_call *call, const Fastdecode__FetchRequest *request)
{
    struct handover_fetch *fetch;

    if (request->sequence == 0 || request->positions <= request->first_position || !strstr(request->tensor_address, "://") ||
        strlen(request->tensor_address) >= ADDRESS_BYTES) {
        rpc_call_fail(call, STATUS_INVALID_ARGUMENT,
                      "FetchRequest: sequence %llx, %u positions, an address of %zu bytes: one is out of range",
                      (unsigned long long)request->sequence, request->positions, strlen(request->tensor_address));
        return;
    }
    fetch = calloc(1, sizeof *fetch);
    if (!fetch) {
        rpc_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory");
        return;
    }
    fetch->handover = handover;
    fetch->call = call;
    fetch->sequence = request->sequence;
    fetch->positions = request->positions;
    fetch->first = request->first_position;
    snprintf(fetch->address, sizeof fetch->address, "%s", request->tensor_address);
    fetch->users = 1;
    fetch->keeps = true; // until make_way() has succeeded, pages that are here are not its own
    rpc_call_on_cancel(call, on_fetch_cancelled, fetch);
    rpc_loop_post(handover->tensor_loop, fetch_begin, fetch);
}

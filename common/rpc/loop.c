/* loop.c: the loop: a queue that nng's threads and other threads fill, and that one thread empties; timers; endpoints.
 *
 * The queue is a ring under a mutex that is held for a few instructions. The owner sleeps in poll(2) on an eventfd that
 * is written only while `parked` is set, so that under load there are no system calls. When the ring holds RING_MESSAGES_MAX
 * messages or RING_BYTES_MAX bytes an endpoint keeps the one it has and does not ask nng for more until there is room:
 * back-pressure reaches the peer. (Worked number: 64 KiB messages stop at 4,096 of them, 256 MiB.)
 *
 * Timers are a binary heap over slots: a slot knows its place in the heap, so cancelling is O(log n).
 *
 * Three of nng 1.5.2's edges are dealt with here:
 * - a receive that is asked for while the socket closes stays in a queue that is then freed. So nobody asks any more once
 *   `closing` is set, and the aio is stopped before the socket is closed;
 * - a pipe's first message may overtake its NNG_PIPE_EV_ADD_POST, so pipes are announced by ADD_PRE;
 * - messages of a pipe may come after its NNG_PIPE_EV_REM_POST: servers ignore those of pipes they do not know.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/internal.h"

enum { RING_MESSAGES_MAX = 8192, RING_BYTES_MAX = 256 << 20, BATCH = 256, SEND_QUEUE = 8192, RECEIVE_QUEUE = 128, FREE_MESSAGES_MAX = 4096 };

enum entry_kind { ENTRY_MESSAGE, ENTRY_PIPE, ENTRY_POST };

struct entry {
    enum entry_kind kind;
    int pipe_event;
    uint32_t pipe;
    struct endpoint *endpoint;
    uint64_t epoch;
    nng_msg *nng;
    void (*fn)(void *arg);
    void *arg;
};

struct timer {
    uint64_t at_us;
    uint32_t generation; /* 0: free */
    uint32_t place;      /* in the heap; of a free one: the next free slot */
    void (*fn)(void *arg);
    void *arg;
};

struct rpc_loop {
    pthread_mutex_t lock;
    struct entry *ring; /* [capacity], a power of two; under lock */
    uint32_t capacity, head, count;
    uint64_t bytes; /* of the messages in the ring */
    atomic_uint pending; /* count, readable without the lock */
    atomic_bool parked, woken;
    int event_fd;

    /* owner's only */
    pthread_t owner;
    bool owned;
    struct entry batch[BATCH];
    struct timer *timers; /* [timer_capacity] slots */
    uint32_t *heap;       /* [timer_count] slots, the earliest first */
    uint32_t timer_count, timer_capacity, free_timer, timer_generation;
    uint64_t next_epoch;
    struct endpoint *endpoints;
    struct rpc_message *free_messages;
    uint32_t free_message_count;
    struct rpc_buffer *free_buffers;
    uint64_t random;
};

enum status rpc_loop_open(struct rpc_loop **out)
{
    struct rpc_loop *loop = calloc(1, sizeof *loop);

    if (!loop)
        return STATUS_RESOURCE_EXHAUSTED;
    loop->capacity = 1024;
    loop->ring = calloc(loop->capacity, sizeof *loop->ring);
    loop->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&loop->lock, NULL);
    loop->next_epoch = 1;
    loop->free_timer = UINT32_MAX;
    loop->random = clock_now_ns() | 1;
    if (!loop->ring || loop->event_fd < 0) {
        rpc_loop_close(loop);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    *out = loop;
    return STATUS_OK;
}

void rpc_loop_close(struct rpc_loop *loop)
{
    if (!loop)
        return;
    assert_always(!loop->endpoints);
    for (uint32_t i = 0; i < loop->count; i++) {
        struct entry *entry = &loop->ring[(loop->head + i) & (loop->capacity - 1)];
        if (entry->kind == ENTRY_MESSAGE)
            nng_msg_free(entry->nng);
    }
    while (loop->free_messages) {
        struct rpc_message *message = loop->free_messages;
        loop->free_messages = message->next;
        arena_free(&message->arena);
        free(message);
    }
    while (loop->free_buffers) {
        struct rpc_buffer *buffer = loop->free_buffers;
        loop->free_buffers = buffer->next;
        free(buffer);
    }
    if (loop->event_fd >= 0)
        close(loop->event_fd);
    pthread_mutex_destroy(&loop->lock);
    free(loop->timers);
    free(loop->heap);
    free(loop->ring);
    free(loop);
}

void loop_assert_owner(struct rpc_loop *loop)
{
    assert_always(!loop->owned || pthread_equal(loop->owner, pthread_self()));
}

uint32_t loop_random(struct rpc_loop *loop)
{
    loop->random = loop->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(loop->random >> 33);
}

/* --- the queue ----------------------------------------------------------------------------------------------------- */

void rpc_loop_wake(struct rpc_loop *loop)
{
    uint64_t one = 1;
    /* seq_cst: pairs with the owner's store of `parked` and load of `woken` and `pending`: one of both sees the other */
    atomic_store_explicit(&loop->woken, true, memory_order_seq_cst);
    if (atomic_load_explicit(&loop->parked, memory_order_seq_cst) && write(loop->event_fd, &one, sizeof one) < 0) {
        /* EAGAIN: it is readable already */
    }
}

/* Under the lock. Grows; without memory for that the process cannot go on. */
static void ring_put(struct rpc_loop *loop, const struct entry *entry)
{
    if (loop->count == loop->capacity) {
        struct entry *grown = calloc(loop->capacity * 2u, sizeof *grown);
        assert_always(grown);
        for (uint32_t i = 0; i < loop->count; i++)
            grown[i] = loop->ring[(loop->head + i) & (loop->capacity - 1)];
        free(loop->ring);
        loop->ring = grown;
        loop->head = 0;
        loop->capacity *= 2;
    }
    loop->ring[(loop->head + loop->count++) & (loop->capacity - 1)] = *entry;
    loop->bytes += entry->nng ? nng_msg_len(entry->nng) : 0;
    atomic_store_explicit(&loop->pending, loop->count, memory_order_seq_cst); /* see rpc_loop_wake */
}

static void put_entry(struct rpc_loop *loop, const struct entry *entry)
{
    uint64_t one = 1;
    pthread_mutex_lock(&loop->lock);
    ring_put(loop, entry);
    pthread_mutex_unlock(&loop->lock);
    if (atomic_load_explicit(&loop->parked, memory_order_seq_cst) && write(loop->event_fd, &one, sizeof one) < 0) {
        /* EAGAIN: it is readable already */
    }
}

void rpc_loop_post(struct rpc_loop *loop, void (*fn)(void *arg), void *arg)
{
    const struct entry entry = {.kind = ENTRY_POST, .fn = fn, .arg = arg};
    put_entry(loop, &entry);
}

static uint32_t ring_take(struct rpc_loop *loop)
{
    uint32_t count;
    pthread_mutex_lock(&loop->lock);
    count = MIN(loop->count, (uint32_t)BATCH);
    for (uint32_t i = 0; i < count; i++) {
        loop->batch[i] = loop->ring[(loop->head + i) & (loop->capacity - 1)];
        loop->bytes -= loop->batch[i].nng ? nng_msg_len(loop->batch[i].nng) : 0;
    }
    loop->head = (loop->head + count) & (loop->capacity - 1);
    loop->count -= count;
    atomic_store_explicit(&loop->pending, loop->count, memory_order_relaxed); /* only the owner lowers it */
    pthread_mutex_unlock(&loop->lock);
    return count;
}

/* --- timers -------------------------------------------------------------------------------------------------------- */

static void place_timer(struct rpc_loop *loop, uint32_t at, uint32_t slot)
{
    loop->heap[at] = slot;
    loop->timers[slot].place = at;
}

static void sift_up(struct rpc_loop *loop, uint32_t at)
{
    uint32_t slot = loop->heap[at];
    for (; at && loop->timers[slot].at_us < loop->timers[loop->heap[(at - 1) / 2]].at_us; at = (at - 1) / 2)
        place_timer(loop, at, loop->heap[(at - 1) / 2]);
    place_timer(loop, at, slot);
}

static void sift_down(struct rpc_loop *loop, uint32_t at)
{
    uint32_t slot = loop->heap[at];
    for (uint32_t child; (child = at * 2 + 1) < loop->timer_count; at = child) {
        if (child + 1 < loop->timer_count &&
            loop->timers[loop->heap[child + 1]].at_us < loop->timers[loop->heap[child]].at_us)
            child++;
        if (loop->timers[slot].at_us <= loop->timers[loop->heap[child]].at_us)
            break;
        place_timer(loop, at, loop->heap[child]);
    }
    place_timer(loop, at, slot);
}

static void grow_timers(struct rpc_loop *loop)
{
    uint32_t capacity = MAX(64u, loop->timer_capacity * 2);
    struct timer *timers = realloc(loop->timers, capacity * sizeof *timers);
    uint32_t *heap = realloc(loop->heap, capacity * sizeof *heap);

    assert_always(timers && heap);
    for (uint32_t i = loop->timer_capacity; i < capacity; i++)
        timers[i] = (struct timer){.place = i + 1 < capacity ? i + 1 : UINT32_MAX};
    loop->free_timer = loop->timer_capacity;
    loop->timers = timers;
    loop->heap = heap;
    loop->timer_capacity = capacity;
}

uint64_t rpc_loop_timer(struct rpc_loop *loop, uint64_t delay_us, void (*fn)(void *arg), void *arg)
{
    uint32_t slot;

    loop_assert_owner(loop);
    if (loop->free_timer == UINT32_MAX)
        grow_timers(loop);
    slot = loop->free_timer;
    loop->free_timer = loop->timers[slot].place;
    if (++loop->timer_generation == 0)
        loop->timer_generation = 1;
    loop->timers[slot] = (struct timer){.at_us = clock_now_us() + delay_us, .generation = loop->timer_generation, .fn = fn, .arg = arg};
    loop->heap[loop->timer_count] = slot;
    sift_up(loop, loop->timer_count++);
    return (uint64_t)loop->timers[slot].generation << 32 | slot;
}

static void remove_timer(struct rpc_loop *loop, uint32_t slot)
{
    uint32_t at = loop->timers[slot].place, last = loop->heap[--loop->timer_count];

    if (last != slot) {
        place_timer(loop, at, last);
        sift_up(loop, at);
        sift_down(loop, loop->timers[last].place);
    }
    loop->timers[slot] = (struct timer){.place = loop->free_timer};
    loop->free_timer = slot;
}

void rpc_loop_cancel_timer(struct rpc_loop *loop, uint64_t timer)
{
    uint32_t slot = (uint32_t)timer, generation = (uint32_t)(timer >> 32);

    loop_assert_owner(loop);
    if (generation && slot < loop->timer_capacity && loop->timers[slot].generation == generation)
        remove_timer(loop, slot);
}

static uint64_t next_timer_us(const struct rpc_loop *loop)
{
    return loop->timer_count ? loop->timers[loop->heap[0]].at_us : UINT64_MAX;
}

/* Those that are due now; what they set anew with no delay waits for the next round. */
static uint32_t fire_timers(struct rpc_loop *loop)
{
    uint32_t fired = 0;
    uint64_t now_us;

    if (!loop->timer_count)
        return 0;
    now_us = clock_now_us();
    for (; next_timer_us(loop) <= now_us && fired < BATCH; fired++) {
        struct timer due = loop->timers[loop->heap[0]];
        remove_timer(loop, loop->heap[0]);
        due.fn(due.arg);
    }
    return fired;
}

/* --- endpoints ----------------------------------------------------------------------------------------------------- */

/* Under no lock but the guard: nng runs no callback of ours inside this call. */
static void receive_next(struct endpoint *endpoint)
{
    pthread_mutex_lock(&endpoint->guard);
    if (!endpoint->closing)
        nng_recv_aio(endpoint->socket, endpoint->receive);
    pthread_mutex_unlock(&endpoint->guard);
}

/* On an nng thread. */
static void on_receive(void *arg)
{
    struct endpoint *endpoint = arg;
    struct rpc_loop *loop = endpoint->loop;
    struct entry entry = {.kind = ENTRY_MESSAGE, .endpoint = endpoint, .epoch = endpoint->epoch};
    bool full;

    if (nng_aio_result(endpoint->receive))
        return; /* stopped */
    entry.nng = nng_aio_get_msg(endpoint->receive);
    nng_aio_set_msg(endpoint->receive, NULL);
    entry.pipe = (uint32_t)nng_pipe_id(nng_msg_get_pipe(entry.nng));
    pthread_mutex_lock(&loop->lock);
    full = loop->count >= RING_MESSAGES_MAX || loop->bytes >= RING_BYTES_MAX;
    if (full)
        endpoint->stalled = entry.nng;
    pthread_mutex_unlock(&loop->lock);
    if (full)
        return;
    put_entry(loop, &entry);
    receive_next(endpoint);
}

static void on_pipe_event(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct endpoint *endpoint = arg;
    const struct entry entry = {
        .kind = ENTRY_PIPE, .endpoint = endpoint, .epoch = endpoint->epoch, .pipe = (uint32_t)nng_pipe_id(pipe),
        .pipe_event = event == NNG_PIPE_EV_ADD_PRE ? PIPE_ADDED : PIPE_GONE,
    };
    put_entry(endpoint->loop, &entry);
}

static int set_options(struct endpoint *endpoint)
{
    size_t max_bytes = (size_t)endpoint->max_message_bytes + HEADER_SLACK;
    int rv;

    if ((rv = nng_socket_set_int(endpoint->socket, NNG_OPT_SENDBUF, SEND_QUEUE)) ||
        (rv = nng_socket_set_int(endpoint->socket, NNG_OPT_RECVBUF, RECEIVE_QUEUE)) ||
        (rv = nng_socket_set_size(endpoint->socket, NNG_OPT_RECVMAXSZ, max_bytes)) ||
        (rv = nng_pipe_notify(endpoint->socket, NNG_PIPE_EV_ADD_PRE, on_pipe_event, endpoint)))
        return rv;
    return nng_pipe_notify(endpoint->socket, NNG_PIPE_EV_REM_POST, on_pipe_event, endpoint);
}

int endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, int (*open_raw)(nng_socket *), uint64_t max_message_bytes)
{
    int rv;

    loop_assert_owner(loop);
    endpoint->loop = loop;
    endpoint->epoch = loop->next_epoch++;
    endpoint->stalled = NULL;
    endpoint->closing = false;
    endpoint->receive = endpoint->send = NULL;
    endpoint->max_message_bytes = max_message_bytes;
    if ((rv = open_raw(&endpoint->socket)))
        return rv;
    if ((rv = nng_aio_alloc(&endpoint->receive, on_receive, endpoint)) || (rv = nng_aio_alloc(&endpoint->send, NULL, NULL)) ||
        (rv = set_options(endpoint))) {
        nng_close(endpoint->socket);
        nng_aio_free(endpoint->receive);
        nng_aio_free(endpoint->send);
        return rv;
    }
    nng_aio_set_timeout(endpoint->send, NNG_DURATION_ZERO);
    pthread_mutex_init(&endpoint->guard, NULL);
    endpoint->opened = true;
    endpoint->next = loop->endpoints;
    loop->endpoints = endpoint;
    return 0;
}

void endpoint_start(struct endpoint *endpoint)
{
    receive_next(endpoint);
}

/* Nothing in the queue, or taken from it already, may name the endpoint any more. */
static void forget(struct rpc_loop *loop, struct endpoint *endpoint)
{
    for (struct endpoint **at = &loop->endpoints; *at; at = &(*at)->next)
        if (*at == endpoint) {
            *at = endpoint->next;
            break;
        }
    pthread_mutex_lock(&loop->lock);
    for (uint32_t i = 0; i < loop->count; i++) {
        struct entry *entry = &loop->ring[(loop->head + i) & (loop->capacity - 1)];
        if (entry->endpoint == endpoint)
            entry->endpoint = NULL;
    }
    pthread_mutex_unlock(&loop->lock);
    for (uint32_t i = 0; i < BATCH; i++)
        if (loop->batch[i].endpoint == endpoint)
            loop->batch[i].endpoint = NULL;
}

void endpoint_close(struct endpoint *endpoint)
{
    if (!endpoint->opened)
        return;
    endpoint->opened = false;
    pthread_mutex_lock(&endpoint->guard);
    endpoint->closing = true;
    pthread_mutex_unlock(&endpoint->guard);
    nng_aio_stop(endpoint->receive); /* first: nng leaves it in the queue of a closed socket */
    nng_close(endpoint->socket);     /* waits for the pipes' callbacks; none of them waits for us */
    nng_aio_free(endpoint->receive);
    nng_aio_free(endpoint->send);
    pthread_mutex_destroy(&endpoint->guard);
    if (endpoint->stalled)
        nng_msg_free(endpoint->stalled);
    endpoint->stalled = NULL;
    forget(endpoint->loop, endpoint);
}

void endpoint_close_pipe(struct endpoint *endpoint, uint32_t pipe)
{
    (void)endpoint;
    nng_pipe_close((nng_pipe){.id = pipe});
}

bool endpoint_send(struct endpoint *endpoint, nng_msg *nng)
{
    nng_aio_set_msg(endpoint->send, nng);
    nng_send_aio(endpoint->socket, endpoint->send);
    nng_aio_wait(endpoint->send); /* its timeout is 0: done or refused */
    if (nng_aio_result(endpoint->send) == 0)
        return true;
    nng_aio_set_msg(endpoint->send, NULL);
    return false;
}

/* Endpoints that had no room for a message hand it in now. */
static void restart_stalled(struct rpc_loop *loop)
{
    for (struct endpoint *endpoint = loop->endpoints; endpoint; endpoint = endpoint->next) {
        nng_msg *nng;
        pthread_mutex_lock(&loop->lock);
        nng = loop->count < RING_MESSAGES_MAX / 2 && loop->bytes < RING_BYTES_MAX / 2 ? endpoint->stalled : NULL;
        if (nng)
            endpoint->stalled = NULL;
        pthread_mutex_unlock(&loop->lock);
        if (nng) {
            const struct entry entry = {.kind = ENTRY_MESSAGE, .endpoint = endpoint, .epoch = endpoint->epoch, .nng = nng,
                                        .pipe = (uint32_t)nng_pipe_id(nng_msg_get_pipe(nng))};
            put_entry(loop, &entry);
            receive_next(endpoint);
        }
    }
}

/* --- running ------------------------------------------------------------------------------------------------------- */

static void handle(struct entry *entry)
{
    struct endpoint *endpoint = entry->endpoint;
    bool current = endpoint && endpoint->opened && endpoint->epoch == entry->epoch;

    switch (entry->kind) {
    case ENTRY_POST:
        entry->fn(entry->arg);
        break;
    case ENTRY_PIPE:
        if (current)
            endpoint->on_pipe(endpoint, entry->pipe, entry->pipe_event);
        break;
    case ENTRY_MESSAGE:
        if (current)
            endpoint->on_message(endpoint, entry->pipe, entry->nng);
        else
            nng_msg_free(entry->nng);
        break;
    }
}

static uint32_t handle_all(struct rpc_loop *loop)
{
    uint32_t count = ring_take(loop);
    for (uint32_t i = 0; i < count; i++)
        handle(&loop->batch[i]);
    if (count)
        memset(loop->batch, 0, count * sizeof *loop->batch);
    restart_stalled(loop);
    return count;
}

static void park(struct rpc_loop *loop, uint64_t timeout_us)
{
    struct pollfd ready = {.fd = loop->event_fd, .events = POLLIN};
    struct timespec limit = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000};
    uint64_t value;

    atomic_store_explicit(&loop->parked, true, memory_order_seq_cst); /* see rpc_loop_wake */
    if (!atomic_load_explicit(&loop->pending, memory_order_seq_cst) && !atomic_load_explicit(&loop->woken, memory_order_seq_cst))
        ppoll(&ready, 1, timeout_us == UINT64_MAX ? NULL : &limit, NULL);
    atomic_store_explicit(&loop->parked, false, memory_order_relaxed); /* a late write to the eventfd is harmless */
    if (read(loop->event_fd, &value, sizeof value) < 0) {
        /* it was a timeout */
    }
}

uint32_t rpc_loop_run(struct rpc_loop *loop, uint64_t timeout_us, uint64_t spin_us)
{
    uint32_t handled;
    uint64_t began_us;

    if (!loop->owned) {
        loop->owner = pthread_self();
        loop->owned = true;
    }
    loop_assert_owner(loop);
    handled = fire_timers(loop) + handle_all(loop);
    if (handled || timeout_us == 0)
        return handled;
    began_us = clock_now_us();
    while (spin_us && clock_now_us() - began_us < spin_us) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&loop->pending, memory_order_relaxed) || /* the lock in ring_take orders the rest */
                atomic_load_explicit(&loop->woken, memory_order_relaxed)) {
                atomic_store_explicit(&loop->woken, false, memory_order_seq_cst);
                return handle_all(loop);
            }
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        if (next_timer_us(loop) <= clock_now_us())
            return fire_timers(loop) + handle_all(loop);
    }
    if (loop->timer_count) {
        uint64_t now_us = clock_now_us(), at_us = next_timer_us(loop);
        timeout_us = MIN(timeout_us, at_us > now_us ? at_us - now_us : 0);
    }
    if (timeout_us)
        park(loop, timeout_us);
    atomic_store_explicit(&loop->woken, false, memory_order_seq_cst); /* what the waker wrote before is seen by the caller */
    return fire_timers(loop) + handle_all(loop);
}

/* --- free lists ---------------------------------------------------------------------------------------------------- */

struct rpc_message *loop_take_message(struct rpc_loop *loop)
{
    struct rpc_message *message = loop->free_messages;
    if (!message)
        return calloc(1, sizeof *message);
    loop->free_messages = message->next;
    loop->free_message_count--;
    return message;
}

void loop_give_message(struct rpc_loop *loop, struct rpc_message *message)
{
    if (loop->free_message_count >= FREE_MESSAGES_MAX) {
        arena_free(&message->arena);
        free(message);
        return;
    }
    message->next = loop->free_messages;
    loop->free_messages = message;
    loop->free_message_count++;
}

struct rpc_buffer *loop_take_buffer(struct rpc_loop *loop)
{
    struct rpc_buffer *buffer = loop->free_buffers;
    if (!buffer)
        return calloc(1, sizeof *buffer);
    loop->free_buffers = buffer->next;
    return buffer;
}

void loop_give_buffer(struct rpc_loop *loop, struct rpc_buffer *buffer)
{
    buffer->next = loop->free_buffers;
    loop->free_buffers = buffer;
}

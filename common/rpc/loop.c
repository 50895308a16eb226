/* loop.c: the loop: a queue that nng's threads and other threads fill, and that one thread empties; timers; endpoints.
 *
 * The queue is a ring under a mutex that is held for a few instructions. The owner sleeps in poll(2) on an eventfd that
 * is written only while `parked` is set, so that under load there are no system calls. When the ring is full of messages
 * an endpoint keeps the one it has and does not ask nng for more until there is room: back-pressure reaches the peer.
 *
 * Timers are a binary heap; a cancelled one stays in it, marked, until its time.
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

enum { RING_MESSAGES_MAX = 8192, BATCH = 256, SEND_QUEUE = 8192, RECEIVE_QUEUE = 128, FREE_MESSAGES_MAX = 4096 };

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
    uint64_t at_us, id;
    void (*fn)(void *arg);
    void *arg;
};

struct rpc_loop {
    pthread_mutex_t lock;
    struct entry *ring; /* [capacity], a power of two; under lock */
    uint32_t capacity, head, count;
    atomic_uint pending; /* count, readable without the lock */
    atomic_bool parked, woken;
    int event_fd;

    /* owner's only */
    pthread_t owner;
    bool owned;
    struct entry batch[BATCH];
    struct timer *timers; /* heap */
    uint32_t timer_count, timer_capacity;
    uint64_t next_timer, next_epoch;
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
    loop->next_timer = loop->next_epoch = 1;
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
    for (uint32_t i = 0; i < count; i++)
        loop->batch[i] = loop->ring[(loop->head + i) & (loop->capacity - 1)];
    loop->head = (loop->head + count) & (loop->capacity - 1);
    loop->count -= count;
    atomic_store_explicit(&loop->pending, loop->count, memory_order_relaxed); /* only the owner lowers it */
    pthread_mutex_unlock(&loop->lock);
    return count;
}

/* --- timers -------------------------------------------------------------------------------------------------------- */

static void sift_up(struct timer *heap, uint32_t at)
{
    for (; at && heap[at].at_us < heap[(at - 1) / 2].at_us; at = (at - 1) / 2) {
        struct timer swap = heap[at];
        heap[at] = heap[(at - 1) / 2];
        heap[(at - 1) / 2] = swap;
    }
}

static void sift_down(struct timer *heap, uint32_t count, uint32_t at)
{
    for (uint32_t child; (child = at * 2 + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1].at_us < heap[child].at_us)
            child++;
        if (heap[at].at_us <= heap[child].at_us)
            return;
        struct timer swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

uint64_t rpc_loop_timer(struct rpc_loop *loop, uint64_t delay_us, void (*fn)(void *arg), void *arg)
{
    loop_assert_owner(loop);
    if (loop->timer_count == loop->timer_capacity) {
        uint32_t capacity = MAX(64u, loop->timer_capacity * 2);
        struct timer *grown = realloc(loop->timers, capacity * sizeof *grown);
        assert_always(grown);
        loop->timers = grown;
        loop->timer_capacity = capacity;
    }
    loop->timers[loop->timer_count] = (struct timer){clock_now_us() + delay_us, loop->next_timer++, fn, arg};
    sift_up(loop->timers, loop->timer_count++);
    return loop->next_timer - 1;
}

void rpc_loop_cancel_timer(struct rpc_loop *loop, uint64_t timer)
{
    loop_assert_owner(loop);
    for (uint32_t i = 0; timer && i < loop->timer_count; i++)
        if (loop->timers[i].id == timer) {
            loop->timers[i] = loop->timers[--loop->timer_count];
            if (i < loop->timer_count) {
                sift_up(loop->timers, i);
                sift_down(loop->timers, loop->timer_count, i);
            }
            return;
        }
}

static uint32_t fire_timers(struct rpc_loop *loop)
{
    uint32_t fired = 0;
    while (loop->timer_count && loop->timers[0].at_us <= clock_now_us()) {
        struct timer due = loop->timers[0];
        loop->timers[0] = loop->timers[--loop->timer_count];
        sift_down(loop->timers, loop->timer_count, 0);
        due.fn(due.arg);
        fired++;
    }
    return fired;
}

/* --- endpoints ----------------------------------------------------------------------------------------------------- */

/* On an nng thread. */
static void on_receive(void *arg)
{
    struct endpoint *endpoint = arg;
    struct rpc_loop *loop = endpoint->loop;
    struct entry entry = {.kind = ENTRY_MESSAGE, .endpoint = endpoint, .epoch = endpoint->epoch};
    bool full;

    if (nng_aio_result(endpoint->receive))
        return; /* closed */
    entry.nng = nng_aio_get_msg(endpoint->receive);
    nng_aio_set_msg(endpoint->receive, NULL);
    entry.pipe = (uint32_t)nng_pipe_id(nng_msg_get_pipe(entry.nng));
    pthread_mutex_lock(&loop->lock);
    full = loop->count >= RING_MESSAGES_MAX;
    if (full)
        endpoint->stalled = entry.nng;
    pthread_mutex_unlock(&loop->lock);
    if (full)
        return;
    put_entry(loop, &entry);
    nng_recv_aio(endpoint->socket, endpoint->receive);
}

static void on_pipe_event(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct endpoint *endpoint = arg;
    const struct entry entry = {
        .kind = ENTRY_PIPE, .endpoint = endpoint, .epoch = endpoint->epoch, .pipe = (uint32_t)nng_pipe_id(pipe),
        .pipe_event = event == NNG_PIPE_EV_ADD_POST ? PIPE_ADDED : PIPE_GONE,
    };
    put_entry(endpoint->loop, &entry);
}

int endpoint_open(struct endpoint *endpoint, struct rpc_loop *loop, int (*open_raw)(nng_socket *), uint64_t max_message_bytes)
{
    int rv;

    loop_assert_owner(loop);
    endpoint->loop = loop;
    endpoint->epoch = loop->next_epoch++;
    endpoint->stalled = NULL;
    if ((rv = open_raw(&endpoint->socket)))
        return rv;
    if ((rv = nng_aio_alloc(&endpoint->receive, on_receive, endpoint))) {
        nng_close(endpoint->socket);
        return rv;
    }
    if ((rv = nng_socket_set_int(endpoint->socket, NNG_OPT_SENDBUF, SEND_QUEUE)) ||
        (rv = nng_socket_set_int(endpoint->socket, NNG_OPT_RECVBUF, RECEIVE_QUEUE)) ||
        (rv = nng_socket_set_size(endpoint->socket, NNG_OPT_RECVMAXSZ, (size_t)max_message_bytes)) ||
        (rv = nng_pipe_notify(endpoint->socket, NNG_PIPE_EV_ADD_POST, on_pipe_event, endpoint)) ||
        (rv = nng_pipe_notify(endpoint->socket, NNG_PIPE_EV_REM_POST, on_pipe_event, endpoint))) {
        nng_close(endpoint->socket);
        nng_aio_free(endpoint->receive);
        return rv;
    }
    endpoint->opened = true;
    endpoint->next = loop->endpoints;
    loop->endpoints = endpoint;
    return 0;
}

void endpoint_start(struct endpoint *endpoint)
{
    nng_recv_aio(endpoint->socket, endpoint->receive);
}

void endpoint_close(struct endpoint *endpoint)
{
    struct rpc_loop *loop = endpoint->loop;

    if (!endpoint->opened)
        return;
    endpoint->opened = false;
    nng_close(endpoint->socket); /* waits for the pipes' callbacks; none runs under our lock */
    nng_aio_stop(endpoint->receive);
    nng_aio_free(endpoint->receive);
    if (endpoint->stalled)
        nng_msg_free(endpoint->stalled);
    endpoint->stalled = NULL;
    for (struct endpoint **at = &loop->endpoints; *at; at = &(*at)->next)
        if (*at == endpoint) {
            *at = endpoint->next;
            break;
        }
    pthread_mutex_lock(&loop->lock); /* nothing in the queue may name it any more */
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

void endpoint_close_pipe(struct endpoint *endpoint, uint32_t pipe)
{
    (void)endpoint;
    nng_pipe_close((nng_pipe){.id = pipe});
}

bool endpoint_send(struct endpoint *endpoint, nng_msg *nng)
{
    if (nng_sendmsg(endpoint->socket, nng, NNG_FLAG_NONBLOCK) == 0)
        return true;
    nng_msg_free(nng);
    return false;
}

/* Endpoints that had no room for a message hand it in now. */
static void restart_stalled(struct rpc_loop *loop)
{
    for (struct endpoint *endpoint = loop->endpoints; endpoint; endpoint = endpoint->next) {
        nng_msg *nng;
        pthread_mutex_lock(&loop->lock);
        nng = loop->count < RING_MESSAGES_MAX / 2 ? endpoint->stalled : NULL;
        if (nng)
            endpoint->stalled = NULL;
        pthread_mutex_unlock(&loop->lock);
        if (nng) {
            const struct entry entry = {.kind = ENTRY_MESSAGE, .endpoint = endpoint, .epoch = endpoint->epoch, .nng = nng,
                                        .pipe = (uint32_t)nng_pipe_id(nng_msg_get_pipe(nng))};
            put_entry(loop, &entry);
            nng_recv_aio(endpoint->socket, endpoint->receive);
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
            if (atomic_load_explicit(&loop->pending, memory_order_relaxed)) /* the lock in ring_take orders the rest */
                return handle_all(loop);
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        if (loop->timer_count && loop->timers[0].at_us <= clock_now_us())
            return fire_timers(loop) + handle_all(loop);
    }
    if (loop->timer_count) {
        uint64_t now_us = clock_now_us();
        timeout_us = MIN(timeout_us, loop->timers[0].at_us > now_us ? loop->timers[0].at_us - now_us : 0);
    }
    if (timeout_us)
        park(loop, timeout_us);
    atomic_store_explicit(&loop->woken, false, memory_order_relaxed);
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

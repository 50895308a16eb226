/* loop.c: the loop: a queue that nng's threads and other threads fill, and that one thread empties; timers; endpoints; and
 * descriptors that this thread polls and reads itself (lane.h).
 *
 * The queue is a ring under a mutex that is held for a few instructions. The owner sleeps in poll(2) on them and on an eventfd that
 * is written only while `parked` is set, so that under load there are no system calls. When the ring holds RING_MESSAGES_MAX
 * messages or RING_BYTES_MAX bytes connections do not ask nng for more until there is room: back-pressure reaches the peer. (Worked number: 64 KiB messages stop at 4,096 of them, 256 MiB.)
 *
 * Timers are a binary heap over slots: a slot knows its place in the heap, so cancelling is O(log n).
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
#include "common/base/thread_pool.h"
#include "common/rpc/internal.h"

enum { RING_MESSAGES_MAX = 8192, RING_BYTES_MAX = 256 << 20, BATCH = 256, FREE_MESSAGES_MAX = 4096, SPIN_CPUS = 4 };
/* Messages and buffers that are there from the start: a decode step with one more of them alive than any before must not allocate. */
enum { MESSAGES_AT_START = 16 };

struct timer {
    uint64_t at_us;
    uint32_t generation; /* 0: free */
    uint32_t place;      /* in the heap; of a free one: the next free slot */
    void (*fn)(void *arg);
    void *arg;
};

struct rpc_loop {
    pthread_mutex_t lock;
    struct loop_entry *ring; /* [capacity], a power of two; under lock */
    uint32_t capacity, head, count;
    uint64_t bytes;      /* of the messages in the ring */
    bool stalled;        /* a connection waits for room */
    atomic_uint pending; /* count, readable without the lock */
    atomic_bool parked, woken;
    int event_fd;

    /* owner's only */
    pthread_t owner;
    bool owned, may_spin;
    struct loop_entry batch[BATCH];
    struct timer *timers; /* [timer_capacity] slots */
    uint32_t *heap;       /* [timer_count] slots, the earliest first */
    uint32_t timer_count, timer_capacity, free_timer, timer_generation;
    struct endpoint *endpoints;
    struct pollee *pollees;
    struct pollfd *polled; /* [polled_capacity] the eventfd, then the pollees in their order */
    uint32_t pollee_count, polled_capacity;
    struct lane *waiting_lanes;
    struct rpc_message *free_messages;
    uint32_t free_message_count;
    struct rpc_buffer *free_buffers;
    uint64_t random;
    struct rpc_secret secret;
};

static bool open_messages(struct rpc_loop *loop)
{
    for (uint32_t i = 0; i < MESSAGES_AT_START; i++) {
        struct rpc_message *message = calloc(1, sizeof *message);
        struct rpc_buffer *buffer = calloc(1, sizeof *buffer);
        if (message)
            loop_give_message(loop, message);
        if (buffer)
            loop_give_buffer(loop, buffer);
        if (!message || !buffer)
            return false;
        message->arena.cap = 1;
        if (!arena_take(&message->arena, 1)) /* its first chunk, which it keeps */
            return false;
        arena_reset(&message->arena);
    }
    return true;
}

enum status rpc_loop_open(struct rpc_loop **out)
{
    struct rpc_loop *loop = calloc(1, sizeof *loop);

    if (!loop)
        return STATUS_RESOURCE_EXHAUSTED;
    loop->capacity = 1024;
    loop->ring = calloc(loop->capacity, sizeof *loop->ring);
    loop->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&loop->lock, NULL);
    loop->free_timer = UINT32_MAX;
    loop->may_spin = cpu_count_usable() >= SPIN_CPUS;
    loop->random = clock_now_ns() | 1;
    if (!loop->ring || loop->event_fd < 0 || !open_messages(loop)) {
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
    assert_always(!loop->endpoints && !loop->pollees);
    for (uint32_t i = 0; i < loop->count; i++) {
        struct loop_entry *entry = &loop->ring[(loop->head + i) & (loop->capacity - 1)];
        if (entry->kind == ENTRY_MESSAGE)
            frame_free(entry->frame);
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
    free(loop->polled);
    free(loop->timers);
    free(loop->heap);
    free(loop->ring);
    free(loop);
}

void loop_assert_owner(struct rpc_loop *loop) { assert_always(!loop->owned || pthread_equal(loop->owner, pthread_self())); }

void rpc_loop_set_secret(struct rpc_loop *loop, const struct rpc_secret *secret)
{
    assert_always(!loop->endpoints);
    loop->secret = *secret;
}

const struct rpc_secret *loop_secret(const struct rpc_loop *loop) { return &loop->secret; }

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
static void ring_put(struct rpc_loop *loop, const struct loop_entry *entry)
{
    if (loop->count == loop->capacity) {
        struct loop_entry *grown = calloc(loop->capacity * 2u, sizeof *grown);
        assert_always(grown);
        for (uint32_t i = 0; i < loop->count; i++)
            grown[i] = loop->ring[(loop->head + i) & (loop->capacity - 1)];
        free(loop->ring);
        loop->ring = grown;
        loop->head = 0;
        loop->capacity *= 2;
    }
    loop->ring[(loop->head + loop->count++) & (loop->capacity - 1)] = *entry;
    loop->bytes += entry->frame ? entry->frame->length : 0;
    atomic_store_explicit(&loop->pending, loop->count, memory_order_seq_cst); /* see rpc_loop_wake */
}

void loop_put(struct rpc_loop *loop, const struct loop_entry *entry)
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
    const struct loop_entry entry = {.kind = ENTRY_POST, .fn = fn, .arg = arg};
    loop_put(loop, &entry);
}

static uint32_t ring_take(struct rpc_loop *loop)
{
    uint32_t count;
    pthread_mutex_lock(&loop->lock);
    count = MIN(loop->count, (uint32_t)BATCH);
    for (uint32_t i = 0; i < count; i++) {
        loop->batch[i] = loop->ring[(loop->head + i) & (loop->capacity - 1)];
        loop->bytes -= loop->batch[i].frame ? loop->batch[i].frame->length : 0;
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
        if (child + 1 < loop->timer_count && loop->timers[loop->heap[child + 1]].at_us < loop->timers[loop->heap[child]].at_us)
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
    loop->timers[slot] =
        (struct timer){.at_us = clock_now_us() + delay_us, .generation = loop->timer_generation, .fn = fn, .arg = arg};
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

static bool is_full(const struct rpc_loop *loop, uint32_t part)
{
    return loop->count >= RING_MESSAGES_MAX / part || loop->bytes >= RING_BYTES_MAX / part;
}

bool loop_stalls(struct rpc_loop *loop, bool *stalled)
{
    bool full;
    pthread_mutex_lock(&loop->lock);
    full = is_full(loop, 1);
    *stalled = full;
    loop->stalled |= full;
    pthread_mutex_unlock(&loop->lock);
    return full;
}

bool loop_restarts(struct rpc_loop *loop, bool *stalled)
{
    bool restarts;
    pthread_mutex_lock(&loop->lock);
    restarts = *stalled;
    *stalled = false;
    pthread_mutex_unlock(&loop->lock);
    return restarts;
}

/* Those that found the queue full go on. It was not empty then, so this is called again after they stalled. */
static void restart_stalled(struct rpc_loop *loop)
{
    bool restart;
    pthread_mutex_lock(&loop->lock);
    restart = loop->stalled && !is_full(loop, 2);
    if (restart)
        loop->stalled = false;
    pthread_mutex_unlock(&loop->lock);
    for (struct endpoint *endpoint = loop->endpoints; restart && endpoint; endpoint = endpoint->next)
        endpoint_restart(endpoint);
}

void loop_add_endpoint(struct rpc_loop *loop, struct endpoint *endpoint)
{
    endpoint->next = loop->endpoints;
    loop->endpoints = endpoint;
}

static void forget_in(struct loop_entry *entry, struct endpoint *endpoint)
{
    if (entry->endpoint != endpoint)
        return;
    entry->endpoint = NULL;
    if (entry->link)
        link_free(entry->link);
    entry->link = NULL;
}

void loop_forget_endpoint(struct rpc_loop *loop, struct endpoint *endpoint)
{
    for (struct endpoint **at = &loop->endpoints; *at; at = &(*at)->next)
        if (*at == endpoint) {
            *at = endpoint->next;
            break;
        }
    pthread_mutex_lock(&loop->lock); /* links in the queue have not been started: freeing them waits for no callback */
    for (uint32_t i = 0; i < loop->count; i++)
        forget_in(&loop->ring[(loop->head + i) & (loop->capacity - 1)], endpoint);
    pthread_mutex_unlock(&loop->lock);
    for (uint32_t i = 0; i < BATCH; i++)
        forget_in(&loop->batch[i], endpoint);
}

/* --- running ------------------------------------------------------------------------------------------------------- */

static void handle(struct loop_entry *entry)
{
    struct loop_entry now = *entry;

    *entry = (struct loop_entry){0}; /* it has been handled, if its endpoint is closed meanwhile */
    if (now.kind == ENTRY_POST)
        now.fn(now.arg);
    else if (now.kind == ENTRY_PIPE && now.endpoint)
        endpoint_on_entry(now.endpoint, &now);
    else if (now.kind == ENTRY_MESSAGE && now.endpoint)
        now.endpoint->on_message(now.endpoint, now.pipe, now.frame);
    else if (now.kind == ENTRY_MESSAGE)
        frame_free(now.frame);
}

static uint32_t handle_all(struct rpc_loop *loop)
{
    uint32_t count = ring_take(loop);
    for (uint32_t i = 0; i < count; i++)
        handle(&loop->batch[i]);
    restart_stalled(loop);
    return count;
}

void loop_watch(struct rpc_loop *loop, struct pollee *pollee)
{
    pollee->ready = 0;
    pollee->next = loop->pollees;
    pollee->place = &loop->pollees;
    if (pollee->next)
        pollee->next->place = &pollee->next;
    loop->pollees = pollee;
    if (++loop->pollee_count + 1 > loop->polled_capacity) {
        loop->polled_capacity = MAX(16u, loop->polled_capacity * 2);
        loop->polled = realloc(loop->polled, loop->polled_capacity * sizeof *loop->polled);
        assert_always(loop->polled);
    }
}

void loop_unwatch(struct rpc_loop *loop, struct pollee *pollee)
{
    *pollee->place = pollee->next;
    if (pollee->next)
        pollee->next->place = pollee->place;
    loop->pollee_count--;
}

struct lane **loop_waiting_lanes(struct rpc_loop *loop) { return &loop->waiting_lanes; }

/* Waits for the descriptors, and calls those that are ready. Returns their number. */
static uint32_t poll_all(struct rpc_loop *loop, const struct timespec *limit)
{
    struct pollfd own = {.fd = loop->event_fd, .events = POLLIN}, *polled = loop->polled ? loop->polled : &own;
    uint32_t count = 1, handled = 0;
    uint64_t value;

    polled[0] = own;
    for (struct pollee *pollee = loop->pollees; pollee; pollee = pollee->next)
        polled[count++] = (struct pollfd){.fd = pollee->fd, .events = pollee->events};
    if (ppoll(polled, count, limit, NULL) <= 0)
        return 0;
    if (polled[0].revents && read(loop->event_fd, &value, sizeof value) < 0) {
        /* another took it: nobody does */
    }
    count = 1;
    for (struct pollee *pollee = loop->pollees; pollee; pollee = pollee->next)
        pollee->ready = polled[count++].revents;
    for (struct pollee *pollee = loop->pollees; pollee;) {
        short ready = pollee->ready;
        pollee->ready = 0;
        if (ready) {
            pollee->on_ready(pollee, ready);
            handled++;
        }
        pollee = ready ? loop->pollees : pollee->next; /* it, or any other, may have ended */
    }
    return handled;
}

static uint32_t park(struct rpc_loop *loop, uint64_t timeout_us)
{
    const struct timespec limit = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000}, none = {0};
    uint32_t handled;
    bool idle;

    atomic_store_explicit(&loop->parked, true, memory_order_seq_cst); /* see rpc_loop_wake */
    idle = !atomic_load_explicit(&loop->pending, memory_order_seq_cst) && !atomic_load_explicit(&loop->woken, memory_order_seq_cst);
    handled = poll_all(loop, !idle ? &none : timeout_us == UINT64_MAX ? NULL : &limit);
    atomic_store_explicit(&loop->parked, false, memory_order_relaxed); /* a late write to the eventfd is harmless */
    return handled;
}

/* Until something is there (true) or the time is over. */
static bool spin(struct rpc_loop *loop, uint64_t spin_us, uint32_t *handled)
{
    static const struct timespec none;
    uint64_t began_us = clock_now_us();

    while (loop->may_spin && spin_us && clock_now_us() - began_us < spin_us) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&loop->pending, memory_order_relaxed) || /* the lock in ring_take orders the rest */
                atomic_load_explicit(&loop->woken, memory_order_relaxed))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        *handled += loop->pollees ? poll_all(loop, &none) : 0;
        if (*handled || next_timer_us(loop) <= clock_now_us())
            return true;
    }
    return false;
}

uint32_t rpc_loop_run(struct rpc_loop *loop, uint64_t timeout_us, uint64_t spin_us)
{
    uint32_t handled;

    if (!loop->owned) {
        loop->owner = pthread_self();
        loop->owned = true;
    }
    loop_assert_owner(loop);
    lane_flush_all(&loop->waiting_lanes); /* of what was sent since */
    handled = fire_timers(loop) + handle_all(loop);
    if (handled || timeout_us == 0) {
        static const struct timespec none;
        handled += loop->pollees ? poll_all(loop, &none) : 0;
        lane_flush_all(&loop->waiting_lanes);
        return handled;
    }
    if (!spin(loop, spin_us, &handled)) {
        if (loop->timer_count) {
            uint64_t now_us = clock_now_us(), at_us = next_timer_us(loop);
            timeout_us = MIN(timeout_us, at_us > now_us ? at_us - now_us : 0);
        }
        handled += park(loop, timeout_us);
    }
    atomic_store_explicit(&loop->woken, false, memory_order_seq_cst); /* what the waker wrote before is seen by the caller */
    handled += fire_timers(loop) + handle_all(loop);
    lane_flush_all(&loop->waiting_lanes);
    return handled;
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

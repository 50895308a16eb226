// loop.c: the loop: a queue that other threads fill and one thread empties; timers; descriptors that this thread polls and reads itself.
//
// The queue is a ring under a mutex that is held for a few instructions. The owner sleeps in poll(2) on the descriptors and on an eventfd
// that is written only while `parked` is set, so that under load there are no system calls. When the ring holds RING_MESSAGES_MAX
// entries or RING_BYTES_MAX bytes, transports do not ask for more until there is room: back-pressure reaches the peer. (Worked number:
// 64 KiB messages stop at 4,096 of them, 256 MiB.)
//
// The ring grows. What peers put into it fails without memory, and costs them their connection; room for the ends of connections
// is reserved when they begin, and POSTS_RESERVED slots are kept for the program's own posts, which cannot fail.
//
// Timers lie in a binary heap over slots. A slot knows where it is in the heap, so cancelling is O(log n). Slots are kept for those who
// reserved them, so that what must not fail in the middle (a call's deadline, a reconnect) needs no memory then.
#include "common/rpc/loop.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"

// --- timers: a binary heap over slots ---

enum { SLOTS_MIN = 64 };

struct timer {
    uint64_t at_us;
    uint32_t generation; // 0: free
    uint32_t place;      // in the heap; of a free slot: the next free slot
    bool reserved;
    void (*fn)(void *arg);
    void *arg;
};

// Zeroed, it can be opened. One thread. Slots are kept for those who reserved them.
struct timers {
    struct timer *slots; // [capacity]
    uint32_t *heap;      // [count] slots, the earliest first
    uint32_t count, capacity, reserved, unreserved_count, first_free, generation;
};

static void place_timer(struct timers *timers, uint32_t at, uint32_t slot)
{
    timers->heap[at] = slot;
    timers->slots[slot].place = at;
}

static uint64_t timer_at_us(const struct timers *timers, uint32_t at) { return timers->slots[timers->heap[at]].at_us; }

static void sift_up(struct timers *timers, uint32_t at)
{
    uint32_t slot = timers->heap[at];
    for (; at && timers->slots[slot].at_us < timer_at_us(timers, (at - 1) / 2); at = (at - 1) / 2)
        place_timer(timers, at, timers->heap[(at - 1) / 2]);
    place_timer(timers, at, slot);
}

static void sift_down(struct timers *timers, uint32_t at)
{
    uint32_t slot = timers->heap[at];
    for (uint32_t child; (child = at * 2 + 1) < timers->count; at = child) {
        if (child + 1 < timers->count && timer_at_us(timers, child + 1) < timer_at_us(timers, child))
            child++;
        if (timers->slots[slot].at_us <= timer_at_us(timers, child))
            break;
        place_timer(timers, at, timers->heap[child]);
    }
    place_timer(timers, at, slot);
}

// False: no memory; nothing has changed.
static bool make_room(struct timers *timers, uint64_t wanted)
{
    uint64_t capacity = MAX((uint64_t)SLOTS_MIN, timers->capacity);

    if (wanted <= timers->capacity)
        return true;
    while (capacity < wanted)
        capacity *= 2;
    if (capacity > UINT32_MAX / 2)
        return false;
    uint32_t *heap = realloc(timers->heap, capacity * sizeof *heap);
    if (!heap)
        return false;
    timers->heap = heap;
    struct timer *slots = realloc(timers->slots, capacity * sizeof *slots);
    if (!slots)
        return false;
    timers->slots = slots;
    if (!timers->capacity)
        timers->first_free = UINT32_MAX;
    for (uint32_t i = (uint32_t)capacity; i-- > timers->capacity; timers->first_free = i)
        slots[i] = (struct timer){.place = timers->first_free};
    timers->capacity = (uint32_t)capacity;
    return true;
}

// With room for a few. False: no memory; it can be closed all the same.
static bool timers_open(struct timers *timers) { return make_room(timers, SLOTS_MIN); }

// Makes room for `count` more timers with `reserved` at a time. False: no memory.
static bool timers_reserve(struct timers *timers, uint32_t count)
{
    if (!make_room(timers, (uint64_t)timers->reserved + count + timers->unreserved_count))
        return false;
    timers->reserved += count;
    return true;
}

static void timers_release(struct timers *timers, uint32_t count)
{
    assert_always(count <= timers->reserved);
    timers->reserved -= count;
}

// Returns an id, never 0 for a reserved one. 0: no memory.
static uint64_t timers_add(struct timers *timers, uint64_t at, bool reserved, void (*fn)(void *arg), void *arg)
{
    uint32_t slot;

    if (!reserved && !make_room(timers, (uint64_t)timers->reserved + timers->unreserved_count + 1))
        return 0;
    assert_always(timers->count < timers->capacity); // no more than were reserved
    slot = timers->first_free;
    timers->first_free = timers->slots[slot].place;
    if (++timers->generation == 0)
        timers->generation = 1;
    timers->slots[slot] = (struct timer){.at_us = at, .generation = timers->generation, .reserved = reserved, .fn = fn, .arg = arg};
    timers->unreserved_count += !reserved;
    timers->heap[timers->count] = slot;
    sift_up(timers, timers->count++);
    return (uint64_t)timers->slots[slot].generation << 32 | slot;
}

static void remove_timer(struct timers *timers, uint32_t slot)
{
    uint32_t at = timers->slots[slot].place, last = timers->heap[--timers->count];

    if (last != slot) {
        place_timer(timers, at, last);
        sift_up(timers, at);
        sift_down(timers, timers->slots[last].place);
    }
    timers->unreserved_count -= !timers->slots[slot].reserved;
    timers->slots[slot] = (struct timer){.place = timers->first_free};
    timers->first_free = slot;
}

// One that has been taken or was cancelled is ignored.
static void timers_cancel(struct timers *timers, uint64_t timer)
{
    uint32_t slot = (uint32_t)timer, generation = (uint32_t)(timer >> 32);

    if (generation && slot < timers->capacity && timers->slots[slot].generation == generation)
        remove_timer(timers, slot);
}

// UINT64_MAX: there is none.
static uint64_t timers_next_us(const struct timers *timers) { return timers->count ? timer_at_us(timers, 0) : UINT64_MAX; }

// Takes the earliest if it is due at now_us.
static bool timers_take(struct timers *timers, uint64_t now_us, void (**fn)(void *arg), void **arg)
{
    if (!timers->count || timer_at_us(timers, 0) > now_us)
        return false;
    const struct timer *due = &timers->slots[timers->heap[0]];
    *fn = due->fn;
    *arg = due->arg;
    remove_timer(timers, timers->heap[0]);
    return true;
}

static void timers_close(struct timers *timers)
{
    free(timers->slots);
    free(timers->heap);
    *timers = (struct timers){0};
}

// --- the loop ---

enum { RING_START = 1024, RING_MESSAGES_MAX = 8192, RING_BYTES_MAX = 256 << 20, POSTS_RESERVED = 256 };
enum { BATCH = 256, SPIN_CPUS = 4, POLLED_START = 16 };

struct rpc_loop {
    pthread_mutex_t lock;
    struct loop_entry *ring; // [capacity], a power of two; under lock, as what follows
    uint32_t capacity, head, count, reserved;
    uint64_t bytes;      // of the frames in the ring
    bool stalled;        // a transport waits for room
    atomic_uint pending; // count, readable without the lock
    atomic_bool parked, woken;
    int event_fd;

    // the owner's only
    pthread_t owner;
    bool owned, may_spin;
    struct loop_entry batch[BATCH];
    struct timers timers;
    struct loop_source *sources;
    struct pollee *pollees;
    struct pollfd *polled; // [polled_capacity] the eventfd, then the pollees in their order
    uint32_t pollee_count, polled_capacity;
    struct deferred *deferred;
    struct message_pool messages;
    uint64_t random;
    struct rpc_security security;
};

enum status rpc_loop_open(struct rpc_loop **out)
{
    struct rpc_loop *loop = calloc(1, sizeof *loop);

    if (!loop)
        return STATUS_RESOURCE_EXHAUSTED;
    loop->capacity = RING_START;
    loop->ring = calloc(loop->capacity, sizeof *loop->ring);
    loop->polled_capacity = POLLED_START;
    loop->polled = calloc(loop->polled_capacity, sizeof *loop->polled);
    loop->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&loop->lock, NULL);
    loop->may_spin = cpu_count_usable() >= SPIN_CPUS;
    loop->random = clock_now_ns() | 1;
    if (!loop->ring || !loop->polled || loop->event_fd < 0 || !message_pool_open(&loop->messages) || !timers_open(&loop->timers)) {
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
    assert_always(!loop->sources && !loop->pollees);
    for (uint32_t i = 0; i < loop->count; i++)
        frame_free(loop->ring[(loop->head + i) & (loop->capacity - 1)].frame);
    message_pool_close(&loop->messages);
    timers_close(&loop->timers);
    if (loop->event_fd >= 0)
        close(loop->event_fd);
    pthread_mutex_destroy(&loop->lock);
    free(loop->polled);
    free(loop->ring);
    free(loop);
}

void loop_assert_owner(struct rpc_loop *loop) { assert_always(!loop->owned || pthread_equal(loop->owner, pthread_self())); }

void rpc_loop_set_security(struct rpc_loop *loop, const struct rpc_security *security)
{
    assert_always(!loop->sources);
    loop->security = *security;
}

const struct rpc_security *loop_security(const struct rpc_loop *loop) { return &loop->security; }

const struct rpc_secret *loop_secret(const struct rpc_loop *loop) { return &loop->security.secret; }

struct message_pool *loop_messages(struct rpc_loop *loop) { return &loop->messages; }

uint32_t loop_random(struct rpc_loop *loop)
{
    loop->random = loop->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(loop->random >> 33);
}

// --- the queue ---

static void wake_if_parked(struct rpc_loop *loop)
{
    uint64_t one = 1;
    if (atomic_load_explicit(&loop->parked, memory_order_seq_cst) && write(loop->event_fd, &one, sizeof one) < 0) {
        // EAGAIN: it is readable already
    }
}

void rpc_loop_wake(struct rpc_loop *loop)
{
    // seq_cst: pairs with the owner's store of `parked` and load of `woken` and `pending`: one of both sees the other
    atomic_store_explicit(&loop->woken, true, memory_order_seq_cst);
    wake_if_parked(loop);
}

// Under the lock. False: no memory for so many slots; nothing has changed.
static bool ring_make_room(struct rpc_loop *loop, uint32_t wanted)
{
    uint32_t capacity = loop->capacity;

    if (wanted <= capacity)
        return true;
    while (capacity < wanted)
        capacity *= 2;
    struct loop_entry *grown = calloc(capacity, sizeof *grown);
    if (!grown)
        return false;
    for (uint32_t i = 0; i < loop->count; i++)
        grown[i] = loop->ring[(loop->head + i) & (loop->capacity - 1)];
    free(loop->ring);
    loop->ring = grown;
    loop->head = 0;
    loop->capacity = capacity;
    return true;
}

// Under the lock, where there is room.
static void ring_put(struct rpc_loop *loop, const struct loop_entry *entry)
{
    loop->ring[(loop->head + loop->count++) & (loop->capacity - 1)] = *entry;
    loop->bytes += entry->frame ? entry->frame->length : 0;
    atomic_store_explicit(&loop->pending, loop->count, memory_order_seq_cst); // see rpc_loop_wake
}

bool loop_reserve(struct rpc_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    bool has_room = ring_make_room(loop, loop->count + loop->reserved + POSTS_RESERVED + 1);
    loop->reserved += has_room;
    pthread_mutex_unlock(&loop->lock);
    return has_room;
}

void loop_release(struct rpc_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    assert_always(loop->reserved);
    loop->reserved--;
    pthread_mutex_unlock(&loop->lock);
}

void loop_put_reserved(struct rpc_loop *loop, const struct loop_entry *entry)
{
    pthread_mutex_lock(&loop->lock);
    assert_always(loop->reserved && loop->count < loop->capacity);
    loop->reserved--;
    ring_put(loop, entry);
    pthread_mutex_unlock(&loop->lock);
    wake_if_parked(loop);
}

bool loop_put(struct rpc_loop *loop, const struct loop_entry *entry)
{
    pthread_mutex_lock(&loop->lock);
    bool has_room = ring_make_room(loop, loop->count + loop->reserved + POSTS_RESERVED + 1);
    if (has_room)
        ring_put(loop, entry);
    pthread_mutex_unlock(&loop->lock);
    if (has_room)
        wake_if_parked(loop);
    return has_room;
}

void rpc_loop_post(struct rpc_loop *loop, void (*fn)(void *arg), void *arg)
{
    const struct loop_entry entry = {.fn = fn, .arg = arg};

    pthread_mutex_lock(&loop->lock);
    // With less memory than that the program itself has posted POSTS_RESERVED functions that have not run.
    assert_always(ring_make_room(loop, loop->count + loop->reserved + POSTS_RESERVED + 1) ||
                  loop->count + loop->reserved < loop->capacity);
    ring_put(loop, &entry);
    pthread_mutex_unlock(&loop->lock);
    wake_if_parked(loop);
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
    atomic_store_explicit(&loop->pending, loop->count, memory_order_relaxed); // only the owner lowers it
    pthread_mutex_unlock(&loop->lock);
    return count;
}

// --- timers of the loop ---

uint64_t rpc_loop_timer(struct rpc_loop *loop, uint64_t delay_us, void (*fn)(void *arg), void *arg)
{
    loop_assert_owner(loop);
    return timers_add(&loop->timers, clock_now_us() + delay_us, false, fn, arg);
}

void rpc_loop_cancel_timer(struct rpc_loop *loop, uint64_t timer)
{
    loop_assert_owner(loop);
    timers_cancel(&loop->timers, timer);
}

bool loop_reserve_timers(struct rpc_loop *loop, uint32_t count) { return timers_reserve(&loop->timers, count); }
void loop_release_timers(struct rpc_loop *loop, uint32_t count) { timers_release(&loop->timers, count); }

uint64_t loop_reserved_timer(struct rpc_loop *loop, uint64_t delay_us, void (*fn)(void *arg), void *arg)
{
    loop_assert_owner(loop);
    return timers_add(&loop->timers, clock_now_us() + delay_us, true, fn, arg);
}

// Those that are due now; what they set anew with no delay waits for the next round.
static uint32_t fire_timers(struct rpc_loop *loop)
{
    void (*fn)(void *arg);
    uint32_t fired = 0;
    void *arg;

    if (timers_next_us(&loop->timers) == UINT64_MAX)
        return 0;
    uint64_t now_us = clock_now_us();
    for (; fired < BATCH && timers_take(&loop->timers, now_us, &fn, &arg); fired++)
        fn(arg);
    return fired;
}

// --- sources ---

void loop_add_source(struct rpc_loop *loop, struct loop_source *source)
{
    source->next = loop->sources;
    loop->sources = source;
}

// Takes the first object out of the source's entries in [count] slots; the frames stay and are freed in their turn. NULL: there is none.
static void *forget_one(struct loop_entry *entries, uint32_t head, uint32_t count, uint32_t mask, struct loop_source *source)
{
    for (uint32_t i = 0; i < count; i++) {
        struct loop_entry *entry = &entries[(head + i) & mask];
        if (entry->source != source)
            continue;
        void *object = entry->object;
        entry->source = NULL;
        entry->object = NULL;
        if (object)
            return object;
    }
    return NULL;
}

void loop_remove_source(struct rpc_loop *loop, struct loop_source *source)
{
    struct loop_source **at = &loop->sources;
    void *object;

    while (*at && *at != source)
        at = &(*at)->next;
    if (*at)
        *at = source->next;
    do {
        pthread_mutex_lock(&loop->lock);
        object = forget_one(loop->ring, loop->head, loop->count, loop->capacity - 1, source);
        pthread_mutex_unlock(&loop->lock);
        if (object)
            source->drop(source, object);
    } while (object);
    while ((object = forget_one(loop->batch, 0, BATCH, BATCH - 1, source)))
        source->drop(source, object);
}

static bool is_full(const struct rpc_loop *loop, uint32_t part)
{
    return loop->count >= RING_MESSAGES_MAX / part || loop->bytes >= RING_BYTES_MAX / part;
}

bool loop_is_full(struct rpc_loop *loop, bool *stalled)
{
    bool full;
    pthread_mutex_lock(&loop->lock);
    full = is_full(loop, 1);
    *stalled = full;
    loop->stalled |= full;
    pthread_mutex_unlock(&loop->lock);
    return full;
}

bool loop_was_stalled(struct rpc_loop *loop, bool *stalled)
{
    bool was;
    pthread_mutex_lock(&loop->lock);
    was = *stalled;
    *stalled = false;
    pthread_mutex_unlock(&loop->lock);
    return was;
}

// Those that found the queue full go on. It was not empty then, so this is called again after they stalled.
static void restart_stalled(struct rpc_loop *loop)
{
    bool restart;
    pthread_mutex_lock(&loop->lock);
    restart = loop->stalled && !is_full(loop, 2);
    if (restart)
        loop->stalled = false;
    pthread_mutex_unlock(&loop->lock);
    for (struct loop_source *source = loop->sources; restart && source; source = source->next)
        source->on_room(source);
}

// --- running ---

static void handle(struct loop_entry *entry)
{
    struct loop_entry now = *entry;

    *entry = (struct loop_entry){0}; // it has been handled, if its source is removed meanwhile
    if (now.fn)
        now.fn(now.arg);
    else if (now.source)
        now.source->on_entry(now.source, &now);
    else
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

bool loop_watch(struct rpc_loop *loop, struct pollee *pollee)
{
    if (loop->pollee_count + 2 > loop->polled_capacity) {
        struct pollfd *grown = realloc(loop->polled, loop->polled_capacity * 2u * sizeof *grown);
        if (!grown)
            return false;
        loop->polled = grown;
        loop->polled_capacity *= 2;
    }
    loop->pollee_count++;
    pollee->ready = 0;
    pollee->next = loop->pollees;
    pollee->place = &loop->pollees;
    if (pollee->next)
        pollee->next->place = &pollee->next;
    loop->pollees = pollee;
    return true;
}

void loop_unwatch(struct rpc_loop *loop, struct pollee *pollee)
{
    *pollee->place = pollee->next;
    if (pollee->next)
        pollee->next->place = pollee->place;
    loop->pollee_count--;
}

void loop_defer(struct rpc_loop *loop, struct deferred *deferred)
{
    if (deferred->waiting)
        return;
    deferred->waiting = true;
    deferred->next = loop->deferred;
    loop->deferred = deferred;
}

void loop_forget_deferred(struct rpc_loop *loop, struct deferred *deferred)
{
    struct deferred **at = &loop->deferred;

    while (deferred->waiting && *at && *at != deferred)
        at = &(*at)->next;
    if (deferred->waiting && *at)
        *at = deferred->next;
    deferred->waiting = false;
}

static void run_deferred(struct rpc_loop *loop)
{
    while (loop->deferred) {
        struct deferred *deferred = loop->deferred;
        loop->deferred = deferred->next;
        deferred->waiting = false;
        deferred->run(deferred);
    }
}

// Waits for the descriptors, and calls those that are ready. Returns their number.
static uint32_t poll_all(struct rpc_loop *loop, const struct timespec *limit)
{
    uint32_t count = 1, handled = 0;
    uint64_t value;

    loop->polled[0] = (struct pollfd){.fd = loop->event_fd, .events = POLLIN};
    for (struct pollee *pollee = loop->pollees; pollee; pollee = pollee->next)
        loop->polled[count++] = (struct pollfd){.fd = pollee->fd, .events = pollee->events};
    if (ppoll(loop->polled, count, limit, NULL) <= 0)
        return 0;
    if (loop->polled[0].revents && read(loop->event_fd, &value, sizeof value) < 0) {
        // another took it: nobody does
    }
    count = 1;
    for (struct pollee *pollee = loop->pollees; pollee; pollee = pollee->next)
        pollee->ready = loop->polled[count++].revents;
    for (struct pollee *pollee = loop->pollees; pollee;) {
        short ready = pollee->ready;
        pollee->ready = 0;
        if (ready) {
            pollee->on_ready(pollee, ready);
            handled++;
        }
        pollee = ready ? loop->pollees : pollee->next; // it, or any other, may have ended
    }
    return handled;
}

static uint32_t park(struct rpc_loop *loop, uint64_t timeout_us)
{
    const struct timespec limit = {(time_t)(timeout_us / 1000000), (long)(timeout_us % 1000000) * 1000}, none = {0};
    uint32_t handled;
    bool idle;

    atomic_store_explicit(&loop->parked, true, memory_order_seq_cst); // see rpc_loop_wake
    idle = !atomic_load_explicit(&loop->pending, memory_order_seq_cst) && !atomic_load_explicit(&loop->woken, memory_order_seq_cst);
    handled = poll_all(loop, !idle ? &none : timeout_us == UINT64_MAX ? NULL : &limit);
    atomic_store_explicit(&loop->parked, false, memory_order_relaxed); // a late write to the eventfd is harmless
    return handled;
}

// Until something is there (true) or the time is over.
static bool spin(struct rpc_loop *loop, uint64_t spin_us, uint32_t *handled)
{
    static const struct timespec none;
    uint64_t began_us = clock_now_us();

    while (loop->may_spin && spin_us && clock_now_us() - began_us < spin_us) {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&loop->pending, memory_order_relaxed) || // the lock in ring_take orders the rest
                atomic_load_explicit(&loop->woken, memory_order_relaxed))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("isb");
#endif
        }
        *handled += loop->pollees ? poll_all(loop, &none) : 0;
        if (*handled || timers_next_us(&loop->timers) <= clock_now_us())
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
    run_deferred(loop); // what was sent since
    handled = fire_timers(loop) + handle_all(loop);
    if (handled || timeout_us == 0) {
        static const struct timespec none;
        handled += loop->pollees ? poll_all(loop, &none) : 0;
        run_deferred(loop);
        return handled;
    }
    if (!spin(loop, spin_us, &handled)) {
        uint64_t at_us = timers_next_us(&loop->timers);
        if (at_us != UINT64_MAX) {
            uint64_t now_us = clock_now_us();
            timeout_us = MIN(timeout_us, at_us > now_us ? at_us - now_us : 0);
        }
        handled += park(loop, timeout_us);
    }
    atomic_store_explicit(&loop->woken, false, memory_order_seq_cst); // what the waker wrote before is seen by the caller
    handled += fire_timers(loop) + handle_all(loop);
    run_deferred(loop);
    return handled;
}

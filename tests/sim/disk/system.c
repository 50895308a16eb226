// system.c: chance, time, memory, the log and the runner's thread, as the product has them.
#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <ucontext.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "services/gateway/http/work_pool.h"
#include "tests/sim/disk/disk.h"

struct sim sim;
struct disk_counts counts;

enum { STACK_BYTES = 1 << 20, LOOK_NS = 1000 };
#define MAGIC UINT64_C(0x5eedd15c5eedd15c)

struct block {
    uint64_t bytes, before; // from the start of what libc gave to the user's pointer
    uint64_t unused, magic; // ^ the user's pointer
};

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
enum status __real_work_pool_start(uint32_t thread_count, uint32_t capacity, bool yields, work_pool_fn *fn, void *arg,
                                   struct work_pool **out);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
pid_t __wrap_getpid(void);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags);
void __wrap_randombytes_buf(void *out, size_t bytes);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);
enum status __wrap_work_pool_start(uint32_t thread_count, uint32_t capacity, bool yields, work_pool_fn *fn, void *arg,
                                   struct work_pool **out);
void __wrap_log_write(enum log_level level, const char *id, const char *format, ...) PRINTF_LIKE(3, 4);

// --- the run

void sim_begin(uint64_t seed)
{
    const bool says = sim.says;

    sim = (struct sim){.random = seed * 2 + 1, .now_ns = UINT64_C(1000000000000), .says = says};
}

uint64_t sim_below(uint64_t limit) { return limit ? random_next(&sim.random) % limit : 0; }
bool sim_chance(uint32_t percent) { return sim_below(100) < percent; }

static void hash_in(uint64_t value) { sim.hash = (sim.hash ^ value) * UINT64_C(0x9e3779b97f4a7c15) ^ sim.hash >> 29; }

void sim_note(const char *what, uint64_t a, uint64_t b)
{
    uint64_t name = 0;

    for (const char *at = what; *at; at++)
        name = name * 131 + (unsigned char)*at;
    hash_in(name ^ sim.now_ns);
    hash_in(a);
    hash_in(b);
}

void sim_say(const char *format, ...)
{
    va_list arguments;

    if (!sim.says)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

void sim_fail(const char *format, ...)
{
    va_list arguments;

    if (sim.failure[0])
        return;
    va_start(arguments, format);
    vsnprintf(sim.failure, sizeof sim.failure, format, arguments);
    va_end(arguments);
    sim_say("FAILED: %s", sim.failure);
}

// --- memory

void *sim_alloc(size_t bytes)
{
    void *memory = __real_calloc(1, bytes);
    assert_always(memory);
    return memory;
}

void *sim_grow(void *memory, size_t bytes)
{
    void *grown = __real_realloc(memory, bytes);
    assert_always(grown);
    return grown;
}

void sim_free(void *memory) { __real_free(memory); }

static void *block_begin(void *base, size_t before, size_t bytes)
{
    if (!base)
        return NULL;
    struct block *block = (struct block *)(void *)((char *)base + before) - 1;
    *block = (struct block){.bytes = bytes, .before = before, .magic = MAGIC ^ (uintptr_t)(block + 1)};
    sim.blocks++;
    sim.bytes += bytes;
    return block + 1;
}

// Also of what libc's own functions gave: then this reads the bytes before, which are libc's.
__attribute__((no_sanitize("address"))) static struct block *block_of(void *memory)
{
    struct block *block = (struct block *)memory - 1;
    return ((uintptr_t)memory & 15) == 0 && block->magic == (MAGIC ^ (uintptr_t)memory) ? block : NULL;
}

void *__wrap_malloc(size_t bytes) { return block_begin(__real_malloc(sizeof(struct block) + bytes), sizeof(struct block), bytes); }

void *__wrap_calloc(size_t count, size_t bytes)
{
    size_t all;

    if (__builtin_mul_overflow(count, bytes, &all))
        return NULL;
    return block_begin(__real_calloc(1, sizeof(struct block) + all), sizeof(struct block), all);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    const size_t before = MAX(alignment, sizeof(struct block));
    void *base = NULL;

    if (posix_memalign(&base, alignment, before + bytes))
        return NULL;
    memset((char *)base + before, 0xa5, bytes);
    return block_begin(base, before, bytes);
}

void __wrap_free(void *memory)
{
    struct block *block = memory ? block_of(memory) : NULL;

    if (!block) {
        __real_free(memory);
        return;
    }
    block->magic = 0;
    sim.blocks--;
    sim.bytes -= block->bytes;
    __real_free((char *)memory - block->before);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    struct block *block = memory ? block_of(memory) : NULL;

    if (memory && !block)
        return __real_realloc(memory, bytes);
    void *moved = __wrap_malloc(bytes);
    if (!moved || !memory)
        return moved;
    memcpy(moved, memory, MIN(bytes, block->bytes));
    __wrap_free(memory);
    return moved;
}

// --- time, chance, the log

uint64_t real_now_ns(void)
{
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    sim.now_ns += LOOK_NS;
    const uint64_t at_ns = sim.now_ns + (clock == CLOCK_REALTIME ? UINT64_C(1700000000000000000) : 0);
    *out = (struct timespec){(time_t)(at_ns / 1000000000), (long)(at_ns % 1000000000)};
    return 0;
}

pid_t __wrap_getpid(void) { return 4242; }

void __wrap_randombytes_buf(void *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)out)[i] = (unsigned char)sim_below(256);
}

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags)
{
    (void)flags;
    __wrap_randombytes_buf(out, bytes);
    return (ssize_t)bytes;
}

void __wrap_log_write(enum log_level level, const char *id, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    if (!sim.says)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sim_say("      %s %s %s", level == LOG_ERROR ? "ERROR" : level == LOG_WARN ? "WARN" : "INFO", id, text);
}

// --- the runner's thread: a stack of its own, on which it goes on when it is let

static struct {
    bool there, inside, ended, late; // late: its time has come
    uint64_t until_ns;
    ucontext_t own, other;
    void *(*fn)(void *);
    void *arg;
    char stack[STACK_BYTES];
} thread;

static void thread_run(void)
{
    (void)thread.fn(thread.arg);
    thread.ended = true;
}

static void thread_go_on(void)
{
    thread.inside = true;
    assert_always(swapcontext(&thread.other, &thread.own) == 0);
    thread.inside = false;
}

bool thread_turn(bool time_passes)
{
    if (!thread.there || thread.ended)
        return false;
    thread.late = time_passes || sim.now_ns >= thread.until_ns;
    if (thread.late)
        sim.now_ns = MAX(sim.now_ns, thread.until_ns);
    thread_go_on();
    return true;
}

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg)
{
    (void)attributes;
    assert_always(!thread.there);
    thread.there = true;
    thread.ended = false;
    thread.until_ns = 0;
    thread.fn = fn;
    thread.arg = arg;
    *out = (pthread_t)1;
    assert_always(getcontext(&thread.own) == 0);
    thread.own.uc_stack.ss_sp = thread.stack;
    thread.own.uc_stack.ss_size = sizeof thread.stack;
    thread.own.uc_link = &thread.other;
    makecontext(&thread.own, thread_run, 0);
    return 0;
}

int __wrap_pthread_join(pthread_t joined, void **result)
{
    (void)joined, (void)result;
    for (uint32_t i = 0; !thread.ended; i++) {
        assert_always(i < 100); // it was told to end
        thread.late = false;
        thread_go_on();
    }
    thread.there = false;
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    (void)condition;
    assert_always(thread.inside);
    thread.until_ns = (uint64_t)until->tv_sec * 1000000000 + (uint64_t)until->tv_nsec;
    pthread_mutex_unlock(mutex);
    assert_always(swapcontext(&thread.own, &thread.other) == 0);
    pthread_mutex_lock(mutex);
    return thread.late ? ETIMEDOUT : 0;
}

// Whoever gives the pool work does it.
enum status __wrap_work_pool_start(uint32_t thread_count, uint32_t capacity, bool yields, work_pool_fn *fn, void *arg,
                                   struct work_pool **out)
{
    (void)thread_count;
    return __real_work_pool_start(0, capacity, yields, fn, arg, out);
}

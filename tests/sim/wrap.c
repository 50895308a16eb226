// wrap.c: what the services ask of the system, answered by the simulation; the linker puts these in the place of libc's (--wrap in the Makefile).
//
// Each block of memory belongs to the node whose code took it, so that a kill can drop it all, and what is left at a clean end is a leak.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "common/base/checked.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/rpc/rpc.h"
#include "tests/sim/check.h"
#include "tests/sim/sim.h"

enum { EVENT_FD = 1 << 20 };
#define MAGIC UINT64_C(0x5eedb10c5eedb10c)

struct block {
    struct block *next, **place;
    struct node *node;
    size_t bytes;
    uint64_t before; // from the start of what libc gave to the user's pointer
    uint64_t magic;  // ^ the user's pointer
};

struct mapping {
    struct mapping *next;
    void *at;
    size_t bytes;
};

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t bytes);
int __real_close(int fd);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
uint32_t __real_rpc_loop_run(struct rpc_loop *loop, uint64_t timeout_us, uint64_t spin_us);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_close(int fd);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit, const sigset_t *mask);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg);
uint32_t __wrap_rpc_loop_run(struct rpc_loop *loop, uint64_t timeout_us, uint64_t spin_us);
uint32_t __wrap_cpu_count_usable(void);
enum status __wrap_memory_plan_check(const struct memory_plan *plan, const char *parts, struct error *error);
void __wrap_log_write(enum log_level level, const char *id, const char *format, ...) PRINTF_LIKE(3, 4);

void *world_alloc(size_t bytes)
{
    void *memory = __real_calloc(1, bytes);
    assert_always(memory);
    return memory;
}

void world_free(void *memory) { __real_free(memory); }

// --- memory

static bool fails(void)
{
    struct node *node = world.current;

    if (!node || !node->memory.fails_in || --node->memory.fails_in)
        return false;
    world_note("no memory", node->index, 0);
    errno = ENOMEM;
    return true;
}

static struct block *block_of(const void *memory) { return (struct block *)(uintptr_t)memory - 1; }

// Also of what libc's own functions gave: then this reads the bytes before, which are libc's.
__attribute__((no_sanitize("address"))) static bool is_ours(const void *memory)
{
    return ((uintptr_t)memory & 15) == 0 && block_of(memory)->magic == (MAGIC ^ (uintptr_t)memory);
}

static void *block_begin(void *base, size_t before, size_t bytes)
{
    struct node *node = world.current;
    void *memory = (char *)base + before;
    struct block *block = block_of(memory);

    *block = (struct block){.node = node, .bytes = bytes, .before = before, .magic = MAGIC ^ (uintptr_t)memory};
    if (!node)
        return memory;
    block->next = node->memory.blocks;
    block->place = &node->memory.blocks;
    if (block->next)
        block->next->place = &block->next;
    node->memory.blocks = block;
    node->memory.count++;
    node->memory.bytes += bytes;
    return memory;
}

static void block_end(struct block *block)
{
    struct node *node = block->node;

    block->magic = 0;
    if (!node)
        return;
    *block->place = block->next;
    if (block->next)
        block->next->place = block->place;
    node->memory.count--;
    node->memory.bytes -= block->bytes;
}

void *__wrap_malloc(size_t bytes)
{
    void *base = fails() ? NULL : __real_malloc(sizeof(struct block) + bytes);
    return base ? block_begin(base, sizeof(struct block), bytes) : NULL;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    size_t all;
    void *base = __builtin_mul_overflow(count, bytes, &all) || fails() ? NULL : __real_calloc(1, sizeof(struct block) + all);
    return base ? block_begin(base, sizeof(struct block), all) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    const size_t before = MAX(alignment, sizeof(struct block) + alignment - sizeof(struct block) % alignment);
    void *base = fails() ? NULL : __real_aligned_alloc(alignment, (before + bytes + alignment - 1) / alignment * alignment);
    return base ? block_begin(base, before, bytes) : NULL;
}

void __wrap_free(void *memory)
{
    if (!memory || !is_ours(memory)) {
        __real_free(memory);
        return;
    }
    struct block *block = block_of(memory);
    void *base = (char *)memory - block->before;
    block_end(block);
    __real_free(base);
}

// Always elsewhere, so that a pointer that is kept is noticed under AddressSanitizer.
void *__wrap_realloc(void *memory, size_t bytes)
{
    if (memory && !is_ours(memory))
        return __real_realloc(memory, bytes);
    void *moved = __wrap_malloc(bytes);
    if (!moved || !memory)
        return moved;
    memcpy(moved, memory, MIN(bytes, block_of(memory)->bytes));
    __wrap_free(memory);
    return moved;
}

// Huge pages would be filled with zeros for the few that are used.
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *mapped = fails() ? MAP_FAILED : __real_mmap(at, bytes, protection, flags & ~MAP_POPULATE, fd, offset);

    if (mapped == MAP_FAILED || !world.current)
        return mapped;
    struct mapping *mapping = world_alloc(sizeof *mapping);
    *mapping = (struct mapping){world.current->memory.mappings, mapped, bytes};
    world.current->memory.mappings = mapping;
    return mapped;
}

int __wrap_munmap(void *at, size_t bytes)
{
    for (struct mapping **m = world.current ? &world.current->memory.mappings : NULL; m && *m; m = &(*m)->next)
        if ((*m)->at == at) {
            struct mapping *mapping = *m;
            *m = mapping->next;
            world_free(mapping);
            break;
        }
    return __real_munmap(at, bytes);
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    (void)at, (void)bytes, (void)advice;
    return 0;
}

void memory_drop(struct node *node)
{
    while (node->memory.blocks) {
        struct block *block = node->memory.blocks;
        void *base = (char *)(block + 1) - block->before;
        block_end(block);
        __real_free(base);
    }
    while (node->memory.mappings) {
        struct mapping *mapping = node->memory.mappings;
        node->memory.mappings = mapping->next;
        __real_munmap(mapping->at, mapping->bytes);
        world_free(mapping);
    }
    node->memory = (struct node_memory){0};
}

// --- time and chance

uint64_t real_now_ns(clockid_t clock)
{
    struct timespec now;
    __real_clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * S_NS + (uint64_t)now.tv_nsec;
}

enum { LOOK_NS = 200 }; // looking at the clock takes time: no two times are the same

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    struct node *node = world.current;
    uint64_t at_ns = node ? node->now_ns += LOOK_NS : world.now_ns;

    if (clock == CLOCK_REALTIME)
        at_ns += (uint64_t)((int64_t)(UINT64_C(1700000000) * S_NS) + (node ? node->wall_ns : 0));
    *out = (struct timespec){(time_t)(at_ns / S_NS), (long)(at_ns % S_NS)};
    return 0;
}

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)out)[i] = (unsigned char)world_below(256);
    return (ssize_t)bytes;
}

// --- threads and descriptors: there are none

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg)
{
    (void)thread, (void)attributes, (void)fn, (void)arg;
    return EAGAIN;
}

int __wrap_eventfd(unsigned value, int flags)
{
    (void)value, (void)flags;
    return EVENT_FD;
}

int __wrap_close(int fd) { return fd == EVENT_FD ? 0 : __real_close(fd); }

// A loop has nothing to do until `limit` has passed: it says when its node's next turn is.
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit, const sigset_t *mask)
{
    struct node *node = world.current;
    const uint64_t wait_ns = limit ? (uint64_t)limit->tv_sec * S_NS + (uint64_t)limit->tv_nsec : S_NS;

    (void)mask;
    for (nfds_t i = 0; i < count; i++)
        fds[i].revents = 0;
    assert_always(node);
    node->parked++;
    node->wake_ns = MIN(node->wake_ns, node->now_ns + wait_ns);
    return 0;
}

uint32_t __wrap_rpc_loop_run(struct rpc_loop *loop, uint64_t timeout_us, uint64_t spin_us)
{
    const uint32_t handled = __real_rpc_loop_run(loop, timeout_us, spin_us);

    if (world.current)
        world.current->handled |= handled > 0;
    return handled;
}

uint32_t __wrap_cpu_count_usable(void) { return 1; }

enum status __wrap_memory_plan_check(const struct memory_plan *plan, const char *parts, struct error *error)
{
    (void)plan, (void)parts, (void)error;
    return STATUS_OK;
}

void __wrap_log_write(enum log_level level, const char *id, const char *format, ...)
{
    char text[1024];
    va_list arguments;

    if (!world.says && level < LOG_WARN)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    check_log(id, text);
    world_say("%s %s %s", level == LOG_ERROR ? "ERROR" : level == LOG_WARN ? "WARN" : "INFO", id, text);
}

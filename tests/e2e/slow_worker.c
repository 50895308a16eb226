/* slow_worker.c: a kv-worker, or an s-part, that tests slow down. The service's own objects, linked with --wrap.
 *
 * SIGUSR2: from now on, until the next one, it takes PAGE_MS for each page that it gives away, so that a hand-over lasts and a test
 * can have something fail in its midst.
 *
 * FD_SLOW_READ_MBS=N: attention takes as long as on a host that reads N MB of K and V a second; what is left when it has been
 * computed is slept. So several workers on one core take what each would on a host of its own, and the times that they report for
 * each call are that host's (not their busy seconds). SIGUSR1: half that speed, until the next one.
 *
 * FD_SLOW_LAYER_US=N: attention of a layer takes at least that long, so that streams last, on whatever machine, while something happens
 * to them.
 *
 * SIGWINCH: attention hangs, until the next one; all other threads go on. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "kernels/kv/kv_store.h"

enum { PAGE_MS = 200, BATCHES = 64 };

static atomic_bool slow_pages, half_speed, hangs; /* whichever thread takes the signal */
static double read_mbs;                           /* 0: as fast as it can */
static uint64_t layer_ns;                         /* least time of attention; 0: none */
static struct opened {
    const struct kv_batch *batch;
    const struct kv_store *store;
} opened[BATCHES]; /* the thread that attends, alone, opens batches */

static void on_signal(int number)
{
    atomic_bool *which = number == SIGUSR1 ? &half_speed : number == SIGUSR2 ? &slow_pages : &hangs;
    atomic_store(which, !atomic_load(which));
}

__attribute__((constructor)) static void prepare(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    const char *text = getenv("FD_SLOW_READ_MBS"), *layer_us = getenv("FD_SLOW_LAYER_US");
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    sigaction(SIGWINCH, &action, NULL);
    read_mbs = text ? strtod(text, NULL) : 0;
    layer_ns = layer_us ? (uint64_t)(1e3 * strtod(layer_us, NULL)) : 0;
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
}

enum status __real_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions);
enum status __wrap_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions);
enum status __real_kv_batch_open(struct kv_store *store, struct kv_batch **out);
enum status __wrap_kv_batch_open(struct kv_store *store, struct kv_batch **out);
void __real_kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k,
                            const float *const *v, float *const *o);
void __wrap_kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k,
                            const float *const *v, float *const *o);
bool __real_kv_batch_can_join(const struct kv_batch *batch);
bool __wrap_kv_batch_can_join(const struct kv_batch *batch);

enum status __wrap_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions)
{
    const struct timespec pause = {.tv_nsec = PAGE_MS * 1000000L};
    if (atomic_load(&slow_pages))
        nanosleep(&pause, NULL);
    return __real_kv_store_export_page(store, sequence, page_index, out, positions);
}

enum status __wrap_kv_batch_open(struct kv_store *store, struct kv_batch **out)
{
    enum status status = __real_kv_batch_open(store, out);
    uint32_t i = 0;
    if (status)
        return status;
    while (opened[i].batch && opened[i].batch != *out) { /* one that was closed may have lain here */
        i++;
        assert_always(i < BATCHES);
    }
    opened[i] = (struct opened){*out, store};
    return STATUS_OK;
}

static uint64_t bytes_read(const struct kv_batch *batch)
{
    struct kv_stats stats = {0};
    uint32_t i = 0;
    while (opened[i].batch != batch) {
        i++;
        assert_always(i < BATCHES);
    }
    kv_store_stats(opened[i].store, &stats);
    return stats.bytes_read;
}

static bool is_slowed(void) { return read_mbs > 0 || layer_ns || atomic_load(&hangs); }

/* A slowed batch is attended by itself, not within a job of the products. */
bool __wrap_kv_batch_can_join(const struct kv_batch *batch) { return !is_slowed() && __real_kv_batch_can_join(batch); }

void __wrap_kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k,
                            const float *const *v, float *const *o)
{
    const struct timespec moment = {.tv_nsec = 10000000};
    while (atomic_load(&hangs))
        nanosleep(&moment, NULL);
    if (!is_slowed()) {
        __real_kv_batch_attend(batch, layer, q, k, v, o);
        return;
    }
    uint64_t began_ns = clock_now_ns(), before = bytes_read(batch);
    __real_kv_batch_attend(batch, layer, q, k, v, o);
    double bytes = (double)(bytes_read(batch) - before), mbs = read_mbs / (atomic_load(&half_speed) ? 2 : 1);
    uint64_t due_ns = began_ns + MAX(layer_ns, read_mbs > 0 ? (uint64_t)(1e3 * bytes / mbs) : 0);
    const struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000u), .tv_nsec = (long)(due_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
        ;
}

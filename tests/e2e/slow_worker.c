/* slow_worker.c: a kv-worker that a test can make slow. SIGUSR1: its attention takes twice as long; SIGUSR2: it gives away a page
 * in PAGE_MS, so that a hand-over lasts. The same signal again ends it.
 *
 * Linked with the worker's own objects and --wrap of what is slow. After each attention it sleeps for as long as that took: on shared
 * cores a slow worker must not take from the others what it does not use itself. Sleeps that last too long are made up for by shorter
 * ones, so over a few calls it is half as fast, no less.
 */
#include <signal.h>
#include <sys/prctl.h>

#include "common/base/clock.h"
#include "common/kv/kv_store.h"

enum { PAGE_MS = 30 };

static volatile sig_atomic_t attends_slowly, gives_slowly;

static void on_signal(int number)
{
    if (number == SIGUSR1)
        attends_slowly = !attends_slowly;
    else
        gives_slowly = !gives_slowly;
}

__attribute__((constructor)) static void listen_to_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
}

static void rest(int64_t ns)
{
    const struct timespec pause = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    prctl(PR_SET_TIMERSLACK, 1ul);
    nanosleep(&pause, NULL);
}

void __real_kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k,
                            const float *const *v, float *const *o);
void __wrap_kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k,
                            const float *const *v, float *const *o);

void __wrap_kv_batch_attend(struct kv_batch *batch, uint32_t layer, const float *const *q, const float *const *k,
                            const float *const *v, float *const *o)
{
    static int64_t owed_ns; /* the tensor thread's */
    uint64_t began_ns = clock_now_ns();

    __real_kv_batch_attend(batch, layer, q, k, v, o);
    if (!attends_slowly)
        return;
    uint64_t ended_ns = clock_now_ns();
    owed_ns += (int64_t)(ended_ns - began_ns);
    if (owed_ns <= 0)
        return;
    rest(owed_ns);
    owed_ns -= (int64_t)(clock_now_ns() - ended_ns);
}

enum status __real_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions);
enum status __wrap_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions);

enum status __wrap_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions)
{
    if (gives_slowly)
        rest(PAGE_MS * INT64_C(1000000));
    return __real_kv_store_export_page(store, sequence, page_index, out, positions);
}

/* slow_worker.c: a kv-worker that takes PAGE_MS for each page that it gives away, from SIGUSR2 on until the next one: a hand-over
 * lasts then, and a test can have something fail in its midst. The worker's own objects, linked with --wrap. */
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "common/kv/kv_store.h"

enum { PAGE_MS = 30 };

static atomic_bool slow; /* whichever thread takes the signal */

static void on_signal(int number)
{
    (void)number;
    atomic_store(&slow, !atomic_load(&slow));
}

__attribute__((constructor)) static void listen_to_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
}

enum status __real_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions);
enum status __wrap_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions);

enum status __wrap_kv_store_export_page(const struct kv_store *store, uint64_t sequence, uint32_t page_index, void *out,
                                        uint32_t *positions)
{
    const struct timespec pause = {.tv_nsec = PAGE_MS * 1000000L};
    if (atomic_load(&slow))
        nanosleep(&pause, NULL);
    return __real_kv_store_export_page(store, sequence, page_index, out, positions);
}

/* moving_scheduler.c: a scheduler that tests tell to empty the s-part's local pool. Its own objects, linked with --wrap.
 *
 * SIGUSR1: the local pool is to be emptied: its sequences move to workers that have room, pages and all. SIGUSR2: it takes sequences
 * again. Nothing of the mesh asks for that yet other than by and by, when it pays; a test wants it now. */
#include <signal.h>
#include <stdatomic.h>

#include "services/scheduler/scheduler.h"

static atomic_bool asked_to_empty, asked_to_fill;

static void on_signal(int number) { atomic_store(number == SIGUSR1 ? &asked_to_empty : &asked_to_fill, true); }

__attribute__((constructor)) static void prepare(void)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
}

void __real_scheduler_tick(struct scheduler *scheduler);
void __wrap_scheduler_tick(struct scheduler *scheduler);

void __wrap_scheduler_tick(struct scheduler *scheduler)
{
    const struct place *pool = scheduler->s_part.member.place;
    const bool up = scheduler->core.sched && scheduler->s_part.member.up;
    const struct sched_event empty = {.kind = SCHED_PLACE_DRAIN, .place = pool->index};
    const struct sched_event fill = {.kind = SCHED_PLACE_UP,
                                     .place_up = {.place = pool->index,
                                                  .pages_total = (uint32_t)pool->pages_total,
                                                  .bytes_per_second = (uint64_t)pool->bytes_per_second,
                                                  .kind = SCHED_LOCAL_POOL,
                                                  .accepts_moves = pool->hands_over}};
    if (up && atomic_exchange(&asked_to_empty, false))
        events_add(&scheduler->events, &empty);
    if (up && atomic_exchange(&asked_to_fill, false))
        events_add(&scheduler->events, &fill);
    __real_scheduler_tick(scheduler);
}

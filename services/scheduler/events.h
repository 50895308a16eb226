// events.h: the events that wait for the core's next tick.
//
// Handlers and ends of calls add them; the tick takes them (core.c). A turn of the loop may bring more than there is room for, for
// instance when a place answers that thousands of sequences are free: then a tick runs at once, within events_add(). While a tick runs
// it carries out actions, each of which may add one event, so the queue has room for those as well.
#ifndef FD_SERVICES_SCHEDULER_EVENTS_H
#define FD_SERVICES_SCHEDULER_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/checked.h"
#include "common/sched/sched.h"

enum {
    EVENTS_MAX = 4096, // between two ticks; one round of a tick has up to EVENTS_MAX actions
    EVENTS_ROOM = 2 * EVENTS_MAX,
    ACTIONS_MAX = EVENTS_ROOM + SCHED_ACTIONS_SPARE,
};

struct events {
    struct sched_event of[EVENTS_ROOM];
    uint32_t count;           // at most EVENTS_MAX, but while `ticking`
    bool ticking;             // actions are being carried out: no other tick begins
    void (*tick)(void *user); // empties the queue. Those it calls add events themselves, so only this pointer leads back
    void *user;
};

// Runs a tick now, so that the core knows all that was added. Not within a tick.
static inline void events_flush(struct events *events) { events->tick(events->user); }

// Queues an event for the next tick.
static inline void events_add(struct events *events, const struct sched_event *event)
{
    if (events->count >= EVENTS_MAX && !events->ticking)
        events_flush(events);
    assert_always(events->count < EVENTS_ROOM);
    events->of[events->count++] = *event;
}

#endif

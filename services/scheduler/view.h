// view.h: what view.c keeps of the latest steps and events, so that people who watch the mesh see more than the moment they ask in.
//
// Rings of fixed size: writing one entry is a few stores, and nothing is allocated until somebody asks.
#ifndef FD_SERVICES_SCHEDULER_VIEW_H
#define FD_SERVICES_SCHEDULER_VIEW_H

#include <stdint.h>

#include "common/rpc/rpc.h"
#include "view.pb-c.h"

struct flight;
struct scheduler;

enum { VIEW_STEPS = 64, VIEW_EVENTS = 64, VIEW_STEP_PLACES = 16, VIEW_NAME_BYTES = 64, VIEW_WHY_BYTES = 256 };

// Entries are kept as they are said; each has the memory that its message points to.
struct view_step {
    Fastdecode__StepView said;
    Fastdecode__PlaceTime places[VIEW_STEP_PLACES], *pointers[VIEW_STEP_PLACES];
};

struct view_event {
    Fastdecode__EventView said;
    char name[VIEW_NAME_BYTES], why[VIEW_WHY_BYTES];
};

// Entry i of a ring is number i modulo its size; *_count counts all that there ever were.
struct view {
    struct view_step steps[VIEW_STEPS];
    struct view_event events[VIEW_EVENTS];
    uint64_t step_count, event_count;
};

void view_handler(struct rpc_call *call, void *user);
// Notes that something happened to a member. why: "" if there is nothing to say.
void view_note(struct view *view, Fastdecode__EventKind kind, const char *name, const char *why);
// Notes an answered step: its flight has the runs, the reply and the places' times.
void view_note_step(struct scheduler *scheduler, const struct flight *flight);

#endif

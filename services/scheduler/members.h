// members.h: which members are there, which are dead, which leave. See members.c.
#ifndef FD_SERVICES_SCHEDULER_MEMBERS_H
#define FD_SERVICES_SCHEDULER_MEMBERS_H

#include "services/scheduler/member.h"

enum {
    CHECK_EVERY_US = 50000,   // between two checks for silent members
    LOSS_EVERY_US = 1000000,  // losses closer together than this count as one
    LOSSES_MAX = 4,           // a place that loses all its rows this many times in a row is declared down ...
    LOSSES_BAR_US = 60000000, // ... and not accepted again for this long
    REACH_FIRST_US = 100000,  // between two questions to the s-part whether it reaches a place that it did not reach ...
    REACH_MOST_US = 2000000,  // ... which is doubled each time, up to this
};

void members_heartbeat_handler(struct rpc_call *call, void *user);
void members_drain_handler(struct rpc_call *call, void *user);
// Connects to the member, and tells the core of it once it is reached and clean. As rpc_channel_open().
enum status members_connect(struct member *member, struct error *error) MUST_CHECK;
void members_disconnect(struct member *member);
void members_down(struct member *member, const char *why);
// Ends the pipeline's term, because a stage does not take steps of it: the s-part is down, and its stages are put together again.
void members_part_stages(struct scheduler *scheduler, const char *why);
// Returns whether the member is not registered and has been silent for as long as a dead one.
bool members_is_gone(const struct member *member);
// Frees what the member holds and nobody needs, then tells the core that it is up. Stages of a pipeline join first. Does nothing before it
// is registered and reached.
void members_clean_then_up(struct member *member);
// Finds members that are silent or hang. Call it at least every CHECK_EVERY_US; time in which this process was stopped does not
// count against them.
void members_check(struct scheduler *scheduler, uint64_t now_us);
// Records that a step was answered; lost: all its rows at the place were lost.
void members_answered(struct scheduler *scheduler, uint32_t place, bool lost);
// Returns a worker whose tensors the s-part does not reach; NULL: there is none.
const struct member *members_unreachable(const struct scheduler *scheduler);
void members_close(struct scheduler *scheduler);

#endif

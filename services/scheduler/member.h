// member.h: a member is a process that registers: an s-part, with all layers or a part of them, or a KV worker.
//
// The owner of its life is members.c. Registering fills in what it says of itself (registration.c).
#ifndef FD_SERVICES_SCHEDULER_MEMBER_H
#define FD_SERVICES_SCHEDULER_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster.pb-c.h"
#include "common/rpc/rpc.h"

struct place;
struct scheduler;

enum { NAME_BYTES = 64, ADDRESS_BYTES = 128 };

// Counts of a process since its start, from its heartbeats.
struct member_counts {
    uint64_t busy_us, kv_bytes_read, streamed_bytes, streamed_segments, spans_exported, spans_dropped, log_lines_lost;
};

struct member {
    struct scheduler *scheduler;
    struct place *place; // the place with its pages; all stages of an s-part have the local pool
    char name[NAME_BYTES];
    uint64_t incarnation;
    char control_address[ADDRESS_BYTES], tensor_address[ADDRESS_BYTES];
    struct rpc_channel *channel; // NULL: it never registered, or was given up; one that comes back registers again
    bool registered;             // it has registered and is not known to be dead
    bool cleaning;               // pages that nobody needs are being freed there; it comes up after that
    bool up;                     // the core has been told that it is up; only while `registered`
    uint64_t steps_begun;        // of a worker, when it listed what it holds for its latest registration
    uint32_t clean_id;           // grows with each cleaning; answers to calls of an earlier one are ignored
    uint32_t stay;               // grows each time it comes up; answers to calls from before that are ignored
    uint64_t lost;               // how often it went down without having been drained
    uint64_t heard_us;           // of its latest registration or heartbeat, moved by the time for which this process was stopped
    uint64_t turned_us;          // when compute_turns last changed in its heartbeats, likewise
    Fastdecode__HeartbeatRequest last; // only its numbers are valid
};

static inline void counts_add(struct member_counts *counts, const struct member_counts *more)
{
    counts->busy_us += more->busy_us;
    counts->kv_bytes_read += more->kv_bytes_read;
    counts->streamed_bytes += more->streamed_bytes;
    counts->streamed_segments += more->streamed_segments;
    counts->spans_exported += more->spans_exported;
    counts->spans_dropped += more->spans_dropped;
    counts->log_lines_lost += more->log_lines_lost;
}

static inline struct member_counts member_counts_of(const struct member *member)
{
    return (struct member_counts){.busy_us = member->last.busy_us,
                                  .kv_bytes_read = member->last.kv_bytes_read,
                                  .streamed_bytes = member->last.streamed_bytes,
                                  .streamed_segments = member->last.streamed_segments,
                                  .spans_exported = member->last.spans_exported,
                                  .spans_dropped = member->last.spans_dropped,
                                  .log_lines_lost = member->last.log_lines_lost};
}

#endif

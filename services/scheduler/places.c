/* places.c: what the core asks of the places: freeing, moving, draining; calls to the s-part and the KV workers. */
#include <stdlib.h>

#include "attend.pb-c.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/scheduler/scheduler.h"

/* PAGE_TIMEOUT_MS: on top, for each page that travels. Who takes them gives up by itself when one does not come (common/handover). */
enum { CONTROL_TIMEOUT_MS = 10000, PAGE_TIMEOUT_MS = 1000, PAGES_TIMED = 3600, RELEASE_AGAIN_US = 5000 };

typedef void end_fn(void *user, enum status status, const char *error); /* on_end of a call */

/* What an answer is about. */
struct errand {
    struct scheduler *scheduler;
    uint64_t sequence;
    uint32_t place;       /* where it is to be freed; of a move: at first, where it comes from */
    uint64_t incarnation; /* of the member there, when the errand began */
    bool goes_on;         /* only pages are freed: the sequence is elsewhere */
    end_fn *freed;
    struct sched_move move;
    uint64_t began_us;
    struct member *member;
    void (*done)(struct member *member);
};

static struct errand *new_errand(struct scheduler *scheduler, uint64_t sequence, uint32_t place)
{
    struct errand *errand = calloc(1, sizeof *errand);
    assert_always(errand); /* a hundred bytes */
    errand->scheduler = scheduler;
    errand->sequence = sequence;
    errand->place = place;
    errand->incarnation = scheduler->members[place].incarnation;
    return errand;
}

static const struct rpc_options options = {.timeout_ms = CONTROL_TIMEOUT_MS};

/* Asks the s-part to end its part of sequences: samplers and pages of the local pool, or one of the two. False: it cannot be asked. */
static bool ask_release(struct scheduler *scheduler, const uint64_t *sequences, size_t count, bool keep_pages, bool keep_sampler,
                        end_fn *on_end, struct errand *errand)
{
    const struct rpc_callbacks callbacks = {.on_end = on_end};
    Fastdecode__ReleaseRequest request = FASTDECODE__RELEASE_REQUEST__INIT;
    struct rpc_channel *channel = scheduler->members[0].channel;
    struct error error;

    request.n_sequence = count;
    request.sequence = (uint64_t *)sequences;
    request.keep_pages = keep_pages;
    request.keep_sampler = keep_sampler;
    return channel && !rpc_call_start(channel, &fastdecode__spart__descriptor, "Release", &request.base, &options, &callbacks,
                                      errand, NULL, &error);
}

/* Asks a place to free sequences. goes_on: only their pages, where more is known of them. False: it cannot be asked. */
static bool ask_free(struct scheduler *scheduler, uint32_t place, const uint64_t *sequences, size_t count, bool goes_on,
                     end_fn *on_end, struct errand *errand)
{
    const struct rpc_callbacks callbacks = {.on_end = on_end};
    struct rpc_channel *channel = scheduler->members[place].channel;
    struct error error;

    if (place == 0)
        return ask_release(scheduler, sequences, count, false, goes_on, on_end, errand);
    if (!channel)
        return false;
    Fastdecode__FreeRequest request = FASTDECODE__FREE_REQUEST__INIT;
    request.scheduler_incarnation = scheduler->incarnation;
    request.n_sequence = count;
    request.sequence = (uint64_t *)sequences;
    return !rpc_call_start(channel, &fastdecode__kv_control__descriptor, "Free", &request.base, &options, &callbacks, errand, NULL,
                           &error);
}

static void on_released(void *user, enum status status, const char *text)
{
    struct errand *errand = user;
    const struct sched_event event = {.kind = SCHED_RELEASED, .released = {errand->sequence, errand->place}};

    if (status && status != STATUS_UNAVAILABLE && status != STATUS_CANCELLED)
        log_warn("RELEASE-FAILED", "sequence=%llx place=%u why=\"%s\"", (unsigned long long)errand->sequence, errand->place, text);
    scheduler_event(errand->scheduler, &event); /* also when it failed: the place is down then, or will be */
    free(errand);
}

static void ignore_end(void *user, enum status status, const char *text)
{
    (void)status, (void)text;
    free(user);
}

/* Where more calls are out than its window takes, again in a moment: what is said to be free must be free there, or who comes next
 * finds the place full. Who is gone says what it holds when it registers again. */
static void send_free(void *arg)
{
    struct errand *errand = arg;
    const struct member *member = &errand->scheduler->members[errand->place];

    if (member->incarnation != errand->incarnation || !member->channel || !rpc_channel_is_up(member->channel))
        errand->freed(errand, STATUS_UNAVAILABLE, "");
    else if (!ask_free(errand->scheduler, errand->place, &errand->sequence, 1, errand->goes_on, errand->freed, errand))
        rpc_loop_timer(errand->scheduler->loop, RELEASE_AGAIN_US, send_free, errand);
}

/* Has the errand's place free its sequence: freed(errand, …) when it has, with UNAVAILABLE if the place is gone. */
static void free_there(struct errand *errand, bool goes_on, end_fn *freed)
{
    errand->goes_on = goes_on;
    errand->freed = freed;
    send_free(errand);
}

void place_release(struct scheduler *scheduler, uint64_t sequence, uint32_t place, bool forget)
{
    if (forget && place != 0 && scheduler->forget_count < ACTIONS_MAX) /* its sampler too */
        scheduler->forget[scheduler->forget_count++] = sequence;
    if (place == SCHED_NO_PLACE)
        return;
    free_there(new_errand(scheduler, sequence, place), false, on_released);
}

/* One that cannot be asked is gone, or has a window full of calls: then those that come next are told together. */
void place_forget(struct scheduler *scheduler)
{
    const struct rpc_channel *channel = scheduler->members[0].channel;

    if (!scheduler->forget_count)
        return;
    struct errand *errand = new_errand(scheduler, 0, 0);
    const bool asked = ask_release(scheduler, scheduler->forget, scheduler->forget_count, true, false, ignore_end, errand);
    if (!asked)
        free(errand);
    if (asked || !channel || !rpc_channel_is_up(channel))
        scheduler->forget_count = 0;
}

void place_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool goes_on)
{
    free_there(new_errand(scheduler, sequence, place), goes_on, ignore_end);
}

static void on_cleaned(void *user, enum status status, const char *text)
{
    struct errand *errand = user;
    (void)status, (void)text;
    errand->done(errand->member);
    free(errand);
}

void place_clean(struct member *member, const uint64_t *sequences, uint32_t count, void (*done)(struct member *member))
{
    struct errand *errand = new_errand(member->scheduler, 0, member->place);
    errand->member = member;
    errand->done = done;
    if (count == 0 || !ask_free(member->scheduler, member->place, sequences, count, false, on_cleaned, errand))
        on_cleaned(errand, STATUS_OK, "");
}

/* --- handing over ------------------------------------------------------------------------------------------------------ */

static void report_move(struct errand *errand, bool ok)
{
    const struct sched_move *move = &errand->move;
    const struct sched_event event = {
        .kind = SCHED_MOVED,
        .moved = {.sequence = move->sequence, .id = move->id, .positions = move->positions, .ok = ok},
    };
    log_info("MOVED", "sequence=%llx from=%u to=%u positions=%u ok=%d took_us=%llu", (unsigned long long)move->sequence, move->from,
             move->to, move->positions, ok, (unsigned long long)(clock_now_us() - errand->began_us));
    scheduler_event(errand->scheduler, &event);
    free(errand);
}

static void on_source_freed(void *user, enum status status, const char *text)
{
    (void)status, (void)text;
    report_move(user, true);
}

static void on_target_freed(void *user, enum status status, const char *text)
{
    (void)status, (void)text;
    report_move(user, false);
}

static void on_fetched(void *user, enum status status, const char *text)
{
    struct errand *errand = user;
    if (!status) {
        free_there(errand, true, on_source_freed);
        return;
    }
    log_warn("MOVE-FAILED", "sequence=%llx why=\"%s\"", (unsigned long long)errand->sequence, text);
    if (status != STATUS_DEADLINE_EXCEEDED) { /* who says no has freed what it had */
        report_move(errand, false);
        return;
    }
    errand->place = errand->move.to; /* its yes may have crossed with the end of our patience */
    errand->incarnation = errand->scheduler->members[errand->place].incarnation;
    free_there(errand, true, on_target_freed);
}

void place_move(struct scheduler *scheduler, const struct sched_move *move)
{
    Fastdecode__FetchRequest request = FASTDECODE__FETCH_REQUEST__INIT;
    const struct rpc_callbacks callbacks = {.on_end = on_fetched};
    struct rpc_channel *channel = scheduler->members[move->to].channel;
    const uint32_t pages = move->positions / MAX(scheduler->kv.page_tokens, 1u) + 1;
    const struct rpc_options by_size = {.timeout_ms = CONTROL_TIMEOUT_MS + MIN(pages, PAGES_TIMED) * PAGE_TIMEOUT_MS};
    struct errand *errand = new_errand(scheduler, move->sequence, move->from);
    struct error error;

    errand->move = *move;
    errand->began_us = clock_now_us();
    log_info("MOVE", "sequence=%llx from=%u to=%u positions=%u", (unsigned long long)move->sequence, move->from, move->to,
             move->positions);
    request.scheduler_incarnation = scheduler->incarnation;
    request.sequence = move->sequence;
    request.tensor_address = scheduler->members[move->from].tensor_address;
    request.positions = move->positions;
    if (!channel || rpc_call_start(channel, &fastdecode__kv_control__descriptor, "Fetch", &request.base, &by_size, &callbacks,
                                   errand, NULL, &error))
        report_move(errand, false);
}

void place_drained(struct scheduler *scheduler, uint32_t place)
{
    struct member *member = &scheduler->members[place];
    Fastdecode__DrainReply reply = FASTDECODE__DRAIN_REPLY__INIT;

    log_info("PLACE-DRAINED", "name=%s", member->name);
    member->drained = true;
    if (member->draining)
        rpc_call_reply(member->draining, &reply.base);
    member->draining = NULL;
}

void place_exclude(struct scheduler *scheduler, const struct member *member)
{
    Fastdecode__ExcludeRequest request = FASTDECODE__EXCLUDE_REQUEST__INIT;
    const struct rpc_callbacks callbacks = {.on_message = NULL};
    struct error error;

    request.worker = member->place;
    request.incarnation = member->incarnation;
    if (!scheduler->members[0].channel || rpc_call_start(scheduler->members[0].channel, &fastdecode__spart__descriptor, "Exclude",
                                                         &request.base, &options, &callbacks, NULL, NULL, &error))
        log_debug("EXCLUDE-NOT-SENT", "worker=%u", member->place);
}

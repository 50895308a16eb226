// claims.c: pages that members held before they registered: whose they are, and what becomes of those that nobody wants.
//
// After a start of the scheduler, members register with lists of what they hold, and gateways submit their sequences again once the s-part is
// up. A model may take minutes to load, so the times count from then. A resubmitted sequence waits up to SETTLE_US for a place that holds its
// pages, and goes on there. Pages that nobody has claimed by CLAIM_US are freed. A member that was cut off and comes back, at any time, gives
// back the pages of sequences that wait to be rebuilt; the others are freed before it is up.
#include <stdlib.h>

#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/kv/kv_ledger.h"
#include "services/scheduler/scheduler.h"

enum { TIMEOUT_MS_MAX = 1 << 30 }; // twelve days

// --- what members hold

bool claims_may_come(const struct claims *claims, uint64_t now_us)
{
    return !claims->from_us || now_us - claims->from_us < CLAIM_US;
}

// Takes an entry out of the list.
static void forget(struct claims *claims, uint32_t index)
{
    claims->copy_count -= claims->held[index].is_copy;
    claims->held[index] = claims->held[--claims->held_count];
}

static void forget_place(struct claims *claims, uint32_t place)
{
    for (uint32_t i = claims->held_count; i-- > 0;)
        if (claims->held[i].place == place)
            forget(claims, i);
}

enum status claims_take(struct claims *claims, uint32_t place, const Fastdecode__RegisterRequest *request, struct error *error)
{
    forget_place(claims, place);
    size_t count = claims->held_count + request->n_held;
    if (request->n_held > HELD_OF_MEMBER_MAX || count > HELD_MAX)
        return error_set(error, STATUS_RESOURCE_EXHAUSTED, "the member holds %zu sequences, the limit is %d, and %d of all members",
                         request->n_held, HELD_OF_MEMBER_MAX, HELD_MAX);
    if (count > claims->held_capacity) {
        struct held *grown = realloc(claims->held, count * sizeof *grown);
        if (!grown)
            return error_set(error, STATUS_RESOURCE_EXHAUSTED, "cannot allocate a list of %zu held sequences", count);
        claims->held = grown;
        claims->held_capacity = (uint32_t)count;
    }
    for (size_t i = 0; i < request->n_held; i++)
        claims->held[claims->held_count++] = (struct held){.sequence = request->held[i]->sequence,
                                                           .place = place,
                                                           .first = request->held[i]->first_position,
                                                           .positions = request->held[i]->positions,
                                                           .certain = request->held[i]->certain,
                                                           .pages = request->held[i]->pages};
    return STATUS_OK;
}

static bool is_settling(const struct claims *claims, uint64_t sequence)
{
    for (uint32_t i = 0; i < claims->settling_count; i++)
        if (claims->settling[i] == sequence)
            return true;
    return false;
}

// Somebody may still ask for it: its gateway has not submitted it again yet, or has, and it waits for its holder, or to be rebuilt.
static bool is_claimable(const struct scheduler *scheduler, const struct held *held)
{
    if (scheduler->core.sched && sched_awaits_rebuild(scheduler->core.sched, held->sequence))
        return true;
    return claims_may_come(&scheduler->claims, clock_now_us()) &&
           (!token_logs_find(scheduler->sequences.logs, held->sequence) || is_settling(&scheduler->claims, held->sequence));
}

enum status claims_mark_stale(struct scheduler *scheduler, uint32_t place, uint64_t **ids, uint32_t *count)
{
    *count = 0;
    *ids = malloc((scheduler->claims.held_count + 1u) * sizeof **ids);
    if (!*ids)
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < scheduler->claims.held_count; i++) {
        struct held *held = &scheduler->claims.held[i];
        if (held->place != place)
            continue;
        held->stale = !is_claimable(scheduler, held);
        if (held->stale)
            (*ids)[(*count)++] = held->sequence;
    }
    return STATUS_OK;
}

void claims_end_stale(struct claims *claims, uint32_t place, bool freed)
{
    for (uint32_t i = claims->held_count; i-- > 0;) {
        struct held *held = &claims->held[i];
        if (held->place != place || !held->stale)
            continue;
        held->stale = false;
        if (freed)
            forget(claims, i);
    }
}

// Has pages freed that nobody claims, once that cannot hit those of a sequence that is placed there meanwhile. Returns whether the entry is done with.
static bool free_unclaimed(struct scheduler *scheduler, const struct held *held)
{
    const enum sched_where where = sched_where(scheduler->core.sched, held->sequence, held->place);

    if (where == SCHED_NOWHERE && token_logs_find(scheduler->sequences.logs, held->sequence))
        return false; // the core is to be told of it
    switch (where) {
    case SCHED_THERE: return true; // overwritten, and the core's from now on
    case SCHED_WAITS: return false;
    case SCHED_ELSEWHERE: return places_free_unclaimed(scheduler, held->place, held->sequence, true);
    default: return places_free_unclaimed(scheduler, held->place, held->sequence, false);
    }
}

void claims_drop(struct scheduler *scheduler, uint32_t place)
{
    for (uint32_t i = scheduler->claims.held_count; i-- > 0 && scheduler->places.of[place].member->up;) {
        const struct held held = scheduler->claims.held[i];
        if (held.place != place || !free_unclaimed(scheduler, &held))
            continue; // members_check() comes back to them
        log_info("UNCLAIMED", "sequence=%llx place=%u", (unsigned long long)held.sequence, held.place);
        forget(&scheduler->claims, i);
    }
}

// --- claims

// The positions that certainly hold this sequence's tokens. A place that was cut off while the last ones were guessed cannot know which
// of them came true; those of a prompt are not guessed.
static uint32_t certain_positions(const struct held *held, const struct token_log *log)
{
    return MIN(held->positions, MAX(held->certain, log->prompt_count));
}

static void mark_copy(struct claims *claims, struct held *held)
{
    claims->copy_count += !held->is_copy;
    held->is_copy = true;
}

static void free_copies(struct scheduler *scheduler)
{
    struct claims *claims = &scheduler->claims;

    for (uint32_t i = claims->held_count; i-- > 0 && claims->copy_count;)
        if (claims->held[i].is_copy && scheduler->places.of[claims->held[i].place].member->up &&
            free_unclaimed(scheduler, &claims->held[i]))
            forget(claims, i);
}

void claims_reclaim(struct scheduler *scheduler, uint32_t place)
{
    for (uint32_t i = scheduler->claims.held_count; i-- > 0;) {
        const struct held held = scheduler->claims.held[i];
        const struct token_log *log = token_logs_find(scheduler->sequences.logs, held.sequence);
        if (held.place != place || !log || is_settling(&scheduler->claims, held.sequence))
            continue;
        const uint32_t positions = certain_positions(&held, log);
        if (positions > held.first && sched_awaits_rebuild(scheduler->core.sched, held.sequence) &&
            sched_rebuilds_from(scheduler->core.sched, held.sequence) == held.first) {
            const struct sched_event event = {.kind = SCHED_RECLAIM,
                                              .reclaim = {held.sequence, {place, held.first, positions, held.pages}}};
            log_info("RECLAIMED", "sequence=%llx place=%u first=%u positions=%u", (unsigned long long)held.sequence, place,
                     held.first, positions);
            forget(&scheduler->claims, i);
            events_add(&scheduler->events, &event);
        } else { // it has been placed elsewhere meanwhile
            mark_copy(&scheduler->claims, &scheduler->claims.held[i]);
        }
    }
}

// The parts of a sequence that are held: its beginning, and the parts that follow one another behind it, each at another place.
struct parts {
    uint32_t count;
    struct held of[1 + SCHED_EXTENTS_MAX];
};

static bool has_place(const struct parts *parts, uint32_t place)
{
    for (uint32_t i = 0; i < parts->count; i++)
        if (parts->of[i].place == place)
            return true;
    return false;
}

static uint32_t covered_by(const struct parts *parts) { return parts->count ? parts->of[parts->count - 1].positions : 0; }

// Returns the index of the held part that reaches farthest, of those at other places that begin within what the parts cover and reach beyond
// it; UINT32_MAX: there is none.
static uint32_t next_part(const struct scheduler *scheduler, const struct token_log *log, const struct parts *parts)
{
    const uint32_t covered = covered_by(parts), after = parts->count ? parts->of[parts->count - 1].first : 0;
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < scheduler->claims.held_count; i++) {
        const struct held *held = &scheduler->claims.held[i];
        const uint32_t positions = certain_positions(held, log);
        const bool follows = covered == 0 ? held->first == 0 : held->first > after && held->first <= covered;
        if (held->sequence == log->id && scheduler->places.of[held->place].member->up && follows && positions > covered &&
            !has_place(parts, held->place) &&
            (best == UINT32_MAX || positions > certain_positions(&scheduler->claims.held[best], log)))
            best = i;
    }
    return best;
}

// Takes what is held of a sequence out of the list. Copies that are of no use (it was being handed over, or a part before them is lost) stay there
// until they can be freed.
static void take_parts(struct scheduler *scheduler, const struct token_log *log, const struct parts *parts)
{
    for (uint32_t i = scheduler->claims.held_count; i-- > 0;) {
        struct held *held = &scheduler->claims.held[i];
        if (held->sequence != log->id || !scheduler->places.of[held->place].member->up)
            continue;
        if (has_place(parts, held->place))
            forget(&scheduler->claims, i);
        else
            mark_copy(&scheduler->claims, held);
    }
}

// Finds what places that are up hold of a sequence. False: nothing, or it may become more when others have registered.
static bool claim(struct scheduler *scheduler, const struct token_log *log, bool late, struct parts *out)
{
    uint32_t index;

    *out = (struct parts){0};
    while (out->count < ARRAY_COUNT(out->of) && (index = next_part(scheduler, log, out)) != UINT32_MAX) {
        struct held *part = &out->of[out->count++];
        *part = scheduler->claims.held[index];
        part->positions = certain_positions(part, log);
    }
    const uint32_t covered = covered_by(out);
    // An extent ends at such a multiple, and the next one, or the first, may be at a member that has not registered yet.
    if (!late && covered % KV_EXTENT_TOKENS == 0 && covered + 1 < log->token_count)
        return false;
    take_parts(scheduler, log, out);
    return out->count > 0;
}

// Tells the core of a new sequence. parts: where its first positions are; NULL: nowhere.
static void arrive(struct scheduler *scheduler, const struct token_log *log, const struct parts *parts)
{
    const Fastdecode__GenerateRequest *request = log->request;
    const uint64_t timeout_ms = MIN(request->timeout_ms, (uint64_t)TIMEOUT_MS_MAX);
    struct sched_event event = {
        .kind = SCHED_ARRIVE,
        .arrive =
            {
                .sequence = log->id,
                .prompt_tokens = log->prompt_count,
                .generated_tokens = log->token_count - log->prompt_count,
                .resubmitted = request->sequence != 0,
                .max_new_tokens = request->max_tokens,
                .deadline_us = timeout_ms ? log->arrived_us + timeout_ms * 1000 : 0,
                .class = request->latency_class == FASTDECODE__LATENCY_CLASS__LATENCY_CLASS_BATCH ? SCHED_CLASS_BATCH
                                                                                                  : SCHED_CLASS_INTERACTIVE,
                .score_prompt = log->asked.pooling || (request->sampling->prompt_logprobs && log->token_count == log->prompt_count),
                .last_row_only = log->asked.pooling == FASTDECODE__POOLING__POOLING_LAST ||
                                 log->asked.pooling == FASTDECODE__POOLING__POOLING_RANK,
                .held_place = parts ? parts->of[0].place : SCHED_NO_PLACE,
                .held_positions = parts ? parts->of[0].positions : 0,
                .held_pages = parts ? parts->of[0].pages : 0,
            },
    };
    for (uint32_t i = 1; parts && i < parts->count; i++)
        event.arrive.more[event.arrive.more_count++] = (struct sched_held){.place = parts->of[i].place,
                                                                           .first = parts->of[i].first,
                                                                           .positions = parts->of[i].positions,
                                                                           .pages = parts->of[i].pages};
    events_add(&scheduler->events, &event);
}

void claims_arrive(struct scheduler *scheduler, const struct token_log *log)
{
    bool may_wait = claims_may_come(&scheduler->claims, clock_now_us()) &&
                    scheduler->claims.settling_count < scheduler->claims.settling_capacity;

    if (log->request->sequence && may_wait)
        scheduler->claims.settling[scheduler->claims.settling_count++] = log->id;
    else
        arrive(scheduler, log, NULL);
}

void claims_settle(struct scheduler *scheduler)
{
    bool late = scheduler->claims.from_us && clock_now_us() - scheduler->claims.from_us > SETTLE_US;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < scheduler->claims.settling_count; i++) {
        struct token_log *log = token_logs_find(scheduler->sequences.logs, scheduler->claims.settling[i]);
        struct parts parts;
        if (!log)
            continue;
        if (!log->call) { // cancelled before it began: the core never knew it
            token_logs_remove(scheduler->sequences.logs, log->id);
        } else if (claim(scheduler, log, late, &parts)) {
            for (uint32_t k = 0; k < parts.count; k++)
                log_info("CLAIMED", "sequence=%llx place=%u positions=%u", (unsigned long long)log->id, parts.of[k].place,
                         parts.of[k].positions);
            arrive(scheduler, log, &parts);
        } else if (late) {
            arrive(scheduler, log, NULL);
        } else {
            scheduler->claims.settling[kept++] = log->id;
        }
    }
    scheduler->claims.settling_count = kept;
    free_copies(scheduler);
}

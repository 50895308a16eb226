// places.c: what the core asks of the places: freeing pages, handing them over, draining; calls to the s-part and the KV workers.
//
// Pages to be freed are gathered by place and asked for with one call at a time, which names all that have come meanwhile. A release
// is reported to the core when the place has answered, because what counts as free must be free there. When a place goes down its
// lists are emptied: it says what it holds when it registers again.
//
//     RELEASE, end of a move, unclaimed ──▶ to_free ──Free or Release──▶ freeing ──answer──▶ RELEASED, MOVED
//                                              ▲                            │
//                                              └───── refused, too late ◀───┘
#include <stdlib.h>
#include <string.h>

#include "attend.pb-c.h"
#include "common/base/checked.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/scheduler/scheduler.h"

// PAGE_TIMEOUT_MS: on top, for each page that travels. The taker gives up by itself when one does not come (common/mesh/handover.h).
enum { CONTROL_TIMEOUT_MS = 10000, PAGE_TIMEOUT_MS = 1000, PAGES_TIMED = 3600, AGAIN_US = 50000 };

typedef void end_fn(void *user, enum status status, const char *error); // on_end of a call

static const struct rpc_options control_options = {.timeout_ms = CONTROL_TIMEOUT_MS};

// --- lists of pages to be freed

enum status places_open(struct scheduler *scheduler, uint32_t sequences)
{
    // The core releases a sequence, and each of its extents, once before it places it again.
    uint32_t count = sequences + EXTENTS_MAX + MOVES_MAX + UNCLAIMED_FREES_MAX;

    scheduler->frees.entries = calloc(count + 1u, sizeof *scheduler->frees.entries);
    scheduler->frees.ids = calloc(count, sizeof *scheduler->frees.ids);
    if (!scheduler->frees.entries || !scheduler->frees.ids)
        return STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 1; i < count; i++)
        scheduler->frees.entries[i].next = i + 1;
    scheduler->frees.unused = 1;
    return STATUS_OK;
}

void places_close(struct scheduler *scheduler)
{
    free(scheduler->frees.entries);
    free(scheduler->frees.ids);
    scheduler->frees.entries = NULL;
    scheduler->frees.ids = NULL;
}

static void append(struct scheduler *scheduler, struct pending_list *list, uint32_t index)
{
    scheduler->frees.entries[index].next = 0;
    *(list->head ? &scheduler->frees.entries[list->tail].next : &list->head) = index;
    list->tail = index;
}

static uint32_t take_first(struct scheduler *scheduler, struct pending_list *list)
{
    uint32_t index = list->head;
    list->head = scheduler->frees.entries[index].next;
    return index;
}

static void queue_free(struct place *place, struct pending_free what)
{
    struct scheduler *scheduler = place->member->scheduler;
    uint32_t index = scheduler->frees.unused;

    assert_always(index); // what is queued is bounded by what the core, moves and claims have under way
    scheduler->frees.unused = scheduler->frees.entries[index].next;
    scheduler->frees.entries[index] = what;
    scheduler->frees.waiting++;
    append(scheduler, &place->frees.to_free, index);
}

static void end_move(struct pending_move *move, bool ok);
static void cancel_moves(const struct place *place);

// Reports those of a list as free, and empties it. An event may run a tick, which may add to the place's lists.
static void report_free(struct place *place, struct pending_list *list)
{
    struct scheduler *scheduler = place->member->scheduler;
    struct pending_list all = *list;

    *list = (struct pending_list){0};
    while (all.head) {
        uint32_t index = take_first(scheduler, &all);
        const struct pending_free done = scheduler->frees.entries[index];
        scheduler->frees.entries[index].next = scheduler->frees.unused;
        scheduler->frees.unused = index;
        if (done.move) {
            end_move(done.move, done.move->ok);
        } else if (done.report) {
            const struct sched_event event = {.kind = SCHED_RELEASED, .released = {done.sequence, place->index}};
            events_add(&scheduler->events, &event);
        } else {
            scheduler->frees.unclaimed--;
        }
    }
}

// --- calls

// Asks the s-part to end its part of sequences: samplers and pages of the local pool, or one of the two. False: it cannot be asked.
static bool ask_release(struct scheduler *scheduler, const uint64_t *sequences, size_t count, bool keep_pages, bool keep_sampler,
                        end_fn *on_end, void *user, struct rpc_handle *call)
{
    Fastdecode__ReleaseRequest request = FASTDECODE__RELEASE_REQUEST__INIT;

    request.n_sequence = count;
    request.sequence = (uint64_t *)sequences;
    request.keep_pages = keep_pages;
    request.keep_sampler = keep_sampler;
    return stages_call(scheduler, "Release", &request.base, on_end, user, call);
}

bool places_ask_free(struct place *place, const uint64_t *sequences, size_t count, bool keep_sampler,
                     void (*on_reply)(void *user, struct rpc_message *message), end_fn *on_end, void *user, struct rpc_handle *call)
{
    const struct rpc_callbacks callbacks = {.on_message = on_reply, .on_end = on_end};
    struct scheduler *scheduler = place->member->scheduler;
    Fastdecode__FreeRequest request = FASTDECODE__FREE_REQUEST__INIT;
    struct error error;

    if (place->kind == SCHED_LOCAL_POOL)
        return ask_release(scheduler, sequences, count, false, keep_sampler, on_end, user, call);
    if (!place->member->channel)
        return false;
    request.scheduler_incarnation = scheduler->host.incarnation;
    request.n_sequence = count;
    request.sequence = (uint64_t *)sequences;
    request.over_before_step = flights_oldest_step(&scheduler->flights);
    return !rpc_call_start(place->member->channel, &fastdecode__kv_control__descriptor, "Free", &request.base, &control_options,
                           &callbacks, user, call, &error);
}

// --- freeing

static void on_freed(void *user, enum status status, const char *text)
{
    struct place *place = user;
    struct scheduler *scheduler = place->member->scheduler;

    if (!place->frees.asked)
        return; // the place went down meanwhile
    place->frees.asked = false;
    if (!status) {
        place->frees.failures = (struct repeat){0};
        report_free(place, &place->frees.freeing);
        return;
    }
    if (status != STATUS_UNAVAILABLE && status != STATUS_CANCELLED && repeat_is_due(&place->frees.failures, clock_now_us(), text))
        log_warn("FREE-FAILED", "place=%u status=%s why=\"%s\" what=\"asked again\" times=%u", place->index, status_name(status),
                 text, place->frees.failures.count);
    // Freeing twice is harmless, but in their order: once a later one is answered the sequence may be placed there anew.
    struct pending_list later = place->frees.to_free;
    place->frees.to_free = place->frees.freeing;
    place->frees.freeing = (struct pending_list){0};
    for (uint32_t i = place->frees.to_free.head; i; i = scheduler->frees.entries[i].next)
        scheduler->frees.waiting++;
    while (later.head)
        append(scheduler, &place->frees.to_free, take_first(scheduler, &later));
    place->frees.again_us = clock_now_us() + AGAIN_US;
}

// One call can only be for sequences that all keep their samplers, or none.
static void send_free(struct place *place, uint64_t now_us)
{
    struct scheduler *scheduler = place->member->scheduler;
    uint32_t count = 0;

    if (!place->frees.to_free.head || place->frees.asked || now_us < place->frees.again_us)
        return;
    const bool keep_sampler = scheduler->frees.entries[place->frees.to_free.head].keep_sampler;
    uint32_t index = place->frees.to_free.head;
    for (; index && scheduler->frees.entries[index].keep_sampler == keep_sampler; index = scheduler->frees.entries[index].next)
        scheduler->frees.ids[count++] = scheduler->frees.entries[index].sequence;
    if (!places_ask_free(place, scheduler->frees.ids, count, keep_sampler, NULL, on_freed, place, &place->frees.call)) {
        place->frees.again_us = now_us + AGAIN_US;
        return;
    }
    place->frees.asked = true;
    scheduler->frees.waiting -= count;
    while (place->frees.to_free.head != index)
        append(scheduler, &place->frees.freeing, take_first(scheduler, &place->frees.to_free));
}

void places_release(struct scheduler *scheduler, uint64_t sequence, uint32_t place_index, bool forget)
{
    struct s_part *s_part = &scheduler->s_part;
    bool has_pages = place_index != SCHED_NO_PLACE;
    struct place *place = has_pages ? &scheduler->places.of[place_index] : NULL;
    const struct token_log *log = token_logs_find(scheduler->sequences.logs, sequence);

    if (forget && log && log->opened && !(has_pages && place->kind == SCHED_LOCAL_POOL)) { // there its sampler goes with its pages
        if (s_part->forget.count < ACTIONS_MAX)
            s_part->forget.ids[s_part->forget.count++] = sequence;
        else
            log_warn("SAMPLER-LEFT", "sequence=%llx", (unsigned long long)sequence);
    }
    if (has_pages && place->member->up) {
        queue_free(place, (struct pending_free){.sequence = sequence, .report = true});
    } else if (has_pages) {
        const struct sched_event event = {.kind = SCHED_RELEASED, .released = {sequence, place_index}};
        events_add(&scheduler->events, &event);
    }
}

void places_end_spans(struct scheduler *scheduler, const struct sequence_spans *spans, uint64_t sequence, uint32_t freed)
{
    const struct rpc_callbacks callbacks = {0}; // a worker that does not hear of it ends the span when it frees the pages
    Fastdecode__FreeRequest request = FASTDECODE__FREE_REQUEST__INIT;
    struct error error;

    request.scheduler_incarnation = scheduler->host.incarnation;
    request.n_ended = 1;
    request.ended = &sequence;
    for (uint32_t i = 0; i < scheduler->places.count; i++) {
        const struct place *place = &scheduler->places.of[i];
        if (i != freed && place->kind == SCHED_KV_WORKER && place->member->up && place->member->channel &&
            sequence_spans_has_place(spans, i))
            (void)!rpc_call_start(place->member->channel, &fastdecode__kv_control__descriptor, "Free", &request.base,
                                  &control_options, &callbacks, NULL, NULL, &error);
    }
}

bool places_free_unclaimed(struct scheduler *scheduler, uint32_t place, uint64_t sequence, bool keep_sampler)
{
    if (scheduler->frees.unclaimed == UNCLAIMED_FREES_MAX)
        return false;
    scheduler->frees.unclaimed++;
    queue_free(&scheduler->places.of[place], (struct pending_free){.sequence = sequence, .keep_sampler = keep_sampler});
    return true;
}

static void on_forgotten(void *user, enum status status, const char *text)
{
    struct s_part *s_part = user;
    uint32_t count = s_part->forget.asked;

    (void)text;
    s_part->forget.asked = 0;
    if (status || !count)
        return; // named again by the next call, unless another s-part has come, which knows none of them
    s_part->forget.count -= count;
    memmove(s_part->forget.ids, s_part->forget.ids + count, s_part->forget.count * sizeof *s_part->forget.ids);
}

void places_send(struct scheduler *scheduler)
{
    struct s_part *s_part = &scheduler->s_part;
    uint64_t now_us;

    if (s_part->forget.count && !s_part->forget.asked && s_part->member.up &&
        ask_release(scheduler, s_part->forget.ids, s_part->forget.count, true, false, on_forgotten, s_part, &s_part->forget.call))
        s_part->forget.asked = s_part->forget.count;
    if (!scheduler->frees.waiting)
        return;
    now_us = clock_now_us();
    for (uint32_t i = 0; i < scheduler->places.count; i++)
        send_free(&scheduler->places.of[i], now_us);
}

void places_down(struct place *place)
{
    struct scheduler *scheduler = place->member->scheduler;
    struct s_part *s_part = &scheduler->s_part;
    struct rpc_channel *channel = place->member->channel;
    const bool asked = place->frees.asked, forgetting = place->kind == SCHED_LOCAL_POOL && s_part->forget.asked;

    place->frees.asked = false; // first: the call's end says nothing any more
    if (asked && channel)
        rpc_cancel(channel, place->frees.call);
    if (forgetting) {
        s_part->forget.asked = 0;
        if (channel)
            rpc_cancel(channel, s_part->forget.call);
    }
    cancel_moves(place);
    for (uint32_t i = place->frees.to_free.head; i; i = scheduler->frees.entries[i].next)
        scheduler->frees.waiting--;
    report_free(place, &place->frees.to_free);
    report_free(place, &place->frees.freeing);
    place->frees.again_us = 0;
}

// --- handing over

static void end_move(struct pending_move *pending, bool ok)
{
    const struct sched_move *move = &pending->move;
    const struct sched_event event = {
        .kind = SCHED_MOVED,
        .moved = {.sequence = move->sequence, .id = move->id, .positions = move->positions, .ok = ok},
    };
    log_info("MOVED", "sequence=%llx from=%u to=%u positions=%u ok=%d took_us=%llu", (unsigned long long)move->sequence, move->from,
             move->to, move->positions, ok, (unsigned long long)(clock_now_us() - pending->began_us));
    pending->used = false;
    events_add(&pending->scheduler->events, &event);
}

// Has one end of a hand-over free the pages, and ends it then. A place that is down, or was meanwhile, has none of them.
static void free_then_end(struct pending_move *pending, uint32_t place_index, uint32_t stay, bool ok)
{
    struct place *place = &pending->scheduler->places.of[place_index];

    pending->ok = ok;
    if (place->member->up && place->member->stay == stay)
        queue_free(place, (struct pending_free){.sequence = pending->move.sequence, .keep_sampler = true, .move = pending});
    else
        end_move(pending, ok);
}

static void on_fetched(void *user, enum status status, const char *text)
{
    struct pending_move *pending = user;

    if (!status) {
        free_then_end(pending, pending->move.from, pending->from_stay, true);
        return;
    }
    if (status != STATUS_CANCELLED && repeat_is_due(&pending->scheduler->moves.failures, clock_now_us(), text))
        log_warn("MOVE-FAILED", "sequence=%llx from=%u to=%u why=\"%s\" times=%u", (unsigned long long)pending->move.sequence,
                 pending->move.from, pending->move.to, text, pending->scheduler->moves.failures.count);
    if (status == STATUS_DEADLINE_EXCEEDED || status == STATUS_CANCELLED) // the taker may have said yes a moment too late
        free_then_end(pending, pending->move.to, pending->to_stay, false);
    else // one that says no has freed what it had
        end_move(pending, false);
}

// One end of hand-overs is down. The core waits for their end, which a taker that is silent would not say; and what it took from a giver that
// is down is of no use.
static void cancel_moves(const struct place *place)
{
    const struct scheduler *scheduler = place->member->scheduler;

    for (uint32_t i = 0; i < MOVES_MAX; i++) {
        const struct pending_move *pending = &scheduler->moves.of[i];
        const struct member *taker = scheduler->places.of[pending->move.to].member;
        const bool gives = pending->move.from == place->index && pending->from_stay == place->member->stay;
        const bool takes = pending->move.to == place->index;
        if (pending->used && (gives || takes) && pending->to_stay == taker->stay && taker->channel)
            rpc_cancel(taker->channel, pending->call);
    }
}

static struct pending_move *unused_move(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < MOVES_MAX; i++)
        if (!scheduler->moves.of[i].used)
            return &scheduler->moves.of[i];
    return NULL;
}

void places_move(struct scheduler *scheduler, const struct sched_move *move)
{
    static const struct rpc_callbacks callbacks = {.on_end = on_fetched};
    const struct member *from = scheduler->places.of[move->from].member, *to = scheduler->places.of[move->to].member;
    const uint32_t pages = (move->positions - move->first) / MAX(scheduler->model.kv.page_tokens, 1u) + 1;
    const struct rpc_options by_size = {.timeout_ms = CONTROL_TIMEOUT_MS + MIN(pages, PAGES_TIMED) * PAGE_TIMEOUT_MS};
    Fastdecode__FetchRequest request = FASTDECODE__FETCH_REQUEST__INIT;
    struct pending_move *pending = unused_move(scheduler);
    struct error error;

    if (!from->place->hands_over || !to->place->hands_over) // the core knows, so this is a defect
        log_warn("MOVE-REFUSED", "sequence=%llx from=%u to=%u why=\"that pool hands no pages over\"",
                 (unsigned long long)move->sequence, move->from, move->to);
    if (!pending || !from->place->hands_over || !to->place->hands_over) {
        const struct sched_event failed = {.kind = SCHED_MOVED, .moved = {.sequence = move->sequence, .id = move->id}};
        events_add(&scheduler->events, &failed);
        return;
    }
    const struct token_log *log = scheduler->host.otlp ? token_logs_find(scheduler->sequences.logs, move->sequence) : NULL;
    if (log && log->spans && !log->over)
        sequence_spans_moved(log->spans, move->to);
    *pending = (struct pending_move){.scheduler = scheduler,
                                     .move = *move,
                                     .began_us = clock_now_us(),
                                     .from_stay = from->stay,
                                     .to_stay = to->stay,
                                     .used = true};
    log_info("MOVE", "sequence=%llx from=%u to=%u positions=%u", (unsigned long long)move->sequence, move->from, move->to,
             move->positions);
    request.scheduler_incarnation = scheduler->host.incarnation;
    request.sequence = move->sequence;
    request.tensor_address = (char *)from->tensor_address;
    request.first_position = move->first;
    request.positions = move->positions;
    if (!to->channel || rpc_call_start(to->channel, &fastdecode__kv_control__descriptor, "Fetch", &request.base, &by_size,
                                       &callbacks, pending, &pending->call, &error))
        end_move(pending, false);
}

// --- leaving

void places_drained(struct scheduler *scheduler, uint32_t place_index)
{
    struct place *place = &scheduler->places.of[place_index];
    Fastdecode__DrainReply reply = FASTDECODE__DRAIN_REPLY__INIT;

    log_info("PLACE-DRAINED", "name=%s", place->member->name);
    view_note(&scheduler->view, FASTDECODE__EVENT_KIND__EVENT_KIND_DRAINED, place->member->name, "");
    place->drain.done = true;
    if (place->drain.call)
        rpc_call_reply(place->drain.call, &reply.base);
    place->drain.call = NULL;
}

void places_exclude(struct scheduler *scheduler, const struct place *place)
{
    Fastdecode__ExcludeRequest request = FASTDECODE__EXCLUDE_REQUEST__INIT;

    request.worker = place->index;
    request.incarnation = place->member->incarnation;
    if (!stages_call(scheduler, "Exclude", &request.base, NULL, NULL, NULL))
        log_debug("EXCLUDE-NOT-SENT", "worker=%u", place->index);
}

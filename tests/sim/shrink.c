// shrink.c: takes away what a failure does not need: first faults and requests, many at once and then one by one, then nodes, then odd values.
//
// A change that is not about the failure shifts all that comes by chance, and with it the failure. So a change that seems to end it is tried with a
// few other seeds too, which for a schedule are the chance of its network alone.
#include "tests/sim/shrink.h"

#include <string.h>

#include "common/base/checked.h"

enum { RUNS_MAX = 4000, SEEDS = 4, FOR_LEAST_NS = 20000000, WORKER_BYTES = 1 << 20 };
#define TIME_MAX_NS (300 * S_NS)

struct shrinking {
    struct schedule *best;
    const char *failure; // the first one
    shrink_run_fn *run;
    void *arg;
    uint32_t runs;
    uint64_t end_ns; // real time
};

static bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

static bool is_end(char byte) { return byte == '\0' || byte == ':' || byte == '\n'; }

// The status with which a wrong answer begins. "": it is another failure.
static const char *wrong_answer(const char *failure)
{
    const char *got = strstr(failure, "\n  got ");
    return got ? got : "";
}

static bool are_alike(const char *a, const char *b)
{
    enum { STATUS_AT_MOST = sizeof "\n  got    500" - 1 };

    if (strncmp(wrong_answer(a), wrong_answer(b), STATUS_AT_MOST))
        return false;
    for (;; a++, b++) {
        while (is_digit(*a))
            a++;
        while (is_digit(*b))
            b++;
        if (is_end(*a) || is_end(*b))
            return is_end(*a) && is_end(*b);
        if (*a != *b)
            return false;
    }
}

static bool fails_alike(struct shrinking *it, const struct schedule *candidate)
{
    if (it->runs >= RUNS_MAX || real_now_ns(CLOCK_MONOTONIC) > it->end_ns)
        return false;
    it->runs++;
    const char *failure = it->run(candidate, it->arg);
    return failure && are_alike(failure, it->failure);
}

// Keeps the candidate if it fails too.
static bool try(struct shrinking *it, struct schedule *candidate)
{
    const uint64_t seed = candidate->seed;

    for (uint32_t i = 0; i < SEEDS; i++) {
        candidate->seed = i ? i : seed;
        if (!fails_alike(it, candidate))
            continue;
        *it->best = *candidate;
        return true;
    }
    return false;
}

// --- fewer

enum part { FAULTS, CLIENTS, PARTS };

static uint32_t *count_of(struct schedule *s, enum part part) { return part == FAULTS ? &s->fault_count : &s->client_count; }

static void take_away(struct schedule *s, enum part part, uint32_t from, uint32_t count)
{
    const size_t after = *count_of(s, part) - from - count;

    if (part == FAULTS)
        memmove(&s->faults[from], &s->faults[from + count], after * sizeof s->faults[0]);
    else
        memmove(&s->clients[from], &s->clients[from + count], after * sizeof s->clients[0]);
    *count_of(s, part) -= count;
}

// All, halves, quarters, ...
static bool has_fewer(struct shrinking *it, enum part part)
{
    bool better = false;

    for (uint32_t count = *count_of(it->best, part); count; count /= 2)
        for (uint32_t from = 0; from + count <= *count_of(it->best, part);) {
            struct schedule candidate = *it->best;
            take_away(&candidate, part, from, count);
            if (try(it, &candidate))
                better = true;
            else
                from += count;
        }
    return better;
}

static bool has_two_nodes(enum fault_kind kind)
{
    return kind == FAULT_PART || kind == FAULT_PART_WAY || kind == FAULT_CUT || kind == FAULT_DELAY || kind == FAULT_FLIP;
}

// False: it is not to be taken away. The rest is numbered anew.
static bool take_node(struct schedule *s, uint32_t node)
{
    const uint32_t workers = 1 + s->mesh.stages, gateways = workers + s->workers;
    uint32_t *count = node < gateways ? &s->workers : &s->gateways;

    if (node < workers || *count < 2)
        return false;
    for (uint32_t i = 0; i < s->fault_count; i++) {
        struct fault *fault = &s->faults[i];
        if (!has_two_nodes(fault->kind))
            fault->b = 0;
        if (fault->a == node || fault->b == node)
            return false;
        fault->a -= fault->a > node;
        fault->b -= fault->b > node;
    }
    --*count;
    for (uint32_t i = 0; i < s->client_count; i++)
        s->clients[i].gateway %= s->gateways;
    if (node < gateways) // fewer must hold the longest request, too
        s->mesh.worker_bytes = WORKER_BYTES;
    if (s->workers < 2)
        s->late_worker = 0;
    return true;
}

static bool has_fewer_nodes(struct shrinking *it)
{
    bool better = false;

    for (uint32_t node = NODES_MAX; node--;) {
        struct schedule candidate = *it->best;
        if (node < 1 + candidate.mesh.stages + candidate.workers + candidate.gateways && take_node(&candidate, node))
            better |= try(it, &candidate);
    }
    return better;
}

// --- plainer. Each returns false if there was nothing to do.

static bool put_u32(uint32_t *at, uint32_t value)
{
    const bool differs = *at != value;
    *at = value;
    return differs;
}

static bool put_u64(uint64_t *at, uint64_t value)
{
    const bool differs = *at != value;
    *at = value;
    return differs;
}

static bool put_flag(bool *at, bool value)
{
    const bool differs = *at != value;
    *at = value;
    return differs;
}

// At a round time not later than its own.
static bool round_ns(uint64_t *at, uint64_t unit_ns) { return *at >= unit_ns && put_u64(at, *at - *at % unit_ns); }

enum { MESH_STEPS = 14, CLIENT_STEPS = 7, FAULT_STEPS = 6 };

static bool make_mesh_plainer(struct schedule *s, uint32_t step)
{
    switch (step) {
    case 0: return put_u32(&s->late_worker, 0);
    case 1: return put_u64(&s->window_bytes, 256 << 10);
    case 2: return put_u32(&s->split, 0);
    case 3: return put_u32(&s->mesh.draft_tokens, 0);
    case 4: return put_flag(&s->mesh.prefix_cache, false);
    case 5: return put_u32(&s->mesh.chunk, 0);
    case 6: return put_u32(&s->mesh.mini_batches, 1);
    case 7: return put_u32(&s->mesh.max_queue, 16);
    case 8: return put_u32(&s->mesh.max_batch, 8);
    case 9: return put_u64(&s->mesh.pool_bytes, 0);
    case 10: return put_u64(&s->mesh.worker_bytes, WORKER_BYTES);
    case 11: return put_u64(&s->mesh.segment_ns, MS_NS);
    case 12: return put_u64(&s->latency_ns, MS_NS);
    case 13: return put_u64(&s->jitter_ns, 0);
    default: return false;
    }
}

static bool make_client_plainer(struct client_plan *client, uint32_t step)
{
    switch (step) {
    case 0: return put_u64(&client->leaves_ns, 0);
    case 1: return put_flag(&client->batch, false);
    case 2: return put_u32(&client->gateway, 0);
    case 3: return put_u32(&client->kind, 0);
    case 4: return round_ns(&client->at_ns, 100 * MS_NS);
    case 5: return round_ns(&client->at_ns, MS_NS);
    case 6: return round_ns(&client->leaves_ns, MS_NS);
    default: return false;
    }
}

static bool make_fault_plainer(struct fault *fault, uint32_t step)
{
    switch (step) {
    case 0: return fault->for_ns > FOR_LEAST_NS && put_u64(&fault->for_ns, FOR_LEAST_NS);
    case 1: return fault->for_ns > FOR_LEAST_NS && put_u64(&fault->for_ns, MAX(fault->for_ns / 2, (uint64_t)FOR_LEAST_NS));
    case 2: return round_ns(&fault->for_ns, MS_NS);
    case 3: return round_ns(&fault->at_ns, 100 * MS_NS);
    case 4: return round_ns(&fault->at_ns, MS_NS);
    case 5:
        if (fault->kind != FAULT_VANISH)
            return false;
        fault->kind = FAULT_KILL;
        return true;
    default: return false;
    }
}

static bool is_plainer(struct shrinking *it)
{
    struct schedule candidate = *it->best;
    bool better = false;

    for (uint32_t step = 0; step < MESH_STEPS; step++, candidate = *it->best)
        if (make_mesh_plainer(&candidate, step))
            better |= try(it, &candidate);
    for (uint32_t i = 0; i < it->best->client_count; i++)
        for (uint32_t step = 0; step < CLIENT_STEPS; step++, candidate = *it->best)
            if (make_client_plainer(&candidate.clients[i], step))
                better |= try(it, &candidate);
    for (uint32_t i = 0; i < it->best->fault_count; i++)
        for (uint32_t step = 0; step < FAULT_STEPS; step++, candidate = *it->best)
            if (make_fault_plainer(&candidate.faults[i], step))
                better |= try(it, &candidate);
    return better;
}

uint32_t shrink(struct schedule *schedule, const char *failure, shrink_run_fn *run, void *arg)
{
    struct shrinking it = {
        .best = schedule, .failure = failure, .run = run, .arg = arg, .end_ns = real_now_ns(CLOCK_MONOTONIC) + TIME_MAX_NS};
    bool better = true;

    while (better) {
        better = has_fewer(&it, FAULTS);
        better |= has_fewer(&it, CLIENTS);
        better |= has_fewer_nodes(&it);
    }
    // what is plainer may need less
    for (uint32_t rounds = 0; rounds < 4 && is_plainer(&it); rounds++) {
        has_fewer(&it, FAULTS);
        has_fewer(&it, CLIENTS);
        has_fewer_nodes(&it);
    }
    return it.runs;
}

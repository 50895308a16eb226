// schedule.c: what happens: made from a seed, written and read as text.
#include "tests/sim/schedule.h"

#include <string.h>

#include "common/base/checked.h"

enum { NODES_OTHERS = 1 }; // before the s-parts: the scheduler

// Seeds from this one on dwell on one weak spot each.
#define DWELLS_FROM 1000000000000ull

enum weak_spot {
    ANYWHERE,
    HAND_OVERS,   // workers drain, and one of those between which pages travel has trouble
    SCHEDULERS,   // the scheduler is replaced, while others are slow and clients leave
    COMINGS_BACK, // workers are cut off from the scheduler, and are back at once
    WEAK_SPOTS,
};

static const char *const fault_names[FAULT_KINDS] = {
    [FAULT_KILL] = "kill",         [FAULT_VANISH] = "vanish", [FAULT_STOP] = "stop",     [FAULT_PART] = "part",
    [FAULT_PART_WAY] = "part-way", [FAULT_CUT] = "cut",       [FAULT_DELAY] = "delay",   [FAULT_SLOW] = "slow",
    [FAULT_FLIP] = "flip",         [FAULT_CLOCK] = "clock",   [FAULT_DOUBLE] = "double", [FAULT_MEMORY] = "memory",
    [FAULT_DRAIN] = "drain"};

// --- from a seed

static uint64_t below(uint64_t *random, uint64_t limit) { return random_next(random) % limit; }

// From least to most, each order of magnitude alike.
static uint64_t between(uint64_t *random, uint64_t least, uint64_t most)
{
    uint32_t doublings = 0;

    while (least << (doublings + 1) <= most)
        doublings++;
    const uint64_t from = least << below(random, doublings + 1);
    const uint64_t drawn = from + below(random, from);
    return MIN(most, drawn);
}

static void make_mesh(uint64_t *random, struct schedule *s)
{
    s->mesh = (struct mesh_settings){.max_queue = below(random, 4) ? 16 : 3,
                                     .max_batch = below(random, 3) ? 8 : 2,
                                     .mini_batches = (uint32_t)below(random, 4),
                                     .chunk = (uint32_t)below(random, 3) * 16,
                                     .draft_tokens = below(random, 2) ? 4 : 0,
                                     .stages = below(random, 4) ? 1 : 2,
                                     .prefix_cache = below(random, 4) > 0,
                                     .real_draw = below(random, 10) == 0,
                                     .segment_ns = between(random, 100000, 10 * MS_NS)};
    static const uint64_t pools[] = {0, 0, 1 << 16, 1 << 18, 1 << 20};
    s->mesh.pool_bytes = pools[below(random, ARRAY_COUNT(pools))];
    s->mesh.batches = 2 * s->mesh.stages;
    s->mesh.mini_batches = MIN(s->mesh.mini_batches, s->mesh.batches);
    s->workers = 1 + (uint32_t)below(random, 3);
    // a page has 4 KiB. The longest request wants 40: one worker must hold it, several may have to split it
    s->mesh.worker_bytes = below(random, 2) ? 1 << 20 : s->workers == 1 ? 3 << 16 : 9 << 14;
    s->gateways = 1 + (uint32_t)below(random, 2);
    s->late_worker = s->workers > 1 && !below(random, 4) ? 300 + (uint32_t)below(random, 3000) : 0;
    s->latency_ns = between(random, 10000, 5 * MS_NS);
    s->jitter_ns = between(random, 1000, 2 * MS_NS);
    s->window_bytes = below(random, 4) ? 256 << 10 : 4 << 10;
    s->split = below(random, 2) ? 0 : 10;
}

static void make_clients(uint64_t *random, uint64_t span_ns, struct schedule *s)
{
    s->client_count = 1 + (uint32_t)below(random, 10);
    for (uint32_t i = 0; i < s->client_count; i++) {
        struct client_plan *client = &s->clients[i];
        *client = (struct client_plan){.at_ns = 200 * MS_NS + below(random, span_ns),
                                       .gateway = (uint32_t)below(random, s->gateways),
                                       .kind = (uint32_t)below(random, KINDS),
                                       .batch = !below(random, 5)};
        if (!below(random, 8))
            client->leaves_ns = client->at_ns + between(random, MS_NS, 2 * S_NS);
    }
}

static uint32_t node_count(const struct schedule *s) { return NODES_OTHERS + s->mesh.stages + s->workers + s->gateways; }

static uint32_t any_other(uint64_t *random, const struct schedule *s, uint32_t a)
{
    const uint32_t b = (uint32_t)below(random, node_count(s) - 1);
    return b + (b >= a);
}

static uint32_t any_worker(uint64_t *random, const struct schedule *s)
{
    return NODES_OTHERS + s->mesh.stages + (uint32_t)below(random, s->workers);
}

static struct fault make_fault(uint64_t *random, const struct schedule *s, uint64_t at_ns)
{
    static const enum fault_kind often[] = {FAULT_KILL,  FAULT_KILL,     FAULT_KILL,   FAULT_VANISH, FAULT_STOP,
                                            FAULT_PART,  FAULT_PART_WAY, FAULT_CUT,    FAULT_CUT,    FAULT_DELAY,
                                            FAULT_SLOW,  FAULT_FLIP,     FAULT_CLOCK,  FAULT_MEMORY, FAULT_DRAIN,
                                            FAULT_DRAIN, FAULT_DRAIN,    FAULT_MEMORY, FAULT_DOUBLE};
    struct fault fault = {
        .at_ns = at_ns, .kind = often[below(random, ARRAY_COUNT(often))], .for_ns = between(random, 20 * MS_NS, 20 * S_NS)};

    fault.a = (uint32_t)below(random, node_count(s));
    fault.b = any_other(random, s, fault.a);
    switch (fault.kind) {
    case FAULT_VANISH: fault.value = (int64_t)below(random, 2); // fall through
    case FAULT_KILL: fault.for_ns = between(random, 20 * MS_NS, below(random, 4) ? 6 * S_NS : 30 * S_NS); break;
    case FAULT_CUT: fault.value = below(random, 2) ? 0 : (int64_t)below(random, 20000); break;
    case FAULT_DELAY: fault.value = (int64_t)between(random, MS_NS, 200 * MS_NS); break;
    case FAULT_SLOW: fault.value = (int64_t)between(random, MS_NS, 200 * MS_NS); break;
    case FAULT_CLOCK: {
        static const int64_t leaps_s[] = {1, 5, 3600, 3 * 86400};
        fault.value = leaps_s[below(random, ARRAY_COUNT(leaps_s))] * (int64_t)S_NS * (below(random, 2) ? 1 : -1);
        break;
    }
    case FAULT_MEMORY: fault.value = (int64_t)between(random, 1, 400); break;
    case FAULT_DRAIN: fault.a = any_worker(random, s); break;
    default: break;
    }
    return fault;
}

// The faults that hurt most come together: a process dies whose last words are still on their way, or while another one hands its pages over.
static struct fault make_companion(uint64_t *random, const struct schedule *s, const struct fault *first)
{
    const bool kills = first->kind == FAULT_PART_WAY || first->kind == FAULT_PART || first->kind == FAULT_DELAY;
    struct fault second = make_fault(random, s, first->at_ns + between(random, MS_NS / 4, S_NS / 2));

    if (!kills && first->kind != FAULT_DRAIN)
        return second;
    second.kind = FAULT_KILL;
    second.a = kills ? first->a : any_other(random, s, first->a);
    second.for_ns = between(random, 5 * MS_NS, S_NS);
    return second;
}

// Returns a time for a fault: mostly while a request is computed.
static uint64_t fault_time(uint64_t *random, const struct schedule *s, uint64_t span_ns)
{
    const struct client_plan *client = &s->clients[below(random, s->client_count)];

    return below(random, 5) ? client->at_ns + between(random, MS_NS, S_NS) : 200 * MS_NS + below(random, span_ns);
}

static void make_faults(uint64_t *random, uint64_t span_ns, struct schedule *s)
{
    static const uint32_t counts[] = {0, 1, 2, 2, 3, 3, 4, 5, 6, 10};
    const uint32_t count = counts[below(random, ARRAY_COUNT(counts))];

    while (s->fault_count < count) {
        const struct fault fault = make_fault(random, s, fault_time(random, s, span_ns));
        s->faults[s->fault_count++] = fault;
        if (s->fault_count < count && below(random, 2))
            s->faults[s->fault_count++] = make_companion(random, s, &fault);
        if (fault.kind == FAULT_DRAIN && below(random, 2)) { // who leaves while pages are handed over
            struct client_plan *client = &s->clients[below(random, s->client_count)];
            client->leaves_ns = MAX(fault.at_ns, client->at_ns) + between(random, MS_NS / 4, 200 * MS_NS);
        }
    }
}

// --- on a weak spot

static struct fault of_kind(uint64_t *random, const struct schedule *s, enum fault_kind kind, uint64_t at_ns)
{
    struct fault fault;

    do
        fault = make_fault(random, s, at_ns);
    while (fault.kind != kind);
    return fault;
}

// Pages travel for a tenth of a second or so: trouble comes meanwhile.
static void disturb_hand_over(uint64_t *random, struct schedule *s, uint64_t at_ns)
{
    static const enum fault_kind kinds[] = {FAULT_KILL, FAULT_KILL,  FAULT_CUT,  FAULT_CUT,    FAULT_PART,  FAULT_PART_WAY,
                                            FAULT_STOP, FAULT_DELAY, FAULT_FLIP, FAULT_MEMORY, FAULT_DOUBLE};
    struct fault drain = of_kind(random, s, FAULT_DRAIN, at_ns);

    s->faults[s->fault_count++] = drain;
    for (uint32_t i = (uint32_t)below(random, 3); i > 0 && s->fault_count < FAULTS_MAX; i--) {
        struct fault *fault = &s->faults[s->fault_count++];
        *fault = of_kind(random, s, kinds[below(random, ARRAY_COUNT(kinds))], at_ns + between(random, MS_NS / 4, 200 * MS_NS));
        if (below(random, 4)) { // of one of those that hand over, or tell them to
            fault->a = below(random, 2) ? drain.a : any_worker(random, s);
            fault->b = s->workers > 1 && below(random, 2) ? NODES_OTHERS + s->mesh.stages + (fault->a - s->mesh.stages) % s->workers
                                                          : 0;
        }
        if (fault->kind == FAULT_KILL)
            fault->for_ns = between(random, 5 * MS_NS, S_NS);
    }
    if (below(random, 2)) {
        struct client_plan *client = &s->clients[below(random, s->client_count)];
        client->leaves_ns = MAX(at_ns, client->at_ns) + between(random, MS_NS / 4, 200 * MS_NS);
    }
}

// The new scheduler comes while what the old one said is still on its way, or being done.
static void replace_scheduler(uint64_t *random, struct schedule *s, uint64_t at_ns)
{
    static const enum fault_kind kinds[] = {FAULT_PART, FAULT_PART_WAY, FAULT_DELAY, FAULT_SLOW, FAULT_STOP, FAULT_KILL};
    const bool vanishes = below(random, 2);

    for (uint32_t i = (uint32_t)below(random, 3); i > 0 && s->fault_count < FAULTS_MAX - 1; i--) {
        struct fault *fault = &s->faults[s->fault_count++];
        *fault = of_kind(random, s, kinds[below(random, ARRAY_COUNT(kinds))], at_ns - between(random, MS_NS / 4, 50 * MS_NS));
        if (fault->kind != FAULT_STOP && fault->kind != FAULT_KILL && fault->kind != FAULT_SLOW)
            fault->a = 0;
        else
            fault->a = fault->a ? fault->a : 1;
        fault->b = fault->b == fault->a ? any_other(random, s, fault->a) : fault->b;
        fault->for_ns = between(random, 20 * MS_NS, 6 * S_NS);
    }
    s->faults[s->fault_count++] = (struct fault){
        .at_ns = at_ns,
        .kind = vanishes ? FAULT_VANISH : FAULT_KILL,
        .value = vanishes ? 1 + (int64_t)(below(random, 2) * between(random, 50 * MS_NS, 8 * S_NS)) : 0,
        .for_ns = between(random, 5 * MS_NS, S_NS),
    };
    for (uint32_t i = 0; i < s->client_count; i++)
        if (!below(random, 4))
            s->clients[i].leaves_ns = MAX(at_ns, s->clients[i].at_ns) + between(random, MS_NS, 6 * S_NS);
}

static void cut_off_worker(uint64_t *random, struct schedule *s, uint64_t at_ns)
{
    struct fault *fault = &s->faults[s->fault_count++];

    *fault = of_kind(random, s, below(random, 3) ? FAULT_CUT : below(random, 2) ? FAULT_FLIP : FAULT_PART, at_ns);
    fault->a = any_worker(random, s);
    fault->b = 0;
    if (fault->kind == FAULT_CUT)
        fault->value = below(random, 2) ? 0 : (int64_t)below(random, 500);
    if (below(random, 3) || s->fault_count == FAULTS_MAX)
        return;
    s->faults[s->fault_count] = make_companion(random, s, fault);
    s->fault_count++;
}

static void dwell(uint64_t *random, uint64_t span_ns, struct schedule *s)
{
    const enum weak_spot spot = (enum weak_spot)below(random, WEAK_SPOTS);
    const uint32_t count = 1 + (uint32_t)below(random, 6);

    for (uint32_t i = 0; i < count && s->fault_count < FAULTS_MAX - 1; i++) {
        const uint64_t at_ns = fault_time(random, s, span_ns);
        switch (spot) {
        case HAND_OVERS: disturb_hand_over(random, s, at_ns); break;
        case SCHEDULERS: replace_scheduler(random, s, at_ns); break;
        case COMINGS_BACK: cut_off_worker(random, s, at_ns); break;
        default: s->faults[s->fault_count++] = make_fault(random, s, at_ns);
        }
    }
}

void schedule_make(uint64_t seed, struct schedule *out)
{
    uint64_t random = seed;

    *out = (struct schedule){.seed = seed};
    make_mesh(&random, out);
    const uint64_t span_ns = between(&random, S_NS / 4, 8 * S_NS);
    make_clients(&random, span_ns, out);
    if (seed < DWELLS_FROM)
        make_faults(&random, span_ns, out);
    else
        dwell(&random, span_ns, out);
}

void schedule_alone(uint32_t kind, bool real_draw, struct schedule *out)
{
    *out = (struct schedule){.seed = 1,
                             .mesh = {.max_queue = 4,
                                      .max_batch = 2,
                                      .mini_batches = 1,
                                      .stages = 1,
                                      .batches = 1,
                                      .real_draw = real_draw,
                                      .pool_bytes = 1 << 20,
                                      .worker_bytes = 1 << 20,
                                      .segment_ns = 50000},
                             .gateways = 1,
                             .latency_ns = 20000,
                             .window_bytes = 256 << 10,
                             .clients = {{.at_ns = 200 * MS_NS, .kind = kind}},
                             .client_count = 1};
}

// --- as text: a line each, of numbers

void schedule_write(const struct schedule *s, FILE *file)
{
    const struct mesh_settings *m = &s->mesh;

    fprintf(file, "seed %llu\n", (unsigned long long)s->seed);
    fprintf(file, "mesh %u %u %u %u %u %u %u %d %d %llu %llu %llu\n", m->max_queue, m->max_batch, m->mini_batches, m->chunk,
            m->draft_tokens, m->stages, m->batches, m->prefix_cache, m->real_draw, (unsigned long long)m->pool_bytes,
            (unsigned long long)m->worker_bytes, (unsigned long long)m->segment_ns);
    fprintf(file, "nodes %u %u %u\n", s->workers, s->gateways, s->late_worker);
    fprintf(file, "network %llu %llu %llu %u\n", (unsigned long long)s->latency_ns, (unsigned long long)s->jitter_ns,
            (unsigned long long)s->window_bytes, s->split);
    for (uint32_t i = 0; i < s->client_count; i++) {
        const struct client_plan *c = &s->clients[i];
        fprintf(file, "client %llu %llu %u %u %d\n", (unsigned long long)c->at_ns, (unsigned long long)c->leaves_ns, c->gateway,
                c->kind, c->batch);
    }
    for (uint32_t i = 0; i < s->fault_count; i++) {
        const struct fault *f = &s->faults[i];
        fprintf(file, "%s %llu %llu %lld %u %u\n", fault_names[f->kind], (unsigned long long)f->at_ns,
                (unsigned long long)f->for_ns, (long long)f->value, f->a, f->b);
    }
    fprintf(file, "end\n");
}

static bool read_fault(const char *word, FILE *file, struct schedule *s)
{
    struct fault *f = &s->faults[s->fault_count];
    unsigned long long at, lasts;
    long long value;

    for (uint32_t kind = 0; kind < FAULT_KINDS; kind++)
        if (!strcmp(word, fault_names[kind])) {
            if (s->fault_count == FAULTS_MAX || fscanf(file, "%llu %llu %lld %u %u", &at, &lasts, &value, &f->a, &f->b) != 5)
                return false;
            f->kind = kind;
            f->at_ns = at;
            f->for_ns = lasts;
            f->value = value;
            s->fault_count++;
            return f->a < NODES_MAX && f->b < NODES_MAX;
        }
    return false;
}

static bool read_line(const char *word, FILE *file, struct schedule *s)
{
    struct mesh_settings *m = &s->mesh;
    unsigned long long a, b, c;
    int flag, real;

    if (!strcmp(word, "seed")) {
        const bool read = fscanf(file, "%llu", &a) == 1;
        s->seed = a;
        return read;
    }
    if (!strcmp(word, "mesh")) {
        const bool read = fscanf(file, "%u %u %u %u %u %u %u %d %d %llu %llu %llu", &m->max_queue, &m->max_batch, &m->mini_batches,
                                 &m->chunk, &m->draft_tokens, &m->stages, &m->batches, &flag, &real, &a, &b, &c) == 12;
        m->prefix_cache = flag;
        m->real_draw = real;
        m->pool_bytes = a;
        m->worker_bytes = b;
        m->segment_ns = c;
        return read;
    }
    if (!strcmp(word, "nodes"))
        return fscanf(file, "%u %u %u", &s->workers, &s->gateways, &s->late_worker) == 3;
    if (!strcmp(word, "network")) {
        const bool read = fscanf(file, "%llu %llu %llu %u", &a, &b, &c, &s->split) == 4;
        s->latency_ns = a;
        s->jitter_ns = b;
        s->window_bytes = c;
        return read;
    }
    if (!strcmp(word, "client")) {
        struct client_plan *client = &s->clients[s->client_count];
        if (s->client_count == CLIENTS_MAX ||
            fscanf(file, "%llu %llu %u %u %d", &a, &b, &client->gateway, &client->kind, &flag) != 5)
            return false;
        client->at_ns = a;
        client->leaves_ns = b;
        client->batch = flag;
        s->client_count++;
        return client->kind < KINDS;
    }
    return read_fault(word, file, s);
}

bool schedule_read(FILE *file, struct schedule *out)
{
    char word[16];

    *out = (struct schedule){0};
    while (fscanf(file, "%15s", word) == 1) {
        if (word[0] == '#') {
            if (fscanf(file, "%*[^\n]") < 0)
                return false;
            continue;
        }
        if (!strcmp(word, "end"))
            return out->mesh.stages > 0 && out->gateways > 0 && node_count(out) <= NODES_MAX;
        if (!read_line(word, file, out))
            return false;
    }
    return false;
}

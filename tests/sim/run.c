// run.c: runs a schedule: starts the nodes, lets requests and faults come when they are due, and looks whether all ends well.
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/check.h"
#include "tests/sim/schedule.h"

enum { LOOK_NS = 100000000 };
#define REST_NS (120 * S_NS) // after the last fault, until all must be at rest
#define AGAIN_NS (500 * MS_NS)

static struct {
    const struct schedule *schedule;
    uint64_t begin_ns;
    uint64_t starts_ns[NODES_MAX]; // a process that is down is started then; 0: nobody has seen that it is
    bool begun[FAULTS_MAX], over[FAULTS_MAX];
    char failure[4096];
} run;

// --- faults

static uint64_t fault_at(const struct fault *fault) { return run.begin_ns + fault->at_ns; }

static bool lasts(enum fault_kind kind) { return kind == FAULT_STOP || kind == FAULT_DELAY || kind == FAULT_SLOW; }

static void begin_fault(const struct fault *fault)
{
    struct node *a = &world.nodes[fault->a], *b = &world.nodes[fault->b];
    const uint64_t until_ns = world.now_ns + fault->for_ns;

    world_note("fault", (uint64_t)fault->kind, fault->a);
    switch (fault->kind) {
    case FAULT_KILL:
    case FAULT_VANISH:
        if (!a->up)
            break;
        if (fault->kind == FAULT_VANISH && fault->value > 1)
            network_late(a, (uint64_t)fault->value);
        node_kill(a, fault->kind == FAULT_VANISH);
        a->moves = fault->value; // it is started at another host: the one that vanished says nothing any more
        run.starts_ns[fault->a] = until_ns;
        break;
    case FAULT_STOP:
        world_say("stop %s for %.3f ms", a->name, (double)fault->for_ns * 1e-6);
        a->stopped = a->up;
        break;
    case FAULT_PART:
        network.blocked_ns[fault->b][fault->a] = MAX(network.blocked_ns[fault->b][fault->a], until_ns);
        // fall through
    case FAULT_PART_WAY:
        world_say("nothing passes from %s to %s%s for %.3f ms", a->name, b->name, fault->kind == FAULT_PART ? " and back" : "",
                  (double)fault->for_ns * 1e-6);
        network.blocked_ns[fault->a][fault->b] = MAX(network.blocked_ns[fault->a][fault->b], until_ns);
        break;
    case FAULT_CUT:
        world_say("cut %s and %s after %lld bytes", a->name, b->name, (long long)fault->value);
        network_cut(a, b, (uint64_t)fault->value);
        break;
    case FAULT_DELAY:
        world_say("%s to %s takes %.3f ms more", a->name, b->name, (double)fault->value * 1e-6);
        network.latency_ns[fault->a][fault->b] += (uint64_t)fault->value;
        break;
    case FAULT_SLOW:
        world_say("turns of %s take %.3f ms", a->name, (double)fault->value * 1e-6);
        a->turn_ns += (uint64_t)fault->value;
        break;
    case FAULT_FLIP:
        world_say("a bit from %s to %s is wrong", a->name, b->name);
        network_flip(a, b);
        break;
    case FAULT_DOUBLE:
        world_say("a message from %s to %s comes twice", a->name, b->name);
        network_double(a, b);
        break;
    case FAULT_CLOCK:
        world_say("the clock of %s leaps by %.0f s", a->name, (double)fault->value * 1e-9);
        a->wall_ns += fault->value;
        break;
    case FAULT_MEMORY:
        world_say("%s lacks memory in %lld allocations", a->name, (long long)fault->value);
        a->memory.fails_in = (uint64_t)fault->value;
        break;
    case FAULT_DRAIN: {
        struct node *before = node_enter(a);
        if (a->up && !a->stopped && worker_drain(a))
            node_wake(a);
        node_leave(before);
        break;
    }
    case FAULT_KINDS: break;
    }
}

static void end_fault(const struct fault *fault)
{
    struct node *a = &world.nodes[fault->a];

    if (fault->kind == FAULT_STOP) {
        if (a->stopped)
            world_say("%s goes on", a->name);
        a->stopped = false;
    } else if (fault->kind == FAULT_DELAY) {
        network.latency_ns[fault->a][fault->b] -= (uint64_t)fault->value;
    } else {
        a->turn_ns -= (uint64_t)fault->value;
    }
}

static uint64_t faults_next_ns(void)
{
    uint64_t next_ns = NEVER;

    for (uint32_t i = 0; i < run.schedule->fault_count; i++) {
        const struct fault *fault = &run.schedule->faults[i];
        if (!run.begun[i])
            next_ns = MIN(next_ns, fault_at(fault));
        else if (!run.over[i])
            next_ns = MIN(next_ns, fault_at(fault) + fault->for_ns);
    }
    return next_ns;
}

static void faults_step(void)
{
    for (uint32_t i = 0; i < run.schedule->fault_count; i++) {
        const struct fault *fault = &run.schedule->faults[i];
        if (!run.begun[i] && fault_at(fault) <= world.now_ns) {
            run.begun[i] = true;
            run.over[i] = !lasts(fault->kind);
            begin_fault(fault);
        } else if (run.begun[i] && !run.over[i] && fault_at(fault) + fault->for_ns <= world.now_ns) {
            run.over[i] = true;
            end_fault(fault);
        }
    }
}

// --- processes that are down

static uint64_t starts_next_ns(void)
{
    uint64_t next_ns = NEVER;

    for (uint32_t i = 0; i < world.node_count; i++)
        if (!world.nodes[i].up && run.starts_ns[i])
            next_ns = MIN(next_ns, run.starts_ns[i]);
    return next_ns;
}

// Whoever keeps services running (`up`, systemd, Kubernetes) starts one that has ended again.
static void starts_step(void)
{
    struct error error;

    for (uint32_t i = 0; i < world.node_count; i++) {
        struct node *node = &world.nodes[i];
        if (node->up)
            continue;
        if (!run.starts_ns[i])
            run.starts_ns[i] = world.now_ns + AGAIN_NS;
        if (run.starts_ns[i] > world.now_ns)
            continue;
        run.starts_ns[i] = node_start(node, &error) ? world.now_ns + AGAIN_NS : 0;
    }
}

// --- the run

static void add_nodes(const struct schedule *s)
{
    char name[16];

    world_add(NODE_SCHEDULER, "sched");
    for (uint32_t i = 0; i < s->mesh.stages; i++) {
        snprintf(name, sizeof name, "s%u", i + 1);
        world_add(NODE_S_PART, name);
    }
    for (uint32_t i = 0; i < s->workers; i++) {
        snprintf(name, sizeof name, "w%u", i + 1);
        struct node *node = world_add(NODE_WORKER, name);
        if (s->late_worker && i + 1 == s->workers)
            run.starts_ns[node->index] = run.begin_ns + s->late_worker * MS_NS;
    }
    for (uint32_t i = 0; i < s->gateways; i++) {
        snprintf(name, sizeof name, "g%u", i + 1);
        world_add(NODE_GATEWAY, name);
    }
    for (uint32_t i = 0; i < world.node_count; i++) {
        if (!run.starts_ns[i])
            run.starts_ns[i] = run.begin_ns + 1 + world_below(20 * MS_NS);
        for (uint32_t k = 0; k < world.node_count; k++)
            network.latency_ns[i][k] = s->latency_ns;
    }
}

static uint64_t last_fault_ns(const struct schedule *s)
{
    uint64_t last_ns = run.begin_ns;

    for (uint32_t i = 0; i < s->fault_count; i++)
        last_ns = MAX(last_ns, fault_at(&s->faults[i]) + s->faults[i].for_ns);
    return last_ns;
}

static bool step_until(uint64_t until_ns)
{
    while (world.now_ns < until_ns) {
        uint64_t next_ns = MIN(MIN(clients_next_ns(), faults_next_ns()), MIN(starts_next_ns(), until_ns));
        world_run(MAX(next_ns, world.now_ns), check_always, NULL);
        if (check_failure()) {
            snprintf(run.failure, sizeof run.failure, "%s", check_failure());
            return false;
        }
        faults_step();
        starts_step();
        clients_step();
    }
    return true;
}

// Nothing that was under way is left. NULL: so it is.
static const char *at_rest(void)
{
    static char text[512];

    if (!clients_are_done())
        return "clients wait";
    return check_rest(text, sizeof text) ? NULL : text;
}

static void close_all(void)
{
    static const enum node_kind order[] = {NODE_GATEWAY, NODE_SCHEDULER, NODE_S_PART, NODE_WORKER};

    for (uint32_t k = 0; k < ARRAY_COUNT(order); k++)
        for (uint32_t i = 0; i < world.node_count; i++) {
            struct node *node = &world.nodes[i];
            if (!node->up || node->kind != order[k])
                continue;
            node_close(node);
            if (node->leaked && !run.failure[0])
                snprintf(run.failure, sizeof run.failure, "%s has %llu blocks of memory left when it has ended", node->name,
                         (unsigned long long)node->leaked);
        }
}

static void drop_all(void)
{
    for (uint32_t i = 0; i < world.node_count; i++)
        node_kill(&world.nodes[i], false);
}

const char *schedule_run(const struct schedule *s)
{
    struct client_plan plans[CLIENTS_MAX];
    const char *wants = NULL;
    char why[3000];

    memset(&run, 0, sizeof run);
    run.schedule = s;
    mesh_settings = s->mesh;
    world_begin(s->seed);
    check_begin();
    run.begin_ns = world.now_ns;
    network.jitter_ns = s->jitter_ns;
    network.window_bytes = s->window_bytes;
    network.split = s->split;
    add_nodes(s);
    for (uint32_t i = 0; i < s->client_count; i++) {
        plans[i] = s->clients[i];
        plans[i].at_ns += run.begin_ns;
        plans[i].leaves_ns += plans[i].leaves_ns ? run.begin_ns : 0;
    }
    clients_begin(plans, s->client_count);
    const uint64_t calm_ns = last_fault_ns(s), end_ns = calm_ns + REST_NS;
    bool well = step_until(calm_ns);
    for (uint32_t i = 0; i < world.node_count; i++)
        world.nodes[i].memory.fails_in = 0;
    network_calm();
    while (well && (wants = at_rest()) && world.now_ns < end_ns)
        well = step_until(world.now_ns + LOOK_NS);
    if (well && wants && clients_failed(why, sizeof why))
        snprintf(run.failure, sizeof run.failure, "%s", why);
    else if (well && wants)
        snprintf(run.failure, sizeof run.failure, "not at rest after 120 s: %s", wants);
    else if (well && clients_failed(why, sizeof why))
        snprintf(run.failure, sizeof run.failure, "%s", why);
    if (well)
        close_all();
    drop_all();
    if (network_links() && !run.failure[0])
        snprintf(run.failure, sizeof run.failure, "%u connections are left", network_links());
    return run.failure[0] ? run.failure : NULL;
}

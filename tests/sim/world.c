// world.c: the virtual time, the nodes, and whose turn is next.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/services.h"

struct world world;

enum { TURN_NS = 20000 }; // what a turn takes besides what it computes

void world_begin(uint64_t seed)
{
    const bool says = world.says;

    world = (struct world){.now_ns = 1000 * S_NS, .random = seed * 2 + 1, .says = says};
    network_begin();
}

uint64_t world_below(uint64_t limit) { return limit ? random_next(&world.random) % limit : 0; }

static void hash_in(uint64_t value) { world.hash = (world.hash ^ value) * UINT64_C(0x9e3779b97f4a7c15) ^ world.hash >> 29; }

void world_note(const char *what, uint64_t a, uint64_t b)
{
    uint64_t name = 0;

    for (const char *at = what; *at; at++)
        name = name * 131 + (unsigned char)*at;
    hash_in(name);
    hash_in(world.now_ns);
    hash_in(a);
    hash_in(b);
}

void world_say(const char *format, ...)
{
    const uint64_t at_ns = world.current ? world.current->now_ns : world.now_ns;
    va_list arguments;

    if (!world.says)
        return;
    struct node *before = node_enter(NULL);
    printf("%10.3f %-6s ", (double)(at_ns - 1000 * S_NS) * 1e-6, before ? before->name : "");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    node_leave(before);
}

struct node *world_add(enum node_kind kind, const char *name)
{
    struct node *node = &world.nodes[world.node_count];

    assert_always(world.node_count < NODES_MAX);
    *node = (struct node){.kind = kind, .index = world.node_count++, .wake_ns = NEVER, .turn_ns = TURN_NS};
    snprintf(node->name, sizeof node->name, "%s", name);
    snprintf(node->address, sizeof node->address, "inproc://%s", name);
    snprintf(node->tensor_address, sizeof node->tensor_address, "inproc://%s-t", name);
    return node;
}

struct node *node_enter(struct node *node)
{
    struct node *before = world.current;

    world.current = node;
    if (node && node->now_ns < world.now_ns)
        node->now_ns = world.now_ns;
    return before;
}

void node_leave(struct node *before) { world.current = before; }

void node_wake(struct node *node) { node->wake_ns = MIN(node->wake_ns, MAX(world.now_ns, node->busy_ns)); }

void node_drop(struct node *node)
{
    struct node *before = node_enter(node);

    memory_drop(node);
    node_leave(before);
    node->service = NULL;
    node->up = node->stopped = false;
    node->wake_ns = NEVER;
}

// --- whose turn it is

static void take_turn(struct node *node)
{
    struct node *before = node_enter(node);

    node->now_ns = MAX(node->now_ns, world.now_ns);
    node->wake_ns = NEVER;
    node->parked = 0;
    node->handled = false;
    world_note("turn", node->index, node->now_ns);
    node_turn(node);
    node->now_ns += node->turn_ns;
    node->busy_ns = node->now_ns;
    if (node->up && (node->handled || node->parked < service_of(node)->loops))
        node->wake_ns = node->now_ns; // something may be left
    node->wake_ns = MAX(node->wake_ns, node->now_ns);
    node_leave(before);
}

static struct node *next_node(uint64_t *at_ns)
{
    struct node *next = NULL;

    *at_ns = NEVER;
    for (uint32_t i = 0; i < world.node_count; i++) {
        struct node *node = &world.nodes[i];
        const uint64_t due_ns = MAX(node->wake_ns, node->busy_ns);
        if (!node->up || node->stopped || node->wake_ns == NEVER || due_ns >= *at_ns)
            continue;
        *at_ns = due_ns;
        next = node;
    }
    return next;
}

void world_run(uint64_t until_ns, bool (*done)(void *arg), void *arg)
{
    while (!done || !done(arg)) {
        uint64_t turn_ns, network_ns = network_next_ns();
        struct node *node = next_node(&turn_ns);

        if (MIN(turn_ns, network_ns) > until_ns) {
            world.now_ns = MAX(world.now_ns, until_ns);
            return;
        }
        world.now_ns = MAX(world.now_ns, MIN(turn_ns, network_ns));
        world.events++;
        if (network_ns <= turn_ns)
            network_step();
        else
            take_turn(node);
    }
}

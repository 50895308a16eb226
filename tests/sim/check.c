// check.c: see check.h.
#include "tests/sim/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/checked.h"
#include "tests/sim/services.h"

static char failure[1024];

void check_begin(void) { failure[0] = '\0'; }

const char *check_failure(void) { return failure[0] ? failure : NULL; }

void check_note(const char *format, ...)
{
    va_list arguments;

    if (failure[0])
        return;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
}

static const struct node *node_of(enum node_kind kind, const char *name)
{
    for (uint32_t i = 0; i < world.node_count; i++)
        if (world.nodes[i].kind == kind && (!name || !strcmp(world.nodes[i].name, name)))
            return &world.nodes[i];
    return NULL;
}

// Returns the node that holds a place's pages. NULL: several do, or it is not there.
static const struct node *holder_of(const struct place_view *place)
{
    if (place->name[0])
        return node_of(NODE_WORKER, place->name);
    return mesh_settings.stages == 1 && mesh_settings.pool_bytes ? node_of(NODE_S_PART, NULL) : NULL;
}

// A holder has no pages that the ledger does not count: those of sequences, kept ones, and releases that it has not answered.
static bool ledger_holds(const struct node *scheduler, char *out, size_t out_bytes)
{
    struct place_view place;

    for (uint32_t i = 0; scheduler_place(scheduler, i, &place); i++) {
        const struct node *holder = holder_of(&place);
        if (!place.up || !place.settled || !holder || !holder->up || holder->stopped)
            continue;
        const uint32_t held = holder->kind == NODE_WORKER ? worker_pages_used(holder) : s_part_pages_used(holder);
        REST(held <= place.pages_used, "%s holds %u pages, the ledger says %u", holder->name, held, place.pages_used);
    }
    return true;
}

bool check_always(void *arg)
{
    char text[256];

    (void)arg;
    for (uint32_t i = 0; !failure[0] && i < world.node_count; i++) {
        const struct node *node = &world.nodes[i];
        if (!node->up)
            continue;
        if (service_of(node)->holds && !service_of(node)->holds(node, text, sizeof text))
            check_note("%s", text);
        if (node->kind == NODE_SCHEDULER && !ledger_holds(node, text, sizeof text))
            check_note("%s", text);
    }
    return failure[0];
}

// The pages that a holder has are those of the ledger.
static bool places_rest(const struct node *scheduler, char *out, size_t out_bytes)
{
    struct place_view place;

    for (uint32_t i = 0; scheduler_place(scheduler, i, &place); i++) {
        const struct node *worker = place.name[0] ? node_of(NODE_WORKER, place.name) : NULL;
        const uint32_t held = worker ? worker_pages_used(worker) : 0;
        REST(place.up || !place.name[0], "%s is not up", place.name); // a local pool without pages is none
        REST(!worker || (held <= place.pages_used && place.pages_used - held <= place.pages_idle),
             "%s holds %u pages, the ledger says %u (%u of kept sequences)", place.name, held, place.pages_used, place.pages_idle);
    }
    return true;
}

bool check_rest(char *out, size_t out_bytes)
{
    for (uint32_t i = 0; i < world.node_count; i++)
        REST(world.nodes[i].up && !world.nodes[i].stopped, "%s is not up", world.nodes[i].name);
    for (uint32_t i = 0; i < world.node_count; i++)
        if (!service_of(&world.nodes[i])->rests(&world.nodes[i], out, out_bytes))
            return false;
    return places_rest(node_of(NODE_SCHEDULER, NULL), out, out_bytes);
}

void check_free(const char *place, uint64_t sequence)
{
    const struct node *scheduler = node_of(NODE_SCHEDULER, NULL);

    if (scheduler->up && scheduler_uses(scheduler, place, sequence))
        check_note("%llx is freed at %s while a step uses it", (unsigned long long)sequence, place[0] ? place : "the local pool");
}

void check_log(const char *id, const char *text)
{
    static const char *const impossible[] = {"API-LOG-GAP", "MOVE-REFUSED", "MESSAGES-LEFT"};

    for (uint32_t i = 0; i < ARRAY_COUNT(impossible); i++)
        if (!strcmp(id, impossible[i]))
            check_note("%s: %s", id, text);
}

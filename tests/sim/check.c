// check.c: see check.h.
#include "tests/sim/check.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/services.h"

static char failure[1024];

void check_begin(void) { failure[0] = '\0'; }

const char *check_failure(void) { return failure[0] ? failure : NULL; }

bool check_always(void *arg)
{
    (void)arg;
    return failure[0];
}

static const struct node *node_of(enum node_kind kind, const char *name)
{
    for (uint32_t i = 0; i < world.node_count; i++)
        if (world.nodes[i].kind == kind && (!name || !strcmp(world.nodes[i].name, name)))
            return &world.nodes[i];
    return NULL;
}

// The pages that a holder has are those of the ledger.
static bool places_rest(const struct node *scheduler, char *out, size_t out_bytes)
{
    struct place_view place;

    for (uint32_t i = 0; scheduler_place(scheduler, i, &place); i++) {
        if (!place.name[0])
            continue;
        const struct node *worker = node_of(NODE_WORKER, place.name);
        REST(place.up, "%s is not up", place.name);
        REST(worker && worker_pages_used(worker) == place.pages_used, "%s holds %u pages, the ledger says %u", place.name,
             worker ? worker_pages_used(worker) : 0, place.pages_used);
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
